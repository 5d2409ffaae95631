// Feature interactions: factorization machines and cross layers.
#include "reduce.cuh"

struct Fm {
    Matrix vectors, logits, vectors_grad;
    u32 rows, count, width, unused;
};

// One warp per row: logits += 1/2 sum over k of ((sum of v_k)^2 - sum of v_k^2)
ENTRY(fm_forward, Fm) {
    u32 row = row_of_warp();
    if (row >= args.rows) return;
    float all = 0.0f;
    for (u32 k = threadIdx.x % WARP; k < args.width; k += WARP) {
        float sum = 0.0f, squares = 0.0f;
        for (u32 i = 0; i < args.count; i++) {
            float v = load(args.vectors, row, i * args.width + k);
            sum += v;
            squares = fmaf(v, v, squares);
        }
        all += sum * sum - squares;
    }
    all = warp_sum(all);
    if (threadIdx.x % WARP == 0) store(args.logits, row, 0, load(args.logits, row, 0) + 0.5f * all);
}

// One thread per row and vector column: vectors_grad_i += g (sum of v - v_i)
ENTRY(fm_backward, Fm) {
    u32 number = blockIdx.x * blockDim.x + threadIdx.x, row = number / args.width, k = number % args.width;
    if (row >= args.rows) return;
    float g = load(args.logits, row, 0), sum = 0.0f;
    for (u32 i = 0; i < args.count; i++) sum += load(args.vectors, row, i * args.width + k);
    for (u32 i = 0; i < args.count; i++) {
        u32 column = i * args.width + k;
        float before = load(args.vectors_grad, row, column);
        store(args.vectors_grad, row, column, before + g * (sum - load(args.vectors, row, column)));
    }
}

struct Cross {
    Matrix first, product, input, output, output_grad, product_grad, first_grad;
    u32 rows, unused;
};

// output = first * product + input
ENTRY(cross_forward, Cross) {
    Place at = place_of_thread(args.rows, args.first.columns);
    if (!at.is_within) return;
    Quad first = load_quad(args.first, at.row, at.column, at.count);
    Quad product = load_quad(args.product, at.row, at.column, at.count);
    Quad quad = load_quad(args.input, at.row, at.column, at.count);
#pragma unroll
    for (u32 i = 0; i < QUAD; i++) quad.x[i] = fmaf(first.x[i], product.x[i], quad.x[i]);
    store_quad(args.output, at.row, at.column, at.count, quad);
}

// product_grad = output_grad * first; first_grad += output_grad * product
ENTRY(cross_backward, Cross) {
    Place at = place_of_thread(args.rows, args.first.columns);
    if (!at.is_within) return;
    Quad first = load_quad(args.first, at.row, at.column, at.count);
    Quad product = load_quad(args.product, at.row, at.column, at.count);
    Quad g = load_quad(args.output_grad, at.row, at.column, at.count);
#pragma unroll
    for (u32 i = 0; i < QUAD; i++) first.x[i] *= g.x[i];
    store_quad(args.product_grad, at.row, at.column, at.count, first);
    change_quad(args.first_grad, at, [&](u32 i, float x) { return fmaf(g.x[i], product.x[i], x); });
}
