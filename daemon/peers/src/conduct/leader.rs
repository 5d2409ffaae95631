//! Leading a job: the leader's state machine with a clock, calls to the hosts, and the job's run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::call::{Caller, Heard};
use super::{Addresses, MAX_RANKS, QUEUE, RunAddress, wait_until};
use crate::HostName;
use crate::generations::leader::{Action, Event, Leader};
use crate::generations::{
    GenerationId, Limits, MAX_HOSTS, Note, Outcome, Reason, SILENCE, Shortage, Snapshot, ToMember,
};
use crate::server::ThisHost;

/// The run of a job, as its leader changes it. All changes are on condition that the lease has the leader's epoch.
pub trait Run: Send + Sync + 'static {
    /// Makes a checkpoint the newest one. Returns once the outcome is certain.
    fn commit(&self, checkpoint: Snapshot) -> impl Future<Output = Result<(), NotCommitted>> + Send;

    /// Stores the job's outcome. Returns once it is stored.
    fn conclude(&self, outcome: Outcome) -> impl Future<Output = Result<(), LeaseLost>> + Send;

    /// Releases the lease.
    fn release(&self) -> impl Future<Output = ()> + Send;

    /// Shows why no generation runs. Must not block.
    fn show(&self, shortage: &Shortage);

    /// Takes note of what a host of the current generation says. Must not block.
    fn hear(&self, from: HostName, generation: GenerationId, note: Note);
}

/// Another daemon has the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another daemon has the lease")]
pub struct LeaseLost;

/// Why a checkpoint is not the newest one, and will not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCommitted {
    /// The write failed, and may be tried again; the lease is held.
    #[error("the checkpoint could not be committed")]
    Failed,
    /// It is given up: the workers know, and save another one. The lease is held.
    #[error("the checkpoint is given up")]
    GivenUp,
    /// The lease is lost.
    #[error(transparent)]
    LeaseLost(#[from] LeaseLost),
}

/// A term of the lease.
#[derive(Clone, Debug)]
pub struct Term {
    /// The job's run.
    pub run: RunAddress,
    /// The number of the term.
    pub epoch: u64,
    /// How many ranks a generation may have, at most [`MAX_RANKS`].
    pub limits: Limits,
    /// The newest committed checkpoint, read after the lease was taken.
    pub checkpoint: Option<Snapshot>,
}

/// What a daemon orders its leader to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// The daemon is about to exit: release the lease at the next step boundary.
    Drain,
    /// The lease is lost, or was not renewed in time.
    Resign,
    /// The job is to fail, for this reason.
    Fail(Reason),
    /// A note for a host of a generation, or for all.
    Note {
        /// The generation.
        generation: GenerationId,
        /// The host; `None` for all.
        to: Option<HostName>,
        /// The note.
        note: Note,
    },
}

/// Why a leader no longer leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The job's outcome is stored.
    Concluded,
    /// The lease is released.
    Released,
    /// Another daemon leads, or may.
    Deposed,
}

/// Leads a job on `hosts`, which should include this one, until the job or the term ends. Members notice at once when the
/// future is dropped.
pub async fn lead<R: Run>(
    this: Arc<ThisHost>,
    term: Term,
    run: Arc<R>,
    hosts: watch::Receiver<Addresses>,
    orders: mpsc::Receiver<Order>,
) -> Ended {
    let limits = Limits { max: term.limits.max.min(MAX_RANKS), ..term.limits };
    let (sender, heard) = mpsc::channel(QUEUE);
    let caller = Caller {
        this,
        run: term.run,
        epoch: term.epoch,
        hosts: hosts.clone(),
        heard: sender,
        is_over: AtomicBool::new(false),
    };
    let mut conductor = Conductor {
        leader: Leader::new(Duration::ZERO, term.epoch, limits, term.checkpoint),
        began: Instant::now(),
        run,
        streams: BTreeMap::new(),
        writes: JoinSet::new(),
        ended: Ended::Deposed,
    };
    let mut calls = Calls { caller: Arc::new(caller), hosts, tasks: JoinSet::new(), called: BTreeSet::new() };
    calls.call_listed();
    conductor.conduct(&mut calls, heard, orders).await;
    drop(calls);
    conductor.end().await
}

/// The calls to the hosts.
struct Calls {
    caller: Arc<Caller>,
    hosts: watch::Receiver<Addresses>,
    tasks: JoinSet<HostName>,
    /// The hosts that a task calls.
    called: BTreeSet<HostName>,
}

impl Calls {
    /// Waits until hosts are listed or removed, and calls those that are listed.
    async fn follow_list(&mut self) {
        tokio::select! {
            Ok(()) = self.hosts.changed() => {}
            // A task ends when its host is no longer listed, but it may be again.
            Some(Ok(host)) = self.tasks.join_next() => drop(self.called.remove(&host)),
            else => std::future::pending().await,
        }
        self.call_listed();
    }

    fn call_listed(&mut self) {
        let listed = self.hosts.borrow_and_update();
        for host in listed.keys() {
            if self.called.len() < MAX_HOSTS && self.called.insert(host.clone()) {
                self.tasks.spawn(Arc::clone(&self.caller).keep_calling(host.clone()));
            }
        }
    }
}

