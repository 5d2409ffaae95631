//! Optimizer steps of the table rows that a batch touches.

use millstream_batch::BatchSchema;

use super::batch::code as code_of;
use super::buffers::{CudaMatrix, CudaTable, code};
use super::driver::{Address, Memory};
use super::kernels::{
    ADD_ROW_SQUARES, PIECE, QUAD, RowSquares, STEP_PIECES, STEP_SPANS, SourceView, StepRows, TableView,
    UpdateView, WARP,
};
use super::layers::Rooms;
use super::updates::view;
use super::{Cuda, host};
use crate::device::{Lookup, TablePart, TableShape};
use crate::ops::RowGradients;
use crate::update::{Formula, Update};

/// The kernels' list of tables, and the threads that the largest table needs.
struct Tables {
    address: Address,
    count: usize,
    threads: usize,
}

/// What to do with each row's summed gradient: update the row if `steps` is 1, otherwise sum the squares.
struct Stepping {
    update: UpdateView,
    scale: Address,
    key: u64,
    steps: u32,
}

/// Lanes of a warp that share a row of `width` columns, four columns each.
fn lanes(width: usize) -> u32 {
    (width.div_ceil(QUAD as usize) as u32).next_power_of_two().min(WARP)
}

/// The number of pieces that `ids` ids are split into.
fn pieces(ids: usize) -> usize {
    ids.div_ceil(PIECE as usize)
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
        rooms_of(&mut rooms, pieces(ids), shape.width);
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
    pub(super) fn step_touched(
        &self,
        update: &Update,
        scale: &CudaMatrix,
        draws: u64,
        gradients: &RowGradients<'_, Self>,
        tables: &[CudaTable],
    ) {
        let views = self.tables(gradients, tables);
        let step = Stepping { update: view(update), scale: scale.numbers(), key: draws, steps: 1 };
        self.run_rows(step, gradients, &views);
    }

    pub(super) fn touched_squares(
        &self,
        gradients: &RowGradients<'_, Self>,
        tables: &[CudaTable],
        sum: &CudaMatrix,
    ) {
        // The kernel requires an update even when it only sums squares; this one is never applied.
        let views = self.tables(gradients, tables);
        let update = view(&Formula::Sgd { learning_rate: 0.0 }.into());
        self.run_rows(Stepping { update, scale: 0, key: 0, steps: 0 }, gradients, &views);
        let squares = RowSquares {
            tables: views.address,
            sum: sum.numbers(),
            table_count: views.count as u32,
            unused: 0,
        };
        self.launch_blocks(ADD_ROW_SQUARES, [1, usize::from(views.count > 0)], &squares);
    }

    fn run_rows(&self, step: Stepping, gradients: &RowGradients<'_, Self>, tables: &Tables) {
        let Stepping { update, scale, key, steps } = step;
        let step = StepRows {
            update,
            batch: gradients.batch.address(),
            tables: tables.address,
            scale,
            fault: self.fault(),
            gradient: gradients.gradient.view(),
            key,
            steps,
            unused: 0,
        };
        // Later commands read the plan.
        self.join();
        self.launch(STEP_PIECES, [tables.threads, tables.count], &step);
        self.launch(STEP_SPANS, [tables.threads, tables.count], &step);
    }

    fn tables(&self, gradients: &RowGradients<'_, Self>, tables: &[CudaTable]) -> Tables {
        let RowGradients { batch, plan, lookups, columns, .. } = *gradients;
        let mut rooms = Rooms::default();
        let mut threads = 0;
        let mut views: Vec<TableView> = tables
            .iter()
            .enumerate()
            .map(|(number, table)| {
                let lookups = Lookup::of_table(lookups, number);
                let source = |lookup: &Lookup| SourceView {
                    column: batch.column(lookup.column),
                    first: columns.first_of(lookup) as u32,
                    pooling: code_of(lookup.pooling),
                };
                let sources: Vec<SourceView> = lookups.iter().map(source).collect();
                let (sorted, shape) = (plan.sorted(lookups), table.shape());
                let pieces = pieces(sorted.capacity);
                let lanes = lanes(shape.width);
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
                    format: code(shape.float),
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
