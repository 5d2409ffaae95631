//! The thread of a search: submits trials, watches their evaluations, stops the bad ones.
//!
//! It waits for its trials and for requests to stop, never for the host. All that it decides follows from the recorded
//! trials and from the evaluations in their histories, so a search that is driven again after a crash continues the same
//! way. Evaluations that a resumed trial repeats are ignored.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures::future::{join_all, select_all};
use millstream_batch::Count;
use millstream_control::proto::{JobProgress, JobState};
use millstream_job::Job;
use millstream_trainer::metrics::Metrics;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::Level;

use super::Daemon;
use crate::access::Requester;
use crate::queue::ActiveJob;
use crate::runs::{self, Lease, RunDirectory, Storage, Times};
use crate::search::{Outcome, Search, SearchRecord, TrialJob};
use crate::state::JobRecord;
use crate::supervisor::{JobRecorder, StopReason};

/// Interval between attempts to submit a trial that the queue had no room for, and between looks at a paused trial.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Interval between updates of the search's progress.
const SHOW_INTERVAL: Duration = Duration::from_secs(1);

/// A search's thread. Dropped when it ends, even in a panic.
pub(super) struct SearchThread {
    pub(super) daemon: Daemon,
    pub(super) active: ActiveJob,
}

impl SearchThread {
    pub(super) fn run(self, job: (Job, Requester), is_revived: bool) {
        // Until the search is in the queue, and all jobs of an earlier daemon are.
        drop(self.daemon.shared.membership());
        let driver = Driver::new(self.daemon.clone(), self.active.clone(), job);
        let ended = driver.and_then(|driver| match driver {
            Some(mut driver) => driver.run(is_revived),
            None => Ok(state_after(self.active.control.stop_requested().unwrap_or(StopReason::Drain))),
        });
        let (state, reason) = match ended {
            Ok(end) => end,
            Err(error) => (JobState::Failed, format!("{error:#}")),
        };
        self.active.recorder.enter(state, &reason);
    }
}

/// The state of a search that was stopped, and the reason.
fn state_after(why: StopReason) -> (JobState, String) {
    let (state, reason) = match why {
        StopReason::Drain => (JobState::Queued, "the daemon stopped; the search resumes when it restarts"),
        StopReason::Pause => (JobState::Paused, "paused by a user"),
        StopReason::Search | StopReason::Cancel => (JobState::Cancelled, "cancelled by a user"),
    };
    (state, reason.to_owned())
}

impl Drop for SearchThread {
    fn drop(&mut self) {
        let recorder = &self.active.recorder;
        if std::thread::panicking() {
            recorder.enter(JobState::Failed, "internal error in the daemon; see its log");
        }
        let mut jobs = self.daemon.shared.jobs();
        jobs.searches.retain(|other| other.recorder.id() != recorder.id());
        self.daemon.shared.running.send_replace(jobs.under_way());
        self.daemon.shared.thread_ended.notify_all();
        if !recorder.is_stored() {
            self.daemon.keep_unstored(&self.active, &mut jobs);
        }
    }
}

/// Drives one search.
struct Driver {
    daemon: Daemon,
    active: ActiveJob,
    /// The run directory of the search, and its lease in a bucket.
    directory: RunDirectory,
    lease: HeldLease,
    job: Job,
    requester: Requester,
    search: Search,
    jobs: Vec<TrialJob>,
    /// The trials whose jobs have not ended, also those that are being stopped.
    live: Vec<Live>,
    /// When the search's progress was last shown.
    shown: Option<Instant>,
    /// Whether it was reported that the record cannot be written.
    store_warned: bool,
}

/// The lease of a search in a bucket, which is released when it is dropped.
struct HeldLease {
    lease: Option<Arc<Lease>>,
    runtime: Handle,
}

impl HeldLease {
    /// Why the search is no longer this daemon's, if that is known.
    fn lost(&self) -> Option<&str> {
        self.lease.as_ref()?.lost()
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.runtime.block_on(lease.release());
        }
    }
}

/// A trial whose job has not ended.
struct Live {
    number: usize,
    /// `None` while the job is paused.
    record: Option<watch::Receiver<JobRecord>>,
    /// The last evaluation seen.
    eval: Vec<Metrics>,
}

