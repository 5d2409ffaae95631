//! A session: the ranks of a run, from the opening of their feed to its end.

mod meeting;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use millstream_batch::{Count, HandOff, RingError, messages};
use millstream_pipeline::Error as DataError;
use millstream_pipeline::ingest::{IngestControl, IngestHandle, Peers};
use millstream_pipeline::order::Runs;

use super::budget::Reservation;
use super::open_feeds::ListedFeed;
use super::{Host, Member, Shared};
use crate::Error;
use crate::death;
use crate::error::named;
use crate::machines::{self, Machine, Met, Waiting};
use crate::opened::OpenedFeed;
use crate::protocol::{FromHost, ToHost};
use crate::spec::FeedSpec;

/// How many times as long as for each other at the start ranks wait for each other before an evaluation, and for the ranks of
/// other machines: their steps may take longer, and one may write a checkpoint.
const LONG_PATIENCE: u32 = 10;

/// How often it is checked whether ingest has ended.
const CHECK: Duration = Duration::from_millis(50);

/// Runs the session of all `members` of this host, which are in the order of their ranks.
pub(super) fn run(host: &Host, members: Vec<Member>) {
    let mut session = Session { members: members.into_iter().map(Seat::of).collect() };
    if let Err(end) = session.run(host) {
        // A host that ends cancels what it opens.
        session.announce(host.end().map_or(end, End::Failed));
    }
}

struct Session {
    /// By rank.
    members: Vec<Seat>,
}

/// The place of a rank in a session.
struct Seat {
    rank: u32,
    /// `None` once the rank has left.
    member: Option<Member>,
    /// The evaluation that it waits for.
    evaluation: Option<Request>,
    /// The list of all machines, once it has sent it.
    machines: Option<Vec<Machine>>,
    /// Whether it has taken the last batch, and may leave.
    is_finished: bool,
}

/// A rank's request for an evaluation.
struct Request {
    name: String,
    number: u32,
    since: Instant,
}

/// An evaluation, with the number of each rank's request.
struct Evaluating {
    feeding: Feeding,
    numbers: Vec<u32>,
    _memory: Reservation,
}

/// Why a session ends early.
enum End {
    Failed(Error),
    Lost { rank: u32, why: &'static str },
}

impl<E: Into<Error>> From<E> for End {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Ingest, and the thread that waits for its end.
struct Feeding {
    control: IngestControl,
    end: Receiver<Result<(), DataError>>,
    thread: JoinHandle<()>,
    /// The ranks of each machine, if each reads a shard.
    machines: Vec<Vec<u32>>,
}

impl Session {
    fn run(&mut self, host: &Host) -> Result<(), End> {
        let Some(first) = self.present().next() else { return Ok(()) };
        let (spec, state) =
            (FeedSpec::parse(&first.attach.feed, "feed".as_ref())?, first.attach.state.clone());
        // A machine that has all ranks has all data.
        let shard = first.attach.shard.clone().filter(|_| first.attach.local_world < first.attach.world);
        let (here, world) =
            (self.members.iter().map(|seat| seat.rank).collect::<Vec<_>>(), first.attach.world);
        // All ranks are processes of one user.
        let access = Arc::clone(&first.access);
        access.check_spec(&spec)?;
        let memory = host.0.budget.reserve(spec.data.memory_budget_bytes, "the feed")?;
        let ranks = here.len() as u32;
        let listed = host.0.feeds.add((access.user(), &first.attach.run), ranks, memory);
        let Shared { stores, runtime, .. } = &*host.0;
        let runs = Runs::new(world, &here).ok_or_else(|| Error::Failed("no such ranks".to_owned()))?;
        let waiting = shard.as_ref().map(Waiting::open).transpose()?;
        let meeting = waiting.as_ref().map(Waiting::meeting);
        let opened = OpenedFeed::open(spec, (&runs, meeting), state.as_ref(), &access, (stores, runtime))?;
        let (rings, hand_offs) = opened.create_rings()?;
        self.hand_over(|_| FromHost::Attached(opened.attached()), hand_offs)?;
        let met = waiting.map(|waiting| self.meet(host, &waiting, &opened)).transpose()?;
        let (shard, machines) = match met {
            Some(Met { others, shards, ranks }) => {
                (Some((Arc::new(others) as Arc<dyn Peers>, shards)), ranks)
            }
            None => (None, Vec::new()),
        };
        let training = Feeding::of(opened.start(rings, shard)?, machines)?;
        listed.trains(training.control.clone());
        let (id, user) = (listed.id(), access.user());
        tracing::info!(feed = id, uid = user, ranks, "feeding {}", Count(ranks.into(), "rank"));
        self.attend(host, &opened, (&training, &listed));
        training.stop();
        let delivered = listed.delivered();
        tracing::info!(
            feed = id,
            uid = user,
            rows = delivered.rows,
            batches = delivered.batches,
            "the feed has ended"
        );
        Ok(())
    }

