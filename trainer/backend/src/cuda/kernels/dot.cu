// Pairwise dot products of a row's vectors, (1, 0), (2, 0), (2, 1), ..., stored after a copy of the first vector.
#include "reduce.cuh"
#include "tensor.cuh"

struct Dot {
    Matrix vectors, out, vectors_grad;
    u32 rows, count, width, unused;
};

// The index of the first pair of vector `i` with an earlier vector.
__device__ __forceinline__ u32 pairs_before(u32 i) {
    return i * (i - 1) / 2;
}

// The most values of a row's vectors, and of its pairs, that a block keeps in shared memory.
constexpr u32 KEPT_NUMBERS = 8192;
constexpr u32 KEPT_PAIRS = 2048;

// One block per row.
ENTRY(dot_forward, Dot) {
    // An odd stride, so that threads with neighbouring vectors access different banks.
    __shared__ float kept[KEPT_NUMBERS];
    u32 row = blockIdx.x, count = args.count, width = args.width, stride = width | 1;
    bool keeps = count * stride <= KEPT_NUMBERS;
    for (u32 at = threadIdx.x; at < count * width; at += blockDim.x) {
        float v = load(args.vectors, row, at);
        if (keeps) kept[at / width * stride + at % width] = v;
        if (at < width) store(args.out, row, at, v);
    }
    __syncthreads();
    for (u32 pair = threadIdx.x; pair < pairs_before(count); pair += blockDim.x) {
        u32 i = u32((1.0f + sqrtf(1.0f + 8.0f * float(pair))) / 2.0f);
        while (pairs_before(i) > pair) i--;
        while (pairs_before(i + 1) <= pair) i++;
        u32 j = pair - pairs_before(i);
        float sum = 0.0f;
        for (u32 k = 0; k < width; k++) {
            float left = keeps ? kept[i * stride + k] : load(args.vectors, row, i * width + k);
            float right = keeps ? kept[j * stride + k] : load(args.vectors, row, j * width + k);
            sum = fmaf(left, right, sum);
        }
        store(args.out, row, width + pair, sum);
    }
}

// One block per row: d/dv_i = sum over j of (gradient of pair i, j) v_j, plus the gradient of the copy for the
// first vector.
ENTRY(dot_backward, Dot) {
    __shared__ float kept[KEPT_NUMBERS];
    __shared__ float pairs[KEPT_PAIRS];
    u32 row = blockIdx.x, count = args.count, width = args.width, all = pairs_before(count);
    bool keeps = count * width <= KEPT_NUMBERS, keeps_pairs = all <= KEPT_PAIRS;
    for (u32 at = threadIdx.x; keeps && at < count * width; at += blockDim.x) kept[at] = load(args.vectors, row, at);
    for (u32 at = threadIdx.x; keeps_pairs && at < all; at += blockDim.x) pairs[at] = load(args.out, row, width + at);
    __syncthreads();
    for (u32 at = threadIdx.x; at < count * width; at += blockDim.x) {
        u32 i = at / width, k = at % width;
        float sum = i == 0 ? load(args.out, row, k) : 0.0f;
        for (u32 j = 0; j < count; j++) {
            if (j == i) continue;
            u32 pair = j < i ? pairs_before(i) + j : pairs_before(j) + i;
            float g = keeps_pairs ? pairs[pair] : load(args.out, row, width + pair);
            float v = keeps ? kept[j * width + k] : load(args.vectors, row, j * width + k);
            sum = fmaf(g, v, sum);
        }
        store(args.vectors_grad, row, at, sum);
    }
}

// Tensor core variants: one warp per row of at most 32 vectors. All matrices have the same 16-bit format, and
// vector widths are multiples of eight. Each row's vectors are read once and by one warp only, so they are loaded
// directly into registers: the lanes of a group load neighbouring runs of eight columns. The summation order, over
// columns in the forward pass and over vectors in the backward pass, is arbitrary; the kernels sum in load order.
constexpr u32 MOST_VECTORS = 32;
constexpr u32 TILE = 16;
constexpr u32 LEFT_TILES = MOST_VECTORS / TILE;
constexpr u32 RIGHT_TILES = MOST_VECTORS / GROUPS;
constexpr u32 ROW_PAIRS = MOST_VECTORS * (MOST_VECTORS - 1) / 2;

__device__ __forceinline__ u16* row_of(const Matrix& m, u32 row) {
    return (u16*)m.data + row * m.stride;
}

