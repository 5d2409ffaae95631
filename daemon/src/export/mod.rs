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
//! | `weights_input` | multi-valued, else null | the input of these weights |
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
//!
//! Standard operators of ONNX cannot compute these hashes, so the values' way to ids is exported as source code beside the
//! model ([`transforms`]).

pub mod transforms;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use anyhow::Result;
use millstream_batch::{BatchSchema, RaggedFeature};
use millstream_io::storage::Directory;
use millstream_pipeline::analysis::Analysis;
use millstream_pipeline::spec::{FeatureKind, FeatureSpec, Terms};
use millstream_pipeline::transform::{Scaling, Transform};
use millstream_trainer::checkpoint::CheckpointStore;
use millstream_trainer::export::onnx::{NumberScale, OnnxModel};
use millstream_trainer::export::{ExportError, Tower, TrainedModel, safetensors};
use serde_json::{Value, json};

use crate::access::Requester;
use crate::copies::{Contents, Copies};
use crate::scoring::{self, Scored};
use millstream_job::Job;
use transforms::{Language, Transforms};

/// The maximum size of all vocabularies in the description; readers of safetensors accept 100 MB.
const TERM_BYTES: usize = 32 << 20;

/// A model that can be exported.
pub struct Exportable {
    trained: TrainedModel,
    job: Job,
    analysis: Analysis,
    scalings: BTreeMap<String, Scaling>,
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
    pub fn open(given: &Directory, best: bool, tower: Option<Tower>, copies: &Copies) -> Result<Self> {
        let contents = (best, Contents::Parameters);
        let found = scoring::find_in(given, contents, &Requester::Trusted, copies)?;
        let checkpoint = found.checkpoint(given).to_string();
        let Scored { directory, step, job, analysis, .. } = found;
        let store = CheckpointStore::local(&directory)?;
        let mut trained = TrainedModel::open(&store, step)?;
        if let Some(tower) = tower {
            trained = trained.select_tower(tower)?;
        }
        let transform = Transform::resolve(&job.features, &job.label, &job.data.missing, &analysis)?;
        let scalings = transform.scalings().map(|(name, scaling)| (name.to_owned(), scaling)).collect();
        let (features, left_out) = features(&job, &analysis, &trained, &scalings, TERM_BYTES);
        let mut description = vec![
            ("job".to_owned(), job.name.clone()),
            ("features".to_owned(), Value::from(features).to_string()),
            ("missing".to_owned(), json!(job.data.missing).to_string()),
        ];
        let classes = &job.label.first.classes;
        description.extend((!classes.is_empty()).then(|| ("classes".to_owned(), json!(classes).to_string())));
        Ok(Self { trained, job, analysis, scalings, description, checkpoint, left_out })
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
        let scales = self.scalings.iter().map(|(name, scaling)| {
            let Scaling { logarithm, shift, divisor, absent } = *scaling;
            (name.clone(), NumberScale { logarithm, shift, divisor, absent })
        });
        OnnxModel::new(&self.trained, &scales.collect(), &self.description)
    }

    /// Writes the features that the model reads as source code, which turns rows into the model's inputs.
    ///
    /// # Errors
    /// When writing to `out` fails.
    pub fn write_transforms(&self, language: Language, out: &mut dyn Write) -> io::Result<()> {
        let Self { trained, job, analysis, scalings, .. } = self;
        let transforms = Transforms { trained, job, analysis, scalings };
        transforms.write(language, out)
    }

    /// Writes the parameters as safetensors.
    ///
    /// # Errors
    /// When writing to `out` fails.
    pub fn write_safetensors(&self, out: &mut dyn Write) -> Result<(), ExportError> {
        safetensors::write(&self.trained, &self.description, out)
    }
}

/// The descriptions of the features that the model reads, with at most `room` bytes of terms, and the names of features
/// whose terms are too large.
fn features(
    job: &Job,
    analysis: &Analysis,
    trained: &TrainedModel,
    scalings: &BTreeMap<String, Scaling>,
    mut room: usize,
) -> (Vec<Value>, Vec<String>) {
    let schema = &trained.snapshot.schema;
    let weights_inputs = weights_inputs(trained);
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
            kind => describe_kind(kind, scalings.get(name)),
        };
        let of_all = [
            ("name", json!(name)),
            ("kind", json!(kind)),
            ("columns", json!(columns)),
            ("cardinality", json!(cardinality(schema, name))),
            ("maximum", json!(maximum)),
            ("weights", json!(weights)),
            ("weights_input", json!(weights_inputs.get(name))),
        ];
        let entries = of_all.into_iter().chain(of_kind);
        let entries = entries.map(|(key, value)| (key.to_owned(), value));
        described.push(Value::Object(entries.collect()));
    }
    (described, left_out)
}

/// The inputs of the weights of features that the model reads: they have further names if these are taken by features.
fn weights_inputs(trained: &TrainedModel) -> BTreeMap<String, String> {
    let schema = &trained.snapshot.schema;
    let is_read = |name: &str| trained.reads_feature(name);
    let dense = schema.dense.iter().map(|name| BatchSchema::feature_of(name));
    let single = schema.ids.iter().map(|ids| ids.name.as_str());
    let several = schema.ragged.iter().map(|ids| ids.name.as_str());
    let read = dense.chain(single).chain(several).filter(|name| is_read(name));
    let mut taken: BTreeSet<String> = read.map(str::to_owned).collect();
    let weighted = schema.ragged.iter().filter(|ids| ids.weighted && is_read(&ids.name));
    let input = |ids: &RaggedFeature| {
        let plain = format!("{}_weights", ids.name);
        let numbered = (2..).map(|number: u64| format!("{plain}_{number}"));
        let input = std::iter::once(plain.clone()).chain(numbered).find(|name| taken.insert(name.clone()))?;
        Some((ids.name.clone(), input))
    };
    weighted.filter_map(input).collect()
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
    let terms = terms_of(terms, analysis, feature)?;
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

/// A vocabulary's terms in the order of their ids.
fn terms_of<'a>(terms: &'a Terms, analysis: &'a Analysis, feature: &str) -> Option<Vec<&'a [u8]>> {
    Some(match terms {
        Terms::Given(terms) => terms.iter().map(String::as_bytes).collect(),
        Terms::Learned { .. } => {
            let learned = analysis.vocabularies.get(feature)?;
            learned.terms.iter().map(|term| term.bytes.as_slice()).collect()
        }
    })
}
