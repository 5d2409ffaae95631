//! Job files: what a person typed, and what it means.
//!
//! A file is parsed into a tree of values that know their places ([`document`]), overrides are laid over
//! it, and each table is read by a [`section::Section`] that knows the keys it may have. What comes out
//! is a [`Job`] in which nothing is left to validate but the data itself, or a [`JobError`] with all
//! that is wrong.

mod batch;
mod document;
mod error;
mod evaluation;
mod features;
mod filter;
mod label;
mod model;
mod section;
mod tensorboard;
mod training;
mod warm_start;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use millstream_pipeline::dataset::FEWEST_SPLIT_BYTES;
use millstream_pipeline::ingest::MOST_STREAMS;
use millstream_pipeline::spec::{
    CacheSpec, DataSpec, FeatureKind, FeatureSpec, FormatName, LabelSpec, OnBadRecord, Terms,
};
use millstream_pipeline::storage::{AzSpec, GsSpec, S3Spec, StorageSpec};
use millstream_trainer::session::{BestSpec, SelectionSpec};
use millstream_trainer::spec::{BatchScaling, DeviceSpec, ModelSpec, TrainingSpec};
use sha2::{Digest, Sha256};

pub use batch::{AutoBatchSpec, LEAST_AUTO_ROWS};
use document::{Node, Table, Value};
use error::{At, Problems};
pub use error::{JobError, Place, Problem, Warning};
pub use evaluation::EvaluationSpec;
use evaluation::Judged;
use features::Feature;
use section::{Section, Text};
pub use tensorboard::TensorBoardSpec;
pub use warm_start::WarmStartSpec;

/// A job, resolved: defaults filled in, names checked against each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its name; job ids begin with it.
    pub name: String,
    /// The data. Of a job whose batch size is to be found, that is the least that it can be.
    pub data: DataSpec,
    /// How the batch size is found, if it is not given.
    pub auto_batch: Option<AutoBatchSpec>,
    /// How learning rates follow from it, if they do. Those of `model` are as they are for batches of this size, once
    /// that is known.
    pub batch_scaling: Option<BatchScaling>,
    /// The label, or several.
    pub label: LabelSpec,
    /// The features that the model or its evaluation uses, in the file's order.
    pub features: Vec<FeatureSpec>,
    /// The model.
    pub model: ModelSpec,
    /// How it trains. Its seed is the job's, and orders the data too.
    pub training: TrainingSpec,
    /// What weights it begins with, if not with its own.
    pub warm_start: Option<WarmStartSpec>,
    /// How it is evaluated.
    pub evaluation: EvaluationSpec,
    /// Checkpoints.
    pub checkpoint: CheckpointSpec,
    /// Event files, if any are written.
    pub tensorboard: Option<TensorBoardSpec>,
    /// How storage is reached, where not as the daemon does.
    pub storage: StorageSpec,
    /// The job as TOML that needs nothing beside it: every override applied, terms read from files
    /// written out, `data.base` given. Parsed again, anywhere, it is this job.
    pub text: String,
}

/// Where checkpoints go, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointSpec {
    /// Each run of a job keeps its checkpoints in a directory of its own in here, named by the job's id.
    /// Absolute.
    pub directory: PathBuf,
    /// Steps between checkpoints.
    pub every_steps: u64,
    /// Checkpoints kept, the newest.
    pub keep: u32,
    /// Those of the best evaluations that are kept besides.
    pub best: Option<BestSpec>,
}

impl Job {
    /// Reads a job file's `text`, with overrides (`section.key=value`) in `set` laid over it.
    ///
    /// `path` is how messages name the file, and where relative paths in it start.
    ///
    /// # Errors
    /// When anything is wrong with the file: all that is.
    pub fn parse(text: &str, path: &Path, set: &[String]) -> Result<(Self, Vec<Warning>), JobError> {
        let problems = Problems::new(path, text, set);
        let mut table = Table::parse(text, set, &problems);
        // What could not be parsed is missing from the tree, and its absence is no news.
        problems.check()?;
        let (mut job, features) = read_job(&table, path, &problems);
        problems.check()?;
        make_portable(&mut table, &job.data.base, &features);
        job.text = document::write(&table);
        job.features = prune(features, &job, &problems);
        Ok((job, problems.warnings()))
    }

