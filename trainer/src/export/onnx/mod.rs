//! Exports a whole model as ONNX: numbers and ids in, scores out.
//!
//! The file contains the graph of one forward pass in ONNX's standard operators of opset 17, which runtimes
//! have supported since 2022. The number of rows is free. `inputs.rs` documents the inputs. The outputs for
//! each row are
//!
//! * `score`: the probability that the label is 1, `float [rows]`,
//! * `logit`: the logit of that probability, `float [rows]`.
//!
//! A model of several labels has both for each, as `score_LABEL` and `logit_LABEL`. For a numeric label,
//! `score` is the predicted number, and there is no `logit`.
//!
//! The score of a two-tower model is not a probability but the dot product of both vectors divided by the
//! temperature, and there is no `logit`. One tower has a single output:
//!
//! * `vector`: the vector of the query or the item, `float [rows, W]`.
//!
//! A feature with one of these names keeps it, and the output is then `score_2`, `logit_2` or `vector_2`.
//!
//! `graph.rs` builds a graph, `layers.rs` and `models.rs` add the models to it, and `proto.rs` defines the
//! messages of the file.
//!
//! Protobuf is limited to 2 GiB. Therefore the parameters of a larger model are *external data* in ONNX's
//! terms: they are stored in a second file, to which the graph refers by offset, and runtimes map it into
//! memory.

mod graph;
mod inputs;
mod layers;
mod models;
mod proto;

use std::collections::BTreeMap;
use std::io::{self, Write};

use millstream_backend::Loss;
use prost::Message;

use super::{ExportError, TrainedModel};
use crate::spec::{ModelSpec, Prediction};
use graph::{Graph, Value, fixed, int, rows};
pub use inputs::NumberScale;
use layers::Net;
use proto::{
    DataLocation, DataType, GraphProto, IR_VERSION, ModelProto, OperatorSetIdProto, StringStringEntryProto,
    ValueInfoProto,
};

/// The opset version.
const OPERATORS: i64 = 17;

/// Models with more bytes of parameters need external data. This leaves room for graph and description.
const MOST_EMBEDDED_BYTES: u64 = 1 << 30;

/// The maximum size of a file, and so of a description.
const FILE_BYTES: usize = i32::MAX as usize;

/// Constants of fewer bytes are always embedded: readers need them to infer shapes.
const LEAST_EXTERNAL_BYTES: usize = 1024;

/// The alignment of each tensor in a file of external data: a page, so that it can be mapped.
const ALIGNMENT: u64 = 4096;

/// A model in ONNX format.
pub struct OnnxModel {
    /// With all parameters in it.
    graph: GraphProto,
    kind: &'static str,
    metadata: Vec<(String, String)>,
}

/// An input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The name.
    pub name: String,
    /// The type, in ONNX's notation.
    pub kind: &'static str,
    /// The size of each dimension, or the name of a free one.
    pub shape: Vec<String>,
    /// A description for people.
    pub about: String,
}