template <Format FORMAT>
__device__ __forceinline__ void dot_forward_of(const Dot& args, u32 row, u16* pairs) {
    u32 lane = threadIdx.x % GROUP_LANES, group = threadIdx.x % WARP / GROUP_LANES;
    u32 count = args.count, width = args.width;
    const u16* vectors = row_of(args.vectors, row);
    u16* out = row_of(args.out, row);
    // Products of the vectors from 16 m on with the vectors from 8 n on, for tiles that contain pairs i > j.
    float sums[LEFT_TILES][RIGHT_TILES][4] = {};
    for (u32 first = 0; first < width; first += GROUP_LANES * EIGHT) {
        u32 column = first + lane * EIGHT;
        // The fragments of vectors 8 n + group, both as left and as right factor.
        u32 words[RIGHT_TILES][4] = {};
#pragma unroll
        for (u32 n = 0; n < RIGHT_TILES; n++) {
            u32 i = n * GROUPS + group;
            if (i >= count || column >= width) continue;
            uint4 eight = *(const uint4*)(vectors + i * width + column);
            words[n][0] = eight.x, words[n][1] = eight.y, words[n][2] = eight.z, words[n][3] = eight.w;
            if (i == 0) *(uint4*)(out + column) = eight;
        }
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u32 word = 2 * half;
#pragma unroll
            for (u32 m = 0; m < LEFT_TILES; m++) {
                u32 low = 2 * m, high = low + 1;
                const u32 left[4] = {words[low][word], words[high][word], words[low][word + 1], words[high][word + 1]};
#pragma unroll
                for (u32 n = 0; n <= high; n++) {
                    const u32 right[2] = {words[n][word], words[n][word + 1]};
                    if (m * TILE < count && n * GROUPS < count) multiply_add<FORMAT>(sums[m][n], left, right);
                }
            }
        }
    }
#pragma unroll
    for (u32 m = 0; m < LEFT_TILES; m++) {
#pragma unroll
        for (u32 n = 0; n <= 2 * m + 1; n++) {
#pragma unroll
            for (u32 at = 0; at < 4; at++) {
                u32 i = m * TILE + at / 2 * GROUPS + group, j = n * GROUPS + 2 * lane + at % 2;
                if (j < i && i < count) pairs[pairs_before(i) + j] = to_bits<FORMAT>(sums[m][n][at]);
            }
        }
    }
    // Lanes hold pairs in another order than memory.
    __syncwarp();
    u32 all = pairs_before(count);
    for (u32 at = 2 * (threadIdx.x % WARP); at < all; at += 2 * WARP) {
        if (at + 1 < all) {
            *(u32*)(out + width + at) = *(const u32*)(pairs + at);
        } else {
            out[width + at] = pairs[at];
        }
    }
}

