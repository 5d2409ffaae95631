//! The checkpoints of one job: committing, listing and loading them, and keeping the newest.
//!
//! # Terms
//!
//! Writers on several hosts may follow each other, and an earlier one may go on for a moment after it has lost its right to
//! write: it was suspended, or a request of it is late. So each of them has a *term*, a number that is larger than those
//! before. The parts of a checkpoint are in a directory of the term, so no late write changes those of another writer, and the manifest of
//! a new checkpoint replaces none:
//!
//! ```text
//! step-0000000500/term-2/model.safetensors
//!                 term-2/...
//!                 manifest.json
//! ```
//!
//! A local directory has one writer at a time, as long as it has its lock, and no terms.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fs, io};

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use sha2::{Digest, Sha256};

use super::files::{FILE_BYTES, only_file};
use super::manifest::{FORMAT, Manifest, ManifestError, PartEntry, Snapshot, hex, term_directory};
pub use super::part::Part;
use super::part::PartWriter;
use super::tensors::{Element, TensorFiles};
use super::wait::{BlockOn, wait};
use super::{CheckpointError, MANIFEST};
use crate::model::{NamedTensor, TensorRole};

/// Bytes of a part sent at a time. Object stores require at least 5 MiB.
const PIECE_BYTES: usize = 8 << 20;

/// What is wrong with a part that every checkpoint has.
const NOT_LISTED: &str = "is not in its manifest";

/// The checkpoints of one job.
#[derive(Clone)]
pub struct CheckpointStore {
    objects: Arc<dyn ObjectStore>,
    prefix: Path,
    /// The local directory of `prefix`, if `objects` are local files.
    directory: Option<PathBuf>,
    /// What precedes paths where they are shown, if `objects` are not local files.
    root: String,
    /// The term of this writer; 0 without terms.
    term: u64,
    block_on: BlockOn,
    piece_bytes: usize,
    /// The size that a file of tensors should have.
    pub(crate) file_bytes: usize,
}

/// Other processes that write parts of a checkpoint.
pub trait OtherWriters: Send {
    /// How many they are.
    fn count(&self) -> usize;

    /// Lets each of them write its parts of the checkpoint of `step`, which it finds in image `image`. There are no leftovers of
    /// earlier attempts.
    ///
    /// # Errors
    /// When the request cannot be sent. Some of them may have received it, so the caller waits for them.
    fn begin(&mut self, step: u64, image: u32) -> io::Result<()>;

    /// Waits until none of them writes any more; returns the entries of their parts.
    ///
    /// # Errors
    /// When one could not write a part. When one may have ended: others may then still write, and the process that commits must
    /// end, too.
    fn finish(&mut self) -> io::Result<Vec<PartEntry>>;
}

/// The other processes that write parts of a checkpoint, and the number of the image that they find the model in.
pub type Others<'a> = Option<(&'a mut dyn OtherWriters, u32)>;

/// A checkpoint that has been committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its path.
    pub path: String,
    /// The size of its parts.
    pub bytes: u64,
}

/// The parts of a checkpoint to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointScope {
    /// All parts, to resume training.
    Full,
    /// All parts except the optimizer state, to score rows.
    Scoring,
}

/// A verified checkpoint in memory.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Its manifest.
    pub manifest: Manifest,
    path: String,
    parts: BTreeMap<String, Bytes>,
}

impl Checkpoint {
    /// The path from which it was read.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The content of part `name`, if the checkpoint has this part and it was read.
    pub fn part(&self, name: &str) -> Option<&[u8]> {
        self.parts.get(name).map(|bytes| &bytes[..])
    }

