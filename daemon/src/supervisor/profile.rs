//! A profile of a job that trains: the worker records its steps, the daemon meanwhile the ingest that feeds them.
//!
//! Both are on one line of time ([`millstream_trace`]). The worker decides when recording begins and ends, between two
//! steps; its spans are held here until all have come, some tens of MB at the most.

use std::time::Instant;

use anyhow::{Error, Result, anyhow};
use millstream_pipeline::ingest::{Diagnosis, IngestStats};
use millstream_trace::{Recording, Track};
use tokio::sync::{oneshot, watch};

use super::Supervisor;
use crate::worker::protocol::WorkerProfile;

/// What was recorded of some steps.
#[derive(Debug)]
pub(crate) struct Profile {
    /// What the worker says of it.
    pub(crate) worker: WorkerProfile,
    /// Its process,
    pub(crate) pid: u32,
    /// and the spans of its threads and devices.
    pub(crate) tracks: Vec<Track>,
    /// Ingest's spans.
    pub(crate) ingest: Recording,
    /// How ingest went meanwhile.
    pub(crate) input: Diagnosis,
}

/// Somebody who asks for a profile.
#[derive(Debug)]
pub(crate) struct ProfileRequest {
    /// Steps to record.
    pub(crate) steps: u64,
    progress: watch::Sender<u64>,
    done: oneshot::Sender<Result<Profile>>,
}

/// Where somebody waits for a profile; dropped, nobody does any more.
#[derive(Debug)]
pub(crate) struct PendingProfile {
    /// Steps recorded so far.
    pub(crate) progress: watch::Receiver<u64>,
    /// All of them, or why there are none. Closed where the job has ended before there could be any.
    pub(crate) done: oneshot::Receiver<Result<Profile>>,
}

/// A profile under way.
pub(super) struct Profiling {
    request: ProfileRequest,
    /// How ingest stood when recording began, and when that was.
    before: Option<(IngestStats, Instant)>,
    /// What was recorded of it, once recording has ended.
    input: Option<(Recording, Diagnosis)>,
    tracks: Vec<Track>,
    /// Whether the worker was told that nobody waits.
    is_called_off: bool,
}

impl ProfileRequest {
    /// A request for `steps` steps, and where its answer comes.
    pub(crate) fn new(steps: u64) -> (Self, PendingProfile) {
        let ((progress, seen), (done, pending)) = (watch::channel(0), oneshot::channel());
        (Self { steps, progress, done }, PendingProfile { progress: seen, done: pending })
    }

    /// Says that there will be none.
    pub(super) fn refuse(self, why: Error) {
        // Whoever asked may have gone.
        let _ = self.done.send(Err(why));
    }
}

impl Profiling {
    pub(super) fn new(request: ProfileRequest) -> Self {
        Self { request, before: None, input: None, tracks: Vec::new(), is_called_off: false }
    }

    /// The worker has recorded so many steps; these are all if it `is_over`. Says whether it is to end since nobody waits
    /// any more, once.
    pub(super) fn recorded(&mut self, steps: u64, is_over: bool, supervisor: &Supervisor) -> bool {
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
        let is_to_end = self.request.done.is_closed() && !self.is_called_off && !is_over;
        self.is_called_off |= is_to_end;
        is_to_end
    }

    /// Spans of the worker.
    pub(super) fn add(&mut self, track: Track) {
        match self.tracks.last_mut().filter(|last| last.name == track.name) {
            Some(last) => last.spans.extend(track.spans),
            None => self.tracks.push(track),
        }
    }

    /// All spans have come.
    pub(super) fn finish(self, worker: WorkerProfile, pid: u32) {
        let Self { request, input, tracks, .. } = self;
        let profile = match input {
            Some(_) if worker.steps == 0 => Err(anyhow!("the job ended before its next step")),
            Some((ingest, input)) => Ok(Profile { worker, pid, tracks, ingest, input }),
            None => Err(anyhow!("the job's input ended while it was recorded")),
        };
        // Whoever asked may have gone.
        let _ = request.done.send(profile);
    }

    /// The worker is gone.
    pub(super) fn lose(self, why: &str, supervisor: &Supervisor) {
        supervisor.stores.recorder().end();
        self.request.refuse(anyhow!("what was recorded is lost: {why}"));
    }
}
