// The row plan: the rows of each table that a batch touches. For each group of columns it holds the sorted ids with
// the places that they come from; equal ids stay in the order of columns, rows and places.
//
// A least-significant-digit radix sort of all groups at once. Each pass counts the digits of each tile, computes
// prefix sums of the counts, and moves each tile's ids to their places. Destinations depend on counts alone, so the
// result does not depend on the order of threads or blocks.
#include "batch.cuh"
#include "scan.cuh"

constexpr u32 DIGIT_BITS = 8;
constexpr u32 DIGITS = 1 << DIGIT_BITS;
constexpr u32 TILE_THREADS = SCAN_THREADS;
constexpr u32 TILE_WARPS = TILE_THREADS / WARP;
// Ids per thread.
constexpr u32 EACH = 16;
constexpr u32 TILE = TILE_THREADS * EACH;

// The columns looked up in one table, and the buffers in which their ids are sorted.
struct Group {
    // Double buffers: each pass sorts from one to the other.
    u32* ids[2];
    u32* places[2];
    // [digit, tile]
    u32* counts;
    // This group's range in the list of all groups' columns.
    u32 first_column, columns;
    u32 capacity, passes;
};

struct Plan {
    const char* batch;
    const IdColumn* columns;
    const Group* groups;
    // The start of each column's ids in its group, and the number of ids per group.
    u32* starts;
    u32* sizes;
    u32 rows, group_count, pass, unused;
};

// The number of values of a column. A batch without rows has no offsets.
__device__ __forceinline__ u32 size_of(const char* batch, const IdColumn& column, u32 rows) {
    return column.offsets == 0 || rows == 0 ? rows : part<u32>(batch, column.offsets)[rows];
}

// One thread per group.
ENTRY(size_groups, Plan) {
    u32 number = blockIdx.x * blockDim.x + threadIdx.x;
    if (number >= args.group_count) return;
    const Group& group = args.groups[number];
    u32 size = 0;
    for (u32 i = 0; i < group.columns; i++) {
        args.starts[group.first_column + i] = size;
        size += size_of(args.batch, args.columns[group.first_column + i], args.rows);
    }
    args.sizes[number] = size;
}

// One grid row per group; its columns one after the other.
ENTRY(fill_groups, Plan) {
    const Group& group = args.groups[blockIdx.y];
    for (u32 i = 0; i < group.columns; i++) {
        const IdColumn& column = args.columns[group.first_column + i];
        u32 start = args.starts[group.first_column + i], size = size_of(args.batch, column, args.rows);
        const u32* ids = part<u32>(args.batch, column.ids);
        for (u32 value = blockIdx.x * blockDim.x + threadIdx.x; value < size; value += gridDim.x * blockDim.x) {
            group.ids[0][start + value] = ids[value];
            group.places[0][start + value] = start + value;
        }
    }
}

__device__ __forceinline__ u32 digit_of(u32 id, u32 pass) {
    return id >> (pass * DIGIT_BITS) & (DIGITS - 1);
}

// The number of tiles in a group's capacity.
__device__ __forceinline__ u32 tiles_of(const Group& group) {
    return (group.capacity + TILE - 1) / TILE;
}

// One block per tile: counts each digit.
ENTRY(count_digits, Plan) {
    __shared__ u32 counts[DIGITS];
    const Group& group = args.groups[blockIdx.y];
    u32 tiles = tiles_of(group);
    if (args.pass >= group.passes || blockIdx.x >= tiles) return;
    counts[threadIdx.x] = 0;
    __syncthreads();
    u32 size = args.sizes[blockIdx.y], first = blockIdx.x * TILE;
    const u32* ids = group.ids[args.pass & 1];
    for (u32 i = threadIdx.x; i < TILE && first + i < size; i += TILE_THREADS) {
        atomicAdd(&counts[digit_of(ids[first + i], args.pass)], 1u);
    }
    __syncthreads();
    group.counts[threadIdx.x * tiles + blockIdx.x] = counts[threadIdx.x];
}

// One block per group: replaces counts by the first place of each digit of each tile.
ENTRY(place_digits, Plan) {
    const Group& group = args.groups[blockIdx.x];
    if (args.pass >= group.passes) return;
    u32 all = tiles_of(group) * DIGITS, before = 0;
    for (u32 first = 0; first < all; first += TILE_THREADS) {
        u32 at = first + threadIdx.x, total;
        u32 count = at < all ? group.counts[at] : 0;
        u32 place = before + block_sum_before(count, total);
        if (at < all) group.counts[at] = place;
        before += total;
    }
}

// One block per tile. A warp has 512 consecutive ids and processes 32 at a time. Lanes with the same digit find
// each other by a match, and add the number of that digit's ids that the warp has seen before.
ENTRY(move_ids, Plan) {
    __shared__ u32 counts[TILE_WARPS][DIGITS];
    const Group& group = args.groups[blockIdx.y];
    u32 tiles = tiles_of(group);
    if (args.pass >= group.passes || blockIdx.x >= tiles) return;
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (u32 i = lane; i < DIGITS; i += WARP) counts[warp][i] = 0;
    __syncwarp();
    u32 size = args.sizes[blockIdx.y], first = blockIdx.x * TILE + warp * (WARP * EACH) + lane;
    const u32* ids = group.ids[args.pass & 1];
    const u32* places = group.places[args.pass & 1];
    u32 id[EACH], before[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u32 at = first + i * WARP;
        bool is_within = at < size;
        id[i] = is_within ? ids[at] : 0;
        // Lanes past the end get a separate digit.
        u32 digit = is_within ? digit_of(id[i], args.pass) : DIGITS;
        u32 alike = __match_any_sync(0xffffffffu, digit);
        u32 ahead = __popc(alike & ((1u << lane) - 1));
        u32 had = is_within ? counts[warp][digit] : 0;
        before[i] = had + ahead;
        __syncwarp();
        if (is_within && ahead == 0) counts[warp][digit] = had + __popc(alike);
        __syncwarp();
    }
    __syncthreads();
    // The first place of each digit of the tile, per warp.
    u32 place = group.counts[threadIdx.x * tiles + blockIdx.x];
    for (u32 i = 0; i < TILE_WARPS; i++) {
        u32 count = counts[i][threadIdx.x];
        counts[i][threadIdx.x] = place;
        place += count;
    }
    __syncthreads();
    u32* to_ids = group.ids[~args.pass & 1];
    u32* to_places = group.places[~args.pass & 1];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u32 at = first + i * WARP;
        if (at >= size) break;
        u32 to = counts[warp][digit_of(id[i], args.pass)] + before[i];
        to_ids[to] = id[i];
        to_places[to] = places[at];
    }
}
