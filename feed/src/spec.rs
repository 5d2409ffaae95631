//! Feed files, parsed and resolved.
//!
//! ```toml
//! seed = 7
//!
//! [data]
//! train = ["gs://bucket/train-*.tfrecord"]
//! batch_size = 1024
//! shuffle_rows = 16_384
//! epochs = 10
//! eval = { val = ["gs://bucket/val-*.tfrecord"] }
//!
//! [columns]
//! pixels = { column = "image/raw", dtype = "float32", shape = [28, 28] }
//! tags = { kind = "ragged", dtype = "int64", maximum = 20 }
//! url = { kind = "raw", maximum = 512 }
//! photo = { kind = "image", column = "image/encoded", size = 224, crop = "random_resized", flip = true }
//! ```
//!
//! Most keys of `[data]` are those of jobs.

mod image;
mod tokens;

use std::collections::BTreeMap;
use std::path::Path;

use millstream_batch::{ColumnKind, Dtype};
use millstream_document::data::{self, MAX_ROWS, Own};
use millstream_document::problems::{At, DocumentError, Problems};
use millstream_document::section::Section;
use millstream_document::storage;
use millstream_document::tree::{self, FileKind, Node, Table, Value};
use millstream_images::ImageSpec;
use millstream_io::storage::StorageSpec;
use millstream_pipeline::order::Packing;
use millstream_pipeline::sequences::SequenceSpec;
use millstream_pipeline::spec::{ColumnSpec, DataSpec};
use serde_json::Map;

/// How messages describe feed files.
const FEED_FILE: FileKind = FileKind { name: "feed file", sections: &["data", "columns"] };

/// The maximum number of columns.
const MAX_COLUMNS: usize = 10_000;

/// The maximum number of dimensions of a tensor, without that of rows.
const MAX_DIMENSIONS: usize = 16;

/// Numbers that JSON does not have.
const NOT_FINITE: [&str; 3] = ["nan", "inf", "-inf"];

/// Keys of `[data]` that only jobs have, and why.
const OF_JOBS: [(&str, &str); 5] = [
    ("cache", "feeds have no cache of transformed rows"),
    ("validation", "name the held-out data in `eval`, or use a registered dataset with splits"),
    ("negatives", "a feed has no label"),
    ("eval_filter", "`filter` selects rows of training and held-out data alike"),
    ("auto_batch", "a feed does not know the memory of the model"),
];

/// Keys of `[data]` that affect speed and memory, and not the contents of batches.
const OF_MACHINE: [&str; 5] = ["base", "memory_budget", "prefetch", "streams", "threads"];

/// A resolved feed: defaults are filled in, and names are checked.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedSpec {
    /// The data. It has no held-out files: those are in `eval`.
    pub data: DataSpec,
    /// The held-out data, by name.
    pub eval: BTreeMap<String, Vec<String>>,
    /// Seeds the order of the rows.
    pub seed: u64,
    /// The columns of a batch, at least one.
    pub columns: Vec<ColumnSpec>,
    /// Set if rows are documents of tokens, which are packed into sequences.
    pub sequences: Option<SequenceSpec>,
    /// The feed's overrides of the host's storage settings.
    pub storage: StorageSpec,
    /// The feed as self-contained TOML. It parses to this feed in any directory.
    pub text: String,
    /// The same without what may differ between the machines of a program. It determines the batches, if the files are equal.
    pub shared: String,
}

impl FeedSpec {
    /// Parses the `text` of a feed file. Messages call the file `path`; relative paths start at its directory.
    ///
    /// # Errors
    /// All problems of the file.
    pub fn parse(text: &str, path: &Path) -> Result<Self, DocumentError> {
        Self::parse_with(text, path, &[])
    }

    /// The same, with the overrides (`section.key=value`) in `set` applied.
    ///
    /// # Errors
    /// As for [`FeedSpec::parse`].
    pub fn parse_with(text: &str, path: &Path, set: &[String]) -> Result<Self, DocumentError> {
        let problems = Problems::new(path, text, set);
        let table = Table::parse(text, set, &FEED_FILE, &problems);
        problems.check()?;
        Self::read(table, At::Offset(0), path, &problems)
    }

    /// The feed of an object with the same keys and values as a file, which a program passes. Messages call a value by its
    /// dotted name; relative paths start at the working directory.
    ///
    /// # Errors
    /// All problems of the object.
    pub fn of_arguments(object: &Map<String, serde_json::Value>) -> Result<Self, DocumentError> {
        let mut names = vec!["feed".to_owned()];
        let table = Table::of_arguments(object, &mut names);
        let problems = Problems::of_arguments(&names);
        Self::read(table, At::Set(0), Path::new(""), &problems)
    }

