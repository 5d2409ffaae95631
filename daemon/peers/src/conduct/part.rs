//! This host's part in a job: the member's state machine with a clock, streams of leaders, and workers.

use std::collections::{BTreeMap, HashMap};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tonic::Status;

use super::wire::{MAX_ADDRESS_BYTES, encode_from_member};
use super::{QUEUE, wait_until};
use crate::HostName;
use crate::generations::member::{Action, Event, Member, WorkerEvent};
use crate::generations::{
    Address, Assignment, GenerationId, Note, Offer, Outcome, Reason, Start, ToLeader, When,
};
use crate::proto::FromMember;

/// The most leaders that have streams to a member. All but one are deposed, or do not know yet that they lead no longer.
const MAX_LEADERS: usize = 8;

/// The workers of a job on this host. Methods must not block. Dropping it kills them.
pub trait Workers: Send {
    /// Starts the workers of a generation. No other ones exist. What happens to them goes to `reports`.
    fn spawn(&mut self, generation: GenerationId, assignment: Assignment, reports: Reports);

    /// Lets them train from `start`. A host without its image gets it from its sender; `addresses` are those of all workers,
    /// by rank.
    fn start(
        &mut self,
        generation: GenerationId,
        start: Start,
        senders: BTreeMap<HostName, HostName>,
        addresses: Vec<Address>,
    );

    /// Lets them save the model and exit after a common step, this one or a later one.
    fn stop_after(&mut self, generation: GenerationId, step: u64);

    /// They are about to stop or to be killed, for this reason.
    fn explain(&mut self, generation: GenerationId, when: When, why: Reason);

    /// Kills them. [`WorkerEvent::Gone`] is reported once all have exited.
    fn kill(&mut self, generation: GenerationId);

    /// Takes note of what the leader's daemon says about them.
    fn hear(&mut self, generation: GenerationId, note: Note);

    /// The job has ended.
    fn over(&mut self, outcome: Outcome);
}

/// Takes reports about the workers of a generation.
#[derive(Clone, Debug)]
pub struct Reports {
    generation: GenerationId,
    sender: mpsc::Sender<(GenerationId, WorkerEvent)>,
}

impl Reports {
    /// Reports an event; waits while many are unread. Reports of a job that is over are dropped.
    pub async fn send(&self, event: WorkerEvent) {
        let _ = self.sender.send((self.generation, event)).await;
    }

    /// [`Reports::send`] for threads.
    ///
    /// # Panics
    /// Within a tokio runtime.
    pub fn blocking_send(&self, event: WorkerEvent) {
        let _ = self.sender.blocking_send((self.generation, event));
    }
}

/// Takes replies to a leader.
pub(super) type ReplySender = mpsc::Sender<Result<FromMember, Status>>;

/// What reaches a part.
pub(super) enum Input {
    /// A leader has opened a stream, which replaces an earlier one of its host. The part ends it by dropping `replies` and
    /// `open`.
    Opened { from: HostName, number: u64, replies: ReplySender, open: oneshot::Sender<()> },
    /// A message of a stream.
    Message { number: u64, event: Event },
    /// A stream has ended.
    Closed { from: HostName, number: u64 },
    /// An event of the daemon.
    Event(Event),
    /// This host leaves the job.
    Leave,
}

/// The state of a part, as the daemon sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) may_lead: bool,
    pub(super) is_idle: bool,
}

/// A stream of a leader.
struct LeaderStream {
    number: u64,
    /// Ends the stream when dropped.
    open: Option<(ReplySender, oneshot::Sender<()>)>,
}

struct Part {
    member: Member,
    /// Time zero of the state machine.
    began: Instant,
    workers: Box<dyn Workers>,
    streams: HashMap<HostName, LeaderStream>,
    reports: mpsc::Sender<(GenerationId, WorkerEvent)>,
    state: watch::Sender<State>,
    is_over: bool,
}

/// Starts a part. It ends when all senders of its inbox are dropped, or the job is over and its workers are gone.
pub(super) fn start(
    offer: Offer,
    workers: Box<dyn Workers>,
) -> (mpsc::Sender<Input>, watch::Receiver<State>) {
    let (inbox, inputs) = mpsc::channel(QUEUE);
    let (reports, reported) = mpsc::channel(QUEUE);
    let member = Member::new(offer);
    let (state, states) = watch::channel(State::of(&member));
    let (began, streams) = (Instant::now(), HashMap::new());
    let part = Part { member, began, workers, streams, reports, state, is_over: false };
    tokio::spawn(part.run(inputs, reported));
    (inbox, states)
}

