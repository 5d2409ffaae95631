//! Running the job of an earlier run again.
//!
//! Without changes, the new run has what the earlier one decided: the listing of its files, what it learned from them, the
//! checkpoint it started from and its batch size. So it trains the same model, or fails because a file has changed. With
//! changes, it keeps the listing if it reads the same files, and decides the rest again.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use millstream_job::Job;

use super::{
    ANALYSIS, AUTO_BATCH, CONTINUATION, ID_MAPPINGS, JOB, LISTINGS, MAX_JOB_BYTES, WARM_START, get, is_run,
    of_checkpoint, put,
};
use crate::access::Requester;

/// The directory of the earlier run.
pub(crate) const RERUN: &str = "rerun";

/// What a run decided. The mappings come before the checkpoint of the weights, whose presence completes them.
const DECISIONS: [&str; 5] = [ANALYSIS, ID_MAPPINGS, WARM_START, CONTINUATION, AUTO_BATCH];

/// An earlier run whose job is to run again.
pub(crate) struct Rerun {
    directory: PathBuf,
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
    pub(crate) fn of(directory: &Path, requester: &Requester) -> Result<Self> {
        let directory = of_checkpoint(directory).map_or(directory, |(home, _)| home);
        let read = || -> Result<Self> {
            ensure!(is_run(directory), "it is not the directory of a run");
            requester.check_run(directory)?;
            let path = directory.join(JOB);
            let mut text = String::new();
            requester.open(&path)?.take(MAX_JOB_BYTES).read_to_string(&mut text)?;
            let (job, _) = Job::parse_with(&text, &path, &[], &|file| requester.open(file))?;
            Ok(Self { directory: directory.to_owned(), path, text, job })
        };
        read().with_context(|| format!("the run in {} cannot be repeated", directory.display()))
    }

    /// Gives the run of `job` in `directory`, which is new, what it has in common with this one.
    ///
    /// # Errors
    /// When a file of this run is damaged, or one of the new run cannot be written.
    pub(crate) fn prepare(&self, directory: &Path, job: &Job) -> Result<()> {
        let is_same = job.fingerprint() == self.job.fingerprint();
        let reads_same_files = job.differences_of_files(&self.job).is_empty();
        let listings = LISTINGS.iter().filter(|_| reads_same_files);
        for name in listings.chain(DECISIONS.iter().filter(|_| is_same)) {
            if let Some(bytes) = get(&self.directory, name)? {
                put(directory, name, &bytes)?;
            }
        }
        put(directory, RERUN, self.directory.as_os_str().as_encoded_bytes())
    }
}
