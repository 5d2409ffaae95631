// Losses that compare the rows of a list, which are the rows of the batch with the same id. One warp per row, which
// reads the ids of all rows once or twice.
#include "reduce.cuh"

struct Lists {
    Matrix logits, gradient;
    const float* labels;
    // Row weights; null if all rows weigh 1.
    const float* weights;
    // The list of each row.
    const u32* ids;
    // The sum of the batch's weights; see `total`.
    const float* weight;
    // The weight of each of a row's pairs.
    float* shares;
    // Partial sums of losses and weights.
    Pair* partials;
    u32 rows, column;
    float task_weight;
    // The sum of all rows' weights; negative if it is at `weight`.
    float total;
};

__device__ __forceinline__ float weight_of(const Lists& args, u32 row) {
    return args.weights ? args.weights[row] : 1.0f;
}

__device__ __forceinline__ float target_of(const Lists& args, u32 row) {
    return args.labels[row] * weight_of(args, row);
}

__device__ __forceinline__ float logit_of(const Lists& args, u32 row) {
    return load(args.logits, row, args.column);
}

// Calls `visit` with the rows of the list of `row` that belong to this lane.
template <typename F>
__device__ __forceinline__ void for_each_of_list(const Lists& args, u32 row, F visit) {
    u32 id = args.ids[row];
    for (u32 other = threadIdx.x % WARP; other < args.rows; other += WARP) {
        if (args.ids[other] == id) visit(other);
    }
}

// One lane of each warp stores the gradient of its row.
__device__ __forceinline__ void store_gradient(const Lists& args, u32 row, float of_sum) {
    float all = args.total < 0.0f ? *args.weight : args.total;
    store(args.gradient, row, args.column, all > 0.0f ? args.task_weight / all * of_sum : 0.0f);
}

// Stores a block's partial sums; lane 0 of each warp has those of its row.
__device__ __forceinline__ void put_partials(const Lists& args, Pair of_thread) {
    Pair sums = {block_sum(of_thread.first), block_sum(of_thread.second)};
    if (threadIdx.x == 0) args.partials[blockIdx.x] = sums;
}

ENTRY(loss_of_lists, Lists) {
    u32 row = row_of_warp();
    Pair sums = {0.0f, 0.0f};
    if (row < args.rows) {
        float largest = -__uint_as_float(0x7f800000u), sum = 0.0f, targets = 0.0f;
        for_each_of_list(args, row, [&](u32 other) {
            float x = logit_of(args, other);
            largest = x > largest || x != x ? x : largest;
        });
        largest = warp_max(largest);
        for_each_of_list(args, row, [&](u32 other) {
            sum += expf(logit_of(args, other) - largest);
            targets += target_of(args, other);
        });
        sum = warp_sum(sum);
        targets = warp_sum(targets);
        if (threadIdx.x % WARP == 0) {
            float x = logit_of(args, row), target = target_of(args, row);
            store_gradient(args, row, expf(x - largest) / sum * targets - target);
            sums = {target * (largest - x + logf(sum)), target};
        }
    }
    put_partials(args, sums);
}

// The weight of each row's pairs, and partial sums of the weights of rows that have pairs.
ENTRY(share_pairs, Lists) {
    u32 row = row_of_warp();
    Pair sums = {0.0f, 0.0f};
    if (row < args.rows) {
        float label = args.labels[row], below = 0.0f;
        for_each_of_list(args, row, [&](u32 other) { below += args.labels[other] < label ? 1.0f : 0.0f; });
        below = warp_sum(below);
        if (threadIdx.x % WARP == 0) {
            float weight = weight_of(args, row);
            args.shares[row] = below > 0.0f ? weight / below : 0.0f;
            sums.first = below > 0.0f ? weight : 0.0f;
        }
    }
    put_partials(args, sums);
}

ENTRY(loss_of_pairs, Lists) {
    u32 row = row_of_warp();
    Pair sums = {0.0f, 0.0f};
    if (row < args.rows) {
        float x = logit_of(args, row), label = args.labels[row];
        float loss = 0.0f, below = 0.0f, above = 0.0f;
        for_each_of_list(args, row, [&](u32 other) {
            float of_other = args.labels[other], distance = logit_of(args, other) - x;
            if (!(of_other < label || of_other > label)) return;
            float e = expf(-fabsf(distance)), small = e / (1.0f + e), large = 1.0f / (1.0f + e);
            if (of_other < label) {
                loss += fmaxf(distance, 0.0f) + log1pf(e);
                below += distance >= 0.0f ? large : small;
            } else {
                above += args.shares[other] * (distance >= 0.0f ? small : large);
            }
        });
        loss = warp_sum(loss);
        below = warp_sum(below);
        above = warp_sum(above);
        if (threadIdx.x % WARP == 0) {
            float share = args.shares[row];
            store_gradient(args, row, above - share * below);
            sums = {share * loss, share > 0.0f ? weight_of(args, row) : 0.0f};
        }
    }
    put_partials(args, sums);
}
