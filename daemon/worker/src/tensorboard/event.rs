//! The messages of an event file: the parts in use of TensorFlow's `event.proto`, `summary.proto` and
//! `tensor.proto`, and of the hparams plugin's `plugin_data.proto`.
//!
//! Field numbers are TensorFlow's. Scalars and histograms use the fields (`simple_value`, `histo`) that every
//! reader knows; TensorBoard converts them to the tensors that newer writers store.

use std::collections::BTreeMap;

use prost::{Message, Oneof};

/// `tensorflow.Event`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    /// Seconds since the Unix epoch.
    #[prost(double, tag = "1")]
    pub(super) wall_time: f64,
    #[prost(int64, tag = "2")]
    pub(super) step: i64,
    #[prost(oneof = "EventData", tags = "3, 5, 7")]
    pub(super) data: Option<EventData>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum EventData {
    /// In the first record: [`FILE_VERSION`].
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
    #[prost(message, tag = "7")]
    SessionLog(SessionLog),
}

/// The version in the first record of every event file. From version 2 on, readers honour [`SessionLog`].
pub(super) const FILE_VERSION: &str = "brain.Event:2";

/// `tensorflow.SessionLog`
#[derive(Clone, PartialEq, Message)]
pub(super) struct SessionLog {
    #[prost(enumeration = "SessionStatus", tag = "1")]
    pub(super) status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum SessionStatus {
    Unspecified = 0,
    /// Readers drop events of the run's earlier files for the event's step and later ones.
    Start = 1,
}

/// `tensorflow.Summary`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub(super) value: Vec<Value>,
}

/// `tensorflow.Summary.Value`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Value {
    #[prost(string, tag = "1")]
    pub(super) tag: String,
    #[prost(message, optional, tag = "9")]
    pub(super) metadata: Option<Metadata>,
    #[prost(oneof = "Data", tags = "2, 5, 8")]
    pub(super) data: Option<Data>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Data {
    #[prost(float, tag = "2")]
    Simple(f32),
    #[prost(message, tag = "5")]
    Histogram(Histogram),
    #[prost(message, tag = "8")]
    Tensor(Tensor),
}

/// `tensorflow.HistogramProto`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Histogram {
    #[prost(double, tag = "1")]
    pub(super) min: f64,
    #[prost(double, tag = "2")]
    pub(super) max: f64,
    #[prost(double, tag = "3")]
    pub(super) num: f64,
    #[prost(double, tag = "4")]
    pub(super) sum: f64,
    #[prost(double, tag = "5")]
    pub(super) sum_squares: f64,
    /// The upper limit of each bucket.
    #[prost(double, repeated, tag = "6")]
    pub(super) bucket_limit: Vec<f64>,
    /// The count of each bucket.
    #[prost(double, repeated, tag = "7")]
    pub(super) bucket: Vec<f64>,
}

/// `tensorflow.TensorProto`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Tensor {
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<Shape>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    string_val: Vec<Vec<u8>>,
}

/// `tensorflow.TensorShapeProto`
#[derive(Clone, PartialEq, Message)]
struct Shape {
    #[prost(message, repeated, tag = "2")]
    dim: Vec<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
struct Dimension {
    #[prost(int64, tag = "1")]
    size: i64,
}

/// `tensorflow.SummaryMetadata`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Metadata {
    #[prost(message, optional, tag = "1")]
    plugin: Option<Plugin>,
}

/// `tensorflow.SummaryMetadata.PluginData`
#[derive(Clone, PartialEq, Message)]
struct Plugin {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(bytes = "vec", tag = "2")]
    content: Vec<u8>,
}

/// `tensorboard.hparams.HParamsPluginData`; its version is 0.
#[derive(Clone, PartialEq, Message)]
struct HParamsData {
    #[prost(message, optional, tag = "3")]
    session_start: Option<SessionStart>,
}

/// `tensorboard.hparams.SessionStartInfo`
#[derive(Clone, PartialEq, Message)]
struct SessionStart {
    #[prost(btree_map = "string, message", tag = "1")]
    parameters: BTreeMap<String, Any>,
    #[prost(double, tag = "5")]
    start_time: f64,
}

/// `google.protobuf.Value`
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(oneof = "Kind", tags = "2, 3, 4")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Kind {
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(bool, tag = "4")]
    Flag(bool),
}

const DT_FLOAT: i32 = 1;
const DT_STRING: i32 = 7;

impl Value {
    /// A point of a curve.
    pub(super) fn scalar(tag: impl Into<String>, number: f64) -> Self {
        Self { tag: tag.into(), metadata: None, data: Some(Data::Simple(number as f32)) }
    }

    /// A histogram.
    pub(super) fn histogram(tag: impl Into<String>, histogram: Histogram) -> Self {
        Self { tag: tag.into(), metadata: None, data: Some(Data::Histogram(histogram)) }
    }

    /// Markdown text for the text plugin.
    pub(super) fn text(tag: impl Into<String>, markdown: String) -> Self {
        let text = vec![markdown.into_bytes()];
        let tensor = Tensor { dtype: DT_STRING, shape: Some(Shape { dim: Vec::new() }), string_val: text };
        Self {
            tag: tag.into(),
            metadata: Some(metadata("text", Vec::new())),
            data: Some(Data::Tensor(tensor)),
        }
    }

    /// The hyperparameters of a run that began at `start_time`. The plugin reads the metadata only; its own
    /// writer adds an empty tensor too.
    pub(super) fn hyper_parameters(
        parameters: &BTreeMap<String, serde_json::Value>,
        start_time: f64,
    ) -> Self {
        let parameters =
            parameters.iter().map(|(name, value)| (name.clone(), Any { kind: Some(kind(value)) })).collect();
        let data = HParamsData { session_start: Some(SessionStart { parameters, start_time }) };
        let shape = Shape { dim: vec![Dimension { size: 0 }] };
        let nothing = Tensor { dtype: DT_FLOAT, shape: Some(shape), string_val: Vec::new() };
        Self {
            tag: "_hparams_/session_start_info".to_owned(),
            metadata: Some(metadata("hparams", data.encode_to_vec())),
            data: Some(Data::Tensor(nothing)),
        }
    }
}

fn metadata(plugin: &str, content: Vec<u8>) -> Metadata {
    Metadata { plugin: Some(Plugin { name: plugin.to_owned(), content }) }
}

fn kind(value: &serde_json::Value) -> Kind {
    match value {
        serde_json::Value::Bool(flag) => Kind::Flag(*flag),
        serde_json::Value::Number(number) => Kind::Number(number.as_f64().unwrap_or(f64::NAN)),
        serde_json::Value::String(text) => Kind::Text(text.clone()),
        other => Kind::Text(other.to_string()),
    }
}
