//! Recording some steps of a job being trained.
//!
//! A recording begins and ends between two steps, after whatever else is done there: so each step is recorded with the
//! wait for its batch, and with what follows it, a checkpoint or an evaluation. What the device can do at the most is
//! measured when that is over, so that it disturbs no step that is told of.

use std::sync::Arc;

use anyhow::Result;
use millstream_backend::{Backend, Floors, Measured};
use millstream_trace::{Recorder, Track};
use millstream_trainer::session::Session;
use millstream_trainer::spec::Precision;

use super::process::{Link, Wishes};
use super::protocol::{FromWorker, SPANS_PER_MESSAGE, WorkerProfile};

/// Records steps when the daemon wishes.
pub(super) struct Profiler {
    recorder: Arc<Recorder>,
    precision: Precision,
    running: Option<Running>,
}

/// A recording.
struct Running {
    asked: u64,
    /// Where training stood when it began.
    after_step: u64,
    examples_before: u64,
}

impl Profiler {
    /// For a session of this arithmetic, whose backend is recorded by `recorder`.
    pub(super) fn new(recorder: Arc<Recorder>, precision: Precision) -> Self {
        Self { recorder, precision, running: None }
    }

    /// Where the session's backend, and all that it does, is recorded.
    pub(super) fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// Whether a recording is to be begun or ended before the next step: then all steps are to have ended.
    pub(super) fn is_due<B: Backend<Scalar = f32>>(
        &self,
        session: &Session<Measured<B>>,
        wishes: &Wishes,
    ) -> bool {
        let is_over = |running: &Running| running.steps(session) >= running.asked || self.recorder.is_full();
        wishes.change_profile() || self.running.as_ref().is_some_and(is_over)
    }

    /// Between two steps, when that is due: begins a recording that is wanted, and ends one that has all steps, or is not wanted.
    pub(super) fn between_steps<B: Backend<Scalar = f32>>(
        &mut self,
        session: &Session<Measured<B>>,
        wishes: &Wishes,
        link: &mut Link,
    ) -> Result<()> {
        if let Some(running) = &self.running {
            let is_unwanted = wishes.take_profile_unwanted();
            if is_unwanted || running.steps(session) >= running.asked || self.recorder.is_full() {
                self.end(session, !is_unwanted, link)?;
            }
        }
        if let Some(asked) = wishes.take_profile() {
            link.send(&FromWorker::Profiling { steps: 0, is_over: false })?;
            let (after_step, examples_before) = (session.step(), session.progress().examples);
            self.running = Some(Running { asked, after_step, examples_before });
            session.backend().begin_recording();
        }
        Ok(())
    }

    /// Says how many steps were recorded so far, if any are.
    pub(super) fn report<B: Backend<Scalar = f32>>(
        &self,
        session: &Session<Measured<B>>,
        link: &mut Link,
    ) -> Result<()> {
        if let Some(running) = &self.running {
            link.send(&FromWorker::Profiling { steps: running.steps(session), is_over: false })?;
        }
        Ok(())
    }

    /// Ends a recording, if there is one, and tells what was recorded; where it `is_wanted`, beside what the device can
    /// do at the most.
    pub(super) fn end<B: Backend<Scalar = f32>>(
        &mut self,
        session: &Session<Measured<B>>,
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
            true => session.backend().floors(self.precision.activations(), 1),
            false => Floors::default(),
        };
        link.send(&FromWorker::Profiled(WorkerProfile {
            began_ns: recording.began_ns,
            ended_ns: recording.ended_ns,
            after_step: running.after_step,
            steps,
            examples: session.progress().examples - running.examples_before,
            is_full,
            floors,
            precision: self.precision,
        }))?;
        Ok(())
    }
}

impl Running {
    /// Steps recorded so far.
    fn steps<B: Backend<Scalar = f32>>(&self, session: &Session<Measured<B>>) -> u64 {
        session.step() - self.after_step
    }
}
