//! The record of a search: `search.json` in its run directory, from which a daemon rebuilds it.
//!
//! It is there and not in the state database for the same reason as checkpoints: a run directory is sufficient to resume a
//! run, also in a process that keeps its state in memory. A trial is recorded before its job is submitted, so that no job
//! is unknown to its search; see [`TrialRecord::job`].

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::{Search, Trial};
use crate::runs::{self, RunDirectory};
use millstream_job::SearchSpec;

/// A search and the jobs of its trials.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SearchRecord {
    /// The trials, by number.
    pub(crate) trials: Vec<TrialRecord>,
}

/// A trial and its job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TrialRecord {
    /// The trial.
    #[serde(flatten)]
    pub(crate) trial: Trial,
    /// What is known of its job.
    #[serde(flatten)]
    pub(crate) job: TrialJob,
}

/// The job of a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TrialJob {
    /// Its id. If the daemon died while it was submitted, `None` although it exists.
    #[serde(rename = "job")]
    pub(crate) id: Option<String>,
    /// The step of the last evaluation that the search knows. A resumed job repeats those after its checkpoint, and in
    /// another process its history begins there.
    pub(crate) evaluated_step: u64,
    /// Steps taken.
    pub(crate) steps: u64,
    /// Rows trained on.
    pub(crate) examples: u64,
    /// Time from its start to its end.
    pub(crate) seconds: f64,
    /// Why it failed or stopped; empty otherwise.
    pub(crate) reason: String,
}

impl SearchRecord {
    /// The record in the run directory of a search; one without trials if there is none yet.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn read(directory: &RunDirectory) -> Result<Self> {
        let Some(text) = runs::get_text(directory, runs::SEARCH)? else { return Ok(Self::default()) };
        serde_json::from_str(&text).with_context(|| directory.file(runs::SEARCH))
    }

    /// Writes the record of a search.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write(directory: &RunDirectory, search: &Search, jobs: &[TrialJob]) -> Result<()> {
        let trials = search.trials().iter().zip(jobs);
        let trials = trials.map(|(trial, job)| TrialRecord { trial: trial.clone(), job: job.clone() });
        let record = Self { trials: trials.collect() };
        runs::put(directory, runs::SEARCH, &serde_json::to_vec(&record)?)
    }

    /// The search and the jobs of its trials.
    ///
    /// # Errors
    /// When the trials are of a search with other parameters.
    pub(crate) fn rebuild(self, spec: &SearchSpec) -> Result<(Search, Vec<TrialJob>)> {
        let (trials, jobs) = self.trials.into_iter().map(|trial| (trial.trial, trial.job)).unzip();
        Ok((Search::new(spec.clone(), trials)?, jobs))
    }
}

/// Whether the search in a run directory is over.
///
/// # Errors
/// When its record cannot be read.
pub(crate) fn is_over(directory: &RunDirectory, spec: &SearchSpec) -> Result<bool> {
    Ok(SearchRecord::read(directory)?.rebuild(spec)?.0.is_over())
}

/// The run directory of the search that a job with this run directory is a trial of, if it is one.
///
/// # Errors
/// When storage fails.
pub(crate) fn of_trial(directory: &RunDirectory) -> Result<Option<RunDirectory>> {
    let Some(parent) = directory.parent() else { return Ok(None) };
    Ok(parent.has(runs::SEARCH)?.then_some(parent))
}
