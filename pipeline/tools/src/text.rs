//! Rows of the text formats, CSV and JSON lines, which do not describe themselves: their values, and the types that
//! hold them.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_schema::DataType;
use millstream_format::compression::Decompressed;
use millstream_format::csv::{CsvOptions, CsvRows, Inferred};
use millstream_format::{Error as FormatError, FileFormat, SourceError};
use millstream_io::fetch::FetchedBytes;
use millstream_io::storage::Object;
use millstream_pipeline::Error;
use serde_json::Value;
use tokio::runtime::Handle;

use crate::json_lines::JsonRows;
use crate::typed::{Kind, Raw, Reading};

/// How the rows of a text format are read.
#[derive(Clone, Debug, Default)]
pub struct TextRules {
    /// The types of columns; others are inferred.
    pub kinds: BTreeMap<String, Kind>,
    /// Columns whose texts are lists, and the separators of their elements.
    pub separators: BTreeMap<String, String>,
    /// Whether to skip and count lines that cannot be read, instead of failing.
    pub skip_bad_lines: bool,
}

impl TextRules {
    pub(crate) fn reading(&self, column: &str) -> Reading {
        Reading::new(self.kinds.get(column), self.separators.get(column))
    }
}

/// Lines that were skipped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Skipped {
    pub(crate) lines: u64,
    /// The error of the first.
    pub(crate) first: Option<String>,
}

type Input = Decompressed<FetchedBytes>;

enum Contents {
    Csv(Box<CsvRows<Input>>),
    Json(Box<JsonRows<Input>>),
}

/// The rows of a file.
pub(crate) struct TextRows {
    contents: Contents,
    rules: TextRules,
    csv: CsvOptions,
    path: Arc<str>,
    compression: String,
    /// The columns that have kinds, by their place, as far as known.
    checks: Vec<Option<(DataType, Reading)>>,
    /// The number of rows read.
    number: u64,
    skipped: Skipped,
}

impl TextRows {
    /// Opens a file; reads the header of CSV.
    pub(crate) fn open(
        object: &Object,
        format: FileFormat,
        csv: &CsvOptions,
        rules: &TextRules,
        runtime: &Handle,
    ) -> Result<Self, Error> {
        let bytes = FetchedBytes::start(object.clone(), &Arc::default(), &runtime.into());
        Self::of(object, bytes, format, csv, rules)
    }

    /// Opens a file whose bytes are fetched already; reads the header of CSV.
    pub(crate) fn of(
        object: &Object,
        bytes: FetchedBytes,
        format: FileFormat,
        csv: &CsvOptions,
        rules: &TextRules,
    ) -> Result<Self, Error> {
        let path: Arc<str> = object.path().clone();
        let (stream, compression) = Decompressed::new(bytes).map_err(|error| {
            let path = path.to_string();
            match SourceError::unmark(error) {
                Ok(source) => FormatError::Source { path, source },
                Err(error) => FormatError::Damage { path, offset: 0, record: 0, message: error.to_string() },
            }
        })?;
        let contents = match format {
            FileFormat::JsonLines => Contents::Json(Box::new(JsonRows::new(path.clone(), stream))),
            _ => Contents::Csv(Box::new(CsvRows::open(path.clone(), stream, compression, csv)?)),
        };
        Ok(Self {
            contents,
            rules: rules.clone(),
            csv: csv.clone(),
            path,
            compression: format!("{compression:?}").to_lowercase(),
            checks: Vec::new(),
            number: 0,
            skipped: Skipped::default(),
        })
    }

    pub(crate) fn compression(&self) -> &str {
        &self.compression
    }

    /// The columns: of CSV all, of JSON those of the rows so far.
    pub(crate) fn columns(&self) -> &[String] {
        match &self.contents {
            Contents::Csv(rows) => rows.columns(),
            Contents::Json(rows) => rows.columns(),
        }
    }

    pub(crate) fn is_json(&self) -> bool {
        matches!(self.contents, Contents::Json(_))
    }

    /// The bytes that remain to be read.
    pub(crate) fn remaining(&self) -> u64 {
        match &self.contents {
            Contents::Csv(rows) => rows.input().source().remaining(),
            Contents::Json(rows) => rows.input().source().remaining(),
        }
    }

    /// The line at which the current row starts, from 1.
    pub(crate) fn line(&self) -> u64 {
        match &self.contents {
            Contents::Csv(rows) => rows.line(),
            Contents::Json(rows) => rows.line(),
        }
    }

    pub(crate) fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    /// Reads the next row; `false` at the end.
    pub(crate) fn advance(&mut self) -> Result<bool, Error> {
        loop {
            let read = match &mut self.contents {
                Contents::Csv(rows) => rows.next_row().map(|fields| fields.is_some()),
                Contents::Json(rows) => rows.advance(),
            };
            let error = match read.map_err(Error::from) {
                Ok(false) => return Ok(false),
                Ok(true) => match self.check() {
                    Ok(()) => {
                        self.number += 1;
                        return Ok(true);
                    }
                    Err(error) => error,
                },
                Err(error) if self.can_continue() => error,
                Err(error) => return Err(error),
            };
            if !self.rules.skip_bad_lines || !error.is_bad_record() {
                return Err(error);
            }
            self.skipped.lines += 1;
            self.skipped.first.get_or_insert_with(|| error.to_string());
        }
    }

    /// Whether the row after one with an error can be read.
    pub(crate) fn can_continue(&self) -> bool {
        match &self.contents {
            Contents::Csv(rows) => rows.can_continue(),
            Contents::Json(rows) => rows.can_continue(),
        }
    }

