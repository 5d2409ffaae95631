// Sums, in an order that follows from shapes alone.
#pragma once

#include "device.cuh"

// The row of this thread's warp, where each warp has one.
__device__ __forceinline__ u32 row_of_warp() {
    return (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
}

// Of all lanes of a warp, to each.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (u32 distance = WARP / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
        // Not fmaxf, which loses a NaN.
        float other = __shfl_xor_sync(0xffffffffu, x, distance);
        x = other > x || other != other ? other : x;
    }
    return x;
}

// Of all threads of a block, of whole warps, to each.
__device__ __forceinline__ float block_sum(float x) {
    __shared__ float sums[WARP];
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = x;
    __syncthreads();
    x = threadIdx.x % WARP < blockDim.x / WARP ? sums[threadIdx.x % WARP] : 0.0f;
    return warp_sum(x);
}

// Two sums at once.
struct Pair {
    float first, second;
};

__device__ __forceinline__ Pair operator+(Pair a, Pair b) {
    return {a.first + b.first, a.second + b.second};
}

// Rows that a block sums in one go, of so many columns; blocks of `COLUMN_THREADS` threads.
constexpr u32 COLUMNS = 32;
constexpr u32 ROW_LANES = 8;
constexpr u32 COLUMN_THREADS = COLUMNS * ROW_LANES;

// The sums of `of(row, column)` over a share of the rows, for 32 columns: `partials[share][column]`.
//
// A grid of (columns / 32) x shares: each block sums every eighth row by a lane, and then the lanes.
template <typename F>
__device__ __forceinline__ void column_sums(u32 rows, u32 columns, Pair* partials, F of) {
    __shared__ Pair sums[ROW_LANES][COLUMNS];
    u32 column = blockIdx.x * COLUMNS + threadIdx.x % COLUMNS, lane = threadIdx.x / COLUMNS;
    u32 each = (rows + gridDim.y - 1) / gridDim.y;
    u32 first = blockIdx.y * each, end = min(first + each, rows);
    Pair sum = {0.0f, 0.0f};
    if (column < columns) {
        for (u32 row = first + lane; row < end; row += ROW_LANES) sum = sum + of(row, column);
    }
    sums[lane][threadIdx.x % COLUMNS] = sum;
    __syncthreads();
    if (lane == 0 && column < columns) {
        for (u32 other = 1; other < ROW_LANES; other++) sum = sum + sums[other][threadIdx.x];
        partials[u64(blockIdx.y) * columns + column] = sum;
    }
}
