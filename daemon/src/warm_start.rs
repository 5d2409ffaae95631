//! Warm start: a job begins with the weights of another one's checkpoint.
//!
//! Which checkpoint is decided once, when the job is prepared, and kept in its run's directory: an attempt that
//! begins again, because the one before died before its first checkpoint, begins with the same weights. What is
//! carried follows from the two models (`millstream_trainer::warm_start`) and from what ids meant in either job
//! (`millstream_pipeline::transform::map_ids`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use millstream_backend::Backend;
use millstream_batch::BatchSchema;
use millstream_pipeline::analysis::Analysis;
use millstream_pipeline::spec::FeatureSpec;
use millstream_pipeline::transform::{self, map_ids};
use millstream_trainer::checkpoint::{CheckpointScope, CheckpointStore, Element, Snapshot};
use millstream_trainer::session::Session;
use millstream_trainer::spec::ModelSpec;
use millstream_trainer::warm_start::{IdMapping, WarmStart, WarmStartReport};

use crate::job::{Job, WarmStartSpec};
use crate::plan::JobPlan;
use crate::runs;
use crate::scoring::{self, Scored};

/// What a job begins with.
pub struct Beginning {
    /// The checkpoint.
    pub checkpoint: PathBuf,
    /// What is carried of it.
    pub report: WarmStartReport,
}

/// A job's own part of it.
struct Now<'a> {
    job: &'a Job,
    analysis: &'a Analysis,
    model: &'a ModelSpec,
    schema: &'a BatchSchema,
}

impl Beginning {
    /// What `job` would begin with, if it asks for a warm start and `plan` knows what its features learned.
    ///
    /// # Errors
    /// When there is no such checkpoint, or nothing in it is of use.
    pub fn of(job: &Job, plan: &JobPlan) -> Result<Option<Self>> {
        let (Some(WarmStartSpec { checkpoint, best }), Some(analysis)) = (&job.warm_start, &plan.analysis)
        else {
            return Ok(None);
        };
        let now = Now { job, analysis, model: &job.model, schema: &plan.schema };
        let here = || format!("`warm_start.checkpoint`, {}", checkpoint.display());
        let then = scoring::find(checkpoint, *best).with_context(here)?;
        let store = CheckpointStore::local(&then.directory)?;
        let snapshot = store.manifest(then.step)?.snapshot;
        let warm = compare(&then, &snapshot, &now).with_context(here)?;
        let checkpoint = PathBuf::from(store.path(then.step));
        Ok(Some(Self { checkpoint, report: warm.report().clone() }))
    }
}

/// The checkpoint that the run in `directory` begins with; `decide` says, the first time.
pub(crate) fn decided(
    directory: &Path,
    decide: impl FnOnce() -> Result<Option<PathBuf>>,
) -> Result<Option<PathBuf>> {
    let path = directory.join(runs::WARM_START);
    let here = || path.display().to_string();
    match fs::read_to_string(&path) {
        Ok(checkpoint) => return Ok(Some(PathBuf::from(checkpoint))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(here),
    }
    let Some(checkpoint) = decide()? else { return Ok(None) };
    runs::put(directory, runs::WARM_START, checkpoint.as_os_str().as_encoded_bytes()).with_context(here)?;
    Ok(Some(checkpoint))
}

/// Has a session at step 0, of the run in `directory`, begin with `checkpoint`.
///
/// # Errors
/// When the checkpoint is not there any more, or damaged.
pub(crate) fn begin<B: Backend<Scalar: Element>>(
    session: &mut Session<B>,
    checkpoint: &Path,
    directory: &Path,
    (model, schema): (&ModelSpec, &BatchSchema),
) -> Result<()> {
    let here = || format!("warm start from {}", checkpoint.display());
    let then = scoring::find(checkpoint, false).with_context(here)?;
    let loaded = CheckpointStore::local(&then.directory)?.load(then.step, CheckpointScope::Scoring)?;
    let read = |name: &str| {
        let path = directory.join(name);
        Ok::<_, anyhow::Error>((fs::read_to_string(&path).with_context(|| path.display().to_string())?, path))
    };
    let ((job, path), (analysis, _)) = (read(runs::JOB)?, read(runs::ANALYSIS)?);
    let ((job, _), analysis) = (Job::parse(&job, &path, &[])?, Analysis::from_json(&analysis)?);
    let now = Now { job: &job, analysis: &analysis, model, schema };
    let warm = compare(&then, &loaded.manifest.snapshot, &now).with_context(here)?;
    session.warm_start(&warm, &loaded).with_context(here)
}

fn compare(then: &Scored, snapshot: &Snapshot, now: &Now<'_>) -> Result<WarmStart> {
    let of = |features: &[FeatureSpec], name: &str| features.iter().position(|spec| spec.name == name);
    let mut failed = None;
    let ids = |feature: &str| {
        let both = of(&then.job.features, feature).zip(of(&now.job.features, feature));
        let Some((before, here)) = both else {
            return IdMapping::Incompatible("is no feature of both jobs".into());
        };
        let before = (&then.job.features[before], &then.analysis);
        match map_ids(before, (&now.job.features[here], now.analysis)) {
            Ok(transform::IdMapping::Unchanged) => IdMapping::Same,
            Ok(transform::IdMapping::PerId(ids)) => IdMapping::Mapped(ids),
            Ok(transform::IdMapping::Incompatible(why)) => IdMapping::Incompatible(why),
            Err(error) => IdMapping::Incompatible(failed.insert(error).to_string()),
        }
    };
    let (classes_then, tasks) =
        (&then.job.label.first.classes, now.job.training.tasks(now.schema.label_count()));
    let classes = &now.job.label.first.classes;
    if classes_then.len() == classes.len() && classes_then != classes {
        bail!(
            "its classes are others than the job's, or in another order: `classes` of both are to be the same"
        );
    }
    let of_then = (&snapshot.model, &snapshot.schema, snapshot.tasks.as_slice());
    let warm = WarmStart::new(of_then, (now.model, now.schema, &tasks), ids)?;
    failed.map_or(Ok(warm), |error| Err(error.into()))
}
