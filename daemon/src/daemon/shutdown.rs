//! The stop of the daemon: each running job saves a checkpoint, within a time limit. The log says of each job what it saved, or
//! from where it resumes.
//!
//! The disk limits how fast checkpoints are written. If all jobs wrote at once, it could be that none was complete at the
//! limit. So few write at a time, those with the most memory first, because they take longest; the others train until it is their
//! turn. At half of the limit, all that are left are asked, so that a job that does not answer keeps no other from its checkpoint.

use std::cmp::Reverse;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::stream::{self, StreamExt};
use millstream_batch::{Count, Size};
use millstream_control::proto::JobState;

use super::Daemon;
use crate::queue::ActiveJob;
use crate::state::JobRecord;
use crate::supervisor::StopReason;

/// Jobs that save a checkpoint at a time. Two keep a disk busy while one of them waits for its GPU or its last step.
const AT_ONCE: usize = 2;

/// Time limit for the ranks of feeds to get the reason why their feeds end.
const FEEDS_TIMEOUT: Duration = Duration::from_secs(5);

/// Why feeds end.
const STOPPING: &str =
    "the daemon (millstreamd) stops; attach again, with the state of the batch that was trained last";

/// Time limit for the last spans of traces.
const TRACES_TIMEOUT: Duration = Duration::from_secs(2);

impl Daemon {
    /// Sends the remaining spans of traces, within a time limit. Called last.
    pub(crate) async fn flush_traces(&self) {
        let traces = self.shared.traces.clone();
        // It reports its failure itself.
        let _ = tokio::task::spawn_blocking(move || traces.flush(TRACES_TIMEOUT)).await;
    }

    /// Starts no further job, ends all feeds, asks running jobs to take a checkpoint and stop, and waits for them within a
    /// time limit. Unfinished jobs stay unfinished in the store, and the next daemon resumes them.
    pub async fn shutdown(&self) {
        let limit = self.settings().stop_limit;
        let began = Instant::now();
        let (stopping, traced) = {
            let mut jobs = self.shared.jobs();
            jobs.draining = true;
            let queued = jobs.queued.values().map(|waiting| &waiting.active);
            let traced: Vec<_> = queued
                .chain(&jobs.running)
                .chain(&jobs.searches)
                .map(|active| Arc::clone(&active.recorder))
                .collect();
            jobs.queued.clear();
            for search in &jobs.searches {
                search.control.stop(StopReason::Drain);
            }
            let mut stopping: Vec<_> = jobs.running.iter().cloned().map(Stopping::new).collect();
            stopping.sort_by_key(|job| Reverse(jobs.scheduler.memory_of(job.active.recorder.id())));
            (stopping, traced)
        };
        let mut running = self.shared.running.subscribe();
        let drained = async {
            futures::join!(stop_in_turn(&stopping, began, limit / 2), self.shared.scorer.close());
            // Cannot fail: the sender lives as long as `self`.
            let _ = running.wait_for(|&running| running == 0).await;
            let flushed = self.blocking(move |daemon| {
                daemon.shared.store.flush(limit);
                Ok::<_, anyhow::Error>(())
            });
            // It reports its failure itself.
            let _ = flushed.await;
        };
        let feeds = self.blocking(|daemon| {
            daemon.shared.feeds.close(STOPPING, FEEDS_TIMEOUT);
            Ok::<_, anyhow::Error>(())
        });
        let (drained, _) = futures::join!(tokio::time::timeout(limit, drained), feeds);
        if drained.is_err() {
            tracing::warn!("jobs did not stop within {limit:?}");
        }
        traced.iter().for_each(|recorder| recorder.trace().leave());
        let ends: Vec<_> = stopping.iter().map(|job| job.outcome(began)).collect();
        if let Some(summary) = Summary::of(&ends, began.elapsed()) {
            if summary.lost > 0 {
                tracing::warn!("{summary}");
            } else {
                tracing::info!("{summary}");
            }
        }
    }
}

/// Stops jobs that train in the order of `jobs`, few at a time, and the others at once. Once `patience` is over, asks all that
/// are left. Returns when all have stopped.
async fn stop_in_turn(jobs: &[Stopping], began: Instant, patience: Duration) {
    let (training, others): (Vec<_>, Vec<_>) = jobs.iter().partition(|job| job.trains());
    let stop = |job: &&Stopping| job.active.control.stop(StopReason::Drain);
    others.iter().for_each(stop);
    let in_turn = stream::iter(&training).for_each_concurrent(AT_ONCE, |job| {
        stop(job);
        job.wait(began)
    });
    if tokio::time::timeout(patience, in_turn).await.is_err() {
        training.iter().for_each(stop);
    }
    join_all(jobs.iter().map(|job| job.wait(began))).await;
}

