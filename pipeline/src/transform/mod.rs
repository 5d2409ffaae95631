//! Raw columns into dense values and ids.
//!
//! A [`Transform`] is a job's features with all that was learned filled in: a pure function from a raw
//! chunk to a [`Chunk`]. It works a column at a time, by loops made for the column's type, most of which
//! the compiler turns into vector instructions (`simd.rs`); nothing is allocated for a value. The columns
//! are then laid into the chunk's row-major blocks (`rows.rs`).
//!
//! Results are the same bits on every machine: ids are whole numbers, and floats are worked out by
//! operations that IEEE 754 fixes, the logarithm (`logarithm.rs`) included.
//!
//! | kind | file |
//! |---|---|
//! | numeric | `numeric.rs` |
//! | bucketized | `bucketized.rs` |
//! | vocabulary | `vocabulary.rs` |
//! | hashed | `hashed.rs`; the hashing is in `integer.rs` and `text.rs` |
//! | identity | `identity.rs` |
//! | crossed | `crossed.rs` |
//! | lists of any but numeric | `multivalued.rs` |
//!
//! What ids of one job are in another is `carried.rs`.
//!
//! A row with a value that cannot be used is a bad record: it is left out whole and counted, or it ends
//! the job with its address.

mod bucketized;
mod carried;
pub(crate) mod column;
mod crossed;
mod decimal;
mod encoder;
pub(crate) mod fault;
mod hashed;
mod identity;
mod integer;
pub(crate) mod label;
pub(crate) mod logarithm;
mod memo;
mod multivalued;
mod numeric;
mod resolve;
mod rows;
mod simd;
mod temporal;
#[cfg(test)]
mod tests;
mod text;
mod vocabulary;
mod work;

use arrow_array::Array;
use arrow_array::cast::AsArray;

use millstream_batch::{BatchSchema, IdFeature, RaggedFeature};

use crate::Error;
use crate::chunk::Chunk;
use crate::dataset::{BadRecords, Projection, RawChunk};

pub use carried::{CarriedIds, Learned, carried_ids};
use column::{Missing, NUMBERS, Number, Single, TEXTS, numbers};
use crossed::{Crossed, Part, SeveralValues, Unusable};
use encoder::Encoder;
use fault::{Problem, settle, wrong_type};
use label::Meaning;
use memo::Memo;
pub use numeric::Scaling;
use numeric::{NotScaled, Numeric};
use work::Work;

/// An element that has no id: text where numbers are needed, NaN, or a number out of range.
const INVALID: u32 = u32::MAX;

/// What numeric and bucketized features expect of a value, for messages.
const A_NUMBER: &str = "a number";

/// A job's features, resolved: what turns raw chunks into [`Chunk`]s.
#[derive(Clone, Debug)]
pub struct Transform {
    /// The features' columns, then the labels' and the weight's where no feature has them.
    projection: Projection,
    /// How many of those the features read.
    feature_columns: usize,
    /// None where the data has none.
    labels: Vec<Label>,
    /// The weight's column.
    weight: Option<usize>,
    /// Names of the labels, where they have any.
    label_names: Vec<String>,
    weighted: bool,
    features: Vec<Feature>,
    missing: Missing,
    /// Names of the dense columns.
    dense: Vec<String>,
    ids: Vec<IdFeature>,
    ragged: Vec<RaggedFeature>,
}

/// What [`Transform::apply`] made of a raw chunk.
#[derive(Clone, Debug, PartialEq)]
pub struct Transformed {
    /// The rows that could be used, in their order.
    pub chunk: Chunk,
    /// Rows that lost values of a multi-valued feature to its maximum, counted once for each feature.
    pub truncated_rows: u64,
}

#[derive(Clone, Debug)]
struct Label {
    column: usize,
    meaning: Meaning,
}

#[derive(Clone, Debug)]
struct Feature {
    /// Positions in the projection.
    columns: Vec<usize>,
    /// That of its values' weights.
    weights: Option<usize>,
    encoder: Encoder,
    place: Place,
}

