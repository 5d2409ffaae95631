//! A job's record while the job lives: what watchers see, and what the store keeps.
//!
//! Changes of state are in the store before anybody is told of them. Progress goes to watchers at once and
//! to the store once a second: after a crash it is taken from the checkpoint anyway.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::state::{
    Evaluation, HistoryPoint, JobRecord, JobState, LogLevel, Metrics, Store, StoreError, now_ms,
};

/// How often progress is stored.
const SAVE_PERIOD: Duration = Duration::from_secs(1);

/// A point of history is the mean of at least so much training: what comes at the end of an epoch may be a step or
/// two, whose mean is noise.
const LEAST_SECONDS: f64 = 0.05;

/// The record of one job.
pub(crate) struct Book {
    id: String,
    store: Arc<Store>,
    record: watch::Sender<JobRecord>,
    stored: Mutex<Stored>,
}

/// What is known of the store.
#[derive(Default)]
struct Stored {
    /// When progress was last written.
    progress: Option<Instant>,
    /// The step of the last point of history, and how many more make another one worth keeping.
    step: u64,
    spacing: u64,
    /// What came after that point.
    window: Option<HistoryPoint>,
}

impl Book {
    /// Opens the book of a job that the store has.
    pub(crate) fn new(store: Arc<Store>, record: JobRecord) -> Self {
        let id = record.id.clone();
        Self { id, store, record: watch::Sender::new(record), stored: Mutex::default() }
    }

    /// The job's id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The record as it is.
    pub(crate) fn record(&self) -> JobRecord {
        self.record.borrow().clone()
    }

    /// The record as it changes.
    pub(crate) fn watch(&self) -> watch::Receiver<JobRecord> {
        self.record.subscribe()
    }

    /// Moves the job to `state`, with a line in its log, which says the reason where it is news.
    pub(crate) fn enter(&self, state: JobState, reason: &str) {
        let level = if state == JobState::Failed { LogLevel::Error } else { LogLevel::Info };
        let is_news = !reason.is_empty() && self.record.borrow().reason != reason;
        self.log(level, &if is_news { format!("{state}: {reason}") } else { state.to_string() });
        self.change(|record| record.enter(state, reason));
    }

    /// Changes the record: in the store, then for watchers.
    pub(crate) fn change(&self, change: impl FnOnce(&mut JobRecord)) {
        let mut record = self.record();
        change(&mut record);
        self.kept(self.store.save_job(&record));
        self.record.send_replace(record);
    }

    /// Changes the record's progress, for watchers, and now and then in the store; `point` is what came since
    /// the last time.
    pub(crate) fn progress(&self, point: HistoryPoint, change: impl FnOnce(&mut JobRecord)) {
        self.record.send_modify(change);
        let mut stored = self.stored();
        if is_due(&mut stored.progress, SAVE_PERIOD) {
            self.kept(self.store.save_job(&self.record()));
        }
        if point.examples == 0 {
            return;
        }
        let mut window = stored.window.unwrap_or_default();
        window.add(&point);
        stored.window = Some(window);
        let steps = window.step.saturating_sub(stored.step);
        if steps >= stored.spacing && window.seconds >= LEAST_SECONDS {
            self.add_history(&mut stored);
        }
    }

    /// Keeps the metrics of the evaluation after `step`, a step of `epoch`, with which that ended or not.
    pub(crate) fn evaluated(&self, step: u64, epoch: u32, ends_epoch: bool, eval: Vec<Metrics>) {
        let metrics = eval.iter().flat_map(Metrics::named_values).collect();
        self.change(|record| (record.eval, record.eval_epoch) = (eval, ends_epoch.then_some(epoch)));
        self.kept(self.store.append_evaluation(&self.id, &Evaluation { step, epoch, metrics }));
    }

    /// What came after the last point of history, and is not stored yet.
    pub(crate) fn latest(&self) -> Option<HistoryPoint> {
        self.stored().window
    }

    /// The job goes on from `step`: what it did after that is to be done again.
    pub(crate) fn rewind(&self, step: u64) {
        let mut stored = self.stored();
        stored.window = None;
        stored.step = step;
        self.kept(self.store.rewind_history(&self.id, step));
    }

    /// An attempt is over: what came after the last point of history is a point as well.
    pub(crate) fn end_history(&self) {
        self.add_history(&mut self.stored());
    }

    /// Adds a line to the job's log.
    pub(crate) fn log(&self, level: LogLevel, text: &str) {
        match level {
            LogLevel::Info => tracing::info!(job = self.id, "{text}"),
            LogLevel::Warn => tracing::warn!(job = self.id, "{text}"),
            LogLevel::Error => tracing::error!(job = self.id, "{text}"),
        }
        self.kept(self.store.append_log(&self.id, now_ms(), level, text).map(drop));
    }

