//! Optimizer steps of the table rows that a batch touches.

use millstream_batch::BatchSchema;

use super::buffers::{CudaTable, Rooms};
use super::driver::{Address, Memory};
use super::kernels::{
    ADD_ROW_SQUARES, QUAD, RowSquares, STEP_PIECES, STEP_PIECES_OF_MAXIMA, STEP_SPANS, SourceView, StepRows,
    TableView, WARP,
};
use super::updates::view;
use super::{Cuda, host};
use crate::device::{Lookup, TablePart, TableShape};
use crate::ops::{self, RowGradients};

/// The kernels' list of tables, and the threads that the largest table needs.
struct Tables {
    address: Address,
    count: usize,
    threads: usize,
}

/// Lanes of a warp that share a row of `width` columns, four columns each.
fn lanes(width: usize) -> u32 {
    (width.div_ceil(QUAD as usize) as u32).next_power_of_two().min(WARP)
}

/// The number of ids in a piece. A worker of one lane is a single thread: pieces are shorter there, so that there are enough
/// threads for a GPU, and their partial sums are small.
fn piece(lanes: u32) -> u32 {
    if lanes == 1 { 16 } else { 64 }
}

/// The number of pieces that `ids` ids of rows of `width` columns are split into.
fn pieces(ids: usize, width: usize) -> usize {
    ids.div_ceil(piece(lanes(width)) as usize)
}

/// The partial sums of rows that span pieces: of their gradients, and of the squares of those.
fn rooms_of(rooms: &mut Rooms, pieces: usize, width: usize) -> [Address; 2] {
    [2 * pieces * width, 2 * pieces].map(|numbers| rooms.add(numbers * size_of::<f32>()))
}

/// Workspace of a step of tables for batches of `schema`, in bytes.
pub(super) fn scratch_bytes(schema: &BatchSchema, lookups: &[Lookup], shapes: &[TableShape]) -> usize {
    let mut rooms = Rooms::default();
    for (number, shape) in shapes.iter().enumerate() {
        let columns = Lookup::of_table(lookups, number).iter().map(|lookup| lookup.column);
        let ids = columns.map(|column| host::capacity(schema, column)).sum();
        rooms_of(&mut rooms, pieces(ids, shape.width), shape.width);
    }
    rooms.bytes()
}

/// GPU memory for the kernels' lists of tables and of each table's lookups, in bytes.
pub(super) fn constant_bytes(lookups: &[Lookup], shapes: &[TableShape]) -> u64 {
    let sources = |table| Lookup::of_table(lookups, table).len() * size_of::<SourceView>();
    let sources: u64 = (0..shapes.len()).map(|table| Memory::taken(sources(table))).sum();
    sources + Memory::taken(size_of::<TableView>() * shapes.len())
}

impl Cuda {
    pub(super) fn step_rows(&self, operation: ops::StepRows<'_, Self>) {
        let ops::StepRows { update, scale, draws, gradients, tables } = operation;
        let (update, scale) = (view(update), scale.numbers());
        let views = self.tables(gradients, tables);
        self.run_rows(
            StepRows { update, scale, key: draws, steps: 1, ..StepRows::default() },
            gradients,
            &views,
        );
    }

    pub(super) fn row_squares(&self, operation: ops::RowSquares<'_, Self>) {
        let ops::RowSquares { gradients, tables, sum } = operation;
        let views = self.tables(gradients, tables);
        self.run_rows(StepRows::default(), gradients, &views);
        let squares = RowSquares {
            tables: views.address,
            sum: sum.numbers(),
            table_count: views.count as u32,
            unused: 0,
        };
        self.launch_blocks(ADD_ROW_SQUARES, [1, usize::from(views.count > 0)], &squares);
    }

    /// Sums each row's gradient; then updates the row if `step.steps` is 1, otherwise sums the squares.
    fn run_rows(&self, step: StepRows, gradients: &RowGradients<'_, Self>, tables: &Tables) {
        let step = StepRows {
            batch: gradients.batch.address(),
            tables: tables.address,
            fault: self.fault(),
            gradient: gradients.gradient.view(),
            holder_columns: gradients.maxima.map_or(0, |maxima| maxima.shape().columns as u32),
            ..step
        };
        // Later commands read the plan.
        self.join();
        let pieces = if gradients.maxima.is_some() { STEP_PIECES_OF_MAXIMA } else { STEP_PIECES };
        self.launch(pieces, [tables.threads, tables.count], &step);
        self.launch(STEP_SPANS, [tables.threads, tables.count], &step);
    }

    fn tables(&self, gradients: &RowGradients<'_, Self>, tables: &[CudaTable]) -> Tables {
        let RowGradients { batch, plan, lookups, columns, maxima, .. } = *gradients;
        let mut first_holder = 0;
        let mut rooms = Rooms::default();
        let mut threads = 0;
        let mut views: Vec<TableView> = tables
            .iter()
            .enumerate()
            .map(|(number, table)| {
                let lookups = Lookup::of_table(lookups, number);
                let (sorted, shape) = (plan.sorted(batch, lookups), table.shape());
                let source = |lookup: &Lookup| {
                    let maxima = maxima.filter(|_| lookup.has_maxima());
                    let holders = maxima.map_or(0, |maxima| maxima.column(first_holder));
                    first_holder += lookup.maxima(shape.width);
                    SourceView {
                        column: batch.column(lookup.column),
                        first: columns.first_of(lookup) as u32,
                        pooling: lookup.pooling.code(),
                        holders,
                    }
                };
                let sources: Vec<SourceView> = lookups.iter().map(source).collect();
                let (pieces, lanes) = (pieces(sorted.capacity, shape.width), lanes(shape.width));
                let [partials, squares] = rooms_of(&mut rooms, pieces, shape.width);
                threads = threads.max(pieces * lanes as usize);
                TableView {
                    ids: sorted.ids,
                    places: sorted.places,
                    size: sorted.size,
                    starts: sorted.starts,
                    sources: self.constants(&sources),
                    weights: table.part(TablePart::Weights, 0),
                    states: [0, 1].map(|state| table.part(TablePart::State(state), 0)),
                    row_state: table.part(TablePart::RowState(0), 0),
                    partials,
                    squares,
                    key: shape.key,
                    source_count: sources.len() as u32,
                    width: shape.width as u32,
                    lanes,
                    format: shape.float as u32,
                    piece: piece(lanes),
                    unused: 0,
                }
            })
            .collect();
        let scratch = self.scratch(rooms.bytes());
        for view in &mut views {
            view.partials += scratch;
            view.squares += scratch;
        }
        Tables { address: self.constants_or_none(&views), count: views.len(), threads }
    }
}
