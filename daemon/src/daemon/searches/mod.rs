//! Searches: jobs that run other jobs, their trials.
//!
//! A search has the record of a job, so it is listed, watched, cancelled, paused and resumed as one, but it demands nothing
//! of the host and is not in the scheduler's queue: a thread ([`driver`]) submits its trials. These are ordinary jobs, so
//! quotas, priorities, memory and crashes of workers are handled as for any other. Their run directories are below that of
//! the search.
//!
//! A trial that the search stops is cancelled with that as its reason: its checkpoint stays, and a user may resume it.

mod driver;

use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use anyhow::{Context, Result, bail};
use millstream_control::proto::JobState;
use millstream_document::problems::Warning;
use millstream_io::storage::Directory;
use millstream_job::{Job, ParameterValue, SearchSpec};

use self::driver::SearchThread;
use super::Daemon;
use super::admission::{check_files, directory_setting};
use crate::access::Requester;
use crate::objects::is_plain_name;
use crate::queue::{ActiveJob, Jobs};
use crate::runs::RunDirectory;
use crate::search::{Outcome, Search, SearchRecord, TrialJob};
use crate::state::{JobRecord, JobSource};
use crate::supervisor::Control;
use crate::traces::Entry;
use crate::turns::Answers;
use crate::{own_access, runs};

/// The maximum number of searches that have not ended. Each has a thread.
const MAX_SEARCHES: usize = 64;

/// A search and its trials, as `millstream trials` shows them.
#[derive(Clone, Debug)]
pub(crate) struct Trials {
    /// The job of the search.
    pub(crate) record: JobRecord,
    /// Its specification.
    pub(crate) spec: SearchSpec,
    /// The name of the label that is compared; empty for a job with one unnamed label.
    pub(crate) label: String,
    /// The trials, by number.
    pub(crate) trials: Vec<ShownTrial>,
    /// The number of the best trial.
    pub(crate) best: Option<usize>,
    /// The job file of the best trial, if it was asked for.
    pub(crate) best_job: Option<String>,
}

/// A trial.
#[derive(Clone, Debug)]
pub(crate) struct ShownTrial {
    /// Its name, which is that of its job.
    pub(crate) name: String,
    /// `running`, `queued` and the like, or how it ended: `finished`, `stopped`, `failed`, `cancelled`.
    pub(crate) state: &'static str,
    /// The values of the parameters, as TOML.
    pub(crate) values: Vec<String>,
    /// The metric after the last evaluation that counts.
    pub(crate) value: Option<f64>,
    /// The number of evaluations.
    pub(crate) evaluations: u32,
    /// The number of rungs reached.
    pub(crate) rungs: usize,
    /// Its job.
    pub(crate) job: TrialJob,
}

impl Daemon {
    /// The trials of a search: `id` is that of the search, or of one of its trials.
    ///
    /// # Errors
    /// When there is no such search.
    pub(crate) async fn trials(&self, answers: &Answers, id: String, with_best_job: bool) -> Result<Trials> {
        let (record, job) = self.in_turn(answers, move |daemon| daemon.search_of(&id)).await?;
        if let Some(path) = record.directory.as_local().map(Path::to_owned) {
            let trials = move |daemon: &Self| {
                daemon.trials_in(&RunDirectory::local(&path), record, &job, with_best_job)
            };
            return self.in_turn(answers, trials).await;
        }
        let daemon = self.clone();
        self.look_into_bucket(&job.storage.clone(), move |storage| {
            let directory = RunDirectory::new(record.directory.clone(), storage);
            daemon.trials_in(&directory, record, &job, with_best_job)
        })
        .await
    }

    /// The job of a search and its job file: that of `id`, or of which it is a trial.
    fn search_of(&self, id: &str) -> Result<(JobRecord, Job)> {
        let record = self.show(id)?;
        let job = self.job_of(&record.id)?;
        if job.search.is_some() {
            return Ok((record, job));
        }
        // A trial's run directory is in that of its search.
        let parent = record.directory.parent();
        let search = parent.as_ref().and_then(|parent| {
            let search = self.shared.store.job(parent.name()?).ok()??;
            (search.directory == *parent).then_some(search)
        });
        if let Some(search) = search {
            let job = self.job_of(&search.id)?;
            if job.search.is_some() {
                return Ok((self.show(&search.id)?, job));
            }
        }
        bail!("job {} is not a search: its job file has no [search]", record.id)
    }

