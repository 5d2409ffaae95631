//! Rows with unusable values, and their error messages.
//!
//! Columns are transformed one after another, so faults are recorded as plain values. They are formatted,
//! with their addresses, only at the end and in row order.

use std::borrow::Cow;

use millstream_batch::{Dtype, Size};
use millstream_format::type_name::TypeName;
use millstream_format::{Error as FormatError, RawChunk};
use millstream_images::ImageError;

use super::column::{Elements, display_element};
use super::typed;
use crate::Error;
use crate::bad_records::BadRecords;
use crate::tokenizer::MAX_TEXT_BYTES;

/// An unusable value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The row within the chunk.
    pub(crate) row: usize,
    /// The column within the chunk.
    pub(crate) column: usize,
    pub(crate) problem: Problem,
}

/// Why a value is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// The label or row weight is missing.
    AbsentTarget,
    /// The label or row weight has this many values.
    SeveralTargets(usize),
    /// The value is missing.
    Absent,
    /// The value is missing, and the feature configures no replacement.
    AbsentNumber,
    /// The row has this many values instead of one.
    Several(usize),
    /// A vector has another length.
    Length {
        /// The feature's `size`.
        expected: usize,
        /// The number of values of the row.
        found: usize,
    },
    /// The numbers of values and of weights differ.
    Weights {
        /// The column that holds the values.
        column: usize,
        /// The number of values.
        values: usize,
        /// The number of weights.
        weights: usize,
    },
    /// The element is outside the range of ids.
    NoId {
        /// Its index among the column's elements.
        element: usize,
        /// The number of ids.
        buckets: u32,
    },
    /// The element is not of the expected form.
    Unusable {
        /// Its index among the column's elements.
        element: usize,
        /// The expected form.
        expected: &'static str,
    },
    /// The row has another number of values than a typed column's shape.
    Values {
        /// The product of the shape.
        expected: usize,
        /// The number of values of the row.
        found: usize,
    },
    /// The row has no value, and the typed column configures no replacement.
    AbsentValue,
    /// The element is not a value of the typed column's type.
    NotOfType {
        /// Its index among the column's elements.
        element: usize,
        /// The type.
        dtype: Dtype,
    },
    /// The bytes are no image, or too many.
    NoImage {
        /// The number of bytes of the row.
        found: u64,
    },
    /// The document has another number of tokens than in an earlier column.
    Tokens {
        /// The earlier column.
        column: usize,
        /// The number there.
        expected: u32,
        /// The number in this column.
        found: u32,
    },
    /// The bytes of a document are no whole number of tokens.
    TokenBytes {
        /// The bytes of a token.
        size: usize,
        /// The number of bytes of the row.
        found: u64,
    },
    /// The bytes are no text, or too many.
    NoText {
        /// The number of bytes of the row.
        found: u64,
    },
    /// The tokenizer has no tokens for the text.
    NoTokens,
    /// A stored token is not a value of the typed column's type.
    StoredToken {
        /// The token.
        token: u32,
        /// The type.
        dtype: Dtype,
    },
    /// The row has too many bytes.
    TooLong {
        /// The column's maximum.
        maximum: u32,
        /// The number of bytes of the row.
        found: u64,
    },
}

/// Reports each faulty row to `bad`, in row order. Returns a mask of the rows to keep, or `None` for all.
pub(crate) fn reject_faulty_rows(
    raw: &RawChunk,
    mut faults: Vec<Fault>,
    bad: &BadRecords,
) -> Result<Option<Vec<bool>>, Error> {
    if faults.is_empty() {
        return Ok(None);
    }
    faults.sort_by_key(|fault| fault.row);
    faults.dedup_by_key(|fault| fault.row);
    let mut keep = vec![true; raw.rows()];
    for fault in faults {
        keep[fault.row] = false;
        bad.skip(describe(raw, fault))?;
    }
    Ok(Some(keep))
}

