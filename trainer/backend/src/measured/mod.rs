//! A backend whose operations are recorded while somebody looks.
//!
//! It is the one place where operations are measured: each is handed to the backend within, with what it takes at the
//! least ([`cost`]), which follows from shapes that any backend tells. [`Backend::record`] decides what the time of an
//! operation is: on a device that has done it when the call returns, that of the call. A device that only takes note of
//! it has spans of its own, on tracks of its own ([`Recorder::add_to`]), from [`Backend::begin_recording`] on, and ends
//! each phase ([`Backend::finish`]) before the next begins.
//!
//! While nobody looks, an operation costs one relaxed load more.

mod cost;
mod floors;

use std::ops::Range;
use std::sync::Arc;

use millstream_batch::{BatchRef, BatchSchema, RingMapping};
use millstream_trace::{OperationInfo, Phase, Recorder, Recording, Work};

use crate::backend::{Activation, Backend, LayerGradient, MixtureShape, RowGradients, Sum, Task};
use crate::description::Description;
use crate::device::{self, Device, IdColumn, Lookup, MatrixShape, TablePart, TablePlace, TableShape};
use crate::error::{BatchError, PinError};
use crate::float::Float;
use crate::normalization::{Axis, Normalization, Normalized};
use crate::retrieval::InBatchSoftmax;
use crate::update::{LossScaling, Update};
pub use floors::Floors;

/// A backend, and where its operations are recorded.
pub struct Measured<B> {
    backend: B,
    recorder: Arc<Recorder>,
}

/// A batch of a backend, and how many ids it has.
pub struct MeasuredBatch<T> {
    batch: T,
    rows: usize,
    /// Of each feature of any number of ids a row.
    ragged_ids: Vec<usize>,
}

/// A plan of a backend, and the columns that it is of.
pub struct MeasuredPlan<T> {
    plan: T,
    columns: Vec<IdColumn>,
}

impl<T> MeasuredBatch<T> {
    /// Takes note of what `batch` has.
    fn note(&mut self, batch: BatchRef<'_>) {
        self.rows = batch.rows();
        for (feature, ids) in self.ragged_ids.iter_mut().enumerate() {
            *ids = batch.ragged(feature).1.len();
        }
    }

    /// Ids of a column; of `rows` of the batch's rows their share of them.
    fn ids(&self, column: IdColumn, rows: usize) -> usize {
        match column {
            IdColumn::Single(_) => rows,
            IdColumn::Ragged(feature) => self.ragged_ids[feature] * rows / self.rows.max(1),
        }
    }
}

impl<B: Backend> Measured<B> {
    /// `backend`, whose operations are recorded by `recorder`.
    pub fn new(backend: B, recorder: Arc<Recorder>) -> Self {
        Self { backend, recorder }
    }

    /// Where they are recorded.
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// Records from now on.
    pub fn begin_recording(&self) {
        self.recorder.begin();
        self.backend.begin_recording(&self.recorder);
    }

    /// Records no more, and returns what was.
    pub fn end_recording(&self) -> Recording {
        self.backend.end_recording();
        self.recorder.end()
    }

    /// What the device can do at the most, by matrices of `size` times 64 MiB: at size 1 it takes well under a second,
    /// and a device whose caches are as large does more by them than by any that are larger.
    pub fn floors(&self, float: Float, size: usize) -> Floors {
        Floors::measure(&self.backend, float, size)
    }

    /// The operation `name`, where it is to be recorded: only then `cost` is worked out.
    #[inline]
    fn operation(&self, name: &'static str, cost: impl FnOnce() -> Work) -> Option<OperationInfo> {
        self.recorder.is_recording().then(|| OperationInfo { name, work: cost(), shape: None })
    }

    /// The same of a layer of these weights, `[N, M]`.
    #[inline]
    fn layer(
        &self,
        name: &'static str,
        weights: &B::Matrix,
        cost: impl FnOnce() -> Work,
    ) -> Option<OperationInfo> {
        let operation = self.operation(name, cost)?;
        let MatrixShape { rows, columns, .. } = B::matrix_shape(weights);
        let shape = [rows, columns].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        Some(OperationInfo { shape: Some(shape), ..operation })
    }

    /// Does `work`, which is `operation`.
    #[inline]
    fn run<T>(&self, operation: Option<OperationInfo>, work: impl FnOnce(&B) -> T) -> T {
        match operation {
            None => work(&self.backend),
            Some(operation) => self.backend.record(&self.recorder, operation, || work(&self.backend)),
        }
    }

