//! The life of jobs as OpenTelemetry traces, if a collector is configured.
//!
//! A job's parts report what happens to it as [`JobEvent`]s, through its recorder. A [`Life`] makes spans of them, and
//! the [`Pipeline`] sends these on a thread of its own. Nothing else in the daemon knows of spans. Reporting an event
//! never waits: a collector that does not answer costs spans, which are counted, and nothing else.
//!
//! The ids of a trace and of its first span follow from the job's id. So nothing is stored, and a daemon that resumes a
//! job, even on another host, continues its trace and links to its first span.

mod export;
mod life;
mod target;

use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use millstream_control::proto::{Evaluation, JobState};
use tokio::runtime::Handle;

use crate::actor::{Action, Actor};
use crate::snapshot::SpanCounts;
use crate::state::{JobRecord, storable};
use export::Pipeline;
use life::Life;
pub use target::TraceTarget;

/// Something that happened to a job.
#[derive(Clone, Copy, Debug)]
pub(crate) enum JobEvent<'a> {
    /// The daemon has queued it.
    Accepted(Entry, &'a JobRecord),
    /// A user asked for something.
    Requested(Action, Actor),
    /// It changed its state.
    Entered { state: JobState, reason: &'a str },
    /// Why it is queued.
    Waits { why: &'a str },
    /// Its preparation has come to a stage.
    Stage(Stage),
    /// A worker process has started.
    WorkerStarted { pid: u32, attempt: u32 },
    /// The worker has its model, at `step`, and its input begins.
    WorkerReady { step: u64, resumed: bool, device: &'a str },
    /// The worker has trained up to `step`, on new rows since the last report or not.
    Progress { step: u64, epoch: u32, has_trained: bool },
    /// An evaluation has ended, which took this long.
    Evaluated(&'a Evaluation, Duration),
    /// A checkpoint is committed, `took` after its begin.
    Checkpointed { step: u64, bytes: u64, took: Duration },
    /// A checkpoint could not be written.
    CheckpointFailed { step: u64, why: &'a str, took: Duration },
    /// The worker is asked to stop.
    Stopping { why: &'a str },
    /// The attempt has ended: with the kind of its error and its text, if it failed.
    WorkerEnded { error: Option<(&'static str, &'a str)> },
}

/// How a job enters a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// As a new job.
    Submitted,
    /// A user resumes it.
    Resumed,
    /// An earlier daemon left it unfinished.
    Restarted,
}

/// A stage of a preparation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The files are listed and checked.
    Listing,
    /// Statistics are learned from the data, or read if an earlier run has learned them.
    Statistics,
    /// The batches, the model and their memory are planned.
    Planning,
}

/// The traces of a daemon. Without a collector, nothing is recorded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traces(Option<Arc<Pipeline>>);

impl Traces {
    /// Sends traces to `target`, if there is one, with the threads of `runtime`, which must outlive it.
    ///
    /// # Errors
    /// When the target cannot be used. One that does not answer is no error.
    pub(crate) fn start(target: Option<&TraceTarget>, runtime: &Handle) -> Result<Self> {
        let pipeline = target.map(|target| Pipeline::start(target, runtime)).transpose()?;
        Ok(Self(pipeline.map(Arc::new)))
    }

    /// The trace of a job.
    pub(crate) fn job(&self, id: &str) -> JobTrace {
        JobTrace(self.0.as_ref().map(|pipeline| (Arc::clone(pipeline), Mutex::new(Life::new(id)))))
    }

    /// The spans sent and dropped so far; `None` without a collector.
    pub(crate) fn counts(&self) -> Option<SpanCounts> {
        self.0.as_ref().map(|pipeline| pipeline.counts())
    }

    /// Sends what is left, within `limit`. Blocks. Later spans are dropped.
    pub(crate) fn flush(&self, limit: Duration) {
        if let Some(pipeline) = &self.0 {
            pipeline.flush(limit);
        }
    }
}

/// The trace of a job while it is in a daemon.
#[derive(Debug, Default)]
pub(crate) struct JobTrace(Option<(Arc<Pipeline>, Mutex<Life>)>);

impl JobTrace {
    /// Whether anything is recorded.
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The id of the trace, if it is recorded.
    pub(crate) fn id(&self) -> Option<impl Display> {
        let (_, life) = self.0.as_ref()?;
        Some(life.lock().unwrap_or_else(PoisonError::into_inner).trace())
    }

    /// Records what happens to the job now. Never waits for the collector.
    pub(crate) fn record(&self, event: JobEvent<'_>) {
        self.change(|life| life.record(event, SystemTime::now()));
    }

    /// The daemon stops: ends the spans that are open.
    pub(crate) fn leave(&self) {
        self.change(|life| life.leave(SystemTime::now()));
    }

    fn change(&self, change: impl FnOnce(&mut Life)) {
        let Some((pipeline, life)) = &self.0 else { return };
        let mut life = life.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut life);
        life.take_ended().for_each(|span| pipeline.send(span));
    }
}

/// `text` without the secrets of addresses in it, and not too long.
fn shown(text: &str) -> String {
    storable(text).into_owned()
}
