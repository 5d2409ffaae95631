//! Reads the job file.

use std::borrow::Cow;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use millstream_control::proto::SubmitRequest;
use millstream_document::problems::Warning;
use millstream_io::storage::{CATALOG_VARIABLE, Directory, Reference, is_local};
use millstream_job::Job;
use millstream_trainer::checkpoint::CheckpointStore;
use millstream_trainer::checkpoint::store::parse_directory_name;

use crate::arguments::{JobFile, Submitted};
use crate::context::Context;
use crate::failure::Failure;

/// The name of the job file in a checkpoint.
const JOB_PART: &str = "job.toml";

/// A job file as it was read.
struct Read<'a> {
    text: String,
    path: Cow<'a, Path>,
    /// All overrides.
    set: Vec<String>,
    job: Job,
    warnings: Vec<Warning>,
}

/// Reads a job file to submit. Returns the request and the messages of the warnings already printed; they name the
/// path as typed, as errors do. The daemon validates the text again, because it does not trust clients.
pub(crate) fn request(
    submitted: &Submitted,
    context: &Context,
) -> Result<(SubmitRequest, Vec<String>), Failure> {
    let Submitted { job: file, resume, priority } = submitted;
    let Read { text, path, set, warnings, .. } = read(file, context)?;
    let warnings = warnings.into_iter().map(|Warning(problem)| problem.message).collect();
    let path = std::path::absolute(&path)?;
    let Some(path) = path.to_str() else {
        return Err(Failure::Usage(format!("the path {} is not UTF-8", path.display())));
    };
    Ok((
        SubmitRequest {
            text,
            path: path.to_owned(),
            set,
            resume: *resume,
            priority: *priority,
            rerun: String::new(),
        },
        warnings,
    ))
}

/// Reads a job file to use in this process.
pub(crate) fn resolve(file: &JobFile, context: &Context) -> Result<Job, Failure> {
    read(file, context).map(|read| read.job)
}

fn read<'a>(file: &'a JobFile, context: &Context) -> Result<Read<'a>, Failure> {
    let mut set = Vec::new();
    let mut path = file.path.as_deref().map(Cow::Borrowed);
    if let Some(run) = &file.continues {
        if run.to_str().is_some_and(is_in_bucket) {
            // Found when the job is prepared, with its settings of storage.
            set = continuation(run)?;
            if path.is_none() {
                return Err(Failure::Usage(format!(
                    "--continue {}: give a job file, too, because the run is in a bucket",
                    run.display()
                )));
            }
        } else {
            let checkpoint = checkpoint_in(run)?;
            set = continuation(&checkpoint)?;
            path = path.or(Some(Cow::Owned(checkpoint.join(JOB_PART))));
        }
    }
    let Some(path) = path else {
        return Err(Failure::Usage("expected a job file, or a run to --continue".to_owned()));
    };
    set.extend_from_slice(&file.set);
    let text = std::fs::read_to_string(&path).map_err(|error| {
        let path = path.display();
        Failure::Usage(match error.kind() {
            ErrorKind::InvalidData => {
                format!(
                    "{path} is not a job file: it is not text. To describe data: millstream inspect {path}"
                )
            }
            ErrorKind::IsADirectory => format!("{path} is a directory; expected a job file"),
            _ => format!("cannot read {path}: {error}"),
        })
    })?;
    let (mut job, mut warnings) = Job::parse(&text, &path, &set)?;
    if let Some(catalog) = catalog_of(&job) {
        // The daemon, and a later resume, do not have this process's variables.
        set.push(catalog);
        (job, warnings) = Job::parse(&text, &path, &set)?;
    }
    warnings.iter().for_each(|warning| context.screen.line(&warning.to_string()));
    Ok(Read { text, path, set, job, warnings })
}

/// The setting of the catalog that this process's variable names, if the job needs one and names none.
fn catalog_of(job: &Job) -> Option<String> {
    let is_dataset =
        |pattern: &String| Reference::in_place_of_path(pattern).is_ok_and(|found| found.is_some());
    if job.storage.catalog.is_some() || !job.data.train.iter().chain(&job.data.eval).any(is_dataset) {
        return None;
    }
    let catalog = std::env::var(CATALOG_VARIABLE).ok().filter(|catalog| !catalog.is_empty())?;
    let catalog = match is_local(&catalog) {
        // A relative path in a job file starts at the file.
        Ok(true) => std::path::absolute(catalog).ok()?.to_str()?.to_owned(),
        _ => catalog,
    };
    Some(format!("storage.catalog={}", toml::Value::from(catalog)))
}

/// Whether `run` is the address of a directory in a bucket.
fn is_in_bucket(run: &str) -> bool {
    Directory::parse(run, Path::new("/")).is_ok_and(|directory| directory.as_local().is_none())
}

/// The checkpoint `run`, or the newest one in this run directory.
fn checkpoint_in(run: &Path) -> Result<PathBuf, Failure> {
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::Usage(format!(
            "--continue {}: expected the directory of a run or a checkpoint: {why}",
            run.display()
        ))
    };
    let run = std::path::absolute(run)?;
    if run.file_name().and_then(|name| name.to_str()).and_then(parse_directory_name).is_some() {
        return Ok(run);
    }
    let store = CheckpointStore::local(&run).map_err(|error| wrong(&error))?;
    let newest = store.steps().map_err(|error| wrong(&error))?.pop();
    newest.map(|step| PathBuf::from(store.path(step))).ok_or_else(|| wrong(&"it has no checkpoint"))
}

/// The overrides that make a job continue `checkpoint`.
fn continuation(checkpoint: &Path) -> Result<Vec<String>, Failure> {
    let Some(path) = checkpoint.to_str() else {
        return Err(Failure::Usage(format!("the path {} is not UTF-8", checkpoint.display())));
    };
    // The job file of the checkpoint can have a [warm_start], too.
    let best = "warm_start.best=false".to_owned();
    Ok(vec![format!("warm_start.checkpoint={path}"), "warm_start.continue=true".to_owned(), best])
}
