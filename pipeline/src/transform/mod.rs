//! Turns raw columns into dense values and ids.
//!
//! A [`Transform`] is a job's features with all learned statistics resolved: a pure function from a raw chunk to a
//! [`Chunk`]. It processes one column at a time with loops specialized for the column's type. The compiler vectorizes
//! most of them (`simd.rs`), and nothing is allocated per value. The finished columns are then interleaved into the
//! chunk's row-major blocks (`rows.rs`).
//!
//! Results are bit-identical on every machine: ids are integers, and floats use only operations that
//! IEEE 754 defines exactly, including the logarithm (`logarithm.rs`).
//!
//! | kind | file |
//! |---|---|
//! | numeric | `numeric.rs` |
//! | bucketized | `bucketized.rs` |
//! | vocabulary | `vocabulary.rs` |
//! | hashed | `hashed.rs`; the hashing is in `integer.rs` and `text.rs` |
//! | identity | `identity.rs` |
//! | crossed | `crossed.rs` |
//! | lists of any kind but numeric | `multivalued.rs` |
//!
//! Typed columns, for programs that bring their own model, are in `typed.rs`.
//!
//! `id_mapping.rs` maps the ids of one job to those of another.
//!
//! A row with an unusable value is a bad record: the whole row is skipped and counted, or the job fails
//! with the record's address.

mod bucketized;
mod chunk_builder;
pub mod column;
mod crossed;
mod decimal;
mod encoder;
pub(crate) mod fault;
mod hashed;
mod id_mapping;
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
pub mod temporal;
#[cfg(test)]
mod tests;
mod text;
mod typed;
mod vector;
mod vocabulary;

use std::sync::Arc;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use millstream_batch::{BatchSchema, IdFeature, RaggedFeature};
use millstream_format::{Projection, RawChunk};

use crate::Error;
use crate::bad_records::BadRecords;
use crate::chunk::Chunk;
use crate::images::ImageColumn;
use crate::order::Position;
use crate::sequences::{SequenceColumns, SequenceSpec};
use crate::spec::DataSpec;

use chunk_builder::ChunkBuilder;
use column::{Missing, NUMBERS, Number, Single, TEXTS, numbers};
use crossed::{Crossed, Part, SeveralValues, Unusable};
use encoder::Encoder;
use fault::{Fault, Problem, reject_faulty_rows, wrong_type};
pub use id_mapping::{IdMapping, LearnedFeature, map_ids};
use label::Label;
pub(crate) use label::Labels;
use memo::Memo;
use numeric::ScaleError;
pub use numeric::Scaling;
pub(crate) use resolve::project;
use typed::TypedColumn;

/// Marks an element without an id: text where numbers are required, NaN, or a number out of range.
const INVALID: u32 = u32::MAX;

/// The value that numeric and bucketized features expect, for error messages.
const A_NUMBER: &str = "a number";

/// A job's resolved features: converts raw chunks to [`Chunk`]s.
#[derive(Clone, Debug)]
pub struct Transform {
    /// The features' columns, then label and weight columns that no feature reads.
    projection: Projection,
    /// The length of the prefix of `projection` that the features read.
    feature_columns: usize,
    /// Empty when the data has no labels.
    labels: Vec<Label>,
    /// The position of the weight column in `projection`.
    weight: Option<usize>,
    /// Empty for a single unnamed label.
    label_names: Vec<String>,
    weighted: bool,
    features: Vec<Feature>,
    missing: Missing,
    /// Names of the dense columns.
    dense: Vec<String>,
    ids: Vec<IdFeature>,
    ragged: Vec<RaggedFeature>,
    columns: Vec<TypedColumn>,
    /// Set if rows are documents, which are packed into sequences.
    sequences: Option<SequenceSpec>,
}

