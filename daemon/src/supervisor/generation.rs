//! The workers of one attempt: a *generation*.
//!
//! A job has one worker, or several that train together; their numbers are their ranks. All are spawned together, on the
//! job's thread. Several first meet: each reports an address, and when all have, each gets the addresses of all. Then they
//! restore the same checkpoint or image, and ingest starts once all are ready.
//!
//! They also end together. When one is lost, the others are killed at once and the next attempt starts a new generation:
//! nothing is repaired, because no worker can tell what the others have seen of it. Which one was lost is not always clear at
//! first. A worker that dies closes its socket, but another may notice the death in a collective operation and report
//! [`FromWorker::PeerLost`] first. So such a report waits for a worker that died, for [`CAUSE_TIMEOUT`]. If none has, the
//! flight records of all workers show which one hangs ([`FlightRecords`]); a report may name one that only waits for it.
//!
//! Events carry the number of their generation: those of an earlier one may still be in the job's queue.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use millstream_backend::Description;
use millstream_batch::HandOff;
use millstream_worker::protocol::{HostPlace, Restored, ToWorker};
use tracing::Level;

use super::images::Images;
use super::{Event, FlightRecords, Prepared, Supervisor, WorkerId};
use crate::worker::{WorkerExit, WorkerProcess};

/// How long a report of a lost worker waits for the worker that died.
pub(super) const CAUSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The ranks of a generation that are workers of this host, or its reducers there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RanksHere {
    /// The lowest; those of reducers begin with `world`.
    pub(super) first: u32,
    /// How many.
    pub(super) count: u32,
    /// The ranks on all hosts.
    pub(super) world: u32,
    /// The reducers on all hosts.
    pub(super) reducers: u32,
}

impl RanksHere {
    /// All ranks of a generation that has `count`.
    pub(super) fn all(count: u32) -> Self {
        Self { first: 0, count, world: count, reducers: 0 }
    }

    /// Whether they add gradients for others.
    pub(super) fn reduce(self) -> bool {
        self.first >= self.world
    }

    /// Whether other hosts have ranks or reducers.
    pub(super) fn spans_hosts(self) -> bool {
        self.world + self.reducers > self.count
    }

    /// How messages name the worker with this number among those of this host: with the number of all such ones, if `of_all`.
    fn name(self, number: u32, of_all: bool) -> String {
        let (what, rank, all) = match self.reduce() {
            false => ("worker", self.rank(number), self.world),
            true => ("reducer", self.rank(number) - self.world, self.reducers),
        };
        if of_all { format!("{what} {rank} of {all}") } else { format!("{what} {rank}") }
    }

    /// The rank of the worker with this number among those of this host.
    pub(super) fn rank(self, number: u32) -> u32 {
        self.first + number
    }

    /// The place of that worker.
    pub(super) fn place(self, number: u32) -> HostPlace {
        HostPlace { number, workers: self.count }
    }
}

/// The workers of an attempt, on this host. Methods name them by their numbers here, from 0, which are the ranks unless other hosts
/// have some.
pub(super) struct Generation {
    number: u64,
    ranks: RanksHere,
    /// By number.
    workers: Vec<Member>,
    /// What they record of their exchanges.
    records: FlightRecords,
}

/// A worker of a generation.
struct Member {
    process: WorkerProcess,
    /// Where other workers reach it, once it has reported that.
    address: Option<Vec<u8>>,
    /// Set once its model is ready.
    ready: Option<ReadyWorker>,
    /// Whether it has sent its last message.
    has_ended: bool,
    /// Whether it has closed its socket.
    is_gone: bool,
}

/// What a worker reports when its model is ready.
pub(super) struct ReadyWorker {
    pub(super) restored: Option<Restored>,
    pub(super) passed_over: Vec<String>,
    pub(super) device: Description,
}

impl Generation {
    /// Spawns the workers of this host for an attempt at `prepared`. They reach those of other hosts on the interfaces `network`.
    ///
    /// # Errors
    /// When the system cannot create a process or the file of a flight record.
    pub(super) fn spawn(
        supervisor: &Supervisor,
        prepared: &Prepared,
        (ranks, network): (RanksHere, Option<&str>),
    ) -> io::Result<Self> {
        let (world, generation) = (ranks.world, supervisor.generation);
        let records = FlightRecords::create(ranks.first..ranks.first + ranks.count, world)?;
        let workers = (0..ranks.count).map(|number| {
            let recorder = Arc::clone(&supervisor.recorder);
            let prefix = if world == 1 { "worker".to_owned() } else { ranks.name(number, false) };
            let log = move |line: &str| recorder.log(Level::WARN, &format!("{prefix}: {line}"));
            let mut process = WorkerProcess::spawn(&supervisor.worker, network, log)?;
            if world > 1 {
                process = process.named(ranks.name(number, true));
            }
            // What a driver needs beside the plan is unknown, as is the number of ranks for which a reducer adds.
            if prepared.job.training.device.gpu().is_none() && !ranks.reduce() {
                process.limit_memory(prepared.worker_bytes());
            }
            let events = supervisor.control.events.clone();
            let (gone, id) = (events.clone(), WorkerId { generation, number });
            process.listen(
                move |message| events.send(Event::Worker(id, message)).is_ok(),
                move || drop(gone.send(Event::WorkerGone(id))),
            )?;
            Ok(Member { process, address: None, ready: None, has_ended: false, is_gone: false })
        });
        Ok(Self { number: generation, ranks, workers: workers.collect::<io::Result<_>>()?, records })
    }

