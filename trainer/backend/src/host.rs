//! A validated batch in host memory, from which both host backends read.

use millstream_batch::{BatchRef, BatchSchema, RaggedFeature};

use crate::device::{BatchShape, IdColumn, MatrixShape, Pooling, Scalar};
use crate::error::BatchError;

/// A copy of a batch whose ids are in range and whose offsets are valid.
///
/// Validation is meaningful only on a copy: another process can write to a slot of the ring.
pub struct HostBatch {
    schema: BatchSchema,
    shape: BatchShape,
    /// `[L, B]`, with space for the schema's rows per label.
    labels: Vec<f32>,
    /// `[B]`, ones if the schema is not weighted.
    weights: Vec<f32>,
    /// `[B, D]`
    dense: Vec<f32>,
    /// `[F, B]`, with space for the schema's rows per feature.
    ids: Vec<u32>,
    ragged: Vec<Ragged>,
}

/// A multi-valued feature: row `b` holds `values[offsets[b]..offsets[b + 1]]`.
struct Ragged {
    offsets: Vec<u32>,
    values: Vec<u32>,
    weights: Option<ValueWeights>,
}

/// The weights of a multi-valued feature's values.
struct ValueWeights {
    /// One weight per value.
    weights: Vec<f32>,
    /// The factor of each row's positive weights, one per row; 0 if a row has none.
    scales: RowScales,
}

/// For each pooling with a divisor: the reciprocal of the divisor.
struct RowScales {
    mean: Vec<f64>,
    sqrtn: Vec<f64>,
}

/// The ids of one column.
#[derive(Clone, Copy)]
pub(crate) enum Ids<'a> {
    /// One id per row.
    Single(&'a [u32]),
    /// Any number of ids per row: offsets `[B + 1]`, values.
    Ragged(&'a [u32], &'a [u32]),
    /// The same with weights.
    Weighted(&'a [u32], &'a [u32], Weights<'a>),
}

/// The weights of a column's values.
#[derive(Clone, Copy)]
pub(crate) struct Weights<'a> {
    /// Parallel to the values.
    pub(crate) of_values: &'a [f32],
    scales: &'a RowScales,
}

impl<'a> Weights<'a> {
    /// The values' shares for a pooling.
    pub(crate) fn shares(self, pooling: Pooling) -> Shares<'a> {
        Shares(match pooling {
            Pooling::Sum | Pooling::Max | Pooling::Unpooled(_) => None,
            Pooling::Mean => Some(&self.scales.mean),
            Pooling::SqrtN => Some(&self.scales.sqrtn),
        })
    }
}

/// The shares of weighted values in their rows: one scale per row, or `None` if weights count unscaled.
#[derive(Clone, Copy)]
pub(crate) struct Shares<'a>(Option<&'a [f64]>);

impl Shares<'_> {
    /// The share of a value of batch row `row` with this weight.
    ///
    /// Computed in fp64: the sum of some weights, and even more so of their squares, may overflow fp32 where the
    /// shares do not.
    #[inline(always)]
    pub(crate) fn of(self, row: usize, weight: f32) -> f32 {
        match self.0 {
            None => weight,
            Some(scales) => (f64::from(weight.max(0.0)) * scales[row]) as f32,
        }
    }
}

impl<'a> Ids<'a> {
    /// The ids of row `row`.
    pub(crate) fn row(self, row: usize) -> &'a [u32] {
        match self {
            Self::Single(ids) => &ids[row..=row],
            Self::Ragged(offsets, values) | Self::Weighted(offsets, values, _) => {
                &values[offsets[row] as usize..offsets[row + 1] as usize]
            }
        }
    }

    /// The weights of the ids of row `row`, if the column is weighted.
    pub(crate) fn weights_of_row(self, row: usize) -> Option<&'a [f32]> {
        match self {
            Self::Single(_) | Self::Ragged(..) => None,
            Self::Weighted(offsets, _, weights) => {
                Some(&weights.of_values[offsets[row] as usize..offsets[row + 1] as usize])
            }
        }
    }

    /// The number of ids of all rows.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Single(ids) | Self::Ragged(_, ids) | Self::Weighted(_, ids, _) => ids.len(),
        }
    }
}

impl HostBatch {
    pub(crate) fn new(schema: &BatchSchema) -> Self {
        let rows = schema.rows as usize;
        Self {
            schema: schema.clone(),
            shape: BatchShape::of(schema),
            labels: vec![0.0; schema.label_count() * rows],
            weights: vec![1.0; rows],
            dense: vec![0.0; rows * schema.dense.len()],
            ids: vec![0; rows * schema.ids.len()],
            ragged: schema
                .ragged
                .iter()
                .map(|feature| {
                    let values = rows * feature.maximum as usize;
                    Ragged {
                        offsets: vec![0; rows + 1],
                        values: vec![0; values],
                        weights: feature.weighted.then(|| ValueWeights::new(rows, values)),
                    }
                })
                .collect(),
        }
    }

