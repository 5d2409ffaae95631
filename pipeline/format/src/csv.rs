//! CSV, for inspection, conversion and scoring; jobs do not read it.
//!
//! Fields are trimmed, blank lines are skipped, and a field that is empty (or equals one of the configured
//! missing values) is absent. A column's type is inferred from all of its values: integers, else numbers,
//! else text.

use std::io::{self, BufRead, Read};
use std::sync::Arc;

use arrow_schema::DataType;
use csv::{ByteRecord, ReaderBuilder, Trim};

use crate::Error;
use crate::compression::Compression;
use crate::error::SourceError;
use crate::record::MAX_RECORD_BYTES;

/// Bytes of a field that an error shows.
const SHOWN_BYTES: usize = 200;

/// The dialect of CSV files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CsvOptions {
    /// Separates two fields; a comma if absent.
    pub delimiter: Option<u8>,
    /// Column names, in order. If absent, each file's first line is a header.
    pub columns: Option<Vec<String>>,
    /// Lines that start with this byte are skipped.
    pub comment: Option<u8>,
    /// Removed from the end of each line's last field if present (in UCI's `adult.test` every label ends in
    /// `.`).
    pub strip_suffix: Option<String>,
    /// Values that mean "missing", besides the empty field.
    pub missing: Vec<String>,
}

/// Reads the records of one file.
pub struct CsvRows<R> {
    path: Arc<str>,
    reader: csv::Reader<Metered<R>>,
    columns: Vec<String>,
    compression: Compression,
    strip_suffix: Option<String>,
    record: ByteRecord,
    /// Number of records read.
    number: u64,
    /// Whether the input cannot be read beyond the last error.
    is_broken: bool,
}

impl<R: Read> CsvRows<R> {
    /// Reads the header, if the file has one.
    pub fn open(
        path: Arc<str>,
        input: R,
        compression: Compression,
        options: &CsvOptions,
    ) -> Result<Self, Error> {
        let reader = ReaderBuilder::new()
            .delimiter(options.delimiter.unwrap_or(b','))
            .comment(options.comment)
            .has_headers(options.columns.is_none())
            .trim(Trim::All)
            .flexible(true)
            .from_reader(Metered::new(input, MAX_RECORD_BYTES));
        let strip_suffix = options.strip_suffix.clone();
        let mut rows = Self {
            path,
            reader,
            columns: Vec::new(),
            compression,
            strip_suffix,
            record: ByteRecord::new(),
            number: 0,
            is_broken: false,
        };
        rows.columns = match &options.columns {
            Some(columns) => columns.clone(),
            None => {
                let header = rows.reader.byte_headers().cloned().map_err(|error| rows.broken(error))?;
                header.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
            }
        };
        if options.columns.is_none()
            && let Some(value) =
                rows.columns.iter().find(|name| Inferred::of(name.as_bytes()) != Inferred::Text)
        {
            let message = format!(
                "the first line holds values, such as `{value}`, instead of names: specify the column names"
            );
            return Err(Error::Mismatch { path: rows.path.to_string(), message });
        }
        let mut names: Vec<&String> = rows.columns.iter().collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let message = format!("two columns are named `{}`", twice[0]);
            return Err(Error::Mismatch { path: rows.path.to_string(), message });
        }
        Ok(rows)
    }

    /// The compression of the file.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// The names of the columns.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The fields of the next record.
    pub fn next_row(&mut self) -> Result<Option<Fields<'_>>, Error> {
        loop {
            self.reader.get_mut().left = MAX_RECORD_BYTES;
            match self.reader.read_byte_record(&mut self.record) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(error) => {
                    self.is_broken = true;
                    return Err(self.broken(error));
                }
            }
            // Skip a line of whitespace.
            if self.record.len() > 1 || self.record.iter().any(|field| !field.is_empty()) {
                break;
            }
            if self.columns.len() == 1 {
                break;
            }
        }
        if self.record.len() != self.columns.len() {
            let first = self.record.get(0).unwrap_or_default();
            let noun = if self.record.len() == 1 { "field" } else { "fields" };
            return Err(self.damage(format!(
                "{} {noun}, expected {}; the first is `{}`",
                self.record.len(),
                self.columns.len(),
                first[..first.len().min(SHOWN_BYTES)].escape_ascii()
            )));
        }
        self.number += 1;
        Ok(Some(self.fields()))
    }

    /// The fields of the record that [`CsvRows::next_row`] has returned last.
    pub fn fields(&self) -> Fields<'_> {
        Fields { record: &self.record, strip_suffix: self.strip_suffix.as_deref() }
    }

    /// The line at which the last record starts, from 1.
    pub fn line(&self) -> u64 {
        self.start().0
    }

    /// The line at which the last record starts, from 1, and its byte.
    fn start(&self) -> (u64, u64) {
        let (line, byte) =
            self.record.position().map_or((1, 0), |position| (position.line(), position.byte()));
        // The `csv` crate ends a record at a carriage return, and counts the line feed after it with the next record.
        let left = u64::from(byte > 0 && self.reader.get_ref().has_returns == Some(true));
        (line + left, byte + left)
    }

    /// Whether the record after one with an error can be read.
    pub fn can_continue(&self) -> bool {
        !self.is_broken
    }

    fn damage(&self, message: String) -> Error {
        let (line, offset) = self.start();
        Error::Damage {
            path: self.path.to_string(),
            offset,
            record: self.number,
            // Blank lines and comments before the record count as part of it.
            message: format!("starting at line {line}: {message}"),
        }
    }

    fn broken(&self, error: csv::Error) -> Error {
        let message = error.to_string();
        let path = self.path.to_string();
        if let csv::ErrorKind::Io(error) = error.into_kind()
            && let Ok(source) = SourceError::unmark(error)
        {
            return Error::Source { path, source };
        }
        Error::Damage { path, offset: self.reader.position().byte(), record: self.number, message }
    }
}

