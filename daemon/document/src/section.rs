//! Reads one table of a file key by key.
//!
//! Each key that is read becomes known; [`Section::finish`] rejects all others. A value of the wrong type or out of
//! range is reported with its position and read as absent, so that one pass finds all problems of a file. The results
//! are valid only if no problem was reported.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::Path;

use millstream_io::storage::Directory;

use crate::problems::{At, Problems, suggestion};
use crate::tree::{Node, Table, Value};

/// A table being read.
pub struct Section<'a> {
    table: &'a Table,
    at: At,
    /// Its name in messages: `[data]` if it can be written as a header, or "feature `age`".
    title: String,
    known: Vec<&'static str>,
    /// Whether the table's absence was reported already, so that its missing keys are not.
    absent: bool,
    problems: &'a Problems<'a>,
}

/// Reads the keys of one kind of value, such as those of one optimizer.
pub type ReadKind<T> = fn(&mut Section<'_>) -> T;

/// The contents of an absent table.
static EMPTY: Table = Table { entries: Vec::new() };

/// A string and its position.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// The string.
    pub text: &'a str,
    /// Its position.
    pub at: At,
}

impl<'a> Section<'a> {
    /// The table at `at`, which messages call `title`.
    pub fn new(table: &'a Table, at: At, title: impl Into<String>, problems: &'a Problems<'a>) -> Self {
        Self { table, at, title: title.into(), known: Vec::new(), absent: false, problems }
    }