    /// Opens the files with the tensors of `role`, which must contain exactly `tensors`.
    ///
    /// # Errors
    /// When the checkpoint is damaged, or its model is another one.
    pub(crate) fn tensor_files<'t, T: Element>(
        &self,
        role: TensorRole,
        tensors: impl Iterator<Item = &'t NamedTensor>,
    ) -> Result<TensorFiles<'_>, CheckpointError> {
        let entries = self.manifest.tensor_files(role).map_err(|name| self.damaged(&name, NOT_LISTED))?;
        let files = entries
            .into_iter()
            .map(|PartEntry { name, .. }| self.part(name).ok_or_else(|| self.damaged(name, "was not read")));
        let files: Vec<_> = files.collect::<Result<_, _>>()?;
        TensorFiles::open::<T>(files, tensors).map_err(|message| self.damaged_tensors(role, message))
    }

    pub(crate) fn damaged(&self, part: &str, message: impl Into<String>) -> CheckpointError {
        CheckpointError::Damaged { path: self.path.clone(), part: part.to_owned(), message: message.into() }
    }

    /// The error of a wrong tensor of `role`, which may be in several files.
    pub(crate) fn damaged_tensors(&self, role: TensorRole, message: String) -> CheckpointError {
        self.damaged(only_file(role), message)
    }
}

/// The objects found for one step.
#[derive(Default)]
struct Found {
    committed: bool,
    objects: Vec<Path>,
}

impl CheckpointStore {
    /// Checkpoints under `prefix` of `objects`. `block_on` runs the store's futures.
    pub fn new(objects: Arc<dyn ObjectStore>, prefix: Path, block_on: BlockOn) -> Self {
        let (piece_bytes, file_bytes) = (PIECE_BYTES, FILE_BYTES);
        let (directory, root, term) = (None, String::new(), 0);
        Self { objects, prefix, directory, root, term, block_on, piece_bytes, file_bytes }
    }

    /// These checkpoints, written in `term`. Messages name objects by their paths after `root`, such as `gs://bucket/`.
    #[must_use]
    pub fn in_term(self, term: u64, root: String) -> Self {
        Self { term, root, ..self }
    }

    /// Checkpoints in an existing local directory. Every commit is synced to disk.
    ///
    /// # Errors
    /// When `directory` cannot be opened.
    pub fn local(directory: &std::path::Path) -> Result<Self, CheckpointError> {
        let failed = |error| CheckpointError::Storage { path: directory.display().to_string(), error };
        let found = fs::canonicalize(directory).map_err(failed)?;
        let objects = LocalFileSystem::new_with_prefix(&found).map_err(|error| failed(error.into()))?;
        Ok(Self {
            directory: Some(found),
            ..Self::new(
                Arc::new(objects.with_fsync(true)),
                Path::default(),
                Arc::new(|work| futures::executor::block_on(work)),
            )
        })
    }

    /// The steps of the committed checkpoints, ascending.
    ///
    /// # Errors
    /// When storage fails.
    pub fn steps(&self) -> Result<Vec<u64>, CheckpointError> {
        let found = self.scan()?;
        Ok(found.iter().filter(|(_, found)| found.committed).map(|(&step, _)| step).collect())
    }

    /// The steps of the best checkpoints that exist, best first, as recorded in the newest checkpoint.
    ///
    /// # Errors
    /// When the newest checkpoint cannot be read, or storage fails.
    pub fn best(&self) -> Result<Vec<u64>, CheckpointError> {
        let steps = self.steps()?;
        let Some(&newest) = steps.last() else { return Ok(Vec::new()) };
        let manifest = self.manifest(newest)?;
        let best = manifest.snapshot.standing.best().iter().map(|best| best.step);
        Ok(best.filter(|step| steps.contains(step)).collect())
    }

    /// The path of the checkpoint of `step`, which need not exist.
    pub fn path(&self, step: u64) -> String {
        match &self.directory {
            Some(directory) => directory.join(directory_name(step)).display().to_string(),
            None => self.shown(&self.step_prefix(step)),
        }
    }

