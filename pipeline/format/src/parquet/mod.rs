//! Parquet: one split per row group, only the projected columns, decoded from memory.
//!
//! A file's footer is read when the dataset is opened; it gives the byte ranges of each column of each row group.
//! Reading a row group fetches exactly the needed ranges and then decodes them from memory.
//!
//! | content | file |
//! |---|---|
//! | the footer: row groups and their byte ranges | `footer.rs` |
//! | checks before the `parquet` crate decodes metadata | `thrift.rs`, `grammar.rs`, `arrow_metadata.rs` |
//! | column types supported by features | `types.rs` |
//! | the columns of a projection in a file | `plan.rs` |
//! | page indexes: the rows and pages that may pass a filter | `selection.rs` |
//! | decoding of a row group, within a limit of memory | `group.rs`, `meter.rs` |
//! | the pages of a column chunk: headers, decompression | `page.rs`, `header.rs`, `codec.rs` |
//! | flat columns and lists, decoded by this crate | `flat.rs`, `list.rs`, `leaf.rs`, `values.rs`, `hybrid.rs` |
//! | other columns, decoded by the `parquet` crate; catches its panics | `rest.rs`, `delta.rs`, `guard.rs` |

mod arrow_metadata;
mod codec;
mod delta;
mod fetched;
mod flat;
mod footer;
mod grammar;
mod group;
mod guard;
mod header;
mod hybrid;
mod leaf;
mod list;
mod meter;
mod page;
mod plan;
mod rest;
mod selection;
mod thrift;
mod types;
mod values;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use arrow_schema::Schema;
use bytes::Bytes;
use parquet::file::metadata::ColumnChunkMetaData;

use crate::{Content, Error, Projection};

use footer::{BadFooter, Footer, MAGIC, MAX_FOOTER_BYTES, TRAILER_BYTES, byte_range, trailer};
pub use footer::{RowGroup, row_groups_of};
pub use grammar::{MAX_METADATA_BYTES, MAX_SCHEMA_DEPTH};
pub use group::{RowGroupReader, WantedRows};
pub use guard::quiet_decoder_panics;
pub use plan::Plan;
pub use types::{Shape, shape};

/// Bytes read from the end of a file to find its footer.
pub const TAIL_BYTES: u64 = 64 << 10;
/// Ranges with a smaller gap between them are fetched as one.
const GAP_BYTES: u64 = 256 << 10;

/// A file whose footer has been decoded. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ParquetFile {
    path: Arc<str>,
    size: u64,
    footer: Footer,
}

/// Finds the footer of a file of `size` bytes in its last bytes, of which `tail` holds at least [`TAIL_BYTES`] or all.
/// `None` if the file does not end with a footer.
///
/// # Errors
/// When the footer does not fit into the file, or is longer than 128 MiB.
pub fn footer_range(path: &str, size: u64, tail: &[u8]) -> Result<Option<Range<u64>>, Error> {
    let Some((footer_bytes, MAGIC)) = trailer(tail) else { return Ok(None) };
    let Some(end) = size.checked_sub(TRAILER_BYTES as u64) else { return Ok(None) };
    let message = match end.checked_sub(u64::from(footer_bytes)) {
        Some(start) if end - start <= MAX_FOOTER_BYTES => return Ok(Some(start..end)),
        Some(_) => format!("a footer of {footer_bytes} bytes exceeds the maximum of {MAX_FOOTER_BYTES}"),
        None => format!("a footer of {footer_bytes} bytes exceeds the file"),
    };
    Err(Error::Damage { path: path.to_owned(), offset: end, record: 0, message })
}

/// The error of a file that does not end with a footer; `head` are its first bytes.
pub fn no_footer(path: &str, size: u64, head: &[u8]) -> Error {
    let path = path.to_owned();
    if head.starts_with(MAGIC) {
        let message = "the file does not end with a footer: it is truncated".to_owned();
        return Error::Damage { path, offset: size, record: 0, message };
    }
    let found = Content::detect(head).to_string();
    Error::WrongFormat { path, expected: "Parquet".to_owned(), found }
}