/// A job that is asked to stop.
struct Stopping {
    active: ActiveJob,
    /// Set once it has stopped, or the time is over.
    outcome: OnceLock<Stopped>,
}

impl Stopping {
    fn new(active: ActiveJob) -> Self {
        Self { active, outcome: OnceLock::new() }
    }

    fn trains(&self) -> bool {
        self.active.recorder.record().state == JobState::Running
    }

    /// Waits until the job has stopped, and logs what it saved.
    async fn wait(&self, began: Instant) {
        let is_under_way = |state| matches!(state, JobState::Preparing | JobState::Running);
        // An error means that the job has ended: its last record is final.
        let _ = self.active.recorder.watch().wait_for(|record| !is_under_way(record.state)).await;
        self.outcome(began);
    }

    /// What the job has saved by now, or when it stopped. The first call logs it.
    fn outcome(&self, began: Instant) -> Stopped {
        *self.outcome.get_or_init(|| Stopped::now(&self.active, began))
    }
}

/// What a job saved when the daemon stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopped {
    /// Its newest checkpoint has all its steps.
    Saved { bytes: u64 },
    /// It had taken no step, or it has ended.
    NothingToSave,
    /// Its newest checkpoint lacks some of its steps.
    Lost {
        /// The step of that checkpoint; `None` if this run has none yet.
        newest: Option<u64>,
    },
}

impl Stopped {
    /// What the job has saved by now, which is logged.
    fn now(active: &ActiveJob, began: Instant) -> Self {
        let record = active.recorder.record();
        let checkpoint = active.control.vitals().checkpoint().map(|checkpoint| checkpoint.step);
        let stopped =
            Self::of(&record, checkpoint.map(|step| (step, active.control.vitals().checkpoint_bytes())));
        let JobRecord { id, state, progress, checkpoint, .. } = record;
        let path = checkpoint.map_or_else(|| "none".to_owned(), |directory| directory.to_string());
        let step = progress.step;
        let seconds = began.elapsed().as_secs_f64();
        match stopped {
            Self::Saved { bytes } => tracing::info!(
                job = id,
                step,
                checkpoint = path,
                "stopped after {seconds:.1} s: step {step} is saved, {}",
                Size(bytes)
            ),
            Self::NothingToSave => tracing::info!(job = id, step, checkpoint = path, "stopped: {state}"),
            Self::Lost { newest } => {
                let place = newest.map_or_else(|| "its start".to_owned(), |newest| format!("step {newest}"));
                tracing::warn!(
                    job = id,
                    step,
                    checkpoint = path,
                    "step {step} is not saved after {seconds:.1} s; the job will resume from {place}"
                );
            }
        }
        stopped
    }

    /// The outcome of a job with this record. `newest` is the step and the size of the checkpoint that this daemon has seen it
    /// write or resume from.
    fn of(record: &JobRecord, newest: Option<(u64, u64)>) -> Self {
        let JobRecord { state, progress, checkpoint, .. } = record;
        match (state, newest) {
            (JobState::Queued | JobState::Running, Some((newest, bytes))) if newest >= progress.step => {
                Self::Saved { bytes }
            }
            (JobState::Queued | JobState::Running, Some((newest, _))) => Self::Lost { newest: Some(newest) },
            // With a checkpoint, its steps are those of an earlier daemon: it has not trained since.
            (JobState::Queued | JobState::Running, None) if progress.step > 0 && checkpoint.is_none() => {
                Self::Lost { newest: None }
            }
            _ => Self::NothingToSave,
        }
    }
}

/// What all jobs saved.
struct Summary {
    saved: usize,
    lost: usize,
    bytes: u64,
    took: Duration,
}

