// Optimizer steps of the table rows that a batch touches, and sums of their gradients.
//
// Ids are sorted, so the gradients of a row belong to a run of equal ids. The sorted ids are split into pieces of
// equal size, regardless of run boundaries. A worker, some lanes of a warp, sums the runs of one piece. A run within one
// piece is stepped at once. For a run that spans pieces, each piece stores a partial sum, and `step_spans` adds
// these up in order. So the summation order depends on the ids alone, a row that every example names does not
// serialize on one worker, and the combined gradients of the other rows never go through memory.
#include "batch.cuh"
#include "random.cuh"
#include "reduce.cuh"
#include "update.cuh"

// Gradients loaded ahead.
constexpr u32 AHEAD = 4;

// What the summed gradient of a row is used for.
enum Use : u32 {
    // Its squares are added up.
    ADD_SQUARES = 0,
    // The row is updated.
    STEP_ROW = 1,
    // It is stored.
    STORE_SUM = 2,
};

// A column of a table's ids: the first column of its gradient, its pooling, and its maxima.
struct Source {
    IdColumn column;
    u32 first, pooling;
    // Which value of the column holds each maximum, a row per batch row; null if it has none.
    const u32* holders;
};

struct Table {
    const u32* ids;
    const u32* places;
    const u32* size;
    // The first place of each source, parallel to `sources`.
    const u32* starts;
    const Source* sources;
    char* weights;
    // Per-weight state arrays; null if absent.
    float* first;
    float* second;
    // Per-row state, used by row-wise Adagrad.
    float* row_state;
    // Two partial sums per piece.
    float* partials;
    // Two sums of squares per piece.
    float* squares;
    // The summed gradient of each row, at the place of the first of its sorted ids.
    float* sums;
    // Combined with the step's key for stochastic rounding of 16-bit weights.
    u64 key;
    u32 source_count, width;
    // Lanes per worker: a power of two.
    u32 lanes;
    // The format of the weights.
    u32 format;
    // Ids per piece.
    u32 piece, unused;
};

struct StepRows {
    Update update;
    const char* batch;
    const Table* tables;
    const float* scale;
    const u64* fault;
    Matrix gradient;
    u64 key;
    // A `Use`.
    u32 use_of_sums;
    // Columns of a row of holders.
    u32 holder_columns;
};

// A worker processes a row in strips of quads, one quad per lane.
struct Worker {
    const StepRows& args;
    const Table& table;
    u32 lane, mask;
    float scale;
    // The sum of squared gradients, for ADD_SQUARES.
    float squares;

    __device__ __forceinline__ u32 strip() const { return table.lanes * QUAD; }

    __device__ __forceinline__ Matrix weights() const {
        return {table.weights, table.width, table.format, table.width};
    }

    __device__ __forceinline__ Matrix state(float* numbers) const {
        return {(char*)numbers, table.width, F32, table.width};
    }

