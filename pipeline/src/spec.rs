//! The resolved data specification of a job: defaults are filled in, and only the data itself is still to be validated.

use std::collections::BTreeMap;
use std::path::PathBuf;

use millstream_batch::{BatchSchema, ColumnKind};
use millstream_format::FormatName;
use millstream_format::filter::{Condition, RowFilter, Share, Side};
use millstream_images::ImageSpec;
use serde::{Deserialize, Serialize};

use crate::sequences::TokenSpec;

/// The default split size. Larger uncompressed TFRecord files are cut into parts.
pub const DEFAULT_SPLIT_BYTES: u64 = 64 << 20;

/// The data of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataSpec {
    /// The base directory of relative paths and globs.
    pub base: PathBuf,
    /// Paths and globs of the training data.
    pub train: Vec<String>,
    /// For each of them, how often a row of its files occurs in an epoch; empty if each occurs once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub train_weights: Vec<f64>,
    /// Paths and globs of the held-out data; may be empty.
    pub eval: Vec<String>,
    /// The format; `None` detects it from the files' names or content.
    pub format: Option<FormatName>,
    /// Values that mean "missing", besides null (`?` in the census data).
    pub missing: Vec<String>,
    /// Conditions that a row must meet, all of them. Other rows are ignored, as if the data did not contain them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<Condition>,
    /// Further conditions on rows of the training data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub train_filter: Vec<Condition>,
    /// Further conditions on rows of the held-out data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub eval_filter: Vec<Condition>,
    /// The share of the training data that is held out instead of `eval`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<ValidationSpec>,
    /// The fraction of the training rows with the label 0 that are kept; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub negatives: Option<f64>,
    /// Rows of a global batch.
    pub batch_size: u32,
    /// Passes over the training data.
    pub epochs: u32,
    /// Rows in the shuffle pool; 0 keeps the data's order.
    pub shuffle_rows: u64,
    /// The number of virtual streams that an epoch's splits are assigned to (`V`); part of the order.
    pub lanes: u32,
    /// The number of slots in the ring.
    pub prefetch: u32,
    /// The maximum number of lanes that decode concurrently; `None` tunes it at run time.
    pub threads: Option<u32>,
    /// The maximum number of ranges of one object in flight; `None` tunes it at run time.
    pub streams: Option<u32>,
    /// A hard limit on the memory that ingest holds for this job, in bytes.
    pub memory_budget_bytes: u64,
    /// The policy for bad records.
    pub on_bad_record: OnBadRecord,
    /// Whether every run has the same order of rows. If false, training takes rows from whichever lanes are ready; each
    /// row still occurs exactly once per epoch.
    pub deterministic: bool,
    /// Whether an epoch of training drops a short last batch.
    pub drop_last: bool,
    /// The feature whose ids group the rows of training: within a shuffle window, the rows of a group stay adjacent.
    /// `None` if the loss compares no rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Uncompressed TFRecord files larger than this are cut into parts of at most this size, each a separate split;
    /// part of the order.
    pub split_bytes: u64,
    /// The local cache of transformed rows.
    pub cache: Option<CacheSpec>,
}

/// The defaults of a job file. It names no data.
impl Default for DataSpec {
    fn default() -> Self {
        Self {
            base: PathBuf::new(),
            train: Vec::new(),
            train_weights: Vec::new(),
            eval: Vec::new(),
            format: None,
            missing: Vec::new(),
            filter: Vec::new(),
            train_filter: Vec::new(),
            eval_filter: Vec::new(),
            validation: None,
            negatives: None,
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
            group: None,
            split_bytes: DEFAULT_SPLIT_BYTES,
            cache: None,
        }
    }
}

/// A share of the training data that is held out, see [`Share`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValidationSpec {
    /// The expected fraction of rows, from 0 to 1.
    pub fraction: f64,
    /// The column by whose value rows are divided; `None` divides row by row.
    pub column: Option<String>,
    /// Each seed makes another division.
    pub seed: u64,
}

/// What rows of a job's data are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To learn from.
    Training,
    /// To evaluate the model during training.
    Evaluation,
    /// To be scored, in data that is not the job's.
    Scoring,
}

impl DataSpec {
    /// Whether the job has held-out data.
    pub fn has_eval(&self) -> bool {
        !self.eval.is_empty() || self.validation.is_some()
    }

