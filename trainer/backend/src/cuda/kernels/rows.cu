// Optimizer steps of the table rows that a batch touches, and sums of their gradients.
//
// Ids are sorted, so the gradients of a row belong to a run of equal ids. The sorted ids are split into pieces of
// equal size, regardless of run boundaries. A worker, some lanes of a warp, sums the runs of one piece. A run within one
// piece is stepped at once. For a run that spans pieces, each piece stores a partial sum, and `step_spans` adds
// these up in order. So the summation order depends on the ids alone, a row that every example names does not
// serialize on one worker, and the combined gradients of the other rows never go through memory.
//
// Most runs are of one id, and the time of a worker is that of the loads which wait for each other: the id, the place of its
// gradient, then the gradient and the row. So the lanes of a worker look up the places of as many gradients at the same time;
// until the last of these, the gradient and the row of the next id are copied to shared memory during the step of this one; and as
// many workers as possible run at once.
#include "batch.cuh"
#include "copies.cuh"
#include "random.cuh"
#include "reduce.cuh"
#include "update.cuh"

constexpr u32 EVERY_LANE = 0xffffffffu;

// Ids whose gradients and rows a worker has in shared memory: the current one, and the next one, which is being copied.
constexpr u32 KEPT_IDS = 2;

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
    // The summed gradient of each row, at the place of the first of its sorted ids; or by id, in room for all rows of the table,
    // which are then marked by 1 in `touched`.
    float* sums;
    float* touched;
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

// What a lane has in shared memory of an id: its quads of the row, of the row's states, and of the gradient.
enum Part : u32 { WEIGHTS = 0, FIRST = 1, SECOND = 2, GRADIENT = 3 };
constexpr u32 PARTS = 4;

// Where the gradient of an id begins, and its factor.
struct Origin {
    char* from;
    float share;
};

// Some columns of a row and of its states.
struct Row {
    Quad weights, first, second;
};

// A worker processes a row in strips of quads, one quad per lane; on rows of one quad, each lane has its own row. All lanes of its
// warp work in step.
struct Worker {
    const StepRows& args;
    // In shared memory: what the kernel stores may change global memory, so that fields would be loaded again for each row.
    const Table& table;
    // The places of its piece, and the number of all.
    u32 begin, end, size;
    float scale;
    // The sum of squared gradients, for ADD_SQUARES.
    float squares;

    // Computed where they are needed: registers are scarce.
    __device__ __forceinline__ u32 lane() const { return threadIdx.x & (table.lanes - 1); }

    __device__ __forceinline__ u32 piece() const { return (blockIdx.x * blockDim.x + threadIdx.x) / table.lanes; }

    __device__ __forceinline__ bool has_ids() const { return begin < end; }

    __device__ __forceinline__ bool is_step() const { return args.use_of_sums == STEP_ROW; }

    __device__ __forceinline__ bool has_row_states() const {
        return is_step() && args.update.kind == ROW_WISE_ADAGRAD;
    }

    __device__ __forceinline__ u32 strip() const { return table.lanes * QUAD; }

    // How many columns of a row the quad at `column` has.
    __device__ __forceinline__ u32 count_at(u32 column) const {
        return column < table.width ? min(table.width - column, QUAD) : 0;
    }

    __device__ __forceinline__ Matrix weights() const {
        return {table.weights, table.width, table.format, table.width};
    }

    __device__ __forceinline__ Matrix state(float* numbers) const {
        return {(char*)numbers, table.width, F32, table.width};
    }

    // `x` of another lane of the worker.
    template <typename T>
    __device__ __forceinline__ T of_lane(T x, u32 other) const {
        return __shfl_sync(EVERY_LANE, x, other, table.lanes);
    }

    __device__ __forceinline__ float sum_of_lanes(float x) const {
        for (u32 distance = table.lanes / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(EVERY_LANE, x, distance);
        return x;
    }

    // The source of the gradient at `place`, and the number of its value.
    __device__ __forceinline__ const Source& source_of(u32 place, u32& value) const {
        u32 number = table.source_count - 1;
        while (table.starts[number] > place) number--;
        value = place - table.starts[number];
        return table.sources[number];
    }

    __device__ __forceinline__ u32 row_of(const Source& source, u32 value) const {
        return source.column.offsets == 0 ? value : part<u32>(args.batch, source.column.rows)[value];
    }

    __device__ __forceinline__ Origin origin_of(u32 place) const {
        u32 value;
        const Source& source = source_of(place, value);
        u32 row = row_of(source, value), first = source.first;
        float share = share_of(args.batch, source.column, source.pooling, row, value);
        // The value's own vector.
        if (source.pooling == UNPOOLED) first += (value - values_of(args.batch, source.column, row).first) * table.width;
        u64 at = row * args.gradient.stride + first;
        return {args.gradient.data + at * (args.gradient.format == F32 ? sizeof(float) : sizeof(u16)), share};
    }

    // Sets those columns to 0 in which the value at `place` is not the maximum of its row.
    __device__ __forceinline__ void keep_maxima(u32 place, u32 column, u32 count, Quad& gradient) const {
        u32 value;
        const Source& source = source_of(place, value);
        if (!source.holders) return;
        const u32* holders = source.holders + u64(row_of(source, value)) * args.holder_columns + column;
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) {
            if (i < count && holders[i] != value) gradient.x[i] = 0.0f;
        }
    }

