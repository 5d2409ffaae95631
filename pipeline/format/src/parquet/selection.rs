//! Page indexes: the rows of a row group that may pass a filter, and the locations of their pages.
//!
//! For each column of each row group a writer may store the bounds of each page's values (the *column index*) and
//! each page's location and first row (the *offset index*). If the columns of a filter have both, pages that
//! cannot pass exclude rows; of the flat columns that are read, only pages with remaining rows are fetched and
//! decoded. Like statistics, an index is used only if it is consistent; otherwise all rows are read and
//! filtered one at a time.
//!
//! Source: the Parquet format's `PageIndex.md` and `parquet.thrift`.

use std::collections::BTreeMap;
use std::ops::Range;

use parquet::basic::Type as Physical;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::page_index::index_reader::{decode_column_index, decode_offset_index};
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::statistics::{Statistics, ValueStatistics};

use super::fetched::FetchedFile;
use super::footer::byte_range;
use super::grammar::{check_column_index, check_offset_index};
use super::group::shape_of;
use super::guard::guarded;
use super::plan::{Found, Plan};
use super::{ParquetFile, joined};
use crate::filter::Condition;
use crate::filter::prune::ColumnBounds;

/// Maximum size of the indexes of one row group; more than ten thousand pages need.
const MAX_INDEX_BYTES: u64 = 1 << 20;

/// The parts of a row group that must be read.
#[derive(Debug, Default)]
pub(super) struct SelectedRows {
    /// Rows that may pass: ascending, non-empty, disjoint ranges.
    pub(super) rows: Vec<Range<u64>>,
    /// All pages of each flat leaf that has an offset index.
    pub(super) places: BTreeMap<usize, Vec<PageLocation>>,
}

impl SelectedRows {
    /// All rows, without page locations.
    pub(super) fn all(rows: u64) -> Self {
        Self { rows: std::iter::once(0..rows).collect(), places: BTreeMap::new() }
    }
}

impl ParquetFile {
    /// The byte ranges of the indexes needed to exclude rows of a row group; empty if indexes cannot exclude any.
    pub fn index_ranges(&self, group: usize, plan: &Plan, conditions: &[Condition]) -> Vec<Range<u64>> {
        let metadata = self.footer.plain.metadata().row_group(group);
        let mut ranges = Vec::new();
        for (_, leaf, _) in self.flat_conditions(group, conditions) {
            let column = metadata.column(leaf);
            let Some(both) = column.column_index_range().zip(column.offset_index_range()) else { continue };
            ranges.extend([both.0, both.1]);
        }
        if ranges.is_empty() {
            return ranges;
        }
        let flat = self.flat_leaves(group, plan);
        ranges.extend(flat.filter_map(|leaf| metadata.column(leaf).offset_index_range()));
        let bytes: u64 = ranges.iter().map(|range| range.end.saturating_sub(range.start)).sum();
        let fit = |range: &Range<u64>| range.start < range.end && range.end <= self.size;
        if bytes > MAX_INDEX_BYTES || !ranges.iter().all(fit) {
            return Vec::new();
        }
        joined(ranges)
    }

    /// The parts that must be read according to the `fetched` indexes; `None` if they exclude nothing.
    pub(super) fn selected_rows(
        &self,
        group: usize,
        plan: &Plan,
        conditions: &[Condition],
        fetched: &FetchedFile,
    ) -> Option<SelectedRows> {
        let metadata = self.footer.plain.metadata().row_group(group);
        let rows = self.groups()[group].rows;
        let mut passing = SelectedRows::all(rows).rows;
        for (condition, leaf, found) in self.flat_conditions(group, conditions) {
            let column = metadata.column(leaf);
            let Some(places) = places(column, rows, fetched) else { continue };
            let Some(index) = bounds_of_pages(column, places.len(), fetched) else { continue };
            let order = self.column_order(leaf);
            let mut may_pass = Vec::new();
            for (page, held) in rows_of(&places, rows).enumerate() {
                // The crate panics if the lists of an index have different lengths.
                let statistics = guarded(|| Ok::<_, ParquetError>(statistics(&index, page))).ok().flatten();
                let known = match index.is_null_page(page) {
                    true => ColumnBounds::all_absent(held.end - held.start),
                    false => {
                        ColumnBounds::of(statistics.as_ref(), order, &found.data_type, held.end - held.start)
                    }
                };
                if !known.rules_out(&condition.test, &found.data_type) {
                    may_pass.push(held);
                }
            }
            passing = common(&passing, &may_pass);
        }
        if matches!(&passing[..], [all] if *all == (0..rows)) {
            return None;
        }
        let flat = self.flat_leaves(group, plan);
        let places = flat.filter_map(|leaf| Some((leaf, places(metadata.column(leaf), rows, fetched)?)));
        Some(SelectedRows { rows: passing, places: places.collect() })
    }