template <Format FORMAT>
__device__ __forceinline__ void dot_backward_of(const Dot& args, u32 row, u16* pairs) {
    u32 lane = threadIdx.x % GROUP_LANES, group = threadIdx.x % WARP / GROUP_LANES;
    u32 count = args.count, width = args.width, all = pairs_before(count);
    const u16* vectors = row_of(args.vectors, row);
    const u16* out = row_of(args.out, row);
    u16* vectors_grad = row_of(args.vectors_grad, row);
    for (u32 at = 2 * (threadIdx.x % WARP); at < all; at += 2 * WARP) {
        if (at + 1 < all) {
            *(u32*)(pairs + at) = *(const u32*)(out + width + at);
        } else {
            pairs[at] = out[width + at];
        }
    }
    __syncwarp();
    // The gradient of each pair, mirrored across the diagonal.
    auto gradient = [&](u32 i, u32 j) -> u16 {
        if (i == j || i >= count || j >= count) return 0;
        return j < i ? pairs[pairs_before(i) + j] : pairs[pairs_before(j) + i];
    };
    u32 gradients[LEFT_TILES][LEFT_TILES][4];
#pragma unroll
    for (u32 m = 0; m < LEFT_TILES; m++) {
#pragma unroll
        for (u32 depth = 0; depth < LEFT_TILES; depth++) {
#pragma unroll
            for (u32 at = 0; at < 4; at++) {
                u32 i = m * TILE + at % 2 * GROUPS + group, j = depth * TILE + at / 2 * GROUPS + 2 * lane;
                gradients[m][depth][at] = both(gradient(i, j), gradient(i, j + 1));
            }
        }
    }
    // A group handles four consecutive columns of all vectors; each lane ends up with the sums of eight consecutive
    // ones.
    constexpr u32 COLUMNS_OF_GROUP = 4;
    for (u32 first = 0; first < width; first += GROUPS * COLUMNS_OF_GROUP) {
        u32 column = first + group * COLUMNS_OF_GROUP;
        u32 words[LEFT_TILES][4][2] = {};
#pragma unroll
        for (u32 depth = 0; depth < LEFT_TILES; depth++) {
#pragma unroll
            for (u32 at = 0; at < 4; at++) {
                u32 j = depth * TILE + at / 2 * GROUPS + 2 * lane + at % 2;
                if (j >= count || column >= width) continue;
                uint2 four = *(const uint2*)(vectors + j * width + column);
                words[depth][at][0] = four.x, words[depth][at][1] = four.y;
            }
        }
        float sums[LEFT_TILES][COLUMNS_OF_GROUP][4] = {};
#pragma unroll
        for (u32 k = 0; k < COLUMNS_OF_GROUP; k++) {
#pragma unroll
            for (u32 depth = 0; depth < LEFT_TILES; depth++) {
                u32 right[2];
#pragma unroll
                for (u32 at = 0; at < 2; at++) {
                    right[at] = halves(words[depth][2 * at][k / 2], words[depth][2 * at + 1][k / 2], k % 2 == 1);
                }
#pragma unroll
                for (u32 m = 0; m < LEFT_TILES; m++) {
                    if (m * TILE >= count || depth * TILE >= count) continue;
                    multiply_add<FORMAT>(sums[m][k], gradients[m][depth], right);
                }
            }
        }
        column = first + lane * EIGHT;
#pragma unroll
        for (u32 m = 0; m < LEFT_TILES; m++) {
#pragma unroll
            for (u32 upper = 0; upper < 2; upper++) {
                u32 i = m * TILE + upper * GROUPS + group;
                if (i >= count || column >= width) continue;
                float eight[EIGHT];
#pragma unroll
                for (u32 at = 0; at < EIGHT; at++) {
                    eight[at] = sums[m][at % COLUMNS_OF_GROUP][2 * upper + at / COLUMNS_OF_GROUP];
                }
                if (i == 0) {
                    uint4 given = *(const uint4*)(out + column);
                    const u32 pairs_given[4] = {given.x, given.y, given.z, given.w};
#pragma unroll
                    for (u32 at = 0; at < EIGHT; at++) {
                        eight[at] += from_bits<FORMAT>(u16(pairs_given[at / 2] >> 16 * (at % 2)));
                    }
                }
                u32 rounded[4];
#pragma unroll
                for (u32 at = 0; at < 4; at++) {
                    rounded[at] = both(to_bits<FORMAT>(eight[2 * at]), to_bits<FORMAT>(eight[2 * at + 1]));
                }
                *(uint4*)(vectors_grad + i * width + column) =
                    make_uint4(rounded[0], rounded[1], rounded[2], rounded[3]);
            }
        }
    }
}

// As many resident threads as registers allow without spills: they hide the latency of loads. Compilers for later GPUs than Hopper
// need more registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr u32 FORWARD_RESIDENT = 768, BACKWARD_RESIDENT = 640;
#else
constexpr u32 FORWARD_RESIDENT = 1024, BACKWARD_RESIDENT = 768;
#endif

ENTRY_OF_RESIDENT(dot_forward_tensor, FORWARD_RESIDENT, Dot) {
    __shared__ __align__(4) u16 pairs[THREADS_OF_dot_forward_tensor / WARP][ROW_PAIRS];
    u32 row = row_of_warp();
    if (row >= args.rows) return;
    u16* of_warp = pairs[threadIdx.x / WARP];
    if (args.vectors.format == BF16) {
        dot_forward_of<BF16>(args, row, of_warp);
    } else {
        dot_forward_of<F16>(args, row, of_warp);
    }
}

ENTRY_OF_RESIDENT(dot_backward_tensor, BACKWARD_RESIDENT, Dot) {
    __shared__ __align__(4) u16 pairs[THREADS_OF_dot_backward_tensor / WARP][ROW_PAIRS];
    u32 row = row_of_warp();
    if (row >= args.rows) return;
    u16* of_warp = pairs[threadIdx.x / WARP];
    if (args.vectors.format == BF16) {
        dot_backward_of<BF16>(args, row, of_warp);
    } else {
        dot_backward_of<F16>(args, row, of_warp);
    }
}
