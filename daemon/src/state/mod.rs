//! The daemon's persistent state: jobs, their logs and their histories.
//!
//! Defines the records of a job's state. The supervisor changes them, the [`Store`] keeps them
//! in a database that only its thread touches, and `service`
//! converts them to messages. A job's state, progress and evaluations are the API's messages themselves.

mod audit;
mod database;
mod directory;
mod history;
mod logs;
mod schema;
mod store;

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::access::Requester;
pub use audit::{AuditFilter, AuditRecord, Outcome};
pub use database::StoreError;
pub(crate) use directory::OpenState;
use millstream_backend::Description;
use millstream_control::proto::{Evaluation, JobProgress, JobState};
use millstream_io::storage::Directory;
use millstream_trainer::metrics::Metrics;
use serde::{Deserialize, Serialize};
pub use store::Store;
use tracing::Level;

/// The maximum length of a text of a job's record or log, in bytes. Longer ones, such as an error that quotes a value of
/// the data, are cut.
pub const MAX_TEXT_BYTES: usize = 4096;

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
    /// Why it is queued; empty otherwise. Not stored.
    pub waits_for: String,
    /// The user who submitted it; `None` for the program that hosts the daemon.
    pub owner: Option<Owner>,
    /// Jobs of a higher priority start earlier.
    pub priority: i32,
    /// Number of worker processes started.
    pub attempts: u32,
    /// When it was accepted, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// When its preparation first started.
    pub started_ms: Option<u64>,
    /// When it reached a final state.
    pub ended_ms: Option<u64>,
    /// The run directory, which has its checkpoints.
    pub directory: Directory,
    /// The newest committed checkpoint.
    pub checkpoint: Option<Directory>,
    /// The device it trains on, reported by its last worker; `None` before the first report.
    pub device: Option<Description>,
    /// Training progress.
    pub progress: JobProgress,
    /// The last evaluation's metrics of each label; empty before the first evaluation.
    pub eval: Vec<Metrics>,
    /// The epoch, from 0, that this evaluation followed; `None` if it was taken within an epoch.
    pub eval_epoch: Option<u32>,
    /// How often the daemon died while this job was under way, since its last new checkpoint.
    pub daemon_deaths: u32,
}

/// A user when a job was submitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The user's number.
    pub uid: u32,
    /// The user's name, if the system knows one.
    pub name: Option<String>,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => f.write_str(name),
            None => write!(f, "uid {}", self.uid),
        }
    }
}

/// Selects jobs. By default all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// Their states; empty for all.
    pub states: Vec<JobState>,
    /// At most this many, the newest ones.
    pub limit: Option<u32>,
}

/// The source of a job, from which it can be resolved again after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSource {
    /// The job's canonical text, [`millstream_job::Job::text`].
    pub text: String,
    /// The path of the job file.
    pub path: PathBuf,
    /// Who submitted it.
    pub requester: Requester,
}

/// One line of a job's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Position in the job's log, from 1.
    pub seq: u64,
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Its severity.
    pub level: Level,
    /// The message.
    pub text: String,
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

/// `text` as it is stored and shown: without the secrets of addresses in it, and cut to [`MAX_TEXT_BYTES`].
pub fn storable(text: &str) -> Cow<'_, str> {
    // Removing secrets shortens the text, but hardly to a quarter.
    let (whole_bytes, considered) = (text.len(), text.floor_char_boundary(4 * MAX_TEXT_BYTES));
    let text = millstream_io::redact(&text[..considered]);
    if considered == whole_bytes && text.len() <= MAX_TEXT_BYTES {
        return text;
    }
    let mark = format!("... (cut from {whole_bytes} bytes)");
    let end = text.floor_char_boundary(MAX_TEXT_BYTES - mark.len());
    Cow::Owned(format!("{}{mark}", &text[..end]))
}

/// Milliseconds since the Unix epoch; 0 on a clock set before it.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl JobRecord {
    /// The record of a newly accepted job.
    pub fn new(id: impl Into<String>, name: impl Into<String>, directory: Directory) -> Self {
        Self {
            id: id.into(),
            name: name.into(),
            state: JobState::Queued,
            reason: String::new(),
            waits_for: String::new(),
            owner: None,
            priority: 0,
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
            daemon_deaths: 0,
        }
    }

    /// Moves to `state` and updates the timestamps.
    pub fn enter(&mut self, state: JobState, reason: &str) {
        self.state = state;
        self.reason = storable(reason).into_owned();
        self.waits_for.clear();
        if state != JobState::Queued && self.started_ms.is_none() {
            self.started_ms = Some(now_ms());
        }
        self.ended_ms = state.is_final().then(now_ms);
    }
}
