// The table rows that ranks touch: those of this rank are packed, so that it can send them, and those of all are merged. Small
// tables are summed as a whole instead; of these, the rows that any rank touches are listed.
//
// A rank's rows of several tables are a section, a sequence of words of 32 bits:
//
//   counts        the number of rows of each table
//   first words   the word at which each table's ids begin
//   first units   the unit of words at which each table's rows begin
//   ids           table by table, ascending
//   rows          table by table, in the format in which they travel, each table's from the start of a unit on
//
// Both passes start from lists of sorted ids, in which an id may repeat: the looked-up ids of a batch; or the ids of all ranks,
// merged. They number the different ids of a list. The result depends on the ids alone: sums are those of the ranks, in their
// order.
#include "scan.cuh"

// Ids of a list that a block processes.
constexpr u32 TILE = 1024;

// Words of a unit, in which rows are aligned to vector loads.
constexpr u32 UNIT_WORDS = 4;

// The sorted ids of a table's rows.
struct RowList {
    u32* ids;
    u32* size;
    // Packing: the row of each id, at the first of its places.
    const float* rows;
    // Merging, of a table that is summed: what is not 0 for rows that a rank touches. Null for other tables.
    const float* touched;
    // Merging: the number of each id's row in the sections, `rank * capacity + number`.
    u32* places;
    // Merging: the merged ids and rows.
    u32* merged_ids;
    float* merged_rows;
    u32 width;
    // The most rows of a rank, or the rows of a table that is summed.
    u32 capacity;
    // This list's range in the tiles of all lists.
    u32 first_tile, tiles;
};

struct Merge {
    const RowList* lists;
    // The number of different ids in each tile of each list, then in the tiles before it.
    u32* tiles;
    // Packing: this rank's section. Merging: those of all ranks.
    u32* sections;
    // Merging: the number of merged rows of each table.
    u32* counts;
    u64 section_words;
    u32 list_count, tile_count, ranks;
    // Whether rows are packed.
    u32 is_packing;
    // The format of rows in sections, and the numbers of a unit of words.
    u32 format, unit_numbers;
};

// A table's rows in a section.
struct Part {
    u32 count;
    u32* ids;
    Matrix rows;
};

__device__ __forceinline__ Part part_of(const Merge& args, u32 rank, u32 number) {
    u32* section = args.sections + rank * args.section_words;
    const u32* head = section + number;
    char* rows = (char*)(section + u64(head[2 * args.list_count]) * UNIT_WORDS);
    u32 width = args.lists[number].width;
    return {head[0], section + head[args.list_count], {rows, width, args.format, width}};
}

__device__ __forceinline__ Matrix matrix_of(const float* rows, u32 width) {
    return {(char*)rows, width, F32, width};
}

// The number of sorted ids; of all ids, if the table is summed.
__device__ __forceinline__ u32 size_of(const RowList& list) {
    return list.touched ? list.capacity : *list.size;
}

// Whether the id at `place` differs from that before it. If the table is summed, whether the row `place` is touched.
__device__ __forceinline__ bool is_first(const RowList& list, u32 place, u32 size) {
    if (place >= size) return false;
    if (list.touched) return list.touched[place] != 0.0f;
    return place == 0 || list.ids[place - 1] != list.ids[place];
}

// The number of ids below `id`, or not above it if equal ones count too.
__device__ __forceinline__ u32 ids_before(const Part& part, u32 id, bool counts_equal) {
    u32 first = 0, end = part.count;
    while (first < end) {
        u32 middle = first + (end - first) / 2, found = part.ids[middle];
        if (found < id || (counts_equal && found == id)) {
            first = middle + 1;
        } else {
            end = middle;
        }
    }
    return first;
}

// One thread per row that a rank may have: merges the ids of all ranks. Equal ids are in the order of ranks.
ENTRY(merge_ids, Merge) {
    const RowList& list = args.lists[blockIdx.y];
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (list.touched || at >= args.ranks * list.capacity) return;
    u32 rank = at / list.capacity, number = at % list.capacity;
    if (at == 0) {
        u32 size = 0;
        for (u32 other = 0; other < args.ranks; other++) size += part_of(args, other, blockIdx.y).count;
        *list.size = size;
    }
    Part own = part_of(args, rank, blockIdx.y);
    if (number >= own.count) return;
    u32 id = own.ids[number], place = number;
    for (u32 other = 0; other < args.ranks; other++) {
        if (other != rank) place += ids_before(part_of(args, other, blockIdx.y), id, other < rank);
    }
    list.ids[place] = id;
    list.places[place] = at;
}

