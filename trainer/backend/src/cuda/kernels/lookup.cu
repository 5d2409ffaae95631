// Lookups: concatenated embeddings, and linear models.
#include "batch.cuh"
#include "reduce.cuh"

// A column of ids and the table in which it is looked up.
struct Lookup {
    const char* table;
    IdColumn column;
    // The table's columns, and the first output column.
    u32 width, first;
    u32 pooling;
    // The format of the table's weights.
    u32 format;
    // For maxima: which value of the column holds each, a row per batch row.
    u32* holders;
};

struct Gather {
    const char* batch;
    const Lookup* lookups;
    Matrix out;
    u32 first_row, rows, first_column;
    // Columns of a row of holders.
    u32 holder_columns;
};

// The size of one vector load of a thread.
constexpr u32 LOAD_BYTES = 16;
// The 16-bit columns in one load.
constexpr u32 PACKED = LOAD_BYTES / 2;

__device__ __forceinline__ float load_weight(const Lookup& lookup, u32 id, u32 column) {
    u64 at = u64(id) * lookup.width + column;
    if (lookup.format == F32) return __ldg((const float*)lookup.table + at);
    u16 bits = __ldg((const u16*)lookup.table + at);
    return lookup.format == BF16 ? from_bf16(bits) : from_f16(bits);
}

// Consecutive columns of a table row: 16 bytes of a 16-bit table, or up to four fp32 values.
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

    // Quad `number` of the columns, as fp32; 16-bit tables have format `format`.
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

// Rows per thread for single-valued columns, so that as many loads are in flight.
constexpr u32 ROWS_AT_ONCE = 4;

// Each thread handles one piece of the table rows of a few batch rows.
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

// One grid row per lookup.
ENTRY(gather, Gather) {
    gather_pieces<false>(args, args.lookups[blockIdx.y]);
}

// A variant for tables of 16 bits whose rows are whole vector loads; it uses more registers.
ENTRY(gather_packed, Gather) {
    const Lookup& lookup = args.lookups[blockIdx.y];
    if (lookup.format != F32 && lookup.width % PACKED == 0) {
        gather_pieces<true>(args, lookup);
    } else {
        gather_pieces<false>(args, lookup);
    }
}

// Unpooled lookups, one grid row each: a thread per quad of a value's vector, zeros for values that the row lacks.
ENTRY(gather_sequences, Gather) {
    const Lookup& lookup = args.lookups[blockIdx.y];
    u32 quads = (lookup.width + QUAD - 1) / QUAD, number = blockIdx.x * blockDim.x + threadIdx.x;
    u32 column = number % quads * QUAD, place = number / quads % lookup.column.maximum;
    u32 row = number / quads / lookup.column.maximum;
    if (row >= args.rows) return;
    Values values = values_of(args.batch, lookup.column, args.first_row + row);
    u32 value = values.first + place, first = args.first_column + lookup.first + place * lookup.width;
    Piece<false> weights = {};
    if (value < values.end) {
        weights = Piece<false>::load(lookup, part<u32>(args.batch, lookup.column.ids)[value], column);
    }
    u32 count = min(lookup.width - column, QUAD);
    store_quad(args.out, row, first + column, count, weights.quad(lookup.format, 0));
}

// Maxima over the values of a row, one grid row per lookup: a thread per quad of a row's vector. The first value that is
// as large as the maximum holds it.
ENTRY(gather_maxima, Gather) {
    const Lookup& lookup = args.lookups[blockIdx.y];
    u32 quads = (lookup.width + QUAD - 1) / QUAD, number = blockIdx.x * blockDim.x + threadIdx.x;
    u32 column = number % quads * QUAD, row = number / quads, count = min(lookup.width - column, QUAD);
    if (row >= args.rows) return;
    Values values = values_of(args.batch, lookup.column, args.first_row + row);
    const u32* ids = part<u32>(args.batch, lookup.column.ids);
    Quad largest = {};
    u32 holders[QUAD] = {};
    for (u32 value = values.first; value < values.end; value++) {
        Quad quad = Piece<false>::load(lookup, ids[value], column).quad(lookup.format, 0);
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) {
            if (value > values.first && !(quad.x[i] > largest.x[i])) continue;
            largest.x[i] = quad.x[i];
            holders[i] = value;
        }
    }
    store_quad(args.out, row, args.first_column + lookup.first + column, count, largest);
    u32* to = lookup.holders + u64(args.first_row + row) * args.holder_columns + column;
#pragma unroll
    for (u32 i = 0; i < QUAD; i++) {
        if (i < count) to[i] = holders[i];
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

// One thread per element of `out`.
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
    Matrix out_grad;
    Pair* partials;
    u32 all_columns, dense_count, first_row, rows;
};

// Gradients with respect to the weights of each dense column, then the bias, for each column of `out_grad`.
ENTRY(linear_backward, LinearBackward) {
    u32 outputs = args.out_grad.columns;
    column_sums(args.rows, (args.dense_count + 1) * outputs, args.partials, [&](u32 row, u32 number) {
        u32 place = number / outputs;
        float g = load(args.out_grad, row, number % outputs);
        if (place == args.dense_count) return Pair{g, 0.0f};
        return Pair{g * args.dense[u64(args.first_row + row) * args.all_columns + args.columns[place]], 0.0f};
    });
}
