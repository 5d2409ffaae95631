//! Counts the rows of each split of a dataset when it is registered, and proves that every row is in exactly one.
//!
//! A rule of splits is valid whatever the data, except that values may be absent, of another type, or bounds not in order.
//! A version is immutable, so one pass over the column proves it for all later reads.

use millstream_format::filter::{ResolvedFilter, RowFilter};
use millstream_format::record::RecordFormat;
use millstream_format::{FormatName, ProjectedColumn, Projection, RawChunk};
use millstream_io::storage::{Division, Object, Rule};
use millstream_pipeline::Error;
use millstream_pipeline::bad_records::BadRecords;
use millstream_pipeline::dataset::{Absent, Dataset, rows_of};
use millstream_pipeline::parallel::{Bounds, Weighed, in_order};
use millstream_pipeline::spec::{DEFAULT_SPLIT_BYTES, OnBadRecord};
use tokio::runtime::Handle;

use crate::progress::Progress;

/// Rows decoded at a time.
const CHUNK_ROWS: usize = 4096;

/// The number of rows in each split of `division` in files of this format. Blocks, so it must not be called from async code.
///
/// # Errors
/// The rule cannot decide about a row, or a file cannot be read.
pub fn count(
    objects: Vec<Object>,
    format: FormatName,
    division: &Division,
    threads: usize,
    (runtime, progress): (&Handle, &Progress),
) -> Result<Vec<u64>, Error> {
    progress.expect_bytes(objects.iter().map(Object::size).sum());
    let column = match &division.rule {
        Rule::Hash { column, .. } => column.as_ref(),
        Rule::Order { column, .. } => Some(column),
    };
    let is_read_in_parts = format.file_format().records().is_some_and(RecordFormat::is_divisible);
    if column.is_none() && is_read_in_parts {
        return Err(Error::Invalid(
            "files of TFRecord and JSON lines are read in parts, in which records have no number of the file: name the column that divides \
             their rows, --split-by COLUMN"
                .to_owned(),
        ));
    }
    let dataset = runtime.block_on(Dataset::of(objects, Some(format)))?.cut_at(DEFAULT_SPLIT_BYTES)?;
    let filters: Vec<RowFilter> = division.portions().iter().map(rows_of).collect();
    let columns = column.iter().map(|&name| ProjectedColumn { name: name.clone(), multi: false }).collect();
    let counting = Counting {
        dataset: &dataset,
        projection: Projection { columns, ..Projection::default() },
        filters,
        division,
    };
    if column.is_some() {
        // One filter suffices to compare its types with those of the files.
        let tested = dataset.filtered(&counting.filters[0]);
        tested.check(&counting.projection, Absent::Rejected, runtime)?;
    }
    let mut waiting = 0..dataset.splits().len();
    let mut totals = vec![0; counting.filters.len()];
    in_order(
        Bounds { threads: threads.max(1), bytes: usize::MAX },
        || Ok(waiting.next().map(|item| Weighed { item, bytes: 0 })),
        |part| {
            let mut reading = progress.reading();
            let counts = match column {
                Some(column) => counting.by_column(part, column, runtime, progress),
                None => counting.by_number(part),
            };
            reading.at(dataset.splits()[part].bytes)?;
            counts
        },
        |counts| {
            totals.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
            Ok(())
        },
    )?;
    Ok(totals)
}

/// Counts the rows of one part of the data.
struct Counting<'a> {
    dataset: &'a Dataset,
    projection: Projection,
    /// One for each split.
    filters: Vec<RowFilter>,
    division: &'a Division,
}

impl Counting<'_> {
    fn by_column(
        &self,
        part: usize,
        column: &str,
        runtime: &Handle,
        progress: &Progress,
    ) -> Result<Vec<u64>, Error> {
        let bad = BadRecords::new(OnBadRecord::Fail);
        let filters: Vec<ResolvedFilter> =
            self.filters.iter().map(|filter| ResolvedFilter::new(filter, &self.projection).1).collect();
        let mut counts = vec![0; filters.len()];
        let mut reader = self.dataset.read(part, &self.projection, &bad, runtime)?;
        while let Some(chunk) = reader.next_chunk(CHUNK_ROWS)? {
            progress.check()?;
            let passing = filters.iter().map(|filter| filter.passing(&chunk, |error| bad.skip(error.into())));
            let passing: Vec<Vec<bool>> = passing.collect::<Result<_, Error>>()?;
            for row in 0..chunk.rows() {
                let mut splits = (0..passing.len()).filter(|&split| passing[split][row]);
                match (splits.next(), splits.next()) {
                    (Some(only), None) => counts[only] += 1,
                    (None, _) => return Err(in_none(&chunk, row, column)),
                    (Some(one), Some(other)) => {
                        let name = |split: usize| &self.division.splits[split].name;
                        let (one, other) = (name(one), name(other));
                        return Err(Error::Invalid(format!(
                            "{}, record {}: is in both `{one}` and `{other}`: order the bounds of `{column}`",
                            chunk.path(),
                            chunk.record(row)
                        )));
                    }
                }
            }
        }
        Ok(counts)
    }

    /// As [`Counting::by_column`], of rows that are divided by their number in the file: nothing is read.
    fn by_number(&self, part: usize) -> Result<Vec<u64>, Error> {
        let split = &self.dataset.splits()[part];
        let path = self.dataset.objects()[split.object].path();
        let records = split.first_record..split.first_record + split.rows.unwrap_or(0);
        let count = |filter: &RowFilter| {
            let passes = |record: &u64| filter.shares.iter().all(|share| share.holds_record(path, *record));
            records.clone().filter(passes).count() as u64
        };
        Ok(self.filters.iter().map(count).collect())
    }
}

fn in_none(chunk: &RawChunk, row: usize, column: &str) -> Error {
    Error::Invalid(format!(
        "{}, record {}: is in no split, because `{column}` has no value or is not a number; every row needs a value to be \
         divided in order",
        chunk.path(),
        chunk.record(row)
    ))
}