    /// The trials of the search `record` with this `job`, of which the run directory is given.
    fn trials_in(
        &self,
        directory: &RunDirectory,
        record: JobRecord,
        job: &Job,
        with_best_job: bool,
    ) -> Result<Trials> {
        let spec = job.search.as_ref().context("the job is not a search")?;
        let (search, jobs) = SearchRecord::read(directory)?.rebuild(spec)?;
        let best = search.best();
        let best_job = best.filter(|_| with_best_job).map(|best| {
            let name = spec.trial_name(&job.name, best as u32);
            job.trial_text(&search.trials()[best].parameters, &[format!("name={name}")])
        });
        let trials = (0..jobs.len()).map(|number| self.shown_trial(&record, &search, &jobs, number));
        let trials = trials.collect::<Result<_>>()?;
        let label = job.label.names().get(spec.label as usize).map(ToString::to_string).unwrap_or_default();
        Ok(Trials { label, trials, best, best_job, spec: spec.clone(), record })
    }

    fn shown_trial(
        &self,
        of: &JobRecord,
        search: &Search,
        jobs: &[TrialJob],
        number: usize,
    ) -> Result<ShownTrial> {
        let (trial, mut job) = (&search.trials()[number], jobs[number].clone());
        let mut state = match trial.outcome {
            Some(Outcome::Finished) => "finished",
            Some(Outcome::Stopped) => "stopped",
            Some(Outcome::Failed) => "failed",
            Some(Outcome::Cancelled) => "cancelled",
            None => "submitted",
        };
        let id = job.id.as_ref().filter(|_| trial.outcome.is_none());
        let of_job = id.map(|id| self.trial_now(id, &of.directory));
        if let Some(record) = of_job.transpose()?.flatten() {
            state = record.state.name();
            job.update(&record);
        }
        let values = search.spec().parameters.iter().zip(&trial.parameters);
        Ok(ShownTrial {
            name: search.spec().trial_name(&of.name, number as u32),
            state,
            values: values.map(|(parameter, &value)| parameter.text(value)).collect(),
            value: trial.value,
            evaluations: trial.evaluations,
            rungs: trial.rungs.len(),
            job,
        })
    }

    /// The record of a trial's job, if it exists. Whoever may write the run directory of a search can change its record, so
    /// it must not name other jobs.
    fn trial_now(&self, id: &str, search: &Directory) -> Result<Option<JobRecord>> {
        let record = match self.shared.active(id) {
            Some(active) => Some(active.recorder.record()),
            None => self.shared.store.job(id)?,
        };
        let is_foreign = |job: &JobRecord| job.directory.parent().as_ref() != Some(search);
        if record.as_ref().is_some_and(is_foreign) || !is_plain_name(id) {
            bail!("{} names `{id}`, which is not a trial of this search", search.join(runs::SEARCH));
        }
        Ok(record)
    }

