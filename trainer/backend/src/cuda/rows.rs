//! Optimizer steps of the table rows that a batch touches, and sums of their gradients.

use millstream_batch::BatchSchema;
use zerocopy::IntoBytes;

use super::buffers::{CudaMatrix, CudaTable, Rooms};
use super::driver::{Address, Memory};
use super::kernels::{
    ADD_ROW_SQUARES, QUAD, RowSquares, STEP_PIECES, STEP_PIECES_OF_MAXIMA, STEP_SPANS, SourceView, StepRows,
    TableView, WARP,
};
use super::updates::view;
use super::{Cuda, host};
use crate::device::{Lookup, TablePart, TableShape};
use crate::ops::{self, RowGradients};
use crate::row_sums::RowSums;
use crate::update::Update;

/// What the kernels do with the summed gradient of a row, as in rows.cu.
mod use_of {
    pub(super) const ADD_SQUARES: u32 = 0;
    pub(super) const STEP_ROW: u32 = 1;
    pub(super) const STORE_SUM: u32 = 2;
}

/// The kernels' list of tables, and the threads that the largest table needs.
pub(super) struct Tables {
    pub(super) views: Vec<TableView>,
    /// The most ids of each.
    pub(super) ids: Vec<usize>,
    address: Address,
    threads: usize,
}

/// The same while it grows. Addresses of the workspace are relative.
#[derive(Default)]
pub(super) struct TableList {
    views: Vec<TableView>,
    ids: Vec<usize>,
    rooms: Rooms,
    threads: usize,
}

/// Where the sums of a table's rows are kept.
#[derive(Clone, Copy)]
pub(super) enum SumsOfRows {
    Nowhere,
    /// In workspace, at the place of the first of a row's sorted ids.
    ByPlace,
    /// In room for all rows of the table, where touched rows are marked.
    ById(RoomOfAll),
}

/// Room for all rows of a table, and for a mark of each.
#[derive(Clone, Copy)]
pub(super) struct RoomOfAll {
    pub(super) rows: Address,
    pub(super) touched: Address,
}

impl TableList {
    /// Adds a table of which at most `ids` ids are looked up, with rows of `width` columns.
    pub(super) fn add(&mut self, view: TableView, ids: usize, width: usize, sums: SumsOfRows) {
        let (pieces, lanes) = (pieces(ids, width), lanes(width));
        let [partials, squares] = rooms_of(&mut self.rooms, pieces, width);
        let (sums, touched) = match sums {
            SumsOfRows::Nowhere => (0, 0),
            SumsOfRows::ByPlace => (room_of_sums(&mut self.rooms, ids, width), 0),
            SumsOfRows::ById(RoomOfAll { rows, touched }) => (rows, touched),
        };
        self.threads = self.threads.max(pieces * lanes as usize);
        self.ids.push(ids);
        self.views.push(TableView { partials, squares, sums, touched, lanes, piece: piece(width), ..view });
    }
}

/// A table, without the ids that are looked up in it.
pub(super) fn view_of(table: &CudaTable) -> TableView {
    let shape = table.shape();
    TableView {
        weights: table.part(TablePart::Weights, 0),
        states: [0, 1].map(|state| table.part(TablePart::State(state), 0)),
        row_state: table.part(TablePart::RowState(0), 0),
        key: shape.key,
        width: shape.width as u32,
        format: shape.float as u32,
        ..TableView::default()
    }
}

/// A step of rows, without their gradients.
pub(super) fn step_of(update: &Update, scale: &CudaMatrix, draws: u64) -> StepRows {
    let (update, scale) = (view(update), scale.numbers());
    StepRows { update, scale, key: draws, use_of_sums: use_of::STEP_ROW, ..StepRows::default() }
}

/// The sum of the squares of rows, without their gradients.
pub(super) fn squares() -> StepRows {
    StepRows { use_of_sums: use_of::ADD_SQUARES, ..StepRows::default() }
}

/// Lanes of a warp that share a piece of a table with `width` columns: four columns of a row each, or an id each if the row is one
/// quad.
fn lanes(width: usize) -> u32 {
    let quads = width.div_ceil(QUAD as usize) as u32;
    if quads <= 1 { WARP } else { quads.next_power_of_two().min(WARP) }
}

