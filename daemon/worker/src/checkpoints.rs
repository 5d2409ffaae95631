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

/// When checkpoints are taken, and how many are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckpointCadence {
    /// Steps between checkpoints.
    pub(crate) every_steps: u64,
    /// Number of newest checkpoints to keep.
    pub(crate) keep: u32,
}

/// Takes a job's checkpoints.
pub(crate) struct Checkpointer {
    cadence: CheckpointCadence,
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
    /// Takes checkpoints of `session` into `store`, of which `committed` is the newest.
    pub(crate) fn new<B: Backend<Scalar = f32>>(
        cadence: CheckpointCadence,
        session: &mut Session<B>,
        store: CheckpointStore,
        carried: Vec<ExtraPart>,
        committed: Option<Restored>,
    ) -> Result<Self> {
        let writer = CheckpointWriter::spawn(store, session.allocate_copy(), carried)?;
        Ok(Self { cadence, writer, committed, writing: None, due: false, requested: false })
    }

    /// The newest committed checkpoint.
    pub(crate) fn committed(&self) -> Option<&Restored> {
        self.committed.as_ref()
    }

    /// Called after each step.
    pub(crate) fn on_step(&mut self, step: u64) {
        self.due |= step.is_multiple_of(self.cadence.every_steps);
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
        match self.writer.poll()? {
            Some(path) => self.commit(path, link),
            None => Ok(()),
        }
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
        self.writer.start_commit(self.cadence.keep, |image| session.capture(image))?;
        self.writing = Some(Writing { step, position, requested });
        Ok(())
    }

    /// Takes the last checkpoint and waits until it is committed.
    pub(crate) fn take_last<B: Backend<Scalar = f32>>(
        &mut self,
        session: &mut Session<B>,
        link: &mut Link,
    ) -> Result<()> {
        self.take(session, link)?;
        self.wait(link)
    }

    /// Waits for a running write and reports it.
    fn wait(&mut self, link: &mut Link) -> Result<()> {
        match self.writer.wait()? {
            Some(path) => self.commit(path, link),
            None => Ok(()),
        }
    }

    fn commit(&mut self, path: String, link: &mut Link) -> Result<()> {
        let Some(Writing { step, position, requested }) = self.writing.take() else { return Ok(()) };
        let path = PathBuf::from(path);
        self.committed = Some(Restored { path: path.clone(), step, position });
        link.send(&FromWorker::Checkpointed { step, path, requested })?;
        Ok(())
    }
}
