//! Committing checkpoints beside training.
//!
//! ```text
//! training   step step [copy] step step step step step step [copy] step ...
//!                           \                             /
//! writer                     serialise, hash, put, commit, retain
//! ```
//!
//! A checkpoint costs the step a copy of the model into an [`ModelCopy`], whose memory is made and touched when the
//! writer starts and used for every checkpoint since. All else, which for a large model or a far store is far
//! longer, happens on a thread of its own, in the order that [`CheckpointStore::commit`] keeps; so what a crash
//! leaves is what it leaves there.
//!
//! There is one image, so one checkpoint is written at a time: whoever wants another one first asks whether the
//! writer [is idle](CheckpointWriter::is_idle), or waits for it. How a write ended is told once, by [`CheckpointWriter::poll`] or
//! [`CheckpointWriter::wait`]. Dropped, a writer ends what it is at: a store has one writer for as long as there is one.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

use super::manifest::Snapshot;
use super::store::Part;
use super::tensors::{Element, ModelCopy};
use super::{CheckpointError, CheckpointStore, MODEL_PART, OPTIMIZER_PART};
use crate::model::TensorRole;

/// A part of every checkpoint of a job that is no tensor: its name and its content.
pub type ExtraPart = (&'static str, Vec<u8>);

/// Commits checkpoints on a thread of its own.
pub struct CheckpointWriter<T> {
    /// `None` once no more are wanted. As there is one image, there is always buffers.
    work: Option<SyncSender<Work<T>>>,
    ended: Receiver<Ended<T>>,
    /// `None` while the thread has it.
    image: Option<ModelCopy<T>>,
    /// How the last write ended, until that is told.
    outcome: Option<Result<String, CheckpointError>>,
    thread: Option<JoinHandle<()>>,
}

struct Work<T> {
    image: ModelCopy<T>,
    snapshot: Snapshot,
    keep: u32,
}

/// The image comes back; there is no outcome where nothing was to be written yet.
struct Ended<T> {
    image: ModelCopy<T>,
    outcome: Option<Result<String, CheckpointError>>,
}

impl<T: Element> CheckpointWriter<T> {
    /// A writer to `store`, with `image` for its copies, that puts `carried` into every checkpoint.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn spawn(store: CheckpointStore, image: ModelCopy<T>, carried: Vec<ExtraPart>) -> io::Result<Self> {
        let (work, orders) = sync_channel::<Work<T>>(1);
        let (tell, ended) = sync_channel(1);
        let write = move || {
            let mut image = image;
            image.touch();
            if tell.send(Ended { image, outcome: None }).is_err() {
                return;
            }
            for Work { image, snapshot, keep } in orders {
                let outcome = Some(commit(&store, &image, snapshot, &carried, keep));
                if tell.send(Ended { image, outcome }).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(write)?;
        Ok(Self { work: Some(work), ended, image: None, outcome: None, thread: Some(thread) })
    }

    /// Whether a checkpoint can be begun without waiting.
    pub fn is_idle(&mut self) -> bool {
        match self.ended.try_recv() {
            Ok(ended) => self.take_back(ended),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
        }
        self.image.is_some()
    }

    /// Begins to commit what `copy` puts into the image and says of it; waits until that is possible.
    ///
    /// # Errors
    /// Those of `copy`; then nothing was begun. When the thread is gone.
    ///
    /// # Panics
    /// When the outcome of the write before was not asked for.
    pub fn start_commit<E: From<CheckpointError>>(
        &mut self,
        keep: u32,
        copy: impl FnOnce(&mut ModelCopy<T>) -> Result<Snapshot, E>,
    ) -> Result<(), E> {
        self.settle()?;
        assert!(self.outcome.is_none(), "how a write ended is asked for before the next one");
        let mut image = self.image.take().ok_or_else(gone)?;
        let snapshot = match copy(&mut image) {
            Ok(snapshot) => snapshot,
            Err(error) => {
                self.image = Some(image);
                return Err(error);
            }
        };
        let work = self.work.as_ref().ok_or_else(gone)?;
        Ok(work.send(Work { image, snapshot, keep }).map_err(|_| gone())?)
    }

    /// The path of a checkpoint that was committed since this was last asked.
    ///
    /// # Errors
    /// When it could not be committed.
    pub fn poll(&mut self) -> Result<Option<String>, CheckpointError> {
        self.is_idle();
        self.outcome.take().transpose()
    }

    /// As [`CheckpointWriter::poll`], after waiting for what is being written.
    ///
    /// # Errors
    /// As there, and when the thread is gone.
    pub fn wait(&mut self) -> Result<Option<String>, CheckpointError> {
        self.settle()?;
        self.outcome.take().transpose()
    }

    /// Waits until nothing is being written.
    fn settle(&mut self) -> Result<(), CheckpointError> {
        if self.image.is_none() {
            let ended = self.ended.recv().map_err(|_| gone())?;
            self.take_back(ended);
        }
        Ok(())
    }

    fn take_back(&mut self, Ended { image, outcome }: Ended<T>) {
        self.image = Some(image);
        self.outcome = outcome;
    }
}

impl<T> Drop for CheckpointWriter<T> {
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so, and nobody asks for its outcome any more.
            let _ = thread.join();
        }
    }
}

/// Commits what `image` holds; returns the checkpoint's path.
pub(crate) fn commit<T: Element>(
    store: &CheckpointStore,
    image: &ModelCopy<T>,
    snapshot: Snapshot,
    carried: &[ExtraPart],
    keep: u32,
) -> Result<String, CheckpointError> {
    let parameters = |out: &mut dyn io::Write| image.write(TensorRole::Parameter, out);
    let state = |out: &mut dyn io::Write| image.write(TensorRole::OptimizerState, out);
    let writers: Vec<_> =
        carried.iter().map(|(_, bytes)| move |out: &mut dyn io::Write| out.write_all(bytes)).collect();
    let mut parts =
        vec![Part { name: MODEL_PART, write: &parameters }, Part { name: OPTIMIZER_PART, write: &state }];
    parts.extend(carried.iter().zip(&writers).map(|((name, _), write)| Part { name, write }));
    store.commit(snapshot, &parts, keep)
}

fn gone() -> CheckpointError {
    let source = io::Error::other("the thread that writes checkpoints has ended");
    CheckpointError::Storage { path: "checkpoint".to_owned(), source }
}