/// The number of ids in a piece of a table with `width` columns.
fn piece(width: usize) -> u32 {
    if width <= QUAD as usize { WARP } else { 64 }
}

/// The number of pieces that `ids` ids of rows of `width` columns are split into.
pub(super) fn pieces(ids: usize, width: usize) -> usize {
    ids.div_ceil(piece(width) as usize)
}

/// The partial sums of rows that span pieces: of their gradients, and of the squares of those.
pub(super) fn rooms_of(rooms: &mut Rooms, pieces: usize, width: usize) -> [Address; 2] {
    [2 * pieces * width, 2 * pieces].map(|numbers| rooms.add(numbers * size_of::<f32>()))
}

/// Room for a sum at the first of each row's ids.
fn room_of_sums(rooms: &mut Rooms, ids: usize, width: usize) -> Address {
    rooms.add(ids * width * size_of::<f32>())
}

/// Workspace of a step of tables for batches of `schema`, in bytes; or of the sums of their rows, if it `keeps_sums`.
pub(super) fn scratch_bytes(
    schema: &BatchSchema,
    lookups: &[Lookup],
    shapes: &[TableShape],
    keeps_sums: bool,
) -> usize {
    let mut rooms = Rooms::default();
    for (number, shape) in shapes.iter().enumerate() {
        let columns = Lookup::of_table(lookups, number).iter().map(|lookup| lookup.column);
        let ids = columns.map(|column| host::capacity(schema, column)).sum();
        rooms_of(&mut rooms, pieces(ids, shape.width), shape.width);
        if keeps_sums {
            room_of_sums(&mut rooms, ids, shape.width);
        }
    }
    rooms.bytes()
}

/// GPU memory for the kernels' lists of tables and of each table's lookups, in bytes.
pub(super) fn constant_bytes(lookups: &[Lookup], shapes: &[TableShape]) -> u64 {
    let sources = |table| Lookup::of_table(lookups, table).len() * size_of::<SourceView>();
    let sources: u64 = (0..shapes.len()).map(|table| Memory::taken(sources(table))).sum();
    sources + table_bytes(shapes)
}

/// GPU memory for a list of tables, in bytes.
pub(super) fn table_bytes(shapes: &[TableShape]) -> u64 {
    Memory::taken(size_of::<TableView>() * shapes.len())
}

impl Cuda {
    pub(super) fn step_rows(&self, operation: ops::StepRows<'_, Self>) {
        let ops::StepRows { update, scale, draws, gradients, tables } = operation;
        let tables = self.tables(gradients, tables, |_| SumsOfRows::Nowhere);
        self.run_rows(step_of(update, scale, draws), gradients, &tables);
    }

    pub(super) fn row_squares(&self, operation: ops::RowSquares<'_, Self>) {
        let ops::RowSquares { gradients, tables, sum } = operation;
        let tables = self.tables(gradients, tables, |_| SumsOfRows::Nowhere);
        self.run_rows(squares(), gradients, &tables);
        self.add_squares(&tables, sum);
    }

    /// Adds the squares that the kernels have found.
    pub(super) fn add_squares(&self, tables: &Tables, sum: &CudaMatrix) {
        let count = tables.views.len();
        let squares =
            RowSquares { tables: tables.address, sum: sum.numbers(), table_count: count as u32, unused: 0 };
        self.launch_blocks(ADD_ROW_SQUARES, [1, usize::from(count > 0)], &squares);
    }

    /// Copies the sum of each touched row to the host. On the GPU, a sum is at the place of its row's first id.
    pub(super) fn row_sums(
        &self,
        gradients: &RowGradients<'_, Self>,
        tables: &[CudaTable],
        sums: &mut RowSums<f32>,
    ) {
        let tables = self.summed_rows(gradients, tables, |_| SumsOfRows::ByPlace);
        let copied: Vec<_> = tables.views.iter().map(|view| self.sums_of_table(view)).collect();
        let sizes = copied.iter().zip(&tables.views);
        sums.resize(sizes.map(|((ids, _), view)| (first_places(ids).count(), view.width as usize)));
        let (mut ids, mut rows) = sums.parts_mut(copied.len());
        for ((sorted, at_places), view) in copied.iter().zip(&tables.views) {
            let width = view.width as usize;
            for place in first_places(sorted) {
                let id = ids.split_off_first_mut().expect("an id of each row");
                let row = rows.split_off_mut(..width).expect("room for each row");
                *id = sorted[place];
                row.copy_from_slice(&at_places[place * width..][..width]);
            }
        }
    }