    fn read(mut table: Table, at: At, path: &Path, problems: &Problems<'_>) -> Result<Self, DocumentError> {
        let mut spec = read(&table, at, path, problems);
        problems.check()?;
        let mut shared = table.clone();
        shared.remove("storage");
        if let Some(data) = shared.table_mut("data", at) {
            for key in OF_MACHINE {
                data.remove(key);
            }
        }
        spec.shared = tree::write(&shared);
        if let (Some(data), Some(base)) = (table.table_mut("data", at), spec.data.base.to_str()) {
            data.put("base", Node { at, value: Value::Text(base.to_owned()) });
        }
        spec.text = tree::write(&table);
        Ok(spec)
    }
}

/// Reads the whole file. The result is valid only if no problem was reported.
fn read(table: &Table, at: At, path: &Path, problems: &Problems<'_>) -> FeedSpec {
    let mut top = Section::new(table, at, "the feed", problems);
    let seed = top.whole("seed", 0..=u64::MAX).unwrap_or(0);
    let sequences = top.has("pack").then(|| tokens::read_pack(top.section("pack", "[pack]")));
    // A mistake in the section is reported once.
    let sequences = sequences.map(|read| read.unwrap_or(SequenceSpec { length: 1, how: Packing::BestFit }));
    let section = top.required_section("data", "[data]", "the data to read");
    let (data, eval) = data::read(section, path, |data| read_own(data, sequences.is_some()));
    if data.is_mixed() {
        top.error("data", "the files of a feed have no weights");
    }
    let section = top.required_section("columns", "[columns]", "the columns of a batch");
    let columns = read_columns(&section, sequences.as_ref(), problems);
    if sequences.is_some() {
        tokens::check(&columns, &section);
    }
    let most_tokens =
        sequences.as_ref().map_or(0, |spec| (u64::from(spec.length) + 1) * u64::from(data.batch_size));
    if most_tokens > i32::MAX as u64 {
        let message =
            format!("a batch of {most_tokens} tokens exceeds 2^31 - 1; lower `length` or `batch_size`");
        top.error("pack", message);
    }
    for ColumnSpec { name, kind, .. } in columns.iter().filter(|column| column.kind.has_offsets()) {
        let values = u64::from(kind.row_values().unwrap_or(u32::MAX)) * u64::from(data.batch_size);
        if values > i32::MAX as u64 {
            let message = format!("a batch of up to {values} values exceeds 2^31 - 1; lower `maximum`");
            section.error(name, message);
        }
    }
    let section = top.section("storage", "[storage]");
    let storage = storage::read(section, &data.base);
    top.finish();
    FeedSpec { data, eval, seed, columns, sequences, storage, text: String::new(), shared: String::new() }
}

/// Reads the keys of `[data]` that differ from those of jobs, of a feed whose rows are packed or not.
fn read_own(data: &mut Section<'_>, is_packed: bool) -> Own<BTreeMap<String, Vec<String>>> {
    if is_packed {
        tokens::check_pool(data);
    }
    for (key, why) in OF_JOBS {
        if data.node(key).is_some() {
            data.error(key, format!("`{key}` is not for feeds: {why}"));
        }
    }
    let eval = data.node("eval").and_then(|node| data.as_section(node, "[data.eval]"));
    let eval = eval.map(read_eval).unwrap_or_default();
    let batch_size = data.required("batch_size", "rows of a batch, over all ranks");
    let batch_size = batch_size.and_then(|node| data.as_whole(node, 1..=MAX_ROWS.into()));
    let batch_size = batch_size.and_then(|rows| u32::try_from(rows).ok()).unwrap_or(1);
    Own { eval: Vec::new(), batch_size, more: eval }
}

fn read_eval(section: Section<'_>) -> BTreeMap<String, Vec<String>> {
    let read = |(name, at, node): (&str, At, &Node)| {
        let patterns = match &node.value {
            Value::Text(text) => Some(vec![text.clone()]),
            _ => section.as_list(node, "strings").and_then(|items| {
                let texts = items.iter().map(|item| section.as_text(item).map(|text| text.text.to_owned()));
                texts.collect()
            }),
        }?;
        if patterns.is_empty() || patterns.iter().any(String::is_empty) {
            section.error_at(at, format!("`{name}` names no data"));
        }
        Some((name.to_owned(), patterns))
    };
    section.entries().filter_map(read).collect()
}

/// The values of `kind`.
#[derive(Clone, Copy)]
enum Kind {
    Tensor,
    Ragged,
    Raw,
    Image,
    Tokens,
}

