//! The member of a host: runs the workers of the generations that its leader proposes.
//!
//! Every host has one, the leader's too. A member follows the leader of the highest epoch that has reached it. It counts the time
//! since it *sent* the last message that the leader has answered. So delays in the network never prolong the life of its
//! workers: [`SILENCE`] after a leader has given a host up, they are dead.

mod event;

use std::time::Duration;

pub use event::{Action, Event, WorkerEvent};

use super::tries::Tries;
use super::{
    Assignment, BEAT, GenerationId, Offer, Outcome, Reason, SILENCE, Snapshot, ToLeader, ToMember, When,
};
use crate::HostName;

/// The state machine of a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// What it can run.
    offer: Offer,
    is_draining: bool,
    /// The highest epoch seen.
    epoch: u64,
    leader: Option<Followed>,
    /// The newest image that is whole.
    holds: Option<Snapshot>,
    part: Option<Part>,
    /// The proposal that waits for the workers of an earlier generation to exit.
    next: Option<(GenerationId, Assignment)>,
    tries: Tries,
    outcome: Option<Outcome>,
    actions: Vec<Action>,
}

/// The leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Followed {
    host: HostName,
    /// When the last message was sent that it answered.
    answered: Duration,
    next_beat: Duration,
}

/// The host's part in a generation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Part {
    generation: GenerationId,
    stage: Stage,
    step: u64,
    /// Whether the leader waits for the workers' end.
    owes_end: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Starting,
    Joined,
    Training,
    Stopping,
    AtEnd,
    Dying,
}

/// A deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Timer {
    /// The leader has not answered for too long.
    Silence,
    Beat,
}

impl Member {
    /// A member that can run what it offers.
    pub fn new(offer: Offer) -> Self {
        Self {
            offer,
            is_draining: false,
            epoch: 0,
            leader: None,
            holds: None,
            part: None,
            next: None,
            tries: Tries::default(),
            outcome: None,
            actions: Vec::new(),
        }
    }

    /// Whether its daemon may take the lease: it has no leader, and does not leave.
    pub fn may_lead(&self) -> bool {
        self.leader.is_none() && !self.is_draining && self.outcome.is_none()
    }

    /// Whether no workers exist or wait to be started: a draining daemon may exit.
    pub fn is_idle(&self) -> bool {
        self.part.is_none() && self.next.is_none()
    }

