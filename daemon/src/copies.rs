//! Copies of runs and checkpoints that are in a bucket.
//!
//! A worker has no credentials and reads no storage, so a checkpoint in a bucket is first copied to a local directory: only the
//! files that are needed, in the layout of a run directory. From then on it is used as any other one. Objects are read as data is:
//! retried, bounded, and until the stores are cancelled. What was copied is checked where it is read, against the checksums of
//! the checkpoint.
//!
//! ```text
//! $CACHE_DIRECTORY/millstream-copy-x1y2z3/lock                  locked by the process that uses the copy
//!                                         run/train.listing     of the run, with its checksums, if it has any
//!                                             step-.../manifest.json    of the newest, which knows the best
//!                                             step-0000000500/...       the checkpoint that is used
//! ```
//!
//! A copy is removed when it is dropped; one whose process was killed is removed by the next daemon,
//! or the next process that makes one.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context, Result, bail};
use millstream_io::storage::{Directory, Object, Stores};
use millstream_trainer::checkpoint::store::{directory_name, parse_directory_name};
use millstream_trainer::checkpoint::{CheckpointStore, MANIFEST, PartEntry};
use millstream_trainer::model::TensorRole;
use millstream_worker::locks;
use rustix::fs::OFlags;
use tokio::runtime::Handle;

use crate::runs::Storage;
use crate::{runs, scoring};

/// The start of a copy's directory name.
const PREFIX: &str = "millstream-copy-";

/// The file in it that its process locks.
const LOCK: &str = "lock";

/// The start of the name of a directory that is not locked yet, and how long it may be so.
const NEW_PREFIX: &str = ".millstream-new-";
const NEW_FOR: Duration = Duration::from_secs(3600);

/// The directory in it that has the layout of a run.
const RUN: &str = "run";

/// The maximum size of a manifest or a record: it is read by this process at once.
const MAX_RECORD_BYTES: u64 = 256 << 20;

/// Bytes that are read and written at a time.
const PIECE_BYTES: u64 = 8 << 20;

/// What a copy has of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// The manifest, the job and the statistics of its data.
    Records,
    /// These and the parameters.
    Parameters,
    /// Everything.
    All,
}

impl Contents {
    /// Whether it has a part.
    fn has(self, part: &PartEntry) -> bool {
        match self {
            Self::Records => !has_tensors(part),
            Self::Parameters => !part.has_tensors(TensorRole::OptimizerState),
            Self::All => true,
        }
    }
}

fn has_tensors(part: &PartEntry) -> bool {
    [TensorRole::Parameter, TensorRole::OptimizerState].into_iter().any(|role| part.has_tensors(role))
}

/// Makes copies, and keeps them until it is dropped.
#[derive(Clone)]
pub struct Copies {
    storage: Storage,
    made: Arc<Mutex<Vec<Copy>>>,
}

/// A copy.
struct Copy {
    /// What it is a copy of.
    of: (Directory, bool, Contents),
    /// The directory in it of a run or a checkpoint, as the original is.
    path: PathBuf,
    _place: Place,
}

/// The directory of a copy, which only this user can read. It is removed when it is dropped.
struct Place {
    path: PathBuf,
    _lock: File,
}

impl Place {
    /// Creates a directory, and removes those whose processes are gone.
    fn create() -> Result<Self> {
        let parent = parent();
        remove_left();
        // It gets its name once it is locked: until then, nobody removes it.
        let private = fs::Permissions::from_mode(0o700);
        let new = tempfile::Builder::new().prefix(NEW_PREFIX).permissions(private).tempdir_in(&parent)?;
        let lock = locks::acquire(&new.path().join(LOCK), || false)?;
        let lock = lock.context("another process has locked it")?;
        let name = new.path().file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let path = parent.join(PREFIX.to_owned() + name.trim_start_matches(NEW_PREFIX));
        fs::rename(new.path(), &path)?;
        // Under its new name, this value removes it.
        let _ = new.keep();
        Ok(Self { path, _lock: lock })
    }

    /// The directory with the layout of a run.
    fn run(&self) -> PathBuf {
        self.path.join(RUN)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            tracing::debug!(%error, path = %self.path.display(), "a copy is not removed yet");
        }
    }
}

