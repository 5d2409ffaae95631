//! `tf.train.Example`, from the wire straight into Arrow columns.
//!
//! ```text
//! Example   { Features features = 1; }
//! Features  { map<string, Feature> feature = 1; }      // entries { string key = 1; Feature value = 2; }
//! Feature   { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
//! BytesList { repeated bytes value = 1; }              // FloatList, Int64List: packed or not
//! ```
//!
//! A record is taken in two steps. The first walks its features and notes where the value of each wanted
//! one lies; a later entry of the same name replaces an earlier one, as protobuf says of maps. The second
//! appends those values to the columns. So nothing is allocated or hashed per value, columns nobody asked
//! for are stepped over, and a record that turns out to be bad in its last column leaves no trace in the
//! first.
//!
//! Names are matched by guess. Writers tend to write each record's features in the order of the record
//! before, so after each name the one that followed it last time is tried; one comparison then covers the
//! entry's tags, the name and its length at once. Only a wrong guess looks the name up.

mod column;
mod encode;
mod expected;
mod names;
mod wire;

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{Field, Schema};

use crate::dataset::Projection;
use column::Column;
pub(crate) use encode::ExampleEncoder;
use expected::{Expected, Sighting};
use names::{Names, Slot};
use wire::{Malformed, WireType};

/// Columns filled from records, one row each.
#[derive(Debug)]
pub struct ExampleColumns {
    columns: Vec<Column>,
    names: Names,
    expected: Expected,
    /// Names in the present record, by their numbers, and where their values are; kept to learn from it.
    sighted: Vec<(u32, Found)>,
    learning: bool,
    /// For each column where the present record has its value.
    found: Vec<Found>,
    /// Values that an entry holds in several pieces, put together.
    joined: Vec<u8>,
    rows: usize,
}

/// Why a record cannot become a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is no `tf.train.Example`.
    Malformed(&'static str),
    /// What it has for this column cannot be used.
    Column {
        /// The column's position.
        column: usize,
        /// What is wrong.
        message: String,
    },
}

/// A `Feature` message within the record, or within `joined`.
#[derive(Clone, Copy, Debug)]
struct Found {
    start: u32,
    end: u32,
    joined: bool,
}

const ABSENT: Found = Found { start: u32::MAX, end: u32::MAX, joined: false };

impl ExampleColumns {
    /// Columns for exactly `projection`.
    pub fn new(projection: &Projection) -> Self {
        let mut new = Self::every();
        for wanted in &projection.columns {
            new.names.want(&wanted.name, new.columns.len());
            new.columns.push(Column::new(wanted.name.clone(), wanted.multi, 0));
            new.found.push(ABSENT);
        }
        new.names.ignore_others();
        new
    }

    /// A column for every name that turns up, each taken as multi-valued.
    pub fn every() -> Self {
        Self {
            columns: Vec::new(),
            names: Names::new(),
            expected: Expected::new(),
            sighted: Vec::new(),
            learning: false,
            found: Vec::new(),
            joined: Vec::new(),
            rows: 0,
        }
    }

    /// Rows since the last [`ExampleColumns::finish`].
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of their values. Arrow's offsets are 32 bits wide, so a chunk must be finished before 1 GiB.
    pub fn bytes(&self) -> usize {
        self.columns.iter().map(Column::bytes).sum()
    }

    /// The name of a column.
    pub fn name(&self, column: usize) -> &str {
        self.columns[column].name()
    }

    /// Names of features seen so far, wanted or not.
    pub fn names_seen(&self) -> impl Iterator<Item = &str> {
        self.names.seen()
    }

    /// Whether any record so far had this column's feature, be it without a value.
    pub fn is_met(&self, column: usize) -> bool {
        self.names.is_met(self.columns[column].name())
    }

    /// Appends one record as a row, or leaves everything as it was.
    #[inline]
    pub fn push(&mut self, record: &[u8]) -> Result<(), Fault> {
        self.learning = self.expected.is_worth_trying();
        if self.learning {
            if self.expected.take(record, &mut self.columns) {
                self.rows += 1;
                return Ok(());
            }
            self.columns.iter_mut().for_each(|column| column.truncate(self.rows));
        }
        self.push_carefully(record)
    }

