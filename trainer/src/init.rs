//! Initial weights: a pure function of (seed, parameter's name, position), so that adding a feature to
//! a job changes no other parameter's start, and a table can be filled in any order.
//!
//! The generator is counter-based: the number at position `i` is the splitmix64 finaliser (Steele, Lea
//! and Flood, "Fast Splittable Pseudorandom Number Generators", 2014) of `key + i * gamma`, where `key`
//! is the same finaliser folded over the seed and the bytes of the name. It is part of what makes a job
//! repeatable and must never change.

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All 0: biases, and the wide part, whose FTRL state of zeros stands for weights of zero.
    Zeros,
    /// All this number: the state of optimizers.
    Constant(f32),
    /// Uniform in `-limit..limit`.
    Uniform {
        /// Half the width.
        limit: f64,
    },
}

/// Weights start within this of 0 in an embedding, as in Keras' `Embedding`.
const EMBEDDING_LIMIT: f64 = 0.05;

/// The odd number nearest 2^64 divided by the golden ratio: positions apart by it fall evenly.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

impl Init {
    /// Glorot and Bengio, 2010: uniform within `sqrt(6 / (inputs + outputs))`.
    pub fn glorot_uniform(inputs: usize, outputs: usize) -> Self {
        Self::Uniform { limit: (6.0 / (inputs + outputs).max(1) as f64).sqrt() }
    }

    /// How embeddings start.
    pub fn embedding() -> Self {
        Self::Uniform { limit: EMBEDDING_LIMIT }
    }

    /// The numbers of parameter `name` from position `first` on.
    pub fn values(self, seed: u64, name: &str, first: u64) -> impl Iterator<Item = f64> {
        let key = key_of(seed, name);
        (first..).map(move |position| match self {
            Self::Zeros => 0.0,
            Self::Constant(value) => f64::from(value),
            Self::Uniform { limit } => {
                let bits = mix(key.wrapping_add(position.wrapping_mul(GAMMA)));
                // 53 bits, each number at the middle of its step: within -1..1, neither end included.
                let unit = ((bits >> 11) as f64 + 0.5) * (1.0 / (1_u64 << 52) as f64) - 1.0;
                unit * limit
            }
        })
    }
}

/// A random number that follows from a seed and the name of what it is for.
pub(crate) fn key_of(seed: u64, name: &str) -> u64 {
    name.bytes().fold(mix(seed ^ GAMMA), |key, byte| mix(key ^ u64::from(byte)))
}

/// The finaliser of splitmix64: a bijection under which nearby inputs share nothing.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_depend_on_seed_name_and_position_only() {
        let take = |seed, name, first| {
            Init::Uniform { limit: 1.0 }.values(seed, name, first).take(8).collect::<Vec<_>>()
        };
        assert_eq!(take(1, "a", 0)[3..], take(1, "a", 3)[..5]);
        assert_ne!(take(1, "a", 0), take(2, "a", 0));
        assert_ne!(take(1, "a", 0), take(1, "b", 0));
        assert_ne!(take(1, "ab", 0), take(1, "ba", 0));
    }

    /// Worked out apart from this code; a change would change every job.
    #[test]
    fn numbers_stay_what_they_are() {
        let found: Vec<f64> = Init::embedding().values(7, "deep.embedding.education", 0).take(3).collect();
        assert_eq!(found, [0.02759720351843782, -0.0254372555928645, -0.015730551486420535]);
    }

    #[test]
    fn numbers_are_uniform() {
        let count = 100_000;
        let numbers: Vec<f64> = Init::Uniform { limit: 2.0 }.values(3, "w", 0).take(count).collect();
        assert!(numbers.iter().all(|x| x.abs() < 2.0));
        let mean = numbers.iter().sum::<f64>() / count as f64;
        let variance = numbers.iter().map(|x| x * x).sum::<f64>() / count as f64;
        assert!(mean.abs() < 0.02, "{mean}");
        assert!((variance - 4.0 / 3.0).abs() < 0.02, "{variance}");
        let correlation: f64 = numbers.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>() / count as f64;
        assert!(correlation.abs() < 0.02, "{correlation}");
    }
}
