//! The jobs in which this host takes part: answers the calls of their leaders.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::{Stream, StreamExt};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::part::{self, Input, ReplySender, State, Workers};
use super::wire::decode_from_leader;
use super::{QUEUE, RunAddress};
use crate::HostName;
use crate::generations::member::Event;
use crate::generations::{Offer, Outcome, SILENCE};
use crate::link::refusal;
use crate::proto::from_leader::Message;
use crate::proto::{FollowOpening, FromLeader, FromMember};

/// The most jobs of a host.
pub const MAX_JOBS: usize = 64;

/// Decides whether this host takes part in a job, given the address of its run and the host of its leader.
pub type Accept = Box<dyn Fn(&RunAddress, &HostName) -> Option<Accepted> + Send + Sync>;

/// How this host takes part in a job.
pub struct Accepted {
    /// What it can run.
    pub offer: Offer,
    /// Runs that.
    pub workers: Box<dyn Workers>,
}

/// The replies to a leader.
pub(crate) type Replies = Pin<Box<dyn Stream<Item = Result<FromMember, Status>> + Send>>;

/// The jobs in which a host takes part. Dropping it drops their workers.
pub struct Jobs {
    accept: Accept,
    jobs: Mutex<Known>,
    /// The number of the last call.
    calls: AtomicU64,
}

#[derive(Default)]
struct Known {
    is_draining: bool,
    jobs: HashMap<RunAddress, Job>,
}

#[derive(Clone)]
struct Job {
    inbox: mpsc::Sender<Input>,
    state: watch::Receiver<State>,
}

impl Jobs {
    pub(crate) fn new(accept: Accept) -> Self {
        Self { accept, jobs: Mutex::default(), calls: AtomicU64::new(0) }
    }

    /// Whether the daemon may take the lease of a job: the host follows no leader of it, and does not leave.
    pub fn may_lead(&self, run: &RunAddress) -> bool {
        let known = self.known();
        !known.is_draining && known.jobs.get(run).is_none_or(|job| job.state.borrow().may_lead)
    }

    /// Changes how many ranks of a job the host can run.
    pub async fn offer(&self, run: &RunAddress, offer: Offer) {
        self.report(run, Event::Offer(offer)).await;
    }

    /// The run says that the job has ended.
    pub async fn over(&self, run: &RunAddress, outcome: Outcome) {
        self.report(run, Event::Over(outcome)).await;
    }

    /// Leaves a job at its next step boundary. Returns once it has no workers of the host. The host takes part again if a leader
    /// calls and the daemon accepts.
    pub async fn leave(&self, run: &RunAddress) {
        self.report(run, Event::Drain).await;
        let job = self.known().jobs.get(run).cloned();
        let Some(mut job) = job else { return };
        // Fails if the job is over.
        let _ = job.state.wait_for(|state| state.is_idle).await;
        self.forget(run).await;
    }

    /// Leaves a job now. Its workers are dropped.
    pub async fn forget(&self, run: &RunAddress) {
        let job = self.known().jobs.remove(run);
        if let Some(job) = job {
            // Fails if the job is over.
            let _ = job.inbox.send(Input::Leave).await;
        }
    }

    /// The daemon is about to exit: leaves all jobs at their next step boundaries, and takes part in no further ones.
    pub async fn drain(&self) {
        let jobs: Vec<_> = {
            let mut known = self.known();
            known.is_draining = true;
            known.jobs.values().cloned().collect()
        };
        for job in jobs {
            // Fails if the job is over.
            let _ = job.inbox.send(Input::Event(Event::Drain)).await;
        }
    }

    /// Waits until no job has workers, or waits to start some. A draining daemon may exit then.
    pub async fn idle(&self) {
        loop {
            let busy = self.known().jobs.values().find(|job| !job.is_idle()).cloned();
            let Some(mut job) = busy else { return };
            // Fails if the job is over.
            let _ = job.state.wait_for(|state| state.is_idle).await;
        }
    }

