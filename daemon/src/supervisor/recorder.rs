//! The recorder of a live job: keeps its record for watchers and in the store.
//!
//! Writes are queued for the store's thread, so a database that does not answer never stalls a job. State changes are
//! stored before watchers see them, unless that takes longer than [`STATE_TIMEOUT`]. Progress reaches watchers
//! immediately and the store once a second, since after a crash it is taken from the checkpoint anyway.

use millstream_control::proto::{Evaluation, JobProgress, JobState, NamedValue};
use millstream_trainer::metrics::Metrics;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::Level;

use crate::outcomes::Outcomes;
use crate::state::{HistoryPoint, JobRecord, Store, now_ms, storable};
use crate::traces::{Entry, JobEvent, JobTrace};

/// Interval between writes of progress to the store.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// Time for which a job waits until its change of state is stored. The state "preparing" and the end should survive a crash
/// of the daemon; no step is under way then.
const STATE_TIMEOUT: Duration = Duration::from_secs(1);

/// Minimum training time of a history point. The remainder at the end of an epoch may be only a step or two,
/// whose mean is noise.
const MIN_POINT_SECONDS: f64 = 0.05;

/// The recorder of one job.
pub(crate) struct JobRecorder {
    id: String,
    store: Arc<Store>,
    record: watch::Sender<JobRecord>,
    stored: Mutex<Stored>,
    /// Minimum number of steps between history points.
    spacing: Arc<AtomicU64>,
    unsaved: Arc<Unsaved>,
    outcomes: Arc<Outcomes>,
    trace: JobTrace,
}

/// The record that the store's thread writes next.
struct Unsaved {
    /// While it is `Some`, a write is queued.
    record: Mutex<Option<JobRecord>>,
    /// Whether the last record was written.
    is_stored: AtomicBool,
}

/// What has been written to the store.
#[derive(Default)]
struct Stored {
    /// When progress was last written.
    progress: Option<Instant>,
    /// The step of the last history point.
    step: u64,
    /// The average since that point.
    window: Option<HistoryPoint>,
}

impl JobRecorder {
    /// A recorder for a job that is in the store. It counts the job's end in `outcomes`.
    pub(crate) fn new(store: Arc<Store>, record: JobRecord, outcomes: Arc<Outcomes>) -> Self {
        let id = record.id.clone();
        Self {
            id,
            store,
            record: watch::Sender::new(record),
            stored: Mutex::default(),
            spacing: Arc::default(),
            unsaved: Arc::new(Unsaved { record: Mutex::default(), is_stored: AtomicBool::new(true) }),
            outcomes,
            trace: JobTrace::default(),
        }
    }

    /// With a trace of what happens to the job.
    pub(crate) fn traced(self, trace: JobTrace) -> Self {
        Self { trace, ..self }
    }

    /// The job's trace, which records nothing unless a collector is configured.
    pub(crate) fn trace(&self) -> &JobTrace {
        &self.trace
    }

    /// The job's id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The current record.
    pub(crate) fn record(&self) -> JobRecord {
        self.record.borrow().clone()
    }

    /// Watches the record.
    pub(crate) fn watch(&self) -> watch::Receiver<JobRecord> {
        self.record.subscribe()
    }

    /// The daemon has queued the job. Begins its trace, if there is a collector.
    pub(crate) fn accepted(&self, entry: Entry) {
        self.trace.record(JobEvent::Accepted(entry, &self.record()));
        if let Some(trace) = self.trace.id() {
            self.log(Level::INFO, &format!("trace {trace}"));
        }
    }

    /// Moves the job to `state` and logs it, with the reason if it is new.
    pub(crate) fn enter(&self, state: JobState, reason: &str) {
        let level = if state == JobState::Failed { Level::ERROR } else { Level::INFO };
        let is_new_reason = !reason.is_empty() && self.record.borrow().reason != reason;
        self.log(level, &if is_new_reason { format!("{state}: {reason}") } else { state.to_string() });
        // Before watchers see it, so that a client that has seen the end also finds it counted.
        self.outcomes.entered(&self.id, state);
        self.trace.record(JobEvent::Entered { state, reason });
        self.change(|record| record.enter(state, reason), || self.store.flush(STATE_TIMEOUT));
    }

    /// Returns the job to the queue, without waiting for the store: after a crash of the daemon, it waits anyway.
    pub(crate) fn wait_again(&self) {
        self.log(Level::INFO, "queued: prepared");
        self.trace.record(JobEvent::Entered { state: JobState::Queued, reason: "prepared" });
        self.update(|record| record.enter(JobState::Queued, ""));
    }

    /// Shows watchers why the job is queued.
    pub(crate) fn waits_for(&self, why: &str) {
        let is_new = self.record.send_if_modified(|record| {
            let is_new = record.state == JobState::Queued && record.waits_for != why;
            if is_new {
                why.clone_into(&mut record.waits_for);
            }
            is_new
        });
        if is_new {
            self.trace.record(JobEvent::Waits { why });
        }
    }

