//! Running the job of an earlier run again.
//!
//! Without changes, the new run has what the earlier one decided: the listing of its files, what it learned from them, the
//! checkpoint it started from and its batch size. So it trains the same model, or fails because a file has changed. With
//! changes, it keeps the listing if it reads the same files, and decides the rest again.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use millstream_io::storage::Directory;
use millstream_job::Job;

use super::{
    ANALYSIS, AUTO_BATCH, CONTINUATION, ID_MAPPINGS, LISTINGS, RunDirectory, Storage, WARM_START, get,
    is_run, job_path, job_text, of_checkpoint, put,
};
use crate::access::Requester;

/// The directory of the earlier run.
pub(crate) const RERUN: &str = "rerun";

/// What a run decided. The mappings come before the checkpoint of the weights, whose presence completes them.
const DECISIONS: [&str; 5] = [ANALYSIS, ID_MAPPINGS, WARM_START, CONTINUATION, AUTO_BATCH];

/// An earlier run whose job is to run again.
pub(crate) struct Rerun {
    directory: RunDirectory,
    /// Its job file.
    pub(crate) path: PathBuf,
    /// The text of its job file, without secrets in addresses.
    pub(crate) text: String,
    job: Job,
}

impl Rerun {
    /// The run in `directory`, or that of the checkpoint in `directory`.
    ///
    /// # Errors
    /// When there is no run, or `requester` may not read it.
    pub(crate) fn of(directory: Directory, requester: &Requester, storage: &Storage) -> Result<Self> {
        let home = of_checkpoint(&directory).map(|(home, _)| home);
        let directory = RunDirectory::new(home.unwrap_or(directory), storage);
        let read = || -> Result<Self> {
            ensure!(is_run(&directory)?, "it is not the directory of a run");
            if let Some(path) = directory.as_local() {
                requester.check_run(path)?;
            }
            let (path, text) = (job_path(&directory), job_text(&directory, requester)?);
            let (job, _) = Job::parse_with(&text, &path, &[], &|file| requester.open(file))?;
            Ok(Self { directory: directory.clone(), path, text, job })
        };
        read().with_context(|| format!("the run in {directory} cannot be repeated"))
    }

    /// Gives the run of `job` in `directory`, which is new, what it has in common with this one.
    ///
    /// # Errors
    /// When a file of this run is damaged, or one of the new run cannot be written.
    pub(crate) fn prepare(&self, directory: &RunDirectory, job: &Job) -> Result<()> {
        let is_same = job.fingerprint() == self.job.fingerprint();
        let reads_same_files = job.differences_of_files(&self.job).is_empty();
        let listings = LISTINGS.iter().filter(|_| reads_same_files);
        for name in listings.chain(DECISIONS.iter().filter(|_| is_same)) {
            if let Some(bytes) = get(&self.directory, name)? {
                put(directory, name, &bytes)?;
            }
        }
        put(directory, RERUN, &self.directory.address().to_bytes())
    }
}
