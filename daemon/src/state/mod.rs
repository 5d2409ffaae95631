//! The daemon's persistent state: jobs, their logs and their histories.
//!
//! Defines the records of a job's state. The supervisor changes them, the [`Store`] keeps them, and `service`
//! converts them to messages. A job's progress is the API's message itself.

mod history;
mod schema;
mod store;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use millstream_backend::Description;
use millstream_control::proto::JobProgress;
use millstream_trainer::metrics::Metrics;
pub use store::{Store, StoreError};

/// A job's state, as `millstream show` prints it.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRecord {
    /// Unique in its store; starts with the job's name.
    pub id: String,
    /// The name in the job file.
    pub name: String,
    /// Its state.
    pub state: JobState,
    /// Why it failed or was last resumed; empty otherwise.
    pub reason: String,
    /// Number of worker processes started.
    pub attempts: u32,
    /// When it was accepted, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// When its preparation first started.
    pub started_ms: Option<u64>,
    /// When it reached a final state.
    pub ended_ms: Option<u64>,
    /// The run directory, which has its checkpoints.
    pub directory: PathBuf,
    /// The newest committed checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// The device it trains on, reported by its last worker; `None` before the first report.
    pub device: Option<Description>,
    /// Training progress.
    pub progress: JobProgress,
    /// The last evaluation's metrics of each label; empty before the first evaluation.
    pub eval: Vec<Metrics>,
    /// The epoch, from 0, that this evaluation followed; `None` if it was taken within an epoch.
    pub eval_epoch: Option<u32>,
}

/// The source of a job, from which it can be resolved again after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSource {
    /// The job's canonical text, [`millstream_job::Job::text`].
    pub text: String,
    /// The path of the job file.
    pub path: PathBuf,
}

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// Accepted and waiting in the queue.
    Queued,
    /// Listing files, learning vocabularies and statistics.
    Preparing,
    /// A worker is training or being restarted.
    Running,
    /// It finished.
    Succeeded,
    /// It failed; the record's `reason` says why.
    Failed,
    /// A user cancelled it; a checkpoint was taken first.
    Cancelled,
}

/// One line of a job's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Position in the job's log, from 1.
    pub seq: u64,
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Its severity.
    pub level: LogLevel,
    /// The message.
    pub text: String,
}

/// The severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Normal operation.
    Info,
    /// A problem that does not stop the job.
    Warn,
    /// The job or an attempt failed.
    Error,
}

/// A job's metrics over its steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The training curve, by step.
    pub points: Vec<HistoryPoint>,
    /// All finished evaluations, by step.
    pub evaluations: Vec<Evaluation>,
}

/// Averages over the steps since the previous point.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HistoryPoint {
    /// The last step that the point covers.
    pub step: u64,
    /// Mean training loss per row.
    pub loss: f64,
    /// Rows trained on.
    pub examples: u64,
    /// Training time.
    pub seconds: f64,
    /// The part of `seconds` spent waiting for a batch.
    pub waited_seconds: f64,
}

/// The result of an evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// The step after which it was taken.
    pub step: u64,
    /// The epoch it followed, from 0.
    pub epoch: u32,
    /// Values by name, as of [`Metrics::named_values`].
    pub metrics: Vec<(String, f64)>,
}

/// Milliseconds since the Unix epoch; 0 on a clock set before it.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A name that is not a variant of the enum.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown name `{0}`")]
pub struct UnknownName(String);

impl JobRecord {
    /// The record of a newly accepted job.
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
            progress: JobProgress::default(),
            eval: Vec::new(),
            eval_epoch: None,
        }
    }

    /// Moves to `state` and updates the timestamps.
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
    /// All states.
    pub const ALL: [Self; 6] =
        [Self::Queued, Self::Preparing, Self::Running, Self::Succeeded, Self::Failed, Self::Cancelled];

    /// Whether the state is final.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// The name in messages and JSON.
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
    /// The name in messages.
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