/// The result of [`Transform::apply`].
#[derive(Clone, Debug, PartialEq)]
pub struct Transformed {
    /// The usable rows, in input order.
    pub chunk: Chunk,
    /// Which rows of the input are usable; `None` if all are.
    pub usable: Option<Vec<bool>>,
    /// Rows truncated to a multi-valued feature's maximum, counted once per feature.
    pub truncated_rows: u64,
}

#[derive(Clone, Debug)]
struct Feature {
    /// Positions in the projection.
    columns: Vec<usize>,
    /// The position of the column that holds its values' weights.
    weights: Option<usize>,
    encoder: Encoder,
    place: Place,
}

/// Where a feature is stored in a chunk, with its position there.
#[derive(Clone, Copy, Debug)]
enum Place {
    Dense,
    Id(usize),
    Ragged(usize),
}

/// State that a transform reuses from chunk to chunk of one stream: converted dictionaries, and column
/// buffers, which save an allocation per chunk. It never affects results.
#[derive(Debug, Default)]
pub struct Scratch {
    /// By feature.
    memos: Vec<FeatureMemos>,
    /// Buffers for reuse.
    dense: Vec<Vec<f32>>,
    ids: Vec<Vec<u32>>,
}

/// The converted dictionary of a feature.
#[derive(Debug, Default)]
struct FeatureMemos {
    scaled: Memo<f32>,
    ids: Memo<u32>,
}

impl Transform {
    /// The same transform for unlabelled data: reads no label or weight columns; labels are 0, weights 1.
    pub fn without_label(mut self) -> Self {
        self.projection.columns.truncate(self.feature_columns);
        self.labels.clear();
        self.weight = None;
        self
    }

    /// The maximum bytes of column buffers in a [`Scratch`] for chunks of `chunk_rows` rows, and of the values of all narrow
    /// typed columns and one other before they are arranged in rows. Excludes converted dictionaries.
    pub fn column_bytes(&self, chunk_rows: usize) -> u64 {
        let narrow = self.columns.iter().filter(|column| column.narrow_at.is_some());
        let narrow: u64 = narrow.map(|column| column.column.kind.row_bytes()).sum();
        let scratch = 4 * (self.dense.len() + self.ids.len()) as u64 + narrow;
        let of_column = |column: &TypedColumn| match (&column.image, &column.tokens) {
            (Some(_), _) => (0, 0),
            (_, Some(tokens)) => tokens.reading_bytes(),
            _ => (column.column.kind.row_bytes(), 0),
        };
        let (typed, besides) = self.columns.iter().map(of_column).max().unwrap_or((0, 0));
        scratch.saturating_add(typed).saturating_mul(chunk_rows as u64).saturating_add(besides)
    }

    /// The memory that it needs as long as it exists: that of tokenizers.
    pub fn held_bytes(&self) -> u64 {
        let tokens = self.columns.iter().filter_map(|column| column.tokens.as_ref());
        tokens.map(|tokens| tokens.held_bytes()).sum()
    }

    /// The dense columns with their scaling, in order.
    pub fn scalings(&self) -> impl Iterator<Item = (&str, Scaling)> {
        let scalings = self.features.iter().flat_map(|feature| match &feature.encoder {
            Encoder::Numeric(scaling) => std::iter::repeat_n(*scaling, 1),
            Encoder::Vector(vector) => std::iter::repeat_n(vector.scaling, vector.size),
            _ => std::iter::repeat_n(Scaling::IDENTITY, 0),
        });
        self.dense.iter().map(String::as_str).zip(scalings)
    }

    /// The columns of images.
    pub fn images(&self) -> impl Iterator<Item = ImageColumn> {
        self.columns.iter().enumerate().filter_map(|(number, column)| {
            let spec = Arc::clone(column.image.as_ref()?);
            Some(ImageColumn { number, name: column.column.name.clone(), spec })
        })
    }

    /// The columns of tokens and how their documents are packed, if rows are documents.
    pub fn sequences(&self) -> Option<SequenceColumns> {
        let spec = self.sequences.clone()?;
        Some(SequenceColumns::new(spec, self.columns.iter().filter_map(TypedColumn::token_column).collect()))
    }

