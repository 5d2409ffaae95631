//! The run of a job on several hosts, as the daemon that leads it changes it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use millstream_io::storage::{Directory, Stores};
use millstream_peers::HostName;
use millstream_peers::conduct::{LeaseLost, NotCommitted, Order, Run};
use millstream_peers::generations::{GenerationId, Note, Outcome, Reason, Shortage, Snapshot};
use millstream_trainer::checkpoint::MANIFEST;
use millstream_trainer::checkpoint::store::directory_name;
use millstream_worker::protocol::{FromWorker, WorkerProgress};
use tokio::sync::{Semaphore, mpsc};

use super::changes::{check_name, staged_name};
use super::notes::{Change, Changed, ToHost, ToLeader, decode, encode};
use super::seat::{Seat, SeatEvent};
use super::waiting::WaitingReports;
use crate::runs::{End, Head, Lease, LeaseError, generation_term};

/// Interval between reports of progress that the hosts hear of.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between tries of a write whose outcome is uncertain.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// How long a manifest whose fate is uncertain is tried. Then this daemon leads no longer.
const CREATE_TIMEOUT: Duration = Duration::from_secs(20);

/// The most changes that are made at a time.
const MAX_CHANGES: usize = 8;

/// The run, in one term of the lease.
pub(super) struct LedRun(Arc<Shared>);

struct Shared {
    directory: Directory,
    stores: Stores,
    lease: Arc<Lease>,
    /// Orders for the leader: notes for hosts.
    orders: mpsc::UnboundedSender<Order>,
    seat: Arc<Seat>,
    state: Mutex<State>,
    /// The step of the newest checkpoint; 0 if there is none.
    newest: AtomicU64,
    /// Permits for changes that need no decision.
    changes: Semaphore,
}

#[derive(Default)]
struct State {
    /// The generation of what follows.
    generation: Option<GenerationId>,
    /// The host of rank 0, once it has said something.
    first: Option<HostName>,
    /// Who has proposed checkpoints, by their steps, and the numbers of the requests.
    proposed: BTreeMap<u64, (HostName, u64)>,
    /// Progress that the hosts have not heard of, and when they last did.
    progress: Option<WorkerProgress>,
    heard: Option<Instant>,
    waiting: WaitingReports,
}

impl LedRun {
    pub(super) fn new(
        (directory, stores): (Directory, Stores),
        (lease, newest): (Arc<Lease>, Option<Head>),
        orders: mpsc::UnboundedSender<Order>,
        seat: Arc<Seat>,
    ) -> Self {
        let newest = AtomicU64::new(newest.map_or(0, |head| head.step));
        let (state, changes) = (Mutex::default(), Semaphore::new(MAX_CHANGES));
        Self(Arc::new(Shared { directory, stores, lease, orders, seat, state, newest, changes }))
    }
}

