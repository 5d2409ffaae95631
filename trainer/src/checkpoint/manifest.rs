//! The manifest of a checkpoint, `manifest.json`.
//!
//! It is sufficient to rebuild the model and resume training, without the job that wrote it. Its last field
//! is the SHA-256 of the document with that field empty, because a corrupted number would otherwise go
//! unnoticed. The hash covers the bytes as they are, so unknown fields are ignored and optional fields, such
//! as a metric, may be absent.

use millstream_batch::BatchSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::files::TensorFileId;
use crate::loss::LossSum;
use crate::metrics::{Metrics, one_or_several};
use crate::model::{LossScale, TensorRole};
use crate::session::SelectionState;
use crate::spec::{LossSpec, ModelSpec, Precision, TaskSpec, is_default};

/// The newest format version that is read here. It changes when a reader that ignores unknown fields would
/// misinterpret the checkpoint.
pub const FORMAT: u32 = 3;

/// The format version of checkpoints that may have several files of tensors per role, beside the manifest.
const DIVIDED_FORMAT: u32 = 2;

/// The format version of checkpoints that have one file of tensors per role.
const UNDIVIDED_FORMAT: u32 = 1;

/// Hexadecimal digits of a SHA-256.
const HASH_DIGITS: usize = 64;

/// The contents of a committed checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The lowest format version that describes it: [`FORMAT`], or an earlier one.
    pub format: u32,
    /// The version of Millstream that wrote it; empty for versions that did not record it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub program: String,
    /// The [term](super::store) in which the parts were written; 0 without terms.
    #[serde(default, skip_serializing_if = "is_default")]
    pub term: u64,
    /// The state of training.
    pub snapshot: Snapshot,
    /// The parts, in the order of writing.
    pub parts: Vec<PartEntry>,
    /// The SHA-256 of this document with this field empty, in hexadecimal.
    sha256: String,
}

/// The state of training and the description of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Optimizer steps taken.
    pub step: u64,
    /// Training progress.
    pub progress: TrainingProgress,
    /// The job's encoded position in its data; the rows after it have not been trained on.
    #[serde(with = "hex")]
    pub position: Vec<u8>,
    /// The metrics of the last evaluation, for each label.
    #[serde(with = "one_or_several")]
    pub eval: Vec<Metrics>,
    /// The step after which that evaluation was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_step: Option<u64>,
    /// Whether an evaluation is due before the next step.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub eval_due: bool,
    /// The results of evaluations so far; the checkpoints of the best ones are kept.
    #[serde(default, skip_serializing_if = "SelectionState::is_empty")]
    pub standing: SelectionState,
    /// The model.
    pub model: ModelSpec,
    /// The schema of its batches.
    pub schema: BatchSchema,
    /// The seed of the initial weights.
    pub seed: u64,
    /// The arithmetic precision of the steps.
    pub precision: Precision,
    /// The storage precision of embedding tables during training. The checkpoint stores their weights in
    /// fp32, which is lossless.
    #[serde(default, skip_serializing_if = "is_default")]
    pub embedding_precision: Precision,
    /// The current loss scale; fp16 only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// The loss of each label, which determines the meaning of the model's outputs.
    #[serde(default = "probability")]
    pub tasks: Vec<TaskSpec>,
}

/// The default for checkpoints written before losses could be chosen.
fn probability() -> Vec<TaskSpec> {
    vec![LossSpec::default().into()]
}

/// Training progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingProgress {
    /// The epoch of the last step, from 0.
    pub epoch: u32,
    /// Rows trained on, in all epochs.
    pub examples: u64,
    /// The training loss of this epoch's steps, each before its update.
    pub loss: LossSum,
}

/// A part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartEntry {
    /// Its name in the checkpoint.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// The SHA-256 of its content, in hexadecimal.
    pub sha256: String,
}

impl PartEntry {
    /// Whether it has tensors of `role`.
    pub fn has_tensors(&self, role: TensorRole) -> bool {
        TensorFileId::of_name(&self.name).is_some_and(|file| file.role == role)
    }
}

/// The field that is read first; all formats have it.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

/// Why a document is not a manifest of [`FORMAT`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ManifestError {
    Format(u32),
    Damaged(String),
}

