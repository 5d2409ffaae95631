//! The rows of tables that all parts of a batch touch, in GPU memory.
//!
//! Rows are merged on the host and copied, or gathered from the GPUs of all ranks and merged here
//! ([`rank_rows`](super::rank_rows)). The kernels of [`rows`](super::rows) step them: to these, the rows of a table are
//! sorted ids without repetitions, whose gradients are rows of a matrix: at places 0, 1, 2 and so on, or at those of the ids if the
//! table was summed as a whole.

use std::iter::once;

use zerocopy::IntoBytes;

use super::Cuda;
use super::buffers::{ALIGNMENT, CudaTable, Rooms, Shape};
use super::driver::{Address, Memory};
use super::kernels::{CLEAR, Change, ColumnView, MatrixView, SourceView, StepRows, TableView};
use super::moves::quads;
use super::nccl::Summand;
use super::rank_rows::{self, RankRows};
use super::rows::{self, SumsOfRows, Tables};
use crate::device::{Pooling, TableShape};
use crate::float::Float;
use crate::merged_rows::{HostMergedRows, MergedShape, PartRows};
use crate::ops::{MergedRowSquares, StepMergedRows};
use crate::row_sums::RowSums;

/// Merged rows of tables.
pub struct CudaMergedRows {
    host: HostMergedRows<f32>,
    arrangement: Arrangement,
    /// The rows of all ranks, if their GPUs gather them.
    gathered: Option<RankRows>,
    /// The number of merged rows of each table, or an estimate.
    counts: Vec<usize>,
    /// The gradients of a table on their way from the host.
    gradients: Vec<f32>,
    /// Whether the rows of tables that are summed as a whole are in their places in the table, instead of one after another.
    are_summed: bool,
    _memory: Memory,
}

/// The memory layout of merged rows, starting at a given address.
struct Arrangement {
    /// The number of rows of each table.
    sizes: Address,
    /// A zero: the first place of a table's gradients.
    starts: Address,
    /// 0, 1, 2 and so on.
    places: Address,
    /// The most rows of a table.
    most: usize,
    /// The fp32 numbers of tables that are summed as a whole, with the marks of their rows.
    summed: Address,
    summed_numbers: usize,
    /// Parallel to the tables.
    rooms: Vec<Room>,
    groups: Vec<Group>,
    bytes: usize,
}

/// The memory of a table's rows.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub(super) ids: Address,
    /// Rows without padding.
    pub(super) gradient: Address,
    /// The mark of each row, if the table is summed as a whole; otherwise 0.
    pub(super) touched: Address,
    /// How many numbers it is after the gradient of the table's group.
    first: u32,
}

/// Tables of equally many columns. To the kernels their gradients are columns of one matrix, whose stride is that of a row:
/// those of a table start at column [`Room::first`].
struct Group {
    /// The numbers of the tables.
    tables: Vec<usize>,
    gradient: Address,
    width: usize,
}

impl Arrangement {
    fn of(tables: &[TableShape], rows: PartRows<'_>) -> Self {
        let shapes = &MergedShape::of(tables, rows)[..];
        let is_summed = |table: usize| rank_rows::is_summed(&tables[table], rows.even_ids[table], rows);
        let mut rooms = Rooms::default();
        let most = shapes.iter().map(|shape| shape.most).max().unwrap_or(0);
        let sizes = rooms.add(shapes.len() * size_of::<u32>());
        let starts = rooms.add(size_of::<u32>());
        let places = rooms.add(most * size_of::<u32>());
        let ids: Vec<_> = shapes.iter().map(|shape| rooms.add(shape.most * size_of::<u32>())).collect();
        let mut of_tables: Vec<Option<Room>> = vec![None; shapes.len()];
        let mut groups: Vec<Group> = Vec::new();
        // Those that are summed lie next to each other, their marks first.
        let summed = rooms.bytes();
        let marks: Vec<Option<Address>> = (0..shapes.len())
            .map(|table| is_summed(table).then(|| rooms.add(shapes[table].rows * size_of::<f32>())))
            .collect();
        let mut end_of_summed = rooms.bytes();
        let mut by_width: Vec<usize> = (0..shapes.len()).collect();
        by_width.sort_by_key(|&table| (marks[table].is_none(), shapes[table].width));
        for table in by_width {
            // Of a table that is summed, these are all of its rows: its parts look up more than eight times as many ids.
            let MergedShape { width, most, .. } = shapes[table];
            let gradient = rooms.add(most * width * size_of::<f32>());
            if marks[table].is_some() {
                end_of_summed = rooms.bytes();
            }
            let first_in = |group: &Group| {
                let first = (gradient - group.gradient) as usize / size_of::<f32>();
                // The kernels number columns with 32 bits.
                u32::try_from(first + width).is_ok_and(|_| group.width == width).then_some(first as u32)
            };
            let first = groups.last().and_then(first_in);
            if first.is_none() {
                groups.push(Group { tables: Vec::new(), gradient, width });
            }
            groups.last_mut().expect("a group").tables.push(table);
            let touched = marks[table].unwrap_or(0);
            of_tables[table] = Some(Room { ids: ids[table], gradient, touched, first: first.unwrap_or(0) });
        }
        let of_tables = of_tables.into_iter().collect::<Option<_>>().expect("a room for each table");
        let summed_numbers = (end_of_summed - summed) / size_of::<f32>();
        let summed = summed as Address;
        Self {
            sizes,
            starts,
            places,
            most,
            summed,
            summed_numbers,
            rooms: of_tables,
            groups,
            bytes: rooms.bytes(),
        }
    }