impl Shared {
    /// What is known of a generation, the current one.
    fn state(&self, generation: GenerationId) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.generation != Some(generation) {
            *state = State { generation: Some(generation), ..State::default() };
        }
        state
    }

    /// Sends a note to a host of a generation, or to all.
    fn tell(&self, generation: GenerationId, to: Option<HostName>, note: &ToHost) {
        // Nobody leads any more if it fails.
        let _ = self.orders.send(Order::Note { generation, to, note: encode(note) });
    }

    fn answer(
        &self,
        generation: GenerationId,
        (to, number): (HostName, u64),
        result: Result<Changed, String>,
    ) {
        self.tell(generation, Some(to), &ToHost::Changed { number, result });
    }

    /// Passes reports of rank 0 to all hosts; progress once a second.
    fn report(&self, generation: GenerationId, report: FromWorker) {
        let mut state = self.state(generation);
        let FromWorker::Progress(progress) = report else {
            let progress = state.progress.take();
            drop(state);
            let reports = progress.map(FromWorker::Progress).into_iter().chain([report]);
            return reports.for_each(|report| self.tell(generation, None, &ToHost::Report(report)));
        };
        let sum = merged(state.progress.take(), progress);
        if state.heard.is_none_or(|heard| heard.elapsed() >= PROGRESS_INTERVAL) {
            state.heard = Some(Instant::now());
            drop(state);
            self.tell(generation, None, &ToHost::Report(FromWorker::Progress(sum)));
        } else {
            state.progress = Some(sum);
        }
    }

    /// Ends the job at the next step boundary.
    fn fail(&self, reason: &str) {
        // Nobody leads any more if it fails.
        let _ = self.orders.send(Order::Fail(Reason::new(reason)));
    }

    /// Makes a change of a host that needs no decision.
    fn change(self: &Arc<Self>, generation: GenerationId, asked: (HostName, u64), change: Change) {
        let run = Arc::clone(self);
        tokio::spawn(async move {
            // Closed once the lease is about to be released.
            let Ok(_permit) = run.changes.acquire().await else { return };
            let done = match change {
                Change::Commit { .. } => return,
                Change::Replace { step } => run.replace(step, generation).await,
                Change::Delete { name } => run.delete(&name).await,
            };
            let done = done.map(|()| Changed::Done).map_err(|error| format!("{error:#}"));
            run.answer(generation, asked, done);
        });
    }

    /// Deletes an object that is no part of the newest checkpoint.
    async fn delete(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let head = self.head().await;
        ensure!(!head.is_some_and(|head| is_of(head, name)), "{name} is of the newest checkpoint");
        let address = self.address(name);
        self.within_lease(self.stores.delete(&address, Path::new("/"))).await.map(drop)
    }

    /// Replaces the manifest of the newest checkpoint, as it is now.
    async fn replace(&self, step: u64, generation: GenerationId) -> Result<()> {
        let address = self.address(&manifest_name(step));
        let found = self.stores.get_small(&address, Path::new("/")).await?;
        let (_, version) = found.with_context(|| format!("{address} is gone"))?;
        ensure!(
            self.head().await.is_some_and(|head| head.step == step),
            "step {step} is not the newest checkpoint"
        );
        let staged = staged_name(step, &term_name(generation));
        let content = self.staged(&staged).await?;
        let replaced = self.within_lease(self.stores.replace(&address, content, &version)).await?;
        ensure!(replaced.is_some(), "{address} has changed");
        self.forget(&staged).await;
        Ok(())
    }

    /// The newest checkpoint.
    async fn head(&self) -> Option<Head> {
        self.lease.led().await.and_then(|led| led.head)
    }

    /// Creates the manifest of a proposed checkpoint, and makes it the newest one.
    async fn create(&self, Snapshot { step, generation }: Snapshot) -> Result<Changed, Failure> {
        let staged = staged_name(step, &term_name(generation));
        let content = self.staged(&staged).await?;
        let address = self.address(&manifest_name(step));
        let until = Instant::now() + CREATE_TIMEOUT;
        let exists = loop {
            match self.put_new(&address, &content).await {
                Ok(exists) => break exists,
                // It may be written all the same, now or later. So this continues until that is certain.
                Err(error) if Instant::now() < until && self.lease.lost().is_none() => {
                    tracing::warn!("the checkpoint of step {step} is not committed yet: {error:#}");
                }
                Err(error) => {
                    let reason = format!("the checkpoint of step {step} cannot be committed: {error:#}");
                    tracing::warn!("this daemon leads no longer: {reason}");
                    self.lease.abandon(&reason);
                    return Err(Failure::Lease);
                }
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        };
        if exists {
            return Ok(Changed::Exists);
        }
        let head = Head { step, term: generation_term(generation.epoch, generation.number) };
        self.lease.move_head(head).await.map_err(|_| Failure::Lease)?;
        self.newest.store(step, Ordering::Relaxed);
        self.forget(&staged).await;
        Ok(Changed::Done)
    }

    /// Returns whether there is another object.
    async fn put_new(&self, address: &str, content: &[u8]) -> Result<bool> {
        let put = self.stores.put_new(address, Path::new("/"), content.to_vec());
        if self.within_lease(put).await?.is_some() {
            return Ok(false);
        }
        let found = self.stores.get_small(address, Path::new("/")).await?;
        // Its response may have been lost.
        Ok(found.is_none_or(|(found, _)| found != content))
    }

    /// The result of `work`, which changes the run, while the lease is held.
    async fn within_lease<T>(
        &self,
        work: impl Future<Output = Result<T, millstream_io::Error>>,
    ) -> Result<T> {
        self.lease.confirm().await?;
        let limit = self.lease.change_timeout();
        let done = tokio::time::timeout(limit, work).await;
        Ok(done.with_context(|| format!("no answer within {} s", limit.as_secs()))??)
    }

    async fn staged(&self, name: &str) -> Result<Vec<u8>> {
        check_name(name)?;
        let found = self.stores.get_small(&self.address(name), Path::new("/")).await?;
        Ok(found.with_context(|| format!("{} is gone", self.address(name)))?.0.into())
    }

    /// Deletes a staged object. If that fails, it is deleted with its checkpoint.
    async fn forget(&self, staged: &str) {
        if let Err(error) = self.stores.delete(&self.address(staged), Path::new("/")).await {
            tracing::debug!(%error, "a staged manifest is not deleted");
        }
    }

    fn address(&self, name: &str) -> String {
        self.directory.join(name).text().into_owned()
    }
}

