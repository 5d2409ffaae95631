//! The byte layout of a slot.
//!
//! ```text
//! offset 0   header      256 bytes, see [`crate::batch::BatchHeader`]
//!            labels      [L, B]   f32
//!            weights     [B]      f32, only when the schema is weighted
//!            dense       [B, D]   f32, row-major
//!            ids         [F, B]   u32
//!            ragged, for each of R features:
//!              offsets   [B + 1]  u32, row i holds values[offsets[i]..offsets[i + 1]]
//!              values    [B * maximum] u32
//!              weights   [B * maximum] f32, one per value, only when the feature is weighted
//!            typed columns, each:
//!              offsets   [B + 1]  u32, unless the column is fixed
//!              values    [B, shape..] or [B * maximum] of the column's type
//!            position    opaque bytes
//! ```
//!
//! Every section starts at a multiple of [`ALIGNMENT`], and so does the next slot. Numbers are in native
//! byte order: a ring never leaves its host.

use crate::column::{Column, ColumnKind};
use crate::schema::{BatchSchema, IdFeature, RaggedFeature};

/// Alignment of each section and of each slot, in bytes: a multiple of a cache line, and enough for the widest
/// vector loads and device copies.
pub const ALIGNMENT: usize = 256;

/// Bytes reserved for the header at the start of a slot.
pub const HEADER_BYTES: usize = 256;

/// A byte range within a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Bytes from the start of the slot; a multiple of [`ALIGNMENT`].
    pub offset: usize,
    /// Length in bytes, excluding the padding that follows.
    pub bytes: usize,
}

/// The sections of one ragged feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaggedSection {
    /// `[B + 1]` u32.
    pub offsets: Section,
    /// `[B * maximum]` u32.
    pub values: Section,
    /// `[B * maximum]` f32, when the feature is weighted.
    pub weights: Option<Section>,
}

/// The sections of one typed column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnSection {
    /// `[B + 1]` u32, unless the column is fixed.
    pub offsets: Option<Section>,
    /// `[B, shape..]` or `[B * maximum]`.
    pub values: Section,
}

/// The layout of a slot, computed from a schema by [`SlotLayout::of`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotLayout {
    schema: BatchSchema,
    /// `[L, B]` f32.
    pub labels: Section,
    /// `[B]` f32, when the schema is weighted.
    pub weights: Option<Section>,
    /// `[B, D]` f32.
    pub dense: Section,
    /// `[F, B]` u32.
    pub ids: Section,
    /// The sections of each ragged feature.
    pub ragged: Vec<RaggedSection>,
    /// The sections of each typed column.
    pub columns: Vec<ColumnSection>,
    pub(crate) position: Section,
    slot_bytes: usize,
}

/// A schema that cannot be laid out in a slot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A batch without rows.
    #[error("a batch must hold at least one row")]
    NoRows,
    /// Ragged values whose offsets do not fit in 32 bits.
    #[error("feature `{feature}`: {rows} rows of up to {maximum} values exceed 2^32 - 1 values")]
    TooManyValues {
        /// The feature.
        feature: String,
        /// Rows of the batch.
        rows: u32,
        /// Maximum number of values per row.
        maximum: u32,
    },
    /// A slot larger than the address space.
    #[error("a batch of {rows} rows exceeds the address space")]
    TooLarge {
        /// Rows of the batch.
        rows: u32,
    },
}

