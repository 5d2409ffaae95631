//! The `[data]` of a file, and its `[data.cache]`.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use millstream_format::FormatName;
use millstream_io::limits::MAX_STREAMS;
use millstream_pipeline::dataset::FEWEST_SPLIT_BYTES;
use millstream_pipeline::spec::{CacheSpec, DataSpec, OnBadRecord, ValidationSpec};

use crate::filter;
use crate::section::{Section, Text};
use crate::tree::{Node, Value};

/// The maximum number of rows per batch.
pub const MAX_ROWS: u32 = 16_777_216;

/// What the kinds of files read differently.
pub struct Own<T> {
    /// The paths and globs of the held-out data.
    pub eval: Vec<String>,
    /// Rows of a batch.
    pub batch_size: u32,
    /// What is no part of the [`DataSpec`].
    pub more: T,
}

/// Reads the section. Relative paths in it start at the directory of the file `path`. `own` reads the held-out data and
/// the size of batches.
pub fn read<T>(
    mut data: Section<'_>,
    path: &Path,
    own: impl FnOnce(&mut Section<'_>) -> Own<T>,
) -> (DataSpec, T) {
    let home = path.parent().unwrap_or(Path::new(""));
    let base = absolute(&data.text("base").map_or(home.to_owned(), |base| home.join(base.text)));
    if base.to_str().is_none() {
        data.error_at(data.at(), format!("the directory {} is not UTF-8", base.display()));
    }
    let (train, train_weights) = read_train(&mut data);
    check_paths(&data, &train);
    let validation = read_validation(&mut data);
    let cache = read_cache(&mut data, &base);
    let Own { eval, batch_size, more } = own(&mut data);
    let usual = DataSpec::default();
    let spec = DataSpec {
        base,
        train: owned(&train),
        train_weights,
        eval,
        format: data.choice("format", &FormatName::ALL),
        missing: owned(&data.texts("missing").unwrap_or_default()),
        filter: filter::read(&mut data, "filter"),
        train_filter: filter::read(&mut data, "train_filter"),
        eval_filter: filter::read(&mut data, "eval_filter"),
        validation,
        negatives: read_negatives(&mut data),
        batch_size,
        epochs: data.whole_u32("epochs", 1..=u32::MAX).unwrap_or(usual.epochs),
        shuffle_rows: data.whole("shuffle_rows", 0..=u64::MAX).unwrap_or(usual.shuffle_rows),
        lanes: data.whole_u32("lanes", 1..=4_096).unwrap_or(usual.lanes),
        prefetch: data.whole_u32("prefetch", 2..=1_024).unwrap_or(usual.prefetch),
        threads: data.whole_u32("threads", 1..=1_024),
        streams: data.whole_u32("streams", 1..=MAX_STREAMS),
        memory_budget_bytes: data.bytes("memory_budget").unwrap_or(usual.memory_budget_bytes),
        on_bad_record: read_on_bad_record(&mut data),
        cache,
        deterministic: data.flag("deterministic").unwrap_or(usual.deterministic),
        // That of the loss, which is read later.
        group: None,
        drop_last: data.flag("drop_last").unwrap_or(usual.drop_last),
        split_bytes: data.bytes("split_bytes").unwrap_or(usual.split_bytes),
    };
    if spec.split_bytes < FEWEST_SPLIT_BYTES {
        let message =
            format!("`split_bytes` must be at least {FEWEST_SPLIT_BYTES}: smaller reads are inefficient");
        data.error("split_bytes", message);
    }
    if spec.shuffle_rows > 0 && spec.shuffle_rows < u64::from(spec.lanes) {
        let message = format!(
            "`shuffle_rows` is divided among {} lanes: it must be at least that number, or 0 to disable shuffling",
            spec.lanes
        );
        data.error("shuffle_rows", message);
    }
    data.finish();
    (spec, more)
}

/// Reports empty paths.
pub fn check_paths(data: &Section<'_>, patterns: &[Text<'_>]) {
    for pattern in patterns.iter().filter(|pattern| pattern.text.is_empty()) {
        data.error_at(pattern.at, "a path is empty");
    }
}

/// The bounds of a weight. An epoch reads all files, however few of their rows it draws.
const WEIGHTS: RangeInclusive<f64> = 0.001..=100.0;

