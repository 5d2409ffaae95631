// Prefix sums.
#pragma once

#include "device.cuh"

constexpr u32 SCAN_THREADS = 256;
constexpr u32 SCAN_WARPS = SCAN_THREADS / WARP;

// Exclusive prefix sum within a warp.
__device__ __forceinline__ u32 sum_before(u32 x) {
    u32 sum = x;
#pragma unroll
    for (u32 distance = 1; distance < WARP; distance *= 2) {
        u32 other = __shfl_up_sync(0xffffffffu, sum, distance);
        if (threadIdx.x % WARP >= distance) sum += other;
    }
    return sum - x;
}

// Exclusive prefix sum within a block of `SCAN_THREADS`, and the block's total.
__device__ __forceinline__ u32 block_sum_before(u32 x, u32& total) {
    __shared__ u32 sums[SCAN_WARPS];
    u32 before = sum_before(x), warp = threadIdx.x / WARP;
    __syncthreads();
    if (threadIdx.x % WARP == WARP - 1) sums[warp] = before + x;
    __syncthreads();
    u32 of_warps = 0;
    total = 0;
    for (u32 i = 0; i < SCAN_WARPS; i++) {
        if (i < warp) of_warps += sums[i];
        total += sums[i];
    }
    return of_warps + before;
}
