//! Records some steps of a training job, on the rank that the daemon asks for them.
//!
//! A recording begins and ends between two steps, after all other work there, or while the next batch is late: each recorded
//! step includes the wait for its batch (not the first step of a recording that begins in it), and any checkpoint or
//! evaluation that follows it. A copy of the model by several workers belongs to the step after it, because they agree on
//! both at once. The device's peak rates are measured afterwards, so that the measurement disturbs no recorded step, and
//! seldom, since training waits for it, on all ranks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use millstream_backend::{Backend, Floors};
use millstream_trace::{Recorder, Track};
use millstream_trainer::session::Session;
use millstream_trainer::spec::Precision;

use crate::leader::REPORT_PERIOD;
use crate::link::{Link, PendingCommands};
use crate::protocol::{FromWorker, SPANS_PER_MESSAGE, WorkerProfile};

/// The device's peak rates are measured again after this time: other work may have slowed a measurement down.
const PEAK_INTERVAL: Duration = Duration::from_secs(60);

/// Records steps on the daemon's request.
pub(crate) struct Profiler {
    recorder: Arc<Recorder>,
    precision: Precision,
    /// The highest rates measured so far, and when they were last measured.
    peak: Option<(Floors, Instant)>,
    running: Option<Running>,
}

/// A recording in progress.
struct Running {
    requested_steps: u64,
    /// The step and the number of examples when recording began.
    after_step: u64,
    after_examples: u64,
    /// When the number of its steps was last reported.
    reported: Instant,
}

impl Profiler {
    /// A profiler for a session with arithmetic `precision`, whose backend records into `recorder`.
    pub(crate) fn new(recorder: Arc<Recorder>, precision: Precision) -> Self {
        Self { recorder, precision, peak: None, running: None }
    }

    /// Whether a recording must begin or end before the next step. The caller then drains all steps first.
    pub(crate) fn is_due<B: Backend<Scalar = f32>>(
        &self,
        session: &Session<B>,
        commands: &PendingCommands,
    ) -> bool {
        commands.has_profile_command() || self.is_over(session)
    }

    /// Whether a recording is complete.
    fn is_over<B: Backend<Scalar = f32>>(&self, session: &Session<B>) -> bool {
        let is_done = |running: &Running| running.steps(session) >= running.requested_steps;
        self.running.as_ref().is_some_and(|running| is_done(running) || self.recorder.is_full())
    }

    /// Begins a requested recording and ends one that is complete or cancelled. Called between two steps.
    pub(crate) fn between_steps<B: Backend<Scalar = f32>>(
        &mut self,
        session: &Session<B>,
        commands: &PendingCommands,
        link: &mut Link,
    ) -> Result<()> {
        // Taken even if the recording has ended meanwhile: a pending one would drain the session before each step.
        let is_cancelled = commands.take_profile_cancellation();
        if is_cancelled || self.is_over(session) {
            self.end(session, !is_cancelled, link)?;
        }
        if let Some(requested_steps) = commands.take_profile() {
            link.send(&FromWorker::Profiling { steps: 0, is_over: false })?;
            let (after_step, after_examples) = (session.step(), session.progress().examples);
            let reported = Instant::now();
            self.running = Some(Running { requested_steps, after_step, after_examples, reported });
            session.backend().begin_recording();
        }
        Ok(())
    }

    /// Reports the number of steps recorded so far, if a recording is in progress and the last report is old enough.
    pub(crate) fn report_if_due<B: Backend<Scalar = f32>>(
        &mut self,
        session: &Session<B>,
        link: &mut Link,
    ) -> Result<()> {
        if let Some(running) =
            self.running.as_mut().filter(|running| running.reported.elapsed() >= REPORT_PERIOD)
        {
            running.reported = Instant::now();
            link.send(&FromWorker::Profiling { steps: running.steps(session), is_over: false })?;
        }
        Ok(())
    }

    /// Ends the recording, if one is in progress, and sends it, with the device's peak rates if it `is_wanted`.
    pub(crate) fn end<B: Backend<Scalar = f32>>(
        &mut self,
        session: &Session<B>,
        is_wanted: bool,
        link: &mut Link,
    ) -> Result<()> {
        let Some(running) = self.running.take() else { return Ok(()) };
        let is_full = self.recorder.is_full();
        let recording = session.backend().end_recording();
        let steps = running.steps(session);
        link.send(&FromWorker::Profiling { steps, is_over: true })?;
        for Track { name, mut spans } in recording.tracks {
            while !spans.is_empty() {
                let rest = spans.split_off(spans.len().min(SPANS_PER_MESSAGE));
                link.send(&FromWorker::Spans(Track { name: name.clone(), spans }))?;
                spans = rest;
            }
        }
        let floors = match is_wanted {
            true => self.peak(session.backend()),
            false => Floors::default(),
        };
        link.send(&FromWorker::Profiled(WorkerProfile {
            began_ns: recording.began_ns,
            ended_ns: recording.ended_ns,
            after_step: running.after_step,
            steps,
            examples: session.progress().examples - running.after_examples,
            is_full,
            floors,
            precision: self.precision,
        }))?;
        Ok(())
    }
}

impl Profiler {
    /// The device's peak rates.
    fn peak<B: Backend<Scalar = f32>>(&mut self, backend: &B) -> Floors {
        let floors = match self.peak {
            Some((floors, measured)) if measured.elapsed() < PEAK_INTERVAL => return floors,
            before => {
                let floors = backend.floors(self.precision.activations(), 1);
                before.map_or(floors, |(highest, _)| highest.max(floors))
            }
        };
        self.peak = Some((floors, Instant::now()));
        floors
    }
}

impl Running {
    /// Steps recorded so far.
    fn steps<B: Backend<Scalar = f32>>(&self, session: &Session<B>) -> u64 {
        session.step() - self.after_step
    }
}
