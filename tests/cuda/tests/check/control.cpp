// Scripted faults, counts, devices, and concurrent callers.
#include "check.h"

#include <thread>

namespace {

void fail_call(Of library, const char* function, std::uint64_t nth, int code) {
    call<void>(library, "stand_in_fail", function, nth, code);
}

std::uint64_t calls(Of library, const char* function) {
    return call<std::uint64_t>(library, "stand_in_calls", function);
}

struct Fill {
    CUdeviceptr to;
    unsigned long long count;
    unsigned value;
};

}  // namespace

CASE(control_fails_the_nth_call) {
    begin();
    allocate(4);
    fail_call(cuda, "cuMemAlloc_v2", 2, CUDA_ERROR_OUT_OF_MEMORY);
    allocate(4);
    CUdeviceptr memory;
    EQUAL(cu("cuMemAlloc_v2", &memory, size_t(4)), CUDA_ERROR_OUT_OF_MEMORY);
    allocate(4);
    EQUAL(calls(cuda, "cuMemAlloc_v2"), 4u);
    EQUAL(calls(cuda, "cuMemFree_v2"), 0u);
    EQUAL(count("allocations"), 3u);
    EQUAL(count("no such thing"), ~std::uint64_t(0));
    fail_call(nvrtc, "nvrtcVersion", 1, 11);
    int major, minor;
    EQUAL(call(nvrtc, "nvrtcVersion", &major, &minor), 11);
    OK(call(nvrtc, "nvrtcVersion", &major, &minor));
    EQUAL(major, 13);
    fail_call(cublaslt, "cublasLtCreate", 1, 14);
    void* handle;
    EQUAL(call(cublaslt, "cublasLtCreate", &handle), 14);
    OK(call(cublaslt, "cublasLtCreate", &handle));
}

CASE(control_fails_work_that_runs) {
    begin();
    CUdeviceptr memory = allocate(4000);
    CUstream by = stream(), other = stream();
    fail_call(cuda, "work", 2, CUDA_ERROR_ECC_UNCORRECTABLE);
    for (unsigned i = 0; i < 3; ++i) OK(launch(kernel("fill"), 4, 256, by, Fill{memory, 1000, i}));
    CUevent done = event();
    OK(cu("cuEventRecord", done, by));
    EQUAL(cu("cuStreamSynchronize", by), CUDA_ERROR_ECC_UNCORRECTABLE);
    CHECK(message().find("fill failed by script") != std::string::npos);
    EQUAL(calls(cuda, "work"), 2u);
    // The context is lost, for all of its streams.
    EQUAL(cu("cuEventQuery", done), CUDA_ERROR_ECC_UNCORRECTABLE);
    EQUAL(cu("cuMemsetD32Async", memory, 0u, size_t(1), other), CUDA_ERROR_ECC_UNCORRECTABLE);
    EQUAL(cu("cuMemFree_v2", memory), CUDA_ERROR_ECC_UNCORRECTABLE);
}

CASE(control_fails_work_of_one_device) {
    begin();
    CUdeviceptr memory = allocate(4000);
    CUstream by = stream();
    fail_call(cuda, "work@1", 1, CUDA_ERROR_ECC_UNCORRECTABLE);
    fail_call(cuda, "work@0", 2, CUDA_ERROR_LAUNCH_FAILED);
    OK(launch(kernel("fill"), 4, 256, by, Fill{memory, 1000, 1}));
    OK(cu("cuStreamSynchronize", by));
    OK(launch(kernel("fill"), 4, 256, by, Fill{memory, 1000, 2}));
    EQUAL(cu("cuStreamSynchronize", by), CUDA_ERROR_LAUNCH_FAILED);
    EQUAL(calls(cuda, "work@1"), 0u);
}

CASE(control_by_the_environment) {
    // Before the library is loaded.
    setenv("MILLSTREAM_STAND_IN_MEMORY_BYTES", "5000", 1);
    setenv("MILLSTREAM_STAND_IN_DEVICES", "3", 1);
    setenv("MILLSTREAM_STAND_IN_FAIL", "cuMemAlloc_v2:2:2,cuStreamCreate:1:999", 1);
    begin();
    int devices = 0;
    OK(cu("cuDeviceGetCount", &devices));
    EQUAL(devices, 3);
    size_t bytes = 0;
    OK(cu("cuDeviceTotalMem_v2", &bytes, 2));
    EQUAL(bytes, 5000u);
    allocate(1);
    CUdeviceptr memory;
    EQUAL(cu("cuMemAlloc_v2", &memory, size_t(1)), CUDA_ERROR_OUT_OF_MEMORY);
    CUstream by;
    EQUAL(cu("cuStreamCreate", &by, 0u), CUDA_ERROR_UNKNOWN);
}

