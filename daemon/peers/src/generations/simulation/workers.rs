//! What workers do in the world: start, restore, train, save, stop and die.

use super::training::{Facts, Phase, Workers};
use super::world::World;
use super::{Address, Assignment, GenerationId, Reason, Role, Snapshot, Start, member};
use member::WorkerEvent;

impl World {
    pub(super) fn spawn(&mut self, host: usize, generation: GenerationId, assignment: Assignment) {
        if self.hosts[host].workers.is_some() {
            self.violate(|| format!("host {host} starts workers beside those of an earlier generation"));
        }
        if self.hosts[host].last.replace(generation) >= Some(generation) {
            self.violate(|| {
                format!("(2) host {host} starts workers of {generation} after those of a later one")
            });
        }
        let roles =
            self.hosts.iter().map(|host| assignment.get(&host.name).map(|ranks| ranks.role)).collect();
        let facts = self.facts.entry(generation).or_insert_with(|| Facts::new(roles, assignment.clone()));
        if facts.assignment != assignment {
            self.violate(|| format!("(2) generation {generation} has two assignments"));
        }
        let due = self.later(50, 1500);
        let phase = if self.hosts[host].hangs { Phase::Hanging } else { Phase::Spawning };
        self.hosts[host].workers = Some(Workers {
            generation,
            phase,
            model: super::training::Model::default(),
            saving: Vec::new(),
            due,
            save_due: due,
        });
    }

    pub(super) fn start(
        &mut self,
        host: usize,
        generation: GenerationId,
        start: Start,
        (sender, addresses): (usize, &[Address]),
    ) {
        let due = self.later(10, 400);
        let Some(facts) = self.facts.get_mut(&generation) else { return };
        let is_same = *facts.start.get_or_insert(start) == start;
        let all: u32 = facts.assignment.values().map(|ranks| ranks.count).sum();
        let reduces = facts.roles[host] == Some(Role::Reduce);
        let wanted = (0..all).map(|rank| Self::address(generation, rank));
        if !is_same || !wanted.eq(addresses.iter().cloned()) {
            self.violate(|| format!("(2) generation {generation} has two starts, or addresses of another"));
        }
        if let Some(workers) = self.hosts[host].workers.as_mut().filter(|w| w.phase == Phase::Ready) {
            workers.due = due;
            workers.phase = if reduces { Phase::Reducing } else { Phase::Loading(start, sender) };
        }
    }

    /// Whether the workers of a host can continue by themselves.
    pub(super) fn may_work(&self, host: usize) -> bool {
        let Some(workers) = &self.hosts[host].workers else { return false };
        match workers.phase {
            Phase::Spawning | Phase::Dying => true,
            Phase::Hanging | Phase::Ready | Phase::AtEnd => false,
            Phase::Loading(Start::Image(image), sender) => {
                self.hosts[sender].image.as_ref().is_some_and(|(held, _)| *held == image)
            }
            Phase::Loading(..) => true,
            Phase::Training if self.is_last_step(host) => workers.saving.is_empty(),
            Phase::Training => self.may_step(host) || self.has_lost_peer(host),
            Phase::Reducing => self.ranks_have_left(workers.generation),
        }
    }

    /// Whether workers can complete their next step.
    fn may_step(&self, host: usize) -> bool {
        let Some(generation) = self.hosts[host].workers.as_ref().map(|workers| workers.generation) else {
            return false;
        };
        let reduces = |host: usize| {
            let workers = self.hosts[host].workers.as_ref();
            workers
                .is_some_and(|workers| workers.generation == generation && workers.phase == Phase::Reducing)
        };
        self.facts.get(&generation).is_some_and(|facts| facts.may_step(host) && facts.reducers().all(reduces))
    }

    /// Whether all workers that train have stopped together.
    fn ranks_have_left(&self, generation: GenerationId) -> bool {
        let Some(facts) = self.facts.get(&generation) else { return false };
        let has_left = |host: usize| {
            let workers = self.hosts[host].workers.as_ref();
            facts.progress[host] == facts.stop
                && workers.is_none_or(|workers| workers.generation != generation)
        };
        facts.stop.is_some() && facts.members().all(has_left)
    }

