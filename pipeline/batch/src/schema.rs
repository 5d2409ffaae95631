//! The contents of a batch, agreed on by both ends of the ring.
//!
//! Shape letters, used throughout the project: `B` rows of a batch, `L` labels, `D` dense columns, `F` features
//! with one id per row, `R` ragged (multi-valued) features.

use serde::{Deserialize, Serialize};

use crate::column::Column;

/// The contents of a batch: `L` labels, `D` dense columns, `F` single-id features, `R` ragged ones, and typed columns.
///
/// Each list is in slot order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchSchema {
    /// Row capacity of a slot (`B`). The last batch of a pass may hold fewer rows.
    pub rows: u32,
    /// Names of the labels (`L`). Empty for a single unnamed label.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Whether each row has a weight.
    pub weighted: bool,
    /// Names of the dense columns (`D`): of numeric features, and of the components of vectors.
    pub dense: Vec<String>,
    /// Features with exactly one id per row (`F`).
    pub ids: Vec<IdFeature>,
    /// Features with any number of ids per row (`R`).
    pub ragged: Vec<RaggedFeature>,
    /// Typed columns, for programs that bring their own model. Trainers of Millstream have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<Column>,
    /// Bytes reserved for the encoded read position of the job after this batch.
    pub position_bytes: u32,
}

impl BatchSchema {
    /// The schema of a rank's part of the batch, with `rows` divided by `ranks` and rounded up.
    ///
    /// Rank `r` has the rows `[r * c, (r + 1) * c)` of the batch, cut off at its end, where `c` is the part's `rows`: in
    /// a short batch the first ranks are full and the last ones may be empty.
    ///
    /// # Panics
    /// When `ranks` is 0.
    #[must_use]
    pub fn part(&self, ranks: u32) -> Self {
        Self { rows: self.rows.div_ceil(ranks), ..self.clone() }
    }

    /// Number of labels per row (`L`), at least one.
    pub fn label_count(&self) -> usize {
        self.labels.len().max(1)
    }

    /// The name of the dense column of number `place` of a vector.
    pub fn component(vector: &str, place: usize) -> String {
        format!("{vector}[{place}]")
    }

    /// The feature of a dense column: the vector of which it is a component, or the number of this name.
    pub fn feature_of(dense: &str) -> &str {
        let vector = dense.strip_suffix(']').and_then(|rest| rest.rsplit_once('['));
        let is_place = |place: &str| !place.is_empty() && place.bytes().all(|byte| byte.is_ascii_digit());
        vector.filter(|(_, place)| is_place(place)).map_or(dense, |(vector, _)| vector)
    }

    /// The name of each label; empty for a single unnamed label.
    pub fn label_names(&self) -> Vec<&str> {
        match self.labels.as_slice() {
            [] => vec![""],
            labels => labels.iter().map(String::as_str).collect(),
        }
    }
}

/// A feature with exactly one id per row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdFeature {
    /// The feature's name in the job.
    pub name: String,
    /// Ids are in `0..cardinality`.
    pub cardinality: u32,
}

/// A feature with any number of ids per row, up to a maximum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaggedFeature {
    /// The feature's name in the job.
    pub name: String,
    /// Ids are in `0..cardinality`.
    pub cardinality: u32,
    /// Maximum number of ids per row.
    pub maximum: u32,
    /// Whether each id has a weight.
    #[serde(default, skip_serializing_if = "is_false")]
    pub weighted: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}
