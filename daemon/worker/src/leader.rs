//! What rank 0 does besides training: checkpoints, reports to the daemon and TensorBoard events.
//!
//! All ranks have the same weights and compute the same metrics, so one of them does this for all. The only worker of a job
//! is rank 0.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use millstream_backend::Backend;
use millstream_batch::BatchHeader;
use millstream_trace::{Phase, Recorder};
use millstream_trainer::loss::LossSum;
use millstream_trainer::metrics::Metrics;
use millstream_trainer::session::Session;

use crate::checkpoints::{Checkpointer, CopiedBy, CopyFor};
use crate::link::{Link, PendingCommands};
use crate::objects::ObjectClient;
use crate::protocol::{FromWorker, WorkerProgress};
use crate::tensorboard::{EventSpec, EventWriter, Meter};

/// Interval between progress reports.
pub(crate) const REPORT_PERIOD: Duration = Duration::from_millis(100);

/// The part of a training job that rank 0 does alone.
pub(crate) struct Leader {
    checkpointer: Checkpointer,
    others: Others,
    /// What all workers are to copy the model for, once they have agreed.
    wanted: Option<CopyFor>,
    /// The recorder of the session and its backend.
    recorder: Arc<Recorder>,
    /// What was done since the last progress report.
    meter: Meter,
    /// When that was.
    reported: Instant,
    /// If it has become known since.
    steps_per_epoch: Option<u64>,
    /// When the current evaluation began, while there is one.
    evaluating_since: Option<Instant>,
    /// TensorBoard events, if the job writes them.
    events: Option<EventWriter>,
    /// Whether a failure to write events has been reported.
    events_warned: bool,
}

/// The other workers of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// There are none.
    None,
    /// All on this host, where they map the same images.
    Here,
    /// Some on other hosts, which have images of their own.
    Elsewhere,
}

/// An evaluation that has finished.
pub(crate) struct Evaluated {
    /// The epoch of the last step.
    pub(crate) epoch: u32,
    /// Whether that step ended it.
    pub(crate) ends_epoch: bool,
    pub(crate) metrics: Vec<Metrics>,
}

impl Leader {
    /// A leader of a session whose backend records into `recorder`.
    pub(crate) fn new(checkpointer: Checkpointer, others: Others, recorder: Arc<Recorder>) -> Self {
        Self {
            checkpointer,
            others,
            wanted: None,
            recorder,
            meter: Meter::default(),
            reported: Instant::now(),
            steps_per_epoch: None,
            evaluating_since: None,
            events: None,
            events_warned: false,
        }
    }

    /// Creates an event file of training that continues from the step `restored`. On failure training continues without one.
    pub(crate) fn begin_events(
        &mut self,
        (spec, objects): (EventSpec, Option<ObjectClient>),
        restored: Option<u64>,
        job: &str,
        link: &mut Link,
    ) -> Result<()> {
        let place = spec.place.clone();
        match EventWriter::begin((spec, objects), restored, job) {
            Ok(events) => self.events = Some(events),
            Err(error) => self.warn_of_events(place.shown(), &error, link)?,
        }
        Ok(())
    }

    /// Copies the model for a checkpoint or an image, if one is due before the next step. If other workers copy it, too, it is
    /// copied once all have [agreed](Leader::wants_copy) on that.
    pub(crate) fn between_steps<B: Backend<Scalar = f32>>(
        &mut self,
        session: &mut Session<B>,
        commands: &PendingCommands,
        link: &mut Link,
    ) -> Result<()> {
        let began = Instant::now();
        let next = self.next_copy(session, commands, link)?;
        match next {
            Some(_) if self.others != Others::None => self.wanted = next,
            Some(copy_for) => self.copy_for(copy_for, CopiedBy::This, session, link)?,
            None => {}
        }
        self.add_time(began.elapsed(), Duration::ZERO);
        Ok(())
    }