    /// Adds `base` to all addresses.
    fn move_to(&mut self, base: Address) {
        let Self { sizes, starts, places, summed, rooms, groups, .. } = self;
        let of_rooms = rooms.iter_mut().flat_map(|room| {
            let marks = Some(&mut room.touched).filter(|touched| **touched != 0);
            [&mut room.ids, &mut room.gradient].into_iter().chain(marks)
        });
        let of_groups = groups.iter_mut().map(|group| &mut group.gradient);
        for address in [sizes, starts, places, summed].into_iter().chain(of_rooms).chain(of_groups) {
            *address += base;
        }
    }
}

/// GPU memory of merged rows, and of the kernels' lists of their tables, in bytes.
pub(super) fn bytes(shapes: &[TableShape], rows: PartRows<'_>) -> u64 {
    let Arrangement { groups, bytes, .. } = Arrangement::of(shapes, rows);
    let sources = groups.iter().flat_map(|group| &group.tables).map(|_| size_of::<SourceView>());
    let tables = groups.iter().map(|group| group.tables.len() * size_of::<TableView>());
    let merged: u64 = once(bytes).chain(sources).chain(tables).map(Memory::taken).sum();
    merged + if rows.are_gathered { RankRows::bytes(shapes, rows) } else { 0 }
}

/// Workspace of merging rows, and of a step of merged rows, in bytes.
pub(super) fn scratch_bytes(shapes: &[TableShape], rows: PartRows<'_>) -> usize {
    let mut rooms = Rooms::default();
    for shape in MergedShape::of(shapes, rows) {
        rows::rooms_of(&mut rooms, rows::pieces(shape.most, shape.width), shape.width);
    }
    let merging = if rows.are_gathered { RankRows::scratch_bytes(shapes, rows) } else { 0 };
    rooms.bytes().max(merging)
}

impl CudaMergedRows {
    pub(super) fn new(cuda: &Cuda, shapes: &[TableShape], rows: PartRows<'_>) -> Self {
        let gathered = rows.are_gathered.then(|| RankRows::new(cuda, shapes, rows));
        let mut arrangement = Arrangement::of(shapes, rows);
        let shapes = MergedShape::of(shapes, rows);
        let memory = cuda.zeros(arrangement.bytes);
        arrangement.move_to(memory.address());
        let places: Vec<u32> = (0..arrangement.most as u32).collect();
        cuda.copy_to(arrangement.places, places.as_bytes());
        let counts = vec![0; shapes.len()];
        let host = HostMergedRows::new(shapes);
        Self {
            host,
            arrangement,
            gathered,
            counts,
            gradients: Vec::new(),
            are_summed: false,
            _memory: memory,
        }
    }

    pub(super) fn shapes(&self) -> &[MergedShape] {
        self.host.shapes()
    }

    /// Gives back the parts of the last merge by way of the host.
    pub(super) fn take_parts(&mut self) -> Vec<RowSums<f32>> {
        self.host.take_parts()
    }

    /// The number of merged rows of a table, or an estimate.
    pub(super) fn count(&self, table: usize) -> usize {
        self.counts[table]
    }

    /// Room for the rows of all ranks.
    ///
    /// # Panics
    /// If it was not requested.
    pub(super) fn gathered(&self) -> &RankRows {
        self.gathered.as_ref().expect("merged rows with room for those of all ranks")
    }

    /// Where each table's merged rows are.
    pub(super) fn rooms(&self) -> &[Room] {
        &self.arrangement.rooms
    }

