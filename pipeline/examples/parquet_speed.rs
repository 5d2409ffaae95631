//! Measures the speed of reading Parquet: `parquet_speed FILE...`
//!
//! Uses one thread and files in the page cache. Alternates between the `parquet` crate alone and Millstream's ingest of
//! the same columns. Prints rows per second as minimum, median and maximum.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints its results")]

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use millstream_format::{ProjectedColumn, Projection};
use millstream_pipeline::Error;
use millstream_pipeline::bad_records::BadRecords;
use millstream_pipeline::dataset::Dataset;
use millstream_pipeline::spec::OnBadRecord;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

const ROUNDS: usize = 7;
const CHUNK_ROWS: usize = 2048;

fn main() -> ExitCode {
    let files: Vec<String> = std::env::args().skip(1).collect();
    if files.is_empty() {
        eprintln!("usage: parquet_speed FILE...");
        return ExitCode::from(2);
    }
    match measure(&files) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(files: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let schema = ParquetRecordBatchReaderBuilder::try_new(File::open(&files[0])?)?.schema().clone();
    let column = |name: &String| ProjectedColumn { name: name.clone(), multi: false };
    let projection = Projection {
        columns: schema.fields().iter().map(|field| column(field.name())).collect(),
        ..Projection::default()
    };
    let (mut crates, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let mut rows = 0;
        for file in files {
            let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(file)?)?;
            for batch in reader.with_batch_size(8192).build()? {
                rows += batch?.num_rows();
            }
        }
        crates.push(rows as f64 / start.elapsed().as_secs_f64());

        let start = Instant::now();
        let dataset = runtime.block_on(Dataset::open(files, Path::new("."), None))?;
        let mut rows = 0;
        each_chunk(&dataset, &projection, runtime.handle(), &mut |count| rows += count)?;
        ours.push(rows as f64 / start.elapsed().as_secs_f64());
    }
    for (name, mut rates) in [("the parquet crate", crates), ("ingest", ours)] {
        rates.sort_by(f64::total_cmp);
        let million = |rate: f64| rate / 1e6;
        println!(
            "{name:>18}: {:.2} {:.2} {:.2} million rows/s",
            million(rates[0]),
            million(rates[ROUNDS / 2]),
            million(rates[ROUNDS - 1])
        );
    }
    Ok(())
}

fn each_chunk(
    dataset: &Dataset,
    projection: &Projection,
    runtime: &tokio::runtime::Handle,
    count: &mut dyn FnMut(usize),
) -> Result<(), Error> {
    let bad = BadRecords::new(OnBadRecord::Fail);
    for split in 0..dataset.splits().len() {
        let mut reader = dataset.read(split, projection, &bad, runtime)?;
        while let Some(chunk) = reader.next_chunk(CHUNK_ROWS)? {
            count(chunk.rows());
        }
    }
    Ok(())
}
