//! Run directories: one below a job's checkpoint directory for each submission.
//!
//! ```text
//! checkpoints/census-k3f9q2/job.toml             the job, without the secrets in its addresses
//!                           analysis.json        statistics learned from the data, if any
//!                           warm_start           the checkpoint of the initial weights, if any
//!                           id_mappings.json     the mapping of its ids to the job's
//!                           continuation.json    the earlier run that it continues, if any
//!                           rerun                the earlier run that it repeats, if any
//!                           search.json          the trials of a search, whose run directories are beside it
//!                           inputs-5d41402abc4b/ what these trials share: listings and statistics
//!                           auto_batch.json      the automatically chosen batch size, if any
//!                           job.resolved.toml    the job with that batch size
//!                           train.listing        the files that it reads, with their versions
//!                           checksums.sha256     the checksums of all of these
//!                           lock                 locked by the worker that trains in it, or in a bucket
//!                           lease.json           the lease of the daemon that does
//!                           step-0000000500/...  a checkpoint
//! ```
//!
//! A run directory is sufficient to resume the run, by a new daemon or on another machine that has the bucket or mounts the
//! directory.

mod checksums;
mod directory;
mod inputs;
mod lease;
mod rerun;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use millstream_io::storage::Directory;
use millstream_pipeline::order::Position;
use millstream_trainer::checkpoint::store::parse_directory_name;
use millstream_worker::locks::RunLock;
use millstream_worker::protocol;

use crate::access::Requester;
use crate::{datasets, search};
use millstream_job::Job;

pub(crate) use checksums::CHECKSUMS;
pub(crate) use directory::{RunDirectory, Storage};
pub(crate) use inputs::SharedInputs;
pub(crate) use lease::{End, Head, Lease, LeaseError, Look, Taken, Times, generation_term, of_term};
pub(crate) use rerun::{RERUN, Rerun};

/// The job, as TOML.
pub(crate) const JOB: &str = protocol::JOB_PART;
/// The job with the chosen batch size.
const RESOLVED_JOB: &str = "job.resolved.toml";
/// Statistics learned from the data.
pub(crate) const ANALYSIS: &str = protocol::ANALYSIS_PART;
/// The checkpoint of the initial weights.
pub(crate) const WARM_START: &str = "warm_start";
/// The mapping of that checkpoint's ids to the job's.
pub(crate) const ID_MAPPINGS: &str = "id_mappings.json";
/// The earlier run that this one continues, and where in the data.
pub(crate) const CONTINUATION: &str = "continuation.json";
/// The trials of a search.
pub(crate) const SEARCH: &str = "search.json";
/// The automatically chosen batch size.
pub(crate) const AUTO_BATCH: &str = "auto_batch.json";

/// The listings of the job's files, frozen at its start.
pub(crate) const TRAIN_LISTING: &str = "train.listing";
pub(crate) const EVAL_LISTING: &str = "eval.listing";
const LISTINGS: [&str; 2] = [TRAIN_LISTING, EVAL_LISTING];

/// The maximum size of a run's job file, which contains the terms of all files: a file in a directory that others can write
/// may have any size.
const MAX_JOB_BYTES: u64 = 1 << 30;

/// Characters after the job's name in an id: Crockford's base 32, which has no similar characters.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const ID_CHARACTERS: usize = 6;

/// Attempts to find an unused id; with 2^30 ids, one attempt nearly always suffices.
const ID_TRIES: usize = 8;

/// A run of a job.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// The job's id.
    pub(crate) id: String,
    /// Its directory.
    pub(crate) directory: RunDirectory,
}

/// Creates the directory of a new run of `job`, with the job file in it. `storage` is that of the job.
pub(crate) fn new(job: &Job, storage: &Storage) -> Result<Run> {
    let parent = RunDirectory::new(job.checkpoint.directory.clone(), storage);
    let here = || format!("checkpoint directory {parent}");
    let new = |name: &str| match parent.as_local() {
        Some(path) => create_in(path, name),
        None => parent.join(name).write_new(JOB, job.shareable_text().as_bytes()).with_context(here),
    };
    for _ in 0..ID_TRIES {
        let id = format!("{}-{}", job.name, random_characters()?);
        if new(&id)? {
            let directory = parent.join(&id);
            if let Err(error) = put(&directory, JOB, job.shareable_text().as_bytes()) {
                let removed = directory.remove();
                tracing::debug!(?removed, "a run has not begun");
                return Err(error).with_context(here);
            }
            return Ok(Run { id, directory });
        }
    }
    bail!("{}: no free name for another run", here())
}