impl Manifest {
    pub(super) fn new(snapshot: Snapshot, parts: Vec<PartEntry>, term: u64) -> Self {
        let program = env!("CARGO_PKG_VERSION").to_owned();
        let mut files = parts.iter().filter_map(|part| TensorFileId::of_name(&part.name));
        let format = match files.any(|file| file.count > 1) {
            _ if term > 0 => FORMAT,
            true => DIVIDED_FORMAT,
            false => UNDIVIDED_FORMAT,
        };
        let mut manifest = Self { format, program, term, snapshot, parts, sha256: String::new() };
        manifest.sha256 = hex::encode(&Sha256::digest(manifest.to_json()));
        manifest
    }

    /// The document. Equal manifests give equal bytes.
    pub(super) fn to_json(&self) -> Vec<u8> {
        let mut json =
            serde_json::to_vec_pretty(self).expect("a manifest has string keys and finite numbers");
        json.push(b'\n');
        json
    }

    pub(super) fn from_json(json: &[u8]) -> Result<Self, ManifestError> {
        let damaged =
            |error: serde_json::Error| ManifestError::Damaged(format!("is not a manifest: {error}"));
        let version: Version = serde_json::from_slice(json).map_err(damaged)?;
        if !(UNDIVIDED_FORMAT..=FORMAT).contains(&version.format) {
            return Err(ManifestError::Format(version.format));
        }
        let manifest: Self = serde_json::from_slice(json).map_err(damaged)?;
        let found = hash_without(json, &manifest.sha256);
        if found != manifest.sha256 {
            let message = format!("has SHA-256 {found} instead of {}", manifest.sha256);
            return Err(ManifestError::Damaged(message));
        }
        Ok(manifest)
    }

    /// The size of all parts.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// The name of the directory of the parts in that of the checkpoint, unless they are directly in it.
    pub fn part_directory(&self) -> Option<String> {
        term_directory(self.term)
    }

    /// The entry of part `name`.
    pub fn part(&self, name: &str) -> Option<&PartEntry> {
        self.parts.iter().find(|part| part.name == name)
    }

    /// The [files](super::files) with the tensors of `role`, in order; or the name of one that is missing.
    pub(super) fn tensor_files(&self, role: TensorRole) -> Result<Vec<&PartEntry>, String> {
        let mut ids = self.parts.iter().filter_map(|part| TensorFileId::of_name(&part.name));
        let count = ids.find(|file| file.role == role).map_or(1, |file| file.count);
        let names = (0..count).map(|number| TensorFileId { role, number, count }.name());
        names.map(|name| self.part(&name).ok_or(name)).collect()
    }

    /// The SHA-256 of the model's parameters: that of their only file, or of the hashes of all their files, in order and separated by
    /// line feeds. `None` if the manifest lacks a file.
    pub fn model_sha256(&self) -> Option<String> {
        let files = self.tensor_files(TensorRole::Parameter).ok()?;
        let hashes: Vec<_> = files.iter().map(|file| &*file.sha256).collect();
        Some(match hashes[..] {
            [of_only_file] => of_only_file.to_owned(),
            _ => hex::encode(&Sha256::digest(hashes.join("\n"))),
        })
    }
}

/// The name of the directory of the parts that were written in a term; 0 has none.
pub(super) fn term_directory(term: u64) -> Option<String> {
    (term > 0).then(|| format!("term-{term}"))
}

/// The hash of a document with the last occurrence of `sha256` removed.
fn hash_without(json: &[u8], sha256: &str) -> String {
    let is_it = |bytes: &[u8]| bytes == sha256.as_bytes();
    let place = json.windows(HASH_DIGITS).rposition(is_it);
    let (before, after) = match place {
        Some(place) => (&json[..place], &json[place + HASH_DIGITS..]),
        // Without an occurrence, the hash will not match anyway.
        None => (json, &[][..]),
    };
    hex::encode(&Sha256::new().chain_update(before).chain_update(after).finalize())
}

/// Bytes as hexadecimal text.
pub(super) mod hex {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::checkpoint) fn encode(bytes: &[u8]) -> String {
        use std::fmt::Write;
        bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
            write!(text, "{byte:02x}").expect("writing to a string");
            text
        })
    }

    fn decode(text: &str) -> Option<Vec<u8>> {
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if !rest.is_empty() {
            return None;
        }
        pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect()
    }

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        decode(&text).ok_or_else(|| serde::de::Error::custom("expected pairs of hexadecimal digits"))
    }
}
