//! Warm start: a job starts with the weights of another job's checkpoint, whose features may differ.
//!
//! Parameters are matched by name, and their rows and columns by meaning ([`axes`]): an id of a feature, or an input
//! of a layer. New parameters are initialized so that the new model scores rows as the earlier one did: embeddings of
//! new features and ids, and all weights of new numbers, are zero. All other new weights are initialized as in any
//! job, because no gradient leaves a product of zeros. Chen, Goodfellow and Shlens, "Net2Net", 2016, call this
//! initialization function-preserving. It is not if features were removed.
//!
//! Optimizer state is not copied: it belongs to the rows over which it was accumulated. If weights are a function of
//! the state (FTRL), the state is set to yield the copied weights.

mod axes;

use std::collections::{BTreeMap, HashMap, HashSet};

use millstream_backend::Backend;
use millstream_batch::BatchSchema;
use serde::{Deserialize, Serialize};

use crate::model::{Model, ModelError, ModelPlan, NamedTensor, TensorRole};
use crate::spec::{ModelSpec, TaskSpec, TrainingSpec};
use axes::{Axes, Axis, Input};

/// The mapping of each feature's ids, by the feature's name.
pub type IdMappings = BTreeMap<String, IdMapping>;

/// How the ids of a feature map to its ids in the earlier job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdMapping {
    /// The ids are equal.
    Same,
    /// The earlier id of each id, if it had one.
    Mapped(Vec<Option<u32>>),
    /// The ids have different meanings, for this reason.
    Incompatible(String),
}

/// Which weights of an earlier model a new model starts with.
#[derive(Debug)]
pub struct WarmStart {
    /// The earlier model's tensors, in order.
    then: Vec<NamedTensor>,
    carried: HashMap<String, Carry>,
    /// Embeddings that the earlier model did not have.
    zeros: HashSet<String>,
    report: WarmStartReport,
}

/// What happens to each parameter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WarmStartReport {
    /// Parameters copied in full.
    pub full: Vec<String>,
    /// Parameters copied in part.
    pub partial: Vec<String>,
    /// Parameters initialized as in any job or to zero, each with the reason.
    pub initialized: Vec<(String, String)>,
    /// Parameters of the earlier model that are not used.
    pub unused: Vec<String>,
}

/// How a tensor is copied from the earlier tensor of its name, by row and by column.
#[derive(Debug)]
struct Carry {
    then: NamedTensor,
    /// Columns of the earlier tensor.
    width: usize,
    rows: Vec<Place>,
    columns: Vec<Place>,
}

/// The source of a row or column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Then(usize),
    Zeros,
    Initial,
}

/// Why a model cannot start with the weights of another.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WarmStartError {
    /// One of the models is invalid.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The models are of different kinds.
    #[error("a model of kind `{now}` cannot start from the weights of a model of kind `{then}`")]
    Kind {
        /// The earlier model's.
        then: &'static str,
        /// The new model's.
        now: &'static str,
    },
    /// The models share no parameter.
    #[error("none of its weights fits the model: {0}")]
    Nothing(WarmStartReport),
}

/// A model, the schema of its batches, and the tasks of its labels; empty for the default loss.
pub type ModelOf<'a> = (&'a ModelSpec, &'a BatchSchema, &'a [TaskSpec]);

impl WarmStart {
    /// Compares the model `now` with the earlier model `then`. `ids` has the features of both jobs.
    ///
    /// # Errors
    /// When one of the models is invalid, or they share no parameter.
    pub fn new(then: ModelOf<'_>, now: ModelOf<'_>, ids: &IdMappings) -> Result<Self, WarmStartError> {
        let kinds = (then.0.kind(), now.0.kind());
        if kinds.0 != kinds.1 {
            return Err(WarmStartError::Kind { then: kinds.0, now: kinds.1 });
        }
        let (axes_then, axes) = (Axes::of(then.0, then.1)?, Axes::of(now.0, now.1)?);
        let (then, now) = (parameters(then)?, parameters(now)?);
        let mut by_name: BTreeMap<&str, &NamedTensor> =
            then.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let (mut carried, mut zeros, mut report) =
            (HashMap::new(), HashSet::new(), WarmStartReport::default());
        for tensor in &now {
            let name = tensor.name.clone();
            let axes = (axes_then.get(&name), axes.get(&name));
            match by_name.remove(name.as_str()) {
                None => {
                    report.initialized.push((name.clone(), "is new".to_owned()));
                    if matches!(axes.1.0, Some(Axis::Ids(_))) {
                        zeros.insert(name);
                    }
                }
                Some(then) => match carry(then, tensor, axes, ids) {
                    Ok(carry) => {
                        let list = if carry.is_whole() { &mut report.full } else { &mut report.partial };
                        list.push(name.clone());
                        carried.insert(name, carry);
                    }
                    Err(why) => report.initialized.push((name, why)),
                },
            }
        }
        report.unused = by_name.into_keys().map(str::to_owned).collect();
        if report.full.is_empty() && report.partial.is_empty() {
            return Err(WarmStartError::Nothing(report));
        }
        Ok(Self { then, carried, zeros, report })
    }

    /// What happens to each parameter.
    pub fn report(&self) -> &WarmStartReport {
        &self.report
    }

    /// The earlier model's parameters, in order.
    pub(crate) fn tensors(&self) -> &[NamedTensor] {
        &self.then
    }

