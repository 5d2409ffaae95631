// Kernels for the checks.

struct Fill {
    unsigned* to;
    unsigned long long count;
    unsigned value;
};
// to[i] = value + i
KERNEL(fill, 256, Fill) {
    unsigned long long i = blockIdx.x * 256ull + threadIdx.x;
    if (i < args.count) args.to[i] = args.value + unsigned(i);
}

struct Sum {
    const float* from;
    float* to;  // one a block
};
// Sums of 256 numbers, by repeated halving in static shared memory.
KERNEL(sum_by_halves, 256, Sum) {
    __shared__ float sums[256];
    sums[threadIdx.x] = args.from[blockIdx.x * 256 + threadIdx.x];
    for (unsigned half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) args.to[blockIdx.x] = sums[0];
}
// The same with one barrier too few, so that the result depends on the order of threads.
KERNEL(sum_with_race, 256, Sum) {
    __shared__ float sums[256];
    sums[threadIdx.x] = args.from[blockIdx.x * 256 + threadIdx.x];
    for (unsigned half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) args.to[blockIdx.x] = sums[0];
}
// Sums by exchanges between lanes, and between warps through dynamic shared memory.
KERNEL(sum_by_lanes, 256, Sum) {
    SHARED_BYTES(bytes);
    float* warps = reinterpret_cast<float*>(bytes);
    float sum = args.from[blockIdx.x * 256 + threadIdx.x];
    for (int by = 16; by > 0; by /= 2) sum += __shfl_down_sync(0xffffffff, sum, by);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < 8 ? warps[threadIdx.x] : 0.0f;
        for (int by = 4; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffff, sum, by);
        if (threadIdx.x == 0) args.to[blockIdx.x] = sum;
    }
}

struct Lanes {
    unsigned* to;  // 16 a thread
};
KERNEL(lanes, 1024, Lanes) {
    unsigned* to = args.to + threadIdx.x * 16, lane = threadIdx.x % 32;
    to[0] = __shfl_sync(0xffffffff, threadIdx.x, 5);
    to[1] = __shfl_sync(0xffffffff, threadIdx.x, 3, 8);
    to[2] = __shfl_up_sync(0xffffffff, threadIdx.x, 3);
    to[3] = __shfl_down_sync(0xffffffff, threadIdx.x, 9, 16);
    to[4] = __shfl_xor_sync(0xffffffff, threadIdx.x, 5);
    to[5] = __ballot_sync(0xffffffff, lane % 3 == 0);
    to[6] = __any_sync(0xffffffff, lane == 7);
    to[7] = __all_sync(0xffffffff, lane < 31);
    to[8] = __match_any_sync(0xffffffff, lane % 4);
    // The halves of a warp separately, one of them more often.
    if (lane < 16) {
        to[9] = __shfl_xor_sync(0x0000ffff, lane, 1);
        to[9] += __shfl_xor_sync(0x0000ffff, lane, 2);
    } else {
        to[9] = __shfl_xor_sync(0xffff0000, lane, 1);
    }
    __syncwarp();
    to[10] = __syncthreads_or(threadIdx.x == 40);
    to[11] = __syncthreads_and(threadIdx.x != 40);
    to[12] = __syncthreads_count(threadIdx.x % 2);
    unsigned long long wide = __shfl_sync(0xffffffff, (1ull << 40) + lane, 31 - lane);
    to[13] = unsigned(wide >> 40) * 100 + unsigned(wide);
    to[14] = blockDim.x + gridDim.x * 10000;
}

struct Count {
    int* least;
    unsigned* most;
    unsigned long long* sum;
    float* total;
    unsigned* ticket;
};
KERNEL(atomics, 256, Count) {
    int i = int(blockIdx.x * 256 + threadIdx.x);
    atomicMin(args.least, i * 7 % 1000 - 500);
    atomicMax(args.most, unsigned(i * 7 % 1000));
    atomicAdd(args.sum, (unsigned long long)(i) << 30);
    atomicAdd(args.total, 0.5f);
    while (atomicCAS(args.ticket, unsigned(i), unsigned(i) + 1) == unsigned(i)) break;
}