    /// Size of a batch of `schema`, in bytes.
    pub(crate) fn bytes(schema: &BatchSchema) -> u64 {
        // Weights, and scales in fp64.
        let more = |feature: &RaggedFeature| u64::from(feature.weighted) * (u64::from(feature.maximum) + 4);
        let ragged = schema.ragged.iter().map(|feature| 1 + u64::from(feature.maximum) + more(feature));
        let columns = schema.label_count() + 1 + schema.dense.len() + schema.ids.len();
        let words = columns as u64 + ragged.sum::<u64>();
        u64::from(schema.rows) * words * size_of::<u32>() as u64
    }

    /// Copies and validates `batch`. After an error the batch has no rows.
    pub(crate) fn upload(&mut self, batch: BatchRef<'_>) -> Result<(), BatchError> {
        self.shape.rows = 0;
        if !fits(&self.schema, batch.layout().schema()) {
            return Err(BatchError::WrongSchema);
        }
        let rows = batch.rows();
        let stride = self.schema.rows as usize;
        for label in 0..self.schema.label_count() {
            self.labels[label * stride..][..rows].copy_from_slice(batch.labels(label));
        }
        if let Some(weights) = batch.weights() {
            self.weights[..rows].copy_from_slice(weights);
        }
        let dense = batch.dense();
        self.dense[..dense.len()].copy_from_slice(dense);
        for (feature, spec) in self.schema.ids.iter().enumerate() {
            let ids = &mut self.ids[feature * stride..][..rows];
            ids.copy_from_slice(batch.ids(feature));
            check_ids(&spec.name, spec.cardinality, ids, |position| position)?;
        }
        for (feature, spec) in self.schema.ragged.iter().enumerate() {
            let (offsets, values) = batch.ragged(feature);
            let ragged = &mut self.ragged[feature];
            ragged.offsets[..=rows].copy_from_slice(offsets);
            ragged.values[..values.len()].copy_from_slice(values);
            let offsets = &ragged.offsets[..=rows];
            check_offsets(&spec.name, spec.maximum, offsets, values.len())?;
            let row_of = |position| offsets.partition_point(|&start| start as usize <= position) - 1;
            check_ids(&spec.name, spec.cardinality, &ragged.values[..values.len()], row_of)?;
            if let (Some(into), Some(weights)) = (&mut ragged.weights, batch.ragged_weights(feature)) {
                into.fill(offsets, &weights[..values.len()]);
            }
        }
        self.shape.set(batch);
        Ok(())
    }

    pub(crate) fn shape(&self) -> &BatchShape {
        &self.shape
    }

    pub(crate) fn rows(&self) -> usize {
        self.shape.rows
    }

    /// Label `label` of each row.
    pub(crate) fn labels(&self, label: usize) -> &[f32] {
        &self.labels[label * self.schema.rows as usize..][..self.shape.rows]
    }

    pub(crate) fn weights(&self) -> &[f32] {
        &self.weights[..self.shape.rows]
    }

    /// Dense values of row `row`, `[D]`.
    pub(crate) fn dense(&self, row: usize) -> &[f32] {
        let columns = self.schema.dense.len();
        &self.dense[row * columns..][..columns]
    }

    /// The ids of a single-valued feature.
    pub(crate) fn single_ids(&self, feature: usize) -> &[u32] {
        &self.ids[feature * self.schema.rows as usize..][..self.shape.rows]
    }

    pub(crate) fn ids(&self, column: IdColumn) -> Ids<'_> {
        match column {
            IdColumn::Single(feature) => Ids::Single(self.single_ids(feature)),
            IdColumn::Ragged(feature) => {
                let ragged = &self.ragged[feature];
                let offsets = &ragged.offsets[..=self.shape.rows];
                let count = offsets[self.shape.rows] as usize;
                let values = &ragged.values[..count];
                match &ragged.weights {
                    None => Ids::Ragged(offsets, values),
                    Some(ValueWeights { weights, scales }) => {
                        Ids::Weighted(offsets, values, Weights { of_values: &weights[..count], scales })
                    }
                }
            }
        }
    }
}

impl ValueWeights {
    fn new(rows: usize, values: usize) -> Self {
        let scales = RowScales { mean: vec![0.0; rows], sqrtn: vec![0.0; rows] };
        Self { weights: vec![0.0; values], scales }
    }

    /// Copies the weights of the rows delimited by `offsets`.
    fn fill(&mut self, offsets: &[u32], weights: &[f32]) {
        self.weights[..weights.len()].copy_from_slice(weights);
        for (row, pair) in offsets.windows(2).enumerate() {
            let (mut sum, mut squares) = (0.0, 0.0);
            for &weight in &self.weights[pair[0] as usize..pair[1] as usize] {
                let weight = f64::from(weight.max(0.0));
                sum += weight;
                squares += weight * weight;
            }
            let over = |divisor: f64| if divisor > 0.0 { 1.0 / divisor } else { 0.0 };
            self.scales.mean[row] = over(sum);
            self.scales.sqrtn[row] = over(squares.sqrt());
        }
    }
}

