//! The rows of tables that the ranks' GPUs gather: each packs its own in a section of memory, gets the sections of the others
//! ([`peers`](super::peers)), and merges all of them (`merge.cu`).
//!
//! ```text
//! rank 0    pack 0 -> [section 0] [         ] [         ]         [section 0] [section 1] [section 2] -> merged
//! rank 1    pack 1 -> [         ] [section 1] [         ]  gather [section 0] [section 1] [section 2] -> merged
//! rank 2    pack 2 -> [         ] [         ] [section 2]         [section 0] [section 1] [section 2] -> merged
//! ```
//!
//! A section has room for as many rows as a part of a batch may touch, at the same address in every step, so that command
//! lists stay the same. Only its rows travel, perhaps in 16 bits. How many they are passes through the host, because the host
//! enqueues what travels.
//!
//! Of a small table, several ranks touch most rows. If the whole table has fewer bytes than these have together ([`is_summed`]),
//! it is summed as a whole instead: each rank clears room for all rows, writes those that it touches and marks them, and the sums
//! of the marks say which are touched. It is in no section.

use zerocopy::IntoBytes;

use super::buffers::{CudaTable, Rooms, number_bytes};
use super::driver::{Address, Memory};
use super::fault::must;
use super::kernels::{
    COUNT_ROWS, MERGE_IDS, MERGE_ROWS, MERGE_TILE, Merge, NUMBER_ROWS, PACK_ROWS, RowListView,
};
use super::merged_rows::{CudaMergedRows, Room};
use super::nccl::Section;
use super::nccl::Summand;
use super::rows::{RoomOfAll, SumsOfRows};
use super::{Cuda, CudaPeers, rows};
use crate::backend::Backend;
use crate::device::TableShape;
use crate::float::Float;
use crate::merged_rows::PartRows;
use crate::ops::{RowGradients, cost};

/// Words at the head of a section, per table.
const HEAD: usize = 3;

/// The rows of a table start at a multiple of so many words: what a vector load reads.
const UNIT_WORDS: usize = 4;

/// Room for the rows of all ranks.
pub(super) struct RankRows {
    tables: Vec<TableRows>,
    ranks: usize,
    /// The format of rows in sections.
    float: Float,
    section_words: usize,
    sections: Address,
    /// Numbers of the kernels, one per tile of ids.
    tiles: Address,
    _memory: Memory,
}

/// The rows of a table that a rank touches.
#[derive(Clone, Copy)]
struct TableRows {
    width: usize,
    /// The most ids, and the most different ones; none if the table is summed as a whole.
    ids: usize,
    rows: usize,
    /// The rows of the table, if it is summed as a whole.
    summed: Option<usize>,
}

/// Lists of sorted ids, one per table, divided into tiles. Addresses of the workspace are relative.
#[derive(Default)]
struct Lists {
    views: Vec<RowListView>,
    workspace: Rooms,
    tiles: usize,
    /// The most tiles and ids of a list.
    most_tiles: usize,
    most_ids: usize,
}

/// Whether the GPUs sum a table as a whole, of which a rank looks up at most `ids` ids if all have equally many rows.
pub(super) fn is_summed(shape: &TableShape, ids: usize, rows: PartRows<'_>) -> bool {
    rows.are_gathered && rows.sums_whole(shape, ids)
}

impl TableRows {
    fn of(shapes: &[TableShape], rows: PartRows<'_>) -> Vec<Self> {
        let table = |((shape, &ids), &even_ids)| match is_summed(shape, even_ids, rows) {
            true => Self { width: shape.width, ids: 0, rows: 0, summed: Some(shape.rows) },
            false => Self { width: shape.width, ids, rows: ids.min(shape.rows), summed: None },
        };
        shapes.iter().zip(rows.ids).zip(rows.even_ids).map(table).collect()
    }

    /// The ids that are merged: those of all ranks, or of all rows.
    fn merged(&self, ranks: usize) -> usize {
        self.summed.unwrap_or(ranks * self.rows)
    }
}

impl Lists {
    /// Adds the list of a table, of at most `ids` ids.
    fn add(&mut self, table: TableRows, view: RowListView, ids: usize) {
        let tiles = tiles_of(ids);
        let (width, capacity) = (table.width as u32, table.summed.unwrap_or(table.rows) as u32);
        let first_tile = self.tiles as u32;
        self.views.push(RowListView { width, capacity, first_tile, tiles: tiles as u32, ..view });
        self.tiles += tiles;
        self.most_tiles = self.most_tiles.max(tiles);
        self.most_ids = self.most_ids.max(ids);
    }
}

/// The number of tiles of `ids` ids.
fn tiles_of(ids: usize) -> usize {
    ids.div_ceil(MERGE_TILE as usize)
}

/// The words of a section with so many rows of each table, of so many columns.
fn section_words(tables: impl Iterator<Item = (usize, usize)> + Clone, float: Float) -> usize {
    let head: usize = tables.clone().map(|(rows, _)| HEAD + rows).sum();
    let units = tables.map(|(rows, width)| (rows * width).div_ceil(unit_numbers(float)));
    head.next_multiple_of(UNIT_WORDS) + units.sum::<usize>() * UNIT_WORDS
}

