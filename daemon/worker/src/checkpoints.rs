//! The checkpoints of a training job: when they are taken, and how they are reported.
//!
//! A checkpoint is due every `every_steps` steps and when the daemon requests one. Training stops while the
//! model is copied; [`CheckpointWriter`] writes the copy in the background, one checkpoint at a time. A
//! checkpoint that becomes due during a write waits until the writer is idle. It then captures the current
//! step and covers all requests until then. Training waits for the last checkpoint, before a stop and at the
//! end of the data.
//!
//! If several workers train the model, they copy it together, each a share, between steps that all take
//! ([`Session::capture_together`]), and each [writes](crate::parts) some of the files. While the next batch is late, rank 0 copies it alone.
//!
//! What is due or requested is checked between steps, and every second while training waits for a batch.
//!
//! A job may also keep images of the model in memory, which outlive this process. They are taken between checkpoints and cost
//! training the copy only. Every checkpoint is an image, too. No image replaces that of one of the best checkpoints before it is
//! written: after a death, the next worker continues from that image and writes the checkpoint.
//!
//! When a checkpoint cannot be written, as on a full disk, training continues and tries again after a pause. It ends
//! once no checkpoint could be written for the job's `retry_minutes`.

use std::fs::File;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use millstream_backend::Backend;
use millstream_batch::Count;
use millstream_trainer::checkpoint::{
    self, CheckpointError, CheckpointStore, CheckpointWriter, ExtraPart, ModelCopy, PartsOfRank, Snapshot,
};
use millstream_trainer::session::{Session, SessionError};

use crate::link::Link;
use crate::parts::PartsExchange;
use crate::protocol::{CheckpointSize, FromWorker, PartsWritten, Restored};

/// Limits of the pause before a checkpoint that failed is tried again. Within them, it is as long as checkpoints have been
/// failing, so a short failure costs little training, and a long one few copies of the model.
const MIN_PAUSE: Duration = Duration::from_secs(2);
const MAX_PAUSE: Duration = Duration::from_secs(120);

/// When checkpoints are taken, and how many are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cadence {
    /// Steps between checkpoints.
    pub(crate) every_steps: u64,
    /// Number of newest checkpoints to keep.
    pub(crate) keep: u32,
    /// How long training continues while none can be written.
    pub(crate) retry_for: Duration,
    /// Time between images, if there are any.
    pub(crate) images: Option<Duration>,
}

/// The newest committed checkpoint.
struct Committed {
    size: CheckpointSize,
    /// Its encoded position in the data; `None` if it was not read.
    position: Option<Vec<u8>>,
}

/// The number of copies of the model. Of images, which are taken this often, one of two is always complete.
pub(crate) fn model_copies(images_every: Option<Duration>) -> usize {
    if images_every.is_some() { 2 } else { 1 }
}

/// What the model is copied for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyFor {
    Checkpoint,
    Image,
}

/// Which workers copy the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopiedBy {
    /// All of them, each a share.
    All,
    /// This one alone.
    This,
}

impl CopiedBy {
    fn capture<B: Backend<Scalar = f32>>(
        self,
        session: &mut Session<B>,
        copy: &mut ModelCopy<f32>,
    ) -> Result<Snapshot, SessionError> {
        match self {
            Self::All => session.capture_together(copy),
            Self::This => session.capture(copy),
        }
    }
}

/// What a job's checkpoints are written to, from what, and with whom.
pub(crate) struct CheckpointPlaces {
    pub(crate) store: CheckpointStore,
    /// The images that the model is copied into, if there are any.
    pub(crate) images: Vec<File>,
    pub(crate) others: PartsExchange,
}

/// Writes the files of another rank than 0, in the background, whenever rank 0 takes a checkpoint.
pub(crate) fn help_write<B: Backend<Scalar = f32>>(
    CheckpointPlaces { store, images, others }: CheckpointPlaces,
    session: &mut Session<B>,
) -> Result<()> {
    let copies = copies_in(images, session)?;
    Ok(others.serve(|place| PartsOfRank::new(store, copies, place))?)
}

/// Copies of `session`'s model in images.
fn copies_in<B: Backend<Scalar = f32>>(
    images: Vec<File>,
    session: &mut Session<B>,
) -> Result<Vec<ModelCopy<f32>>, SessionError> {
    images.into_iter().zip(0..).map(|(image, number)| session.copy_in_image(image, number)).collect()
}

/// Takes a job's checkpoints.
pub(crate) struct Checkpointer {
    cadence: Cadence,
    writer: CheckpointWriter<f32>,
    /// Ends the writer's wait for the other workers.
    end_written: Sender<Option<PartsWritten>>,
    /// The newest committed checkpoint.
    committed: Option<Committed>,
    /// When the next image is due, if there are any, and the step of the newest one.
    image_at: Option<Instant>,
    image_step: Option<u64>,
    writing: Option<Writing>,
    /// Set while checkpoints cannot be written.
    failing: Option<Failing>,
    /// Whether one is due and not yet taken.
    due: bool,
    /// Whether the one of the current step is due before the next step.
    is_owed: bool,
    /// Whether the daemon has requested one that is not yet taken.
    requested: bool,
}

