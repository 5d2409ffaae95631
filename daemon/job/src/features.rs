//! The `[features]` of a job file.
//!
//! Features are read one by one. Then each cross is resolved: its parts are other features, of which it uses the
//! columns, or columns of the data.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use millstream_document::problems::At;
use millstream_document::section::{Section, Text};
use millstream_document::tree::{Node, Value};
use millstream_pipeline::spec::{FeatureKind, FeatureSpec, MissingNumber, Normalize, OutOfRange, Terms};

/// The maximum number of ids of a feature: 32 bits must hold one more, for missing values.
const MOST_IDS: u32 = u32::MAX - 1;

/// The default size of a learned vocabulary.
const MAX_TERMS: u32 = 1_000_000;

/// The maximum size of all files of terms of a job: parsing needs a few times as much memory.
const MAX_TERMS_BYTES: u64 = 256 << 20;

/// The maximum number of features: the lists of a model are searched in time proportional to it.
pub(super) const MAX_FEATURES: usize = 10_000;

/// A feature as the file defines it.
pub(super) struct Feature {
    pub(super) at: At,
    pub(super) spec: FeatureSpec,
    /// The parts of a cross, as written; empty for other kinds.
    pub(super) parts: Vec<String>,
}

/// Opens a file of terms.
pub(super) type OpenTerms<'a> = &'a dyn Fn(&Path) -> io::Result<File>;

/// The files of terms that a job names.
pub(super) struct TermFiles<'a> {
    /// Relative paths start here.
    base: &'a Path,
    open: OpenTerms<'a>,
    /// The bytes that further files may have.
    bytes_left: Cell<u64>,
}

impl<'a> TermFiles<'a> {
    pub(super) fn new(base: &'a Path, open: OpenTerms<'a>) -> Self {
        Self { base, open, bytes_left: Cell::new(MAX_TERMS_BYTES) }
    }

    /// Reads the file at `path`, if it fits.
    fn read(&self, path: &Path) -> io::Result<String> {
        let mut text = String::new();
        let most = self.bytes_left.get();
        let read = (self.open)(path)?.take(most + 1).read_to_string(&mut text)? as u64;
        let left = most.checked_sub(read).ok_or_else(|| {
            io::Error::other(format!(
                "the files of terms are larger than {} MiB in total",
                MAX_TERMS_BYTES >> 20
            ))
        })?;
        self.bytes_left.set(left);
        Ok(text)
    }
}

/// Reads the keys of one kind of feature.
type ReadKind = fn(&mut Section<'_>, files: &TermFiles<'_>) -> FeatureKind;

const KINDS: [(&str, ReadKind); 7] = [
    ("numeric", |table, _| read_numeric(table)),
    ("vector", |table, _| read_vector(table)),
    ("bucketized", |table, _| FeatureKind::Bucketized { boundaries: read_boundaries(table) }),
    ("vocabulary", read_vocabulary),
    ("hashed", |table, _| FeatureKind::Hashed { buckets: read_buckets(table, HASHED) }),
    ("identity", |table, _| read_identity(table)),
    ("crossed", |table, _| FeatureKind::Crossed {
        buckets: read_buckets(table, HASHED),
        boundaries: Vec::new(),
    }),
];

const NORMALIZE: [(&str, Normalize); 5] = [
    ("none", Normalize::None),
    ("zscore", Normalize::Zscore),
    ("minmax", Normalize::Minmax),
    ("log1p", Normalize::Log1p),
    ("log1p_zscore", Normalize::Log1pZscore),
];

const OUT_OF_RANGE: [(&str, OutOfRange); 2] =
    [("error", OutOfRange::Error), ("missing", OutOfRange::Missing)];

