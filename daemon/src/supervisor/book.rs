//! A job's record while the job lives: what watchers see, and what the store keeps.
//!
//! Changes of state are in the store before anybody is told of them. Progress goes to watchers at once and
//! to the store once a second: after a crash it is taken from the checkpoint anyway.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::state::{HistoryPoint, JobRecord, JobState, LogLevel, Metrics, Store, StoreError, now_ms};

/// How often progress is stored.
const SAVE_PERIOD: Duration = Duration::from_secs(1);

/// How often a point of the training curve is kept between evaluations.
const HISTORY_PERIOD: Duration = Duration::from_secs(10);

/// The record of one job.
pub(crate) struct Book {
    id: String,
    store: Arc<Store>,
    record: watch::Sender<JobRecord>,
    /// When progress was last stored, and when a point of history.
    stored: Mutex<Stored>,
}

#[derive(Default)]
struct Stored {
    progress: Option<Instant>,
    history: Option<Instant>,
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

    /// Changes the record's progress: for watchers, and now and then in the store.
    pub(crate) fn progress(&self, change: impl FnOnce(&mut JobRecord)) {
        self.record.send_modify(change);
        let (save, point) = {
            let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
            (is_due(&mut stored.progress, SAVE_PERIOD), is_due(&mut stored.history, HISTORY_PERIOD))
        };
        if save {
            self.kept(self.store.save_job(&self.record()));
        }
        if point {
            self.add_history(None);
        }
    }

    /// Keeps the metrics of the evaluation after `epoch`.
    pub(crate) fn evaluated(&self, epoch: u32, metrics: Metrics) {
        self.change(|record| (record.eval, record.eval_epoch) = (Some(metrics), Some(epoch)));
        self.add_history(Some(metrics));
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

    fn add_history(&self, eval: Option<Metrics>) {
        let progress = self.record.borrow().progress;
        let point = HistoryPoint {
            step: progress.step,
            loss: progress.loss,
            examples_per_second: progress.examples_per_second,
            eval,
        };
        self.kept(self.store.append_history(&self.id, &point));
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
            book.progress(|record| record.progress.step = step);
            assert_eq!(book.watch().borrow().progress.step, step);
        }
        assert_eq!(book.store.job("a-1").unwrap().unwrap().progress.step, 1);
        let metrics = Metrics {
            auc: Some(0.5),
            auc_error: Some(0.0),
            pr_auc: Some(0.3),
            pr_auc_error: Some(0.0),
            log_loss: 0.7,
            normalized_entropy: Some(1.1),
            calibration: Some(0.9),
            rmse: 0.4,
            accuracy: 0.5,
            group_auc: None,
            groups: None,
            examples: 9,
        };
        book.evaluated(3, metrics);
        let stored = book.store.job("a-1").unwrap().unwrap();
        assert_eq!((stored.progress.step, stored.eval, stored.eval_epoch), (5, Some(metrics), Some(3)));
        let steps: Vec<_> = book.store.history("a-1").unwrap().iter().map(|point| point.step).collect();
        assert_eq!(steps, [1, 5]);
    }
}
