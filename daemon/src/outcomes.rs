//! How jobs have ended since the daemon started, and which jobs are held now.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use millstream_control::proto::JobState;

use crate::snapshot::EndedJobs;

/// Counts ends of jobs. Held jobs are known by id, so that one that is resumed or removed is not held any more.
#[derive(Debug, Default)]
pub(crate) struct Outcomes(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    ended: EndedJobs,
    /// As many as the state database has, which holds them anyway.
    held: HashSet<String>,
}

impl Outcomes {
    /// Counts the job if `state` is final.
    pub(crate) fn entered(&self, id: &str, state: JobState) {
        let mut counts = self.counts();
        let EndedJobs { succeeded, failed, cancelled, held } = &mut counts.ended;
        match state {
            JobState::Succeeded => *succeeded += 1,
            JobState::Failed => *failed += 1,
            JobState::Cancelled => *cancelled += 1,
            JobState::Held => *held += 1,
            // A paused job has not ended.
            _ => return,
        }
        if state == JobState::Held {
            counts.held.insert(id.to_owned());
        }
    }

    /// Jobs that an earlier daemon held.
    pub(crate) fn held_before(&self, ids: impl IntoIterator<Item = String>) {
        self.counts().held.extend(ids);
    }

    /// The job is not held any more, if it was.
    pub(crate) fn released(&self, id: &str) {
        self.counts().held.remove(id);
    }

    /// The ends so far, and the number of jobs that are held now.
    pub(crate) fn now(&self) -> (EndedJobs, u64) {
        let counts = self.counts();
        (counts.ended, counts.held.len() as u64)
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_counted_and_held_jobs_are_held_until_released() {
        let outcomes = Outcomes::default();
        outcomes.held_before(["old".to_owned()]);
        for (id, state) in [
            ("a", JobState::Running),
            ("a", JobState::Succeeded),
            ("b", JobState::Failed),
            ("b", JobState::Failed),
            ("c", JobState::Cancelled),
            ("d", JobState::Held),
        ] {
            outcomes.entered(id, state);
        }
        let ended = EndedJobs { succeeded: 1, failed: 2, cancelled: 1, held: 1 };
        assert_eq!(outcomes.now(), (ended, 2));
        outcomes.released("d");
        outcomes.released("a");
        assert_eq!(outcomes.now(), (ended, 1));
    }
}
