//! Decodes `tf.train.Example` and `tf.train.SequenceExample` directly into Arrow columns.
//!
//! Own parser: a generic protobuf decoder allocates per value and cannot skip columns or predict the next entry.
//!
//! ```text
//! Example         { Features features = 1; }
//! SequenceExample { Features context = 1; FeatureLists feature_lists = 2; }
//! Features  { map<string, Feature> feature = 1; }      // entries { string key = 1; Feature value = 2; }
//! Feature   { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
//! BytesList { repeated bytes value = 1; }              // FloatList, Int64List: packed or not
//!
//! FeatureLists { map<string, FeatureList> feature_list = 1; }
//! FeatureList  { repeated Feature feature = 1; }       // one per step
//! ```
//!
//! The general path decodes a record in two passes. The first walks its features and notes the location of each
//! projected value; a later entry of the same name replaces an earlier one, as protobuf specifies for maps. The
//! second appends those values to the columns. So nothing is allocated or hashed per value, other columns are
//! skipped, and an error in the last column leaves the first unchanged.
//!
//! Two fast paths decode records that look like the preceding ones: `expected.rs` those with their features in the
//! same order, and `scattered.rs` those in any order, at about two thirds of its rate. A record that neither accepts
//! takes the general path, from which both learn and which alone reports errors.
//!
//! A `SequenceExample` is an `Example` with one more field, so the record type need not be configured. A
//! feature list is a multi-valued column: the concatenated values of its steps. The number of values per step
//! is not kept. Steps of different kinds are an error, and so is a name in both the context and a list.
//!
//! Names are predicted. Writers tend to write the features of each record in the same order, so after each
//! name the one that followed it last time is tried; one comparison then checks the entry's tags, the name and
//! its length. Only a misprediction looks the name up.

mod column;
mod encode;
mod expected;
pub(crate) mod features;
mod form;
mod names;
mod perfect;
mod scattered;
mod wire;

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{Field, Schema};

use crate::Projection;

use column::{Column, Kind};
pub use encode::ExampleEncoder;
use expected::Expected;
use names::{Names, Slot};
use scattered::Scattered;
use wire::{Malformed, WireType};

/// Builds columns from records, one row per record.
#[derive(Debug)]
pub struct ExampleColumns {
    columns: Vec<Column>,
    names: Names,
    expected: Expected,
    scattered: Scattered,
    /// The id and value location of each name in the current record, in order, for learning the record's layout.
    sighted: Vec<(u32, Found)>,
    /// The fast path that failed on the current record and learns from it.
    learner: Option<Learner>,
    /// For each column, the location of its value in the current record.
    found: Vec<Found>,
    /// Values merged from several fragments.
    joined: Vec<u8>,
    rows: usize,
    /// The length of the records since the last [`ExampleColumns::finish`]: no column has more values or bytes.
    record_bytes: usize,
}

/// Why a record cannot become a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is neither a `tf.train.Example` nor a `tf.train.SequenceExample`.
    Malformed(&'static str),
    /// Its value for a column is unusable.
    Column {
        /// Index of the column.
        column: usize,
        /// The problem.
        message: String,
    },
}

/// A fast path.
#[derive(Clone, Copy, Debug)]
enum Learner {
    Expected,
    Scattered,
}

/// An entry decoded on the general path, from which a fast path learns.
#[derive(Clone, Copy, Debug)]
struct Learned<'a> {
    /// Id of the name.
    name: u32,
    slot: Slot,
    /// See `Name::head`.
    head: &'a [u8],
    /// The `Feature` message.
    feature: &'a [u8],
}

/// The location of a column's value.
#[derive(Clone, Copy, Debug)]
struct Found {
    start: u32,
    end: u32,
    source: Source,
}

/// The source of a column's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// A `Feature` message within the record.
    Record,
    /// A `Feature` message within `joined`.
    Joined,
    /// The concatenated list of a feature list's steps, within `joined`; no kind if it is empty.
    Steps(Option<Kind>),
}

const ABSENT: Found = Found { start: u32::MAX, end: u32::MAX, source: Source::Record };