    /// A section of a table below this one, whose key the file chose.
    pub fn below<'t>(&self, table: &'t Table, at: At, title: String) -> Section<'t>
    where
        'a: 't,
    {
        Section::new(table, at, title, self.problems)
    }

    /// The position of the table.
    pub fn at(&self) -> At {
        self.at
    }

    /// The position of the value of `key`, or else of the table.
    pub fn at_key(&self, key: &str) -> At {
        self.table.get(key).map_or(self.at, |node| node.at)
    }

    /// The position of the value of `key`, as messages show it.
    pub fn place_of(&self, key: &str) -> String {
        self.problems.place(self.at_key(key))
    }

    /// Whether the table has `key`.
    pub fn has(&self, key: &str) -> bool {
        self.table.get(key).is_some()
    }

    /// Reports a problem with the value of `key`.
    pub fn error(&self, key: &str, message: impl Into<String>) {
        self.problems.error(self.at_key(key), message);
    }

    /// Reports a problem at a position within the table.
    pub fn error_at(&self, at: At, message: impl Into<String>) {
        self.problems.error(at, message);
    }

    /// Reports a `directory` that is none of this host, in which `what` are to be.
    pub fn check_directory(&self, directory: Option<Text<'_>>, what: &str) {
        match directory {
            Some(Text { text: "", at }) => self.error_at(at, "a path is empty"),
            Some(Text { text, at }) if text.contains("://") => {
                self.error_at(at, format!("{what} need a local directory, found \"{text}\""));
            }
            _ => {}
        }
    }

    /// The directory with the path or address `text`, which is reported if it is none. A relative path starts at `base`.
    pub fn directory(&self, text: Option<Text<'_>>, base: &Path) -> Option<Directory> {
        let Text { text, at } = text?;
        if text.is_empty() {
            self.error_at(at, "a path is empty");
            return None;
        }
        Directory::parse(text, base).map_err(|error| self.error_at(at, error.to_string())).ok()
    }

    /// Reports what is valid but probably not meant.
    pub fn warn(&self, message: impl Into<String>) {
        self.problems.warn(self.at, message);
    }

    /// Whether further errors would not be reported, so that reading may end.
    pub fn is_full(&self) -> bool {
        self.problems.is_full()
    }

    /// All entries, for a table whose keys are names chosen by the file.
    pub fn entries(&self) -> impl Iterator<Item = (&'a str, At, &'a Node)> + use<'a> {
        self.table.entries.iter().map(|entry| (entry.key.as_str(), entry.at, &entry.node))
    }

    /// Whether the table exists and is empty.
    pub fn is_empty(&self) -> bool {
        self.table.entries.is_empty() && !self.absent
    }

    /// Rejects keys that were not read.
    pub fn finish(self) {
        let path = self.title.strip_prefix('[').and_then(|title| title.strip_suffix(']'));
        self.problems.known(path, &self.known);
        for entry in &self.table.entries {
            if self.is_full() {
                break;
            }
            if self.known.contains(&entry.key.as_str()) {
                continue;
            }
            let hint = suggestion(&entry.key, self.known.iter().copied());
            let message = format!("unknown key `{}` in {}{hint}", entry.key, self.title);
            if hint.is_empty() {
                self.problems.stray(entry.at, &entry.key, message);
            } else {
                self.problems.error(entry.at, message);
            }
        }
    }

    /// The value of `key`, of any type.
    pub fn node(&mut self, key: &'static str) -> Option<&'a Node> {
        self.known.push(key);
        self.table.get(key)
    }

    /// The value of the required `key`, which `what` describes.
    pub fn required(&mut self, key: &'static str, what: &str) -> Option<&'a Node> {
        let node = self.node(key);
        if node.is_none() && !self.absent {
            self.problems.error(self.at, format!("{} needs `{key}`: {what}", self.title));
        }
        node
    }

    /// A string.
    pub fn text(&mut self, key: &'static str) -> Option<Text<'a>> {
        let node = self.node(key)?;
        self.as_text(node)
    }

    /// A string; required.
    pub fn required_text(&mut self, key: &'static str, what: &str) -> Option<Text<'a>> {
        let node = self.required(key, what)?;
        self.as_text(node)
    }

    /// A list of strings; one string is a list of one.
    pub fn texts(&mut self, key: &'static str) -> Option<Vec<Text<'a>>> {
        let node = self.node(key)?;
        self.as_texts(node)
    }

    /// A list of strings; required.
    pub fn required_texts(&mut self, key: &'static str, what: &str) -> Option<Vec<Text<'a>>> {
        let node = self.required(key, what)?;
        self.as_texts(node)
    }

    /// An integer within `range`.
    pub fn whole(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let node = self.node(key)?;
        self.as_whole(node, range)
    }

    /// A 32-bit integer within `range`.
    pub fn whole_u32(&mut self, key: &'static str, range: RangeInclusive<u32>) -> Option<u32> {
        let (low, high) = range.into_inner();
        self.whole(key, u64::from(low)..=u64::from(high)).and_then(|number| u32::try_from(number).ok())
    }

    /// An integer within `range`.
    pub fn as_whole(&self, node: &Node, range: RangeInclusive<u64>) -> Option<u64> {
        let Value::Whole(number) = node.value else { return self.wrong_type(node, "a whole number") };
        match u64::try_from(number) {
            Ok(number) if range.contains(&number) => Some(number),
            _ => {
                let (low, high) = range.into_inner();
                let wanted = if high >= u64::from(u32::MAX) - 1 && number < i128::from(low) {
                    format!("at least {low}")
                } else {
                    format!("from {low} to {high}")
                };
                self.problems.error(node.at, format!("expected a whole number {wanted}, found {number}"));
                None
            }
        }
    }

    /// A finite number.
    pub fn as_number(&self, node: &Node) -> Option<f64> {
        let number = match node.value {
            // Exact up to 2^53, and rounded to nearest beyond, as if written with a decimal point.
            Value::Whole(number) => number as f64,
            Value::Real(number) => number,
            _ => return self.wrong_type(node, "a number"),
        };
        if number.is_finite() {
            Some(number)
        } else {
            self.problems.error(node.at, format!("expected a finite number, found {number}"));
            None
        }
    }

    /// A constant at least 0, or above 0.
    pub fn constant(&mut self, key: &'static str, positive: bool) -> Option<f32> {
        let node = self.node(key)?;
        self.as_constant(node, positive)
    }

    /// A constant at least 0, or above 0.
    pub fn as_constant(&self, node: &Node, positive: bool) -> Option<f32> {
        let number = self.as_number(node)?;
        let rounded = number as f32;
        if !rounded.is_finite() || rounded < 0.0 || (positive && rounded == 0.0) {
            let wanted = if positive { "a number above 0" } else { "a number of at least 0" };
            self.problems.error(node.at, format!("expected {wanted}, found {number}"));
            return None;
        }
        Some(rounded)
    }

    /// A number above 0, in double precision.
    pub fn positive(&mut self, key: &'static str) -> Option<f64> {
        let node = self.node(key)?;
        let number = self.as_number(node)?;
        if number > 0.0 {
            return Some(number);
        }
        self.problems.error(node.at, format!("expected a number above 0, found {number}"));
        None
    }

    /// A constant at least 0 and below 1.
    pub fn fraction(&mut self, key: &'static str) -> Option<f32> {
        let node = self.node(key)?;
        let number = self.as_number(node)?;
        // Rounded first: a number just below 1 may round to 1.
        let rounded = number as f32;
        if !(0.0..1.0).contains(&rounded) {
            let message = format!("expected a number of at least 0 and below 1, found {number}");
            self.problems.error(node.at, message);
            return None;
        }
        Some(rounded)
    }

    /// `true` or `false`.
    pub fn flag(&mut self, key: &'static str) -> Option<bool> {
        let node = self.node(key)?;
        match node.value {
            Value::Bool(value) => Some(value),
            _ => self.wrong_type(node, "true or false"),
        }
    }

    /// A number of bytes: an integer, or a string like `"512MiB"`.
    pub fn bytes(&mut self, key: &'static str) -> Option<u64> {
        let node = self.node(key)?;
        let Value::Text(text) = &node.value else { return self.as_whole(node, 1..=u64::MAX) };
        let bytes = parse_bytes(text);
        if bytes.is_none() {
            let message = format!("expected a size like \"512MiB\" or \"2GiB\", found \"{text}\"");
            self.problems.error(node.at, message);
        }
        bytes
    }

    /// One of these names.
    pub fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&'static str, T)]) -> Option<T> {
        let node = self.node(key)?;
        self.as_choice(node, choices)
    }

    /// One of these names; required.
    pub fn required_choice<T: Copy>(
        &mut self,
        key: &'static str,
        choices: &[(&'static str, T)],
    ) -> Option<T> {
        let node = self.required(key, &either(choices.iter().map(|choice| choice.0)))?;
        self.as_choice(node, choices)
    }

    /// One of these names.
    pub fn as_choice<T: Copy>(&self, node: &Node, choices: &[(&'static str, T)]) -> Option<T> {
        let text = self.as_text(node)?.text;
        let found = choices.iter().find(|(name, _)| *name == text).map(|&(_, choice)| choice);
        if found.is_none() {
            let hint = suggestion(text, choices.iter().map(|&(name, _)| name));
            let message = format!("expected {}, found \"{text}\"{hint}", either(choices.iter().map(|c| c.0)));
            self.problems.error(node.at, message);
        }
        found
    }

    /// The table under `key`; empty if absent.
    pub fn section(&mut self, key: &'static str, title: &str) -> Section<'a> {
        let node = self.node(key);
        let section = node.and_then(|node| self.as_section(node, title));
        section.unwrap_or_else(|| Section::new(&EMPTY, self.at, title, self.problems))
    }

    /// The required table under `key`.
    pub fn required_section(&mut self, key: &'static str, title: &str, what: &str) -> Section<'a> {
        if !self.has(key) && !self.absent {
            self.problems.error(self.at, format!("{} needs {title}: {what}", self.title));
        }
        let section = self.section(key, title);
        // Absent or not a table: either was reported.
        Section { absent: std::ptr::eq(section.table, &EMPTY), ..section }
    }

    /// A table, which messages call `title`.
    pub fn as_section(&self, node: &'a Node, title: impl Into<String>) -> Option<Section<'a>> {
        match &node.value {
            Value::Table(table) => Some(Section::new(table, node.at, title, self.problems)),
            _ => self.wrong_type(node, "a table"),
        }
    }

    /// A string.
    pub fn as_text<'n>(&self, node: &'n Node) -> Option<Text<'n>> {
        match &node.value {
            Value::Text(text) => Some(Text { text, at: node.at }),
            _ => self.wrong_type(node, "a string"),
        }
    }

    /// A list, of what `of` says.
    pub fn as_list<'n>(&self, node: &'n Node, of: &str) -> Option<&'n [Node]> {
        match &node.value {
            Value::List(items) => Some(items),
            _ => self.wrong_type(node, format_args!("a list of {of}")),
        }
    }

    fn as_texts(&self, node: &'a Node) -> Option<Vec<Text<'a>>> {
        if let Value::Text(text) = &node.value {
            return Some(vec![Text { text, at: node.at }]);
        }
        self.as_list(node, "strings")?.iter().map(|item| self.as_text(item)).collect()
    }

    fn wrong_type<T>(&self, node: &Node, expected: impl Display) -> Option<T> {
        self.problems.error(node.at, format!("expected {expected}, found {}", node.value.describe()));
        None
    }
}

/// `"a"`, `"a" or "b"`, `"a", "b" or "c"`.
fn either<'n>(names: impl Iterator<Item = &'n str>) -> String {
    let quoted: Vec<_> = names.map(|name| format!("\"{name}\"")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, before)) => format!("{} or {last}", before.join(", ")),
        None => String::new(),
    }
}

/// Parses `"2GiB"` and the like: a number and a unit that make a whole number of bytes, at least 1.
pub fn parse_bytes(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 9] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
    ];
    let (number, unit) =
        UNITS.iter().find_map(|&(unit, bytes)| Some((text.strip_suffix(unit)?, bytes))).unwrap_or((text, 1));
    let number = number.trim_end();
    let bytes = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(unit)?,
        // "1.5GiB"; digits and a point only, so no sign, exponent, infinity or NaN.
        Err(_) if number.bytes().all(|b| b.is_ascii_digit() || b == b'.') => {
            (number.parse::<f64>().ok()? * unit as f64) as u64
        }
        Err(_) => return None,
    };
    (bytes > 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::parse_bytes;

    #[test]
    fn sizes() {
        let cases = [
            ("2GiB", Some(2 << 30)),
            ("1.5 GiB", Some(3 << 29)),
            ("512MB", Some(512_000_000)),
            ("17", Some(17)),
            ("17B", Some(17)),
            ("0", None),
            ("", None),
            ("GiB", None),
            ("-1GiB", None),
            ("1e3MiB", None),
            ("infGiB", None),
            ("99999999999TiB", None),
            ("2 gigs", None),
        ];
        for (text, wanted) in cases {
            assert_eq!(parse_bytes(text), wanted, "{text}");
        }
    }
}
