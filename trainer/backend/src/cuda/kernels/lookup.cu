// Looking up: embeddings side by side, and sums of single weights.
#include "batch.cuh"
#include "reduce.cuh"

// A column of ids and the table that it is looked up in.
struct Lookup {
    const char* table;
    IdColumn column;
    // Columns of the table, and where they go.
    u32 width, first;
    u32 pooling;
    // Of the table's weights.
    u32 format;
};

struct Gather {
    const char* batch;
    const Lookup* lookups;
    Matrix out;
    u32 first_row, rows, first_column, unused;
};

// What a load of a thread takes.
constexpr u32 LOAD_BYTES = 16;
// Columns of a table of 16 bits that it has.
constexpr u32 PACKED = LOAD_BYTES / 2;

__device__ __forceinline__ float load_weight(const Lookup& lookup, u32 id, u32 column) {
    u64 at = u64(id) * lookup.width + column;
    if (lookup.format == F32) return __ldg((const float*)lookup.table + at);
    u16 bits = __ldg((const u16*)lookup.table + at);
    return lookup.format == BF16 ? from_bf16(bits) : from_f16(bits);
}

// Neighbouring columns of a table's row: 16 bytes of a table of 16 bits, or up to four numbers of single precision.
template <bool IS_PACKED>
struct Piece {
    static constexpr u32 COLUMNS = IS_PACKED ? PACKED : QUAD;
    uint4 bits;

    __device__ __forceinline__ static Piece load(const Lookup& lookup, u32 id, u32 column) {
        u64 at = u64(id) * lookup.width + column;
        if (IS_PACKED) return {__ldg((const uint4*)((const u16*)lookup.table + at))};
        if (lookup.format == F32 && lookup.width % QUAD == 0) return {__ldg((const uint4*)((const float*)lookup.table + at))};
        float x[QUAD] = {};
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) {
            if (column + i < lookup.width) x[i] = load_weight(lookup, id, column + i);
        }
        return {make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]))};
    }

    // The numbers, of which a table of 16 bits has `format`: quad `number` of its columns.
    __device__ __forceinline__ Quad quad(u32 format, u32 number) const {
        if (!IS_PACKED) {
            return {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z), __uint_as_float(bits.w)};
        }
        u32 pairs[2] = {number == 0 ? bits.x : bits.z, number == 0 ? bits.y : bits.w};
        Quad quad;
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) {
            u16 half = u16(pairs[i / 2] >> i % 2 * 16);
            quad.x[i] = format == BF16 ? from_bf16(half) : from_f16(half);
        }
        return quad;
    }
};

// Rows that a thread has at once where each names one id: so many loads are on their way together.
constexpr u32 ROWS_AT_ONCE = 4;

