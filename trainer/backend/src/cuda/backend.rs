//! The dispatch of operations to the modules that implement them.

use std::sync::Arc;

use millstream_batch::{BatchRef, BatchSchema, RingMapping};
use millstream_trace::{OperationInfo, Recorder};

use super::batch::CudaBatch;
use super::buffers::{CudaMatrix, CudaTable, Shape, number_bytes};
use super::fault::must;
use super::interactions::{CrossParts, MixtureParts};
use super::layout::scratch_bytes;
use super::lookups::LinearPart;
use super::plan::CudaRowPlan;
use super::report::CudaReport;
use super::retrieval::Work;
use super::{Cuda, CudaPinned, Gpu};
use crate::backend::Backend;
use crate::description::{Description, GpuName};
use crate::device::{BatchShape, Device, IdColumn, MatrixShape, Shapes, TableShape, WorkspaceUse};
use crate::error::{BatchError, PinError};
use crate::float::Float;
use crate::ops::{
    Add, Blend, Clear, ClipScale, CopyColumns, CopyRows, CopyTable, CrossBackward, CrossForward, DotBackward,
    DotForward, Dropout, FmBackward, FmForward, Gather, InBatchSoftmax, LayerBackward, LayerForward,
    LinearBackward, LinearForward, MixtureBackward, MixtureForward, Moments, Multiply, NormalizeBackward,
    NormalizeForward, Operation, PlanRows, ReadMatrix, ReadTable, RowProducts, RowSquares, Sigmoid, Softmax,
    Squares, Step, StepRows, TaskLoss, UnitBackward, UnitForward, Unscale, WriteMatrix, WriteTable,
};

impl Device for Cuda {
    type Scalar = f32;
    type Matrix = CudaMatrix;
    type Table = CudaTable;
    type Batch = CudaBatch;
    type RowPlan = CudaRowPlan;
    type Report = CudaReport;

    /// One step per slot of the feed.
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

    fn table_shape(table: &CudaTable) -> TableShape {
        table.shape()
    }

    fn weight_bytes(shape: TableShape) -> usize {
        number_bytes(shape.float)
    }

    fn batch_shape(batch: &CudaBatch) -> &BatchShape {
        batch.shape()
    }

    fn planned_columns(plan: &CudaRowPlan) -> impl Iterator<Item = IdColumn> {
        plan.columns()
    }

    fn softmax_numbers(rows: usize, columns: usize) -> usize {
        Work::of(rows, columns).numbers()
    }
}

impl Backend for Cuda {
    type Pinned = CudaPinned;

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

