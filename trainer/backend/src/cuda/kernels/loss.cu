// Per-row losses and their gradients, and scores from logits.
#include "reduce.cuh"

enum Kind : u32 {
    BINARY_CROSS_ENTROPY = 0, SQUARED_ERROR = 1, CROSS_ENTROPY = 2, RETRIEVAL = 3, HUBER = 4, QUANTILE = 5,
    POISSON = 6, FOCAL = 7
};

struct Loss {
    const float* labels;
    // Row weights; null if all rows weigh 1.
    const float* weights;
    // Class weights.
    const float* class_weights;
    Matrix logits, gradient;
    // The sum of the batch's weights; see `total`.
    float* weight;
    // Partial sums of losses and weights.
    Pair* partials;
    u32 kind, first_row, rows, column;
    float smoothing, positive_weight, negative_weight, task_weight;
    u32 classes;
    // The delta of HUBER, the quantile of QUANTILE, the largest logarithm of a rate of POISSON, the gamma of FOCAL.
    float parameter;
    // The sum of all rows' weights; negative if it is at `weight`.
    float total;
    u32 unused;
};

// Nothing has validated labels: another process wrote them.
__device__ __forceinline__ bool is_class(const Loss& args, float label) {
    return label >= 0.0f && label < float(args.classes);
}

// For a label of no class, NaN, which makes the loss NaN and the gradient zero.
__device__ __forceinline__ float weight_of(const Loss& args, u32 row) {
    float label = args.labels[row], weight = args.weights ? args.weights[row] : 1.0f;
    switch (args.kind) {
        case BINARY_CROSS_ENTROPY: return (label * args.positive_weight + (1.0f - label) * args.negative_weight) * weight;
        case CROSS_ENTROPY:
            return is_class(args, label) ? args.class_weights[u32(label)] * weight : __uint_as_float(0x7fc00000u);
        case RETRIEVAL: return label * weight;
        default: return weight;
    }
}

// Partial sums of the weights of `rows` rows, starting at the first.
ENTRY(sum_weights, Loss) {
    float sum = 0.0f;
    for (u32 row = blockIdx.x * blockDim.x + threadIdx.x; row < args.rows; row += gridDim.x * blockDim.x) {
        sum += weight_of(args, args.first_row + row);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) args.partials[blockIdx.x] = {sum, 0.0f};
}

// Stores a block's partial sums of loss and weight.
__device__ __forceinline__ void put_partials(const Loss& args, Pair of_thread) {
    float loss = block_sum(of_thread.first), weight = block_sum(of_thread.second);
    if (threadIdx.x == 0) args.partials[blockIdx.x] = {loss, weight};
}

// The factor of the gradient of a row with this weight.
__device__ __forceinline__ float gradient_factor(const Loss& args, float weight) {
    float all = args.total < 0.0f ? *args.weight : args.total;
    return all > 0.0f ? args.task_weight * weight / all : 0.0f;
}

// The focal loss of a row whose label has this logit, and its derivative with respect to it.
__device__ __forceinline__ Pair focal(float gamma, float x) {
    float e = expf(-fabsf(x)), small = e / (1.0f + e), large = 1.0f / (1.0f + e), log = log1pf(e);
    float of_label = x >= 0.0f ? large : small, of_other = x >= 0.0f ? small : large;
    float cross_entropy = fmaxf(-x, 0.0f) + log;
    // The other label's probability to the power of gamma.
    float focus = expf(-gamma * (fmaxf(x, 0.0f) + log));
    return {focus * cross_entropy, -focus * (gamma * of_label * cross_entropy + of_other)};
}

// The loss of a row with one logit, and its gradient with respect to the logit.
__device__ __forceinline__ Pair loss_and_gradient(const Loss& args, float x, float y) {
    switch (args.kind) {
        case BINARY_CROSS_ENTROPY: {
            y = y * (1.0f - args.smoothing) + args.smoothing / 2.0f;
            float softplus = fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
            return {softplus - x * y, 1.0f / (1.0f + expf(-x)) - y};
        }
        case FOCAL: {
            Pair of_one = focal(args.parameter, x), of_zero = focal(args.parameter, -x);
            float ones = y * args.positive_weight, zeros = (1.0f - y) * args.negative_weight;
            return {ones * of_one.first + zeros * of_zero.first, ones * of_one.second - zeros * of_zero.second};
        }
        case HUBER: {
            float difference = x - y, gradient = fminf(fmaxf(difference, -args.parameter), args.parameter);
            return {gradient * (difference - 0.5f * gradient), gradient};
        }
        case QUANTILE: {
            float above = y - x;
            float gradient = above > 0.0f ? -args.parameter : above < 0.0f ? 1.0f - args.parameter : 0.0f;
            return {-gradient * above, gradient};
        }
        case POISSON: {
            float bounded = fminf(x, args.parameter), rate = expf(bounded), slope = rate - y;
            // Near the label, without cancellation.
            float ratio = bounded - logf(y);
            float half = fabsf(ratio) < 1.0f ? y * (expm1f(ratio) - ratio) : slope - y * ratio;
            if (y == 0.0f) half = rate;
            return {2.0f * (half + (x - bounded) * slope), 2.0f * slope};
        }
        default: return {(x - y) * (x - y), 2.0f * (x - y)};
    }
}