    /// Answers a call of a leader on the host `caller`.
    ///
    /// # Errors
    /// If this host takes no part in the job.
    pub(crate) async fn answer(
        &self,
        caller: &HostName,
        mut messages: Streaming<FromLeader>,
    ) -> Result<Replies, Status> {
        let first = timeout(SILENCE, messages.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("the call names no job in time"))??;
        let Some(Message::Opening(FollowOpening { run, epoch })) = first.and_then(|first| first.message)
        else {
            return Err(Status::invalid_argument("the call names no job"));
        };
        let run = RunAddress::parse(&run).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let inbox = self.find(&run, caller)?.inbox;
        let (replies, queue) = mpsc::channel(QUEUE);
        let (open, closed) = oneshot::channel();
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let opened = Input::Opened { from: caller.clone(), number, replies: replies.clone(), open };
        let over = |_| Status::unavailable("this host's part in the job has just ended");
        inbox.send(opened).await.map_err(over)?;
        let call = Call { from: caller.clone(), number, epoch, inbox };
        tokio::spawn(call.hear(messages, replies, closed));
        Ok(ReceiverStream::new(queue).boxed())
    }

    /// The job, in which this host takes part from now on if the daemon agrees.
    fn find(&self, run: &RunAddress, leader: &HostName) -> Result<Job, Status> {
        let mut known = self.known();
        known.jobs.retain(|_, job| !job.inbox.is_closed());
        if let Some(job) = known.jobs.get(run) {
            return Ok(job.clone());
        }
        if known.is_draining {
            return Err(Status::unavailable("this host is about to leave"));
        }
        if known.jobs.len() >= MAX_JOBS {
            return Err(Status::resource_exhausted(format!("this host takes part in {MAX_JOBS} jobs")));
        }
        let accepted = (self.accept)(run, leader);
        let accepted = accepted.ok_or_else(|| Status::not_found("this host takes no part in the job"))?;
        let (inbox, state) = part::start(accepted.offer, accepted.workers);
        let job = Job { inbox, state };
        known.jobs.insert(run.clone(), job.clone());
        Ok(job)
    }

    async fn report(&self, run: &RunAddress, event: Event) {
        let job = self.known().jobs.get(run).cloned();
        if let Some(job) = job {
            // Fails if the job is over.
            let _ = job.inbox.send(Input::Event(event)).await;
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job {
    fn is_idle(&self) -> bool {
        self.inbox.is_closed() || self.state.borrow().is_idle
    }
}

/// A call of a leader.
struct Call {
    from: HostName,
    number: u64,
    epoch: u64,
    inbox: mpsc::Sender<Input>,
}

impl Call {
    /// Passes its messages to the member until the call or the member's stream ends.
    async fn hear(
        self,
        messages: Streaming<FromLeader>,
        replies: ReplySender,
        closed: oneshot::Receiver<()>,
    ) {
        let ended = tokio::select! {
            ended = self.pass_on(messages) => ended,
            _ = closed => Ok(()),
        };
        if let Err(status) = ended {
            tracing::debug!("the call of the leader on {} ended: {}", self.from, refusal(&status));
            // The caller may be gone.
            let _ = replies.try_send(Err(status));
        }
        // Fails if the job is over.
        let _ = self.inbox.send(Input::Closed { from: self.from, number: self.number }).await;
    }

    async fn pass_on(&self, mut messages: Streaming<FromLeader>) -> Result<(), Status> {
        while let Some(message) = messages.message().await? {
            let message = decode_from_leader(message);
            let message = message.map_err(|error| Status::invalid_argument(error.to_string()))?;
            let event = Event::Message { from: self.from.clone(), epoch: self.epoch, message };
            let message = Input::Message { number: self.number, event };
            if self.inbox.send(message).await.is_err() {
                break;
            }
        }
        Ok(())
    }
}
