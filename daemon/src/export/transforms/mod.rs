//! A model's features as source code: from rows of data to the inputs of the exported model.
//!
//! A server has the model as ONNX, but its values must become the ids and numbers of training. Each file that is written
//! here does that alone: the code, which is a template, and the job's features with all that they learned. The code
//! computes what [`Transform`](millstream_pipeline::transform::Transform) does from rows of JSON lines, bit for bit;
//! `tests/interop/test_transforms.py` compares them. A template is complete source code, so that it can be read and
//! checked as such.

mod c;
mod names;
mod python;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::Path;

use millstream_job::Job;
use millstream_pipeline::analysis::{Analysis, StoredType};
use millstream_pipeline::spec::FeatureSpec;
use millstream_pipeline::transform::Scaling;
use millstream_trainer::export::TrainedModel;

/// A language in which features are exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// A module of Python.
    Python,
    /// A header of C, which is also one of C++.
    C,
}

impl Language {
    /// The language of a file, by its extension.
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "py" => Some(Self::Python),
            "h" => Some(Self::C),
            _ => None,
        }
    }
}

/// What is exported.
pub(super) struct Transforms<'a> {
    pub(super) trained: &'a TrainedModel,
    pub(super) job: &'a Job,
    pub(super) analysis: &'a Analysis,
    /// By dense column.
    pub(super) scalings: &'a BTreeMap<String, Scaling>,
}

impl Transforms<'_> {
    pub(super) fn write(&self, language: Language, out: &mut dyn Write) -> io::Result<()> {
        match language {
            Language::Python => python::write(self, out),
            Language::C => c::write(self, out),
        }
    }

    /// The features that the model reads.
    fn features(&self) -> impl Iterator<Item = &FeatureSpec> {
        self.job.features.iter().filter(|spec| self.trained.reads_feature(&spec.name))
    }

    /// The types in which the training data stored their columns, as far as known.
    fn types(&self) -> BTreeMap<&str, StoredType> {
        let columns: BTreeSet<&String> =
            self.features().flat_map(|spec| spec.columns.iter().chain(&spec.weights)).collect();
        let stored =
            columns.into_iter().filter_map(|column| self.analysis.stored_types.get_key_value(column));
        stored.map(|(column, &stored)| (column.as_str(), stored)).collect()
    }
}