    /// Copies the weights to `model`, which must be newly built. `read` reads the earlier model's tensors.
    ///
    /// # Errors
    /// Those of `read`. The model is then partly changed and must be dropped.
    pub fn apply<B: Backend, E>(
        &self,
        model: &mut Model<B>,
        mut read: impl FnMut(&NamedTensor, &mut [B::Scalar]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut numbers = Vec::new();
        model.update_weights(|tensor, weights| {
            if let Some(carry) = self.carried.get(&tensor.name) {
                numbers.clear();
                numbers.resize(carry.then.len(), B::Scalar::default());
                read(&carry.then, &mut numbers)?;
                carry.place(&numbers, weights);
                return Ok(true);
            }
            let is_new = self.zeros.contains(&tensor.name);
            if is_new {
                weights.fill(B::Scalar::default());
            }
            Ok(is_new)
        })
    }
}

impl std::fmt::Display for WarmStartReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { full, partial, initialized, unused } = self;
        write!(
            f,
            "{} of {} parameters copied in full",
            full.len(),
            full.len() + partial.len() + initialized.len()
        )?;
        if !partial.is_empty() {
            write!(f, "; in part: {}", partial.join(", "))?;
        }
        for (number, (name, why)) in initialized.iter().enumerate() {
            write!(f, "{}{name} ({why})", if number == 0 { "; initialized: " } else { ", " })?;
        }
        if unused.is_empty() { Ok(()) } else { write!(f, "; unused: {}", unused.join(", ")) }
    }
}

impl Carry {
    /// Whether each number of the new tensor has a source.
    fn is_whole(&self) -> bool {
        self.rows.iter().chain(&self.columns).all(|place| matches!(place, Place::Then(_)))
    }

    /// Copies the earlier tensor's numbers to `weights`.
    fn place<T: Copy + Default>(&self, then: &[T], weights: &mut [T]) {
        for (row, weights) in self.rows.iter().zip(weights.chunks_exact_mut(self.columns.len().max(1))) {
            for (column, weight) in self.columns.iter().zip(weights) {
                match (*row, *column) {
                    (Place::Then(row), Place::Then(column)) => *weight = then[row * self.width + column],
                    (Place::Zeros, _) | (_, Place::Zeros) => *weight = T::default(),
                    (Place::Initial, _) | (_, Place::Initial) => {}
                }
            }
        }
    }
}

/// The parameters of a model, in order.
fn parameters((model, schema, tasks): ModelOf<'_>) -> Result<Vec<NamedTensor>, ModelError> {
    let training = TrainingSpec { tasks: tasks.to_vec(), ..TrainingSpec::default() };
    let plan = ModelPlan::new(model, schema, &training)?;
    Ok(plan.tensors.into_iter().filter(|tensor| tensor.role == TensorRole::Parameter).collect())
}

type AxesOf<'a> = (Option<&'a Axis>, Option<&'a Axis>);

/// How `now` is copied from `then`, or why it is not.
fn carry(
    then: &NamedTensor,
    now: &NamedTensor,
    (axes_then, axes): (AxesOf<'_>, AxesOf<'_>),
    ids: &IdMappings,
) -> Result<Carry, String> {
    let unlike = || format!("has shape {:?} in the source and {:?} here", then.shape, now.shape);
    let (from, to) = (matrix_shape(then, axes_then), matrix_shape(now, axes));
    let rows = places((axes_then.0, from.0), (axes.0, to.0), ids)?.ok_or_else(unlike)?;
    let columns = places((axes_then.1, from.1), (axes.1, to.1), ids)?.ok_or_else(unlike)?;
    Ok(Carry { then: then.clone(), width: from.1, rows, columns })
}

/// The rows and columns of a tensor. A vector is one row, unless its axis has rows.
fn matrix_shape(tensor: &NamedTensor, axes: AxesOf<'_>) -> (usize, usize) {
    match tensor.shape[..] {
        [rows, columns] => (rows, columns),
        _ if axes.0.is_some() => (tensor.len(), 1),
        _ => (1, tensor.len()),
    }
}

/// The source of each index of an axis; `None` if the axes do not match.
fn places(
    (then, then_length): (Option<&Axis>, usize),
    (now, length): (Option<&Axis>, usize),
    ids: &IdMappings,
) -> Result<Option<Vec<Place>>, String> {
    let in_order = || (then_length == length).then(|| (0..length).map(Place::Then).collect());
    match (then, now) {
        (Some(Axis::Ids(_)), Some(Axis::Ids(feature))) => match ids.get(feature) {
            None => Err(format!("`{feature}` is not a feature of both jobs")),
            Some(IdMapping::Same) => Ok(in_order()),
            Some(IdMapping::Incompatible(why)) => Err(format!("`{feature}` {why}")),
            Some(IdMapping::Mapped(ids)) => {
                let is_there = |id: &u32| (*id as usize) < then_length;
                let place =
                    |id: Option<u32>| id.filter(is_there).map_or(Place::Zeros, |id| Place::Then(id as usize));
                Ok((ids.len() == length).then(|| ids.iter().copied().map(place).collect()))
            }
        },
        (Some(Axis::Inputs(then)), Some(Axis::Inputs(now))) => {
            let then: HashMap<&Input, usize> = then.iter().zip(0..).collect();
            let place = |input: &Input| match (then.get(input), input) {
                (Some(&place), _) => Place::Then(place),
                (None, Input::Number(_)) => Place::Zeros,
                (None, _) => Place::Initial,
            };
            Ok(Some(now.iter().map(place).collect()))
        }
        (None, None) => Ok(in_order()),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests;
