//! The plain reference: fp64, one loop per formula, no regard for speed.
//!
//! [`crate::Cpu`] and every other device are tested against it, and finite differences and the fp64 golden
//! trajectory run on it. It shares nothing with them except the validated batch and
//! the merged rows of several workers.

mod attention;
mod interaction;
mod losses;
mod mixture;
mod normalize;
mod retrieval;
mod table;
mod touched;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use millstream_batch::{BatchRef, BatchSchema, RingMapping};
use millstream_trace::Recorder;

use crate::backend::Backend;
use crate::description::Description;
use crate::device::{BatchShape, Device, IdColumn, Lookup, MatrixShape, Pooling, Shapes, TableShape};
use crate::error::{BatchError, PinError};
use crate::float::Float;
use crate::host::{HostBatch, HostMaxima, HostReport};
use crate::merged_rows::{HostMergedRows, MergedShape, PartRows};
use crate::ops::{
    Activation, Add, Blend, Checked, Clear, ClipScale, CopyColumns, CopyRows, CopyTable, Dropout, Gather,
    GradientMode, LayerBackward, LayerForward, LinearBackward, LinearForward, MergedRowSquares, Multiply,
    Operation, PlanRows, ReadMatrix, ReadTable, RowGradients, RowSquares, Sigmoid, Softmax, Squares, Step,
    StepMergedRows, StepRows, TaskLoss, Unscale, WriteMatrix, WriteTable,
};
use crate::philox::philox;
use crate::row_sums::RowSums;
use crate::update::Update;
pub use table::ReferenceTable;
use table::step_one;
use touched::{for_each_touched, shaped, shares};

/// The reference backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

/// A row-major matrix.
pub struct ReferenceMatrix {
    float: Float,
    columns: usize,
    values: Vec<f64>,
}

/// For each group of columns and each id: the columns, batch rows and positions that hold the id.
pub struct ReferencePlan {
    groups: Vec<(Vec<IdColumn>, Touched)>,
}

/// By id: the number of the column in its group, the row, and the position among the row's ids.
type Touched = BTreeMap<usize, Vec<(usize, usize, usize)>>;

impl ReferenceMatrix {
    fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.columns..][..self.columns]
    }

    /// Copies the first rows, as many as fill `out`.
    fn read(&self, out: &mut [f64]) {
        out.copy_from_slice(&self.values[..out.len()]);
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        self.values[row * self.columns + column]
    }

    fn at_mut(&mut self, row: usize, column: usize) -> &mut f64 {
        &mut self.values[row * self.columns + column]
    }

    /// Sets each element of the first `rows` rows to `value` of its row and column, rounded.
    fn set(&mut self, rows: usize, value: impl Fn(usize, usize) -> f64) {
        for row in 0..rows {
            for column in 0..self.columns {
                *self.at_mut(row, column) = value(row, column);
            }
        }
        self.round(rows);
    }

    /// Rounds the values written to the first `rows` rows.
    fn round(&mut self, rows: usize) {
        for value in &mut self.values[..rows * self.columns] {
            *value = self.float.round_f64(*value);
        }
    }

    /// Converts to the format of `input`, as a factor of a product.
    fn factor(&self, input: &Self) -> Self {
        let values = self.values.iter().map(|&value| input.float.round_f64(value)).collect();
        Self { float: input.float, columns: self.columns, values }
    }

    fn rows(&self) -> usize {
        self.values.len() / self.columns.max(1)
    }
}

impl Device for Reference {
    type Scalar = f64;
    type Matrix = ReferenceMatrix;
    type Table = ReferenceTable;
    type Batch = HostBatch;
    type RowPlan = ReferencePlan;
    type Maxima = HostMaxima;
    type MergedRows = HostMergedRows<f64>;
    type Report = HostReport<f64>;

    const STEPS_AHEAD: usize = 0;

    fn matrix_of(&self, float: Float, rows: usize, columns: usize) -> ReferenceMatrix {
        ReferenceMatrix { float, columns, values: vec![0.0; rows * columns] }
    }

