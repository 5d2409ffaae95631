//! SplitMix64, the mixing step behind all random numbers of this crate (Steele, Lea and Flood, "Fast Splittable
//! Pseudorandom Number Generators", 2014; constants as in Vigna's `splitmix64.c`).
//!
//! Epoch orders and generated data depend on its exact output, so it must never change.

/// The fractional part of the golden ratio in 64 bits: the increment between states.
pub const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer: a bijection in which each input bit affects all output bits.
#[inline]
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Advances `state` and returns the next output.
pub(crate) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(GAMMA);
    mix(*state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_vectors() {
        // splitmix64.c from seed 1234567.
        let mut seed = 1_234_567;
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(published.map(|_| next(&mut seed)), published);
    }
}