impl<R: BufRead> CsvRows<R> {
    /// The underlying input.
    pub fn input(&self) -> &R {
        &self.reader.get_ref().input
    }
}

/// The names `column_1`, `column_2`, ... if the first line contains a number and hence is not a header.
pub fn numbered_columns(start: &[u8], options: &CsvOptions) -> Option<Vec<String>> {
    let mut reader = ReaderBuilder::new()
        .delimiter(options.delimiter.unwrap_or(b','))
        .comment(options.comment)
        .has_headers(false)
        .trim(Trim::All)
        .from_reader(start);
    let first = reader.byte_records().next()?.ok()?;
    let is_header = first.iter().all(|field| Inferred::of(field) == Inferred::Text);
    (!is_header).then(|| (1..=first.len()).map(|number| format!("column_{number}")).collect())
}

/// Fails once a record has taken more than its limit, before the `csv` crate has collected it. Observes how lines end.
struct Metered<R> {
    input: R,
    left: u64,
    /// The last byte read.
    last: u8,
    /// Whether the first line ends with a carriage return and a line feed, once its end has been read.
    has_returns: Option<bool>,
}

impl<R> Metered<R> {
    fn new(input: R, left: u64) -> Self {
        Self { input, left, last: 0, has_returns: None }
    }
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let length = (out.len() as u64).min(self.left) as usize;
        if length == 0 && !out.is_empty() {
            let message = format!("a line or quoted field exceeds {MAX_RECORD_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let read = self.input.read(&mut out[..length])?;
        self.left -= read as u64;
        if self.has_returns.is_none() {
            let bytes = &out[..read];
            let end = bytes.iter().position(|&byte| byte == b'\n');
            self.has_returns =
                end.map(|end| end.checked_sub(1).map_or(self.last, |before| bytes[before]) == b'\r');
            self.last = bytes.last().copied().unwrap_or(self.last);
        }
        Ok(read)
    }
}

/// The fields of one record.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    record: &'a ByteRecord,
    strip_suffix: Option<&'a str>,
}

impl<'a> Fields<'a> {
    /// The fields in order, the suffix stripped from the last one.
    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        let last = self.record.len().saturating_sub(1);
        self.record.iter().enumerate().map(move |(column, field)| match self.strip_suffix {
            Some(suffix) if column == last => field.strip_suffix(suffix.as_bytes()).unwrap_or(field),
            _ => field,
        })
    }
}

/// The inferred type of a column. Each variant includes the ones before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Inferred {
    /// No values.
    #[default]
    Nothing,
    /// 64-bit integers.
    Integer,
    /// Other numbers.
    Number,
    /// Anything else.
    Text,
}

impl Inferred {
    /// Widens the type to include a value.
    pub fn include(&mut self, field: &[u8]) {
        if *self < Self::Text {
            *self = (*self).max(Self::of(field));
        }
    }

    /// The type of one value.
    pub fn of(field: &[u8]) -> Self {
        let Ok(text) = std::str::from_utf8(field) else { return Self::Text };
        let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
        // 007 is a code; "nan" and "inf" are words.
        let plain = digits.starts_with(|first: char| first.is_ascii_digit() || first == '.');
        if !plain || (digits.len() > 1 && digits.starts_with('0') && digits.as_bytes()[1].is_ascii_digit()) {
            Self::Text
        } else if text.parse::<i64>().is_ok() {
            Self::Integer
        } else if text.parse::<f64>().is_ok() {
            Self::Number
        } else {
            Self::Text
        }
    }

