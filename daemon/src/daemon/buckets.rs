//! Requests about runs in buckets, which may be slow.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use millstream_io::storage::{Directory, StorageSpec};
use millstream_job::Job;

use super::Daemon;
use crate::runs::{self, Storage};
use crate::scoring::CancelOnDrop;

/// The maximum number of requests that look into a bucket at a time, and how long each may take.
pub(super) const MAX_LOOKS: usize = 4;
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);

impl Daemon {
    /// What reads and writes the directories of runs of a job with this `[storage]`.
    pub(super) fn storage(&self, spec: &StorageSpec) -> Storage {
        self.shared.storage.for_job(spec)
    }

    /// The `[storage]` of the job with the run or the checkpoint in `directory`, if it is one of this daemon.
    pub(super) fn storage_of_run(&self, directory: &Directory) -> Result<Option<StorageSpec>> {
        let home = runs::of_checkpoint(directory).map_or_else(|| directory.clone(), |(home, _)| home);
        let Some(record) = home.name().map(|id| self.shared.store.job(id)).transpose()?.flatten() else {
            return Ok(None);
        };
        if record.directory != home {
            return Ok(None);
        }
        Ok(Some(self.job_of(&record.id)?.storage))
    }

    /// The job file of a job.
    pub(super) fn job_of(&self, id: &str) -> Result<Job> {
        let source = self.shared.store.source(id)?;
        Ok(Job::parse(&source.text, &source.path, &[])?.0)
    }

    /// Calls `look` with what reads a bucket as `spec` says: where it may block, as one of few, and for [`LOOK_TIMEOUT`] at most.
    pub(super) async fn look_into_bucket<T: Send + 'static>(
        &self,
        spec: &StorageSpec,
        look: impl FnOnce(&Storage) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let storage = self.storage(spec);
        let _cancelled = CancelOnDrop(storage.stores.clone());
        let looked = async {
            let permit = Arc::clone(&self.shared.looks).acquire_owned().await?;
            // The permit comes back when the thread is free again.
            let look = move || (look(&storage), permit);
            tokio::task::spawn_blocking(look).await?.0
        };
        let looked = tokio::time::timeout(LOOK_TIMEOUT, looked).await;
        looked
            .with_context(|| format!("the bucket is slow: no answer within {} s", LOOK_TIMEOUT.as_secs()))?
    }
}
