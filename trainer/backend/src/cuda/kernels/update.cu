// Optimizer steps of whole matrices, and gradient norms.
#include "reduce.cuh"
#include "update.cuh"

struct Step {
    Update update;
    Matrix weights, first, second, gradient;
    const float* scale;
    const u64* fault;
    u32 rows, unused;
};

// The most steps per launch. Each block row handles one step; entries past the last are unused.
constexpr u32 STEPS = 24;

struct Steps {
    Step of[STEPS];
};

ENTRY(step, Steps) {
    const Step& step = args.of[blockIdx.y];
    Place at = place_of_thread(step.rows, step.weights.columns);
    if (!at.is_within) return;
    float scale = scale_of(step.scale, step.fault);
    if (scale == 0.0f) return;
    Quad weights = load_quad(step.weights, at.row, at.column, at.count), first = {}, second = {};
    Quad gradient = load_quad(step.gradient, at.row, at.column, at.count);
    if (step.first.data) first = load_quad(step.first, at.row, at.column, at.count);
    if (step.second.data) second = load_quad(step.second, at.row, at.column, at.count);
#pragma unroll
    for (u32 i = 0; i < QUAD; i++) {
        float g = shaped(step.update, scale, gradient.x[i], weights.x[i]);
        weights.x[i] = stepped(step.update, weights.x[i], first.x[i], second.x[i], g);
    }
    store_quad(step.weights, at.row, at.column, at.count, weights);
    if (step.first.data) store_quad(step.first, at.row, at.column, at.count, first);
    if (step.second.data) store_quad(step.second, at.row, at.column, at.count, second);
}

struct Squares {
    Matrix matrix;
    float* partials;
    u32 rows, unused;
};

// One partial sum per block.
ENTRY(squares, Squares) {
    u32 columns = args.matrix.columns, quads = quads_of(columns), all = args.rows * quads;
    float sum = 0.0f;
    for (u32 at = blockIdx.x * blockDim.x + threadIdx.x; at < all; at += gridDim.x * blockDim.x) {
        u32 column = at % quads * QUAD;
        Quad quad = load_quad(args.matrix, at / quads, column, min(columns - column, QUAD));
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) sum = fmaf(quad.x[i], quad.x[i], sum);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) args.partials[blockIdx.x] = sum;
}

struct AddUp {
    const float* partials;
    float* sum;
    u32 count, unused;
};

// One block: sum += all partials.
ENTRY(add_up, AddUp) {
    float sum = 0.0f;
    for (u32 at = threadIdx.x; at < args.count; at += blockDim.x) sum += args.partials[at];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *args.sum += sum;
}

struct Scale {
    const float* squares;
    float* scale;
    // Loss scale, good steps, skipped steps; null without loss scaling.
    float* state;
    const u64* fault;
    float growth, backoff;
    // Infinite without a maximum norm.
    float maximum;
    u32 growth_interval;
};

// See `Backend::clip_scale` and `Backend::unscale`. One thread.
ENTRY(set_scale, Scale) {
    if (*args.fault != ~0ull) return;
    // In double precision as on the host; the cost is one thread per step.
    double squares = *args.squares, loss_scale = args.state ? args.state[0] : 1.0f;
    bool is_finite = squares - squares == 0.0;
    if (!is_finite) {
        *args.scale = args.state ? 0.0f : __uint_as_float(0x7fc00000u);
        if (args.state) {
            args.state[0] = float(loss_scale * args.backoff);
            args.state[1] = 0.0f;
            args.state[2] += 1.0f;
        }
        return;
    }
    double norm = sqrt(squares) / loss_scale;
    *args.scale = float((norm <= args.maximum ? 1.0 : args.maximum / norm) / loss_scale);
    if (!args.state) return;
    float good = args.state[1] + 1.0f;
    if (good < float(args.growth_interval)) {
        args.state[1] = good;
        return;
    }
    float grown = float(loss_scale * args.growth);
    args.state[0] = grown - grown == 0.0f ? grown : float(loss_scale);
    args.state[1] = 0.0f;
}