impl Found {
    fn is_steps(&self) -> bool {
        matches!(self.source, Source::Steps(_))
    }
}

impl From<Malformed> for Fault {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl ExampleColumns {
    /// Builds the columns of `projection`.
    pub fn new(projection: &Projection) -> Self {
        let mut new = Self::every();
        for wanted in &projection.columns {
            new.names.project(&wanted.name, new.columns.len());
            new.columns.push(Column::new(wanted.name.clone(), wanted.multi, 0));
            new.found.push(ABSENT);
        }
        new.names.ignore_others();
        new
    }

    /// Builds a multi-valued column for every name that occurs.
    pub fn every() -> Self {
        Self {
            columns: Vec::new(),
            names: Names::new(),
            expected: Expected::new(),
            scattered: Scattered::new(),
            sighted: Vec::new(),
            learner: None,
            found: Vec::new(),
            joined: Vec::new(),
            rows: 0,
            record_bytes: 0,
        }
    }

    /// Number of rows since the last [`ExampleColumns::finish`].
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of the values so far. Arrow offsets have 32 bits, so a chunk must be finished before 1 GiB.
    pub fn bytes(&self) -> usize {
        self.columns.iter().map(Column::bytes).sum()
    }

    /// The name of a column.
    pub fn name(&self, column: usize) -> &str {
        self.columns[column].name()
    }

    /// Names of all features seen so far, projected or not.
    pub fn names_seen(&self) -> impl Iterator<Item = &str> {
        self.names.seen()
    }

    /// Whether any record so far had this column's feature, even without a value.
    pub fn was_seen(&self, column: usize) -> bool {
        self.names.was_seen(self.columns[column].name())
    }

    /// Appends one record as a row. On error the columns are unchanged.
    #[inline]
    pub fn push(&mut self, record: &[u8]) -> Result<(), Fault> {
        self.record_bytes = self.record_bytes.saturating_add(record.len());
        if self.record_bytes > i32::MAX as usize {
            return Err(Fault::Malformed("its values exceed the offsets of a chunk"));
        }
        if self.expected.should_try() {
            if self.expected.try_append(record, &mut self.columns) {
                self.rows += 1;
                return Ok(());
            }
            self.columns.iter_mut().for_each(|column| column.truncate(self.rows));
            self.learner = Some(Learner::Expected);
            return self.push_general(record);
        }
        self.push_scattered(record)
    }

    /// Appends a record for which the order of the preceding ones does not hold.
    #[inline(never)]
    fn push_scattered(&mut self, record: &[u8]) -> Result<(), Fault> {
        self.learner = None;
        if self.scattered.should_try() {
            if self.scattered.try_append(record, &mut self.columns) {
                self.rows += 1;
                return Ok(());
            }
            self.columns.iter_mut().for_each(|column| column.truncate(self.rows));
            self.learner = Some(Learner::Scattered);
        }
        self.push_general(record)
    }

    fn push_general(&mut self, record: &[u8]) -> Result<(), Fault> {
        self.joined.clear();
        self.sighted.clear();
        self.names.restart();
        if let Err(fault) = self.scan(record) {
            self.found.fill(ABSENT);
            return Err(fault);
        }
        for (column, found) in self.found.iter_mut().enumerate() {
            let Found { start, end, source } = std::mem::replace(found, ABSENT);
            let bytes = if source == Source::Record { record } else { &self.joined };
            let column_of = &mut self.columns[column];
            let appended = match (bytes.get(start as usize..end as usize), source) {
                (Some(list), Source::Steps(Some(kind))) => column_of.append_list(kind, list),
                (Some(_), Source::Steps(None)) => {
                    column_of.append_empty();
                    Ok(())
                }
                (Some(feature), _) => column_of.append(feature),
                (None, _) => {
                    column_of.append_absent();
                    Ok(())
                }
            };
            if let Err(message) = appended {
                self.found.fill(ABSENT);
                self.columns.iter_mut().for_each(|column| column.truncate(self.rows));
                return Err(Fault::Column { column, message });
            }
        }
        self.rows += 1;
        if let Some(learner) = self.learner {
            self.learn(record, learner);
        }
        Ok(())
    }