// One thread per row.
ENTRY(loss, Loss) {
    u32 place = blockIdx.x * blockDim.x + threadIdx.x, row = args.first_row + place;
    Pair sums = {0.0f, 0.0f};
    if (place < args.rows) {
        float x = load(args.logits, place, args.column), y = args.labels[row], weight = weight_of(args, row);
        Pair of_row = loss_and_gradient(args, x, y);
        // `fmaxf` and `fminf` drop a NaN.
        if (x != x || y != y) of_row = {x + y, x + y};
        float factor = gradient_factor(args, weight);
        store(args.gradient, place, args.column, factor != 0.0f ? factor * of_row.second : 0.0f);
        sums = {weight * of_row.first, weight};
    }
    put_partials(args, sums);
}

// For a row of logits, one warp: the maximum, and the sum of exp(x - maximum).
__device__ __forceinline__ Pair softmax_of_row(const Matrix& logits, u32 row, u32 classes) {
    u32 lane = threadIdx.x % WARP;
    float largest = -__uint_as_float(0x7f800000u), sum = 0.0f;
    for (u32 c = lane; c < classes; c += WARP) {
        float x = load(logits, row, c);
        largest = x > largest || x != x ? x : largest;
    }
    largest = warp_max(largest);
    for (u32 c = lane; c < classes; c += WARP) sum += expf(load(logits, row, c) - largest);
    return {largest, warp_sum(sum)};
}

// One warp per row.
ENTRY(loss_of_classes, Loss) {
    u32 place = row_of_warp(), lane = threadIdx.x % WARP, row = args.first_row + place;
    Pair sums = {0.0f, 0.0f};
    if (place < args.rows) {
        Pair softmax = softmax_of_row(args.logits, place, args.classes);
        float weight = weight_of(args, row), log_of_rest = logf(softmax.second), value = 0.0f;
        float factor = gradient_factor(args, weight), even = args.smoothing / float(args.classes);
        u32 class_of_row = u32(args.labels[row]);
        for (u32 c = lane; c < args.classes; c += WARP) {
            float x = load(args.logits, place, c), target = even + (c == class_of_row ? 1.0f - args.smoothing : 0.0f);
            // Subtract the maximum first, to keep precision for logits far from 0.
            value = fmaf(target, softmax.first - x + log_of_rest, value);
            float g = expf(x - softmax.first) / softmax.second - target;
            store(args.gradient, place, c, factor != 0.0f ? factor * g : 0.0f);
        }
        value = warp_sum(value);
        if (lane == 0) sums = {weight * value, weight};
    }
    put_partials(args, sums);
}

struct Sums {
    const Pair* partials;
    // Destinations of the sums of the first and second numbers; null if not wanted.
    float* first;
    float* second;
    u32 count, adds;
};

// One block.
ENTRY(finish_sums, Sums) {
    Pair sum = {0.0f, 0.0f};
    for (u32 at = threadIdx.x; at < args.count; at += blockDim.x) sum = sum + args.partials[at];
    sum = {block_sum(sum.first), block_sum(sum.second)};
    if (threadIdx.x > 0) return;
    if (args.first) *args.first = args.adds ? *args.first + sum.first : sum.first;
    if (args.second) *args.second = args.adds ? *args.second + sum.second : sum.second;
}

struct Scores {
    Matrix logits, out;
    u32 rows, unused;
};

ENTRY(sigmoid, Scores) {
    Place at = place_of_thread(args.rows, args.logits.columns);
    if (!at.is_within) return;
    Quad quad = load_quad(args.logits, at.row, at.column, at.count);
#pragma unroll
    for (u32 i = 0; i < QUAD; i++) quad.x[i] = 1.0f / (1.0f + expf(-quad.x[i]));
    store_quad(args.out, at.row, at.column, at.count, quad);
}

// One warp per row.
ENTRY(softmax, Scores) {
    u32 row = row_of_warp();
    if (row >= args.rows) return;
    Pair softmax = softmax_of_row(args.logits, row, args.logits.columns);
    for (u32 c = threadIdx.x % WARP; c < args.logits.columns; c += WARP) {
        store(args.out, row, c, expf(load(args.logits, row, c) - softmax.first) / softmax.second);
    }
}
