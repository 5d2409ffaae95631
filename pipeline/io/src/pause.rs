//! Pauses between attempts.
//!
//! They are random up to a bound that doubles ("full jitter", Brooker, "Exponential Backoff And Jitter", AWS 2015).

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// A random pause up to a bound that doubles with each attempt.
pub(crate) fn after(tries: u32) -> Duration {
    let bound = SHORTEST_PAUSE.saturating_mul(1 << tries.min(16)).min(LONGEST_PAUSE);
    bound.mul_f64(random() as f64 / u64::MAX as f64)
}

/// A random number. A new hasher is seeded at random.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_random_and_bounded() {
        let longest = (0..1000).map(|_| after(40)).max();
        assert!(longest <= Some(LONGEST_PAUSE) && longest > Some(LONGEST_PAUSE / 2));
        assert!((0..100).all(|_| after(1) <= SHORTEST_PAUSE * 2));
        assert_ne!(after(10), after(10));
    }
}