    /// When to call [`Member::on`] with [`Event::Tick`] if nothing else happens.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.timers().map(|(due, _)| due).min()
    }

    /// Handles an event at `now`. Deadlines that have passed are handled first.
    pub fn on(&mut self, now: Duration, event: Event) -> Vec<Action> {
        while let Some((_, timer)) = self.timers().filter(|(due, _)| *due <= now).min() {
            self.on_timer(now, timer);
        }
        self.on_event(now, event);
        std::mem::take(&mut self.actions)
    }

    /// All deadlines, and when they are due.
    pub(super) fn timers(&self) -> impl Iterator<Item = (Duration, Timer)> {
        self.leader
            .iter()
            .flat_map(|leader| [(leader.answered + SILENCE, Timer::Silence), (leader.next_beat, Timer::Beat)])
    }

    /// Handles a deadline, whatever the time.
    pub(super) fn on_timer(&mut self, now: Duration, timer: Timer) {
        match timer {
            Timer::Silence => self.lose_leader(true),
            Timer::Beat => {
                if let Some(leader) = &mut self.leader {
                    leader.next_beat = now + BEAT;
                    let trains = |part: &&Part| matches!(part.stage, Stage::Training | Stage::Stopping);
                    let step = self.part.as_ref().filter(trains).map(|part| (part.generation, part.step));
                    self.send(ToLeader::Beat { sent: now, step, holds: self.holds });
                }
            }
        }
    }

    fn on_event(&mut self, now: Duration, event: Event) {
        match event {
            Event::Message { from, epoch, message } => self.on_message(now, from, epoch, message),
            Event::Closed(host) if self.follows(&host) => self.lose_leader(false),
            Event::Closed(_) | Event::Tick => {}
            Event::Workers(generation, event) => self.on_workers(generation, event),
            Event::Offer(offer) => self.set_offer(offer),
            Event::Drain => {
                self.is_draining = true;
                self.set_offer(Offer { count: 0, ..self.offer });
            }
            Event::Over(outcome) => self.on_over(outcome),
        }
    }

    fn on_message(&mut self, now: Duration, from: HostName, epoch: u64, message: ToMember) {
        if message == ToMember::Lead {
            return self.on_lead(now, from, epoch);
        }
        if epoch != self.epoch || !self.follows(&from) {
            return;
        }
        match message {
            ToMember::Lead => {}
            ToMember::Answer { sent } => {
                if let Some(leader) = &mut self.leader {
                    leader.answered = leader.answered.max(sent.min(now));
                }
            }
            ToMember::Propose { generation, assignment, tries } => {
                self.tries.merge(tries);
                self.on_propose(generation, assignment);
            }
            ToMember::Begin { generation, start, senders, addresses } => {
                if let Some(part) = self.part_in(generation, Stage::Joined) {
                    (part.stage, part.step) = (Stage::Training, start.step());
                    self.actions.push(Action::Start { generation, start, senders, addresses });
                }
            }
            ToMember::End { generation, when, why } => self.on_end(generation, when, why),
            ToMember::Over { outcome } => self.on_over(outcome),
            ToMember::Note { generation, note } => {
                // Without workers, it is about those of other hosts.
                let is_running = |part: &Part| part.generation == generation && part.stage != Stage::Dying;
                if self.part.as_ref().is_none_or(is_running) {
                    self.actions.push(Action::Note(generation, note));
                }
            }
        }
    }

    /// A leader has opened a stream. What the last one has started ends: it or this stream's predecessor is gone.
    fn on_lead(&mut self, now: Duration, from: HostName, epoch: u64) {
        if epoch < self.epoch {
            let message = ToLeader::Deposed;
            self.actions.push(Action::Send { to: from, epoch: self.epoch, message });
            return;
        }
        let is_other = !self.follows(&from);
        self.lose_leader(is_other);
        self.epoch = epoch;
        self.leader = Some(Followed { host: from, answered: now, next_beat: now + BEAT });
        let tries = self.tries.clone();
        self.send(ToLeader::Hello { sent: now, offer: self.offer, holds: self.holds, tries });
    }

    /// Kills what the leader has started.
    fn lose_leader(&mut self, must_close: bool) {
        if let (Some(leader), Some(generation)) = (&self.leader, self.running()) {
            let why = format!("host {} leads the job no longer", leader.host);
            self.actions.push(Action::Explain(generation, When::Now, Reason::new(&why)));
        }
        self.kill();
        if let Some(part) = &mut self.part {
            part.owes_end = false;
        }
        self.next = None;
        if let Some(leader) = self.leader.take().filter(|_| must_close) {
            self.actions.push(Action::Close(leader.host));
        }
    }

    fn on_propose(&mut self, generation: GenerationId, assignment: Assignment) {
        if self.part.is_none() {
            return self.spawn(generation, assignment);
        }
        self.kill();
        self.next = Some((generation, assignment));
    }

    fn spawn(&mut self, generation: GenerationId, assignment: Assignment) {
        self.part = Some(Part { generation, stage: Stage::Starting, step: 0, owes_end: false });
        self.actions.push(Action::Spawn { generation, assignment });
    }

    fn on_end(&mut self, generation: GenerationId, when: When, why: Option<Reason>) {
        self.next.take_if(|(next, _)| *next == generation);
        let part = self.part.as_mut().filter(|part| part.generation == generation);
        let Some(part) = part else {
            return self.send(ToLeader::Ended { generation, holds: self.holds });
        };
        part.owes_end = true;
        if let Some(why) = why.filter(|_| part.stage != Stage::Dying) {
            self.actions.push(Action::Explain(generation, when, why));
        }
        match (when, part.stage) {
            (When::AfterStep(step), Stage::Training) => {
                part.stage = Stage::Stopping;
                self.actions.push(Action::StopAfter(generation, step));
            }
            (When::AfterStep(_), Stage::Stopping) => {}
            _ => self.kill(),
        }
    }

    fn on_workers(&mut self, generation: GenerationId, event: WorkerEvent) {
        let Some(part) = self.part.as_mut().filter(|part| part.generation == generation) else { return };
        match event {
            WorkerEvent::Ready(addresses) => {
                if part.stage == Stage::Starting {
                    part.stage = Stage::Joined;
                    self.send(ToLeader::Joined { generation, holds: self.holds, addresses });
                }
            }
            WorkerEvent::Step(step) => part.step = step,
            // A worker that is killed may have completed it.
            WorkerEvent::Imaged(step) => self.holds = Some(Snapshot { generation, step }),
            WorkerEvent::Saved(step) => self.send(ToLeader::Saved { generation, step }),
            WorkerEvent::AtEnd(step) => self.on_data_end(step),
            WorkerEvent::Note(note) => self.send(ToLeader::Note { generation, note }),
            WorkerEvent::Died(why) => self.on_death(why, false),
            WorkerEvent::PeerLost(why) => self.on_death(why, true),
            WorkerEvent::Gone => self.on_gone(),
        }
    }

    fn on_data_end(&mut self, step: u64) {
        let Some(part) = &mut self.part else { return };
        let (generation, stage) = (part.generation, part.stage);
        match stage {
            Stage::Training => part.stage = Stage::AtEnd,
            Stage::Stopping => self.kill(),
            _ => return,
        }
        self.send(ToLeader::AtEnd { generation, step });
    }

    fn on_death(&mut self, why: Reason, is_of_peer: bool) {
        let Some(part) = &self.part else { return };
        let (generation, stage) = (part.generation, part.stage);
        if stage == Stage::Dying {
            return;
        }
        self.actions.push(Action::Explain(generation, When::Now, why.clone()));
        self.send(match stage {
            Stage::Starting => ToLeader::Refused { generation, why },
            _ => ToLeader::Lost { generation, why, is_of_peer },
        });
        self.kill();
    }

    fn on_gone(&mut self) {
        let Some(part) = self.part.take() else { return };
        let generation = part.generation;
        // Workers of another host may have received the stop request earlier than this one, and they all stop together.
        if part.owes_end || part.stage != Stage::Dying {
            self.send(ToLeader::Ended { generation, holds: self.holds });
        }
        if let Some((generation, assignment)) = self.next.take() {
            self.spawn(generation, assignment);
        }
    }

    fn on_over(&mut self, outcome: Outcome) {
        self.lose_leader(true);
        self.outcome = Some(outcome.clone());
        self.actions.push(Action::Over(outcome));
    }

    fn set_offer(&mut self, offer: Offer) {
        self.offer = offer;
        self.send(ToLeader::Offer { offer });
    }

    fn kill(&mut self) {
        if let Some(part) = self.part.as_mut().filter(|part| part.stage != Stage::Dying) {
            part.stage = Stage::Dying;
            self.actions.push(Action::Kill(part.generation));
        }
    }

    /// The generation whose workers it has started and not killed.
    pub(super) fn running(&self) -> Option<GenerationId> {
        self.part.as_ref().filter(|part| part.stage != Stage::Dying).map(|part| part.generation)
    }

    fn part_in(&mut self, generation: GenerationId, stage: Stage) -> Option<&mut Part> {
        self.part.as_mut().filter(|part| part.generation == generation && part.stage == stage)
    }

    fn follows(&self, host: &HostName) -> bool {
        self.leader.as_ref().is_some_and(|leader| leader.host == *host)
    }

    /// Sends a message to the leader, if there is one.
    fn send(&mut self, message: ToLeader) {
        if let Some(leader) = &self.leader {
            let (to, epoch) = (leader.host.clone(), self.epoch);
            self.actions.push(Action::Send { to, epoch, message });
        }
    }
}

#[cfg(test)]
impl Member {
    /// Handles an event without regard to deadlines: the search fires them one by one.
    pub(super) fn on_untimed(&mut self, event: Event) -> Vec<Action> {
        self.on_event(Duration::ZERO, event);
        std::mem::take(&mut self.actions)
    }

    /// Handles a deadline at any time.
    pub(super) fn fire(&mut self, timer: Timer) -> Vec<Action> {
        self.on_timer(Duration::ZERO, timer);
        std::mem::take(&mut self.actions)
    }
}