    /// The byte ranges to fetch after the indexes: the pages with rows that may pass, and whole column chunks without
    /// an index.
    pub fn ranges_by_index(
        &self,
        group: usize,
        plan: &Plan,
        conditions: &[Condition],
        fetched: Vec<(u64, bytes::Bytes)>,
    ) -> Vec<Range<u64>> {
        let fetched = FetchedFile::new(fetched);
        let Some(selected) = self.selected_rows(group, plan, conditions, &fetched) else {
            return self.ranges(group, plan);
        };
        if selected.rows.is_empty() {
            return Vec::new();
        }
        let rows = self.groups()[group].rows;
        let mut ranges = Vec::new();
        for (leaf, column) in self.column_chunks(group, plan) {
            let Some(whole) = byte_range(column) else { continue };
            let Some(places) = selected.places.get(&leaf) else {
                ranges.push(whole);
                continue;
            };
            // The dictionary precedes the first data page.
            let first = places.first().map_or(whole.end, |place| place.offset as u64);
            ranges.push(whole.start..first);
            let held = rows_of(places, rows).zip(places);
            ranges.extend(
                held.filter(|(held, _)| overlaps(&selected.rows, held)).map(|(_, place)| bytes_of(place)),
            );
        }
        joined(ranges.into_iter().filter(|range| !range.is_empty()).collect())
    }

    /// The conditions on single-valued columns, each with its leaf.
    fn flat_conditions<'a>(
        &'a self,
        group: usize,
        conditions: &'a [Condition],
    ) -> impl Iterator<Item = (&'a Condition, usize, Found)> {
        conditions.iter().filter_map(move |condition| {
            let found = self.find(&condition.column)?;
            let [leaf] = found.leaves[..] else { return None };
            let column = self.footer.plain.metadata().row_group(group).column(leaf);
            (column.column_descr().max_rep_level() == 0).then_some((condition, leaf, found))
        })
    }

    /// The leaves of `plan` that [`FlatColumn`] decodes.
    fn flat_leaves<'a>(&'a self, group: usize, plan: &'a Plan) -> impl Iterator<Item = usize> {
        let metadata = self.footer.plain.metadata().row_group(group);
        let columns = match plan {
            Plan::All => &[],
            Plan::Columns(planned) => &planned.columns[..],
        };
        columns.iter().filter_map(move |column| {
            let found = column.found.as_ref()?;
            let (leaf, _) = shape_of(found, |leaf| metadata.column(leaf))?;
            (metadata.column(leaf).column_descr().max_rep_level() == 0).then_some(leaf)
        })
    }
}

/// The page locations of a column, if its index is consistent: consecutive pages within the column, none empty.
fn places(column: &ColumnChunkMetaData, rows: u64, fetched: &FetchedFile) -> Option<Vec<PageLocation>> {
    let bytes = index_bytes(column.offset_index_range()?, fetched)?;
    // Without this check, the crate reserves memory for as many pages as the index claims.
    check_offset_index(&bytes).ok()?;
    let index = guarded(|| decode_offset_index(&bytes)).ok()?;
    let places = index.page_locations().clone();
    let whole = byte_range(column)?;
    let mut at = whole.start;
    let mut next_row = 0;
    for place in &places {
        let (offset, size) =
            (u64::try_from(place.offset).ok()?, u64::try_from(place.compressed_page_size).ok()?);
        let first_row = u64::try_from(place.first_row_index).ok()?;
        let follows = if at == whole.start { first_row == 0 } else { first_row >= next_row };
        if offset < at || size == 0 || offset + size > whole.end || !follows || first_row >= rows {
            return None;
        }
        (at, next_row) = (offset + size, first_row + 1);
    }
    (!places.is_empty()).then_some(places)
}