    /// Reports progress while the next batch is late, and copies the model for a checkpoint or an image, if one is due: alone, because
    /// the next agreement of all workers is far off. Workers of other hosts would not have that copy; they are waited for.
    pub(crate) fn while_waiting<B: Backend<Scalar = f32>>(
        &mut self,
        session: &mut Session<B>,
        commands: &PendingCommands,
        link: &mut Link,
    ) -> Result<()> {
        // A report without steps would replace the last one.
        if self.meter.steps > 0 {
            self.report_if_due(session, link)?;
        }
        if self.others == Others::Elsewhere {
            return Ok(());
        }
        let next = self.next_copy(session, commands, link)?;
        let wanted = self.wanted.take();
        // A checkpoint is an image, too.
        match next.or(wanted) {
            Some(copy_for) => self.copy_for(copy_for, CopiedBy::This, session, link),
            None => Ok(()),
        }
    }

    /// What the model is to be copied for now, if anything.
    fn next_copy<B: Backend<Scalar = f32>>(
        &mut self,
        session: &Session<B>,
        commands: &PendingCommands,
        link: &mut Link,
    ) -> Result<Option<CopyFor>> {
        self.accept_requests(session, commands);
        self.checkpointer.report_committed(link)?;
        self.checkpointer.next_copy(session, link)
    }

    /// Whether all workers are to copy the model.
    pub(crate) fn wants_copy(&self) -> bool {
        self.wanted.is_some()
    }

    /// Copies the model with all workers, which have agreed on that.
    pub(crate) fn copy_with_peers<B: Backend<Scalar = f32>>(
        &mut self,
        session: &mut Session<B>,
        link: &mut Link,
    ) -> Result<()> {
        match self.wanted.take() {
            Some(copy_for) => self.copy_for(copy_for, CopiedBy::All, session, link),
            None => Ok(()),
        }
    }

    /// Takes a checkpoint of the current step, which answers all requests: alone, or once all workers agree to copy the model.
    pub(crate) fn take_checkpoint<B: Backend<Scalar = f32>>(
        &mut self,
        session: &mut Session<B>,
        commands: &PendingCommands,
        link: &mut Link,
    ) -> Result<()> {
        self.accept_requests(session, commands);
        if self.others == Others::None {
            return self.copy(session, link, Checkpointer::take);
        }
        let is_committed = self.checkpointer.is_committed(session, link)?;
        self.wanted = (!is_committed).then_some(CopyFor::Checkpoint);
        Ok(())
    }

    /// Counts a submitted step on a batch with this `header`; `before` is the number of steps before it.
    pub(crate) fn on_step<B: Backend<Scalar = f32>>(
        &mut self,
        session: &Session<B>,
        before: u64,
        header: BatchHeader,
    ) {
        // All epochs have equally many rows, unless weights draw some of them; the mean is then reported. If a short last
        // batch is dropped, only the next epoch's first batch shows that an epoch has ended.
        let epochs = u64::from(header.epoch);
        if header.batch == 0 && epochs > 0 {
            self.steps_per_epoch = Some(before / epochs);
        }
        for meter in self.meters() {
            meter.steps += 1;
            meter.examples += u64::from(header.global_rows);
        }
        if header.last {
            self.steps_per_epoch = Some(session.step() / (epochs + 1));
        }
    }

    /// Whether the next point of TensorBoard's curves needs the loss of all steps.
    pub(crate) fn needs_drain(&self, step: u64) -> bool {
        self.events.as_ref().is_some_and(|events| events.point_is_due(step))
    }

    /// Writes what is due after a step that took `trained`, of which it `waited` for its batch.
    pub(crate) fn after_step<B: Backend<Scalar = f32>>(
        &mut self,
        session: &mut Session<B>,
        (trained, waited): (Duration, Duration),
        link: &mut Link,
    ) -> Result<()> {
        self.add_time(trained, waited);
        self.write_events(session, link, |events, session| events.point_if_due(session.step()))?;
        let began = Instant::now();
        if self.events.is_some() {
            let recorder = Arc::clone(&self.recorder);
            recorder.phase(Phase::Events, || self.write_events(session, link, write_histograms))?;
        }
        self.checkpointer.on_step(session.step());
        self.add_time(began.elapsed(), Duration::ZERO);
        Ok(())
    }

