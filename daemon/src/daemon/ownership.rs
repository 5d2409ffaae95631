//! Whose jobs a user may change.

use super::Daemon;
use crate::access::Requester;
use crate::config::ChangeableJobs;
use crate::state::JobRecord;

/// A change that only the job's owner may make.
#[derive(Debug, thiserror::Error)]
#[error(
    "job {job} belongs to {owner}: only its owner, root and the daemon's user may change it (`operators_change` of the \
     daemon's configuration)"
)]
pub(crate) struct NotOwner {
    job: String,
    owner: String,
}

impl Daemon {
    /// Whether the configuration lets `requester` change their own jobs only.
    pub(crate) fn restricts(&self, requester: &Requester) -> bool {
        requester.uid().is_some() && self.settings().roles.change == ChangeableJobs::Own
    }

    /// Checks that `requester` may change this job.
    ///
    /// # Errors
    /// When the configuration leaves it to the owner.
    pub(crate) fn check_may_change(&self, job: &JobRecord, requester: &Requester) -> Result<(), NotOwner> {
        let owner = job.owner.as_ref();
        let is_owner = owner.is_some_and(|owner| Some(owner.uid) == requester.uid());
        if is_owner || !self.restricts(requester) {
            return Ok(());
        }
        let owner = owner.map_or_else(|| "another user".to_owned(), ToString::to_string);
        Err(NotOwner { job: job.id.clone(), owner })
    }
}