    /// Learns the layout of this record, which has become a row.
    fn learn(&mut self, record: &[u8], learner: Learner) {
        let features = self.sighted.iter().map(|&(name, found)| {
            let (slot, head) = self.names.get(name);
            let whole = if found.source == Source::Record { record } else { &[] };
            Learned {
                name,
                slot,
                head,
                feature: whole.get(found.start as usize..found.end as usize).unwrap_or_default(),
            }
        });
        match learner {
            Learner::Expected => self.expected.learn(features),
            Learner::Scattered => self.scattered.learn(features),
        }
    }

    /// Returns the rows so far as a chunk and starts an empty one. A column that has never had a value has type null;
    /// otherwise it keeps its type, even in a chunk without values.
    pub fn finish(&mut self) -> RecordBatch {
        let rows = std::mem::take(&mut self.rows);
        self.record_bytes = 0;
        let (fields, arrays): (Vec<Field>, Vec<_>) = self
            .columns
            .iter_mut()
            .map(|column| {
                let array = column.finish();
                (Field::new(column.name(), array.data_type().clone(), true), array)
            })
            .unzip();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)
            .expect("every column has `rows` rows, and the schema is made of the columns")
    }

    /// Locates the values of the projected columns.
    fn scan(&mut self, record: &[u8]) -> Result<(), Fault> {
        let mut example = record;
        while !example.is_empty() {
            match wire::tag(&mut example)? {
                (1, WireType::Delimited) => {
                    let mut features = wire::delimited(&mut example)?;
                    while let Some(entry) = next_entry(&mut features, "`feature` is not a message")? {
                        self.scan_entry(record, entry)?;
                    }
                }
                (2, WireType::Delimited) => {
                    // Feature lists are not learned.
                    self.learner = None;
                    let mut lists = wire::delimited(&mut example)?;
                    while let Some(entry) = next_entry(&mut lists, "`feature_list` is not a message")? {
                        self.scan_list(record, entry)?;
                    }
                }
                (1, _) => return Err(Fault::Malformed("`features` is not a message")),
                (2, _) => return Err(Fault::Malformed("`feature_lists` is not a message")),
                (number, wire_type) => wire::skip(&mut example, number, wire_type)?,
            }
        }
        Ok(())
    }

    #[inline]
    fn scan_entry(&mut self, record: &[u8], entry: &[u8]) -> Result<(), Fault> {
        let (name, slot, found) = match self.names.predict(entry) {
            Some((name, slot, value)) => (Some(name), slot, place_in(record, value)),
            None => self.scan_unexpected(record, entry)?,
        };
        if self.learner.is_some() {
            match name {
                Some(name) => self.sighted.push((name, found)),
                // A record with a name that is not stored cannot be learned.
                None => self.learner = None,
            }
        }
        if let Slot::Column(column) = slot {
            self.note(column as usize, found)?;
        }
        Ok(())
    }

    #[inline]
    fn note(&mut self, column: usize, found: Found) -> Result<(), Fault> {
        let before = &mut self.found[column];
        if before.start != ABSENT.start && before.is_steps() != found.is_steps() {
            let message = "is both in the context and in the feature lists".to_owned();
            return Err(Fault::Column { column, message });
        }
        *before = found;
        Ok(())
    }

    /// Processes an entry of the feature lists.
    fn scan_list(&mut self, record: &[u8], entry: &[u8]) -> Result<(), Fault> {
        let (slot, found) = match self.names.predict(entry) {
            Some((_, slot, list)) => (slot, place_in(record, list)),
            None => {
                let (_, slot, found) = self.scan_unexpected(record, entry)?;
                (slot, found)
            }
        };
        let Slot::Column(column) = slot else { return Ok(()) };
        let column = column as usize;
        // Steps are appended to `joined`, so a list that is itself in there is copied out first.
        let joined = found.source == Source::Joined;
        let own =
            if joined { self.joined[found.start as usize..found.end as usize].to_vec() } else { Vec::new() };
        let list = if joined {
            &own[..]
        } else {
            record.get(found.start as usize..found.end as usize).unwrap_or_default()
        };
        let steps = self.join_steps(column, list)?;
        self.note(column, steps)
    }

