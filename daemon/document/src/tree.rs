//! A file as a tree whose values carry their positions.
//!
//! The tree is the TOML text with `--set` overrides applied. [`crate::section`] interprets it. Unlike TOML's own
//! tables, it keeps the order of the file.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::Value as Json;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use toml::value::Datetime;

use crate::problems::{At, Problems};

/// A kind of files.
#[derive(Clone, Copy, Debug)]
pub struct FileKind {
    /// Its name in messages, such as "job file".
    pub name: &'static str,
    /// The main sections. Of text that has none and is not TOML, only the first error is reported.
    pub sections: &'static [&'static str],
}

/// The maximum number of overrides. Each is applied by a search through the tables on its path.
const MAX_OVERRIDES: usize = 1000;

/// The maximum number of errors of the TOML parser that are considered: those in a line are reported as one.
const MAX_PARSE_ERRORS: usize = 1000;

/// A value and its position.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct Node {
    /// The position.
    #[serde(skip)]
    pub at: At,
    /// The value.
    pub value: Value,
}

/// A TOML value.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// A string.
    Text(String),
    /// An integer.
    Whole(#[serde(serialize_with = "serialize_whole")] i128),
    /// A number with a fraction.
    Real(f64),
    /// `true` or `false`.
    Bool(bool),
    /// A date, a time, or both.
    Date(Datetime),
    /// An array.
    List(Vec<Node>),
    /// A table.
    Table(Table),
}

/// The entries of a table, in the order of the file.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The entries; keys are unique.
    pub entries: Vec<Entry>,
}

/// A key and its value.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The position of the key.
    pub at: At,
    /// The value.
    pub node: Node,
}

