//! Exports a trained model for other programs: its parameters as a safetensors file, or the whole model as
//! ONNX.
//!
//! An export contains a checkpoint's model without optimizer state, in fp32 as stored. Both formats carry the
//! same description as text: keys that begin with `millstream.` describe the model, the step of its
//! checkpoint and, if the caller provides it, the preparation of its inputs.
//!
//! * [`safetensors`]: the parameters, under their names in the checkpoint.
//! * [`onnx`]: a graph from numbers and ids to scores, of operators that every runtime supports.
//!
//! One tower of a two-tower model can be exported separately: its features in, its vector out.
//!
//! This module computes nothing. It generates a graph from the model's specification and checks it against
//! the model's parameters: an unused parameter is an error. So a model kind or layer that can be trained but
//! not yet exported is rejected and never exported incorrectly.

pub mod onnx;
pub mod safetensors;

use std::io;

use bytes::Bytes;

use crate::checkpoint::tensors::TensorFiles;
use crate::checkpoint::{CheckpointError, CheckpointStore, MODEL_PART, Snapshot};
use crate::model::{ModelError, ModelPlan, NamedTensor, TensorRole};
use crate::spec::{ModelSpec, TrainingSpec};

/// A trained model, read from a checkpoint.
pub struct TrainedModel {
    /// The model and the state of training.
    pub snapshot: Snapshot,
    /// The selected tower; `None` for the whole model.
    tower: Option<Tower>,
    /// The parameters, in the model's order.
    parameters: Vec<Parameter>,
}

/// A tower of a two-tower model, which can be used separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tower {
    /// The tower that computes a query's vector.
    Query,
    /// The tower that computes an item's vector.
    Item,
}

impl Tower {
    /// Its name in a job, and the prefix of its parameters' names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Item => "item",
        }
    }
}

/// The values of a parameter: fp32, row-major, little-endian.
pub(crate) struct Parameter {
    pub(crate) tensor: NamedTensor,
    pub(crate) data: Bytes,
}

/// Joins the pieces of a tensor. The memory of a file is freed when its last piece has been copied.
fn join(pieces: Vec<Bytes>) -> Bytes {
    let mut joined = Vec::with_capacity(pieces.iter().map(Bytes::len).sum());
    pieces.into_iter().for_each(|piece| joined.extend_from_slice(&piece));
    joined.into()
}

/// Why a model cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The checkpoint's specification is not a valid model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The caller did not give the scaling of a numeric feature.
    #[error("the scaling of feature `{feature}` is not given")]
    NotScaled {
        /// The feature.
        feature: String,
    },
    /// A tower was selected of a model without towers.
    #[error("a {kind} model has no {tower} tower; only towers of `two_tower` can be exported separately")]
    NoTower {
        /// The model's kind.
        kind: &'static str,
        /// The selected tower.
        tower: &'static str,
    },
    /// The graph needs a parameter that the model lacks.
    #[error("the model has no parameter {name}, which its graph needs")]
    NoParameter {
        /// The parameter.
        name: String,
    },
    /// The graph does not use one of the model's parameters.
    #[error("parameter {name} cannot be represented in ONNX yet")]
    Unplaced {
        /// The parameter.
        name: String,
    },
    /// The description is longer than readers accept.
    #[error("the description has {bytes} bytes; readers of {format} accept at most {limit}")]
    Description {
        /// Its size.
        bytes: usize,
        /// The format.
        format: &'static str,
        /// The maximum size.
        limit: usize,
    },
    /// The output cannot be written.
    #[error(transparent)]
    Write(#[from] io::Error),
}

impl TrainedModel {
    /// Reads and verifies the model of the checkpoint of `step`.
    ///
    /// # Errors
    /// When there is no such checkpoint, or its model is damaged.
    pub fn open(store: &CheckpointStore, step: u64) -> Result<Self, ExportError> {
        let manifest = store.manifest(step)?;
        let files = store.tensor_files(&manifest, TensorRole::Parameter)?;
        let snapshot = manifest.snapshot;
        let training = TrainingSpec { tasks: snapshot.tasks.clone(), ..TrainingSpec::default() };
        let mut tensors = ModelPlan::new(&snapshot.model, &snapshot.schema, &training)?.tensors;
        tensors.retain(|tensor| tensor.role == TensorRole::Parameter);
        let opened = TensorFiles::open::<f32>(files.iter().map(|file| &file[..]), tensors.iter());
        let opened = opened.map_err(|message| store.damaged(step, MODEL_PART, message))?;
        let pieces = |tensor: &NamedTensor| -> Vec<Bytes> {
            opened.pieces(tensor).map(|(file, bytes)| files[file].slice_ref(bytes)).collect()
        };
        let pieces: Vec<_> = tensors.iter().map(pieces).collect();
        let is_divided = files.len() > 1;
        drop(files);
        let data = |pieces: Vec<Bytes>| match &pieces[..] {
            [whole] if !is_divided => whole.clone(),
            _ => join(pieces),
        };
        let parameters = tensors.into_iter().zip(pieces);
        let parameters =
            parameters.map(|(tensor, pieces)| Parameter { tensor, data: data(pieces) }).collect();
        Ok(Self { parameters, snapshot, tower: None })
    }

    /// Selects one tower of the model.
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

    /// The selected tower; `None` for the whole model.
    pub fn tower(&self) -> Option<Tower> {
        self.tower
    }

    /// Whether the model, or its selected tower, reads `feature`.
    pub fn reads_feature(&self, feature: &str) -> bool {
        let lists = self.snapshot.model.features().into_iter();
        let mut lists = lists.filter(|(part, _)| self.tower.is_none_or(|tower| *part == Some(tower.name())));
        lists.any(|(_, list)| list.iter().any(|name| name == feature))
    }

    /// The model's kind, as in a job file.
    pub fn kind(&self) -> &'static str {
        self.snapshot.model.kind()
    }

    /// The number of values of all parameters.
    pub fn numbers(&self) -> u64 {
        self.parameters.iter().map(|parameter| parameter.tensor.len() as u64).sum()
    }

    /// The description of the model, followed by the caller's entries.
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