/// Creates the directory `name` in the local directory `parent`, which is created, too. Returns false if it exists.
fn create_in(parent: &Path, name: &str) -> Result<bool> {
    let denied = |error: io::Error| {
        let advice = write_advice(error.kind(), std::env::var("STATE_DIRECTORY").ok());
        anyhow::Error::from(error).context(format!("checkpoint directory {}{advice}", parent.display()))
    };
    fs::create_dir_all(parent).map_err(denied)?;
    match fs::create_dir(parent.join(name)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(denied(error)),
    }
}

/// What to do where a directory cannot be written. `state_directory` is that of a systemd service.
fn write_advice(error: io::ErrorKind, state_directory: Option<String>) -> String {
    let is_denied = matches!(error, io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem);
    match state_directory {
        _ if !is_denied => String::new(),
        None => ", in which this user may not write; set `checkpoint.directory`".to_owned(),
        Some(directory) => format!(
            ", in which the service may not write; set `checkpoint.directory` to one below {directory}, or allow it in the \
             service's unit with ReadWritePaths="
        ),
    }
}

/// Finds the newest unfinished run of the same job, by fingerprint, among those that `requester` may read.
pub(crate) fn newest_unfinished(job: &Job, requester: &Requester, storage: &Storage) -> Result<Run> {
    let parent = RunDirectory::new(job.checkpoint.directory.clone(), storage);
    let fingerprint = job.fingerprint();
    let mut newest: Option<(SystemTime, RunDirectory)> = None;
    let mut newest_changed: Option<(SystemTime, RunDirectory, Job)> = None;
    for (directory, begun) in parent.directories_with(JOB)? {
        let Ok(earlier) = job_of(&directory, requester) else { continue };
        let of_earlier = earlier.fingerprint();
        let is_same =
            of_earlier == fingerprint || of_earlier == datasets::pinned_as(job, &earlier).fingerprint();
        if is_same {
            if newest.as_ref().is_none_or(|(time, _)| *time < begun) && !is_finished(&directory, job)? {
                newest = Some((begun, directory));
            }
        } else if earlier.name == job.name
            && newest_changed.as_ref().is_none_or(|(time, ..)| *time < begun)
            && !is_finished(&directory, &earlier)?
        {
            newest_changed = Some((begun, directory, earlier));
        }
    }
    let Some((_, directory)) = newest else {
        let none = format!("no unfinished run of this job in {parent}");
        let Some((_, directory, earlier)) = newest_changed else { bail!("{none}") };
        bail!("{none}; {}", describe_changes(&directory, job, &earlier));
    };
    // The lease of a run in a bucket is taken when the job is prepared.
    if let Some(path) = directory.as_local()
        && RunLock::is_held(path).with_context(|| directory.to_string())?
    {
        bail!("{directory} is being trained now");
    }
    let id = directory.address().name();
    let id = id.with_context(|| format!("{directory} does not have the name of a run"))?.to_owned();
    Ok(Run { id, directory })
}

/// Removes the directory of a failed run unless it has a checkpoint.
pub(crate) fn discard(directory: &RunDirectory) -> Result<()> {
    if directory.checkpoints()?.steps()?.is_empty() {
        directory.remove()?;
    }
    Ok(())
}

/// Whether `directory` is that of a run, and not merely one with a job file.
///
/// # Errors
/// When storage fails.
pub(crate) fn is_run(directory: &RunDirectory) -> Result<bool> {
    Ok(directory.has(JOB)? && directory.has(CHECKSUMS)?)
}

/// The directory that contains a checkpoint, and its step, if `directory` is that of a checkpoint.
pub(crate) fn of_checkpoint(directory: &Directory) -> Option<(Directory, u64)> {
    let step = parse_directory_name(directory.name()?)?;
    Some((directory.parent()?, step))
}

/// Writes the file `name` of a run directory atomically, and records its checksum. Not for concurrent use.
pub(crate) fn put(directory: &RunDirectory, name: &str, bytes: &[u8]) -> Result<()> {
    let (during, after) = checksums::replacing(directory, name, bytes)?;
    directory.write(CHECKSUMS, during.as_bytes())?;
    directory.write(name, bytes)?;
    if during != after {
        directory.write(CHECKSUMS, after.as_bytes())?;
    }
    Ok(())
}

/// Reads the file `name` of a run directory, if it exists. [`put`] may replace it at the same time.
///
/// # Errors
/// When it cannot be read, or was changed since [`put`].
pub(crate) fn get(directory: &RunDirectory, name: &str) -> Result<Option<Vec<u8>>> {
    let mut before = None;
    loop {
        let Some(bytes) = directory.read(name)? else { return Ok(None) };
        match checksums::check(directory, name, &bytes) {
            Ok(()) => return Ok(Some(bytes)),
            // Otherwise it was replaced before the checksums were read.
            Err(error) if before.as_ref() == Some(&bytes) => return Err(error),
            Err(_) => before = Some(bytes),
        }
    }
}