/// Where a feature goes in a chunk, by its position there.
#[derive(Clone, Copy, Debug)]
enum Place {
    Dense,
    Id(usize),
    Ragged(usize),
}

/// What a transform keeps from chunk to chunk of one stream of them: what became of dictionaries, so as not to
/// work it out again, and the memory of its columns, which it would otherwise ask the system for each
/// time. What it makes of a chunk does not depend on it.
#[derive(Debug, Default)]
pub struct Memory {
    /// By feature.
    memos: Vec<Memos>,
    /// Columns that are no longer needed.
    dense: Vec<Vec<f32>>,
    ids: Vec<Vec<u32>>,
}

/// What became of a feature's dictionary.
#[derive(Debug, Default)]
struct Memos {
    scaled: Memo<f32>,
    ids: Memo<u32>,
}

impl Transform {
    /// The same transform for data without labels: those columns are not read, labels are 0 and weights 1.
    pub fn without_label(mut self) -> Self {
        self.projection.columns.truncate(self.feature_columns);
        self.labels.clear();
        self.weight = None;
        self
    }

    /// The most bytes that a [`Memory`] keeps for chunks of so many rows, besides the ids of dictionaries.
    pub(crate) fn column_bytes(&self, chunk_rows: usize) -> u64 {
        4 * (self.dense.len() + self.ids.len()) as u64 * chunk_rows as u64
    }

    /// The numeric features, in the order of the dense columns, each with how it is scaled.
    pub fn scalings(&self) -> impl Iterator<Item = (&str, Scaling)> {
        let scalings = self.features.iter().filter_map(|feature| match &feature.encoder {
            Encoder::Numeric(numeric) => Some(numeric.scaling()),
            _ => None,
        });
        self.dense.iter().map(String::as_str).zip(scalings)
    }

    /// The columns that raw chunks must have, in this order.
    pub fn projection(&self) -> &Projection {
        &self.projection
    }

    /// The batches that chunks are packed into: numeric features are dense columns, features with one
    /// value a row are ids, multi-valued ones are ragged, each in the order of the job.
    pub fn schema(&self, rows: u32, position_bytes: u32) -> BatchSchema {
        BatchSchema {
            rows,
            labels: self.label_names.clone(),
            weighted: self.weighted,
            dense: self.dense.clone(),
            ids: self.ids.clone(),
            ragged: self.ragged.clone(),
            position_bytes,
        }
    }

    /// Transforms the rows of `raw`, whose columns are those of [`Transform::projection`].
    ///
    /// # Errors
    /// When a column's type is of no use to its features, and when `bad` does not put up with a row that
    /// has an unusable value.
    pub fn apply(&self, raw: &RawChunk, bad: &BadRecords) -> Result<Transformed, Error> {
        self.apply_with(&mut Memory::default(), raw, bad)
    }

    /// The same, for one of many chunks. `memory` is of this transform alone.
    ///
    /// # Errors
    /// As [`Transform::apply`].
    pub fn apply_with(
        &self,
        memory: &mut Memory,
        raw: &RawChunk,
        bad: &BadRecords,
    ) -> Result<Transformed, Error> {
        let rows = raw.rows();
        let mut work = Work::new(raw, self.label_names.len().max(1), self.weighted);
        self.labels(&mut work)?;
        memory.memos.resize_with(self.features.len(), Memos::default);
        for (feature, memo) in self.features.iter().zip(&mut memory.memos) {
            match &feature.encoder {
                Encoder::Numeric(numeric) => {
                    let spare = memory.dense.pop().unwrap_or_default();
                    self.dense(numeric, feature.columns[0], &mut memo.scaled, spare, &mut work)?;
                }
                Encoder::Crossed(crossed) => self.cross(feature, crossed, &mut work)?,
                encoder => {
                    let spare = memory.ids.pop().unwrap_or_default();
                    self.categorical(encoder, feature, &mut memo.ids, spare, &mut work)?;
                }
            }
        }
        let Work { mut labels, weights, dense, ids, ragged, faults, truncated_rows, .. } = work;
        let blocks = (rows::interleaved(&dense, rows), rows::interleaved(&ids, rows));
        let more_labels = rows::interleaved(&labels[1..], rows);
        let labels = labels.swap_remove(0);
        let mut chunk = Chunk { labels, more_labels, weights, dense: blocks.0, ids: blocks.1, ragged };
        (memory.dense, memory.ids) = (dense, ids);
        if let Some(keep) = settle(raw, faults, bad)? {
            chunk.retain_rows(&keep);
        }
        Ok(Transformed { chunk, truncated_rows })
    }

