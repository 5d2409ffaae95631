//! The daemon's state at a moment, as plain data for metrics and displays.
//!
//! [`Daemon::snapshot`](crate::daemon::Daemon::snapshot) takes it from memory and `/proc`, and never waits for
//! the state database or a GPU's driver. So a display may ask once a second, and a database that hangs hides nothing.
//! Consumers see one consistent value and depend neither on the daemon's locks nor on each other's formats.

pub(crate) mod system;

use std::time::Duration;

use millstream_control::proto::JobState;
use millstream_feed::host::HostStatus;
use millstream_pipeline::ingest::Explanation;
use millstream_worker::gpus::GpuUse;

use crate::state::JobRecord;
pub use system::{HostUse, OpenFiles, ProcessUse};

/// The daemon's state at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// When it was taken, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The daemon's version.
    pub version: &'static str,
    /// When it started, in milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// Whether it is stopping: no further job starts.
    pub is_stopping: bool,
    /// Jobs that wait in the queue.
    pub queued_jobs: u64,
    /// Jobs that are held until a user resumes or removes them.
    pub held_jobs: u64,
    /// Jobs that have ended since the daemon started.
    pub ended_jobs: EndedJobs,
    /// The jobs under way: preparing or running.
    pub jobs: Vec<JobSnapshot>,
    /// Spans for the OpenTelemetry collector; `None` if none is configured.
    pub spans: Option<SpanCounts>,
    /// The daemon's own process; `None` if `/proc` cannot be read.
    pub process: Option<ProcessUse>,
    /// The daemon's file descriptors; `None` if `/proc` cannot be read.
    pub open_files: Option<OpenFiles>,
    /// The host's name; empty if unknown.
    pub host_name: String,
    /// The host.
    pub host: HostUse,
    /// The host's GPUs; `None` if it has none of NVIDIA's.
    pub gpus: Option<GpusSnapshot>,
    /// The hosts of other daemons; `None` if it has no peers.
    pub peers: Option<PeersUse>,
    /// The feeds of trainers of other programs.
    pub feeds: HostStatus,
}

/// The hosts of other daemons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeersUse {
    /// Those that answer.
    pub up: u64,
    /// Those that do not.
    pub down: u64,
    /// Connections to the port for peers that were refused since the daemon started.
    pub refused: u64,
}

/// Jobs that have ended, by outcome. A job that is resumed and ends again counts twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedJobs {
    /// Jobs that reached the end of their training.
    pub succeeded: u64,
    /// Jobs that failed.
    pub failed: u64,
    /// Jobs that a user cancelled.
    pub cancelled: u64,
    /// Jobs that are held because the daemon died repeatedly while they were under way.
    pub held: u64,
}

/// What has become of the spans of traces since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanCounts {
    /// Spans that the collector has taken.
    pub sent: u64,
    /// Spans that were dropped, because the collector did not take them, or not fast enough.
    pub dropped: u64,
}

/// A job under way.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSnapshot {
    /// Its record. The state is preparing or running, or a final one for a moment at its end.
    pub record: JobRecord,
    /// The newest checkpoint.
    pub checkpoint: Option<CheckpointSnapshot>,
    /// The step of the newest image of the model, if the job keeps any.
    pub image_step: Option<u64>,
    /// Its worker, while it has one.
    pub worker: Option<WorkerSnapshot>,
    /// Its ingest, while there is one.
    pub ingest: Option<Explanation>,
}

/// The host's GPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpusSnapshot {
    /// The GPUs, in the order of `nvidia-smi`.
    pub gpus: Vec<GpuSnapshot>,
    /// When they were read, in milliseconds since the Unix epoch; `None` if they never were.
    pub sampled_ms: Option<u64>,
    /// Whether that is too long ago to be the present.
    pub is_stale: bool,
    /// Why they cannot be read now.
    pub problem: Option<String>,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuSnapshot {
    /// What the driver reports.
    pub found: GpuUse,
    /// The jobs whose workers compute on it.
    pub jobs: Vec<GpuJob>,
    /// Memory that other processes use; `None` if unknown.
    pub other_bytes: Option<u64>,
}

/// A job's share of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuJob {
    /// The job's id.
    pub id: String,
    /// Memory that its worker uses, if known.
    pub bytes: Option<u64>,
}

/// A committed checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointSnapshot {
    /// The step after which it was taken.
    pub step: u64,
    /// When it was committed, in milliseconds since the Unix epoch, if known.
    pub committed_ms: Option<u64>,
}

/// The worker processes of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerSnapshot {
    /// Their process ids, by rank.
    pub pids: Vec<u32>,
    /// What they use together; `None` if they have just exited.
    pub process: Option<ProcessUse>,
    /// The share of its recent time that each was in exchanges with the others, by rank; empty for one worker alone.
    pub exchange_shares: Vec<Option<f64>>,
    /// The number of workers that the job has but does not start, because they or their devices failed.
    pub left_out: u32,
}

/// One of several workers of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct RankSnapshot {
    /// Its number among them, from 0.
    pub rank: u32,
    /// Where it is.
    pub place: RankPlace,
    /// The share of its recent time in exchanges with the other workers, from 0 to 1; `None` before the second exchange. The
    /// slowest worker waits the least.
    pub exchange_share: Option<f64>,
    /// Set while the others wait for it.
    pub awaited: Option<AwaitedSnapshot>,
}

/// Where a worker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RankPlace {
    /// On this host, with this process id.
    Process(u32),
    /// On the host with this name.
    Host(String),
}

/// The exchange in which others wait for a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct AwaitedSnapshot {
    /// The exchange, as `gather of f32, number 512`.
    pub exchange: String,
    /// How long they have waited.
    pub since: Duration,
}

impl Snapshot {
    /// The number of jobs in a state of the queue or under way.
    pub fn jobs_in(&self, state: JobState) -> u64 {
        match state {
            JobState::Queued => self.queued_jobs,
            JobState::Held => self.held_jobs,
            _ => self.jobs.iter().filter(|job| job.record.state == state).count() as u64,
        }
    }
}
