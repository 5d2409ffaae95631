//! The backend's operations, each by the module that has it.

use std::ops::Range;
use std::sync::Arc;

use millstream_batch::{BatchRef, BatchSchema, RingMapping};
use millstream_trace::Recorder;

use super::batch::CudaBatch;
use super::buffers::{CudaMatrix, CudaTable, Shape, number_bytes};
use super::interactions::{CrossParts, MixtureParts};
use super::layout::scratch_bytes;
use super::lookups::LinearPart;
use super::plan::CudaRowPlan;
use super::report::CudaReport;
use super::retrieval::Work;
use super::{Cuda, CudaPinned, Gpu, must};
use crate::backend::{Activation, Backend, LayerGradient, MixtureShape, RowGradients, Sum, Task};
use crate::description::{Description, GpuName};
use crate::device::{Device, IdColumn, Lookup, MatrixShape, Operation, TablePart, TableShape};
use crate::error::{BatchError, PinError};
use crate::float::Float;
use crate::normalization::{Axis, Normalization, Normalized};
use crate::retrieval::InBatchSoftmax;
use crate::update::{LossScaling, Update};

impl Device for Cuda {
    type Scalar = f32;
    type Matrix = CudaMatrix;
    type Table = CudaTable;
    type Batch = CudaBatch;
    type RowPlan = CudaRowPlan;
    type Report = CudaReport;

    /// As many as there are slots for batches to come through.
    const STEPS_AHEAD: usize = super::feed::SLOTS;

    fn matrix_of(&self, float: Float, rows: usize, columns: usize) -> CudaMatrix {
        self.zeros(Shape::of(float, rows, columns))
    }

    fn rectified(&self, float: Float, rows: usize, columns: usize) -> CudaMatrix {
        self.zeros_with_signs(Shape::of(float, rows, columns))
    }

    fn table(&self, shape: TableShape) -> CudaTable {
        let bytes = CudaTable::bytes(shape);
        let table = self.must_have(bytes, CudaTable::new(self.context(), shape));
        must(self.stream.clear(table.memory()));
        table
    }

    fn batch(&self, schema: &BatchSchema) -> CudaBatch {
        CudaBatch::new(self, schema)
    }

    fn softmax_work(&self, rows: usize, columns: usize) -> CudaMatrix {
        self.matrix(1, Work::of(rows, columns).numbers())
    }

    fn report(&self, numbers: usize) -> CudaReport {
        CudaReport::new(self, numbers)
    }

    fn make_ready(&self, operation: &Operation<'_>) {
        self.scratch(scratch_bytes(operation));
    }

    fn row_plan(&self, schema: &BatchSchema, groups: &[Vec<IdColumn>]) -> CudaRowPlan {
        CudaRowPlan::new(self, schema, groups)
    }
}

impl Backend for Cuda {
    type Pinned = CudaPinned;

    fn record<T>(
        &self,
        _recorder: &Recorder,
        operation: millstream_trace::OperationInfo,
        work: impl FnOnce() -> T,
    ) -> T {
        self.record_operation(operation, work)
    }

    fn begin_recording(&self, recorder: &Arc<Recorder>) {
        self.begin_spans(recorder);
    }

    fn end_recording(&self) {
        self.end_spans();
    }

    fn allow_tf32(&self, is_allowed: bool) {
        // What is on the list is made as it was asked for.
        self.flush();
        self.blas.allow_tf32(is_allowed);
    }