impl ParquetFile {
    /// Decodes the footer that [`footer_range`] has found at `offset`.
    ///
    /// # Errors
    /// When the footer is damaged.
    pub fn new(path: Arc<str>, size: u64, offset: u64, footer: &Bytes) -> Result<Self, Error> {
        match Footer::decode(footer, size) {
            Ok(footer) => Ok(Self { path, size, footer }),
            Err(BadFooter { row, message }) => {
                Err(Error::Damage { path: path.to_string(), offset, record: row, message })
            }
        }
    }

    /// The row groups, in the order of the file.
    pub fn groups(&self) -> &[RowGroup] {
        &self.footer.groups
    }

    /// The memory that the decoded footer uses.
    pub fn metadata_bytes(&self) -> u64 {
        self.footer.decoded_bytes
    }

    /// The schema with the types that the writer recorded.
    pub fn schema(&self) -> &Arc<Schema> {
        self.footer.as_written.schema()
    }

    /// The distinct compression codecs of the columns.
    pub fn codecs(&self) -> String {
        let groups = self.footer.plain.metadata().row_groups().iter();
        let codecs = groups.flat_map(|group| group.columns()).map(|column| {
            let codec = column.compression().to_string().to_lowercase();
            let codec = codec.split('(').next().unwrap_or_default();
            if codec == "uncompressed" { "none".to_owned() } else { codec.to_owned() }
        });
        let codecs: BTreeSet<String> = codecs.collect();
        if codecs.is_empty() { "none".to_owned() } else { codecs.into_iter().collect::<Vec<_>>().join(", ") }
    }

    /// Checks that `files` can serve a projection: every column exists in at least one of them, has a supported type,
    /// and has the same class of type in all of them.
    pub fn check(files: &[&Self], projection: &Projection) -> Result<(), Error> {
        for file in files {
            file.plan(projection)?;
        }
        for column in &projection.columns {
            let name = column.name.as_str();
            let mut first = None;
            let mut missing = 0usize;
            for file in files {
                let Some((class, data_type)) = file.class(name) else {
                    missing += 1;
                    continue;
                };
                match first {
                    None => first = Some((file, class)),
                    Some((other, kind)) if !class.is_compatible_with(kind) => {
                        let expected = format!("{}, as in {}", kind.name(), other.path);
                        return Err(file.wrong_type(name, &data_type, &expected));
                    }
                    // A column without values has no class to compare with.
                    Some((_, types::Class::Absent)) => first = Some((file, class)),
                    Some(_) => {}
                }
            }
            match (first, files.first()) {
                (None, Some(file)) => {
                    let names = file.column_names();
                    let present = names.iter().map(String::as_str);
                    return Err(Error::missing_column(&file.path, name, present));
                }
                _ if missing > 0 => {
                    tracing::warn!(
                        column = name,
                        "missing in {missing} of {} files: treated as absent there",
                        files.len()
                    );
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The byte ranges needed to decode a row group: sorted, disjoint, within the file.
    pub fn ranges(&self, group: usize, plan: &Plan) -> Vec<Range<u64>> {
        let columns = self.column_chunks(group, plan);
        joined(columns.filter_map(|(_, column)| byte_range(column)).collect())
    }

    /// The column chunks of a row group that `plan` reads, each with its leaf index.
    fn column_chunks<'a>(
        &'a self,
        group: usize,
        plan: &'a Plan,
    ) -> impl Iterator<Item = (usize, &'a ColumnChunkMetaData)> {
        let columns = self.footer.plain.metadata().row_group(group).columns();
        columns.iter().enumerate().filter(|&(leaf, _)| plan.reads(leaf))
    }
}

/// Sorts ranges and merges those with at most [`GAP_BYTES`] between them.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end + GAP_BYTES => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_sorted_and_joined_over_small_gaps() {
        let gap = GAP_BYTES;
        let ranges = vec![30 + 2 * gap..40 + 2 * gap, 0..10, 10 + gap..20 + gap, 5..8];
        assert_eq!(joined(ranges), [0..20 + gap, 30 + 2 * gap..40 + 2 * gap]);
        assert_eq!(joined(Vec::new()), []);
    }
}