/// Why a checkpoint is not committed.
enum Failure {
    Lease,
    Other(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast_ref() {
            Some(LeaseError::Lost(_)) => Self::Lease,
            _ => Self::Other(error),
        }
    }
}

impl Run for LedRun {
    async fn commit(&self, checkpoint: Snapshot) -> Result<(), NotCommitted> {
        let Self(run) = self;
        let Snapshot { step, generation } = checkpoint;
        let proposed = run.state(generation).proposed.remove(&step);
        // The workers that proposed it have ended.
        let Some(asked) = proposed else { return Err(NotCommitted::GivenUp) };
        let (committed, answer) = match run.create(checkpoint).await {
            Ok(Changed::Done) => (Ok(()), Ok(Changed::Done)),
            Ok(Changed::Exists) => (Err(NotCommitted::GivenUp), Ok(Changed::Exists)),
            Err(Failure::Lease) => (Err(LeaseLost.into()), Err(LeaseLost.to_string())),
            Err(Failure::Other(error)) => (Err(NotCommitted::GivenUp), Err(format!("{error:#}"))),
        };
        run.answer(generation, asked, answer);
        committed
    }

    async fn conclude(&self, outcome: Outcome) -> Result<(), LeaseLost> {
        let end = match outcome {
            Outcome::Finished => End::Finished,
            Outcome::Failed(reason) => End::Failed(reason.to_string()),
        };
        self.0.lease.conclude(end).await.map_err(|_| LeaseLost)
    }

    async fn release(&self) {
        let Self(run) = self;
        // Another daemon may change the run as soon as it has the lease.
        let changes = run.changes.acquire_many(MAX_CHANGES as u32);
        match tokio::time::timeout(2 * run.lease.change_timeout(), changes).await {
            Ok(_) => run.lease.release().await,
            Err(_) => run.lease.abandon("a change of the run has not ended"),
        }
        run.changes.close();
    }

    fn show(&self, shortage: &Shortage) {
        self.0.seat.push(SeatEvent::Waits(shortage.to_string()));
    }

