//! The resolved job, and how a whole file is read.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use millstream_document::problems::{At, DocumentError, Problems, Warning};
use millstream_document::section::Section;
use millstream_document::tree::{self, FileKind, Node, Table, Value};
use millstream_document::{data, storage};
use millstream_io::redact;
use millstream_io::storage::StorageSpec;
use millstream_pipeline::spec::{DataSpec, FeatureKind, FeatureSpec, LabelColumn, LabelSpec, Terms};
use millstream_trainer::session::SelectionSpec;
use millstream_trainer::spec::{BatchScaling, DeviceSpec, LossSpec, ModelSpec, TrainingSpec};
use sha2::{Digest, Sha256};

use crate::batch::{self, AutoBatchSpec};
use crate::checkpoint::{self, CheckpointSpec};
use crate::evaluation::{self, EvaluationSpec, LabelPredictions};
use crate::features::{self, Feature, OpenTerms, TermFiles, open_regular_file};
use crate::groups::Groups;
use crate::search::{self, ParameterValue, SearchSpec};
use crate::tensorboard::{self, TensorBoardSpec};
use crate::warm_start::{self, WarmStartSpec};
use crate::workers::{self, WorkersSpec};
use crate::{label, model, training};

/// A resolved job: defaults are filled in, and names are checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its name, which is the prefix of its ids.
    pub name: String,
    /// The data. An automatic batch size has its minimum here.
    pub data: DataSpec,
    /// How the batch size is chosen, if it is automatic.
    pub auto_batch: Option<AutoBatchSpec>,
    /// How learning rates scale with the batch size. Those of `model` are scaled once the size is known.
    pub batch_scaling: Option<BatchScaling>,
    /// The labels.
    pub label: LabelSpec,
    /// The features that the model, its loss or its evaluation uses, in the file's order.
    pub features: Vec<FeatureSpec>,
    /// The model.
    pub model: ModelSpec,
    /// How it trains. Its seed is the job's, which also determines the order of the data.
    pub training: TrainingSpec,
    /// The workers that train it. `training` has their number, too.
    pub workers: WorkersSpec,
    /// The source of the initial weights, for a warm start.
    pub warm_start: Option<WarmStartSpec>,
    /// How it is evaluated.
    pub evaluation: EvaluationSpec,
    /// Checkpoints.
    pub checkpoint: CheckpointSpec,
    /// TensorBoard event files, if the job writes any.
    pub tensorboard: Option<TensorBoardSpec>,
    /// The search for the best values of some keys, if the job is one.
    pub search: Option<SearchSpec>,
    /// The job's overrides of the daemon's storage settings.
    pub storage: StorageSpec,
    /// The job as self-contained TOML: with all overrides, the terms of files, and an absolute `data.base`. It parses
    /// to this job on any machine.
    pub text: String,
}

/// How messages describe job files.
pub(crate) const JOB_FILE: FileKind = FileKind { name: "job file", sections: &["data", "features", "model"] };

/// Keys and sections that are not part of a job's fingerprint.
const NOT_FINGERPRINTED: [&str; 19] = [
    "name",
    "data.base",
    "data.prefetch",
    "data.threads",
    "data.streams",
    "data.memory_budget",
    "data.cache",
    "data.auto_batch.memory",
    "data.auto_batch.gpu_memory",
    "training.threads",
    "training.device",
    "evaluation",
    "checkpoint",
    "search.parallel",
    "search.trials",
    "tensorboard",
    "storage",
    "warm_start",
    "workers",
];

/// Whether the job's fingerprint depends on `key`.
fn is_fingerprinted(key: &str) -> bool {
    NOT_FINGERPRINTED
        .iter()
        .all(|other| key.strip_prefix(other).is_none_or(|rest| !rest.is_empty() && !rest.starts_with('.')))
}

/// The maximum length of a value in a message, in characters.
const MAX_SHOWN: usize = 40;

fn shortened(value: &str) -> String {
    match value.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value.to_owned(),
    }
}