    /// Concatenates the values of a `FeatureList`'s steps.
    fn join_steps(&mut self, column: usize, mut list: &[u8]) -> Result<Found, Fault> {
        let start = self.joined.len() as u32;
        let mut kind = None;
        while let Some(step) = next_entry(&mut list, "a step is not a message")? {
            let merged;
            let (step_kind, values) = match column::one_list(step) {
                Some(list) => list,
                None => match column::merged_list(step)? {
                    Some((step_kind, values)) => {
                        merged = values;
                        (step_kind, &merged[..])
                    }
                    None => continue,
                },
            };
            if values.is_empty() {
                continue;
            }
            let first = *kind.get_or_insert(step_kind);
            if first != step_kind {
                let message =
                    format!("holds {} in one step and {} in another", first.name(), step_kind.name());
                return Err(Fault::Column { column, message });
            }
            wire::check(values)?;
            self.joined.extend_from_slice(values);
        }
        Ok(Found { start, end: self.joined.len() as u32, source: Source::Steps(kind) })
    }

    /// Processes an entry whose name or layout was not predicted.
    #[cold]
    #[inline(never)]
    fn scan_unexpected(
        &mut self,
        record: &[u8],
        entry: &[u8],
    ) -> Result<(Option<u32>, Slot, Found), Malformed> {
        let mut rest = entry;
        let (mut key, mut found) = (&entry[..0], ABSENT);
        while !rest.is_empty() {
            match wire::tag(&mut rest)? {
                (1, WireType::Delimited) => key = wire::delimited(&mut rest)?,
                (2, WireType::Delimited) => {
                    let value = wire::delimited(&mut rest)?;
                    found = self.join(record, found, value)?;
                }
                (1 | 2, _) => return Err("an entry's key or value is of the wrong type"),
                (number, wire_type) => wire::skip(&mut rest, number, wire_type)?,
            }
        }
        let name = std::str::from_utf8(key).map_err(|_| "a name is not UTF-8")?;
        let (id, slot) = self.names.look_up(name, self.columns.len());
        if let Slot::Column(column) = slot
            && column as usize == self.columns.len()
        {
            self.columns.push(Column::new(name.to_owned(), true, self.rows));
            self.found.push(ABSENT);
        }
        Ok((id, slot, found))
    }

    /// Merges fragments of one message by concatenation, which is valid if each is well-formed.
    fn join(&mut self, record: &[u8], before: Found, value: &[u8]) -> Result<Found, Malformed> {
        if before.start == ABSENT.start {
            return Ok(place_in(record, value));
        }
        wire::check(value)?;
        let mut start = before.start;
        if before.source == Source::Record {
            let first = record.get(before.start as usize..before.end as usize).unwrap_or_default();
            wire::check(first)?;
            start = self.joined.len() as u32;
            self.joined.extend_from_slice(first);
        }
        self.joined.extend_from_slice(value);
        Ok(Found { start, end: self.joined.len() as u32, source: Source::Joined })
    }
}

/// The next field with number 1 of a message, which must be a message. Skips other fields.
#[inline]
fn next_entry<'a>(message: &mut &'a [u8], wrong_type: Malformed) -> Result<Option<&'a [u8]>, Malformed> {
    match wire::next_value(message)? {
        Some(WireType::Delimited) => wire::delimited(message).map(Some),
        Some(_) => Err(wrong_type),
        None => Ok(None),
    }
}

/// The location of `part`, a subslice of `record`. Records are shorter than 4 GiB.
#[inline]
fn place_in(record: &[u8], part: &[u8]) -> Found {
    let start = part.as_ptr().addr() - record.as_ptr().addr();
    Found { start: start as u32, end: (start + part.len()) as u32, source: Source::Record }
}

#[cfg(test)]
mod tests;