    fn table(&self, shape: TableShape) -> ReferenceTable {
        ReferenceTable::new(shape)
    }

    fn batch(&self, schema: &BatchSchema) -> HostBatch {
        HostBatch::new(schema)
    }

    fn maxima(&self, rows: usize, columns: usize) -> HostMaxima {
        HostMaxima::new(rows, columns)
    }

    fn merged_rows(&self, shapes: &[TableShape], rows: PartRows<'_>) -> HostMergedRows<f64> {
        HostMergedRows::new(MergedShape::of(shapes, rows))
    }

    fn report(&self, numbers: usize) -> HostReport<f64> {
        HostReport::new(numbers)
    }

    fn in_batch_numbers(_queries: usize, _items: usize, _columns: usize) -> usize {
        0
    }

    fn row_plan(&self, _schema: &BatchSchema, groups: &[Vec<IdColumn>]) -> ReferencePlan {
        ReferencePlan { groups: groups.iter().map(|columns| (columns.clone(), Touched::new())).collect() }
    }
}

impl Shapes for Reference {
    fn matrix_shape(matrix: &ReferenceMatrix) -> MatrixShape {
        MatrixShape { rows: matrix.rows(), columns: matrix.columns, number_bytes: size_of::<f64>() }
    }

    fn maxima_shape(maxima: &HostMaxima) -> MatrixShape {
        maxima.shape()
    }

    fn table_shape(table: &ReferenceTable) -> TableShape {
        table.shape
    }

    fn batch_shape(batch: &HostBatch) -> &BatchShape {
        batch.shape()
    }

    fn merged_shapes(rows: &HostMergedRows<f64>) -> &[MergedShape] {
        rows.shapes()
    }

    fn merged_count(rows: &HostMergedRows<f64>, table: usize) -> usize {
        rows.count(table)
    }

    fn planned_columns(plan: &ReferencePlan) -> impl Iterator<Item = IdColumn> {
        plan.groups.iter().flat_map(|(columns, _)| columns).copied()
    }
}

impl Backend for Reference {
    type Pinned = ();
    type Peers = Infallible;

    fn describe(&self) -> Description {
        Description::of("the reference")
    }

    fn recorder(&self) -> Option<&Arc<Recorder>> {
        None
    }

