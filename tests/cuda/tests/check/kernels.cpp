// Kernels: barriers, exchanges, atomics, and the detection of faulty kernels.
#include "check.h"

namespace {

template <typename Args>
void run(const char* name, unsigned grid, unsigned block, Args args, unsigned shared_bytes = 0) {
    CUstream by = stream();
    OK(launch(kernel(name), grid, block, by, args, shared_bytes));
    synchronize(by);
}

struct Sum {
    CUdeviceptr from, to;
};

std::vector<float> numbers(size_t count) {
    std::vector<float> numbers(count);
    for (size_t i = 0; i < count; ++i) numbers[i] = float(i * 37 % 101) - 50;
    return numbers;
}

// Runs a kernel on 100 blocks of 256 numbers, and returns whether it computes their sums.
bool sums(const char* name, unsigned shared_bytes) {
    std::vector<float> from = numbers(25600), to;
    Sum args{upload(from), allocate(400)};
    run(name, 100, 256, args, shared_bytes);
    to = download<float>(args.to, 100);
    bool right = true;
    for (size_t block = 0; block < 100; ++block) {
        float sum = 0;
        for (size_t i = 0; i < 256; ++i) sum += from[block * 256 + i];
        right &= to[block] == sum;
    }
    return right;
}

// The error code of a faulty kernel, which all later calls return; checks the message.
void fails(const char* name, unsigned block, CUdeviceptr at, CUresult code, const char* why) {
    CUfunction function = kernel(name);
    CUstream by = stream();
    OK(launch(function, 2, block, by, at, 64));
    EQUAL(cu("cuStreamSynchronize", by), code);
    if (message().find(why) == std::string::npos) fail(__FILE__, __LINE__, message() + " lacks " + why);
    EQUAL(cu("cuCtxSynchronize"), code);
    CUdeviceptr memory;
    EQUAL(cu("cuMemAlloc_v2", &memory, size_t(4)), code);
    // A context that is released and retained again is a new one.
    OK(cu("cuDevicePrimaryCtxRelease_v2", 0));
    begin();
    allocate(4);
}

}  // namespace

CASE(kernels_fill) {
    begin();
    struct {
        CUdeviceptr to;
        unsigned long long count;
        unsigned value;
    } args{allocate(4000), 1000, 7};
    run("fill", 4, 256, args);
    auto filled = download<unsigned>(args.to, 1000);
    for (unsigned i = 0; i < 1000; ++i) EQUAL(filled[i], i + 7);
}

CASE(kernels_sum_by_halves) {
    begin();
    CHECK(sums("sum_by_halves", 0));
}

CASE(kernels_sum_by_lanes) {
    begin();
    CHECK(sums("sum_by_lanes", 32));
}

CASE(kernels_missing_barrier_shows) {
    begin();
    CHECK(!sums("sum_with_race", 0));
}

CASE(kernels_lanes) {
    begin();
    CUdeviceptr to = allocate(1024 * 64);
    run("lanes", 1, 1024, to);
    auto all = download<unsigned>(to, 1024 * 16);
    for (unsigned thread = 0; thread < 1024; ++thread) {
        const unsigned* got = &all[thread * 16];
        unsigned lane = thread % 32, warp = thread - lane;
        EQUAL(got[0], warp + 5);
        EQUAL(got[1], warp + lane / 8 * 8 + 3);
        EQUAL(got[2], lane < 3 ? thread : thread - 3);
        EQUAL(got[3], lane % 16 + 9 < 16 ? thread + 9 : thread);
        EQUAL(got[4], thread ^ 5);
        EQUAL(got[5], 0x49249249u);
        EQUAL(got[6], 1u);
        EQUAL(got[7], 0u);
        EQUAL(got[8], 0x11111111u << lane % 4);
        EQUAL(got[9], lane < 16 ? (lane ^ 1) + (lane ^ 2) : lane ^ 1);
        EQUAL(got[10], 1u);
        EQUAL(got[11], 0u);
        EQUAL(got[12], 512u);
        EQUAL(got[13], 100 + 31 - lane);
        EQUAL(got[14], 1024u + 10000);
    }
}