    /// What lookups of `rows` rows read.
    fn lookups(
        batch: &MeasuredBatch<B::Batch>,
        rows: usize,
        lookups: &[Lookup],
        tables: &[B::Table],
    ) -> impl Iterator<Item = Work> {
        lookups.iter().map(move |lookup| {
            let shape = B::table_shape(&tables[lookup.table]);
            cost::lookup(batch.ids(lookup.column, rows), shape, B::weight_bytes(shape))
        })
    }

    /// What an operation on the touched rows of `tables` takes: `of_table` that of one, by its ids of the batch, and by
    /// how many rows those are.
    fn touched(
        &self,
        gradients: &RowGradients<'_, Self>,
        tables: &[B::Table],
        of_table: impl Fn(usize, usize, TableShape) -> Work,
    ) -> Work {
        let RowGradients { batch, plan, lookups, gradient, .. } = gradients;
        let columns = B::matrix_shape(gradient);
        let gradient = cost::columns(batch.rows, columns.columns, columns.number_bytes);
        let of_tables = tables.iter().enumerate().map(|(number, table)| {
            let (shape, lookups) = (B::table_shape(table), Lookup::of_table(lookups, number));
            let ids = lookups.iter().map(|lookup| batch.ids(lookup.column, batch.rows)).sum::<usize>();
            let touched = self.backend.touched_rows(&plan.plan, lookups);
            of_table(ids, touched.unwrap_or(ids.min(shape.rows)), shape)
        });
        cost::sum(batch.rows, of_tables.chain([gradient]))
    }
}

/// As the backend within knows them.
fn inner<'a, B: Backend>(gradients: &RowGradients<'a, Measured<B>>) -> RowGradients<'a, B> {
    let RowGradients { batch, plan, lookups, gradient, columns } = *gradients;
    RowGradients { batch: &batch.batch, plan: &plan.plan, lookups, gradient, columns }
}

/// Numbers of a host's array read, and written as many times as they are read.
fn copied<T>(numbers: usize) -> Work {
    cost::columns(1, 2 * numbers, size_of::<T>())
}

impl<B: Backend> Device for Measured<B> {
    type Scalar = B::Scalar;
    type Matrix = B::Matrix;
    type Table = B::Table;
    type Batch = MeasuredBatch<B::Batch>;
    type RowPlan = MeasuredPlan<B::RowPlan>;
    type Report = B::Report;

    const STEPS_AHEAD: usize = B::STEPS_AHEAD;

    fn matrix_of(&self, float: Float, rows: usize, columns: usize) -> B::Matrix {
        self.backend.matrix_of(float, rows, columns)
    }

    fn rectified(&self, float: Float, rows: usize, columns: usize) -> B::Matrix {
        self.backend.rectified(float, rows, columns)
    }

    fn table(&self, shape: TableShape) -> B::Table {
        self.backend.table(shape)
    }

    fn batch(&self, schema: &BatchSchema) -> Self::Batch {
        MeasuredBatch { batch: self.backend.batch(schema), rows: 0, ragged_ids: vec![0; schema.ragged.len()] }
    }

    fn softmax_work(&self, rows: usize, columns: usize) -> B::Matrix {
        self.backend.softmax_work(rows, columns)
    }

    fn report(&self, numbers: usize) -> B::Report {
        self.backend.report(numbers)
    }

    fn make_ready(&self, operation: &device::Operation<'_>) {
        self.backend.make_ready(operation);
    }

    fn row_plan(&self, schema: &BatchSchema, groups: &[Vec<IdColumn>]) -> Self::RowPlan {
        MeasuredPlan { plan: self.backend.row_plan(schema, groups), columns: groups.concat() }
    }
}

impl<B: Backend> Backend for Measured<B> {
    type Pinned = B::Pinned;

    fn describe(&self) -> Description {
        self.backend.describe()
    }

    fn matrix_shape(matrix: &B::Matrix) -> MatrixShape {
        B::matrix_shape(matrix)
    }

    fn table_shape(table: &B::Table) -> TableShape {
        B::table_shape(table)
    }

    fn weight_bytes(shape: TableShape) -> usize {
        B::weight_bytes(shape)
    }