CASE(control_devices) {
    call<void>(cuda, "stand_in_devices", 0);
    EQUAL(cu("cuInit", 0u), CUDA_ERROR_NO_DEVICE);
    int value = 0, device = 0;
    EQUAL(cu("cuDeviceGetCount", &value), CUDA_ERROR_NOT_INITIALIZED);
    call<void>(cuda, "stand_in_devices", 2);
    OK(cu("cuInit", 0u));
    OK(cu("cuDeviceGet", &device, 1));
    EQUAL(cu("cuDeviceGet", &value, 2), CUDA_ERROR_INVALID_DEVICE);
    OK(cu("cuDeviceGetAttribute", &value, 75, device));
    EQUAL(value, 9);
    call<void>(cuda, "stand_in_attribute", 75, 6);
    OK(cu("cuDeviceGetAttribute", &value, 75, device));
    EQUAL(value, 6);
    call<void>(cuda, "stand_in_attribute", 75, 9);
    char name[20];
    OK(cu("cuDeviceGetName", static_cast<char*>(name), 20, device));
    CHECK(std::string(name) == "stand-in");
    CUdeviceptr memory;
    EQUAL(cu("cuMemAlloc_v2", &memory, size_t(1)), CUDA_ERROR_INVALID_CONTEXT);
    // A failed context does not affect another device's.
    CUcontext first, second;
    OK(cu("cuDevicePrimaryCtxRetain", &first, 0));
    OK(cu("cuDevicePrimaryCtxRetain", &second, 1));
    OK(cu("cuCtxSetCurrent", first));
    OK(launch(kernel("trap"), 1, 32, stream(), CUdeviceptr(0)));
    EQUAL(cu("cuCtxSynchronize"), CUDA_ERROR_ILLEGAL_INSTRUCTION);
    OK(cu("cuCtxSetCurrent", second));
    OK(cu("cuCtxSynchronize"));
    allocate(4);
}

CASE(control_names_of_errors) {
    const char* text = nullptr;
    OK(cu("cuGetErrorName", int(CUDA_ERROR_LAUNCH_FAILED), &text));
    CHECK(std::string(text) == "CUDA_ERROR_LAUNCH_FAILED");
    OK(cu("cuGetErrorString", int(CUDA_ERROR_OUT_OF_MEMORY), &text));
    CHECK(std::string(text) == "out of memory");
    EQUAL(cu("cuGetErrorString", 12345, &text), CUDA_ERROR_INVALID_VALUE);
    CHECK(call<const char*>(nvrtc, "nvrtcGetErrorString", 6) == std::string("NVRTC_ERROR_COMPILATION"));
    CHECK(call<const char*>(cublaslt, "cublasLtGetStatusString", 15) == std::string("CUBLAS_STATUS_NOT_SUPPORTED"));
}

CASE(control_threads_run_side_by_side) {
    begin();
    kernel("sum_by_halves");
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread < 4; ++thread)
        threads.emplace_back([thread] {
            begin();
            std::vector<float> numbers(2560);
            for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = float(i % (7 + thread));
            struct {
                CUdeviceptr from, to;
            } args{upload(numbers), allocate(40)};
            CUstream by = stream();
            for (unsigned i = 0; i < 100; ++i) {
                OK(launch(kernel(i % 2 ? "sum_by_lanes" : "sum_by_halves"), 10, 256, by, args, 32));
                auto sums = download<float>(args.to, 10);
                synchronize(by);
                sums = download<float>(args.to, 10);
                for (size_t block = 0; block < 10; ++block) {
                    float sum = 0;
                    for (size_t at = 0; at < 256; ++at) sum += numbers[block * 256 + at];
                    EQUAL(sums[block], sum);
                }
                OK(cu("cuMemsetD32Async", args.to, 0u, size_t(10), by));
            }
        });
    for (std::thread& thread : threads) thread.join();
}

CASE(control_a_seed_repeats_itself) {
    begin();
    kernel("sum_with_race");
    CUdeviceptr from = upload(std::vector<float>(2560, 1)), to = allocate(40);
    std::vector<std::vector<unsigned>> sums;  // as bits: some are NaN
    for (std::uint64_t seed : {7, 8, 7}) {
        struct {
            CUdeviceptr from, to;
        } args{from, to};
        call<void>(cuda, "stand_in_seed", seed);
        CUstream by = stream();
        OK(launch(kernel("sum_with_race"), 10, 256, by, args));
        synchronize(by);
        sums.push_back(download<unsigned>(to, 10));
    }
    CHECK(sums[0] == sums[2]);
    CHECK(sums[0] != sums[1]);
}
