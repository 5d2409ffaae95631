//! A trained model for other programs: its parameters as one safetensors file, or the whole of it as ONNX.
//!
//! What is exported is a checkpoint's model alone: no optimizer state, and float32 as it is stored. Both formats
//! carry the same description as text: keys that begin with `millstream.` say what the model is, after which step it
//! was taken and, as far as the caller tells, how its inputs are made.
//!
//! * [`safetensors`]: the parameters, named as in the checkpoint.
//! * [`onnx`]: a graph from numbers and ids to scores, out of operators that every runtime has.
//!
//! A tower of a two-tower model goes alone as well: its own features in, its vector out.
//!
//! Nothing here computes. A model's graph is written from its specification, and then held against the parameters
//! that the model has: one that the graph does not use is an error. So a kind of model, or a layer, that was taught to
//! train and not to be exported is refused, and never exported as something else.

pub mod onnx;
pub mod safetensors;

use std::io;

use bytes::Bytes;

use crate::checkpoint::tensors::TensorFile;
use crate::checkpoint::{CheckpointError, CheckpointStore, MODEL_PART, Snapshot};
use crate::model::{ModelError, ModelPlan, NamedTensor, TensorRole};
use crate::spec::{ModelSpec, TrainingSpec};

/// A model out of a checkpoint.
pub struct TrainedModel {
    /// What it is, and where training stood.
    pub snapshot: Snapshot,
    /// Which tower of it there is; `None` for the whole model.
    tower: Option<Tower>,
    /// In the model's order.
    parameters: Vec<Parameter>,
}

/// A part of a two-tower model that is of use alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tower {
    /// What makes a vector of a query.
    Query,
    /// What makes one of an item.
    Item,
}

impl Tower {
    /// Its name in a job and at the beginning of its parameters'.
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Item => "item",
        }
    }
}

/// A parameter's numbers: float32, row-major, little-endian.
pub(crate) struct Parameter {
    pub(crate) tensor: NamedTensor,
    pub(crate) data: Bytes,
}

/// Why a model cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// What the checkpoint says is no model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The caller does not say how a number is scaled.
    #[error("nothing says how feature `{feature}` is scaled")]
    NotScaled {
        /// The feature.
        feature: String,
    },
    /// A tower of a model that has none.
    #[error("a {kind} model has no {tower} tower; those of `two_tower` can be exported alone")]
    NoTower {
        /// The model's kind.
        kind: &'static str,
        /// Which one was asked for.
        tower: &'static str,
    },
    /// The graph asks for what the model has not.
    #[error("the model has no parameter {name}, which its graph takes")]
    NoParameter {
        /// The parameter.
        name: String,
    },
    /// The model has what the graph does not compute with.
    #[error("parameter {name} has no place in ONNX yet: a model that has it cannot be exported so")]
    Unplaced {
        /// The parameter.
        name: String,
    },
    /// More text than readers take.
    #[error("the description takes {bytes} bytes; readers of {format} take {limit}")]
    Description {
        /// Its size.
        bytes: usize,
        /// What is written.
        format: &'static str,
        /// The most there may be.
        limit: usize,
    },
    /// The output cannot be written.
    #[error(transparent)]
    Write(#[from] io::Error),
}

impl TrainedModel {
    /// Reads the model of the checkpoint of `step`, and verifies it.
    ///
    /// # Errors
    /// When there is no such checkpoint, or its model is damaged.
    pub fn open(store: &CheckpointStore, step: u64) -> Result<Self, ExportError> {
        let manifest = store.manifest(step)?;
        let bytes = store.part(&manifest, MODEL_PART)?;
        let damaged =
            |message| CheckpointError::Damaged { path: store.path(step), part: MODEL_PART.into(), message };
        let snapshot = manifest.snapshot;
        let training = TrainingSpec { tasks: snapshot.tasks.clone(), ..TrainingSpec::default() };
        let mut tensors = ModelPlan::new(&snapshot.model, &snapshot.schema, &training)?.tensors;
        tensors.retain(|tensor| tensor.role == TensorRole::Parameter);
        let file = TensorFile::open::<f32>(&bytes, tensors.iter()).map_err(damaged)?;
        let parameter = |tensor: NamedTensor| {
            let data = bytes.slice_ref(file.bytes(&tensor)?);
            Ok(Parameter { tensor, data })
        };
        let parameters = tensors.into_iter().map(parameter).collect::<Result<_, String>>();
        Ok(Self { parameters: parameters.map_err(damaged)?, snapshot, tower: None })
    }

    /// One tower of it alone.
    ///
    /// # Errors
    /// When the model has no towers.
    pub fn select_tower(mut self, tower: Tower) -> Result<Self, ExportError> {
        if !matches!(self.snapshot.model, ModelSpec::TwoTower(_)) {
            return Err(ExportError::NoTower { kind: self.kind(), tower: tower.name() });
        }
        let is_its = |name: &str| name.split_once('.').is_some_and(|(first, _)| first == tower.name());
        self.parameters.retain(|parameter| is_its(&parameter.tensor.name));
        self.tower = Some(tower);
        Ok(self)
    }

    /// Which tower there is alone, if it is not the whole model.
    pub fn tower(&self) -> Option<Tower> {
        self.tower
    }

    /// Whether what there is of the model reads `feature`.
    pub fn reads_feature(&self, feature: &str) -> bool {
        let lists = self.snapshot.model.features().into_iter();
        let mut lists = lists.filter(|(part, _)| self.tower.is_none_or(|tower| *part == Some(tower.name())));
        lists.any(|(_, list)| list.iter().any(|name| name == feature))
    }

    /// The model's kind, as a job names it.
    pub fn kind(&self) -> &'static str {
        self.snapshot.model.kind()
    }

    /// TrainedModel numbers.
    pub fn numbers(&self) -> u64 {
        self.parameters.iter().map(|parameter| parameter.tensor.len() as u64).sum()
    }

    /// What is told of the model, with what the caller adds; keys in their order.
    fn description(&self, added: &[(String, String)]) -> Vec<(String, String)> {
        let of_model = [
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("kind", self.kind().to_owned()),
            ("step", self.snapshot.step.to_string()),
            ("model", self.spec().to_string()),
        ];
        let of_model = of_model.into_iter().chain(self.tower.map(|tower| ("part", tower.name().to_owned())));
        let of_model = of_model.map(|(key, value)| (key.to_owned(), value));
        let all = of_model.chain(added.iter().cloned());
        all.map(|(key, value)| (format!("millstream.{key}"), value)).collect()
    }

    fn spec(&self) -> serde_json::Value {
        serde_json::to_value(&self.snapshot.model).expect("a specification has string keys")
    }
}

#[cfg(test)]
mod tests;