impl Driver {
    /// The driver of a search; `None` if it is stopped while another daemon may have it.
    fn new(daemon: Daemon, active: ActiveJob, (job, requester): (Job, Requester)) -> Result<Option<Self>> {
        let Some(spec) = &job.search else { bail!("the job has no [search]") };
        let directory = active.recorder.record().directory;
        let directory = RunDirectory::new(directory, &daemon.storage(&job.storage));
        let lease = match directory.storage() {
            None => None,
            Some(storage) => match Self::take_lease(&active, &directory, storage)? {
                Some(lease) => Some(lease),
                None => return Ok(None),
            },
        };
        let lease = HeldLease { lease, runtime: daemon.shared.runtime.clone() };
        let directory = directory.under_lease(lease.lease.clone());
        let (search, jobs) = SearchRecord::read(&directory)?.rebuild(spec)?;
        let (live, shown, store_warned) = (Vec::new(), None, false);
        Ok(Some(Self {
            daemon,
            active,
            directory,
            lease,
            job,
            requester,
            search,
            jobs,
            live,
            shown,
            store_warned,
        }))
    }

    /// The lease of a search in a bucket, which another daemon may have; `None` if the search is stopped meanwhile.
    fn take_lease(
        active: &ActiveJob,
        directory: &RunDirectory,
        storage: &Storage,
    ) -> Result<Option<Arc<Lease>>> {
        let wait = |reason: &str| active.recorder.log(Level::INFO, reason);
        let control = Arc::clone(&active.control);
        // Wakes the thread, which finds that it has lost the lease.
        let lost = move |_| control.stop(StopReason::Drain);
        let times = Times::ONE_HOST;
        let taken = Lease::take((directory.address(), storage), times, wait, lost);
        storage.runtime.block_on(async {
            tokio::select! {
                taken = taken => taken.map(|lease| Some(Arc::new(lease))),
                () = active.control.stopped() => Ok(None),
            }
        })
    }

    fn recorder(&self) -> &Arc<JobRecorder> {
        &self.active.recorder
    }

    /// Runs the search until it is over or stopped. Returns its state and the reason.
    fn run(&mut self, is_revived: bool) -> Result<(JobState, String)> {
        self.recorder().enter(JobState::Running, "");
        // A search does nothing that could end the daemon; its trials are counted themselves.
        self.recorder().update(|record| record.daemon_deaths = 0);
        self.store()?;
        self.take_up_all(is_revived)?;
        loop {
            if let Some(reason) = self.lease.lost() {
                bail!("{reason}");
            }
            if let Some(why) = self.active.control.stop_requested() {
                return self.stop(why);
            }
            let has_news = self.observe_all()?;
            let mut must_retry = self.start_trials()?;
            if self.search.is_over() && self.live.is_empty() {
                if self.store_if_possible()? {
                    return Ok(self.finish());
                }
                must_retry = true;
            }
            self.show(has_news);
            self.wait(must_retry);
        }
    }

    /// Watches the jobs of the recorded trials that have not ended.
    fn take_up_all(&mut self, is_revived: bool) -> Result<()> {
        for number in 0..self.jobs.len() {
            let outcome = self.search.trials()[number].outcome;
            if outcome.is_none() {
                self.take_up(number, is_revived)?;
            } else if outcome == Some(Outcome::Stopped)
                && let Some(id) = self.jobs[number].id.clone()
                && let Some(record) = self.daemon.trial_now(&id, self.directory.address())?
                && !record.state.is_final()
            {
                // The daemon died between the decision and the end of the job.
                self.watch(number)?;
                self.stop_trial(&id);
            }
        }
        self.store()
    }

    fn take_up(&mut self, number: usize, is_revived: bool) -> Result<()> {
        if self.jobs[number].id.is_none() {
            let name = self.search.spec().trial_name(&self.job.name, number as u32);
            self.jobs[number].id = self.daemon.unrecorded_trial(&self.recorder().record(), &name)?;
        }
        let Some(id) = self.jobs[number].id.clone() else { return self.submit(number, None) };
        match self.daemon.trial_now(&id, self.directory.address())? {
            Some(record) => {
                let is_stopped = record.state == JobState::Cancelled || record.state.awaits_user();
                if is_revived && is_stopped {
                    self.daemon.resume_now(&id)?;
                }
                self.watch(number)
            }
            None => {
                // The process that had its record has ended.
                let directory = self.directory.join(&id);
                let exists = directory.has(runs::JOB)?;
                self.submit(number, exists.then_some(runs::Run { id, directory }))
            }
        }
    }

    /// Starts as many trials as may be. Returns whether one has to wait for room in the queue.
    fn start_trials(&mut self) -> Result<bool> {
        loop {
            if self.active.control.stop_requested().is_some() {
                return Ok(false);
            }
            let record = self.recorder().record();
            if self.search.may_start() && self.daemon.check_room(record.owner.as_ref()).is_err() {
                return Ok(true);
            }
            let Some(number) = self.search.start() else { return Ok(false) };
            self.jobs.push(TrialJob::default());
            // No job of an unrecorded trial is submitted.
            if !self.store_if_possible()? {
                self.jobs.pop();
                self.search.withdraw_last();
                return Ok(true);
            }
            self.submit(number, None)?;
        }
    }