    fn execute(&self, operation: Checked<'_, Self>) {
        match operation.into_inner() {
            Operation::WriteMatrix(WriteMatrix { matrix, values }) => {
                matrix.values[..values.len()].copy_from_slice(values);
                matrix.round(values.len() / matrix.columns.max(1));
            }
            Operation::ReadMatrix(ReadMatrix { matrix, out }) => matrix.read(out),
            Operation::WriteTable(WriteTable { table, part, first_row, values }) => {
                table.part_mut(part, first_row)[..values.len()].copy_from_slice(values);
                table.round(part, first_row, values.len());
            }
            Operation::ReadTable(ReadTable { table, part, first_row, out }) => {
                out.copy_from_slice(&table.part(part, first_row)[..out.len()]);
            }
            Operation::CopyTable(CopyTable { table, first, mut out }) => {
                for (part, range) in table.shape.ranges_of_parts(first..first + out.len()) {
                    let (numbers, rest) = out.split_at_mut(range.len());
                    numbers.copy_from_slice(&table.part(part, 0)[range]);
                    out = rest;
                }
            }
            Operation::PlanRows(operation) => self.plan_rows(operation),
            Operation::TaskLoss(operation) => self.loss(operation),
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

    fn queue_report(&self, _batch: &HostBatch, matrices: &[&ReferenceMatrix], report: &mut HostReport<f64>) {
        report.take(matrices, |matrix| matrix.values.len(), |matrix, out| matrix.read(out));
    }

    fn read_row_sums(
        &self,
        gradients: &RowGradients<'_, Self>,
        tables: &[ReferenceTable],
        sums: &mut RowSums<f64>,
    ) {
        let widths: Vec<usize> = tables.iter().map(|table| table.shape.width).collect();
        let (mut counts, mut ids, mut rows) = (vec![0; widths.len()], Vec::new(), Vec::new());
        for_each_touched(gradients, &widths, |table, id, gradient| {
            counts[table] += 1;
            ids.push(id as u32);
            rows.extend_from_slice(gradient);
        });
        sums.resize(counts.iter().copied().zip(widths.iter().copied()));
        let (of_ids, of_rows) = sums.parts_mut(widths.len());
        of_ids.copy_from_slice(&ids);
        of_rows.copy_from_slice(&rows);
    }

    fn take_parts(&self, merged: &mut HostMergedRows<f64>) -> Vec<RowSums<f64>> {
        merged.take_parts()
    }

    fn take_merged_rows(&self, parts: Vec<RowSums<f64>>, merged: &mut HostMergedRows<f64>) -> bool {
        merged.merge(parts, |tasks, task| (0..tasks).for_each(task))
    }

    fn receive(&self, report: &mut HostReport<f64>, numbers: &mut [f64]) -> Result<(), BatchError> {
        report.copy_to(numbers);
        Ok(())
    }
}

impl Reference {
    fn plan_rows(&self, operation: PlanRows<'_, Self>) {
        let PlanRows { batch, plan } = operation;
        for (columns, touched) in &mut plan.groups {
            touched.clear();
            for (number, &column) in columns.iter().enumerate() {
                for row in 0..batch.rows() {
                    for (place, &id) in batch.ids(column).row(row).iter().enumerate() {
                        touched.entry(id as usize).or_default().push((number, row, place));
                    }
                }
            }
        }
    }

    fn gather(&self, operation: Gather<'_, Self>) {
        let Gather { batch, rows, lookups, tables, dense, out, first_column, mut maxima } = operation;
        for (out_row, row) in rows.clone().enumerate() {
            let mut holders = maxima.as_deref_mut().map(|maxima| maxima.rows_from(row).iter_mut());
            for lookup in lookups {
                let (ids, table) = (batch.ids(lookup.column).row(row), &tables[lookup.table]);
                let shares = shares(batch, lookup, row);
                let first = first_column + lookup.first;
                for column in 0..table.shape.width {
                    if let Pooling::Unpooled(most) = lookup.pooling {
                        for place in 0..most as usize {
                            let value = ids.get(place).map_or(0.0, |&id| table.row(id)[column]);
                            *out.at_mut(out_row, first + place * table.shape.width + column) = value;
                        }
                        continue;
                    }
                    if lookup.has_maxima() {
                        let holder = holders.as_mut().and_then(Iterator::next).expect("a holder per maximum");
                        let values = ids.iter().map(|&id| table.row(id)[column]);
                        *out.at_mut(out_row, first + column) = first_maximum(values, holder);
                        continue;
                    }
                    let products = ids.iter().zip(&shares).map(|(&id, share)| share * table.row(id)[column]);
                    *out.at_mut(out_row, first + column) = products.sum();
                }
            }
            let first_dense = first_column + Lookup::widths(lookups, |table| tables[table].shape.width);
            for (column, &source) in dense.iter().enumerate() {
                *out.at_mut(out_row, first_dense + column) = f64::from(batch.dense(row)[source]);
            }
        }
        out.round(rows.len());
    }

    fn linear_forward(&self, operation: LinearForward<'_, Self>) {
        let LinearForward { batch, rows, lookups, tables, dense, dense_weights, bias, out } = operation;
        for (out_row, row) in rows.clone().enumerate() {
            for column in 0..out.columns {
                let mut sum = bias.at(0, column);
                for lookup in lookups {
                    let (ids, table) = (batch.ids(lookup.column).row(row), &tables[lookup.table]);
                    let shares = shares(batch, lookup, row);
                    let products = ids.iter().zip(&shares).map(|(&id, share)| share * table.row(id)[column]);
                    sum += products.sum::<f64>();
                }
                for (place, &source) in dense.iter().enumerate() {
                    sum += f64::from(batch.dense(row)[source]) * dense_weights.at(place, column);
                }
                *out.at_mut(out_row, column) += sum;
            }
        }
        out.round(rows.len());
    }

    fn linear_backward(&self, operation: LinearBackward<'_, Self>) {
        let LinearBackward { batch, rows, dense, out_grad, mode, weight_grad, bias_grad } = operation;
        if mode == GradientMode::Write {
            weight_grad.values.fill(0.0);
            bias_grad.values.fill(0.0);
        }
        for (out_row, row) in rows.enumerate() {
            for column in 0..out_grad.columns {
                let g = out_grad.at(out_row, column);
                *bias_grad.at_mut(0, column) += g;
                for (place, &source) in dense.iter().enumerate() {
                    *weight_grad.at_mut(place, column) += f64::from(batch.dense(row)[source]) * g;
                }
            }
        }
    }

    fn layer_forward(&self, operation: LayerForward<'_, Self>) {
        let LayerForward { rows, input, weights, bias, activation, output } = operation;
        let weights = &weights.factor(input);
        let bias = &bias.map(|bias| bias.factor(output));
        output.set(rows, |row, column| {
            let product: f64 = (0..weights.rows()).map(|k| input.at(row, k) * weights.at(k, column)).sum();
            let sum = product + bias.as_ref().map_or(0.0, |bias| bias.at(0, column));
            match activation {
                Activation::Identity => sum,
                Activation::Relu => relu(sum),
            }
        });
    }

    fn layer_backward(&self, operation: LayerBackward<'_, Self>) {
        let LayerBackward { rows, layer, output_grad, mode, weight_grad, mut bias_grad, input_grad } =
            operation;
        let outputs = layer.weights.columns;
        for row in 0..rows {
            for column in 0..outputs {
                if layer.activation == Activation::Relu && layer.output.at(row, column) <= 0.0 {
                    *output_grad.at_mut(row, column) = 0.0;
                }
            }
        }
        if mode == GradientMode::Write {
            weight_grad.values.fill(0.0);
            bias_grad.iter_mut().for_each(|gradient| gradient.values.fill(0.0));
        }
        if let Some(bias_grad) = &mut bias_grad {
            for row in 0..rows {
                for column in 0..outputs {
                    *bias_grad.at_mut(0, column) += output_grad.at(row, column);
                }
            }
        }
        let output_grad = &output_grad.factor(layer.input);
        for row in 0..rows {
            for column in 0..outputs {
                let g = output_grad.at(row, column);
                for k in 0..layer.weights.rows() {
                    *weight_grad.at_mut(k, column) += layer.input.at(row, k) * g;
                }
            }
        }
        let Some(input_grad) = input_grad else { return };
        let weights = layer.weights.factor(layer.input);
        input_grad.set(rows, |row, k| {
            let is_masked = layer.input_activation == Activation::Relu && layer.input.at(row, k) <= 0.0;
            let products = (0..outputs).map(|m| output_grad.at(row, m) * weights.at(k, m));
            if is_masked { 0.0 } else { products.sum() }
        });
    }

    fn copy_columns(&self, operation: CopyColumns<'_, Self>) {
        let CopyColumns { rows, from: (from, first), to: (to, to_first), columns } = operation;
        for row in 0..rows {
            for column in 0..columns {
                *to.at_mut(row, to_first + column) = from.at(row, first + column);
            }
        }
        to.round(rows);
    }

    fn copy_rows(&self, operation: CopyRows<'_, Self>) {
        let CopyRows { rows, from: (from, first), to: (to, to_first) } = operation;
        for row in 0..rows {
            for column in 0..from.columns {
                *to.at_mut(to_first + row, column) = from.at(first + row, column);
            }
        }
        to.round(to_first + rows);
    }

    fn dropout(&self, operation: Dropout<'_, Self>) {
        let Dropout { rows, keep, key, matrix } = operation;
        for (place, row) in rows.clone().enumerate() {
            for column in 0..matrix.columns {
                let counter = [row, column / 64 * 16 + column % 16, 0, 0].map(|word| [word as u32]);
                let [word] = philox(key, counter)[column / 16 % 4];
                let is_kept = f64::from(word) < (keep * 2.0_f64.powi(32)).floor();
                *matrix.at_mut(place, column) *= if is_kept { 1.0 / keep } else { 0.0 };
            }
        }
        matrix.round(rows.len());
    }

    fn blend(&self, operation: Blend<'_, Self>) {
        let Blend { share, factor, from, to } = operation;
        for (to, from) in to.values.iter_mut().zip(&from.values) {
            *to += share * (factor * from - *to);
        }
    }

    fn add(&self, operation: Add<'_, Self>) {
        let Add { rows, from, to } = operation;
        for row in 0..rows {
            for column in 0..to.columns {
                *to.at_mut(row, column) += from.at(row, column);
            }
        }
        to.round(rows);
    }

    fn clear(&self, operation: Clear<'_, Self>) {
        let Clear { rows, matrix } = operation;
        matrix.values[..rows * matrix.columns].fill(0.0);
    }

    fn loss(&self, operation: TaskLoss<'_, Self>) {
        let TaskLoss { task, batch, rows, total, logits, logits_grad: gradient, sums } = operation;
        let (of_label, labels) = (task.label, batch.labels(task.label));
        if let Some(group) = task.loss.group() {
            let row = |row: usize| losses::Listed {
                logit: logits.at(row, of_label),
                label: f64::from(labels[row]),
                weight: f64::from(batch.weights()[row]),
                list: batch.single_ids(group)[row],
            };
            let listed: Vec<_> = rows.clone().map(row).collect();
            let (of_lists, by_logit) = losses::of_lists(&task.loss, &listed);
            for (column, sum) in of_lists.into_iter().enumerate() {
                *sums.at_mut(of_label, column) += sum;
            }
            let total = total.unwrap_or(of_lists[1]);
            let factor = if total > 0.0 { task.weight / total } else { 0.0 };
            for (row, by_logit) in by_logit.into_iter().enumerate() {
                *gradient.at_mut(row, of_label) = factor * by_logit;
            }
            gradient.round(rows.len());
            return;
        }
        let weight = |row: usize| {
            losses::weight_factor(&task.loss, f64::from(labels[row])) * f64::from(batch.weights()[row])
        };
        let total = total.unwrap_or_else(|| (0..batch.rows()).map(weight).sum());
        for (place, row) in rows.clone().enumerate() {
            let (of_row, logits_grad) =
                losses::of_row(&task.loss, &logits.row(place)[of_label..], f64::from(labels[row]));
            *sums.at_mut(of_label, 0) += weight(row) * of_row;
            *sums.at_mut(of_label, 1) += weight(row);
            for (column, by_logit) in (of_label..).zip(logits_grad) {
                let scale = if total > 0.0 { task.weight * weight(row) / total } else { 0.0 };
                *gradient.at_mut(place, column) = scale * by_logit;
            }
        }
        gradient.round(rows.len());
    }

    fn multiply(&self, operation: Multiply<'_, Self>) {
        let Multiply { rows, factor, matrix } = operation;
        let columns = matrix.columns;
        matrix.values[..rows * columns].iter_mut().for_each(|number| *number *= factor.at(0, 0));
        matrix.round(rows);
    }

    fn sigmoid(&self, operation: Sigmoid<'_, Self>) {
        let Sigmoid { rows, logits, out } = operation;
        out.set(rows, |row, column| losses::sigmoid(logits.at(row, column)));
    }

    fn softmax(&self, operation: Softmax<'_, Self>) {
        let Softmax { rows, logits, out } = operation;
        for row in 0..rows {
            for (column, probability) in losses::softmax(logits.row(row)).into_iter().enumerate() {
                *out.at_mut(row, column) = probability;
            }
        }
        out.round(rows);
    }

    fn squares(&self, operation: Squares<'_, Self>) {
        let Squares { grad: gradient, sum } = operation;
        *sum.at_mut(0, 0) += gradient.values.iter().map(|g| g * g).sum::<f64>();
    }

    fn row_squares(&self, operation: RowSquares<'_, Self>) {
        let RowSquares { gradients, tables, sum } = operation;
        let widths: Vec<usize> = tables.iter().map(|table| table.shape.width).collect();
        for_each_touched(gradients, &widths, |_, _, g| {
            *sum.at_mut(0, 0) += g.iter().map(|g| g * g).sum::<f64>();
        });
    }

    fn merged_row_squares(&self, operation: MergedRowSquares<'_, Self>) {
        let MergedRowSquares { rows, sum, .. } = operation;
        for table in rows.tables() {
            *sum.at_mut(0, 0) += table.rows().flatten().map(|g| g * g).sum::<f64>();
        }
    }

    fn clip_scale(&self, operation: ClipScale<'_, Self>) {
        let ClipScale { maximum, squares, scale } = operation;
        let norm = squares.at(0, 0).sqrt();
        *scale.at_mut(0, 0) = match norm {
            _ if !norm.is_finite() => f64::NAN,
            _ if norm <= maximum => 1.0,
            _ => maximum / norm,
        };
    }

    fn unscale(&self, operation: Unscale<'_, Self>) {
        let Unscale { rule, maximum, squares, state, scale } = operation;
        let before = std::array::from_fn(|number| state.at(0, number));
        let (by, after) = rule.unscale(maximum, squares.at(0, 0), before, |number| number);
        *scale.at_mut(0, 0) = by;
        state.values.copy_from_slice(&after);
    }

    fn step(&self, operation: Step<'_, Self>) {
        let Step { update, scale, weights, states, grad: gradient } = operation;
        if scale.at(0, 0) == 0.0 {
            return;
        }
        for (item, (&g, w)) in gradient.values.iter().zip(&mut weights.values).enumerate() {
            let state = states.iter_mut().map(|state| &mut state.values[item]);
            step_one(&update.formula, w, state, shaped(update, scale.at(0, 0), g, *w));
        }
    }

    fn step_rows(&self, operation: StepRows<'_, Self>) {
        let StepRows { update, scale, draws, gradients, tables } = operation;
        if scale.at(0, 0) == 0.0 {
            return;
        }
        let widths: Vec<usize> = tables.iter().map(|table| table.shape.width).collect();
        for_each_touched(gradients, &widths, |table, id, g| {
            step_row(&mut tables[table], id, g, update, scale.at(0, 0), draws);
        });
    }

    fn step_merged_rows(&self, operation: StepMergedRows<'_, Self>) {
        let StepMergedRows { update, scale, draws, rows, tables } = operation;
        if scale.at(0, 0) == 0.0 {
            return;
        }
        for (table, rows) in tables.iter_mut().zip(rows.tables()) {
            for (&id, g) in rows.ids().iter().zip(rows.rows()) {
                step_row(table, id as usize, g, update, scale.at(0, 0), draws);
            }
        }
    }
}

/// One optimizer step on row `id` with the gradient `g`; see [`StepRows`].
fn step_row(table: &mut ReferenceTable, id: usize, g: &[f64], update: &Update, scale: f64, draws: u64) {
    let weights = table.row(id as u32);
    let g: Vec<f64> = g.iter().zip(weights).map(|(&g, &w)| shaped(update, scale, g, w)).collect();
    table.step_row(&update.formula, draws, id, &g);
}

/// The largest of `values`, or 0 if there are none; sets `place` to that of the first one that is as large.
fn first_maximum(values: impl Iterator<Item = f64>, place: &mut u32) -> f64 {
    let mut largest = None;
    for (at, value) in (0..).zip(values) {
        if largest.is_none_or(|largest| value > largest) {
            (largest, *place) = (Some(value), at);
        }
    }
    largest.unwrap_or(0.0)
}

/// `max(x, 0)`; propagates NaN.
fn relu(x: f64) -> f64 {
    if x < 0.0 { 0.0 } else { x }
}
