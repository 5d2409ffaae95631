//! How jobs enter the daemon and start: submitted, resumed, or left unfinished by an earlier daemon.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use millstream_batch::Count;
use millstream_control::proto::{JobState, SubmitRequest};
use millstream_job::{Job, Warning};
use tracing::Level;

use super::{Daemon, SubmitError};
use crate::access::Requester;
use crate::own_access;
use crate::queue::{ActiveJob, Jobs, QueuedJob};
use crate::runs;
use crate::state::{JobRecord, JobSource, now_ms};
use crate::supervisor::{Control, JobRecorder, Supervisor};

/// A job under way at this many abnormal ends of the daemon, without a new checkpoint in between, is held.
const MAX_DAEMON_DEATHS: u32 = 2;

/// Interval between attempts to store the last state of ended jobs, for example while the disk is full.
const STORE_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum size of a submitted job file. Parsing needs a few hundred times as much memory.
const MAX_JOB_FILE_BYTES: usize = 1 << 20;

impl Daemon {
    pub(super) fn submit_now(
        &self,
        request: SubmitRequest,
        requester: Requester,
    ) -> Result<JobRecord, SubmitError> {
        let SubmitRequest { text, path, set, resume } = request;
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
                let set: Vec<_> = set.iter().cloned().chain([directory_setting(directory)]).collect();
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
        // Again, before the run directory exists.
        self.shared.jobs().check_room()?;
        let run = if resume { runs::newest_unfinished(&job, &requester)? } else { runs::new(&job)? };
        let source = JobSource { text: job.text.clone(), path, requester };
        let before = self.shared.store.job(&run.id).map_err(anyhow::Error::from)?;
        let mut record =
            before.clone().unwrap_or_else(|| JobRecord::new(&run.id, &job.name, run.directory.clone()));
        record.daemon_deaths = 0;
        record.enter(JobState::Queued, "");
        let notes: Vec<String> = warnings.iter().map(Warning::to_string).chain(moved).collect();
        let accepted = self.accept(job, &record, before.as_ref(), &source, &notes);
        if accepted.is_err() && !resume {
            runs::discard(&run.directory)?;
        }
        accepted?;
        Ok(record)
    }

    pub(super) fn resume_now(&self, id: &str) -> Result<JobRecord> {
        let before = self.show(id)?;
        if !before.state.is_final() || before.state == JobState::Succeeded {
            bail!("job {} is {}; there is nothing to resume", before.id, before.state);
        }
        if !before.directory.is_dir() {
            bail!("job {}: its run directory {} is gone", before.id, before.directory.display());
        }
        let source = self.shared.store.source(&before.id)?;
        let (job, _) = Job::parse(&source.text, &source.path, &[])?;
        let mut record = before.clone();
        record.daemon_deaths = 0;
        record.enter(JobState::Queued, "resumed by a user");
        self.accept(job, &record, Some(&before), &source, &[])?;
        Ok(record)
    }

