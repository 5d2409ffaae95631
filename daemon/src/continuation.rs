//! Continuation: a job goes on with the training of an earlier run, for more epochs or on new data.
//!
//! It keeps the weights, the optimizer's state, the step count, and the statistics of the earlier data: vocabularies and
//! moments give the weights their meaning. On the same files, the earlier epochs count, and the result has the bits of one
//! longer run. On other files or another mix of them, training starts at their beginning.
//!
//! Like a warm start, it is decided once, when the job is prepared, and recorded in the run directory.

use anyhow::{Context, Result, bail};
use millstream_batch::Count;
use millstream_io::storage::{Directory, Listing};
use millstream_job::{Job, WarmStartSpec};
use millstream_pipeline::analysis::Analysis;
use millstream_pipeline::dataset::Dataset;
use millstream_pipeline::ingest::IngestPlan;
use millstream_pipeline::order::PositionError;
use millstream_pipeline::spec::Purpose;
use millstream_trainer::checkpoint::CheckpointStore;
use millstream_worker::protocol::ContinuationRole;
use serde::{Deserialize, Serialize};

use crate::access::Requester;
use crate::copies::{Contents, Copies};
use crate::runs::RunDirectory;
use crate::scoring::{self, Scored};
use crate::{datasets, runs, warm_start};

/// How a job continues an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Continuation {
    /// The checkpoint.
    pub checkpoint: Directory,
    /// Its step.
    pub step: u64,
    /// Whether the data is that of the earlier job, so that its epochs count.
    pub is_same_data: bool,
    /// The encoded position at which training goes on.
    position: Vec<u8>,
}

/// The earlier job of a continuation that is not decided yet.
pub(crate) struct Source {
    scored: Scored,
    checkpoint: Directory,
}

impl Source {
    /// The source of `job`, if it continues another one.
    ///
    /// # Errors
    /// When there is no such checkpoint, or its rows have other contents.
    pub(crate) fn of(job: &Job, requester: &Requester, copies: &Copies) -> Result<Option<Self>> {
        let Some(WarmStartSpec { checkpoint, best, continues: true }) = &job.warm_start else {
            return Ok(None);
        };
        let here = || format!("`warm_start.checkpoint`, {checkpoint}");
        let contents = (*best, Contents::Records);
        let scored = scoring::find_in(checkpoint, contents, requester, copies).with_context(here)?;
        let changes = job.differences_of_rows(&scored.job);
        if !changes.is_empty() {
            bail!(
                "the job cannot continue {checkpoint}, because of {}: restore them, or start with its weights alone, \
                 without `warm_start.continue`",
                changes.join(", ")
            );
        }
        Ok(Some(Self { checkpoint: scored.checkpoint(checkpoint), scored }))
    }

    /// The statistics that training keeps using.
    pub(crate) fn analysis(&self) -> Analysis {
        self.scored.analysis.clone()
    }

    /// Where `job` goes on in its training data `train`.
    ///
    /// # Errors
    /// When the checkpoint cannot be read, or no rows are left.
    pub(crate) fn continued(&self, job: &Job, train: &Dataset, plan: &IngestPlan) -> Result<Continuation> {
        let Self { scored: Scored { directory, step, job: earlier, .. }, checkpoint } = self;
        let store = CheckpointStore::local(directory)?;
        let listing = runs::get_text(&RunDirectory::local(directory), runs::TRAIN_LISTING)?;
        let is_same_data = listing == Some(Listing::of(train.objects()).to_text())
            && earlier.data.rows(Purpose::Training) == job.data.rows(Purpose::Training)
            && datasets::splits(&earlier.data.train) == datasets::splits(&job.data.train)
            && earlier.data.negatives == job.data.negatives
            && earlier.data.weighted_files() == job.data.weighted_files();
        let position = if is_same_data {
            let ended = store.manifest(*step)?.snapshot.position;
            let epochs = earlier.data.epochs;
            let next = plan.continue_from(&ended, epochs).map_err(|error| match error {
                PositionError::OtherOrder => anyhow::anyhow!(
                    "{checkpoint} is within an epoch, whose order depends on `seed`, `data.lanes`, \
                     `data.shuffle_rows` and `data.split_bytes`: restore them",
                ),
                error => error.into(),
            })?;
            let Some(next) = next else {
                bail!(
                    "{checkpoint} has trained for {} of this data, and the job has `data.epochs = {}`: increase it",
                    Count(epochs.into(), "epoch"),
                    job.data.epochs
                );
            };
            next
        } else {
            plan.start()
        };
        let mut encoded = Vec::new();
        position.encode(&mut encoded);
        Ok(Continuation { checkpoint: checkpoint.clone(), step: *step, is_same_data, position: encoded })
    }
}

impl Continuation {
    /// The decision that is recorded in the run in `directory`, if there is one. The owner of the run can change the record, so
    /// `requester` must be allowed to read the checkpoint. A checkpoint that no longer exists is not an error here: the run can
    /// resume from its own checkpoint.
    pub(crate) fn recorded(directory: &RunDirectory, requester: &Requester) -> Result<Option<Self>> {
        let Some(text) = runs::get_text(directory, runs::CONTINUATION)? else { return Ok(None) };
        let here = || directory.file(runs::CONTINUATION);
        let recorded: Self = serde_json::from_str(&text).with_context(here)?;
        if let Some(path) = recorded.checkpoint.as_local().filter(|path| path.exists()) {
            requester.check_run(path).with_context(here)?;
        }
        Ok(Some(recorded))
    }

    /// Records the decision in the run directory.
    pub(crate) fn record(&self, directory: &RunDirectory) -> Result<()> {
        runs::put(directory, runs::CONTINUATION, &serde_json::to_vec(self)?)
    }

    /// The worker's part of it, for the run in `directory`.
    pub(crate) fn role(&self, directory: &RunDirectory, copies: &Copies) -> Result<ContinuationRole> {
        let (directory, step) = warm_start::source_of(&self.checkpoint, Contents::All, copies, directory)?;
        Ok(ContinuationRole {
            directory,
            step,
            position: self.position.clone(),
            is_same_data: self.is_same_data,
        })
    }

    /// The steps before those of this job's epochs.
    pub(crate) fn steps_before(&self) -> u64 {
        if self.is_same_data { 0 } else { self.step }
    }

    /// The encoded position at which training goes on.
    pub(crate) fn position(&self) -> &[u8] {
        &self.position
    }
}
