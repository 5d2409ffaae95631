//! Reads JSON lines: one object per line, or the elements of one JSON array.
//!
//! Nested objects become columns `a.b`. Values that are neither scalars nor lists of scalars are text that holds their
//! JSON.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufRead, Read};
use std::sync::Arc;

use millstream_format::record::MAX_RECORD_BYTES;
use millstream_format::{Error, SourceError};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

/// The maximum number of columns: more are likely values that are used as keys.
const MAX_COLUMNS: usize = 10_000;

/// Reads the records of one file.
pub(crate) struct JsonRows<R> {
    path: Arc<str>,
    input: R,
    /// Columns in order of first appearance.
    columns: Vec<String>,
    places: HashMap<String, usize>,
    /// The present values of the last record, with their columns.
    values: Vec<(usize, Value)>,
    /// The last attempt at which a column occurred.
    seen: Vec<u64>,
    attempts: u64,
    text: Vec<u8>,
    /// Whether the file is one array. `None` before the first record.
    is_array: Option<bool>,
    next_line: u64,
    /// The line at which the last record starts.
    line: u64,
    offset: u64,
    number: u64,
    is_broken: bool,
}

impl<R: BufRead> JsonRows<R> {
    pub(crate) fn new(path: Arc<str>, input: R) -> Self {
        Self {
            path,
            input,
            columns: Vec::new(),
            places: HashMap::new(),
            values: Vec::new(),
            seen: Vec::new(),
            attempts: 0,
            text: Vec::new(),
            is_array: None,
            next_line: 1,
            line: 1,
            offset: 0,
            number: 0,
            is_broken: false,
        }
    }

    /// The columns of the records so far.
    pub(crate) fn columns(&self) -> &[String] {
        &self.columns
    }

    pub(crate) fn input(&self) -> &R {
        &self.input
    }

    /// The present values of the last record, with their columns.
    pub(crate) fn values(&self) -> &[(usize, Value)] {
        &self.values
    }

    /// The line at which the last record starts, from 1.
    pub(crate) fn line(&self) -> u64 {
        self.line
    }

    /// Whether the record after one with an error can be read.
    pub(crate) fn can_continue(&self) -> bool {
        !self.is_broken
    }

    /// Reads the next record; `false` at the end.
    pub(crate) fn advance(&mut self) -> Result<bool, Error> {
        let start = self.offset;
        match self.read_record() {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => {
                self.is_broken = true;
                let path = self.path.to_string();
                return Err(match SourceError::unmark(error) {
                    Ok(source) => Error::Source { path, source },
                    Err(error) => self.damage(start, &error.to_string()),
                });
            }
        }
        let text = self.text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&self.text);
        let object: Object = match serde_json::from_slice(text) {
            Ok(object) => object,
            Err(error) => {
                let error = error.to_string();
                let error = error.split(" at line ").next().unwrap_or_default();
                return Err(self.damage(start, &format!("not a JSON object on one line: {error}")));
            }
        };
        self.values.clear();
        self.attempts += 1;
        for (key, value) in object.0 {
            self.add(key, value).map_err(|message| self.damage(start, &message))?;
        }
        self.number += 1;
        Ok(true)
    }

    fn add(&mut self, key: String, value: Value) -> Result<(), String> {
        let value = match value {
            Value::Null => return self.place(key).map(drop),
            Value::Object(fields) => {
                return fields
                    .into_iter()
                    .try_for_each(|(name, value)| self.add(format!("{key}.{name}"), value));
            }
            Value::Array(elements) => {
                let scalar = |value: Value| match value {
                    Value::Array(_) | Value::Object(_) => Value::String(value.to_string()),
                    scalar => scalar,
                };
                Value::Array(elements.into_iter().map(scalar).collect())
            }
            scalar => scalar,
        };
        let place = self.place(key)?;
        self.values.push((place, value));
        Ok(())
    }

    fn place(&mut self, key: String) -> Result<usize, String> {
        let place = match self.places.get(&key) {
            Some(&place) => place,
            None if self.columns.len() == MAX_COLUMNS => {
                self.is_broken = true;
                return Err(format!("more than {MAX_COLUMNS} different keys; the next is `{key}`"));
            }
            None => {
                self.columns.push(key.clone());
                self.seen.push(0);
                self.places.insert(key, self.columns.len() - 1);
                self.columns.len() - 1
            }
        };
        if self.seen[place] == self.attempts {
            return Err(format!("the key `{}` occurs twice", self.columns[place]));
        }
        self.seen[place] = self.attempts;
        Ok(place)
    }

    /// Reads the text of the next record.
    fn read_record(&mut self) -> io::Result<bool> {
        if self.is_array.is_none() {
            self.skip(|byte| byte.is_ascii_whitespace() || b"\xef\xbb\xbf".contains(&byte))?;
            let is_array = self.peek()? == Some(b'[');
            if is_array {
                self.skip_one()?;
            }
            self.is_array = Some(is_array);
        }
        self.text.clear();
        if self.is_array == Some(true) {
            return self.read_element();
        }
        self.skip(|byte| byte.is_ascii_whitespace())?;
        self.line = self.next_line;
        let read = self.input.by_ref().take(MAX_RECORD_BYTES).read_until(b'\n', &mut self.text)?;
        self.offset += read as u64;
        self.next_line += u64::from(self.text.last() == Some(&b'\n'));
        if read as u64 == MAX_RECORD_BYTES {
            return Err(too_long());
        }
        Ok(read > 0)
    }

    /// Reads the next element of the array: to the end of its brackets.
    fn read_element(&mut self) -> io::Result<bool> {
        self.skip(|byte| byte.is_ascii_whitespace() || byte == b',')?;
        self.line = self.next_line;
        let (mut depth, mut is_quoted, mut is_escaped) = (0_u32, false, false);
        loop {
            let Some(byte) = self.peek()? else {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the array has no end: `]` is missing",
                ));
            };
            if depth == 0 && byte == b']' {
                self.skip_one()?;
                return Ok(false);
            }
            if depth == 0 && byte != b'{' {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the array holds something other than objects",
                ));
            }
            let (mut taken, mut lines, mut ended) = (0, 0, false);
            for &byte in self.input.fill_buf()? {
                taken += 1;
                lines += u64::from(byte == b'\n');
                match byte {
                    _ if is_escaped => is_escaped = false,
                    b'\\' if is_quoted => is_escaped = true,
                    b'"' => is_quoted = !is_quoted,
                    b'{' | b'[' if !is_quoted => depth += 1,
                    b'}' | b']' if !is_quoted => depth -= 1,
                    _ => {}
                }
                if depth == 0 {
                    ended = true;
                    break;
                }
            }
            self.text.extend_from_slice(&self.input.fill_buf()?[..taken]);
            self.input.consume(taken);
            self.offset += taken as u64;
            self.next_line += lines;
            if ended {
                return Ok(true);
            }
            if self.text.len() as u64 > MAX_RECORD_BYTES {
                return Err(too_long());
            }
        }
    }

    fn peek(&mut self) -> io::Result<Option<u8>> {
        Ok(self.input.fill_buf()?.first().copied())
    }

    fn skip_one(&mut self) -> io::Result<()> {
        self.input.fill_buf()?;
        self.input.consume(1);
        self.offset += 1;
        Ok(())
    }

    fn skip(&mut self, skipped: impl Fn(u8) -> bool) -> io::Result<()> {
        while let Some(byte) = self.peek()?.filter(|&byte| skipped(byte)) {
            self.next_line += u64::from(byte == b'\n');
            self.skip_one()?;
        }
        Ok(())
    }

    fn damage(&self, offset: u64, message: &str) -> Error {
        Error::Damage {
            path: self.path.to_string(),
            offset,
            record: self.number,
            message: format!("starting at line {}: {message}", self.line),
        }
    }
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a record exceeds {MAX_RECORD_BYTES} bytes"))
}