    // Whether the gradient's quads are vectors.
    __device__ __forceinline__ bool is_aligned(const Origin& origin) const {
        return u64(origin.from) % (args.gradient.format == F32 ? sizeof(float4) : sizeof(uint2)) == 0;
    }

    __device__ __forceinline__ Quad gradient_of(const Origin& origin, u32 column, u32 count) const {
        u32 format = args.gradient.format;
        return load_quad({origin.from, is_aligned(origin) ? QUAD : 1, format, 0}, 0, column, count);
    }

    __device__ __forceinline__ Row load_row(u32 id, u32 column, u32 count) const {
        Row row = {load_quad(weights(), id, column, count)};
        if (table.first) row.first = load_quad(state(table.first), id, column, count);
        if (table.second) row.second = load_quad(state(table.second), id, column, count);
        return row;
    }

    // The sum of squares of the shaped gradients; columns past the end count as zero gradients.
    __device__ __forceinline__ float shaped_squares(const Quad& weights, const Quad& gradient) const {
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) {
            float g = shaped(args.update, scale, gradient.x[i], weights.x[i]);
            sum = fmaf(g, g, sum);
        }
        return sum;
    }

    // Row-wise Adagrad: adds the mean of the squares to the state of row `id`, and returns the learning rate of the row.
    __device__ __forceinline__ float rate_of_row(u32 id, float squares) const {
        float state = table.row_state[id] + squares / float(table.width);
        table.row_state[id] = state;
        return args.update.learning_rate / (sqrtf(state) + args.update.a);
    }

    // The same where each lane has some squares. The other workers of the warp may have no row.
    __device__ __forceinline__ float rate_of_row(bool has_row, u32 id, float squares) const {
        float sum = sum_of_lanes(squares), rate = 0.0f;
        if (has_row && lane() == 0) rate = rate_of_row(id, sum);
        return of_lane(rate, 0);
    }

    // Updates some columns of row `id`. `rate` is the row's, for row-wise Adagrad.
    __device__ __forceinline__ void step(u32 id, u32 column, u32 count, Row& row, const Quad& gradient, float rate) const {
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) {
            float w = row.weights.x[i], g = shaped(args.update, scale, gradient.x[i], w);
            if (args.update.kind == ROW_WISE_ADAGRAD) {
                row.weights.x[i] = w - rate * g;
            } else {
                row.weights.x[i] = stepped(args.update, w, row.first.x[i], row.second.x[i], g);
            }
        }
        store_drawn(weights(), id, column, count, row.weights, args.key ^ table.key);
        if (table.first) store_quad(state(table.first), id, column, count, row.first);
        if (table.second) store_quad(state(table.second), id, column, count, row.second);
    }

    // Uses some columns of the summed gradient of row `id`, whose first sorted id is at `place`, other than for a step.
    __device__ __forceinline__ void use(u32 id, u32 place, u32 column, u32 count, const Quad& sum) {
        if (args.use_of_sums == STORE_SUM) {
            store_quad(state(table.sums), table.touched ? id : place, column, count, sum);
            if (table.touched && column == 0) table.touched[id] = 1.0f;
        } else {
#pragma unroll
            for (u32 i = 0; i < QUAD; i++) squares = fmaf(sum.x[i], sum.x[i], squares);
        }
    }

    __device__ __forceinline__ float* partial(u32 number) const { return table.partials + u64(number) * table.width; }

    // Stores some columns of the sum of a run that begins or ends outside the piece; `first` is its first place within.
    __device__ __forceinline__ void store_partial(u32 first, u32 column, u32 count, const Quad& sum) const {
        store_quad(state(partial(2 * piece() + (first > begin))), 0, column, count, sum);
    }
};