    /// Whether workers have trained as far as they are to.
    fn is_last_step(&self, host: usize) -> bool {
        let Some(workers) = &self.hosts[host].workers else { return false };
        let stop = self.facts.get(&workers.generation).and_then(|facts| facts.stop);
        let step = workers.model.steps();
        step >= self.job.steps || stop == Some(step)
    }

    /// Whether workers wait for those of another host, which are gone.
    pub(super) fn has_lost_peer(&self, host: usize) -> bool {
        let Some(workers) = &self.hosts[host].workers else { return false };
        let Some(facts) = self.facts.get(&workers.generation) else { return false };
        let is_gone = |other: usize| {
            let other = self.hosts[other].workers.as_ref();
            other.is_none_or(|other| other.generation != workers.generation || other.phase == Phase::Dying)
        };
        let is_missing = |other: usize| facts.progress[other] < facts.progress[host] && is_gone(other);
        facts.members().any(is_missing) || facts.reducers().any(is_gone)
    }

    pub(super) fn report(&mut self, host: usize, generation: GenerationId, event: WorkerEvent) {
        if self.hosts[host].is_stopped || !self.hosts[host].inbox.is_empty() {
            self.hosts[host].inbox.push_back((generation, event));
        } else {
            self.member_on(host, member::Event::Workers(generation, event));
        }
    }

    /// The daemon of a host reads a report of its workers.
    pub(super) fn read_inbox(&mut self, host: usize) {
        if let Some((generation, event)) = self.hosts[host].inbox.pop_front() {
            self.member_on(host, member::Event::Workers(generation, event));
        }
    }

    /// The workers of a host do what is next.
    pub(super) fn work(&mut self, host: usize) {
        let step_ms = self.job.step_ms;
        let due = self.later(step_ms / 2, step_ms * 3 / 2);
        let is_last_step = self.is_last_step(host);
        let Some(workers) = &mut self.hosts[host].workers else { return };
        workers.due = due;
        let generation = workers.generation;
        match workers.phase {
            Phase::Spawning => {
                workers.phase = Phase::Ready;
                let Some(ranks) = self.facts.get(&generation).map(|f| f.assignment[&self.hosts[host].name])
                else {
                    return;
                };
                let ranks = ranks.first..ranks.first + ranks.count;
                let addresses = ranks.map(|rank| Self::address(generation, rank)).collect();
                self.report(host, generation, WorkerEvent::Ready(addresses));
            }
            Phase::Loading(start, sender) => self.load(host, start, sender),
            Phase::Training if is_last_step => self.finish(host, generation),
            Phase::Training => {
                if self.may_step(host) {
                    self.step(host, generation);
                } else {
                    self.lose_peer(host, generation);
                }
            }
            Phase::Reducing | Phase::Dying => {
                self.hosts[host].workers = None;
                self.report(host, generation, WorkerEvent::Gone);
            }
            Phase::Hanging | Phase::Ready | Phase::AtEnd => {}
        }
    }

    fn load(&mut self, host: usize, start: Start, sender: usize) {
        let model = match start {
            Start::Scratch => Some(super::training::Model::default()),
            Start::Checkpoint(of) => {
                let newest = self.bucket.checkpoint.as_ref().filter(|(snapshot, _)| *snapshot == of);
                newest.map(|(_, model)| model.clone())
            }
            Start::Image(_) => self.hosts[sender].image.as_ref().map(|(_, model)| model.clone()),
        };
        let Some(workers) = &mut self.hosts[host].workers else { return };
        let Some(model) = model.filter(|model| model.steps() == start.step()) else {
            // A deposed leader's checkpoint is no longer the newest one.
            workers.phase = Phase::Dying;
            let (generation, why) = (workers.generation, Reason::new("the checkpoint is gone"));
            return self.report(host, generation, WorkerEvent::PeerLost(why));
        };
        (workers.model, workers.phase) = (model, Phase::Training);
        if let Some(facts) = self.facts.get_mut(&workers.generation) {
            facts.progress[host] = Some(start.step());
        }
        // No image is replaced before all have restored it.
        if self.is_last_step(host) {
            let due = self.later(50, 1500);
            if let Some(workers) = &mut self.hosts[host].workers {
                workers.saving.push(start.step());
                workers.save_due = due;
            }
        }
    }

