//! The leader: decides which hosts train together, from which step, and which checkpoints count.
//!
//! It exists as long as the daemon holds the lease of the job's run in one term, and starts with what that daemon read there
//! after it took the lease.

mod advance;
mod event;

use std::sync::Arc;
use std::time::Duration;

pub use event::{Action, Event};

use super::generation::{Blame, Generation, Stage};
use super::hosts::{HostTimer, Hosts, Limits, Shortage};
use super::tries::Tries;
use super::{BOUNDARY_TIMEOUT, COMMIT_RETRY, END_TIMEOUT, JOIN_TIMEOUT, SETTLE, SILENCE};
use super::{GenerationId, Note, Outcome, Reason, Snapshot, ToLeader, ToMember, When};
use crate::HostName;

/// The state machine of the leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Leader {
    epoch: u64,
    /// The number of the last generation.
    number: u64,
    hosts: Hosts,
    /// The newest committed checkpoint.
    checkpoint: Option<Snapshot>,
    tries: Tries,
    current: Option<Generation>,
    /// No generation is proposed before this time.
    waits_until: Option<Duration>,
    commit: Commit,
    /// The host that failed last, without progress since.
    suspect: Option<HostName>,
    is_draining: bool,
    outcome: Option<Outcome>,
    is_over: bool,
    shortage: Option<Shortage>,
    actions: Vec<Action>,
}

/// The commit of a checkpoint. At most one is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Commit {
    Idle,
    InFlight(Snapshot),
    /// One failed; the next may begin at this time.
    RetryAt(Duration),
}

/// A deadline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Timer {
    Host(HostTimer),
    Stage,
    Wait,
    Commit,
}

impl Leader {
    /// The leader of `epoch`, at `now`. `checkpoint` is the newest committed one, read after the lease was taken.
    pub fn new(now: Duration, epoch: u64, limits: Limits, checkpoint: Option<Snapshot>) -> Self {
        let mut tries = Tries::default();
        if let Some(checkpoint) = checkpoint {
            tries.on_step(checkpoint.step);
        }
        Self {
            epoch,
            number: 0,
            hosts: Hosts::new(limits),
            checkpoint,
            tries,
            current: None,
            waits_until: Some(now + SETTLE),
            commit: Commit::Idle,
            suspect: None,
            is_draining: false,
            outcome: None,
            is_over: false,
            shortage: None,
            actions: Vec::new(),
        }
    }

    /// The epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether it no longer leads: it is deposed, has released the lease, or the job has ended. It ignores all events.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// The generation whose workers may run.
    pub fn generation(&self) -> Option<GenerationId> {
        let current = self.current.as_ref().filter(|current| current.stage != Stage::Killing);
        current.filter(|_| !self.is_over).map(|current| current.id)
    }