/// The numbers of a unit of rows.
fn unit_numbers(float: Float) -> usize {
    UNIT_WORDS * size_of::<u32>() / number_bytes(float)
}

/// The memory of sections and tiles: both addresses, relative to its start, and its bytes.
fn rooms_of(tables: &[TableRows], ranks: usize, float: Float) -> ([Address; 2], usize) {
    let section = section_words(tables.iter().map(|table| (table.rows, table.width)), float);
    let packing: usize = tables.iter().map(|table| tiles_of(table.ids)).sum();
    let merging: usize = tables.iter().map(|table| tiles_of(table.merged(ranks))).sum();
    let mut rooms = Rooms::default();
    let places = [ranks * section, packing.max(merging)].map(|words| rooms.add(words * size_of::<u32>()));
    (places, rooms.bytes())
}

/// Workspace of merging the rows of a table: its ids, their places and their number.
fn merging_rooms(rooms: &mut Rooms, rows: usize) -> [Address; 3] {
    [rows, rows, 1].map(|words| rooms.add(words * size_of::<u32>()))
}

impl RankRows {
    pub(super) fn new(cuda: &Cuda, shapes: &[TableShape], rows: PartRows<'_>) -> Self {
        let (tables, ranks, float) = (TableRows::of(shapes, rows), rows.parts, rows.float);
        let section_words = section_words(tables.iter().map(|table| (table.rows, table.width)), float);
        let (places, bytes) = rooms_of(&tables, ranks, float);
        let memory = cuda.zeros(bytes);
        let [sections, tiles] = places.map(|place| memory.address() + place);
        Self { tables, ranks, float, section_words, sections, tiles, _memory: memory }
    }

    /// GPU memory for them, and for the kernels' lists of tables, in bytes.
    pub(super) fn bytes(shapes: &[TableShape], rows: PartRows<'_>) -> u64 {
        let (_, bytes) = rooms_of(&TableRows::of(shapes, rows), rows.parts, rows.float);
        Memory::taken(bytes) + 2 * Memory::taken(shapes.len() * size_of::<RowListView>())
    }

    /// Workspace of merging, in bytes.
    pub(super) fn scratch_bytes(shapes: &[TableShape], rows: PartRows<'_>) -> usize {
        let mut scratch = Rooms::default();
        for table in TableRows::of(shapes, rows) {
            merging_rooms(&mut scratch, rows.parts * table.rows);
        }
        scratch.bytes()
    }

    fn section(&self, rank: usize) -> Address {
        self.sections + (rank * self.section_words * size_of::<u32>()) as Address
    }

    /// Whether ranks can have these numbers of rows.
    fn can_have(&self, of_ranks: &[&[u32]]) -> bool {
        of_ranks.len() == self.ranks
            && of_ranks.iter().all(|counts| {
                counts.iter().zip(&self.tables).all(|(&count, table)| count as usize <= table.rows)
            })
    }

    /// The sections of all ranks, which have these numbers of rows.
    fn sections(&self, of_ranks: &[&[u32]]) -> impl Iterator<Item = Section> {
        of_ranks.iter().enumerate().map(|(root, counts)| {
            let tables = counts.iter().zip(&self.tables).map(|(&count, table)| (count as usize, table.width));
            Section { address: self.section(root), words: section_words(tables, self.float), root }
        })
    }

    /// This rank's rows as kernels pack them, from sums at the places of their first ids.
    ///
    /// # Panics
    /// If the tables have other widths, or more ids.
    fn packed(&self, sums: &rows::Tables) -> Lists {
        let of_sums = sums.views.iter().map(|view| view.width as usize).zip(&sums.ids);
        let has_room = |(table, (width, &ids)): (&TableRows, (usize, &usize))| {
            table.width == width && (table.summed.is_some() || ids <= table.ids)
        };
        let has_rooms = self.tables.len() == sums.ids.len() && self.tables.iter().zip(of_sums).all(has_room);
        assert!(has_rooms, "pack_rows: merged rows of these tables and of such batches");
        let mut lists = Lists::default();
        for (table, view) in self.tables.iter().zip(&sums.views) {
            let (ids, size, rows) = (view.ids, view.size, view.sums);
            lists.add(*table, RowListView { ids, size, rows, ..RowListView::default() }, table.ids);
        }
        lists
    }

    /// The rows of all ranks as kernels merge them, into `rooms`.
    fn merged(&self, rooms: &[Room]) -> Lists {
        let mut lists = Lists::default();
        for (table, room) in self.tables.iter().zip(rooms) {
            let [ids, places, size] = merging_rooms(&mut lists.workspace, self.ranks * table.rows);
            let (merged_ids, merged_rows, touched) = (room.ids, room.gradient, room.touched);
            let view =
                RowListView { ids, size, places, touched, merged_ids, merged_rows, ..RowListView::default() };
            lists.add(*table, view, table.merged(self.ranks));
        }
        lists
    }