    fn touched_rows(&self, plan: &Self::RowPlan, lookups: &[Lookup]) -> Option<usize> {
        self.backend.touched_rows(&plan.plan, lookups)
    }

    /// While it is recorded, the device has done a phase's work when the phase ends, so that its time is the device's:
    /// nothing goes on beside anything else then.
    fn phase<T>(&self, phase: Phase, work: impl FnOnce() -> T) -> T {
        self.recorder.phase(phase, || {
            let result = work();
            if self.recorder.is_recording() {
                self.backend.finish();
            }
            result
        })
    }

    fn finish(&self) {
        self.backend.finish();
    }

    fn allow_tf32(&self, is_allowed: bool) {
        self.backend.allow_tf32(is_allowed);
    }

    fn write_matrix(&self, matrix: &mut B::Matrix, values: &[B::Scalar]) {
        let operation = self.operation("write_matrix", || copied::<B::Scalar>(values.len()));
        self.run(operation, |backend| backend.write_matrix(matrix, values));
    }

    fn read_matrix(&self, matrix: &B::Matrix, out: &mut [B::Scalar]) {
        let operation = self.operation("read_matrix", || copied::<B::Scalar>(out.len()));
        self.run(operation, |backend| backend.read_matrix(matrix, out));
    }

    fn write_table(&self, table: &mut B::Table, part: TablePart, first_row: usize, values: &[B::Scalar]) {
        let operation = self.operation("write_table", || copied::<B::Scalar>(values.len()));
        self.run(operation, |backend| backend.write_table(table, part, first_row, values));
    }

    fn read_table(&self, table: &B::Table, part: TablePart, first_row: usize, out: &mut [B::Scalar]) {
        let operation = self.operation("read_table", || copied::<B::Scalar>(out.len()));
        self.run(operation, |backend| backend.read_table(table, part, first_row, out));
    }

    fn table_place(shape: TableShape, part: TablePart) -> TablePlace {
        B::table_place(shape, part)
    }

    fn copied_numbers(shape: TableShape) -> usize {
        B::copied_numbers(shape)
    }

    fn copy_table(&self, table: &B::Table, shape: TableShape, out: &mut [B::Scalar]) {
        let operation = self.operation("copy_table", || copied::<B::Scalar>(out.len()));
        self.run(operation, |backend| backend.copy_table(table, shape, out));
    }

    fn upload(&self, batch: BatchRef<'_>, into: &mut Self::Batch) -> Result<(), BatchError> {
        let operation = self.operation("upload", || {
            let schema = batch.layout().schema();
            let ragged = (0..schema.ragged.len()).map(|feature| {
                let (offsets, values) = batch.ragged(feature);
                offsets.len() + values.len() * (1 + usize::from(schema.ragged[feature].weighted))
            });
            let columns = schema.label_count() + usize::from(schema.weighted) + schema.dense.len();
            let words = batch.rows() * (columns + schema.ids.len()) + ragged.sum::<usize>();
            Work { rows: batch.rows() as u64, ..copied::<u32>(words) }
        });
        self.run(operation, |backend| backend.upload(batch, &mut into.batch))?;
        into.note(batch);
        Ok(())
    }

    fn pin(&self, pages: &RingMapping) -> Result<B::Pinned, PinError> {
        self.backend.pin(pages)
    }

    fn check(&self, batch: &Self::Batch) -> Result<(), BatchError> {
        self.backend.check(&batch.batch)
    }

    fn send(&self, batch: &Self::Batch, matrices: &[&B::Matrix], report: &mut B::Report) {
        let operation = self.operation("send", || {
            let numbers = matrices.iter().map(|&matrix| {
                let MatrixShape { rows, columns, .. } = B::matrix_shape(matrix);
                rows * columns
            });
            copied::<B::Scalar>(numbers.sum())
        });
        self.run(operation, |backend| backend.send(&batch.batch, matrices, report));
    }

    fn receive(&self, report: &mut B::Report, numbers: &mut [B::Scalar]) -> Result<(), BatchError> {
        self.backend.receive(report, numbers)
    }

    fn plan_rows(&self, batch: &Self::Batch, plan: &mut Self::RowPlan) {
        let operation = self.operation("plan_rows", || {
            let ids = plan.columns.iter().map(|&column| batch.ids(column, batch.rows));
            cost::plan(batch.rows, ids.sum())
        });
        self.run(operation, |backend| backend.plan_rows(&batch.batch, &mut plan.plan));
    }

