//! The `[checkpoint]` of a job file.

use std::path::Path;

use millstream_document::section::Section;
use millstream_document::tree::Value;
use millstream_io::storage::Directory;
use millstream_pipeline::spec::DataSpec;
use millstream_trainer::session::BestSpec;

use crate::evaluation::{EvaluationSpec, LabelPredictions, read_metric};

/// The default directory, beside the job file.
const DEFAULT_DIRECTORY: &str = "checkpoints";

/// Where and when checkpoints are saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointSpec {
    /// The directory in which each run of the job has a directory, named by the job's id.
    pub directory: Directory,
    /// Steps between checkpoints.
    pub every_steps: u64,
    /// Number of newest checkpoints to keep.
    pub keep: u32,
    /// For how many minutes training continues while no checkpoint can be written.
    pub retry_minutes: u32,
    /// Which checkpoints of the best evaluations are kept in addition.
    pub best: Option<BestSpec>,
}

impl CheckpointSpec {
    /// Whether the directory is the default one beside a job file in `base`.
    pub fn has_default_directory(&self, base: &Path) -> bool {
        self.directory.as_local() == Some(&base.join(DEFAULT_DIRECTORY))
    }
}

/// Reads the section of a job with this `evaluation`.
pub(super) fn read(
    mut checkpoint: Section<'_>,
    data: &DataSpec,
    evaluation: &EvaluationSpec,
    predictions: &LabelPredictions,
) -> CheckpointSpec {
    let directory = checkpoint.text("directory");
    let directory = checkpoint.directory(directory, &data.base);
    let spec = CheckpointSpec {
        directory: directory.unwrap_or_else(|| Directory::local(data.base.join(DEFAULT_DIRECTORY))),
        every_steps: checkpoint.whole("every_steps", 1..=u64::MAX).unwrap_or(1_000),
        keep: checkpoint.whole_u32("keep", 1..=u32::MAX).unwrap_or(3),
        retry_minutes: checkpoint.whole_u32("retry_minutes", 0..=u32::MAX).unwrap_or(30),
        best: read_best(&mut checkpoint, evaluation, predictions),
    };
    if spec.best.is_some() && !data.has_eval() {
        checkpoint.error("keep_best", "`keep_best` needs held-out data: `eval` or `validation` in [data]");
    }
    checkpoint.finish();
    spec
}

fn read_best(
    checkpoint: &mut Section<'_>,
    evaluation: &EvaluationSpec,
    predictions: &LabelPredictions,
) -> Option<BestSpec> {
    let usual = evaluation.stopping.map_or((None, 0), |stopping| (Some(stopping.metric), stopping.label));
    let (keys, has_groups) = (("best_metric", "best_label"), evaluation.group.is_some());
    let (metric, label) = read_metric(checkpoint, keys, has_groups, predictions, usual);
    let keep = match checkpoint.node("keep_best").map(|node| &node.value) {
        None | Some(Value::Bool(false)) => None,
        Some(Value::Bool(true)) => Some(1),
        Some(Value::Whole(_)) => checkpoint.whole_u32("keep_best", 1..=u32::MAX),
        Some(other) => {
            let found = other.describe();
            checkpoint.error("keep_best", format!("expected true, false or a number, found {found}"));
            None
        }
    };
    for key in ["best_metric", "best_label"] {
        if !checkpoint.has("keep_best") && checkpoint.has(key) {
            checkpoint.error(key, format!("`{key}` requires `keep_best`"));
        }
    }
    Some(BestSpec { metric, label, keep: keep? })
}