const KINDS: [(&str, Kind); 5] = [
    ("tensor", Kind::Tensor),
    ("ragged", Kind::Ragged),
    ("raw", Kind::Raw),
    ("image", Kind::Image),
    ("tokens", Kind::Tokens),
];

fn read_columns(
    section: &Section<'_>,
    sequences: Option<&SequenceSpec>,
    problems: &Problems<'_>,
) -> Vec<ColumnSpec> {
    if section.is_empty() {
        section.error_at(section.at(), "a feed needs at least one column");
    }
    let mut columns = Vec::new();
    for (nth, (name, at, node)) in section.entries().enumerate() {
        if nth == MAX_COLUMNS {
            section.error_at(at, format!("more than {MAX_COLUMNS} columns"));
        }
        if nth >= MAX_COLUMNS || problems.is_full() {
            break;
        }
        if name.is_empty() {
            section.error_at(at, "a column needs a name");
        }
        let Some(column) = section.as_section(node, format!("column `{name}`")) else { continue };
        columns.extend(read_column(name, column, sequences));
    }
    columns
}

fn read_column(name: &str, mut column: Section<'_>, sequences: Option<&SequenceSpec>) -> Option<ColumnSpec> {
    let kind = column.choice("kind", &KINDS).unwrap_or(Kind::Tensor);
    let (mut image, mut tokens) = (None, None);
    let source = column.text("column").map_or(name, |text| text.text).to_owned();
    let of_dtype = |column: &mut Section<'_>| {
        column.required_choice("dtype", &Dtype::ALL.map(|dtype| (dtype.name(), dtype)))
    };
    let of_maximum = |column: &mut Section<'_>, what: &str| {
        let node = column.required("maximum", what)?;
        let maximum = column.as_whole(node, 1..=u32::MAX.into())?;
        u32::try_from(maximum).ok()
    };
    let kind = match kind {
        Kind::Tensor => {
            let (dtype, shape) = (of_dtype(&mut column), read_shape(&mut column));
            dtype.zip(shape).map(|(dtype, shape)| ColumnKind::Fixed { dtype, shape })
        }
        Kind::Ragged => {
            let dtype = of_dtype(&mut column);
            let maximum = of_maximum(&mut column, "the maximum number of values per row");
            dtype.zip(maximum).map(|(dtype, maximum)| ColumnKind::Ragged { dtype, maximum })
        }
        Kind::Raw => {
            let maximum = of_maximum(&mut column, "the maximum number of bytes per row");
            maximum.map(|maximum| ColumnKind::Raw { maximum })
        }
        Kind::Image => {
            image = image::read(&mut column);
            image.as_ref().map(ImageSpec::column_kind)
        }
        Kind::Tokens => {
            let (kind, spec) = tokens::read(&mut column, sequences);
            tokens = Some(spec);
            kind
        }
    };
    let missing = read_number(&mut column, "missing");
    if missing.is_some() && image.is_some() {
        column.error("missing", "an absent image is a bad record; a column of images has no `missing`");
    }
    if missing.is_some() && matches!(kind, Some(ColumnKind::Raw { .. })) {
        column.error("missing", "absent values of a raw column have no bytes; it has no `missing`");
    }
    column.finish();
    kind.map(|kind| ColumnSpec { name: name.to_owned(), column: source, kind, missing, image, tokens })
}

/// Reads a number, which may be NaN or infinite.
fn read_number(column: &mut Section<'_>, key: &'static str) -> Option<f64> {
    column.node(key).and_then(|node| match &node.value {
        Value::Real(number) => Some(*number),
        Value::Text(text) if NOT_FINITE.contains(&text.as_str()) => text.parse().ok(),
        _ => column.as_number(node),
    })
}

/// Reads `shape`; that of one value per row if it is absent.
fn read_shape(column: &mut Section<'_>) -> Option<Vec<u32>> {
    let Some(node) = column.node("shape") else { return Some(Vec::new()) };
    let sizes = column.as_list(node, "sizes, such as [28, 28]")?;
    if sizes.len() > MAX_DIMENSIONS {
        column.error("shape", format!("more than {MAX_DIMENSIONS} dimensions"));
        return None;
    }
    let size =
        |node: &Node| column.as_whole(node, 1..=u32::MAX.into()).and_then(|size| u32::try_from(size).ok());
    let shape: Vec<u32> = sizes.iter().map(size).collect::<Option<_>>()?;
    let kind = ColumnKind::Fixed { dtype: Dtype::Bool, shape };
    if kind.row_values().is_none() {
        column.error("shape", "a row has more than 4,294,967,295 values");
        return None;
    }
    let ColumnKind::Fixed { shape, .. } = kind else { return None };
    Some(shape)
}
