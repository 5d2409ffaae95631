//! Warm start: a job starts with the weights of another job's checkpoint.
//!
//! The checkpoint is chosen once, when the job is prepared, and recorded in the run directory together with the
//! mapping of ids: a later attempt at a run without a checkpoint starts with the same weights. Which weights are
//! copied follows from the two models (`millstream_trainer::warm_start`) and from what the ids mean in each job
//! (`millstream_pipeline::transform::map_ids`).

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use millstream_io::storage::Directory;
use millstream_job::WarmStartSpec;
use millstream_pipeline::analysis::Analysis;
use millstream_pipeline::transform::{self, map_ids};
use millstream_trainer::checkpoint::CheckpointStore;
use millstream_trainer::warm_start::{IdMapping, IdMappings, WarmStart, WarmStartReport};
use millstream_worker::protocol::WarmStartRole;

use crate::access::Requester;
use crate::copies::{Contents, Copies};
use crate::plan::JobPlan;
use crate::runs::{self, RunDirectory};
use crate::scoring::{self, Scored};

/// The initial weights of a job.
pub struct Beginning {
    /// The checkpoint.
    pub checkpoint: Directory,
    /// Which of its weights the job starts with.
    pub report: WarmStartReport,
    ids: IdMappings,
}

impl Beginning {
    /// The warm start of the planned job of `requester`, if it has one and the plan contains an analysis of its data.
    ///
    /// # Errors
    /// When there is no such checkpoint, or none of its weights fits the job's model.
    pub fn of(plan: &JobPlan, requester: &Requester) -> Result<Option<Self>> {
        let (Some(WarmStartSpec { checkpoint, best, continues: false }), Some(analysis)) =
            (&plan.job.warm_start, &plan.analysis)
        else {
            return Ok(None);
        };
        let here = || format!("`warm_start.checkpoint`, {checkpoint}");
        let contents = (*best, Contents::Records);
        let source = scoring::find_in(checkpoint, contents, requester, &plan.copies).with_context(here)?;
        Self::from((checkpoint, &source), plan, analysis).with_context(here).map(Some)
    }

    /// Starts with the weights of `source`, which was found in `given`.
    fn from((given, source): (&Directory, &Scored), plan: &JobPlan, analysis: &Analysis) -> Result<Self> {
        let store = CheckpointStore::local(&source.directory)?;
        let snapshot = store.manifest(source.step)?.snapshot;
        let job = &plan.job;
        let (classes_there, classes) = (&source.job.label.first.classes, &job.label.first.classes);
        if classes_there.len() == classes.len() && classes_there != classes {
            bail!("its classes differ from the job's, or their order does: `classes` of both must be equal");
        }
        let ids = id_mappings(source, plan, analysis)?;
        let tasks = job.training.tasks(plan.schema.label_count());
        let there = (&snapshot.model, &snapshot.schema, snapshot.tasks.as_slice());
        let warm = WarmStart::new(there, (&job.model, &plan.schema, &tasks), &ids)?;
        Ok(Self { checkpoint: source.checkpoint(given), report: warm.report().clone(), ids })
    }
}

/// How the ids of each feature of both jobs map to the source's.
fn id_mappings(source: &Scored, plan: &JobPlan, analysis: &Analysis) -> Result<IdMappings> {
    let mut mappings = IdMappings::new();
    for feature in &plan.job.features {
        let Some(there) = source.job.features.iter().find(|there| there.name == feature.name) else {
            continue;
        };
        let mapping = match map_ids((there, &source.analysis), (feature, analysis))? {
            transform::IdMapping::Unchanged => IdMapping::Same,
            transform::IdMapping::PerId(ids) => IdMapping::Mapped(ids),
            transform::IdMapping::Incompatible(why) => IdMapping::Incompatible(why),
        };
        mappings.insert(feature.name.clone(), mapping);
    }
    Ok(mappings)
}

/// The warm start of the run in `directory`: as decided earlier, or decided now and passed to `report`.
pub(crate) fn decided(
    directory: &RunDirectory,
    plan: &JobPlan,
    requester: &Requester,
    report: impl FnOnce(&Beginning),
) -> Result<Option<WarmStartRole>> {
    let recorded = runs::get(directory, runs::WARM_START)?.map(Directory::from_bytes).transpose()?;
    let checkpoint = match recorded {
        Some(checkpoint) if runs::get(directory, runs::ID_MAPPINGS)?.is_some() => {
            // The owner of the run may have changed the file.
            if let Some(path) = checkpoint.as_local().filter(|path| path.exists()) {
                requester.check_run(path).with_context(|| format!("warm start from {checkpoint}"))?;
            }
            checkpoint
        }
        // Earlier versions did not record the mappings.
        Some(checkpoint) => {
            let here = || format!("warm start from {checkpoint}");
            let analysis = plan.analysis.as_ref().context("the job's data was not analysed")?;
            let contents = (false, Contents::Records);
            let source =
                scoring::find_in(&checkpoint, contents, requester, &plan.copies).with_context(here)?;
            let beginning = Beginning::from((&checkpoint, &source), plan, analysis).with_context(here)?;
            record(directory, &beginning)?;
            checkpoint
        }
        None => {
            let Some(beginning) = Beginning::of(plan, requester)? else { return Ok(None) };
            report(&beginning);
            record(directory, &beginning)?;
            beginning.checkpoint
        }
    };
    let (directory, step) = source_of(&checkpoint, Contents::Parameters, &plan.copies, directory)?;
    Ok(Some(WarmStartRole { directory, step, id_mappings: runs::ID_MAPPINGS.to_owned() }))
}

/// The local directory that contains the recorded `checkpoint` from which the run in `directory` starts, and its step. Until the
/// run has its first checkpoint, one in a bucket is copied with `contents`.
pub(crate) fn source_of(
    checkpoint: &Directory,
    contents: Contents,
    copies: &Copies,
    directory: &RunDirectory,
) -> Result<(PathBuf, u64)> {
    let is_needed = || anyhow::Ok(directory.checkpoints()?.steps()?.is_empty());
    let path = match checkpoint.as_local() {
        // Only a worker that finds all checkpoints of the run damaged looks there, and says that it is absent.
        None if !is_needed()? => PathBuf::from(checkpoint.text().as_ref()),
        _ => copies.local(checkpoint, false, contents)?,
    };
    scoring::locate(&path, false)
}

/// Records `beginning` in the run in `directory`. The checkpoint comes last: its presence completes the record.
fn record(directory: &RunDirectory, beginning: &Beginning) -> Result<()> {
    let mappings = serde_json::to_vec(&beginning.ids)?;
    let checkpoint = beginning.checkpoint.to_bytes();
    for (name, bytes) in [(runs::ID_MAPPINGS, &mappings), (runs::WARM_START, &checkpoint)] {
        runs::put(directory, name, bytes)?;
    }
    Ok(())
}
