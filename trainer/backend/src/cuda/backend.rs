//! The dispatch of operations to the modules that implement them.

use std::sync::Arc;

use millstream_batch::{BatchRef, BatchSchema, RingMapping};
use millstream_trace::{OperationInfo, Recorder};

use super::batch::CudaBatch;
use super::buffers::{CudaMatrix, CudaMaxima, CudaTable, Shape, number_bytes};
use super::fault::must;
use super::layout::scratch_bytes;
use super::merged_rows::CudaMergedRows;
use super::plan::CudaRowPlan;
use super::report::CudaReport;
use super::retrieval::Work;
use super::{Cuda, CudaPeers, CudaPinned, Gpu};
use crate::backend::Backend;
use crate::collective::Communicator;
use crate::description::{Description, GpuName};
use crate::device::{BatchShape, Device, IdColumn, MatrixShape, Shapes, TableShape, WorkspaceUse};
use crate::error::{BatchError, ConnectDevicesError, PinError};
use crate::float::Float;
use crate::merged_rows::{MergedShape, PartRows};
use crate::ops::{Checked, Operation, PlanRows, RowGradients};
use crate::row_sums::RowSums;

impl Device for Cuda {
    type Scalar = f32;
    type Matrix = CudaMatrix;
    type Table = CudaTable;
    type Batch = CudaBatch;
    type RowPlan = CudaRowPlan;
    type Maxima = CudaMaxima;
    type MergedRows = CudaMergedRows;
    type Report = CudaReport;

    /// One step per slot of the feed.
    const STEPS_AHEAD: usize = super::feed::SLOTS;

    fn matrix_of(&self, float: Float, rows: usize, columns: usize) -> CudaMatrix {
        let shape = Shape::of(float, rows, columns);
        CudaMatrix::new(shape, self.zeros(shape.bytes()))
    }

    fn table(&self, shape: TableShape) -> CudaTable {
        CudaTable::new(shape, self.zeros(CudaTable::bytes(shape)))
    }

    fn batch(&self, schema: &BatchSchema) -> CudaBatch {
        CudaBatch::new(self, schema)
    }

    fn in_batch_numbers(queries: usize, items: usize, columns: usize) -> usize {
        Work::of(queries, items, columns).numbers()
    }

    fn maxima(&self, rows: usize, columns: usize) -> CudaMaxima {
        CudaMaxima::new(rows, columns, self.zeros(CudaMaxima::bytes(rows, columns)))
    }

    fn merged_rows(&self, shapes: &[TableShape], rows: PartRows<'_>) -> CudaMergedRows {
        CudaMergedRows::new(self, shapes, rows)
    }

    fn report(&self, numbers: usize) -> CudaReport {
        CudaReport::new(self, numbers)
    }

    fn reserve_workspace(&self, operation: &WorkspaceUse<'_>) {
        self.scratch(scratch_bytes(operation));
    }

    fn row_plan(&self, schema: &BatchSchema, groups: &[Vec<IdColumn>]) -> CudaRowPlan {
        CudaRowPlan::new(self, schema, groups)
    }
}

impl Shapes for Cuda {
    fn matrix_shape(matrix: &CudaMatrix) -> MatrixShape {
        let number_bytes = number_bytes(matrix.float());
        MatrixShape { rows: matrix.rows(), columns: matrix.columns(), number_bytes }
    }

    fn maxima_shape(maxima: &CudaMaxima) -> MatrixShape {
        maxima.shape()
    }

    fn table_shape(table: &CudaTable) -> TableShape {
        table.shape()
    }

    fn weight_bytes(shape: TableShape) -> usize {
        number_bytes(shape.float)
    }

    fn batch_shape(batch: &CudaBatch) -> &BatchShape {
        batch.shape()
    }

    fn merged_shapes(rows: &CudaMergedRows) -> &[MergedShape] {
        rows.shapes()
    }

    fn merged_count(rows: &CudaMergedRows, table: usize) -> usize {
        rows.count(table)
    }

    fn planned_columns(plan: &CudaRowPlan) -> impl Iterator<Item = IdColumn> {
        plan.columns()
    }
}

impl Backend for Cuda {
    type Pinned = CudaPinned;
    type Peers = CudaPeers;

    fn recorder(&self) -> Option<&Arc<Recorder>> {
        Some(&self.recorder)
    }

    fn record<T>(&self, _recorder: &Recorder, operation: OperationInfo, work: impl FnOnce() -> T) -> T {
        self.record_operation(operation, work)
    }

    fn begin_device_recording(&self, recorder: &Arc<Recorder>) {
        self.begin_spans(recorder);
    }

    fn end_device_recording(&self) {
        self.end_spans();
    }

    fn allow_tf32(&self, is_allowed: bool) {
        // Pending products are computed with the current setting.
        self.flush();
        self.blas.allow_tf32(is_allowed);
    }

    fn finish(&self) {
        self.flush();
        self.wait_for_sums();
        must(self.stream.wait());
    }

    fn describe(&self) -> Description {
        let Gpu { number, name, .. } = self.gpu();
        Description {
            text: format!("GPU {number}, {name}"),
            gpu: Some(GpuName { number: *number, name: name.clone() }),
            libraries: self.libraries.clone(),
        }
    }