    /// What its evaluations are to say of how to go on.
    pub fn judge(&self) -> SelectionSpec {
        SelectionSpec { stopping: self.evaluation.stopping, best: self.checkpoint.best }
    }

    /// What fixes the result of the job, as SHA-256 in hexadecimal: two jobs with the same fingerprint, on
    /// the same data, end with the same model. Names, places, devices, memory and threads have no part in it; of a job whose
    /// batch size is to be found, it is as if memory sufficed for the same one.
    pub fn fingerprint(&self) -> String {
        let data = DataSpec {
            base: PathBuf::new(),
            prefetch: 0,
            threads: None,
            streams: None,
            memory_budget_bytes: 0,
            cache: None,
            ..self.data.clone()
        };
        let training = TrainingSpec { threads: None, device: DeviceSpec::default(), ..self.training.clone() };
        let what = (data, &self.label, &self.features, &self.model, training);
        // These are plain structs, enums and numbers, which JSON can always hold.
        let mut json = serde_json::to_vec(&what).unwrap_or_default();
        if let Some(AutoBatchSpec { most, memory_bytes: _, gpu_memory_bytes: _ }) = self.auto_batch {
            json.extend(serde_json::to_vec(&(most, self.batch_scaling)).unwrap_or_default());
        }
        if let Some(warm_start) = &self.warm_start {
            json.extend(serde_json::to_vec(warm_start).unwrap_or_default());
        }
        if let Some(outcome) = self.evaluation.outcome() {
            json.extend(serde_json::to_vec(&outcome).unwrap_or_default());
        }
        Sha256::digest(&json).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Reads the whole file: the job but for its features, and those as they were written. What it returns
/// means something only when it told no problem.
fn read_job(table: &Table, path: &Path, problems: &Problems<'_>) -> (Job, Vec<Feature>) {
    let mut top = Section::new(table, At::Offset(0), "the job file", problems);
    let name = read_name(&mut top);
    let seed = top.whole("seed", 0..=u64::MAX).unwrap_or(0);
    let section = top.required_section("data", "[data]", "the data to train on");
    let (data, auto_batch) = read_data(section, path, problems);
    let labels = label::read(&mut top, &data.missing, problems);
    let section = top.required_section("features", "[features]", "what is made of the columns");
    let names: Vec<_> = section.entries().map(|(name, ..)| name).collect();
    let features = features::read(section, &data.base);
    let model = top.required_section("model", "[model]", "what is trained");
    let model_at = model.at_key("kind");
    let mut model = model::read(model, &names);
    let mut section = top.section("training", "[training]");
    let batch_scaling = batch::read_scaling(&mut section, auto_batch.is_some());
    if let (Some(scaling), None) = (batch_scaling, auto_batch) {
        scaling.apply(&mut model, data.batch_size);
    }
    let training = training::read(section, seed, &model, &labels);
    let label = labels.resolve(&training, &model, model_at, problems);
    let judged = Judged::of(&label, &model, &training);
    let warm_start = warm_start::read(&mut top, &data.base);
    let evaluation =
        evaluation::read(top.section("evaluation", "[evaluation]"), &names, &features, &data, &judged);
    let checkpoint =
        evaluation::read_checkpoint(top.section("checkpoint", "[checkpoint]"), &data, &evaluation, &judged);
    let tensorboard = tensorboard::read(&mut top, &data.base);
    let storage = read_storage(top.section("storage", "[storage]"), &data.base);
    top.finish();

    refuse_leaks(&features, &label, problems);
    model::embedding::refuse_other_ids(&model, &features, problems);
    let (none, text) = (Vec::new(), String::new());
    let job = Job {
        name,
        data,
        auto_batch,
        batch_scaling,
        label,
        features: none,
        model,
        training,
        warm_start,
        evaluation,
        checkpoint,
        tensorboard,
        storage,
        text,
    };
    (job, features)
}

/// A name that can begin a directory's name anywhere.
fn read_name(top: &mut Section<'_>) -> String {
    const LONGEST: usize = 64;
    let Some(name) = top.required_text("name", "what the job is called") else { return String::new() };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.text.is_empty() || name.text.len() > LONGEST || !name.text.chars().all(plain) {
        let message =
            format!("a name is 1 to {LONGEST} letters, digits, `-`, `_` and `.`, found \"{}\"", name.text);
        top.error_at(name.at, message);
    } else if name.text.starts_with(['-', '.']) {
        top.error_at(name.at, "a name begins with a letter, a digit or `_`");
    }
    name.text.to_owned()
}

fn read_data(
    mut data: Section<'_>,
    path: &Path,
    problems: &Problems<'_>,
) -> (DataSpec, Option<AutoBatchSpec>) {
    let home = path.parent().unwrap_or(Path::new(""));
    let base = absolute(&data.text("base").map_or(home.to_owned(), |base| home.join(base.text)));
    if base.to_str().is_none() {
        data.error_at(data.at(), format!("the directory {} is not UTF-8", base.display()));
    }
    let train = data.required_texts("train", "paths or globs of the training data");
    if train.as_ref().is_some_and(Vec::is_empty) {
        data.error("train", "`train` names no data");
    }
    let train = train.unwrap_or_default();
    let eval = data.texts("eval").unwrap_or_default();
    if !data.has("eval") && data.has("train") {
        let message = "no `eval` in [data], so the model will not be evaluated; `eval = []` if that is meant";
        problems.warn(data.at(), message);
    }
    for pattern in train.iter().chain(&eval).filter(|pattern| pattern.text.is_empty()) {
        data.error_at(pattern.at, "a path is empty");
    }
    let cache = read_cache(&mut data, &base);
    let (batch_size, auto_batch) = batch::read_size(&mut data);
    let usual = DataSpec::default();
    let spec = DataSpec {
        base,
        train: owned(&train),
        eval: owned(&eval),
        format: data.choice("format", &FORMATS),
        missing: owned(&data.texts("missing").unwrap_or_default()),
        filter: filter::read(&mut data),
        batch_size,
        epochs: data.whole_u32("epochs", 1..=u32::MAX).unwrap_or(usual.epochs),
        shuffle_rows: data.whole("shuffle_rows", 0..=u64::MAX).unwrap_or(usual.shuffle_rows),
        lanes: data.whole_u32("lanes", 1..=4_096).unwrap_or(usual.lanes),
        prefetch: data.whole_u32("prefetch", 2..=1_024).unwrap_or(usual.prefetch),
        threads: data.whole_u32("threads", 1..=1_024),
        streams: data.whole_u32("streams", 1..=MOST_STREAMS),
        memory_budget_bytes: data.bytes("memory_budget").unwrap_or(usual.memory_budget_bytes),
        on_bad_record: read_on_bad_record(&mut data),
        cache,
        deterministic: data.flag("deterministic").unwrap_or(usual.deterministic),
        drop_last: data.flag("drop_last").unwrap_or(usual.drop_last),
        split_bytes: data.bytes("split_bytes").unwrap_or(usual.split_bytes),
    };
    if spec.split_bytes < FEWEST_SPLIT_BYTES {
        let message =
            format!("parts of less than {FEWEST_SPLIT_BYTES} bytes are not worth a read of their own");
        data.error("split_bytes", message);
    }
    if spec.shuffle_rows > 0 && spec.shuffle_rows < u64::from(spec.lanes) {
        let message = format!(
            "`shuffle_rows` is split among {} lanes, so it is at least that many, or 0 for no shuffling",
            spec.lanes
        );
        data.error("shuffle_rows", message);
    }
    data.finish();
    (spec, auto_batch)
}

fn read_cache(data: &mut Section<'_>, base: &Path) -> Option<CacheSpec> {
    data.node("cache")?;
    let mut cache = data.required_section("cache", "[data.cache]", "where to keep what was read");
    let directory = cache.required_text("directory", "where to keep what was read");
    if let Some(Text { text: "", at }) = directory {
        cache.error_at(at, "a path is empty");
    }
    cache.required("max_bytes", "the most that is kept there");
    let max_bytes = cache.bytes("max_bytes");
    cache.finish();
    Some(CacheSpec { directory: base.join(directory?.text), max_bytes: max_bytes? })
}

const FORMATS: [(&str, FormatName); 2] =
    [("tfrecord", FormatName::TfRecord), ("parquet", FormatName::Parquet)];

fn read_on_bad_record(data: &mut Section<'_>) -> OnBadRecord {
    let skip = data.choice("on_bad_record", &[("fail", false), ("skip", true)]).unwrap_or(false);
    let limit = data.whole("max_bad_records", 1..=u64::MAX);
    if limit.is_some() && !skip {
        data.error("max_bad_records", "`max_bad_records` has no meaning without `on_bad_record = \"skip\"`");
    }
    if skip { OnBadRecord::Skip { limit: limit.unwrap_or(1_000) } } else { OnBadRecord::Fail }
}

fn read_storage(mut storage: Section<'_>, base: &Path) -> StorageSpec {
    fn text(section: &mut Section<'_>, key: &'static str) -> Option<String> {
        section.text(key).map(|value| value.text.to_owned())
    }
    let (mut gs, mut s3, mut az) = (
        storage.section("gs", "[storage.gs]"),
        storage.section("s3", "[storage.s3]"),
        storage.section("az", "[storage.az]"),
    );
    let spec = StorageSpec {
        gs: GsSpec {
            endpoint: text(&mut gs, "endpoint"),
            anonymous: gs.flag("anonymous"),
            service_account: text(&mut gs, "service_account").map(|path| base.join(path)),
        },
        s3: S3Spec {
            endpoint: text(&mut s3, "endpoint"),
            anonymous: s3.flag("anonymous"),
            region: text(&mut s3, "region"),
        },
        az: AzSpec {
            endpoint: text(&mut az, "endpoint"),
            anonymous: az.flag("anonymous"),
            account: text(&mut az, "account"),
        },
        deadline_seconds: storage.whole_u32("deadline_seconds", 1..=86_400),
    };
    if let Err((name, message)) = spec.check() {
        storage.error(name, message);
    }
    [gs, s3, az].into_iter().for_each(Section::finish);
    storage.finish();
    spec
}

/// A model that is shown the answer learns nothing else.
fn refuse_leaks(features: &[Feature], label: &LabelSpec, problems: &Problems<'_>) {
    for label in label.all() {
        let reads = |feature: &&Feature| {
            let FeatureSpec { columns, weights, .. } = &feature.spec;
            columns.iter().chain(weights).any(|column| *column == label.column)
        };
        for feature in features.iter().filter(reads) {
            let message =
                format!("feature `{}` reads the label's column `{}`", feature.spec.name, label.column);
            problems.error(feature.at, message);
        }
    }
}

/// Leaves out what nothing reads, so that ingest makes nothing in vain.
fn prune(features: Vec<Feature>, job: &Job, problems: &Problems<'_>) -> Vec<FeatureSpec> {
    let mut used = model::used(&job.model);
    used.extend(job.evaluation.group.as_deref());
    let is_used = |feature: &Feature| used.contains(feature.spec.name.as_str());
    let crossed: Vec<_> = features
        .iter()
        .filter(|feature| is_used(feature))
        .flat_map(|feature| feature.parts.clone())
        .collect();
    let (kept, unused): (Vec<_>, Vec<_>) = features.into_iter().partition(is_used);
    for feature in unused.iter().filter(|feature| !crossed.contains(&feature.spec.name)) {
        let message = format!("feature `{}` is in no part of the model, and is left out", feature.spec.name);
        problems.warn(feature.at, message);
    }
    kept.into_iter().map(|feature| feature.spec).collect()
}

/// Writes into the tree what it would otherwise have to look up: where paths start, and terms of files.
fn make_portable(table: &mut Table, base: &Path, features: &[Feature]) {
    let text = |text: &str| Node { at: At::Offset(0), value: Value::Text(text.to_owned()) };
    if let Some(data) = table.table_mut("data", At::Offset(0)) {
        data.put("base", text(&base.to_string_lossy()));
    }
    let Some(written) = table.table_mut("features", At::Offset(0)) else { return };
    for Feature { spec, .. } in features {
        let FeatureKind::Vocabulary { terms: Terms::Given(terms), .. } = &spec.kind else { continue };
        let Some(entries) = written.table_mut(&spec.name, At::Offset(0)) else { continue };
        if entries.remove("file") {
            let terms = terms.iter().map(|term| text(term)).collect();
            entries.put("terms", Node { at: At::Offset(0), value: Value::List(terms) });
        }
    }
}

/// `path` from the root; as it is where even the working directory is unknown.
fn absolute(path: &Path) -> PathBuf {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn owned(texts: &[Text<'_>]) -> Vec<String> {
    texts.iter().map(|text| text.text.to_owned()).collect()
}