impl Job {
    /// Parses a job file's `text` and applies the overrides (`section.key=value`) in `set`. Messages call the file
    /// `path`; relative paths start at its directory.
    ///
    /// # Errors
    /// All problems of the file.
    pub fn parse(text: &str, path: &Path, set: &[String]) -> Result<(Self, Vec<Warning>), DocumentError> {
        Self::parse_with(text, path, set, &open_regular_file)
    }

    /// As [`Job::parse`], with `open` to open the files of terms.
    ///
    /// # Errors
    /// All problems of the file.
    pub fn parse_with(
        text: &str,
        path: &Path,
        set: &[String],
        open: &dyn Fn(&Path) -> io::Result<File>,
    ) -> Result<(Self, Vec<Warning>), DocumentError> {
        let problems = Problems::new(path, text, set);
        let mut table = Table::parse(text, set, &JOB_FILE, &problems);
        // Missing values below would be consequences of these problems.
        problems.check()?;
        let (mut job, features) = read_job(&table, path, open, &problems);
        problems.check()?;
        make_portable(&mut table, &job.data.base, &features);
        if let Some(spec) = &job.search {
            search::check(spec, &table, &problems, &|trial, found| drop(read_job(trial, path, open, found)));
            problems.check()?;
        }
        job.text = tree::write(&table);
        job.features = prune(features, &job, &problems);
        Ok((job, problems.warnings()))
    }

    /// The keys of the job file that read this column of the data, as messages show them.
    pub fn keys_of(&self, column: &str) -> Vec<String> {
        let of_label = |label: &LabelColumn| match label.name.as_str() {
            "" => "`label.column`".to_owned(),
            name => format!("`labels.{name}`"),
        };
        let labels = self.label.all().filter(|label| label.column == column).map(of_label);
        let weight = (self.label.weight.as_deref() == Some(column)).then(|| "`label.weight`".to_owned());
        let reads = |spec: &&FeatureSpec| spec.columns.iter().chain(&spec.weights).any(|name| name == column);
        let features = self.features.iter().filter(reads).map(|spec| format!("`features.{}`", spec.name));
        let filter = self.data.keys_of(column).map(|key| format!("`data.{key}`"));
        labels.chain(weight).chain(features).chain(filter).collect()
    }

    /// The job with `values` of its search's parameters, one of each, without its search: as self-contained TOML, like
    /// [`Job::text`]. `more` are further overrides.
    pub fn trial_text(&self, values: &[ParameterValue], more: &[String]) -> String {
        let mut set = self.search.as_ref().map(|search| search.settings(values)).unwrap_or_default();
        set.extend_from_slice(more);
        // The values and the keys were checked; what does not fit together is reported when the text is parsed.
        let problems = Problems::new(Path::new(""), &self.text, &set);
        let mut table = Table::parse(&self.text, &set, &JOB_FILE, &problems);
        table.remove("search");
        tree::write(&table)
    }

    /// The overrides that replace the files of the data, for [`Job::parse`]; none where they stay as they are. The numbers of
    /// paths stay the same.
    pub fn files_setting(&self, train: &[String], eval: &[String]) -> Vec<String> {
        let text = |path: &String| toml::Value::from(path.as_str()).to_string();
        let weights = self.data.train_weights.iter().map(Some).chain(std::iter::repeat(None));
        let source = |(path, weight): (&String, Option<&f64>)| match weight {
            Some(weight) => format!("{{ files = {}, weight = {weight:?} }}", text(path)),
            None => text(path),
        };
        let train = (*train != self.data.train).then(|| {
            format!("data.train=[{}]", train.iter().zip(weights).map(source).collect::<Vec<_>>().join(", "))
        });
        let eval = (*eval != self.data.eval)
            .then(|| format!("data.eval=[{}]", eval.iter().map(text).collect::<Vec<_>>().join(", ")));
        train.into_iter().chain(eval).collect()
    }

