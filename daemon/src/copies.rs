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
//!                                             step-.../manifest.json    of each checkpoint
//!                                             step-0000000500/...       the checkpoint that is used
//! ```
//!
//! A copy is removed when it is dropped; one whose process was killed is removed by the next process that makes one.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io};

use anyhow::{Context, Result, bail};
use millstream_io::storage::{Directory, Object, Stores};
use millstream_trainer::checkpoint::store::{directory_name, parse_directory_name};
use millstream_trainer::checkpoint::{CheckpointStore, MANIFEST};
use millstream_worker::locks;
use tempfile::TempDir;
use tokio::runtime::Handle;

use crate::{runs, scoring};

/// The start of a copy's directory name.
const PREFIX: &str = "millstream-copy-";

/// The file in it that its process locks.
const LOCK: &str = "lock";

/// The directory in it that has the layout of a run.
const RUN: &str = "run";

/// The maximum size of a manifest or a record: it is read by this process at once.
const MAX_RECORD_BYTES: u64 = 256 << 20;

/// Bytes that are read and written at a time.
const PIECE_BYTES: u64 = 32 << 20;

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
    /// Whether it has the file `name`.
    fn has(self, name: &str) -> bool {
        match self {
            Self::Records => !name.ends_with(".safetensors"),
            Self::Parameters => !name.starts_with("optimizer"),
            Self::All => true,
        }
    }
}

/// Makes copies, and keeps them until it is dropped.
#[derive(Clone)]
pub struct Copies {
    stores: Stores,
    runtime: Handle,
    made: Arc<Mutex<Vec<Copy>>>,
}

/// A copy.
struct Copy {
    /// What it is a copy of.
    of: (Directory, bool, Contents),
    /// The directory in it of a run or a checkpoint, as the original is.
    path: PathBuf,
    _lock: File,
    _directory: TempDir,
}

impl Copies {
    /// Copies what `stores` reads; requests run on `runtime`.
    pub fn new(stores: Stores, runtime: Handle) -> Self {
        Self { stores, runtime, made: Arc::default() }
    }

    /// The path of `directory`, that of a run or of a checkpoint; if it is in a bucket, that of its copy. The copy of a run has its
    /// newest checkpoint, or with `best` that of its best evaluation; of these `contents`. Blocks, so it must not be called from async code.
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
        let (directory, lock) = create().context("a directory for a copy")?;
        let run = directory.path().join(RUN);
        let given = original.name().and_then(parse_directory_name);
        let of_given = given.and_then(|step| Some((original.parent()?, step)));
        let (home, step) = match of_given {
            Some((home, step)) => {
                self.copy_manifests(&home, &directory_name(step), &run)?;
                (home, step)
            }
            None => {
                self.copy_manifests(original, "step-*", &run)?;
                let store = CheckpointStore::local(&run)?;
                let step = if *best { store.best()?.first().copied() } else { store.steps()?.pop() };
                (original.clone(), step.ok_or_else(|| scoring::no_checkpoint(original, *best))?)
            }
        };
        self.copy_checkpoint((&home, step), *contents, &run)?;
        let path = given.map_or_else(|| run.clone(), |step| run.join(directory_name(step)));
        Ok(Copy { of, path, _lock: lock, _directory: directory })
    }

    /// Copies the checkpoint of `step` below `home`, of these `contents`, and what the run has recorded of its data, to `run`.
    fn copy_checkpoint(&self, (home, step): (&Directory, u64), contents: Contents, run: &Path) -> Result<()> {
        let name = directory_name(step);
        let mut objects = self.list(&home.join(&name).join("*"))?;
        objects.retain(|object| file_name(object).is_some_and(|name| contents.has(name)));
        self.copy_all(&objects, &run.join(&name), u64::MAX)?;
        let records = format!("{{{},{}}}", runs::TRAIN_LISTING, runs::CHECKSUMS);
        self.copy_all(&self.list(&home.join(&records))?, run, MAX_RECORD_BYTES)
    }

    /// Copies the manifests of the checkpoints below `home` that the pattern `steps` matches, to `run`.
    fn copy_manifests(&self, home: &Directory, steps: &str, run: &Path) -> Result<()> {
        fs::create_dir_all(run)?;
        for object in self.list(&home.join(steps).join(MANIFEST))? {
            let mut names = object.path().rsplit('/').skip(1);
            if let Some(name) = names.next().filter(|name| parse_directory_name(name).is_some()) {
                self.copy_all(std::slice::from_ref(&object), &run.join(name), MAX_RECORD_BYTES)?;
            }
        }
        Ok(())
    }

    /// The objects that a pattern matches; none is no error.
    fn list(&self, pattern: &Directory) -> Result<Vec<Object>> {
        let patterns = [pattern.to_string()];
        match self.runtime.block_on(self.stores.list(&patterns, Path::new("/"))) {
            Err(error) if error.is_absent() => Ok(Vec::new()),
            listed => Ok(listed?),
        }
    }

    /// Copies objects of at most `limit` bytes into a directory, which is created.
    fn copy_all(&self, objects: &[Object], directory: &Path, limit: u64) -> Result<()> {
        fs::create_dir_all(directory)?;
        for object in objects {
            let Some(name) = file_name(object) else { continue };
            if object.size() > limit {
                bail!("{}: has {} bytes, at most {limit} are expected", object.path(), object.size());
            }
            let path = directory.join(name);
            self.copy(object, &path)
                .with_context(|| format!("copying {} to {}", object.path(), path.display()))?;
        }
        Ok(())
    }

    fn copy(&self, object: &Object, path: &Path) -> Result<()> {
        let mut file = File::create(path)?;
        let mut start = 0;
        while start < object.size() {
            let end = object.size().min(start + PIECE_BYTES);
            file.write_all(&self.runtime.block_on(object.read(start..end))?)?;
            start = end;
        }
        Ok(())
    }
}

