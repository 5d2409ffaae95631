//! What the trials of a search share: the versions of the files that they read, and what was learned from these.
//!
//! Few parameters of a search change what a trial reads and learns. Of the trials that have these in common, the first to be
//! prepared lists the files and passes over the data; the others wait for it and take over what it found. So a search lists
//! and analyses its data once, and its trials compare on the same rows though files are added meanwhile.
//!
//! ```text
//! checkpoints/census-k3f9q2/inputs-5d41402abc4b/   named after the fingerprint of the inputs; files as in a run directory
//!                                             lock   locked by the thread that prepares a trial
//! ```

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use millstream_job::Job;
use millstream_worker::locks;

use super::{ANALYSIS, LISTINGS, get, put};
use crate::search;

/// The start of a directory's name.
const PREFIX: &str = "inputs-";
/// The characters of the fingerprint in a name: 48 bits, which distinguish the few inputs of one search.
const FINGERPRINT_CHARACTERS: usize = 12;

/// The file that is locked.
const LOCK: &str = "lock";

/// What a trial shares with others, locked while it is prepared.
pub(crate) struct SharedInputs {
    directory: PathBuf,
    run: PathBuf,
    _lock: File,
}

impl SharedInputs {
    /// What the trial `job` with the directory `run` shares, once no other trial is being prepared with the same inputs. The
    /// run then has what there is of it. `None` for a job that is no trial.
    ///
    /// # Errors
    /// When `cancel` is set, a file is damaged, or one cannot be written.
    pub(crate) fn of_trial(job: &Job, run: &Path, cancel: &AtomicBool) -> Result<Option<Self>> {
        let Some(search) = search::of_trial(run) else { return Ok(None) };
        let fingerprint = job.inputs_fingerprint();
        let directory = search.join(format!("{PREFIX}{}", &fingerprint[..FINGERPRINT_CHARACTERS]));
        let here = || directory.display().to_string();
        fs::create_dir_all(&directory).with_context(here)?;
        let shared = Self { _lock: lock(&directory.join(LOCK), cancel)?, directory, run: run.to_owned() };
        fill(&shared.run, &shared.directory)?;
        Ok(Some(shared))
    }

    /// Keeps for later trials what the run has found and no earlier one had.
    ///
    /// # Errors
    /// When a file is damaged, or one cannot be written.
    pub(crate) fn keep(self) -> Result<()> {
        fill(&self.directory, &self.run)
    }
}

/// Gives the directory `to` what it lacks and `from` has. Statistics belong to the listings that they were learned from.
fn fill(to: &Path, from: &Path) -> Result<()> {
    let mut has_same_files = true;
    for name in LISTINGS {
        let Some(listing) = get(from, name)? else { continue };
        match get(to, name)? {
            Some(own) => has_same_files &= own == listing,
            None => put(to, name, &listing)?,
        }
    }
    if has_same_files
        && get(to, ANALYSIS)?.is_none()
        && let Some(analysis) = get(from, ANALYSIS)?
    {
        put(to, ANALYSIS, &analysis)?;
    }
    Ok(())
}

/// Waits for the lock of the file `path`, which ends with the returned file.
fn lock(path: &Path, cancel: &AtomicBool) -> Result<File> {
    let locked = locks::acquire(path, || !cancel.load(Ordering::Relaxed))?;
    locked.context("cancelled while another trial was being prepared")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::{EVAL_LISTING, TRAIN_LISTING};
    use super::*;

    #[test]
    fn statistics_are_not_given_to_a_run_that_reads_other_versions_of_the_files() {
        let [shared, new, same, other] = [(); 4].map(|()| tempfile::tempdir().unwrap());
        for (name, bytes) in [(TRAIN_LISTING, "a v1"), (EVAL_LISTING, "b v1"), (ANALYSIS, "mean 3")] {
            put(shared.path(), name, bytes.as_bytes()).unwrap();
        }
        put(same.path(), TRAIN_LISTING, b"a v1").unwrap();
        put(other.path(), TRAIN_LISTING, b"a v2").unwrap();
        for run in [&new, &same, &other] {
            fill(run.path(), shared.path()).unwrap();
            assert_eq!(get(run.path(), EVAL_LISTING).unwrap().unwrap(), b"b v1");
        }
        assert_eq!(get(new.path(), TRAIN_LISTING).unwrap().unwrap(), b"a v1");
        assert_eq!(get(same.path(), ANALYSIS).unwrap().unwrap(), b"mean 3");
        assert_eq!(get(other.path(), TRAIN_LISTING).unwrap().unwrap(), b"a v2");
        assert_eq!(get(other.path(), ANALYSIS).unwrap(), None);
    }

    #[test]
    fn a_trial_waits_for_the_lock_until_it_is_cancelled() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(LOCK);
        let held = lock(&path, &AtomicBool::new(false)).unwrap();
        assert!(lock(&path, &AtomicBool::new(true)).unwrap_err().to_string().starts_with("cancelled"));
        drop(held);
        lock(&path, &AtomicBool::new(true)).unwrap();
    }
}