impl Copies {
    /// Copies what `stores` reads; requests run on `runtime`.
    pub fn new(stores: Stores, runtime: Handle) -> Self {
        Self { storage: Storage::reading(stores, runtime), made: Arc::default() }
    }

    /// The path of `directory`, that of a run or of a checkpoint; if it is in a bucket, that of its copy. The copy of a run has these
    /// `contents` of its newest checkpoint, or with `best` of that of its best evaluation. Blocks, so it must not be called from async code.
    ///
    /// # Errors
    /// When there is no checkpoint, or storage fails.
    pub fn local(&self, directory: &Directory, best: bool, contents: Contents) -> Result<PathBuf> {
        if let Some(path) = directory.as_local() {
            return Ok(path.to_owned());
        }
        let of = (directory.clone(), best, contents);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copy) = made.iter().find(|copy| copy.of == of) {
            return Ok(copy.path.clone());
        }
        let copy = self.make(of)?;
        let path = copy.path.clone();
        made.push(copy);
        Ok(path)
    }

    fn make(&self, of: (Directory, bool, Contents)) -> Result<Copy> {
        let (original, best, contents) = &of;
        let place = Place::create().context("a directory for a copy")?;
        let run = place.run();
        fs::create_dir(&run)?;
        let given = original.name().and_then(parse_directory_name);
        let of_given = given.and_then(|step| Some((original.parent()?, step)));
        let (home, step) = match of_given {
            Some(given) => given,
            None => {
                let found = self.chosen(original, *best, &run)?;
                (original.clone(), found.ok_or_else(|| scoring::no_checkpoint(original, *best))?)
            }
        };
        self.copy_checkpoint((&home, step), *contents, &run)?;
        let path = given.map_or_else(|| run.clone(), |step| run.join(directory_name(step)));
        Ok(Copy { of, path, _place: place })
    }

    /// The step of the newest checkpoint of the run `home`, or of its best one. Copies the manifest of the newest to `run`: it
    /// knows the best.
    fn chosen(&self, home: &Directory, best: bool, run: &Path) -> Result<Option<u64>> {
        let step_of = |object: &Object| parse_directory_name(object.path().rsplit('/').nth(1)?);
        let manifests = self.storage.find(&home.join("step-*").join(MANIFEST))?;
        let steps: BTreeSet<u64> = manifests.iter().filter_map(step_of).collect();
        let Some(&newest) = steps.last() else { return Ok(None) };
        if !best {
            return Ok(Some(newest));
        }
        if let Some(manifest) = manifests.iter().find(|manifest| step_of(manifest) == Some(newest)) {
            self.copy_record(manifest, &run.join(directory_name(newest)))?;
        }
        let snapshot = CheckpointStore::local(run)?.manifest(newest)?.snapshot;
        let best = snapshot.standing.best().iter().map(|best| best.step).find(|step| steps.contains(step));
        Ok(best)
    }

    /// Copies the checkpoint of `step` below `home`, with `contents`, and what the run has recorded of its data, to `run`.
    fn copy_checkpoint(&self, (home, step): (&Directory, u64), contents: Contents, run: &Path) -> Result<()> {
        let (from, mut to) = (home.join(&directory_name(step)), run.join(directory_name(step)));
        let manifest = self.storage.find(&from.join(MANIFEST))?;
        // Without a manifest, the caller finds that this is no checkpoint.
        let Some(manifest) = manifest.first() else { return Ok(()) };
        self.copy_record(manifest, &to)?;
        let manifest = CheckpointStore::local(run)?.manifest(step)?;
        let of_parts = manifest.part_directory();
        if let Some(directory) = &of_parts {
            to.push(directory);
        }
        let objects =
            self.storage.find(&of_parts.map_or(from.clone(), |directory| from.join(&directory)).join("*"))?;
        for part in manifest.parts {
            // A missing part is found by who reads the checkpoint.
            let object = objects.iter().find(|object| file_name(object) == Some(&part.name));
            let Some(object) = object.filter(|_| contents.has(&part)) else { continue };
            if !has_tensors(&part) {
                self.copy_record(object, &to)?;
            } else if object.size() == part.bytes {
                self.copy(object, &to)?;
            } else {
                bail!("{} has {} bytes; {} were committed", object.path(), object.size(), part.bytes);
            }
        }
        let records = format!("{{{},{}}}", runs::TRAIN_LISTING, runs::CHECKSUMS);
        let records = self.storage.find(&home.join(&records))?;
        records.iter().try_for_each(|record| self.copy_record(record, run))
    }

    /// Copies an object that this process reads at once.
    fn copy_record(&self, object: &Object, directory: &Path) -> Result<()> {
        if object.size() > MAX_RECORD_BYTES {
            bail!("{} has {} bytes, more than any record", object.path(), object.size());
        }
        self.copy(object, directory)
    }

    /// Copies an object to `directory`, which is created.
    fn copy(&self, object: &Object, directory: &Path) -> Result<()> {
        let Some(path) = file_name(object).map(|name| directory.join(name)) else { return Ok(()) };
        let copy = || -> Result<()> {
            fs::create_dir_all(directory)?;
            let mut file = File::create(&path)?;
            let mut start = 0;
            while start < object.size() {
                let end = object.size().min(start + PIECE_BYTES);
                file.write_all(&self.storage.runtime.block_on(object.read(start..end))?)?;
                start = end;
            }
            Ok(())
        };
        copy().with_context(|| format!("copying {} to {}", object.path(), path.display()))
    }
}

