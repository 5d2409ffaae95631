//! Conditions, as a job file writes them.

use serde::{Deserialize, Serialize};

/// A condition that a row must meet to be taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Condition {
    /// The column it is about.
    pub column: String,
    /// What its value must be.
    pub test: Test,
}

/// What a value must be. An absent one meets `IsNull` and nothing else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// So compared with `value`.
    Compare {
        /// How.
        op: Comparison,
        /// With what.
        value: Literal,
    },
    /// Equal to one of these.
    OneOf {
        /// Not empty.
        values: Vec<Literal>,
    },
    /// Absent.
    IsNull,
    /// Present.
    IsNotNull,
}

/// How a value compares with another. Numbers by value, text by its bytes, dates and times by time.
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

/// A value as a job file writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Literal {
    /// True or false.
    Bool(bool),
    /// A whole number.
    Whole(i64),
    /// Any other number.
    Number(f64),
    /// Text; with columns of dates and times, one of those as ISO 8601 writes it.
    Text(String),
}
