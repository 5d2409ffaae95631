//! Initial weights: a pure function of the seed, the parameter's name and the position. So adding a feature
//! to a job does not change the initial weights of other parameters, and a table can be filled in any order.
//!
//! The generator is counter-based: the number at position `i` is the splitmix64 finaliser (Steele, Lea and
//! Flood, "Fast Splittable Pseudorandom Number Generators", 2014) of `key + i * gamma`, where `key` is the
//! same finaliser folded over the seed and the bytes of the name. Jobs are only repeatable if it never
//! changes. A normal number is the quantile of a uniform one (`normal.rs`).

mod normal;

use crate::spec::{EmbeddingInit, LayerInit};

/// The initialization of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All 0: for biases, and for the wide part, where an all-zero FTRL state means zero weights.
    Zeros,
    /// All equal to this number: for optimizer state.
    Constant(f32),
    /// Uniform in `-limit..limit`.
    Uniform {
        /// Half the width.
        limit: f64,
    },
    /// Normal around 0.
    Normal {
        /// Its standard deviation.
        stddev: f64,
    },
    /// A normal distribution truncated at two standard deviations.
    TruncatedNormal {
        /// The standard deviation before truncation.
        stddev: f64,
    },
}

/// The odd number nearest to 2^64 divided by the golden ratio: multiples of it are evenly distributed.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

impl Init {
    /// The initialization of an embedding table of `rows` rows.
    pub fn embedding(init: EmbeddingInit, rows: usize) -> Self {
        match init {
            EmbeddingInit::Zeros => Self::Zeros,
            EmbeddingInit::Uniform { limit } => Self::Uniform { limit },
            EmbeddingInit::UniformByRows => Self::Uniform { limit: 1.0 / (rows.max(1) as f64).sqrt() },
            EmbeddingInit::Normal { stddev } => Self::Normal { stddev },
            EmbeddingInit::TruncatedNormal { stddev } => Self::TruncatedNormal { stddev },
        }
    }

    /// The initialization of a layer's weights.
    pub fn layer(init: LayerInit, inputs: usize, outputs: usize) -> Self {
        let (of_both, of_inputs) = ((inputs + outputs).max(1) as f64, inputs.max(1) as f64);
        let normal = |variance: f64| {
            let stddev = variance.sqrt() / normal::TRUNCATED_DEVIATION;
            Self::TruncatedNormal { stddev }
        };
        match init {
            LayerInit::GlorotUniform => Self::Uniform { limit: (6.0 / of_both).sqrt() },
            LayerInit::GlorotNormal => normal(2.0 / of_both),
            LayerInit::HeUniform => Self::Uniform { limit: (6.0 / of_inputs).sqrt() },
            LayerInit::HeNormal => normal(2.0 / of_inputs),
        }
    }

    /// The initial values of parameter `name` from position `first` on.
    pub fn values(self, seed: u64, name: &str, first: u64) -> impl Iterator<Item = f64> {
        let key = key_of(seed, name);
        let bits = move |position: u64| mix(key.wrapping_add(position.wrapping_mul(GAMMA))) >> 11;
        (first..).map(move |position| match self {
            Self::Zeros => 0.0,
            Self::Constant(value) => f64::from(value),
            // 53 bits, each number at the middle of its interval: within -1..1, without the ends.
            Self::Uniform { limit } => ((bits(position) as f64 + 0.5) / (1_u64 << 52) as f64 - 1.0) * limit,
            Self::Normal { stddev } => stddev * normal::quantile(unit(bits(position))),
            Self::TruncatedNormal { stddev } => stddev * normal::truncated_quantile(unit(bits(position))),
        })
    }
}

/// 52 of 53 bits as a number in 0..1, at the middle of its interval: without the ends.
fn unit(bits: u64) -> f64 {
    ((bits >> 1) as f64 + 0.5) / (1_u64 << 52) as f64
}

/// A random number derived from a seed and a name.
pub(crate) fn key_of(seed: u64, name: &str) -> u64 {
    name.bytes().fold(mix(seed ^ GAMMA), |key, byte| mix(key ^ u64::from(byte)))
}

