//! What the daemon knows of its jobs, kept across restarts.
//!
//! The records here are the daemon's own words for a job's state: the supervisor changes them, the
//! [`Store`] keeps them, and `service` turns them into messages at the border.

mod history;
mod schema;
mod store;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

pub use millstream_backend::Description;
pub use millstream_trainer::metrics::Metrics;
pub use store::{Store, StoreError};

/// A job as the daemon sees it: what `millstream show` prints.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRecord {
    /// Unique in its store; begins with the job's name.
    pub id: String,
    /// From the job file.
    pub name: String,
    /// Where it stands.
    pub state: JobState,
    /// Why it failed or was resumed last; empty when there is nothing to tell.
    pub reason: String,
    /// Times a worker was started for it.
    pub attempts: u32,
    /// When it was accepted, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// When its preparation first began.
    pub started_ms: Option<u64>,
    /// When it reached a final state.
    pub ended_ms: Option<u64>,
    /// Its own directory, where its checkpoints are.
    pub directory: PathBuf,
    /// The newest committed checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// What it trains on, as its last worker said; none before the first did.
    pub device: Option<Description>,
    /// How far it is.
    pub progress: Progress,
    /// Metrics of the last evaluation, of each label; none before the first.
    pub eval: Vec<Metrics>,
    /// The epoch that it followed, from 0; `None` where that had not ended.
    pub eval_epoch: Option<u32>,
}

/// What a job was made from: enough to resolve it again after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSource {
    /// The job's canonical text, [`crate::job::Job::text`].
    pub text: String,
    /// The job file it came from.
    pub path: PathBuf,
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// Accepted, and waiting for its turn.
    Queued,
    /// Listing files, learning vocabularies and statistics.
    Preparing,
    /// A worker trains, or is being started again.
    Running,
    /// It reached its end.
    Succeeded,
    /// It cannot go on; the record's `reason` says why.
    Failed,
    /// It was stopped by a person, after a checkpoint.
    Cancelled,
}

/// How far a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Steps taken.
    pub step: u64,
    /// Steps of all epochs; `None` while unknown.
    pub total_steps: Option<u64>,
    /// The present epoch, from 0.
    pub epoch: u32,
    /// Epochs in all.
    pub epochs: u32,
    /// Rows trained on.
    pub examples: u64,
    /// Rows trained on in a second, recently; over the whole run once it has ended.
    pub examples_per_second: f64,
    /// Share of the training time spent waiting for a batch, from 0 to 1.
    pub input_wait_fraction: f64,
    /// Mean training loss since the last report.
    pub loss: f64,
    /// Records left out under `on_bad_record = "skip"`.
    pub skipped_records: u64,
}

/// One line of a job's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Position in the job's log, from 1.
    pub seq: u64,
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// How serious it is.
    pub level: LogLevel,
    /// The message.
    pub text: String,
}

/// How serious a log line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// The course of events.
    Info,
    /// Worth a look: the job goes on.
    Warn,
    /// The job, or an attempt at it, ended.
    Error,
}

/// A job's course over its steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// Of the training, by step.
    pub points: Vec<HistoryPoint>,
    /// All that ended, by step.
    pub evaluations: Vec<Evaluation>,
}

/// What the steps since the point before came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HistoryPoint {
    /// Steps taken, these included.
    pub step: u64,
    /// Mean training loss of their rows.
    pub loss: f64,
    /// Rows.
    pub examples: u64,
    /// Time that went into training.
    pub seconds: f64,
    /// The part of it spent waiting for a batch.
    pub waited_seconds: f64,
}

/// What an evaluation came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// Steps taken before it.
    pub step: u64,
    /// The epoch that it followed, from 0.
    pub epoch: u32,
    /// Numbers by their names, as [`Metrics::named_values`] has them.
    pub metrics: Vec<(String, f64)>,
}

/// Milliseconds since the Unix epoch; 0 on a clock set before it.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A name that is none of an enum's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not known here")]
pub struct UnknownName(String);

impl JobRecord {
    /// The record of a job just accepted.
    pub fn new(id: impl Into<String>, name: impl Into<String>, directory: PathBuf) -> Self {
        Self {
            id: id.into(),
            name: name.into(),
            state: JobState::Queued,
            reason: String::new(),
            attempts: 0,
            created_ms: now_ms(),
            started_ms: None,
            ended_ms: None,
            directory,
            checkpoint: None,
            device: None,
            progress: Progress::default(),
            eval: Vec::new(),
            eval_epoch: None,
        }
    }

    /// Moves to `state` and keeps the times that go with it.
    pub fn enter(&mut self, state: JobState, reason: impl Into<String>) {
        self.state = state;
        self.reason = reason.into();
        if state != JobState::Queued && self.started_ms.is_none() {
            self.started_ms = Some(now_ms());
        }
        self.ended_ms = state.is_final().then(now_ms);
    }
}

impl JobState {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Queued, Self::Preparing, Self::Running, Self::Succeeded, Self::Failed, Self::Cancelled];

    /// Whether nothing follows it.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// Its name, as people and JSON see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Preparing => "preparing",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for JobState {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        Self::ALL.into_iter().find(|state| state.as_str() == name).ok_or_else(|| UnknownName(name.to_owned()))
    }
}

impl LogLevel {
    /// Its name, as people see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for LogLevel {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        [Self::Info, Self::Warn, Self::Error]
            .into_iter()
            .find(|level| level.as_str() == name)
            .ok_or_else(|| UnknownName(name.to_owned()))
    }
}
