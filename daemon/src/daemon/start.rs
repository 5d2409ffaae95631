//! How jobs start: when the scheduler decides so, each on its own thread.
//!
//! A job's thread prepares it. If its demand is larger than its job file says, or if it was prepared ahead, the job returns
//! to the queue and its thread ends. So the number of threads is that of the jobs under way, however many wait.

use std::io;
use std::num::NonZeroUsize;
use std::time::Duration;

use millstream_control::proto::JobState;
use millstream_worker::gpus::VISIBLE_VARIABLE;

use super::Daemon;
use crate::config::Limits;
use crate::memory::{self, Room};
use crate::queue::{ActiveJob, Jobs, QueuedJob};
use crate::scheduler::{Capacity, Decision, Reason, Start};
use crate::supervisor::{Ready, Supervisor};

/// Interval between attempts to store the last state of ended jobs, for example while the disk is full.
const STORE_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The part of the host's memory that is left to other programs: one in this many bytes.
const RESERVED_PART: u64 = 16;

/// What this host has for jobs, within `limits`.
pub(super) fn capacity(limits: &Limits) -> Capacity {
    let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let host_bytes = memory::limit_bytes().map_or(u64::MAX, |bytes| bytes - bytes / RESERVED_PART);
    Capacity {
        memory_bytes: limits.memory_bytes.unwrap_or(host_bytes).min(host_bytes),
        threads: limits.threads.map_or_else(cores, Into::into),
        gpus: gpus(),
        max_jobs: limits.max_jobs.map(NonZeroUsize::get),
        max_jobs_per_user: limits.max_jobs_per_user.map(NonZeroUsize::get),
    }
}

/// The number of NVIDIA's GPUs that this host shows to workers, at least 1.
fn gpus() -> u32 {
    let nodes = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    let names = nodes.filter_map(|node| node.file_name().into_string().ok());
    let is_gpu = |name: &str| name.strip_prefix("nvidia").is_some_and(|number| number.parse::<u32>().is_ok());
    let count = names.filter(|name| is_gpu(name)).count() as u32;
    let visible = std::env::var(VISIBLE_VARIABLE).ok().map(|list| list.split(',').count() as u32);
    visible.map_or(count, |visible| visible.min(count)).max(1)
}

impl Daemon {
    /// Starts the queued jobs that the scheduler chooses.
    pub(super) fn start_next(&self) {
        let mut jobs = self.shared.jobs();
        let Decision { starts, .. } = self.decide(&mut jobs);
        let not_started = self.start_threads(starts, &mut jobs);
        drop(jobs);
        fail(not_started);
    }

    /// Lets the scheduler decide, and shows jobs why they wait.
    fn decide(&self, jobs: &mut Jobs) -> Decision {
        if jobs.draining {
            return Decision::default();
        }
        let Jobs { scheduler, running, queued, .. } = jobs;
        scheduler.expect(|id| {
            let active = running.iter().find(|active| active.recorder.id() == id)?;
            active.recorder.record().progress.remaining_seconds()
        });
        let decision = scheduler.decide(self.shared.began.elapsed().as_secs_f64());
        for (id, reason) in &decision.waits {
            if let Some(QueuedJob { active, .. }) = queued.get(id) {
                active.recorder.waits_for(&reason.to_string());
            }
        }
        decision
    }

    /// Starts the threads of queued jobs. Returns the jobs whose threads the system refuses.
    fn start_threads(&self, starts: Vec<Start>, jobs: &mut Jobs) -> Vec<(ActiveJob, io::Error)> {
        let mut not_started = Vec::new();
        for Start { id, .. } in starts {
            let Some(QueuedJob { active, supervisor }) = jobs.queued.remove(&id) else { continue };
            if active.is_suspect() {
                self.start_next_once_cleared(&active);
            }
            let thread = JobThread { daemon: self.clone(), active: active.clone(), is_over: true };
            // The thread's first access to `jobs` waits until this lock is released.
            let started = self.shared.launcher.spawn(format!("job {id}"), move || thread.run(supervisor));
            match started {
                Ok(()) => jobs.running.push(active),
                Err(error) => {
                    jobs.scheduler.remove(&id);
                    not_started.push((active, error));
                }
            }
        }
        self.shared.running.send_replace(jobs.under_way());
        not_started
    }

    /// The memory for a job that is about to be prepared. Beside others, it may have to wait until they end.
    fn room(&self) -> Room {
        let jobs = self.shared.jobs();
        let for_jobs = Room::ForJobs(jobs.scheduler.capacity().memory_bytes);
        let now = Room::now().filter(|now| jobs.running.len() == 1 && now.bytes() < for_jobs.bytes());
        now.unwrap_or(for_jobs)
    }

