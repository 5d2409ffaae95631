// Normalization of rows and of columns: see `Normalization` on the host.
#include "reduce.cuh"

struct Moments {
    Matrix input, mean, variance;
    // For columns only.
    Pair* partials;
    u32 rows, unused;
};

// One warp per row, in two passes: the mean, then the variance.
ENTRY(row_moments, Moments) {
    u32 row = row_of_warp(), lane = threadIdx.x % WARP;
    if (row >= args.rows) return;
    u32 columns = args.input.columns;
    float sum = 0.0f, squares = 0.0f;
    for (u32 column = lane; column < columns; column += WARP) sum += load(args.input, row, column);
    float mean = warp_sum(sum) / float(columns);
    for (u32 column = lane; column < columns; column += WARP) {
        float off = load(args.input, row, column) - mean;
        squares = fmaf(off, off, squares);
    }
    squares = warp_sum(squares);
    if (lane == 0) {
        store(args.mean, row, 0, mean);
        store(args.variance, row, 0, squares / float(columns));
    }
}

ENTRY(column_means, Moments) {
    column_sums(args.rows, args.input.columns, args.partials, [&](u32 row, u32 column) {
        return Pair{load(args.input, row, column), 0.0f};
    });
}

// Runs after the means are complete.
ENTRY(column_variances, Moments) {
    column_sums(args.rows, args.input.columns, args.partials, [&](u32 row, u32 column) {
        float off = load(args.input, row, column) - load(args.mean, 0, column);
        return Pair{off * off, 0.0f};
    });
}

struct MergeMoments {
    // Rows `2 p` and `2 p + 1` of `moments` are the means and variances of part `p`.
    Matrix moments, mean, variance;
    // Of all parts, and of each but the last.
    u32 rows, part;
};

// One thread per column. The moments of a single part are copied exactly.
ENTRY(merge_moments, MergeMoments) {
    u32 column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= args.moments.columns) return;
    u32 parts = (args.rows - 1) / args.part + 1;
    auto share = [&](u32 p) { return float(min(args.rows - p * args.part, args.part)) / float(args.rows); };
    float mean = 0.0f, variance = 0.0f;
    for (u32 p = 0; p < parts; p++) mean = fmaf(share(p), load(args.moments, u64(2) * p, column), mean);
    for (u32 p = 0; p < parts; p++) {
        float off = load(args.moments, u64(2) * p, column) - mean;
        float square = fmaf(off, off, load(args.moments, u64(2) * p + 1, column));
        variance = fmaf(share(p), square, variance);
    }
    store(args.mean, 0, column, mean);
    store(args.variance, 0, column, variance);
}

struct Normalize {
    Matrix input, mean, variance, scale, shift, output, gradient;
    // Gradients with respect to scale and shift over the `all_rows` rows that the moments cover; for columns only.
    Matrix scale_sums, shift_sums;
    Pair* partials;
    // The means of each row, as `means_of_column` returns those of a column; for rows only.
    Pair* of_rows;
    float epsilon;
    u32 rows, all_rows, is_by_row, is_rectified, unused;
};

// A normalized input element, and the inverse standard deviation.
__device__ __forceinline__ Pair normal_at(const Normalize& args, u32 row, u32 column) {
    u32 r = args.is_by_row ? row : 0, c = args.is_by_row ? 0 : column;
    float inverse = 1.0f / sqrtf(load(args.variance, r, c) + args.epsilon);
    return {(load(args.input, row, column) - load(args.mean, r, c)) * inverse, inverse};
}

ENTRY(normalize_forward, Normalize) {
    u32 columns = args.input.columns, number = blockIdx.x * blockDim.x + threadIdx.x;
    u32 row = number / columns, column = number % columns;
    if (row >= args.rows) return;
    float x = fmaf(load(args.scale, 0, column), normal_at(args, row, column).first, load(args.shift, 0, column));
    store(args.output, row, column, args.is_rectified && x < 0.0f ? 0.0f : x);
}

// The gradient with respect to the output, with the ReLU mask applied.
__device__ __forceinline__ float gradient_at(const Normalize& args, u32 row, u32 column) {
    if (args.is_rectified && load(args.output, row, column) <= 0.0f) return 0.0f;
    return load(args.gradient, row, column);
}

// Gradients with respect to scale and shift, summed over rows.
ENTRY(normalize_by_parameters, Normalize) {
    column_sums(args.rows, args.input.columns, args.partials, [&](u32 row, u32 column) {
        float g = gradient_at(args, row, column);
        return Pair{g * normal_at(args, row, column).first, g};
    });
}

// Means along each row, one warp per row.
ENTRY(normalize_row_means, Normalize) {
    u32 row = row_of_warp(), lane = threadIdx.x % WARP, columns = args.input.columns;
    if (row >= args.rows) return;
    Pair sum = {0.0f, 0.0f};
    for (u32 column = lane; column < columns; column += WARP) {
        float g = gradient_at(args, row, column) * load(args.scale, 0, column);
        sum = sum + Pair{g, g * normal_at(args, row, column).first};
    }
    sum = {warp_sum(sum.first), warp_sum(sum.second)};
    if (lane == 0) args.of_rows[row] = {sum.first / float(columns), sum.second / float(columns)};
}

// The mean gradient with respect to the normalized values, and the mean of its product with those values.
__device__ __forceinline__ Pair means_of_column(const Normalize& args, u32 column) {
    float scale = load(args.scale, 0, column) / float(args.all_rows);
    return {load(args.shift_sums, 0, column) * scale, load(args.scale_sums, 0, column) * scale};
}

// The gradient with respect to the input; runs after the means of rows are complete.
ENTRY(normalize_backward, Normalize) {
    u32 columns = args.input.columns, number = blockIdx.x * blockDim.x + threadIdx.x;
    u32 row = number / columns, column = number % columns;
    if (row >= args.rows) return;
    Pair normal = normal_at(args, row, column);
    Pair line = args.is_by_row ? args.of_rows[row] : means_of_column(args, column);
    float g = gradient_at(args, row, column) * load(args.scale, 0, column);
    store(args.gradient, row, column, normal.second * (g - line.first - normal.first * line.second));
}