    /// The paths and globs of the files that contain the held-out rows.
    pub fn eval_files(&self) -> &[String] {
        if self.validation.is_some() { &self.train } else { &self.eval }
    }

    /// Whether some rows of the training data do not occur once per epoch.
    pub fn is_mixed(&self) -> bool {
        !self.train_weights.is_empty()
    }

    /// Whether weights draw rows, so that the number of rows varies between epochs.
    pub fn draws_rows(&self) -> bool {
        self.train_weights.iter().any(|weight| weight.fract() > 0.0)
    }

    /// The paths and globs of the training data whose weight is not 1, with their weights, in any order.
    pub fn weighted_files(&self) -> BTreeMap<&str, f64> {
        let weighted = self.train.iter().map(String::as_str).zip(self.train_weights.iter().copied());
        weighted.filter(|&(_, weight)| weight != 1.0).collect()
    }

    /// The rows for this purpose in its files.
    pub fn rows(&self, purpose: Purpose) -> RowFilter {
        let (further, side): (&[_], _) = match purpose {
            Purpose::Training => (&self.train_filter, Some(Side::Rest)),
            Purpose::Evaluation => (&self.eval_filter, Some(Side::HeldOut)),
            Purpose::Scoring => (&[], None),
        };
        let share = self.validation.as_ref().zip(side).map(|(validation, side)| {
            let ValidationSpec { fraction, column, seed } = validation.clone();
            Share { held_out: 0.0..fraction, seed, column, side }
        });
        RowFilter { conditions: [&self.filter, further].concat(), shares: share.into_iter().collect() }
    }

    /// The keys of the data section with conditions on `column`, or that divide rows by it.
    pub fn keys_of(&self, column: &str) -> impl Iterator<Item = &'static str> {
        let conditions = [
            ("filter", &self.filter),
            ("train_filter", &self.train_filter),
            ("eval_filter", &self.eval_filter),
        ];
        let tests =
            |(_, conditions): &(_, &Vec<Condition>)| conditions.iter().any(|test| test.column == column);
        let divides = self.validation.as_ref().is_some_and(|spec| spec.column.as_deref() == Some(column));
        let tested: Vec<_> = conditions.into_iter().filter(tests).map(|(key, _)| key).collect();
        tested.into_iter().chain(divides.then_some("validation.column"))
    }
}

/// A cache directory for rows that have been read, decoded and transformed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheSpec {
    /// The directory; several jobs may share it.
    pub directory: PathBuf,
    /// The maximum total size of its files.
    pub max_bytes: u64,
}

/// The policy for bad records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "action")]
pub enum OnBadRecord {
    /// The job fails with the record's address.
    Fail,
    /// The record is skipped and counted; after more than `limit` in one pass the job fails.
    Skip {
        /// The maximum number of records skipped in one pass over the data.
        limit: u64,
    },
}

/// The label columns of a job, at least one, and its weight column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelSpec {
    /// The first or only label.
    #[serde(flatten)]
    pub first: LabelColumn,
    /// The column of row weights.
    pub weight: Option<String>,
    /// The labels after the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<LabelColumn>,
}

/// A label column.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelColumn {
    /// The label's name; empty for a single unnamed label.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The column.
    pub column: String,
    /// The value that is labelled 1; all others are 0. `None` if the column holds numbers.
    pub positive: Option<String>,
    /// The numbers that are valid labels.
    #[serde(default, skip_serializing_if = "LabelNumbers::is_usual")]
    pub numbers: LabelNumbers,
    /// The class values, in class order; empty if labels are not classes. Numeric columns are compared by value, not by
    /// text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
}

/// The numbers that a numeric label column may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelNumbers {
    /// From 0 to 1: the probability that the row is positive.
    #[default]
    Probabilities,
    /// Any finite number.
    Any,
    /// A finite number of at least 0, such as a count.
    NotNegative,
}

impl LabelColumn {
    /// Whether the label distinguishes positive from negative rows.
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
    /// A single unnamed label, without row weights.
    pub fn of(column: &str, positive: Option<&str>) -> Self {
        let (column, positive) = (column.to_owned(), positive.map(str::to_owned));
        let first = LabelColumn { column, positive, ..LabelColumn::default() };
        Self { first, weight: None, others: Vec::new() }
    }

    /// All labels.
    pub fn all(&self) -> impl Iterator<Item = &LabelColumn> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The columns of the labels and of their weight.
    pub fn columns(&self) -> Vec<&str> {
        self.all().map(|label| &label.column).chain(&self.weight).map(String::as_str).collect()
    }

