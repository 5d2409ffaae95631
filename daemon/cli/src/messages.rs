//! The daemon's messages as JSON.

use std::collections::BTreeMap;

use millstream_control::proto::{
    Device, Evaluation, History, HistoryPoint, Job, JobProgress, JobState, Library, LogLine, MetricValue,
    Metrics, NamedValue,
};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// A job, as `show`, `list`, `submit` and `cancel` print it.
#[derive(Debug, Serialize)]
pub(crate) struct JobJson<'a> {
    id: &'a str,
    name: &'a str,
    state: &'static str,
    reason: Option<&'a str>,
    attempts: u32,
    created_ms: u64,
    started_ms: Option<u64>,
    ended_ms: Option<u64>,
    directory: &'a str,
    checkpoint: Option<&'a str>,
    /// Set by `show` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    best_checkpoint: Option<&'a str>,
    /// Null until a worker reports it.
    device: Option<DeviceJson<'a>>,
    progress: ProgressJson,
    eval: EvalJson<'a>,
}

/// The device a job trains on.
#[derive(Debug, Serialize)]
struct DeviceJson<'a> {
    description: &'a str,
    /// Null on the CPU.
    gpu: Option<GpuJson<'a>>,
    libraries: Vec<LibraryJson<'a>>,
}

#[derive(Debug, Serialize)]
struct GpuJson<'a> {
    number: u32,
    name: &'a str,
}

#[derive(Debug, Serialize)]
struct LibraryJson<'a> {
    library: &'a str,
    version: &'a str,
}

#[derive(Debug, Serialize)]
struct ProgressJson {
    step: u64,
    total_steps: Option<u64>,
    epoch: u32,
    epochs: u32,
    examples: u64,
    examples_per_second: f64,
    input_wait_fraction: f64,
    loss: f64,
    skipped_records: u64,
}

/// The result of an evaluation: null without one, otherwise the metrics, grouped by label if there are several.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EvalJson<'a>(pub(crate) &'a [Metrics]);

/// The metrics of a label. An undefined metric is null.
struct MetricsJson<'a>(&'a Metrics);

/// The outcome of a training run.
#[derive(Debug, Serialize)]
pub(crate) struct OutcomeJson<'a> {
    job: &'a str,
    state: &'static str,
    steps: u64,
    examples: u64,
    examples_per_second: f64,
    input_wait_fraction: f64,
    skipped_records: u64,
    eval: EvalJson<'a>,
    checkpoint: Option<&'a str>,
    reason: Option<&'a str>,
}

/// A job's loss and metrics over its steps.
#[derive(Debug, Serialize)]
pub(crate) struct HistoryJson<'a> {
    job: &'a str,
    state: &'static str,
    steps: u64,
    points: Vec<PointJson>,
    evaluations: Vec<EvaluationJson<'a>>,
}

#[derive(Debug, Serialize)]
struct PointJson {
    step: u64,
    loss: f64,
    examples_per_second: f64,
    input_wait_fraction: f64,
}

#[derive(Debug, Serialize)]
struct EvaluationJson<'a> {
    step: u64,
    epoch: u32,
    metrics: BTreeMap<&'a str, NumberJson<'a>>,
}

/// A metric, null if undefined, or the metrics of a label.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum NumberJson<'a> {
    One(f64),
    OfLabel(BTreeMap<&'a str, f64>),
}

/// A line of a job's log.
#[derive(Debug, Serialize)]
pub(crate) struct LineJson<'a> {
    at_ms: u64,
    level: &'a str,
    text: &'a str,
}

impl<'a> From<&'a Job> for JobJson<'a> {
    fn from(job: &'a Job) -> Self {
        Self {
            id: &job.id,
            name: &job.name,
            state: state(job),
            reason: given(&job.reason),
            attempts: job.attempts,
            created_ms: job.created_ms,
            started_ms: known(job.started_ms),
            ended_ms: known(job.ended_ms),
            directory: &job.directory,
            checkpoint: given(&job.checkpoint),
            best_checkpoint: given(&job.best_checkpoint),
            device: job.device.as_ref().map(DeviceJson::from),
            progress: job.progress.unwrap_or_default().into(),
            eval: EvalJson(&job.eval),
        }
    }
}