/// A checkpoint being written.
struct Writing {
    step: u64,
    position: Vec<u8>,
    /// Whether the daemon requested it.
    requested: bool,
    /// Whether it is one of the best.
    is_best: bool,
    began: Instant,
}

/// A time in which no checkpoint could be written.
#[derive(Clone, Copy)]
struct Failing {
    since: Instant,
    retry_at: Instant,
}

impl Checkpointer {
    /// Takes checkpoints of `session`, which was `restored`.
    pub(crate) fn new<B: Backend<Scalar = f32>>(
        cadence: Cadence,
        session: &mut Session<B>,
        CheckpointPlaces { store, images, others }: CheckpointPlaces,
        carried: Vec<ExtraPart>,
        restored: Option<Restored>,
    ) -> Result<Self> {
        let copies = match images.is_empty() {
            true => vec![session.allocate_copy()],
            false => copies_in(images, session)?,
        };
        let (others, end_written) = others.into_writers();
        let writer = CheckpointWriter::spawn(store, copies, carried, others)?;
        let image_at = cadence.images.map(|period| Instant::now() + period);
        // A worker may have died while it wrote the checkpoint of this image, or before it could.
        let is_image = restored.as_ref().is_some_and(|restored| restored.is_image);
        let newest = restored.as_ref().and_then(|restored| restored.checkpoint.as_ref());
        let due_until = |step: u64| step / cadence.every_steps;
        let was_due = due_until(session.step()) > newest.map_or(0, |newest| due_until(newest.step));
        let is_owed = is_image && (was_due || session.is_best());
        let committed = restored.and_then(|Restored { checkpoint, position, .. }| {
            Some(Committed { size: checkpoint?, position: (!is_image).then_some(position) })
        });
        Ok(Self {
            cadence,
            writer,
            end_written,
            committed,
            image_at,
            image_step: None,
            writing: None,
            failing: None,
            due: false,
            is_owed,
            requested: false,
        })
    }

    /// Called after each step.
    pub(crate) fn on_step(&mut self, step: u64) {
        self.due |= step.is_multiple_of(self.cadence.every_steps);
    }

    /// Requests a checkpoint on behalf of the daemon.
    pub(crate) fn request(&mut self) {
        self.requested = true;
    }

    /// What the model is to be copied for before the next step, if anything.
    pub(crate) fn next_copy<B: Backend<Scalar = f32>>(
        &mut self,
        session: &Session<B>,
        link: &mut Link,
    ) -> Result<Option<CopyFor>> {
        if self.is_ready() {
            let is_committed = self.is_committed(session, link)?;
            return Ok((!is_committed).then_some(CopyFor::Checkpoint));
        }
        let is_new = self.image_step != Some(session.step()) && !session.position().is_empty();
        Ok((is_new && self.is_image_due()).then_some(CopyFor::Image))
    }

    /// Whether a checkpoint is due or requested, and the writer is idle or must be waited for.
    fn is_ready(&mut self) -> bool {
        if self.is_owed {
            return true;
        }
        let is_due = match self.failing {
            None => self.due,
            Some(Failing { retry_at, .. }) => retry_at <= Instant::now(),
        };
        (is_due || self.requested) && self.writer.is_idle()
    }

    /// Whether an image is due and may be taken.
    fn is_image_due(&self) -> bool {
        let is_due = self.image_at.is_some_and(|at| at <= Instant::now());
        is_due && self.writer.has_free_copy() && !self.writing.as_ref().is_some_and(|writing| writing.is_best)
    }

    /// Copies `session`'s current state, as [`Checkpointer::next_copy`] has found necessary.
    pub(crate) fn copy<B: Backend<Scalar = f32>>(
        &mut self,
        (copy_for, by): (CopyFor, CopiedBy),
        session: &mut Session<B>,
        link: &mut Link,
    ) -> Result<()> {
        match copy_for {
            CopyFor::Checkpoint => self.start_checkpoint(by, session, link),
            CopyFor::Image => {
                self.writer.capture(|image| by.capture(session, image))?;
                self.report_image(session.step(), link)
            }
        }
    }

    /// Reports an image that has been taken, if the job keeps any.
    fn report_image(&mut self, step: u64, link: &mut Link) -> Result<()> {
        let Some(period) = self.cadence.images else { return Ok(()) };
        self.image_at = Some(Instant::now() + period);
        self.image_step = Some(step);
        link.send(&FromWorker::ImageCompleted { step })?;
        Ok(())
    }

    /// Whether one is being written.
    pub(crate) fn is_writing(&mut self) -> bool {
        !self.writer.is_idle()
    }

