//! A whole model as ONNX: numbers and ids in, scores out.
//!
//! The file holds the graph of one forward pass, in ONNX's own operators of set 17, which runtimes have had since
//! 2022; the number of rows is free. `inputs.rs` says what goes in. Out come, for each row,
//!
//! * `score`: the probability of the label being 1, `float [rows]`,
//! * `logit`: what the sigmoid makes that of, `float [rows]`.
//!
//! A model of several labels has both for each, as `score_LABEL` and `logit_LABEL`. For a label that is predicted as the
//! number it is, `score` is that number, and there is no `logit`.
//!
//! Of a two-tower model the score is no probability, but the product of both vectors over the temperature, and there
//! is no `logit`; of one of its towers comes nothing but
//!
//! * `vector`: the query's or the item's, `float [rows, W]`.
//!
//! A feature of one of these names keeps it, and the output is then `score_2`, `logit_2` or `vector_2`.
//!
//! `graph.rs` is a graph in the making, `layers.rs` and `models.rs` write the models into it, and `proto.rs` has the
//! messages that a file is made of.
//!
//! Protobuf ends at 2 GiB. So the numbers of a larger model are *external data*, as ONNX calls it: they lie in a file
//! beside the graph, which says where in it, and runtimes map it into memory.

mod graph;
mod inputs;
mod layers;
mod models;
mod proto;

use std::collections::BTreeMap;
use std::io::{self, Write};

use prost::Message;

use super::{ExportError, TrainedModel};
use crate::spec::{ModelSpec, Prediction};
use graph::{Attribute, Constant, Dimension, Graph, ROWS, Value};
pub use inputs::NumberScale;
use layers::Net;
use proto::{
    DataLocation, DataType, GraphProto, IR_VERSION, ModelProto, OperatorSetIdProto, StringStringEntryProto,
    TensorProto, ValueInfoProto,
};

/// The set of operators.
const OPERATORS: i64 = 17;

/// A model's numbers are in the file up to so many bytes, which leaves buffers for graph and description.
const MOST_EMBEDDED_BYTES: u64 = 1 << 30;

/// The most bytes of a file, and so of a description.
const FILE_BYTES: usize = i32::MAX as usize;

/// Constants of fewer bytes are always in the file: readers work out shapes by them.
const LEAST_EXTERNAL_BYTES: usize = 1024;

/// What the place of each tensor is a multiple of in a file of external data: a page, so that it can be mapped.
const ALIGNMENT: u64 = 4096;

/// A model as ONNX has it.
pub struct OnnxModel {
    graph: Graph,
    kind: &'static str,
    metadata: Vec<(String, String)>,
}

/// An input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its type, as ONNX names it.
    pub kind: &'static str,
    /// Each dimension's size, or name where it is free.
    pub shape: Vec<String>,
    /// For a person.
    pub about: String,
}

impl OnnxModel {
    /// The model of `trained`, whose numeric features are scaled by `scales`; `added` is put beside what is always
    /// told of a model.
    ///
    /// # Errors
    /// When a number's scale is not told, or a part of the model has no place in ONNX.
    pub fn new(
        trained: &TrainedModel,
        scales: &BTreeMap<String, NumberScale>,
        added: &[(String, String)],
    ) -> Result<Self, ExportError> {
        let mut net = Net::new(trained, scales)?;
        let graph = match (&trained.snapshot.model, trained.tower) {
            (ModelSpec::TwoTower(spec), Some(tower)) => {
                let vectors = net.tower(spec, tower)?;
                let mut graph = net.finish()?;
                let vector = graph.node("Identity", &[&vectors], "vector");
                let shape = [Dimension::Named(ROWS.to_owned()), Dimension::Fixed(spec.dim.into())];
                let length = if spec.normalize { ", of length 1" } else { "" };
                graph.output(&vector, &shape, format!("The {}'s vector{length}", tower.name()));
                graph
            }
            _ => scores(net, trained)?,
        };
        Ok(Self { graph, kind: trained.kind(), metadata: trained.description(added) })
    }

    /// Whether the numbers fit in the file.
    pub fn is_embeddable(&self) -> bool {
        let bytes: u64 = self.graph.constants.iter().map(|constant| constant.data.len() as u64).sum();
        bytes <= MOST_EMBEDDED_BYTES
    }

    /// What goes in, in the graph's order.
    pub fn inputs(&self) -> Vec<Port> {
        self.graph.inputs.iter().map(Port::of).collect()
    }

    /// What comes out, the score first.
    pub fn outputs(&self) -> Vec<Port> {
        self.graph.outputs.iter().map(Port::of).collect()
    }

    /// Writes a file that holds all of the model.
    ///
    /// # Errors
    /// When that is more than a file may hold, or `out` refuses it.
    pub fn write(&self, out: &mut dyn Write) -> Result<(), ExportError> {
        let embedded = |constant: &Constant| TensorProto {
            raw_data: Some(constant.data.clone()),
            ..described(constant)
        };
        self.write_graph(self.graph.constants.iter().map(embedded).collect(), out)
    }