/// The last name in an object's path, if it can name a file.
fn file_name(object: &Object) -> Option<&str> {
    let name = object.path().rsplit('/').next()?;
    (!matches!(name, "" | "." | "..")).then_some(name)
}

/// Creates a directory for a copy, locked by this process, and removes those whose processes are gone.
fn create() -> Result<(TempDir, File)> {
    let parent = parent();
    if let Err(error) = sweep(&parent) {
        tracing::debug!(%error, "copies of other processes are not removed");
    }
    let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(&parent)?;
    let lock = locks::acquire(&directory.path().join(LOCK), || false)?;
    Ok((directory, lock.context("another process has locked it")?))
}

/// Where copies are made: the directory that systemd gives to a service for that, or the one for temporary files.
fn parent() -> PathBuf {
    let cache = std::env::var_os("CACHE_DIRECTORY");
    // systemd lists several with colons.
    let first = cache.as_ref().and_then(|cache| std::env::split_paths(cache).next());
    first.filter(|path| path.is_dir()).unwrap_or_else(std::env::temp_dir)
}

/// Removes the copies in `parent` that no process has locked.
fn sweep(parent: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let is_copy = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        // One without a lock is being created.
        let Some(lock) = is_copy.then(|| File::open(entry.path().join(LOCK)).ok()).flatten() else {
            continue;
        };
        if lock.try_lock().is_ok() {
            fs::remove_dir_all(entry.path())?;
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
        let [held, left, unborn, other] = ["1", "2", "3", "x"].map(|name| {
            let prefix = if name == "x" { "other-" } else { PREFIX };
            parent.path().join(format!("{prefix}{name}"))
        });
        for directory in [&held, &left, &unborn, &other] {
            fs::create_dir(directory).unwrap();
        }
        for directory in [&held, &left, &other] {
            fs::write(directory.join(LOCK), "").unwrap();
        }
        let lock = locks::acquire(&held.join(LOCK), || false).unwrap().unwrap();
        sweep(parent.path()).unwrap();
        assert!(held.exists() && !left.exists() && unborn.exists() && other.exists());
        drop(lock);
        sweep(parent.path()).unwrap();
        assert!(!held.exists() && unborn.exists());
    }
}