    /// Changes the record for watchers and in the store.
    pub(crate) fn update(&self, change: impl FnOnce(&mut JobRecord)) {
        self.change(change, || {});
    }

    fn change(&self, change: impl FnOnce(&mut JobRecord), before_watchers: impl FnOnce()) {
        let mut record = self.record();
        change(&mut record);
        record.reason = storable(&record.reason).into_owned();
        self.save(record.clone());
        before_watchers();
        self.record.send_replace(record);
    }

    /// Whether the store has the record as it was last written.
    pub(crate) fn is_stored(&self) -> bool {
        self.unsaved.is_stored.load(Ordering::Acquire)
    }

    /// Writes the record to the store again.
    pub(crate) fn store_again(&self) {
        self.save(self.record());
    }

    /// Queues a write of the record. One write is queued at a time; it writes the newest record.
    fn save(&self, record: JobRecord) {
        self.unsaved.is_stored.store(false, Ordering::Release);
        if self.unsaved.record().replace(record).is_some() {
            return;
        }
        let (unsaved, mut record) = (Arc::clone(&self.unsaved), None);
        let is_queued = self.store.write(&self.id, move |database| {
            record = unsaved.record().take().or_else(|| record.take());
            if let Some(record) = &record {
                database.save_job(record)?;
                unsaved.is_stored.store(unsaved.record().is_none(), Ordering::Release);
            }
            Ok(())
        });
        if !is_queued {
            *self.unsaved.record() = None;
        }
    }

    /// Changes the record's progress for watchers, and periodically in the store. `point` covers the time
    /// since the previous call.
    pub(crate) fn progress(&self, point: HistoryPoint, change: impl FnOnce(&mut JobRecord)) {
        self.record.send_modify(change);
        if self.trace.is_on() {
            let JobProgress { step, epoch, .. } = self.record.borrow().progress;
            self.trace.record(JobEvent::Progress { step, epoch, has_trained: point.examples > 0 });
        }
        let mut stored = self.stored();
        if is_due(&mut stored.progress, SAVE_INTERVAL) {
            self.save(self.record());
        }
        if point.examples == 0 {
            return;
        }
        let mut window = stored.window.unwrap_or_default();
        window.merge(&point);
        stored.window = Some(window);
        let steps = window.step.saturating_sub(stored.step);
        if steps >= self.spacing.load(Ordering::Relaxed) && window.seconds >= MIN_POINT_SECONDS {
            self.add_history(&mut stored);
        }
    }

    /// Stores the metrics of the evaluation after `step` in `epoch`, which `took` this long; `ends_epoch` is whether that
    /// step ended it.
    pub(crate) fn evaluated(
        &self,
        (step, epoch, ends_epoch): (u64, u32, bool),
        eval: Vec<Metrics>,
        took: Duration,
    ) {
        let metrics = eval.iter().flat_map(Metrics::named_values);
        let metrics = metrics.map(|(name, value)| NamedValue { name, value }).collect();
        let (id, evaluation) = (self.id.clone(), Evaluation { step, epoch, metrics });
        self.trace.record(JobEvent::Evaluated(&evaluation, took));
        // Before watchers see it, so that they find it in the history.
        self.store.write(&self.id, move |database| database.append_evaluation(&id, &evaluation));
        self.update(|record| (record.eval, record.eval_epoch) = (eval, ends_epoch.then_some(epoch)));
    }

    /// The average since the last history point, which is not stored yet.
    pub(crate) fn latest_point(&self) -> Option<HistoryPoint> {
        self.stored().window
    }

    /// Forgets the history after `step`, from which the job resumes.
    pub(crate) fn rewind(&self, step: u64) {
        let mut stored = self.stored();
        stored.window = None;
        stored.step = step;
        let id = self.id.clone();
        self.store.write(&self.id, move |database| database.rewind_history(&id, step));
    }

    /// Stores the remainder of the history at the end of an attempt.
    pub(crate) fn end_history(&self) {
        self.add_history(&mut self.stored());
    }

    /// Appends a line to the job's log.
    pub(crate) fn log(&self, level: Level, text: &str) {
        let text = storable(text).into_owned();
        match level {
            Level::ERROR => tracing::error!(job = self.id, "{text}"),
            Level::WARN => tracing::warn!(job = self.id, "{text}"),
            _ => tracing::info!(job = self.id, "{text}"),
        }
        let (id, at_ms) = (self.id.clone(), now_ms());
        self.store.write(&self.id, move |database| database.append_log(&id, at_ms, level, &text).map(drop));
    }

    fn add_history(&self, stored: &mut Stored) {
        let Some(point) = stored.window else { return };
        let (id, spacing) = (self.id.clone(), Arc::clone(&self.spacing));
        let is_queued = self.store.write(&self.id, move |database| {
            if let Some(steps) = database.append_history(&id, &point)? {
                spacing.store(steps, Ordering::Relaxed);
            }
            Ok(())
        });
        // Without room in the queue, the next point includes this one.
        if is_queued {
            (stored.step, stored.window) = (point.step, None);
        }
    }

