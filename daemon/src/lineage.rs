//! What a model came from: the checkpoint, the job and its features, the versions of the files, and the runs before it.
//!
//! Everything is read from run directories, which a run records as it goes, so that the lineage of a model does not depend on
//! a daemon. A run has origins: the run that it continues, whose weights it starts with, or that it repeats.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use millstream_io::storage::{Directory, Listing, Stores};
use millstream_job::Job;
use millstream_trainer::checkpoint::MANIFEST;
use millstream_trainer::checkpoint::store::directory_name;
use serde::Serialize;
use tokio::runtime::Handle;

use crate::access::Requester;
use crate::continuation::Continuation;
use crate::runs::{self, RunDirectory, Storage};

/// The number of runs before a run that are followed.
const MAX_DEPTH: usize = 64;

/// A run and what it came from.
#[derive(Debug, Serialize)]
pub struct RunLineage {
    /// The job's id.
    pub id: String,
    /// The run directory.
    pub directory: Directory,
    /// The model; `None` before the first checkpoint.
    pub checkpoint: Option<CheckpointLineage>,
    /// The job.
    pub job: JobLineage,
    /// The files that it read for training.
    pub train: Option<DataLineage>,
    /// The files that it evaluated on, if they are others.
    pub eval: Option<DataLineage>,
    /// The runs before it.
    pub origins: Vec<Origin>,
}

/// The model that a run trained.
#[derive(Debug, Serialize)]
pub struct CheckpointLineage {
    /// Its directory.
    pub path: Directory,
    /// Steps taken.
    pub step: u64,
    /// Rows trained on.
    pub examples: u64,
    /// When it was written, in milliseconds since the Unix epoch, if the file system says so.
    pub written_ms: Option<u64>,
    /// The version of Millstream that wrote it; empty for versions that did not record it.
    pub millstream: String,
    /// The checksum of its parameters.
    pub model_sha256: Option<String>,
}

/// What determined the training.
#[derive(Debug, Serialize)]
pub struct JobLineage {
    /// Its name.
    pub name: String,
    /// The seed of the order of rows and of the initial weights.
    pub seed: u64,
    /// The hash of all that determines the result.
    pub fingerprint: String,
    /// The hash of the features and labels.
    pub features_fingerprint: String,
    /// The number of features.
    pub features: usize,
}

/// The versions of files, frozen when the run began.
#[derive(Debug, Serialize)]
pub struct DataLineage {
    /// The paths and globs of the job.
    pub patterns: Vec<String>,
    /// The number of files.
    pub files: usize,
    /// Their size.
    pub bytes: u64,
    /// The hash of their addresses and versions.
    pub sha256: String,
}

/// A run before another one.
#[derive(Debug, Serialize)]
pub struct Origin {
    /// What the later run took over.
    pub relation: Relation,
    /// The run directory or the checkpoint.
    pub path: Directory,
    /// The run; `None` if it cannot be read.
    pub run: Option<RunLineage>,
    /// Why it cannot be read.
    pub problem: Option<String>,
}

/// What a run took over from another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// Weights, optimizer and position: it went on with the training.
    Continues,
    /// The initial weights.
    StartsWithWeights,
    /// The job, and its decisions.
    Repeats,
}

/// The lineage of the run or the checkpoint in `directory`; of a run, that of its newest checkpoint. Reads with the rights of
/// this process, and buckets with `stores`, whose requests run on `runtime`. Blocks, so it must not be called from async code.
///
/// # Errors
/// When there is no run, or its record is damaged. Runs before it that cannot be read are no error.
pub fn trace(directory: &Directory, (stores, runtime): (&Stores, &Handle)) -> Result<RunLineage> {
    let storage = Storage::reading(stores.clone(), runtime.clone());
    trace_within(directory, &storage, &mut BTreeSet::new())
}

