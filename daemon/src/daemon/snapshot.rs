//! The daemon's state at a moment.

use std::time::Duration;

use millstream_control::proto::JobState;

use super::Daemon;
use crate::queue::ActiveJob;
use crate::snapshot::{
    AwaitedSnapshot, GpuSnapshot, HostUse, JobSnapshot, OpenFiles, ProcessUse, RankPlace, RankSnapshot,
    Snapshot, WorkerSnapshot, system,
};
use crate::state::now_ms;
use crate::supervisor::{Exchanges, FewerWorkers, Vitals};

/// An exchange that is open for longer keeps workers from training.
const LONG_EXCHANGE: Duration = Duration::from_secs(1);

impl Daemon {
    /// Its state now, from memory and `/proc`. Never waits for the state database.
    pub fn snapshot(&self) -> Snapshot {
        let (running, queued_jobs, is_stopping) = {
            let jobs = self.shared.jobs();
            (jobs.running.clone(), jobs.queued.len() as u64, jobs.draining)
        };
        let (ended_jobs, held_jobs) = self.shared.outcomes.now();
        let jobs: Vec<_> = running.iter().map(job).collect();
        let gpus = self.shared.gpus.now(&jobs);
        Snapshot {
            at_ms: now_ms(),
            version: env!("CARGO_PKG_VERSION"),
            started_ms: self.shared.started_ms,
            is_stopping,
            queued_jobs,
            held_jobs,
            ended_jobs,
            jobs,
            spans: self.shared.traces.counts(),
            process: ProcessUse::of_self(),
            open_files: OpenFiles::of_self(),
            host_name: system::host_name(),
            host: HostUse::now(),
            gpus,
            peers: self.peers().map(|peers| peers.counts()),
            feeds: self.feeds().status(),
        }
    }

    /// The GPUs that the worker of job `id` computes on now, with the share of this job alone: none if the job trains on the
    /// CPU, is not under way, or the driver does not answer.
    pub(crate) fn gpus_of(&self, id: &str) -> Vec<GpuSnapshot> {
        let running = self.shared.jobs().running.clone();
        let jobs: Vec<_> = running.iter().map(job).collect();
        let on_gpu = |job: &JobSnapshot| {
            job.record.id == id && job.record.device.as_ref().is_some_and(|device| device.gpu.is_some())
        };
        // Otherwise, asking for a job on the CPU would start to watch the GPUs.
        if !jobs.iter().any(on_gpu) {
            return Vec::new();
        }
        let found = self.shared.gpus.now(&jobs).filter(|found| !found.is_stale);
        let mut gpus = found.map(|found| found.gpus).unwrap_or_default();
        for gpu in &mut gpus {
            gpu.jobs.retain(|job| job.id == id);
        }
        gpus.retain(|gpu| !gpu.jobs.is_empty());
        gpus
    }

    /// The workers of job `id`, by rank, if it has several now.
    pub(crate) fn ranks_of(&self, id: &str) -> Vec<RankSnapshot> {
        let ranks = |vitals: &Vitals| ranks(&vitals.workers(), vitals.exchanges());
        self.vitals_of(id, ranks).unwrap_or_default()
    }

    /// The step of the newest image of job `id`, if it keeps any and runs now.
    pub(crate) fn image_of(&self, id: &str) -> Option<u64> {
        self.vitals_of(id, Vitals::image_step).flatten()
    }

    /// The workers of job `id`, if it runs now with fewer than it has.
    pub(crate) fn fewer_workers_of(&self, id: &str) -> Option<FewerWorkers> {
        self.vitals_of(id, Vitals::fewer_workers).flatten()
    }

    fn vitals_of<T>(&self, id: &str, read: impl FnOnce(&Vitals) -> T) -> Option<T> {
        let running = self.shared.jobs().running.clone();
        let job = running.iter().find(|job| job.recorder.id() == id)?;
        Some(read(job.control.vitals()))
    }
}

/// The workers with these process ids, by rank, of which `exchanges` are known, and those of other hosts that are awaited.
fn ranks(pids: &[u32], exchanges: Exchanges) -> Vec<RankSnapshot> {
    let Exchanges { first, shares, open, .. } = exchanges;
    let open = open.filter(|open| open.open_for > LONG_EXCHANGE);
    let awaited = open.as_ref().map(|open| &open.awaited[..]).unwrap_or_default();
    let in_exchange =
        open.as_ref().map(|open| AwaitedSnapshot { exchange: open.name.clone(), since: open.open_for });
    let here = (first..).zip(pids.iter().zip(shares)).map(|(rank, (&pid, exchange_share))| {
        let is_awaited = awaited.iter().any(|worker| worker.rank == rank);
        let awaited = in_exchange.clone().filter(|_| is_awaited);
        RankSnapshot { rank: rank as u32, place: RankPlace::Process(pid), exchange_share, awaited }
    });
    let elsewhere = awaited.iter().filter_map(|worker| {
        let place = RankPlace::Host(worker.host.as_ref()?.to_string());
        let (rank, awaited) = (worker.rank as u32, in_exchange.clone());
        Some(RankSnapshot { rank, place, exchange_share: None, awaited })
    });
    let mut all: Vec<_> = here.chain(elsewhere).collect();
    all.sort_by_key(|worker| worker.rank);
    all
}

fn job(active: &ActiveJob) -> JobSnapshot {
    let ActiveJob { recorder, control } = active;
    let mut record = recorder.record();
    // A thread that has just been started has not changed the state yet.
    if record.state == JobState::Queued {
        record.state = JobState::Preparing;
    }
    let vitals = control.vitals();
    let pids = vitals.workers();
    let worker = (!pids.is_empty()).then(|| WorkerSnapshot {
        process: ProcessUse::of_all(&pids),
        pids,
        exchange_shares: vitals.exchanges().shares,
        left_out: vitals.fewer_workers().map_or(0, |fewer| fewer.left_out.len() as u32),
    });
    JobSnapshot {
        record,
        checkpoint: vitals.checkpoint(),
        image_step: vitals.image_step(),
        worker,
        ingest: control.explain(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[tokio::test]
    async fn a_snapshot_does_not_wait_for_the_state_database() {
        let daemon = Daemon::start_embedded().unwrap();
        let (release, released) = sync_channel::<()>(0);
        let (began, has_begun) = sync_channel(1);
        daemon.shared.store.write("a", move |_| {
            let _ = began.try_send(());
            // Closed when the test releases it.
            let _ = released.recv();
            Ok(())
        });
        has_begun.recv().unwrap();
        let taking = daemon.blocking(|daemon| Ok::<_, anyhow::Error>(daemon.snapshot()));
        let taken = tokio::time::timeout(Duration::from_secs(60), taking).await.unwrap().unwrap();
        drop(release);
        assert_eq!((taken.queued_jobs, taken.held_jobs, taken.is_stopping), (0, 0, false));
        assert!(taken.jobs.is_empty() && taken.process.is_some() && taken.open_files.is_some());
        daemon.shutdown().await;
        assert!(daemon.snapshot().is_stopping);
    }
}
