//! Numeric features: a scaled number, as one dense column.

use arrow_array::Array;
use arrow_array::cast::AsArray;

use super::column::{Missing, Number, fill_nulls, floats, resized};
use super::logarithm::signed_log1p;
use super::memo::Memo;
use super::simd;
use crate::Error;
use crate::analysis::Analysis;
use crate::spec::{MissingNumber, Normalize};

/// The resolved scaling of a numeric feature: `y = (g(x) - shift) / divisor`, where `g`
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

impl Scaling {
    /// Copies numbers; an absent one is an error.
    pub(crate) const IDENTITY: Self = Self { logarithm: false, shift: 0.0, divisor: 1.0, absent: None };

    /// Resolves the statistics of `column` from `analysis` where `normalize` or `missing` needs them.
    pub(crate) fn resolve(
        column: &str,
        normalize: Normalize,
        missing: MissingNumber,
        analysis: &Analysis,
    ) -> Result<Self, Error> {
        let (logarithm, shift, divisor) = match normalize {
            Normalize::None => (false, 0.0, 1.0),
            Normalize::Log1p => (true, 0.0, 1.0),
            Normalize::Zscore => {
                let moments = analysis.number(column)?.plain;
                (false, moments.mean, or_infinite(moments.deviation))
            }
            Normalize::Log1pZscore => {
                let moments = analysis.number(column)?.logarithm;
                (true, moments.mean, or_infinite(moments.deviation))
            }
            Normalize::Minmax => {
                let statistics = analysis.number(column)?;
                let range = statistics.maximum - statistics.minimum;
                (false, statistics.minimum, or_infinite(range))
            }
        };
        let mut scaling = Self { logarithm, shift, divisor, absent: None };
        let absent = match missing {
            MissingNumber::Error => None,
            MissingNumber::Value(value) => Some(value),
            MissingNumber::Mean => Some(analysis.number(column)?.plain.mean),
        };
        scaling.absent = absent.map(|value| scaling.apply(value) as f32);
        if scaling.absent.is_some_and(|value| !value.is_finite()) {
            return Err(Error::Invalid(format!(
                "column `{column}`: the replacement for missing values is not finite after scaling"
            )));
        }
        Ok(scaling)
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
        let mut values = resized(spare, numbers.len());
        let finite = simd::run(
            #[inline(always)]
            || self.apply_to(&numbers, &mut values),
        );
        fill_nulls(leaf, absent, &mut values);
        finite.then_some(values)
    }

    /// The scaled value.
    #[inline]
    pub(crate) fn value(&self, number: Number) -> Result<f32, ScaleError> {
        match number {
            Number::Value(value) => {
                let scaled = self.apply(value) as f32;
                if scaled.is_finite() { Ok(scaled) } else { Err(ScaleError::NotFinite) }
            }
            Number::Absent => self.absent.ok_or(ScaleError::Absent),
            Number::Unreadable => Err(ScaleError::NotFinite),
        }
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
