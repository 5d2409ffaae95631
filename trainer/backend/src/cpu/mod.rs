//! The CPU backend: fp32, all cores, vector instructions chosen at run time.
//!
//! - [`team`]: threads; fork and join over numbered tasks.
//! - [`memory`], [`matrix`]: aligned memory, matrices and tables; [`parts`]: division of outputs among tasks.
//! - [`simd`]: kernels compiled for several vector widths.
//! - [`gemm`], [`bf16`], [`layer`], [`weights`], [`groups`]: fully connected layers.
//! - [`gather`], [`linear`]: lookups and the linear model.
//! - [`normalize`]: normalization of rows or columns.
//! - [`attention`]: attention over sequences.
//! - [`interaction`]: feature interactions; [`mixture`]: gates over experts; [`columns`]: copying and adding
//!   columns.
//! - [`vectors`]: unit vectors and dot products of rows; [`in_batch`]: the losses of queries that choose
//!   among the items of a batch, which use [`exp`] and [`logistic`].
//! - [`copy`]: copying tables to the host.
//! - [`rows`]: which table rows a batch touches; [`runs`]: their gradients; [`row_sums`]: their sums; [`touched`]: what
//!   steps need of them, also of the rows of several workers.
//! - [`step`], [`step_rows`]: optimizer steps; [`rules`]: their formulas; [`shaping`]: gradient scaling and
//!   clipping.
//! - [`squares`]: gradient norms.
//! - [`lists`]: losses that compare the rows of a list.
//! - [`loss`]: losses, the sigmoid and the softmax over classes; [`dropout`]: random dropout.
//!
//! Each value of a result is computed by one task, which sums its terms in an order that depends on the shape of
//! the data alone, not on how the work is cut into tasks. So results depend neither on the number of threads nor on
//! timing. They do depend on the CPU model: matrix kernels of other widths sum in another order.

// Declared first, for their macros.
#[macro_use]
pub(crate) mod simd;
#[macro_use]
mod parts;

mod attention;
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
mod in_batch;
mod interaction;
mod layer;
mod linear;
mod linear_columns;
mod lists;
mod logistic;
mod loss;
mod matrix;
pub(crate) mod memory;
mod mixture;
mod normalize;
mod rounding;
mod row_sums;
mod rows;
mod rules;
mod runs;
mod shaping;
mod squares;
mod step;
mod step_rows;
mod team;
mod touched;
mod vectors;
mod weights;

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_batch::{BatchRef, BatchSchema, RingMapping};
use millstream_trace::Recorder;

use crate::backend::Backend;
use crate::description::Description;
use crate::device::{
    BatchShape, Device, IdColumn, Lookup, MatrixShape, Shapes, TablePart, TablePlace, TableShape,
    WorkspaceUse,
};
use crate::error::{BackendError, BatchError, PinError};
use crate::float::Float;
use crate::host::{HostBatch, HostMaxima, HostReport};
use crate::merged_rows::{HostMergedRows, MergedShape, PartRows};
use crate::ops::{
    Checked, CopyTable, Operation, ReadMatrix, ReadTable, RowGradients, WriteMatrix, WriteTable,
};
use crate::row_sums::RowSums;
use crate::sizes::{Layout, OperationBytes};
use memory::Memory;
use simd::Simd;
use team::Team;

pub use matrix::{CpuMatrix, CpuTable};
pub use rows::CpuRowPlan;

/// Instructions of the CPU beyond the build's baseline, by the vendor's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuInstructions {
    /// The widest vectors that the kernels use.
    pub vectors: &'static str,
    /// The instructions for products of bfloat16 matrices, if the machine has any.
    pub matrices: Option<&'static str>,
}

/// The CPU backend.
pub struct Cpu {
    team: Team,
    simd: Simd,
    /// Instructions for bfloat16 products; without them, these use fp32 products.
    #[cfg(target_arch = "x86_64")]
    bf16: Option<bf16::Instructions>,
    /// Instructions for fp32 and fp16 products; without them, these use plain fp32 instructions.
    #[cfg(target_arch = "x86_64")]
    split: Option<bf16::Instructions>,
    /// The workspace of the current operation; grows to the largest need.
    scratch: Mutex<Memory>,
    recorder: Arc<Recorder>,
}

