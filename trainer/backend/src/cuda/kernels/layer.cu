// What surrounds the products of a layer, which are a library's.
#include "reduce.cuh"

struct Finish {
    Matrix sums, bias, output;
    u32 rows, is_biased, is_rectified, unused;
};

// output = activation(sums + bias): where the library cannot do so itself.
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
    Pair* partials;
    u32 rows, is_rectified;
};

// Zeros in the gradient where the output is not above 0, and the sums of what is left over the rows.
ENTRY(mask_gradient, Mask) {
    column_sums(args.rows, args.gradient.columns, args.partials, [&](u32 row, u32 column) {
        float g = load(args.gradient, row, column);
        if (args.is_rectified && load(args.output, row, column) <= 0.0f) {
            g = 0.0f;
            store(args.gradient, row, column, g);
        }
        return Pair{g, 0.0f};
    });
}

struct Columns {
    const Pair* partials;
    // Where each of both goes; null of what is not wanted. Rows of it follow on each other.
    Matrix first, second;
    // What each is multiplied by.
    float factor;
    // How many there are, and from one share to the next.
    u32 columns, stride;
    u32 shares, adds, unused;
};

__device__ __forceinline__ void put(const Matrix& to, u32 column, float x, bool adds) {
    u32 row = column / to.columns, of_row = column % to.columns;
    if (to.data) store(to, row, of_row, adds ? load(to, row, of_row) + x : x);
}

// The sums of all shares of the rows.
ENTRY(finish_columns, Columns) {
    u32 column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= args.columns) return;
    Pair sum = {0.0f, 0.0f};
    for (u32 share = 0; share < args.shares; share++) sum = sum + args.partials[u64(share) * args.stride + column];
    put(args.first, column, sum.first * args.factor, args.adds);
    put(args.second, column, sum.second * args.factor, args.adds);
}
