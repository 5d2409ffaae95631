//! The retry budget of a job whose workers die.
//!
//! A worker may die of a transient cause (the machine ran out of memory, a user killed it) or of a persistent
//! one. Progress distinguishes them: after [`MAX_DEATHS`] deaths in a row without a new checkpoint or image in
//! between, the job fails. The back-off grows exponentially. A job that continues with fewer workers starts a new budget
//! ([`super::membership`]).

use std::time::Duration;

/// Deaths in a row without a new checkpoint or image after which a job fails.
pub(crate) const MAX_DEATHS: u32 = 3;

/// Back-off after the first death; each further one is [`BACK_OFF_FACTOR`] times longer.
pub(crate) const FIRST_BACK_OFF: Duration = Duration::from_millis(200);
const BACK_OFF_FACTOR: u32 = 5;

/// Counts the consecutive deaths of a job's workers.
#[derive(Debug, Default)]
pub(crate) struct RetryBudget {
    deaths: u32,
}

impl RetryBudget {
    /// Resets the count after a new checkpoint or image.
    pub(crate) fn reset(&mut self) {
        self.deaths = 0;
    }

    /// Counts a death. Returns the back-off before the next attempt, or `None` if the budget is spent.
    pub(crate) fn on_death(&mut self) -> Option<Duration> {
        self.deaths += 1;
        (self.deaths < MAX_DEATHS).then(|| FIRST_BACK_OFF * BACK_OFF_FACTOR.pow(self.deaths - 1))
    }

    /// Deaths in a row.
    pub(crate) fn deaths(&self) -> u32 {
        self.deaths
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn back_off_grows_until_the_budget_is_spent() {
        let mut budget = RetryBudget::default();
        let waits: Vec<_> = std::iter::from_fn(|| budget.on_death()).collect();
        assert_eq!(waits, [Duration::from_millis(200), Duration::from_millis(1000)]);
        assert_eq!(budget.deaths(), MAX_DEATHS);
    }

    #[test]
    fn a_checkpoint_resets_the_count() {
        let mut budget = RetryBudget::default();
        for _ in 0..10 * MAX_DEATHS {
            assert!(budget.on_death().is_some());
            budget.reset();
        }
        assert_eq!(budget.deaths(), 0);
    }
}
