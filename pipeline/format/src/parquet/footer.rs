//! Decodes a file's footer: its row groups and the byte ranges of their columns.
//!
//! Pure code over fetched bytes, so that it can be fuzzed: for any input the result is either row groups within
//! the file or an error. The `parquet` crate sees only what `grammar.rs` and `arrow_metadata.rs` have checked.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaDataReader};

use super::arrow_metadata;
use super::grammar::check_footer;
use super::guard::guarded;

/// `PAR1`, at both ends of a file.
pub(super) const MAGIC: &[u8; 4] = b"PAR1";
/// The length of the footer and the magic number.
pub(super) const TRAILER_BYTES: usize = 8;

/// The longest footer. Arrow's C++ implementation reads at most 100 MB; 10,000 columns in 100 row groups need as much.
pub(super) const MAX_FOOTER_BYTES: u64 = 128 << 20;

/// A row group as described by the footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowGroup {
    /// Number of its first row in the file.
    pub first_row: u64,
    /// Number of rows.
    pub rows: u64,
    /// Stored bytes of all columns.
    pub bytes: u64,
    /// Offset of its first byte in the file.
    pub offset: u64,
}

/// A validated footer.
#[derive(Clone, Debug)]
pub(super) struct Footer {
    /// Metadata with the types of the writer's Arrow schema, if the file contains one.
    pub(super) as_written: ArrowReaderMetadata,
    /// Metadata with Parquet's own types: text is text, whether the writer used a dictionary or a large string.
    pub(super) plain: ArrowReaderMetadata,
    pub(super) groups: Arc<[RowGroup]>,
    /// The memory that it uses.
    pub(super) decoded_bytes: u64,
    /// Indices of the root columns, sorted by name.
    by_name: Arc<[usize]>,
}

/// An invalid footer, and the row at which it was detected.
#[derive(Debug)]
pub(super) struct BadFooter {
    pub(super) row: u64,
    pub(super) message: String,
}

/// The row groups of `footer`, given without its length and magic number, in a file of `file_bytes`.
///
/// # Errors
/// When it cannot be decoded, or a column lies outside the file.
pub fn row_groups_of(footer: &[u8], file_bytes: u64) -> Result<Vec<RowGroup>, String> {
    let footer = Footer::decode(&Bytes::copy_from_slice(footer), file_bytes);
    footer.map(|footer| footer.groups.to_vec()).map_err(|bad| bad.message)
}

impl Footer {
    pub(super) fn decode(bytes: &Bytes, file_bytes: u64) -> Result<Self, BadFooter> {
        let undecodable =
            |message| BadFooter { row: 0, message: format!("the footer cannot be decoded: {message}") };
        let schema_bytes = check_footer(bytes).map_err(undecodable)?;
        let metadata = guarded(|| ParquetMetaDataReader::decode_metadata(bytes)).map_err(undecodable)?;
        let arrow_bytes = arrow_metadata::check(&metadata).map_err(undecodable)?;
        let decoded = guarded(|| {
            let metadata = Arc::new(metadata);
            let plain = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
            let plain = ArrowReaderMetadata::try_new(Arc::clone(&metadata), plain)?;
            let as_written = ArrowReaderMetadata::try_new(metadata, ArrowReaderOptions::new())?;
            Ok::<_, parquet::errors::ParquetError>((as_written, plain))
        });
        let (as_written, plain) = decoded.map_err(undecodable)?;
        let metadata_bytes = plain.metadata().memory_size() as u64;
        let decoded_bytes = metadata_bytes.saturating_add(schema_bytes).saturating_add(arrow_bytes);
        let groups = row_groups(&plain, file_bytes)?;
        let fields = plain.schema().fields();
        let mut by_name: Vec<usize> = (0..fields.len()).collect();
        by_name.sort_by_key(|&root| fields[root].name());
        Ok(Self { as_written, plain, groups, decoded_bytes, by_name: by_name.into() })
    }

    /// The root column with this name; the first, if there are several.
    pub(super) fn root(&self, name: &str) -> Option<usize> {
        let fields = self.plain.schema().fields();
        let place = self.by_name.partition_point(|&root| fields[root].name().as_str() < name);
        self.by_name.get(place).copied().filter(|&root| fields[root].name() == name)
    }

    /// The leaves of a root column.
    pub(super) fn leaves(&self, root: usize) -> Range<usize> {
        let schema = self.plain.parquet_schema();
        // Leaves are sorted by root column.
        let first_not_before = |root: usize| {
            let (mut low, mut high) = (0, schema.num_columns());
            while low < high {
                let middle = low + (high - low) / 2;
                if schema.get_column_root_idx(middle) < root { low = middle + 1 } else { high = middle }
            }
            low
        };
        first_not_before(root)..first_not_before(root + 1)
    }
}

fn row_groups(metadata: &ArrowReaderMetadata, file_bytes: u64) -> Result<Arc<[RowGroup]>, BadFooter> {
    let mut first_row: u64 = 0;
    let mut groups = Vec::new();
    let leaves = metadata.parquet_schema().num_columns();
    for (number, group) in metadata.metadata().row_groups().iter().enumerate() {
        let bad = |what: &str| BadFooter { row: first_row, message: format!("row group {number}: {what}") };
        let rows = u64::try_from(group.num_rows()).map_err(|_| bad("the number of rows is negative"))?;
        if group.num_columns() != leaves {
            return Err(bad("the number of columns differs from the schema"));
        }
        let ranges: Option<Vec<_>> = group.columns().iter().map(byte_range).collect();
        let ranges = ranges.ok_or_else(|| bad("a column lies outside the file"))?;
        if ranges.iter().any(|range| range.end > file_bytes) {
            return Err(bad("a column lies outside the file"));
        }
        groups.push(RowGroup {
            first_row,
            rows,
            bytes: ranges.iter().fold(0, |bytes, range| bytes.saturating_add(range.end - range.start)),
            offset: ranges.iter().map(|range| range.start).min().unwrap_or(0),
        });
        first_row = first_row.checked_add(rows).ok_or_else(|| bad("too many rows"))?;
    }
    // Otherwise rows missing from the row groups would be lost silently.
    let total = metadata.metadata().file_metadata().num_rows();
    if u64::try_from(total).ok() != Some(first_row) {
        let message = format!("the file has {total} rows, its row groups have {first_row}");
        return Err(BadFooter { row: 0, message });
    }
    Ok(groups.into())
}

/// Like [`ColumnChunkMetaData::byte_range`], which panics on some damaged footers.
pub(super) fn byte_range(column: &ColumnChunkMetaData) -> Option<Range<u64>> {
    let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
    let start = u64::try_from(start).ok()?;
    Some(start..start.checked_add(u64::try_from(column.compressed_size()).ok()?)?)
}

/// The footer's length and the magic number, from the last bytes of a file.
pub(super) fn trailer(tail: &[u8]) -> Option<(u32, &[u8; 4])> {
    let (rest, magic) = tail.split_last_chunk::<4>()?;
    let (_, length) = rest.split_last_chunk::<4>()?;
    Some((u32::from_le_bytes(*length), magic))
}