    fn labels(&self, work: &mut Work<'_>) -> Result<(), Error> {
        let mut labels = std::mem::take(&mut work.labels);
        for (Label { column, meaning }, labels) in self.labels.iter().zip(&mut labels) {
            let elements = work.elements(*column);
            let targets = meaning.labels(&elements.leaf, &self.missing);
            let targets = targets.ok_or_else(|| wrong_type(work.raw, *column, TEXTS))?;
            work.targets(*column, &elements, &targets, meaning.expected(), labels);
        }
        work.labels = labels;
        // Without a column of them, the weights of a weighted schema stay 1.
        let Some(column) = self.weight else { return Ok(()) };
        let Some(mut weights) = work.weights.take() else { return Ok(()) };
        let elements = work.elements(column);
        let targets = label::weights(&elements.leaf, &self.missing);
        let targets = targets.ok_or_else(|| wrong_type(work.raw, column, NUMBERS))?;
        work.targets(column, &elements, &targets, "a finite weight of at least 0", &mut weights);
        work.weights = Some(weights);
        Ok(())
    }

    fn dense(
        &self,
        numeric: &Numeric,
        column: usize,
        memo: &mut Memo<f32>,
        spare: Vec<f32>,
        work: &mut Work<'_>,
    ) -> Result<(), Error> {
        let elements = work.elements_with_dictionary(column);
        if !elements.are_lists()
            && let Some(values) = numeric.values(&elements.leaf, &self.missing, memo, spare)
        {
            work.dense.push(values);
            return Ok(());
        }
        let elements = work.elements(column);
        let scaled = numbers(&elements.leaf, &self.missing, |number| numeric.value(number));
        let scaled = scaled.ok_or_else(|| wrong_type(work.raw, column, NUMBERS))?;
        let mut values = vec![0.0; work.raw.rows()];
        for (row, out) in values.iter_mut().enumerate() {
            let (element, value) = match elements.single(row) {
                Single::One(element) => (element, scaled[element]),
                Single::Absent => (0, numeric.value(Number::Absent)),
                Single::Several(count) => {
                    work.fault(row, column, Problem::Several(count));
                    continue;
                }
            };
            match value {
                Ok(value) => *out = value,
                Err(NotScaled::Absent) => work.fault(row, column, Problem::AbsentNumber),
                Err(NotScaled::NotFinite) => {
                    work.fault(row, column, Problem::Unusable { element, expected: A_NUMBER });
                }
            }
        }
        work.dense.push(values);
        Ok(())
    }