CASE(kernels_atomics) {
    begin();
    CUdeviceptr memory = upload(std::vector<unsigned>(10, 0));
    struct {
        CUdeviceptr least, most, sum, total, ticket;
    } args{memory, memory + 4, memory + 8, memory + 16, memory + 20};
    run("atomics", 16, 256, args);
    auto got = download<unsigned>(memory, 10);
    EQUAL(int(got[0]), -500);
    EQUAL(got[1], 999u);
    unsigned long long sum;
    std::memcpy(&sum, &got[2], 8);
    EQUAL(sum, 4095ull * 4096 / 2 << 30);
    float total;
    std::memcpy(&total, &got[4], 4);
    EQUAL(total, 2048.0f);
    CHECK(got[5] <= 4096);
}

CASE(kernels_copies_arrive_when_they_are_waited_for) {
    begin();
    std::vector<unsigned long long> from(128);
    for (size_t i = 0; i < from.size(); ++i) from[i] = 1000 + i;
    struct {
        CUdeviceptr from, to;
    } args{upload(from), allocate(64 * 3 * 8)};
    run("copies", 1, 64, args);
    auto got = download<unsigned long long>(args.to, 64 * 3);
    for (size_t thread = 0; thread < 64; ++thread) {
        EQUAL(got[thread * 3], ~0ull);
        EQUAL(got[thread * 3 + 1], from[thread]);
        EQUAL(got[thread * 3 + 2], from[64 + thread]);
    }
}

CASE(kernels_copy_unaligned) {
    begin();
    fails("copy_unaligned", 32, upload(std::vector<int>(8, 0)), CUDA_ERROR_MISALIGNED_ADDRESS, "is not aligned to its size");
}

CASE(kernels_places) {
    begin();
    CUdeviceptr to = upload(std::vector<unsigned>(6 * 8 * 4, 0));
    void* parameters[] = {&to};
    CUstream by = stream();
    OK(cu("cuLaunchKernel", kernel("places"), 2u, 4u, 2u, 3u, 2u, 2u, 0u, by, static_cast<void**>(parameters),
          static_cast<void**>(nullptr)));
    auto got = download<unsigned>(to, 6 * 8 * 4);
    synchronize(by);
    got = download<unsigned>(to, 6 * 8 * 4);
    for (unsigned i = 0; i < got.size(); ++i) EQUAL(got[i], 1 + i % 6 + i / 6 % 8 * 100 + i / 48 * 10000);
}

CASE(kernels_arithmetic) {
    begin();
    CUdeviceptr to = upload(std::vector<unsigned long long>(14, 0));
    run("arithmetic", 1, 32, to);
    auto got = download<unsigned long long>(to, 14);
    const unsigned long long expected[] = {8,          11,         4,   0x80000000, 3,          0xc0000000, 0x41200000,
                                           0x3f000000, 0x3f800000, 200, 0x7fffffff, 0x40800020, 0x18,       3};
    for (size_t i = 0; i < got.size(); ++i) EQUAL(got[i], expected[i]);
}

CASE(kernels_shared_memory_is_poisoned) {
    begin();
    CUdeviceptr to = allocate(8 * 20);
    run("poisoned", 20, 32, to, 64);
    for (unsigned held : download<unsigned>(to, 40)) EQUAL(held, 0xffffffffu);
}

CASE(kernels_barrier_for_some) {
    begin();
    fails("barrier_for_some", 64, 0, CUDA_ERROR_LAUNCH_FAILED, "was reached by 63 of 64 threads; thread (63, 0, 0)");
}

CASE(kernels_barriers_apart) {
    begin();
    fails("barriers_apart", 64, 0, CUDA_ERROR_LAUNCH_FAILED, "while others wait at that at");
}

CASE(kernels_lane_missing) {
    begin();
    fails("lane_missing", 64, 0, CUDA_ERROR_LAUNCH_FAILED, "for lanes 00020000, which never come");
}