    fn execute(&self, operation: Checked<'_, Self>) {
        match operation.into_inner() {
            Operation::WriteMatrix(operation) => self.write(operation),
            Operation::ReadMatrix(operation) => self.read(operation),
            Operation::WriteTable(operation) => self.write_rows(operation),
            Operation::ReadTable(operation) => self.read_rows(operation),
            Operation::CopyTable(operation) => self.copy_table(operation),
            Operation::PlanRows(PlanRows { batch, plan }) => plan.fill(self, batch),
            Operation::Gather(operation) => self.gather(operation),
            Operation::LinearForward(operation) => self.linear_forward(operation),
            Operation::LinearBackward(operation) => self.linear_backward(operation),
            Operation::LayerForward(operation) => self.layer_forward(operation),
            Operation::LayerBackward(operation) => self.layer_backward(operation),
            Operation::FmForward(operation) => self.fm_forward(operation),
            Operation::FmBackward(operation) => self.fm_backward(operation),
            Operation::CrossForward(operation) => self.cross_forward(operation),
            Operation::CrossBackward(operation) => self.cross_backward(operation),
            Operation::DotForward(operation) => self.dot_forward(operation),
            Operation::DotBackward(operation) => self.dot_backward(operation),
            Operation::PairForward(operation) => self.pair_forward(operation),
            Operation::PairBackward(operation) => self.pair_backward(operation),
            Operation::AttendForward(operation) => self.attend_forward(operation),
            Operation::AttendBackward(operation) => self.attend_backward(operation),
            Operation::MixtureForward(operation) => self.mixture_forward(operation),
            Operation::MixtureBackward(operation) => self.mixture_backward(operation),
            Operation::CopyColumns(operation) => self.copy_columns(operation),
            Operation::CopyRows(operation) => self.copy_rows(operation),
            Operation::Dropout(operation) => self.dropout(operation),
            Operation::Moments(operation) => self.moments(operation),
            Operation::MergeMoments(operation) => self.merge_moments(operation),
            Operation::NormalizeForward(operation) => self.normalize_forward(operation),
            Operation::NormalizeParameters(operation) => self.normalize_parameters(operation),
            Operation::NormalizeBackward(operation) => self.normalize_backward(operation),
            Operation::UnitForward(operation) => self.unit_forward(operation),
            Operation::UnitBackward(operation) => self.unit_backward(operation),
            Operation::RowProducts(operation) => self.row_products(operation),
            Operation::InBatchLoss(operation) => self.in_batch_loss(operation),
            Operation::Blend(operation) => self.blend(operation),
            Operation::Add(operation) => self.add(operation),
            Operation::Clear(operation) => self.clear(operation),
            Operation::TaskLoss(operation) => self.loss(operation),
            Operation::Multiply(operation) => self.multiply(operation),
            Operation::Sigmoid(operation) => self.sigmoid(operation),
            Operation::Softmax(operation) => self.softmax(operation),
            Operation::Squares(operation) => self.squares(operation),
            Operation::RowSquares(operation) => self.row_squares(operation),
            Operation::MergedRowSquares(operation) => self.merged_row_squares(operation),
            Operation::ClipScale(operation) => self.clip_scale(operation),
            Operation::Unscale(operation) => self.unscale(operation),
            Operation::Step(operation) => self.step(operation),
            Operation::StepRows(operation) => self.step_rows(operation),
            Operation::StepMergedRows(operation) => self.step_merged_rows(operation),
        }
    }

    fn copy_batch(&self, batch: BatchRef<'_>, into: &mut CudaBatch) -> Result<(), BatchError> {
        into.upload(self, batch)
    }

    fn pin(&self, pages: &RingMapping) -> Result<CudaPinned, PinError> {
        self.pinned.pin(self.context(), pages).map_err(|fault| PinError(fault.to_string()))
    }

    const MASKS_INPUT_GRADIENTS: bool = false;
    const CONNECTS: bool = true;

    fn connect(&self, communicator: &Communicator) -> Result<Option<CudaPeers>, ConnectDevicesError> {
        self.connect_peers(communicator).map(Some)
    }

    fn start_sum(&self, peers: &CudaPeers, visit: impl FnOnce(&mut dyn FnMut(&mut CudaMatrix))) {
        self.start_sum_over_peers(peers, visit);
    }

    fn join_sums(&self, _: &CudaPeers) {
        self.join_peers();
    }

    fn pack_summed_rows(
        &self,
        peers: &CudaPeers,
        gradients: &RowGradients<'_, Self>,
        tables: &[CudaTable],
        merged: &mut CudaMergedRows,
    ) {
        self.pack(peers, gradients, tables, merged);
    }

    fn packed_counts(
        &self,
        peers: &CudaPeers,
        visit: impl FnOnce(&mut dyn FnMut(&mut CudaMergedRows)),
    ) -> Vec<u32> {
        self.counts_of_packed(peers, visit)
    }

    fn merge_over_ranks(
        &self,
        peers: &CudaPeers,
        counts: &[&[u32]],
        visit: impl FnOnce(&mut dyn FnMut(&mut CudaMergedRows)),
    ) -> bool {
        self.merge_over_peers(peers, counts, visit)
    }

    fn check(&self, batch: &CudaBatch) -> Result<(), BatchError> {
        self.check_batch(batch)
    }

    fn queue_report(&self, batch: &CudaBatch, matrices: &[&CudaMatrix], report: &mut CudaReport) {
        self.send_report(batch, matrices, report);
    }

    fn read_row_sums(
        &self,
        gradients: &RowGradients<'_, Self>,
        tables: &[CudaTable],
        sums: &mut RowSums<f32>,
    ) {
        self.row_sums(gradients, tables, sums);
    }

    fn take_parts(&self, merged: &mut CudaMergedRows) -> Vec<RowSums<f32>> {
        merged.take_parts()
    }

    fn take_merged_rows(&self, parts: Vec<RowSums<f32>>, merged: &mut CudaMergedRows) -> bool {
        self.merge(parts, merged)
    }

    fn receive(&self, report: &mut CudaReport, numbers: &mut [f32]) -> Result<(), BatchError> {
        self.receive_report(report, numbers)
    }
}