impl State {
    fn of(member: &Member) -> Self {
        Self { may_lead: member.may_lead(), is_idle: member.is_idle() }
    }
}

impl Part {
    async fn run(
        mut self,
        mut inputs: mpsc::Receiver<Input>,
        mut reported: mpsc::Receiver<(GenerationId, WorkerEvent)>,
    ) {
        while !(self.is_over && self.member.is_idle()) {
            tokio::select! {
                input = inputs.recv() => match input {
                    Some(Input::Leave) | None => return,
                    Some(input) => self.take(input),
                },
                Some((generation, event)) = reported.recv() => {
                    self.on(Event::Workers(generation, checked(event)));
                }
                () = wait_until(self.began, self.member.next_deadline()) => self.on(Event::Tick),
            }
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Opened { from, number, replies, open } => {
                self.close(&from, None);
                if self.streams.len() < MAX_LEADERS {
                    self.streams.insert(from, LeaderStream { number, open: Some((replies, open)) });
                }
            }
            Input::Message { number, event } => {
                if self.streams.values().any(|stream| stream.number == number) {
                    self.on(event);
                }
            }
            Input::Closed { from, number } => self.close(&from, Some(number)),
            Input::Event(event) => self.on(event),
            Input::Leave => {}
        }
    }

    /// Ends the stream of a leader, or only if it has this number.
    fn close(&mut self, host: &HostName, number: Option<u64>) {
        let is_meant = |stream: &LeaderStream| number.is_none_or(|number| number == stream.number);
        if self.streams.get(host).is_some_and(is_meant) {
            self.streams.remove(host);
            self.on(Event::Closed(host.clone()));
        }
    }

    fn on(&mut self, event: Event) {
        let actions = self.member.on(self.began.elapsed(), event);
        actions.into_iter().for_each(|action| self.carry_out(action));
        let state = State::of(&self.member);
        self.state.send_if_modified(|old| std::mem::replace(old, state) != state);
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Send { to, epoch, message } => self.send(&to, epoch, message),
            Action::Close(host) => drop(self.streams.remove(&host)),
            Action::Spawn { generation, assignment } => {
                let reports = Reports { generation, sender: self.reports.clone() };
                self.workers.spawn(generation, assignment, reports);
            }
            Action::Start { generation, start, senders, addresses } => {
                self.workers.start(generation, start, senders, addresses);
            }
            Action::StopAfter(generation, step) => self.workers.stop_after(generation, step),
            Action::Explain(generation, when, why) => self.workers.explain(generation, when, why),
            Action::Kill(generation) => self.workers.kill(generation),
            Action::Note(generation, note) => self.workers.hear(generation, note),
            Action::Over(outcome) => {
                self.is_over = true;
                self.workers.over(outcome);
            }
        }
    }

    /// Queues a message. Ends the stream if the queue is full: the leader does not read.
    fn send(&mut self, to: &HostName, epoch: u64, message: ToLeader) {
        let Some(stream) = self.streams.get_mut(to) else { return };
        let Some((replies, _)) = &stream.open else { return };
        let sent = replies.try_send(Ok(encode_from_member(epoch, message)));
        if let Err(mpsc::error::TrySendError::Full(_)) = sent {
            stream.open = None;
        }
    }
}

