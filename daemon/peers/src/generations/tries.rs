//! The retry budget of a job over its generations.
//!
//! A generation fails when a worker dies or cannot start. After [`MAX_FAILURES`] in a row without a newer image or checkpoint
//! the job fails. The loss of a host or of the leader counts as no failure: the workers did not cause it. Members keep the
//! count, so a new leader continues it.

use std::time::Duration;

use super::Reason;

/// Failures in a row after which a job fails.
pub const MAX_FAILURES: u32 = 3;

/// Back-off after the first failure; each further one is [`BACK_OFF_FACTOR`] times longer.
const FIRST_BACK_OFF: Duration = Duration::from_millis(200);
const BACK_OFF_FACTOR: u32 = 5;

/// The failures since the last progress.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tries {
    /// The highest step of an image or checkpoint so far.
    newest: Option<u64>,
    failures: u32,
    reason: Option<Reason>,
}

impl Tries {
    /// The count with these parts, or `None` if there are failures without a reason.
    pub(crate) fn of_parts(newest: Option<u64>, failures: u32, reason: Option<Reason>) -> Option<Self> {
        (failures == 0 || reason.is_some()).then_some(Self { newest, failures, reason })
    }

    /// The highest step of an image or checkpoint so far, the failures since, and why the last one failed.
    pub(crate) fn into_parts(self) -> (Option<u64>, u32, Option<Reason>) {
        (self.newest, self.failures, self.reason)
    }

    /// A host holds an image of `step`, or a checkpoint is committed. Returns whether that is progress.
    pub(super) fn on_step(&mut self, step: u64) -> bool {
        let is_new = Some(step) > self.newest;
        if is_new {
            *self = Self { newest: Some(step), ..Self::default() };
        }
        is_new
    }

    /// A generation failed.
    pub(super) fn on_failure(&mut self, why: Reason) {
        self.failures = self.failures.saturating_add(1);
        self.reason = Some(why);
    }

    /// Starts a new budget.
    pub(super) fn renew(&mut self) {
        self.failures = 0;
    }

    /// Adds what another host knows.
    pub(super) fn merge(&mut self, other: Self) {
        if (other.newest, other.failures) > (self.newest, self.failures) {
            *self = other;
        }
    }

    /// The time until the next generation, or why the job fails if the budget is spent.
    pub(super) fn back_off(&self) -> Result<Duration, Reason> {
        match &self.reason {
            Some(reason) if self.failures >= MAX_FAILURES => Err(Reason::new(&format!(
                "gave up after {MAX_FAILURES} attempts without a new checkpoint or image; last failure: {reason}"
            ))),
            _ if self.failures == 0 => Ok(Duration::ZERO),
            _ => Ok(FIRST_BACK_OFF * BACK_OFF_FACTOR.pow(self.failures - 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_grows_until_the_budget_is_spent() {
        let mut tries = Tries::default();
        assert_eq!(tries.back_off(), Ok(Duration::ZERO));
        let end = "gave up after 3 attempts without a new checkpoint or image; last failure: killed";
        for wanted in [Ok(Duration::from_millis(200)), Ok(Duration::from_secs(1)), Err(Reason::new(end))] {
            tries.on_failure(Reason::new("killed"));
            assert_eq!(tries.back_off(), wanted);
        }
        assert!(tries.on_step(0) && !tries.on_step(0));
        assert_eq!(tries.back_off(), Ok(Duration::ZERO));
    }

    #[test]
    fn a_new_leader_continues_the_count() {
        let mut old = Tries::default();
        old.on_step(7);
        old.on_failure(Reason::new("killed"));
        let mut new = Tries::default();
        new.on_step(6);
        new.merge(old.clone());
        new.merge(Tries::default());
        assert_eq!(new, old);
    }
}