    fn categorical(
        &self,
        encoder: &Encoder,
        feature: &Feature,
        memo: &mut Memo<u32>,
        spare: Vec<u32>,
        work: &mut Work<'_>,
    ) -> Result<(), Error> {
        let column = feature.columns[0];
        let elements = work.elements_with_dictionary(column);
        let absent = self.cardinality(feature.place) - 1;
        let codes = match elements.leaf.as_any_dictionary_opt() {
            Some(dictionary) => {
                let of_values = |values: &dyn Array| encoder.codes(values, &self.missing, Vec::new());
                memo.look_up(dictionary, absent, spare, of_values)
            }
            None => encoder.codes(&elements.leaf, &self.missing, spare),
        };
        let codes = codes.ok_or_else(|| wrong_type(work.raw, column, encoder.expected()))?;
        let rows = work.raw.rows();
        if let Place::Ragged(position) = feature.place {
            let maximum = self.ragged[position].maximum;
            let (ragged, filled) = match feature.weights {
                None => multivalued::fill(&elements, &codes, absent, maximum, rows),
                Some(of_weights) => {
                    let weights = self.value_weights(of_weights, work)?;
                    let elements = (&elements, column);
                    let (ragged, filled) =
                        multivalued::fill_weighted(elements, &codes, &weights, absent, maximum, rows);
                    for &(row, problem) in &filled.unweighted {
                        work.fault(row, of_weights, problem);
                    }
                    (ragged, filled)
                }
            };
            for &(row, element) in &filled.invalid {
                work.fault(row, column, encoder.problem(element));
            }
            work.ragged(ragged, &filled);
            return Ok(());
        }
        let mut ids = codes;
        if elements.are_lists() {
            let codes = std::mem::replace(&mut ids, vec![absent; rows]);
            for (row, id) in ids.iter_mut().enumerate() {
                match elements.single(row) {
                    Single::One(element) if codes[element] == INVALID => {
                        work.fault(row, column, encoder.problem(element));
                    }
                    Single::One(element) => *id = codes[element],
                    Single::Absent => {}
                    Single::Several(count) => work.fault(row, column, Problem::Several(count)),
                }
            }
        } else if ids.contains(&INVALID) {
            for (row, id) in ids.iter_mut().enumerate().filter(|(_, id)| **id == INVALID) {
                *id = absent;
                work.fault(row, column, encoder.problem(row));
            }
        }
        work.ids.push(ids);
        Ok(())
    }

    fn value_weights(&self, column: usize, work: &Work<'_>) -> Result<multivalued::Weights, Error> {
        let elements = work.elements(column);
        let targets = label::value_weights(&elements.leaf, &self.missing);
        let targets = targets.ok_or_else(|| wrong_type(work.raw, column, NUMBERS))?;
        Ok(multivalued::Weights { elements, targets })
    }

    fn cross(&self, feature: &Feature, crossed: &Crossed, work: &mut Work<'_>) -> Result<(), Error> {
        let rows = work.raw.rows();
        let mut parts = Vec::with_capacity(feature.columns.len());
        for (part, &column) in feature.columns.iter().enumerate() {
            let elements = work.elements(column);
            let mut unusable = Vec::new();
            let fingerprints = crossed
                .fingerprints(part, &elements.leaf, &self.missing, &mut unusable)
                .ok_or_else(|| {
                    let expected = if crossed.wants_numbers(part) { NUMBERS } else { TEXTS };
                    wrong_type(work.raw, column, expected)
                })?;
            for Unusable(element) in unusable {
                if let Some(row) = elements.row_of(element) {
                    work.fault(row, column, Problem::Unusable { element, expected: A_NUMBER });
                }
            }
            parts.push(Part { elements, fingerprints });
        }
        if let Place::Ragged(position) = feature.place {
            let maximum = self.ragged[position].maximum;
            let (ragged, filled) = multivalued::fill_crossed(crossed, &parts, maximum, rows);
            work.ragged(ragged, &filled);
            return Ok(());
        }
        let mut ids = vec![0; rows];
        for (row, out) in ids.iter_mut().enumerate() {
            match crossed.code(&parts, row) {
                Ok(id) => *out = id,
                Err(SeveralValues { part, count }) => {
                    work.fault(row, feature.columns[part], Problem::Several(count));
                }
            }
        }
        work.ids.push(ids);
        Ok(())
    }

    /// Ids of a feature that has any; the last is that of missing values.
    fn cardinality(&self, place: Place) -> u32 {
        match place {
            Place::Dense => 1,
            Place::Id(position) => self.ids[position].cardinality,
            Place::Ragged(position) => self.ragged[position].cardinality,
        }
    }
}