fn trace_within(
    directory: &Directory,
    storage: &Storage,
    seen: &mut BTreeSet<Directory>,
) -> Result<RunLineage> {
    let (home, step) = match runs::of_checkpoint(directory) {
        Some((home, step)) => (RunDirectory::new(home, storage), Some(step)),
        None => {
            let run = RunDirectory::new(directory.clone(), storage);
            let newest = run.checkpoints().ok().and_then(|store| store.steps().ok()?.pop());
            (run, newest)
        }
    };
    let checkpoint = step.map(|step| checkpoint_of(&home, step)).transpose()?;
    let is_run = runs::is_run(&home)?;
    ensure!(checkpoint.is_some() || is_run, "{home} is not the directory of a run");
    let job = match (&checkpoint, step) {
        // A checkpoint that was copied elsewhere has its job with it.
        (Some(checkpoint), Some(step)) if !home.has(runs::JOB)? => {
            let store = home.checkpoints()?;
            let text = String::from_utf8(store.part(&store.manifest(step)?, runs::JOB)?.into())?;
            Job::parse(&text, Path::new(&checkpoint.path.join(runs::JOB).to_string()), &[])?.0
        }
        _ => runs::job_of(&home, &Requester::Trusted)?,
    };
    let train = data_of(&home, runs::TRAIN_LISTING, &job.data.train)?;
    let eval = data_of(&home, runs::EVAL_LISTING, &job.data.eval)?;
    let origins = origins_of(&home, storage, seen)?;
    let home = home.address().clone();
    let id = home.name().map_or_else(|| home.to_string(), str::to_owned);
    let job = JobLineage {
        name: job.name.clone(),
        seed: job.training.seed,
        fingerprint: job.fingerprint(),
        features_fingerprint: job.features_fingerprint(),
        features: job.features.len(),
    };
    Ok(RunLineage { id, directory: home, checkpoint, job, train, eval, origins })
}

fn checkpoint_of(home: &RunDirectory, step: u64) -> Result<CheckpointLineage> {
    let manifest = home.checkpoints()?.manifest(step)?;
    let checkpoint = home.join(&directory_name(step));
    let since_epoch = checkpoint.written(MANIFEST).and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let path = checkpoint.address().clone();
    Ok(CheckpointLineage {
        path,
        step,
        examples: manifest.snapshot.progress.examples,
        written_ms: since_epoch.map(|time: Duration| time.as_millis() as u64),
        model_sha256: manifest.model_sha256(),
        millstream: manifest.program,
    })
}

fn data_of(home: &RunDirectory, listing: &str, patterns: &[String]) -> Result<Option<DataLineage>> {
    let Some(text) = runs::get_text(home, listing)? else { return Ok(None) };
    let frozen = Listing::parse(&text).with_context(|| home.file(listing))?;
    Ok(Some(DataLineage {
        patterns: patterns.iter().map(|pattern| millstream_io::redact(pattern).into_owned()).collect(),
        files: frozen.len(),
        bytes: frozen.bytes(),
        sha256: frozen.hash(),
    }))
}

fn origins_of(home: &RunDirectory, storage: &Storage, seen: &mut BTreeSet<Directory>) -> Result<Vec<Origin>> {
    let path_in =
        |name: &str| -> Result<_> { Ok(runs::get(home, name)?.map(Directory::from_bytes).transpose()?) };
    let continued = Continuation::recorded(home, &Requester::Trusted)?.map(|continued| continued.checkpoint);
    let found = [
        (Relation::Continues, continued),
        (Relation::StartsWithWeights, path_in(runs::WARM_START)?),
        (Relation::Repeats, path_in(runs::RERUN)?),
    ];
    let known = found.into_iter().filter_map(|(relation, path)| Some((relation, path?)));
    Ok(known.map(|(relation, path)| origin((relation, path), storage, seen)).collect())
}

fn origin(
    (relation, path): (Relation, Directory),
    storage: &Storage,
    seen: &mut BTreeSet<Directory>,
) -> Origin {
    let (run, problem) = if !seen.insert(path.clone()) {
        (None, Some("it is shown above".to_owned()))
    } else if seen.len() > MAX_DEPTH {
        (None, Some(format!("only {MAX_DEPTH} runs are followed")))
    } else {
        match trace_within(&path, storage, seen) {
            Ok(run) => (Some(run), None),
            Err(error) => (None, Some(format!("{error:#}"))),
        }
    };
    Origin { relation, path, run, problem }
}