/// Reads all features of `section`, in the file's order.
pub(super) fn read(section: Section<'_>, files: &TermFiles<'_>) -> Vec<Feature> {
    let mut features = Vec::new();
    let mut crosses = Vec::new();
    let count = section.entries().count();
    if count > MAX_FEATURES {
        section.error_at(section.at(), format!("{count} features are more than {MAX_FEATURES}"));
    }
    for (name, at, node) in section.entries().take(MAX_FEATURES) {
        if section.is_full() {
            break;
        }
        let Some(table) = section.as_section(node, format!("feature `{name}`")) else { continue };
        if FeatureSpec::is_name_of_component(name) {
            section
                .error_at(at, "a name with a number in brackets at its end is that of a vector's component");
        }
        let Some((spec, parts)) = read_feature(table, name, files) else { continue };
        let names = parts.iter().map(|part| part.text.to_owned()).collect();
        crosses.push(parts);
        features.push(Feature { at, spec, parts: names });
    }
    let places: HashMap<String, usize> =
        features.iter().enumerate().map(|(nth, feature)| (feature.spec.name.clone(), nth)).collect();
    for (nth, parts) in crosses.iter().enumerate().filter(|(_, parts)| !parts.is_empty()) {
        let multi = features[nth].spec.maximum.is_some();
        let column = |part: &Text<'_>| {
            let feature = places.get(part.text).map(|&place| &features[place]);
            crossed_column(feature, part, multi, &section)
        };
        let (columns, boundaries): (Vec<_>, Vec<_>) = parts.iter().filter_map(column).unzip();
        let spec = &mut features[nth].spec;
        spec.columns = columns;
        if let FeatureKind::Crossed { boundaries: of_columns, .. } = &mut spec.kind
            && boundaries.iter().any(|boundaries| !boundaries.is_empty())
        {
            *of_columns = boundaries;
        }
    }
    if section.is_empty() {
        section.error_at(section.at(), "[features] needs at least one feature");
    }
    features
}

/// Reads one feature and its unresolved parts.
fn read_feature<'a>(
    mut table: Section<'a>,
    name: &str,
    files: &TermFiles<'_>,
) -> Option<(FeatureSpec, Vec<Text<'a>>)> {
    let kind = table.required("kind", "how the column becomes a feature");
    // Which keys are allowed depends on the kind.
    let read_kind = kind.and_then(|node| table.as_choice(node, &KINDS))?;
    let kind = read_kind(&mut table, files);
    let (columns, parts) = match kind {
        FeatureKind::Crossed { .. } => (Vec::new(), read_parts(&mut table)),
        _ => (vec![table.text("column").map_or(name, |column| column.text).to_owned()], Vec::new()),
    };
    let (maximum, weights) = match kind {
        FeatureKind::Numeric { .. } | FeatureKind::Vector { .. } => (None, None),
        _ => (read_maximum(&mut table), read_weights(&mut table, &kind)),
    };
    table.finish();
    Some((FeatureSpec { name: name.to_owned(), columns, kind, maximum, weights }, parts))
}

fn read_numeric(table: &mut Section<'_>) -> FeatureKind {
    let normalize = table.choice("normalize", &NORMALIZE).unwrap_or(Normalize::None);
    let missing = table.node("missing").map_or(MissingNumber::Error, |node| read_missing(table, node));
    FeatureKind::Numeric { normalize, missing }
}

/// The maximum length of a vector: each number is a dense column of every batch.
const MAX_VECTOR: u32 = 4_096;

fn read_vector(table: &mut Section<'_>) -> FeatureKind {
    let size = match table.required("size", "the number of values of each row") {
        Some(_) => table.whole_u32("size", 1..=MAX_VECTOR).unwrap_or(1),
        None => 1,
    };
    let missing = table.node("missing").map_or(MissingNumber::Error, |node| read_missing(table, node));
    if missing == MissingNumber::Mean {
        table.error("missing", "a vector has no mean: use a number or \"error\"");
    }
    FeatureKind::Vector { size, missing }
}

fn read_missing(table: &Section<'_>, node: &Node) -> MissingNumber {
    match &node.value {
        Value::Text(text) if text == "error" => MissingNumber::Error,
        Value::Text(text) if text == "mean" => MissingNumber::Mean,
        Value::Whole(_) | Value::Real(_) => {
            table.as_number(node).map_or(MissingNumber::Error, MissingNumber::Value)
        }
        other => {
            let found = match other {
                Value::Text(text) => format!("\"{text}\""),
                other => other.describe().to_owned(),
            };
            table.error_at(node.at, format!("expected \"error\", \"mean\" or a number, found {found}"));
            MissingNumber::Error
        }
    }
}

