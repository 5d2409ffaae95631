//! Conditions as written in a job file.

use serde::{Deserialize, Serialize};

/// A condition that a row must meet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Condition {
    /// The column to test.
    pub column: String,
    /// The test of its value.
    pub test: Test,
}

/// A test of a value. An absent value passes only `IsNull`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// The comparison with `value` holds.
    Compare {
        /// The comparison operator.
        op: Comparison,
        /// The literal to compare with.
        value: Literal,
    },
    /// The value equals one of these.
    OneOf {
        /// The literals; not empty.
        values: Vec<Literal>,
    },
    /// The value is absent.
    IsNull,
    /// The value is present.
    IsNotNull,
}

/// A comparison operator. Compares numbers by value, text by bytes, dates and times chronologically.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Comparison {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
}

/// A literal in a job file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Literal {
    /// True or false.
    Bool(bool),
    /// A whole number.
    Whole(i64),
    /// A floating-point number.
    Number(f64),
    /// Text; for columns of dates and times, a date or time in ISO 8601.
    Text(String),
}