    fn gather(
        &self,
        batch: &Self::Batch,
        rows: Range<usize>,
        lookups: &[Lookup],
        tables: &[B::Table],
        dense: &[usize],
        out: &mut B::Matrix,
        first_column: usize,
    ) {
        let operation = self.operation("gather", || {
            let (rows, out) = (rows.len(), B::matrix_shape(out));
            let written = cost::columns(rows, out.columns - first_column, out.number_bytes);
            let read = Self::lookups(batch, rows, lookups, tables);
            cost::sum(rows, read.chain([cost::columns(rows, dense.len(), 4), written]))
        });
        self.run(operation, |backend| {
            backend.gather(&batch.batch, rows, lookups, tables, dense, out, first_column);
        });
    }

    fn linear_forward(
        &self,
        batch: &Self::Batch,
        rows: Range<usize>,
        lookups: &[Lookup],
        tables: &[B::Table],
        dense: &[usize],
        dense_weights: &B::Matrix,
        bias: &B::Matrix,
        out: &mut B::Matrix,
    ) {
        let operation = self.operation("linear_forward", || {
            let (rows, out) = (rows.len(), B::matrix_shape(out));
            let read = Self::lookups(batch, rows, lookups, tables);
            cost::sum(
                rows,
                read.chain([cost::linear(rows, dense.len(), out), cost::elementwise(rows, [out], 0)]),
            )
        });
        self.run(operation, |backend| {
            backend.linear_forward(&batch.batch, rows, lookups, tables, dense, dense_weights, bias, out);
        });
    }

    fn linear_backward(
        &self,
        batch: &Self::Batch,
        rows: Range<usize>,
        dense: &[usize],
        out_gradient: &B::Matrix,
        sum: Sum,
        dense_weights_gradient: &mut B::Matrix,
        bias_gradient: &mut B::Matrix,
    ) {
        let operation = self.operation("linear_backward", || {
            cost::linear(rows.len(), dense.len(), B::matrix_shape(out_gradient))
        });
        let (by_weights, by_bias) = (dense_weights_gradient, bias_gradient);
        self.run(operation, |backend| {
            backend.linear_backward(&batch.batch, rows, dense, out_gradient, sum, by_weights, by_bias);
        });
    }

    fn layer_forward(
        &self,
        rows: usize,
        input: &B::Matrix,
        weights: &B::Matrix,
        bias: Option<&B::Matrix>,
        activation: Activation,
        output: &mut B::Matrix,
    ) {
        let operation = self.layer("layer_forward", weights, || {
            let [input, weights, output] = [input, weights, output].map(B::matrix_shape);
            cost::layer_forward(rows, input, weights, output)
        });
        self.run(operation, |backend| backend.layer_forward(rows, input, weights, bias, activation, output));
    }

    fn layer_backward(
        &self,
        rows: usize,
        layer: &LayerGradient<'_, B::Matrix>,
        output_gradient: &mut B::Matrix,
        sum: Sum,
        weights_gradient: &mut B::Matrix,
        bias_gradient: Option<&mut B::Matrix>,
        input_gradient: Option<&mut B::Matrix>,
    ) {
        let operation = self.layer("layer_backward", layer.weights, || {
            let [input, weights, output] = [layer.input, layer.weights, output_gradient].map(B::matrix_shape);
            cost::layer_backward(rows, input, weights, output, input_gradient.as_deref().map(B::matrix_shape))
        });
        let (by_weights, by_bias, by_input) = (weights_gradient, bias_gradient, input_gradient);
        self.run(operation, |backend| {
            backend.layer_backward(rows, layer, output_gradient, sum, by_weights, by_bias, by_input);
        });
    }

    fn fm_forward(&self, rows: usize, vectors: &B::Matrix, shape: (usize, usize), out: &mut B::Matrix) {
        let operation = self.operation("fm_forward", || {
            cost::pairs(rows, shape, false, 4, [vectors, out, out].map(B::matrix_shape))
        });
        self.run(operation, |backend| backend.fm_forward(rows, vectors, shape, out));
    }