impl Cpu {
    /// Creates a backend with `threads` threads (at least 1, including the caller's), or one per core.
    ///
    /// # Errors
    /// If the operating system refuses a thread.
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
            recorder: Arc::default(),
        })
    }

    /// The instructions that the kernels use on this machine.
    pub fn instructions() -> CpuInstructions {
        #[cfg(target_arch = "x86_64")]
        let matrices = bf16::Instructions::detect().map(bf16::Instructions::name);
        #[cfg(not(target_arch = "x86_64"))]
        let matrices = None;
        CpuInstructions { vectors: Simd::detect().name(), matrices }
    }

    /// The same backend, recorded by `recorder`.
    #[must_use]
    pub fn with_recorder(self, recorder: Arc<Recorder>) -> Self {
        Self { recorder, ..self }
    }

    /// The same backend without AMX, as on most machines: it multiplies with vectors, and so sums in another order.
    #[must_use]
    pub fn without_tiles(self) -> Self {
        #[cfg(target_arch = "x86_64")]
        let this = Self { bf16: bf16::Instructions::detect_vectors(), split: None, ..self };
        #[cfg(not(target_arch = "x86_64"))]
        let this = self;
        this
    }

    /// Runs `kernel` for each of `0..tasks` on all threads. Called by [`run!`] only.
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

    /// Items per task of an operation on `items` items: a multiple of `tile`, at most about `most`, and balanced
    /// across threads.
    #[cfg(target_arch = "x86_64")]
    fn items_of_task(&self, items: usize, tile: usize, most: usize) -> usize {
        let tiles = items.div_ceil(tile).div_ceil(self.threads());
        let tasks = (tiles * tile).div_ceil(most).max(1);
        (tiles.div_ceil(tasks) * tile).max(tile)
    }

    /// A workspace of at least `len` floats with unspecified contents, for one operation; held until dropped.
    fn scratch(&self, len: usize) -> MutexGuard<'_, Memory> {
        let mut memory = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if memory.as_slice().len() < len {
            *memory = Memory::zeroed(len);
        }
        memory
    }
}

impl Device for Cpu {
    type Scalar = f32;
    type Matrix = CpuMatrix;
    type Table = CpuTable;
    type Batch = HostBatch;
    type RowPlan = CpuRowPlan;
    type Maxima = HostMaxima;
    type MergedRows = HostMergedRows<f32>;
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

    fn maxima(&self, rows: usize, columns: usize) -> HostMaxima {
        HostMaxima::new(rows, columns)
    }

    fn merged_rows(&self, shapes: &[TableShape], rows: PartRows<'_>) -> HostMergedRows<f32> {
        HostMergedRows::new(MergedShape::of(shapes, rows))
    }

    fn report(&self, numbers: usize) -> HostReport<f32> {
        HostReport::new(numbers)
    }

    fn reserve_workspace(&self, operation: &WorkspaceUse<'_>) {
        let numbers = match *operation {
            WorkspaceUse::Layer { inputs, outputs, .. } => layer::work(self.team.threads(), inputs, outputs),
            WorkspaceUse::Lists { rows } => lists::numbers(rows),
            _ => return,
        };
        drop(self.scratch(numbers));
    }

    fn in_batch_numbers(queries: usize, items: usize, columns: usize) -> usize {
        in_batch::Work::of(queries, items, columns).numbers()
    }

    fn row_plan(&self, schema: &BatchSchema, groups: &[Vec<IdColumn>]) -> CpuRowPlan {
        CpuRowPlan::new(schema, groups)
    }
}

impl Shapes for Cpu {
    fn matrix_shape(matrix: &CpuMatrix) -> MatrixShape {
        MatrixShape { rows: matrix.rows(), columns: matrix.columns(), number_bytes: size_of::<f32>() }
    }

    fn maxima_shape(maxima: &HostMaxima) -> MatrixShape {
        maxima.shape()
    }

    fn table_shape(table: &CpuTable) -> TableShape {
        table.shape()
    }

    fn batch_shape(batch: &HostBatch) -> &BatchShape {
        batch.shape()
    }

    fn merged_shapes(rows: &HostMergedRows<f32>) -> &[MergedShape] {
        rows.shapes()
    }

    fn merged_count(rows: &HostMergedRows<f32>, table: usize) -> usize {
        rows.count(table)
    }

    fn planned_columns(plan: &CpuRowPlan) -> impl Iterator<Item = IdColumn> {
        plan.columns()
    }

