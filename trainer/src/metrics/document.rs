//! Metrics as documents: each metric under its name, and the numbers of rows and groups.
//!
//! The error bound of a metric is stored under its name plus `_error`. Unknown names are ignored.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Metric, MetricValue, Metrics};

/// The suffix of the name of an error bound.
const ERROR: &str = "_error";

#[derive(Serialize, Deserialize)]
pub(super) struct Document {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    label: String,
    #[serde(flatten)]
    numbers: BTreeMap<String, Option<f64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    groups: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    top_k: Option<u32>,
    examples: u64,
}

impl From<Metrics> for Document {
    fn from(metrics: Metrics) -> Self {
        let mut numbers = BTreeMap::new();
        for MetricValue { metric, value, error } in metrics.values {
            // A value that a document cannot represent is undefined.
            numbers.insert(metric.name().to_owned(), value.filter(|value| value.is_finite()));
            if metric.has_error_bound() {
                numbers.insert(format!("{}{ERROR}", metric.name()), error);
            }
        }
        let Metrics { label, groups, top_k, examples, .. } = metrics;
        Self { label, numbers, groups, top_k, examples }
    }
}

impl From<Document> for Metrics {
    fn from(document: Document) -> Self {
        let Document { label, numbers, groups, top_k, examples } = document;
        let values = |(name, metric): (&str, Metric)| {
            let value = *numbers.get(name)?;
            let error = numbers.get(&format!("{name}{ERROR}")).copied().flatten();
            // Earlier versions wrote an undefined group AUC for rows without groups.
            let is_there = metric != Metric::GroupAuc || groups.is_some();
            is_there.then_some(MetricValue { metric, value, error })
        };
        Self { values: Metric::ALL.into_iter().filter_map(values).collect(), label, groups, top_k, examples }
    }
}

/// The metrics of each label as a document. Those of a single unnamed label are not nested, for
/// compatibility.
pub mod one_or_several {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Metrics;

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrSeveral {
        One(Metrics),
        Several(Vec<Metrics>),
    }

    /// Writes the document.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(metrics: &[Metrics], serializer: S) -> Result<S::Ok, S::Error> {
        match metrics {
            [] => serializer.serialize_none(),
            [only] if only.label.is_empty() => only.serialize(serializer),
            several => several.serialize(serializer),
        }
    }

    /// Reads the document.
    ///
    /// # Errors
    /// Those of the deserializer.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Metrics>, D::Error> {
        Ok(match Option::deserialize(deserializer)? {
            None => Vec::new(),
            Some(OneOrSeveral::One(metrics)) => vec![metrics],
            Some(OneOrSeveral::Several(metrics)) => metrics,
        })
    }
}