/// The finaliser of splitmix64: a bijection that maps nearby inputs to unrelated outputs.
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

    /// Computed independently of this code; a change would change every job.
    #[test]
    fn numbers_never_change() {
        let found: Vec<f64> = Init::embedding(EmbeddingInit::default(), 9)
            .values(7, "deep.embedding.education", 0)
            .take(3)
            .collect();
        assert_eq!(found, [0.02759720351843782, -0.0254372555928645, -0.015730551486420535]);
    }

    #[test]
    fn numbers_are_uniform() {
        let numbers = drawn(Init::Uniform { limit: 2.0 });
        assert!(numbers.iter().all(|x| x.abs() < 2.0));
        let [mean, variance, ..] = moments(&numbers);
        assert!(mean.abs() < 0.02, "{mean}");
        assert!((variance - 4.0 / 3.0).abs() < 0.02, "{variance}");
    }

    /// The share within one standard deviation and the fourth moment distinguish the distributions.
    #[test]
    fn numbers_are_normal() {
        let numbers = drawn(Init::Normal { stddev: 2.0 });
        let [mean, variance, fourth] = moments(&numbers);
        assert!(mean.abs() < 0.02 && (variance - 4.0).abs() < 0.06, "{mean}, {variance}");
        assert!((fourth / (variance * variance) - 3.0).abs() < 0.08, "{fourth}");
        assert!((share_within(&numbers, 2.0) - 0.6827).abs() < 0.005);
        assert!(numbers.iter().any(|x| x.abs() > 6.0), "beyond three deviations");
    }

    #[test]
    fn truncated_numbers_are_normal_within_two_deviations() {
        let numbers = drawn(Init::TruncatedNormal { stddev: 0.5 });
        assert!(numbers.iter().all(|x| x.abs() <= 1.0));
        let [mean, variance, _] = moments(&numbers);
        assert!(mean.abs() < 0.01, "{mean}");
        assert!((variance.sqrt() / 0.5 - normal::TRUNCATED_DEVIATION).abs() < 0.005, "{variance}");
        assert!((share_within(&numbers, 0.5) - 0.6827 / 0.9545).abs() < 0.005);
    }

    /// A layer of 300 inputs and 100 outputs; the expected variances are those documented by Keras.
    #[test]
    fn layers_start_with_the_variance_of_their_kind() {
        let kinds = [
            (LayerInit::GlorotUniform, 2.0 / 400.0),
            (LayerInit::GlorotNormal, 2.0 / 400.0),
            (LayerInit::HeUniform, 2.0 / 300.0),
            (LayerInit::HeNormal, 2.0 / 300.0),
        ];
        for (kind, expected) in kinds {
            let [mean, variance, _] = moments(&drawn(Init::layer(kind, 300, 100)));
            assert!(mean.abs() < 0.001, "{kind:?}: {mean}");
            assert!((variance / expected - 1.0).abs() < 0.02, "{kind:?}: {variance}");
        }
    }

    #[test]
    fn uniform_by_rows_is_bounded_by_one_over_the_root_of_the_rows() {
        assert_eq!(Init::embedding(EmbeddingInit::UniformByRows, 16), Init::Uniform { limit: 0.25 });
        assert_eq!(Init::embedding(EmbeddingInit::Zeros, 16), Init::Zeros);
    }

    fn drawn(init: Init) -> Vec<f64> {
        let numbers: Vec<f64> = init.values(3, "w", 0).take(100_000).collect();
        let correlation = numbers.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>();
        let squares = numbers.iter().map(|x| x * x).sum::<f64>();
        assert!((correlation / squares).abs() < 0.01, "{init:?}: {correlation}");
        numbers
    }

    /// Mean, variance, and mean of fourth powers.
    fn moments(numbers: &[f64]) -> [f64; 3] {
        [1, 2, 4].map(|power| numbers.iter().map(|x| x.powi(power)).sum::<f64>() / numbers.len() as f64)
    }

    fn share_within(numbers: &[f64], distance: f64) -> f64 {
        numbers.iter().filter(|x| x.abs() < distance).count() as f64 / numbers.len() as f64
    }
}
