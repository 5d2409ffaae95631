//! Typed columns: values as the data has them, for programs that bring their own model.
//!
//! Features ([`crate::schema`]) are what a trainer of Millstream reads: numbers as `f32`, ids as `u32`. A typed column
//! keeps the type that its reader asks for.

use serde::{Deserialize, Serialize};

/// A typed column of a batch of `B` rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its name, unique among the columns of a batch.
    pub name: String,
    /// The values of a row.
    #[serde(flatten)]
    pub kind: ColumnKind,
}

/// The values of a row of a typed column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum ColumnKind {
    /// A tensor, of the same shape in all rows: `[B, shape..]`, row-major.
    Fixed {
        /// The type of its values.
        dtype: Dtype,
        /// Without the dimension of rows; empty for one value per row.
        shape: Vec<u32>,
    },
    /// Any number of values: offsets `[B + 1]` u32 and values `[B * maximum]`.
    Ragged {
        /// The type of its values.
        dtype: Dtype,
        /// The maximum number of values per row.
        maximum: u32,
    },
    /// Bytes: offsets `[B + 1]` u32 and bytes `[B * maximum]`.
    Raw {
        /// The maximum number of bytes per row.
        maximum: u32,
    },
}

/// The type of a value. Names are those of NumPy and `ml_dtypes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// One byte, 0 or 1.
    Bool,
    /// An unsigned integer of 8 bits.
    Uint8,
    /// A signed integer of 8 bits.
    Int8,
    /// An unsigned integer of 16 bits.
    Uint16,
    /// A signed integer of 16 bits.
    Int16,
    /// An unsigned integer of 32 bits.
    Uint32,
    /// A signed integer of 32 bits.
    Int32,
    /// An unsigned integer of 64 bits.
    Uint64,
    /// A signed integer of 64 bits.
    Int64,
    /// IEEE 754 binary16.
    Float16,
    /// The upper half of an IEEE 754 binary32.
    Bfloat16,
    /// IEEE 754 binary32.
    Float32,
    /// IEEE 754 binary64.
    Float64,
}

impl Dtype {
    /// All types.
    pub const ALL: [Self; 13] = [
        Self::Bool,
        Self::Uint8,
        Self::Int8,
        Self::Uint16,
        Self::Int16,
        Self::Uint32,
        Self::Int32,
        Self::Uint64,
        Self::Int64,
        Self::Float16,
        Self::Bfloat16,
        Self::Float32,
        Self::Float64,
    ];

    /// Bytes of a value.
    pub fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => 1,
            Self::Uint16 | Self::Int16 | Self::Float16 | Self::Bfloat16 => 2,
            Self::Uint32 | Self::Int32 | Self::Float32 => 4,
            Self::Uint64 | Self::Int64 | Self::Float64 => 8,
        }
    }

    /// The name, such as `float32`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Uint8 => "uint8",
            Self::Int8 => "int8",
            Self::Uint16 => "uint16",
            Self::Int16 => "int16",
            Self::Uint32 => "uint32",
            Self::Int32 => "int32",
            Self::Uint64 => "uint64",
            Self::Int64 => "int64",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
        }
    }
}

impl ColumnKind {
    /// The type of its values.
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::Fixed { dtype, .. } | Self::Ragged { dtype, .. } => *dtype,
            Self::Raw { .. } => Dtype::Uint8,
        }
    }

    /// The number of values per row, or their maximum. `None` if it does not fit in 32 bits.
    pub fn row_values(&self) -> Option<u32> {
        match self {
            Self::Fixed { shape, .. } => {
                shape.iter().try_fold(1_u32, |values, &size| values.checked_mul(size))
            }
            Self::Ragged { maximum, .. } | Self::Raw { maximum } => Some(*maximum),
        }
    }

    /// Whether rows may differ in their number of values.
    pub fn has_offsets(&self) -> bool {
        !matches!(self, Self::Fixed { .. })
    }

    /// The maximum bytes of a row's values, without offsets; `u64::MAX` if the column has no layout.
    pub fn row_bytes(&self) -> u64 {
        self.row_values().map_or(u64::MAX, |values| u64::from(values) * self.dtype().bytes() as u64)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn types_have_the_names_that_json_has() {
        for dtype in Dtype::ALL {
            let json = serde_json::to_string(&dtype).unwrap();
            assert_eq!(json, format!("\"{}\"", dtype.name()));
            assert_eq!(serde_json::from_str::<Dtype>(&json).unwrap(), dtype);
            let bits: String = dtype.name().chars().filter(char::is_ascii_digit).collect();
            assert_eq!(bits.parse().unwrap_or(8), 8 * dtype.bytes(), "{}", dtype.name());
        }
    }

    #[test]
    fn a_shape_whose_product_does_not_fit_has_no_size() {
        let of = |shape: &[u32]| ColumnKind::Fixed { dtype: Dtype::Float16, shape: shape.to_vec() };
        assert_eq!((of(&[]).row_values(), of(&[3, 4]).row_bytes()), (Some(1), 24));
        assert_eq!(
            (of(&[1 << 16, 1 << 16]).row_values(), of(&[1 << 16, 1 << 16]).row_bytes()),
            (None, u64::MAX)
        );
    }
}
