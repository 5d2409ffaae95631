//! The removal of ended jobs, on request or because they ended long ago.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use millstream_batch::Count;
use millstream_control::proto::JobState;

use super::Daemon;
use crate::state::{JobFilter, JobRecord, now_ms};

/// A day.
const INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

impl Daemon {
    /// Deletes an ended job's record, log and history. Its run directory, with its checkpoints, stays.
    ///
    /// # Errors
    /// When there is no such job, or it has not ended.
    pub fn remove(&self, id: &str) -> Result<JobRecord> {
        let _membership = self.shared.membership();
        let record = self.show(id)?;
        if !record.state.is_final() {
            bail!("job {} is {}: `millstream cancel {}` stops it first", record.id, record.state, record.id);
        }
        self.shared.jobs().unstored.retain(|active| active.recorder.id() != record.id);
        self.shared.store.remove_job(&record.id)?;
        self.shared.outcomes.released(&record.id);
        Ok(record)
    }

    /// Deletes the records of jobs that ended longer ago than the configuration keeps them, now and later on.
    pub(super) fn remove_expired_daily(&self) {
        let shared = Arc::downgrade(&self.shared);
        let mut settings = self.shared.settings.subscribe();
        self.shared.runtime.spawn(async move {
            loop {
                let days = settings.borrow_and_update().keep_jobs_days;
                if let Some(days) = days {
                    let Some(shared) = shared.upgrade() else { return };
                    Self { shared }.remove_older(days).await;
                }
                tokio::select! {
                    () = tokio::time::sleep(INTERVAL) => {}
                    // An error means that the daemon has ended.
                    changed = settings.changed() => if changed.is_err() { return },
                }
            }
        });
    }

    async fn remove_older(&self, days: NonZeroU32) {
        let kept_ms = u64::from(days.get()) * INTERVAL.as_millis() as u64;
        let ended_before = now_ms().saturating_sub(kept_ms);
        match self.blocking(move |daemon| daemon.remove_ended(ended_before)).await {
            Ok(0) => {}
            Ok(jobs) => tracing::info!("deleted {} older than {days} days", Count(jobs, "job")),
            Err(error) => tracing::warn!("old jobs are not deleted yet: {error:#}"),
        }
    }

    /// Deletes the records of jobs that ended before this time, in milliseconds since the Unix epoch. Returns their number.
    fn remove_ended(&self, before_ms: u64) -> Result<u64> {
        let states =
            JobState::ALL.into_iter().filter(|&state| state.is_final() && !state.awaits_user()).collect();
        let (ended, _) = self.list(&JobFilter { states, limit: None })?;
        let expired = ended.iter().filter(|job| job.ended_ms.is_some_and(|ended| ended < before_ms));
        let mut removed = 0;
        for job in expired {
            self.remove(&job.id)?;
            removed += 1;
        }
        Ok(removed)
    }
}
