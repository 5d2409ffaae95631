//! What a job's thread records about its workers: where they start, how far they are, and what they have measured.

use std::time::Duration;

use millstream_batch::Count;
use millstream_pipeline::ingest::{Bound, Diagnosis};
use millstream_pipeline::spec::DataSpec;
use millstream_trainer::checkpoint::store::directory_name;
use millstream_trainer::metrics::{MetricValue, Metrics};
use millstream_worker::protocol::{CheckpointSize, Restored, WorkerProgress};
use tracing::Level;

use super::generation::{Generation, ReadyWorker};
use super::{Prepared, Supervisor};
use crate::continuation::Continuation;
use crate::state::{HistoryPoint, JobRecord};
use crate::traces::JobEvent;

/// A report of no rows over less time says nothing about their rate: it follows another one closely.
const MIN_IDLE_SECONDS: f64 = 1.0;

impl Supervisor {
    /// Records what `workers`, which are `ready`, start from. Returns the position in the data.
    pub(super) fn resumes(
        &mut self,
        prepared: &Prepared,
        ReadyWorker { restored, passed_over, device }: ReadyWorker,
        workers: &Generation,
    ) -> Option<Vec<u8>> {
        if restored.as_ref().is_some_and(|restored| Some(restored.step) > self.newest_step) {
            // Of a worker that died before it could report it.
            self.on_progress();
        }
        self.newest_step = restored.as_ref().map(|restored| restored.step);
        let size = restored.as_ref().and_then(|restored| restored.checkpoint);
        let checkpoint = size
            .map(|CheckpointSize { step, .. }| self.recorder.record().directory.join(&directory_name(step)));
        let vitals = self.control.vitals();
        vitals.restored(size.zip(checkpoint.as_ref()));
        if let Some(Restored { is_image: true, step, .. }) = restored {
            vitals.set_image(Some(step));
        }
        for damage in passed_over {
            let text = format!("{damage}; falling back to the checkpoint before it");
            self.recorder.log(Level::WARN, &text);
        }
        let continued = prepared.continuation.as_ref();
        let start = match (&restored, continued) {
            (Some(Restored { is_image: true, step, .. }), _) => {
                format!("resumes from the image of step {step}")
            }
            (Some(restored), _) => format!("resumes from step {}", restored.step),
            (None, Some(Continuation { checkpoint, is_same_data, .. })) => {
                let place = if *is_same_data { "where it stopped in its data" } else { "on other data" };
                format!("continues {checkpoint} {place}")
            }
            (None, None) => "starts from scratch".to_owned(),
        };
        self.recorder.log(Level::INFO, &format!("{workers} {start}, on {device}"));
        self.recorder.trace().record(JobEvent::WorkerReady {
            step: restored.as_ref().map_or(0, |restored| restored.step),
            resumed: restored.is_some(),
            device: &device.text,
        });
        let steps_before = continued.map_or(0, Continuation::steps_before);
        let first_step = continued.map_or(0, |continued| continued.step);
        let step = restored.as_ref().map_or(first_step, |restored| restored.step);
        self.recorder.rewind(step);
        let DataSpec { epochs, batch_size, drop_last, .. } = prepared.job.data;
        let rows = prepared.epoch_rows;
        let total = rows.map(|rows| (rows.batches(batch_size, drop_last), rows.is_estimate));
        self.recorder.update(|record| {
            record.progress.epochs = epochs;
            if let Some((steps, is_estimate)) = total {
                record.progress.total_steps = Some(steps_before + steps * u64::from(epochs));
                record.progress.total_is_estimate = is_estimate;
            }
            record.progress.step = step;
            record.checkpoint = checkpoint;
            record.device = Some(device);
        });
        match restored {
            Some(restored) => Some(restored.position),
            None => continued.map(|continued| continued.position().to_vec()),
        }
    }

    /// Records progress, and adds it to `totals`. Ingest has `skipped` so many records.
    pub(super) fn progressed(&self, progress: WorkerProgress, skipped: u64, totals: &mut HistoryPoint) {
        let epochs = self.job.data.epochs;
        let draws_rows = self.job.data.draws_rows();
        let point = HistoryPoint {
            step: progress.step,
            loss: progress.loss,
            examples: progress.new_examples,
            seconds: progress.seconds,
            waited_seconds: progress.waited_seconds,
        };
        totals.merge(&point);
        self.recorder.progress(point, |record| {
            let job = &mut record.progress;
            job.step = progress.step;
            job.epoch = progress.epoch;
            job.epochs = epochs;
            job.examples = progress.examples;
            job.skipped_records = skipped;
            if let Some(steps) = progress.steps_per_epoch {
                job.total_steps = Some(progress.step.max(steps * u64::from(epochs)));
                job.total_is_estimate = draws_rows;
            }
            if progress.new_examples > 0 {
                job.loss = progress.loss;
            }
            set_rates(record, &point);
        });
    }

    /// Records the metrics after a step, of an epoch, which that step may have ended.
    pub(super) fn evaluated(
        &self,
        (step, epoch, ends_epoch): (u64, u32, bool),
        metrics: Vec<Metrics>,
        took: Duration,
    ) {
        let when = if ends_epoch { format!("epoch {}", epoch + 1) } else { format!("step {step}") };
        for metrics in &metrics {
            self.recorder.log(Level::INFO, &format!("{when}: {}", format_metrics(metrics)));
        }
        self.recorder.evaluated((step, epoch, ends_epoch), metrics, took);
    }
}

/// A worker's duration, which may be any number.
pub(super) fn took(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// Logs the ingest bottleneck of the attempt.
pub(super) fn log_input(input: &Diagnosis, supervisor: &Supervisor) {
    let Diagnosis { bound, because, rows_per_second, .. } = input;
    if *bound != Bound::Starting {
        let text = format!("ingest rate {rows_per_second:.0} rows/s, bound by {}: {because}", bound.name());
        supervisor.recorder.log(Level::INFO, &text);
    }
}

/// Formats a label's metrics for the log.
fn format_metrics(metrics: &Metrics) -> String {
    let value_text = |&MetricValue { metric, value, error }: &MetricValue| {
        let name = metric.name().replace('_', " ");
        let bound = error.filter(|&error| error > 0.0).map(|error| format!(" (±{error:.1e})"));
        let top = metrics.top_k_of(metric).map(|top_k| format!("@{top_k}")).unwrap_or_default();
        let name = name + &top;
        let groups = metrics.groups_of(metric);
        let groups = groups.map(|groups| format!(" over {}", Count(groups, "group"))).unwrap_or_default();
        match value {
            Some(value) => format!("{name} {value:.6}{}{groups}", bound.unwrap_or_default()),
            None => format!("{name} undefined{groups}"),
        }
    };
    let values: Vec<String> = metrics.values.iter().map(value_text).collect();
    let label = if metrics.label.is_empty() { String::new() } else { format!("{}: ", metrics.label) };
    format!("{label}{}, over {}", values.join(", "), Count(metrics.examples, "example"))
}

/// Sets the rates of a job from what was trained over some time.
pub(super) fn set_rates(record: &mut JobRecord, over: &HistoryPoint) {
    let has_rate = over.examples > 0 || over.seconds >= MIN_IDLE_SECONDS;
    if has_rate && over.seconds > 0.0 {
        record.progress.examples_per_second = over.examples as f64 / over.seconds;
        record.progress.input_wait_fraction = over.waited_seconds / over.seconds;
    }
}