/// The keys and values of an object, in order.
struct Object(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Object;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Object, M::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Object(entries))
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    type Row = Vec<(usize, Value)>;

    fn read(text: &str) -> (Vec<String>, Vec<Result<Row, String>>) {
        let mut rows = JsonRows::new("a.jsonl".into(), io::BufReader::with_capacity(3, text.as_bytes()));
        let mut read = Vec::new();
        loop {
            match rows.advance() {
                Ok(true) => read.push(Ok(rows.values().to_vec())),
                Ok(false) => break,
                Err(error) => {
                    read.push(Err(error.to_string()));
                    if !rows.can_continue() {
                        break;
                    }
                }
            }
        }
        (rows.columns().to_vec(), read)
    }

    #[test]
    fn lines_and_arrays_hold_the_same_records() {
        let lines =
            "\u{feff}{\"b\": 1, \"a\": {\"x\": \"y}\\\"\"}}\n\n  {\"c\": [1, {\"d\": 2}], \"b\": null}";
        let array = format!("\n[{}]\n", lines.trim_start_matches('\u{feff}').replace("\n\n", ",\n"));
        for text in [lines, &array] {
            let (columns, rows) = read(text);
            assert_eq!(columns, ["b", "a.x", "c"], "{text}");
            let wanted =
                [Ok(vec![(0, json!(1)), (1, json!("y}\""))]), Ok(vec![(2, json!([1, "{\"d\":2}"]))])];
            assert_eq!(rows, wanted, "{text}");
        }
    }

    #[test]
    fn a_broken_line_has_an_address_and_the_next_can_be_read() {
        let (_, rows) = read("{\"a\": 1}\n{\"a\": \n{\"a\": 2}\n");
        let error = rows[1].clone().unwrap_err();
        assert!(
            error.starts_with("a.jsonl: damaged at record 1, byte 9: starting at line 2: not a JSON obj"),
            "{error}"
        );
        assert_eq!(rows[2], Ok(vec![(0, json!(2))]));
        for (text, says) in [("[{\"a\": 1}", "`]` is missing"), ("[1]", "other than objects")] {
            let (_, rows) = read(text);
            assert!(rows.last().unwrap().clone().unwrap_err().contains(says), "{text}");
        }
    }
}
