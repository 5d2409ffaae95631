//! A profile of a training job: a worker records its steps while the daemon records their ingest.
//!
//! Both recordings share one clock ([`millstream_trace`]). The worker decides when recording begins and ends,
//! between two steps. Its spans are held here until all have arrived: at most tens of MB.

use std::time::Instant;

use anyhow::{Error, Result, anyhow};
use millstream_pipeline::ingest::{Diagnosis, IngestStats};
use millstream_trace::{Recording, Track};
use tokio::sync::{oneshot, watch};

use super::Supervisor;
use millstream_worker::protocol::WorkerProfile;

/// The recording of some steps.
#[derive(Debug)]
pub(crate) struct Profile {
    /// The worker's summary.
    pub(crate) worker: WorkerProfile,
    /// The worker's rank, and how many workers the job has.
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// The worker's process id.
    pub(crate) pid: u32,
    /// The spans of the worker's threads and devices.
    pub(crate) tracks: Vec<Track>,
    /// Ingest's spans.
    pub(crate) ingest: Recording,
    /// The diagnosis of ingest during the recording.
    pub(crate) input: Diagnosis,
}

/// A client's request for a profile.
#[derive(Debug)]
pub(crate) struct ProfileRequest {
    /// Steps to record.
    pub(super) steps: u64,
    /// The worker that records them.
    pub(super) rank: u32,
    progress: watch::Sender<u64>,
    done: oneshot::Sender<Result<Profile>>,
}

/// A request for a profile of a worker that the job lacks.
#[derive(Debug, thiserror::Error)]
#[error("rank {rank} is out of range: the job has {}", describe(*.ranks))]
pub(crate) struct NoSuchRank {
    /// The requested worker.
    pub(crate) rank: u32,
    /// The number of the job's workers.
    pub(crate) ranks: u32,
}

/// The receiving end of a requested profile. Dropping it cancels the recording.
#[derive(Debug)]
pub(crate) struct PendingProfile {
    /// Steps recorded so far.
    pub(crate) progress: watch::Receiver<u64>,
    /// The profile or an error. Closed without a value if the job ends before a step is recorded.
    pub(crate) done: oneshot::Receiver<Result<Profile>>,
}

/// A profile in progress.
pub(super) struct Profiling {
    request: ProfileRequest,
    /// Ingest statistics and the time when recording began.
    before: Option<(IngestStats, Instant)>,
    /// Ingest's recording and diagnosis, once recording has ended.
    input: Option<(Recording, Diagnosis)>,
    tracks: Vec<Track>,
    /// Whether the worker was asked to cancel.
    is_cancelled: bool,
}

impl ProfileRequest {
    /// A request for `steps` steps of worker `rank`, and its receiving end.
    pub(super) fn new(steps: u64, rank: u32) -> (Self, PendingProfile) {
        let ((progress, seen), (done, pending)) = (watch::channel(0), oneshot::channel());
        (Self { steps, rank, progress, done }, PendingProfile { progress: seen, done: pending })
    }

    /// Whether the client has disconnected.
    pub(super) fn is_abandoned(&self) -> bool {
        self.done.is_closed()
    }

    /// Fails the request with `why`.
    pub(super) fn refuse(self, why: Error) {
        // The client may have disconnected.
        let _ = self.done.send(Err(why));
    }
}

impl Profiling {
    pub(super) fn new(request: ProfileRequest) -> Self {
        Self { request, before: None, input: None, tracks: Vec::new(), is_cancelled: false }
    }

    /// Notes that the worker has recorded `steps` steps, all of them if `is_over`. Returns true, once, if the
    /// worker should stop because the client has disconnected.
    pub(super) fn on_progress(&mut self, steps: u64, is_over: bool, supervisor: &Supervisor) -> bool {
        let recorder = supervisor.stores.recorder();
        match self.before.take() {
            None if self.input.is_none() => {
                self.before =
                    supervisor.control.ingest().as_ref().map(|ingest| (ingest.stats(), Instant::now()));
                recorder.begin();
            }
            Some((stats, began)) if is_over => {
                let (seconds, recording) = (began.elapsed().as_secs_f64(), recorder.end());
                let ingest = supervisor.control.ingest();
                let input = ingest.as_ref().map(|ingest| ingest.explain_since(&stats, seconds));
                self.input = input.map(|input| (recording, input));
            }
            before => self.before = before,
        }
        self.request.progress.send_replace(steps);
        let should_cancel = self.request.done.is_closed() && !self.is_cancelled && !is_over;
        self.is_cancelled |= should_cancel;
        should_cancel
    }

    /// Adds spans of the worker.
    pub(super) fn add(&mut self, track: Track) {
        match self.tracks.last_mut().filter(|last| last.name == track.name) {
            Some(last) => last.spans.extend(track.spans),
            None => self.tracks.push(track),
        }
    }

    /// Completes the request after all spans have arrived, from the worker with process id `pid` of `ranks` workers.
    pub(super) fn finish(self, worker: WorkerProfile, (pid, ranks): (u32, u32)) {
        let Self { request, input, tracks, .. } = self;
        let profile = match input {
            Some(_) if worker.steps == 0 => Err(anyhow!("the job ended before its next step")),
            Some((ingest, input)) => {
                Ok(Profile { worker, rank: request.rank, ranks, pid, tracks, ingest, input })
            }
            None => Err(anyhow!("the job's input ended while it was recorded")),
        };
        // The client may have disconnected.
        let _ = request.done.send(profile);
    }

    /// Fails the request because the worker has exited.
    pub(super) fn abort(self, why: &str, supervisor: &Supervisor) {
        supervisor.stores.recorder().end();
        self.request.refuse(anyhow!("the recording is lost: {why}"));
    }
}

/// The number of a job's workers, and their ranks.
fn describe(ranks: u32) -> String {
    match ranks {
        1 => "one worker, rank 0".to_owned(),
        several => format!("{several} workers, ranks 0 to {}", several - 1),
    }
}
