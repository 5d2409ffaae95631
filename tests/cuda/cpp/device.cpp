// The device, its primary context, and the names of errors.
#include <algorithm>

#include "driver.h"

// From the linked variant: 12080 is CUDA 12.8.
extern "C" const int stand_in_version;

using namespace stand_in;

namespace {

// The attributes of an H100.
int usual(int attribute) {
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return most_threads;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X: return 1024;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return 1024;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return 64;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 0x7fffffff;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: return 65535;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 48 << 10;
        case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: return 64 << 10;
        case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: return 65536;
        case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return 1'980'000;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return 132;
        case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY: return 1;
        case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS: return 1;
        case CU_DEVICE_ATTRIBUTE_ECC_ENABLED: return 1;
        case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return 1;
        case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return 2'619'000;
        case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return 5120;
        case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return 50 << 20;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return 2048;
        case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return 3;
        case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: return 1;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return 9;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return 0;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return 228 << 10;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return 65536;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return int(most_shared_bytes);
        case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED: return 1;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return 32;
        case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: return 1024;
        case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED: return 1;
        default: return 0;
    }
}

bool has(CUdevice device) { return device >= 0 && device < driver().devices; }

}  // namespace

int stand_in_attribute_of_device(int attribute) {
    auto set = driver().attributes.find(attribute);
    return set == driver().attributes.end() ? usual(attribute) : set->second;
}

EXPORT CUresult cuInit(unsigned flags) {
    ENTRY(nothing);
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    // "CUDA_ERROR_NO_DEVICE: no CUDA-capable devices were detected" is reported already here.
    if (driver().devices == 0) return CUDA_ERROR_NO_DEVICE;
    driver().is_initialised = true;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int* version) {
    ENTRY(nothing);
    *version = stand_in_version;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char** name) {
    switch (error) {
#define RESULT(it, number, text) \
    case number: *name = #it; return CUDA_SUCCESS;
        CUDA_RESULTS(RESULT)
#undef RESULT
    }
    *name = nullptr;
    return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char** string) {
    switch (error) {
#define RESULT(it, number, text) \
    case number: *string = text; return CUDA_SUCCESS;
        CUDA_RESULTS(RESULT)
#undef RESULT
    }
    *string = nullptr;
    return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuDeviceGetCount(int* count) {
    ENTRY(initialised);
    *count = driver().devices;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    ENTRY(initialised);
    if (!has(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
    ENTRY(initialised);
    if (!has(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (length < 1) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(name, size_t(length), "stand-in");
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
    ENTRY(initialised);
    if (!has(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (attribute < 1) return CUDA_ERROR_INVALID_VALUE;
    *value = stand_in_attribute_of_device(attribute);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
    ENTRY(initialised);
    if (!has(device)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = driver().memory_bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    ENTRY(initialised);
    if (!has(device)) return CUDA_ERROR_INVALID_DEVICE;
    ++driver().contexts[device].retained;
    *context = reinterpret_cast<CUcontext>(&driver().contexts[device]);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    ENTRY(initialised);
    if (!has(device)) return CUDA_ERROR_INVALID_DEVICE;
    Context& it = driver().contexts[device];
    if (it.retained == 0) return driver().refuse(CUDA_ERROR_INVALID_CONTEXT, "a context released once too often");
    if (it.retained == 1) {
        // The last release destroys the context, everything it owns, and its error.
        driver().wait(entry.lock, it, nullptr, [&] { return driver().is_idle(it); });
        driver().reset(it);
    } else {
        --it.retained;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext handle) {
    ENTRY(initialised);
    auto* it = reinterpret_cast<Context*>(handle);
    bool known = it == nullptr || std::any_of(std::begin(driver().contexts), std::end(driver().contexts),
                                              [&](const Context& other) { return &other == it && it->retained > 0; });
    if (!known) return driver().refuse(CUDA_ERROR_INVALID_CONTEXT, "cuCtxSetCurrent: no such context");
    current = it;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize() {
    ENTRY(context);
    if (driver().breaks_capture())
        return driver().refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuCtxSynchronize during a capture");
    Context& it = *current;
    return driver().wait(entry.lock, it, nullptr, [&] { return driver().is_idle(it); });
}
