//! Numeric features: a scaled number, as one dense column.

use arrow_array::Array;
use arrow_array::cast::AsArray;

use super::column::{Missing, Number, fill_nulls, floats, zeroed};
use super::logarithm::signed_log1p;
use super::memo::Memo;
use super::simd;
use crate::Error;
use crate::analysis::Analysis;
use crate::spec::{MissingNumber, Normalize};

/// `y = (g(x) - shift) / divisor`, where `g` is the identity or the signed logarithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    logarithm: bool,
    shift: f64,
    divisor: f64,
}

/// A numeric feature with its resolved statistics.
#[derive(Clone, Debug)]
pub(crate) struct Numeric {
    scale: Scale,
    /// The scaled replacement for an absent value; `None` makes an absent value an error.
    absent: Option<f32>,
}

/// The scaling of a numeric feature, for use outside this crate: `y = (g(x) - shift) / divisor`, where `g`
/// is the identity or the signed logarithm ([`crate::spec::Normalize::Log1p`]). Computed in f64, then
/// rounded to f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// Whether `g` is the logarithm.
    pub logarithm: bool,
    /// The subtrahend.
    pub shift: f64,
    /// The divisor; infinite for a constant column.
    pub divisor: f64,
    /// The scaled replacement for an absent value; `None` makes an absent value an error.
    pub absent: Option<f32>,
}

/// Why a value could not be scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScaleError {
    /// The value is absent and has no replacement.
    Absent,
    /// The value is not a finite number, before or after scaling.
    NotFinite,
}

impl Numeric {
    /// Resolves the statistics of `column` from `analysis` where `normalize` or `missing` needs them.
    pub(crate) fn resolve(
        column: &str,
        normalize: Normalize,
        missing: MissingNumber,
        analysis: &Analysis,
    ) -> Result<Self, Error> {
        let scale = Scale::resolve(column, normalize, analysis)?;
        let absent = match missing {
            MissingNumber::Error => None,
            MissingNumber::Value(value) => Some(value),
            MissingNumber::Mean => Some(analysis.number(column)?.plain.mean),
        };
        let absent = absent.map(|value| scale.apply(value) as f32);
        if absent.is_some_and(|value| !value.is_finite()) {
            return Err(Error::Invalid(format!(
                "column `{column}`: the replacement for missing values is not finite after scaling"
            )));
        }
        Ok(Self { scale, absent })
    }

    /// The parameters of [`Numeric::value`].
    pub(crate) fn scaling(&self) -> Scaling {
        let Scale { logarithm, shift, divisor } = self.scale;
        Scaling { logarithm, shift, divisor, absent: self.absent }
    }

    /// Scales a whole numeric column. `None` when values must be checked one at a time: a missing value is
    /// configured, an absent value has no replacement, or a scaled value is not finite.
    pub(crate) fn values(
        &self,
        leaf: &dyn Array,
        missing: &Missing,
        memo: &mut Memo<f32>,
        spare: Vec<f32>,
    ) -> Option<Vec<f32>> {
        match leaf.as_any_dictionary_opt() {
            None => self.values_of(leaf, missing, spare),
            Some(dictionary) => {
                let absent = if leaf.null_count() > 0 { self.absent? } else { 0.0 };
                memo.look_up(dictionary, absent, spare, |values| self.values_of(values, missing, Vec::new()))
            }
        }
    }

    fn values_of(&self, leaf: &dyn Array, missing: &Missing, spare: Vec<f32>) -> Option<Vec<f32>> {
        let absent = if leaf.null_count() > 0 { self.absent? } else { 0.0 };
        let numbers = floats(leaf, missing)?;
        let mut values = zeroed(spare, numbers.len());
        let finite = simd::run(
            #[inline(always)]
            || self.scale.apply_to(&numbers, &mut values),
        );
        fill_nulls(leaf, absent, &mut values);
        finite.then_some(values)
    }

    /// The scaled value.
    #[inline]
    pub(crate) fn value(&self, number: Number) -> Result<f32, ScaleError> {
        match number {
            Number::Value(value) => {
                let scaled = self.scale.apply(value) as f32;
                if scaled.is_finite() { Ok(scaled) } else { Err(ScaleError::NotFinite) }
            }
            Number::Absent => self.absent.ok_or(ScaleError::Absent),
            Number::Unreadable => Err(ScaleError::NotFinite),
        }
    }
}

impl Scale {
    fn resolve(column: &str, normalize: Normalize, analysis: &Analysis) -> Result<Self, Error> {
        let plain = Self { logarithm: false, shift: 0.0, divisor: 1.0 };
        Ok(match normalize {
            Normalize::None => plain,
            Normalize::Log1p => Self { logarithm: true, ..plain },
            Normalize::Zscore => {
                let moments = analysis.number(column)?.plain;
                Self { logarithm: false, shift: moments.mean, divisor: or_infinite(moments.deviation) }
            }
            Normalize::Log1pZscore => {
                let moments = analysis.number(column)?.logarithm;
                Self { logarithm: true, shift: moments.mean, divisor: or_infinite(moments.deviation) }
            }
            Normalize::Minmax => {
                let statistics = analysis.number(column)?;
                let range = statistics.maximum - statistics.minimum;
                Self { logarithm: false, shift: statistics.minimum, divisor: or_infinite(range) }
            }
        })
    }

    /// Scales all numbers. Returns whether all results are finite.
    #[inline(always)]
    fn apply_to(self, numbers: &[f64], values: &mut [f32]) -> bool {
        let mut finite = true;
        for (value, &number) in values.iter_mut().zip(numbers) {
            *value = self.apply(number) as f32;
            finite &= value.is_finite();
        }
        finite
    }

    #[inline(always)]
    fn apply(self, value: f64) -> f64 {
        let value = if self.logarithm { signed_log1p(value) } else { value };
        (value - self.shift) / self.divisor
    }
}

/// A constant column carries no information: dividing by infinity scales it to 0.
fn or_infinite(spread: f64) -> f64 {
    if spread > 0.0 { spread } else { f64::INFINITY }
}
