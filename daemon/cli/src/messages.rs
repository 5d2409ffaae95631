//! The daemon's messages as JSON.

use std::collections::BTreeMap;

use millstream_control::proto::{
    Evaluation, History, HistoryPoint, Job, JobState, LogLine, Metrics, Progress,
};
use serde::Serialize;

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
    /// Of `show` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    best_checkpoint: Option<&'a str>,
    progress: ProgressJson,
    eval: Option<MetricsJson>,
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

/// How well a model scores. A metric that is not defined is null.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct MetricsJson {
    auc: Option<f64>,
    auc_error: Option<f64>,
    pr_auc: Option<f64>,
    pr_auc_error: Option<f64>,
    log_loss: f64,
    normalized_entropy: Option<f64>,
    calibration: Option<f64>,
    rmse: f64,
    accuracy: f64,
    group_auc: Option<f64>,
    groups: Option<u64>,
    examples: u64,
}

/// What a training run came to.
#[derive(Debug, Serialize)]
pub(crate) struct OutcomeJson<'a> {
    job: &'a str,
    state: &'static str,
    steps: u64,
    examples: u64,
    examples_per_second: f64,
    input_wait_fraction: f64,
    skipped_records: u64,
    eval: Option<MetricsJson>,
    checkpoint: Option<&'a str>,
    reason: Option<&'a str>,
}

/// A job's course over its steps.
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

/// A metric that is not defined is null.
#[derive(Debug, Serialize)]
struct EvaluationJson<'a> {
    step: u64,
    epoch: u32,
    metrics: BTreeMap<&'a str, f64>,
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
            progress: job.progress.unwrap_or_default().into(),
            eval: job.eval.as_ref().map(MetricsJson::from),
        }
    }
}

impl From<Progress> for ProgressJson {
    fn from(progress: Progress) -> Self {
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
            eval: job.eval.as_ref().map(MetricsJson::from),
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
        let metrics = evaluation.metrics.iter().map(|metric| (metric.name.as_str(), metric.value));
        Self { step: evaluation.step, epoch: evaluation.epoch, metrics: metrics.collect() }
    }
}

impl From<&Metrics> for MetricsJson {
    fn from(metrics: &Metrics) -> Self {
        Self {
            auc: metrics.auc,
            auc_error: metrics.auc_error,
            pr_auc: metrics.pr_auc,
            pr_auc_error: metrics.pr_auc_error,
            log_loss: metrics.log_loss,
            normalized_entropy: metrics.normalized_entropy,
            calibration: metrics.calibration,
            rmse: metrics.rmse,
            accuracy: metrics.accuracy,
            group_auc: metrics.group_auc,
            groups: metrics.groups,
            examples: metrics.examples,
        }
    }
}

impl<'a> From<&'a LogLine> for LineJson<'a> {
    fn from(line: &'a LogLine) -> Self {
        Self { at_ms: line.at_ms, level: &line.level, text: &line.text }
    }
}

/// A job's state by its name.
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

/// Whether nothing follows a job's state.
pub(crate) fn has_ended(job: &Job) -> bool {
    matches!(job.state(), JobState::Succeeded | JobState::Failed | JobState::Cancelled)
}

/// In messages, 0 stands for what is not known.
pub(crate) fn known(number: u64) -> Option<u64> {
    (number > 0).then_some(number)
}

/// In messages, the empty string stands for what is not there.
pub(crate) fn given(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_outcome_is_the_document_that_train_promises() {
        let mut job = Job { id: "census-1".into(), checkpoint: "/c/step-3".into(), ..Job::default() };
        job.set_state(JobState::Succeeded);
        job.progress = Some(Progress {
            step: 3,
            examples: 700,
            examples_per_second: 10.5,
            input_wait_fraction: 0.25,
            ..Progress::default()
        });
        job.eval = Some(Metrics {
            log_loss: 0.5,
            accuracy: 0.75,
            examples: 100,
            rmse: 0.25,
            pr_auc: Some(1.0),
            pr_auc_error: Some(0.0),
            calibration: Some(0.875),
            ..Metrics::default()
        });
        let document = serde_json::to_value(OutcomeJson::from(&job)).unwrap();
        let wanted = json!({
            "job": "census-1", "state": "succeeded", "steps": 3, "examples": 700,
            "examples_per_second": 10.5, "input_wait_fraction": 0.25, "skipped_records": 0,
            "eval": {
                "auc": null, "auc_error": null, "pr_auc": 1.0, "pr_auc_error": 0.0, "log_loss": 0.5,
                "normalized_entropy": null, "calibration": 0.875, "rmse": 0.25, "accuracy": 0.75,
                "group_auc": null, "groups": null, "examples": 100,
            },
            "checkpoint": "/c/step-3", "reason": null,
        });
        assert_eq!(document, wanted);
    }

    #[test]
    fn what_a_message_leaves_out_is_null() {
        let document = serde_json::to_value(JobJson::from(&Job::default())).unwrap();
        for key in ["reason", "started_ms", "ended_ms", "checkpoint", "eval"] {
            assert!(document[key].is_null(), "{key}");
        }
        assert!(document["progress"]["total_steps"].is_null());
    }
}
