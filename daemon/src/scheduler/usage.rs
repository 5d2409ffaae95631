//! How much of the host each user has used lately, for taking turns.

use std::collections::BTreeMap;

use super::UserId;

/// After this time, use counts half.
const HALF_LIFE_SECONDS: f64 = 24.0 * 3600.0;

/// Use below this many seconds of the whole host is forgotten.
const NEGLIGIBLE_SECONDS: f64 = 1e-3;

/// Seconds of the whole host that each user has used, with exponential decay.
#[derive(Debug, Default)]
pub(super) struct Usage {
    /// The time of the values.
    at: f64,
    seconds: BTreeMap<UserId, f64>,
}

impl Usage {
    /// Advances to the time `now`; since the last call, each of these users had this share of the host.
    pub(super) fn advance(&mut self, now: f64, shares: impl Iterator<Item = (UserId, f64)>) {
        let elapsed = (now - self.at).max(0.0);
        self.at = self.at.max(now);
        let decay = (-elapsed / HALF_LIFE_SECONDS).exp2();
        for seconds in self.seconds.values_mut() {
            *seconds *= decay;
        }
        for (user, share) in shares {
            *self.seconds.entry(user).or_default() += share * elapsed;
        }
        self.seconds.retain(|_, seconds| *seconds > NEGLIGIBLE_SECONDS);
    }

    /// The use of `user`.
    pub(super) fn of(&self, user: UserId) -> f64 {
        self.seconds.get(&user).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_halves_in_a_day_and_is_forgotten() {
        let mut usage = Usage::default();
        usage.advance(100.0, [(1, 0.5), (2, 1.0), (1, 0.25)].into_iter());
        assert!((usage.of(1) - 75.0).abs() < 1e-9 && (usage.of(2) - 100.0).abs() < 1e-9);
        usage.advance(100.0 + HALF_LIFE_SECONDS, std::iter::empty());
        assert!((usage.of(1) - 37.5).abs() < 1e-9, "{}", usage.of(1));
        // A clock that is set back changes nothing.
        usage.advance(0.0, [(1, 1.0)].into_iter());
        assert!((usage.of(1) - 37.5).abs() < 1e-9);
        usage.advance(100.0 * HALF_LIFE_SECONDS, std::iter::empty());
        assert!(usage.seconds.is_empty());
    }
}