    /// Submits the job of a trial. One that is refused has failed.
    fn submit(&mut self, number: usize, run: Option<runs::Run>) -> Result<()> {
        let values = self.search.trials()[number].parameters.clone();
        let search = self.recorder().record();
        let submitted =
            self.daemon.submit_trial((&self.job, &search), (number, &values), run, &self.requester);
        match submitted {
            Ok(record) => {
                self.jobs[number].id = Some(record.id);
                self.watch(number)?;
            }
            Err(error) => {
                let name = self.search.spec().trial_name(&self.job.name, number as u32);
                self.recorder().log(Level::WARN, &format!("{name} cannot start: {error:#}"));
                self.jobs[number].reason = format!("{error:#}");
                self.search.end(number, Outcome::Failed);
            }
        }
        self.store_if_possible().map(drop)
    }

    fn watch(&mut self, number: usize) -> Result<()> {
        let Some(id) = &self.jobs[number].id else { return Ok(()) };
        let mut record = self.daemon.watch(id)?;
        record.mark_changed();
        self.live.push(Live { number, record: Some(record), eval: Vec::new() });
        Ok(())
    }

    /// Looks at the trials that have changed. Returns whether one was evaluated or ended.
    fn observe_all(&mut self) -> Result<bool> {
        let mut has_news = false;
        for mut live in std::mem::take(&mut self.live) {
            let is_over = self.observe(&mut live, &mut has_news)?;
            if !is_over {
                self.live.push(live);
            }
        }
        if has_news {
            self.store_if_possible()?;
        }
        Ok(has_news)
    }

    /// Looks at a trial, and returns whether its job has ended.
    fn observe(&mut self, live: &mut Live, has_news: &mut bool) -> Result<bool> {
        let number = live.number;
        let Some(id) = self.jobs[number].id.clone() else { return Ok(true) };
        if live.record.is_none() {
            live.record = Some(self.daemon.watch(&id)?);
        }
        let Some(watched) = &mut live.record else { return Ok(true) };
        let record = watched.borrow_and_update().clone();
        self.jobs[number].update(&record);
        let ended = match record.state {
            JobState::Succeeded => Some(Outcome::Finished),
            JobState::Failed | JobState::Held => Some(Outcome::Failed),
            JobState::Cancelled => Some(Outcome::Cancelled),
            // Its watch is closed, and it has another one when it is resumed.
            JobState::Paused => {
                live.record = None;
                None
            }
            _ => None,
        };
        if ended.is_some() || record.eval != live.eval {
            *has_news = true;
            let is_stopped = self.observe_evaluations(number, &id, &record)?;
            live.eval = record.eval;
            if is_stopped && ended.is_none() {
                self.search.end(number, Outcome::Stopped);
                self.store_if_possible()?;
                self.stop_trial(&id);
            }
        }
        match ended {
            // As the search decided.
            Some(Outcome::Cancelled) if self.search.trials()[number].outcome.is_some() => {}
            Some(Outcome::Cancelled) if self.active.control.stop_requested().is_some() => {}
            Some(outcome) => self.search.end(number, outcome),
            None => {}
        }
        Ok(ended.is_some())
    }