    /// Commits a checkpoint of `parts`, then removes all but the `keep` newest ones (at least this one) and
    /// the best ones that `snapshot` lists. The `others`, if there are any, write the parts of their ranks.
    ///
    /// A step that is already committed is committed again. If its parts are unchanged and intact, only its
    /// manifest is replaced, in one operation. Checkpoints of later steps are removed: training resumed from
    /// an earlier step and will repeat them.
    ///
    /// # Errors
    /// When the checkpoint cannot be committed. Its leftovers are removed now, or else by the next commit. A failure to
    /// remove old checkpoints is logged and is not an error.
    pub fn commit(
        &self,
        others: Others<'_>,
        snapshot: Snapshot,
        parts: &[Part<'_>],
        keep: u32,
    ) -> Result<Committed, CheckpointError> {
        check_names(parts)?;
        self.sweep()?;
        let committed = self.commit_swept(others, snapshot, parts, keep);
        if committed.is_err()
            && let Err(error) = self.sweep()
        {
            tracing::debug!(%error, "the leftovers of a checkpoint are not removed yet");
        }
        committed
    }

    fn commit_swept(
        &self,
        others: Others<'_>,
        snapshot: Snapshot,
        parts: &[Part<'_>],
        keep: u32,
    ) -> Result<Committed, CheckpointError> {
        let step = snapshot.step;
        let best: Vec<u64> = snapshot.standing.best().iter().map(|best| best.step).collect();
        let (entries, term, mode) = match self.reusable(step, parts)? {
            Some(Manifest { parts, term, .. }) => (parts, term, PutMode::Overwrite),
            None => {
                self.remove(step)?;
                let entries = match others {
                    None => self.write_parts(step, parts.iter())?,
                    Some(others) => self.write_with(others, step, parts)?,
                };
                // A local file is replaced in one operation, and no other writer has created it.
                let mode = if self.term > 0 { PutMode::Create } else { PutMode::Overwrite };
                (entries, self.term, mode)
            }
        };
        let manifest = Manifest::new(snapshot, entries, term);
        self.put_manifest(step, manifest.to_json(), mode)?;
        if let Err(error) = self.retain(step, keep, &best) {
            tracing::warn!(%error, "old checkpoints are not removed yet");
        }
        Ok(Committed { path: self.path(step), bytes: manifest.bytes() })
    }

    fn put_manifest(&self, step: u64, json: Vec<u8>, mode: PutMode) -> Result<(), CheckpointError> {
        let path = self.part_path(step, MANIFEST);
        let options = PutOptions { mode, ..PutOptions::default() };
        match wait(&self.block_on, self.objects.put_opts(&path, json.clone().into(), options)) {
            Ok(_) => Ok(()),
            // It may be this one: a request is repeated if its response is lost.
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. })
                if self.get(&path)?.is_some_and(|found| found == json) =>
            {
                Ok(())
            }
            Err(error) => Err(self.failed(&path, error.into())),
        }
    }

    /// Removes all checkpoints before that of `step` but the `keep - 1` newest ones and the best ones: what the commit of
    /// `step` does, if its writer was not killed before. Only the job's single writer may call this.
    ///
    /// # Errors
    /// When the checkpoint cannot be read, or storage fails.
    pub fn remove_expired(&self, step: u64, keep: u32) -> Result<(), CheckpointError> {
        let snapshot = self.manifest(step)?.snapshot;
        let best: Vec<u64> = snapshot.standing.best().iter().map(|best| best.step).collect();
        self.retain(step, keep, &best)
    }

    /// Removes the leftovers of uncommitted attempts. Only the job's single writer may call this.
    ///
    /// # Errors
    /// When storage fails.
    pub fn sweep(&self) -> Result<(), CheckpointError> {
        let found = self.scan()?;
        for (&step, found) in found.iter().filter(|(_, found)| !found.committed) {
            self.remove_objects(step, found)?;
        }
        let Some(directory) = &self.directory else { return Ok(()) };
        // A listing shows neither empty directories nor the temporary files of interrupted writes.
        let swept = sweep_directory(directory, |step| found.get(&step).is_some_and(|found| found.committed));
        swept.map_err(|error| CheckpointError::Storage { path: directory.display().to_string(), error })
    }

