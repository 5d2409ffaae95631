//! The checkpoints of a training job: when they are taken, and how they are reported.
//!
//! A checkpoint is due every `every_steps` steps and when the daemon requests one. Training stops while the
//! model is copied; [`CheckpointWriter`] writes the copy in the background, one checkpoint at a time. A
//! checkpoint that becomes due during a write waits until the writer is idle. It then captures the current
//! step and covers all requests until then. Training waits for the last checkpoint, before a stop and at the
//! end of the data.

use std::path::PathBuf;

use anyhow::Result;
use millstream_backend::Backend;
use millstream_trainer::checkpoint::{CheckpointStore, CheckpointWriter, ExtraPart};
use millstream_trainer::session::Session;

use crate::link::Link;
use crate::protocol::{FromWorker, Restored};

/// Takes a job's checkpoints.
pub(crate) struct Checkpointer {
    /// Steps between checkpoints.
    every_steps: u64,
    /// Number of newest checkpoints to keep.
    keep: u32,
    writer: CheckpointWriter<f32>,
    /// The newest committed checkpoint.
    committed: Option<Restored>,
    writing: Option<Writing>,
    /// Whether one is due and not yet taken.
    due: bool,
    /// Whether the daemon has requested one that is not yet taken.
    requested: bool,
}

/// A checkpoint being written.
struct Writing {
    step: u64,
    position: Vec<u8>,
    /// Whether the daemon requested it.
    requested: bool,
}

impl Checkpointer {
    /// Takes checkpoints of `session` into `store`, of which `committed` is the newest: one after `every_steps` steps
    /// each, and keeps `keep`.
    pub(crate) fn new<B: Backend<Scalar = f32>>(
        (every_steps, keep): (u64, u32),
        session: &mut Session<B>,
        store: CheckpointStore,
        carried: Vec<ExtraPart>,
        committed: Option<Restored>,
    ) -> Result<Self> {
        let writer = CheckpointWriter::spawn(store, session.allocate_copy(), carried)?;
        Ok(Self { every_steps, keep, writer, committed, writing: None, due: false, requested: false })
    }

    /// The newest committed checkpoint.
    pub(crate) fn committed(&self) -> Option<&Restored> {
        self.committed.as_ref()
    }

    /// Called after each step.
    pub(crate) fn on_step(&mut self, step: u64) {
        self.due |= step.is_multiple_of(self.every_steps);
    }

    /// Requests a checkpoint on behalf of the daemon.
    pub(crate) fn request(&mut self) {
        self.requested = true;
    }

    /// Whether a checkpoint is due or requested, and the writer is idle.
    pub(crate) fn is_ready(&mut self) -> bool {
        (self.due || self.requested) && self.writer.is_idle()
    }

    /// Reports a checkpoint that has been committed since the last call, if any.
    pub(crate) fn report_committed(&mut self, link: &mut Link) -> Result<()> {
        let path = self.writer.poll()?;
        self.commit(path, link)
    }

    /// Takes a checkpoint of `session`'s current state unless it is already committed. Waits for a running
    /// write first.
    pub(crate) fn take<B: Backend<Scalar = f32>>(
        &mut self,
        session: &mut Session<B>,
        link: &mut Link,
    ) -> Result<()> {
        self.wait(link)?;
        self.due = false;
        let requested = std::mem::take(&mut self.requested);
        let (step, position) = (session.step(), session.position().to_vec());
        if let Some(last) = self.committed.as_ref()
            && last.step == step
            && last.position == position
        {
            if requested {
                link.send(&FromWorker::Checkpointed { step, path: last.path.clone(), requested })?;
            }
            return Ok(());
        }
        self.writer.start_commit(self.keep, |image| session.capture(image))?;
        self.writing = Some(Writing { step, position, requested });
        Ok(())
    }

    /// Waits for a running write and reports it.
    pub(crate) fn wait(&mut self, link: &mut Link) -> Result<()> {
        let path = self.writer.wait()?;
        self.commit(path, link)
    }

    fn commit(&mut self, path: Option<String>, link: &mut Link) -> Result<()> {
        let Some(path) = path else { return Ok(()) };
        let Some(Writing { step, position, requested }) = self.writing.take() else { return Ok(()) };
        let path = PathBuf::from(path);
        self.committed = Some(Restored { path: path.clone(), step, position });
        link.send(&FromWorker::Checkpointed { step, path, requested })?;
        Ok(())
    }
}
