//! Parquet: one split per row group, only the projected columns, decoded from memory.
//!
//! A file's footer is read when the dataset is opened; it gives the byte ranges of each column of each row group.
//! Reading a row group fetches exactly the needed ranges and then decodes them from memory.
//!
//! | content | file |
//! |---|---|
//! | the footer: row groups and their byte ranges | `footer.rs` |
//! | column types supported by features | `types.rs` |
//! | the columns of a projection in a file | `plan.rs` |
//! | page indexes: the rows and pages that may pass a filter | `pages.rs` |
//! | decoding of a row group | `group.rs` |
//! | flat columns, decoded by this crate | `flat.rs`, `values.rs`, `hybrid.rs` |
//! | other columns, decoded by the `parquet` crate; catches its panics | `guard.rs` |

mod fetched;
mod flat;
mod footer;
mod group;
mod guard;
mod hybrid;
mod pages;
mod plan;
#[cfg(test)]
mod tests;
mod types;
mod values;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use arrow_schema::Schema;
use parquet::file::metadata::ColumnChunkMetaData;

use crate::dataset::Projection;
use crate::error::Error;
use crate::io::storage::Object;
use crate::ranges::merged;

use footer::{BadFooter, Footer, MAGIC, TRAILER_BYTES, byte_range, trailer};

pub use footer::{RowGroup, row_groups_of};
pub(crate) use group::{RowGroupReader, WantedRows};
pub use guard::quiet_decoder_panics;
pub(crate) use plan::Plan;
pub(crate) use types::{Shape, shape};

/// Bytes read from the end of a file to find its footer.
const TAIL_BYTES: u64 = 64 << 10;
/// Ranges with a smaller gap between them are fetched as one.
const GAP_BYTES: u64 = 256 << 10;

/// A file whose footer has been read. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct ParquetFile {
    object: Object,
    footer: Footer,
}

impl ParquetFile {
    pub(crate) async fn open(object: Object) -> Result<Self, Error> {
        let size = object.size();
        let tail_start = size.saturating_sub(TAIL_BYTES);
        let tail = object.read(tail_start..size).await?;
        let Some((footer_bytes, MAGIC)) = trailer(&tail) else {
            let head = object.read(0..size.min(64)).await?;
            return Err(no_footer(&object, &head));
        };
        let end = size - TRAILER_BYTES as u64;
        let Some(start) = end.checked_sub(u64::from(footer_bytes)) else {
            let message = format!("a footer of {footer_bytes} bytes exceeds the file");
            return Err(damage(&object, end, 0, message));
        };
        let footer = match start.checked_sub(tail_start) {
            Some(at) => tail.slice(at as usize..tail.len() - TRAILER_BYTES),
            None => object.read(start..end).await?,
        };
        let footer = Footer::decode(&footer, size)
            .map_err(|BadFooter { row, message }| damage(&object, start, row, message))?;
        Ok(Self { object, footer })
    }

    pub(crate) fn object(&self) -> &Object {
        &self.object
    }

    pub(crate) fn groups(&self) -> &[RowGroup] {
        &self.footer.groups
    }

    /// The schema with the types that the writer recorded.
    pub(crate) fn schema(&self) -> &Arc<Schema> {
        self.footer.as_written.schema()
    }

    /// The distinct compression codecs of the columns.
    pub(crate) fn codecs(&self) -> String {
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
    pub(crate) fn check(files: &[Self], projection: &Projection) -> Result<(), Error> {
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
                        let expected = format!("{}, as in {}", kind.name(), other.object.path());
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
                    return Err(Error::missing_column(file.object.path(), name, present));
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
    pub(crate) fn ranges(&self, group: usize, plan: &Plan) -> Vec<Range<u64>> {
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
    merged(ranges, GAP_BYTES)
}

fn no_footer(object: &Object, head: &[u8]) -> Error {
    if head.starts_with(MAGIC) {
        return damage(
            object,
            object.size(),
            0,
            "the file does not end with a footer: it is truncated".to_owned(),
        );
    }
    Error::WrongFormat {
        path: object.path().to_string(),
        expected: "Parquet".to_owned(),
        found: super::Content::detect(head).to_string(),
    }
}

fn damage(object: &Object, offset: u64, record: u64, message: String) -> Error {
    object.distrust();
    Error::Damage { path: object.path().to_string(), offset, record, message }
}
