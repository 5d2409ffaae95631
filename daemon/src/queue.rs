//! The jobs of a daemon that have not ended: waiting in a bounded queue, running, or ended with a state that could not be
//! stored yet.

use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::{Result, bail};

use crate::supervisor::{Control, JobRecorder, Supervisor};

/// Maximum number of queued jobs. A daemon that starts also queues what an earlier one left beyond it.
const MAX_QUEUED: usize = 10_000;

/// The jobs that have not ended.
#[derive(Default)]
pub(crate) struct Jobs {
    /// Waiting jobs, the next one first.
    pub(crate) queued: VecDeque<QueuedJob>,
    /// Running jobs.
    pub(crate) running: Vec<ActiveJob>,
    /// Ended jobs whose last state could not be stored yet.
    pub(crate) unstored: Vec<ActiveJob>,
    /// Whether the daemon is stopping, so that no job starts.
    pub(crate) draining: bool,
}

/// A queued or running job.
#[derive(Clone)]
pub(crate) struct ActiveJob {
    /// Its record.
    pub(crate) recorder: Arc<JobRecorder>,
    /// Reaches its thread.
    pub(crate) control: Arc<Control>,
}

/// A queued job.
pub(crate) struct QueuedJob {
    /// What other threads see of it.
    pub(crate) active: ActiveJob,
    /// Runs it.
    pub(crate) supervisor: Supervisor,
}

impl ActiveJob {
    /// Whether the daemon died while this job was under way, and the job has no new checkpoint since.
    pub(crate) fn is_suspect(&self) -> bool {
        self.recorder.watch().borrow().daemon_deaths > 0
    }
}

impl Jobs {
    /// The job of this id, if its state is in memory.
    pub(crate) fn active(&self, id: &str) -> Option<&ActiveJob> {
        let waiting = self.queued.iter().map(|waiting| &waiting.active);
        let mut all = self.running.iter().chain(waiting).chain(&self.unstored);
        all.find(|active| active.recorder.id() == id)
    }

    /// Removes the queued job of this id.
    pub(crate) fn take_queued(&mut self, id: &str) -> Option<QueuedJob> {
        let place = self.queued.iter().position(|waiting| waiting.active.recorder.id() == id)?;
        self.queued.remove(place)
    }

    /// Removes the first queued job that may start. Of jobs under way when the daemon died, one runs at a time until it has a
    /// new checkpoint, so that the next death implicates one job only.
    pub(crate) fn pop_startable(&mut self) -> Option<QueuedJob> {
        let is_blocked = self.running.iter().any(ActiveJob::is_suspect);
        let startable = |waiting: &QueuedJob| !(is_blocked && waiting.active.is_suspect());
        let place = self.queued.iter().position(startable)?;
        self.queued.remove(place)
    }

    /// An error if no further job may be queued.
    pub(crate) fn check_room(&self) -> Result<()> {
        if self.draining {
            bail!("the daemon is stopping");
        }
        if self.queued.len() >= MAX_QUEUED {
            bail!("the queue is full: {MAX_QUEUED} jobs are waiting");
        }
        Ok(())
    }

    /// An error if the job of this id has not ended.
    pub(crate) fn check_not_active(&self, id: &str) -> Result<()> {
        let active = self.active(id).filter(|active| !active.recorder.watch().borrow().state.is_final());
        if active.is_some() {
            bail!("job {id} has not ended; there is nothing to resume");
        }
        Ok(())
    }
}
