//! Writes checkpoints in the background, while training continues.
//!
//! ```text
//! training   step step [copy] step step step step step step [copy] step ...
//!                           \                             /
//! writer                     serialise, hash, put, commit, retain
//! ```
//!
//! A checkpoint stops training only while the model is copied into a [`ModelCopy`], whose memory is allocated
//! and touched when the writer starts and reused for every checkpoint. Everything else takes far longer for a
//! large model or a remote store. It happens on a separate thread, in the order of
//! [`CheckpointStore::commit`], so a crash leaves the same states as there.
//!
//! One checkpoint is written at a time: before the next one, the caller checks whether the writer
//! [is idle](CheckpointWriter::is_idle), or waits for it. [`CheckpointWriter::poll`] or
//! [`CheckpointWriter::wait`] returns the outcome of each write once. Dropping a writer waits for the end of the
//! current write, because a store may have only one writer at a time.
//!
//! If several processes train the model, the [others](OtherWriters) can write some of the files from the same copy, which is then in
//! an [image](super::image) that they map ([`PartsOfRank`]).
//!
//! With two copies in images, the model can be copied between checkpoints, too
//! ([`CheckpointWriter::capture`]). Every copy replaces the older image, or the only one that is not being written.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

use super::files::TensorFileId;
use super::manifest::Snapshot;
use super::store::{Committed, OtherWriters, Part};
use super::tensors::{Element, ModelCopy};
use super::{CheckpointError, CheckpointStore, PartEntry};