impl<'a> From<&'a Device> for DeviceJson<'a> {
    fn from(device: &'a Device) -> Self {
        let library =
            |library: &'a Library| LibraryJson { library: &library.name, version: &library.version };
        Self {
            description: &device.description,
            gpu: device.gpu.map(|number| GpuJson { number, name: &device.gpu_name }),
            libraries: device.libraries.iter().map(library).collect(),
        }
    }
}

impl From<JobProgress> for ProgressJson {
    fn from(progress: JobProgress) -> Self {
        Self {
            step: progress.step,
            total_steps: known(progress.total_steps),
            epoch: progress.epoch,
            epochs: progress.epochs,
            examples: progress.examples,
            examples_per_second: progress.examples_per_second,
            input_wait_fraction: progress.input_wait_fraction,
            loss: progress.loss,
            skipped_records: progress.skipped_records,
        }
    }
}

impl<'a> From<&'a Job> for OutcomeJson<'a> {
    fn from(job: &'a Job) -> Self {
        let progress = job.progress.unwrap_or_default();
        Self {
            job: &job.id,
            state: state(job),
            steps: progress.step,
            examples: progress.examples,
            examples_per_second: progress.examples_per_second,
            input_wait_fraction: progress.input_wait_fraction,
            skipped_records: progress.skipped_records,
            eval: EvalJson(&job.eval),
            checkpoint: given(&job.checkpoint),
            reason: given(&job.reason),
        }
    }
}

impl<'a> From<&'a History> for HistoryJson<'a> {
    fn from(history: &'a History) -> Self {
        let job = history.job.as_ref();
        Self {
            job: job.map_or("", |job| &job.id),
            state: job.map_or("unknown", state),
            steps: job.and_then(|job| job.progress).map_or(0, |progress| progress.step),
            points: history.points.iter().map(PointJson::from).collect(),
            evaluations: history.evaluations.iter().map(EvaluationJson::from).collect(),
        }
    }
}

impl From<&HistoryPoint> for PointJson {
    fn from(point: &HistoryPoint) -> Self {
        let HistoryPoint { step, loss, examples_per_second, input_wait_fraction } = *point;
        Self { step, loss, examples_per_second, input_wait_fraction }
    }
}

impl<'a> From<&'a Evaluation> for EvaluationJson<'a> {
    fn from(evaluation: &'a Evaluation) -> Self {
        let mut metrics = BTreeMap::new();
        for NamedValue { name, value } in &evaluation.metrics {
            match name.split_once('/') {
                None => drop(metrics.insert(name.as_str(), NumberJson::One(*value))),
                Some((label, name)) => {
                    let of_label =
                        metrics.entry(label).or_insert_with(|| NumberJson::OfLabel(BTreeMap::new()));
                    if let NumberJson::OfLabel(metrics) = of_label {
                        metrics.insert(name, *value);
                    }
                }
            }
        }
        Self { step: evaluation.step, epoch: evaluation.epoch, metrics }
    }
}

impl Serialize for EvalJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            [] => serializer.serialize_none(),
            [only] if only.label.is_empty() => MetricsJson(only).serialize(serializer),
            several => {
                let by_label = several.iter().map(|metrics| (&metrics.label, MetricsJson(metrics)));
                serializer.collect_map(by_label)
            }
        }
    }
}

impl Serialize for MetricsJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Metrics { measured, groups, examples, .. } = self.0;
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
        map.serialize_entry("examples", examples)?;
        map.end()
    }
}

impl<'a> From<&'a LogLine> for LineJson<'a> {
    fn from(line: &'a LogLine) -> Self {
        Self { at_ms: line.at_ms, level: &line.level, text: &line.text }
    }
}

/// The name of a job's state.
pub(crate) fn state(job: &Job) -> &'static str {
    match job.state() {
        JobState::Unspecified => "unknown",
        JobState::Queued => "queued",
        JobState::Preparing => "preparing",
        JobState::Running => "running",
        JobState::Succeeded => "succeeded",
        JobState::Failed => "failed",
        JobState::Cancelled => "cancelled",
    }
}

/// Whether a job's state is final.
pub(crate) fn has_ended(job: &Job) -> bool {
    matches!(job.state(), JobState::Succeeded | JobState::Failed | JobState::Cancelled)
}

