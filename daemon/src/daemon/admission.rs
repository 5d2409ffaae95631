//! How jobs enter the daemon: submitted, resumed, or left unfinished by an earlier daemon.

use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use millstream_batch::Count;
use millstream_control::proto::{JobState, SubmitRequest};
use millstream_document::problems::Warning;
use millstream_io::storage::Directory;
use millstream_job::Job;
use millstream_trainer::spec::DeviceSpec;
use tracing::Level;

use super::{Daemon, SubmitError, user_of};
use crate::access::Requester;
use crate::queue::{ActiveJob, Jobs, QueuedJob};
use crate::runs::{self, Rerun, Run, RunDirectory, Storage};
use crate::scheduler::Waiting;
use crate::state::{JobRecord, JobSource, Owner, now_ms};
use crate::supervisor::{Control, JobRecorder, NO_PEERS, Supervisor};
use crate::traces::Entry;
use crate::{datasets, devices, own_access, survey};

/// A job under way at this many abnormal ends of the daemon, without a new checkpoint in between, is held.
const MAX_DAEMON_DEATHS: u32 = 2;

/// The priorities of jobs.
const PRIORITIES: RangeInclusive<i32> = -1000..=1000;

/// Maximum size of a submitted job file. Parsing needs a few hundred times as much memory.
const MAX_JOB_FILE_BYTES: usize = 1 << 20;

/// Why a reducer refuses a job that it would decide wrongly on.
const REDUCER_DECIDES: &str = "`batch_size = \"auto\"` is chosen for the memory of the host that a job is submitted to, and this host only adds \
                               gradients (`workers.reducers`); submit the job to a host that trains";

impl Daemon {
    pub(super) fn submit_now(
        &self,
        request: SubmitRequest,
        requester: Requester,
        owner: Option<Owner>,
        storage: &Storage,
    ) -> Result<JobRecord, SubmitError> {
        let SubmitRequest { mut text, mut path, set, resume, priority, rerun } = request;
        if !PRIORITIES.contains(&priority) {
            let (least, most) = (PRIORITIES.start(), PRIORITIES.end());
            return Err(anyhow!("priority {priority} is out of range ({least} to {most})").into());
        }
        let earlier = match rerun.as_str() {
            "" => None,
            _ if resume => {
                return Err(anyhow!("a run that is repeated cannot be resumed at the same time").into());
            }
            directory => {
                let directory = Directory::parse(directory, Path::new("/")).map_err(anyhow::Error::from)?;
                let spec = self.storage_of_run(&directory)?.unwrap_or_default();
                Some(Rerun::of(directory, &requester, &storage.for_job(&spec))?)
            }
        };
        if let Some(earlier) = &earlier {
            text.clone_from(&earlier.text);
            path = earlier.path.to_string_lossy().into_owned();
        }
        let bytes = text.len() + set.iter().map(String::len).sum::<usize>();
        if bytes > MAX_JOB_FILE_BYTES {
            return Err(anyhow!(
                "{path}: the job file has {bytes} bytes, more than {MAX_JOB_FILE_BYTES}; put long vocabularies into files"
            )
            .into());
        }
        let path = PathBuf::from(path);
        let (job, warnings) = Job::parse_with(&text, &path, &set, &|file| requester.open(file))?;
        let shared = self.settings().shared_directories;
        let (job, moved) = match own_access::instead_of_default(&job, &shared) {
            Some(directory) => {
                let setting = directory_setting(&Directory::local(directory));
                let set: Vec<_> = set.iter().cloned().chain([setting]).collect();
                let (job, _) = Job::parse_with(&text, &path, &set, &|file| requester.open(file))?;
                (
                    job,
                    Some(format!(
                        "the daemon may not write beside the job file; checkpoints are in {}",
                        directory.display()
                    )),
                )
            }
            None => (job, None),
        };
        check_files(&job, &requester)?;
        own_access::check_data(&job.data)?;
        if job.workers.max.is_some() && self.peers().is_none() {
            return Err(anyhow!(NO_PEERS).into());
        }
        // A run that is resumed has its size.
        if self.reduces(&job) && job.auto_batch.is_some() && !resume {
            return Err(anyhow!(REDUCER_DECIDES).into());
        }
        // Again, before the run directory exists.
        self.check_room(owner.as_ref())?;
        let has_numbers = job.workers.devices.as_ref().is_none_or(|devices| devices.numbers().is_some());
        let devices = match self.reduces(&job) && has_numbers {
            true => Vec::new(),
            false => devices::setting(&job, || survey::sample_gpus(&self.shared.worker))?,
        };
        let storage = storage.for_job(&job.storage);
        let (run, mut pinned) = if resume {
            let run = runs::newest_unfinished(&job, &requester, &storage)?;
            let pinned = datasets::pin_as(&job, &runs::job_of(&run.directory, &requester)?);
            (Some(run), pinned)
        } else {
            (None, datasets::pin(&job, (&storage.stores, &requester), &self.shared.runtime)?)
        };
        pinned.extend(devices);
        let job = match pinned.is_empty() {
            true => job,
            false => Job::parse_with(&job.text, &path, &pinned, &|file| requester.open(file))?.0,
        };
        let run = run.map_or_else(|| runs::new(&job, &storage), Ok)?;
        // Also once the submission is cancelled.
        let directory = RunDirectory::new(run.directory.address().clone(), &self.storage(&job.storage));
        if let Some(Err(error)) = earlier.map(|earlier| earlier.prepare(&run.directory, &job)) {
            runs::discard(&directory)?;
            return Err(error.into());
        }
        let source = JobSource { text: job.text.clone(), path, requester };
        let notes: Vec<String> = warnings.iter().map(Warning::to_string).chain(moved).collect();
        let entry = if resume { Entry::Resumed } else { Entry::Submitted };
        let admitted = self.admit(job, run, (owner, priority), &source, (entry, &notes));
        if admitted.is_err() && !resume {
            runs::discard(&directory)?;
        }
        Ok(admitted?)
    }

