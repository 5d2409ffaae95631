//! Labels and row weights.

use std::collections::HashMap;

use arrow_array::Array;
use arrow_schema::DataType;
use millstream_format::{Projection, RawChunk};

use crate::Error;
use crate::spec::{LabelColumn, LabelNumbers};

use super::column::{
    Elements, Missing, NUMBERS, Number, Single, TEXTS, numbers, round_to_column_type, texts,
};
use super::fault::{Fault, Problem, wrong_type};
use super::project;

/// A label and its column.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    pub(crate) column: usize,
    pub(crate) kind: LabelKind,
}

impl Label {
    /// Adds the label's column to `projection`, unless it is included.
    pub(crate) fn new(label: &LabelColumn, projection: &mut Projection) -> Self {
        Self { column: project(projection, &label.column, false), kind: LabelKind::of(label) }
    }

    /// The label of each row. A row without a usable one gets 0, and a fault.
    pub(crate) fn read(
        &self,
        raw: &RawChunk,
        missing: &Missing,
        faults: &mut Vec<Fault>,
    ) -> Result<Vec<f32>, Error> {
        let labels = |leaf: &dyn Array| self.kind.labels(leaf, missing);
        one_per_row(raw, self.column, labels, (TEXTS, self.kind.expected()), faults)
    }
}

/// The values of a label's column, apart from a transform.
#[derive(Clone, Debug)]
pub(crate) struct Labels {
    column: String,
    kind: LabelKind,
    missing: Missing,
}

impl Labels {
    pub(crate) fn new(label: &LabelColumn, missing: &[String]) -> Self {
        Self { column: label.column.clone(), kind: LabelKind::of(label), missing: Missing::new(missing) }
    }

    pub(crate) fn project(&self, projection: &mut Projection) -> usize {
        project(projection, &self.column, false)
    }

    /// Whether each row's label, in this column of `raw`, is 0. It is not if it is unusable.
    pub(crate) fn are_zero(&self, raw: &RawChunk, column: usize) -> Result<Vec<bool>, Error> {
        let elements = Elements::of(raw.columns().column(column));
        let targets = self.kind.labels(&elements.leaf, &self.missing);
        let targets = targets.ok_or_else(|| wrong_type(raw, column, TEXTS))?;
        let is_zero = |row| match elements.single(row) {
            Single::One(element) => targets[element] == Target::Value(0.0),
            Single::Absent | Single::Several(_) => false,
        };
        Ok((0..raw.rows()).map(is_zero).collect())
    }
}

/// The decoded value of a label or weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    /// A usable value.
    Value(f32),
    /// Missing.
    Absent,
    /// Unusable.
    Invalid,
}

/// The value that is labelled 1.
#[derive(Clone, Debug)]
pub(crate) struct Positive {
    text: Vec<u8>,
    number: Option<f64>,
}

impl Positive {
    fn new(value: &str) -> Self {
        Self { text: value.as_bytes().to_vec(), number: value.trim_ascii().parse().ok() }
    }

    /// 1 where the element equals this value, else 0. Numeric columns are compared by value, not by text.
    /// NaN is invalid.
    fn labels(&self, leaf: &dyn Array, missing: &Missing) -> Option<Vec<Target>> {
        let number = self.number.filter(|_| is_number(leaf.data_type()));
        let Some(number) = number else {
            let label = |text: &[u8]| Target::Value(f32::from(text == self.text));
            return texts(leaf, missing, Target::Absent, label);
        };
        let number = round_to_column_type(leaf.data_type(), number);
        let label = |found| match found {
            Number::Value(value) if value.is_nan() => Target::Invalid,
            Number::Value(value) => Target::Value(f32::from(value == number)),
            Number::Absent => Target::Absent,
            Number::Unreadable => Target::Invalid,
        };
        numbers(leaf, missing, label)
    }
}

/// The values of classes, each with its class number.
#[derive(Clone, Debug)]
pub(crate) struct Classes {
    by_text: HashMap<Vec<u8>, f32>,
    /// Values that parse as numbers.
    numbers: Vec<(f64, f32)>,
}

impl Classes {
    fn new(values: &[String]) -> Self {
        let classes = || values.iter().zip(0_u32..).map(|(value, class)| (value, class as f32));
        let number =
            |value: &String| value.trim_ascii().parse().ok().filter(|number: &f64| number.is_finite());
        Self {
            by_text: classes().map(|(value, class)| (value.as_bytes().to_vec(), class)).collect(),
            numbers: classes().filter_map(|(value, class)| Some((number(value)?, class))).collect(),
        }
    }