impl SlotLayout {
    /// Lays out a slot for `schema`.
    ///
    /// # Errors
    /// When the schema has no rows, or the slot is too large to address.
    pub fn of(schema: &BatchSchema) -> Result<Self, LayoutError> {
        if schema.rows == 0 {
            return Err(LayoutError::NoRows);
        }
        let too_large = || LayoutError::TooLarge { rows: schema.rows };
        let rows = schema.rows as usize;
        let mut end = HEADER_BYTES;
        let mut place = |items: Option<usize>, item_bytes: usize| {
            let bytes = items.and_then(|n| n.checked_mul(item_bytes)).ok_or_else(too_large)?;
            let section = Section { offset: end, bytes };
            end = end
                .checked_add(bytes)
                .and_then(|n| n.checked_next_multiple_of(ALIGNMENT))
                .filter(|&n| n <= isize::MAX as usize)
                .ok_or_else(too_large)?;
            Ok(section)
        };
        let labels = place(rows.checked_mul(schema.label_count()), 4)?;
        let weights = schema.weighted.then(|| place(Some(rows), 4)).transpose()?;
        let dense = place(rows.checked_mul(schema.dense.len()), 4)?;
        let ids = place(rows.checked_mul(schema.ids.len()), 4)?;
        let mut ragged = Vec::with_capacity(schema.ragged.len());
        for feature in &schema.ragged {
            let values = rows.checked_mul(feature.maximum as usize).filter(|&n| n <= u32::MAX as usize);
            if values.is_none() {
                return Err(LayoutError::TooManyValues {
                    feature: feature.name.clone(),
                    rows: schema.rows,
                    maximum: feature.maximum,
                });
            }
            ragged.push(RaggedSection {
                offsets: place(Some(rows + 1), 4)?,
                values: place(values, 4)?,
                weights: feature.weighted.then(|| place(values, 4)).transpose()?,
            });
        }
        let mut columns = Vec::with_capacity(schema.columns.len());
        for column in &schema.columns {
            let most = column.kind.row_values().ok_or_else(too_large)?;
            let values = rows.checked_mul(most as usize);
            if column.kind.has_offsets() && values.is_none_or(|values| values > u32::MAX as usize) {
                let (feature, rows) = (column.name.clone(), schema.rows);
                return Err(LayoutError::TooManyValues { feature, rows, maximum: most });
            }
            let offsets = column.kind.has_offsets().then(|| place(Some(rows + 1), 4)).transpose()?;
            let values = place(values, column.kind.dtype().bytes())?;
            columns.push(ColumnSection { offsets, values });
        }
        let position = place(Some(schema.position_bytes as usize), 1)?;
        let schema = schema.clone();
        Ok(Self { schema, labels, weights, dense, ids, ragged, columns, position, slot_bytes: end })
    }

    /// The schema this layout was computed from.
    pub fn schema(&self) -> &BatchSchema {
        &self.schema
    }

    /// Bytes of one slot; a multiple of [`ALIGNMENT`].
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// A hash of the schema. Two processes compare it to check that they agree on the batches: it covers names,
    /// order and cardinalities, not just the layout.
    ///
    /// 64-bit FNV-1a over the schema's fields in declaration order: numbers as eight little-endian bytes;
    /// strings and lists preceded by their lengths. Bit 32 of a ragged feature's maximum is its `weighted` flag. Typed
    /// columns follow at the end: the name, the name of the type, and the shape or the kind and the maximum.
    pub fn fingerprint(&self) -> u64 {
        let BatchSchema { rows, labels, weighted, dense, ids, ragged, columns, position_bytes } =
            &self.schema;
        let mut hash = Fnv1a::new();
        hash.number(u64::from(*rows));
        hash.number(labels.len() as u64);
        for name in labels {
            hash.text(name);
        }
        hash.number(u64::from(*weighted));
        hash.number(dense.len() as u64);
        for name in dense {
            hash.text(name);
        }
        hash.number(ids.len() as u64);
        for IdFeature { name, cardinality } in ids {
            hash.text(name);
            hash.number(u64::from(*cardinality));
        }
        hash.number(ragged.len() as u64);
        for RaggedFeature { name, cardinality, maximum, weighted } in ragged {
            hash.text(name);
            hash.number(u64::from(*cardinality));
            hash.number(u64::from(*maximum) | u64::from(*weighted) << 32);
        }
        hash.number(u64::from(*position_bytes));
        for Column { name, kind } in columns {
            hash.text(name);
            hash.text(kind.dtype().name());
            match kind {
                ColumnKind::Fixed { shape, .. } => {
                    hash.number(shape.len() as u64);
                    shape.iter().for_each(|&size| hash.number(size.into()));
                }
                ColumnKind::Ragged { maximum, .. } => {
                    hash.text("ragged");
                    hash.number((*maximum).into());
                }
                ColumnKind::Raw { maximum } => {
                    hash.text("raw");
                    hash.number((*maximum).into());
                }
            }
        }
        hash.0
    }
}

/// The 64-bit Fowler-Noll-Vo hash, variant 1a.
struct Fnv1a(u64);

impl Fnv1a {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes(text.as_bytes());
    }
}

#[cfg(test)]
mod tests;