/// The event, unless the leader would refuse its addresses.
fn checked(event: WorkerEvent) -> WorkerEvent {
    match &event {
        WorkerEvent::Ready(addresses)
            if addresses.iter().any(|address| address.len() > MAX_ADDRESS_BYTES) =>
        {
            WorkerEvent::Died(Reason::new(&format!("its address is longer than {MAX_ADDRESS_BYTES} bytes")))
        }
        _ => event,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generations::{Role, ToMember};
    use crate::proto::from_member::Message;

    /// Starts nothing.
    struct Idle;

    impl Workers for Idle {
        fn spawn(&mut self, _: GenerationId, _: Assignment, _: Reports) {}
        fn start(&mut self, _: GenerationId, _: Start, _: BTreeMap<HostName, HostName>, _: Vec<Address>) {}
        fn stop_after(&mut self, _: GenerationId, _: u64) {}
        fn explain(&mut self, _: GenerationId, _: When, _: Reason) {}
        fn kill(&mut self, _: GenerationId) {}
        fn hear(&mut self, _: GenerationId, _: Note) {}
        fn over(&mut self, _: Outcome) {}
    }

    type Queue = mpsc::Receiver<Result<FromMember, Status>>;

    /// Stream `number`, of a leader on `host`, which has room for `room` replies.
    async fn open(
        inbox: &mpsc::Sender<Input>,
        host: &str,
        number: u64,
        room: usize,
    ) -> (Queue, oneshot::Receiver<()>) {
        let (replies, queue) = mpsc::channel(room);
        let (open, closed) = oneshot::channel();
        let opened = Input::Opened { from: HostName::named(host), number, replies, open };
        assert!(inbox.send(opened).await.is_ok());
        (queue, closed)
    }

    fn offer(count: u32) -> Offer {
        Offer { role: Role::Train, count }
    }

    /// Its first message.
    async fn lead(inbox: &mpsc::Sender<Input>, (host, epoch): (&str, u64), number: u64) {
        let event = Event::Message { from: HostName::named(host), epoch, message: ToMember::Lead };
        assert!(inbox.send(Input::Message { number, event }).await.is_ok());
    }

    #[tokio::test]
    async fn the_stream_of_a_leader_that_does_not_read_ends() {
        let (inbox, mut state) = start(offer(1), Box::new(Idle));
        let (_unread, closed) = open(&inbox, "leader", 1, 1).await;
        lead(&inbox, ("leader", 1), 1).await;
        assert!(inbox.send(Input::Event(Event::Offer(offer(3)))).await.is_ok());
        assert!(closed.await.is_err(), "the second reply finds no room");
        assert!(!state.borrow_and_update().may_lead);
        assert!(inbox.send(Input::Closed { from: HostName::named("leader"), number: 1 }).await.is_ok());
        assert!(state.wait_for(|state| state.may_lead).await.is_ok(), "it has no leader");
    }

    #[tokio::test]
    async fn a_second_stream_of_a_host_replaces_the_first() {
        let (inbox, mut state) = start(offer(1), Box::new(Idle));
        let (_first, first_closed) = open(&inbox, "leader", 1, 9).await;
        lead(&inbox, ("leader", 1), 1).await;
        assert!(state.wait_for(|state| !state.may_lead).await.is_ok());
        let (mut second, _second_open) = open(&inbox, "leader", 2, 9).await;
        assert!(first_closed.await.is_err());
        assert!(state.wait_for(|state| state.may_lead).await.is_ok(), "nobody leads yet");
        lead(&inbox, ("leader", 1), 2).await;
        // Both come too late.
        lead(&inbox, ("leader", 1), 1).await;
        assert!(inbox.send(Input::Closed { from: HostName::named("leader"), number: 1 }).await.is_ok());
        assert!(inbox.send(Input::Event(Event::Offer(offer(3)))).await.is_ok());
        let mut messages = Vec::new();
        while messages.len() < 2 {
            messages.extend(second.recv().await.and_then(Result::ok).and_then(|reply| reply.message));
        }
        assert!(matches!(&messages[..], [Message::Hello(_), Message::Offer(_)]), "{messages:?}");
        assert!(!state.borrow().may_lead);
    }

    #[tokio::test]
    async fn the_stream_of_a_leader_ends_when_there_is_a_later_one() {
        let (inbox, _state) = start(offer(1), Box::new(Idle));
        let (_unread, closed) = open(&inbox, "leader", 1, 9).await;
        lead(&inbox, ("leader", 1), 1).await;
        let (mut queue, _open) = open(&inbox, "other", 2, 9).await;
        lead(&inbox, ("other", 2), 2).await;
        assert!(closed.await.is_err());
        let hello = queue.recv().await.and_then(Result::ok);
        assert!(hello.is_some_and(|hello| hello.epoch == 2));
    }

    #[tokio::test]
    async fn a_part_ends_with_its_job() {
        let (inbox, _) = start(offer(1), Box::new(Idle));
        let (_unread, closed) = open(&inbox, "leader", 1, 9).await;
        lead(&inbox, ("leader", 1), 1).await;
        assert!(inbox.send(Input::Event(Event::Over(Outcome::Finished))).await.is_ok());
        assert!(closed.await.is_err());
        inbox.closed().await;
    }

    #[test]
    fn a_worker_with_a_long_address_counts_as_dead() {
        let ready = |bytes: usize| WorkerEvent::Ready(vec![Address::from(vec![0; bytes])]);
        assert_eq!(checked(ready(MAX_ADDRESS_BYTES)), ready(MAX_ADDRESS_BYTES));
        assert!(matches!(checked(ready(MAX_ADDRESS_BYTES + 1)), WorkerEvent::Died(_)));
    }
}
