// Allocations.
#include "copies.h"

using namespace stand_in;

namespace {

// Calls that a capture forbids ("potentially unsafe", cuThreadExchangeStreamCaptureMode) invalidate it.
CUresult forbidden(const char* function) {
    if (!driver().breaks_capture()) return CUDA_SUCCESS;
    return driver().refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, format("%s during a capture", function));
}

CUresult free_from(Arena& arena, std::uintptr_t address, const char* function) {
    size_t bytes = arena.at(address)->bytes;
    if (arena.free(address)) return CUDA_SUCCESS;
    // A device would not notice, but the write was outside of the allocation.
    current->error = driver().refuse(CUDA_ERROR_ILLEGAL_ADDRESS,
                                     format("%s: something was written just outside of an allocation of %zu bytes",
                                            function, bytes));
    return current->error;
}

}  // namespace

EXPORT CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
    ENTRY(context);
    *free = driver().memory_bytes - std::min(driver().memory_bytes, current->used);
    *total = driver().memory_bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
    ENTRY(context);
    if (CUresult fault = forbidden(__func__)) return fault;
    if (bytes == 0) return driver().refuse(CUDA_ERROR_INVALID_VALUE, "cuMemAlloc of 0 bytes");
    Context& it = *current;
    void* allocated = bytes > driver().memory_bytes - std::min(driver().memory_bytes, it.used)
                          ? nullptr
                          : driver().device_memory.allocate(bytes, it.device);
    if (allocated == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    it.used += bytes;
    it.most_used = std::max(it.most_used, it.used);
    *pointer = reinterpret_cast<CUdeviceptr>(allocated);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    ENTRY(context);
    if (CUresult fault = forbidden(__func__)) return fault;
    Context& it = *current;
    // Pending work may use the memory: cuMemFree waits for the context's work.
    if (CUresult fault = driver().wait(entry.lock, it, nullptr, [&] { return driver().is_idle(it); })) return fault;
    const Arena::Allocation* allocation = driver().device_memory.at(pointer);
    if (allocation == nullptr)
        return driver().refuse(CUDA_ERROR_INVALID_VALUE,
                               format("cuMemFree of %s", driver().device_memory.describe(pointer).c_str()));
    it.used -= allocation->bytes;
    return free_from(driver().device_memory, pointer, __func__);
}

EXPORT CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned flags) {
    ENTRY(context);
    if (CUresult fault = forbidden(__func__)) return fault;
    if (bytes == 0 || flags > 7) return driver().refuse(CUDA_ERROR_INVALID_VALUE, "cuMemHostAlloc: size or flags");
    *pointer = driver().host_memory.allocate(bytes, current->device);
    if (*pointer == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    current->locked += bytes;
    return CUDA_SUCCESS;
}

// Does not wait for work that uses the memory: the documentation does not promise it.
EXPORT CUresult cuMemFreeHost(void* pointer) {
    ENTRY(context);
    if (CUresult fault = forbidden(__func__)) return fault;
    auto address = reinterpret_cast<std::uintptr_t>(pointer);
    const Arena::Allocation* allocation = driver().host_memory.at(address);
    if (allocation == nullptr)
        return driver().refuse(CUDA_ERROR_INVALID_VALUE,
                               format("cuMemFreeHost of %s", driver().host_memory.describe(address).c_str()));
    current->locked -= allocation->bytes;
    return free_from(driver().host_memory, address, __func__);
}

EXPORT CUresult cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
    ENTRY(context);
    if (CUresult fault = forbidden(__func__)) return fault;
    if (bytes == 0 || flags > 15) return driver().refuse(CUDA_ERROR_INVALID_VALUE, "cuMemHostRegister: size or flags");
    auto address = reinterpret_cast<std::uintptr_t>(pointer);
    if (locked(address, bytes) != pageable)
        return driver().refuse(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "cuMemHostRegister of memory that is");
    driver().registered[address] = bytes;
    current->locked += bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostUnregister(void* pointer) {
    ENTRY(context);
    if (CUresult fault = forbidden(__func__)) return fault;
    auto found = driver().registered.find(reinterpret_cast<std::uintptr_t>(pointer));
    if (found == driver().registered.end())
        return driver().refuse(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "cuMemHostUnregister of memory that is not");
    current->locked -= found->second;
    driver().registered.erase(found);
    return CUDA_SUCCESS;
}