    fn fm_backward(
        &self,
        rows: usize,
        vectors: &B::Matrix,
        shape: (usize, usize),
        out_gradient: &B::Matrix,
        vectors_gradient: &mut B::Matrix,
    ) {
        let operation = self.operation("fm_backward", || {
            let moved = [vectors, out_gradient, vectors, vectors].map(B::matrix_shape);
            cost::pairs(rows, shape, false, 4, moved)
        });
        self.run(operation, |backend| {
            backend.fm_backward(rows, vectors, shape, out_gradient, vectors_gradient);
        });
    }

    fn cross_forward(
        &self,
        rows: usize,
        first: &B::Matrix,
        product: &B::Matrix,
        input: &B::Matrix,
        output: &mut B::Matrix,
    ) {
        let operation = self.operation("cross_forward", || {
            cost::elementwise(rows, [first, product, input, output].map(B::matrix_shape), 2)
        });
        self.run(operation, |backend| backend.cross_forward(rows, first, product, input, output));
    }

    fn cross_backward(
        &self,
        rows: usize,
        first: &B::Matrix,
        product: &B::Matrix,
        output_gradient: &B::Matrix,
        product_gradient: &mut B::Matrix,
        first_gradient: &mut B::Matrix,
    ) {
        let operation = self.operation("cross_backward", || {
            let moved = [first, product, output_gradient, product_gradient, first_gradient, first_gradient];
            cost::elementwise(rows, moved.map(|matrix| B::matrix_shape(matrix)), 3)
        });
        let (by_product, by_first) = (product_gradient, first_gradient);
        self.run(operation, |backend| {
            backend.cross_backward(rows, first, product, output_gradient, by_product, by_first);
        });
    }

    fn dot_forward(&self, rows: usize, vectors: &B::Matrix, width: usize, out: &mut B::Matrix) {
        let operation = self.operation("dot_forward", || {
            let [vectors, out] = [vectors, out].map(B::matrix_shape);
            cost::pairs(rows, (vectors.columns / width.max(1), width), true, 2, [vectors, out])
        });
        self.run(operation, |backend| backend.dot_forward(rows, vectors, width, out));
    }

    fn dot_backward(
        &self,
        rows: usize,
        vectors: &B::Matrix,
        width: usize,
        out_gradient: &B::Matrix,
        vectors_gradient: &mut B::Matrix,
    ) {
        let operation = self.operation("dot_backward", || {
            let [vectors, out] = [vectors, out_gradient].map(B::matrix_shape);
            cost::pairs(rows, (vectors.columns / width.max(1), width), true, 4, [vectors, out, vectors])
        });
        self.run(operation, |backend| {
            backend.dot_backward(rows, vectors, width, out_gradient, vectors_gradient);
        });
    }

    fn mixture_forward(
        &self,
        rows: usize,
        shape: MixtureShape,
        logits: &B::Matrix,
        experts: &B::Matrix,
        gates: &mut B::Matrix,
        output: &mut B::Matrix,
    ) {
        let operation = self.operation("mixture_forward", || {
            cost::mixture(rows, shape, 2, [logits, experts, gates, output].map(B::matrix_shape))
        });
        self.run(operation, |backend| backend.mixture_forward(rows, shape, logits, experts, gates, output));
    }

    fn mixture_backward(
        &self,
        rows: usize,
        shape: MixtureShape,
        gates: &B::Matrix,
        experts: &B::Matrix,
        output_gradient: &B::Matrix,
        logits_gradient: &mut B::Matrix,
        experts_gradient: &mut B::Matrix,
    ) {
        let operation = self.operation("mixture_backward", || {
            let moved = [gates, experts, output_gradient, logits_gradient, experts_gradient];
            cost::mixture(rows, shape, 4, moved.map(B::matrix_shape))
        });
        let (by_logits, by_experts) = (logits_gradient, experts_gradient);
        self.run(operation, |backend| {
            backend.mixture_backward(rows, shape, gates, experts, output_gradient, by_logits, by_experts);
        });
    }

    fn copy_columns(
        &self,
        rows: usize,
        from: (&B::Matrix, usize),
        to: (&mut B::Matrix, usize),
        columns: usize,
    ) {
        let operation = self.operation("copy_columns", || {
            let bytes = B::matrix_shape(from.0).number_bytes + B::matrix_shape(to.0).number_bytes;
            cost::columns(rows, columns, bytes)
        });
        self.run(operation, |backend| backend.copy_columns(rows, from, to, columns));
    }

