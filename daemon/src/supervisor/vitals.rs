//! What a job's thread knows of its workers and its newest checkpoint, for observers that must not wait for the job.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::UNIX_EPOCH;

use millstream_io::storage::Directory;
use millstream_trainer::checkpoint::MANIFEST;
use millstream_worker::protocol::CheckpointSize;

use super::{Exchanges, FewerWorkers, FlightRecords};
use crate::snapshot::CheckpointSnapshot;
use crate::state::now_ms;

/// Set by the job's thread, read by observers.
#[derive(Debug, Default)]
pub(crate) struct Vitals(Mutex<Facts>);

#[derive(Clone, Debug, Default)]
struct Facts {
    workers: Vec<u32>,
    records: FlightRecords,
    checkpoint: Option<CheckpointSnapshot>,
    /// The size of its parts.
    checkpoint_bytes: u64,
    image_step: Option<u64>,
    fewer_workers: Option<FewerWorkers>,
}

impl Vitals {
    /// The process ids of the workers, by rank, while there are any.
    pub(crate) fn workers(&self) -> Vec<u32> {
        self.facts().workers.clone()
    }

    /// The newest checkpoint that the job has committed or resumed from.
    pub(crate) fn checkpoint(&self) -> Option<CheckpointSnapshot> {
        self.facts().checkpoint
    }

    /// The size of that checkpoint.
    pub(crate) fn checkpoint_bytes(&self) -> u64 {
        self.facts().checkpoint_bytes
    }

    /// The step of the newest image of the model.
    pub(crate) fn image_step(&self) -> Option<u64> {
        self.facts().image_step
    }

    /// The workers of a job that trains with fewer than it has.
    pub(crate) fn fewer_workers(&self) -> Option<FewerWorkers> {
        self.facts().fewer_workers.clone()
    }

    /// The exchanges between the workers, if there are several.
    pub(crate) fn exchanges(&self) -> Exchanges {
        let records = self.facts().records.clone();
        records.now()
    }

    pub(super) fn set_workers(&self, pids: Vec<u32>, flight_records: FlightRecords) {
        let mut facts = self.facts();
        (facts.workers, facts.records) = (pids, flight_records);
    }

    /// A checkpoint of this step and size has just been committed.
    pub(super) fn committed(&self, step: u64, bytes: u64) {
        let mut facts = self.facts();
        facts.checkpoint = Some(CheckpointSnapshot { step, committed_ms: Some(now_ms()) });
        facts.checkpoint_bytes = bytes;
    }

    /// The newest image is that of `step`.
    pub(super) fn set_image(&self, step: Option<u64>) {
        self.facts().image_step = step;
    }

    /// The job trains with fewer workers than it has.
    pub(super) fn set_fewer_workers(&self, fewer: FewerWorkers) {
        self.facts().fewer_workers = Some(fewer);
    }

    /// No attempt follows: there is no image, and no worker is left out.
    pub(super) fn attempts_ended(&self) {
        let mut facts = self.facts();
        (facts.image_step, facts.fewer_workers) = (None, None);
    }

    /// The job resumes from this checkpoint, whose directory is given, or from scratch.
    pub(super) fn restored(&self, checkpoint: Option<(CheckpointSize, &Directory)>) {
        let found = checkpoint.map(|(CheckpointSize { step, .. }, directory)| CheckpointSnapshot {
            step,
            // In a bucket, that would take a request.
            committed_ms: directory.as_local().and_then(committed_ms),
        });
        let mut facts = self.facts();
        facts.checkpoint = found;
        facts.checkpoint_bytes = checkpoint.map_or(0, |(size, _)| size.bytes);
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When the checkpoint in `directory` was committed: its manifest is written last.
fn committed_ms(directory: &Path) -> Option<u64> {
    let modified = directory.join(MANIFEST).metadata().ok()?.modified().ok()?;
    u64::try_from(modified.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn no_worker_is_left_out_of_a_job_that_has_ended() {
        let vitals = Vitals::default();
        vitals.set_image(Some(7));
        vitals.set_fewer_workers(FewerWorkers { members: 1, all: 2, left_out: Vec::new() });
        vitals.attempts_ended();
        assert_eq!((vitals.image_step(), vitals.fewer_workers()), (None, None));
    }

    #[test]
    fn a_restored_checkpoint_has_the_time_of_its_manifest() {
        let directory = tempfile::tempdir().unwrap();
        let vitals = Vitals::default();
        let (size, place) = (CheckpointSize { step: 7, bytes: 9 }, Directory::local(directory.path()));
        vitals.restored(Some((size, &place)));
        assert_eq!(vitals.checkpoint(), Some(CheckpointSnapshot { step: 7, committed_ms: None }));
        assert_eq!(vitals.checkpoint_bytes(), 9);
        std::fs::write(directory.path().join(MANIFEST), "{}").unwrap();
        vitals.restored(Some((size, &place)));
        let committed_ms = vitals.checkpoint().unwrap().committed_ms.unwrap();
        assert!(now_ms().abs_diff(committed_ms) < 60_000);
        vitals.restored(None);
        assert_eq!(vitals.checkpoint(), None);
    }
}
