//! The meaning of the rows and columns of a model's parameters, by name.
//!
//! A layer over features has a row of weights for each input, whose index depends on the list of features. So two
//! models of one kind with different features are compared by the meaning of each index.

use std::collections::HashMap;
use std::rc::Rc;

use millstream_batch::BatchSchema;

use crate::model::ModelError;
use crate::model::din::SequenceFeatures;
use crate::model::embeddings::EmbeddingTables;
use crate::model::features::Features;
use crate::spec::{CrossSpec, DcnStructure, DinSpec, DlrmInteraction, DlrmSpec, EmbeddingSpec, ModelSpec};

/// The meaning of an axis's indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    /// The ids of this feature.
    Ids(String),
    /// Inputs of a layer.
    Inputs(Rc<[Input]>),
}

/// An input of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Input {
    /// A numeric feature.
    Number(String),
    /// A column of a feature's embedding.
    Embedded(String, usize),
    /// A column of the attention's sum over this history by this target.
    Attended(String, String, usize),
    /// A column of the output of DLRM's bottom layers.
    Bottom(usize),
    /// The dot product of two of DLRM's vectors, named in order; the vector of the bottom layers has no name.
    Product(Option<String>, Option<String>),
    /// An expert of MMoE, in the gate of this label.
    Gate(String, u32),
}

/// The axes of all parameters whose indices have a meaning outside of the model. All others only need equal lengths.
#[derive(Debug, Default)]
pub(super) struct Axes(HashMap<String, (Option<Axis>, Option<Axis>)>);

/// The features of a list, in the order of a layer's inputs.
struct Taken {
    features: Features,
    numbers: Vec<Input>,
}

impl Axes {
    /// The axes of the model `spec` for batches of `schema`.
    ///
    /// # Errors
    /// When the model is invalid.
    pub(super) fn of(spec: &ModelSpec, schema: &BatchSchema) -> Result<Self, ModelError> {
        let mut axes = Self::default();
        let taken = |names: &[String]| Taken::new(names, schema);
        match spec {
            ModelSpec::Linear(spec) => axes.linear("linear", &taken(&spec.features)?),
            ModelSpec::Mlp(spec) => {
                axes.deep("", "deep", &spec.embedding, taken(&spec.features)?)?;
            }
            ModelSpec::WideDeep(spec) => {
                axes.linear("wide", &taken(&spec.wide.features)?);
                axes.deep("deep.", "deep", &spec.deep.embedding(), taken(&spec.deep.features)?)?;
            }
            ModelSpec::DeepFm(spec) => {
                axes.linear("linear", &taken(&spec.features)?);
                axes.deep("", "deep", &spec.embedding, taken(&spec.features)?)?;
            }
            ModelSpec::Dcn(spec) => {
                let inputs = axes.deep("", "deep", &spec.embedding, taken(&spec.features)?)?;
                axes.cross(&spec.cross, &inputs);
                if spec.structure == DcnStructure::Parallel {
                    axes.rows("cross.output.weight", inputs);
                }
            }
            ModelSpec::Din(spec) => axes.din(spec, taken(&spec.features)?, schema)?,
            ModelSpec::Dlrm(spec) => axes.dlrm(spec, taken(&spec.features)?)?,
            ModelSpec::Mmoe(spec) => {
                let taken = taken(&spec.features)?;
                let mut inputs = axes.embedding("", &spec.embedding, &taken.features)?;
                inputs.extend(taken.numbers);
                let inputs = Axis::Inputs(inputs.into());
                for expert in 0..spec.experts {
                    axes.rows(format!("expert.{expert}.layer.0.weight"), inputs.clone());
                }
                axes.rows("gate.weight", inputs);
                axes.columns("gate.weight", Axis::Inputs(gates(schema, spec.experts)));
            }
            ModelSpec::TwoTower(spec) => {
                for (name, tower) in [("query", &spec.query), ("item", &spec.item)] {
                    let taken = taken(&tower.features)?;
                    axes.deep(&format!("{name}."), name, &tower.embedding, taken)?;
                }
            }
        }
        Ok(axes)
    }

    /// The axes of a parameter.
    pub(super) fn get(&self, parameter: &str) -> (Option<&Axis>, Option<&Axis>) {
        self.0.get(parameter).map_or((None, None), |(rows, columns)| (rows.as_ref(), columns.as_ref()))
    }

    fn rows(&mut self, parameter: impl Into<String>, axis: Axis) {
        self.0.entry(parameter.into()).or_default().0 = Some(axis);
    }

    fn columns(&mut self, parameter: impl Into<String>, axis: Axis) {
        self.0.entry(parameter.into()).or_default().1 = Some(axis);
    }

    fn linear(&mut self, name: &str, taken: &Taken) {
        for feature in &taken.features.ids {
            self.rows(format!("{name}.ids.{}", feature.name), Axis::Ids(feature.name.clone()));
        }
        self.rows(format!("{name}.dense"), Axis::Inputs(taken.numbers.as_slice().into()));
    }

