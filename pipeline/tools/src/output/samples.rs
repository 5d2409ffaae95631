//! Rows as samples of WebDataset: which column is a file of the sample, and which is a member of its file `json`.
//!
//! | column | in the sample |
//! |---|---|
//! | `__key__` | the key; without this column, the number of the row among all shards |
//! | one value per row | the file `KEY.COLUMN`: bytes and text as they are, numbers as text |
//! | lists, structs, maps | a member of the object in `KEY.json` |
//! | `json.NAME` | the member `NAME` of the object in `KEY.json`, or nothing if a column `json` has it in its text |
//!
//! Columns `json.NAME` beside a column `json` are errors unless both come from WebDataset, whose reader makes the former from
//! the latter. JSON text has no bytes, so lists and structs with bytes are errors.
//!
//! The reader returns a list in `json` as a column with several values, so a feed can read it.

use std::collections::HashSet;
use std::io::Write;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{ArrayRef, StringArray};
use arrow_schema::{DataType, Field, Schema};
use millstream_format::RawChunk;
use millstream_format::cells::Cells;
use millstream_format::sample_writer::{append_sample_file, extension_problem, key_problem};
use millstream_format::type_name::TypeName;
use millstream_pipeline::Error;
use serde_json::Value;

use super::encode::{bad_value, field, in_memory};
use super::{Form, OutputFormat, narrow};
use crate::values::{JsonColumn, Room, has_json_form};

/// The column that holds keys.
const KEY: &str = "__key__";
/// The file of a sample that holds an object.
const OBJECT: &str = "json";
/// The minimum digits of a key that is the number of a row.
const LEAST_DIGITS: usize = 6;
/// The bytes of an archive per file beyond its data: a header and padding, with a pax header for a name that is long or not
/// ASCII.
const FILE_BYTES: usize = 1024;
const PAX_FILE_BYTES: usize = 2560;
/// The bytes of a member of an object beyond its quoted name and its value: a brace or comma, and a colon.
const MEMBER_BYTES: usize = 2;
/// Names up to this length have no pax header.
const SHORT_NAME: usize = 100;
/// The maximum length of a key that is the number of a row, with the dot after it.
const NUMBER_KEY: usize = 21;

/// What the columns are in samples.
pub(super) struct SampleLayout {
    names: Vec<String>,
    roles: Vec<Role>,
    /// The digits of a key that is the number of a row.
    digits: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Role {
    Key,
    File,
    /// A member of the object with this name, quoted.
    Member(String),
    /// A value that the text of this column has.
    InText(usize),
}

/// The first and the last key of a block.
pub(super) struct KeyRange {
    pub(super) first: String,
    pub(super) last: String,
    /// The error if the previous block ends with `first`.
    pub(super) repeated: Error,
}

enum Values {
    Cells(Cells),
    Json(JsonColumn),
}

impl KeyRange {
    /// The keys of this block and the next one.
    ///
    /// # Errors
    /// The next block begins with the last key of this one.
    pub(super) fn followed_by(self, next: Self) -> Result<Self, Error> {
        if self.last == next.first { Err(next.repeated) } else { Ok(Self { last: next.last, ..self }) }
    }
}

impl SampleLayout {
    /// The layout of rows with this schema, of which all shards have `rows`.
    ///
    /// # Errors
    /// The names of columns cannot be names of files, two columns are one file, or JSON text cannot hold a column.
    pub(super) fn new(schema: &Schema, rows: u64) -> Result<Self, Error> {
        let names: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
        let is_single = |column: usize| narrow::is_single(schema.field(column).data_type());
        let holder = |name: &str| holder(name, &names).filter(|&column| is_single(column));
        let role = |(column, name): (usize, &String)| match (name.as_str(), holder(name)) {
            (KEY, _) => Role::Key,
            (_, Some(text)) => Role::InText(text),
            (name, None) => match name.split_once('.') {
                Some((OBJECT, member)) => Role::Member(quoted(member)),
                _ if is_single(column) => Role::File,
                _ => Role::Member(quoted(name)),
            },
        };
        let roles: Vec<Role> = names.iter().enumerate().map(role).collect();
        let digits = rows.saturating_sub(1).to_string().len().max(LEAST_DIGITS);
        let layout = Self { names, roles, digits };
        layout.check(is_single)?;
        let in_json = |&(field, role): &(&Arc<Field>, &Role)| {
            matches!(role, Role::Member(_)) && !has_json_form(field.data_type())
        };
        match schema.fields().iter().zip(&layout.roles).find(in_json) {
            Some((field, _)) => Err(Error::Invalid(format!(
                "column `{}` would be a member of the file `{OBJECT}`, and JSON cannot hold its type, {}: flatten it first, \
                 write .parquet, or --select other columns",
                field.name(),
                TypeName(field.data_type())
            ))),
            None => Ok(layout),
        }
    }