    /// The Arrow type of the column.
    pub fn data_type(self) -> DataType {
        match self {
            Self::Nothing => DataType::Null,
            Self::Integer => DataType::Int64,
            Self::Number => DataType::Float64,
            Self::Text => DataType::Utf8,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_record_is_read_up_to_a_limit() {
        let mut input = Metered::new(io::repeat(b'a'), 100);
        let mut read = vec![0; 64];
        assert_eq!(input.read(&mut read).unwrap(), 64);
        assert_eq!(input.read(&mut read).unwrap(), 36);
        assert_eq!(input.read(&mut read).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let long = format!("a,b\n{}\n", "x".repeat(10_000));
        let error = rows(&long, &CsvOptions::default()).unwrap_err().to_string();
        assert!(error.contains("1 field, expected 2") && error.len() < 400, "{error}");
    }

    fn rows(text: &str, options: &CsvOptions) -> Result<Vec<Vec<String>>, Error> {
        let mut reader = CsvRows::open("a.csv".into(), text.as_bytes(), Compression::None, options)?;
        let mut rows = Vec::new();
        while let Some(fields) = reader.next_row()? {
            rows.push(fields.iter().map(|field| String::from_utf8(field.to_vec()).unwrap()).collect());
        }
        Ok(rows)
    }

    #[test]
    fn reads_the_census_dialect() {
        let options = CsvOptions {
            columns: Some(vec!["age".to_owned(), "work".to_owned(), "income".to_owned()]),
            comment: Some(b'|'),
            strip_suffix: Some(".".to_owned()),
            ..CsvOptions::default()
        };
        let text = "|1x3 Cross validator\n25, Private, <=50K.\n\n38, ?, >50K.\n  \n";
        assert_eq!(rows(text, &options).unwrap(), [["25", "Private", "<=50K"], ["38", "?", ">50K"]]);
    }

    #[test]
    fn reads_headers_quotes_and_other_delimiters() {
        let options = CsvOptions { delimiter: Some(b';'), ..CsvOptions::default() };
        let text = "\u{feff}a;b\n1;\"x;\ny\"\n2;\n";
        let mut reader = CsvRows::open("a.csv".into(), text.as_bytes(), Compression::None, &options).unwrap();
        assert_eq!(reader.columns(), ["a", "b"]);
        assert!(reader.next_row().unwrap().is_some());
        assert_eq!(rows(text, &options).unwrap(), [["1", "x;\ny"], ["2", ""]]);
    }

    #[test]
    fn errors_report_the_location_of_a_short_record() {
        let error = rows("a,b\n1,2\n\n3\n", &CsvOptions::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a.csv: damaged at record 1, byte 8: starting at line 3: 1 field, expected 2; the first is `3`"
        );
        let error = rows("a,b\r\n1,2\r\n\"3\n\",4\r\n5\r\n", &CsvOptions::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a.csv: damaged at record 2, byte 18: starting at line 5: 1 field, expected 2; the first is `5`"
        );
        assert!(rows("a,a\n1,2\n", &CsvOptions::default()).is_err());
    }

    #[test]
    fn the_record_after_a_short_one_can_be_read() {
        let text = "a,b\n1,2\n3\n5,6\n";
        let options = CsvOptions::default();
        let mut reader = CsvRows::open("a.csv".into(), text.as_bytes(), Compression::None, &options).unwrap();
        assert!(reader.next_row().unwrap().is_some());
        assert!(reader.next_row().is_err() && reader.can_continue());
        assert!(reader.next_row().unwrap().is_some());
        assert_eq!(reader.fields().iter().collect::<Vec<_>>(), [b"5", b"6"]);
        assert_eq!(reader.line(), 4);
    }

    #[test]
    fn types_are_inferred_from_all_values() {
        let infer = |fields: &[&str]| {
            let mut inferred = Inferred::default();
            fields.iter().for_each(|field| inferred.include(field.as_bytes()));
            inferred
        };
        assert_eq!(infer(&[]), Inferred::Nothing);
        assert_eq!(infer(&["1", "-2", "+3", "0", "9223372036854775807"]), Inferred::Integer);
        assert_eq!(infer(&["1", "2.5", "-.5", "1e9"]), Inferred::Number);
        assert_eq!(infer(&["9223372036854775808"]), Inferred::Number);
        for text in ["x", "nan", "inf", "-inf", "007", "1 2", "?", "0x10", "1_000"] {
            assert_eq!(infer(&["1", text, "2"]), Inferred::Text, "{text}");
        }
    }
}
