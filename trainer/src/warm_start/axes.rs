//! What the rows and columns of a model's parameters stand for, by name.
//!
//! A layer over features has a row of weights for each of its inputs, and where an input lies follows from the
//! list of features. So two models of one kind over other features can be held against each other: not place by
//! place, but by what each place stands for.

use std::collections::HashMap;
use std::rc::Rc;

use millstream_batch::BatchSchema;

use crate::model::ModelError;
use crate::model::features::Features;
use crate::spec::{CrossSpec, DcnStructure, DlrmInteraction, ModelSpec};

/// What the places along an axis stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    /// Each for an id of this feature.
    Ids(String),
    /// Each for an input.
    Inputs(Rc<[Input]>),
}

/// What a layer takes a number of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Input {
    /// A feature of numbers.
    Number(String),
    /// A column of a feature's embedding.
    Embedded(String, usize),
    /// A column of what DLRM's bottom layers give.
    Bottom(usize),
    /// The product of two of DLRM's vectors, by their names in order; that of the bottom layers has none.
    Product(Option<String>, Option<String>),
}

/// Rows and columns of parameters that stand for something outside of the model; of all others, it is only
/// their number that matters.
#[derive(Debug, Default)]
pub(super) struct Axes(HashMap<String, (Option<Axis>, Option<Axis>)>);

/// The features of a list, as layers take them.
struct Taken {
    ids: Vec<String>,
    numbers: Vec<Input>,
}

impl Axes {
    /// Those of the model that `spec` asks for, for batches of `schema`.
    ///
    /// # Errors
    /// When a feature is not in `schema`.
    pub(super) fn of(spec: &ModelSpec, schema: &BatchSchema) -> Result<Self, ModelError> {
        let mut axes = Self::default();
        let taken = |names: &[String]| Taken::new(names, schema);
        match spec {
            ModelSpec::Linear(spec) => axes.linear("linear", &taken(&spec.features)?),
            ModelSpec::Mlp(spec) => {
                axes.deep("", taken(&spec.features)?, spec.embedding.dim);
            }
            ModelSpec::WideDeep(spec) => {
                axes.linear("wide", &taken(&spec.wide.features)?);
                axes.deep("deep.", taken(&spec.deep.features)?, spec.deep.embedding_dim);
            }
            ModelSpec::DeepFm(spec) => {
                axes.linear("linear", &taken(&spec.features)?);
                axes.deep("", taken(&spec.features)?, spec.embedding.dim);
            }
            ModelSpec::Dcn(spec) => {
                let inputs = axes.deep("", taken(&spec.features)?, spec.embedding.dim);
                axes.cross(&spec.cross, &inputs);
                if spec.structure == DcnStructure::Parallel {
                    axes.rows("cross.output.weight", inputs);
                }
            }
            ModelSpec::Dlrm(spec) => {
                let Taken { ids, numbers } = taken(&spec.features)?;
                axes.rows("bottom.layer.0.weight", Axis::Inputs(numbers.into()));
                axes.tables("embedding", &ids);
                let top = match &spec.interaction {
                    DlrmInteraction::Dot => products(&ids, spec.embedding.dim),
                    DlrmInteraction::Cross(_) => {
                        bottom(spec.embedding.dim).chain(embedded(&ids, spec.embedding.dim)).collect()
                    }
                };
                let top = Axis::Inputs(top);
                if let DlrmInteraction::Cross(spec) = &spec.interaction {
                    axes.cross(spec, &top);
                }
                axes.rows("top.layer.0.weight", top);
            }
            ModelSpec::TwoTower(spec) => {
                for (name, tower) in [("query", &spec.query), ("item", &spec.item)] {
                    let taken = taken(&tower.features)?;
                    axes.over(&format!("{name}."), name, taken, tower.embedding.dim);
                }
            }
        }
        Ok(axes)
    }

    /// What the rows and columns of a parameter stand for.
    pub(super) fn get(&self, parameter: &str) -> (Option<&Axis>, Option<&Axis>) {
        self.0.get(parameter).map_or((None, None), |(rows, columns)| (rows.as_ref(), columns.as_ref()))
    }

    fn rows(&mut self, parameter: impl Into<String>, axis: Axis) {
        self.0.entry(parameter.into()).or_default().0 = Some(axis);
    }

    fn columns(&mut self, parameter: impl Into<String>, axis: Axis) {
        self.0.entry(parameter.into()).or_default().1 = Some(axis);
    }

    /// Tables `NAME.FEATURE`.
    fn tables(&mut self, name: &str, ids: &[String]) {
        for feature in ids {
            self.rows(format!("{name}.{feature}"), Axis::Ids(feature.clone()));
        }
    }

    fn linear(&mut self, name: &str, taken: &Taken) {
        self.tables(&format!("{name}.ids"), &taken.ids);
        self.rows(format!("{name}.dense"), Axis::Inputs(taken.numbers.as_slice().into()));
    }

    /// Embeddings beside numbers, and the first layer over them.
    fn deep(&mut self, prefix: &str, taken: Taken, width: u32) -> Axis {
        self.over(prefix, "deep", taken, width)
    }

    /// The same, of layers of another name.
    fn over(&mut self, prefix: &str, layers: &str, Taken { ids, numbers }: Taken, width: u32) -> Axis {
        self.tables(&format!("{prefix}embedding"), &ids);
        let inputs = Axis::Inputs(embedded(&ids, width).chain(numbers).collect());
        self.rows(format!("{layers}.layer.0.weight"), inputs.clone());
        inputs
    }

    /// Cross layers, which give what they take.
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
        Ok(Self {
            numbers: features.dense.iter().map(number).collect(),
            ids: features.ids.into_iter().map(|feature| feature.name).collect(),
        })
    }
}

fn embedded(ids: &[String], width: u32) -> impl Iterator<Item = Input> {
    let columns = move |feature: &String| {
        let feature = feature.clone();
        (0..width as usize).map(move |column| Input::Embedded(feature.clone(), column))
    };
    ids.iter().flat_map(columns)
}

fn bottom(width: u32) -> impl Iterator<Item = Input> {
    (0..width as usize).map(Input::Bottom)
}

/// What DLRM's top layers take: the first vector, then the product of each pair.
fn products(ids: &[String], width: u32) -> Rc<[Input]> {
    let vectors: Vec<_> = std::iter::once(None).chain(ids.iter().cloned().map(Some)).collect();
    let pairs = (0..vectors.len()).flat_map(|first| (0..first).map(move |second| (first, second)));
    let product = |(first, second): (usize, usize)| {
        let (a, b) = (vectors[first].clone(), vectors[second].clone());
        if a <= b { Input::Product(a, b) } else { Input::Product(b, a) }
    };
    bottom(width).chain(pairs.map(product)).collect()
}
