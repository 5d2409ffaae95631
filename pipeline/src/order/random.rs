//! A stable random number generator.
//!
//! A job's order must be the same on every machine and in every later version, so the generator is part
//! of the format and implemented here, not in a dependency: xoshiro256++ 1.0 (Blackman and Vigna, "Scrambled
//! Linear Pseudorandom Number Generators", 2021), its state expanded from a key by splitmix64
//! (`splitmix.rs`). Bounded draws are Lemire's ("Fast Random Integer Generation in an Interval", 2019),
//! hence unbiased; permutations are Fisher-Yates shuffles, from the last element down.
//!
//! A key is a list of words, absorbed in order:
//!
//! ```text
//! state = 0
//! for word in [domain, key...]:  state = mix(state + GAMMA + word)      (wrapping)
//! xoshiro's four words = the next four outputs of splitmix64 from `state`
//! ```
//!
//! where `mix` is splitmix64's finalizer, a bijection; so keys that differ in one word never collide.

use super::Pass;
use crate::splitmix::{self, GAMMA, mix};

/// The purpose of a stream. Streams with the same key in different domains are independent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Domain {
    /// The permutation of an epoch's splits.
    Splits = 1,
    /// The permutation of the rows of one window.
    Window = 2,
    /// The fingerprint of an order.
    Fingerprint = 3,
    /// The rows of a split that are drawn in an epoch.
    Sample = 4,
    /// The augmentation of an image.
    Image = 5,
    /// The permutation of the sequences of one window.
    Sequences = 6,
}

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: [u64; 4],
}

impl Random {
    /// The stream for `key` in `domain`.
    pub(crate) fn keyed(domain: Domain, key: &[u64]) -> Self {
        let mut seed = absorb(0, domain as u64);
        for &word in key {
            seed = absorb(seed, word);
        }
        Self { state: std::array::from_fn(|_| splitmix::next(&mut seed)) }
    }

    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A uniformly distributed number in `0..bound`. `bound` must be at least 1.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        debug_assert!(bound > 0, "an empty interval");
        let mut product = u128::from(self.next()) * u128::from(bound);
        if (product as u64) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (product as u64) < threshold {
                product = u128::from(self.next()) * u128::from(bound);
            }
        }
        (product >> 64) as u64
    }

    /// Permutes `items` uniformly.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// The random numbers of the image of a column, whose key is `column`, in record `record` of `split`, in one pass. They do not
/// depend on the order of rows.
pub(crate) fn image_random(seed: u64, pass: Pass, (split, record): (u32, u64), column: u64) -> Random {
    Random::keyed(Domain::Image, &[seed, pass.epoch.into(), split.into(), record, column])
}

fn absorb(state: u64, word: u64) -> u64 {
    mix(state.wrapping_add(GAMMA).wrapping_add(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_published_vectors() {
        // xoshiro256plusplus.c from state 1, 2, 3, 4.
        let mut random = Random { state: [1, 2, 3, 4] };
        let published = [
            41_943_041,
            58_720_359,
            3_588_806_011_781_223,
            3_591_011_842_654_386,
            9_228_616_714_210_784_205,
            9_973_669_472_204_895_162,
            14_011_001_112_246_962_877,
            12_406_186_145_184_390_807,
            15_849_039_046_786_891_736,
            10_450_023_813_501_588_000,
        ];
        assert_eq!(published.map(|_| random.next()), published);
    }

    #[test]
    fn bounded_draws_are_uniform() {
        let mut random = Random::keyed(Domain::Window, &[3]);
        for bound in [1, 2, 3, 7, 1000] {
            let mut seen = vec![0_u32; bound as usize];
            for _ in 0..bound * 200 {
                seen[random.below(bound) as usize] += 1;
            }
            assert!(seen.iter().all(|&n| (120..300).contains(&n)), "{bound}: {seen:?}");
        }
        // A bound with frequent rejection.
        for _ in 0..1000 {
            let bound = (1 << 63) + 1;
            assert!(random.below(bound) < bound);
        }
    }

    #[test]
    fn permutations_are_uniform() {
        let mut counts = std::collections::HashMap::new();
        for key in 0..24_000 {
            let mut items = [0, 1, 2, 3];
            Random::keyed(Domain::Splits, &[key]).shuffle(&mut items);
            *counts.entry(items).or_insert(0_u32) += 1;
        }
        assert_eq!(counts.len(), 24);
        assert!(counts.values().all(|&n| (850..1150).contains(&n)), "{counts:?}");
    }
}
