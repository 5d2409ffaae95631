// Reductions whose order depends on shapes alone.
#pragma once

#include "device.cuh"

// The row of this thread's warp, in grids with one warp per row.
__device__ __forceinline__ u32 row_of_warp() {
    return (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
}

// The sum over a warp's lanes, returned to each lane.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (u32 distance = WARP / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
        // fmaxf would drop a NaN.
        float other = __shfl_xor_sync(0xffffffffu, x, distance);
        x = other > x || other != other ? other : x;
    }
    return x;
}

// The sum over a block's threads, returned to each thread. The block consists of whole warps.
__device__ __forceinline__ float block_sum(float x) {
    __shared__ float sums[WARP];
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = x;
    __syncthreads();
    x = threadIdx.x % WARP < blockDim.x / WARP ? sums[threadIdx.x % WARP] : 0.0f;
    return warp_sum(x);
}

// Two sums computed together.
struct Pair {
    float first, second;
};

__device__ __forceinline__ Pair operator+(Pair a, Pair b) {
    return {a.first + b.first, a.second + b.second};
}

// Columns per block, and rows that a block reads at once; blocks have `COLUMN_THREADS` threads.
constexpr u32 COLUMNS = 32;
constexpr u32 ROW_LANES = 8;
constexpr u32 COLUMN_THREADS = COLUMNS * ROW_LANES;

// Calls `use(column, sum)` with the sum of `of(row, column)` over the rows from `first` to `end`, for the 32 columns of this block.
//
// Each lane of the block sums every eighth row; the lanes are then summed.
template <typename F, typename G>
__device__ __forceinline__ void sum_columns(u32 first, u32 end, u32 columns, F of, G use) {
    __shared__ Pair sums[ROW_LANES][COLUMNS];
    u32 column = blockIdx.x * COLUMNS + threadIdx.x % COLUMNS, lane = threadIdx.x / COLUMNS;
    Pair sum = {0.0f, 0.0f};
    if (column < columns) {
        for (u32 row = first + lane; row < end; row += ROW_LANES) sum = sum + of(row, column);
    }
    sums[lane][threadIdx.x % COLUMNS] = sum;
    __syncthreads();
    if (lane > 0 || column >= columns) return;
    for (u32 other = 1; other < ROW_LANES; other++) sum = sum + sums[other][threadIdx.x];
    use(column, sum);
}

// Sums `of(row, column)` over a share of the rows: `partials[share][column]`. The grid is (columns / 32) x shares.
template <typename F>
__device__ __forceinline__ void column_sums(u32 rows, u32 columns, Pair* partials, F of) {
    u32 each = (rows + gridDim.y - 1) / gridDim.y;
    u32 first = blockIdx.y * each, end = min(first + each, rows);
    sum_columns(first, end, columns, of, [&](u32 column, Pair sum) {
        partials[u64(blockIdx.y) * columns + column] = sum;
    });
}
