//! What one batch holds, as both sides of the ring agree on it.
//!
//! Shape letters, used throughout the project: `B` rows of a batch, `L` labels, `D` dense columns, `F` features
//! with one id a row, `R` ragged (multi-valued) features.

use serde::{Deserialize, Serialize};

/// The content of a batch: `L` labels, `D` dense columns, `F` single-id features and `R` ragged ones.
///
/// The order within each list is the order in the slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchSchema {
    /// Rows a slot can hold (`B`). The last batch of a pass may hold fewer.
    pub rows: u32,
    /// Names of the labels, in slot order (`L`); none where rows have one label, which needs no name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Whether each row carries a weight.
    pub weighted: bool,
    /// Names of the dense columns, in slot order (`D`).
    pub dense: Vec<String>,
    /// Features with exactly one id a row (`F`).
    pub ids: Vec<IdFeature>,
    /// Features with any number of ids a row (`R`).
    pub ragged: Vec<RaggedFeature>,
    /// Room for the encoded position of the job in its data after this batch, in bytes.
    pub position_bytes: u32,
}

impl BatchSchema {
    /// Labels that each row has (`L`), at least one.
    pub fn label_count(&self) -> usize {
        self.labels.len().max(1)
    }

    /// The name of each label; an empty one of one that has none.
    pub fn label_names(&self) -> Vec<&str> {
        match self.labels.as_slice() {
            [] => vec![""],
            labels => labels.iter().map(String::as_str).collect(),
        }
    }
}

/// A feature with exactly one id a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdFeature {
    /// The feature's name in the job.
    pub name: String,
    /// Ids are in `0..cardinality`.
    pub cardinality: u32,
}

/// A feature with any number of ids a row, up to a maximum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaggedFeature {
    /// The feature's name in the job.
    pub name: String,
    /// Ids are in `0..cardinality`.
    pub cardinality: u32,
    /// The most ids one row may hold.
    pub maximum: u32,
    /// Whether each id has a number of its own that says how much it counts.
    #[serde(default, skip_serializing_if = "is_false")]
    pub weighted: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_false(flag: &bool) -> bool {
    !flag
}
