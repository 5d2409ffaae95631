//! Jobs on several hosts in which this one takes part because their leader calls it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use millstream_io::storage::{Directory, StorageSpec};
use millstream_peers::HostName;
use millstream_peers::conduct::{Accepted, RunAddress};
use tokio::runtime::Handle;

use super::Daemon;
use crate::access::Requester;
use crate::runs::{self, Run, RunDirectory};
use crate::state::JobSource;
use crate::supervisor::Seats;
use crate::traces::Entry;
use crate::{devices, ranks, survey};

/// How long a job that this host cannot take part in is not tried again. Leaders call every few seconds.
const REFUSED_FOR: Duration = Duration::from_secs(30);

/// The most jobs that are remembered as tried.
const MAX_TRIED: usize = 1000;

/// What came of a leader's call for a job that this daemon did not know.
enum Tried {
    /// It is being read.
    Now,
    /// This host takes no part in it.
    Refused { at: Instant, why: String },
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Daemon {
    /// Returns a function that decides whether this host takes part in a job: if the job is ready here. If this daemon does not
    /// know the job, it prepares it, and the leader calls again. The function does not keep the daemon alive.
    pub(crate) fn accept_jobs(
        &self,
        seats: &Arc<Seats>,
        runtime: &Handle,
    ) -> impl Fn(&RunAddress, &HostName) -> Option<Accepted> + Send + Sync + 'static {
        let (shared, seats, runtime) = (Arc::downgrade(&self.shared), Arc::clone(seats), runtime.clone());
        let tried: Arc<Mutex<HashMap<RunAddress, Tried>>> = Arc::default();
        move |run, leader| {
            if let Some(accepted) = seats.accept(run) {
                return Some(accepted);
            }
            let daemon = Self { shared: shared.upgrade()? };
            let mut known = lock(&tried);
            let is_new = match known.get(run) {
                None => known.len() < MAX_TRIED,
                Some(Tried::Now) => false,
                Some(Tried::Refused { at, .. }) => at.elapsed() >= REFUSED_FOR,
            };
            if is_new {
                let before = known.insert(run.clone(), Tried::Now);
                let (tried, run, leader) = (Arc::clone(&tried), run.clone(), leader.clone());
                // Reads storage, and may wait for the store.
                runtime.spawn_blocking(move || {
                    let error = daemon.join(&run, &leader).err().map(|error| format!("{error:#}"));
                    let Some(why) = error else { return drop(lock(&tried).remove(&run)) };
                    if !matches!(before, Some(Tried::Refused { why: earlier, .. }) if earlier == why) {
                        tracing::warn!("this host takes no part in {run}, which {leader} leads: {why}");
                    }
                    lock(&tried).insert(run, Tried::Refused { at: Instant::now(), why });
                });
            }
            None
        }
    }

    /// Takes part in the job whose run is at `run`, unless this daemon knows the job.
    fn join(&self, run: &RunAddress, leader: &HostName) -> Result<()> {
        let address = Directory::parse(run.as_str(), Path::new("/"))?;
        ensure!(address.as_local().is_none(), "the run is in a directory of another host");
        let id = address.name().context("it does not have the name of a run")?.to_owned();
        if let Some(known) = self.shared.store.job(&id)? {
            ensure!(
                known.directory == address,
                "job {id} of this host has another directory, {}",
                known.directory
            );
            if known.state.is_final() {
                bail!("job {id} is {} here; `millstream resume {id}` lets it take part", known.state);
            }
            // It is being prepared, or waits in the queue.
            return Ok(());
        }
        let directory = RunDirectory::new(address, &self.storage(&StorageSpec::default()));
        // Of the daemon itself, so it may read nothing of this host: `workers.max` allows data in buckets only.
        let requester = Requester::Trusted;
        let job = self.as_run_here(runs::job_of(&directory, &requester)?);
        ensure!(job.workers.max.is_some(), "it has no `workers.max`");
        devices::check(&ranks::gpus(&job.training), || survey::sample_gpus(&self.shared.worker))?;
        let directory = RunDirectory::new(directory.address().clone(), &self.storage(&job.storage));
        let path = directory.address().join(runs::JOB).text().into_owned().into();
        let source = JobSource { text: job.text.clone(), path, requester };
        let notes = [format!("takes part in the job that host {leader} leads")];
        tracing::info!(job = id, "taking part at the request of host {leader}");
        self.admit(job, Run { id, directory }, (None, 0), &source, (Entry::Submitted, &notes))?;
        Ok(())
    }
}