    /// The columns that raw chunks must have, in order.
    pub fn projection(&self) -> &Projection {
        &self.projection
    }

    /// The schema of the packed batches: numbers and components of vectors are dense columns, features with one value per
    /// row are ids, and multi-valued features are ragged, each in the job's order. Typed columns are as specified, and
    /// columns that describe sequences follow them.
    pub fn schema(&self, rows: u32, position_bytes: u32) -> BatchSchema {
        let describing = self.sequences.iter().flat_map(SequenceSpec::describing_columns);
        BatchSchema {
            rows,
            labels: self.label_names.clone(),
            weighted: self.weighted,
            dense: self.dense.clone(),
            ids: self.ids.clone(),
            ragged: self.ragged.clone(),
            columns: self.columns.iter().map(|column| column.column.clone()).chain(describing).collect(),
            position_bytes,
        }
    }

    /// The contents of a slot for a global batch of this data section.
    pub fn batch_schema(&self, data: &DataSpec) -> BatchSchema {
        let position_bytes = Position::encoded_bytes(data.lanes);
        self.schema(data.batch_size, u32::try_from(position_bytes).unwrap_or(u32::MAX))
    }

    /// Transforms the rows of `raw`, whose columns must match [`Transform::projection`].
    ///
    /// # Errors
    /// A column's type does not suit its feature, or `bad` rejects a row with an unusable value.
    pub fn apply(&self, raw: &RawChunk, bad: &BadRecords) -> Result<Transformed, Error> {
        self.apply_with(&mut Scratch::default(), raw, bad)
    }

    /// Like [`Transform::apply`], with `scratch` reused across chunks. `scratch` must serve only this transform.
    ///
    /// # Errors
    /// As [`Transform::apply`].
    pub fn apply_with(
        &self,
        scratch: &mut Scratch,
        raw: &RawChunk,
        bad: &BadRecords,
    ) -> Result<Transformed, Error> {
        let rows = raw.rows();
        let mut builder = ChunkBuilder::new(raw);
        self.labels(&mut builder)?;
        scratch.memos.resize_with(self.features.len(), FeatureMemos::default);
        for (feature, memo) in self.features.iter().zip(&mut scratch.memos) {
            match &feature.encoder {
                Encoder::Numeric(scaling) => {
                    let spare = scratch.dense.pop().unwrap_or_default();
                    self.dense(scaling, feature.columns[0], &mut memo.scaled, spare, &mut builder)?;
                }
                Encoder::Vector(vector) => {
                    vector.fill(feature.columns[0], &self.missing, &mut scratch.dense, &mut builder)?;
                }
                Encoder::Crossed(crossed) => self.cross(feature, crossed, &mut builder)?,
                encoder => {
                    let spare = scratch.ids.pop().unwrap_or_default();
                    self.categorical(encoder, feature, &mut memo.ids, spare, &mut builder)?;
                }
            }
        }
        for column in &self.columns {
            column.fill(&self.missing, &mut builder)?;
        }
        if self.sequences.is_some() {
            self.finish_documents(&mut builder)?;
        }
        let ChunkBuilder { labels, weights, ragged, columns, faults, truncated_rows, .. } = builder;
        let mut chunk = Chunk {
            labels,
            weights,
            dense: rows::interleave(&builder.dense, rows),
            ids: rows::interleave(&builder.ids, rows),
            ragged,
            narrow: rows::interleave_narrow(&builder.narrow, rows),
            columns,
        };
        (scratch.dense, scratch.ids) = (builder.dense, builder.ids);
        let usable = reject_faulty_rows(raw, faults, bad)?;
        if let Some(usable) = &usable {
            chunk.retain_rows(usable);
        }
        Ok(Transformed { chunk, usable, truncated_rows })
    }

