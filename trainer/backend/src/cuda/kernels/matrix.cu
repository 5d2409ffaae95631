// Copies and elementwise changes.
#include "device.cuh"
#include "random.cuh"

// Dense fp32 rows `[rows, columns]`, and a matrix.
struct Transfer {
    float* dense;
    Matrix matrix;
    u32 rows;
    u32 unused;
};

ENTRY(write_rows, Transfer) {
    u32 columns = args.matrix.columns;
    u64 at = blockIdx.x * u64(blockDim.x) + threadIdx.x;
    if (at < u64(args.rows) * columns) store(args.matrix, at / columns, at % columns, args.dense[at]);
}

ENTRY(read_rows, Transfer) {
    u32 columns = args.matrix.columns;
    u64 at = blockIdx.x * u64(blockDim.x) + threadIdx.x;
    if (at < u64(args.rows) * columns) args.dense[at] = load(args.matrix, at / columns, at % columns);
}

// Copies columns of one matrix to another.
struct CopyColumns {
    Matrix from, to;
    u32 from_first, to_first, rows, columns;
};

ENTRY(copy_columns, CopyColumns) {
    Place at = place_of_thread(args.rows, args.columns);
    if (!at.is_within) return;
    Quad quad = load_quad(args.from, at.row, args.from_first + at.column, at.count);
    store_quad(args.to, at.row, args.to_first + at.column, at.count, quad);
}

// Two matrices and up to two scalars.
struct Blend {
    Matrix from, to;
    // If it is not all ones, nothing is blended: see `scale_of` of update.cuh.
    const u64* fault;
    u32 rows;
    float share, factor;
    u32 unused;
};

// to += from
ENTRY(add, Blend) {
    Place at = place_of_thread(args.rows, args.to.columns);
    if (!at.is_within) return;
    Quad from = load_quad(args.from, at.row, at.column, at.count);
    change_quad(args.to, at, [&](u32 i, float x) { return x + from.x[i]; });
}

// to += share * (factor * from - to)
ENTRY(blend, Blend) {
    Place at = place_of_thread(args.rows, args.to.columns);
    if (!at.is_within || *args.fault != ~0ull) return;
    Quad from = load_quad(args.from, at.row, at.column, at.count);
    change_quad(args.to, at, [&](u32 i, float x) { return x + args.share * (args.factor * from.x[i] - x); });
}

// A matrix and a scalar on the device.
struct Change {
    Matrix matrix;
    const float* factor;
    u32 rows, unused;
};

ENTRY(multiply, Change) {
    Place at = place_of_thread(args.rows, args.matrix.columns);
    if (!at.is_within) return;
    float factor = *args.factor;
    change_quad(args.matrix, at, [&](u32, float x) { return x * factor; });
}

ENTRY(clear, Change) {
    Place at = place_of_thread(args.rows, args.matrix.columns);
    if (at.is_within) store_quad(args.matrix, at.row, at.column, at.count, Quad{});
}

struct Dropout {
    Matrix matrix;
    u64 key;
    // Elements whose random word is below this are kept; up to 2^32.
    u64 kept;
    u32 first_row, rows;
    float factor;
    u32 unused;
};

// Each thread handles the four columns, 16 apart, that share one counter.
ENTRY(dropout, Dropout) {
    u32 columns = args.matrix.columns, counters = (columns + 63) / 64 * 16;
    u32 number = blockIdx.x * blockDim.x + threadIdx.x, row = number / counters, counter = number % counters;
    if (row >= args.rows) return;
    uint4 drawn = philox(args.key, make_uint4(args.first_row + row, counter, 0, 0));
    u32 words[4] = {drawn.x, drawn.y, drawn.z, drawn.w};
    u32 first = counter / 16 * 64 + counter % 16;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 column = first + 16 * i;
        if (column >= columns) break;
        float x = load(args.matrix, row, column);
        store(args.matrix, row, column, x * (words[i] < args.kept ? args.factor : 0.0f));
    }
}
