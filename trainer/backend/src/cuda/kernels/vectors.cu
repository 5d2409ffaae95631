// Unit vectors, dot products of rows, and the losses of queries that choose among the items of a batch. One warp per
// row unless stated otherwise.
#include "reduce.cuh"

// The least squared length; `LEAST_SQUARE` on the host.
constexpr float LEAST_SQUARE = 1e-12f;

struct Vectors {
    Matrix left, right, out;
    float factor;
    u32 rows;
};

__device__ __forceinline__ float product_of_rows(const Matrix& left, const Matrix& right, u32 row) {
    float sum = 0.0f;
    for (u32 column = threadIdx.x % WARP; column < left.columns; column += WARP) {
        sum = fmaf(load(left, row, column), load(right, row, column), sum);
    }
    return warp_sum(sum);
}

ENTRY(row_products, Vectors) {
    u32 row = row_of_warp();
    if (row >= args.rows) return;
    float product = product_of_rows(args.left, args.right, row);
    if (threadIdx.x % WARP == 0) store(args.out, row, 0, args.factor * product);
}

// out = left / |left|
ENTRY(unit_forward, Vectors) {
    u32 row = row_of_warp();
    if (row >= args.rows) return;
    float length = sqrtf(fmaxf(product_of_rows(args.left, args.left, row), LEAST_SQUARE));
    for (u32 column = threadIdx.x % WARP; column < args.left.columns; column += WARP) {
        store(args.out, row, column, load(args.left, row, column) / length);
    }
}

// Removes the component of the gradient along the vector `left`, which changes only its length, and divides by the
// length. A vector below the least length is only divided. `out` is the gradient, in place.
ENTRY(unit_backward, Vectors) {
    u32 row = row_of_warp();
    if (row >= args.rows) return;
    float square = product_of_rows(args.left, args.left, row), length = sqrtf(fmaxf(square, LEAST_SQUARE));
    float along = product_of_rows(args.left, args.out, row);
    along = square > LEAST_SQUARE ? along / square : 0.0f;
    for (u32 column = threadIdx.x % WARP; column < args.left.columns; column += WARP) {
        float across = load(args.out, row, column) - along * load(args.left, row, column);
        store(args.out, row, column, across / length);
    }
}

struct InBatch {
    // Scores of a chunk of queries with all items, then the gradient with respect to them.
    Matrix scores;
    const float* labels;
    // Null if all rows weigh 1.
    const float* weights;
    // The item id of each row; null if all items are negatives.
    const u32* items;
    // The sum of all rows' weights.
    const float* weight;
    // Loss and weight of each row.
    Pair* of_rows;
    float temperature;
    u32 first_row, rows, all_rows;
};

__device__ __forceinline__ float weight_of(const InBatch& args, u32 row) {
    return args.labels[row] * (args.weights ? args.weights[row] : 1.0f);
}

// A query without weight, or without candidates.
__device__ __forceinline__ void choose_nothing(const InBatch& args, u32 place, float weight) {
    for (u32 j = threadIdx.x; j < args.all_rows; j += blockDim.x) store(args.scores, place, j, 0.0f);
    if (threadIdx.x == 0) args.of_rows[place] = {0.0f, weight};
}

// One block per query.
ENTRY(in_batch_softmax, InBatch) {
    __shared__ float largest_of_warps[WARP];
    u32 place = blockIdx.x, row = args.first_row + place;
    float weight = weight_of(args, row), all_weight = *args.weight;
    if (weight == 0.0f) return choose_nothing(args, place, weight);
    auto is_rival = [&](u32 j) { return j == row || !args.items || args.items[j] != args.items[row]; };
    float own = load(args.scores, place, row) / args.temperature;
    float largest = own, sum = 0.0f;
    for (u32 j = threadIdx.x; j < args.all_rows; j += blockDim.x) {
        if (is_rival(j)) largest = fmaxf(largest, load(args.scores, place, j) / args.temperature);
    }
    largest = warp_max(largest);
    if (threadIdx.x % WARP == 0) largest_of_warps[threadIdx.x / WARP] = largest;
    __syncthreads();
    for (u32 warp = 0; warp < blockDim.x / WARP; warp++) largest = fmaxf(largest, largest_of_warps[warp]);
    for (u32 j = threadIdx.x; j < args.all_rows; j += blockDim.x) {
        if (is_rival(j)) sum += expf(load(args.scores, place, j) / args.temperature - largest);
    }
    sum = block_sum(sum);
    float factor = weight / all_weight / args.temperature;
    for (u32 j = threadIdx.x; j < args.all_rows; j += blockDim.x) {
        float probability = is_rival(j) ? expf(load(args.scores, place, j) / args.temperature - largest) / sum : 0.0f;
        store(args.scores, place, j, (probability - (j == row ? 1.0f : 0.0f)) * factor);
    }
    if (threadIdx.x == 0) args.of_rows[place] = {weight * (largest - own + logf(sum)), weight};
}

// One block per query.
ENTRY(in_batch_pairs, InBatch) {
    u32 place = blockIdx.x, row = args.first_row + place;
    float weight = weight_of(args, row), all_weight = *args.weight;
    if (weight == 0.0f) return choose_nothing(args, place, weight);
    auto is_other = [&](u32 j) { return j != row && (!args.items || args.items[j] != args.items[row]); };
    float others = 0.0f, loss = 0.0f, slopes = 0.0f;
    for (u32 j = threadIdx.x; j < args.all_rows; j += blockDim.x) others += is_other(j) ? 1.0f : 0.0f;
    others = block_sum(others);
    if (others == 0.0f) return choose_nothing(args, place, weight);
    float own = load(args.scores, place, row) / args.temperature;
    float factor = weight / all_weight / args.temperature / others;
    for (u32 j = threadIdx.x; j < args.all_rows; j += blockDim.x) {
        if (j == row) continue;
        float slope = 0.0f;
        if (is_other(j)) {
            float distance = load(args.scores, place, j) / args.temperature - own, e = expf(-fabsf(distance));
            loss += fmaxf(distance, 0.0f) + log1pf(e);
            slope = distance >= 0.0f ? 1.0f / (1.0f + e) : e / (1.0f + e);
        }
        slopes += slope;
        store(args.scores, place, j, factor * slope);
    }
    loss = block_sum(loss);
    slopes = block_sum(slopes);
    if (threadIdx.x > 0) return;
    store(args.scores, place, row, -factor * slopes);
    args.of_rows[place] = {weight * loss / others, weight};
}
