//! The invariants of generations, checked against what is true in the world, not against what machines believe.

use super::super::{MAX_FAILURES, SILENCE};
use super::training::{Model, Phase};
use super::world::World;
use super::{Assignment, GenerationId, Leader, Outcome, Role, Snapshot, Start, ToMember, leader, size};

impl World {
    /// Checks what holds at any moment.
    pub(super) fn check(&mut self) {
        for host in 0..self.hosts.len() {
            self.check_leaders(host);
            self.check_workers(host);
        }
    }

    /// (1) One leader an epoch.
    fn check_leaders(&mut self, host: usize) {
        let Some(epoch) = self.hosts[host].leader.as_ref().map(Leader::epoch) else { return };
        let others = self.hosts[..host].iter().filter_map(|other| other.leader.as_ref());
        if others.into_iter().any(|other| other.epoch() == epoch) || epoch > self.bucket.lease.epoch {
            self.violate(|| format!("(1) epoch {epoch} has two leaders"));
        }
    }

    /// (6) No rank outlives its generation by more than `SILENCE`.
    fn check_workers(&mut self, host: usize) {
        let Some(workers) = &self.hosts[host].workers else { return };
        let (generation, is_dying) = (workers.generation, workers.phase == Phase::Dying);
        let leads = |other: usize| {
            let leader = self.hosts[other].leader.as_ref();
            self.runs(other) && leader.is_some_and(|leader| leader.generation() == Some(generation))
        };
        let is_led = (0..self.hosts.len()).any(leads);
        let now = self.now;
        let Some(facts) = self.facts.get_mut(&generation) else { return };
        let ended = if is_led { None } else { Some(*facts.ended.get_or_insert(now)) };
        facts.ended = ended;
        let node = &self.hosts[host];
        if is_dying || node.is_stopped || !node.inbox.is_empty() {
            return;
        }
        if node.member.as_ref().and_then(|member| member.running()) != Some(generation) {
            return self
                .violate(|| format!("host {host} runs workers of {generation} unknown to its daemon"));
        }
        if ended.is_some_and(|ended| now > ended.max(node.resumed) + SILENCE) {
            self.violate(|| format!("(6) workers of {generation} on host {host} outlive it by too much"));
        }
    }

    /// Checks what a leader is about to do.
    pub(super) fn check_leader(&mut self, host: usize, actions: &[leader::Action]) {
        let Some(epoch) = self.hosts[host].leader.as_ref().map(Leader::epoch) else { return };
        for action in actions {
            match action {
                leader::Action::Send { message: ToMember::Propose { assignment, .. }, .. } => {
                    self.check_assignment(assignment);
                }
                leader::Action::Send { message: ToMember::Begin { generation, start, .. }, .. }
                    if epoch == self.bucket.lease.epoch =>
                {
                    self.check_start(*generation, *start);
                }
                _ => {}
            }
        }
    }

    /// Ranks are `0..world`, as many as the job permits, and the numbers of reducers follow.
    fn check_assignment(&mut self, assignment: &Assignment) {
        let limits = self.job.limits;
        let mut next = 0;
        let is_next = |role: Role| {
            let mut of_role = assignment.values().filter(move |ranks| ranks.role == role);
            of_role.all(|ranks| {
                let is_next = ranks.first == next && ranks.count > 0;
                next += ranks.count;
                is_next
            })
        };
        let is_dense = [Role::Train, Role::Reduce].into_iter().all(is_next);
        let (world, reducers) = size(assignment);
        let divides = limits.parts.is_none_or(|parts| parts.is_multiple_of(world));
        let permits = (limits.min..=limits.max).contains(&world) && (limits.has_reducers || reducers == 0);
        if !is_dense || !permits || !divides {
            self.violate(|| format!("{assignment:?} is not permitted by {limits:?}"));
        }
    }

    /// (5) A generation starts from the newest model that its hosts hold, never behind the newest checkpoint and never
    /// on another branch.
    fn check_start(&mut self, generation: GenerationId, start: Start) {
        let Some(facts) = self.facts.get(&generation) else { return };
        let newest = self.bucket.checkpoint.clone();
        let (snapshot, committed) = match &newest {
            Some((snapshot, model)) => (Some(*snapshot), model.clone()),
            None => (None, Model::default()),
        };
        let images: Vec<_> = facts.members().filter_map(|host| self.hosts[host].image.clone()).collect();
        let usable = images.iter().filter(|(image, _)| image.contains(snapshot));
        let best = usable.map(|(image, _)| image.step).max().unwrap_or(0).max(committed.steps());
        let is_branch = |image: Snapshot| {
            let model = images.iter().find(|(held, _)| *held == image);
            model.is_some_and(|(_, model)| !model.extends(&committed))
        };
        let is_wrong = match start {
            Start::Scratch => snapshot.is_some(),
            Start::Checkpoint(of) => Some(of) != snapshot,
            Start::Image(image) => is_branch(image),
        };
        if start.step() < best || is_wrong {
            self.violate(|| {
                format!("(5) {generation} starts from {start:?}; step {best} of {newest:?} is usable")
            });
        }
    }

    /// (3), (4) The committed history has each step once, and only the newest generation adds to it.
    pub(super) fn check_commit(&mut self, snapshot: Snapshot, model: &Model) {
        let committed = self.bucket.checkpoint.as_ref().map(|(_, model)| model.clone()).unwrap_or_default();
        if model.steps() != snapshot.step || model.steps() <= committed.steps() || !model.extends(&committed)
        {
            self.violate(|| format!("(3) {model:?} is committed as {snapshot:?} after {committed:?}"));
        }
        let begun = self.facts.iter().rev().find(|(_, facts)| facts.start.is_some());
        if let Some((newest, _)) = begun.filter(|(newest, _)| **newest > snapshot.generation) {
            let newest = *newest;
            self.violate(|| format!("(4) {snapshot:?} is committed after {newest} has begun"));
        }
    }

    /// A job finishes when all its steps are committed, and fails when its retry budget is spent.
    pub(super) fn check_outcome(&mut self, outcome: &Outcome) {
        let steps = self.bucket.checkpoint.as_ref().map_or(0, |(snapshot, _)| snapshot.step);
        let is_right = match outcome {
            Outcome::Finished => steps == self.job.steps,
            Outcome::Failed(_) => self.failures >= MAX_FAILURES,
        };
        if !is_right || self.bucket.outcome.is_some() {
            let (wanted, failures) = (self.job.steps, self.failures);
            self.violate(|| format!("{outcome:?} after {steps} of {wanted} steps and {failures} failures"));
        }
    }
}