    /// Whether an event is of this generation.
    pub(super) fn has(&self, id: WorkerId) -> bool {
        id.generation == self.number
    }

    /// The process ids, by number.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.workers.iter().map(|worker| worker.process.pid()).collect()
    }

    /// What the workers record of their exchanges.
    pub(super) fn records(&self) -> &FlightRecords {
        &self.records
    }

    /// Names the workers that hang: the others have waited for them in an exchange for longer than `timeout`.
    pub(super) fn hanging(&self, timeout: Duration) -> Option<String> {
        self.records.now().hanging(self.ranks.world as usize, timeout)
    }

    /// The process id of worker `rank`.
    pub(super) fn pid(&self, rank: u32) -> u32 {
        self.workers[rank as usize].process.pid()
    }

    /// The ranks that are here.
    pub(super) fn ranks(&self) -> RanksHere {
        self.ranks
    }

    /// Sends a message to worker `rank`.
    pub(super) fn send(&mut self, rank: u32, message: &ToWorker) {
        self.workers[rank as usize].send(message);
    }

    /// Sends a message to each worker; `message` returns that for a rank.
    pub(super) fn send_each(&mut self, message: impl Fn(u32) -> ToWorker) {
        for (rank, worker) in (0..).zip(&mut self.workers) {
            worker.send(&message(rank));
        }
    }

    /// Sends a message of worker `rank` to all others.
    pub(super) fn send_others(&mut self, rank: u32, message: &ToWorker) {
        let others = (0..).zip(&mut self.workers).filter(|(other, _)| *other != rank);
        others.for_each(|(_, worker)| worker.send(message));
    }

    /// Passes the images to each worker. One that cannot get them would wait for them, so it is killed.
    pub(super) fn send_images(&mut self, images: &Images) {
        for worker in &mut self.workers {
            if let Err(error) = worker.process.send_images(images.files()) {
                tracing::warn!(%error, pid = worker.process.pid(), "cannot send a worker the images");
                worker.process.kill();
            }
        }
    }

    /// Passes each worker its connections for objects, which `connect` returns for a rank. One that cannot get them would wait for
    /// them, so it is killed.
    pub(super) fn send_objects(&mut self, mut connect: impl FnMut(u32) -> io::Result<Vec<OwnedFd>>) {
        for (rank, worker) in (0..).zip(&mut self.workers) {
            let sent = connect(rank).and_then(|connections| {
                let send = |connection: &OwnedFd| worker.process.send_objects(connection.as_fd());
                connections.iter().try_for_each(send).map_err(io::Error::other)
            });
            if let Err(error) = sent {
                tracing::warn!(%error, pid = worker.process.pid(), "cannot send a worker its connections");
                worker.process.kill();
            }
        }
    }

    /// Sends each worker its rings. With several for each, worker `r` of `n` has the rings `r`, `r + n`, and so on.
    pub(super) fn send_rings(&mut self, rings: Vec<HandOff>) {
        let count = self.workers.len();
        for (number, ring) in rings.into_iter().enumerate() {
            let worker = &mut self.workers[number % count];
            if let Err(error) = worker.process.send_ring(ring) {
                tracing::debug!(%error, pid = worker.process.pid(), "cannot send a worker its ring");
            }
        }
    }

    /// A worker is listening. Returns the addresses of all that are here when the last one is.
    pub(super) fn on_listening(&mut self, number: u32, address: Vec<u8>) -> Option<Vec<Vec<u8>>> {
        self.workers[number as usize].address = Some(address);
        self.workers.iter().map(|worker| worker.address.clone()).collect()
    }

    /// Connects the workers to all ranks and reducers, which have these `addresses`, and hands out the files of their flight records.
    /// They restore no checkpoint after `newest_step`.
    pub(super) fn connect(&mut self, addresses: &[Vec<u8>], newest_step: Option<u64>) {
        let reducers = self.ranks.reducers;
        self.send_each(|_| ToWorker::Connect { addresses: addresses.to_vec(), reducers, newest_step });
        for (worker, record) in self.workers.iter().zip(self.records.files()) {
            if let Err(error) = worker.process.send_record(record) {
                tracing::debug!(%error, pid = worker.process.pid(), "cannot send a worker its flight record");
            }
        }
    }

    /// Worker `rank` is ready. Returns the report of rank 0 when the last one is.
    ///
    /// # Errors
    /// When two workers have restored different steps.
    pub(super) fn on_ready(&mut self, rank: u32, ready: ReadyWorker) -> Result<Option<ReadyWorker>> {
        self.workers[rank as usize].ready = Some(ready);
        if self.workers.iter().any(|worker| worker.ready.is_none()) {
            return Ok(None);
        }
        let step = |worker: &Member| {
            worker.ready.as_ref().and_then(|ready| ready.restored.as_ref()).map(|restored| restored.step)
        };
        check_steps(&self.workers.iter().map(step).collect::<Vec<_>>())?;
        Ok(self.workers[0].ready.take())
    }

    /// Worker `rank` has sent its last message.
    pub(super) fn on_last_message(&mut self, rank: u32) {
        self.workers[rank as usize].has_ended = true;
    }

    /// Worker `rank` has closed its socket. Returns whether it died: it has not sent a last message.
    pub(super) fn on_gone(&mut self, rank: u32) -> bool {
        let worker = &mut self.workers[rank as usize];
        worker.is_gone = true;
        !worker.has_ended
    }

    /// How a worker exited that has closed its socket; kills it after `limit`.
    ///
    /// # Errors
    /// As for [`Generation::finish`].
    pub(super) fn exit_of(&mut self, number: u32, limit: Duration) -> io::Result<WorkerExit> {
        self.workers[number as usize].process.wait_for_exit(limit)
    }

    /// Whether all workers have closed their sockets.
    pub(super) fn is_over(&self) -> bool {
        self.workers.iter().all(|worker| worker.is_gone)
    }

    /// Waits until all workers have exited, and kills those that have not after `limit`.
    ///
    /// # Errors
    /// When the system does not report the end of one.
    pub(super) fn finish(self, limit: Duration) -> io::Result<()> {
        let deadline = Instant::now() + limit;
        let left = || deadline.saturating_duration_since(Instant::now());
        self.workers.into_iter().try_for_each(|worker| worker.process.wait(left()).map(drop))
    }

    /// Kills all workers, and waits for their ends.
    ///
    /// # Errors
    /// As for [`Generation::finish`].
    pub(super) fn kill(mut self) -> io::Result<()> {
        self.workers.iter_mut().for_each(|worker| worker.process.kill());
        self.finish(Duration::ZERO)
    }

    /// Kills all workers but `rank`, then waits for that one, and kills it after `limit`. Returns how it exited.
    ///
    /// # Errors
    /// As for [`Generation::finish`].
    pub(super) fn kill_besides(mut self, rank: u32, limit: Duration) -> io::Result<WorkerExit> {
        let culprit = self.workers.swap_remove(rank as usize);
        self.kill()?;
        culprit.process.wait(limit)
    }
}

