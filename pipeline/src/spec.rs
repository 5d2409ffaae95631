//! What a job asks of ingest, resolved: defaults filled in, nothing left to validate but the data itself.

use std::path::PathBuf;

use millstream_format::FormatName;
use millstream_format::filter::Condition;
use serde::{Deserialize, Serialize};

use crate::dataset::DEFAULT_SPLIT_BYTES;

/// The data of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataSpec {
    /// Directory that relative paths and globs start from.
    pub base: PathBuf,
    /// Paths and globs of the training data.
    pub train: Vec<String>,
    /// Paths and globs of the held-out data; may be empty.
    pub eval: Vec<String>,
    /// The format, where the files' names do not say it.
    pub format: Option<FormatName>,
    /// Values that stand for "missing", besides absence itself (`?` in the census data).
    pub missing: Vec<String>,
    /// Conditions that a row must meet to be taken, all of them; the others were never there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<Condition>,
    /// Rows of a global batch.
    pub batch_size: u32,
    /// Passes over the training data.
    pub epochs: u32,
    /// Rows in the shuffle pool; 0 keeps the data's order.
    pub shuffle_rows: u64,
    /// Virtual streams an epoch's splits are dealt to (`V`); part of the order.
    pub lanes: u32,
    /// Slots of the ring.
    pub prefetch: u32,
    /// Lanes that decode at once; `None` to find out while running.
    pub threads: Option<u32>,
    /// Ranges of one object in flight at once; `None` to find out while running.
    pub streams: Option<u32>,
    /// Hard cap on all that ingest holds for this job, in bytes.
    pub memory_budget_bytes: u64,
    /// What a record that cannot be used does to the job.
    pub on_bad_record: OnBadRecord,
    /// Whether the order of rows is the same in every run. If not, training takes rows from whichever lanes
    /// are ready; each row still comes once in each epoch.
    pub deterministic: bool,
    /// Whether an epoch of training leaves out its last batch when that is short.
    pub drop_last: bool,
    /// An uncompressed TFRecord file of more bytes is cut into parts of at most so many, each a split of
    /// its own; part of the order.
    pub split_bytes: u64,
    /// Where what was read once is kept for the next time.
    pub cache: Option<CacheSpec>,
}

/// What a job file that says nothing else asks for; of data, there are none.
impl Default for DataSpec {
    fn default() -> Self {
        Self {
            base: PathBuf::new(),
            train: Vec::new(),
            eval: Vec::new(),
            format: None,
            missing: Vec::new(),
            filter: Vec::new(),
            batch_size: 256,
            epochs: 1,
            shuffle_rows: 65_536,
            lanes: 16,
            prefetch: 4,
            threads: None,
            streams: None,
            memory_budget_bytes: 2 << 30,
            on_bad_record: OnBadRecord::Fail,
            deterministic: true,
            drop_last: false,
            split_bytes: DEFAULT_SPLIT_BYTES,
            cache: None,
        }
    }
}

/// A directory for rows that were read, decoded and transformed once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheSpec {
    /// The directory, which several jobs may share.
    pub directory: PathBuf,
    /// The most bytes of files in it.
    pub max_bytes: u64,
}

/// What a record that cannot be used does to the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "action")]
pub enum OnBadRecord {
    /// The job fails, with the record's address.
    Fail,
    /// The record is left out and counted; past `limit` in one pass the job fails.
    Skip {
        /// The most records left out in one pass over the data.
        limit: u64,
    },
}

/// Where the labels of rows are, of which there is at least one, and their weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelSpec {
    /// The label, or the first of several.
    #[serde(flatten)]
    pub first: LabelColumn,
    /// Column of row weights.
    pub weight: Option<String>,
    /// The labels after the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<LabelColumn>,
}

/// Where a label is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelColumn {
    /// Its name; empty of a job's one label, which needs none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its column.
    pub column: String,
    /// The value that means 1 (any other means 0). Without it the column holds numbers.
    pub positive: Option<String>,
    /// Which numbers these may be.
    #[serde(default, skip_serializing_if = "LabelNumbers::is_usual")]
    pub numbers: LabelNumbers,
    /// The values that it may have, each the class of its number; none where a label is no class. With columns of
    /// numbers the values are compared, not how they are written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
}

