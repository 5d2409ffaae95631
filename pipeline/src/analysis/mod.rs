//! Learns feature statistics from the training data before the first step: moments of numeric columns, and
//! vocabularies.
//!
//! One pass over the data ([`AnalysisPass`]) yields an [`Analysis`]. It is stored with the job and in each of its
//! checkpoints, so that evaluation and prediction transform data as training did. The result depends only
//! on the data and the features: splits are counted separately and merged in order, regardless of which
//! thread finishes first.

mod counts;
mod moments;
mod partial;
mod pass;
mod stored;
mod summary;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::spec::{FeatureKind, FeatureSpec, MissingNumber, Normalize, Terms};

pub use pass::{AnalysisPass, AnalysisProgress};
pub use stored::{StoredType, StoredUnit};
pub use summary::Summary;

/// The statistics learned from the training data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Analysis {
    /// The number of rows counted.
    pub rows: u64,
    /// The first label; `None` when nothing was learned.
    pub label: Option<LabelStatistics>,
    /// The labels after the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_labels: Vec<LabelStatistics>,
    /// By column.
    pub numbers: BTreeMap<String, NumberStatistics>,
    /// By feature.
    pub vocabularies: BTreeMap<String, LearnedVocabulary>,
    /// The types in which the training data stores the columns that the job reads. A column that files store
    /// differently is absent, and so are all columns if an earlier version made the analysis.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stored_types: BTreeMap<String, StoredType>,
}

/// Statistics of a label in the training data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelStatistics {
    /// Rows with a label above 0.
    pub positives: u64,
    /// The mean label.
    pub mean: f64,
    /// Whether the label is an arbitrary number, so that `positives` is meaningless.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_number: bool,
    /// Rows per class, for a label of classes; `mean` and `positives` are then meaningless.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<u64>,
}

/// Statistics of a numeric column. All but `missing` cover present values only.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumberStatistics {
    /// Present values.
    pub values: u64,
    /// Absent values.
    pub missing: u64,
    /// The smallest value.
    pub minimum: f64,
    /// The largest value.
    pub maximum: f64,
    /// The moments of the values.
    pub plain: Moments,
    /// The moments of their signed logarithms ([`Normalize::Log1p`]).
    pub logarithm: Moments,
}

/// Mean and population standard deviation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moments {
    /// The mean.
    pub mean: f64,
    /// The population standard deviation.
    pub deviation: f64,
}

/// A vocabulary learned from a column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedVocabulary {
    /// Present values.
    pub values: u64,
    /// Absent values.
    pub missing: u64,
    /// Distinct values, including those too rare to keep.
    pub distinct: u64,
    /// The maximum by which a term's count may be too low: 0 unless the column has more distinct values than
    /// fit in the memory limit.
    pub undercount: u64,
    /// The kept terms, by descending count, then by bytes.
    pub terms: Vec<Term>,
}

/// A term of a learned vocabulary. Its JSON is `["text", count]`, or `[{"hex": "..."}, count]` when the
/// bytes are not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(TermJson, u64)", into = "(TermJson, u64)")]
pub struct Term {
    /// The value as stored in the data.
    pub bytes: Vec<u8>,
    /// The number of occurrences.
    pub count: u64,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum TermJson {
    Text(String),
    Bytes { hex: Hex },
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct Hex(Vec<u8>);

impl Analysis {
    /// Whether any feature learns statistics, which requires a pass over the data before training.
    pub fn needed(features: &[FeatureSpec]) -> bool {
        features.iter().any(|feature| learns_statistics(feature) || learns_terms(feature))
    }

    /// The stored form. Equal analyses have equal text, and floats parse back to the same bits.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("maps are keyed by strings, and writing to memory succeeds")
    }

    /// Parses the output of [`Analysis::to_json`].
    ///
    /// # Errors
    /// The text is anything else.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        serde_json::from_str(text).map_err(|error| Error::Invalid(format!("not an analysis: {error}")))
    }

    /// A human-readable summary.
    pub fn summary(&self) -> Summary<'_> {
        Summary::of(self)
    }

    /// The statistics of a column.
    pub(crate) fn number(&self, column: &str) -> Result<&NumberStatistics, Error> {
        self.numbers.get(column).ok_or_else(|| {
            Error::Invalid(format!(
                "the analysis has no statistics of column `{column}`: it was made for other features"
            ))
        })
    }

    /// The vocabulary of a feature.
    pub(crate) fn vocabulary(&self, feature: &str) -> Result<&LearnedVocabulary, Error> {
        self.vocabularies.get(feature).ok_or_else(|| {
            Error::Invalid(format!(
                "the analysis has no vocabulary of feature `{feature}`: it was made for other features"
            ))
        })
    }
}

fn learns_statistics(feature: &FeatureSpec) -> bool {
    let FeatureKind::Numeric { normalize, missing } = &feature.kind else { return false };
    *missing == MissingNumber::Mean || !matches!(normalize, Normalize::None | Normalize::Log1p)
}

fn learns_terms(feature: &FeatureSpec) -> bool {
    matches!(feature.kind, FeatureKind::Vocabulary { terms: Terms::Learned { .. }, .. })
}

impl From<(TermJson, u64)> for Term {
    fn from((json, count): (TermJson, u64)) -> Self {
        let bytes = match json {
            TermJson::Text(text) => text.into_bytes(),
            TermJson::Bytes { hex } => hex.0,
        };
        Self { bytes, count }
    }
}

impl From<Term> for (TermJson, u64) {
    fn from(term: Term) -> Self {
        let json = match String::from_utf8(term.bytes) {
            Ok(text) => TermJson::Text(text),
            Err(error) => TermJson::Bytes { hex: Hex(error.into_bytes()) },
        };
        (json, term.count)
    }
}

impl From<Hex> for String {
    fn from(hex: Hex) -> Self {
        hex.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl TryFrom<String> for Hex {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let pairs = text.as_bytes().chunks(2);
        let byte = |pair: &[u8]| {
            let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
            u8::from_str_radix(pair, 16).ok()
        };
        let bytes: Option<Vec<u8>> = pairs.map(byte).collect();
        bytes.map(Self).ok_or_else(|| format!("`{text}` is not hexadecimal bytes"))
    }
}