    /// Writes a file without the numbers, and these into `data`, a file beside it that is called `name`.
    ///
    /// # Errors
    /// When `out` or `data` refuses it.
    pub fn write_external(
        &self,
        out: &mut dyn Write,
        name: &str,
        data: &mut dyn Write,
    ) -> Result<(), ExportError> {
        let mut end = 0;
        let mut tensors = Vec::with_capacity(self.graph.constants.len());
        for constant in &self.graph.constants {
            if constant.data.len() < LEAST_EXTERNAL_BYTES {
                let raw_data = Some(constant.data.clone());
                tensors.push(TensorProto { raw_data, ..described(constant) });
                continue;
            }
            let offset = u64::next_multiple_of(end, ALIGNMENT);
            io::copy(&mut io::Read::take(io::repeat(0), offset - end), data)?;
            data.write_all(&constant.data)?;
            end = offset + constant.data.len() as u64;
            let place = [
                ("location", name.to_owned()),
                ("offset", offset.to_string()),
                ("length", constant.data.len().to_string()),
            ];
            tensors.push(TensorProto {
                external_data: place.map(|(key, value)| entry(key, value)).to_vec(),
                data_location: Some(DataLocation::External.into()),
                ..described(constant)
            });
        }
        self.write_graph(tensors, out)
    }

    fn write_graph(&self, initializer: Vec<TensorProto>, out: &mut dyn Write) -> Result<(), ExportError> {
        let Graph { nodes, inputs, outputs, .. } = &self.graph;
        let model = ModelProto {
            ir_version: IR_VERSION,
            producer_name: "millstream".to_owned(),
            producer_version: env!("CARGO_PKG_VERSION").to_owned(),
            doc_string: format!("A {} model: numbers and ids in, scores out.", self.kind),
            opset_import: vec![OperatorSetIdProto { domain: String::new(), version: OPERATORS }],
            metadata_props: self.metadata.iter().map(|(key, value)| entry(key, value.clone())).collect(),
            graph: Some(GraphProto {
                node: nodes.clone(),
                name: self.kind.to_owned(),
                initializer,
                input: inputs.clone(),
                output: outputs.clone(),
            }),
        };
        let bytes = model.encoded_len();
        if bytes > FILE_BYTES {
            return Err(ExportError::Description { bytes, format: "ONNX", limit: FILE_BYTES });
        }
        Ok(out.write_all(&model.encode_to_vec())?)
    }
}

/// The graph of a whole model.
fn scores(mut net: Net<'_>, trained: &TrainedModel) -> Result<Graph, ExportError> {
    let spec = &trained.snapshot.model;
    let logits = net.logits(spec)?;
    let labels = net.labels();
    let mut graph = net.finish()?;
    for ((logits, label), task) in logits.iter().zip(&labels).zip(&trained.snapshot.tasks) {
        score(&mut graph, logits, label, spec.prediction(&task.loss));
    }
    Ok(graph)
}

impl Port {
    fn of(info: &ValueInfoProto) -> Self {
        let tensor = info.r#type.as_ref().and_then(|kind| kind.tensor_type.as_ref());
        let dims = tensor.and_then(|tensor| tensor.shape.as_ref()).map(|shape| shape.dim.as_slice());
        let shape = dims.unwrap_or_default().iter().map(|dim| {
            let size = dim.dim_value.map(|size| size.to_string());
            size.or_else(|| dim.dim_param.clone()).unwrap_or_default()
        });
        let kind = match tensor.map(proto::TensorTypeProto::elem_type) {
            Some(DataType::Double) => "double",
            Some(DataType::Int64) => "int64",
            _ => "float",
        };
        Self { name: info.name.clone(), kind, shape: shape.collect(), about: info.doc_string.clone() }
    }
}

/// Adds what is predicted for a label, given its logits, to a graph's outputs.
fn score(graph: &mut Graph, logits: &Value, label: &str, prediction: Prediction) {
    let (named, whose) = match label {
        "" => (String::new(), "the label".to_owned()),
        label => (format!("_{label}"), format!("label `{label}`")),
    };
    let shape = [Dimension::Named(ROWS.to_owned())];
    let axes = graph.list("axis.1", &[1]);
    let about = match prediction {
        Prediction::Number => format!("What {whose} is predicted to be"),
        Prediction::Classes(classes) => return scores_of_classes(graph, logits, (&named, &whose), classes),
        Prediction::Rank => "The product of both vectors, over the temperature".to_owned(),
        Prediction::Probability => {
            let logit = graph.node("Squeeze", &[logits, &axes], &format!("logit{named}"));
            let score = graph.node("Sigmoid", &[&logit], &format!("score{named}"));
            graph.output(&score, &shape, format!("The probability of {whose} being 1"));
            return graph.output(&logit, &shape, "The logarithm of its odds".to_owned());
        }
    };
    let score = graph.node("Squeeze", &[logits, &axes], &format!("score{named}"));
    graph.output(&score, &shape, about);
}

/// The same of classes; with the logits go the end of names and what is predicted.
fn scores_of_classes(graph: &mut Graph, logits: &Value, (named, whose): (&str, &str), classes: u32) {
    let shape = [Dimension::Named(ROWS.to_owned()), Dimension::Fixed(classes.into())];
    let logits = graph.node("Identity", &[logits], &format!("logit{named}"));
    let over_classes = [("axis", Attribute::Int(1))];
    let scores = graph.node_with("Softmax", &[&logits], &over_classes, &format!("score{named}"));
    graph.output(&scores, &shape, format!("The probability of {whose} being each of its classes"));
    graph.output(&logits, &shape, "Their logarithms, but for what is the same for all of a row".to_owned());
}

/// A tensor, but for its numbers.
fn described(constant: &Constant) -> TensorProto {
    let Constant { name, dims, kind, data: _ } = constant;
    TensorProto {
        name: name.clone(),
        dims: dims.clone(),
        data_type: (*kind).into(),
        ..TensorProto::default()
    }
}

fn entry(key: &str, value: String) -> StringStringEntryProto {
    StringStringEntryProto { key: key.to_owned(), value }
}