/// What a column of labels that are numbers may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelNumbers {
    /// From 0 to 1: the probability, or how surely, a row is of the positive class.
    #[default]
    Probabilities,
    /// Any finite ones.
    Any,
}

impl LabelColumn {
    /// Whether rows are told apart as positive and negative.
    pub(crate) fn has_positives(&self) -> bool {
        self.classes.is_empty() && (self.positive.is_some() || self.numbers == LabelNumbers::Probabilities)
    }
}

impl LabelNumbers {
    fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

impl LabelSpec {
    /// One label without a name, and rows without weights.
    pub fn of(column: &str, positive: Option<&str>) -> Self {
        let (column, positive) = (column.to_owned(), positive.map(str::to_owned));
        let first = LabelColumn { column, positive, ..LabelColumn::default() };
        Self { first, weight: None, others: Vec::new() }
    }

    /// All labels.
    pub fn all(&self) -> impl Iterator<Item = &LabelColumn> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Names of the labels, where they have any.
    pub fn names(&self) -> Vec<String> {
        self.all().filter(|label| !label.name.is_empty()).map(|label| label.name.clone()).collect()
    }
}

/// One feature: columns in, dense values or ids out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeatureSpec {
    /// Its name, unique in the job.
    pub name: String,
    /// The columns it reads: one, or several when crossed.
    pub columns: Vec<String>,
    /// What is made of them.
    pub kind: FeatureKind,
    /// For a multi-valued feature, the most values a row keeps; `None` for exactly one value a row.
    pub maximum: Option<u32>,
    /// For a multi-valued feature of one column, the column that has a number for each of a row's values, which
    /// says how much it counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
}

/// What is made of a feature's columns.
///
/// Every kind but `Numeric` yields ids. A missing value has an id of its own, the last one, so that ids
/// of present values are the same with and without missing ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeatureKind {
    /// A number: one dense column.
    Numeric {
        /// How it is scaled.
        normalize: Normalize,
        /// What an absent value becomes, before scaling.
        missing: MissingNumber,
    },
    /// The interval a number falls in. `n` boundaries make ids `0..=n` (id = boundaries not above the
    /// number, as in TensorFlow), `n + 1` is missing.
    Bucketized {
        /// Strictly increasing.
        boundaries: Vec<f64>,
    },
    /// The position of a term in a list; then out-of-vocabulary buckets; then missing.
    Vocabulary {
        /// Where the terms come from.
        terms: Terms,
        /// Buckets (at least 1) that unknown terms are hashed to, by Fingerprint64.
        oov_buckets: u32,
    },
    /// Fingerprint64 of the value modulo `buckets`, as `tf.strings.to_hash_bucket_fast`; missing is
    /// `buckets`.
    Hashed {
        /// How many.
        buckets: u32,
    },
    /// Whole numbers from 0 to below `buckets`, which are ids as they are; missing is `buckets`.
    Identity {
        /// How many.
        buckets: u32,
        /// What becomes of a whole number that is none of them.
        out_of_range: OutOfRange,
    },
    /// The hash of several columns' values together modulo `buckets`; missing, when any part is, is
    /// `buckets`.
    Crossed {
        /// How many.
        buckets: u32,
        /// Of each column, the boundaries by which it is bucketized before it is crossed; empty, or not
        /// there, where its values themselves are.
        #[serde(default)]
        boundaries: Vec<Vec<f64>>,
    },
}

/// What becomes of a number that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutOfRange {
    /// The record cannot be used.
    Error,
    /// The value counts as missing.
    Missing,
}

/// How a number is scaled. Statistics come from the analysis pass, over present values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Normalize {
    /// As it is.
    None,
    /// `(x - mean) / standard deviation`
    Zscore,
    /// `(x - min) / (max - min)`
    Minmax,
    /// `ln(1 + x)`; below 0 it is `-ln(1 - x)`.
    Log1p,
    /// `Log1p`, then `Zscore` of that.
    Log1pZscore,
}

/// What an absent number becomes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissingNumber {
    /// An error with the record's address.
    Error,
    /// The mean of the present values, learned.
    Mean,
    /// This number.
    Value(f64),
}

/// Where a vocabulary's terms come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Terms {
    /// The training data: by descending count, then by bytes.
    Learned {
        /// The most terms kept.
        max_terms: u32,
        /// Terms seen less often are left out.
        min_count: u64,
    },
    /// This list, in this order.
    Given(Vec<String>),
}
