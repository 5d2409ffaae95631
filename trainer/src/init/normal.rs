//! Quantiles of the normal distribution, which map one uniform number to one normal number.
//!
//! Wichura, "Algorithm AS 241: The Percentage Points of the Normal Distribution", Applied Statistics 37, 1988,
//! PPND16: rational functions, one for the middle and two for the tails, accurate to 16 digits. As this is the inverse
//! of the distribution function, quantiles between two probabilities give a truncated distribution.

/// The probability that a standard normal number is below -2.
const BELOW_MINUS_TWO: f64 = 0.022_750_131_948_179_21;

/// The distance from 1/2 that counts as the middle, and its square.
const MIDDLE: f64 = 0.425;
const MIDDLE_SQUARED: f64 = 0.180_625;

/// The standard deviation of the standard normal distribution truncated to [-2, 2].
pub(super) const TRUNCATED_DEVIATION: f64 = 0.879_625_661_034_239_8;

/// Coefficients of a rational function in ascending order: numerator, denominator.
type Quotient = [[f64; 8]; 2];

const OF_MIDDLE: Quotient = [
    [
        3.387_132_872_796_366_6,
        133.141_667_891_784_38,
        1_971.590_950_306_551_3,
        13_731.693_765_509_46,
        45_921.953_931_549_87,
        67_265.770_927_008_7,
        33_430.575_583_588_13,
        2_509.080_928_730_122_7,
    ],
    [
        1.0,
        42.313_330_701_600_91,
        687.187_007_492_057_9,
        5_394.196_021_424_751,
        21_213.794_301_586_597,
        39_307.895_800_092_71,
        28_729.085_735_721_943,
        5_226.495_278_852_854,
    ],
];

const OF_TAILS: Quotient = [
    [
        1.423_437_110_749_683_5,
        4.630_337_846_156_546,
        5.769_497_221_460_691,
        3.647_848_324_763_204_5,
        1.270_458_252_452_368_4,
        0.241_780_725_177_450_6,
        0.022_723_844_989_269_184,
        0.000_774_545_014_278_341_4,
    ],
    [
        1.0,
        2.053_191_626_637_759,
        1.676_384_830_183_803_8,
        0.689_767_334_985_1,
        0.148_103_976_427_480_08,
        0.015_198_666_563_616_457,
        0.000_547_593_808_499_534_5,
        1.050_750_071_644_416_9e-9,
    ],
];

const OF_FAR_TAILS: Quotient = [
    [
        6.657_904_643_501_103,
        5.463_784_911_164_114,
        1.784_826_539_917_291_3,
        0.296_560_571_828_504_87,
        0.026_532_189_526_576_124,
        0.001_242_660_947_388_078_4,
        2.711_555_568_743_487_6e-5,
        2.010_334_399_292_288_1e-7,
    ],
    [
        1.0,
        0.599_832_206_555_888,
        0.136_929_880_922_735_8,
        0.014_875_361_290_850_615,
        0.000_786_869_131_145_613_2,
        1.846_318_317_510_054_8e-5,
        1.421_511_758_316_446e-7,
        2.044_263_103_389_939_8e-15,
    ],
];

/// The quantile of the standard normal distribution at `probability`, between 0 and 1.
pub(super) fn quantile(probability: f64) -> f64 {
    let from_middle = probability - 0.5;
    if from_middle.abs() <= MIDDLE {
        return from_middle * quotient(&OF_MIDDLE, MIDDLE_SQUARED - from_middle * from_middle);
    }
    let of_tail = if from_middle < 0.0 { probability } else { 1.0 - probability };
    let root = (-of_tail.ln()).sqrt();
    let distance =
        if root <= 5.0 { quotient(&OF_TAILS, root - 1.6) } else { quotient(&OF_FAR_TAILS, root - 5.0) };
    distance.copysign(from_middle)
}

/// The same for the distribution truncated to [-2, 2].
pub(super) fn truncated_quantile(probability: f64) -> f64 {
    quantile(BELOW_MINUS_TWO + probability * (1.0 - 2.0 * BELOW_MINUS_TWO))
}

fn quotient([above, below]: &Quotient, x: f64) -> f64 {
    let at = |coefficients: &[f64; 8]| coefficients.iter().rev().fold(0.0, |sum, &next| sum * x + next);
    at(above) / at(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with `statistics.NormalDist().inv_cdf` of Python 3.11.
    #[test]
    fn quantiles_match_python() {
        let cases = [
            (1e-300, -37.047_096_299_361_2),
            (1e-20, -9.262_340_089_798_405),
            (1e-10, -6.361_340_902_404_056),
            (0.01, -2.326_347_874_040_840_8),
            (0.075, -1.439_531_470_938_456),
            (0.3, -0.524_400_512_708_041),
            (0.5, 0.0),
            (0.925, 1.439_531_470_938_456),
            (0.999, 3.090_232_306_167_813),
        ];
        for (probability, expected) in cases {
            let found = quantile(probability);
            assert!((found - expected).abs() <= 1e-14 * f64::abs(expected), "{probability}: {found}");
        }
    }

    #[test]
    fn truncation_is_at_two() {
        for (probability, expected) in [(0.0, -2.0), (0.5, 0.0), (1.0, 2.0)] {
            assert!((truncated_quantile(probability) - expected).abs() < 1e-14);
        }
    }
}