impl Member {
    /// Sends a message. A failure means that the worker has died, which its exit reports.
    fn send(&mut self, message: &ToWorker) {
        if let Err(error) = self.process.send(message) {
            tracing::debug!(%error, pid = self.process.pid(), "cannot send a message to a worker");
        }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pids: Vec<_> = self.pids().iter().map(u32::to_string).collect();
        match &pids[..] {
            [pid] => write!(f, "worker {pid}"),
            several => write!(f, "the group of {} workers ({})", several.len(), several.join(", ")),
        }
    }
}

/// Checks that all workers have restored the same step, of these by rank.
///
/// # Errors
/// When two differ; names both.
fn check_steps(steps: &[Option<u64>]) -> Result<()> {
    let Some(other) = steps.iter().position(|step| *step != steps[0]) else { return Ok(()) };
    let name = |step: Option<u64>| {
        step.map_or_else(|| "no checkpoint".to_owned(), |step| format!("the checkpoint of step {step}"))
    };
    let (first, second) = (name(steps[0]), name(steps[other]));
    bail!(
        "worker 0 has restored {first}, but worker {other} {second}: the run directory has changed meanwhile"
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::check_steps;

    #[test]
    fn workers_that_restored_different_checkpoints_are_named() {
        for same in [&[None][..], &[Some(7)], &[None; 3], &[Some(7); 4]] {
            check_steps(same).unwrap();
        }
        let error = check_steps(&[Some(7), Some(7), None]).unwrap_err().to_string();
        let wanted = "worker 0 has restored the checkpoint of step 7, but worker 2 no checkpoint: the run directory has \
                      changed meanwhile";
        assert_eq!(error, wanted);
        let error = check_steps(&[Some(7), Some(8)]).unwrap_err().to_string();
        assert!(error.contains("step 7, but worker 1 the checkpoint of step 8"), "{error}");
    }
}