    /// Waits a moment for the ranks, and notices what they have sent and which have left.
    fn wait_for_ranks(&mut self, host: &Host) -> Result<(), End> {
        if let Some(end) = host.end() {
            return Err(End::Failed(end));
        }
        death::wait(self.present().map(|member| (&member.socket, &member.process)), CHECK)?;
        self.listen()
    }

    /// Waits until all ranks have left or the session ends early, and does what they ask for.
    fn attend(&mut self, host: &Host, opened: &OpenedFeed, feed: (&Feeding, &ListedFeed)) {
        let mut evaluation: Option<Evaluating> = None;
        loop {
            match self.step(host, opened, feed, &mut evaluation) {
                Ok(true) => {}
                Ok(false) => break,
                // Before ingest is stopped, which takes time, and after which the ranks wait for the reason.
                Err(end) => {
                    self.announce(end);
                    break;
                }
            }
        }
        if let Some(evaluation) = evaluation {
            evaluation.stop(feed.1);
        }
    }

    /// Returns whether ranks are left.
    fn step(
        &mut self,
        host: &Host,
        opened: &OpenedFeed,
        (training, listed): (&Feeding, &ListedFeed),
        evaluation: &mut Option<Evaluating>,
    ) -> Result<bool, End> {
        self.wait_for_ranks(host)?;
        listed.set_attached(self.present().count() as u32);
        // What has ended training comes after the batches of an evaluation, which does not depend on it.
        if evaluation.is_none() {
            training.check()?;
        }
        if let Some(running) = evaluation.take_if(|running| running.feeding.has_ended()) {
            if let Err(error) = running.feeding.check() {
                self.fail_evaluation(&running.numbers, &error);
            }
            running.stop(listed);
        }
        if let Some(name) = self.wanted_evaluation(LONG_PATIENCE * host.0.patience)? {
            if let Some(earlier) = evaluation.take() {
                earlier.stop(listed);
            }
            *evaluation = self.evaluate(host, &name, opened)?;
            if let Some(running) = evaluation {
                listed.evaluates(running.feeding.control.clone());
            }
        }
        Ok(self.present().next().is_some())
    }

    /// Begins the evaluation that all ranks ask for; sends them the reason if it cannot.
    fn evaluate(&mut self, host: &Host, name: &str, opened: &OpenedFeed) -> Result<Option<Evaluating>, End> {
        let numbers =
            self.members.iter_mut().map(|seat| seat.evaluation.take().map_or(0, |asked| asked.number));
        let numbers: Vec<u32> = numbers.collect();
        let memory = host.0.budget.reserve(opened.evaluation_bytes(), "the evaluation");
        let started = memory.and_then(|memory| {
            let (ingest, hand_offs, identity) = opened.start_evaluation(name)?;
            Ok((Feeding::of(ingest, Vec::new())?, hand_offs, identity, memory))
        });
        let (feeding, hand_offs, identity, memory) = match started {
            Ok(started) => started,
            Err(error) => {
                self.fail_evaluation(&numbers, &error);
                return Ok(None);
            }
        };
        let schema = opened.attached().schema;
        let message = |place: usize| FromHost::EvalRing {
            number: numbers[place],
            schema: schema.clone(),
            identity: identity.clone(),
        };
        match self.hand_over(message, hand_offs) {
            Ok(()) => Ok(Some(Evaluating { feeding, numbers, _memory: memory })),
            Err(end) => {
                feeding.stop();
                Err(end)
            }
        }
    }

    fn fail_evaluation(&self, numbers: &[u32], error: &Error) {
        for (seat, &number) in self.members.iter().zip(numbers) {
            let message = FromHost::EvalFailed { number, message: error.to_string() };
            // It may have left meanwhile.
            let _ = seat.member.as_ref().map(|member| member.send(&message));
        }
    }