    /// The manifest of the checkpoint of `step`.
    ///
    /// # Errors
    /// When there is none, it is damaged or has another format, or storage fails.
    pub fn manifest(&self, step: u64) -> Result<Manifest, CheckpointError> {
        let path = self.path(step);
        let Some(json) = self.get(&self.part_path(step, MANIFEST))? else {
            return Err(CheckpointError::Absent { path });
        };
        let manifest = Manifest::from_json(&json).map_err(|error| match error {
            ManifestError::Format(found) => CheckpointError::Format { path, found, known: FORMAT },
            ManifestError::Damaged(message) => self.damaged(step, MANIFEST, message),
        })?;
        if manifest.snapshot.step != step {
            return Err(self.damaged(step, MANIFEST, format!("belongs to step {}", manifest.snapshot.step)));
        }
        Ok(manifest)
    }

    /// Reads and verifies the checkpoint of `step`.
    ///
    /// # Errors
    /// When there is none, a part is damaged (the error names the first one), or storage fails.
    pub fn load(&self, step: u64, extent: CheckpointScope) -> Result<Checkpoint, CheckpointError> {
        let manifest = self.manifest(step)?;
        let mut parts = BTreeMap::new();
        for entry in &manifest.parts {
            if extent == CheckpointScope::Full || !entry.has_tensors(TensorRole::OptimizerState) {
                parts.insert(entry.name.clone(), self.read_part(&manifest, entry)?);
            }
        }
        Ok(Checkpoint { manifest, path: self.path(step), parts })
    }

    /// Reads the file `name` of the run beside its checkpoints, if there is one.
    ///
    /// # Errors
    /// When storage fails.
    pub fn record(&self, name: &str) -> Result<Option<Bytes>, CheckpointError> {
        self.get(&self.prefix.clone().join(name))
    }

    /// Reads and verifies one part of the checkpoint with this `manifest`.
    ///
    /// # Errors
    /// When the part is absent or damaged, or storage fails.
    pub fn part(&self, manifest: &Manifest, name: &str) -> Result<Bytes, CheckpointError> {
        let step = manifest.snapshot.step;
        let entry = manifest.part(name).ok_or_else(|| self.damaged(step, name, NOT_LISTED))?;
        self.read_part(manifest, entry)
    }

    /// Reads and verifies the files with the tensors of `role` of the checkpoint with this `manifest`.
    ///
    /// # Errors
    /// As of [`CheckpointStore::part`].
    pub(crate) fn tensor_files(
        &self,
        manifest: &Manifest,
        role: TensorRole,
    ) -> Result<Vec<Bytes>, CheckpointError> {
        let step = manifest.snapshot.step;
        let files = manifest.tensor_files(role).map_err(|name| self.damaged(step, &name, NOT_LISTED))?;
        files.into_iter().map(|entry| self.read_part(manifest, entry)).collect()
    }

