//! Exports a checkpoint's model, with a description of its inputs.
//!
//! A model reads scaled numbers and ids; its data contains numbers and values. An ONNX graph scales the numbers
//! itself. The description of the ids is JSON under two keys:
//!
//! * `millstream.features`: a list of the features that the model reads, each an object:
//!
//! | key | of | |
//! |---|---|---|
//! | `name`, `columns`, `kind` | all | as in the job file |
//! | `cardinality` | all but numeric, else null | ids are below it; the last one means an absent value |
//! | `maximum` | multi-valued, else null | the number of values that count, from the first |
//! | `weights` | multi-valued, else null | the column of the values' weights, if any |
//! | `normalize`, `missing` | numeric | as in the job file |
//! | `logarithm`, `shift`, `divisor`, `absent` | numeric | the scaling; a null `divisor` gives 0 for all values |
//! | `boundaries` | bucketized, crossed | the id is the number of boundaries not above the value |
//! | `terms`, `oov_buckets` | vocabulary | the id is the index in the list, or a bucket after it; null: too long |
//! | `buckets` | hashed, identity, crossed | the number of hash buckets, or the bound of the values |
//!
//! * `millstream.missing`: a list of the values that mean an absent one.
//! * `millstream.classes`: the values of the label's classes, in the order of the scores.
//!
//! `millstream.part` names the tower in a file with one tower of a two-tower model.
//!
//! A hash bucket is that of `tf.strings.to_hash_bucket_fast`: farmhash's Fingerprint64 modulo the number of buckets.
//! A cross's bucket is that of `tf.sparse.cross_hashed` with its default key, over the values as text, or over the
//! numbers of their intervals if there are `boundaries`. A term that is not UTF-8 is written as `{"hex": "..."}`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::Result;
use millstream_batch::BatchSchema;
use millstream_pipeline::analysis::Analysis;
use millstream_pipeline::spec::{FeatureKind, FeatureSpec, Terms};
use millstream_pipeline::transform::{Scaling, Transform};
use millstream_trainer::checkpoint::CheckpointStore;
use millstream_trainer::export::onnx::{NumberScale, OnnxModel};
use millstream_trainer::export::{ExportError, Tower, TrainedModel, safetensors};
use serde_json::{Value, json};

use crate::access::Requester;
use crate::scoring::{self, Scored};
use millstream_job::Job;

/// The maximum size of all vocabularies in the description; readers of safetensors accept 100 MB.
const TERM_BYTES: usize = 32 << 20;

/// A model that can be exported.
pub struct Exportable {
    trained: TrainedModel,
    scales: BTreeMap<String, NumberScale>,
    description: Vec<(String, String)>,
    checkpoint: String,
    left_out: Vec<String>,
}

impl Exportable {
    /// Opens the checkpoint in `directory`, or the newest or best of the run there. `tower` selects one tower of a
    /// two-tower model.
    ///
    /// # Errors
    /// When there is no checkpoint, or it is damaged.
    pub fn open(directory: &Path, best: bool, tower: Option<Tower>) -> Result<Self> {
        let Scored { directory, step, job, analysis } = scoring::find(directory, best, &Requester::Trusted)?;
        let store = CheckpointStore::local(&directory)?;
        let mut trained = TrainedModel::open(&store, step)?;
        if let Some(tower) = tower {
            trained = trained.select_tower(tower)?;
        }
        let transform = Transform::resolve(&job.features, &job.label, &job.data.missing, &analysis)?;
        let scalings: BTreeMap<&str, Scaling> = transform.scalings().collect();
        let (features, left_out) = features(&job, &analysis, &trained, &scalings);
        let mut description = vec![
            ("job".to_owned(), job.name.clone()),
            ("features".to_owned(), Value::from(features).to_string()),
            ("missing".to_owned(), json!(job.data.missing).to_string()),
        ];
        let classes = &job.label.first.classes;
        description.extend((!classes.is_empty()).then(|| ("classes".to_owned(), json!(classes).to_string())));
        let scales = scalings.iter().map(|(name, scaling)| {
            let Scaling { logarithm, shift, divisor, absent } = *scaling;
            ((*name).to_owned(), NumberScale { logarithm, shift, divisor, absent })
        });
        Ok(Self { scales: scales.collect(), checkpoint: store.path(step), trained, description, left_out })
    }

    /// The checkpoint.
    pub fn checkpoint(&self) -> &str {
        &self.checkpoint
    }

    /// The model.
    pub fn trained(&self) -> &TrainedModel {
        &self.trained
    }

    /// Features whose vocabularies are too large for the description.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// The model as ONNX.
    ///
    /// # Errors
    /// When a part of it cannot be represented.
    pub fn onnx(&self) -> Result<OnnxModel, ExportError> {
        OnnxModel::new(&self.trained, &self.scales, &self.description)
    }