// This thread's worker and its piece, which may be past the last one.
__device__ __forceinline__ Worker worker_of_thread(const StepRows& args) {
    __shared__ u64 words[sizeof(Table) / sizeof(u64)];
    const u64* from = (const u64*)(args.tables + blockIdx.y);
    for (u32 at = threadIdx.x; at < sizeof(Table) / sizeof(u64); at += blockDim.x) words[at] = from[at];
    __syncthreads();
    const Table& table = *(const Table*)words;
    u32 thread = blockIdx.x * blockDim.x + threadIdx.x, piece = thread / table.lanes, size = *table.size;
    // Another table may have many more pieces.
    u32 begin = u32(min(u64(piece) * table.piece, u64(size))), end = begin + min(table.piece, size - begin);
    float scale = args.use_of_sums == STEP_ROW ? scale_of(args.scale, args.fault) : 1.0f;
    return {args, table, begin, end, size, scale, 0.0f};
}

// Whether no worker of this warp has anything to do.
__device__ __forceinline__ bool is_idle(const Worker& worker) {
    return worker.scale == 0.0f || !__any_sync(EVERY_LANE, worker.has_ids());
}

// What a worker does with the complete rows of a strip.
enum Pass : u32 {
    // All that is to be done.
    WHOLE_STEP = 0,
    // Row-wise Adagrad on rows of several strips: first all states, then all weights.
    ROW_STATES = 1,
    ROW_WEIGHTS = 2,
};

// The shared memory of a block's lanes for the quads of some ids.
struct Kept {
    uint4 (*quads)[PARTS][THREADS_OF_step_pieces];

    __device__ __forceinline__ uint4* at(u32 slot, Part part) const { return &quads[slot][part][threadIdx.x]; }

    // Begins to copy the quad at element `first` of `data`, which is a vector.
    __device__ __forceinline__ void begin(u32 slot, Part part, const void* data, u32 format, u64 first) const {
        if (format == F32) {
            begin_copy<sizeof(float4)>(at(slot, part), (const float*)data + first);
        } else {
            begin_copy<sizeof(uint2)>(at(slot, part), (const u16*)data + first);
        }
    }

    // The quad, after the wait for its copy.
    __device__ __forceinline__ Quad take(u32 slot, Part part, u32 format) const {
        return load_quad({(char*)at(slot, part), QUAD, format, QUAD}, 0, 0, QUAD);
    }
};

// Whether an id is the first or the last of its run, and whether the quads of its gradient are vectors.
enum Trait : u32 { STARTS = 1, ENDS = 2, IS_ALIGNED = 4 };

__device__ __forceinline__ u32 traits_of(const Worker& worker, u32 place, u32 id) {
    const u32* ids = worker.table.ids;
    bool starts = place == 0 || ids[place - 1] != id, ends = place + 1 == worker.size || ids[place + 1] != id;
    return (starts ? STARTS : 0) | (ends ? ENDS : 0);
}