    fn add_history(&self, stored: &mut Stored) {
        let Some(point) = stored.window.take() else { return };
        stored.step = point.step;
        match self.store.append_history(&self.id, &point) {
            Ok(Some(spacing)) => stored.spacing = spacing,
            Ok(None) => {}
            Err(error) => self.kept(Err(error)),
        }
    }

    fn stored(&self) -> MutexGuard<'_, Stored> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A store that fails does not stop a job: its checkpoints are what counts.
    fn kept(&self, result: Result<(), StoreError>) {
        if let Err(error) = result {
            tracing::error!(job = self.id, %error, "the job's state was not stored");
        }
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

    use millstream_trainer::metrics::{Metric, MetricValue};

    use super::*;
    use crate::state::JobSource;

    fn book() -> Book {
        let store = Arc::new(Store::open_in_memory().unwrap());
        let record = JobRecord::new("a-1", "a", "/checkpoints/a-1".into());
        store.insert_job(&record, &JobSource { text: String::new(), path: "/a.toml".into() }).unwrap();
        Book::new(store, record)
    }

    #[test]
    fn a_state_is_stored_and_logged_by_the_time_watchers_see_it() {
        let book = book();
        let watch = book.watch();
        book.enter(JobState::Failed, "no data");
        let seen = watch.borrow().clone();
        assert_eq!((seen.state, seen.reason.as_str()), (JobState::Failed, "no data"));
        assert_eq!(book.store.job("a-1").unwrap(), Some(seen));
        let log = book.store.logs("a-1", 0).unwrap();
        assert_eq!((log[0].level, log[0].text.as_str()), (LogLevel::Error, "failed: no data"));
    }

    #[test]
    fn progress_reaches_watchers_at_once_and_the_store_now_and_then() {
        let book = book();
        for step in 1..=5 {
            book.progress(HistoryPoint::default(), |record| record.progress.step = step);
            assert_eq!(book.watch().borrow().progress.step, step);
        }
        assert_eq!(book.store.job("a-1").unwrap().unwrap().progress.step, 1);
        let measured = vec![MetricValue { metric: Metric::Auc, value: Some(0.5), error: Some(0.0) }];
        let metrics = Metrics { values: measured, examples: 9, ..Metrics::default() };
        let others = Metrics { label: "bought".into(), ..metrics.clone() };
        let eval = vec![metrics, others];
        book.evaluated(5, 3, true, eval.clone());
        let stored = book.store.job("a-1").unwrap().unwrap();
        assert_eq!((stored.progress.step, stored.eval, stored.eval_epoch), (5, eval, Some(3)));
        let evaluations = book.store.history("a-1").unwrap().evaluations;
        assert_eq!((evaluations[0].step, evaluations[0].epoch), (5, 3));
        let named = ["auc", "bought/auc"].map(|name| (name.to_owned(), 0.5));
        assert_eq!(evaluations[0].metrics, named);
    }

    #[test]
    fn history_has_the_means_of_all_steps_and_none_that_are_taken_again() {
        let book = book();
        let point =
            |step, loss| HistoryPoint { step, loss, examples: 10, seconds: 0.25, waited_seconds: 0.0 };
        let told = |step, loss| book.progress(point(step, loss), |record| record.progress.step = step);
        book.stored().spacing = 10;
        for (step, loss) in [(4, 1.0), (8, 2.0), (12, 3.0), (16, 9.0)] {
            told(step, loss);
        }
        let points = || book.store.history("a-1").unwrap().points;
        assert_eq!(points(), [HistoryPoint { examples: 30, seconds: 0.75, ..point(12, 2.0) }]);
        book.end_history();
        assert_eq!(points().len(), 2);
        book.rewind(12);
        told(17, 5.0);
        assert_eq!(points().len(), 1);
        told(22, 7.0);
        assert_eq!(points()[1], HistoryPoint { examples: 20, seconds: 0.5, ..point(22, 6.0) });
    }

    #[test]
    fn a_moment_of_training_is_no_point_of_its_own() {
        let book = book();
        let told = |step, seconds| {
            let point = HistoryPoint { step, loss: 1.0, examples: 1, seconds, waited_seconds: 0.0 };
            book.progress(point, |record| record.progress.step = step);
        };
        for (step, seconds) in [(9, 0.09), (10, 0.01), (20, 0.1), (21, 0.01)] {
            told(step, seconds);
        }
        assert_eq!(book.latest().map(|point| point.step), Some(21));
        book.end_history();
        assert_eq!(book.latest(), None);
        let steps: Vec<_> =
            book.store.history("a-1").unwrap().points.iter().map(|point| point.step).collect();
        assert_eq!(steps, [9, 20, 21]);
    }
}
