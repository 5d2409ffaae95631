//! JSON lines: one JSON object per line, in UTF-8.
//!
//! A line ends with a line feed, before which a carriage return is white space, as in JSON. Blank lines are skipped. The
//! last line may lack its end. Every damaged line is one damaged record, unless the file has another format: its first bytes
//! are those of another format, or it is text of several lines of which none begins like an object.
//!
//! Source: <https://jsonlines.org>.

use std::io::{self, BufRead, Cursor, Read};

use crate::Content;
use crate::example::features::FeatureWriter;
use crate::json::{JsonBuffers, flatten};
use crate::other_format::{WithStart, recognize};
use crate::record::{Damage, ReadError, Record, RecordFormat, too_long};

/// The byte order mark of UTF-8, with which some programs begin a file.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// The number of bytes behind a damaged first line that are searched for objects.
const READ_AHEAD_BYTES: usize = 64 << 10;

/// Reads the objects of a file.
pub struct JsonLineReader<R> {
    input: WithStart<R>,
    /// The bytes before `input` that were read to recognize another format.
    ahead: Cursor<Vec<u8>>,
    line: Vec<u8>,
    offset: u64,
    number: u64,
    most_bytes: u64,
    features: FeatureWriter,
    buffers: JsonBuffers,
}

impl<R: BufRead> JsonLineReader<R> {
    /// A reader of `input`, which must be uncompressed and at the start of a line. It ends at a longer line.
    pub fn new(input: R, most_bytes: u64) -> Self {
        Self {
            input: WithStart::new(input),
            ahead: Cursor::default(),
            line: Vec::new(),
            offset: 0,
            number: 0,
            most_bytes,
            features: FeatureWriter::new(most_bytes),
            buffers: JsonBuffers::default(),
        }
    }

    /// The input at its current position.
    pub fn input(&self) -> &R {
        self.input.input()
    }

    /// The next object; `None` at the end. After damage that is not fatal, the next call continues with the next line.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        let offset = match self.next_line() {
            Ok(Some(offset)) => offset,
            Ok(None) => return Ok(None),
            Err(error) => {
                let error = ReadError::of(error, self.number, self.offset);
                let is_first = self.number == 0;
                return Err(if is_first {
                    self.input.explain(error, RecordFormat::JsonLines)
                } else {
                    error
                });
            }
        };
        let number = self.number;
        self.number += 1;
        let line = without_mark(&self.line);
        self.features.start();
        match flatten(line, "", &mut self.features, &mut self.buffers) {
            Ok(()) => match self.features.finish() {
                Ok(data) => Ok(Some(Record { data, offset, number })),
                Err(error) => Err(ReadError::of(error, number, offset)),
            },
            Err(message) => {
                let message = match first_byte(line) {
                    Some(b'[') if number == 0 => {
                        "a JSON array; write one object per line, or convert the file".to_owned()
                    }
                    _ => format!("not a JSON object on one line: {message}"),
                };
                let damage = Damage { offset, record: number, message, ..Damage::default() };
                let found = if number == 0 { self.other_format()? } else { None };
                Err(ReadError::Damage(match found {
                    Some(found) => damage.of_format(RecordFormat::JsonLines, found),
                    None => damage,
                }))
            }
        }
    }

    /// The format of the file, whose first line is no object, if it is clearly another one.
    fn other_format(&mut self) -> Result<Option<Content>, ReadError> {
        let ahead = self.ahead.get_mut();
        self.input.read_ahead(ahead, READ_AHEAD_BYTES)?;
        Ok(recognize(self.input.start()).filter(|found| match found {
            Content::Json => false,
            Content::Text => {
                let mut later = ahead.split(|&byte| byte == b'\n').filter_map(first_byte).peekable();
                let is_line = !matches!(first_byte(&self.line), Some(b'{' | b'['));
                is_line && later.peek().is_some() && later.all(|byte| byte != b'{')
            }
            _ => true,
        }))
    }

    /// Reads the next line that is not blank. Returns its offset.
    fn next_line(&mut self) -> io::Result<Option<u64>> {
        loop {
            self.line.clear();
            let most = self.most_bytes.saturating_add(1);
            let input = self.ahead.by_ref().chain(self.input.by_ref());
            let read = input.take(most).read_until(b'\n', &mut self.line)? as u64;
            if read > self.most_bytes && self.line.last() != Some(&b'\n') {
                return Err(too_long(format!("more than {}", self.most_bytes), self.most_bytes));
            }
            let offset = self.offset;
            self.offset += read;
            if read == 0 {
                return Ok(None);
            }
            if first_byte(&self.line).is_some() {
                return Ok(Some(offset));
            }
        }
    }
}

/// A line without a byte order mark. Files that were joined have marks between them.
fn without_mark(line: &[u8]) -> &[u8] {
    line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line)
}

/// The first byte of a line that is not white space; `None` if it is blank.
fn first_byte(line: &[u8]) -> Option<u8> {
    without_mark(line).trim_ascii_start().first().copied()
}