// Threads take pieces of the table's rows, and a few batch rows each.
template <bool IS_PACKED>
__device__ __forceinline__ void gather_pieces(const Gather& args, const Lookup& lookup) {
    using Of = Piece<IS_PACKED>;
    constexpr u32 QUADS = Of::COLUMNS / QUAD;
    u32 pieces = (lookup.width + Of::COLUMNS - 1) / Of::COLUMNS, number = blockIdx.x * blockDim.x + threadIdx.x;
    u32 column = number % pieces * Of::COLUMNS, group = number / pieces;
    u32 groups = (args.rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    if (group >= groups) return;
    u32 to = args.first_column + lookup.first + column, count = min(lookup.width - column, QUAD);
    const u32* ids = part<u32>(args.batch, lookup.column.ids);
    if (lookup.column.offsets == 0) {
        Of found[ROWS_AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < ROWS_AT_ONCE; i++) {
            u32 row = group + i * groups;
            if (row < args.rows) found[i] = Of::load(lookup, ids[args.first_row + row], column);
        }
#pragma unroll
        for (u32 i = 0; i < ROWS_AT_ONCE; i++) {
            u32 row = group + i * groups;
            if (row >= args.rows) break;
#pragma unroll
            for (u32 q = 0; q < QUADS; q++) {
                store_quad(args.out, row, to + q * QUAD, count, found[i].quad(lookup.format, q));
            }
        }
        return;
    }
    for (u32 i = 0; i < ROWS_AT_ONCE; i++) {
        u32 row = group + i * groups;
        if (row >= args.rows) return;
        Values values = values_of(args.batch, lookup.column, args.first_row + row);
        Quad sums[QUADS] = {};
        for (u32 value = values.first; value < values.end; value++) {
            float share = share_of(args.batch, lookup.column, lookup.pooling, args.first_row + row, value);
            Of weights = Of::load(lookup, ids[value], column);
#pragma unroll
            for (u32 q = 0; q < QUADS; q++) {
                Quad quad = weights.quad(lookup.format, q);
#pragma unroll
                for (u32 k = 0; k < QUAD; k++) sums[q].x[k] = fmaf(share, quad.x[k], sums[q].x[k]);
            }
        }
#pragma unroll
        for (u32 q = 0; q < QUADS; q++) store_quad(args.out, row, to + q * QUAD, count, sums[q]);
    }
}

// A grid row to a lookup.
ENTRY(gather, Gather) {
    gather_pieces<false>(args, args.lookups[blockIdx.y]);
}

// The same where a table is one of 16 bits with rows of whole loads: it takes more registers.
ENTRY(gather_packed, Gather) {
    const Lookup& lookup = args.lookups[blockIdx.y];
    if (lookup.format != F32 && lookup.width % PACKED == 0) {
        gather_pieces<true>(args, lookup);
    } else {
        gather_pieces<false>(args, lookup);
    }
}

// Dense columns of a batch, `[B, D]`.
struct Dense {
    const float* dense;
    const u32* columns;
    Matrix out;
    u32 all_columns, count;
    u32 first_row, rows, first_column, unused;
};

ENTRY(gather_dense, Dense) {
    u32 number = blockIdx.x * blockDim.x + threadIdx.x, row = number / args.count, place = number % args.count;
    if (row >= args.rows) return;
    float x = args.dense[u64(args.first_row + row) * args.all_columns + args.columns[place]];
    store(args.out, row, args.first_column + place, x);
}

struct Linear {
    const char* batch;
    const Lookup* lookups;
    const float* dense;
    const u32* columns;
    Matrix weights, bias, out;
    u32 lookup_count, all_columns, dense_count;
    u32 first_row, rows, unused;
};

// A thread to a number of `out`.
ENTRY(linear, Linear) {
    u32 number = blockIdx.x * blockDim.x + threadIdx.x;
    u32 row = number / args.out.columns, k = number % args.out.columns;
    if (row >= args.rows) return;
    u32 of_batch = args.first_row + row;
    float sum = load(args.bias, 0, k);
    for (u32 i = 0; i < args.lookup_count; i++) {
        const Lookup& lookup = args.lookups[i];
        const u32* ids = part<u32>(args.batch, lookup.column.ids);
        Values values = values_of(args.batch, lookup.column, of_batch);
        for (u32 value = values.first; value < values.end; value++) {
            float share = share_of(args.batch, lookup.column, lookup.pooling, of_batch, value);
            sum = fmaf(share, __ldg((const float*)lookup.table + u64(ids[value]) * lookup.width + k), sum);
        }
    }
    for (u32 place = 0; place < args.dense_count; place++) {
        float x = args.dense[u64(of_batch) * args.all_columns + args.columns[place]];
        sum = fmaf(x, load(args.weights, place, k), sum);
    }
    store(args.out, row, k, load(args.out, row, k) + sum);
}

struct LinearBackward {
    const float* dense;
    const u32* columns;
    Matrix by_out;
    Pair* partials;
    u32 all_columns, dense_count, first_row, rows;
};

// Of each dense column and the bias, which comes last, by each column of `by_out`.
ENTRY(linear_backward, LinearBackward) {
    u32 outputs = args.by_out.columns;
    column_sums(args.rows, (args.dense_count + 1) * outputs, args.partials, [&](u32 row, u32 number) {
        u32 place = number / outputs;
        float g = load(args.by_out, row, number % outputs);
        if (place == args.dense_count) return Pair{g, 0.0f};
        return Pair{g * args.dense[u64(args.first_row + row) * args.all_columns + args.columns[place]], 0.0f};
    });
}