impl Table {
    /// Parses a file of this kind and applies the overrides. Reports what cannot be parsed and omits it.
    pub fn parse(text: &str, set: &[String], kind: &FileKind, problems: &Problems<'_>) -> Self {
        let (document, errors) = DeTable::parse_recoverable(text);
        let has_section = kind.sections.iter().any(|section| document.get_ref().contains_key(*section));
        if let Some(first) = errors.first().filter(|_| !has_section) {
            let start = first.span().map_or(0, |span| span.start);
            let message = first.message();
            let sections: Vec<_> = kind.sections.iter().map(|section| format!("[{section}]")).collect();
            let (last, others) = sections.split_last().map_or(("", &[][..]), |(last, others)| (last, others));
            problems.error(
                At::Offset(start),
                format!(
                    "this is not a {}: it is not TOML with the sections {} and {last} ({message})",
                    kind.name,
                    others.join(", ")
                ),
            );
            return Self::default();
        }
        let mut reported_line = None;
        for error in errors.into_iter().take(MAX_PARSE_ERRORS) {
            let start = error.span().map_or(0, |span| span.start);
            // Later errors in a line are mostly caused by the first one.
            let line_start = text.get(..start).and_then(|before| before.rfind('\n'));
            if reported_line != Some(line_start) {
                problems.error(At::Offset(start), format!("not TOML: {}", error.message()));
            }
            reported_line = Some(line_start);
        }
        let mut table = Self::of(document.get_ref(), &At::Offset);
        if set.len() > MAX_OVERRIDES {
            problems.error(At::Set(MAX_OVERRIDES), format!("more than {MAX_OVERRIDES} overrides"));
        }
        for (nth, text) in set.iter().enumerate().take(MAX_OVERRIDES) {
            table.apply(text, At::Set(nth), problems);
        }
        table
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node)
    }

    /// The value of `key`, to change it.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        self.entries.iter_mut().find(|entry| entry.key == key).map(|entry| &mut entry.node)
    }

    /// The table of an object of JSON, which a program passes. Positions are indexes of `names`, to which the dotted name
    /// of each value is added. A key whose value is null is absent.
    pub fn of_arguments(object: &serde_json::Map<String, Json>, names: &mut Vec<String>) -> Self {
        Self::of_object(object, "", names)
    }

    fn of_object(object: &serde_json::Map<String, Json>, prefix: &str, names: &mut Vec<String>) -> Self {
        let mut entries = Vec::with_capacity(object.len());
        for (key, value) in object.iter().filter(|(_, value)| !value.is_null()) {
            let (name, at) = (format!("{prefix}{key}"), At::Set(names.len()));
            names.push(name.clone());
            entries.push(Entry { key: key.clone(), at, node: Node::of_json(value, at, &name, names) });
        }
        Self { entries }
    }

    /// Replaces the value of `key`, or adds it at the end.
    pub fn put(&mut self, key: &str, node: Node) {
        match self.entries.iter_mut().find(|entry| entry.key == key) {
            Some(entry) => (entry.at, entry.node) = (node.at, node),
            None => self.entries.push(Entry { key: key.to_owned(), at: node.at, node }),
        }
    }

    /// Removes `key`; returns whether it existed.
    pub fn remove(&mut self, key: &str) -> bool {
        let before = self.entries.len();
        self.entries.retain(|entry| entry.key != key);
        self.entries.len() < before
    }

    /// The table under `key`, created if absent; `None` if the value is not a table.
    pub fn table_mut(&mut self, key: &str, at: At) -> Option<&mut Self> {
        if self.get(key).is_none() {
            self.put(key, Node { at, value: Value::Table(Self::default()) });
        }
        match self.get_mut(key).map(|node| &mut node.value) {
            Some(Value::Table(table)) => Some(table),
            _ => None,
        }
    }

    /// Applies the override `section.key=value` to this table.
    pub fn apply(&mut self, text: &str, at: At, problems: &Problems<'_>) {
        let Some((key, value)) = text.split_once('=') else {
            problems.error(at, "expected `section.key=value`");
            return;
        };
        let Some(path) = parse_key(key.trim()) else {
            problems.error(at, format!("`{}` is not a key", key.trim()));
            return;
        };
        let Some(value) = parse_override(value.trim(), at, problems) else { return };
        let Some((last, sections)) = path.split_last() else { return };
        let mut table = self;
        for (depth, section) in sections.iter().enumerate() {
            match table.table_mut(section, at) {
                Some(inner) => table = inner,
                None => {
                    problems.error(at, format!("`{}` is not a table", path[..=depth].join(".")));
                    return;
                }
            }
        }
        table.put(last, Node { at, value });
    }

    fn of(table: &DeTable<'_>, at: &dyn Fn(usize) -> At) -> Self {
        let mut entries: Vec<Entry> = table
            .iter()
            .map(|(key, value)| Entry {
                key: key.get_ref().to_string(),
                at: at(key.span().start),
                node: Node::of(value, at),
            })
            .collect();
        entries.sort_by_key(|entry| entry.at);
        Self { entries }
    }
}

impl Serialize for Table {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.entries.iter().map(|entry| (&entry.key, &entry.node)))
    }
}

impl Node {
    fn of(value: &Spanned<DeValue<'_>>, at: &dyn Fn(usize) -> At) -> Self {
        Self { at: at(value.span().start), value: Value::of(value.get_ref(), at) }
    }