/// Reads `train`: paths and globs, each as a string, or in a table with its weight. The weights are empty if all are 1.
fn read_train<'a>(data: &mut Section<'a>) -> (Vec<Text<'a>>, Vec<f64>) {
    let node = data.required("train", "paths or globs of the training data");
    let mut sources: Vec<(Text<'a>, f64)> = Vec::new();
    if let Some(Node { value: Value::Text(text), at }) = node {
        sources.push((Text { text, at: *at }, 1.0));
    } else if let Some(entries) = node.and_then(|node| data.as_list(node, "strings")) {
        if entries.is_empty() {
            data.error("train", "`train` names no data");
        }
        for entry in entries {
            let (files, weight) = match &entry.value {
                Value::Table(_) => read_weighted(data, entry),
                _ => (data.as_text(entry).map(|file| vec![file]), None),
            };
            let weight = weight.unwrap_or(1.0);
            sources.extend(files.into_iter().flatten().map(|file| (file, weight)));
        }
    }
    let (files, mut weights): (Vec<_>, Vec<_>) = sources.into_iter().unzip();
    if weights.iter().all(|&weight| weight == 1.0) {
        weights.clear();
    }
    (files, weights)
}

fn read_weighted<'a>(data: &Section<'a>, entry: &'a Node) -> (Option<Vec<Text<'a>>>, Option<f64>) {
    let Some(mut source) = data.as_section(entry, "an entry of `train`") else { return (None, None) };
    let files = source.required_texts("files", "paths or globs");
    if files.as_ref().is_some_and(Vec::is_empty) {
        source.error("files", "`files` names no data");
    }
    let weight = source.required("weight", "how often each row occurs in an epoch, such as 2 or 0.5");
    let weight = weight.and_then(|node| source.as_number(node));
    if let Some(found) = weight.filter(|weight| !WEIGHTS.contains(weight)) {
        let (least, most) = WEIGHTS.into_inner();
        source.error("weight", format!("expected a number from {least} to {most}, found {found}"));
    }
    source.finish();
    (files, weight)
}

fn read_validation(data: &mut Section<'_>) -> Option<ValidationSpec> {
    data.node("validation")?;
    let mut validation = data.required_section(
        "validation",
        "[data.validation]",
        "the share of the training data to hold out",
    );
    let node = validation.required("fraction", "the fraction of rows to hold out, such as 0.1");
    let fraction = node.and_then(|node| validation.as_number(node));
    if let Some(found) = fraction.filter(|fraction| !(*fraction > 0.0 && *fraction < 1.0)) {
        validation.error("fraction", format!("expected a number above 0 and below 1, found {found}"));
    }
    let column = validation.text("column");
    if let Some(Text { text: "", at }) = column {
        validation.error_at(at, "a column needs a name");
    }
    let seed = validation.whole("seed", 0..=u64::MAX).unwrap_or(0);
    validation.finish();
    Some(ValidationSpec { fraction: fraction?, column: column.map(|column| column.text.to_owned()), seed })
}

fn read_negatives(data: &mut Section<'_>) -> Option<f64> {
    let fraction = data.node("negatives").and_then(|node| data.as_number(node))?;
    if !(fraction > 0.0 && fraction < 1.0) {
        data.error("negatives", format!("expected a number above 0 and below 1, found {fraction}"));
    }
    Some(fraction)
}

fn read_cache(data: &mut Section<'_>, base: &Path) -> Option<CacheSpec> {
    data.node("cache")?;
    let mut cache = data.required_section("cache", "[data.cache]", "the settings of the cache");
    let directory = cache.required_text("directory", "the directory of the cache");
    cache.check_directory(directory, "cached rows");
    cache.required("max_bytes", "the size limit of the cache");
    let max_bytes = cache.bytes("max_bytes");
    cache.finish();
    Some(CacheSpec { directory: base.join(directory?.text), max_bytes: max_bytes? })
}

fn read_on_bad_record(data: &mut Section<'_>) -> OnBadRecord {
    let skip = data.choice("on_bad_record", &[("fail", false), ("skip", true)]).unwrap_or(false);
    let limit = data.whole("max_bad_records", 1..=u64::MAX);
    if limit.is_some() && !skip {
        data.error("max_bad_records", "`max_bad_records` requires `on_bad_record = \"skip\"`");
    }
    if skip { OnBadRecord::Skip { limit: limit.unwrap_or(1_000) } } else { OnBadRecord::Fail }
}

/// The absolute `path`; unchanged if the working directory is unknown.
fn absolute(path: &Path) -> PathBuf {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The texts without their positions.
pub fn owned(texts: &[Text<'_>]) -> Vec<String> {
    texts.iter().map(|text| text.text.to_owned()).collect()
}