impl OnnxModel {
    /// Converts `trained`. `scales` are the scalings of its numeric features; `added` are the caller's
    /// entries of the description.
    ///
    /// # Errors
    /// When the scaling of a number is missing, or a part of the model cannot be represented in ONNX.
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
                let shape = [rows(), fixed(spec.dim)];
                let length = if spec.normalize { ", of length 1" } else { "" };
                graph.output(&vector, &shape, format!("The {}'s vector{length}", tower.name()));
                graph
            }
            _ => scores(net, trained)?,
        };
        let (kind, metadata) = (trained.kind(), trained.description(added));
        Ok(Self { graph: GraphProto { name: kind.to_owned(), ..graph.proto }, kind, metadata })
    }

    /// Whether the parameters fit in the file.
    pub fn is_embeddable(&self) -> bool {
        let data = self.graph.initializer.iter().filter_map(|tensor| tensor.raw_data.as_ref());
        data.map(|data| data.len() as u64).sum::<u64>() <= MOST_EMBEDDED_BYTES
    }

    /// The inputs, in the graph's order.
    pub fn inputs(&self) -> Vec<Port> {
        self.graph.input.iter().map(Port::of).collect()
    }

    /// The outputs, the score first.
    pub fn outputs(&self) -> Vec<Port> {
        self.graph.output.iter().map(Port::of).collect()
    }

    /// Writes a file that contains the whole model.
    ///
    /// # Errors
    /// When the model exceeds the size limit, or `out` fails.
    pub fn write(&self, out: &mut dyn Write) -> Result<(), ExportError> {
        self.write_graph(self.graph.clone(), out)
    }

    /// Writes the graph to `out` and the parameters to `data`, whose file is called `name`, in the same
    /// directory.
    ///
    /// # Errors
    /// When `out` or `data` fails.
    pub fn write_external(
        &self,
        out: &mut dyn Write,
        name: &str,
        data: &mut dyn Write,
    ) -> Result<(), ExportError> {
        let mut end = 0;
        let mut graph = self.graph.clone();
        for tensor in &mut graph.initializer {
            let external = tensor.raw_data.take_if(|bytes| bytes.len() >= LEAST_EXTERNAL_BYTES);
            let Some(bytes) = external else { continue };
            let offset = u64::next_multiple_of(end, ALIGNMENT);
            io::copy(&mut io::Read::take(io::repeat(0), offset - end), data)?;
            data.write_all(&bytes)?;
            end = offset + bytes.len() as u64;
            let place = [
                ("location", name.to_owned()),
                ("offset", offset.to_string()),
                ("length", bytes.len().to_string()),
            ];
            tensor.external_data = place.map(|(key, value)| entry(key, value)).to_vec();
            tensor.data_location = Some(DataLocation::External.into());
        }
        self.write_graph(graph, out)
    }

    fn write_graph(&self, graph: GraphProto, out: &mut dyn Write) -> Result<(), ExportError> {
        let model = ModelProto {
            ir_version: IR_VERSION,
            producer_name: "millstream".to_owned(),
            producer_version: env!("CARGO_PKG_VERSION").to_owned(),
            doc_string: format!("A {} model: numbers and ids in, scores out.", self.kind),
            opset_import: vec![OperatorSetIdProto { domain: String::new(), version: OPERATORS }],
            metadata_props: self.metadata.iter().map(|(key, value)| entry(key, value.clone())).collect(),
            graph: Some(graph),
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

/// Adds the prediction of a label with these logits to a graph's outputs.
fn score(graph: &mut Graph, logits: &Value, label: &str, prediction: Prediction) {
    let (named, whose) = match label {
        "" => (String::new(), "the label".to_owned()),
        label => (format!("_{label}"), format!("label `{label}`")),
    };
    let shape = [rows()];
    let about = match prediction {
        Prediction::Number | Prediction::RobustNumber { .. } => format!("The predicted value of {whose}"),
        Prediction::Quantile { quantile } => format!("The predicted {quantile} quantile of {whose}"),
        Prediction::Classes(classes) => return scores_of_classes(graph, logits, (&named, &whose), classes),
        Prediction::Rate => return score_of_rate(graph, logits, (&named, &whose)),
        Prediction::Rank => "The dot product of both vectors, divided by the temperature".to_owned(),
        Prediction::ListRank => format!("A score for ranking the rows of a list by {whose}"),
        Prediction::Probability => {
            let logit = graph.along("Squeeze", logits, 1, &format!("logit{named}"));
            let score = graph.node("Sigmoid", &[&logit], &format!("score{named}"));
            graph.output(&score, &shape, format!("The probability that {whose} is 1"));
            return graph.output(&logit, &shape, "The logit of that probability".to_owned());
        }
    };
    let score = graph.along("Squeeze", logits, 1, &format!("score{named}"));
    graph.output(&score, &shape, about);
}

/// The same for the mean of a label of at least 0, whose logit is its logarithm.
fn score_of_rate(graph: &mut Graph, logits: &Value, (named, whose): (&str, &str)) {
    let logit = graph.along("Squeeze", logits, 1, &format!("log_rate{named}"));
    let most = graph.number(&format!("log_rate{named}.most"), Loss::MAX_LOG_RATE as f32);
    let bounded = graph.node("Min", &[&logit, &most], &format!("log_rate{named}.bounded"));
    let score = graph.node("Exp", &[&bounded], &format!("score{named}"));
    graph.output(&score, &[rows()], format!("The predicted mean of {whose}"));
}

/// The same for a label with classes. `named` is the suffix of the outputs' names, and `whose` describes the
/// label.
fn scores_of_classes(graph: &mut Graph, logits: &Value, (named, whose): (&str, &str), classes: u32) {
    let shape = [rows(), fixed(classes)];
    let logits = graph.node("Identity", &[logits], &format!("logit{named}"));
    let scores = graph.node_with("Softmax", &[&logits], &[int("axis", 1)], &format!("score{named}"));
    graph.output(&scores, &shape, format!("The probability of each class of {whose}"));
    graph.output(&logits, &shape, "The logits of those probabilities".to_owned());
}

fn entry(key: &str, value: String) -> StringStringEntryProto {
    StringStringEntryProto { key: key.to_owned(), value }
}