    fn execute(&self, operation: Operation<'_, Self>) {
        match operation {
            Operation::WriteMatrix(WriteMatrix { matrix, values }) => self.write(matrix, values),
            Operation::ReadMatrix(ReadMatrix { matrix, out }) => self.read(matrix, out),
            Operation::WriteTable(WriteTable { table, part, first_row, values }) => {
                self.write_part(table, part, first_row, values);
            }
            Operation::ReadTable(ReadTable { table, part, first_row, out }) => {
                self.read_part(table, part, first_row, out);
            }
            Operation::CopyTable(CopyTable { table, mut out }) => {
                let shape = table.shape();
                for part in shape.parts() {
                    let (numbers, rest) = out.split_at_mut(shape.rows * shape.part_width(part));
                    self.read_part(table, part, 0, numbers);
                    out = rest;
                }
            }
            Operation::PlanRows(PlanRows { batch, plan }) => {
                plan.fill(self, batch);
            }
            Operation::TaskLoss(TaskLoss { task, batch, rows, logits, logits_grad: gradient, sums }) => {
                self.loss_of(task, batch, &rows, logits, gradient, sums);
            }
            Operation::Gather(Gather { batch, rows, lookups, tables, dense, out, first_column }) => {
                self.look_up(batch, &rows, lookups, tables, dense, out, first_column);
            }
            Operation::LinearForward(LinearForward {
                batch,
                rows,
                lookups,
                tables,
                dense,
                dense_weights,
                bias,
                out,
            }) => {
                let part = LinearPart { dense, weights: dense_weights, bias };
                self.linear(batch, &rows, lookups, tables, &part, out);
            }
            Operation::LinearBackward(LinearBackward {
                batch,
                rows,
                dense,
                out_grad,
                mode,
                weight_grad,
                bias_grad,
            }) => {
                let (weight_grad, bias_grad) = (weight_grad, bias_grad);
                self.linear_gradient(batch, &rows, dense, out_grad, mode, weight_grad, bias_grad);
            }
            Operation::LayerForward(LayerForward { rows, input, weights, bias, activation, output }) => {
                self.forward(rows, input, weights, bias, activation, output);
            }
            Operation::LayerBackward(LayerBackward {
                rows,
                layer,
                output_grad,
                mode,
                weight_grad,
                bias_grad,
                input_grad,
            }) => {
                let (bias_grad, input_grad) = (bias_grad.as_deref(), input_grad.as_deref());
                self.backward(rows, layer, output_grad, mode, weight_grad, bias_grad, input_grad);
            }
            Operation::FmForward(FmForward { rows, vectors, shape, out }) => {
                self.fm(rows, vectors, shape, out, None);
            }
            Operation::FmBackward(FmBackward { rows, vectors, shape, out_grad, vectors_grad }) => {
                self.fm(rows, vectors, shape, out_grad, Some(vectors_grad));
            }
            Operation::CrossForward(CrossForward { rows, first, product, input, output }) => {
                let parts = CrossParts { input: Some(input), output: Some(output), ..CrossParts::default() };
                self.cross(rows, first, product, &parts);
            }
            Operation::CrossBackward(CrossBackward {
                rows,
                first,
                product,
                output_grad,
                product_grad,
                first_grad,
            }) => {
                let parts = CrossParts {
                    output_grad: Some(output_grad),
                    product_grad: Some(product_grad),
                    first_grad: Some(first_grad),
                    ..CrossParts::default()
                };
                self.cross(rows, first, product, &parts);
            }
            Operation::DotForward(DotForward { rows, vectors, width, out }) => {
                self.dot(rows, vectors, width, out, None);
            }
            Operation::DotBackward(DotBackward { rows, vectors, width, out_grad, vectors_grad }) => {
                self.dot(rows, vectors, width, out_grad, Some(vectors_grad));
            }
            Operation::MixtureForward(MixtureForward { rows, shape, logits, experts, gates, output }) => {
                let parts =
                    MixtureParts { logits: Some(logits), output: Some(output), ..MixtureParts::default() };
                self.mix(rows, shape, gates, experts, &parts);
            }
            Operation::MixtureBackward(MixtureBackward {
                rows,
                shape,
                gates,
                experts,
                output_grad,
                logits_grad,
                experts_grad,
            }) => {
                let parts = MixtureParts {
                    output_grad: Some(output_grad),
                    logits_grad: Some(logits_grad),
                    experts_grad: Some(experts_grad),
                    ..MixtureParts::default()
                };
                self.mix(rows, shape, gates, experts, &parts);
            }
            Operation::CopyColumns(CopyColumns {
                rows,
                from: (from, first),
                to: (to, to_first),
                columns,
            }) => {
                self.copy(rows, (from.view(), first), (to.view(), to_first), columns);
            }
            Operation::CopyRows(CopyRows { rows, from, to, first }) => {
                self.copy(rows, (from.view(), 0), (to.view_from(first), 0), from.columns());
            }
            Operation::Dropout(Dropout { rows, keep, key, matrix }) => {
                self.drop_out(&rows, keep, key, matrix);
            }
            Operation::Moments(Moments { rows, axis, input, mean, variance }) => {
                self.moments_of(rows, axis, input, mean, variance);
            }
            Operation::NormalizeForward(NormalizeForward { rows, layer, moments, input, output }) => {
                self.normalize(rows, layer, moments, input, output);
            }
            Operation::NormalizeBackward(NormalizeBackward {
                rows,
                layer,
                saved,
                grad: gradient,
                mode,
                scale_grad,
                shift_grad,
            }) => {
                self.normalize_gradient(rows, layer, saved, gradient, mode, (scale_grad, shift_grad));
            }
            Operation::UnitForward(UnitForward { rows, input, output }) => {
                self.unit(rows, input, output);
            }
            Operation::UnitBackward(UnitBackward { rows, input, grad: gradient }) => {
                self.unit_gradient(rows, input, gradient);
            }
            Operation::RowProducts(RowProducts { rows, factor, left, right, out }) => {
                self.products_of_rows(rows, factor, left, right, out);
            }
            Operation::InBatchSoftmax(InBatchSoftmax {
                input: softmax,
                work,
                query_grad,
                item_grad,
                sums,
            }) => {
                self.softmax_over_items(softmax, work, query_grad, item_grad, sums);
            }
            Operation::Blend(Blend { share, factor, from, to }) => {
                self.blend_all(share, factor, from, to);
            }
            Operation::Add(Add { rows, from, to }) => {
                self.add_rows(rows, from, to);
            }
            Operation::Clear(Clear { rows, matrix }) => {
                self.clear_rows(rows, matrix);
            }
            Operation::Multiply(Multiply { rows, factor, matrix }) => {
                self.multiply_rows(rows, factor, matrix);
            }
            Operation::Sigmoid(Sigmoid { rows, logits, out }) => {
                self.sigmoids(rows, logits, out);
            }
            Operation::Softmax(Softmax { rows, logits, out }) => {
                self.softmaxes(rows, logits, out);
            }
            Operation::Squares(Squares { grad: gradient, sum }) => {
                self.add_squares(gradient, sum);
            }
            Operation::RowSquares(RowSquares { gradients, tables, sum }) => {
                self.touched_squares(gradients, tables, sum);
            }
            Operation::ClipScale(ClipScale { maximum, squares, scale }) => {
                self.set_scale(None, Some(maximum), squares, scale);
            }
            Operation::Unscale(Unscale { rule, maximum, squares, state, scale }) => {
                self.set_scale(Some((rule, state)), maximum, squares, scale);
            }
            Operation::Step(Step { update, scale, weights, states, grad: gradient }) => {
                self.step_all(update, scale, weights, states, gradient);
            }
            Operation::StepRows(StepRows { update, scale, draws, gradients, tables }) => {
                self.step_touched(update, scale, draws, gradients, tables);
            }
        }
    }

    fn copy_batch(&self, batch: BatchRef<'_>, into: &mut CudaBatch) -> Result<(), BatchError> {
        into.upload(self, batch)
    }

    fn pin(&self, pages: &RingMapping) -> Result<CudaPinned, PinError> {
        self.pinned.pin(self.context(), pages).map_err(|fault| PinError(fault.to_string()))
    }

    fn check(&self, batch: &CudaBatch) -> Result<(), BatchError> {
        self.check_batch(batch)
    }

    fn queue_report(&self, batch: &CudaBatch, matrices: &[&CudaMatrix], report: &mut CudaReport) {
        self.send_report(batch, matrices, report);
    }

    fn receive(&self, report: &mut CudaReport, numbers: &mut [f32]) -> Result<(), BatchError> {
        self.receive_report(report, numbers)
    }
}
