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
//!                           lock                 locked by the worker that trains in it
//!                           step-0000000500/...  a checkpoint
//! ```
//!
//! A run directory is sufficient to resume the run, by a new daemon or on another machine that mounts it.

mod checksums;
mod inputs;
mod rerun;

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use millstream_pipeline::order::Position;
use millstream_trainer::checkpoint::CheckpointStore;
use millstream_trainer::checkpoint::store::parse_directory_name;
use millstream_worker::locks::RunLock;
use millstream_worker::protocol;

use crate::access::Requester;
use crate::{datasets, search};
use millstream_job::Job;

pub(crate) use checksums::CHECKSUMS;
pub(crate) use inputs::SharedInputs;
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

/// The modes of files with and without secrets, before the umask.
const SECRET_MODE: u32 = 0o600;
const SHARED_MODE: u32 = 0o666;

/// The maximum size of a run's job file, which contains the terms of all files: a file in a directory that others can write
/// may have any size.
const MAX_JOB_BYTES: u64 = 1 << 30;

/// Characters after the job's name in an id: Crockford's base 32, which has no similar characters.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const ID_CHARACTERS: usize = 6;

/// Attempts to find an unused id; with 2^30 ids, one attempt nearly always suffices.
const ID_TRIES: usize = 8;

/// A run of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The job's id.
    pub(crate) id: String,
    /// Its directory.
    pub(crate) directory: PathBuf,
}

/// The size of the files in a checkpoint's directory; 0 if it cannot be read.
pub(crate) fn checkpoint_bytes(directory: &Path) -> u64 {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}