// Sums the runs of a piece in some columns, and uses the sums of complete runs.
template <bool HAS_MAXIMA>
__device__ __forceinline__ void pass_strip(Worker& worker, const Kept& kept, u32 column, Pass pass) {
    const StepRows& args = worker.args;
    const Table& table = worker.table;
    const u32 count = worker.count_at(column), lanes = table.lanes;
    const bool is_step = worker.is_step(), has_row_vectors = is_step && table.width % QUAD == 0;
    // The current run: its first place in this piece, whether it begins there, and whether it goes on after the current id.
    u32 first = worker.begin;
    bool has_begun = false, goes_on = false;
    Quad sum = {};
    Row row = {};
    for (u32 base = worker.begin; base < worker.begin + table.piece; base += lanes) {
        u32 own_id = 0, own_traits = 0, own_place = 0;
        Origin own = {};
        if (base + worker.lane() < worker.end) {
            own_id = table.ids[base + worker.lane()];
            own_place = table.places[base + worker.lane()];
            own = worker.origin_of(own_place);
            own_traits = traits_of(worker, base + worker.lane(), own_id) | (worker.is_aligned(own) ? IS_ALIGNED : 0);
        }
        auto begin = [&](u32 from) {
            u32 id = worker.of_lane(own_id, from), traits = worker.of_lane(own_traits, from), slot = from % KEPT_IDS;
            u64 gradient = worker.of_lane(u64(own.from), from), of_row = u64(id) * table.width + column;
            if (base + from < worker.end && count == QUAD) {
                if (traits & IS_ALIGNED) kept.begin(slot, GRADIENT, (char*)gradient, args.gradient.format, column);
                if (has_row_vectors && traits & STARTS) {
                    kept.begin(slot, WEIGHTS, table.weights, table.format, of_row);
                    if (table.first) kept.begin(slot, FIRST, table.first, F32, of_row);
                    if (table.second) kept.begin(slot, SECOND, table.second, F32, of_row);
                }
            }
            end_group();
        };
        static_assert(KEPT_IDS == 2, "one id is copied ahead");
        begin(0);
        for (u32 from = 0; from < lanes; from++) {
            if (from + 1 < lanes) {
                begin(from + 1);
            } else {
                end_group();
            }
            u32 id = worker.of_lane(own_id, from), traits = worker.of_lane(own_traits, from), slot = from % KEPT_IDS;
            Origin origin = {(char*)worker.of_lane(u64(own.from), from), worker.of_lane(own.share, from)};
            u32 place = HAS_MAXIMA ? worker.of_lane(own_place, from) : 0;
            bool is_within = base + from < worker.end;
            wait_for_groups<KEPT_IDS - 1>();
            if (is_within) {
                bool is_vector = count == QUAD && traits & IS_ALIGNED;
                Quad found = is_vector ? kept.take(slot, GRADIENT, args.gradient.format)
                                       : load_quad({origin.from, 1, args.gradient.format, 1}, column, 0, count);
                if (traits & STARTS) {
                    has_begun = true;
                    first = base + from;
                    sum = {};
                    if (has_row_vectors && count == QUAD) {
                        row.weights = kept.take(slot, WEIGHTS, table.format);
                        if (table.first) row.first = kept.take(slot, FIRST, F32);
                        if (table.second) row.second = kept.take(slot, SECOND, F32);
                    } else if (is_step) {
                        row = worker.load_row(id, column, count);
                    }
                }
                if (HAS_MAXIMA) worker.keep_maxima(place, column, count, found);
#pragma unroll
                for (u32 i = 0; i < QUAD; i++) sum.x[i] = fmaf(origin.share, found.x[i], sum.x[i]);
                goes_on = !(traits & ENDS);
            }
            bool ends = is_within && !goes_on, is_complete = ends && has_begun;
            float rate = 0.0f;
            if (worker.has_row_states() && __any_sync(EVERY_LANE, is_complete)) {
                bool is_new = is_complete && pass != ROW_WEIGHTS;
                rate = worker.rate_of_row(is_complete, id, is_new ? worker.shaped_squares(row.weights, sum) : 0.0f);
            }
            if (is_complete && !is_step) {
                worker.use(id, first, column, count, sum);
            } else if (is_complete && pass != ROW_STATES) {
                worker.step(id, column, count, row, sum, rate);
            } else if (ends && !has_begun) {
                worker.store_partial(first, column, count, sum);
            }
        }
    }
    if (goes_on) worker.store_partial(first, column, count, sum);
}

// The same for rows of one quad, and a whole warp as worker: each lane has an id, and a scan adds up the runs.
template <bool HAS_MAXIMA>
__device__ __forceinline__ void pass_narrow(Worker& worker) {
    const StepRows& args = worker.args;
    const Table& table = worker.table;
    const u32 place = worker.begin + worker.lane(), count = table.width;
    const bool is_within = place < worker.end;
    u32 id = 0, traits = 0;
    Quad sum = {};
    if (is_within) {
        id = table.ids[place];
        traits = traits_of(worker, place, id);
        u32 of_value = table.places[place];
        Origin own = worker.origin_of(of_value);
        sum = worker.gradient_of(own, 0, count);
        if (HAS_MAXIMA) worker.keep_maxima(of_value, 0, count, sum);
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) sum.x[i] *= own.share;
    }
    const u32 starts = __ballot_sync(EVERY_LANE, traits & STARTS);
    // The first lane of this lane's run.
    const u32 head = WARP - 1 - __clz((starts | 1) & (EVERY_LANE >> (WARP - 1 - worker.lane())));
#pragma unroll
    for (u32 distance = 1; distance < WARP; distance *= 2) {
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) {
            float before = __shfl_up_sync(EVERY_LANE, sum.x[i], distance);
            if (worker.lane() >= head + distance) sum.x[i] += before;
        }
    }
    const u32 first = worker.begin + head;
    const bool ends = traits & ENDS, is_complete = ends && (starts >> head & 1);
    if (is_complete && !worker.is_step()) {
        worker.use(id, first, 0, count, sum);
    } else if (is_complete) {
        Row row = worker.load_row(id, 0, count);
        float rate = 0.0f;
        if (worker.has_row_states()) rate = worker.rate_of_row(id, worker.shaped_squares(row.weights, sum));
        worker.step(id, 0, count, row, sum, rate);
    } else if (ends || (is_within && place + 1 == worker.end)) {
        worker.store_partial(first, 0, count, sum);
    }
}