    /// Starts the thread of a search, which begins once `membership` is free. If a user submits or resumes the search, its
    /// trials start again.
    pub(super) fn enqueue_search(
        &self,
        (job, requester): (Job, Requester),
        record: JobRecord,
        entry: Entry,
        check: impl FnOnce(&Self, &Jobs) -> Result<()>,
    ) -> Result<()> {
        if let (Some(spec), Some(path)) = (&job.search, record.directory.as_local()) {
            // That of a search in a bucket is read by its thread, because storage may be slow.
            SearchRecord::read(&RunDirectory::local(path))?.rebuild(spec)?;
        }
        let (control, _) = Control::new();
        let is_revived = entry != Entry::Restarted;
        let id = record.id.clone();
        let recorder = self.recorder(record);
        let active = ActiveJob { recorder, control };
        let mut jobs = self.shared.jobs();
        jobs.check_not_active(&id)?;
        // The thread of the search's last run still clears up.
        while jobs.has_thread(&id) {
            jobs = self.shared.thread_ended.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
        check(self, &jobs)?;
        if is_revived && jobs.searches.len() >= MAX_SEARCHES {
            bail!("{MAX_SEARCHES} searches have not ended; wait for one, or cancel it");
        }
        jobs.unstored.retain(|ended| ended.recorder.id() != id);
        self.shared.outcomes.released(&id);
        let thread = SearchThread { daemon: self.clone(), active: active.clone() };
        // The thread's first access to `jobs` waits until this lock is released.
        self.shared
            .launcher
            .spawn(format!("search {id}"), move || thread.run((job, requester), is_revived))
            .context("cannot start the thread of the search")?;
        active.recorder.accepted(entry);
        jobs.searches.push(active);
        self.shared.running.send_replace(jobs.under_way());
        Ok(())
    }

    /// Submits the job of a trial: a new one, or the one that has this run.
    fn submit_trial(
        &self,
        (search, record): (&Job, &JobRecord),
        (number, values): (usize, &[ParameterValue]),
        run: Option<runs::Run>,
        requester: &Requester,
    ) -> Result<JobRecord> {
        let name = search.search.as_ref().map(|spec| spec.trial_name(&search.name, number as u32));
        let name = format!("name={}", name.unwrap_or_default());
        let text = search.trial_text(values, &[name, directory_setting(&record.directory)]);
        let path = PathBuf::from(&record.name).with_extension("toml");
        let (job, warnings) = Job::parse_with(&text, &path, &[], &|file| requester.open(file))?;
        // The directory of the search is the daemon's; the requester's was checked.
        check_files(&Job { checkpoint: search.checkpoint.clone(), ..job.clone() }, requester)?;
        own_access::check_data(&job.data)?;
        let is_new = run.is_none();
        let storage = self.storage(&job.storage);
        let run = run.map_or_else(|| runs::new(&job, &storage), Ok)?;
        let directory = run.directory.clone();
        let source = JobSource { text: job.text.clone(), path, requester: requester.clone() };
        let notes: Vec<String> = warnings.iter().map(Warning::to_string).collect();
        let entry = if is_new { Entry::Submitted } else { Entry::Resumed };
        let queue = (record.owner.clone(), record.priority);
        let accepted = self.admit(job, run, queue, &source, (entry, &notes));
        if accepted.is_err() && is_new {
            runs::discard(&directory)?;
        }
        accepted
    }

    /// The job that was submitted for a trial without the search having recorded it.
    fn unrecorded_trial(&self, search: &JobRecord, name: &str) -> Result<Option<String>> {
        let (jobs, _) = self.shared.store.jobs(&crate::state::JobFilter::default())?;
        let is_it =
            |job: &&JobRecord| job.name == name && job.directory.parent().as_ref() == Some(&search.directory);
        Ok(jobs.iter().find(is_it).map(|job| job.id.clone()))
    }

    /// Cancels the trials of a search that are paused or held; they have no thread. Other jobs have none.
    pub(super) fn cancel_stopped_trials(&self, search: &JobRecord) -> Result<()> {
        let (jobs, _) = self.shared.store.jobs(&crate::state::JobFilter::default())?;
        let trials = jobs.iter().filter(|job| job.directory.parent().as_ref() == Some(&search.directory));
        trials
            .filter(|job| job.state.awaits_user())
            .try_for_each(|job| self.cancel_stopped(&job.id).map(drop))
    }
}

impl TrialJob {
    /// Takes over the progress of the job.
    fn update(&mut self, record: &JobRecord) {
        self.steps = record.progress.step;
        self.examples = record.progress.examples;
        let ended_ms = record.ended_ms.unwrap_or_else(crate::state::now_ms);
        self.seconds =
            record.started_ms.map_or(0.0, |started| ended_ms.saturating_sub(started) as f64 / 1000.0);
        if matches!(record.state, JobState::Failed | JobState::Held) {
            self.reason.clone_from(&record.reason);
        }
    }
}
