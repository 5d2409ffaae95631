//! Lookups: embeddings concatenated per row, and linear models.

use super::Cuda;
use super::batch::CudaBatch;
use super::buffers::{CudaMaxima, CudaTable, number_bytes};
use super::driver::Memory;
use super::kernels::{
    COLUMNS, FINISH_COLUMNS, FinishColumns, GATHER, GATHER_DENSE, GATHER_MAXIMA, GATHER_PACKED,
    GATHER_SEQUENCES, Gather, GatherDense, LINEAR, LINEAR_BACKWARD, LOAD_BYTES, Linear, LinearBackward,
    LookupView, QUAD, ROWS_AT_ONCE,
};
use super::layers::{PAIR_BYTES, column_blocks, partial_bytes, shares};
use crate::device::{Lookup, Pooling, TablePart, TableShape};
use crate::ops::{self, GradientMode, LinearForward};

fn views(
    batch: &CudaBatch,
    lookups: &[Lookup],
    tables: &[CudaTable],
    maxima: Option<&CudaMaxima>,
) -> Vec<LookupView> {
    let mut first_holder = 0;
    let view = |lookup: &Lookup| {
        let table = &tables[lookup.table];
        let holders = maxima.filter(|_| lookup.has_maxima()).map_or(0, |maxima| maxima.column(first_holder));
        first_holder += lookup.maxima(table.shape().width);
        LookupView {
            table: table.part(TablePart::Weights, 0),
            column: batch.column(lookup.column),
            width: table.shape().width as u32,
            first: lookup.first as u32,
            pooling: lookup.pooling.code(),
            format: table.shape().float as u32,
            holders,
        }
    };
    lookups.iter().map(view).collect()
}

/// Lookups by the kernel that executes them.
#[derive(Default)]
struct Apart {
    /// The sums of the ids of a row.
    sums: Vec<Lookup>,
    /// Their maxima.
    maxima: Vec<Lookup>,
    /// A vector for each.
    sequences: Vec<Lookup>,
}

impl Apart {
    fn of(lookups: &[Lookup]) -> Self {
        let mut apart = Self::default();
        for &lookup in lookups {
            let those = match lookup.pooling {
                Pooling::Unpooled(_) => &mut apart.sequences,
                _ if lookup.has_maxima() => &mut apart.maxima,
                _ => &mut apart.sums,
            };
            those.push(lookup);
        }
        apart
    }
}

/// GPU memory for the kernels' lists of lookups and dense columns, in bytes.
pub(super) fn constant_bytes(lookups: &[Lookup], dense: usize) -> u64 {
    let Apart { sums, maxima, sequences } = Apart::of(lookups);
    let of = |lookups: Vec<Lookup>| Memory::taken(lookups.len() * size_of::<LookupView>());
    of(sums) + of(maxima) + of(sequences) + Memory::taken(dense * size_of::<u32>())
}

/// Workspace of a linear model over `dense` dense columns, in bytes.
pub(super) fn scratch_bytes(rows: usize, dense: usize, outputs: usize) -> usize {
    partial_bytes(rows, (dense + 1) * outputs)
}

/// Whether each load of a thread covers eight 16-bit columns of a row.
fn is_packed(shape: TableShape) -> bool {
    let bytes = number_bytes(shape.float);
    bytes == size_of::<u16>() && (shape.width * bytes).is_multiple_of(LOAD_BYTES)
}

/// The number of loads per row: without packing, a load covers up to four columns.
fn loads_of_row(shape: TableShape) -> usize {
    let columns = if is_packed(shape) { LOAD_BYTES / size_of::<u16>() } else { QUAD as usize };
    shape.width.div_ceil(columns)
}

fn numbers(columns: &[usize]) -> Vec<u32> {
    columns.iter().map(|&column| column as u32).collect()
}