template <bool HAS_MAXIMA>
__device__ __forceinline__ void step_runs(const StepRows& args) {
    __shared__ uint4 kept[KEPT_IDS][PARTS][THREADS_OF_step_pieces];
    Worker worker = worker_of_thread(args);
    if (is_idle(worker)) return;
    const u32 width = worker.table.width, strip = worker.strip();
    if (width <= QUAD) {
        pass_narrow<HAS_MAXIMA>(worker);
    } else {
        bool is_split = worker.has_row_states() && width > strip;
        u32 pass = is_split ? ROW_STATES : WHOLE_STEP;
        do {
            for (u32 first = 0; first < width; first += strip) {
                pass_strip<HAS_MAXIMA>(worker, {kept}, first + worker.lane() * QUAD, Pass(pass));
            }
        } while (pass++ == ROW_STATES);
    }
    if (args.use_of_sums == ADD_SQUARES) {
        float squares = worker.sum_of_lanes(worker.squares);
        if (worker.lane() == 0 && worker.has_ids()) worker.table.squares[2 * worker.piece()] = squares;
    }
}

// Where a multiprocessor has 100 KB of shared memory instead of 227, it has room for 640 threads.
ENTRY_OF_RESIDENT(step_pieces, 1024, StepRows) {
    step_runs<false>(args);
}

// A variant for gradients of maxima, with more registers.
ENTRY_OF_RESIDENT(step_pieces_of_maxima, 896, StepRows) {
    step_runs<true>(args);
}

// The last of the pieces that have ids of a run which goes on at place `low`.
__device__ __forceinline__ u32 last_piece(const Worker& worker, u32 low, u32 id) {
    u32 high = worker.size;
    while (low + 1 < high) {
        u32 middle = low + (high - low) / 2;
        (worker.table.ids[middle] == id ? low : high) = middle;
    }
    return low / worker.table.piece;
}

// One worker per run that begins in its piece and continues in the next.
ENTRY(step_spans, StepRows) {
    Worker worker = worker_of_thread(args);
    if (is_idle(worker)) return;
    const Table& table = worker.table;
    const u32 piece = worker.piece(), begin = worker.begin, end = worker.end;
    u32 id = 0, first = begin, last = piece;
    bool fills = false, is_mine = false;
    if (worker.has_ids()) {
        id = table.ids[end - 1];
        fills = table.ids[begin] == id;
        bool goes_on = end < worker.size && table.ids[end] == id;
        is_mine = goes_on && (!fills || begin == 0 || table.ids[begin - 1] != id);
    }
    if (is_mine) {
        last = last_piece(worker, end, id);
        // Only sums are stored there.
        if (!worker.is_step()) {
            for (first = end - 1; first > begin && table.ids[first - 1] == id;) first--;
        }
    }
    auto sum_of = [&](u32 column, u32 count) {
        Quad sum = load_quad(worker.state(worker.partial(2 * piece + !fills)), 0, column, count);
#pragma unroll 4
        for (u32 number = piece + 1; number <= last; number++) {
            Quad more = load_quad(worker.state(worker.partial(2 * number)), 0, column, count);
#pragma unroll
            for (u32 i = 0; i < QUAD; i++) sum.x[i] += more.x[i];
        }
        return sum;
    };
    float rate = 0.0f;
    if (worker.has_row_states()) {
        float squares = 0.0f;
        for (u32 column = worker.lane() * QUAD; is_mine && column < table.width; column += worker.strip()) {
            u32 count = worker.count_at(column);
            squares += worker.shaped_squares(load_quad(worker.weights(), id, column, count), sum_of(column, count));
        }
        rate = worker.rate_of_row(is_mine, id, squares);
    }
    for (u32 column = worker.lane() * QUAD; is_mine && column < table.width; column += worker.strip()) {
        u32 count = worker.count_at(column);
        if (worker.is_step()) {
            Row row = worker.load_row(id, column, count);
            worker.step(id, column, count, row, sum_of(column, count), rate);
        } else {
            worker.use(id, first, column, count, sum_of(column, count));
        }
    }
    if (args.use_of_sums == ADD_SQUARES) {
        float squares = worker.sum_of_lanes(worker.squares);
        if (worker.lane() == 0 && worker.has_ids()) table.squares[2 * piece + 1] = squares;
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