    /// Returns the prepared job if it may train now. Otherwise it waits in the queue.
    fn place(&self, active: &ActiveJob, ready: Ready) -> Option<Ready> {
        let id = active.recorder.id();
        let mut jobs = self.shared.jobs();
        if jobs.draining || active.control.stop_requested().is_some() {
            // It notices that itself.
            return Some(ready);
        }
        let is_placed = jobs.scheduler.prepared(id, ready.demand());
        let Decision { starts, waits } = self.decide(&mut jobs);
        let (own, others): (Vec<_>, Vec<_>) = starts.into_iter().partition(|start| start.id == id);
        let may_train = is_placed || own.iter().any(|start| !start.is_ahead);
        let waits_for = if !may_train {
            waits.into_iter().find(|(waiting, _)| waiting == id).map_or(Reason::Behind, |(_, reason)| reason)
        } else if jobs.running.len() > 1 && Room::now().is_some_and(|now| !ready.fits(now)) {
            jobs.scheduler.put_off(id);
            Reason::HostMemory
        } else {
            let not_started = self.start_threads(others, &mut jobs);
            drop(jobs);
            fail(not_started);
            return Some(ready);
        };
        jobs.running.retain(|other| other.recorder.id() != id);
        active.recorder.wait_again();
        active.recorder.waits_for(&waits_for.to_string());
        let queued = QueuedJob { active: active.clone(), supervisor: ready.into_supervisor() };
        jobs.queued.insert(id.to_owned(), queued);
        let not_started = self.start_threads(others, &mut jobs);
        drop(jobs);
        fail(not_started);
        None
    }

    /// Starts further jobs once `suspect` has a new checkpoint.
    fn start_next_once_cleared(&self, suspect: &ActiveJob) {
        let (daemon, mut record) = (self.clone(), suspect.recorder.watch());
        self.shared.runtime.spawn(async move {
            // The channel closes when the job ends, which starts the next one anyway.
            let Ok(id) =
                record.wait_for(|record| record.daemon_deaths == 0).await.map(|record| record.id.clone())
            else {
                return;
            };
            daemon.shared.jobs().scheduler.cleared(&id);
            daemon.start_next();
        });
    }

    /// Keeps an ended job in memory until its last state is stored.
    pub(super) fn keep_unstored(&self, active: &ActiveJob, jobs: &mut Jobs) {
        if jobs.unstored.is_empty() {
            self.retry_unstored();
        }
        jobs.unstored.push(active.clone());
    }

    /// Stores the last state of ended jobs once that is possible again.
    fn retry_unstored(&self) {
        let daemon = self.clone();
        self.shared.runtime.spawn(async move {
            loop {
                tokio::time::sleep(STORE_RETRY_INTERVAL).await;
                let unstored = daemon.shared.jobs().unstored.clone();
                for active in &unstored {
                    active.recorder.store_again();
                }
                let mut jobs = daemon.shared.jobs();
                jobs.unstored.retain(|active| !active.recorder.is_stored());
                if jobs.unstored.is_empty() {
                    return;
                }
            }
        });
    }
}

fn fail(not_started: Vec<(ActiveJob, io::Error)>) {
    for (active, error) in not_started {
        active.recorder.enter(JobState::Failed, &format!("cannot start its thread: {error}"));
    }
}

/// A job's thread. Dropped when it ends, even in a panic.
struct JobThread {
    daemon: Daemon,
    active: ActiveJob,
    /// Whether the job is over when the thread ends, and does not wait in the queue again.
    is_over: bool,
}

impl JobThread {
    /// Prepares the job and trains it, unless it has to wait.
    fn run(mut self, supervisor: Supervisor) {
        let Some(ready) = supervisor.prepare_in(Some(self.daemon.room())) else { return };
        match self.daemon.place(&self.active, ready) {
            Some(ready) => ready.train(),
            None => self.is_over = false,
        }
    }
}

impl Drop for JobThread {
    fn drop(&mut self) {
        if !self.is_over {
            return;
        }
        let Self { daemon, active, .. } = self;
        if std::thread::panicking() {
            active.recorder.enter(JobState::Failed, "internal error in the daemon; see its log");
        }
        let id = active.recorder.id();
        let mut jobs = daemon.shared.jobs();
        jobs.running.retain(|other| other.recorder.id() != id);
        jobs.scheduler.remove(id);
        daemon.shared.running.send_replace(jobs.under_way());
        daemon.shared.thread_ended.notify_all();
        if !active.recorder.is_stored() {
            daemon.keep_unstored(active, &mut jobs);
        }
        drop(jobs);
        daemon.start_next();
    }
}
