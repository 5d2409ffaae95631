//! The plain reference: float64, one loop a formula, no regard for speed.
//!
//! It is what [`crate::Cpu`] and every later device is tested against, and what finite differences and
//! the float64 golden trajectory run on. It shares nothing with them but the checked batch.

mod classes;
mod interaction;
mod mixture;
mod normalize;
mod retrieval;
mod table;
mod touched;

use std::collections::BTreeMap;
use std::ops::Range;

use millstream_batch::{BatchRef, BatchSchema, RingMapping};

use crate::backend::{Activation, Backend, LayerGradient, Loss, MixtureShape, RowGradients, Sum, Task};
use crate::description::Description;
use crate::device::{Device, IdColumn, Lookup, MatrixShape, Operation, TablePart, TableShape};
use crate::error::{BatchError, PinError};
use crate::float::Float;
use crate::host::{HostBatch, HostReport};
use crate::normalization::{Axis, Normalization, Normalized};
use crate::philox::philox;
use crate::retrieval::InBatchSoftmax;
use crate::update::{LossScaling, Update};
pub use table::ReferenceTable;
use table::step_one;
use touched::{for_each_touched, shaped, shares};

/// The reference backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

/// Numbers in rows and columns, row-major.
pub struct ReferenceMatrix {
    float: Float,
    columns: usize,
    values: Vec<f64>,
}

/// For each group of columns, for each id in it, the columns, batch rows and places in these that hold it.
pub struct ReferencePlan {
    groups: Vec<(Vec<IdColumn>, Touched)>,
}

/// By id: the number of the column in its group, the row, and which of the row's ids it is.
type Touched = BTreeMap<usize, Vec<(usize, usize, usize)>>;

impl ReferenceMatrix {
    fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.columns..][..self.columns]
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        self.values[row * self.columns + column]
    }

    fn at_mut(&mut self, row: usize, column: usize) -> &mut f64 {
        &mut self.values[row * self.columns + column]
    }

    /// Rounds what was written to its first `rows` rows.
    fn round(&mut self, rows: usize) {
        for value in &mut self.values[..rows * self.columns] {
            *value = self.float.round_f64(*value);
        }
    }

    /// As a product takes it that has factors of the format of `input`.
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

    fn report(&self, numbers: usize) -> HostReport<f64> {
        HostReport::new(numbers)
    }

    fn make_ready(&self, _operation: &Operation<'_>) {}

    fn softmax_work(&self, _rows: usize, _columns: usize) -> ReferenceMatrix {
        self.matrix(0, 0)
    }

    fn row_plan(&self, _schema: &BatchSchema, groups: &[Vec<IdColumn>]) -> ReferencePlan {
        ReferencePlan { groups: groups.iter().map(|columns| (columns.clone(), Touched::new())).collect() }
    }
}

impl Backend for Reference {
    type Pinned = ();

    fn describe(&self) -> Description {
        Description::of("the reference")
    }

    fn matrix_shape(matrix: &ReferenceMatrix) -> MatrixShape {
        MatrixShape { rows: matrix.rows(), columns: matrix.columns, number_bytes: size_of::<f64>() }
    }

    fn table_shape(table: &ReferenceTable) -> TableShape {
        table.shape
    }

    fn write_matrix(&self, matrix: &mut ReferenceMatrix, values: &[f64]) {
        matrix.values.copy_from_slice(values);
        matrix.round(matrix.rows());
    }

    fn read_matrix(&self, matrix: &ReferenceMatrix, out: &mut [f64]) {
        out.copy_from_slice(&matrix.values[..out.len()]);
    }

    fn write_table(&self, table: &mut ReferenceTable, part: TablePart, first_row: usize, values: &[f64]) {
        table.part_mut(part, first_row)[..values.len()].copy_from_slice(values);
        table.round(part, first_row, values.len());
    }