/// The last name in an object's path, if it can name a file.
fn file_name(object: &Object) -> Option<&str> {
    let name = object.path().rsplit('/').next()?;
    (!matches!(name, "" | "." | "..")).then_some(name)
}

/// Where copies are made: the directory that systemd gives to a service for that, or the one for temporary files.
fn parent() -> PathBuf {
    let cache = std::env::var_os("CACHE_DIRECTORY");
    // systemd lists several with colons.
    let first = cache.as_ref().and_then(|cache| std::env::split_paths(cache).next());
    first.filter(|path| path.is_dir()).unwrap_or_else(std::env::temp_dir)
}

/// Removes the copies of this user whose processes are gone.
pub(crate) fn remove_left() {
    if let Err(error) = sweep(&parent()) {
        tracing::debug!(%error, "copies of other processes are not removed");
    }
}

/// Removes the copies of this user in `parent` that no process has locked.
fn sweep(parent: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let path = entry.path();
        let is_left = match fs::symlink_metadata(&path) {
            Ok(found) if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() => false,
            Ok(_) if name.starts_with(PREFIX) => !is_locked(&path.join(LOCK)),
            Ok(found) if name.starts_with(NEW_PREFIX) => {
                found.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age > NEW_FOR))
            }
            _ => false,
        };
        if is_left && let Err(error) = remove(&path) {
            tracing::debug!(%error, path = %path.display(), "a copy is not removed");
        }
    }
    Ok(())
}

/// Whether a process may have locked a file. An absent one is not locked.
fn is_locked(path: &Path) -> bool {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    match File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path) {
        Ok(file) => file.try_lock().is_err(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Removes a copy: its lock last, so that what is left by an interruption is removed later.
fn remove(path: &Path) -> io::Result<()> {
    let is_absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    for path in [&path.join(RUN), path] {
        if let Err(error) = fs::remove_dir_all(path)
            && !is_absent(&error)
        {
            return Err(error);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn copies_whose_process_is_gone_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let directory = |name: &str| {
            let path = parent.path().join(name);
            fs::create_dir_all(path.join(RUN)).unwrap();
            path
        };
        let [held, left, half] = ["1", "2", "3"].map(|name| directory(&(PREFIX.to_owned() + name)));
        let others = [directory("other"), directory(&(NEW_PREFIX.to_owned() + "4"))];
        for directory in [&held, &left] {
            fs::write(directory.join(LOCK), "").unwrap();
        }
        // Of another user, this would block or lead elsewhere.
        let link = parent.path().join(PREFIX.to_owned() + "link");
        std::os::unix::fs::symlink(&others[0], &link).unwrap();
        let lock = locks::acquire(&held.join(LOCK), || false).unwrap().unwrap();
        sweep(parent.path()).unwrap();
        assert!(held.join(RUN).exists() && !left.exists() && !half.exists());
        assert!(others.iter().all(|other| other.join(RUN).exists()) && link.exists());
        drop(lock);
        sweep(parent.path()).unwrap();
        assert!(!held.exists());
    }
}