    /// Rejects columns `json.NAME` beside a column `json` unless its text is known to have their values: `is_read` is whether
    /// a column is one of WebDataset input under its name there.
    pub(super) fn check_texts(&self, is_read: impl Fn(usize) -> bool) -> Result<(), Error> {
        for (column, role) in self.roles.iter().enumerate() {
            if let Role::InText(text) = *role
                && !(is_read(column) && is_read(text))
            {
                let problem = format!(
                    "is a member of the JSON in column `{}`, whose text may not have it",
                    self.names[text]
                );
                return Err(unsuitable(&self.names[column], &problem));
            }
        }
        Ok(())
    }

    /// The maximum bytes of a sample beyond its values in their [forms](Self::forms): headers, padding, and the names of
    /// members of its object.
    pub(super) fn overhead_bytes(&self) -> usize {
        let has_key = self.roles.contains(&Role::Key);
        let of_file = |name: &str| {
            let is_short = !has_key && name.is_ascii() && NUMBER_KEY + name.len() <= SHORT_NAME;
            if is_short { FILE_BYTES } else { PAX_FILE_BYTES + name.len() }
        };
        let of_members: usize = self.members().map(|member| member.len() + MEMBER_BYTES).sum();
        self.files().map(of_file).sum::<usize>() + of_members
    }

    /// The forms of the columns.
    pub(super) fn forms(&self) -> Vec<Form> {
        // Each name of a file has the key.
        let files = self.files().count().max(1);
        let form = |role: &Role| match role {
            Role::Key => Form::Times(files),
            Role::File | Role::InText(_) => Form::Once,
            Role::Member(_) => Form::Json,
        };
        self.roles.iter().map(form).collect()
    }

    /// The extensions of the files of a sample that has all values.
    fn files(&self) -> impl Iterator<Item = &str> {
        let has_object = self.members().next().is_some();
        let names = self.names.iter().zip(&self.roles).filter(|(_, role)| **role == Role::File);
        names.map(|(name, _)| name.as_str()).chain(has_object.then_some(OBJECT))
    }

    /// The quoted names of the members of the object.
    fn members(&self) -> impl Iterator<Item = &str> {
        self.roles.iter().filter_map(|role| match role {
            Role::Member(name) => Some(name.as_str()),
            Role::Key | Role::File | Role::InText(_) => None,
        })
    }

    fn check(&self, is_single: impl Fn(usize) -> bool) -> Result<(), Error> {
        let mut files = HashSet::new();
        let mut members = HashSet::new();
        for (column, (name, role)) in self.names.iter().zip(&self.roles).enumerate() {
            let problem = match role {
                Role::Key if !is_single(column) => {
                    Some("holds the keys of samples, so it must have one value per row".to_owned())
                }
                Role::File => match extension_problem(name) {
                    Some(problem) => Some(format!("cannot be the extension of a file in WebDataset: it {problem}")),
                    None if name.ends_with("__") => Some(
                        "cannot be the extension of a file in WebDataset: it ends with `__`, and readers skip files \
                         `__KEY.NAME__`"
                            .to_owned(),
                    ),
                    None if !files.insert(name.to_lowercase()) => Some(
                        "is the same extension as another column, because readers convert extensions to lower case"
                            .to_owned(),
                    ),
                    None => None,
                },
                Role::Member(member) if !members.insert(member) => {
                    Some(format!("is the member {member} of `{OBJECT}`, as is another column"))
                }
                _ => None,
            };
            if let Some(problem) = problem {
                return Err(unsuitable(name, &problem));
            }
        }
        let is_object = |(name, role): &(&String, &Role)| {
            !members.is_empty() && **role == Role::File && name.to_lowercase() == OBJECT
        };
        match self.names.iter().zip(&self.roles).find(is_object) {
            Some((name, _)) => {
                Err(unsuitable(name, "is the file in which WebDataset holds lists and nested columns"))
            }
            None => Ok(()),
        }
    }

    /// What the user should know about the columns.
    pub(super) fn note(&self) -> Option<String> {
        let in_text = |(name, role): (&String, &Role)| match role {
            Role::InText(text) => Some((format!("`{name}`"), format!("`{}`", self.names[*text]))),
            _ => None,
        };
        let (names, mut texts): (Vec<_>, Vec<_>) =
            self.names.iter().zip(&self.roles).filter_map(in_text).unzip();
        texts.dedup();
        let verb = if names.len() == 1 { "is not a file" } else { "are not files" };
        (!names.is_empty()).then(|| {
            format!("{} {verb} of samples: the text of {} has the values", names.join(", "), texts.join(", "))
        })
    }

    /// Appends the samples of a chunk, whose first row has this number among all rows, to an archive. Returns the keys,
    /// unless there are no rows.
    pub(super) fn append(
        &self,
        archive: &mut Vec<u8>,
        chunk: &RawChunk,
        first_row: u64,
    ) -> Result<Option<KeyRange>, Error> {
        let columns = self.columns(chunk)?;
        let mut keys: Option<KeyRange> = None;
        for row in 0..chunk.rows() {
            let key = self.key(chunk, &columns, row, first_row)?;
            match &mut keys {
                Some(keys) if keys.last == key => return Err(self.repeated(chunk, row, &key)),
                Some(keys) => keys.last.clone_from(&key),
                None => {
                    let repeated = self.repeated(chunk, row, &key);
                    keys = Some(KeyRange { first: key.clone(), last: key.clone(), repeated });
                }
            }
            self.append_row(archive, chunk, &columns, row, &key)?;
        }
        Ok(keys)
    }

