//! TensorBoard event files, written by a worker while it trains.
//!
//! Each run has a directory, in which each of its workers writes one file. A worker that resumes from a
//! checkpoint starts its file with a session-start event, as TensorFlow's writer does after a restart:
//! readers then drop events of earlier files for steps after the checkpoint, which are repeated. Events up to
//! a checkpoint are flushed before it is committed, so none is lost or duplicated.
//!
//! Failures here never stop training: events that cannot be written are dropped, and the caller gets the
//! error.

mod event;
mod file;
mod histogram;
mod objects;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use millstream_backend::collective::UseOfTime;
use millstream_trainer::loss::LossSum;
use millstream_trainer::metrics::Metrics;
use millstream_trainer::model::LossScale;
use serde::{Deserialize, Serialize};

use crate::objects::ObjectClient;
use crate::protocol::Place;
use event::{EventData, SessionLog, SessionStatus, Summary, Value};
use file::{EventFile, since_epoch};

/// Longer job files are truncated: lists of terms can have any length.
const MAX_JOB_CHARACTERS: usize = 64 << 10;

/// Which events are written for a run, and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventSpec {
    /// The run's event directory.
    pub place: Place,
    /// Steps between points of the training curves.
    pub every_steps: u64,
    /// Steps between histograms; 0 for none.
    pub histograms_every_steps: u64,
    /// The job's hyperparameters by name: numbers, strings and booleans.
    pub hyper_parameters: BTreeMap<String, serde_json::Value>,
}

/// Writes a run's events.
pub(super) struct EventWriter {
    spec: EventSpec,
    file: EventFile,
    meter: Meter,
    loss_scale: Option<LossScale>,
    /// How each worker has used its time, by rank, and until the last point.
    times: Vec<UseOfTime>,
    times_before: Vec<UseOfTime>,
}

/// What was done since the last point of the curves, or the last progress report.
#[derive(Default)]
pub(super) struct Meter {
    pub(super) steps: u64,
    pub(super) examples: u64,
    pub(super) loss: LossSum,
    /// Training time.
    pub(super) trained: Duration,
    /// Its part spent waiting for a batch.
    pub(super) waited: Duration,
}

impl EventWriter {
    /// Creates a file for a worker that resumes after step `restored`, or starts from scratch. `job` is the
    /// job file's text; `objects` are those of a directory in a bucket.
    pub(super) fn begin(
        (spec, objects): (EventSpec, Option<ObjectClient>),
        restored: Option<u64>,
        job: &str,
    ) -> io::Result<Self> {
        let (file, meter) = (EventFile::create(&spec.place, objects)?, Meter::default());
        let (times, times_before) = (Vec::new(), Vec::new());
        let mut writer = Self { file, spec, meter, loss_scale: None, times, times_before };
        // Earlier events from this step on are invalid.
        let first = restored.map_or(0, |step| step + 1);
        let start = SessionLog { status: SessionStatus::Start.into() };
        writer.file.append(first, EventData::SessionLog(start))?;
        if restored.is_none() || writer.file.is_first() {
            let value = vec![
                Value::hyper_parameters(&writer.spec.hyper_parameters, since_epoch().as_secs_f64()),
                Value::text("job", as_markdown(job)),
            ];
            writer.file.append(0, EventData::Summary(Summary { value }))?;
        }
        writer.file.flush()?;
        Ok(writer)
    }

    /// The current file.
    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// The steps since the last point, to add to them.
    pub(super) fn meter(&mut self) -> &mut Meter {
        &mut self.meter
    }

    /// Sets the current loss scale.
    pub(super) fn set_loss_scale(&mut self, scale: LossScale) {
        self.loss_scale = Some(scale);
    }

    /// Sets how each worker has used its time, by rank; empty for a worker alone.
    pub(super) fn set_use_of_time(&mut self, times: &[UseOfTime]) {
        self.times.clear();
        self.times.extend_from_slice(times);
    }

    /// Whether a point of the training curves is due after `step`.
    pub(super) fn point_is_due(&self, step: u64) -> bool {
        step.is_multiple_of(self.spec.every_steps)
    }

    /// Adds a point to the training curves if one is due after `step`.
    pub(super) fn point_if_due(&mut self, step: u64) -> io::Result<()> {
        if self.point_is_due(step) { self.point(step) } else { Ok(()) }
    }

    /// Whether histograms are due after `step`.
    pub(super) fn histograms_are_due(&self, step: u64) -> bool {
        self.spec.histograms_every_steps > 0 && step.is_multiple_of(self.spec.histograms_every_steps)
    }

