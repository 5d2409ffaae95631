//! Division of a dataset's rows into a held-out share and the rest, by a hash.
//!
//! A hash decides alone, without any state: each row is on the same side in every pass, on every host and in every
//! version. Hashes are XXH64 (Collet, "xxHash fast digest algorithm", section XXH64).

use std::ops::Range;

use arrow_schema::DataType;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash64;

use super::Mismatch;
use super::cells::{self, Cell};

/// One side of a division of rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// The hashes of the rows that are held out, as fractions of all hashes, from 0 to 1: the length is the expected
    /// fraction of rows. Shares whose ranges meet have no row in common and no row between them.
    pub held_out: Range<f64>,
    /// Each seed makes another division.
    pub seed: u64,
    /// The column by whose value rows are divided: rows with equal values are on the same side, and rows without a value
    /// are not held out. `None` divides by the name of the file and the number of the row in it.
    pub column: Option<String>,
    /// The side.
    pub side: Side,
}

/// A side of a division.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The rows that are held out.
    HeldOut,
    /// The other rows.
    Rest,
}

impl Share {
    /// The expected fraction of rows on this side.
    pub fn expected(&self) -> f64 {
        match self.side {
            Side::HeldOut => self.held_out.end - self.held_out.start,
            Side::Rest => 1.0 - (self.held_out.end - self.held_out.start),
        }
    }

    /// Whether a row with this value is on this side; `None` is an absent value.
    pub(super) fn holds(&self, cell: Option<Cell<'_>>) -> bool {
        self.is_side_of(cell.map(|cell| self.hash(&cell)))
    }

    /// Whether row `record` of a file is on this side.
    pub fn holds_record(&self, file: &str, record: u64) -> bool {
        let name = file.rsplit('/').next().unwrap_or(file);
        let of_file = XxHash64::oneshot(self.seed, name.as_bytes());
        self.is_side_of(Some(XxHash64::oneshot(of_file, &record.to_le_bytes())))
    }

    /// Whether rows can be divided by columns of this type.
    pub(crate) fn check(data_type: &DataType) -> Result<(), Mismatch> {
        let data_type = cells::element_type(data_type);
        let is_value = data_type.is_primitive()
            || matches!(data_type, DataType::Boolean | DataType::Null)
            || cells::is_text(data_type);
        if is_value { Ok(()) } else { Err(Mismatch("one number, text, date or time per row")) }
    }

    fn is_side_of(&self, hash: Option<u64>) -> bool {
        // 2^64 hashes; a conversion of floats saturates.
        let bound = |fraction: f64| (fraction * 2.0_f64.powi(64)) as u64;
        let Range { start, end } = self.held_out;
        let held_out = hash.is_some_and(|hash| (bound(start)..bound(end)).contains(&hash));
        held_out == (self.side == Side::HeldOut)
    }

    fn hash(&self, cell: &Cell<'_>) -> u64 {
        let of = |bytes: &[u8]| XxHash64::oneshot(self.seed, bytes);
        match cell {
            Cell::Bool(value) => of(&[u8::from(*value)]),
            Cell::Whole(value) => of(&value.to_le_bytes()),
            // All NaN, and both zeros, are one value.
            Cell::Number(value) if value.is_nan() => of(&f64::NAN.to_le_bytes()),
            Cell::Number(value) => of(&(value + 0.0).to_le_bytes()),
            Cell::Bytes(bytes) => of(bytes),
            Cell::Text(text) => of(text.as_bytes()),
        }
    }
}