    /// When to call [`Leader::on`] with [`Event::Tick`] if nothing else happens.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.timers().map(|(due, _)| due).min()
    }

    /// Handles an event at `now`. Deadlines that have passed are handled first: after a suspension, a late message is no
    /// sign of life.
    pub fn on(&mut self, now: Duration, event: Event) -> Vec<Action> {
        while let Some(timer) = self.due(now) {
            self.on_timer(now, timer);
        }
        self.on_event(now, event);
        std::mem::take(&mut self.actions)
    }

    /// The earliest deadline that has passed.
    fn due(&self, now: Duration) -> Option<Timer> {
        let due = self.timers().filter(|(due, _)| *due <= now).min();
        due.map(|(_, timer)| timer)
    }

    /// All deadlines, and when they are due.
    pub(super) fn timers(&self) -> impl Iterator<Item = (Duration, Timer)> {
        let stage = self.current.as_ref().and_then(|current| current.deadline);
        let commit = if let Commit::RetryAt(due) = self.commit { Some(due) } else { None };
        let own = [(stage, Timer::Stage), (self.waits_until, Timer::Wait), (commit, Timer::Commit)];
        let own = own.into_iter().filter_map(|(due, timer)| Some((due?, timer)));
        let hosts = self.hosts.timers().map(|(due, timer)| (due, Timer::Host(timer)));
        own.chain(hosts).filter(|_| !self.is_over)
    }

    /// Handles a deadline, whatever the time.
    pub(super) fn on_timer(&mut self, now: Duration, timer: Timer) {
        match timer {
            Timer::Host(HostTimer::Silence(host)) => {
                let why = format!("has not answered for {} s", SILENCE.as_secs());
                self.lose(now, &host, true, &why);
            }
            Timer::Host(HostTimer::Settled(host)) => self.hosts.settle(&host),
            Timer::Host(HostTimer::Return(host)) => self.hosts.bring_back(&host),
            Timer::Stage => self.on_stage_timeout(now),
            Timer::Wait => self.waits_until = None,
            Timer::Commit => self.commit = Commit::Idle,
        }
        self.advance(now);
    }

    fn on_event(&mut self, now: Duration, event: Event) {
        if self.is_over {
            return;
        }
        match event {
            Event::Opened(host) => self.on_opened(now, host),
            Event::Closed(host) => self.lose(now, &host, false, "has closed its connection"),
            Event::Message { from, epoch, message } => self.on_message(now, from, epoch, message),
            Event::Committed(checkpoint) => self.on_committed(checkpoint),
            Event::NotCommitted(checkpoint) if self.commit == Commit::InFlight(checkpoint) => {
                self.commit = Commit::RetryAt(now + COMMIT_RETRY);
            }
            Event::GivenUp(checkpoint) if self.commit == Commit::InFlight(checkpoint) => {
                self.commit = Commit::Idle;
                if let Some(current) = &mut self.current {
                    current.forget_attempt(checkpoint);
                }
            }
            Event::NotCommitted(_) | Event::GivenUp(_) | Event::Tick => {}
            Event::Concluded => self.on_concluded(),
            Event::Drain => self.is_draining = true,
            Event::Fail(why) => self.fail(now, why),
            Event::Note { generation, to, note } => self.pass_on(generation, to, &note),
            Event::LeaseLost => self.resign(),
        }
        self.advance(now);
    }

    fn on_opened(&mut self, now: Duration, host: HostName) {
        self.lose(now, &host, false, "has connected again");
        if self.hosts.open(now, host.clone()) {
            self.send(&host, ToMember::Lead);
        } else {
            self.actions.push(Action::Close(host));
        }
    }

    fn on_message(&mut self, now: Duration, from: HostName, epoch: u64, message: ToLeader) {
        if message == ToLeader::Deposed && epoch > self.epoch {
            return self.resign();
        }
        if epoch != self.epoch || !self.hosts.hear(now, &from) {
            return;
        }
        match message {
            ToLeader::Hello { sent, offer, holds, tries } => {
                self.tries.merge(tries);
                self.hosts.set_offer(&from, offer);
                self.on_holds(&from, holds);
                self.send(&from, ToMember::Answer { sent });
                if let Some(outcome) = self.outcome.clone().filter(|_| self.is_over) {
                    self.send(&from, ToMember::Over { outcome });
                }
            }
            ToLeader::Offer { offer } => self.hosts.set_offer(&from, offer),
            ToLeader::Beat { sent, step, holds } => {
                self.on_beat(step);
                self.on_holds(&from, holds);
                self.send(&from, ToMember::Answer { sent });
            }
            message => self.on_part(now, from, message),
        }
    }

    fn on_beat(&mut self, step: Option<(GenerationId, u64)>) {
        if let (Some(current), Some((generation, step))) = (&mut self.current, step)
            && current.id == generation
        {
            current.step = current.step.max(step);
        }
    }

    /// Handles a message about a generation. Those of earlier ones are ignored.
    fn on_part(&mut self, now: Duration, from: HostName, message: ToLeader) {
        let Some(current) = &mut self.current else { return };
        if message.generation() != Some(current.id) || !current.has(&from) {
            return;
        }
        match message {
            ToLeader::Joined { holds, addresses, .. } => {
                if !current.join(from.clone(), holds, addresses) {
                    let why = Reason::new("its workers report too few or too many addresses");
                    self.on_failure(now, from, why, true);
                }
            }
            ToLeader::Refused { why, .. } => self.on_failure(now, from, why, true),
            ToLeader::Lost { why, is_of_peer: true, .. } => {
                if current.stage != Stage::Killing {
                    current.blame = Blame::Unknown(why.clone());
                    self.kill(now, Some(why));
                }
            }
            ToLeader::Lost { why, .. } => self.on_failure(now, from, why, false),
            ToLeader::Saved { step, .. } => current.save(from, step),
            ToLeader::AtEnd { step, .. } => current.reach_end(from, step),
            ToLeader::Note { generation, note } => {
                self.actions.push(Action::Note { from, generation, note });
            }
            ToLeader::Ended { holds, .. } => {
                current.end(from.clone());
                // The others either end, too, or wait for it in vain.
                if current.stage == Stage::Running && !current.has_reached_end(&from) {
                    current.deadline.get_or_insert(now + END_TIMEOUT);
                    if current.blame == Blame::None {
                        let why = format!("the workers of host {from} have ended");
                        current.blame = Blame::Unknown(Reason::new(&why));
                    }
                }
                self.on_holds(&from, holds);
            }
            ToLeader::Hello { .. } | ToLeader::Deposed | ToLeader::Offer { .. } | ToLeader::Beat { .. } => {}
        }
    }

    fn on_holds(&mut self, host: &HostName, holds: Option<Snapshot>) {
        self.hosts.set_holds(host, holds);
        if let Some(image) = holds.filter(|image| image.contains(self.checkpoint)) {
            self.on_step(image.step);
        }
    }

    /// A new step is saved, in memory or for good.
    fn on_step(&mut self, step: u64) {
        if self.tries.on_step(step) {
            self.suspect = None;
            if let Some(current) = &self.current {
                self.hosts.on_progress(current.hosts());
            }
        }
    }

    /// A worker of `host` died or could not start.
    fn on_failure(&mut self, now: Duration, host: HostName, why: Reason, is_refusal: bool) {
        let Some(current) = &mut self.current else { return };
        let is_known = current.stage == Stage::Killing && !matches!(current.blame, Blame::Unknown(_));
        if is_known || current.blame == Blame::Known {
            return;
        }
        current.blame = Blame::Known;
        let why = Reason::new(&format!("host {host}: {why}"));
        self.tries.on_failure(why.clone());
        let before = self.suspect.replace(host.clone());
        if (is_refusal || before.as_ref() == Some(&host)) && self.hosts.leave_out(now, &host, why.clone()) {
            self.tries.renew();
        }
        self.back_off(now);
        self.kill(now, Some(why));
    }

    /// Waits after a failure, or ends the job.
    fn back_off(&mut self, now: Duration) {
        match self.tries.back_off() {
            Ok(delay) => self.waits_until = Some(now + delay),
            Err(reason) => self.outcome = Some(Outcome::Failed(reason)),
        }
    }

    /// A host is gone, as `why` says.
    fn lose(&mut self, now: Duration, host: &HostName, must_close: bool, why: &str) {
        if !self.hosts.close(host) {
            return;
        }
        if must_close {
            self.actions.push(Action::Close(host.clone()));
        }
        if let Some(current) = self.current.as_mut().filter(|current| current.has(host)) {
            current.end(host.clone());
            current.blame = Blame::Known;
            self.kill(now, Some(Reason::new(&format!("host {host} {why}"))));
        }
    }

    /// Ends the job at the next step boundary.
    fn fail(&mut self, now: Duration, why: Reason) {
        if self.outcome.is_some() {
            return;
        }
        let outcome = Outcome::Failed(why.clone());
        self.outcome = Some(outcome.clone());
        match self.current.as_ref().map(|current| (current.stage, current.step)) {
            None => self.actions.push(Action::Conclude(outcome)),
            Some((Stage::Running, step)) => {
                let when = When::AfterStep(step + 1);
                self.end((when, Some(why)), Stage::Stopping, now + BOUNDARY_TIMEOUT);
            }
            Some((Stage::Joining, _)) => self.kill(now, Some(why)),
            Some((Stage::Stopping | Stage::Killing, _)) => {}
        }
    }

    /// Passes a note to a host of the current generation, or to all hosts: those without workers follow it, too.
    fn pass_on(&mut self, generation: GenerationId, to: Option<HostName>, note: &Note) {
        let Some(current) = self.current.as_ref().filter(|current| current.id == generation) else { return };
        let hosts: Vec<_> = match to {
            Some(host) => current.hosts().filter(|known| **known == host).cloned().collect(),
            None => self.hosts.connected().cloned().collect(),
        };
        hosts.iter().for_each(|host| self.send(host, ToMember::Note { generation, note: Arc::clone(note) }));
    }

    /// Ends the current generation now.
    fn kill(&mut self, now: Duration, why: Option<Reason>) {
        if self.current.as_ref().is_some_and(|current| current.stage != Stage::Killing) {
            self.end((When::Now, why), Stage::Killing, now + END_TIMEOUT);
        }
    }

    fn end(&mut self, (when, why): (When, Option<Reason>), stage: Stage, deadline: Duration) {
        let Some(current) = &mut self.current else { return };
        current.stage = stage;
        current.deadline = Some(deadline);
        let (generation, hosts) = (current.id, current.alive());
        let end = ToMember::End { generation, when, why };
        hosts.iter().for_each(|host| self.send(host, end.clone()));
    }

    fn on_stage_timeout(&mut self, now: Duration) {
        let Some(current) = &self.current else { return };
        match current.stage {
            Stage::Joining => {
                let mut late = None;
                for host in current.missing() {
                    let why =
                        format!("host {host} has not started its workers in {} s", JOIN_TIMEOUT.as_secs());
                    self.hosts.leave_out(now, &host, Reason::new(&why));
                    late = Some(Reason::new(&why));
                }
                self.kill(now, late);
            }
            Stage::Running | Stage::Stopping => {
                self.kill(now, Some(Reason::new("some workers have not stopped in time")));
            }
            // They do not answer, or their workers do not exit.
            Stage::Killing => {
                let why = "has not ended its workers";
                current.alive().iter().for_each(|host| self.lose(now, host, true, why));
            }
        }
    }

    fn on_committed(&mut self, checkpoint: Snapshot) {
        if self.commit == Commit::InFlight(checkpoint) {
            self.commit = Commit::Idle;
            self.checkpoint = Some(checkpoint);
            self.on_step(checkpoint.step);
        }
    }

    fn on_concluded(&mut self) {
        let Some(outcome) = self.outcome.clone() else { return };
        let hosts: Vec<_> = self.hosts.connected().cloned().collect();
        hosts.iter().for_each(|host| self.send(host, ToMember::Over { outcome: outcome.clone() }));
        self.is_over = true;
    }

    /// Leads no longer. Members notice at once, as their streams end.
    fn resign(&mut self) {
        self.is_over = true;
        self.actions.extend(self.hosts.connected().cloned().map(Action::Close));
    }

    /// Sends a message to a host, if it is connected.
    fn send(&mut self, to: &HostName, message: ToMember) {
        if self.hosts.is_connected(to) {
            self.actions.push(Action::Send { to: to.clone(), message });
        }
    }
}

#[cfg(test)]
impl Leader {
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