    fn labels(&self, builder: &mut ChunkBuilder<'_>) -> Result<(), Error> {
        let (raw, rows) = (builder.raw, builder.raw.rows());
        for label in &self.labels {
            builder.labels.push(label.read(raw, &self.missing, &mut builder.faults)?);
        }
        builder.labels.resize(self.label_names.len().max(1), vec![0.0; rows]);
        builder.weights = match self.weight {
            Some(column) => Some(label::weights(raw, column, &self.missing, &mut builder.faults)?),
            // Unlabelled data has no weight column.
            None => self.weighted.then(|| vec![1.0; rows]),
        };
        Ok(())
    }

    /// Checks that all columns of tokens have as many in each document, truncates them, and adds `bos` and `eos`.
    fn finish_documents(&self, builder: &mut ChunkBuilder<'_>) -> Result<(), Error> {
        let Some((first, others)) = builder.columns.split_first() else { return Ok(()) };
        let mut faults = Vec::new();
        for (column, spec) in others.iter().zip(&self.columns[1..]) {
            for row in 0..builder.raw.rows() {
                let [expected, found] = [first, column].map(|column| column.row_values(row as u32));
                if expected != found {
                    let problem = Problem::Tokens { column: self.columns[0].position, expected, found };
                    faults.push(Fault { row, column: spec.position, problem });
                }
            }
        }
        // A document with a fault of one value has that reported.
        builder.faults.extend(faults);
        let mut truncated = 0;
        for (documents, column) in builder.columns.iter_mut().zip(&self.columns) {
            if let Some(tokens) = &column.tokens {
                truncated = truncated.max(tokens.finish(documents)?);
            }
        }
        builder.truncated_rows += truncated;
        Ok(())
    }

    fn dense(
        &self,
        scaling: &Scaling,
        column: usize,
        memo: &mut Memo<f32>,
        spare: Vec<f32>,
        builder: &mut ChunkBuilder<'_>,
    ) -> Result<(), Error> {
        let elements = builder.elements_with_dictionary(column);
        if !elements.are_lists()
            && let Some(values) = scaling.values(&elements.leaf, &self.missing, memo, spare)
        {
            builder.dense.push(values);
            return Ok(());
        }
        let elements = builder.elements(column);
        let scaled = numbers(&elements.leaf, &self.missing, |number| scaling.value(number));
        let scaled = scaled.ok_or_else(|| wrong_type(builder.raw, column, NUMBERS))?;
        let mut values = vec![0.0; builder.raw.rows()];
        for (row, out) in values.iter_mut().enumerate() {
            let (element, value) = match elements.single(row) {
                Single::One(element) => (element, scaled[element]),
                Single::Absent => (0, scaling.value(Number::Absent)),
                Single::Several(count) => {
                    builder.fault(row, column, Problem::Several(count));
                    continue;
                }
            };
            match value {
                Ok(value) => *out = value,
                Err(ScaleError::Absent) => builder.fault(row, column, Problem::AbsentNumber),
                Err(ScaleError::NotFinite) => {
                    builder.fault(row, column, Problem::Unusable { element, expected: A_NUMBER });
                }
            }
        }
        builder.dense.push(values);
        Ok(())
    }

