//! The jobs of a daemon that have not ended: waiting in a bounded queue, under way, or ended with a state that could not be
//! stored yet.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Result, bail};

use crate::scheduler::{Capacity, Reason, Scheduler, UserId};
use crate::supervisor::{Control, JobRecorder, Supervisor};

/// Maximum number of queued jobs. A daemon that starts also queues what an earlier one left beyond it.
const MAX_QUEUED: usize = 10_000;

/// The jobs that have not ended.
pub(crate) struct Jobs {
    /// Decides which jobs start.
    pub(crate) scheduler: Scheduler,
    /// Waiting jobs by id, each also in the scheduler.
    pub(crate) queued: HashMap<String, QueuedJob>,
    /// Jobs with a thread: running, or being prepared.
    pub(crate) running: Vec<ActiveJob>,
    /// Searches with a thread. They demand nothing of the host.
    pub(crate) searches: Vec<ActiveJob>,
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
    /// No jobs, on a host of this capacity.
    pub(crate) fn new(capacity: Capacity) -> Self {
        Self {
            scheduler: Scheduler::new(capacity),
            queued: HashMap::new(),
            running: Vec::new(),
            searches: Vec::new(),
            unstored: Vec::new(),
            draining: false,
        }
    }

    /// The job of this id, if its state is in memory.
    pub(crate) fn active(&self, id: &str) -> Option<&ActiveJob> {
        let waiting = self.queued.get(id).map(|waiting| &waiting.active);
        let mut others = self.running.iter().chain(&self.searches).chain(&self.unstored);
        waiting.or_else(|| others.find(|active| active.recorder.id() == id))
    }

    /// Removes the queued job of this id.
    pub(crate) fn take_queued(&mut self, id: &str) -> Option<QueuedJob> {
        let queued = self.queued.remove(id)?;
        self.scheduler.remove(id);
        Some(queued)
    }

    /// Gives the jobs a reason that wait behind those that the scheduler has looked at.
    pub(crate) fn explain_waits(&self) {
        let unexplained = self.queued.values().map(|waiting| &waiting.active.recorder);
        for recorder in unexplained.filter(|recorder| recorder.watch().borrow().waits_for.is_empty()) {
            recorder.waits_for(&Reason::Behind.to_string());
        }
    }

    /// An error if no further job of `user` may be queued.
    pub(crate) fn check_room(&self, user: UserId, max_of_user: Option<usize>) -> Result<()> {
        if self.draining {
            bail!("the daemon is stopping");
        }
        if self.queued.len() >= MAX_QUEUED {
            bail!("the queue is full: {MAX_QUEUED} jobs are waiting");
        }
        if let Some(limit) = max_of_user.filter(|&limit| self.scheduler.waiting_of(user) >= limit) {
            bail!("{limit} jobs of this user are waiting, as many as `max_queued_per_user` allows");
        }
        Ok(())
    }

    /// Whether the job of this id has a thread.
    pub(crate) fn has_thread(&self, id: &str) -> bool {
        self.running.iter().chain(&self.searches).any(|active| active.recorder.id() == id)
    }

    /// The number of jobs and searches with a thread.
    pub(crate) fn under_way(&self) -> usize {
        self.running.len() + self.searches.len()
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
