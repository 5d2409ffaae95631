//! Workers that train in lockstep, as synchronous data parallelism does, and the models that they make.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Assignment, GenerationId, Role, Snapshot, Start};

/// A model: which generation trained each of its steps, as runs of consecutive steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Model(Vec<(GenerationId, u64)>);

impl Model {
    pub(super) fn steps(&self) -> u64 {
        self.0.last().map_or(0, |(_, last)| *last)
    }

    /// The model after another step, which trains on that step's rows.
    pub(super) fn train(&mut self, generation: GenerationId) {
        let step = self.steps() + 1;
        match self.0.last_mut() {
            Some((last, end)) if *last == generation => *end = step,
            _ => self.0.push((generation, step)),
        }
    }

    /// The model as it was after `step`.
    pub(super) fn at(&self, step: u64) -> Self {
        let mut runs = Vec::new();
        for (generation, end) in &self.0 {
            if runs.last().is_none_or(|(_, last)| *last < step) {
                runs.push((*generation, step.min(*end)));
            }
        }
        Self(if step == 0 { Vec::new() } else { runs })
    }

    /// Whether each step of `old` is in this model, trained by the same generation.
    pub(super) fn extends(&self, old: &Self) -> bool {
        let end = |(index, (generation, end)): (usize, &(GenerationId, u64))| {
            self.0.get(index).is_some_and(|(of, to)| {
                let is_last = index + 1 == old.0.len();
                of == generation && (to == end || is_last && to > end)
            })
        };
        old.0.iter().enumerate().all(end)
    }
}

/// The workers of a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Workers {
    pub(super) generation: GenerationId,
    pub(super) phase: Phase,
    pub(super) model: Model,
    /// Steps whose checkpoint is being written.
    pub(super) saving: Vec<u64>,
    pub(super) due: Duration,
    pub(super) save_due: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// Being started.
    Spawning,
    /// Never ready.
    Hanging,
    /// Waiting for the start.
    Ready,
    /// Restoring a model, an image from this host.
    Loading(Start, usize),
    Training,
    /// Adding for the hosts that train.
    Reducing,
    /// All rows are trained on; nothing is left to do.
    AtEnd,
    /// Killed or dead.
    Dying,
}

/// What is true of a generation, whatever hosts believe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Facts {
    /// By host; `None` for those that have no part.
    pub(super) roles: Vec<Option<Role>>,
    pub(super) assignment: Assignment,
    pub(super) start: Option<Start>,
    /// The model after each host's last step; `None` before it has loaded one.
    pub(super) progress: Vec<Option<u64>>,
    /// The step after which all stop.
    pub(super) stop: Option<u64>,
    /// The hosts that have written their parts of a checkpoint, and the model that each wrote.
    pub(super) saved: BTreeMap<u64, Vec<(usize, Model)>>,
    /// Since when no leader runs it.
    pub(super) ended: Option<Duration>,
}

impl Facts {
    pub(super) fn new(roles: Vec<Option<Role>>, assignment: Assignment) -> Self {
        let progress = vec![None; roles.len()];
        Self { roles, assignment, start: None, progress, stop: None, saved: BTreeMap::new(), ended: None }
    }

    /// The hosts that train.
    pub(super) fn members(&self) -> impl Iterator<Item = usize> {
        self.with_role(Role::Train)
    }

    /// The hosts that add for them.
    pub(super) fn reducers(&self) -> impl Iterator<Item = usize> {
        self.with_role(Role::Reduce)
    }

    fn with_role(&self, role: Role) -> impl Iterator<Item = usize> {
        (0..self.roles.len()).filter(move |host| self.roles[*host] == Some(role))
    }

    /// Whether `host` can complete its next step as far as others that train are concerned: all have completed the one before, and
    /// took part in it.
    pub(super) fn may_step(&self, host: usize) -> bool {
        self.members().all(|other| self.progress[other] >= self.progress[host])
    }

    /// A host hears that all are to stop after `step`. The control word of the next step spreads it.
    pub(super) fn stop_after(&mut self, step: u64) {
        let next = self.progress.iter().flatten().max().map_or(0, |step| step + 1);
        self.stop.get_or_insert(step.max(next));
    }

    /// The model of `step` if all hosts have written their parts of it, and equally so.
    pub(super) fn whole(&self, step: u64) -> Option<&Model> {
        let parts = self.saved.get(&step)?;
        let (_, first) = parts.first()?;
        let is_whole =
            self.members().all(|host| parts.iter().any(|(of, model)| *of == host && model == first));
        is_whole.then_some(first)
    }
}

/// The image of a host.
pub(super) type Image = (Snapshot, Model);