    /// Reads what the ranks have sent, and notices which have left.
    fn listen(&mut self) -> Result<(), End> {
        for seat in &mut self.members {
            let Some(member) = &seat.member else { continue };
            let mut why = None;
            while why.is_none() && death::wait_for(&member.socket, Duration::ZERO)? {
                match messages::receive(&mut &member.socket) {
                    Ok(Some(ToHost::Evaluate { name, number })) => {
                        seat.evaluation = Some(Request { name, number, since: Instant::now() });
                    }
                    Ok(Some(ToHost::Meet { mut machines })) => {
                        machines::sort(&mut machines);
                        seat.machines = Some(machines);
                    }
                    Ok(Some(ToHost::Finished)) => seat.is_finished = true,
                    Ok(None) => why = Some("it has closed its feed"),
                    Err(_) => why = Some("it has broken the connection"),
                }
            }
            if member.process.has_ended() {
                why = Some("its process has ended");
            }
            let Some(why) = why else { continue };
            seat.member = None;
            if !seat.is_finished {
                return Err(End::Lost { rank: seat.rank, why });
            }
        }
        Ok(())
    }

    /// The evaluation that all ranks ask for.
    fn wanted_evaluation(&self, patience: Duration) -> Result<Option<String>, End> {
        let mut asked = self.members.iter().filter_map(|seat| Some((seat.rank, seat.evaluation.as_ref()?)));
        let Some((first, Request { name, since, .. })) = asked.next() else { return Ok(None) };
        if let Some((rank, other)) = asked.find(|(_, other)| other.name != *name) {
            let other = &other.name;
            let message = format!(
                "rank {first} evaluates `{name}`, and rank {rank} `{other}`; all must evaluate the same"
            );
            return Err(Error::Failed(message).into());
        }
        let missing = self.members.iter().find(|seat| seat.evaluation.is_none());
        let Some(Seat { rank, member, .. }) = missing else { return Ok(Some(name.clone())) };
        if member.is_none() {
            return Err(End::Lost { rank: *rank, why: "it has left, and the others evaluate" });
        }
        if since.elapsed() > patience {
            let message = format!(
                "rank {rank} does not evaluate `{name}` though rank {first} has waited for that for {} s; all ranks must",
                patience.as_secs()
            );
            return Err(Error::Failed(message).into());
        }
        Ok(None)
    }

    /// Sends each rank the message of its place among those of this host, and its ring.
    fn hand_over(&self, message: impl Fn(usize) -> FromHost, hand_offs: Vec<HandOff>) -> Result<(), End> {
        for (place, (seat, hand_off)) in self.members.iter().zip(hand_offs).enumerate() {
            let sent = seat.member.as_ref().is_some_and(|member| {
                member.send(&message(place)).is_ok() && hand_off.send(&member.socket).is_ok()
            });
            if !sent {
                return Err(End::Lost { rank: seat.rank, why: "it left while the feed was opened" });
            }
        }
        Ok(())
    }

    /// The ranks that are left.
    fn present(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter_map(|seat| seat.member.as_ref())
    }

    /// Sends the ranks that are left the reason why the session ends.
    fn announce(&self, end: End) {
        let message = match end {
            End::Failed(error) => FromHost::Failed { message: error.to_string() },
            End::Lost { rank, why } => FromHost::Lost { rank, why: why.to_owned() },
        };
        for member in self.present() {
            // It may have left meanwhile.
            let _ = member.send(&message);
        }
    }
}

impl Evaluating {
    /// Ends it. No batch follows.
    fn stop(self, listed: &ListedFeed) {
        self.feeding.stop();
        listed.has_evaluated();
    }
}

impl Seat {
    fn of(member: Member) -> Self {
        Self {
            rank: member.rank(),
            member: Some(member),
            evaluation: None,
            machines: None,
            is_finished: false,
        }
    }
}

impl Feeding {
    fn of(ingest: IngestHandle, machines: Vec<Vec<u32>>) -> Result<Self, Error> {
        let control = ingest.control();
        let (sender, end) = channel();
        let wait = move || drop(sender.send(ingest.join().map(drop)));
        let thread = thread::Builder::new().name("feed-ingest".to_owned()).spawn(wait)?;
        Ok(Self { control, end, thread, machines })
    }

    fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Returns the error that has ended ingest. That a rank has left is none: its socket shows it.
    fn check(&self) -> Result<(), Error> {
        match self.end.try_recv() {
            Ok(Err(DataError::Cancelled | DataError::Ring(RingError::PeerGone | RingError::Interrupted))) => {
                Ok(())
            }
            Ok(Err(DataError::Peer { host, message })) => {
                let ranks = self.machines.get(host as usize).map(|ranks| named(ranks)).unwrap_or_default();
                Err(Error::Failed(format!(
                    "the machine of {ranks} has failed: {message}; all ranks have to attach again, with the state of the batch \
                     that they trained last"
                )))
            }
            Ok(ended) => Ok(ended?),
            Err(_) => Ok(()),
        }
    }

    /// Ends it. No batch follows.
    fn stop(self) {
        self.control.cancel();
        // It never panics: ingest returns panics as errors.
        let _ = self.thread.join();
    }
}
