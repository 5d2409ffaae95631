//! The CPU backend: float32, all cores, vector instructions chosen at run time.
//!
//! * [`team`]: threads; fork and join around numbered tasks.
//! * [`memory`], [`matrix`]: aligned memory, matrices and tables in it.
//! * [`simd`]: kernels compiled for several vector widths.
//! * [`gemm`], [`bf16`], [`layer`], [`weights`], [`groups`]: fully connected layers.
//! * [`gather`], [`linear`]: lookups and the linear model.
//! * [`normalize`]: numbers brought to one scale, by row or column.
//! * [`interaction`]: how features meet; [`mixture`]: gates over experts; [`columns`]: moving and adding columns.
//! * [`vectors`]: rows of length 1, and their products; [`softmax`]: the softmax over a batch's items, by [`exp`].
//! * [`copy`]: copying tables out.
//! * [`rows`]: which table rows a batch touches; [`runs`]: their gradients.
//! * [`step`], [`step_rows`]: optimizer steps, by the formulas of [`rules`] over what [`shaping`] makes of gradients.
//! * [`squares`]: how long gradients are.
//! * [`loss`]: losses, the sigmoid and the softmax over classes; [`dropout`]: what is left out of them at random.
//!
//! Each operation gives each number of the result to one task, and sums its terms in an order that follows from the
//! shape of the data alone, whatever tasks the work is cut into; so results depend neither on the number of threads nor on
//! timing. They do depend on the kind of CPU: matrix kernels of other widths sum in another order.

// First, for its macro.
#[macro_use]
mod simd;

#[cfg(target_arch = "x86_64")]
mod bf16;
mod columns;
mod copy;
mod dropout;
mod exp;
mod gather;
mod gemm;
#[cfg(target_arch = "x86_64")]
mod groups;
mod interaction;
mod layer;
mod linear;
mod linear_columns;
mod loss;
mod matrix;
mod memory;
mod mixture;
mod normalize;
mod rounding;
mod rows;
mod rules;
mod runs;
mod shaping;
mod softmax;
mod squares;
mod step;
mod step_rows;
mod team;
mod vectors;
mod weights;

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use millstream_batch::{BatchRef, BatchSchema, RingMapping};

use crate::backend::{Activation, Backend, LayerGradient, MixtureShape, RowGradients, Sum, Task};
use crate::description::Description;
use crate::device::{Device, IdColumn, Lookup, MatrixShape, Operation, TablePart, TablePlace, TableShape};
use crate::error::{BackendError, BatchError, PinError};
use crate::float::Float;
use crate::host::{HostBatch, HostReport};
use crate::normalization::{Axis, Normalization, Normalized};
use crate::retrieval::InBatchSoftmax;
use crate::sizes::{Layout, OperationBytes};
use crate::update::{LossScaling, Update};
use memory::Memory;
use simd::Simd;
use team::Team;

pub use matrix::{CpuMatrix, CpuTable};
pub use rows::CpuRowPlan;

/// The CPU backend.
pub struct Cpu {
    team: Team,
    simd: Simd,
    /// For products in bfloat16, which are in single precision without.
    #[cfg(target_arch = "x86_64")]
    bf16: Option<bf16::Instructions>,
    /// For products in single and half precision, which are by instructions of single precision without.
    #[cfg(target_arch = "x86_64")]
    split: Option<bf16::Instructions>,
    /// What an operation needs besides its arguments: grows to the largest need, then stays.
    scratch: Mutex<Memory>,
}