    /// Stores and queues a job that has a run directory.
    pub(super) fn admit(
        &self,
        job: Job,
        run: Run,
        (owner, priority): (Option<Owner>, i32),
        source: &JobSource,
        entry: (Entry, &[String]),
    ) -> Result<JobRecord> {
        let before = self.shared.store.job(&run.id)?;
        if let Some(before) = &before {
            self.check_may_change(before, &source.requester)?;
        }
        let mut record = before
            .clone()
            .unwrap_or_else(|| JobRecord::new(&run.id, &job.name, run.directory.address().clone()));
        (record.owner, record.priority) = (owner, priority);
        record.daemon_deaths = 0;
        record.enter(JobState::Queued, "");
        self.accept(job, &record, before.as_ref(), source, entry)?;
        Ok(record)
    }

    pub(super) fn resume_now(&self, id: &str) -> Result<JobRecord> {
        let before = self.show(id)?;
        if !before.state.is_final() || before.state == JobState::Succeeded {
            bail!("job {} is {}; there is nothing to resume", before.id, before.state);
        }
        if before.directory.as_local().is_some_and(|directory| !directory.is_dir()) {
            bail!("job {}: its run directory {} is gone", before.id, before.directory);
        }
        let source = self.shared.store.source(&before.id)?;
        let (job, _) = Job::parse(&source.text, &source.path, &[])?;
        let mut record = before.clone();
        record.daemon_deaths = 0;
        record.enter(JobState::Queued, "resumed by a user");
        self.accept(job, &record, Some(&before), &source, (Entry::Resumed, &[]))?;
        Ok(record)
    }

    /// Cancels a job that is paused or held, and returns it. Others stay as they are.
    pub(super) fn cancel_stopped(&self, id: &str) -> Result<Option<JobRecord>> {
        let _membership = self.shared.membership();
        let record = self.shared.store.job(id)?;
        let stopped = record.filter(|job| job.state.awaits_user());
        let Some(mut record) = stopped else { return Ok(None) };
        record.enter(JobState::Cancelled, "cancelled by a user");
        self.shared.store.save_job(&record)?;
        self.shared.outcomes.released(&record.id);
        self.shared.outcomes.entered(&record.id, record.state);
        Ok(Some(record))
    }