    /// The manifest of `step`, if exactly `parts` exist and are intact.
    fn reusable(&self, step: u64, parts: &[Part<'_>]) -> Result<Option<Manifest>, CheckpointError> {
        let manifest = match self.manifest(step) {
            Ok(manifest) => manifest,
            Err(error @ CheckpointError::Storage { .. }) => return Err(error),
            Err(_) => return Ok(None),
        };
        for (number, part) in parts.iter().enumerate() {
            let path = self.part_path(step, &part.name);
            let entry = part.digest().map_err(|source| self.failed(&path, source))?;
            if manifest.parts.get(number) != Some(&entry) {
                return Ok(None);
            }
            match self.read_part(&manifest, &entry) {
                Ok(_) => {}
                Err(error @ CheckpointError::Storage { .. }) => return Err(error),
                Err(_) => return Ok(None),
            }
        }
        Ok((manifest.parts.len() == parts.len()).then_some(manifest))
    }

    /// Writes the parts of this process while `others` write theirs; returns the entries of all.
    fn write_with(
        &self,
        (others, image): (&mut dyn OtherWriters, u32),
        step: u64,
        parts: &[Part<'_>],
    ) -> Result<Vec<PartEntry>, CheckpointError> {
        let failed = |error| self.failed(&self.step_prefix(step), error);
        let begun = others.begin(step, image);
        let own = self.write_parts(step, parts.iter().filter(|part| part.rank == 0));
        // Also after an error: what they write is removed when they are done.
        let theirs = others.finish();
        let written = [own?, begun.and(theirs).map_err(failed)?].concat();
        let entries = parts.iter().map(|part| {
            let entry = written.iter().find(|entry| entry.name == part.name);
            entry.cloned().ok_or_else(|| failed(io::Error::other(format!("{} was not written", part.name))))
        });
        entries.collect()
    }

    /// Writes parts of the checkpoint of `step`, which another process may commit then.
    pub(super) fn write_parts<'a>(
        &self,
        step: u64,
        parts: impl Iterator<Item = &'a Part<'a>>,
    ) -> Result<Vec<PartEntry>, CheckpointError> {
        parts.map(|part| self.write_part(step, part)).collect()
    }

    fn write_part(&self, step: u64, part: &Part<'_>) -> Result<PartEntry, CheckpointError> {
        let path = self.path_in_term(step, self.term, &part.name);
        let writer = PartWriter::new(&self.objects, &self.block_on, path.clone(), self.piece_bytes);
        writer.write_part(part).map_err(|source| self.failed(&path, source))
    }

    fn read_part(&self, manifest: &Manifest, entry: &PartEntry) -> Result<Bytes, CheckpointError> {
        let step = manifest.snapshot.step;
        let damaged = |message| self.damaged(step, &entry.name, message);
        let Some(bytes) = self.get(&self.path_in_term(step, manifest.term, &entry.name))? else {
            return Err(damaged("is missing".to_owned()));
        };
        if bytes.len() as u64 != entry.bytes {
            return Err(damaged(format!("has {} bytes; {} were committed", bytes.len(), entry.bytes)));
        }
        let sha256 = hex::encode(&Sha256::digest(&bytes));
        if sha256 != entry.sha256 {
            return Err(damaged(format!("has SHA-256 {sha256}; {} was committed", entry.sha256)));
        }
        Ok(bytes)
    }

    /// Removes all checkpoints except `step`, the `keep - 1` before it, and those of the steps `best`.
    fn retain(&self, step: u64, keep: u32, best: &[u64]) -> Result<(), CheckpointError> {
        let steps = self.steps()?;
        let older: Vec<u64> = steps.iter().copied().filter(|&other| other < step).collect();
        let kept_from = older.len().saturating_sub(keep.saturating_sub(1) as usize);
        let refused = steps.iter().copied().filter(|&other| other > step);
        let rotated = older[..kept_from].iter().copied().filter(|other| !best.contains(other));
        rotated.chain(refused).try_for_each(|other| self.remove(other))
    }

    /// Removes the checkpoint of `step`, complete or not.
    fn remove(&self, step: u64) -> Result<(), CheckpointError> {
        match self.scan()?.get(&step) {
            Some(found) => self.remove_objects(step, found),
            None => Ok(()),
        }
    }

    fn remove_objects(&self, step: u64, found: &Found) -> Result<(), CheckpointError> {
        let manifest = self.part_path(step, MANIFEST);
        let rest = found.objects.iter().filter(|&path| *path != manifest);
        for path in found.committed.then_some(&manifest).into_iter().chain(rest) {
            match wait(&self.block_on, self.objects.delete(path)) {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(self.failed(path, error.into())),
            }
        }
        match &self.directory {
            Some(directory) => remove_directory(&directory.join(directory_name(step)))
                .map_err(|error| CheckpointError::Storage { path: self.path(step), error }),
            None => Ok(()),
        }
    }

    /// All objects in the directories of steps.
    fn scan(&self) -> Result<BTreeMap<u64, Found>, CheckpointError> {
        let listing = self.objects.list(Some(&self.prefix)).map_ok(|object| object.location);
        let paths: Vec<Path> = self.wait(&self.prefix, listing.try_collect())?;
        let mut steps: BTreeMap<u64, Found> = BTreeMap::new();
        for path in paths {
            let Some(mut names) = path.prefix_match(&self.prefix) else { continue };
            let step = names.next().and_then(|name| parse_directory_name(name.as_ref()));
            let (Some(step), Some(name)) = (step, names.next()) else { continue };
            let is_manifest = name.as_ref() == MANIFEST && names.next().is_none();
            drop(names);
            let found = steps.entry(step).or_default();
            found.committed |= is_manifest;
            found.objects.push(path);
        }
        Ok(steps)
    }

    fn get(&self, path: &Path) -> Result<Option<Bytes>, CheckpointError> {
        let read = async { self.objects.get(path).await?.bytes().await };
        match wait(&self.block_on, read) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed(path, error.into())),
        }
    }

    fn wait<T: Send>(
        &self,
        path: &Path,
        work: impl Future<Output = object_store::Result<T>> + Send,
    ) -> Result<T, CheckpointError> {
        wait(&self.block_on, work).map_err(|error| self.failed(path, error.into()))
    }

    pub(crate) fn damaged(&self, step: u64, part: &str, message: impl Into<String>) -> CheckpointError {
        CheckpointError::Damaged { path: self.path(step), part: part.to_owned(), message: message.into() }
    }

    fn failed(&self, path: &Path, error: io::Error) -> CheckpointError {
        let path = match &self.directory {
            Some(directory) => directory.join(path.as_ref()).display().to_string(),
            None => self.shown(path),
        };
        CheckpointError::Storage { path, error }
    }

    /// The path of an object that is no local file, as messages show it.
    fn shown(&self, path: &Path) -> String {
        format!("{}{path}", self.root)
    }

    fn step_prefix(&self, step: u64) -> Path {
        self.prefix.clone().join(directory_name(step))
    }

    fn part_path(&self, step: u64, name: &str) -> Path {
        self.step_prefix(step).join(name)
    }

    /// The path of a part that was written in `term`.
    fn path_in_term(&self, step: u64, term: u64, name: &str) -> Path {
        match term_directory(term) {
            Some(directory) => self.step_prefix(step).join(directory).join(name),
            None => self.part_path(step, name),
        }
    }
}