    fn read_table(&self, table: &ReferenceTable, part: TablePart, first_row: usize, out: &mut [f64]) {
        out.copy_from_slice(&table.part(part, first_row)[..out.len()]);
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

    fn send(&self, _batch: &HostBatch, matrices: &[&ReferenceMatrix], report: &mut HostReport<f64>) {
        report.take(matrices, |matrix| matrix.values.len(), |matrix, out| self.read_matrix(matrix, out));
    }

    fn receive(&self, report: &mut HostReport<f64>, numbers: &mut [f64]) -> Result<(), BatchError> {
        report.tell(numbers);
        Ok(())
    }

    fn plan_rows(&self, batch: &HostBatch, plan: &mut ReferencePlan) {
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

    fn gather(
        &self,
        batch: &HostBatch,
        rows: Range<usize>,
        lookups: &[Lookup],
        tables: &[ReferenceTable],
        dense: &[usize],
        out: &mut ReferenceMatrix,
        first_column: usize,
    ) {
        for (out_row, row) in rows.clone().enumerate() {
            for lookup in lookups {
                let (ids, table) = (batch.ids(lookup.column).row(row), &tables[lookup.table]);
                let shares = shares(batch, lookup, row);
                for column in 0..table.shape.width {
                    let products = ids.iter().zip(&shares).map(|(&id, share)| share * table.row(id)[column]);
                    *out.at_mut(out_row, first_column + lookup.first + column) = products.sum();
                }
            }
            let first_dense = first_column + Lookup::widths(lookups, |table| tables[table].shape.width);
            for (column, &source) in dense.iter().enumerate() {
                *out.at_mut(out_row, first_dense + column) = f64::from(batch.dense(row)[source]);
            }
        }
        out.round(rows.len());
    }

    fn linear_forward(
        &self,
        batch: &HostBatch,
        rows: Range<usize>,
        lookups: &[Lookup],
        tables: &[ReferenceTable],
        dense: &[usize],
        dense_weights: &ReferenceMatrix,
        bias: &ReferenceMatrix,
        out: &mut ReferenceMatrix,
    ) {
        for (out_row, row) in rows.clone().enumerate() {
            for column in 0..out.columns {
                let mut sum = bias.at(0, column);
                for lookup in lookups {
                    let ids = batch.ids(lookup.column).row(row);
                    let shares = shares(batch, lookup, row);
                    let weight = |&id: &u32| tables[lookup.table].row(id)[column];
                    sum += ids
                        .iter()
                        .map(weight)
                        .zip(&shares)
                        .map(|(weight, share)| share * weight)
                        .sum::<f64>();
                }
                for (place, &source) in dense.iter().enumerate() {
                    sum += f64::from(batch.dense(row)[source]) * dense_weights.at(place, column);
                }
                *out.at_mut(out_row, column) += sum;
            }
        }
        out.round(rows.len());
    }

    fn linear_backward(
        &self,
        batch: &HostBatch,
        rows: Range<usize>,
        dense: &[usize],
        out_gradient: &ReferenceMatrix,
        sum: Sum,
        dense_weights_gradient: &mut ReferenceMatrix,
        bias_gradient: &mut ReferenceMatrix,
    ) {
        if sum == Sum::Anew {
            dense_weights_gradient.values.fill(0.0);
            bias_gradient.values.fill(0.0);
        }
        for (out_row, row) in rows.enumerate() {
            for column in 0..out_gradient.columns {
                let g = out_gradient.at(out_row, column);
                *bias_gradient.at_mut(0, column) += g;
                for (place, &source) in dense.iter().enumerate() {
                    *dense_weights_gradient.at_mut(place, column) += f64::from(batch.dense(row)[source]) * g;
                }
            }
        }
    }

    fn layer_forward(
        &self,
        rows: usize,
        input: &ReferenceMatrix,
        weights: &ReferenceMatrix,
        bias: Option<&ReferenceMatrix>,
        activation: Activation,
        output: &mut ReferenceMatrix,
    ) {
        let weights = &weights.factor(input);
        let bias = &bias.map(|bias| bias.factor(output));
        for row in 0..rows {
            for column in 0..weights.columns {
                let product: f64 =
                    (0..weights.rows()).map(|k| input.at(row, k) * weights.at(k, column)).sum();
                let sum = product + bias.as_ref().map_or(0.0, |bias| bias.at(0, column));
                *output.at_mut(row, column) = match activation {
                    Activation::Identity => sum,
                    Activation::Relu => relu(sum),
                };
            }
        }
        output.round(rows);
    }

    fn layer_backward(
        &self,
        rows: usize,
        layer: &LayerGradient<'_, ReferenceMatrix>,
        output_gradient: &mut ReferenceMatrix,
        sum: Sum,
        weights_gradient: &mut ReferenceMatrix,
        mut bias_gradient: Option<&mut ReferenceMatrix>,
        input_gradient: Option<&mut ReferenceMatrix>,
    ) {
        let outputs = layer.weights.columns;
        for row in 0..rows {
            for column in 0..outputs {
                if layer.activation == Activation::Relu && layer.output.at(row, column) <= 0.0 {
                    *output_gradient.at_mut(row, column) = 0.0;
                }
            }
        }
        if sum == Sum::Anew {
            weights_gradient.values.fill(0.0);
            bias_gradient.iter_mut().for_each(|gradient| gradient.values.fill(0.0));
        }
        if let Some(bias_gradient) = &mut bias_gradient {
            for row in 0..rows {
                for column in 0..outputs {
                    *bias_gradient.at_mut(0, column) += output_gradient.at(row, column);
                }
            }
        }
        let output_gradient = &output_gradient.factor(layer.input);
        for row in 0..rows {
            for column in 0..outputs {
                let g = output_gradient.at(row, column);
                for k in 0..layer.weights.rows() {
                    *weights_gradient.at_mut(k, column) += layer.input.at(row, k) * g;
                }
            }
        }
        let Some(input_gradient) = input_gradient else { return };
        let weights = layer.weights.factor(layer.input);
        for row in 0..rows {
            for k in 0..input_gradient.columns {
                let is_masked = layer.input_activation == Activation::Relu && layer.input.at(row, k) <= 0.0;
                let products = (0..outputs).map(|m| output_gradient.at(row, m) * weights.at(k, m));
                *input_gradient.at_mut(row, k) = if is_masked { 0.0 } else { products.sum() };
            }
        }
        input_gradient.round(rows);
    }

    fn fm_forward(
        &self,
        rows: usize,
        vectors: &ReferenceMatrix,
        shape: (usize, usize),
        out: &mut ReferenceMatrix,
    ) {
        interaction::fm_forward(rows, vectors, shape, out);
    }

    fn fm_backward(
        &self,
        rows: usize,
        vectors: &ReferenceMatrix,
        shape: (usize, usize),
        out_gradient: &ReferenceMatrix,
        vectors_gradient: &mut ReferenceMatrix,
    ) {
        interaction::fm_backward(rows, vectors, shape, out_gradient, vectors_gradient);
    }

    fn cross_forward(
        &self,
        rows: usize,
        first: &ReferenceMatrix,
        product: &ReferenceMatrix,
        input: &ReferenceMatrix,
        output: &mut ReferenceMatrix,
    ) {
        interaction::cross_forward(rows, first, product, input, output);
    }

    fn cross_backward(
        &self,
        rows: usize,
        first: &ReferenceMatrix,
        product: &ReferenceMatrix,
        output_gradient: &ReferenceMatrix,
        product_gradient: &mut ReferenceMatrix,
        first_gradient: &mut ReferenceMatrix,
    ) {
        interaction::cross_backward(rows, first, product, output_gradient, product_gradient, first_gradient);
    }

    fn dot_forward(&self, rows: usize, vectors: &ReferenceMatrix, width: usize, out: &mut ReferenceMatrix) {
        interaction::dot_forward(rows, vectors, width, out);
    }

    fn dot_backward(
        &self,
        rows: usize,
        vectors: &ReferenceMatrix,
        width: usize,
        out_gradient: &ReferenceMatrix,
        vectors_gradient: &mut ReferenceMatrix,
    ) {
        interaction::dot_backward(rows, vectors, width, out_gradient, vectors_gradient);
    }

    fn mixture_forward(
        &self,
        rows: usize,
        shape: MixtureShape,
        logits: &ReferenceMatrix,
        experts: &ReferenceMatrix,
        gates: &mut ReferenceMatrix,
        output: &mut ReferenceMatrix,
    ) {
        mixture::forward(rows, shape, logits, experts, gates, output);
        gates.round(rows);
        output.round(rows);
    }

    fn mixture_backward(
        &self,
        rows: usize,
        shape: MixtureShape,
        gates: &ReferenceMatrix,
        experts: &ReferenceMatrix,
        output_gradient: &ReferenceMatrix,
        logits_gradient: &mut ReferenceMatrix,
        experts_gradient: &mut ReferenceMatrix,
    ) {
        let saved = (gates, experts);
        mixture::backward(rows, shape, saved, output_gradient, logits_gradient, experts_gradient);
        logits_gradient.round(rows);
        experts_gradient.round(rows);
    }

    fn copy_columns(
        &self,
        rows: usize,
        (from, first): (&ReferenceMatrix, usize),
        (to, to_first): (&mut ReferenceMatrix, usize),
        columns: usize,
    ) {
        for row in 0..rows {
            for column in 0..columns {
                *to.at_mut(row, to_first + column) = from.at(row, first + column);
            }
        }
        to.round(rows);
    }

    fn copy_rows(&self, rows: usize, from: &ReferenceMatrix, to: &mut ReferenceMatrix, first: usize) {
        let columns = from.columns;
        to.values[first * columns..][..rows * columns].copy_from_slice(&from.values[..rows * columns]);
        to.round(first + rows);
    }

    fn dropout(&self, rows: Range<usize>, keep: f64, key: u64, matrix: &mut ReferenceMatrix) {
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

    fn moments(
        &self,
        rows: usize,
        axis: Axis,
        input: &ReferenceMatrix,
        mean: &mut ReferenceMatrix,
        variance: &mut ReferenceMatrix,
    ) {
        normalize::moments(rows, axis, input, mean, variance);
    }

    fn normalize_forward(
        &self,
        rows: usize,
        layer: &Normalization<'_, ReferenceMatrix>,
        moments: (&ReferenceMatrix, &ReferenceMatrix),
        input: &ReferenceMatrix,
        output: &mut ReferenceMatrix,
    ) {
        normalize::forward(rows, layer, moments, input, output);
    }

    fn normalize_backward(
        &self,
        rows: usize,
        layer: &Normalization<'_, ReferenceMatrix>,
        saved: &Normalized<'_, ReferenceMatrix>,
        gradient: &mut ReferenceMatrix,
        sum: Sum,
        by_scale: &mut ReferenceMatrix,
        by_shift: &mut ReferenceMatrix,
    ) {
        normalize::backward(rows, layer, saved, gradient, sum, by_scale, by_shift);
    }

    fn unit_forward(&self, rows: usize, input: &ReferenceMatrix, output: &mut ReferenceMatrix) {
        retrieval::unit_forward(rows, input, output);
    }

    fn unit_backward(&self, rows: usize, input: &ReferenceMatrix, gradient: &mut ReferenceMatrix) {
        retrieval::unit_backward(rows, input, gradient);
    }

    fn row_products(
        &self,
        rows: usize,
        factor: f64,
        left: &ReferenceMatrix,
        right: &ReferenceMatrix,
        out: &mut ReferenceMatrix,
    ) {
        for row in 0..rows {
            *out.at_mut(row, 0) = factor * retrieval::dot((left, row), (right, row));
        }
        out.round(rows);
    }

    fn in_batch_softmax(
        &self,
        softmax: &InBatchSoftmax<'_, Self>,
        _work: &mut ReferenceMatrix,
        by_queries: &mut ReferenceMatrix,
        by_items: &mut ReferenceMatrix,
        sums: &mut ReferenceMatrix,
    ) {
        retrieval::softmax(softmax, by_queries, by_items, sums);
    }

    fn blend(&self, share: f64, factor: f64, from: &ReferenceMatrix, to: &mut ReferenceMatrix) {
        for (to, from) in to.values.iter_mut().zip(&from.values) {
            *to += share * (factor * from - *to);
        }
    }

    fn add(&self, rows: usize, from: &ReferenceMatrix, to: &mut ReferenceMatrix) {
        for row in 0..rows {
            for column in 0..to.columns {
                *to.at_mut(row, column) += from.at(row, column);
            }
        }
        to.round(rows);
    }

    fn clear(&self, rows: usize, matrix: &mut ReferenceMatrix) {
        matrix.values[..rows * matrix.columns].fill(0.0);
    }

    fn loss(
        &self,
        task: &Task,
        batch: &HostBatch,
        rows: Range<usize>,
        logits: &ReferenceMatrix,
        gradient: &mut ReferenceMatrix,
        sums: &mut ReferenceMatrix,
    ) {
        let (of_label, labels) = (task.label, batch.labels(task.label));
        let weight = |row: usize| {
            let label = f64::from(labels[row]);
            let of_class = match &task.loss {
                Loss::BinaryCrossEntropy { positive_weight, negative_weight, .. } => {
                    label * positive_weight + (1.0 - label) * negative_weight
                }
                Loss::SquaredError => 1.0,
                Loss::CrossEntropy { class_weights, .. } => class_weights[labels[row] as usize],
            };
            of_class * f64::from(batch.weights()[row])
        };
        let weight_of_all: f64 = (0..batch.rows()).map(weight).sum();
        for (place, row) in rows.clone().enumerate() {
            let (logit, label) = (logits.at(place, of_label), f64::from(labels[row]));
            let (of_row, by_logits) = match &task.loss {
                Loss::BinaryCrossEntropy { smoothing, .. } => {
                    let label = label * (1.0 - smoothing) + smoothing / 2.0;
                    let softplus = logit.max(0.0) + (-logit.abs()).exp().ln_1p();
                    (softplus - logit * label, vec![sigmoid(logit) - label])
                }
                Loss::SquaredError => ((logit - label).powi(2), vec![2.0 * (logit - label)]),
                Loss::CrossEntropy { smoothing, class_weights } => classes::cross_entropy(
                    logits.row(place),
                    labels[row] as usize,
                    *smoothing,
                    class_weights.len(),
                ),
            };
            *sums.at_mut(of_label, 0) += weight(row) * of_row;
            *sums.at_mut(of_label, 1) += weight(row);
            for (column, by_logit) in (of_label..).zip(by_logits) {
                *gradient.at_mut(place, column) = if weight_of_all > 0.0 {
                    task.weight * weight(row) * by_logit / weight_of_all
                } else {
                    0.0
                };
            }
        }
        gradient.round(rows.len());
    }

    fn multiply(&self, rows: usize, factor: &ReferenceMatrix, matrix: &mut ReferenceMatrix) {
        let columns = matrix.columns;
        matrix.values[..rows * columns].iter_mut().for_each(|number| *number *= factor.at(0, 0));
        matrix.round(rows);
    }

    fn sigmoid(&self, rows: usize, logits: &ReferenceMatrix, out: &mut ReferenceMatrix) {
        for row in 0..rows {
            for column in 0..logits.columns {
                *out.at_mut(row, column) = sigmoid(logits.at(row, column));
            }
        }
        out.round(rows);
    }

    fn softmax(&self, rows: usize, logits: &ReferenceMatrix, out: &mut ReferenceMatrix) {
        for row in 0..rows {
            for (column, probability) in classes::softmax(logits.row(row)).into_iter().enumerate() {
                *out.at_mut(row, column) = probability;
            }
        }
        out.round(rows);
    }

    fn squares(&self, gradient: &ReferenceMatrix, sum: &mut ReferenceMatrix) {
        *sum.at_mut(0, 0) += gradient.values.iter().map(|g| g * g).sum::<f64>();
    }

    fn row_squares(
        &self,
        gradients: &RowGradients<'_, Self>,
        tables: &[ReferenceTable],
        sum: &mut ReferenceMatrix,
    ) {
        let widths: Vec<usize> = tables.iter().map(|table| table.shape.width).collect();
        for_each_touched(gradients, &widths, |_, _, g| {
            *sum.at_mut(0, 0) += g.iter().map(|g| g * g).sum::<f64>();
        });
    }

    fn clip_scale(&self, maximum: f64, squares: &ReferenceMatrix, scale: &mut ReferenceMatrix) {
        let norm = squares.at(0, 0).sqrt();
        *scale.at_mut(0, 0) = match norm {
            _ if !norm.is_finite() => f64::NAN,
            _ if norm <= maximum => 1.0,
            _ => maximum / norm,
        };
    }

    fn unscale(
        &self,
        rule: &LossScaling,
        maximum: Option<f64>,
        squares: &ReferenceMatrix,
        state: &mut ReferenceMatrix,
        scale: &mut ReferenceMatrix,
    ) {
        let before = std::array::from_fn(|number| state.at(0, number));
        let (by, after) = rule.unscale(maximum, squares.at(0, 0), before, |number| number);
        *scale.at_mut(0, 0) = by;
        state.values.copy_from_slice(&after);
    }

    fn step(
        &self,
        update: &Update,
        scale: &ReferenceMatrix,
        weights: &mut ReferenceMatrix,
        states: &mut [ReferenceMatrix],
        gradient: &ReferenceMatrix,
    ) {
        if scale.at(0, 0) == 0.0 {
            return;
        }
        for (item, (&g, w)) in gradient.values.iter().zip(&mut weights.values).enumerate() {
            let state = states.iter_mut().map(|state| &mut state.values[item]);
            step_one(&update.formula, w, state, shaped(update, scale.at(0, 0), g, *w));
        }
    }

    fn step_rows(
        &self,
        update: &Update,
        scale: &ReferenceMatrix,
        draws: u64,
        gradients: &RowGradients<'_, Self>,
        tables: &mut [ReferenceTable],
    ) {
        if scale.at(0, 0) == 0.0 {
            return;
        }
        let widths: Vec<usize> = tables.iter().map(|table| table.shape.width).collect();
        for_each_touched(gradients, &widths, |table, id, g| {
            let table = &mut tables[table];
            let weights = table.row(id as u32);
            let g: Vec<f64> =
                g.iter().zip(weights).map(|(&g, &w)| shaped(update, scale.at(0, 0), g, w)).collect();
            table.step_row(&update.formula, draws, id, &g);
        });
    }
}

/// `max(x, 0)` that keeps a NaN.
fn relu(x: f64) -> f64 {
    if x < 0.0 { 0.0 } else { x }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}