    /// What evaluations decide.
    pub fn selection(&self) -> SelectionSpec {
        SelectionSpec { stopping: self.evaluation.stopping, best: self.checkpoint.best }
    }

    /// [`Job::text`] without the secrets in the addresses of its data, for files that other users may read. Jobs with
    /// other secrets have the same fingerprint.
    pub fn shareable_text(&self) -> String {
        let problems = Problems::new(Path::new(""), &self.text, &[]);
        let mut table = Table::parse(&self.text, &[], &JOB_FILE, &problems);
        let mut is_redacted = false;
        for section in ["data", "storage"] {
            if let Some(node) = table.get_mut(section) {
                node.value.for_each_text(&mut |text| {
                    if let Cow::Owned(redacted) = redact(text) {
                        *text = redacted;
                        is_redacted = true;
                    }
                });
            }
        }
        if is_redacted { tree::write(&table) } else { self.text.clone() }
    }

    /// The keys because of which `self` and `other` have different [fingerprints](Job::fingerprint), with the values of
    /// `self` and of `other`, in alphabetical order.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        self.differences_of(other, is_fingerprinted)
    }

    /// The keys that give ids and numbers of rows their meaning and that have other values in `other`; formatted as by
    /// [`Job::differences`]. A model trained for one job reads the rows of another one as its own if there are none.
    pub fn differences_of_rows(&self, other: &Self) -> Vec<String> {
        const MEANING: [&str; 4] = ["features.", "label.", "labels.", "data.missing"];
        self.differences_of(other, |key| MEANING.iter().any(|start| key.starts_with(start)))
    }

    /// The keys that select the files of the data and that have other values in `other`; formatted as by
    /// [`Job::differences`].
    pub fn differences_of_files(&self, other: &Self) -> Vec<String> {
        const FILES: [&str; 3] = ["data.train", "data.eval", "data.base"];
        self.differences_of(other, |key| FILES.iter().any(|start| key.starts_with(start)))
    }

    /// A SHA-256 hash, in hexadecimal, of the features and labels: jobs with the same one give ids and numbers of rows the
    /// same meaning, if they learned from the same data.
    pub fn features_fingerprint(&self) -> String {
        let what = (&self.features, &self.label, &self.data.missing);
        hash(&serde_json::to_vec(&what).unwrap_or_default())
    }

    /// A SHA-256 hash, in hexadecimal, of everything that determines which files the job reads and what it learns from their
    /// rows: its data, features, labels and storage. The model, the order of the rows and their batches are not part of it.
    pub fn inputs_fingerprint(&self) -> String {
        let data = DataSpec {
            batch_size: 0,
            epochs: 0,
            shuffle_rows: 0,
            prefetch: 0,
            threads: None,
            streams: None,
            cache: None,
            ..self.data.clone()
        };
        hash(&serde_json::to_vec(&(data, &self.label, &self.features, &self.storage)).unwrap_or_default())
    }

    fn differences_of(&self, other: &Self, is_compared: impl Fn(&str) -> bool) -> Vec<String> {
        let [ours, theirs] = [self, other].map(|job| tree::flat(&job.text));
        let keys: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
        let differs = |key: &&String| is_compared(key) && ours.get(*key) != theirs.get(*key);
        let value = |values: &BTreeMap<String, String>, key: &str| {
            values.get(key).map_or_else(|| "absent".to_owned(), |value| shortened(value))
        };
        let describe = |key: &String| format!("`{key}` ({}, now {})", value(&theirs, key), value(&ours, key));
        keys.into_iter().filter(differs).map(describe).collect()
    }

    /// A SHA-256 hash, in hexadecimal, of everything that determines the job's result: two jobs with the same
    /// fingerprint train the same model on the same data. Names, paths, devices, memory limits, threads and
    /// workers are not part of it. For an automatic batch size, neither is the size.
    pub fn fingerprint(&self) -> String {
        let redacted =
            |patterns: &[String]| patterns.iter().map(|text| redact(text).into_owned()).collect::<Vec<_>>();
        let data = DataSpec {
            train: redacted(&self.data.train),
            eval: redacted(&self.data.eval),
            base: PathBuf::new(),
            prefetch: 0,
            threads: None,
            streams: None,
            memory_budget_bytes: 0,
            cache: None,
            ..self.data.clone()
        };
        let device = DeviceSpec::default();
        let training =
            TrainingSpec { threads: None, device, gpus: Vec::new(), workers: None, ..self.training.clone() };
        let what = (data, &self.label, &self.features, &self.model, training);
        // JSON can represent these structs, enums and numbers.
        let mut json = serde_json::to_vec(&what).unwrap_or_default();
        if let Some(AutoBatchSpec { most, memory_bytes: _, gpu_memory_bytes: _, least: _ }) = self.auto_batch
        {
            json.extend(serde_json::to_vec(&(most, self.batch_scaling)).unwrap_or_default());
        }
        if let Some(warm_start) = &self.warm_start {
            json.extend(serde_json::to_vec(warm_start).unwrap_or_default());
        }
        if let Some(search) = &self.search {
            json.extend(serde_json::to_vec(&search.identity()).unwrap_or_default());
        }
        if let Some(outcome) = self.evaluation.outcome() {
            json.extend(serde_json::to_vec(&outcome).unwrap_or_default());
        }
        hash(&json)
    }
}