/// The name of a step's directory. Names sort like steps.
pub fn directory_name(step: u64) -> String {
    format!("step-{step:010}")
}

/// The step of a checkpoint's directory, parsed from its name.
pub fn parse_directory_name(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (directory_name(step) == name).then_some(step)
}

fn check_names(parts: &[Part<'_>]) -> Result<(), CheckpointError> {
    for (number, Part { name, .. }) in parts.iter().enumerate() {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let message = if name.is_empty() || name.starts_with('.') || !name.bytes().all(plain) {
            "expected letters, digits, `.`, `_` and `-`, not starting with `.`"
        } else if name == MANIFEST {
            "it is the name of the manifest"
        } else if parts[..number].iter().any(|other| other.name == *name) {
            "it is listed twice"
        } else {
            continue;
        };
        return Err(CheckpointError::PartName { name: name.clone(), message });
    }
    Ok(())
}

/// Removes the directories of uncommitted steps, and temporary files (`part#1`) from committed ones.
fn sweep_directory(directory: &std::path::Path, committed: impl Fn(u64) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let Some(step) = entry.file_name().to_str().and_then(parse_directory_name) else { continue };
        if !committed(step) {
            remove_directory(&entry.path())?;
            continue;
        }
        for file in fs::read_dir(entry.path())? {
            let file = file?;
            if file.file_name().to_string_lossy().contains('#') {
                fs::remove_file(file.path())?;
            }
        }
    }
    Ok(())
}

fn remove_directory(path: &std::path::Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
pub(crate) mod tests;