    /// Adds a histogram of a tensor's values.
    pub(super) fn histogram(&mut self, step: u64, tensor: &str, numbers: &[f32]) -> io::Result<()> {
        let Some(histogram) = histogram::of(numbers) else { return Ok(()) };
        let value = Value::histogram(format!("weights/{tensor}"), histogram);
        self.file.append(step, EventData::Summary(Summary { value: vec![value] }))
    }

    /// Adds the metrics of an evaluation after `step`.
    pub(super) fn evaluated(&mut self, step: u64, metrics: &[Metrics]) -> io::Result<()> {
        let defined = metrics.iter().flat_map(Metrics::named_values).filter(|(_, value)| value.is_finite());
        let value = defined.map(|(name, value)| Value::scalar(format!("eval/{name}"), value)).collect();
        self.file.append(step, EventData::Summary(Summary { value }))?;
        self.file.flush()
    }

    /// Writes pending events to the file.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    /// Adds a point for the steps since the last one, if any, and writes everything.
    pub(super) fn end(&mut self, step: u64) -> io::Result<()> {
        if self.meter.steps > 0 {
            self.point(step)?;
        }
        self.file.end()
    }

    fn point(&mut self, step: u64) -> io::Result<()> {
        let Meter { loss, examples, trained, waited, .. } = std::mem::take(&mut self.meter);
        let mut value = vec![Value::scalar("train/loss", loss.mean())];
        let seconds = trained.as_secs_f64();
        if seconds > 0.0 {
            value.push(Value::scalar("train/examples_per_second", examples as f64 / seconds));
            value.push(Value::scalar("train/input_wait_fraction", waited.as_secs_f64() / seconds));
        }
        let before = self.times_before.iter().copied().chain(std::iter::repeat(UseOfTime::default()));
        for ((rank, now), before) in self.times.iter().enumerate().zip(before) {
            let share = now.share_since(before);
            value
                .extend(share.map(|share| Value::scalar(format!("workers/{rank}/exchange_fraction"), share)));
        }
        self.times_before.clone_from(&self.times);
        if let Some(LossScale { scale, skipped_steps, .. }) = self.loss_scale {
            value.push(Value::scalar("train/loss_scale", scale.into()));
            value.push(Value::scalar("train/skipped_steps", skipped_steps.into()));
        }
        self.file.append(step, EventData::Summary(Summary { value }))
    }
}