    /// Checks the values whose type is given. Others have a type that holds them.
    fn check(&mut self) -> Result<(), Error> {
        if self.rules.kinds.is_empty() {
            return Ok(());
        }
        let known = self.checks.len();
        let new: Vec<_> = self.columns()[known..].iter().map(|name| self.check_of(name)).collect();
        self.checks.extend(new);
        let mut bad = None;
        self.each(|column, raw| {
            let (Some(raw), Some((data_type, reading)), None) = (raw, &self.checks[column], &bad) else {
                return;
            };
            bad = reading.check(data_type, raw).err().map(|message| (column, message));
        });
        bad.map_or(Ok(()), |(column, message)| Err(self.bad_value(column, &message)))
    }

    fn check_of(&self, name: &str) -> Option<(DataType, Reading)> {
        let data_type = self.rules.kinds.get(name)?.data_type().clone();
        let is_list = self.rules.separators.contains_key(name);
        Some((if is_list { crate::typed::list_of(data_type) } else { data_type }, self.rules.reading(name)))
    }

    /// The error of a value of the current row.
    pub(crate) fn bad_value(&self, column: usize, message: &str) -> Error {
        Error::Format(FormatError::BadValue {
            path: self.path.to_string(),
            record: self.number,
            column: self.columns()[column].clone(),
            message: format!("line {}: {message}", self.line()),
        })
    }

    /// Calls `each` for the values of the current row, with their columns. Of JSON, absent values may be missing.
    pub(crate) fn each<'b>(&'b self, mut each: impl FnMut(usize, Option<Raw<'b>>)) {
        self.each_written(|column, raw| each(column, Some(raw).filter(|&raw| self.is_present(raw))));
    }

    /// As [`TextRows::each`], with values that mean "missing" as they are written.
    pub(crate) fn each_written<'b>(&'b self, mut each: impl FnMut(usize, Raw<'b>)) {
        match &self.contents {
            Contents::Csv(rows) => {
                let fields = rows.fields().iter().enumerate();
                fields.for_each(|(column, field)| each(column, Raw::Text(field)));
            }
            Contents::Json(rows) => {
                rows.values().iter().for_each(|(column, value)| each(*column, Raw::Json(value)));
            }
        }
    }

    /// Whether a value does not mean "missing". An empty field of CSV does, an empty text of JSON does not.
    pub(crate) fn is_present(&self, raw: Raw<'_>) -> bool {
        let is_listed = |bytes: &[u8]| self.csv.missing.iter().any(|missing| missing.as_bytes() == bytes);
        match raw {
            Raw::Text(field) => !field.is_empty() && !is_listed(field),
            Raw::Json(Value::String(text)) => !is_listed(text.as_bytes()),
            Raw::Json(_) => true,
        }
    }
}

/// The type that holds all values of a column so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Guess {
    value: Inferred,
    /// Whether values are true or false; they are never both that and numbers.
    is_flag: bool,
    pub(crate) is_list: bool,
}

impl Guess {
    /// Widens the type to include a value.
    pub(crate) fn include(&mut self, raw: Raw<'_>, separator: Option<&str>) {
        match (raw, separator) {
            (Raw::Text(field), None) => self.value.include(field),
            (Raw::Text(field), Some(separator)) => {
                self.is_list = true;
                let text = String::from_utf8_lossy(field);
                let parts = text.split(separator).map(str::trim).filter(|part| !part.is_empty());
                parts.for_each(|part| self.value.include(part.as_bytes()));
            }
            (Raw::Json(Value::String(text)), Some(_)) => self.include(Raw::Text(text.as_bytes()), separator),
            (Raw::Json(Value::Array(elements)), _) => {
                self.is_list = true;
                elements.iter().for_each(|element| self.include_scalar(element));
            }
            (Raw::Json(value), _) => self.include_scalar(value),
        }
    }

    fn include_scalar(&mut self, value: &Value) {
        let found = match value {
            Value::Null => return,
            Value::Bool(_) if self.is_flag || self.value == Inferred::Nothing => {
                self.is_flag = true;
                Inferred::Nothing
            }
            Value::Number(number) if !self.is_flag => {
                if number.is_i64() {
                    Inferred::Integer
                } else {
                    Inferred::Number
                }
            }
            _ => Inferred::Text,
        };
        self.is_flag &= found == Inferred::Nothing;
        self.value = self.value.max(found);
    }

    /// The type of one value.
    pub(crate) fn data_type(self) -> DataType {
        if self.is_flag { DataType::Boolean } else { self.value.data_type() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn types_of_json_values_are_inferred() {
        let guess = |values: &[Value]| {
            let mut guess = Guess::default();
            values.iter().for_each(|value| guess.include(Raw::Json(value), None));
            (guess.data_type(), guess.is_list)
        };
        assert_eq!(guess(&[json!(1), json!(2)]), (DataType::Int64, false));
        assert_eq!(guess(&[json!(1), json!(2.5)]), (DataType::Float64, false));
        assert_eq!(guess(&[json!("007")]), (DataType::Utf8, false));
        assert_eq!(guess(&[json!(true), json!(null)]), (DataType::Boolean, false));
        assert_eq!(guess(&[json!(true), json!(1)]), (DataType::Utf8, false));
        assert_eq!(guess(&[json!(1), json!(true)]), (DataType::Utf8, false));
        assert_eq!(guess(&[json!(1), json!([2, 3])]), (DataType::Int64, true));
    }
}
