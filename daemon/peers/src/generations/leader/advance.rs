//! What a leader does as soon as it can: propose, begin, commit, stop and end.

use std::time::Duration;

use super::super::generation::{Blame, Generation, Stage};
use super::super::{BOUNDARY_TIMEOUT, JOIN_TIMEOUT};
use super::super::{GenerationId, Outcome, Reason, Snapshot, ToMember, When};
use super::{Action, Commit, Leader};

impl Leader {
    /// Continues as far as possible without another event.
    pub(super) fn advance(&mut self, now: Duration) {
        if self.is_over {
            return;
        }
        self.begin_commit();
        match self.current.as_ref().map(|current| current.stage) {
            Some(Stage::Joining) => self.try_begin(now),
            Some(Stage::Running) => self.check_running(now),
            Some(Stage::Stopping | Stage::Killing) => self.try_finish_ending(now),
            None => {}
        }
        if self.current.is_none() && !self.is_over {
            self.try_propose(now);
        }
    }

    fn try_begin(&mut self, now: Duration) {
        let Some(current) = &mut self.current else { return };
        if !current.missing().is_empty() {
            return;
        }
        current.deadline = None;
        // It may become the newest checkpoint at any time.
        if matches!(self.commit, Commit::InFlight(_)) {
            return;
        }
        let begin = current.begin(self.checkpoint);
        current.stage = Stage::Running;
        let hosts: Vec<_> = current.hosts().cloned().collect();
        hosts.iter().for_each(|host| self.send(host, begin.clone()));
        self.check_running(now);
    }

    fn check_running(&mut self, now: Duration) {
        let Some(current) = &self.current else { return };
        if current.is_finished(self.checkpoint) {
            self.outcome = Some(Outcome::Finished);
            return self.kill(now, None);
        }
        let mut ranks = current.assignment.iter();
        let leaver = ranks.find(|(host, ranks)| !self.hosts.offers(host, **ranks)).map(|(host, _)| host);
        let why = match leaver {
            _ if self.is_draining => "the leader leaves the job".to_owned(),
            Some(host) => format!("host {host} leaves the job"),
            None if self.hosts.could_grow(&current.assignment) && !current.nears_end() => {
                "more workers can take part".to_owned()
            }
            None => return,
        };
        let when = When::AfterStep(current.step + 1);
        self.end((when, Some(Reason::new(&why))), Stage::Stopping, now + BOUNDARY_TIMEOUT);
    }

    fn try_finish_ending(&mut self, now: Duration) {
        let Some(current) = &self.current else { return };
        if !current.alive().is_empty() {
            return;
        }
        // A generation that stops commits its last step.
        let commits = self.commit != Commit::Idle || current.committable(self.checkpoint).is_some();
        if current.stage == Stage::Stopping && commits {
            return;
        }
        if let Blame::Unknown(why) = current.blame.clone() {
            self.tries.on_failure(why);
            self.back_off(now);
        }
        self.current = None;
        if let Some(outcome) = self.outcome.clone() {
            self.actions.push(Action::Conclude(outcome));
        }
    }

    fn try_propose(&mut self, now: Duration) {
        if self.outcome.is_some() {
            return;
        }
        if self.is_draining {
            self.actions.push(Action::ReleaseLease);
            return self.resign();
        }
        let is_first = self.number == 0;
        if self.waits_until.is_some() && !(is_first && self.hosts.is_full()) {
            return;
        }
        let Some(assignment) = self.hosts.plan(self.checkpoint) else {
            let shortage = self.hosts.shortage();
            if self.shortage.as_ref() != Some(&shortage) {
                self.actions.push(Action::Wait(shortage.clone()));
                self.shortage = Some(shortage);
            }
            return;
        };
        (self.shortage, self.waits_until) = (None, None);
        self.number += 1;
        let generation = GenerationId { epoch: self.epoch, number: self.number };
        let tries = self.tries.clone();
        for host in assignment.keys() {
            let (assignment, tries) = (assignment.clone(), tries.clone());
            self.send(host, ToMember::Propose { generation, assignment, tries });
        }
        self.current = Some(Generation::new(generation, assignment, now + JOIN_TIMEOUT));
    }

    /// Commits the newest checkpoint whose parts are written, of the current generation only.
    fn begin_commit(&mut self) {
        let Some(current) = &self.current else { return };
        let may_commit = matches!(current.stage, Stage::Running | Stage::Stopping);
        if self.commit != Commit::Idle || !may_commit {
            return;
        }
        if let Some(step) = current.committable(self.checkpoint) {
            let checkpoint = Snapshot { generation: current.id, step };
            self.commit = Commit::InFlight(checkpoint);
            self.actions.push(Action::Commit(checkpoint));
        }
    }
}
