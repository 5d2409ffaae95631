// Mixture of experts with a gate per task: Ma et al., 2018, equations 6 and 7. One warp per row.
#include "reduce.cuh"

struct Mixture {
    Matrix logits, experts, gates, output, output_grad, logits_grad, experts_grad;
    u32 rows, tasks, count, width;
};

ENTRY(mixture_forward, Mixture) {
    u32 row = row_of_warp(), lane = threadIdx.x % WARP, count = args.count, width = args.width;
    if (row >= args.rows) return;
    for (u32 task = 0; task < args.tasks; task++) {
        float largest = -__uint_as_float(0x7f800000u), sum = 0.0f;
        for (u32 e = lane; e < count; e += WARP) largest = fmaxf(largest, load(args.logits, row, task * count + e));
        largest = warp_max(largest);
        for (u32 e = lane; e < count; e += WARP) sum += expf(load(args.logits, row, task * count + e) - largest);
        sum = warp_sum(sum);
        for (u32 e = lane; e < count; e += WARP) {
            store(args.gates, row, task * count + e, expf(load(args.logits, row, task * count + e) - largest) / sum);
        }
        for (u32 k = lane; k < width; k += WARP) {
            float mixed = 0.0f;
            for (u32 e = 0; e < count; e++) {
                float gate = expf(load(args.logits, row, task * count + e) - largest) / sum;
                mixed = fmaf(gate, load(args.experts, row, e * width + k), mixed);
            }
            store(args.output, row, task * width + k, mixed);
        }
    }
}

ENTRY(mixture_backward, Mixture) {
    u32 row = row_of_warp(), lane = threadIdx.x % WARP, count = args.count, width = args.width;
    if (row >= args.rows) return;
    for (u32 task = 0; task < args.tasks; task++) {
        // The sum over experts of gate times gate gradient: the mixture's output times its gradient.
        float along = 0.0f;
        for (u32 k = lane; k < width; k += WARP) {
            float mixed = 0.0f;
            for (u32 e = 0; e < count; e++) {
                mixed = fmaf(load(args.gates, row, task * count + e), load(args.experts, row, e * width + k), mixed);
            }
            along = fmaf(load(args.output_grad, row, task * width + k), mixed, along);
        }
        along = warp_sum(along);
        for (u32 e = 0; e < count; e++) {
            float sum = 0.0f;
            for (u32 k = lane; k < width; k += WARP) {
                sum = fmaf(load(args.output_grad, row, task * width + k), load(args.experts, row, e * width + k), sum);
            }
            sum = warp_sum(sum);
            float gate = load(args.gates, row, task * count + e);
            if (lane == 0) store(args.logits_grad, row, task * count + e, gate * (sum - along));
        }
    }
    for (u32 at = lane; at < count * width; at += WARP) {
        u32 e = at / width, k = at % width;
        float sum = 0.0f;
        for (u32 task = 0; task < args.tasks; task++) {
            sum = fmaf(load(args.gates, row, task * count + e), load(args.output_grad, row, task * width + k), sum);
        }
        store(args.experts_grad, row, at, sum);
    }
}