    /// Stores and queues a job. If that fails, the store is as it was `before`.
    fn accept(
        &self,
        job: Job,
        record: &JobRecord,
        before: Option<&JobRecord>,
        source: &JobSource,
        (entry, notes): (Entry, &[String]),
    ) -> Result<()> {
        let store = &self.shared.store;
        let _membership = self.shared.membership();
        self.shared.jobs().check_not_active(&record.id)?;
        match before {
            Some(_) => store.save_job(record)?,
            None => store.insert_job(record, source)?,
        }
        let accepted = (|| {
            for note in notes {
                store.append_log(&record.id, now_ms(), Level::WARN, note)?;
            }
            let check = |daemon: &Self, jobs: &Jobs| daemon.check_room_in(jobs, record.owner.as_ref());
            if job.search.is_some() {
                let job = (job, source.requester.clone());
                self.enqueue_search(job, record.clone(), entry, check)?;
            } else {
                self.enqueue((job, source.requester.clone()), record.clone(), entry, check)?;
            }
            self.start_next();
            self.shared.jobs().explain_waits();
            Ok(())
        })();
        if accepted.is_err() {
            let undone = match before {
                Some(before) => store.save_job(before),
                None => store.remove_job(&record.id),
            };
            if let Err(error) = undone {
                tracing::error!(job = record.id, %error, "cannot undo the submission");
            }
        }
        accepted
    }

    /// Queues the unfinished jobs of an earlier daemon. A job that cannot be resumed never prevents another one.
    pub(super) fn requeue_unfinished(&self, same_boot: bool) -> Result<()> {
        // Searches begin when all their trials are queued.
        let _membership = self.shared.membership();
        for mut record in self.shared.store.unfinished()? {
            if let Err(error) = self.requeue(&mut record, same_boot) {
                tracing::error!(job = record.id, "cannot be resumed: {error:#}");
                record.enter(JobState::Failed, &format!("cannot be resumed: {error:#}"));
                self.shared.outcomes.entered(&record.id, record.state);
                self.shared.store.save_job(&record)?;
            }
        }
        self.start_next();
        self.shared.jobs().explain_waits();
        Ok(())
    }

    /// Queues an unfinished job, unless it was under way when the daemon died too often.
    fn requeue(&self, record: &mut JobRecord, same_boot: bool) -> Result<()> {
        let stage = match record.state {
            // A daemon that stops in order leaves its jobs queued.
            JobState::Queued => None,
            // The host restarted, as a preempted VM does: that is not the job's doing.
            _ if !same_boot => None,
            JobState::Preparing => Some("preparing"),
            _ => Some("running"),
        };
        record.daemon_deaths += u32::from(stage.is_some());
        if let Some(stage) = stage.filter(|_| record.daemon_deaths >= MAX_DAEMON_DEATHS) {
            let reason = format!(
                "held after the daemon died {} while {stage} it without a new checkpoint; `millstream resume \
                 {id}` tries again, `millstream remove {id}` deletes it",
                Count(record.daemon_deaths.into(), "time"),
                id = record.id
            );
            tracing::error!(job = record.id, "{reason}");
            record.enter(JobState::Held, &reason);
            self.shared.outcomes.entered(&record.id, record.state);
            self.shared.store.append_log(&record.id, now_ms(), Level::ERROR, &reason)?;
            return Ok(self.shared.store.save_job(record)?);
        }
        let source = self.shared.store.source(&record.id)?;
        let (job, _) = Job::parse(&source.text, &source.path, &[])?;
        tracing::info!(job = record.id, "resuming");
        record.enter(JobState::Queued, "resumed by a new daemon");
        self.shared.store.save_job(record)?;
        if job.search.is_some() {
            return self
                .enqueue_search((job, source.requester), record.clone(), Entry::Restarted, |_, _| Ok(()));
        }
        self.enqueue((job, source.requester), record.clone(), Entry::Restarted, |_, _| Ok(()))
    }

    /// Whether this host adds gradients for the workers of others in a job, and has none.
    fn reduces(&self, job: &Job) -> bool {
        self.shared.host_name.as_ref().is_some_and(|host| job.workers.reduces_on(host.as_str()))
    }