/// The job file as Markdown for the text plugin.
fn as_markdown(job: &str) -> String {
    let cut = job.char_indices().nth(MAX_JOB_CHARACTERS).map(|(end, _)| &job[..end]);
    // A code fence could occur in the text; indentation cannot be ended by it.
    let mut out = String::with_capacity(job.len() + job.len() / 8);
    for line in cut.unwrap_or(job).lines() {
        out += "    ";
        out += line;
        out.push('\n');
    }
    if cut.is_some() {
        out += "    ...\n";
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use millstream_trainer::metrics::{Metric, MetricValue};

    use super::event::{Data, Event};
    use super::*;

    fn spec(directory: &Path) -> EventSpec {
        EventSpec {
            place: Place::Local(directory.join("run")),
            every_steps: 2,
            histograms_every_steps: 3,
            hyper_parameters: BTreeMap::from([("data.epochs".to_owned(), 3.into())]),
        }
    }

    fn scalars(events: &[Event]) -> Vec<(i64, String, f32)> {
        let summaries = events.iter().filter_map(|event| match &event.data {
            Some(EventData::Summary(summary)) => Some((event.step, &summary.value)),
            _ => None,
        });
        let values = summaries.flat_map(|(step, values)| values.iter().map(move |value| (step, value)));
        let simple = values.filter_map(|(step, value)| match value.data {
            Some(Data::Simple(number)) => Some((step, value.tag.clone(), number)),
            _ => None,
        });
        simple.collect()
    }

    #[test]
    fn points_are_means_over_the_steps_since_the_last() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::begin((spec(directory.path()), None), None, "name = \"a\"").unwrap();
        for (step, loss) in [(1, 0.5), (2, 0.25), (3, 2.0)] {
            let meter = writer.meter();
            meter.steps += 1;
            meter.examples += 10;
            meter.loss += LossSum { loss: loss * 10.0, weight: 10.0 };
            meter.trained += Duration::from_secs(2);
            meter.waited += Duration::from_secs(1);
            writer.point_if_due(step).unwrap();
            assert_eq!(writer.histograms_are_due(step), step == 3);
        }
        let measured = |metric, value| MetricValue { metric, value, error: None };
        let of = |label: &str, measured| Metrics {
            label: label.to_owned(),
            values: measured,
            ..Metrics::default()
        };
        let metrics = [
            of("", vec![measured(Metric::Auc, None), measured(Metric::LogLoss, Some(0.5))]),
            of("price", vec![measured(Metric::Rmse, Some(0.25)), measured(Metric::Mae, Some(f64::INFINITY))]),
        ];
        writer.evaluated(3, &metrics).unwrap();
        writer.end(3).unwrap();
        writer.end(3).unwrap();
        let events = file::tests::read(writer.path());
        let wanted = [
            (2, "train/loss", 0.375),
            (2, "train/examples_per_second", 5.0),
            (2, "train/input_wait_fraction", 0.5),
            (3, "eval/log_loss", 0.5),
            (3, "eval/price/rmse", 0.25),
            (3, "train/loss", 2.0),
            (3, "train/examples_per_second", 5.0),
            (3, "train/input_wait_fraction", 0.5),
        ];
        assert_eq!(scalars(&events), wanted.map(|(step, tag, number)| (step, tag.to_owned(), number)));
    }

    #[test]
    fn the_share_of_time_in_exchanges_is_a_curve_for_each_worker() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::begin((spec(directory.path()), None), None, "").unwrap();
        for (step, times) in [(1, [250, 100]), (2, [750, 1_000]), (3, [900, 1_500]), (4, [900, 9_000])] {
            *writer.meter() = Meter { steps: 1, ..Meter::default() };
            let of_rank = |milliseconds| UseOfTime {
                alive: Duration::from_secs(step),
                in_operations: Duration::from_millis(milliseconds),
            };
            writer.set_use_of_time(&times.map(of_rank));
            writer.point_if_due(step).unwrap();
        }
        writer.flush().unwrap();
        let found = scalars(&file::tests::read(writer.path()));
        let found: Vec<_> = found.into_iter().filter(|(_, tag, _)| tag.starts_with("workers/")).collect();
        let wanted = [
            (2, "workers/0/exchange_fraction", 0.375),
            (2, "workers/1/exchange_fraction", 0.5),
            (4, "workers/0/exchange_fraction", 0.075),
            // An operation that began before.
            (4, "workers/1/exchange_fraction", 1.0),
        ];
        assert_eq!(found.len(), wanted.len());
        for ((step, tag, share), wanted) in found.iter().zip(wanted) {
            assert!(
                (*step, tag.as_str()) == (wanted.0, wanted.1) && (share - wanted.2).abs() < 1e-6,
                "{found:?}"
            );
        }
    }

    #[test]
    fn the_loss_scale_is_a_curve() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::begin((spec(directory.path()), None), None, "name = \"a\"").unwrap();
        let loss = LossSum { loss: 5.0, weight: 10.0 };
        *writer.meter() = Meter { steps: 1, examples: 10, loss, ..Meter::default() };
        writer.set_loss_scale(LossScale { scale: 32768.0, good_steps: 4, skipped_steps: 1 });
        writer.end(1).unwrap();
        let found = scalars(&file::tests::read(writer.path()));
        let wanted = [("train/loss", 0.5), ("train/loss_scale", 32768.0), ("train/skipped_steps", 1.0)];
        assert_eq!(found, wanted.map(|(tag, number)| (1, tag.to_owned(), number)));
    }

    #[test]
    fn a_file_starts_with_the_step_it_is_valid_from() {
        let directory = tempfile::tempdir().unwrap();
        for (restored, first) in [(None, 0), (Some(40), 41)] {
            let writer = EventWriter::begin((spec(directory.path()), None), restored, "").unwrap();
            let events = file::tests::read(writer.path());
            assert_eq!(events[0].data, Some(EventData::FileVersion("brain.Event:2".into())));
            assert_eq!(events[1].step, first);
            assert_eq!(events[1].data, Some(EventData::SessionLog(SessionLog { status: 1 })));
        }
        assert_eq!(fs::read_dir(directory.path().join("run")).unwrap().count(), 2);
    }

    #[test]
    fn a_job_file_is_shown_verbatim_and_truncated_if_long() {
        assert_eq!(as_markdown("a = 1\n\n[b]\n"), "    a = 1\n    \n    [b]\n");
        let long = as_markdown(&"ä".repeat(MAX_JOB_CHARACTERS + 1));
        assert!(long.ends_with("ä\n    ...\n"));
        assert_eq!(long.matches('ä').count(), MAX_JOB_CHARACTERS);
    }
}