    /// The class of each element. Numeric columns are compared by value, not by text.
    fn labels(&self, leaf: &dyn Array, missing: &Missing) -> Option<Vec<Target>> {
        let target = |class: Option<&f32>| class.map_or(Target::Invalid, |&class| Target::Value(class));
        if self.numbers.is_empty() || !is_number(leaf.data_type()) {
            return texts(leaf, missing, Target::Absent, |text: &[u8]| target(self.by_text.get(text)));
        }
        // 0 and -0 are equal but have different bit patterns.
        let bits = |number: f64| (round_to_column_type(leaf.data_type(), number) + 0.0).to_bits();
        let by_number: HashMap<u64, f32> =
            self.numbers.iter().map(|&(number, class)| (bits(number), class)).collect();
        let label = |found| match found {
            Number::Value(value) => target(by_number.get(&bits(value))),
            Number::Absent => Target::Absent,
            Number::Unreadable => Target::Invalid,
        };
        numbers(leaf, missing, label)
    }
}

/// How a column's values encode labels.
#[derive(Clone, Debug)]
pub(crate) enum LabelKind {
    /// One value is 1, all others are 0.
    Positive(Positive),
    /// Numbers from 0 to 1.
    Probabilities,
    /// Any finite number.
    Numbers,
    /// Finite numbers of at least 0.
    NotNegative,
    /// Class names.
    Classes(Classes),
}

impl LabelKind {
    pub(crate) fn of(label: &LabelColumn) -> Self {
        if !label.classes.is_empty() {
            return Self::Classes(Classes::new(&label.classes));
        }
        match (&label.positive, label.numbers) {
            (Some(value), _) => Self::Positive(Positive::new(value)),
            (None, LabelNumbers::Probabilities) => Self::Probabilities,
            (None, LabelNumbers::Any) => Self::Numbers,
            (None, LabelNumbers::NotNegative) => Self::NotNegative,
        }
    }

    /// The label of each element. `None` when the column's type is unsupported.
    pub(crate) fn labels(&self, leaf: &dyn Array, missing: &Missing) -> Option<Vec<Target>> {
        match self {
            Self::Positive(positive) => positive.labels(leaf, missing),
            Self::Probabilities => targets(leaf, missing, |value| (0.0..=1.0).contains(&value)),
            Self::Numbers => targets(leaf, missing, |value| (value as f32).is_finite()),
            Self::NotNegative => targets(leaf, missing, is_finite_and_not_negative),
            Self::Classes(classes) => classes.labels(leaf, missing),
        }
    }

    /// A description of valid labels, for error messages.
    pub(crate) fn expected(&self) -> &'static str {
        match self {
            Self::Positive(_) => "a label",
            Self::Probabilities => "a label from 0 to 1",
            Self::Numbers => "a finite number",
            Self::NotNegative => "a finite number of at least 0",
            Self::Classes(_) => "one of the label's classes",
        }
    }

    /// The number of classes; 0 when labels are not classes.
    pub(crate) fn classes(&self) -> usize {
        if let Self::Classes(classes) = self { classes.by_text.len() } else { 0 }
    }

    /// Whether labels distinguish positive from negative rows.
    pub(crate) fn has_positives(&self) -> bool {
        matches!(self, Self::Positive(_) | Self::Probabilities)
    }
}

/// The weight of each row, finite and not negative. A row without a usable one gets 0, and a fault.
pub(crate) fn weights(
    raw: &RawChunk,
    column: usize,
    missing: &Missing,
    faults: &mut Vec<Fault>,
) -> Result<Vec<f32>, Error> {
    let weights = |leaf: &dyn Array| targets(leaf, missing, is_finite_and_not_negative);
    one_per_row(raw, column, weights, (NUMBERS, "a finite weight of at least 0"), faults)
}

/// Reads a column with one target per row. `expected` names the types of columns, and the values, that are usable.
fn one_per_row(
    raw: &RawChunk,
    column: usize,
    read: impl FnOnce(&dyn Array) -> Option<Vec<Target>>,
    (types, expected): (&str, &'static str),
    faults: &mut Vec<Fault>,
) -> Result<Vec<f32>, Error> {
    let elements = Elements::of(raw.columns().column(column));
    let targets = read(&elements.leaf).ok_or_else(|| wrong_type(raw, column, types))?;
    let of_row = |row| {
        let problem = match elements.single(row) {
            Single::One(element) => match targets[element] {
                Target::Value(value) => return value,
                Target::Absent => Problem::AbsentTarget,
                Target::Invalid => Problem::Unusable { element, expected },
            },
            Single::Absent => Problem::AbsentTarget,
            Single::Several(count) => Problem::SeveralTargets(count),
        };
        faults.push(Fault { row, column, problem });
        0.0
    };
    Ok((0..raw.rows()).map(of_row).collect())
}

/// Weights of a feature's values: finite.
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

fn is_finite_and_not_negative(value: f64) -> bool {
    value >= 0.0 && (value as f32).is_finite()
}

fn is_number(data_type: &DataType) -> bool {
    data_type.is_numeric() || *data_type == DataType::Boolean
}