impl Cpu {
    /// A backend of `threads` threads (at least 1, the caller's included), or of one a core.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub fn new(threads: Option<u32>) -> Result<Self, BackendError> {
        let threads = match threads {
            Some(threads) => threads.max(1) as usize,
            None => std::thread::available_parallelism().map_or(1, usize::from),
        };
        Ok(Self {
            team: Team::new(threads)?,
            simd: Simd::detect(),
            #[cfg(target_arch = "x86_64")]
            bf16: bf16::Instructions::detect(),
            #[cfg(target_arch = "x86_64")]
            split: bf16::Instructions::detect_split(),
            scratch: Mutex::new(Memory::zeroed(0)),
        })
    }

    /// The same without AMX, as on most machines: it multiplies by vectors, and so sums in another order.
    #[must_use]
    pub fn without_tiles(self) -> Self {
        #[cfg(target_arch = "x86_64")]
        let this = Self { bf16: bf16::Instructions::detect_vectors(), split: None, ..self };
        #[cfg(not(target_arch = "x86_64"))]
        let this = self;
        this
    }

    /// Numbers that an in-batch softmax of so many rows and columns works in.
    fn softmax_numbers(rows: usize, columns: usize) -> usize {
        softmax::Work::of(rows, columns).numbers()
    }

    /// Runs `kernel` for each of `0..tasks` on all threads. For [`run!`] alone.
    fn run_kernel(&self, tasks: usize, kernel: impl Fn(usize) + Sync) {
        let simd = self.simd;
        let run = |task| {
            simd.run(
                #[inline(always)]
                || kernel(task),
            );
        };
        self.team.run(tasks, &run);
    }

    fn threads(&self) -> usize {
        self.team.threads()
    }

    /// Items of each task of an operation on `items`: whole tiles of so many, at most some `most`, and as many for one
    /// thread as for another.
    #[cfg(target_arch = "x86_64")]
    fn items_of_task(&self, items: usize, tile: usize, most: usize) -> usize {
        let tiles = items.div_ceil(tile).div_ceil(self.threads());
        let tasks = (tiles * tile).div_ceil(most).max(1);
        (tiles.div_ceil(tasks) * tile).max(tile)
    }

    /// At least `len` floats of any content, an operation's until dropped.
    fn scratch(&self, len: usize) -> MutexGuard<'_, Memory> {
        let mut memory = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if memory.as_slice().len() < len {
            *memory = Memory::zeroed(len);
        }
        memory
    }
}

/// Tasks that `items` items make, `each` to a task.
fn tasks_for(items: usize, each: usize) -> usize {
    items.div_ceil(each)
}

/// The items of task number `task`.
fn rows_of_task(task: usize, each: usize, items: usize) -> Range<usize> {
    task * each..((task + 1) * each).min(items)
}

impl Device for Cpu {
    type Scalar = f32;
    type Matrix = CpuMatrix;
    type Table = CpuTable;
    type Batch = HostBatch;
    type RowPlan = CpuRowPlan;
    type Report = HostReport<f32>;

    const STEPS_AHEAD: usize = 0;

    fn matrix_of(&self, float: Float, rows: usize, columns: usize) -> CpuMatrix {
        CpuMatrix::new(float, rows, columns)
    }

    fn table(&self, shape: TableShape) -> CpuTable {
        CpuTable::new(shape)
    }

    fn batch(&self, schema: &BatchSchema) -> HostBatch {
        HostBatch::new(schema)
    }

    fn report(&self, numbers: usize) -> HostReport<f32> {
        HostReport::new(numbers)
    }

    fn make_ready(&self, operation: &Operation<'_>) {
        if let Operation::Layer { inputs, outputs, .. } = *operation {
            drop(self.scratch(layer::work(self.team.threads(), inputs, outputs)));
        }
    }

    fn softmax_work(&self, rows: usize, columns: usize) -> CpuMatrix {
        CpuMatrix::new(Float::F32, 1, Self::softmax_numbers(rows, columns))
    }

    fn row_plan(&self, schema: &BatchSchema, groups: &[Vec<IdColumn>]) -> CpuRowPlan {
        CpuRowPlan::new(schema, groups)
    }
}

impl Layout for Cpu {
    const IS_APART: bool = false;

    fn base_bytes() -> u64 {
        0
    }

    fn matrix_bytes(_float: Float, rows: usize, columns: usize) -> u64 {
        CpuMatrix::bytes(rows, columns)
    }

    fn table_bytes(shape: TableShape) -> u64 {
        (shape.rows as u64) * (CpuTable::row_floats(shape) * size_of::<f32>()) as u64
    }

    fn batch_bytes(schema: &BatchSchema) -> u64 {
        HostBatch::bytes(schema)
    }

    fn staging_bytes(_schema: &BatchSchema) -> u64 {
        0
    }

    fn softmax_bytes(rows: usize, columns: usize) -> u64 {
        CpuMatrix::bytes(1, Self::softmax_numbers(rows, columns))
    }

    fn row_plan_bytes(schema: &BatchSchema, groups: &[Vec<IdColumn>]) -> u64 {
        CpuRowPlan::bytes(schema, groups)
    }

    fn report_bytes(numbers: usize) -> u64 {
        HostReport::<f32>::bytes(numbers)
    }

