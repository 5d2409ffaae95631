//! The `[warm_start]` of a job file.

use std::path::Path;

use millstream_document::section::Section;
use millstream_io::storage::Directory;
use serde::Serialize;

/// The checkpoint whose weights a job starts with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WarmStartSpec {
    /// The directory of the checkpoint, or of a run, whose newest checkpoint is used.
    pub checkpoint: Directory,
    /// Whether to use the run's best checkpoint instead.
    pub best: bool,
    /// Whether training goes on: with the optimizer's state, the step count and the statistics of the checkpoint.
    #[serde(rename = "continue", skip_serializing_if = "std::ops::Not::not")]
    pub continues: bool,
}

/// Reads the section, which may be absent.
pub(super) fn read(top: &mut Section<'_>, base: &Path) -> Option<WarmStartSpec> {
    top.node("warm_start")?;
    let mut section = top.required_section("warm_start", "[warm_start]", "the initial weights");
    let checkpoint = section.required_text("checkpoint", "a checkpoint, or the directory of a run");
    let checkpoint = section.directory(checkpoint, base);
    let best = section.flag("best").unwrap_or(false);
    let continues = section.flag("continue").unwrap_or(false);
    section.finish();
    Some(WarmStartSpec { checkpoint: checkpoint?, best, continues })
}