    fn copy_rows(&self, rows: usize, from: &B::Matrix, to: &mut B::Matrix, first: usize) {
        let operation =
            self.operation("copy_rows", || cost::elementwise(rows, [from, to].map(B::matrix_shape), 0));
        self.run(operation, |backend| backend.copy_rows(rows, from, to, first));
    }

    fn dropout(&self, rows: Range<usize>, keep: f64, key: u64, matrix: &mut B::Matrix) {
        let operation =
            self.operation("dropout", || cost::elementwise(rows.len(), [B::matrix_shape(matrix); 2], 1));
        self.run(operation, |backend| backend.dropout(rows, keep, key, matrix));
    }

    fn moments(
        &self,
        rows: usize,
        axis: Axis,
        input: &B::Matrix,
        mean: &mut B::Matrix,
        variance: &mut B::Matrix,
    ) {
        let operation = self.operation("moments", || cost::elementwise(rows, [B::matrix_shape(input)], 4));
        self.run(operation, |backend| backend.moments(rows, axis, input, mean, variance));
    }

    fn normalize_forward(
        &self,
        rows: usize,
        layer: &Normalization<'_, B::Matrix>,
        moments: (&B::Matrix, &B::Matrix),
        input: &B::Matrix,
        output: &mut B::Matrix,
    ) {
        let operation = self.operation("normalize_forward", || {
            cost::elementwise(rows, [input, output].map(B::matrix_shape), 4)
        });
        self.run(operation, |backend| backend.normalize_forward(rows, layer, moments, input, output));
    }

    fn normalize_backward(
        &self,
        rows: usize,
        layer: &Normalization<'_, B::Matrix>,
        saved: &Normalized<'_, B::Matrix>,
        gradient: &mut B::Matrix,
        sum: Sum,
        by_scale: &mut B::Matrix,
        by_shift: &mut B::Matrix,
    ) {
        let operation = self.operation("normalize_backward", || {
            let moved = [saved.input, saved.output, gradient, gradient];
            cost::elementwise(rows, moved.map(|matrix| B::matrix_shape(matrix)), 10)
        });
        self.run(operation, |backend| {
            backend.normalize_backward(rows, layer, saved, gradient, sum, by_scale, by_shift);
        });
    }

    fn unit_forward(&self, rows: usize, input: &B::Matrix, output: &mut B::Matrix) {
        let operation = self
            .operation("unit_forward", || cost::elementwise(rows, [input, output].map(B::matrix_shape), 3));
        self.run(operation, |backend| backend.unit_forward(rows, input, output));
    }

    fn unit_backward(&self, rows: usize, input: &B::Matrix, gradient: &mut B::Matrix) {
        let operation = self.operation("unit_backward", || {
            let [input, gradient] = [input, gradient].map(B::matrix_shape);
            cost::elementwise(rows, [input, gradient, gradient], 7)
        });
        self.run(operation, |backend| backend.unit_backward(rows, input, gradient));
    }

    fn row_products(
        &self,
        rows: usize,
        factor: f64,
        left: &B::Matrix,
        right: &B::Matrix,
        out: &mut B::Matrix,
    ) {
        let operation = self.operation("row_products", || {
            cost::elementwise(rows, [left, right, out].map(B::matrix_shape), 2)
        });
        self.run(operation, |backend| backend.row_products(rows, factor, left, right, out));
    }

    fn in_batch_softmax(
        &self,
        softmax: &InBatchSoftmax<'_, Self>,
        work: &mut B::Matrix,
        by_queries: &mut B::Matrix,
        by_items: &mut B::Matrix,
        sums: &mut B::Matrix,
    ) {
        let &InBatchSoftmax { batch, queries, items, temperature, item_id } = softmax;
        let operation = self
            .operation("in_batch_softmax", || cost::in_batch_softmax(batch.rows, B::matrix_shape(queries)));
        let softmax = InBatchSoftmax { batch: &batch.batch, queries, items, temperature, item_id };
        self.run(operation, |backend| backend.in_batch_softmax(&softmax, work, by_queries, by_items, sums));
    }

    fn blend(&self, share: f64, factor: f64, from: &B::Matrix, to: &mut B::Matrix) {
        let operation = self.operation("blend", || {
            let shape = B::matrix_shape(to);
            cost::elementwise(shape.rows, [B::matrix_shape(from), shape, shape], 4)
        });
        self.run(operation, |backend| backend.blend(share, factor, from, to));
    }