    fn push_carefully(&mut self, record: &[u8]) -> Result<(), Fault> {
        self.joined.clear();
        self.sighted.clear();
        self.names.restart();
        if let Err(malformed) = self.scan(record) {
            self.found.fill(ABSENT);
            return Err(Fault::Malformed(malformed));
        }
        for (column, found) in self.found.iter_mut().enumerate() {
            let Found { start, end, joined } = std::mem::replace(found, ABSENT);
            let source = if joined { &self.joined[..] } else { record };
            let appended = match source.get(start as usize..end as usize) {
                Some(feature) => self.columns[column].append(feature),
                None => {
                    self.columns[column].append_absent();
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
        if self.learning {
            self.learn(record);
        }
        Ok(())
    }

    /// Expects records like this one, which has become a row.
    fn learn(&mut self, record: &[u8]) {
        let sightings = self.sighted.iter().map(|&(name, found)| {
            let (slot, head) = self.names.get(name);
            let whole = if found.joined { &[] } else { record };
            Sighting {
                name,
                slot,
                head,
                feature: whole.get(found.start as usize..found.end as usize).unwrap_or_default(),
            }
        });
        self.expected.learn(sightings);
    }

    /// The rows so far as a chunk; the next one starts empty. A column that no record ever had is of
    /// type null; one seen before keeps its type, also in a chunk that has none of its values.
    pub fn finish(&mut self) -> RecordBatch {
        let rows = std::mem::take(&mut self.rows);
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

    /// Notes where the values of the wanted columns are.
    fn scan(&mut self, record: &[u8]) -> Result<(), Malformed> {
        let mut example = record;
        while !example.is_empty() {
            match wire::tag(&mut example)? {
                (1, WireType::Delimited) => {
                    let mut features = wire::delimited(&mut example)?;
                    while !features.is_empty() {
                        match wire::tag(&mut features)? {
                            (1, WireType::Delimited) => {
                                let entry = wire::delimited(&mut features)?;
                                self.scan_entry(record, entry)?;
                            }
                            (1, _) => return Err("`feature` is not a message"),
                            (number, wire_type) => wire::skip(&mut features, number, wire_type)?,
                        }
                    }
                }
                (1, _) => return Err("`features` is not a message"),
                (number, wire_type) => wire::skip(&mut example, number, wire_type)?,
            }
        }
        Ok(())
    }

    #[inline]
    fn scan_entry(&mut self, record: &[u8], entry: &[u8]) -> Result<(), Malformed> {
        let (name, slot, found) = match self.names.guess(entry) {
            Some((name, slot, value)) => (Some(name), slot, place_in(record, value)),
            None => self.scan_unexpected(record, entry)?,
        };
        if self.learning {
            match name {
                Some(name) => self.sighted.push((name, found)),
                // Nothing can be expected of a record with a name that is not remembered.
                None => self.learning = false,
            }
        }
        if let Slot::Column(column) = slot {
            self.found[column as usize] = found;
        }
        Ok(())
    }

    /// An entry whose name, or whose layout, is not the expected one.
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
                    found = self.join(record, found, value);
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

    /// Pieces of one message, one behind the other, are that message merged.
    fn join(&mut self, record: &[u8], before: Found, value: &[u8]) -> Found {
        let Some(first) = record.get(before.start as usize..before.end as usize).filter(|_| !before.joined)
        else {
            if !before.joined {
                return place_in(record, value);
            }
            self.joined.extend_from_slice(value);
            return Found { end: self.joined.len() as u32, ..before };
        };
        let start = self.joined.len() as u32;
        self.joined.extend_from_slice(first);
        self.joined.extend_from_slice(value);
        Found { start, end: self.joined.len() as u32, joined: true }
    }
}

/// Where `part`, a slice of `record`, lies in it. Records are shorter than 4 GiB.
#[inline]
fn place_in(record: &[u8], part: &[u8]) -> Found {
    let start = part.as_ptr().addr() - record.as_ptr().addr();
    Found { start: start as u32, end: (start + part.len()) as u32, joined: false }
}

#[cfg(test)]
mod tests;