// One block per tile: counts its different ids.
ENTRY(count_rows, Merge) {
    const RowList& list = args.lists[blockIdx.y];
    if (blockIdx.x >= list.tiles) return;
    u32 size = size_of(list), count = 0, total;
    for (u32 i = threadIdx.x; i < TILE; i += SCAN_THREADS) count += is_first(list, blockIdx.x * TILE + i, size);
    block_sum_before(count, total);
    if (threadIdx.x == 0) args.tiles[list.first_tile + blockIdx.x] = total;
}

// One block: numbers the different ids, and divides a section among tables.
ENTRY(number_rows, Merge) {
    u32 all = 0;
    for (u32 first = 0; first < args.tile_count; first += SCAN_THREADS) {
        u32 at = first + threadIdx.x, total;
        u32 count = at < args.tile_count ? args.tiles[at] : 0;
        u32 before = all + block_sum_before(count, total);
        if (at < args.tile_count) args.tiles[at] = before;
        all += total;
    }
    __syncthreads();
    u32 *counts = args.is_packing ? args.sections : args.counts, head = 3 * args.list_count;
    u32 units = (head + all + UNIT_WORDS - 1) / UNIT_WORDS;
    for (u32 first = 0; first < args.list_count; first += SCAN_THREADS) {
        u32 number = first + threadIdx.x, count = 0, begin = 0, of_table = 0, total;
        if (number < args.list_count) {
            const RowList& list = args.lists[number];
            u32 next = list.first_tile + list.tiles;
            begin = list.tiles > 0 ? args.tiles[list.first_tile] : 0;
            count = list.tiles > 0 ? (next < args.tile_count ? args.tiles[next] : all) - begin : 0;
            of_table = u32((u64(count) * list.width + args.unit_numbers - 1) / args.unit_numbers);
        }
        u32 before = block_sum_before(of_table, total);
        if (number < args.list_count) {
            counts[number] = count;
            if (args.is_packing) {
                counts[args.list_count + number] = head + begin;
                counts[2 * args.list_count + number] = units + before;
            }
        }
        units += total;
    }
}

// Calls `use(place, number, column)` for each quad of the row of each different id of this block's tile: `place` is the first of
// the id, and `number` counts the list's different ids.
template <typename F>
__device__ __forceinline__ void for_each_quad(const Merge& args, const RowList& list, F use) {
    __shared__ u32 places[TILE];
    u32 size = size_of(list), first = blockIdx.x * TILE, count = 0;
    if (blockIdx.x >= list.tiles || first >= size) return;
    for (u32 i = 0; i < TILE; i += SCAN_THREADS) {
        u32 place = first + i + threadIdx.x, total;
        bool is_counted = is_first(list, place, size);
        u32 number = count + block_sum_before(is_counted, total);
        if (is_counted) places[number] = place;
        count += total;
    }
    __syncthreads();
    u32 before = args.tiles[list.first_tile + blockIdx.x] - args.tiles[list.first_tile], quads = quads_of(list.width);
    for (u32 i = threadIdx.x; i < count * quads; i += SCAN_THREADS) {
        u32 number = i / quads;
        use(places[number], before + number, i % quads * QUAD);
    }
}

// One block per tile: copies its rows to the section.
ENTRY(pack_rows, Merge) {
    const RowList& list = args.lists[blockIdx.y];
    Part part = part_of(args, 0, blockIdx.y);
    for_each_quad(args, list, [&](u32 place, u32 number, u32 column) {
        u32 count = min(list.width - column, QUAD);
        if (column == 0) part.ids[number] = list.ids[place];
        Quad quad = load_quad(matrix_of(list.rows, list.width), place, column, count);
        store_quad(part.rows, number, column, count, quad);
    });
}

// One block per tile: adds up the rows of each id. Those of tables that are summed are in their places already.
ENTRY(merge_rows, Merge) {
    const RowList& list = args.lists[blockIdx.y];
    u32 size = size_of(list);
    for_each_quad(args, list, [&](u32 place, u32 number, u32 column) {
        if (list.touched) {
            if (column == 0) list.merged_ids[number] = place;
            return;
        }
        u32 id = list.ids[place], count = min(list.width - column, QUAD);
        auto row_at = [&](u32 place) {
            u32 row = list.places[place];
            Part part = part_of(args, row / list.capacity, blockIdx.y);
            return load_quad(part.rows, row % list.capacity, column, count);
        };
        Quad sum = row_at(place);
        for (u32 next = place + 1; next < size && list.ids[next] == id; next++) {
            Quad quad = row_at(next);
#pragma unroll
            for (u32 i = 0; i < QUAD; i++) sum.x[i] += quad.x[i];
        }
        if (column == 0) list.merged_ids[number] = id;
        store_quad(matrix_of(list.merged_rows, list.width), number, column, count, sum);
    });
}