    fn categorical(
        &self,
        encoder: &Encoder,
        feature: &Feature,
        memo: &mut Memo<u32>,
        spare: Vec<u32>,
        builder: &mut ChunkBuilder<'_>,
    ) -> Result<(), Error> {
        let column = feature.columns[0];
        let elements = builder.elements_with_dictionary(column);
        let absent = self.cardinality(feature.place) - 1;
        let codes = match elements.leaf.as_any_dictionary_opt() {
            Some(dictionary) => {
                let of_values = |values: &dyn Array| encoder.codes(values, &self.missing, Vec::new());
                memo.look_up(dictionary, absent, spare, of_values)
            }
            None => encoder.codes(&elements.leaf, &self.missing, spare),
        };
        let codes = codes.ok_or_else(|| wrong_type(builder.raw, column, encoder.expected()))?;
        let rows = builder.raw.rows();
        if let Place::Ragged(position) = feature.place {
            let maximum = self.ragged[position].maximum;
            let (ragged, filled) = match feature.weights {
                None => multivalued::fill(&elements, &codes, absent, maximum, rows),
                Some(of_weights) => {
                    let weights = self.value_weights(of_weights, builder)?;
                    let elements = (&elements, column);
                    let (ragged, filled) =
                        multivalued::fill_weighted(elements, &codes, &weights, absent, maximum, rows);
                    for &(row, problem) in &filled.unweighted {
                        builder.fault(row, of_weights, problem);
                    }
                    (ragged, filled)
                }
            };
            for &(row, element) in &filled.invalid {
                builder.fault(row, column, encoder.problem(element));
            }
            builder.ragged(ragged, &filled);
            return Ok(());
        }
        let mut ids = codes;
        if elements.are_lists() {
            let codes = std::mem::replace(&mut ids, vec![absent; rows]);
            for (row, id) in ids.iter_mut().enumerate() {
                match elements.single(row) {
                    Single::One(element) if codes[element] == INVALID => {
                        builder.fault(row, column, encoder.problem(element));
                    }
                    Single::One(element) => *id = codes[element],
                    Single::Absent => {}
                    Single::Several(count) => builder.fault(row, column, Problem::Several(count)),
                }
            }
        } else if ids.contains(&INVALID) {
            for (row, id) in ids.iter_mut().enumerate().filter(|(_, id)| **id == INVALID) {
                *id = absent;
                builder.fault(row, column, encoder.problem(row));
            }
        }
        builder.ids.push(ids);
        Ok(())
    }

    fn value_weights(
        &self,
        column: usize,
        builder: &ChunkBuilder<'_>,
    ) -> Result<multivalued::Weights, Error> {
        let elements = builder.elements(column);
        let targets = label::value_weights(&elements.leaf, &self.missing);
        let targets = targets.ok_or_else(|| wrong_type(builder.raw, column, NUMBERS))?;
        Ok(multivalued::Weights { elements, targets })
    }

    fn cross(
        &self,
        feature: &Feature,
        crossed: &Crossed,
        builder: &mut ChunkBuilder<'_>,
    ) -> Result<(), Error> {
        let rows = builder.raw.rows();
        let mut parts = Vec::with_capacity(feature.columns.len());
        for (part, &column) in feature.columns.iter().enumerate() {
            let elements = builder.elements(column);
            let mut unusable = Vec::new();
            let fingerprints = crossed
                .fingerprints(part, &elements.leaf, &self.missing, &mut unusable)
                .ok_or_else(|| {
                    let expected = if crossed.wants_numbers(part) { NUMBERS } else { TEXTS };
                    wrong_type(builder.raw, column, expected)
                })?;
            for Unusable(element) in unusable {
                if let Some(row) = elements.row_of(element) {
                    builder.fault(row, column, Problem::Unusable { element, expected: A_NUMBER });
                }
            }
            parts.push(Part { elements, fingerprints });
        }
        if let Place::Ragged(position) = feature.place {
            let maximum = self.ragged[position].maximum;
            let (ragged, filled) = multivalued::fill_crossed(crossed, &parts, maximum, rows);
            builder.ragged(ragged, &filled);
            return Ok(());
        }
        let mut ids = vec![0; rows];
        for (row, out) in ids.iter_mut().enumerate() {
            match crossed.code(&parts, row) {
                Ok(id) => *out = id,
                Err(SeveralValues { part, count }) => {
                    builder.fault(row, feature.columns[part], Problem::Several(count));
                }
            }
        }
        builder.ids.push(ids);
        Ok(())
    }

    /// The number of ids of a feature; the last id means missing.
    fn cardinality(&self, place: Place) -> u32 {
        match place {
            Place::Dense => 1,
            Place::Id(position) => self.ids[position].cardinality,
            Place::Ragged(position) => self.ragged[position].cardinality,
        }
    }
}