impl Summary {
    /// `None` if no job had anything to save.
    fn of(jobs: &[Stopped], took: Duration) -> Option<Self> {
        let mut summary = Self { saved: 0, lost: 0, bytes: 0, took };
        for job in jobs {
            match *job {
                Stopped::Saved { bytes } => {
                    summary.saved += 1;
                    summary.bytes += bytes;
                }
                Stopped::Lost { .. } => summary.lost += 1,
                Stopped::NothingToSave => {}
            }
        }
        (summary.saved + summary.lost > 0).then_some(summary)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { saved, lost, bytes, took } = *self;
        let jobs = Count((saved + lost) as u64, "job");
        write!(f, "saved {saved} of {jobs}, {} in {:.1} s", Size(bytes), took.as_secs_f64())?;
        if lost > 0 {
            write!(f, "; the others resume from earlier checkpoints: raise `stop_seconds` to save them too")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use millstream_io::storage::Directory;

    use super::*;
    use crate::state::Store;
    use crate::supervisor::{Control, JobRecorder};

    /// Running jobs.
    fn running(ids: [&str; 4]) -> [Stopping; 4] {
        let store = Arc::new(Store::open_in_memory().unwrap());
        ids.map(|id| {
            let mut record = JobRecord::new(id, id, Directory::local("/checkpoints"));
            record.enter(JobState::Running, "");
            let recorder = Arc::new(JobRecorder::new(Arc::clone(&store), record, Arc::default()));
            Stopping::new(ActiveJob { recorder, control: Control::new().0 })
        })
    }

    fn asked(jobs: &[Stopping]) -> Vec<bool> {
        jobs.iter().map(|job| job.active.control.stop_requested().is_some()).collect()
    }

    #[tokio::test]
    async fn few_jobs_save_at_a_time_and_in_turn() {
        let jobs = running(["a", "b", "c", "d"]);
        let workers = async {
            for (ends, then) in [(1, 3), (2, 4)] {
                tokio::task::yield_now().await;
                assert_eq!(asked(&jobs).iter().filter(|&&asked| asked).count(), then - 1);
                jobs[ends].active.recorder.enter(JobState::Queued, "");
                while asked(&jobs).iter().filter(|&&asked| asked).count() < then {
                    tokio::task::yield_now().await;
                }
                assert!(asked(&jobs[..then]).iter().all(|&asked| asked), "in the given order");
            }
            for last in [0, 3] {
                jobs[last].active.recorder.enter(JobState::Queued, "");
            }
        };
        futures::join!(stop_in_turn(&jobs, Instant::now(), Duration::from_secs(3600)), workers);
    }

    #[tokio::test]
    async fn no_job_waits_for_one_that_does_not_answer() {
        let jobs = running(["a", "b", "c", "d"]);
        let workers = async {
            while asked(&jobs) != [true; 4] {
                tokio::task::yield_now().await;
            }
            jobs.iter().for_each(|job| job.active.recorder.enter(JobState::Queued, ""));
        };
        futures::join!(stop_in_turn(&jobs, Instant::now(), Duration::from_millis(10)), workers);
    }

    #[test]
    fn a_job_is_saved_if_its_newest_checkpoint_has_its_last_step() {
        let mut record = JobRecord::new("a-1", "a", Directory::local("/checkpoints/a-1"));
        record.checkpoint = Some(Directory::local("/checkpoints/a-1/step-0000000020"));
        let at = |state, step, newest: Option<u64>| {
            let mut record = record.clone();
            record.enter(state, "");
            record.progress.step = step;
            Stopped::of(&record, newest.map(|step| (step, 1024)))
        };
        assert_eq!(at(JobState::Queued, 20, Some(20)), Stopped::Saved { bytes: 1024 });
        assert_eq!(at(JobState::Queued, 20, Some(15)), Stopped::Lost { newest: Some(15) });
        assert_eq!(at(JobState::Running, 20, Some(15)), Stopped::Lost { newest: Some(15) });
        assert_eq!(at(JobState::Queued, 20, None), Stopped::NothingToSave, "not trained by this daemon");
        assert_eq!(at(JobState::Preparing, 20, None), Stopped::NothingToSave);
        assert_eq!(at(JobState::Succeeded, 20, Some(15)), Stopped::NothingToSave);
        record.progress.step = 20;
        record.checkpoint = None;
        assert_eq!(Stopped::of(&record, None), Stopped::Lost { newest: None });
    }

    #[test]
    fn the_summary_counts_jobs_with_something_to_save() {
        let took = Duration::from_millis(1500);
        let text = |jobs: &[Stopped]| Summary::of(jobs, took).map(|summary| summary.to_string());
        assert_eq!(text(&[Stopped::NothingToSave]), None);
        let saved = Stopped::Saved { bytes: 1 << 20 };
        assert_eq!(
            text(&[saved, Stopped::NothingToSave, saved]).unwrap(),
            format!("saved 2 of 2 jobs, {} in 1.5 s", Size(2 << 20))
        );
        let part = text(&[saved, Stopped::Lost { newest: None }]).unwrap();
        assert!(part.starts_with("saved 1 of 2 jobs") && part.contains("`stop_seconds`"), "{part}");
    }
}