    /// Of layers, but for what each thread has besides, a quarter of a MiB; what others take is little.
    fn operation_bytes(operation: &Operation<'_>) -> OperationBytes {
        let Operation::Layer { inputs, outputs, .. } = *operation else { return OperationBytes::default() };
        let shared = (layer::work(1, inputs, outputs) * size_of::<f32>()) as u64;
        OperationBytes { shared, own: 0 }
    }
}

impl Backend for Cpu {
    type Pinned = ();

    fn describe(&self) -> Description {
        Description::of(match self.threads() {
            1 => "the CPU, by one thread".to_owned(),
            threads => format!("the CPU, by {threads} threads"),
        })
    }

    fn matrix_shape(matrix: &CpuMatrix) -> MatrixShape {
        MatrixShape { rows: matrix.rows(), columns: matrix.columns(), number_bytes: size_of::<f32>() }
    }

    fn table_shape(table: &CpuTable) -> TableShape {
        table.shape()
    }

    fn touched_rows(&self, plan: &CpuRowPlan, lookups: &[Lookup]) -> Option<usize> {
        Some(plan.group(lookups).starts().len() - 1)
    }

    fn write_matrix(&self, matrix: &mut CpuMatrix, values: &[f32]) {
        matrix.write(values);
    }

    fn read_matrix(&self, matrix: &CpuMatrix, out: &mut [f32]) {
        matrix.read(out);
    }

    fn write_table(&self, table: &mut CpuTable, part: TablePart, first_row: usize, values: &[f32]) {
        table.write(part, first_row, values);
    }

    fn read_table(&self, table: &CpuTable, part: TablePart, first_row: usize, out: &mut [f32]) {
        table.read(part, first_row, out);
    }

    fn table_place(shape: TableShape, part: TablePart) -> TablePlace {
        CpuTable::place(shape, part)
    }

    fn copied_numbers(shape: TableShape) -> usize {
        shape.rows * CpuTable::row_floats(shape)
    }

    fn copy_table(&self, table: &CpuTable, _shape: TableShape, out: &mut [f32]) {
        copy::table(self, table, out);
    }

    fn upload(&self, batch: BatchRef<'_>, into: &mut HostBatch) -> Result<(), BatchError> {
        into.upload(batch)
    }

    fn pin(&self, _pages: &RingMapping) -> Result<(), PinError> {
        Ok(())
    }

    fn check(&self, _batch: &HostBatch) -> Result<(), BatchError> {
        Ok(())
    }

    fn send(&self, _batch: &HostBatch, matrices: &[&CpuMatrix], report: &mut HostReport<f32>) {
        report.take(
            matrices,
            |matrix| matrix.rows() * matrix.columns(),
            |matrix, out| self.read_matrix(matrix, out),
        );
    }

    fn receive(&self, report: &mut HostReport<f32>, numbers: &mut [f32]) -> Result<(), BatchError> {
        report.tell(numbers);
        Ok(())
    }

    fn plan_rows(&self, batch: &HostBatch, plan: &mut CpuRowPlan) {
        rows::plan(self, batch, plan);
    }

    fn gather(
        &self,
        batch: &HostBatch,
        rows: Range<usize>,
        lookups: &[Lookup],
        tables: &[CpuTable],
        dense: &[usize],
        out: &mut CpuMatrix,
        first_column: usize,
    ) {
        gather::gather(self, batch, rows, lookups, tables, dense, out, first_column);
    }

    fn linear_forward(
        &self,
        batch: &HostBatch,
        rows: Range<usize>,
        lookups: &[Lookup],
        tables: &[CpuTable],
        dense: &[usize],
        dense_weights: &CpuMatrix,
        bias: &CpuMatrix,
        out: &mut CpuMatrix,
    ) {
        linear::forward(self, batch, rows, lookups, tables, dense, dense_weights, bias, out);
    }

    fn linear_backward(
        &self,
        batch: &HostBatch,
        rows: Range<usize>,
        dense: &[usize],
        out_gradient: &CpuMatrix,
        sum: Sum,
        dense_weights_gradient: &mut CpuMatrix,
        bias_gradient: &mut CpuMatrix,
    ) {
        let (by_weights, by_bias) = (dense_weights_gradient, bias_gradient);
        linear::backward(self, batch, rows, dense, out_gradient, sum, by_weights, by_bias);
    }