    /// The job as it runs on this host: a reducer needs no GPU, and has no workers but itself.
    pub(super) fn as_run_here(&self, mut job: Job) -> Job {
        if self.reduces(&job) {
            job.workers.per_host = 1;
            let training = &mut job.training;
            (training.device, training.gpus, training.workers) = (DeviceSpec::Cpu, Vec::new(), None);
        }
        job
    }

    /// Adds a job to the queue, if `check` accepts that. It does not start yet.
    fn enqueue(
        &self,
        (job, requester): (Job, Requester),
        record: JobRecord,
        entry: Entry,
        check: impl FnOnce(&Self, &Jobs) -> Result<()>,
    ) -> Result<()> {
        let (control, events) = Control::new();
        let recorder = self.recorder(record);
        let active = ActiveJob { recorder: Arc::clone(&recorder), control: Arc::clone(&control) };
        let supervisor = Supervisor::new(
            (self.as_run_here(job), requester),
            self.shared.worker.clone(),
            &self.shared.storage,
            recorder,
            (control, events),
            Arc::clone(&self.shared.peers),
        );
        let supervisor = supervisor.resumed(matches!(entry, Entry::Resumed));
        {
            let mut jobs = self.shared.jobs();
            jobs.check_not_active(active.recorder.id())?;
            // The thread of an ended job still clears up what has its id.
            while jobs.has_thread(active.recorder.id()) {
                jobs = self.shared.thread_ended.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            }
            check(self, &jobs)?;
            // Its last state is out of date.
            jobs.unstored.retain(|ended| ended.recorder.id() != active.recorder.id());
            self.shared.outcomes.released(active.recorder.id());
            let record = active.recorder.record();
            active.recorder.accepted(entry);
            let demand = supervisor.demand();
            jobs.scheduler.add(Waiting {
                id: record.id.clone(),
                user: user_of(record.owner.as_ref()),
                priority: record.priority,
                demand,
                is_prepared: false,
                is_suspect: active.is_suspect(),
                expected_seconds: record.progress.remaining_seconds(),
            });
            jobs.queued.insert(record.id, QueuedJob { active, supervisor });
        }
        Ok(())
    }

    /// The recorder of a job that enters the daemon.
    pub(super) fn recorder(&self, record: JobRecord) -> Arc<JobRecorder> {
        let trace = self.shared.traces.job(&record.id);
        let outcomes = Arc::clone(&self.shared.outcomes);
        Arc::new(JobRecorder::new(Arc::clone(&self.shared.store), record, outcomes).traced(trace))
    }

    /// An error if no further job of this owner may be queued.
    pub(super) fn check_room(&self, owner: Option<&Owner>) -> Result<()> {
        self.check_room_in(&self.shared.jobs(), owner)
    }

    fn check_room_in(&self, jobs: &Jobs, owner: Option<&Owner>) -> Result<()> {
        let limit = self.shared.settings.borrow().limits.max_queued_per_user;
        jobs.check_room(user_of(owner), limit.map(NonZeroUsize::get))
    }
}

/// The setting of a job's checkpoint directory.
pub(super) fn directory_setting(directory: &Directory) -> String {
    format!("checkpoint.directory={}", toml::Value::from(directory.text().as_ref()))
}

/// Checks that `requester` may write the directories and read the files that `job` names. Its data is checked when it is
/// listed.
pub(super) fn check_files(job: &Job, requester: &Requester) -> Result<()> {
    let written = [
        // The daemon writes buckets with its own credentials, for any user.
        ("checkpoint.directory", job.checkpoint.directory.as_local()),
        ("tensorboard.directory", job.tensorboard.as_ref().and_then(|spec| spec.directory.as_local())),
        ("data.cache.directory", job.data.cache.as_ref().map(|spec| spec.directory.as_path())),
    ];
    for (key, directory) in written {
        if let Some(directory) = directory {
            requester.check_write(directory).with_context(|| format!("`{key}`"))?;
        }
    }
    requester.check_storage(&job.storage)
}