    fn touched_rows(&self, plan: &CpuRowPlan, lookups: &[Lookup]) -> Option<usize> {
        Some(plan.group(lookups).starts().len() - 1)
    }

    fn table_place(shape: TableShape, part: TablePart) -> TablePlace {
        CpuTable::place(shape, part)
    }

    fn copied_numbers(shape: TableShape) -> usize {
        shape.rows * CpuTable::row_floats(shape)
    }
}

impl Layout for Cpu {
    fn matrix_bytes(_float: Float, rows: usize, columns: usize) -> u64 {
        CpuMatrix::bytes(rows, columns)
    }

    fn table_bytes(shape: TableShape) -> u64 {
        (shape.rows as u64) * (CpuTable::row_floats(shape) * size_of::<f32>()) as u64
    }

    fn batch_bytes(schema: &BatchSchema) -> u64 {
        HostBatch::bytes(schema)
    }

    fn row_plan_bytes(schema: &BatchSchema, groups: &[Vec<IdColumn>]) -> u64 {
        CpuRowPlan::bytes(schema, groups)
    }

    fn maxima_bytes(rows: usize, columns: usize) -> u64 {
        HostMaxima::bytes(rows, columns)
    }

    fn merged_rows_bytes(shapes: &[TableShape], rows: PartRows<'_>) -> u64 {
        HostMergedRows::<f32>::bytes(&MergedShape::of(shapes, rows))
    }

    fn report_bytes(numbers: usize) -> u64 {
        HostReport::<f32>::bytes(numbers)
    }

    /// Workspace of layers and lists, plus a quarter of a MiB per thread; the other operations use little.
    fn operation_bytes(operation: &WorkspaceUse<'_>) -> OperationBytes {
        let numbers = match *operation {
            WorkspaceUse::Layer { inputs, outputs, .. } => layer::work(1, inputs, outputs),
            WorkspaceUse::Lists { rows } => lists::numbers(rows),
            _ => return OperationBytes::default(),
        };
        OperationBytes { shared: (numbers * size_of::<f32>()) as u64, own: 0 }
    }
}

impl Backend for Cpu {
    type Pinned = ();
    type Peers = Infallible;

    fn describe(&self) -> Description {
        Description::of(match self.threads() {
            1 => "the CPU, 1 thread".to_owned(),
            threads => format!("the CPU, {threads} threads"),
        })
    }

    fn recorder(&self) -> Option<&Arc<Recorder>> {
        Some(&self.recorder)
    }