    fn layer_forward(
        &self,
        rows: usize,
        input: &CpuMatrix,
        weights: &CpuMatrix,
        bias: Option<&CpuMatrix>,
        activation: Activation,
        output: &mut CpuMatrix,
    ) {
        layer::forward(self, rows, input, weights, bias, activation, output);
    }

    fn layer_backward(
        &self,
        rows: usize,
        layer: &LayerGradient<'_, CpuMatrix>,
        output_gradient: &mut CpuMatrix,
        sum: Sum,
        weights_gradient: &mut CpuMatrix,
        bias_gradient: Option<&mut CpuMatrix>,
        input_gradient: Option<&mut CpuMatrix>,
    ) {
        let (by_weights, by_bias, by_input) = (weights_gradient, bias_gradient, input_gradient);
        layer::backward(self, rows, layer, output_gradient, sum, by_weights, by_bias, by_input);
    }

    fn fm_forward(&self, rows: usize, vectors: &CpuMatrix, shape: (usize, usize), out: &mut CpuMatrix) {
        interaction::fm_forward(self, rows, vectors, shape, out);
    }

    fn fm_backward(
        &self,
        rows: usize,
        vectors: &CpuMatrix,
        shape: (usize, usize),
        out_gradient: &CpuMatrix,
        vectors_gradient: &mut CpuMatrix,
    ) {
        interaction::fm_backward(self, rows, vectors, shape, out_gradient, vectors_gradient);
    }

    fn cross_forward(
        &self,
        rows: usize,
        first: &CpuMatrix,
        product: &CpuMatrix,
        input: &CpuMatrix,
        output: &mut CpuMatrix,
    ) {
        interaction::cross_forward(self, rows, first, product, input, output);
    }

    fn cross_backward(
        &self,
        rows: usize,
        first: &CpuMatrix,
        product: &CpuMatrix,
        output_gradient: &CpuMatrix,
        product_gradient: &mut CpuMatrix,
        first_gradient: &mut CpuMatrix,
    ) {
        let (by_product, by_first) = (product_gradient, first_gradient);
        interaction::cross_backward(self, rows, first, product, output_gradient, by_product, by_first);
    }

    fn dot_forward(&self, rows: usize, vectors: &CpuMatrix, width: usize, out: &mut CpuMatrix) {
        interaction::dot_forward(self, rows, vectors, width, out);
    }

    fn dot_backward(
        &self,
        rows: usize,
        vectors: &CpuMatrix,
        width: usize,
        out_gradient: &CpuMatrix,
        vectors_gradient: &mut CpuMatrix,
    ) {
        interaction::dot_backward(self, rows, vectors, width, out_gradient, vectors_gradient);
    }

    fn mixture_forward(
        &self,
        rows: usize,
        shape: MixtureShape,
        logits: &CpuMatrix,
        experts: &CpuMatrix,
        gates: &mut CpuMatrix,
        output: &mut CpuMatrix,
    ) {
        mixture::forward(self, rows, shape, logits, experts, gates, output);
    }

    fn mixture_backward(
        &self,
        rows: usize,
        shape: MixtureShape,
        gates: &CpuMatrix,
        experts: &CpuMatrix,
        output_gradient: &CpuMatrix,
        logits_gradient: &mut CpuMatrix,
        experts_gradient: &mut CpuMatrix,
    ) {
        let saved = (gates, experts);
        mixture::backward(self, rows, shape, saved, output_gradient, logits_gradient, experts_gradient);
    }

    fn copy_columns(
        &self,
        rows: usize,
        from: (&CpuMatrix, usize),
        to: (&mut CpuMatrix, usize),
        columns: usize,
    ) {
        columns::copy(self, rows, from, to, columns);
    }

    fn copy_rows(&self, rows: usize, from: &CpuMatrix, to: &mut CpuMatrix, first: usize) {
        columns::copy_rows(self, rows, from, to, first);
    }

    fn dropout(&self, rows: Range<usize>, keep: f64, key: u64, matrix: &mut CpuMatrix) {
        dropout::dropout(self, rows, keep, key, matrix);
    }

    fn moments(
        &self,
        rows: usize,
        axis: Axis,
        input: &CpuMatrix,
        mean: &mut CpuMatrix,
        variance: &mut CpuMatrix,
    ) {
        normalize::moments(self, rows, axis, input, mean, variance);
    }