    fn of_json(value: &Json, at: At, name: &str, names: &mut Vec<String>) -> Self {
        let value = match value {
            // In a list. TOML has no null, so a reader that expects another value reports an empty list.
            Json::Null => Value::List(Vec::new()),
            Json::Bool(value) => Value::Bool(*value),
            Json::Number(number) => match number.as_i128() {
                Some(whole) => Value::Whole(whole),
                None => Value::Real(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Value::Text(text.clone()),
            Json::Array(items) => {
                Value::List(items.iter().map(|item| Self::of_json(item, at, name, names)).collect())
            }
            Json::Object(object) => Value::Table(Table::of_object(object, &format!("{name}."), names)),
        };
        Self { at, value }
    }
}

impl Value {
    fn of(value: &DeValue<'_>, at: &dyn Fn(usize) -> At) -> Self {
        match value {
            DeValue::String(text) => Self::Text(text.to_string()),
            // More than 128 bits exceed every range.
            DeValue::Integer(number) => {
                Self::Whole(i128::from_str_radix(number.as_str(), number.radix()).unwrap_or(i128::MAX))
            }
            DeValue::Float(number) => Self::Real(number.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(value) => Self::Bool(*value),
            DeValue::Datetime(date) => Self::Date(*date),
            DeValue::Array(items) => Self::List(items.iter().map(|item| Node::of(item, at)).collect()),
            DeValue::Table(table) => Self::Table(Table::of(table, at)),
        }
    }

    /// Calls `change` with each string in the value.
    pub fn for_each_text(&mut self, change: &mut dyn FnMut(&mut String)) {
        match self {
            Self::Text(text) => change(text),
            Self::List(items) => items.iter_mut().for_each(|item| item.value.for_each_text(change)),
            Self::Table(table) => {
                table.entries.iter_mut().for_each(|entry| entry.node.value.for_each_text(change));
            }
            Self::Whole(_) | Self::Real(_) | Self::Bool(_) | Self::Date(_) => {}
        }
    }

    /// The value's description in a message: "found ...".
    pub fn describe(&self) -> &'static str {
        match self {
            Self::Text(_) => "a string",
            Self::Whole(_) => "a whole number",
            Self::Real(_) => "a number with a fraction",
            Self::Bool(_) => "true or false",
            Self::Date(_) => "a date",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
        }
    }
}

/// The parts of a dotted key.
pub fn parse_key(key: &str) -> Option<Vec<String>> {
    let line = format!("{key} = 0");
    let document = DeTable::parse(&line).ok()?;
    let mut parts = Vec::new();
    let mut table = document.into_inner();
    loop {
        let (key, value) = table.into_iter().next()?;
        parts.push(key.into_inner().into_owned());
        match value.into_inner() {
            DeValue::Table(inner) => table = inner,
            _ => return Some(parts),
        }
    }
}

/// An override's value: TOML, or a bare word or path, which needs no quotes on a command line.
fn parse_override(text: &str, at: At, problems: &Problems<'_>) -> Option<Value> {
    match DeValue::parse(text) {
        Ok(value) => Some(Value::of(value.get_ref(), &|_| at)),
        Err(error) if text.is_empty() || text.starts_with(['[', '{', '"', '\'']) => {
            problems.error(at, format!("not a TOML value: {}", error.message()));
            None
        }
        Err(_) => Some(Value::Text(text.to_owned())),
    }
}

/// The TOML serializer accepts 128 bits in some places only, but not in a table of a list of mixed types.
fn serialize_whole<S: Serializer>(number: &i128, serializer: S) -> Result<S::Ok, S::Error> {
    match i64::try_from(*number) {
        Ok(number) => serializer.serialize_i64(number),
        Err(_) => serializer.serialize_i128(*number),
    }
}

/// Writes the tree as TOML.
pub fn write(table: &Table) -> String {
    toml::to_string(table).expect("the tree has only values of TOML")
}

/// Writes a value that is not a table as TOML in one line.
pub fn write_value(node: &Node) -> String {
    let entry = Entry { key: "v".to_owned(), at: node.at, node: node.clone() };
    let text = write(&Table { entries: vec![entry] });
    text.strip_prefix("v = ").unwrap_or(&text).trim_end().to_owned()
}

/// The values of a job's text, which is valid TOML, by their dotted keys. Lists and inline tables in lists are one value.
pub fn flat(text: &str) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    if let Ok(document) = DeTable::parse(text) {
        flatten(&Table::of(document.get_ref(), &At::Offset), "", &mut values);
    }
    values
}

fn flatten(table: &Table, prefix: &str, values: &mut BTreeMap<String, String>) {
    for Entry { key, node, .. } in &table.entries {
        let key = format!("{prefix}{key}");
        match &node.value {
            Value::Table(inner) => flatten(inner, &format!("{key}."), values),
            // JSON writes all values but dates as TOML does.
            other => drop(values.insert(key, serde_json::to_string(other).unwrap_or_default())),
        }
    }
}
