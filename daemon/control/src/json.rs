//! The parts of messages that `--json` prints differently from their fields.

use std::collections::BTreeMap;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::proto::{JobState, MetricValue, Metrics, NamedValue};

/// Serializes the name of a job's state.
#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes fields by reference.
pub(crate) fn state<S: Serializer>(state: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(JobState::try_from(*state).unwrap_or_default().name())
}

/// Serializes the result of an evaluation: null without one, otherwise the metrics, grouped by label if there are
/// several.
///
/// # Errors
/// The serializer's.
pub fn eval<S: Serializer>(eval: &[Metrics], serializer: S) -> Result<S::Ok, S::Error> {
    match eval {
        [] => serializer.serialize_none(),
        [only] if only.label.is_empty() => only.serialize(serializer),
        several => serializer.collect_map(several.iter().map(|metrics| (&metrics.label, metrics))),
    }
}

/// A map of the metrics. An undefined metric is null.
impl Serialize for Metrics {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { measured, groups, top_k, examples, .. } = self;
        let mut map = serializer.serialize_map(None)?;
        for MetricValue { name, value, error } in measured {
            map.serialize_entry(name, value)?;
            if let Some(error) = error {
                map.serialize_entry(&format!("{name}_error"), error)?;
            }
        }
        if let Some(groups) = groups {
            map.serialize_entry("groups", groups)?;
        }
        if let Some(top_k) = top_k {
            map.serialize_entry("top_k", top_k)?;
        }
        map.serialize_entry("examples", examples)?;
        map.end()
    }
}

/// Serializes metrics as a map, with a nested map for those of a label: `income/auc`.
pub(crate) fn by_label<S: Serializer>(metrics: &[NamedValue], serializer: S) -> Result<S::Ok, S::Error> {
    /// A metric, null if undefined, or the metrics of a label.
    #[derive(Serialize)]
    #[serde(untagged)]
    enum Entry<'a> {
        One(f64),
        OfLabel(BTreeMap<&'a str, f64>),
    }
    let mut entries = BTreeMap::new();
    for NamedValue { name, value } in metrics {
        match name.split_once('/') {
            None => drop(entries.insert(name.as_str(), Entry::One(*value))),
            Some((label, name)) => {
                let of_label = entries.entry(label).or_insert_with(|| Entry::OfLabel(BTreeMap::new()));
                if let Entry::OfLabel(metrics) = of_label {
                    metrics.insert(name, *value);
                }
            }
        }
    }
    entries.serialize(serializer)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::proto::{Device, EvaluateReply, Evaluation, Gpu, Job, JobProgress, Library};

    fn document(message: &impl Serialize) -> Value {
        serde_json::to_value(message).unwrap()
    }

    #[test]
    fn job_is_the_document_that_show_prints() {
        let progress = JobProgress { step: 3, epochs: 2, examples: 700, loss: 0.5, ..JobProgress::default() };
        let driver = Library { library: "a driver".into(), version: "13.0".into() };
        let device = Device {
            description: "GPU 0, some GPU".into(),
            gpu: Some(Gpu { number: 0, name: "some GPU".into() }),
            libraries: vec![driver],
        };
        let mut job = Job {
            id: "census-1".into(),
            name: "census".into(),
            attempts: 1,
            created_ms: 5,
            directory: "/c".into(),
            best_checkpoint: Some("/c/step-2".into()),
            device: Some(device),
            progress: Some(progress),
            eval_epoch: Some(1),
            ..Job::default()
        };
        job.set_state(JobState::Succeeded);
        // The order of the keys, too.
        let wanted = r#"{"id":"census-1","name":"census","state":"succeeded","reason":null,"waits_for":null,"owner":null,"priority":0,"attempts":1,"created_ms":5,"started_ms":null,"ended_ms":null,"directory":"/c","checkpoint":null,"best_checkpoint":"/c/step-2","device":{"description":"GPU 0, some GPU","gpu":{"number":0,"name":"some GPU"},"libraries":[{"library":"a driver","version":"13.0"}]},"progress":{"step":3,"total_steps":null,"epoch":0,"epochs":2,"examples":700,"examples_per_second":0.0,"input_wait_fraction":0.0,"loss":0.5,"skipped_records":0,"total_is_estimate":false},"eval":null}"#;
        assert_eq!(serde_json::to_string(&job).unwrap(), wanted);
        let absent = document(&Job::default());
        assert_eq!((&absent["state"], absent.get("best_checkpoint")), (&json!("unknown"), None));
        let cpu = Device { description: "the CPU, 4 threads".into(), ..Device::default() };
        let wanted = json!({ "description": "the CPU, 4 threads", "gpu": null, "libraries": [] });
        assert_eq!(document(&cpu), wanted);
    }

    #[test]
    fn evaluation_is_grouped_by_label_if_there_are_several() {
        let measured = |name: &str, value, error| MetricValue { name: name.to_owned(), value, error };
        let one = Metrics {
            measured: vec![
                measured("auc", None, None),
                measured("pr_auc", Some(1.0), Some(0.0)),
                measured("log_loss", Some(0.5), None),
            ],
            examples: 100,
            ..Metrics::default()
        };
        let wanted =
            json!({ "auc": null, "pr_auc": 1.0, "pr_auc_error": 0.0, "log_loss": 0.5, "examples": 100 });
        let metrics = vec![one.clone()];
        assert_eq!(document(&EvaluateReply { metrics }), wanted);
        let price = vec![measured("rmse", Some(2.0), None)];
        let (label, groups, top_k) = ("price".into(), Some(7), Some(5));
        let price = Metrics { label, measured: price, groups, top_k, examples: 100 };
        let job = Job { eval: vec![Metrics { label: "bought".into(), ..one }, price], ..Job::default() };
        let price = json!({ "rmse": 2.0, "groups": 7, "top_k": 5, "examples": 100 });
        assert_eq!(document(&job)["eval"], json!({ "bought": wanted, "price": price }));
    }

    #[test]
    fn history_groups_metrics_by_label() {
        let number = |name: &str, value| NamedValue { name: name.to_owned(), value };
        let metrics =
            vec![number("bought/auc", 0.5), number("price/rmse", 2.0), number("bought/log_loss", 0.25)];
        let wanted = json!({ "bought": { "auc": 0.5, "log_loss": 0.25 }, "price": { "rmse": 2.0 } });
        assert_eq!(document(&Evaluation { step: 3, epoch: 0, metrics })["metrics"], wanted);
        let metrics = vec![number("log_loss", 0.5), number("auc", f64::NAN)];
        let wanted = json!({ "step": 3, "epoch": 1, "metrics": { "auc": null, "log_loss": 0.5 } });
        assert_eq!(document(&Evaluation { step: 3, epoch: 1, metrics }), wanted);
    }
}