    fn finish(&self) {
        self.flush();
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

    fn matrix_shape(matrix: &CudaMatrix) -> MatrixShape {
        let number_bytes = number_bytes(matrix.float());
        MatrixShape { rows: matrix.rows(), columns: matrix.columns(), number_bytes }
    }

    fn table_shape(table: &CudaTable) -> TableShape {
        table.shape()
    }

    fn weight_bytes(shape: TableShape) -> usize {
        number_bytes(shape.float)
    }

    fn write_matrix(&self, matrix: &mut CudaMatrix, values: &[f32]) {
        self.write(matrix, values);
    }

    fn read_matrix(&self, matrix: &CudaMatrix, out: &mut [f32]) {
        self.read(matrix, out);
    }

    fn write_table(&self, table: &mut CudaTable, part: TablePart, first_row: usize, values: &[f32]) {
        self.write_part(table, part, first_row, values);
    }

    fn read_table(&self, table: &CudaTable, part: TablePart, first_row: usize, out: &mut [f32]) {
        self.read_part(table, part, first_row, out);
    }

    fn upload(&self, batch: BatchRef<'_>, into: &mut CudaBatch) -> Result<(), BatchError> {
        into.upload(self, batch)
    }

    fn pin(&self, pages: &RingMapping) -> Result<CudaPinned, PinError> {
        self.pinned.pin(self.context(), pages).map_err(|fault| PinError(fault.to_string()))
    }

    fn check(&self, batch: &CudaBatch) -> Result<(), BatchError> {
        self.check_batch(batch)
    }

    fn send(&self, batch: &CudaBatch, matrices: &[&CudaMatrix], report: &mut CudaReport) {
        self.send_report(batch, matrices, report);
    }

    fn receive(&self, report: &mut CudaReport, numbers: &mut [f32]) -> Result<(), BatchError> {
        self.receive_report(report, numbers)
    }

    fn plan_rows(&self, batch: &CudaBatch, plan: &mut CudaRowPlan) {
        plan.fill(self, batch);
    }

    fn gather(
        &self,
        batch: &CudaBatch,
        rows: Range<usize>,
        lookups: &[Lookup],
        tables: &[CudaTable],
        dense: &[usize],
        out: &mut CudaMatrix,
        first_column: usize,
    ) {
        self.look_up(batch, &rows, lookups, tables, dense, out, first_column);
    }

    fn linear_forward(
        &self,
        batch: &CudaBatch,
        rows: Range<usize>,
        lookups: &[Lookup],
        tables: &[CudaTable],
        dense: &[usize],
        dense_weights: &CudaMatrix,
        bias: &CudaMatrix,
        out: &mut CudaMatrix,
    ) {
        let part = LinearPart { dense, weights: dense_weights, bias };
        self.linear(batch, &rows, lookups, tables, &part, out);
    }

    fn linear_backward(
        &self,
        batch: &CudaBatch,
        rows: Range<usize>,
        dense: &[usize],
        out_gradient: &CudaMatrix,
        sum: Sum,
        dense_weights_gradient: &mut CudaMatrix,
        bias_gradient: &mut CudaMatrix,
    ) {
        let (by_weights, by_bias) = (dense_weights_gradient, bias_gradient);
        self.linear_gradient(batch, &rows, dense, out_gradient, sum, by_weights, by_bias);
    }

    fn layer_forward(
        &self,
        rows: usize,
        input: &CudaMatrix,
        weights: &CudaMatrix,
        bias: Option<&CudaMatrix>,
        activation: Activation,
        output: &mut CudaMatrix,
    ) {
        self.forward(rows, input, weights, bias, activation, output);
    }

    fn layer_backward(
        &self,
        rows: usize,
        layer: &LayerGradient<'_, CudaMatrix>,
        output_gradient: &mut CudaMatrix,
        sum: Sum,
        weights_gradient: &mut CudaMatrix,
        bias_gradient: Option<&mut CudaMatrix>,
        input_gradient: Option<&mut CudaMatrix>,
    ) {
        let (by_bias, by_input) = (bias_gradient.as_deref(), input_gradient.as_deref());
        self.backward(rows, layer, output_gradient, sum, weights_gradient, by_bias, by_input);
    }

    fn fm_forward(&self, rows: usize, vectors: &CudaMatrix, shape: (usize, usize), out: &mut CudaMatrix) {
        self.fm(rows, vectors, shape, out, None);
    }

    fn fm_backward(
        &self,
        rows: usize,
        vectors: &CudaMatrix,
        shape: (usize, usize),
        out_gradient: &CudaMatrix,
        vectors_gradient: &mut CudaMatrix,
    ) {
        self.fm(rows, vectors, shape, out_gradient, Some(vectors_gradient));
    }

    fn cross_forward(
        &self,
        rows: usize,
        first: &CudaMatrix,
        product: &CudaMatrix,
        input: &CudaMatrix,
        output: &mut CudaMatrix,
    ) {
        let parts = CrossParts { input: Some(input), output: Some(output), ..CrossParts::default() };
        self.cross(rows, first, product, &parts);
    }

    fn cross_backward(
        &self,
        rows: usize,
        first: &CudaMatrix,
        product: &CudaMatrix,
        output_gradient: &CudaMatrix,
        product_gradient: &mut CudaMatrix,
        first_gradient: &mut CudaMatrix,
    ) {
        let parts = CrossParts {
            by_output: Some(output_gradient),
            by_product: Some(product_gradient),
            by_first: Some(first_gradient),
            ..CrossParts::default()
        };
        self.cross(rows, first, product, &parts);
    }

    fn dot_forward(&self, rows: usize, vectors: &CudaMatrix, width: usize, out: &mut CudaMatrix) {
        self.dot(rows, vectors, width, out, None);
    }

    fn dot_backward(
        &self,
        rows: usize,
        vectors: &CudaMatrix,
        width: usize,
        out_gradient: &CudaMatrix,
        vectors_gradient: &mut CudaMatrix,
    ) {
        self.dot(rows, vectors, width, out_gradient, Some(vectors_gradient));
    }

    fn mixture_forward(
        &self,
        rows: usize,
        shape: MixtureShape,
        logits: &CudaMatrix,
        experts: &CudaMatrix,
        gates: &mut CudaMatrix,
        output: &mut CudaMatrix,
    ) {
        let parts = MixtureParts { logits: Some(logits), output: Some(output), ..MixtureParts::default() };
        self.mix(rows, shape, gates, experts, &parts);
    }

    fn mixture_backward(
        &self,
        rows: usize,
        shape: MixtureShape,
        gates: &CudaMatrix,
        experts: &CudaMatrix,
        output_gradient: &CudaMatrix,
        logits_gradient: &mut CudaMatrix,
        experts_gradient: &mut CudaMatrix,
    ) {
        let parts = MixtureParts {
            by_output: Some(output_gradient),
            by_logits: Some(logits_gradient),
            by_experts: Some(experts_gradient),
            ..MixtureParts::default()
        };
        self.mix(rows, shape, gates, experts, &parts);
    }

    fn copy_columns(
        &self,
        rows: usize,
        (from, first): (&CudaMatrix, usize),
        (to, to_first): (&mut CudaMatrix, usize),
        columns: usize,
    ) {
        assert!(first + columns <= from.columns() && to_first + columns <= to.columns());
        assert!(rows <= from.rows().min(to.rows()));
        self.copy(rows, (from.view(), first), (to.view(), to_first), columns);
    }

    fn copy_rows(&self, rows: usize, from: &CudaMatrix, to: &mut CudaMatrix, first: usize) {
        assert!(from.columns() == to.columns() && rows <= from.rows() && first + rows <= to.rows());
        self.copy(rows, (from.view(), 0), (to.view_from(first), 0), from.columns());
    }

    fn dropout(&self, rows: Range<usize>, keep: f64, key: u64, matrix: &mut CudaMatrix) {
        self.drop_out(&rows, keep, key, matrix);
    }

    fn moments(
        &self,
        rows: usize,
        axis: Axis,
        input: &CudaMatrix,
        mean: &mut CudaMatrix,
        variance: &mut CudaMatrix,
    ) {
        self.moments_of(rows, axis, input, mean, variance);
    }

    fn normalize_forward(
        &self,
        rows: usize,
        layer: &Normalization<'_, CudaMatrix>,
        moments: (&CudaMatrix, &CudaMatrix),
        input: &CudaMatrix,
        output: &mut CudaMatrix,
    ) {
        self.normalize(rows, layer, moments, input, output);
    }

    fn normalize_backward(
        &self,
        rows: usize,
        layer: &Normalization<'_, CudaMatrix>,
        saved: &Normalized<'_, CudaMatrix>,
        gradient: &mut CudaMatrix,
        sum: Sum,
        by_scale: &mut CudaMatrix,
        by_shift: &mut CudaMatrix,
    ) {
        self.normalize_gradient(rows, layer, saved, gradient, sum, (by_scale, by_shift));
    }

    fn unit_forward(&self, rows: usize, input: &CudaMatrix, output: &mut CudaMatrix) {
        self.unit(rows, input, output);
    }

    fn unit_backward(&self, rows: usize, input: &CudaMatrix, gradient: &mut CudaMatrix) {
        self.unit_gradient(rows, input, gradient);
    }

    fn row_products(
        &self,
        rows: usize,
        factor: f64,
        left: &CudaMatrix,
        right: &CudaMatrix,
        out: &mut CudaMatrix,
    ) {
        self.products_of_rows(rows, factor, left, right, out);
    }

    fn in_batch_softmax(
        &self,
        softmax: &InBatchSoftmax<'_, Self>,
        work: &mut CudaMatrix,
        by_queries: &mut CudaMatrix,
        by_items: &mut CudaMatrix,
        sums: &mut CudaMatrix,
    ) {
        self.softmax_over_items(softmax, work, by_queries, by_items, sums);
    }

    fn blend(&self, share: f64, factor: f64, from: &CudaMatrix, to: &mut CudaMatrix) {
        self.blend_all(share, factor, from, to);
    }

    fn add(&self, rows: usize, from: &CudaMatrix, to: &mut CudaMatrix) {
        self.add_rows(rows, from, to);
    }

    fn clear(&self, rows: usize, matrix: &mut CudaMatrix) {
        self.clear_rows(rows, matrix);
    }

    fn loss(
        &self,
        task: &Task,
        batch: &CudaBatch,
        rows: Range<usize>,
        logits: &CudaMatrix,
        gradient: &mut CudaMatrix,
        sums: &mut CudaMatrix,
    ) {
        self.loss_of(task, batch, &rows, logits, gradient, sums);
    }

    fn multiply(&self, rows: usize, factor: &CudaMatrix, matrix: &mut CudaMatrix) {
        self.multiply_rows(rows, factor, matrix);
    }

    fn sigmoid(&self, rows: usize, logits: &CudaMatrix, out: &mut CudaMatrix) {
        self.sigmoids(rows, logits, out);
    }

    fn softmax(&self, rows: usize, logits: &CudaMatrix, out: &mut CudaMatrix) {
        self.softmaxes(rows, logits, out);
    }

    fn squares(&self, gradient: &CudaMatrix, sum: &mut CudaMatrix) {
        self.add_squares(gradient, sum);
    }

    fn row_squares(&self, gradients: &RowGradients<'_, Self>, tables: &[CudaTable], sum: &mut CudaMatrix) {
        self.touched_squares(gradients, tables, sum);
    }

    fn clip_scale(&self, maximum: f64, squares: &CudaMatrix, scale: &mut CudaMatrix) {
        self.set_scale(None, Some(maximum), squares, scale);
    }

    fn unscale(
        &self,
        rule: &LossScaling,
        maximum: Option<f64>,
        squares: &CudaMatrix,
        state: &mut CudaMatrix,
        scale: &mut CudaMatrix,
    ) {
        self.set_scale(Some((rule, state)), maximum, squares, scale);
    }

    fn step(
        &self,
        update: &Update,
        scale: &CudaMatrix,
        weights: &mut CudaMatrix,
        states: &mut [CudaMatrix],
        gradient: &CudaMatrix,
    ) {
        self.step_all(update, scale, weights, states, gradient);
    }

    fn step_rows(
        &self,
        update: &Update,
        scale: &CudaMatrix,
        draws: u64,
        gradients: &RowGradients<'_, Self>,
        tables: &mut [CudaTable],
    ) {
        self.step_touched(update, scale, draws, gradients, tables);
    }
}
