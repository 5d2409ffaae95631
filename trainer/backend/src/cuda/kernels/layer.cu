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
    // Threads per row if each has four columns: a power of two, at most 32.
    u32 lanes, unused;
};

// Rows that a thread loads before it uses the first.
constexpr u32 ROWS_AHEAD = 4;

// Up to eight consecutive columns of a row. A row needs half as many threads as with quads.
struct Eight {
    float x[EIGHT];
};

__device__ __forceinline__ bool has_eights(const Matrix& m) {
    return m.format != F32 && m.stride % EIGHT == 0 && m.columns % EIGHT == 0;
}

__device__ __forceinline__ float number_of(u32 format, const uint4& eight, u32 i) {
    u32 words[4] = {eight.x, eight.y, eight.z, eight.w};
    u16 bits = u16(words[i / 2] >> 16 * (i % 2));
    return format == BF16 ? from_bf16(bits) : from_f16(bits);
}

// A mask of the bits of all numbers but those that are 0 or negative.
__device__ __forceinline__ uint4 positive(u32 format, const uint4& eight) {
    u32 masks[4] = {};
#pragma unroll
    for (u32 i = 0; i < EIGHT; i++) {
        // NaN is neither.
        if (!(number_of(format, eight, i) <= 0.0f)) masks[i / 2] |= 0xffffu << 16 * (i % 2);
    }
    return make_uint4(masks[0], masks[1], masks[2], masks[3]);
}

// Masks every `rows_at_once`th row from `first` on, and sums what is left.
__device__ __forceinline__ Eight mask_eights(const Mask& args, u32 first, u32 end, u32 rows_at_once, u32 column) {
    Eight sum = {};
    const u16* outputs = (const u16*)args.output.data + column;
    u16* gradients = (u16*)args.gradient.data + column;
    for (u32 row = first; row < end; row += ROWS_AHEAD * rows_at_once) {
        uint4 gradient[ROWS_AHEAD] = {}, output[ROWS_AHEAD] = {};
#pragma unroll
        for (u32 i = 0; i < ROWS_AHEAD; i++) {
            u64 at = row + i * rows_at_once;
            if (at >= end) break;
            gradient[i] = *(const uint4*)(gradients + at * args.gradient.stride);
            if (args.is_rectified) output[i] = *(const uint4*)(outputs + at * args.output.stride);
        }
#pragma unroll
        for (u32 i = 0; i < ROWS_AHEAD; i++) {
            u64 at = row + i * rows_at_once;
            if (at >= end) break;
            uint4 g = gradient[i];
            if (args.is_rectified) {
                uint4 kept = positive(args.output.format, output[i]);
                g = make_uint4(g.x & kept.x, g.y & kept.y, g.z & kept.z, g.w & kept.w);
                *(uint4*)(gradients + at * args.gradient.stride) = g;
            }
#pragma unroll
            for (u32 k = 0; k < EIGHT; k++) sum.x[k] += number_of(args.gradient.format, g, k);
        }
    }
    return sum;
}

// The same for other formats and shapes, in quads.
__device__ __forceinline__ Eight mask_quads(const Mask& args, u32 first, u32 end, u32 rows_at_once, u32 column) {
    Eight sum = {};
    u32 count = min(args.gradient.columns - column, QUAD);
#pragma unroll 4
    for (u32 row = first; row < end; row += rows_at_once) {
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
    return sum;
}

// Sets the gradient to 0 where the output is not positive, and sums the remaining gradient over a share of the
// rows.
//
// The grid is (columns / 4 lanes) x shares; a block reads as many rows at once as its threads allow.
ENTRY(mask_gradient, Mask) {
    __shared__ Eight sums[THREADS_OF_mask_gradient];
    bool by_eights = args.lanes > 1 && has_eights(args.gradient) && (!args.is_rectified || has_eights(args.output));
    u32 lanes = by_eights ? args.lanes / 2 : args.lanes, each_columns = by_eights ? EIGHT : QUAD;
    u32 columns = args.gradient.columns, rows_at_once = blockDim.x / lanes;
    u32 column = (blockIdx.x * lanes + threadIdx.x % lanes) * each_columns, lane = threadIdx.x / lanes;
    u32 each = (args.rows + gridDim.y - 1) / gridDim.y;
    u32 first = blockIdx.y * each, end = min(first + each, args.rows);
    Eight sum = {};
    if (column < columns) {
        sum = by_eights ? mask_eights(args, first + lane, end, rows_at_once, column)
                        : mask_quads(args, first + lane, end, rows_at_once, column);
    }
    if (!args.partials) return;
    // Pairwise reduction, which limits the rounding error.
    sums[threadIdx.x] = sum;
    for (u32 half = rows_at_once / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane >= half) continue;
        const Eight& other = sums[threadIdx.x + half * lanes];
#pragma unroll
        for (u32 i = 0; i < EIGHT; i++) sum.x[i] += other.x[i];
        sums[threadIdx.x] = sum;
    }
    if (lane > 0) return;
    for (u32 i = 0; i < each_columns && column + i < columns; i++) {
        args.partials[u64(blockIdx.y) * columns + column + i] = {sum.x[i], 0.0f};
    }
}

struct Weigh {
    Matrix input, gradient;
    Pair* partials;
    u32 rows, unused;
};

// The weight gradient of a layer with one output, for a share of the rows: the sum of the inputs, weighted by the output's
// gradient. As a matrix product, it would have one column, for which the library has no fast kernel.
ENTRY(weigh_inputs, Weigh) {
    column_sums(args.rows, args.input.columns, args.partials, [&](u32 row, u32 column) {
        return Pair{load(args.input, row, column) * load(args.gradient, row, 0), 0.0f};
    });
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
    auto of = [&](u32 share, u32 column) { return args.partials[u64(share) * args.stride + column]; };
    sum_columns(0, args.shares, args.columns, of, [&](u32 column, Pair sum) {
        put(args.first, column, sum.first * args.factor, args.adds);
        put(args.second, column, sum.second * args.factor, args.adds);
    });
}