/// The holders of the maxima of a batch's lookups, on a host backend.
pub struct HostMaxima {
    rows: usize,
    columns: usize,
    /// `[B, columns]`: the holder's id on the CPU, and its place among the row's ids on the reference. Rows without ids
    /// keep what they have.
    holders: Vec<u32>,
}

impl HostMaxima {
    pub(crate) fn new(rows: usize, columns: usize) -> Self {
        Self { rows, columns, holders: vec![0; rows * columns] }
    }

    /// Size of a record of maxima, in bytes.
    pub(crate) fn bytes(rows: usize, columns: usize) -> u64 {
        (rows as u64).saturating_mul((columns * size_of::<u32>()) as u64)
    }

    pub(crate) fn shape(&self) -> MatrixShape {
        MatrixShape { rows: self.rows, columns: self.columns, number_bytes: size_of::<u32>() }
    }

    pub(crate) fn as_slice(&self) -> &[u32] {
        &self.holders
    }

    /// The rows from `first` on.
    pub(crate) fn rows_from(&mut self, first: usize) -> &mut [u32] {
        &mut self.holders[first * self.columns..]
    }

    /// The holders of the maxima of batch row `row`.
    pub(crate) fn row(&self, row: usize) -> &[u32] {
        &self.holders[row * self.columns..][..self.columns]
    }
}

/// A report of a step on the host, where the values are available at once.
pub struct HostReport<S>(Vec<S>);

impl<S: Scalar> HostReport<S> {
    pub(crate) fn new(numbers: usize) -> Self {
        Self(vec![S::default(); numbers])
    }

    /// Size of a report of `numbers` values, in bytes.
    pub(crate) fn bytes(numbers: usize) -> u64 {
        (numbers * size_of::<S>()) as u64
    }

    /// Stores all of `matrices`, each of `numbers` values, which `read` copies.
    pub(crate) fn take<M>(
        &mut self,
        matrices: &[&M],
        numbers: impl Fn(&M) -> usize,
        read: impl Fn(&M, &mut [S]),
    ) {
        let mut rest = self.0.as_mut_slice();
        for matrix in matrices {
            let (of_matrix, others) = rest.split_at_mut(numbers(matrix));
            read(matrix, of_matrix);
            rest = others;
        }
    }

    pub(crate) fn copy_to(&self, numbers: &mut [S]) {
        numbers.copy_from_slice(&self.0[..numbers.len()]);
    }
}

/// Whether a buffer for batches of schema `held` can take one of `given`: the same features, and at most as many
/// rows.
pub(crate) fn fits(held: &BatchSchema, given: &BatchSchema) -> bool {
    given.rows <= held.rows
        && given.labels == held.labels
        && given.weighted == held.weighted
        && given.dense == held.dense
        && given.ids == held.ids
        && given.ragged == held.ragged
}

/// The upper bound of the ids in `column`.
pub(crate) fn cardinality(schema: &BatchSchema, column: IdColumn) -> u32 {
    match column {
        IdColumn::Single(feature) => schema.ids[feature].cardinality,
        IdColumn::Ragged(feature) => schema.ragged[feature].cardinality,
    }
}

/// Whether `column` is weighted.
pub(crate) fn is_weighted(schema: &BatchSchema, column: IdColumn) -> bool {
    match column {
        IdColumn::Single(_) => false,
        IdColumn::Ragged(feature) => schema.ragged[feature].weighted,
    }
}

/// The most ids that one batch can have in `column`.
pub(crate) fn capacity(schema: &BatchSchema, column: IdColumn) -> usize {
    let rows = schema.rows as usize;
    match column {
        IdColumn::Single(_) => rows,
        IdColumn::Ragged(feature) => rows * schema.ragged[feature].maximum as usize,
    }
}

fn check_ids(
    feature: &str,
    cardinality: u32,
    ids: &[u32],
    row_of: impl Fn(usize) -> usize,
) -> Result<(), BatchError> {
    // The fold vectorizes; the search for the invalid id runs only if there is one.
    let largest = ids.iter().fold(0, |largest, &id| largest.max(id));
    if ids.is_empty() || largest < cardinality {
        return Ok(());
    }
    let position = ids.iter().position(|&id| id >= cardinality).unwrap_or_default();
    Err(BatchError::IdOutOfRange {
        feature: feature.to_owned(),
        row: row_of(position),
        id: ids[position],
        cardinality,
    })
}

fn check_offsets(feature: &str, maximum: u32, offsets: &[u32], values: usize) -> Result<(), BatchError> {
    let bad = |row: usize, from, to| BatchError::BadOffsets { feature: feature.to_owned(), row, from, to };
    if offsets[0] != 0 {
        return Err(bad(0, offsets[0], offsets[0]));
    }
    for (row, pair) in offsets.windows(2).enumerate() {
        let holds = pair[0] <= pair[1] && pair[1] - pair[0] <= maximum && pair[1] as usize <= values;
        if !holds {
            return Err(bad(row, pair[0], pair[1]));
        }
    }
    Ok(())
}