/// A SHA-256 hash in hexadecimal.
fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads the whole file: the job without its features, and the features as written. The result is valid only if no
/// problem was reported.
pub(crate) fn read_job(
    table: &Table,
    path: &Path,
    open: OpenTerms<'_>,
    problems: &Problems<'_>,
) -> (Job, Vec<Feature>) {
    let mut top = Section::new(table, At::Offset(0), "the job file", problems);
    let name = read_name(&mut top);
    let seed = top.whole("seed", 0..=u64::MAX).unwrap_or(0);
    let section = top.required_section("data", "[data]", "the data to train on");
    let (mut data, mut auto_batch) = data::read(section, path, batch::read_own);
    let labels = label::read(&mut top, &data.missing, problems);
    let section = top.required_section("features", "[features]", "the inputs of the model");
    let names: Vec<_> = section.entries().map(|(name, ..)| name).take(features::MAX_FEATURES).collect();
    let features = features::read(section, &TermFiles::new(&data.base, open));
    let model = top.required_section("model", "[model]", "the model to train");
    let model_at = model.at_key("kind");
    let mut model = model::read(model, &names);
    let mut section = top.section("training", "[training]");
    let batch_scaling = batch::read_scaling(&mut section, auto_batch.is_some());
    if let (Some(scaling), None) = (batch_scaling, auto_batch) {
        scaling.apply(&mut model, data.batch_size);
    }
    let groups = Groups { names: &names, features: &features };
    let (workers, places) = workers::read(&mut top);
    let names_device = section.has("device");
    let mut training = training::read(section, seed, &model, &labels, groups);
    training.workers = NonZeroU32::new(workers.per_host);
    training.shards = workers.reproducible.and_then(NonZeroU32::new);
    training.uneven_parts = workers.max.is_some();
    training.through_hosts = !workers.reducers.is_empty();
    workers::apply_devices((&workers, places), names_device, &mut training, &top);
    workers::apply_gradient_precision((&workers, places), &mut training, &top);
    if let Some(auto) = &mut auto_batch {
        *auto = auto.of_parts(training.parts().max(workers.max.unwrap_or(1)));
        data.batch_size = auto.least;
    }
    data.group = training.loss.group().map(str::to_owned);
    if let Some(fraction) = data.negatives {
        weigh_negatives(fraction, &mut training, &model, table, problems);
    }
    let label = labels.resolve(&training, &model, model_at, problems);
    let predictions = LabelPredictions::of(&label, &model, &training);
    let warm_start = warm_start::read(&mut top, &data.base);
    let section = top.section("evaluation", "[evaluation]");
    let evaluation = evaluation::read(section, groups, training.loss.group(), &data, &predictions);
    let checkpoint =
        checkpoint::read(top.section("checkpoint", "[checkpoint]"), &data, &evaluation, &predictions);
    let search = search::read(&mut top, &name, &data, (&evaluation, &checkpoint), &predictions);
    let tensorboard = tensorboard::read(&mut top, &data.base);
    let storage = storage::read(top.section("storage", "[storage]"), &data.base);
    workers::check((&workers, places), (&data, auto_batch), (&model, &training), &top);
    let mut directories = vec![("checkpoint.directory", &checkpoint.directory)];
    directories.extend(tensorboard.iter().map(|spec| ("tensorboard.directory", &spec.directory)));
    directories.extend(warm_start.iter().map(|spec| ("warm_start.checkpoint", &spec.checkpoint)));
    let uses = workers::HostsUse {
        data: &data,
        auto: auto_batch,
        model: &model,
        search: search.is_some(),
        directories: &directories,
    };
    workers::check_hosts((&workers, places), &uses, &top);
    top.finish();

    refuse_leaks(&features, &label, problems);
    model::din::refuse_other_sequences(&model, &features, problems);
    model::embedding::refuse_other_ids(&model, &features, problems);
    model::embedding::refuse_weighted_maxima(&model, &features, problems);
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
        workers,
        warm_start,
        evaluation,
        checkpoint,
        search,
        tensorboard,
        storage,
        text,
    };
    (job, features)
}

