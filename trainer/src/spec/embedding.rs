//! The settings of embeddings.

use serde::{Deserialize, Serialize};

use super::{OptimizerSpec, is_default};

/// The embeddings of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EmbeddingSpec {
    /// Width of an embedding.
    pub dim: EmbeddingDim,
    /// How a multi-valued feature's embeddings are combined.
    pub pooling: Pooling,
    /// Their initialization.
    #[serde(default, skip_serializing_if = "is_default")]
    pub init: EmbeddingInit,
    /// The optimizer that trains them.
    pub optimizer: OptimizerSpec,
    /// Tables with different settings, or shared by several features.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<TableSpec>,
}

/// The settings of one embedding table. Absent ones default to those of the model's embeddings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableSpec {
    /// Its name.
    pub name: String,
    /// The id features that use it, which must have the same ids.
    pub features: Vec<String>,
    /// Width of its embeddings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dim: Option<EmbeddingDim>,
    /// How a multi-valued feature's embeddings are combined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pooling: Option<Pooling>,
    /// The initialization of its embeddings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<EmbeddingInit>,
}

/// The width of an embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EmbeddingDim {
    /// The fourth root of the number of ids, rounded up: the rule of thumb of TensorFlow's guide, "Introducing
    /// TensorFlow Feature Columns", 2017.
    Auto,
    /// A fixed number of columns.
    #[serde(untagged)]
    Columns(u32),
}

impl EmbeddingSpec {
    /// How the embeddings of `feature` are combined, and the table that sets it, unless the model does.
    pub fn pooling_of(&self, feature: &str) -> (Pooling, Option<&TableSpec>) {
        let table = self.tables.iter().find(|table| table.features.iter().any(|name| name == feature));
        match table.and_then(|table| Some((table.pooling?, Some(table)))) {
            Some(of_table) => of_table,
            None => (self.pooling, None),
        }
    }
}

impl EmbeddingDim {
    /// The width for a table of `rows` ids.
    pub fn columns(self, rows: usize) -> usize {
        match self {
            // Square roots of squares are exact.
            Self::Auto => (rows.max(1) as f64).sqrt().sqrt().ceil() as usize,
            Self::Columns(columns) => columns as usize,
        }
    }
}

impl From<u32> for EmbeddingDim {
    fn from(columns: u32) -> Self {
        Self::Columns(columns)
    }
}

/// How the embeddings of a row's ids are combined into one vector. No ids give zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// Their sum divided by the square root of their number.
    #[serde(rename = "sqrtn")]
    SqrtN,
    /// Their maximum in each column, for features without weights. The gradient goes to the first id that holds it.
    Max,
}

/// The initialization of an embedding.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EmbeddingInit {
    /// 0.
    Zeros,
    /// Uniform in `-limit..limit`.
    Uniform {
        /// Half the width.
        limit: f64,
    },
    /// Uniform within 1 / sqrt(rows of the table), as in the DLRM of Naumov et al.
    UniformByRows,
    /// Normal around 0.
    Normal {
        /// Its standard deviation.
        stddev: f64,
    },
    /// A normal distribution truncated at two standard deviations.
    TruncatedNormal {
        /// The standard deviation before truncation.
        stddev: f64,
    },
}

impl Default for EmbeddingInit {
    /// As in Keras' `Embedding`.
    fn default() -> Self {
        Self::Uniform { limit: 0.05 }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The contents of checkpoints from before tables and initializations were configurable.
    #[test]
    fn old_manifests_are_read() {
        let text = r#"{"dim": 8, "pooling": "mean", "optimizer": {"kind": "sgd", "learning_rate": 0.5}}"#;
        let spec: EmbeddingSpec = serde_json::from_str(text).unwrap();
        assert_eq!((spec.dim, spec.init), (8.into(), EmbeddingInit::Uniform { limit: 0.05 }));
        assert_eq!(spec.tables, []);
        let written = serde_json::to_value(&spec).unwrap();
        assert_eq!(written["dim"], 8);
        assert_eq!(serde_json::from_value::<EmbeddingSpec>(written).unwrap(), spec);
    }

    #[test]
    fn a_width_may_be_the_fourth_root_of_the_ids() {
        let cases = [(1, 1), (2, 2), (16, 2), (17, 3), (81, 3), (10_000, 10), (10_001, 11), (1_000_000, 32)];
        for (rows, columns) in cases {
            assert_eq!(EmbeddingDim::Auto.columns(rows), columns, "{rows}");
        }
        assert_eq!(EmbeddingDim::from(5).columns(81), 5);
        assert_eq!(serde_json::from_str::<EmbeddingDim>("\"auto\"").unwrap(), EmbeddingDim::Auto);
        assert_eq!(serde_json::to_string(&EmbeddingDim::Auto).unwrap(), "\"auto\"");
    }
}
