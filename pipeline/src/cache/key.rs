//! Cache keys: identify the source data of a file, and everything that affects its contents.
//!
//! Two nested SHA-256 hashes. The [`Specification`] covers a job: its features, its label, the keys of its data
//! section that affect rows, the statistics learned from the training data, and the version of this program. The
//! [`Key`] covers one split of one version of one object under a specification. A file's name is its key, so a
//! changed job or replaced data never finds a stale file.
//!
//! The default is to include: a new key of the data section is part of the specification until it is listed as
//! irrelevant.

use std::fmt;
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use crate::analysis::Analysis;
use crate::dataset::{Dataset, Split};
use crate::spec::{DataSpec, FeatureSpec, LabelSpec, OnBadRecord, Purpose};

/// Increment when decoding or transformation produces different rows from the same data without a change of the
/// program's version.
const REVISION: u32 = 1;

/// Identifies the rows that a job derives from its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Specification([u8; 32]);

/// Identifies the rows of one split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key([u8; 32]);

/// A hash of a list of parts. Lengths are included, so different lists never hash the same bytes.
struct Parts(Sha256);

impl Parts {
    fn new(domain: &str) -> Self {
        let mut parts = Self(Sha256::new());
        parts.add(domain.as_bytes());
        parts.add(env!("CARGO_PKG_VERSION").as_bytes());
        parts.add(&REVISION.to_le_bytes());
        parts
    }

    fn add(&mut self, part: &[u8]) {
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

impl Specification {
    /// The specification of the rows for `purpose` of a job with the statistics `analysis`.
    pub fn of(
        features: &[FeatureSpec],
        label: &LabelSpec,
        (data, purpose): (&DataSpec, Purpose),
        analysis: &Analysis,
    ) -> Self {
        let mut parts = Parts::new("millstream cache specification");
        let rows = data.rows(purpose);
        // Clear the keys that do not affect rows: the files, their order, and the use of their rows. A file omits bad
        // records regardless of the job's policy.
        let data = DataSpec {
            base: PathBuf::new(),
            train: Vec::new(),
            train_weights: Vec::new(),
            eval: Vec::new(),
            batch_size: 0,
            epochs: 0,
            shuffle_rows: 0,
            lanes: 0,
            prefetch: 0,
            threads: None,
            streams: None,
            memory_budget_bytes: 0,
            on_bad_record: OnBadRecord::Fail,
            deterministic: true,
            drop_last: false,
            group: None,
            cache: None,
            // What these mean for the rows of this file is `rows`.
            filter: Vec::new(),
            train_filter: Vec::new(),
            eval_filter: Vec::new(),
            validation: None,
            negatives: data.negatives.filter(|_| purpose == Purpose::Training),
            ..data.clone()
        };
        let json = serde_json::to_vec(&(features, label, data, rows));
        parts.add(&json.expect("plain structs, enums, strings and numbers always serialize"));
        for feature in features {
            parts.add(feature.name.as_bytes());
            for numbers in feature.columns.iter().filter_map(|column| analysis.numbers.get(column)) {
                let moments = [numbers.plain, numbers.logarithm];
                let moments = moments.iter().flat_map(|moments| [moments.mean, moments.deviation]);
                let statistics = [numbers.minimum, numbers.maximum].into_iter().chain(moments);
                statistics.for_each(|number| parts.add(&number.to_bits().to_le_bytes()));
            }
            if let Some(vocabulary) = analysis.vocabularies.get(&feature.name) {
                parts.add(&(vocabulary.terms.len() as u64).to_le_bytes());
                vocabulary.terms.iter().for_each(|term| parts.add(&term.bytes));
            }
        }
        Self(parts.finish())
    }
}

impl Key {
    /// The key of a split of `dataset`.
    pub(crate) fn of(specification: &Specification, dataset: &Dataset, split: &Split) -> Self {
        let object = &dataset.objects()[split.object];
        let mut parts = Parts::new("millstream cache split");
        parts.add(&specification.0);
        parts.add(object.address().as_bytes());
        parts.add(object.version().as_bytes());
        parts.add(&object.size().to_le_bytes());
        parts.add(format!("{:?}", split.part).as_bytes());
        if let Some(filter) = dataset.row_filter() {
            // The specification does not have the splits of registered datasets.
            let json = serde_json::to_vec(filter);
            parts.add(&json.expect("plain structs, enums, strings and numbers always serialize"));
        }
        Self(parts.finish())
    }

    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Parses the key in a file's name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let mut key = [0; 32];
        if name.len() != 2 * key.len() || !name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        for (byte, at) in key.iter_mut().zip((0..name.len()).step_by(2)) {
            *byte = u8::from_str_radix(&name[at..at + 2], 16).ok()?;
        }
        Some(Self(key))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