    /// The numbers of the tables that are summed as a whole, and of their marks.
    pub(super) fn summand(&self) -> Option<Summand> {
        let Arrangement { summed: address, summed_numbers: count, .. } = self.arrangement;
        (count > 0).then_some(Summand { address, count, float: Float::F32 })
    }

    /// Expects that kernels merge rows of ranks that have these numbers of them. Returns where they write the number of merged
    /// rows of each table.
    pub(super) fn expect(&mut self, of_ranks: &[&[u32]]) -> Address {
        self.are_summed = true;
        for (table, count) in self.counts.iter_mut().enumerate() {
            let least = of_ranks.iter().map(|counts| counts[table] as usize).max().unwrap_or(0);
            let is_summed = self.arrangement.rooms[table].touched != 0;
            *count = if is_summed { self.host.shapes()[table].rows } else { least };
        }
        self.arrangement.sizes
    }
}

impl Cuda {
    /// Clears the rows of tables that are summed as a whole, and their marks.
    pub(super) fn clear_summed(&self, merged: &CudaMergedRows) {
        let Some(Summand { address, count, float }) = merged.summand() else { return };
        // Rooms are whole rows of this matrix.
        let columns = ALIGNMENT / size_of::<f32>();
        let matrix = Shape::of(float, count / columns, columns).view(address);
        let change = Change { matrix, factor: 0, rows: (count / columns) as u32, unused: 0 };
        self.launch(CLEAR, quads(count / columns, columns), &change);
    }

    /// Merges the rows of all parts, and copies them to the GPU.
    pub(super) fn merge(&self, parts: Vec<RowSums<f32>>, merged: &mut CudaMergedRows) -> bool {
        merged.are_summed = false;
        let CudaMergedRows { host, arrangement, counts, gradients, .. } = merged;
        if !host.merge(parts, |tasks, task| (0..tasks).for_each(task)) {
            return false;
        }
        *counts = host.tables().map(|table| table.ids().len()).collect();
        let sizes: Vec<u32> = counts.iter().map(|&count| count as u32).collect();
        self.copy_to(arrangement.sizes, sizes.as_bytes());
        for (table, room) in host.tables().zip(&arrangement.rooms) {
            self.copy_to(room.ids, table.ids().as_bytes());
            gradients.clear();
            table.rows().for_each(|row| gradients.extend_from_slice(row));
            self.copy_to(room.gradient, gradients.as_bytes());
        }
        true
    }

    pub(super) fn step_merged_rows(&self, operation: StepMergedRows<'_, Self>) {
        let StepMergedRows { update, scale, draws, rows, tables } = operation;
        let step = rows::step_of(update, scale, draws);
        self.for_each_group(rows, tables, |gradient, tables| {
            self.launch_rows(false, StepRows { gradient, ..step }, tables);
        });
    }

    pub(super) fn merged_row_squares(&self, operation: MergedRowSquares<'_, Self>) {
        let MergedRowSquares { rows, tables, sum } = operation;
        self.for_each_group(rows, tables, |gradient, tables| {
            self.launch_rows(false, StepRows { gradient, ..rows::squares() }, tables);
            self.add_squares(tables, sum);
        });
    }

    /// Calls `launch` with the gradient and the tables of each group.
    fn for_each_group(
        &self,
        rows: &CudaMergedRows,
        tables: &[CudaTable],
        mut launch: impl FnMut(MatrixView, &Tables),
    ) {
        let Arrangement { sizes, starts, places, ref rooms, ref groups, .. } = rows.arrangement;
        for group in groups {
            let mut list = rows::TableList::default();
            for &number in &group.tables {
                let room = rooms[number];
                let source = SourceView {
                    column: ColumnView::default(),
                    first: room.first,
                    pooling: Pooling::Sum.code(),
                    holders: 0,
                };
                let is_by_id = rows.are_summed && room.touched != 0;
                let view = TableView {
                    ids: room.ids,
                    places: if is_by_id { room.ids } else { places },
                    size: sizes + (number * size_of::<u32>()) as Address,
                    starts,
                    sources: self.constants(&[source]),
                    source_count: 1,
                    ..rows::view_of(&tables[number])
                };
                list.add(view, rows.shapes()[number].most, group.width, SumsOfRows::Nowhere);
            }
            let gradient = MatrixView {
                data: group.gradient,
                stride: group.width as u64,
                format: Float::F32 as u32,
                columns: group.width as u32,
            };
            launch(gradient, &self.listed(list));
        }
    }
}
