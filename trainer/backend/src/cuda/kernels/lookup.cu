// Looking up: embeddings side by side, and sums of single weights.
#include "batch.cuh"
#include "reduce.cuh"

// A column of ids and the table that it is looked up in.
struct Lookup {
    const float* table;
    IdColumn column;
    // Columns of the table, and where they go.
    u32 width, first;
    u32 pooling, unused;
};

struct Gather {
    const char* batch;
    const Lookup* lookups;
    Matrix out;
    u32 first_row, rows, first_column, unused;
};

// A quad of a table's row.
__device__ __forceinline__ Quad load_weights(const float* table, u32 width, u32 id, u32 column) {
    const float* at = table + u64(id) * width + column;
    Quad quad = {};
    if (width % QUAD == 0) {
        float4 four = __ldg((const float4*)at);
        return {four.x, four.y, four.z, four.w};
    }
#pragma unroll
    for (u32 i = 0; i < QUAD; i++) {
        if (column + i < width) quad.x[i] = __ldg(at + i);
    }
    return quad;
}

// Rows that a thread has at once where each names one id: so many loads are on their way together.
constexpr u32 ROWS_AT_ONCE = 4;

// A grid row to a lookup; threads take quads of the table's columns, and a few batch rows each.
ENTRY(gather, Gather) {
    const Lookup& lookup = args.lookups[blockIdx.y];
    u32 quads = quads_of(lookup.width), number = blockIdx.x * blockDim.x + threadIdx.x;
    u32 column = number % quads * QUAD, group = number / quads;
    u32 groups = (args.rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    if (group >= groups) return;
    u32 to = args.first_column + lookup.first + column, count = min(lookup.width - column, QUAD);
    const u32* ids = part<u32>(args.batch, lookup.column.ids);
    if (lookup.column.offsets == 0) {
        Quad found[ROWS_AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < ROWS_AT_ONCE; i++) {
            u32 row = group + i * groups;
            if (row < args.rows) found[i] = load_weights(lookup.table, lookup.width, ids[args.first_row + row], column);
        }
#pragma unroll
        for (u32 i = 0; i < ROWS_AT_ONCE; i++) {
            u32 row = group + i * groups;
            if (row < args.rows) store_quad(args.out, row, to, count, found[i]);
        }
        return;
    }
    for (u32 i = 0; i < ROWS_AT_ONCE; i++) {
        u32 row = group + i * groups;
        if (row >= args.rows) return;
        Values values = values_of(args.batch, lookup.column, args.first_row + row);
        Quad sum = {};
        for (u32 value = values.first; value < values.end; value++) {
            float share = share_of(args.batch, lookup.column, lookup.pooling, args.first_row + row, value);
            Quad weights = load_weights(lookup.table, lookup.width, ids[value], column);
#pragma unroll
            for (u32 k = 0; k < QUAD; k++) sum.x[k] = fmaf(share, weights.x[k], sum.x[k]);
        }
        store_quad(args.out, row, to, count, sum);
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
            sum = fmaf(share, __ldg(lookup.table + u64(ids[value]) * lookup.width + k), sum);
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
