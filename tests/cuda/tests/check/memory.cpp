// Allocations, copies and fills.
#include "check.h"

CASE(memory_is_counted_and_limited) {
    begin();
    call<void>(cuda, "stand_in_memory", std::uint64_t(10000));
    CUdeviceptr first = allocate(6000), second = 0;
    EQUAL(cu("cuMemAlloc_v2", &second, size_t(4001)), CUDA_ERROR_OUT_OF_MEMORY);
    second = allocate(4000);
    size_t free = 1, total = 0;
    OK(cu("cuMemGetInfo_v2", &free, &total));
    EQUAL(free, 0u);
    EQUAL(total, 10000u);
    OK(cu("cuMemFree_v2", first));
    EQUAL(count("bytes"), 4000u);
    EQUAL(count("most bytes"), 10000u);
    EQUAL(count("allocations"), 1u);
    EQUAL(cu("cuMemAlloc_v2", &second, size_t(0)), CUDA_ERROR_INVALID_VALUE);
}

CASE(memory_is_poisoned) {
    begin();
    for (size_t bytes : {1, 255, 4096, 100001}) {
        CUdeviceptr memory = allocate(bytes);
        EQUAL(memory % 256, 0u);
        for (unsigned char byte : download<unsigned char>(memory, bytes)) EQUAL(byte, 0xff);
    }
}

CASE(memory_that_is_not_touched_takes_none) {
    begin();
    call<void>(cuda, "stand_in_memory", std::uint64_t(64) << 30);
    size_t bytes = (size_t(60) << 30) + 100;
    CUdeviceptr memory = allocate(bytes);
    for (CUdeviceptr at : {memory, memory + (size_t(31) << 30), memory + bytes - 16})
        for (unsigned char byte : download<unsigned char>(at, 16)) EQUAL(byte, 0xff);
    CUstream by = stream();
    OK(cu("cuMemsetD8Async", memory + (size_t(31) << 30), static_cast<unsigned char>(3), size_t(16), by));
    synchronize(by);
    EQUAL(download<unsigned char>(memory + (size_t(31) << 30), 16)[15], 3);
    EQUAL(download<unsigned char>(memory + (size_t(31) << 30) + (size_t(16) << 20), 1)[0], 0xff);
    OK(cu("cuMemFree_v2", memory));
}

CASE(memory_is_freed_once) {
    begin();
    CUdeviceptr memory = allocate(100);
    EQUAL(cu("cuMemFree_v2", memory + 1), CUDA_ERROR_INVALID_VALUE);
    OK(cu("cuMemFree_v2", memory));
    EQUAL(cu("cuMemFree_v2", memory), CUDA_ERROR_INVALID_VALUE);
    CHECK(message().find("that was freed") != std::string::npos);
    void* host = locked<char>(100);
    EQUAL(count("page-locked bytes"), 100u);
    OK(cu("cuMemFreeHost", host));
    EQUAL(cu("cuMemFreeHost", host), CUDA_ERROR_INVALID_VALUE);
    EQUAL(count("page-locked bytes"), 0u);
}

