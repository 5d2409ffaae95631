// Gates over experts: Ma et al., 2018, equations 6 and 7. A warp a row.
#include "reduce.cuh"

struct Mixture {
    Matrix logits, experts, gates, output, by_output, by_logits, by_experts;
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
        // The sum over experts of gate times its gradient: that of the mixture along itself.
        float along = 0.0f;
        for (u32 k = lane; k < width; k += WARP) {
            float mixed = 0.0f;
            for (u32 e = 0; e < count; e++) {
                mixed = fmaf(load(args.gates, row, task * count + e), load(args.experts, row, e * width + k), mixed);
            }
            along = fmaf(load(args.by_output, row, task * width + k), mixed, along);
        }
        along = warp_sum(along);
        for (u32 e = 0; e < count; e++) {
            float by_gate = 0.0f;
            for (u32 k = lane; k < width; k += WARP) {
                by_gate = fmaf(load(args.by_output, row, task * width + k), load(args.experts, row, e * width + k), by_gate);
            }
            by_gate = warp_sum(by_gate);
            float gate = load(args.gates, row, task * count + e);
            if (lane == 0) store(args.by_logits, row, task * count + e, gate * (by_gate - along));
        }
    }
    for (u32 at = lane; at < count * width; at += WARP) {
        u32 e = at / width, k = at % width;
        float sum = 0.0f;
        for (u32 task = 0; task < args.tasks; task++) {
            sum = fmaf(load(args.gates, row, task * count + e), load(args.by_output, row, task * width + k), sum);
        }
        store(args.by_experts, row, at, sum);
    }
}