/// Whether the first value of a text is a JSON object, or a JSON array that starts with one.
pub fn is_json(start: &[u8]) -> bool {
    let start = without_mark(start).trim_ascii_start();
    match start {
        [b'{', rest @ ..] => matches!(rest.trim_ascii_start(), [b'"' | b'}', ..] | []),
        [b'[', rest @ ..] => matches!(rest.trim_ascii_start(), [b'{', ..]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use crate::json::MAX_DEPTH;
    use crate::record::testing::{Row, row, rows};
    use crate::record::{MAX_RECORD_BYTES, RecordFormat};

    fn read(text: &[u8]) -> Vec<Result<Row, String>> {
        rows(RecordFormat::JsonLines, text, MAX_RECORD_BYTES)
    }

    #[test]
    fn values_become_features() {
        let text = concat!(
            "\u{feff}{\"a\": 5, \"b\": -1.50, \"c\": \"x\\n\\u00e9\", \"d\": true}\r\n",
            "\n  \n",
            "{\"a\": 18446744073709551615, \"e\": {\"f\": [1, 2.5, \"z\", false], \"g\": {\"h\": null}}, \"i\": [null, -0, 1e999]}\n",
            "{\"j\": [[1, 2], {\"k\": 3}], \"l\": 1e3}",
        );
        assert_eq!(
            read(text.as_bytes()),
            [
                row(&[("a", &["5"]), ("b", &["-1.5"]), ("c", &["x\\n\\xc3\\xa9"]), ("d", &["true"])]),
                row(&[
                    ("a", &["18446744073709551615"]),
                    ("e.f", &["1", "2.5", "z", "false"]),
                    ("e.g.h", &[]),
                    ("i", &["null", "-0", "1e999"])
                ]),
                row(&[("j", &["[1, 2]", "{\\\"k\\\": 3}"]), ("l", &["1000.0"])]),
            ]
        );
    }

    #[test]
    fn a_damaged_line_is_one_damaged_record() {
        let text =
            b"{\"a\": 1}\n{\"a\": }\n7\n{\"a\": \"\\ud800\"}\n{\"a\": 1} {}\n{\"a\": \"\xff\"}\n{\"a\": 2}\n";
        let rows = read(text);
        let errors: Vec<&str> = rows[1..6].iter().map(|row| row.as_ref().unwrap_err().as_str()).collect();
        assert_eq!(errors[0], "not a JSON object on one line: expected value, at column 7");
        assert!(errors[1].contains("expected an object") && errors[2].contains("hex escape"), "{errors:?}");
        assert!(errors[3].contains("trailing characters") && errors[4].contains("unicode"), "{errors:?}");
        assert_eq!([&rows[0], &rows[6]], [&row(&[("a", &["1"])]), &row(&[("a", &["2"])])]);
        let array = read(b"[{\"a\": 1}]\n");
        assert!(array[0].as_ref().unwrap_err().starts_with("a JSON array; "), "{array:?}");
    }

    #[test]
    fn a_longer_line_ends_the_file() {
        let text = [b"{\"a\": \"", &[b'x'; 100][..], b"\"}\n{}\n"].concat();
        let too_long = [Err("!a record of more than 50 bytes exceeds the limit of 50".to_owned())];
        assert_eq!(rows(RecordFormat::JsonLines, &*text, 50), too_long);
        // A short line, whose features have long names.
        let text = r#"{"name of an object": {"a": 1, "b": 2}}"#;
        assert!(text.len() < 50);
        assert_eq!(rows(RecordFormat::JsonLines, text.as_bytes(), 50), too_long);
    }

    #[test]
    fn objects_nest_up_to_a_limit() {
        let nested = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        assert!(read(nested(MAX_DEPTH).as_bytes())[0].is_ok());
        for depth in [MAX_DEPTH + 1, 100_000] {
            assert!(read(nested(depth).as_bytes())[0].is_err());
        }
    }

    #[test]
    fn byte_order_marks_are_skipped_wherever_files_were_joined() {
        let one = row(&[("a", &["1"])]);
        let text = "\u{feff}\n\u{feff}{\"a\": 1}\n\u{feff}{\"a\": 1}";
        assert_eq!(read(text.as_bytes()), [one.clone(), one]);
    }

    fn values() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(|value| json!(value)),
            any::<String>().prop_map(Value::from),
        ];
        let list =
            prop::collection::vec(scalar.clone().prop_filter("no null", |value| !value.is_null()), 0..4);
        prop_oneof![scalar, list.prop_map(Value::from)]
    }

    /// The text of a value, as scoring reads JSON.
    fn text_of(value: &Value) -> String {
        match value {
            Value::String(text) => text.as_bytes().escape_ascii().to_string(),
            other => other.to_string(),
        }
    }

    proptest! {
        #[test]
        fn any_object_is_read_as_serde_json_reads_it(
            object in prop::collection::btree_map("[a-z]{1,3}", values(), 0..6),
        ) {
            let text = serde_json::to_string(&object).unwrap();
            let again: std::collections::BTreeMap<String, Value> = serde_json::from_str(&text).unwrap();
            let wanted: Vec<(String, Vec<String>)> = again.into_iter().map(|(name, value)| {
                let texts = match &value {
                    Value::Null => Vec::new(),
                    Value::Array(elements) => elements.iter().map(text_of).collect(),
                    scalar => vec![text_of(scalar)],
                };
                (name, texts)
            }).collect();
            prop_assert_eq!(read(text.as_bytes()), [Ok(wanted)]);
        }
    }
}