    /// Adds the loss of completed steps of `session`.
    pub(crate) fn add_loss<B: Backend<Scalar = f32>>(&mut self, session: &Session<B>, loss: LossSum) {
        self.meters().for_each(|meter| meter.loss += loss);
        let Some(events) = &mut self.events else { return };
        events.set_use_of_time(session.use_of_time());
        if let Some(scale) = session.loss_scale() {
            events.set_loss_scale(scale);
        }
    }

    /// Notes that rows of an evaluation are due.
    pub(crate) fn begin_evaluation(&mut self) {
        self.evaluating_since.get_or_insert_with(Instant::now);
    }

    /// Reports an evaluation.
    pub(crate) fn evaluated<B: Backend<Scalar = f32>>(
        &mut self,
        session: &mut Session<B>,
        Evaluated { epoch, ends_epoch, metrics }: Evaluated,
        link: &mut Link,
    ) -> Result<()> {
        let step = session.step();
        self.report(session, link)?;
        self.write_events(session, link, |events, _| events.evaluated(step, &metrics))?;
        let seconds = self.evaluating_since.take().map_or(0.0, |began| began.elapsed().as_secs_f64());
        link.send(&FromWorker::Evaluated { step, epoch, ends_epoch, metrics, seconds })?;
        Ok(())
    }

    /// Excludes the time until now from training.
    pub(crate) fn skip_time(&mut self) {
        self.reported = Instant::now();
    }

    /// Whether a checkpoint is being written.
    pub(crate) fn is_writing(&mut self, link: &mut Link) -> Result<bool> {
        // In this order: once no more is written, everything has been reported.
        let is_writing = self.checkpointer.is_writing();
        self.checkpointer.report_committed(link)?;
        Ok(is_writing)
    }

    fn copy_for<B: Backend<Scalar = f32>>(
        &mut self,
        copy_for: CopyFor,
        by: CopiedBy,
        session: &mut Session<B>,
        link: &mut Link,
    ) -> Result<()> {
        self.copy(session, link, |checkpointer, session, link| {
            checkpointer.copy((copy_for, by), session, link)
        })
    }

    /// Lets `take` copy the model, once no step is in flight.
    fn copy<B: Backend<Scalar = f32>>(
        &mut self,
        session: &mut Session<B>,
        link: &mut Link,
        take: impl FnOnce(&mut Checkpointer, &mut Session<B>, &mut Link) -> Result<()>,
    ) -> Result<()> {
        self.drain(session)?;
        // So that a worker resuming from the copy repeats no events.
        self.write_events(session, link, |events, _| events.flush())?;
        let recorder = Arc::clone(&self.recorder);
        recorder.phase(Phase::Checkpoint, || take(&mut self.checkpointer, session, link))
    }

    /// Waits until no checkpoint is being written.
    pub(crate) fn wait_for_writer(&mut self, link: &mut Link) -> Result<()> {
        let recorder = Arc::clone(&self.recorder);
        recorder.phase(Phase::Checkpoint, || self.checkpointer.wait(link))
    }