/// Creates the directory of a new run of `job`, with the job file in it.
pub(crate) fn new(job: &Job) -> Result<Run> {
    let parent = &job.checkpoint.directory;
    let here = || format!("checkpoint directory {}", parent.display());
    let denied = |error: io::Error| {
        let advice = write_advice(error.kind(), std::env::var("STATE_DIRECTORY").ok());
        anyhow::Error::from(error).context(here() + &advice)
    };
    fs::create_dir_all(parent).map_err(denied)?;
    for _ in 0..ID_TRIES {
        let id = format!("{}-{}", job.name, random_characters()?);
        let directory = parent.join(&id);
        match fs::create_dir(&directory) {
            Ok(()) => {
                put(&directory, JOB, job.shareable_text().as_bytes()).with_context(here)?;
                return Ok(Run { id, directory });
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(denied(error)),
        }
    }
    bail!("{}: no free name for another run", here())
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
pub(crate) fn newest_unfinished(job: &Job, requester: &Requester) -> Result<Run> {
    let parent = &job.checkpoint.directory;
    let fingerprint = job.fingerprint();
    let mut newest: Option<(SystemTime, PathBuf)> = None;
    let mut newest_changed: Option<(SystemTime, PathBuf, Job)> = None;
    for directory in directories(parent).with_context(|| parent.display().to_string())? {
        let Some((begun, earlier)) = read_run(&directory, requester) else { continue };
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
        let none = format!("no unfinished run of this job in {}", parent.display());
        let Some((_, directory, earlier)) = newest_changed else { bail!("{none}") };
        bail!("{none}; {}", describe_changes(&directory, job, &earlier));
    };
    if RunLock::is_held(&directory).with_context(|| directory.display().to_string())? {
        bail!("{} is being trained now", directory.display());
    }
    let id = directory.file_name().and_then(|name| name.to_str());
    let id =
        id.with_context(|| format!("{} does not have the name of a run", directory.display()))?.to_owned();
    Ok(Run { id, directory })
}

/// Removes the directory of a failed run unless it has a checkpoint.
pub(crate) fn discard(directory: &Path) -> Result<()> {
    let here = || directory.display().to_string();
    if CheckpointStore::local(directory)?.steps()?.is_empty() {
        fs::remove_dir_all(directory).with_context(here)?;
    }
    Ok(())
}

/// Whether `directory` is that of a run, and not merely one with a job file.
pub(crate) fn is_run(directory: &Path) -> bool {
    directory.join(JOB).is_file() && directory.join(CHECKSUMS).is_file()
}

/// The directory that contains a checkpoint, and its step, if `directory` is that of a checkpoint.
pub(crate) fn of_checkpoint(directory: &Path) -> Option<(&Path, u64)> {
    let step = parse_directory_name(directory.file_name()?.to_str()?)?;
    Some((directory.parent()?, step))
}

/// Writes the file `name` of a run directory atomically, and records its checksum. Not for concurrent use. Only the
/// daemon's user can read a file with secrets in addresses, such as the listing of objects with signed addresses.
pub(crate) fn put(directory: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let (during, after) = checksums::replacing(directory, name, bytes)?;
    write(directory, CHECKSUMS, during.as_bytes())?;
    write(directory, name, bytes)?;
    if during != after {
        write(directory, CHECKSUMS, after.as_bytes())?;
    }
    Ok(())
}

fn write(directory: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let path = directory.join(name);
    let unborn = directory.join(format!(".{name}.new"));
    let write = || {
        let is_secret = |line: &str| matches!(millstream_io::redact(line), Cow::Owned(_));
        let has_secrets = std::str::from_utf8(bytes).is_ok_and(|text| text.lines().any(is_secret));
        let mode = if has_secrets { SECRET_MODE } else { SHARED_MODE };
        let mut options = File::options();
        let mut file = options.write(true).create(true).truncate(true).mode(mode).open(&unborn)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&unborn, &path)?;
        File::open(directory)?.sync_all()
    };
    write().with_context(|| path.display().to_string())
}

/// Reads the file `name` of a run directory, if it exists.
///
/// # Errors
/// When it cannot be read, or was changed since [`put`].
pub(crate) fn get(directory: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let path = directory.join(name);
    match fs::read(&path) {
        Ok(bytes) => {
            checksums::check(directory, name, &bytes)?;
            Ok(Some(bytes))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// Reads the file `name` of a run directory as text, if it exists. See [`get`].
pub(crate) fn get_text(directory: &Path, name: &str) -> Result<Option<String>> {
    let Some(bytes) = get(directory, name)? else { return Ok(None) };
    String::from_utf8(bytes).map(Some).with_context(|| directory.join(name).display().to_string())
}

/// The file of the job that checkpoints contain. If `job` has an automatic batch size, writes `resolved`, which has
/// the chosen one.
pub(crate) fn resolved_job(directory: &Path, job: &Job, resolved: &Job) -> Result<PathBuf> {
    if job.auto_batch.is_none() {
        return Ok(directory.join(JOB));
    }
    put(directory, RESOLVED_JOB, resolved.shareable_text().as_bytes())?;
    Ok(directory.join(RESOLVED_JOB))
}

/// The job of the run in `directory`.
///
/// # Errors
/// When `requester` cannot read it.
pub(crate) fn job_of(directory: &Path, requester: &Requester) -> Result<Job> {
    let (_, job) = read_run(directory, requester)
        .with_context(|| format!("the job of the run in {} cannot be read", directory.display()))?;
    Ok(job)
}

/// The start time and the job of the run in `directory`, if `requester` can read it.
fn read_run(directory: &Path, requester: &Requester) -> Option<(SystemTime, Job)> {
    let path = directory.join(JOB);
    let mut text = String::new();
    requester.open(&path).ok()?.take(MAX_JOB_BYTES).read_to_string(&mut text).ok()?;
    let (job, _) = Job::parse_with(&text, &path, &[], &|file| requester.open(file)).ok()?;
    Some((fs::metadata(&path).ok()?.modified().ok()?, job))
}

/// The maximum number of changed keys in a message.
const MAX_CHANGES: usize = 5;

/// What makes `job` another one than that of the unfinished run in `directory`.
fn describe_changes(directory: &Path, job: &Job, earlier: &Job) -> String {
    let changes = job.differences(earlier);
    let more = changes.len().saturating_sub(MAX_CHANGES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let run = directory.file_name().unwrap_or_default().to_string_lossy();
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
fn is_finished(directory: &Path, job: &Job) -> Result<bool> {
    if let Some(spec) = &job.search {
        return search::is_over(directory, spec);
    }
    let store = CheckpointStore::local(directory)?;
    let Some(step) = store.steps()?.pop() else { return Ok(false) };
    // Resuming skips a damaged checkpoint.
    let Ok(manifest) = store.manifest(step) else { return Ok(false) };
    let position = Position::decode(&manifest.snapshot.position);
    let ended = position.is_ok_and(|position| position.pass.is_none());
    Ok(ended || manifest.snapshot.standing.stop(&job.selection(), &job.label.names()).is_some())
}

fn directories(parent: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut directories = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            directories.push(entry.path());
        }
    }
    Ok(directories)
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