    /// When to try again, if the newest checkpoint could not be written.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.failing.map(|failing| failing.retry_at)
    }

    /// Reports a checkpoint that has been committed since the last call, if any.
    pub(crate) fn report_committed(&mut self, link: &mut Link) -> Result<()> {
        let outcome = self.writer.poll();
        self.settle(outcome, link)
    }

    /// Takes a checkpoint of `session`'s current state unless it is already committed. Waits for a running
    /// write first.
    pub(crate) fn take<B: Backend<Scalar = f32>>(
        &mut self,
        session: &mut Session<B>,
        link: &mut Link,
    ) -> Result<()> {
        match self.is_committed(session, link)? {
            true => Ok(()),
            false => self.start_checkpoint(CopiedBy::This, session, link),
        }
    }

    /// Whether `session`'s current state is committed, once no write is running. Then no checkpoint is due, and a request is
    /// answered.
    pub(crate) fn is_committed<B: Backend<Scalar = f32>>(
        &mut self,
        session: &Session<B>,
        link: &mut Link,
    ) -> Result<bool> {
        self.wait(link)?;
        let (step, position) = (session.step(), session.position());
        let is_current = |last: &&Committed| {
            last.size.step == step && last.position.as_ref().is_some_and(|last| last == position)
        };
        let Some(last) = self.committed.as_ref().filter(is_current) else { return Ok(false) };
        (self.due, self.is_owed) = (false, false);
        let requested = std::mem::take(&mut self.requested);
        if requested {
            let bytes = last.size.bytes;
            link.send(&FromWorker::Checkpointed { step, bytes, requested, seconds: 0.0 })?;
        }
        Ok(true)
    }

    /// Copies `session`'s current state, and starts to write it.
    fn start_checkpoint<B: Backend<Scalar = f32>>(
        &mut self,
        by: CopiedBy,
        session: &mut Session<B>,
        link: &mut Link,
    ) -> Result<()> {
        (self.due, self.is_owed) = (false, false);
        let requested = std::mem::take(&mut self.requested);
        let (step, position) = (session.step(), session.position().to_vec());
        let began = Instant::now();
        self.writer.start_commit(self.cadence.keep, |image| by.capture(session, image))?;
        self.report_image(step, link)?;
        self.writing = Some(Writing { step, position, requested, is_best: session.is_best(), began });
        Ok(())
    }

    /// Waits for a running write and reports it.
    pub(crate) fn wait(&mut self, link: &mut Link) -> Result<()> {
        let outcome = self.writer.wait();
        self.settle(outcome, link)
    }

    fn settle(
        &mut self,
        outcome: Result<Option<checkpoint::Committed>, CheckpointError>,
        link: &mut Link,
    ) -> Result<()> {
        match outcome {
            Ok(committed) => self.committed(committed, link),
            Err(error) => self.fail(error, link),
        }
    }

    /// Reports that a checkpoint could not be written. An error once none could be written for too long.
    fn fail(&mut self, error: CheckpointError, link: &mut Link) -> Result<()> {
        let Some(Writing { step, requested, began, .. }) = self.writing.take() else {
            return Err(error.into());
        };
        if !matches!(error, CheckpointError::Storage { .. }) {
            return Err(error.into());
        }
        let now = Instant::now();
        let since = self.failing.map_or(now, |failing| failing.since);
        let failed_for = now - since;
        if failed_for >= self.cadence.retry_for {
            let minutes = self.cadence.retry_for.as_secs() / 60;
            return Err(error).context(format!(
                "no checkpoint could be written for {}, the job's `checkpoint.retry_minutes`",
                Count(minutes, "minute")
            ));
        }
        let pause = failed_for.clamp(MIN_PAUSE, MAX_PAUSE);
        self.failing = Some(Failing { since, retry_at: now + pause });
        let newest = self.committed.as_ref().map_or_else(
            || "there is none yet".to_owned(),
            |newest| format!("the newest is that of step {}", newest.size.step),
        );
        let message = format!("{error}; {newest}; trying again in {} s", pause.as_secs());
        link.send(&FromWorker::CheckpointFailed {
            step,
            message,
            requested,
            seconds: began.elapsed().as_secs_f64(),
        })?;
        Ok(())
    }

    fn committed(&mut self, committed: Option<checkpoint::Committed>, link: &mut Link) -> Result<()> {
        let Some(checkpoint::Committed { bytes, .. }) = committed else { return Ok(()) };
        let Some(Writing { step, position, requested, began, .. }) = self.writing.take() else {
            return Ok(());
        };
        self.failing = None;
        self.committed = Some(Committed { size: CheckpointSize { step, bytes }, position: Some(position) });
        let seconds = began.elapsed().as_secs_f64();
        link.send(&FromWorker::Checkpointed { step, bytes, requested, seconds })?;
        Ok(())
    }
}

impl Drop for Checkpointer {
    /// Ends a wait for the other workers, which may be gone. A checkpoint that they have not written by then is not committed.
    fn drop(&mut self) {
        // The send fails only if nobody receives.
        let _ = self.end_written.send(None);
    }
}