    /// Passes to the search the evaluations of a trial that it has not seen. Returns whether the trial has to stop.
    fn observe_evaluations(&mut self, number: usize, id: &str, record: &JobRecord) -> Result<bool> {
        let spec = self.search.spec();
        let Some(metrics) = record.eval.get(spec.label as usize) else { return Ok(false) };
        let name = match metrics.label.as_str() {
            "" => spec.metric.name().to_owned(),
            label => format!("{label}/{}", spec.metric.name()),
        };
        let trial = spec.trial_name(&self.job.name, number as u32);
        let known = self.jobs[number].evaluated_step;
        let evaluations = self.daemon.shared.store.history(id)?.evaluations;
        for evaluation in evaluations.iter().filter(|evaluation| evaluation.step > known) {
            let value = evaluation.metrics.iter().find(|metric| metric.name == name);
            let nth = self.search.trials()[number].evaluations + 1;
            self.jobs[number].evaluated_step = evaluation.step;
            let standing = self.search.observe(number, nth, value.map(|metric| metric.value));
            let Some(standing) = standing else { continue };
            let does = if standing.continues { "continues" } else { "stops" };
            let text =
                format!("{trial} {does} after evaluation {nth}: place {} of {}", standing.place, standing.of);
            self.recorder().log(Level::INFO, &text);
            if !standing.continues {
                self.jobs[number].reason = format!("place {} of {}", standing.place, standing.of);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Stops the job of a trial after a checkpoint, without waiting for its end.
    fn stop_trial(&self, id: &str) {
        let (daemon, id) = (self.daemon.clone(), id.to_owned());
        self.daemon.shared.runtime.spawn(async move {
            if let Err(error) = daemon.stop(&id, StopReason::Search).await {
                tracing::warn!(job = id, "the search cannot stop it: {error:#}");
            }
        });
    }

    /// Waits until a trial changes or the search has to stop.
    fn wait(&mut self, must_retry: bool) {
        let control = Arc::clone(&self.active.control);
        let must_look = must_retry || self.live.iter().any(|live| live.record.is_none());
        let changes = self.live.iter_mut().filter_map(|live| live.record.as_mut());
        let changes: Vec<_> = changes.map(|record| Box::pin(record.changed())).collect();
        self.daemon.shared.runtime.block_on(async move {
            let changed = async {
                if changes.is_empty() {
                    std::future::pending::<()>().await;
                } else {
                    drop(select_all(changes).await);
                }
            };
            tokio::select! {
                () = changed => {}
                () = control.stopped() => {}
                () = tokio::time::sleep(RETRY_INTERVAL), if must_look => {}
            }
        });
    }

    /// Stops the search, and its trials unless they stop with the daemon.
    fn stop(&mut self, why: StopReason) -> Result<(JobState, String)> {
        if why == StopReason::Drain {
            return Ok(state_after(why));
        }
        let ids: Vec<_> = self.live.iter().filter_map(|live| self.jobs[live.number].id.clone()).collect();
        let stopped = join_all(ids.iter().map(|id| self.daemon.stop(id, why)));
        for stopped in self.daemon.shared.runtime.block_on(stopped) {
            if let Err(error) = stopped {
                self.recorder().log(Level::WARN, &format!("a trial cannot be stopped: {error:#}"));
            }
        }
        self.observe_all()?;
        self.store_if_possible()?;
        self.show(true);
        Ok(state_after(why))
    }

    /// The end of a search whose trials have ended.
    fn finish(&mut self) -> (JobState, String) {
        self.show(true);
        if self.search.best().is_some() {
            return (JobState::Succeeded, self.summary());
        }
        let why = self.jobs.iter().map(|job| job.reason.as_str()).find(|reason| !reason.is_empty());
        let why = why.map(|why| format!("; the first failed: {why}")).unwrap_or_default();
        (JobState::Failed, format!("no trial has a value of the metric{why}"))
    }

    /// Shows the search's progress: that of all trials, and the best trial's metrics.
    fn show(&mut self, has_news: bool) {
        let is_due = self.shown.is_none_or(|shown| shown.elapsed() >= SHOW_INTERVAL);
        if !has_news && !is_due {
            return;
        }
        self.shown = Some(Instant::now());
        let best = self.search.best().and_then(|best| self.jobs[best].id.clone());
        let eval = best
            .and_then(|id| self.daemon.trial_now(&id, self.directory.address()).ok().flatten())
            .map(|record| record.eval);
        let progress = JobProgress {
            step: self.jobs.iter().map(|job| job.steps).sum(),
            examples: self.jobs.iter().map(|job| job.examples).sum(),
            ..JobProgress::default()
        };
        let summary = self.summary();
        self.recorder().update(|record| {
            record.progress = progress;
            record.eval = eval.unwrap_or_default();
            record.reason = summary;
        });
    }

    /// `12 of 30 trials have ended, 8 of them early; the best is census-t03 with auc 0.9123`.
    fn summary(&self) -> String {
        let trials = self.search.trials();
        let ended = trials.iter().filter(|trial| trial.outcome.is_some()).count();
        let early = trials.iter().filter(|trial| trial.outcome == Some(Outcome::Stopped)).count();
        let spec = self.search.spec();
        let all = Count(u64::from(spec.trials), "trial");
        let best = self.search.best().map(|best| {
            let name = spec.trial_name(&self.job.name, best as u32);
            let value = trials[best].value.unwrap_or(f64::NAN);
            format!("; the best is {name} with {} {value:.4}", spec.metric.name())
        });
        format!("{ended} of {all} have ended, {early} of them early{}", best.unwrap_or_default())
    }

    fn store(&self) -> Result<()> {
        SearchRecord::write(&self.directory, &self.search, &self.jobs)
    }

    /// Writes the record. Returns false if the bucket fails for now: the search goes on, and writes it later.
    fn store_if_possible(&mut self) -> Result<bool> {
        let Err(error) = self.store() else {
            self.store_warned = false;
            return Ok(true);
        };
        if self.lease.lease.is_none() || self.lease.lost().is_some() {
            return Err(error);
        }
        if !std::mem::replace(&mut self.store_warned, true) {
            self.recorder().log(Level::WARN, &format!("the search is not recorded yet: {error:#}"));
        }
        Ok(false)
    }
}