    /// The names of the labels; empty for a single unnamed label.
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
    /// How values are encoded.
    pub kind: FeatureKind,
    /// The maximum number of values per row, for a multi-valued feature; `None` for exactly one value per row.
    pub maximum: Option<u32>,
    /// The column of value weights, for a multi-valued feature of one column. It holds one number per value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
}

impl FeatureSpec {
    /// Whether `name` is reserved for a component of a vector.
    pub fn is_name_of_component(name: &str) -> bool {
        BatchSchema::feature_of(name) != name
    }
}

/// A typed column of a feed: a column of the data, in the type that its reader asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ColumnSpec {
    /// Its name, unique in the feed.
    pub name: String,
    /// The column of the data that it reads.
    pub column: String,
    /// The values of a row.
    #[serde(flatten)]
    pub kind: ColumnKind,
    /// The replacement for absent numbers. `None` makes an absent number a bad record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<f64>,
    /// Set if the column has encoded images; `kind` is then that of the decoded ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSpec>,
    /// Set if the column has documents of tokens; `kind` is then that of the sequences into which they are packed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokenSpec>,
}

/// How a feature's columns are encoded.
///
/// Every kind except `Numeric` and `Vector` yields ids. Missing values get a separate id, the last one, so ids of present values do
/// not depend on whether values are missing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeatureKind {
    /// A number, stored as one dense column.
    Numeric {
        /// How it is scaled.
        normalize: Normalize,
        /// The replacement for an absent value, before scaling.
        missing: MissingNumber,
    },
    /// A list of numbers of the same length in every row, stored as `size` dense columns as it is.
    Vector {
        /// The length.
        size: u32,
        /// The replacement for absent numbers, and for those of an absent list: none or a constant.
        missing: MissingNumber,
    },
    /// The interval that contains a number. `n` boundaries yield ids `0..=n`: the id is the number of boundaries at or
    /// below the number, as in TensorFlow. Missing is `n + 1`.
    Bucketized {
        /// Strictly increasing.
        boundaries: Vec<f64>,
    },
    /// The position of a term in a list; then out-of-vocabulary buckets; then missing.
    Vocabulary {
        /// The source of the terms.
        terms: Terms,
        /// The number of buckets (at least 1) that unknown terms are hashed to by Fingerprint64.
        oov_buckets: u32,
    },
    /// Fingerprint64 of the value modulo `buckets`, as in `tf.strings.to_hash_bucket_fast`. Missing is `buckets`.
    Hashed {
        /// The number of buckets.
        buckets: u32,
    },
    /// Whole numbers from 0 to `buckets - 1`, used as ids directly. Missing is `buckets`.
    Identity {
        /// The number of ids.
        buckets: u32,
        /// The policy for whole numbers outside that range.
        out_of_range: OutOfRange,
    },
    /// The hash of several columns' values modulo `buckets`. Missing is `buckets`, and a row in which any value is
    /// missing gets it.
    Crossed {
        /// The number of buckets.
        buckets: u32,
        /// By column, the boundaries that bucketize it before the cross. An empty or absent list crosses the values
        /// themselves.
        #[serde(default)]
        boundaries: Vec<Vec<f64>>,
    },
}

/// The policy for numbers out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutOfRange {
    /// The record is a bad record.
    Error,
    /// The value counts as missing.
    Missing,
}

/// How a number is scaled. Statistics come from the analysis pass, over present values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Normalize {
    /// Not scaled.
    None,
    /// `(x - mean) / standard deviation`
    Zscore,
    /// `(x - min) / (max - min)`
    Minmax,
    /// `ln(1 + x)`; `-ln(1 - x)` for negative `x`.
    Log1p,
    /// `Log1p`, then `Zscore` of the result.
    Log1pZscore,
}

/// The replacement for an absent number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissingNumber {
    /// No replacement: an absent number is an error with the record's address.
    Error,
    /// The mean of the present values, learned.
    Mean,
    /// A constant.
    Value(f64),
}

/// The source of a vocabulary's terms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Terms {
    /// Learned from the training data: ordered by descending count, then by bytes.
    Learned {
        /// The maximum number of terms kept.
        max_terms: u32,
        /// Terms with a lower count are dropped.
        min_count: u64,
    },
    /// A given list, in its order.
    Given(Vec<String>),
}
