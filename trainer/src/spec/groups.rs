//! Groups of held-out rows, and what is measured within them.

use serde::{Deserialize, Serialize};

/// A feature whose ids group held-out rows, such as those of a query or a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSpec {
    /// The feature, with one id per row.
    pub feature: String,
    /// What is measured.
    pub ranking: RankingSpec,
}

/// How the ranking within a group is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankingSpec {
    /// The number of first ranks that NDCG and recall look at, up to [`Self::MAX_TOP_K`].
    pub top_k: u32,
    /// The gains in NDCG.
    pub gains: Gains,
}

/// The gain of a row in NDCG, by its label. Both are the label itself for labels 0 and 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gains {
    /// `2^label - 1`, as for graded labels in LightGBM, XGBoost and TF-Ranking: Burges et al., "Learning to Rank using
    /// Gradient Descent", 2005, section 5. Labels are from 0 to 31.
    #[default]
    Exponential,
    /// The label, of at least 0: Järvelin and Kekäläinen, "Cumulated Gain-Based Evaluation of IR Techniques", 2002,
    /// section 2.
    Linear,
}

impl RankingSpec {
    /// The most ranks.
    pub const MAX_TOP_K: u32 = 10_000;
}

impl Default for RankingSpec {
    fn default() -> Self {
        Self { top_k: 10, gains: Gains::default() }
    }
}
