//! Parquet: one split per row group, only the wanted columns, decoded from bytes fetched before.
//!
//! A file's footer is read when the dataset is opened; it says where each column of each row group lies.
//! To read a row group is to fetch exactly those ranges, and then to decode from memory.
//!
//! | what | file |
//! |---|---|
//! | the footer: row groups and their bytes | `footer.rs` |
//! | types that features can use | `types.rs` |
//! | a projection's columns in a file | `plan.rs` |
//! | the rows and pages that a filter leaves | `pages.rs` |
//! | a row group's columns put together | `group.rs` |
//! | flat columns, decoded here | `flat.rs`, `values.rs`, `hybrid.rs` |
//! | all others, decoded by the `parquet` crate, whose panics end there | `guard.rs` |

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
use crate::fetch::merged;
use crate::storage::Object;

use footer::{BadFooter, Footer, MAGIC, TRAILER_BYTES, byte_range, trailer};

pub use footer::{RowGroup, row_groups_of};
pub(crate) use group::{RowGroupReader, WantedRows};
pub use guard::quiet_decoder_panics;
pub(crate) use plan::Plan;
pub(crate) use types::{Shape, shape};

/// Where the end of a file is looked for its footer.
const TAIL_BYTES: u64 = 64 << 10;
/// Ranges nearer to one another than this are fetched as one.
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
            let message = format!("a footer of {footer_bytes} bytes does not fit in the file");
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

    /// The columns with the types that their writer gave them.
    pub(crate) fn schema(&self) -> &Arc<Schema> {
        self.footer.as_written.schema()
    }

    /// How columns are compressed, each way once.
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

    /// Refuses a projection that `files` cannot serve: a column that none of them has, one that is of no
    /// use to a feature, one that is of different kinds in two of them.
    pub(crate) fn check(files: &[Self], projection: &Projection) -> Result<(), Error> {
        for file in files {
            file.plan(projection)?;
        }
        for column in &projection.columns {
            let name = column.name.as_str();
            let mut first = None;
            let mut lacking = 0usize;
            for file in files {
                let Some((class, data_type)) = file.class(name) else {
                    lacking += 1;
                    continue;
                };
                match first {
                    None => first = Some((file, class)),
                    Some((other, kind)) if !class.goes_with(kind) => {
                        let expected = format!("{}, as in {}", kind.name(), other.object.path());
                        return Err(file.wrong_type(name, &data_type, &expected));
                    }
                    // A column of nothing says nothing about the others.
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
                _ if lacking > 0 => {
                    tracing::warn!(column = name, "{lacking} of {} files lack it: absent there", files.len());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What must be fetched to decode a row group: sorted, apart from one another, within the file.
    pub(crate) fn ranges(&self, group: usize, plan: &Plan) -> Vec<Range<u64>> {
        let columns = self.column_chunks(group, plan);
        joined(columns.filter_map(|(_, column)| byte_range(column)).collect())
    }

    /// The column chunks of a row group that `plan` reads, each with its leaf.
    fn column_chunks<'a>(
        &'a self,
        group: usize,
        plan: &'a Plan,
    ) -> impl Iterator<Item = (usize, &'a ColumnChunkMetaData)> {
        let columns = self.footer.plain.metadata().row_group(group).columns();
        columns.iter().enumerate().filter(|&(leaf, _)| plan.reads(leaf))
    }
}

/// Sorted, and with no more than a gap between them, as one.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    merged(ranges, GAP_BYTES)
}

fn no_footer(object: &Object, head: &[u8]) -> Error {
    if head.starts_with(MAGIC) {
        return damage(object, object.size(), 0, "the file does not end in a footer: it is cut".to_owned());
    }
    Error::WrongFormat {
        path: object.path().to_string(),
        expected: "Parquet".to_owned(),
        found: super::Content::of(head).to_string(),
    }
}

fn damage(object: &Object, offset: u64, record: u64, message: String) -> Error {
    object.distrust();
    Error::Damage { path: object.path().to_string(), offset, record, message }
}