    __device__ __forceinline__ float sum_of_lanes(float x) const {
        for (u32 distance = table.lanes / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(mask, x, distance);
        return x;
    }

    // The gradient at `place`, for the columns from `column` on.
    template <bool HAS_MAXIMA>
    __device__ __forceinline__ Quad gradient_at(u32 place, u32 column, float& share) const {
        u32 number = table.source_count - 1;
        while (table.starts[number] > place) number--;
        const Source& source = table.sources[number];
        u32 value = place - table.starts[number], row = value;
        share = 1.0f;
        if (source.column.offsets != 0) {
            row = part<u32>(args.batch, source.column.rows)[value];
            share = share_of(args.batch, source.column, source.pooling, row, value);
        }
        u32 count = column < table.width ? min(table.width - column, QUAD) : 0, first = source.first + column;
        // The value's own vector.
        if (source.pooling == UNPOOLED) first += (value - values_of(args.batch, source.column, row).first) * table.width;
        Quad quad = load_quad(args.gradient, row, first, count);
        if (HAS_MAXIMA && source.holders) {
            const u32* holders = source.holders + u64(row) * args.holder_columns + column;
#pragma unroll
            for (u32 i = 0; i < QUAD; i++) {
                if (i < count && holders[i] != value) quad.x[i] = 0.0f;
            }
        }
        return quad;
    }

    // Updates the columns from `column` on of row `id` with the gradient `sum_of(column)`. For row-wise Adagrad,
    // the row's state has been updated already.
    template <typename F>
    __device__ __forceinline__ void step(u32 id, u32 column, F sum_of) const {
        u32 count = min(table.width - column, QUAD);
        // Load the weights and states early, to overlap with the gradient sum.
        Quad quad = load_quad(weights(), id, column, count), first = {}, second = {};
        Matrix firsts = state(table.first), seconds = state(table.second);
        if (table.first) first = load_quad(firsts, id, column, count);
        if (table.second) second = load_quad(seconds, id, column, count);
        Quad gradient = sum_of(column);
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) {
            float w = quad.x[i], g = shaped(args.update, scale, gradient.x[i], w);
            if (args.update.kind == ROW_WISE_ADAGRAD) {
                quad.x[i] = w - args.update.learning_rate * g / (sqrtf(table.row_state[id]) + args.update.a);
            } else {
                quad.x[i] = stepped(args.update, w, first.x[i], second.x[i], g);
            }
        }
        store_drawn(weights(), id, column, count, quad, args.key ^ table.key);
        if (table.first) store_quad(firsts, id, column, count, first);
        if (table.second) store_quad(seconds, id, column, count, second);
    }

    // The sum of squares of the shaped gradients of some columns of row `id`; columns past the end count as zero
    // gradients.
    __device__ __forceinline__ float shaped_squares(u32 id, u32 column, const Quad& gradient) const {
        Quad quad = load_quad(weights(), id, column, min(table.width - column, QUAD));
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) {
            float g = shaped(args.update, scale, gradient.x[i], quad.x[i]);
            sum = fmaf(g, g, sum);
        }
        return sum;
    }

    // Uses the summed gradient of row `id`, whose first sorted id is at `place`; `sum_of(column)` is the gradient's quad at
    // `column`.
    template <typename F>
    __device__ __forceinline__ void finish(u32 id, u32 place, F sum_of) {
        if (args.use_of_sums != STEP_ROW) {
            for (u32 column = lane * QUAD; column < table.width; column += strip()) {
                Quad sum = sum_of(column);
                if (args.use_of_sums == STORE_SUM) {
                    store_quad(state(table.sums), place, column, min(table.width - column, QUAD), sum);
                } else {
                    for (u32 i = 0; i < QUAD; i++) squares = fmaf(sum.x[i], sum.x[i], squares);
                }
            }
            return;
        }
        if (args.update.kind == ROW_WISE_ADAGRAD) {
            float of_row = 0.0f;
            for (u32 column = lane * QUAD; column < table.width; column += strip()) {
                of_row += shaped_squares(id, column, sum_of(column));
            }
            of_row = sum_of_lanes(of_row);
            if (lane == 0) table.row_state[id] += of_row / float(table.width);
            __syncwarp(mask);
        }
        for (u32 column = lane * QUAD; column < table.width; column += strip()) step(id, column, sum_of);
    }

    __device__ __forceinline__ float* partial(u32 number) const { return table.partials + u64(number) * table.width; }
};

// This thread's worker and piece.
__device__ __forceinline__ Worker worker_of_thread(const StepRows& args, u32& piece) {
    const Table& table = args.tables[blockIdx.y];
    u32 thread = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % table.lanes;
    piece = thread / table.lanes;
    u32 of_warp = threadIdx.x % WARP - lane;
    u32 mask = (table.lanes == WARP ? 0xffffffffu : (1u << table.lanes) - 1) << of_warp;
    return {args, table, lane, mask, args.use_of_sums == STEP_ROW ? scale_of(args.scale, args.fault) : 1.0f, 0.0f};
}

