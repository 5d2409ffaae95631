// Taking a batch in from its slot: validation, replacement of invalid ids, and data derived from the offsets. Also
// the report of a step to the host.
#include "batch.cuh"

constexpr u32 REPORTED = 2;
constexpr u64 NONE = ~0ull;

// Faults, in the order in which the host would find them: by column, offsets before ids, then by place.
struct Faults {
    // In the batch being taken in.
    u64 of_offsets, of_ids;
    // The first fault, until the host has read it.
    u64 found;
    const char* batch;
    u32 row, first, second, unused;
};

struct Intake {
    const char* slot;
    char* batch;
    const IdColumn* columns;
    Faults* faults;
    // Byte offsets, equal in slot and batch; `weights` is 0 if there are none.
    u64 labels, weights, dense;
    u32 label_count, label_stride, dense_columns, rows;
};

__device__ __forceinline__ u64 fault_of(u32 column, bool is_of_ids, u32 place) {
    return u64(column) << 33 | u64(is_of_ids) << 32 | place;
}

// Validates the offsets of ragged columns, one per block row: ascending, at most `maximum` values per row, within
// the slot.
ENTRY(check_offsets, Intake) {
    const IdColumn& column = args.columns[blockIdx.y];
    u32 row = blockIdx.x * blockDim.x + threadIdx.x;
    if (column.offsets == 0 || row >= args.rows) return;
    const u32* offsets = part<u32>(args.slot, column.offsets);
    u32 from = offsets[row], to = offsets[row + 1];
    bool holds = from <= to && to - from <= column.maximum && (row > 0 || from == 0);
    if (!holds) atomicMin(&args.faults->of_offsets, fault_of(blockIdx.y, false, row));
}

// Copies an id; one out of range is recorded as a fault and replaced by 0.
__device__ __forceinline__ void take_id(const Intake& args, const IdColumn& column, u32 value) {
    u32 id = part<u32>(args.slot, column.ids)[value];
    bool is_in_range = id < column.cardinality;
    if (!is_in_range) atomicMin(&args.faults->of_ids, fault_of(blockIdx.y, true, value));
    ((u32*)(args.batch + column.ids))[value] = is_in_range ? id : 0;
}

// Copies ids and, for ragged columns, offsets, the row of each value, and the pooling factors. From the first
// column with invalid offsets on, all rows are empty and ids are not validated, because the host would stop there.
ENTRY(take_ids, Intake) {
    const IdColumn& column = args.columns[blockIdx.y];
    u32 row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= args.rows) return;
    bool is_behind = args.faults->of_offsets >> 33 <= blockIdx.y;
    if (column.offsets == 0) {
        if (is_behind) {
            ((u32*)(args.batch + column.ids))[row] = 0;
        } else {
            take_id(args, column, row);
        }
        return;
    }
    Values values = is_behind ? Values{0, 0} : values_of(args.slot, column, row);
    u32* offsets = (u32*)(args.batch + column.offsets);
    if (row == 0) offsets[0] = 0;
    offsets[row + 1] = values.end;
    const float* weights = column.weights == 0 ? nullptr : part<float>(args.slot, column.weights);
    double sum = 0.0, squares = 0.0;
    for (u32 value = values.first; value < values.end; value++) {
        take_id(args, column, value);
        ((u32*)(args.batch + column.rows))[value] = row;
        if (weights) ((float*)(args.batch + column.weights))[value] = weights[value];
        double weight = weights ? double(fmaxf(weights[value], 0.0f)) : 1.0;
        sum += weight;
        squares += weight * weight;
    }
    ((double*)(args.batch + column.mean_scales))[row] = sum > 0.0 ? 1.0 / sum : 0.0;
    ((double*)(args.batch + column.root_scales))[row] = squares > 0.0 ? 1.0 / sqrt(squares) : 0.0;
}

// Records this batch's fault, unless an earlier one is still unread, and resets the state for the next batch.
__device__ void conclude(const Intake& args) {
    Faults& faults = *args.faults;
    u64 found = min(faults.of_offsets, faults.of_ids);
    faults.of_offsets = NONE;
    faults.of_ids = NONE;
    if (found == NONE || faults.found != NONE) return;
    const IdColumn& column = args.columns[found >> 33];
    const u32* offsets = part<u32>(args.slot, column.offsets);
    u32 place = u32(found);
    faults.row = place;
    if (found >> 32 & 1) {
        faults.first = part<u32>(args.slot, column.ids)[place];
        if (column.offsets != 0) {
            for (faults.row = 0; offsets[faults.row + 1] <= place;) faults.row++;
        }
    } else {
        bool begins = offsets[0] == 0;
        faults.row = begins ? place : 0;
        faults.first = offsets[faults.row];
        faults.second = begins ? offsets[faults.row + 1] : faults.first;
    }
    faults.batch = args.batch;
    faults.found = found;
}

// Copies labels, weights and dense values, one run per block row; runs after the kernels above.
ENTRY(take_numbers, Intake) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x, run = blockIdx.y;
    if (run == 0 && at == 0) conclude(args);
    u64 place = args.dense;
    u32 count = args.rows * args.dense_columns;
    if (run < args.label_count) {
        place = args.labels + u64(run) * args.label_stride * sizeof(float);
        count = args.rows;
    } else if (run == args.label_count) {
        place = args.weights;
        count = args.weights ? args.rows : 0;
    }
    if (at < count) ((u32*)(args.batch + place))[at] = part<u32>(args.slot, place)[at];
}

struct Report {
    const Faults* faults;
    // The faults, then the values of all matrices.
    char* out;
    Matrix parts[REPORTED];
    u32 rows[REPORTED];
};

// One block.
ENTRY(report, Report) {
    if (threadIdx.x == 0) *(Faults*)args.out = *args.faults;
    float* out = (float*)(args.out + sizeof(Faults));
    for (u32 number = 0; number < REPORTED; number++) {
        const Matrix& matrix = args.parts[number];
        u32 count = args.rows[number] * matrix.columns;
        for (u32 at = threadIdx.x; at < count; at += blockDim.x) {
            out[at] = load(matrix, at / matrix.columns, at % matrix.columns);
        }
        out += count;
    }
}