    /// The kernels' arguments for these lists.
    fn arguments(&self, lists: &Lists) -> Merge {
        Merge {
            tiles: self.tiles,
            section_words: self.section_words as u64,
            list_count: lists.views.len() as u32,
            tile_count: lists.tiles as u32,
            ranks: self.ranks as u32,
            format: self.float as u32,
            unit_numbers: unit_numbers(self.float) as u32,
            ..Merge::default()
        }
    }
}

impl Cuda {
    /// Sums the gradients of the rows that the batch touches, and packs them in this rank's section.
    pub(super) fn pack(
        &self,
        peers: &CudaPeers,
        gradients: &RowGradients<'_, Self>,
        tables: &[CudaTable],
        merged: &CudaMergedRows,
    ) {
        let rows = merged.gathered();
        assert!(peers.rank < rows.ranks, "pack_rows: merged rows of as many ranks");
        self.clear_summed(merged);
        let sums = self.summed_rows(gradients, tables, |number| match merged.rooms()[number] {
            Room { touched: 0, .. } => SumsOfRows::ByPlace,
            Room { touched, gradient, .. } => SumsOfRows::ById(RoomOfAll { rows: gradient, touched }),
        });
        let lists = rows.packed(&sums);
        let merge = Merge {
            lists: self.constants_or_none(&lists.views),
            sections: rows.section(peers.rank),
            is_packing: 1,
            ..rows.arguments(&lists)
        };
        let tiles = [lists.most_tiles, lists.views.len()];
        self.launch_blocks(COUNT_ROWS, tiles, &merge);
        self.launch_blocks(NUMBER_ROWS, [1, 1], &merge);
        self.launch_blocks(PACK_ROWS, tiles, &merge);
    }

    /// The number of packed rows of each table, of all groups that `visit` passes on. Waits for the device, but not for sums that
    /// run beside.
    pub(super) fn counts_of_packed(
        &self,
        peers: &CudaPeers,
        visit: impl FnOnce(&mut dyn FnMut(&mut CudaMergedRows)),
    ) -> Vec<u32> {
        self.wait_for_commands();
        let mut counts: Vec<Vec<u32>> = Vec::new();
        visit(&mut |merged| {
            let rows = merged.gathered();
            let mut of_group = vec![0; rows.tables.len()];
            // SAFETY: the section starts with the number of rows of each table. The host reads its memory after the wait.
            must(unsafe { self.stream.copy_to_host(of_group.as_mut_bytes(), rows.section(peers.rank)) });
            counts.push(of_group);
        });
        must(self.stream.wait());
        counts.concat()
    }

    /// Gathers the sections of all ranks, of all groups that `visit` passes on, and merges them. `counts` are the numbers of
    /// rows of each rank. Returns whether these are possible; if not, nothing is gathered.
    pub(super) fn merge_over_peers(
        &self,
        peers: &CudaPeers,
        counts: &[&[u32]],
        visit: impl FnOnce(&mut dyn FnMut(&mut CudaMergedRows)),
    ) -> bool {
        let mut of_other_groups = counts.to_vec();
        let (mut sections, mut groups, mut are_possible) = (Vec::new(), Vec::new(), true);
        let mut summands: Vec<Summand> = Vec::new();
        visit(&mut |merged| {
            let tables = merged.shapes().len();
            let of_ranks = of_other_groups.iter_mut().map(|counts| counts.split_off(..tables));
            let of_ranks: Option<Vec<_>> = of_ranks.collect();
            let Some(of_ranks) = of_ranks.filter(|of_ranks| merged.gathered().can_have(of_ranks)) else {
                are_possible = false;
                return;
            };
            let counts = merged.expect(&of_ranks);
            summands.extend(merged.summand());
            let rows = merged.gathered();
            sections.extend(rows.sections(&of_ranks));
            let lists = rows.merged(merged.rooms());
            let merge = Merge { sections: rows.sections, counts, ..rows.arguments(&lists) };
            groups.push((lists, merge));
        });
        if !are_possible || of_other_groups.iter().any(|counts| !counts.is_empty()) {
            return false;
        }
        if !summands.is_empty() {
            self.start_sum_of(peers, &summands);
        }
        self.gather_over_peers(peers, &sections);
        let work = || cost::merge_rows(sections.iter().map(|section| section.words).sum());
        self.record_transfer("merge_rows", work, || {
            for (lists, merge) in groups {
                self.merge_lists(lists, merge);
            }
        });
        true
    }

    fn merge_lists(&self, lists: Lists, merge: Merge) {
        let Lists { mut views, workspace, most_tiles, most_ids, .. } = lists;
        let workspace = self.scratch(workspace.bytes());
        for view in &mut views {
            view.ids += workspace;
            view.places += workspace;
            view.size += workspace;
        }
        let merge = Merge { lists: self.constants_or_none(&views), ..merge };
        let tiles = [most_tiles, views.len()];
        self.launch(MERGE_IDS, [most_ids, views.len()], &merge);
        self.launch_blocks(COUNT_ROWS, tiles, &merge);
        self.launch_blocks(NUMBER_ROWS, [1, 1], &merge);
        self.launch_blocks(MERGE_ROWS, tiles, &merge);
    }
}
