// Attention over the values of a sequence: Zhou et al., 2018, section 4.3. Value `v` of row `b` is row `b * values + v`
// of `pairs` and `scores`; the vectors of values that a row lacks are zeros.
#include "device.cuh"

struct Attention {
    Matrix vectors, pairs, scores, sum, vectors_grad;
    // The first column of the values' vectors and of the target's.
    u32 first, target;
    u32 values, width, rows;
    // The first column of the sum in `sum`.
    u32 first_column;
};

// Column `column` of the vector of value `value`.
__device__ __forceinline__ float value_at(const Attention& args, u32 row, u32 value, u32 column) {
    return load(args.vectors, row, args.first + value * args.width + column);
}

// One thread per column of a value: [e, t, e - t, e * t].
ENTRY(pair_forward, Attention) {
    u32 number = blockIdx.x * blockDim.x + threadIdx.x, width = args.width;
    u32 pair = number / width, column = number % width, row = pair / args.values;
    if (row >= args.rows) return;
    float e = value_at(args, row, pair % args.values, column), t = load(args.vectors, row, args.target + column);
    store(args.pairs, pair, column, e);
    store(args.pairs, pair, width + column, t);
    store(args.pairs, pair, 2 * width + column, e - t);
    store(args.pairs, pair, 3 * width + column, e * t);
}

// One thread per column of a row, for all values in order.
ENTRY(pair_backward, Attention) {
    u32 number = blockIdx.x * blockDim.x + threadIdx.x, width = args.width;
    u32 row = number / width, column = number % width;
    if (row >= args.rows) return;
    float t = load(args.vectors, row, args.target + column), g = load(args.sum, row, args.first_column + column);
    float by_t = load(args.vectors_grad, row, args.target + column);
    for (u32 value = 0; value < args.values; value++) {
        u32 pair = row * args.values + value;
        float g1 = load(args.pairs, pair, column), g2 = load(args.pairs, pair, width + column);
        float g3 = load(args.pairs, pair, 2 * width + column), g4 = load(args.pairs, pair, 3 * width + column);
        float by_e = fmaf(g4, t, fmaf(load(args.scores, pair, 0), g, g1 + g3));
        store(args.vectors_grad, row, args.first + value * width + column, by_e);
        by_t += fmaf(g4, value_at(args, row, value, column), g2 - g3);
    }
    store(args.vectors_grad, row, args.target + column, by_t);
}

// One thread per column of a row.
ENTRY(attend_forward, Attention) {
    u32 number = blockIdx.x * blockDim.x + threadIdx.x, row = number / args.width, column = number % args.width;
    if (row >= args.rows) return;
    float sum = 0.0f;
    for (u32 value = 0; value < args.values; value++) {
        sum = fmaf(load(args.scores, row * args.values + value, 0), value_at(args, row, value, column), sum);
    }
    store(args.sum, row, args.first_column + column, sum);
}

// One thread per value.
ENTRY(attend_backward, Attention) {
    u32 pair = blockIdx.x * blockDim.x + threadIdx.x, row = pair / args.values, value = pair % args.values;
    if (row >= args.rows) return;
    float sum = 0.0f;
    for (u32 column = 0; column < args.width; column++) {
        sum = fmaf(load(args.sum, row, args.first_column + column), value_at(args, row, value, column), sum);
    }
    store(args.scores, pair, 0, sum);
}