/// Weighs the sampled rows with the label 0 for those that are left out.
fn weigh_negatives(
    fraction: f64,
    training: &mut TrainingSpec,
    model: &ModelSpec,
    table: &Table,
    problems: &Problems<'_>,
) {
    match &mut training.loss {
        LossSpec::BinaryCrossEntropy { negative_weight, .. }
            if training.tasks.is_empty() && !model.uses_in_batch_loss() =>
        {
            *negative_weight = (f64::from(*negative_weight) / fraction) as f32;
        }
        _ => {
            let at = Section::new(table, At::Offset(0), "the job file", problems).at_key("data");
            problems.error(at, "`negatives` in [data] needs a model of one label that is 0 or 1");
        }
    }
}

/// Reads a name that is valid as the prefix of a directory's name.
fn read_name(top: &mut Section<'_>) -> String {
    const LONGEST: usize = 64;
    let Some(name) = top.required_text("name", "the name of the job") else { return String::new() };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.text.is_empty() || name.text.len() > LONGEST || !name.text.chars().all(plain) {
        let message =
            format!("a name is 1 to {LONGEST} letters, digits, `-`, `_` and `.`, found \"{}\"", name.text);
        top.error_at(name.at, message);
    } else if name.text.starts_with(['-', '.']) {
        top.error_at(name.at, "a name starts with a letter, a digit or `_`");
    }
    name.text.to_owned()
}

/// Rejects features that read a label's column: the model would learn nothing else.
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

/// Removes unused features, so that ingest does not compute them.
fn prune(features: Vec<Feature>, job: &Job, problems: &Problems<'_>) -> Vec<FeatureSpec> {
    let mut used = model::used(&job.model);
    used.extend(job.evaluation.group.as_ref().map(|group| group.feature.as_str()));
    used.extend(job.training.loss.group());
    let is_used = |feature: &Feature| used.contains(feature.spec.name.as_str());
    let crossed: HashSet<_> = features
        .iter()
        .filter(|feature| is_used(feature))
        .flat_map(|feature| feature.parts.clone())
        .collect();
    let (kept, unused): (Vec<_>, Vec<_>) = features.into_iter().partition(is_used);
    for feature in unused.iter().filter(|feature| !crossed.contains(&feature.spec.name)) {
        let message = format!("feature `{}` is not used by the model and is ignored", feature.spec.name);
        problems.warn(feature.at, message);
    }
    kept.into_iter().map(|feature| feature.spec).collect()
}

/// Writes external information into the tree: the base directory and the terms of files.
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