    /// Sums the gradient of each touched row, to where `sums` keeps those of each table.
    pub(super) fn summed_rows(
        &self,
        gradients: &RowGradients<'_, Self>,
        tables: &[CudaTable],
        sums: impl Fn(usize) -> SumsOfRows,
    ) -> Tables {
        let tables = self.tables(gradients, tables, sums);
        let step = StepRows { use_of_sums: use_of::STORE_SUM, ..StepRows::default() };
        self.run_rows(step, gradients, &tables);
        tables
    }

    /// The sorted ids of a table, and sums at their places.
    fn sums_of_table(&self, view: &TableView) -> (Vec<u32>, Vec<f32>) {
        let mut size = 0_u32;
        self.copy_from(size.as_mut_bytes(), view.size);
        let mut ids = vec![0_u32; size as usize];
        let mut sums = vec![0.0_f32; ids.len() * view.width as usize];
        self.copy_from(ids.as_mut_bytes(), view.ids);
        self.copy_from(sums.as_mut_bytes(), view.sums);
        (ids, sums)
    }

    /// Sums each row's gradient, and uses it as `step.use_of_sums` says.
    fn run_rows(&self, step: StepRows, gradients: &RowGradients<'_, Self>, tables: &Tables) {
        let step = StepRows {
            batch: gradients.batch.address(),
            gradient: gradients.gradient.view(),
            holder_columns: gradients.maxima.map_or(0, |maxima| maxima.shape().columns as u32),
            ..step
        };
        // Later commands read the plan.
        self.join();
        self.launch_rows(gradients.maxima.is_some(), step, tables);
    }

    /// Launches the kernels of a step of `tables`.
    pub(super) fn launch_rows(&self, has_maxima: bool, step: StepRows, tables: &Tables) {
        let step = StepRows { tables: tables.address, fault: self.fault(), ..step };
        let pieces = if has_maxima { STEP_PIECES_OF_MAXIMA } else { STEP_PIECES };
        let threads = [tables.threads, tables.views.len()];
        self.launch(pieces, threads, &step);
        self.launch(STEP_SPANS, threads, &step);
    }

    fn tables(
        &self,
        gradients: &RowGradients<'_, Self>,
        tables: &[CudaTable],
        sums: impl Fn(usize) -> SumsOfRows,
    ) -> Tables {
        let RowGradients { batch, plan, lookups, columns, maxima, .. } = *gradients;
        let mut first_holder = 0;
        let mut list = TableList::default();
        for (number, table) in tables.iter().enumerate() {
            let lookups = Lookup::of_table(lookups, number);
            let (sorted, width) = (plan.sorted(batch, lookups), table.shape().width);
            let source = |lookup: &Lookup| {
                let maxima = maxima.filter(|_| lookup.has_maxima());
                let holders = maxima.map_or(0, |maxima| maxima.column(first_holder));
                first_holder += lookup.maxima(width);
                SourceView {
                    column: batch.column(lookup.column),
                    first: columns.first_of(lookup) as u32,
                    pooling: lookup.pooling.code(),
                    holders,
                }
            };
            let sources: Vec<SourceView> = lookups.iter().map(source).collect();
            let view = TableView {
                ids: sorted.ids,
                places: sorted.places,
                size: sorted.size,
                starts: sorted.starts,
                sources: self.constants(&sources),
                source_count: sources.len() as u32,
                ..view_of(table)
            };
            list.add(view, sorted.capacity, width, sums(number));
        }
        self.listed(list)
    }

    /// Passes a list of tables to the kernels.
    pub(super) fn listed(&self, list: TableList) -> Tables {
        let TableList { mut views, ids, rooms, threads } = list;
        let scratch = self.scratch(rooms.bytes());
        for view in &mut views {
            view.partials += scratch;
            view.squares += scratch;
            if view.touched == 0 {
                view.sums += scratch;
            }
        }
        Tables { address: self.constants_or_none(&views), views, ids, threads }
    }
}

/// The place of the first id of each row among sorted ids.
fn first_places(ids: &[u32]) -> impl Iterator<Item = usize> + Clone + '_ {
    (0..ids.len()).filter(|&place| place == 0 || ids[place - 1] != ids[place])
}