    fn stored(&self) -> MutexGuard<'_, Stored> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Unsaved {
    fn record(&self) -> MutexGuard<'_, Option<JobRecord>> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_due(last: &mut Option<Instant>, period: Duration) -> bool {
    let now = Instant::now();
    let due = last.is_none_or(|last| now - last >= period);
    if due {
        *last = Some(now);
    }
    due
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use millstream_io::storage::Directory;
    use millstream_trainer::metrics::{Metric, MetricValue};

    use super::*;
    use crate::access::Requester;
    use crate::state::JobSource;

    fn recorder() -> JobRecorder {
        let store = Arc::new(Store::open_in_memory().unwrap());
        let record = JobRecord::new("a-1", "a", Directory::local("/checkpoints/a-1"));
        store
            .insert_job(
                &record,
                &JobSource { text: String::new(), path: "/a.toml".into(), requester: Requester::Trusted },
            )
            .unwrap();
        JobRecorder::new(store, record, Arc::default())
    }

    #[test]
    fn a_state_is_stored_and_logged_before_watchers_see_it() {
        let recorder = recorder();
        let watch = recorder.watch();
        recorder.enter(JobState::Failed, "no data");
        let seen = watch.borrow().clone();
        assert_eq!((seen.state, seen.reason.as_str()), (JobState::Failed, "no data"));
        assert_eq!(recorder.store.job("a-1").unwrap(), Some(seen));
        let log = recorder.store.logs("a-1", 0, 100).unwrap();
        assert_eq!((log[0].level, log[0].text.as_str()), (Level::ERROR, "failed: no data"));
        let recorder = self::recorder();
        recorder.enter(JobState::Failed, "https://me:sesame@host/a?sig=sesame: status 403");
        let shown = format!("{:?} {:?}", recorder.record(), recorder.store.logs("a-1", 0, 100).unwrap());
        assert!(shown.contains("https://***@host/a?sig=***") && !shown.contains("sesame"), "{shown}");
    }

    #[test]
    fn progress_reaches_watchers_at_once_and_the_store_periodically() {
        let recorder = recorder();
        for step in 1..=5 {
            recorder.progress(HistoryPoint::default(), |record| record.progress.step = step);
            assert_eq!(recorder.watch().borrow().progress.step, step);
        }
        assert_eq!(recorder.store.job("a-1").unwrap().unwrap().progress.step, 1);
        let measured = vec![MetricValue { metric: Metric::Auc, value: Some(0.5), error: Some(0.0) }];
        let metrics = Metrics { values: measured, examples: 9, ..Metrics::default() };
        let others = Metrics { label: "bought".into(), ..metrics.clone() };
        let eval = vec![metrics, others];
        recorder.evaluated((5, 3, true), eval.clone(), Duration::ZERO);
        let stored = recorder.store.job("a-1").unwrap().unwrap();
        assert_eq!((stored.progress.step, stored.eval, stored.eval_epoch), (5, eval, Some(3)));
        let evaluations = recorder.store.history("a-1").unwrap().evaluations;
        assert_eq!((evaluations[0].step, evaluations[0].epoch), (5, 3));
        let named = ["auc", "bought/auc"].map(|name| NamedValue { name: name.to_owned(), value: 0.5 });
        assert_eq!(evaluations[0].metrics, named);
    }

    #[test]
    fn history_averages_all_steps_and_drops_repeated_ones() {
        let recorder = recorder();
        let point =
            |step, loss| HistoryPoint { step, loss, examples: 10, seconds: 0.25, waited_seconds: 0.0 };
        let report = |step, loss| recorder.progress(point(step, loss), |record| record.progress.step = step);
        recorder.spacing.store(10, Ordering::Relaxed);
        for (step, loss) in [(4, 1.0), (8, 2.0), (12, 3.0), (16, 9.0)] {
            report(step, loss);
        }
        let points = || recorder.store.history("a-1").unwrap().points;
        assert_eq!(points(), [HistoryPoint { examples: 30, seconds: 0.75, ..point(12, 2.0) }]);
        recorder.end_history();
        assert_eq!(points().len(), 2);
        recorder.rewind(12);
        report(17, 5.0);
        assert_eq!(points().len(), 1);
        report(22, 7.0);
        assert_eq!(points()[1], HistoryPoint { examples: 20, seconds: 0.5, ..point(22, 6.0) });
    }

    #[test]
    fn a_short_remainder_is_merged_into_the_next_point() {
        let recorder = recorder();
        let report = |step, seconds| {
            let point = HistoryPoint { step, loss: 1.0, examples: 1, seconds, waited_seconds: 0.0 };
            recorder.progress(point, |record| record.progress.step = step);
        };
        for (step, seconds) in [(9, 0.09), (10, 0.01), (20, 0.1), (21, 0.01)] {
            report(step, seconds);
        }
        assert_eq!(recorder.latest_point().map(|point| point.step), Some(21));
        recorder.end_history();
        assert_eq!(recorder.latest_point(), None);
        let steps: Vec<_> =
            recorder.store.history("a-1").unwrap().points.iter().map(|point| point.step).collect();
        assert_eq!(steps, [9, 20, 21]);
    }
}
