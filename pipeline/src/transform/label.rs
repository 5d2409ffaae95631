//! The label and the weight of a row.

use arrow_array::Array;
use arrow_schema::DataType;

use crate::spec::{LabelColumn, LabelNumbers};

use super::column::{Missing, Number, as_held, numbers, texts};

/// What a label's or weight's value came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    /// This number.
    Value(f32),
    /// Nothing.
    Absent,
    /// Something else.
    Invalid,
}

/// The value that means 1.
#[derive(Clone, Debug)]
pub(crate) struct Positive {
    text: Vec<u8>,
    number: Option<f64>,
}

impl Positive {
    fn new(value: &str) -> Self {
        Self { text: value.as_bytes().to_vec(), number: value.trim_ascii().parse().ok() }
    }

    /// 1 where the element is this value, else 0. With number columns the values are compared, not how
    /// they are written. NaN is neither.
    fn labels(&self, leaf: &dyn Array, missing: &Missing) -> Option<Vec<Target>> {
        let number = self.number.filter(|_| is_number(leaf.data_type()));
        let Some(number) = number else {
            let label = |text: &[u8]| Target::Value(f32::from(text == self.text));
            return texts(leaf, missing, Target::Absent, label);
        };
        let number = as_held(leaf.data_type(), number);
        let label = |found| match found {
            Number::Value(value) if value.is_nan() => Target::Invalid,
            Number::Value(value) => Target::Value(f32::from(value == number)),
            Number::Absent => Target::Absent,
            Number::Unreadable => Target::Invalid,
        };
        numbers(leaf, missing, label)
    }
}

/// What a column's values mean as labels.
#[derive(Clone, Debug)]
pub(crate) enum Meaning {
    /// One value is 1, any other 0.
    Positive(Positive),
    /// They are numbers from 0 to 1.
    Probabilities,
    /// They are any finite numbers.
    Numbers,
}

impl Meaning {
    pub(crate) fn of(label: &LabelColumn) -> Self {
        match (&label.positive, label.numbers) {
            (Some(value), _) => Self::Positive(Positive::new(value)),
            (None, LabelNumbers::Probabilities) => Self::Probabilities,
            (None, LabelNumbers::Any) => Self::Numbers,
        }
    }

    /// The label of each element.
    pub(crate) fn labels(&self, leaf: &dyn Array, missing: &Missing) -> Option<Vec<Target>> {
        match self {
            Self::Positive(positive) => positive.labels(leaf, missing),
            Self::Probabilities => targets(leaf, missing, |value| (0.0..=1.0).contains(&value)),
            Self::Numbers => targets(leaf, missing, |value| (value as f32).is_finite()),
        }
    }

    /// What a value should be.
    pub(crate) fn expected(&self) -> &'static str {
        match self {
            Self::Positive(_) => "a label",
            Self::Probabilities => "a label from 0 to 1",
            Self::Numbers => "a finite number",
        }
    }

    /// Whether rows are told apart as positive and negative.
    pub(crate) fn has_classes(&self) -> bool {
        !matches!(self, Self::Numbers)
    }
}

/// Weights: finite and not negative.
pub(crate) fn weights(leaf: &dyn Array, missing: &Missing) -> Option<Vec<Target>> {
    targets(leaf, missing, |value| value >= 0.0 && (value as f32).is_finite())
}

/// Weights of values: finite.
pub(crate) fn value_weights(leaf: &dyn Array, missing: &Missing) -> Option<Vec<Target>> {
    targets(leaf, missing, |value| (value as f32).is_finite())
}

fn targets(leaf: &dyn Array, missing: &Missing, usable: impl Fn(f64) -> bool) -> Option<Vec<Target>> {
    let target = |number| match number {
        Number::Value(value) if usable(value) => Target::Value(value as f32),
        Number::Absent => Target::Absent,
        _ => Target::Invalid,
    };
    numbers(leaf, missing, target)
}

fn is_number(data_type: &DataType) -> bool {
    data_type.is_numeric() || *data_type == DataType::Boolean
}