/// Reads the file `name` of a run directory as text, if it exists. See [`get`].
pub(crate) fn get_text(directory: &RunDirectory, name: &str) -> Result<Option<String>> {
    let Some(bytes) = get(directory, name)? else { return Ok(None) };
    String::from_utf8(bytes).map(Some).with_context(|| directory.file(name))
}

/// The name of the file of the job that checkpoints contain. If `job` has an automatic batch size, writes `resolved`, which
/// has the chosen one.
pub(crate) fn resolved_job(directory: &RunDirectory, job: &Job, resolved: &Job) -> Result<&'static str> {
    if job.auto_batch.is_none() {
        return Ok(JOB);
    }
    put(directory, RESOLVED_JOB, resolved.shareable_text().as_bytes())?;
    Ok(RESOLVED_JOB)
}

/// The job of the run in `directory`.
///
/// # Errors
/// When `requester` cannot read it.
pub(crate) fn job_of(directory: &RunDirectory, requester: &Requester) -> Result<Job> {
    let read = || -> Result<Job> {
        let text = job_text(directory, requester)?;
        Ok(Job::parse_with(&text, &job_path(directory), &[], &|file| requester.open(file))?.0)
    };
    read().with_context(|| format!("the job of the run in {directory} cannot be read"))
}

/// The path of the job file of the run in `directory`, or its address.
fn job_path(directory: &RunDirectory) -> PathBuf {
    match directory.as_local() {
        Some(path) => path.join(JOB),
        None => PathBuf::from(directory.address().join(JOB).text().into_owned()),
    }
}

/// The text of the job file of the run in `directory`.
///
/// # Errors
/// When `requester` cannot read it.
fn job_text(directory: &RunDirectory, requester: &Requester) -> Result<String> {
    let mut text = String::new();
    match directory.as_local() {
        Some(path) => requester.open(&path.join(JOB))?.take(MAX_JOB_BYTES).read_to_string(&mut text)?,
        None => directory.read(JOB)?.context("it has no job file")?.as_slice().read_to_string(&mut text)?,
    };
    Ok(text)
}

/// The maximum number of changed keys in a message.
const MAX_CHANGES: usize = 5;

/// What makes `job` another one than that of the unfinished run in `directory`.
fn describe_changes(directory: &RunDirectory, job: &Job, earlier: &Job) -> String {
    let changes = job.differences(earlier);
    let more = changes.len().saturating_sub(MAX_CHANGES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let run = directory.address().name().map_or_else(|| directory.to_string(), str::to_owned);
    let named = changes.iter().take(MAX_CHANGES).map(String::as_str).collect::<Vec<_>>().join(", ");
    if named.is_empty() {
        return format!("the unfinished run {run} is of another job with this name");
    }
    format!(
        "the unfinished run {run} differs in {named}{more}: restore them to resume it, or train without --resume"
    )
}

/// Whether the newest checkpoint in `directory` is at the end of the data, or `job` stopped early at it; of a search, whether
/// all trials have ended.
fn is_finished(directory: &RunDirectory, job: &Job) -> Result<bool> {
    if let Some(spec) = &job.search {
        return search::is_over(directory, spec);
    }
    let store = directory.checkpoints()?;
    let Some(step) = store.steps()?.pop() else { return Ok(false) };
    // Resuming skips a damaged checkpoint.
    let Ok(manifest) = store.manifest(step) else { return Ok(false) };
    let position = Position::decode(&manifest.snapshot.position);
    let ended = position.is_ok_and(|position| position.pass.is_none());
    Ok(ended || manifest.snapshot.standing.stop(&job.selection(), &job.label.names()).is_some())
}

fn random_characters() -> io::Result<String> {
    let mut bytes = [0; ID_CHARACTERS];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|&byte| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_where_a_service_may_write() {
        let advice = |kind, directory: Option<&str>| write_advice(kind, directory.map(str::to_owned));
        let service = advice(io::ErrorKind::ReadOnlyFilesystem, Some("/var/lib/millstream"));
        assert!(
            service.contains("below /var/lib/millstream") && service.contains("ReadWritePaths="),
            "{service}"
        );
        let person = advice(io::ErrorKind::PermissionDenied, None);
        assert!(person.contains("this user may not write; set `checkpoint.directory`"), "{person}");
        assert_eq!(advice(io::ErrorKind::NotADirectory, Some("/var/lib/millstream")), "");
    }
}