fn read_boundaries(table: &mut Section<'_>) -> Vec<f64> {
    let Some(node) = table.required("boundaries", "increasing numbers, as in [18, 25, 30]") else {
        return Vec::new();
    };
    let Some(items) = table.as_list(node, "numbers") else { return Vec::new() };
    if items.is_empty() {
        table.error_at(node.at, "`boundaries` needs at least one number");
    }
    let mut boundaries: Vec<f64> = Vec::with_capacity(items.len());
    for item in items {
        let Some(number) = table.as_number(item) else { continue };
        if let Some(&before) = boundaries.last()
            && number <= before
        {
            let message = format!("`boundaries` must increase, and {number} follows {before}");
            table.error_at(item.at, message);
        }
        boundaries.push(number);
    }
    boundaries
}

fn read_identity(table: &mut Section<'_>) -> FeatureKind {
    let buckets = read_buckets(table, "the number of ids, which start at 0");
    let out_of_range = table.choice("out_of_range", &OUT_OF_RANGE).unwrap_or(OutOfRange::Error);
    FeatureKind::Identity { buckets, out_of_range }
}

/// What `buckets` means for hashed values, for messages.
const HASHED: &str = "the number of hash buckets";

fn read_buckets(table: &mut Section<'_>, what: &str) -> u32 {
    match table.required("buckets", what) {
        Some(_) => table.whole_u32("buckets", 1..=MOST_IDS).unwrap_or(1),
        None => 1,
    }
}

fn read_maximum(table: &mut Section<'_>) -> Option<u32> {
    let multi = table.flag("multi").unwrap_or(false);
    let maximum = table.whole_u32("maximum", 1..=u32::MAX);
    match (multi, table.has("maximum")) {
        (true, false) => {
            table.error("multi", "`multi = true` needs `maximum`: the maximum number of values per row");
        }
        (false, true) => table.error("maximum", "`maximum` requires `multi = true`"),
        _ => {}
    }
    maximum.filter(|_| multi)
}

/// Reads the column of the values' weights.
fn read_weights(table: &mut Section<'_>, kind: &FeatureKind) -> Option<String> {
    let column = table.text("weights")?;
    if let FeatureKind::Crossed { .. } = kind {
        table.error("weights", "a cross has no `weights`: weights belong to the values of one column");
    } else if !table.flag("multi").unwrap_or(false) {
        table.error("weights", "`weights` requires `multi = true`");
    }
    Some(column.text.to_owned())
}

fn read_vocabulary(table: &mut Section<'_>, files: &TermFiles<'_>) -> FeatureKind {
    let oov_buckets = table.whole_u32("oov_buckets", 1..=MOST_IDS).unwrap_or(1);
    let max_terms = table.whole_u32("max_terms", 1..=MOST_IDS);
    let min_count = table.whole("min_count", 1..=u64::MAX);
    let listed = table.node("terms").map(|node| read_terms(table, node));
    let filed = table.text("file").map(|file| read_terms_file(table, file, files));
    let sources: Vec<_> = [("terms", listed.is_some()), ("file", filed.is_some())]
        .into_iter()
        .filter_map(|(key, given)| given.then_some(key))
        .collect();
    if sources.len() == 2 {
        table.error("file", "`file` contradicts `terms`: the terms come from one of them");
    }
    for key in ["max_terms", "min_count"] {
        if let (true, Some(source)) = (table.has(key), sources.first()) {
            table.error(key, format!("`{key}` applies to learned terms and contradicts `{source}`"));
        }
    }
    let terms = match listed.or(filed) {
        Some(terms) => Terms::Given(terms),
        None => {
            Terms::Learned { max_terms: max_terms.unwrap_or(MAX_TERMS), min_count: min_count.unwrap_or(1) }
        }
    };
    let count = match &terms {
        Terms::Given(terms) => terms.len() as u64,
        Terms::Learned { max_terms, .. } => u64::from(*max_terms),
    };
    if count + u64::from(oov_buckets) > u64::from(MOST_IDS) {
        table.error("oov_buckets", "terms and `oov_buckets` together are more ids than fit in 32 bits");
    }
    FeatureKind::Vocabulary { terms, oov_buckets }
}