    fn execute(&self, operation: Checked<'_, Self>) {
        match operation.into_inner() {
            Operation::WriteMatrix(WriteMatrix { matrix, values }) => matrix.write(values),
            Operation::ReadMatrix(ReadMatrix { matrix, out }) => matrix.read(out),
            Operation::WriteTable(WriteTable { table, part, first_row, values }) => {
                table.write(part, first_row, values);
            }
            Operation::ReadTable(ReadTable { table, part, first_row, out }) => {
                table.read(part, first_row, out);
            }
            Operation::CopyTable(CopyTable { table, first, out }) => copy::table(self, table, first, out),
            Operation::PlanRows(operation) => rows::plan(self, operation),
            Operation::Gather(operation) => gather::gather(self, operation),
            Operation::LinearForward(operation) => linear::forward(self, operation),
            Operation::LinearBackward(operation) => linear::backward(self, operation),
            Operation::LayerForward(operation) => layer::forward(self, operation),
            Operation::LayerBackward(operation) => layer::backward(self, operation),
            Operation::FmForward(operation) => interaction::fm_forward(self, operation),
            Operation::FmBackward(operation) => interaction::fm_backward(self, operation),
            Operation::CrossForward(operation) => interaction::cross_forward(self, operation),
            Operation::CrossBackward(operation) => interaction::cross_backward(self, operation),
            Operation::DotForward(operation) => interaction::dot_forward(self, operation),
            Operation::DotBackward(operation) => interaction::dot_backward(self, operation),
            Operation::PairForward(operation) => attention::pair_forward(self, operation),
            Operation::PairBackward(operation) => attention::pair_backward(self, operation),
            Operation::AttendForward(operation) => attention::attend_forward(self, operation),
            Operation::AttendBackward(operation) => attention::attend_backward(self, operation),
            Operation::MixtureForward(operation) => mixture::forward(self, operation),
            Operation::MixtureBackward(operation) => mixture::backward(self, operation),
            Operation::CopyColumns(operation) => columns::copy(self, operation),
            Operation::CopyRows(operation) => columns::copy_rows(self, operation),
            Operation::Dropout(operation) => dropout::dropout(self, operation),
            Operation::Moments(operation) => normalize::moments(self, operation),
            Operation::MergeMoments(operation) => normalize::merge_moments(operation),
            Operation::NormalizeForward(operation) => normalize::forward(self, operation),
            Operation::NormalizeParameters(operation) => normalize::parameters(self, operation),
            Operation::NormalizeBackward(operation) => normalize::backward(self, operation),
            Operation::UnitForward(operation) => vectors::unit_forward(self, operation),
            Operation::UnitBackward(operation) => vectors::unit_backward(self, operation),
            Operation::RowProducts(operation) => vectors::products(self, operation),
            Operation::InBatchLoss(operation) => in_batch::loss(self, operation),
            Operation::Blend(operation) => normalize::blend(operation),
            Operation::Add(operation) => columns::add(self, operation),
            Operation::Clear(operation) => columns::clear(self, operation),
            Operation::TaskLoss(operation) => loss::loss(self, operation),
            Operation::Multiply(operation) => columns::multiply(self, operation),
            Operation::Sigmoid(operation) => loss::sigmoid(self, operation),
            Operation::Softmax(operation) => loss::softmax_of_rows(self, operation),
            Operation::Squares(operation) => squares::squares(self, operation),
            Operation::RowSquares(operation) => squares::row_squares(self, operation),
            Operation::MergedRowSquares(operation) => squares::merged_row_squares(self, operation),
            Operation::ClipScale(operation) => squares::clip_scale(operation),
            Operation::Unscale(operation) => squares::unscale(operation),
            Operation::Step(operation) => step::step(self, operation),
            Operation::StepRows(operation) => step_rows::step_rows(self, operation),
            Operation::StepMergedRows(operation) => step_rows::step_merged_rows(self, operation),
        }
    }

    fn copy_batch(&self, batch: BatchRef<'_>, into: &mut HostBatch) -> Result<(), BatchError> {
        into.upload(batch)
    }

    fn start_sum(&self, peers: &Infallible, _: impl FnOnce(&mut dyn FnMut(&mut Self::Matrix))) {
        match *peers {}
    }

    fn join_sums(&self, peers: &Infallible) {
        match *peers {}
    }

    fn pack_summed_rows(
        &self,
        peers: &Infallible,
        _: &RowGradients<'_, Self>,
        _: &[Self::Table],
        _: &mut Self::MergedRows,
    ) {
        match *peers {}
    }

    fn packed_counts(
        &self,
        peers: &Infallible,
        _: impl FnOnce(&mut dyn FnMut(&mut Self::MergedRows)),
    ) -> Vec<u32> {
        match *peers {}
    }

    fn merge_over_ranks(
        &self,
        peers: &Infallible,
        _: &[&[u32]],
        _: impl FnOnce(&mut dyn FnMut(&mut Self::MergedRows)),
    ) -> bool {
        match *peers {}
    }

    fn pin(&self, _pages: &RingMapping) -> Result<(), PinError> {
        Ok(())
    }

    fn queue_report(&self, _batch: &HostBatch, matrices: &[&CpuMatrix], report: &mut HostReport<f32>) {
        report.take(matrices, |matrix| matrix.rows() * matrix.columns(), |matrix, out| matrix.read(out));
    }

    fn read_row_sums(
        &self,
        gradients: &RowGradients<'_, Self>,
        tables: &[CpuTable],
        sums: &mut RowSums<f32>,
    ) {
        row_sums::row_sums(self, gradients, tables, sums);
    }

    fn take_parts(&self, merged: &mut HostMergedRows<f32>) -> Vec<RowSums<f32>> {
        merged.take_parts()
    }

    fn take_merged_rows(&self, parts: Vec<RowSums<f32>>, merged: &mut HostMergedRows<f32>) -> bool {
        merged.merge(parts, |tasks, task| self.team.run(tasks, task))
    }

    fn receive(&self, report: &mut HostReport<f32>, numbers: &mut [f32]) -> Result<(), BatchError> {
        report.copy_to(numbers);
        Ok(())
    }
}