    fn columns(&self, chunk: &RawChunk) -> Result<Vec<Values>, Error> {
        let arrays = chunk.columns().columns().iter().zip(&self.roles).enumerate();
        let values = |(column, (array, role)): (usize, (&ArrayRef, &Role))| match role {
            Role::Member(_) => Ok(Values::Json(JsonColumn::of(array))),
            Role::Key | Role::File | Role::InText(_) if narrow::is_single(array.data_type()) => {
                let cells = as_text(array).and_then(|array| Cells::of(&array));
                let message = "the values of this and later records have no form as text";
                cells.map(Values::Cells).ok_or_else(|| bad_value(chunk, 0, column, message))
            }
            _ => Ok(Values::Json(JsonColumn::of(array))),
        };
        arrays.map(values).collect()
    }

    fn key(&self, chunk: &RawChunk, columns: &[Values], row: usize, first_row: u64) -> Result<String, Error> {
        let column = self.roles.iter().position(|role| *role == Role::Key);
        let Some((column, Values::Cells(cells))) = column.map(|column| (column, &columns[column])) else {
            return Ok(format!("{:0digits$}", first_row + row as u64, digits = self.digits));
        };
        let mut text = String::new();
        let key = field(cells, row, &mut text);
        match key_problem(key) {
            None => Ok(String::from_utf8_lossy(key).into_owned()),
            Some(problem) => {
                let message = format!("the key of the sample {problem}");
                Err(bad_value(chunk, row, column, &message))
            }
        }
    }

    fn append_row(
        &self,
        archive: &mut Vec<u8>,
        chunk: &RawChunk,
        columns: &[Values],
        row: usize,
        key: &str,
    ) -> Result<(), Error> {
        let start = archive.len();
        let mut object = Vec::new();
        let mut text = String::new();
        for (column, ((name, role), values)) in self.names.iter().zip(&self.roles).zip(columns).enumerate() {
            match (role, values) {
                (Role::File, Values::Cells(cells)) if cells.is_present(row) => {
                    append_sample_file(archive, key, name, field(cells, row, &mut text));
                }
                (Role::Member(member), Values::Json(values)) => {
                    let value = values.value(row, &mut Room::unlimited());
                    if !value.is_null() {
                        let before = if object.is_empty() { '{' } else { ',' };
                        write!(object, "{before}{member}:{value}").map_err(|error| in_memory(&error))?;
                    }
                }
                (Role::InText(text), values) if values.is_present(row) && !columns[*text].is_present(row) => {
                    let message = format!(
                        "has a value, but `{}`, whose text should have it, has none",
                        self.names[*text]
                    );
                    return Err(bad_value(chunk, row, column, &message));
                }
                _ => {}
            }
        }
        if !object.is_empty() {
            object.push(b'}');
            append_sample_file(archive, key, OBJECT, &object);
        }
        if archive.len() == start {
            let message = "no column of this row has a value, and WebDataset has no samples without files";
            return Err(bad_value(chunk, row, 0, message));
        }
        Ok(())
    }

    fn repeated(&self, chunk: &RawChunk, row: usize, key: &str) -> Error {
        let column = self.roles.iter().position(|role| *role == Role::Key).unwrap_or(0);
        let message = format!("the key `{key}` is that of the previous row, so both would be one sample");
        bad_value(chunk, row, column, &message)
    }
}

impl Values {
    fn is_present(&self, row: usize) -> bool {
        match self {
            Self::Cells(cells) => cells.is_present(row),
            Self::Json(values) => !values.value(row, &mut Room::unlimited()).is_null(),
        }
    }
}

/// The column whose text, a JSON object, has the values of the column `name`: `json` has those of `json.a`.
fn holder(name: &str, names: &[String]) -> Option<usize> {
    let name = name.to_lowercase();
    let is_json = |name: &str| name == OBJECT || name.ends_with(".json");
    let prefixes = name.match_indices('.').map(|(dot, _)| &name[..dot]);
    let mut holders = prefixes.filter(|&prefix| is_json(prefix));
    holders.find_map(|prefix| names.iter().position(|other| other.to_lowercase() == prefix))
}

/// A column in a type that [`Cells`] has without a loss.
fn as_text(array: &ArrayRef) -> Option<ArrayRef> {
    if *array.data_type() == DataType::UInt64 {
        let numbers = array.as_primitive::<UInt64Type>().iter();
        return Some(Arc::new(
            numbers.map(|number| number.map(|number| number.to_string())).collect::<StringArray>(),
        ));
    }
    narrow::narrowed(OutputFormat::WebDataset, array)
}

fn quoted(name: &str) -> String {
    Value::from(name).to_string()
}

fn unsuitable(name: &str, problem: &str) -> Error {
    Error::Invalid(format!("column `{name}` {problem}; give it another name: --rename '{name}=NEW'"))
}