fn read_terms(table: &Section<'_>, node: &Node) -> Vec<String> {
    let Some(items) = table.as_list(node, "strings") else { return Vec::new() };
    if items.is_empty() {
        table.error_at(node.at, "`terms` is empty");
    }
    let mut seen = HashSet::new();
    let mut terms = Vec::with_capacity(items.len());
    for item in items {
        // Terms of an integer column may be written as integers.
        let term = match &item.value {
            Value::Whole(number) => number.to_string(),
            _ => match table.as_text(item) {
                Some(term) => term.text.to_owned(),
                None => continue,
            },
        };
        if !seen.insert(term.clone()) {
            table.error_at(item.at, format!("the term \"{term}\" is listed twice"));
        }
        terms.push(term);
    }
    terms
}

/// Reads a file with one term per line.
fn read_terms_file(table: &Section<'_>, file: Text<'_>, files: &TermFiles<'_>) -> Vec<String> {
    let path = files.base.join(file.text);
    let text = match files.read(&path) {
        Ok(text) => text,
        Err(error) => {
            table.error_at(file.at, format!("cannot read the terms in {}: {error}", path.display()));
            return Vec::new();
        }
    };
    let terms: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut seen = HashSet::new();
    if let Some((line, term)) = terms.iter().enumerate().find(|(_, term)| !seen.insert(term.as_str())) {
        let message = format!("{}:{}: the term \"{term}\" is listed twice", path.display(), line + 1);
        table.error_at(file.at, message);
    }
    if terms.is_empty() {
        table.error_at(file.at, format!("{} has no terms", path.display()));
    }
    terms
}

/// Opens a regular file for reading. A device or a pipe is rejected: reading it may never end.
///
/// # Errors
/// When it cannot be opened, or is not a regular file.
pub fn open_regular_file(path: &Path) -> io::Result<File> {
    // Before it is opened, which a pipe without a writer delays and a device may notice.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    File::open(path)
}

fn read_parts<'a>(table: &mut Section<'a>) -> Vec<Text<'a>> {
    let what = "the columns or features to cross, two or more";
    let Some(parts) = table.required_texts("columns", what) else { return Vec::new() };
    if parts.len() < 2 {
        table.error("columns", "a cross needs two columns or more");
    }
    let mut seen = HashSet::new();
    for part in &parts {
        if !seen.insert(part.text) {
            table.error_at(part.at, format!("`{}` is crossed with itself", part.text));
        }
    }
    parts
}

/// The column of a cross's part, which may be a feature, and the boundaries that bucketize it, if any.
fn crossed_column(
    feature: Option<&Feature>,
    part: &Text<'_>,
    multi: bool,
    section: &Section<'_>,
) -> Option<(String, Vec<f64>)> {
    let Some(feature) = feature else {
        return Some((part.text.to_owned(), Vec::new()));
    };
    let refusal = match &feature.spec.kind {
        FeatureKind::Crossed { .. } => "is a cross itself; name its columns instead",
        FeatureKind::Numeric { .. } | FeatureKind::Vector { .. } => {
            "is numeric; cross a bucketized, vocabulary or hashed feature, or a column"
        }
        _ if feature.spec.maximum.is_some() && !multi => {
            "is multi-valued, so the cross needs `multi = true` and `maximum`"
        }
        kind => {
            let boundaries = match kind {
                FeatureKind::Bucketized { boundaries } => boundaries.clone(),
                _ => Vec::new(),
            };
            return feature.spec.columns.first().map(|column| (column.clone(), boundaries));
        }
    };
    section.error_at(part.at, format!("`{}` {refusal}", part.text));
    None
}
