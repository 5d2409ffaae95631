//! Parquet: footer, planning, page indexes and decoding of arbitrary files. `inspect` counts the rows that a job reads,
//! and a filter never adds any.

use std::cell::OnceCell;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{Int32Builder, ListBuilder};
use arrow_array::{ArrayRef, BooleanArray, Float32Array, Int64Array, RecordBatch, StringArray};
use millstream_format::csv::CsvOptions;
use millstream_format::filter::{Comparison, Condition, Literal, RowFilter, Test};
use millstream_format::parquet::quiet_decoder_panics;
use millstream_format::{FormatName, ProjectedColumn, Projection};
use millstream_io::storage;
use millstream_pipeline::bad_records::BadRecords;
use millstream_pipeline::dataset::{Absent, Dataset};
use millstream_pipeline::spec::OnBadRecord;
use millstream_tools::inspect::{self, InspectOptions, Report};
use millstream_tools::progress::Progress;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use tempfile::TempDir;
use tokio::runtime::Runtime;

const NAME: &str = "file.parquet";
/// Rows per chunk.
const CHUNK_ROWS: usize = 50;
/// The number of rows after which reading stops, because a few bytes can claim any number of rows.
const MAX_ROWS: usize = 1 << 16;

/// A directory for the file, and a runtime to fetch it.
struct Bench {
    runtime: Runtime,
    directory: TempDir,
}

thread_local! {
    static BENCH: OnceCell<Bench> = const { OnceCell::new() };
}

/// Reads the bytes as a Parquet file.
pub fn check(data: &[u8]) {
    BENCH.with(|bench| {
        let bench = bench.get_or_init(Bench::new);
        fs::write(bench.directory.path().join(NAME), data).unwrap();
        let Some(report) = bench.inspect() else { return };
        bench.read(&report);
    });
}

impl Bench {
    fn new() -> Self {
        // libFuzzer reports every panic as a finding, even if it is caught.
        quiet_decoder_panics();
        let memory = Path::new("/dev/shm");
        let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        Self { runtime: runtime.unwrap(), directory: directory.unwrap() }
    }

    /// The contents of the file.
    fn inspect(&self) -> Option<Report> {
        let objects = self.runtime.block_on(storage::list(&[NAME.to_owned()], self.directory.path()));
        let options = InspectOptions { rows: 2, statistics: true, csv: CsvOptions::default(), threads: 1 };
        let progress = Progress::default();
        // An error means that the file has no supported format.
        inspect::inspect(&objects.unwrap(), &options, self.runtime.handle(), &progress).ok()?.reports.pop()
    }

    fn open(&self) -> Option<Dataset> {
        let names = [NAME.to_owned()];
        let opened = Dataset::open(&names, self.directory.path(), Some(FormatName::Parquet));
        self.runtime.block_on(opened).ok()
    }

    /// Reads all columns as a job would, as single values, and as feeds do, as lists and as single values.
    fn read(&self, report: &Report) {
        let Some(dataset) = self.open() else { return };
        for (multi, numbers_as_values) in [(false, false), (true, true), (false, true)] {
            let column = |name: &str| ProjectedColumn { name: name.to_owned(), multi };
            let projection = Projection {
                columns: report.columns.iter().map(|found| column(&found.name)).collect(),
                numbers_as_values,
            };
            let names: std::collections::HashSet<&str> =
                projection.columns.iter().map(|column| column.name.as_str()).collect();
            if names.len() != projection.columns.len()
                || dataset.check(&projection, Absent::Rejected, self.runtime.handle()).is_err()
            {
                continue;
            }
            let rows = self.rows(&dataset, &projection);
            if let (None, Some(rows)) = (&report.error, rows) {
                assert_eq!(rows as u64, report.records, "inspect and ingest count the same rows");
            }
            if let Some(first) = report.columns.first().filter(|_| !multi) {
                self.read_filtered(&first.name, &projection, rows);
            }
        }
    }

    /// Reads the rows that satisfy a condition on `column`, at most `rows` if all rows are readable.
    fn read_filtered(&self, column: &str, projection: &Projection, rows: Option<usize>) {
        let at_least = Test::Compare { op: Comparison::GreaterOrEqual, value: Literal::Whole(3_000) };
        for test in [Test::IsNotNull, at_least] {
            let condition = Condition { column: column.to_owned(), test };
            let Some(dataset) = self.open().map(|dataset| {
                dataset.filtered(&RowFilter { conditions: vec![condition], shares: Vec::new() })
            }) else {
                return;
            };
            if dataset.check(projection, Absent::Rejected, self.runtime.handle()).is_err() {
                continue;
            }
            if let (Some(passing), Some(rows)) = (self.rows(&dataset, projection), rows) {
                assert!(passing <= rows, "{passing} of {rows} rows pass");
            }
        }
    }

    /// The number of rows in all row groups, if all are readable and there are at most [`MAX_ROWS`].
    fn rows(&self, dataset: &Dataset, projection: &Projection) -> Option<usize> {
        let bad = BadRecords::new(OnBadRecord::Fail);
        let mut rows = 0;
        for split in 0..dataset.splits().len() {
            dataset.reader_bytes(split, projection);
            let mut reader = dataset.read(split, projection, &bad, self.runtime.handle()).ok()?;
            while let Some(chunk) = reader.next_chunk(CHUNK_ROWS).ok()? {
                assert!((1..=CHUNK_ROWS).contains(&chunk.rows()));
                assert_eq!(chunk.columns().num_columns(), projection.columns.len());
                rows += chunk.rows();
                if rows > MAX_ROWS {
                    return None;
                }
            }
        }
        Some(rows)
    }
}

/// Small files of several types, compressions and row groups.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut lists = ListBuilder::new(Int32Builder::new());
    for row in 0..20 {
        (0..row % 4).for_each(|value| lists.values().append_value(value));
        lists.append(row % 5 != 0);
    }
    let columns: [(&str, ArrayRef); 5] = [
        ("i", Arc::new(Int64Array::from_iter((0..20).map(|row| (row % 3 != 0).then_some(row * 1000))))),
        ("f", Arc::new(Float32Array::from_iter_values((0..20).map(|row| row as f32)))),
        ("s", Arc::new(StringArray::from_iter_values((0..20).map(|row| format!("v{}", row % 6))))),
        ("b", Arc::new(BooleanArray::from_iter((0..20).map(|row| Some(row % 2 == 0))))),
        ("l", Arc::new(lists.finish())),
    ];
    let file = |columns: &[(&str, ArrayRef)], compression, group_rows| {
        let batch = RecordBatch::try_from_iter_with_nullable(
            columns.iter().map(|(name, column)| (*name, column.clone(), true)),
        )
        .unwrap();
        let properties = WriterProperties::builder()
            .set_compression(compression)
            .set_max_row_group_row_count(Some(group_rows))
            .set_data_page_row_count_limit(6)
            .set_write_batch_size(6)
            .set_created_by(String::new())
            .build();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.into_inner().unwrap()
    };
    let mut seeds = vec![
        file(&columns, Compression::UNCOMPRESSED, 100),
        file(&columns[..3], Compression::SNAPPY, 8),
        file(&columns[2..], Compression::ZSTD(ZstdLevel::default()), 100),
    ];
    seeds.extend(columns.chunks(1).map(|column| file(column, Compression::UNCOMPRESSED, 100)));
    seeds
}

/// Magic numbers.
pub fn dictionary() -> Vec<Vec<u8>> {
    vec![b"PAR1".to_vec(), b"PARE".to_vec(), b"ARROW:schema".to_vec()]
}