impl Cuda {
    pub(super) fn gather(&self, operation: ops::Gather<'_, Self>) {
        let ops::Gather { batch, rows, lookups, tables, dense, out, first_column, maxima } = operation;
        let held = maxima.as_deref();
        let width = |table: usize| tables[table].shape().width;
        let first_dense = first_column + Lookup::widths(lookups, width);
        let Apart { sums, maxima, sequences } = Apart::of(lookups);
        let gather = |lookups: &[Lookup]| Gather {
            batch: batch.address(),
            lookups: self.constants(&views(batch, lookups, tables, held)),
            out: out.view(),
            first_row: rows.start as u32,
            rows: rows.len() as u32,
            first_column: first_column as u32,
            holder_columns: held.map_or(0, |held| held.shape().columns as u32),
        };
        let quads = |lookup: &Lookup| width(lookup.table).div_ceil(QUAD as usize) * lookup.pooling.vectors();
        let quad_threads =
            |lookups: &[Lookup]| [rows.len() * lookups.iter().map(quads).max().unwrap_or(0), lookups.len()];
        if !sums.is_empty() {
            let shapes = sums.iter().map(|lookup| tables[lookup.table].shape());
            let loads = shapes.clone().map(loads_of_row).max();
            let threads = rows.len().div_ceil(ROWS_AT_ONCE as usize) * loads.unwrap_or(0);
            let entry = if shapes.clone().any(is_packed) { GATHER_PACKED } else { GATHER };
            self.launch(entry, [threads, sums.len()], &gather(&sums));
        }
        for (entry, lookups) in [(GATHER_MAXIMA, &maxima), (GATHER_SEQUENCES, &sequences)] {
            if !lookups.is_empty() {
                self.launch(entry, quad_threads(lookups), &gather(lookups));
            }
        }
        if !dense.is_empty() {
            let gather = GatherDense {
                dense: batch.dense(),
                columns: self.constants(&numbers(dense)),
                out: out.view(),
                all_columns: batch.dense_columns() as u32,
                count: dense.len() as u32,
                first_row: rows.start as u32,
                rows: rows.len() as u32,
                first_column: first_dense as u32,
                unused: 0,
            };
            self.launch(GATHER_DENSE, [rows.len() * dense.len(), 1], &gather);
        }
    }

    pub(super) fn linear_forward(&self, operation: LinearForward<'_, Self>) {
        let LinearForward { batch, rows, lookups, tables, dense, dense_weights, bias, out } = operation;
        let linear = Linear {
            batch: batch.address(),
            lookups: self.constants_or_none(&views(batch, lookups, tables, None)),
            dense: batch.dense(),
            columns: self.constants_or_none(&numbers(dense)),
            weights: dense_weights.view(),
            bias: bias.view(),
            out: out.view(),
            lookup_count: lookups.len() as u32,
            all_columns: batch.dense_columns() as u32,
            dense_count: dense.len() as u32,
            first_row: rows.start as u32,
            rows: rows.len() as u32,
            unused: 0,
        };
        self.launch(LINEAR, [rows.len() * out.columns(), 1], &linear);
    }

    pub(super) fn linear_backward(&self, operation: ops::LinearBackward<'_, Self>) {
        let ops::LinearBackward { batch, rows, dense, out_grad, mode, weight_grad, bias_grad } = operation;
        let outputs = out_grad.columns();
        let columns = (dense.len() + 1) * outputs;
        let partials = self.scratch(scratch_bytes(rows.len(), dense.len(), outputs));
        let backward = LinearBackward {
            dense: batch.dense(),
            columns: self.constants_or_none(&numbers(dense)),
            out_grad: out_grad.view(),
            partials,
            all_columns: batch.dense_columns() as u32,
            dense_count: dense.len() as u32,
            first_row: rows.start as u32,
            rows: rows.len() as u32,
        };
        self.launch_blocks(LINEAR_BACKWARD, column_blocks(rows.len(), columns), &backward);
        // The bias gradient follows those of all dense columns.
        for (to, first, columns) in
            [(weight_grad, 0, columns - outputs), (bias_grad, columns - outputs, outputs)]
        {
            let finish = FinishColumns {
                partials: partials + (first * PAIR_BYTES) as u64,
                first: to.view(),
                factor: 1.0,
                columns: columns as u32,
                stride: ((dense.len() + 1) * outputs) as u32,
                shares: shares(rows.len()) as u32,
                adds: u32::from(mode == GradientMode::Accumulate),
                ..FinishColumns::default()
            };
            self.launch_blocks(FINISH_COLUMNS, [columns.div_ceil(COLUMNS as usize), 1], &finish);
        }
    }
}