CASE(kernels_masks_apart) {
    begin();
    fails("masks_apart", 32, 0, CUDA_ERROR_LAUNCH_FAILED, "with mask ffffffff");
}

CASE(kernels_null) {
    begin();
    fails("store", 32, 0, CUDA_ERROR_ILLEGAL_ADDRESS, "where nothing was ever allocated by thread (9, 0, 0)");
}

CASE(kernels_beyond_an_allocation) {
    begin();
    fails("store", 32, allocate(1000) + 1024, CUDA_ERROR_ILLEGAL_ADDRESS, "byte 1024 of an allocation of 1000 bytes");
}

CASE(kernels_use_after_free) {
    begin();
    CUdeviceptr memory = allocate(1000);
    OK(cu("cuMemFree_v2", memory));
    fails("store", 32, memory + 8, CUDA_ERROR_ILLEGAL_ADDRESS, "byte 8 of an allocation of 1000 bytes that was freed");
}

// Neither a device nor aarch64 detects this, but the result is undefined.
#if defined(__x86_64__)
CASE(kernels_divide_by_0) {
    begin();
    fails("divide", 32, upload(std::vector<int>(32, 0)), CUDA_ERROR_LAUNCH_FAILED, "divided by 0");
}
#endif

CASE(kernels_trap) {
    begin();
    fails("trap", 32, 0, CUDA_ERROR_ILLEGAL_INSTRUCTION, "__trap()");
}

CASE(kernels_assert) {
    begin();
    fails("claim", 32, 0, CUDA_ERROR_ASSERT, "assert(threadIdx.x < 31)");
}

CASE(kernels_beyond_shared) {
    begin();
    fails("beyond_shared", 32, 0, CUDA_ERROR_ILLEGAL_ADDRESS, "beyond the dynamic shared memory");
}

CASE(kernels_stack_overrun) {
    begin();
    fails("overrun", 32, allocate(4), CUDA_ERROR_LAUNCH_FAILED, "the stack overrun");
}

CASE(kernels_go_on_after_a_failure) {
    begin();
    fails("barrier_for_some", 64, 0, CUDA_ERROR_LAUNCH_FAILED, "was reached by");
    CUmodule module =
        compile("struct A { int* to; }; KERNEL(one, 64, A) { __syncthreads(); args.to[threadIdx.x] = 1; }");
    CUfunction function;
    OK(cu("cuModuleGetFunction", &function, module, "one"));
    CUdeviceptr to = allocate(256);
    CUstream by = stream();
    OK(launch(function, 1, 64, by, to));
    synchronize(by);
    for (int value : download<int>(to, 64)) EQUAL(value, 1);
}

CASE(kernels_limits) {
    begin();
    CUfunction function = kernel("sum_by_lanes");
    CUstream by = stream();
    Sum args{};
    EQUAL(launch(function, 0, 256, by, args), CUDA_ERROR_INVALID_VALUE);
    EQUAL(launch(function, 1, 512, by, args), CUDA_ERROR_INVALID_VALUE);
    EQUAL(launch(function, 1, 256, by, args, 50000), CUDA_ERROR_INVALID_VALUE);
    EQUAL(launch(function, 1, 256, static_cast<CUstream>(nullptr), args), CUDA_ERROR_INVALID_HANDLE);
    OK(cu("cuFuncSetAttribute", function, 8, 227 << 10));
    EQUAL(cu("cuFuncSetAttribute", function, 8, 228 << 10), CUDA_ERROR_INVALID_VALUE);
    int value = 0;
    OK(cu("cuFuncGetAttribute", &value, 8, function));
    EQUAL(value, 227 << 10);
    OK(cu("cuFuncGetAttribute", &value, 0, function));
    EQUAL(value, 256);
    CUdeviceptr memory = upload(std::vector<float>(256, 1)), to = allocate(4);
    OK(launch(function, 1, 256, by, Sum{memory, to}, 200 << 10));
    synchronize(by);
    EQUAL(download<float>(to, 1)[0], 256.0f);
}
