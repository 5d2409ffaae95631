// What is to be known of a batch before anything reads it: that ids are in range, and what follows from its offsets.
#include "batch.cuh"

struct Columns {
    char* batch;
    const IdColumn* columns;
    // The first fault found, in the order of columns: all ones if there is none. See `report`.
    u64* fault;
    u32 rows, unused;
};

// Faults in the order in which the host would find them: by column; in it offsets before ids; by place.
__device__ __forceinline__ void report(u64* fault, u32 column, bool is_of_ids, u32 place) {
    atomicMin(fault, u64(column) << 33 | u64(is_of_ids) << 32 | place);
}

// Offsets of ragged columns, one a block row: as many values as the slot has, at most `maximum` a row, in order.
ENTRY(check_offsets, Columns) {
    const IdColumn& column = args.columns[blockIdx.y];
    u32 row = blockIdx.x * blockDim.x + threadIdx.x;
    if (column.offsets == 0 || row >= args.rows) return;
    const u32* offsets = part<u32>(args.batch, column.offsets);
    u32 from = offsets[row], to = offsets[row + 1];
    bool holds = from <= to && to - from <= column.maximum && (row > 0 || from == 0);
    if (!holds) report(args.fault, blockIdx.y, false, row);
}

// Whether a fault that was found lies before all ids of a column: in a column before it, or in its own offsets.
__device__ __forceinline__ bool is_before(u64 fault, u32 column) {
    return fault >> 33 < column || (fault >> 33 == column && (fault >> 32 & 1) == 0);
}

// Ids, where offsets hold, which has been checked; and which row each value is of, and what values count times.
ENTRY(check_ids, Columns) {
    const IdColumn& column = args.columns[blockIdx.y];
    u32 row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= args.rows || is_before(*(const volatile u64*)args.fault, blockIdx.y)) return;
    Values values = values_of(args.batch, column, row);
    const u32* ids = part<u32>(args.batch, column.ids);
    for (u32 value = values.first; value < values.end; value++) {
        if (ids[value] >= column.cardinality) {
            report(args.fault, blockIdx.y, true, value);
            return;
        }
    }
    if (column.offsets == 0) return;
    u32* rows = (u32*)(args.batch + column.rows);
    for (u32 value = values.first; value < values.end; value++) rows[value] = row;
    const float* weights = column.weights == 0 ? nullptr : part<float>(args.batch, column.weights);
    double sum = 0.0, squares = 0.0;
    for (u32 value = values.first; value < values.end; value++) {
        double weight = weights ? double(fmaxf(weights[value], 0.0f)) : 1.0;
        sum += weight;
        squares += weight * weight;
    }
    ((double*)(args.batch + column.mean_scales))[row] = sum > 0.0 ? 1.0 / sum : 0.0;
    ((double*)(args.batch + column.root_scales))[row] = squares > 0.0 ? 1.0 / sqrt(squares) : 0.0;
}