/// The error for a column whose type does not suit its feature.
pub(crate) fn wrong_type(raw: &RawChunk, column: usize, expected: &str) -> Error {
    let schema = raw.columns().schema();
    let field = schema.field(column);
    Error::Format(FormatError::WrongType {
        path: raw.path().to_owned(),
        column: field.name().clone(),
        found: TypeName(field.data_type()).to_string(),
        expected: expected.to_owned(),
    })
}

/// How [`display_element`] shows a NaN, with which pandas and NumPy write missing numbers.
const NOT_A_NUMBER: &str = "`NaN`";
const NAN_ADVICE: &str =
    "; if it means missing, add \"NaN\" to `missing` in [data], and set `missing` in a numeric feature";

fn describe(raw: &RawChunk, fault: Fault) -> Error {
    let found = |element| display_element(&Elements::of(raw.columns().column(fault.column)).leaf, element);
    let message: Cow<'static, str> = match fault.problem {
        Problem::Absent => "a value is missing".into(),
        Problem::AbsentTarget => "a value is missing, and labels and weights have no default; leave such rows out with a `filter` in [data] \
             (`is_not_null`), or with `on_bad_record = \"skip\"`"
            .into(),
        Problem::AbsentNumber => {
            "a value is missing; set `missing = \"mean\"` or a default number in the feature".into()
        }
        Problem::Several(count) => {
            format!("expected one value, found {count}; set `multi = true` in the feature, with `maximum`").into()
        }
        Problem::Length { expected, found } => {
            format!("expected {expected} numbers, the feature's `size`, found {found}").into()
        }
        Problem::SeveralTargets(count) => format!("expected one value, found {count}").into(),
        Problem::Weights { column, values, weights } => {
            let schema = raw.columns().schema();
            let of = schema.field(column).name();
            format!("expected one weight per value of column `{of}` ({values}), found {weights}").into()
        }
        Problem::NoId { element, buckets } => {
            let last = buckets.saturating_sub(1);
            format!("expected a whole number from 0 to {last}, found {}", found(element)).into()
        }
        Problem::Unusable { element, expected } => {
            let found = found(element);
            let advice = if found == NOT_A_NUMBER { NAN_ADVICE } else { "" };
            format!("expected {expected}, found {found}{advice}").into()
        }
        Problem::Values { expected: 1, found } => format!("expected one value, found {found}").into(),
        Problem::Values { expected, found } => {
            format!("expected {expected} values, the product of `shape`, found {found}").into()
        }
        Problem::AbsentValue => {
            "a value is missing; set `missing` in the column to the number that replaces it".into()
        }
        Problem::NotOfType { element, dtype } => {
            format!("expected {}, found {}", typed::values_of(dtype), found(element)).into()
        }
        Problem::NoImage { found } if found > typed::MAX_IMAGE_BYTES => {
            let (maximum, found) = (Size(typed::MAX_IMAGE_BYTES), Size(found));
            format!("expected an image of at most {maximum}, found {found}").into()
        }
        Problem::NoImage { found } => ImageError::Format { bytes: found }.to_string().into(),
        Problem::Tokens { column, expected, found } => {
            let schema = raw.columns().schema();
            let of = schema.field(column).name();
            format!("expected as many values as column `{of}` has ({expected}), found {found}").into()
        }
        Problem::TokenBytes { size, found } => {
            format!("expected whole tokens of {size} bytes, found {found} bytes").into()
        }
        Problem::NoText { found } if found > MAX_TEXT_BYTES as u64 => {
            let (most, found) = (Size(MAX_TEXT_BYTES as u64), Size(found));
            format!("expected a text of at most {most}, found {found}; divide it, or store its tokens").into()
        }
        Problem::NoText { .. } => "expected text in UTF-8".into(),
        Problem::NoTokens => "the tokenizer has no tokens for this text".into(),
        Problem::StoredToken { token, dtype } => {
            format!("expected {}, found {token}", typed::values_of(dtype)).into()
        }
        Problem::TooLong { maximum, found } => {
            format!("expected at most {maximum} bytes, the column's `maximum`, found {found}").into()
        }
    };
    let schema = raw.columns().schema();
    Error::Format(raw.bad_value(fault.row, schema.field(fault.column).name(), &message))
}