    fn add(&self, rows: usize, from: &B::Matrix, to: &mut B::Matrix) {
        let operation = self.operation("add", || cost::elementwise(rows, [B::matrix_shape(to); 3], 1));
        self.run(operation, |backend| backend.add(rows, from, to));
    }

    fn clear(&self, rows: usize, matrix: &mut B::Matrix) {
        let operation = self.operation("clear", || cost::elementwise(rows, [B::matrix_shape(matrix)], 0));
        self.run(operation, |backend| backend.clear(rows, matrix));
    }

    fn loss(
        &self,
        task: &Task,
        batch: &Self::Batch,
        rows: Range<usize>,
        logits: &B::Matrix,
        gradient: &mut B::Matrix,
        sums: &mut B::Matrix,
    ) {
        let operation = self.operation("loss", || {
            let of_logits = cost::elementwise(rows.len(), [logits, gradient].map(B::matrix_shape), 8);
            cost::sum(rows.len(), [of_logits, cost::columns(rows.len(), 2, 4)].into_iter())
        });
        self.run(operation, |backend| backend.loss(task, &batch.batch, rows, logits, gradient, sums));
    }

    fn multiply(&self, rows: usize, factor: &B::Matrix, matrix: &mut B::Matrix) {
        let operation =
            self.operation("multiply", || cost::elementwise(rows, [B::matrix_shape(matrix); 2], 1));
        self.run(operation, |backend| backend.multiply(rows, factor, matrix));
    }

    fn sigmoid(&self, rows: usize, logits: &B::Matrix, out: &mut B::Matrix) {
        let operation =
            self.operation("sigmoid", || cost::elementwise(rows, [logits, out].map(B::matrix_shape), 3));
        self.run(operation, |backend| backend.sigmoid(rows, logits, out));
    }

    fn softmax(&self, rows: usize, logits: &B::Matrix, out: &mut B::Matrix) {
        let operation =
            self.operation("softmax", || cost::elementwise(rows, [logits, out].map(B::matrix_shape), 4));
        self.run(operation, |backend| backend.softmax(rows, logits, out));
    }

    fn squares(&self, gradient: &B::Matrix, sum: &mut B::Matrix) {
        let operation = self.operation("squares", || {
            let shape = B::matrix_shape(gradient);
            cost::elementwise(shape.rows, [shape], 2)
        });
        self.run(operation, |backend| backend.squares(gradient, sum));
    }

    fn row_squares(&self, gradients: &RowGradients<'_, Self>, tables: &[B::Table], sum: &mut B::Matrix) {
        let operation = self.operation("row_squares", || self.touched(gradients, tables, cost::row_squares));
        self.run(operation, |backend| backend.row_squares(&inner(gradients), tables, sum));
    }

    fn clip_scale(&self, maximum: f64, squares: &B::Matrix, scale: &mut B::Matrix) {
        let operation = self.operation("clip_scale", || copied::<f32>(1));
        self.run(operation, |backend| backend.clip_scale(maximum, squares, scale));
    }

    fn unscale(
        &self,
        rule: &LossScaling,
        maximum: Option<f64>,
        squares: &B::Matrix,
        state: &mut B::Matrix,
        scale: &mut B::Matrix,
    ) {
        let operation = self.operation("unscale", || copied::<f32>(4));
        self.run(operation, |backend| backend.unscale(rule, maximum, squares, state, scale));
    }

    fn step(
        &self,
        update: &Update,
        scale: &B::Matrix,
        weights: &mut B::Matrix,
        states: &mut [B::Matrix],
        gradient: &B::Matrix,
    ) {
        let operation =
            self.operation("step", || cost::step(B::matrix_shape(weights), states.len(), &update.formula));
        self.run(operation, |backend| backend.step(update, scale, weights, states, gradient));
    }

    fn step_rows(
        &self,
        update: &Update,
        scale: &B::Matrix,
        draws: u64,
        gradients: &RowGradients<'_, Self>,
        tables: &mut [B::Table],
    ) {
        let operation = self.operation("step_rows", || {
            let of_table = |ids, touched, shape| {
                cost::step_rows(ids, touched, shape, B::weight_bytes(shape), &update.formula)
            };
            self.touched(gradients, tables, of_table)
        });
        self.run(operation, |backend| backend.step_rows(update, scale, draws, &inner(gradients), tables));
    }
}