    /// Stores and queues a job. If that fails, the store is as it was `before`.
    fn accept(
        &self,
        job: Job,
        record: &JobRecord,
        before: Option<&JobRecord>,
        source: &JobSource,
        notes: &[String],
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
            self.enqueue(job, record.clone(), source.requester.clone(), Jobs::check_room)
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
        for mut record in self.shared.store.unfinished()? {
            if let Err(error) = self.requeue(&mut record, same_boot) {
                tracing::error!(job = record.id, "cannot be resumed: {error:#}");
                record.enter(JobState::Failed, &format!("cannot be resumed: {error:#}"));
                self.shared.store.save_job(&record)?;
            }
        }
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
            self.shared.store.append_log(&record.id, now_ms(), Level::ERROR, &reason)?;
            return Ok(self.shared.store.save_job(record)?);
        }
        let source = self.shared.store.source(&record.id)?;
        let (job, _) = Job::parse(&source.text, &source.path, &[])?;
        tracing::info!(job = record.id, "resuming");
        record.enter(JobState::Queued, "resumed by a new daemon");
        self.shared.store.save_job(record)?;
        self.enqueue(job, record.clone(), source.requester, |_| Ok(()))
    }

    /// Appends a job to the queue, if `check` accepts that.
    fn enqueue(
        &self,
        job: Job,
        record: JobRecord,
        requester: Requester,
        check: fn(&Jobs) -> Result<()>,
    ) -> Result<()> {
        let (control, events) = Control::new();
        let recorder = Arc::new(JobRecorder::new(Arc::clone(&self.shared.store), record));
        let active = ActiveJob { recorder: Arc::clone(&recorder), control: Arc::clone(&control) };
        let supervisor = Supervisor::new(
            (job, requester),
            self.shared.worker.clone(),
            self.shared.runtime.clone(),
            &self.shared.stores,
            recorder,
            (control, events),
        );
        {
            let mut jobs = self.shared.jobs();
            jobs.check_not_active(active.recorder.id())?;
            check(&jobs)?;
            // Its last state is out of date.
            jobs.unstored.retain(|ended| ended.recorder.id() != active.recorder.id());
            jobs.queued.push_back(QueuedJob { active, supervisor });
        }
        self.start_next();
        Ok(())
    }

    /// Starts queued jobs while fewer than `max_jobs` are running.
    pub(super) fn start_next(&self) {
        let mut not_started = Vec::new();
        let max_jobs = self.settings().max_jobs.get();
        let mut jobs = self.shared.jobs();
        while jobs.running.len() < max_jobs && !jobs.draining {
            let Some(QueuedJob { active, supervisor }) = jobs.pop_startable() else { break };
            if active.is_suspect() {
                self.start_next_once_cleared(&active);
            }
            let daemon = self.clone();
            let mine = active.clone();
            // The thread's first access to `jobs` waits until this lock is released.
            let started = self.shared.launcher.spawn(format!("job {}", active.recorder.id()), move || {
                let guard = RunningGuard { daemon, active: mine };
                supervisor.run();
                drop(guard);
            });
            match started {
                Ok(()) => {
                    jobs.running.push(active);
                    self.shared.running.send_replace(jobs.running.len());
                }
                Err(error) => not_started.push((active, error)),
            }
        }
        drop(jobs);
        for (active, error) in not_started {
            active.recorder.enter(JobState::Failed, &format!("cannot start its thread: {error}"));
        }
    }

    /// Starts further jobs once `suspect` has a new checkpoint.
    fn start_next_once_cleared(&self, suspect: &ActiveJob) {
        let (daemon, mut record) = (self.clone(), suspect.recorder.watch());
        self.shared.runtime.spawn(async move {
            // The channel closes when the job ends, which starts the next one anyway.
            if record.wait_for(|record| record.daemon_deaths == 0).await.is_ok() {
                daemon.start_next();
            }
        });
    }

    /// Stores the last state of ended jobs once that is possible again.
    pub(super) fn retry_unstored(&self) {
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

/// The setting of a job's checkpoint directory.
fn directory_setting(directory: &Path) -> String {
    format!("checkpoint.directory={}", toml::Value::from(directory.to_string_lossy().as_ref()))
}

/// Checks that `requester` may write the directories and read the files that `job` names. Its data is checked when it is
/// listed.
fn check_files(job: &Job, requester: &Requester) -> Result<()> {
    let written = [
        ("checkpoint.directory", Some(&job.checkpoint.directory)),
        ("tensorboard.directory", job.tensorboard.as_ref().map(|spec| &spec.directory)),
        ("data.cache.directory", job.data.cache.as_ref().map(|spec| &spec.directory)),
    ];
    for (key, directory) in written {
        if let Some(directory) = directory {
            requester.check_write(directory).with_context(|| format!("`{key}`"))?;
        }
    }
    if let Some(key_file) = &job.storage.gs.service_account {
        requester.check_read(key_file).context("`storage.gs.service_account`")?;
    }
    Ok(())
}

/// Marks a job as running. Dropped when the job's thread ends, even in a panic.
struct RunningGuard {
    daemon: Daemon,
    active: ActiveJob,
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.active.recorder.enter(JobState::Failed, "internal error in the daemon; see its log");
        }
        let mut jobs = self.daemon.shared.jobs();
        jobs.running.retain(|active| active.recorder.id() != self.active.recorder.id());
        self.daemon.shared.running.send_replace(jobs.running.len());
        if !self.active.recorder.is_stored() {
            if jobs.unstored.is_empty() {
                self.daemon.retry_unstored();
            }
            jobs.unstored.push(self.active.clone());
        }
        drop(jobs);
        self.daemon.start_next();
    }
}