struct Copied {
    const unsigned long long* from;
    unsigned long long* to;  // 3 a thread
};
// Asynchronous copies in two groups: what has arrived after a wait for the first, for both, and before either.
KERNEL(copies, 64, Copied) {
    __shared__ unsigned long long kept[2][64];
    unsigned thread = threadIdx.x;
    on_host::begin_copy(&kept[0][thread], args.from + thread, 8);
    on_host::end_group();
    on_host::begin_copy(&kept[1][thread], args.from + 64 + thread, 8);
    on_host::end_group();
    args.to[thread * 3] = kept[0][thread];
    on_host::wait_for_groups(1);
    args.to[thread * 3 + 1] = kept[0][thread] + (kept[1][thread] + 1);
    on_host::wait_for_groups(0);
    args.to[thread * 3 + 2] = kept[1][thread];
}

struct Nothing {
    int* at;
};
KERNEL(copy_unaligned, 32, Nothing) {
    __shared__ int kept[64];
    on_host::begin_copy(&kept[0], args.at + 1, 8);
}
KERNEL(barrier_for_some, 64, Nothing) {
    if (threadIdx.x < 63) __syncthreads();
}
KERNEL(barriers_apart, 64, Nothing) {
    if (threadIdx.x % 2) __syncthreads();
    else
        __syncthreads();
}
KERNEL(lane_missing, 64, Nothing) {
    if (threadIdx.x != 17) __shfl_sync(0xffffffff, 1, 0);
}
KERNEL(masks_apart, 32, Nothing) {
    __ballot_sync(threadIdx.x < 8 ? 0xffu : 0xffffffffu, 1);
}
KERNEL(store, 32, Nothing) {
    if (threadIdx.x == 9) *args.at = 1;
}
KERNEL(divide, 32, Nothing) { args.at[threadIdx.x] = 100 / args.at[threadIdx.x]; }
KERNEL(trap, 32, Nothing) {
    if (threadIdx.x == 3) __trap();
}
KERNEL(claim, 32, Nothing) { assert(threadIdx.x < 31); }
KERNEL(beyond_shared, 32, Nothing) {
    SHARED_BYTES(bytes);
    bytes[args.at == nullptr ? 4096 : 0] = 1;
}
__device__ __noinline__ int deep(int* at, int left) {
    volatile char room[4096];
    room[left % 4096] = 1;
    return left == 0 ? *at : deep(at, left - 1) + room[left % 4096];
}
KERNEL(overrun, 32, Nothing) { *args.at = deep(args.at, 1000); }

struct Poisoned {
    unsigned* to;  // 2 a block
};
KERNEL(poisoned, 32, Poisoned) {
    SHARED_BYTES(bytes);
    __shared__ unsigned fixed[32];
    if (threadIdx.x == 0) {
        args.to[blockIdx.x * 2] = fixed[7];
        args.to[blockIdx.x * 2 + 1] = *reinterpret_cast<unsigned*>(bytes + 60);
    }
    __syncthreads();
    fixed[threadIdx.x] = 1;
    bytes[threadIdx.x + 32] = 1;
}

struct Grid {
    unsigned* to;
};
// The indices of each thread of a three-dimensional grid.
KERNEL(places, 1024, Grid) {
    unsigned width = gridDim.x * blockDim.x, height = gridDim.y * blockDim.y;
    unsigned x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y,
             z = blockIdx.z * blockDim.z + threadIdx.z;
    atomicAdd(&args.to[x + width * (y + height * z)], 1 + x + 100 * y + 10000 * z);
}

struct Bits {
    unsigned long long* to;
};
KERNEL(arithmetic, 32, Bits) {
    if (threadIdx.x != 0) return;
    unsigned long long* to = args.to;
    to[0] = __popc(0xf0f0u);
    to[1] = __clz(1 << 20);
    to[2] = __ffs(8);
    to[3] = __brev(1u);
    to[4] = __umulhi(0x80000000u, 6u);
    to[5] = __float_as_uint(-2.0f);
    to[6] = __float_as_uint(fmaf(2.0f, 3.0f, 4.0f));
    to[7] = __float_as_uint(rsqrtf(4.0f));
    to[8] = __float_as_uint(fmaxf(__int_as_float(0x7fc00000), 1.0f));
    to[9] = unsigned(__float2int_rn(2.5f)) * 100 + unsigned(__float2int_rz(-0.5f));
    to[10] = unsigned(__float2int_rn(3e9f));
    to[11] = __float_as_uint(make_float4(1, 2, 3, 4).w) + sizeof(float4) + alignof(float4);
    to[12] = __funnelshift_l(0x80000001u, 0x1u, 4);
    to[13] = unsigned(min(-1, 2)) + max(3u, 4u);
}

struct Scale {
    unsigned* number;
    unsigned by, more;
};
// number = number * by + more
KERNEL(scale, 1, Scale) { *args.number = *args.number * args.by + args.more; }