    fn normalize_forward(
        &self,
        rows: usize,
        layer: &Normalization<'_, CpuMatrix>,
        moments: (&CpuMatrix, &CpuMatrix),
        input: &CpuMatrix,
        output: &mut CpuMatrix,
    ) {
        normalize::forward(self, rows, layer, moments, input, output);
    }

    fn normalize_backward(
        &self,
        rows: usize,
        layer: &Normalization<'_, CpuMatrix>,
        saved: &Normalized<'_, CpuMatrix>,
        gradient: &mut CpuMatrix,
        sum: Sum,
        by_scale: &mut CpuMatrix,
        by_shift: &mut CpuMatrix,
    ) {
        normalize::backward(self, rows, layer, saved, gradient, sum, by_scale, by_shift);
    }

    fn unit_forward(&self, rows: usize, input: &CpuMatrix, output: &mut CpuMatrix) {
        vectors::unit_forward(self, rows, input, output);
    }

    fn unit_backward(&self, rows: usize, input: &CpuMatrix, gradient: &mut CpuMatrix) {
        vectors::unit_backward(self, rows, input, gradient);
    }

    fn row_products(
        &self,
        rows: usize,
        factor: f64,
        left: &CpuMatrix,
        right: &CpuMatrix,
        out: &mut CpuMatrix,
    ) {
        vectors::products(self, rows, factor, left, right, out);
    }

    fn in_batch_softmax(
        &self,
        softmax: &InBatchSoftmax<'_, Self>,
        work: &mut CpuMatrix,
        by_queries: &mut CpuMatrix,
        by_items: &mut CpuMatrix,
        sums: &mut CpuMatrix,
    ) {
        softmax::softmax(self, softmax, work, by_queries, by_items, sums);
    }

    fn blend(&self, share: f64, factor: f64, from: &CpuMatrix, to: &mut CpuMatrix) {
        normalize::blend(share, factor, from, to);
    }

    fn add(&self, rows: usize, from: &CpuMatrix, to: &mut CpuMatrix) {
        columns::add(self, rows, from, to);
    }

    fn clear(&self, rows: usize, matrix: &mut CpuMatrix) {
        columns::clear(self, rows, matrix);
    }

    fn loss(
        &self,
        task: &Task,
        batch: &HostBatch,
        rows: Range<usize>,
        logits: &CpuMatrix,
        gradient: &mut CpuMatrix,
        sums: &mut CpuMatrix,
    ) {
        loss::loss(self, task, batch, rows, logits, gradient, sums);
    }

    fn multiply(&self, rows: usize, factor: &CpuMatrix, matrix: &mut CpuMatrix) {
        columns::multiply(self, rows, factor, matrix);
    }

    fn sigmoid(&self, rows: usize, logits: &CpuMatrix, out: &mut CpuMatrix) {
        loss::sigmoid(self, rows, logits, out);
    }

    fn softmax(&self, rows: usize, logits: &CpuMatrix, out: &mut CpuMatrix) {
        loss::softmax_of_rows(self, rows, logits, out);
    }

    fn squares(&self, gradient: &CpuMatrix, sum: &mut CpuMatrix) {
        squares::squares(self, gradient, sum);
    }

    fn row_squares(&self, gradients: &RowGradients<'_, Self>, tables: &[CpuTable], sum: &mut CpuMatrix) {
        squares::row_squares(self, gradients, tables, sum);
    }

    fn clip_scale(&self, maximum: f64, squares: &CpuMatrix, scale: &mut CpuMatrix) {
        squares::clip_scale(maximum, squares, scale);
    }

    fn unscale(
        &self,
        rule: &LossScaling,
        maximum: Option<f64>,
        squares: &CpuMatrix,
        state: &mut CpuMatrix,
        scale: &mut CpuMatrix,
    ) {
        squares::unscale(rule, maximum, squares, state, scale);
    }

    fn step(
        &self,
        update: &Update,
        scale: &CpuMatrix,
        weights: &mut CpuMatrix,
        states: &mut [CpuMatrix],
        gradient: &CpuMatrix,
    ) {
        step::step(self, update, scale, weights, states, gradient);
    }

    fn step_rows(
        &self,
        update: &Update,
        scale: &CpuMatrix,
        draws: u64,
        gradients: &RowGradients<'_, Self>,
        tables: &mut [CpuTable],
    ) {
        step_rows::step_rows(self, update, scale, draws, gradients, tables);
    }
}