// The sum of the gradients at places `first` to `end`, for the columns from `column` on, in the order of places.
template <bool HAS_MAXIMA>
__device__ __forceinline__ Quad sum_of_run(const Worker& worker, u32 first, u32 end, u32 column) {
    Quad sum = {};
    for (u32 at = first; at < end; at += AHEAD) {
        Quad found[AHEAD];
        float shares[AHEAD];
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            shares[i] = 0.0f;
            if (at + i < end) found[i] = worker.gradient_at<HAS_MAXIMA>(worker.table.places[at + i], column, shares[i]);
        }
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            if (at + i >= end) break;
#pragma unroll
            for (u32 k = 0; k < QUAD; k++) sum.x[k] = fmaf(shares[i], found[i].x[k], sum.x[k]);
        }
    }
    return sum;
}

template <bool HAS_MAXIMA>
__device__ __forceinline__ void step_runs(const StepRows& args) {
    u32 piece;
    Worker worker = worker_of_thread(args, piece);
    const Table& table = worker.table;
    u32 size = *table.size, begin = piece * table.piece, end = min(begin + table.piece, size);
    if (begin >= size || worker.scale == 0.0f) return;
    for (u32 first = begin, next; first < end; first = next) {
        u32 id = table.ids[first];
        next = first + 1;
        while (next < end && table.ids[next] == id) next++;
        bool starts = first > begin || begin == 0 || table.ids[begin - 1] != id;
        bool ends = next < end || end == size || table.ids[end] != id;
        if (starts && ends) {
            worker.finish(id, first, [&](u32 column) { return sum_of_run<HAS_MAXIMA>(worker, first, next, column); });
            continue;
        }
        float* partial = worker.partial(2 * piece + (first > begin));
        for (u32 column = worker.lane * QUAD; column < table.width; column += worker.strip()) {
            Quad sum = sum_of_run<HAS_MAXIMA>(worker, first, next, column);
            for (u32 i = 0; i < QUAD && column + i < table.width; i++) partial[column + i] = sum.x[i];
        }
    }
    if (args.use_of_sums == ADD_SQUARES) {
        float squares = worker.sum_of_lanes(worker.squares);
        if (worker.lane == 0) table.squares[2 * piece] = squares;
    }
}

ENTRY(step_pieces, StepRows) {
    step_runs<false>(args);
}

// A variant for gradients of maxima; it uses more registers.
ENTRY(step_pieces_of_maxima, StepRows) {
    step_runs<true>(args);
}

// One worker per run that begins in its piece and continues in the next.
ENTRY(step_spans, StepRows) {
    u32 piece;
    Worker worker = worker_of_thread(args, piece);
    const Table& table = worker.table;
    u32 size = *table.size, begin = piece * table.piece, end = min(begin + table.piece, size);
    if (begin >= size || worker.scale == 0.0f) return;
    u32 id = table.ids[end - 1];
    bool goes_on = end < size && table.ids[end] == id;
    bool fills = table.ids[begin] == id;
    bool starts = !fills || begin == 0 || table.ids[begin - 1] != id;
    if (goes_on && starts) {
        u32 first = end - 1, last = piece + 1;
        while (first > begin && table.ids[first - 1] == id) first--;
        while ((last + 1) * table.piece < size && table.ids[(last + 1) * table.piece] == id) last++;
        worker.finish(id, first, [&](u32 column) {
            Quad sum = {};
            for (u32 number = piece; number <= last; number++) {
                const float* partial = worker.partial(2 * number + (number == piece && !fills));
                for (u32 i = 0; i < QUAD && column + i < table.width; i++) sum.x[i] += partial[column + i];
            }
            return sum;
        });
    }
    if (args.use_of_sums == ADD_SQUARES) {
        float squares = worker.sum_of_lanes(worker.squares);
        if (worker.lane == 0) table.squares[2 * piece + 1] = squares;
    }
}

struct RowSquares {
    const Table* tables;
    float* sum;
    u32 table_count, unused;
};

// One block: sum += the squares of all pieces of all tables.
ENTRY(add_row_squares, RowSquares) {
    float sum = 0.0f;
    for (u32 number = 0; number < args.table_count; number++) {
        const Table& table = args.tables[number];
        u32 pieces = (*table.size + table.piece - 1) / table.piece;
        for (u32 at = threadIdx.x; at < 2 * pieces; at += blockDim.x) sum += table.squares[at];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) *args.sum += sum;
}
