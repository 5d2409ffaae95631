//! What a checkpoint says of itself: `manifest.json`.
//!
//! It is enough to rebuild the model and go on, without the job that wrote it. Its own last field is a
//! SHA-256 of the document with that field empty, since a number that rots here would go unnoticed. It is of
//! the bytes as they are, whatever they say: fields that are not known here are passed over, and those that
//! may be absent, such as a metric, can be.

use millstream_batch::BatchSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::loss::LossSum;
use crate::metrics::{Metrics, one_or_several};
use crate::model::LossScale;
use crate::session::SelectionState;
use crate::spec::{LossSpec, ModelSpec, Precision, TaskSpec, is_default};

/// The format written and read here. Another one where a reader that passes over fields it does not know
/// would take the checkpoint for something that it is not.
pub const FORMAT: u32 = 1;

/// Hexadecimal digits of a SHA-256.
const HASH_DIGITS: usize = 64;

/// A committed checkpoint's content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`]
    pub format: u32,
    /// Where training stood.
    pub snapshot: Snapshot,
    /// The parts, in the order they were written.
    pub parts: Vec<PartEntry>,
    /// Of this document with this field empty, in hexadecimal.
    sha256: String,
}

/// Where training stood, and what was trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Optimizer steps taken.
    pub step: u64,
    /// How far they have come.
    pub progress: TrainingProgress,
    /// The encoded position of the job in its data: what comes next has not been trained on.
    #[serde(with = "hex")]
    pub position: Vec<u8>,
    /// Of the last evaluation, of each label.
    #[serde(with = "one_or_several")]
    pub eval: Vec<Metrics>,
    /// The step that it followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_step: Option<u64>,
    /// Whether one is due before the next step.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub eval_due: bool,
    /// What evaluations came to; the checkpoints of the best are kept.
    #[serde(default, skip_serializing_if = "SelectionState::is_empty")]
    pub standing: SelectionState,
    /// The model.
    pub model: ModelSpec,
    /// The batches it takes.
    pub schema: BatchSchema,
    /// What the initial weights came from.
    pub seed: u64,
    /// Arithmetic of the steps.
    pub precision: Precision,
    /// What tables of embeddings are stored in while the job trains. Their weights are written in single precision, which
    /// changes none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub embedding_precision: Precision,
    /// Where the loss scale stands, in half precision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// How each label is learned, and so what the model's outputs are.
    #[serde(default = "probability")]
    pub tasks: Vec<TaskSpec>,
}

/// What every model learned before there was a choice.
fn probability() -> Vec<TaskSpec> {
    vec![LossSpec::default().into()]
}

/// How far training has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingProgress {
    /// The epoch of the last step, from 0.
    pub epoch: u32,
    /// Rows trained on, in all epochs.
    pub examples: u64,
    /// Training loss of this epoch's steps, each before its update.
    pub loss: LossSum,
}

/// A part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartEntry {
    /// Its name in the checkpoint.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Of its content, in hexadecimal.
    pub sha256: String,
}

/// What is read first, whatever else a later format changes.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

/// A document that is no manifest of [`FORMAT`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ManifestError {
    Format(u32),
    Damaged(String),
}

impl Manifest {
    pub(super) fn new(snapshot: Snapshot, parts: Vec<PartEntry>) -> Self {
        let mut manifest = Self { format: FORMAT, snapshot, parts, sha256: String::new() };
        manifest.sha256 = hex::encode(&Sha256::digest(manifest.to_json()));
        manifest
    }

    /// The document, the same bytes for equal manifests.
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
        if version.format != FORMAT {
            return Err(ManifestError::Format(version.format));
        }
        let manifest: Self = serde_json::from_slice(json).map_err(damaged)?;
        let found = hash_without(json, &manifest.sha256);
        if found != manifest.sha256 {
            let message = format!("has SHA-256 {found}, and says {}", manifest.sha256);
            return Err(ManifestError::Damaged(message));
        }
        Ok(manifest)
    }

    /// The entry of part `name`.
    pub fn part(&self, name: &str) -> Option<&PartEntry> {
        self.parts.iter().find(|part| part.name == name)
    }
}

/// The hash of a document without the last place where it says `sha256`.
fn hash_without(json: &[u8], sha256: &str) -> String {
    let is_it = |bytes: &[u8]| bytes == sha256.as_bytes();
    let place = json.windows(HASH_DIGITS).rposition(is_it);
    let (before, after) = match place {
        Some(place) => (&json[..place], &json[place + HASH_DIGITS..]),
        // What is written there is not what was hashed, and nothing else will be.
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