/// Decodes a number from a message, where 0 means unknown.
pub(crate) fn known(number: u64) -> Option<u64> {
    (number > 0).then_some(number)
}

/// Decodes a text from a message, where the empty string means absent.
pub(crate) fn given(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn outcome_is_the_document_that_train_prints() {
        let mut job = Job { id: "census-1".into(), checkpoint: "/c/step-3".into(), ..Job::default() };
        job.set_state(JobState::Succeeded);
        job.progress = Some(JobProgress {
            step: 3,
            examples: 700,
            examples_per_second: 10.5,
            input_wait_fraction: 0.25,
            ..JobProgress::default()
        });
        let measured = |name: &str, value, error| MetricValue { name: name.to_owned(), value, error };
        let metrics = Metrics {
            measured: vec![
                measured("auc", None, None),
                measured("pr_auc", Some(1.0), Some(0.0)),
                measured("log_loss", Some(0.5), None),
            ],
            examples: 100,
            ..Metrics::default()
        };
        job.eval = vec![metrics.clone()];
        let document = serde_json::to_value(OutcomeJson::from(&job)).unwrap();
        let wanted = json!({
            "job": "census-1", "state": "succeeded", "steps": 3, "examples": 700,
            "examples_per_second": 10.5, "input_wait_fraction": 0.25, "skipped_records": 0,
            "eval": { "auc": null, "pr_auc": 1.0, "pr_auc_error": 0.0, "log_loss": 0.5, "examples": 100 },
            "checkpoint": "/c/step-3", "reason": null,
        });
        assert_eq!(document, wanted);
        // Several labels: the metrics are grouped by label.
        let price = vec![measured("rmse", Some(2.0), None)];
        let price = Metrics { label: "price".into(), measured: price, groups: Some(7), examples: 100 };
        job.eval = vec![Metrics { label: "bought".into(), ..metrics }, price];
        let document = serde_json::to_value(OutcomeJson::from(&job)).unwrap();
        assert_eq!(document["eval"]["bought"], wanted["eval"]);
        assert_eq!(document["eval"]["price"], json!({ "rmse": 2.0, "groups": 7, "examples": 100 }));
    }

    #[test]
    fn history_groups_metrics_by_label() {
        let number = |name: &str, value| NamedValue { name: name.to_owned(), value };
        let metrics =
            vec![number("bought/auc", 0.5), number("price/rmse", 2.0), number("bought/log_loss", 0.25)];
        let evaluation = Evaluation { step: 3, epoch: 0, metrics };
        let document = serde_json::to_value(EvaluationJson::from(&evaluation)).unwrap();
        let wanted = json!({ "bought": { "auc": 0.5, "log_loss": 0.25 }, "price": { "rmse": 2.0 } });
        assert_eq!(document["metrics"], wanted);
    }

    #[test]
    fn device_includes_its_gpu_and_libraries() {
        let driver = Library { name: "a driver".into(), version: "13.0".into() };
        let gpu = Device {
            description: "GPU 0, some GPU".into(),
            gpu: Some(0),
            gpu_name: "some GPU".into(),
            libraries: vec![driver],
        };
        let document = |device| {
            serde_json::to_value(JobJson::from(&Job { device: Some(device), ..Job::default() })).unwrap()
                ["device"]
                .clone()
        };
        let wanted = json!({
            "description": "GPU 0, some GPU", "gpu": { "number": 0, "name": "some GPU" },
            "libraries": [{ "library": "a driver", "version": "13.0" }],
        });
        assert_eq!(document(gpu), wanted);
        let cpu = Device { description: "the CPU, 4 threads".into(), ..Device::default() };
        let wanted = json!({ "description": "the CPU, 4 threads", "gpu": null, "libraries": [] });
        assert_eq!(document(cpu), wanted);
    }

    #[test]
    fn absent_fields_are_null() {
        let document = serde_json::to_value(JobJson::from(&Job::default())).unwrap();
        for key in ["reason", "started_ms", "ended_ms", "checkpoint", "device", "eval"] {
            assert!(document[key].is_null(), "{key}");
        }
        assert!(document["progress"]["total_steps"].is_null());
    }
}