    fn hear(&self, from: HostName, generation: GenerationId, note: Note) {
        let Self(run) = self;
        let note = match decode::<ToLeader>(&note) {
            Ok(note) => note,
            Err(error) => return tracing::warn!("host {from} says what this daemon does not know: {error}"),
        };
        match note {
            ToLeader::Report(report) => run.report(generation, report),
            ToLeader::WriteParts(request) => {
                run.state(generation).first = Some(from);
                run.tell(generation, None, &ToHost::WriteParts(request));
            }
            ToLeader::PartsWritten(written) => {
                let first = run.state(generation).first.clone();
                run.tell(generation, first, &ToHost::PartsWritten(written));
            }
            ToLeader::Checkpoint => run.tell(generation, None, &ToHost::Checkpoint),
            ToLeader::Fail { reason } => run.fail(&format!("host {from}: {reason}")),
            ToLeader::Cancel => run.fail(&cancelled_on(&from)),
            ToLeader::Change { number, change: Change::Commit { step } } => {
                // A damaged newest checkpoint was passed over.
                if step <= run.newest.load(Ordering::Relaxed) {
                    let error = format!("there is a checkpoint of step {step} or a later one");
                    return run.answer(generation, (from, number), Err(error));
                }
                run.state(generation).proposed.insert(step, (from, number));
            }
            ToLeader::Change { number, change } => run.change(generation, (from, number), change),
            ToLeader::Exchanges { states } => {
                let note = run.state(generation).waiting.add(from, states);
                note.iter().for_each(|note| run.tell(generation, None, note));
            }
        }
    }
}

/// Why a job has ended that a user of `host` cancelled.
pub(super) fn cancelled_on(host: &HostName) -> String {
    format!("cancelled by a user on host {host}")
}

/// Whether the object `name` is of this checkpoint.
fn is_of(Head { step, term }: Head, name: &str) -> bool {
    let directory = directory_name(step);
    let rest = name.strip_prefix(&*directory).and_then(|rest| rest.strip_prefix('/'));
    rest.is_some_and(|rest| rest == MANIFEST || rest.starts_with(&format!("term-{term}/")))
}

/// The name of the manifest of a step.
fn manifest_name(step: u64) -> String {
    format!("{}/{MANIFEST}", directory_name(step))
}

/// The name of the directory of a generation's term, within that of a checkpoint.
fn term_name(GenerationId { epoch, number }: GenerationId) -> String {
    format!("term-{}", generation_term(epoch, number))
}

/// Both reports as one.
fn merged(earlier: Option<WorkerProgress>, later: WorkerProgress) -> WorkerProgress {
    let Some(earlier) = earlier else { return later };
    let examples = earlier.new_examples + later.new_examples;
    let weighted = |progress: WorkerProgress| match progress.new_examples {
        0 => 0.0,
        examples => progress.loss * examples as f64,
    };
    WorkerProgress {
        steps_per_epoch: later.steps_per_epoch.or(earlier.steps_per_epoch),
        new_examples: examples,
        loss: if examples > 0 { (weighted(earlier) + weighted(later)) / examples as f64 } else { later.loss },
        seconds: earlier.seconds + later.seconds,
        waited_seconds: earlier.waited_seconds + later.waited_seconds,
        ..later
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_checkpoint_is_not_deleted() {
        let head = Head { step: 500, term: 7 };
        for name in ["step-0000000500/manifest.json", "step-0000000500/term-7/model.safetensors"] {
            assert!(is_of(head, name), "{name}");
        }
        for name in
            ["step-0000000400/manifest.json", "step-0000000500/term-70/a", "step-00000005001/manifest.json"]
        {
            assert!(!is_of(head, name), "{name}");
        }
    }

    #[test]
    fn progress_is_summed_until_it_is_reported() {
        let report = |step, examples, loss| WorkerProgress {
            step,
            new_examples: examples,
            loss,
            seconds: 0.5,
            ..WorkerProgress::default()
        };
        let sum = merged(Some(report(4, 300, 1.0)), report(5, 100, 2.0));
        assert_eq!((sum.step, sum.new_examples, sum.loss, sum.seconds), (5, 400, 1.25, 1.0));
        let idle = merged(Some(report(5, 0, f64::NAN)), report(6, 10, 3.0));
        assert_eq!((idle.new_examples, idle.loss), (10, 3.0));
        assert_eq!(merged(None, report(1, 1, 1.0)), report(1, 1, 1.0));
    }
}
