//! What the trials of a search share: the versions of the files that they read, and what was learned from these.
//!
//! Few parameters of a search change what a trial reads and learns. Of the trials that have these in common, the first to be
//! prepared lists the files and passes over the data; the others wait for it and take over what it found. So a search lists
//! and analyses its data once, and its trials compare on the same rows though files are added meanwhile.
//!
//! ```text
//! checkpoints/census-k3f9q2/inputs-5d41402abc4b/   named after the fingerprint of the inputs; files as in a run directory
//! ```

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use millstream_job::Job;

use super::{ANALYSIS, LISTINGS, RunDirectory, get, put};
use crate::search;

/// The start of a directory's name.
const PREFIX: &str = "inputs-";
/// The characters of the fingerprint in a name: 48 bits, which distinguish the few inputs of one search.
const FINGERPRINT_CHARACTERS: usize = 12;

/// Interval between checks whether a trial that waits is cancelled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The inputs for which trials are being prepared. All trials of a search are jobs of one daemon.
static PREPARING: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
static PREPARED: Condvar = Condvar::new();

/// What a trial shares with others, locked while it is prepared.
pub(crate) struct SharedInputs {
    directory: RunDirectory,
    run: RunDirectory,
    _turn: Turn,
}

/// The turn of a trial to be prepared with its inputs; the next one begins when it is dropped.
struct Turn(String);

impl SharedInputs {
    /// What the trial `job` with the directory `run` shares, once no other trial is being prepared with the same inputs. The
    /// run then has what there is of it. `None` for a job that is no trial.
    ///
    /// # Errors
    /// When `cancel` is set, a file is damaged, or one cannot be written.
    pub(crate) fn of_trial(job: &Job, run: &RunDirectory, cancel: &AtomicBool) -> Result<Option<Self>> {
        let Some(search) = search::of_trial(run)? else { return Ok(None) };
        let fingerprint = job.inputs_fingerprint();
        let directory = search.join(&format!("{PREFIX}{}", &fingerprint[..FINGERPRINT_CHARACTERS]));
        directory.create()?;
        let shared = Self { _turn: Turn::wait(&directory.to_string(), cancel)?, directory, run: run.clone() };
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
fn fill(to: &RunDirectory, from: &RunDirectory) -> Result<()> {
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

impl Turn {
    /// Waits until no other trial is being prepared with the inputs in `directory`.
    ///
    /// # Errors
    /// When `cancel` is set meanwhile.
    fn wait(directory: &str, cancel: &AtomicBool) -> Result<Self> {
        let mut preparing = preparing();
        while !preparing.insert(directory.to_owned()) {
            if cancel.load(Ordering::Relaxed) {
                bail!("cancelled while another trial was being prepared");
            }
            let waited = PREPARED.wait_timeout(preparing, POLL_INTERVAL);
            preparing = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(Self(directory.to_owned()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        preparing().remove(&self.0);
        PREPARED.notify_all();
    }
}

fn preparing() -> MutexGuard<'static, BTreeSet<String>> {
    PREPARING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::{EVAL_LISTING, TRAIN_LISTING};
    use super::*;

    #[test]
    fn statistics_are_not_given_to_a_run_that_reads_other_versions_of_the_files() {
        let parent = tempfile::tempdir().unwrap();
        let [shared, new, same, other] = ["shared", "new", "same", "other"].map(|name| {
            let directory = RunDirectory::local(&parent.path().join(name));
            directory.create().unwrap();
            directory
        });
        for (name, bytes) in [(TRAIN_LISTING, "a v1"), (EVAL_LISTING, "b v1"), (ANALYSIS, "mean 3")] {
            put(&shared, name, bytes.as_bytes()).unwrap();
        }
        put(&same, TRAIN_LISTING, b"a v1").unwrap();
        put(&other, TRAIN_LISTING, b"a v2").unwrap();
        for run in [&new, &same, &other] {
            fill(run, &shared).unwrap();
            assert_eq!(get(run, EVAL_LISTING).unwrap().unwrap(), b"b v1");
        }
        assert_eq!(get(&new, TRAIN_LISTING).unwrap().unwrap(), b"a v1");
        assert_eq!(get(&same, ANALYSIS).unwrap().unwrap(), b"mean 3");
        assert_eq!(get(&other, TRAIN_LISTING).unwrap().unwrap(), b"a v2");
        assert_eq!(get(&other, ANALYSIS).unwrap(), None);
    }

    #[test]
    fn a_trial_waits_for_its_turn_until_it_is_cancelled() {
        let wait = |cancelled| Turn::wait("gs://bucket/search/inputs-1", &AtomicBool::new(cancelled));
        let turn = wait(false).unwrap();
        assert!(wait(true).err().unwrap().to_string().starts_with("cancelled"));
        Turn::wait("gs://bucket/search/inputs-2", &AtomicBool::new(true)).unwrap();
        let next = std::thread::spawn(move || wait(false).map(drop));
        drop(turn);
        next.join().unwrap().unwrap();
        wait(true).unwrap();
    }
}