    /// When to try again, if the newest checkpoint could not be written.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.checkpointer.retry_at()
    }

    /// Sends and writes what is left at the end of training.
    pub(crate) fn end<B: Backend<Scalar = f32>>(
        &mut self,
        session: &mut Session<B>,
        link: &mut Link,
    ) -> Result<()> {
        self.report(session, link)?;
        self.write_events(session, link, |events, session| events.end(session.step()))?;
        report_skipped_steps(session, link)
    }

    /// Reports progress if the last report is old enough.
    pub(crate) fn report_if_due<B: Backend<Scalar = f32>>(
        &mut self,
        session: &Session<B>,
        link: &mut Link,
    ) -> Result<()> {
        if self.reported.elapsed() >= REPORT_PERIOD { self.report(session, link) } else { Ok(()) }
    }

    /// Reports progress.
    pub(crate) fn report<B: Backend<Scalar = f32>>(
        &mut self,
        session: &Session<B>,
        link: &mut Link,
    ) -> Result<()> {
        self.reported = Instant::now();
        let meter = std::mem::take(&mut self.meter);
        let progress = session.progress();
        link.send(&FromWorker::Progress(WorkerProgress {
            step: session.step(),
            epoch: progress.epoch,
            examples: progress.examples,
            steps_per_epoch: self.steps_per_epoch.take(),
            new_examples: meter.examples,
            loss: meter.loss.mean(),
            seconds: meter.trained.as_secs_f64(),
            waited_seconds: meter.waited.as_secs_f64(),
        }))?;
        Ok(())
    }

    /// Passes on the daemon's request for a checkpoint. Before the first batch there is nothing to save; the request stays
    /// pending.
    fn accept_requests<B: Backend<Scalar = f32>>(
        &mut self,
        session: &Session<B>,
        commands: &PendingCommands,
    ) {
        if !session.position().is_empty() && commands.take_checkpoint() {
            self.checkpointer.request();
        }
    }

    /// Waits until no step is in flight.
    fn drain<B: Backend<Scalar = f32>>(&mut self, session: &mut Session<B>) -> Result<()> {
        let loss = session.drain()?;
        self.add_loss(session, loss);
        Ok(())
    }

    /// The meters of progress reports and of TensorBoard's curves.
    fn meters(&mut self) -> impl Iterator<Item = &mut Meter> {
        std::iter::once(&mut self.meter).chain(self.events.as_mut().map(EventWriter::meter))
    }

    /// Adds training time and its part spent waiting for a batch.
    fn add_time(&mut self, trained: Duration, waited: Duration) {
        for meter in self.meters() {
            meter.trained += trained;
            meter.waited += waited;
        }
    }

    /// Writes TensorBoard events. A failure is reported once, and training continues.
    fn write_events<B: Backend<Scalar = f32>>(
        &mut self,
        session: &mut Session<B>,
        link: &mut Link,
        write: impl FnOnce(&mut EventWriter, &mut Session<B>) -> io::Result<()>,
    ) -> Result<()> {
        let Some(events) = &mut self.events else { return Ok(()) };
        let Err(error) = write(events, session) else { return Ok(()) };
        let path = events.path().to_owned();
        self.warn_of_events(&path, &error, link)
    }

    fn warn_of_events(&mut self, path: &Path, error: &io::Error, link: &mut Link) -> Result<()> {
        if !std::mem::replace(&mut self.events_warned, true) {
            let message = format!(
                "{}: {error}; training continues, but TensorBoard will miss some events",
                path.display()
            );
            link.send(&FromWorker::Warned { message })?;
        }
        Ok(())
    }
}

/// Reports the number of skipped steps, if any.
fn report_skipped_steps<B: Backend<Scalar = f32>>(session: &Session<B>, link: &mut Link) -> Result<()> {
    let Some(scale) = session.loss_scale().filter(|scale| scale.skipped_steps > 0) else {
        return Ok(());
    };
    let message = format!(
        "{} of {} steps were skipped because gradients overflowed; the loss scale is now {}",
        scale.skipped_steps,
        session.step(),
        scale.scale
    );
    link.send(&FromWorker::Warned { message })?;
    Ok(())
}

/// Writes a histogram of each weight tensor, if due.
fn write_histograms<B: Backend<Scalar = f32>>(
    events: &mut EventWriter,
    session: &mut Session<B>,
) -> io::Result<()> {
    let step = session.step();
    if !events.histograms_are_due(step) {
        return Ok(());
    }
    session.read_parameters(|tensor, numbers| events.histogram(step, &tensor.name, numbers))
}
