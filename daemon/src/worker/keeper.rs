//! The checkpoints of a job being trained: when one is taken, and what the daemon is told of it.
//!
//! One falls due after every so many steps and when the daemon asks. Taking it stops training for a copy of
//! the model; it is then written beside training ([`CheckpointWriter`]), one at a time. One that falls due while another
//! is being written waits for its turn: it is taken between the first two steps that find the writer idle, of
//! where training stands then, and stands for all that fell due until then. The last one, before a stop and at
//! the end of the data, is waited for.

use std::path::PathBuf;

use anyhow::Result;
use millstream_backend::Backend;
use millstream_trainer::checkpoint::{CheckpointStore, CheckpointWriter, ExtraPart};
use millstream_trainer::session::Session;

use super::process::Link;
use super::protocol::{FromWorker, Restored};

/// When checkpoints are taken, and how many are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cadence {
    /// Steps from one to the next.
    pub(super) every_steps: u64,
    /// The newest that are kept.
    pub(super) keep: u32,
}

/// Takes a job's checkpoints.
pub(super) struct Keeper {
    cadence: Cadence,
    writer: CheckpointWriter<f32>,
    /// The newest one.
    committed: Option<Restored>,
    writing: Option<Writing>,
    /// Whether one fell due that is not taken yet.
    due: bool,
    /// Whether the daemon wants one that is not taken yet.
    wanted: bool,
}

/// A checkpoint being written.
struct Writing {
    step: u64,
    position: Vec<u8>,
    /// Whether the daemon asked for it.
    requested: bool,
}

impl Keeper {
    /// A keeper of the checkpoints of `session` in `store`, of which `committed` is the newest.
    pub(super) fn new<B: Backend<Scalar = f32>>(
        cadence: Cadence,
        session: &Session<B>,
        store: CheckpointStore,
        carried: Vec<ExtraPart>,
        committed: Option<Restored>,
    ) -> Result<Self> {
        let writer = CheckpointWriter::spawn(store, session.allocate_copy(), carried)?;
        Ok(Self { cadence, writer, committed, writing: None, due: false, wanted: false })
    }

    /// The newest committed checkpoint.
    pub(super) fn committed(&self) -> Option<&Restored> {
        self.committed.as_ref()
    }

    /// Takes note that `step` was taken.
    pub(super) fn stepped(&mut self, step: u64) {
        self.due |= step.is_multiple_of(self.cadence.every_steps);
    }

    /// Takes note that the daemon wants a checkpoint.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// Whether a checkpoint is to be taken now.
    pub(super) fn is_ready(&mut self) -> bool {
        (self.due || self.wanted) && self.writer.is_idle()
    }

    /// Tells the daemon of a checkpoint that was committed meanwhile, if one was.
    pub(super) fn collect(&mut self, link: &mut Link) -> Result<()> {
        match self.writer.poll()? {
            Some(path) => self.told(path, link),
            None => Ok(()),
        }
    }

    /// Takes a checkpoint of where `session` stands, unless it is committed; what was being written is waited
    /// for.
    pub(super) fn take<B: Backend<Scalar = f32>>(
        &mut self,
        session: &Session<B>,
        link: &mut Link,
    ) -> Result<()> {
        self.settle(link)?;
        self.due = false;
        let requested = std::mem::take(&mut self.wanted);
        let (step, position) = (session.step(), session.position());
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
        self.writing = Some(Writing { step, position: position.to_vec(), requested });
        Ok(())
    }

    /// Takes the last checkpoint, and waits until it is committed.
    pub(super) fn take_last<B: Backend<Scalar = f32>>(
        &mut self,
        session: &Session<B>,
        link: &mut Link,
    ) -> Result<()> {
        self.take(session, link)?;
        self.settle(link)
    }

    /// Waits for what is being written, and tells of it.
    fn settle(&mut self, link: &mut Link) -> Result<()> {
        match self.writer.wait()? {
            Some(path) => self.told(path, link),
            None => Ok(()),
        }
    }

    fn told(&mut self, path: String, link: &mut Link) -> Result<()> {
        let Some(Writing { step, position, requested }) = self.writing.take() else { return Ok(()) };
        let path = PathBuf::from(path);
        self.committed = Some(Restored { path: path.clone(), step, position });
        link.send(&FromWorker::Checkpointed { step, path, requested })?;
        Ok(())
    }
}
