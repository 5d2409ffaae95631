// The parts of a layer around its matrix products, which cuBLASLt computes.
#include "reduce.cuh"

struct Finish {
    Matrix sums, bias, output;
    u32 rows, is_biased, is_rectified, unused;
};

// output = activation(sums + bias), where cuBLASLt has no such epilogue.
ENTRY(finish_layer, Finish) {
    Place at = place_of_thread(args.rows, args.output.columns);
    if (!at.is_within) return;
    Quad quad = load_quad(args.sums, at.row, at.column, at.count);
    Quad bias = {};
    if (args.is_biased) bias = load_quad(args.bias, 0, at.column, at.count);
#pragma unroll
    for (u32 i = 0; i < QUAD; i++) {
        float x = quad.x[i] + bias.x[i];
        quad.x[i] = args.is_rectified && x < 0.0f ? 0.0f : x;
    }
    store_quad(args.output, at.row, at.column, at.count, quad);
}

struct Mask {
    Matrix output, gradient;
    // `[shares, columns]`, or null.
    Pair* partials;
    u32 rows, is_rectified;
    // Threads per row, four columns each: a power of two, at most 32.
    u32 lanes, unused;
};

// Sets the gradient to 0 where the output is not positive, and sums the remaining gradient over a share of the
// rows.
//
// The grid is (columns / 4 lanes) x shares; a block reads as many rows at once as its threads allow.
ENTRY(mask_gradient, Mask) {
    __shared__ Quad sums[THREADS_OF_mask_gradient];
    u32 columns = args.gradient.columns, rows_at_once = blockDim.x / args.lanes;
    u32 column = (blockIdx.x * args.lanes + threadIdx.x % args.lanes) * QUAD, lane = threadIdx.x / args.lanes;
    u32 each = (args.rows + gridDim.y - 1) / gridDim.y;
    u32 first = blockIdx.y * each, end = min(first + each, args.rows);
    Quad sum = {};
    if (column < columns) {
        u32 count = min(columns - column, QUAD);
#pragma unroll 4
        for (u32 row = first + lane; row < end; row += rows_at_once) {
            Quad g = load_quad(args.gradient, row, column, count);
            if (args.is_rectified) {
                Quad y = load_quad(args.output, row, column, count);
#pragma unroll
                for (u32 i = 0; i < QUAD; i++) g.x[i] = y.x[i] <= 0.0f ? 0.0f : g.x[i];
                store_quad(args.gradient, row, column, count, g);
            }
#pragma unroll
            for (u32 i = 0; i < QUAD; i++) sum.x[i] += g.x[i];
        }
    }
    if (!args.partials) return;
    // Pairwise reduction, which limits the rounding error.
    sums[threadIdx.x] = sum;
    for (u32 half = rows_at_once / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane >= half) continue;
        const Quad& other = sums[threadIdx.x + half * args.lanes];
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) sum.x[i] += other.x[i];
        sums[threadIdx.x] = sum;
    }
    if (lane > 0) return;
    for (u32 i = 0; i < QUAD && column + i < columns; i++) {
        args.partials[u64(blockIdx.y) * columns + column + i] = {sum.x[i], 0.0f};
    }
}

struct Columns {
    const Pair* partials;
    // Destinations of both sums; null if not wanted. Columns continue in the destination's next row.
    Matrix first, second;
    // The factor of each sum.
    float factor;
    // The number of columns, and the stride between shares.
    u32 columns, stride;
    u32 shares, adds, unused;
};

__device__ __forceinline__ void put(const Matrix& to, u32 column, float x, bool adds) {
    u32 row = column / to.columns, of_row = column % to.columns;
    if (to.data) store(to, row, of_row, adds ? load(to, row, of_row) + x : x);
}

// Adds up the shares of the rows.
ENTRY(finish_columns, Columns) {
    u32 column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= args.columns) return;
    Pair sum = {0.0f, 0.0f};
    for (u32 share = 0; share < args.shares; share++) sum = sum + args.partials[u64(share) * args.stride + column];
    put(args.first, column, sum.first * args.factor, args.adds);
    put(args.second, column, sum.second * args.factor, args.adds);
}