/// A part of every checkpoint of a job that is not a tensor: its name and its content.
pub type ExtraPart = (&'static str, Vec<u8>);

/// Commits checkpoints on a separate thread.
pub struct CheckpointWriter<T> {
    /// `None` during shutdown. As one checkpoint is written at a time, a send never blocks.
    work: Option<SyncSender<Work<T>>>,
    ended: Receiver<Ended<T>>,
    /// Those that the thread does not use.
    copies: Vec<ModelCopy<T>>,
    /// Whether the thread uses some.
    is_busy: bool,
    /// The outcome of the last write, until the caller takes it.
    outcome: Option<Result<Committed, CheckpointError>>,
    thread: Option<JoinHandle<()>>,
}

struct Work<T> {
    model_copy: ModelCopy<T>,
    snapshot: Snapshot,
    keep: u32,
}

/// Returns copies to the caller; the first message, before any write, has no outcome.
struct Ended<T> {
    copies: Vec<ModelCopy<T>>,
    outcome: Option<Result<Committed, CheckpointError>>,
}

impl<T: Element> CheckpointWriter<T> {
    /// Starts a writer to `store` that copies the model to one of `copies` and adds `carried` to every checkpoint. The `others`
    /// write parts, too; the copies must then be in images.
    ///
    /// # Errors
    /// When the system cannot create a thread.
    pub fn spawn(
        store: CheckpointStore,
        mut copies: Vec<ModelCopy<T>>,
        carried: Vec<ExtraPart>,
        mut others: Option<Box<dyn OtherWriters>>,
    ) -> io::Result<Self> {
        let (work, queue) = sync_channel::<Work<T>>(1);
        let (report, ended) = sync_channel(1);
        let write = move || {
            copies.iter_mut().for_each(ModelCopy::touch);
            if report.send(Ended { copies, outcome: None }).is_err() {
                return;
            }
            for Work { model_copy, snapshot, keep } in queue {
                let others = others.as_deref_mut().map(|others| others as &mut dyn OtherWriters);
                let outcome = Some(commit(&store, (&model_copy, others), snapshot, &carried, keep));
                if report.send(Ended { copies: vec![model_copy], outcome }).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(write)?;
        let work = Some(work);
        Ok(Self { work, ended, copies: Vec::new(), is_busy: true, outcome: None, thread: Some(thread) })
    }

    /// Whether a commit can start without waiting.
    pub fn is_idle(&mut self) -> bool {
        match self.ended.try_recv() {
            Ok(ended) => self.take_back(ended),
            Err(TryRecvError::Disconnected) if self.is_busy => {
                self.take_back(Ended { copies: Vec::new(), outcome: Some(Err(gone())) });
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
        }
        !self.is_busy
    }

    /// Whether there is a copy that can be replaced now.
    pub fn has_free_copy(&self) -> bool {
        !self.copies.is_empty()
    }

    /// Calls `copy` with the copy of the model to replace.
    ///
    /// # Errors
    /// Those of `copy`.
    ///
    /// # Panics
    /// When all copies are in use: see [`CheckpointWriter::has_free_copy`].
    pub fn capture<E>(
        &mut self,
        copy: impl FnOnce(&mut ModelCopy<T>) -> Result<Snapshot, E>,
    ) -> Result<(), E> {
        let oldest = self.oldest().expect("a copy that is not in use");
        copy(&mut self.copies[oldest]).map(drop)
    }

    /// The place of the copy to replace. An incomplete image is older than any other.
    fn oldest(&self) -> Option<usize> {
        (0..self.copies.len()).min_by_key(|&place| self.copies[place].image_step())
    }

    /// Starts to commit the copy and the snapshot that `copy` makes. Waits until the writer is idle.
    ///
    /// # Errors
    /// Those of `copy`, after which nothing was started; an error if the thread has ended.
    ///
    /// # Panics
    /// When the outcome of the previous write was not taken.
    pub fn start_commit<E: From<CheckpointError>>(
        &mut self,
        keep: u32,
        copy: impl FnOnce(&mut ModelCopy<T>) -> Result<Snapshot, E>,
    ) -> Result<(), E> {
        self.settle()?;
        assert!(self.outcome.is_none(), "take the outcome of a write before the next one");
        let oldest = self.oldest().ok_or_else(gone)?;
        let snapshot = copy(&mut self.copies[oldest])?;
        let model_copy = self.copies.swap_remove(oldest);
        let work = self.work.as_ref().ok_or_else(gone)?;
        work.send(Work { model_copy, snapshot, keep }).map_err(|_| gone())?;
        self.is_busy = true;
        Ok(())
    }

    /// The checkpoint committed since the previous call.
    ///
    /// # Errors
    /// When it could not be committed.
    pub fn poll(&mut self) -> Result<Option<Committed>, CheckpointError> {
        self.is_idle();
        self.outcome.take().transpose()
    }

    /// Like [`CheckpointWriter::poll`], but first waits for a running write.
    ///
    /// # Errors
    /// As for [`CheckpointWriter::poll`], and when the thread has ended.
    pub fn wait(&mut self) -> Result<Option<Committed>, CheckpointError> {
        self.settle()?;
        self.outcome.take().transpose()
    }

    /// Waits until no write is running.
    fn settle(&mut self) -> Result<(), CheckpointError> {
        if self.is_busy {
            let ended = self.ended.recv().map_err(|_| gone())?;
            self.take_back(ended);
        }
        Ok(())
    }

    fn take_back(&mut self, Ended { copies, outcome }: Ended<T>) {
        self.copies.extend(copies);
        self.is_busy = false;
        self.outcome = outcome;
    }
}

impl<T> Drop for CheckpointWriter<T> {
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            // A panic has already been printed, and no caller waits for the outcome.
            let _ = thread.join();
        }
    }
}

/// What another process than the one that commits writes of a checkpoint.
pub struct PartsOfRank<T> {
    store: CheckpointStore,
    /// By number of the image.
    copies: Vec<ModelCopy<T>>,
    rank: usize,
    ranks: usize,
}

impl<T: Element> PartsOfRank<T> {
    /// What rank `rank` of `ranks` writes to `store`, from `copies` in the images that rank 0 fills.
    pub fn new(store: CheckpointStore, copies: Vec<ModelCopy<T>>, (rank, ranks): (usize, usize)) -> Self {
        Self { store, copies, rank, ranks }
    }

    /// Writes this rank's parts of the checkpoint of `step` from image `number`, which no process changes meanwhile; returns their
    /// entries.
    ///
    /// # Errors
    /// When there is no such image, or storage fails.
    pub fn write(&self, step: u64, number: u32) -> Result<Vec<PartEntry>, CheckpointError> {
        let absent = || {
            let error = io::Error::new(io::ErrorKind::NotFound, format!("there is no image {number}"));
            CheckpointError::Storage { path: self.store.path(step), error }
        };
        let model_copy = self.copies.get(number as usize).ok_or_else(absent)?;
        let parts = tensor_parts(&self.store, model_copy, self.ranks);
        self.store.write_parts(step, parts.iter().filter(|part| part.rank == self.rank))
    }
}

/// The files of the tensors in `model_copy`, dealt to `ranks` processes in turn.
fn tensor_parts<'a, T: Element>(
    store: &CheckpointStore,
    model_copy: &'a ModelCopy<T>,
    ranks: usize,
) -> Vec<Part<'a>> {
    let files = model_copy.files(store.file_bytes).into_iter().enumerate();
    let part = |(number, file): (usize, TensorFileId)| {
        Part::new(file.name(), move |out| model_copy.write(file, out)).of_rank(number % ranks)
    };
    files.map(part).collect()
}

/// Commits the contents of `model_copy`, of which the `others` write some.
pub(crate) fn commit<T: Element>(
    store: &CheckpointStore,
    (model_copy, others): (&ModelCopy<T>, Option<&mut dyn OtherWriters>),
    snapshot: Snapshot,
    carried: &[ExtraPart],
    keep: u32,
) -> Result<Committed, CheckpointError> {
    let ranks = 1 + others.as_ref().map_or(0, |others| others.count());
    let others = others.map(|others| (others, model_copy.image_number().expect("a copy in an image")));
    let mut parts = tensor_parts(store, model_copy, ranks);
    parts.extend(carried.iter().map(|(name, bytes)| Part::new(*name, move |out| out.write_all(bytes))));
    store.commit(others, snapshot, &parts, keep)
}

fn gone() -> CheckpointError {
    let error = io::Error::other("the thread that writes checkpoints has ended");
    CheckpointError::Storage { path: "checkpoint".to_owned(), error }
}