CASE(memory_writes_beside_it_are_found) {
    begin();
    CUdeviceptr memory = allocate(100);
    *reinterpret_cast<char*>(memory + 100) = 0;
    EQUAL(cu("cuMemFree_v2", memory), CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(message().find("just outside of an allocation of 100 bytes") != std::string::npos);
}

CASE(memory_copies_are_checked) {
    begin();
    CUdeviceptr memory = allocate(100), other = allocate(100);
    CUstream by = stream();
    std::vector<char> host(200);
    const void* from = host.data();
    OK(cu("cuMemcpyHtoDAsync_v2", memory, from, size_t(100), by));
    EQUAL(cu("cuMemcpyHtoDAsync_v2", memory, from, size_t(101), by), CUDA_ERROR_INVALID_VALUE);
    EQUAL(cu("cuMemcpyHtoDAsync_v2", memory + 50, from, size_t(51), by), CUDA_ERROR_INVALID_VALUE);
    void* to = host.data();
    EQUAL(cu("cuMemcpyDtoHAsync_v2", to, memory - 1, size_t(1), by), CUDA_ERROR_INVALID_VALUE);
    EQUAL(cu("cuMemcpyDtoDAsync_v2", other, memory, size_t(101), by), CUDA_ERROR_INVALID_VALUE);
    EQUAL(cu("cuMemsetD8Async", memory, static_cast<unsigned char>(0), size_t(101), by), CUDA_ERROR_INVALID_VALUE);
    EQUAL(cu("cuMemsetD32Async", memory + 2, 0u, size_t(1), by), CUDA_ERROR_INVALID_VALUE);
    OK(cu("cuMemcpyDtoDAsync_v2", other, memory, size_t(0), by));
    OK(cu("cuMemFree_v2", other));
    EQUAL(cu("cuMemcpyDtoDAsync_v2", other, memory, size_t(1), by), CUDA_ERROR_INVALID_VALUE);
    by = nullptr;
    EQUAL(cu("cuMemcpyDtoDAsync_v2", memory, memory, size_t(1), by), CUDA_ERROR_INVALID_HANDLE);
}

CASE(memory_page_locked_must_outlive_copies) {
    begin();
    CUdeviceptr memory = allocate(100);
    CUstream by = stream();
    const void* host = locked<char>(100);
    OK(cu("cuMemcpyHtoDAsync_v2", memory, host, size_t(100), by));
    OK(cu("cuMemFreeHost", const_cast<void*>(host)));
    EQUAL(cu("cuStreamSynchronize", by), CUDA_ERROR_ILLEGAL_ADDRESS);
}

CASE(memory_is_registered_once) {
    begin();
    std::vector<char> host(10000);
    void* memory = host.data();
    OK(cu("cuMemHostRegister_v2", memory, size_t(5000), 0u));
    EQUAL(cu("cuMemHostRegister_v2", memory, size_t(10000), 0u), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    CUdeviceptr to = allocate(10000);
    EQUAL(cu("cuMemcpyHtoDAsync_v2", to, static_cast<const void*>(memory), size_t(10000), stream()),
          CUDA_ERROR_INVALID_VALUE);
    OK(cu("cuMemHostUnregister", memory));
    EQUAL(cu("cuMemHostUnregister", memory), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

CASE(memory_copies_of_rows) {
    begin();
    // Rows of 3 bytes from an 8 x 10 matrix to a 5 x 6 matrix and back.
    std::vector<unsigned char> from(80), to(80);
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i);
    CUdeviceptr memory = upload(std::vector<unsigned char>(30, 200));
    CUstream by = stream();
    CUDA_MEMCPY2D copy{};
    copy.srcXInBytes = 2, copy.srcY = 1, copy.srcMemoryType = CU_MEMORYTYPE_HOST, copy.srcHost = from.data();
    copy.srcPitch = 10;
    copy.dstXInBytes = 1, copy.dstY = 2, copy.dstMemoryType = CU_MEMORYTYPE_DEVICE, copy.dstDevice = memory;
    copy.dstPitch = 6;
    copy.WidthInBytes = 3, copy.Height = 3;
    OK(cu("cuMemcpy2DAsync_v2", static_cast<const CUDA_MEMCPY2D*>(&copy), by));
    std::swap(from, to);
    synchronize(by);
    auto got = download<unsigned char>(memory, 30);
    for (size_t i = 0; i < 30; ++i) {
        size_t row = i / 6, column = i % 6;
        bool inside = row >= 2 && column >= 1 && column < 4;
        EQUAL(got[i], inside ? (row - 1) * 10 + column + 1 : 200);
    }
    copy.Height = 4;
    EQUAL(cu("cuMemcpy2DAsync_v2", static_cast<const CUDA_MEMCPY2D*>(&copy), by), CUDA_ERROR_INVALID_VALUE);
    copy.Height = 3, copy.dstPitch = 2;
    EQUAL(cu("cuMemcpy2DAsync_v2", static_cast<const CUDA_MEMCPY2D*>(&copy), by), CUDA_ERROR_INVALID_VALUE);
}

CASE(memory_goes_with_its_context) {
    CUcontext context = begin();
    allocate(100);
    locked<char>(10);
    CUstream by = stream();
    OK(cu("cuDevicePrimaryCtxRelease_v2", 0));
    EQUAL(count("allocations"), 0u);
    EQUAL(count("streams"), 0u);
    CUdeviceptr memory;
    EQUAL(cu("cuMemAlloc_v2", &memory, size_t(4)), CUDA_ERROR_INVALID_CONTEXT);
    EQUAL(cu("cuDevicePrimaryCtxRelease_v2", 0), CUDA_ERROR_INVALID_CONTEXT);
    EQUAL(cu("cuCtxSetCurrent", context), CUDA_ERROR_INVALID_CONTEXT);
    begin();
    EQUAL(cu("cuStreamSynchronize", by), CUDA_ERROR_INVALID_HANDLE);
}
