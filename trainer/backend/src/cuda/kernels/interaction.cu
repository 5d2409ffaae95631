// How features meet: factorization machines, cross layers, products of pairs.
#include "reduce.cuh"

struct Fm {
    Matrix vectors, logits, by_vectors;
    u32 rows, count, width, unused;
};

// A warp a row: logits += 1/2 sum over k of ((sum of v_k)^2 - sum of v_k^2)
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

// A thread to a column of vectors of a row: by v_i += g (sum of v - v_i)
ENTRY(fm_backward, Fm) {
    u32 number = blockIdx.x * blockDim.x + threadIdx.x, row = number / args.width, k = number % args.width;
    if (row >= args.rows) return;
    float g = load(args.logits, row, 0), sum = 0.0f;
    for (u32 i = 0; i < args.count; i++) sum += load(args.vectors, row, i * args.width + k);
    for (u32 i = 0; i < args.count; i++) {
        u32 column = i * args.width + k;
        float before = load(args.by_vectors, row, column);
        store(args.by_vectors, row, column, before + g * (sum - load(args.vectors, row, column)));
    }
}

struct Cross {
    Matrix first, product, input, output, by_output, by_product, by_first;
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

// by_product = by_output * first; by_first += by_output * product
ENTRY(cross_backward, Cross) {
    Place at = place_of_thread(args.rows, args.first.columns);
    if (!at.is_within) return;
    Quad first = load_quad(args.first, at.row, at.column, at.count);
    Quad product = load_quad(args.product, at.row, at.column, at.count);
    Quad g = load_quad(args.by_output, at.row, at.column, at.count);
#pragma unroll
    for (u32 i = 0; i < QUAD; i++) first.x[i] *= g.x[i];
    store_quad(args.by_product, at.row, at.column, at.count, first);
    change_quad(args.by_first, at, [&](u32 i, float x) { return fmaf(g.x[i], product.x[i], x); });
}

// Numbers of a row's vectors, and of its pairs, that a block keeps.
constexpr u32 KEPT_NUMBERS = 8192;
constexpr u32 KEPT_PAIRS = 2048;

struct Dot {
    Matrix vectors, out, by_vectors;
    u32 rows, count, width, unused;
};

// A block a row: the first vector, then the products (1, 0), (2, 0), (2, 1), ...
ENTRY(dot_forward, Dot) {
    // Rows an odd number of numbers apart, so that threads with neighbouring vectors read different banks.
    __shared__ float kept[KEPT_NUMBERS];
    u32 row = blockIdx.x, count = args.count, width = args.width, stride = width | 1;
    bool keeps = count * stride <= KEPT_NUMBERS;
    for (u32 at = threadIdx.x; at < count * width; at += blockDim.x) {
        float v = load(args.vectors, row, at);
        if (keeps) kept[at / width * stride + at % width] = v;
        if (at < width) store(args.out, row, at, v);
    }
    __syncthreads();
    for (u32 pair = threadIdx.x; pair < count * (count - 1) / 2; pair += blockDim.x) {
        // i (i - 1) / 2 pairs are before those of vector i.
        u32 i = u32((1.0f + sqrtf(1.0f + 8.0f * float(pair))) / 2.0f);
        while (i * (i - 1) / 2 > pair) i--;
        while (i * (i + 1) / 2 <= pair) i++;
        u32 j = pair - i * (i - 1) / 2;
        float sum = 0.0f;
        for (u32 k = 0; k < width; k++) {
            float left = keeps ? kept[i * stride + k] : load(args.vectors, row, i * width + k);
            float right = keeps ? kept[j * stride + k] : load(args.vectors, row, j * width + k);
            sum = fmaf(left, right, sum);
        }
        store(args.out, row, width + pair, sum);
    }
}

// A block a row: by v_i = sum over j of (gradient of the pair i, j) v_j; the first vector also was given as it is.
ENTRY(dot_backward, Dot) {
    __shared__ float kept[KEPT_NUMBERS];
    __shared__ float pairs[KEPT_PAIRS];
    u32 row = blockIdx.x, count = args.count, width = args.width, all = count * (count - 1) / 2;
    bool keeps = count * width <= KEPT_NUMBERS, keeps_pairs = all <= KEPT_PAIRS;
    for (u32 at = threadIdx.x; keeps && at < count * width; at += blockDim.x) kept[at] = load(args.vectors, row, at);
    for (u32 at = threadIdx.x; keeps_pairs && at < all; at += blockDim.x) pairs[at] = load(args.out, row, width + at);
    __syncthreads();
    for (u32 at = threadIdx.x; at < count * width; at += blockDim.x) {
        u32 i = at / width, k = at % width;
        float sum = i == 0 ? load(args.out, row, k) : 0.0f;
        for (u32 j = 0; j < count; j++) {
            if (j == i) continue;
            u32 pair = j < i ? i * (i - 1) / 2 + j : j * (j - 1) / 2 + i;
            float g = keeps_pairs ? pairs[pair] : load(args.out, row, width + pair);
            float v = keeps ? kept[j * width + k] : load(args.vectors, row, j * width + k);
            sum = fmaf(g, v, sum);
        }
        store(args.by_vectors, row, at, sum);
    }
}