    fn step(&mut self, host: usize, generation: GenerationId) {
        let Some(workers) = &mut self.hosts[host].workers else { return };
        workers.model.train(generation);
        let step = workers.model.steps();
        if let Some(facts) = self.facts.get_mut(&generation) {
            facts.progress[host] = Some(step);
        }
        self.report(host, generation, WorkerEvent::Step(step));
        self.keep(host);
    }

    /// Keeps the model after a step as an image or a checkpoint, if it is due.
    fn keep(&mut self, host: usize) {
        let is_last = self.is_last_step(host);
        let save_due = self.later(50, 1500);
        let Some(workers) = &mut self.hosts[host].workers else { return };
        let (generation, step) = (workers.generation, workers.model.steps());
        if is_last || step.is_multiple_of(self.job.save_every) {
            workers.save_due = save_due;
            workers.saving.push(step);
        }
        if is_last || step.is_multiple_of(self.job.image_every) {
            let image = (Snapshot { generation, step }, workers.model.clone());
            self.hosts[host].image = Some(image);
            self.report(host, generation, WorkerEvent::Imaged(step));
        }
    }

    pub(super) fn may_save(&self, host: usize) -> bool {
        let workers = self.hosts[host].workers.as_ref();
        !self.hosts[host].is_cut_off && workers.is_some_and(|workers| !workers.saving.is_empty())
    }

    /// The workers of a host have written their parts of a checkpoint.
    pub(super) fn save(&mut self, host: usize) {
        let due = self.later(50, 1500);
        let Some(workers) = &mut self.hosts[host].workers else { return };
        workers.save_due = due;
        let (generation, step) = (workers.generation, workers.saving.remove(0));
        let part = (host, workers.model.at(step));
        if let Some(facts) = self.facts.get_mut(&generation) {
            facts.saved.entry(step).or_default().push(part);
        }
        self.report(host, generation, WorkerEvent::Saved(step));
    }

    fn finish(&mut self, host: usize, generation: GenerationId) {
        let Some(workers) = &mut self.hosts[host].workers else { return };
        let step = workers.model.steps();
        if step >= self.job.steps {
            workers.phase = Phase::AtEnd;
            self.report(host, generation, WorkerEvent::AtEnd(step));
        } else {
            self.hosts[host].workers = None;
            self.report(host, generation, WorkerEvent::Gone);
        }
    }

    fn lose_peer(&mut self, host: usize, generation: GenerationId) {
        let Some(workers) = &mut self.hosts[host].workers else { return };
        workers.phase = Phase::Dying;
        workers.saving.clear();
        self.report(host, generation, WorkerEvent::PeerLost(Reason::new("peer lost")));
    }

    /// A worker of a host dies, if one is alive.
    pub(super) fn kill_worker(&mut self, host: usize) {
        let due = self.later(1, 300);
        let Some(workers) = &mut self.hosts[host].workers else { return };
        if workers.phase != Phase::Dying {
            (workers.phase, workers.due) = (Phase::Dying, due);
            workers.saving.clear();
            self.failures += 1;
            self.report(host, self.generation_of(host), WorkerEvent::Died(Reason::new("killed")));
        }
    }

    fn generation_of(&self, host: usize) -> GenerationId {
        let workers = self.hosts[host].workers.as_ref();
        workers.map_or(GenerationId { epoch: 0, number: 0 }, |workers| workers.generation)
    }
}
