//! Flattens JSON (RFC 8259) into the features of a record.
//!
//! | JSON | feature |
//! |---|---|
//! | a string | its text |
//! | a number | its text: an integer as written, another as `3.5`, in the shortest form that parses back to the same `f64` |
//! | `true`, `false` | `true`, `false` |
//! | `null` | no value |
//! | a list | one value per element; lists, objects and `null` in it are their JSON text |
//! | an object | features `name.key` |
//!
//! Numbers are text because the type of a column must not depend on which rows were read first: `5` and `5.5` may occur in
//! one column. Features read numbers and booleans from text. Of a key that occurs twice, the later value counts.

use std::borrow::Cow;
use std::fmt;
use std::io::Write;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::example::features::{ByteList, FeatureWriter};

/// The maximum depth of objects in objects, which is that of serde_json.
pub(crate) const MAX_DEPTH: usize = 128;

/// Reusable buffers of [`flatten`].
#[derive(Default)]
pub(crate) struct JsonBuffers {
    /// The name of the current feature.
    name: String,
    depth: usize,
    list: ByteList,
    number: Vec<u8>,
}

/// Adds the members of the object `text` to `features`, with names that start with `prefix`.
///
/// # Errors
/// The text is anything but one object. Some members may have been added.
pub(crate) fn flatten(
    text: &[u8],
    prefix: &str,
    features: &mut FeatureWriter,
    buffers: &mut JsonBuffers,
) -> Result<(), String> {
    buffers.start(prefix);
    read(text, Members { features, buffers }).map_err(|error| message(&error))
}

/// Adds the value `text` to `features`, as `name` or, if it is an object, as features whose names start with `name.`.
///
/// # Errors
/// The text is not one value of JSON.
pub(crate) fn value(
    text: &[u8],
    name: &str,
    features: &mut FeatureWriter,
    buffers: &mut JsonBuffers,
) -> Result<(), String> {
    buffers.start(name);
    let value: &RawValue = serde_json::from_slice(text).map_err(|error| message(&error))?;
    Members { features, buffers }.add(value.get()).map_err(|error| message(&error))
}

fn read<'de>(text: &'de [u8], seed: impl DeserializeSeed<'de, Value = ()>) -> serde_json::Result<()> {
    let mut json = serde_json::Deserializer::from_slice(text);
    seed.deserialize(&mut json)?;
    json.end()
}

/// The problem, with its column if the text has one line.
fn message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((message, _)) if error.line() == 1 => format!("{message}, at column {}", error.column()),
        Some((message, _)) => message.to_owned(),
        None => text,
    }
}

impl JsonBuffers {
    fn start(&mut self, name: &str) {
        self.name.clear();
        self.name.push_str(name);
        self.depth = 0;
    }
}

/// The members of an object become features whose names start with the current name.
struct Members<'a> {
    features: &'a mut FeatureWriter,
    buffers: &'a mut JsonBuffers,
}

impl Members<'_> {
    /// Adds a value, whose text is valid except for what strings escape, as the feature with the current name.
    fn add(&mut self, text: &str) -> serde_json::Result<()> {
        let Self { features, buffers } = self;
        match text.as_bytes().first() {
            Some(b'{') => {
                buffers.name.push('.');
                buffers.depth += 1;
                if buffers.depth >= MAX_DEPTH {
                    return Err(serde_json::Error::custom(format!(
                        "more than {MAX_DEPTH} objects in each other"
                    )));
                }
                read(text.as_bytes(), Members { features, buffers })?;
                buffers.depth -= 1;
            }
            Some(b'[') => {
                buffers.list.clear();
                read(text.as_bytes(), Elements(buffers))?;
                features.list(&buffers.name, &buffers.list);
            }
            Some(b'n') => features.absent(&buffers.name),
            _ => features.value(&buffers.name, &scalar(text, &mut buffers.number)?),
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Members<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Members<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let prefix = self.buffers.name.len();
        while map.next_key_seed(Key(&mut self.buffers.name))?.is_some() {
            let value: &RawValue = map.next_value()?;
            self.add(value.get()).map_err(A::Error::custom)?;
            self.buffers.name.truncate(prefix);
        }
        Ok(())
    }
}

/// Appends a key to the current name.
struct Key<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<(), E> {
        self.0.push_str(key);
        Ok(())
    }
}

/// Elements are added to the current list.
struct Elements<'a>(&'a mut JsonBuffers);

impl<'de> DeserializeSeed<'de> for Elements<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Elements<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let JsonBuffers { list, number, .. } = self.0;
        while let Some(element) = elements.next_element::<&RawValue>()? {
            list.push(&scalar(element.get(), number).map_err(A::Error::custom)?);
        }
        Ok(())
    }
}

/// The text of a value that is not flattened further.
fn scalar<'a>(text: &'a str, buffer: &'a mut Vec<u8>) -> serde_json::Result<Cow<'a, [u8]>> {
    let bytes = text.as_bytes();
    match bytes {
        [b'"', inner @ .., b'"'] if !inner.contains(&b'\\') => Ok(inner.into()),
        [b'"', ..] => Ok(serde_json::from_str::<String>(text)?.into_bytes().into()),
        [b'-' | b'0'..=b'9', ..] if bytes.iter().any(|byte| b".eE".contains(byte)) => {
            // Beyond the range of `f64`, it stays as it is.
            let Ok(number) = serde_json::from_str::<f64>(text) else { return Ok(bytes.into()) };
            buffer.clear();
            // Writing a number to a vector cannot fail.
            let _ = write!(buffer, "{}", serde_json::Value::from(number));
            Ok(buffer.as_slice().into())
        }
        _ => Ok(bytes.into()),
    }
}