    /// Writes the parameters as safetensors.
    ///
    /// # Errors
    /// When writing to `out` fails.
    pub fn write_safetensors(&self, out: &mut dyn Write) -> Result<(), ExportError> {
        safetensors::write(&self.trained, &self.description, out)
    }
}

/// The descriptions of the features that the model reads, and the names of features whose terms are too large.
fn features(
    job: &Job,
    analysis: &Analysis,
    trained: &TrainedModel,
    scalings: &BTreeMap<&str, Scaling>,
) -> (Vec<Value>, Vec<String>) {
    let schema = &trained.snapshot.schema;
    let mut room = TERM_BYTES;
    let (mut described, mut left_out) = (Vec::new(), Vec::new());
    let read = job.features.iter().filter(|spec| trained.reads_feature(&spec.name));
    for FeatureSpec { name, columns, kind, maximum, weights } in read {
        let (kind, of_kind) = match kind {
            FeatureKind::Vocabulary { terms, oov_buckets } => {
                let terms = describe_terms(terms, analysis, name, &mut room);
                if terms.is_none() {
                    left_out.push(name.clone());
                }
                ("vocabulary", vec![("oov_buckets", json!(oov_buckets)), ("terms", json!(terms))])
            }
            kind => describe_kind(kind, scalings.get(name.as_str())),
        };
        let of_all = [
            ("name", json!(name)),
            ("kind", json!(kind)),
            ("columns", json!(columns)),
            ("cardinality", json!(cardinality(schema, name))),
            ("maximum", json!(maximum)),
            ("weights", json!(weights)),
        ];
        let entries = of_all.into_iter().chain(of_kind);
        let entries = entries.map(|(key, value)| (key.to_owned(), value));
        described.push(Value::Object(entries.collect()));
    }
    (described, left_out)
}

/// The name of a feature's kind, as in the job file.
pub fn kind_name(kind: &FeatureKind) -> &'static str {
    describe_kind(kind, None).0
}

/// The name of a feature's kind, and its properties. Those of vocabularies are added by the caller.
fn describe_kind(
    kind: &FeatureKind,
    scaling: Option<&Scaling>,
) -> (&'static str, Vec<(&'static str, Value)>) {
    match kind {
        FeatureKind::Numeric { normalize, missing } => {
            let mut properties = vec![("normalize", json!(normalize)), ("missing", json!(missing))];
            if let Some(Scaling { logarithm, shift, divisor, absent }) = scaling {
                properties.extend([("logarithm", json!(logarithm)), ("shift", json!(shift))]);
                properties.extend([("divisor", json!(divisor)), ("absent", json!(absent))]);
            }
            ("numeric", properties)
        }
        FeatureKind::Vector { size, missing } => {
            ("vector", vec![("size", json!(size)), ("missing", json!(missing))])
        }
        FeatureKind::Bucketized { boundaries } => ("bucketized", vec![("boundaries", json!(boundaries))]),
        FeatureKind::Vocabulary { .. } => ("vocabulary", Vec::new()),
        FeatureKind::Hashed { buckets } => ("hashed", vec![("buckets", json!(buckets))]),
        FeatureKind::Identity { buckets, out_of_range } => {
            ("identity", vec![("buckets", json!(buckets)), ("out_of_range", json!(out_of_range))])
        }
        FeatureKind::Crossed { buckets, boundaries } => {
            ("crossed", vec![("buckets", json!(buckets)), ("boundaries", json!(boundaries))])
        }
    }
}

/// The number of ids of `feature`, unless it is numeric.
pub fn cardinality(schema: &BatchSchema, feature: &str) -> Option<u32> {
    let single = schema.ids.iter().map(|ids| (&ids.name, ids.cardinality));
    let several = schema.ragged.iter().map(|ids| (&ids.name, ids.cardinality));
    single.chain(several).find(|(name, _)| *name == feature).map(|(_, cardinality)| cardinality)
}

/// A vocabulary's terms in order, if they fit in `room` bytes; reduces `room` by their size.
fn describe_terms(terms: &Terms, analysis: &Analysis, feature: &str, room: &mut usize) -> Option<Value> {
    let terms: Vec<&[u8]> = match terms {
        Terms::Given(terms) => terms.iter().map(String::as_bytes).collect(),
        Terms::Learned { .. } => {
            let learned = analysis.vocabularies.get(feature)?;
            learned.terms.iter().map(|term| term.bytes.as_slice()).collect()
        }
    };
    *room = room.checked_sub(terms.iter().map(|term| term.len()).sum())?;
    let describe = |term: &&[u8]| match str::from_utf8(term) {
        Ok(text) => json!(text),
        Err(_) => {
            let digits: String = term.iter().map(|byte| format!("{byte:02x}")).collect();
            json!({ "hex": digits })
        }
    };
    Some(terms.iter().map(describe).collect())
}