    /// Embedding tables and their concatenated output. Features that share a table have the same ids.
    fn embedding(
        &mut self,
        prefix: &str,
        spec: &EmbeddingSpec,
        features: &Features,
    ) -> Result<Vec<Input>, ModelError> {
        let EmbeddingTables { tables, lookups } = EmbeddingTables::resolve(prefix, spec, &features.ids)?;
        let mut embedded = Vec::new();
        for (feature, lookup) in features.ids.iter().zip(lookups) {
            let table = &tables[lookup.table];
            self.rows(format!("{prefix}embedding.{}", table.name), Axis::Ids(feature.name.clone()));
            embedded.extend((0..table.width).map(|column| Input::Embedded(feature.name.clone(), column)));
        }
        Ok(embedded)
    }

    /// Embeddings and numbers, and the first layer over them.
    fn deep(
        &mut self,
        prefix: &str,
        layers: &str,
        spec: &EmbeddingSpec,
        taken: Taken,
    ) -> Result<Axis, ModelError> {
        let mut inputs = self.embedding(prefix, spec, &taken.features)?;
        inputs.extend(taken.numbers);
        let inputs = Axis::Inputs(inputs.into());
        self.rows(format!("{layers}.layer.0.weight"), inputs.clone());
        Ok(inputs)
    }

    fn din(
        &mut self,
        spec: &DinSpec,
        Taken { features, numbers }: Taken,
        schema: &BatchSchema,
    ) -> Result<(), ModelError> {
        let resolved = SequenceFeatures::resolve(features, &spec.sequences, &spec.embedding, schema)?;
        let histories = spec.sequences.iter().map(|sequence| (&sequence.history, &sequence.target));
        let histories: HashMap<&String, &String> = histories.collect();
        let mut inputs = self.embedding("", &spec.embedding, &resolved.features)?;
        for input in &mut inputs {
            let Input::Embedded(history, column) = &*input else { continue };
            if let Some(&target) = histories.get(history) {
                *input = Input::Attended(history.clone(), target.clone(), *column);
            }
        }
        inputs.extend(numbers);
        self.rows("deep.layer.0.weight", Axis::Inputs(inputs.into()));
        Ok(())
    }

    fn dlrm(&mut self, spec: &DlrmSpec, Taken { features, numbers }: Taken) -> Result<(), ModelError> {
        self.rows("bottom.layer.0.weight", Axis::Inputs(numbers.into()));
        let embedded = self.embedding("", &spec.embedding, &features)?;
        let top: Rc<[Input]> = match (&spec.interaction, spec.embedding.dim) {
            (DlrmInteraction::Dot, _) => {
                // All vectors have the same width.
                let width = embedded.len() / features.ids.len().max(1);
                bottom(width).chain(products(&features)).collect()
            }
            (DlrmInteraction::Cross(_), dim) => bottom(dim.columns(0)).chain(embedded).collect(),
        };
        let top = Axis::Inputs(top);
        if let DlrmInteraction::Cross(spec) = &spec.interaction {
            self.cross(spec, &top);
        }
        self.rows("top.layer.0.weight", top);
        Ok(())
    }

    /// Cross layers, whose outputs have the meaning of their inputs.
    fn cross(&mut self, spec: &CrossSpec, inputs: &Axis) {
        for layer in 0..spec.layers {
            let name = format!("cross.layer.{layer}");
            self.columns(format!("{name}.weight"), inputs.clone());
            self.columns(format!("{name}.bias"), inputs.clone());
            let takes = if spec.rank.is_some() { ".down.weight" } else { ".weight" };
            self.rows(format!("{name}{takes}"), inputs.clone());
        }
    }
}

impl Taken {
    fn new(names: &[String], schema: &BatchSchema) -> Result<Self, ModelError> {
        let features = Features::resolve("features", names, schema)?;
        let number = |&column: &usize| Input::Number(schema.dense[column].clone());
        Ok(Self { numbers: features.dense.iter().map(number).collect(), features })
    }
}

fn bottom(width: usize) -> impl Iterator<Item = Input> {
    (0..width).map(Input::Bottom)
}

/// The columns of MMoE's gates: each expert, for each label.
fn gates(schema: &BatchSchema, experts: u32) -> Rc<[Input]> {
    let gates = |label: &str| {
        let label = label.to_owned();
        (0..experts).map(move |expert| Input::Gate(label.clone(), expert))
    };
    schema.label_names().into_iter().flat_map(gates).collect()
}

/// The inputs of DLRM's top layers after the first vector: the dot product of each pair.
fn products(features: &Features) -> impl Iterator<Item = Input> {
    let names = features.ids.iter().map(|feature| Some(feature.name.clone()));
    let vectors: Vec<_> = std::iter::once(None).chain(names).collect();
    let pairs = (0..vectors.len()).flat_map(|first| (0..first).map(move |second| (first, second)));
    pairs.map(move |(first, second)| {
        let (a, b) = (vectors[first].clone(), vectors[second].clone());
        if a <= b { Input::Product(a, b) } else { Input::Product(b, a) }
    })
}