/// The column index of a column with `pages` pages, if it is consistent.
fn bounds_of_pages(
    column: &ColumnChunkMetaData,
    pages: usize,
    fetched: &FetchedFile,
) -> Option<ColumnIndexMetaData> {
    let bytes = index_bytes(column.column_index_range()?, fetched)?;
    check_column_index(&bytes).ok()?;
    let index = guarded(|| decode_column_index(&bytes, column.column_type())).ok()?;
    let counts = index.null_counts().is_none_or(|counts| counts.len() == pages);
    let ordered = column.column_type() != Physical::INT96;
    (ordered && counts && index.num_pages() == pages as u64).then_some(index)
}

fn index_bytes(range: Range<u64>, fetched: &FetchedFile) -> Option<bytes::Bytes> {
    let length = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
    let bytes: Result<_, ParquetError> = fetched.bytes(range.start, length);
    bytes.ok()
}

/// A page's bounds in the form of row-group statistics.
fn statistics(index: &ColumnIndexMetaData, page: usize) -> Option<Statistics> {
    use ColumnIndexMetaData::{BOOLEAN, BYTE_ARRAY, DOUBLE, FLOAT, INT32, INT64};
    let absent = index.null_count(page).and_then(|count| u64::try_from(count).ok());
    macro_rules! of {
        ($make:ident, $index:expr) => {
            Statistics::$make(
                $index.min_value(page).copied(),
                $index.max_value(page).copied(),
                None,
                absent,
                false,
            )
        };
    }
    Some(match index {
        BOOLEAN(index) => of!(boolean, index),
        INT32(index) => of!(int32, index),
        INT64(index) => of!(int64, index),
        FLOAT(index) => of!(float, index),
        DOUBLE(index) => of!(double, index),
        BYTE_ARRAY(index) => {
            let bound = |value: Option<&[u8]>| value.map(|value| ByteArray::from(value.to_vec()));
            let (least, greatest) = (bound(index.min_value(page)), bound(index.max_value(page)));
            // Writers truncate long bounds.
            let statistics = ValueStatistics::new(least, greatest, None, absent, false);
            Statistics::ByteArray(statistics.with_min_is_exact(false).with_max_is_exact(false))
        }
        _ => return None,
    })
}

/// The rows of each page.
fn rows_of(places: &[PageLocation], rows: u64) -> impl Iterator<Item = Range<u64>> {
    let starts = places.iter().map(|place| place.first_row_index as u64);
    let ends = starts.clone().skip(1).chain(std::iter::once(rows));
    starts.zip(ends).map(|(start, end)| start..end)
}

fn bytes_of(place: &PageLocation) -> Range<u64> {
    let start = place.offset as u64;
    start..start + place.compressed_page_size as u64
}

/// Whether any of the ascending, disjoint `ranges` overlaps `range`.
fn overlaps(ranges: &[Range<u64>], range: &Range<u64>) -> bool {
    let next = ranges.partition_point(|other| other.end <= range.start);
    ranges.get(next).is_some_and(|other| other.start < range.end)
}

/// The intersection of two lists of ascending ranges, with adjacent ranges merged.
fn common(left: &[Range<u64>], right: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut both: Vec<Range<u64>> = Vec::new();
    let (mut at, mut other) = (0, 0);
    while let (Some(a), Some(b)) = (left.get(at), right.get(other)) {
        let (start, end) = (a.start.max(b.start), a.end.min(b.end));
        if start < end {
            match both.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => both.push(start..end),
            }
        }
        if a.end <= b.end {
            at += 1;
        } else {
            other += 1;
        }
    }
    both
}