/// Carries out what the state machine asks for.
struct Conductor<R> {
    leader: Leader,
    /// Time zero of the state machine.
    began: Instant,
    run: Arc<R>,
    /// The queues of the open calls.
    streams: BTreeMap<HostName, mpsc::Sender<ToMember>>,
    /// Changes of the run that are in flight.
    writes: JoinSet<Event>,
    ended: Ended,
}

impl<R: Run> Conductor<R> {
    /// Leads until it is over, and until the members know it.
    async fn conduct(
        &mut self,
        calls: &mut Calls,
        mut heard: mpsc::Receiver<Heard>,
        mut orders: mpsc::Receiver<Order>,
    ) {
        while !self.leader.is_over() {
            tokio::select! {
                Some(heard) = heard.recv() => self.hear(heard),
                // After a panic it is uncertain what is written, so this host must not lead.
                Some(written) = self.writes.join_next() => self.on(written.unwrap_or(Event::LeaseLost)),
                Some(order) = orders.recv() => self.on(match order {
                    Order::Drain => Event::Drain,
                    Order::Resign => Event::LeaseLost,
                    Order::Fail(why) => Event::Fail(why),
                    Order::Note { generation, to, note } => Event::Note { generation, to, note },
                }),
                () = wait_until(self.began, self.leader.next_deadline()) => self.on(Event::Tick),
                () = calls.follow_list() => {}
            }
        }
        calls.caller.is_over.store(true, Ordering::Relaxed);
        // Each member ends its stream once it knows that the job is over.
        let seen_off = async {
            while !self.streams.is_empty() {
                if let Some(Heard::Closed(host)) = heard.recv().await {
                    self.streams.remove(&host);
                }
            }
        };
        if timeout(SILENCE, seen_off).await.is_err() {
            tracing::warn!("some hosts have not confirmed the end of the job");
        }
    }

    /// Releases the lease if the leader has decided so, after all changes of the run.
    async fn end(mut self) -> Ended {
        if self.ended == Ended::Released {
            while self.writes.join_next().await.is_some() {}
            self.run.release().await;
        }
        self.ended
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Opened(host, stream) => {
                self.streams.insert(host.clone(), stream);
                self.on(Event::Opened(host));
            }
            Heard::Message(from, epoch, message) => self.on(Event::Message { from, epoch, message }),
            Heard::Closed(host) => {
                self.streams.remove(&host);
                self.on(Event::Closed(host));
            }
        }
    }

    fn on(&mut self, event: Event) {
        let is_conclusion = event == Event::Concluded;
        let actions = self.leader.on(self.began.elapsed(), event);
        if is_conclusion && self.leader.is_over() {
            self.ended = Ended::Concluded;
        }
        actions.into_iter().for_each(|action| self.carry_out(action));
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Send { to, message } => self.send(&to, message),
            Action::Close(host) => drop(self.streams.remove(&host)),
            Action::Commit(checkpoint) => {
                let run = Arc::clone(&self.run);
                self.writes.spawn(async move {
                    match run.commit(checkpoint).await {
                        Ok(()) => Event::Committed(checkpoint),
                        Err(NotCommitted::Failed) => Event::NotCommitted(checkpoint),
                        Err(NotCommitted::GivenUp) => Event::GivenUp(checkpoint),
                        Err(NotCommitted::LeaseLost(_)) => Event::LeaseLost,
                    }
                });
            }
            Action::Conclude(outcome) => {
                let run = Arc::clone(&self.run);
                self.writes.spawn(async move {
                    run.conclude(outcome).await.map_or(Event::LeaseLost, |()| Event::Concluded)
                });
            }
            Action::Wait(shortage) => self.run.show(&shortage),
            Action::Note { from, generation, note } => self.run.hear(from, generation, note),
            Action::ReleaseLease => self.ended = Ended::Released,
        }
    }

    /// Queues a message. Ends the call if the queue is full: the host does not read.
    fn send(&mut self, to: &HostName, message: ToMember) {
        let sent = self.streams.get(to).map(|stream| stream.try_send(message));
        if let Some(Err(mpsc::error::TrySendError::Full(_))) = sent {
            self.streams.remove(to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run that nobody changes.
    struct Unchanged;

    impl Run for Unchanged {
        async fn commit(&self, _: Snapshot) -> Result<(), NotCommitted> {
            Err(NotCommitted::Failed)
        }

        async fn conclude(&self, _: Outcome) -> Result<(), LeaseLost> {
            Err(LeaseLost)
        }

        async fn release(&self) {}

        fn show(&self, _: &Shortage) {}

        fn hear(&self, _: HostName, _: GenerationId, _: Note) {}
    }

    #[tokio::test]
    async fn the_call_of_a_host_with_a_full_queue_ends() {
        let limits = Limits { min: 1, max: 1, parts: None, has_reducers: false };
        let mut conductor = Conductor {
            leader: Leader::new(Duration::ZERO, 1, limits, None),
            began: Instant::now(),
            run: Arc::new(Unchanged),
            streams: BTreeMap::new(),
            writes: JoinSet::new(),
            ended: Ended::Deposed,
        };
        let host = HostName::named("host");
        let (stream, mut queue) = mpsc::channel(1);
        conductor.hear(Heard::Opened(host.clone(), stream));
        conductor.send(&host, ToMember::Lead);
        assert_eq!(queue.recv().await, Some(ToMember::Lead));
        assert_eq!(queue.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
    }
}
