//! What the local cache is worth: a pass that reads a slow store and writes the cache, against passes that
//! read the cache; and what its files hold.
//!
//! ```text
//! cargo run --release -p millstream-pipeline --example cache_speed -- [DIRECTORY [ROWS [MB_PER_SECOND]]]
//! ```
//!
//! The data are generated click logs in TFRecord files (13 numeric and 26 hashed features), which a wrapper
//! around the source slows down to MB_PER_SECOND (0: not at all). Batches of 4096 rows, shuffled over 100,000. The
//! kinds of pass take turns, round after round; printed are minimum, median and maximum of rows a second.
//! `bench/cache.py` measures the same through the program, from any store that it can read.

#![allow(clippy::print_stdout, reason = "a measurement prints")]

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millstream_pipeline::Error as IngestError;
use millstream_pipeline::analysis::Analysis;
use millstream_pipeline::cache::{Cache, CacheOptions, CachedSource, Specification, read_all};
use millstream_pipeline::chunk::Chunk;
use millstream_pipeline::dataset::Dataset;
use millstream_pipeline::generate::Generate;
use millstream_pipeline::ingest::{
    self, ChunkReader, ChunkSource, Counters, DatasetSource, IngestPlan, LeftOut, Opened,
};
use millstream_pipeline::order::Position;
use millstream_pipeline::spec::{
    CacheSpec, DataSpec, FeatureKind, FeatureSpec, LabelSpec, MissingNumber, Normalize, OnBadRecord,
};
use millstream_pipeline::transform::Transform;
use tokio::runtime::Runtime;

const ROUNDS: usize = 5;

/// A source that delivers so many bytes a second, all lanes together.
struct Slow {
    inner: Arc<dyn ChunkSource>,
    pace: Arc<Pace>,
}

struct SlowReader {
    inner: Box<dyn ChunkReader>,
    pace: Arc<Pace>,
    counters: Arc<Counters>,
}

struct Pace {
    bytes_per_second: f64,
    started: Mutex<Option<Instant>>,
}

impl Pace {
    /// Waits until `bytes` may have been delivered in all.
    fn keep(&self, bytes: u64) {
        let started =
            *self.started.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now);
        let due = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second);
        std::thread::sleep(due.saturating_sub(started.elapsed()));
    }
}

impl ChunkSource for Slow {
    fn splits(&self) -> u32 {
        self.inner.splits()
    }

    fn lane_bytes(&self, chunk_rows: usize) -> u64 {
        self.inner.lane_bytes(chunk_rows)
    }

    fn open(&self, split: u32, from: u64, counters: &Arc<Counters>) -> Result<Opened, IngestError> {
        let Opened { reader, passed } = self.inner.open(split, from, counters)?;
        let (pace, counters) = (Arc::clone(&self.pace), Arc::clone(counters));
        Ok(Opened { reader: Box::new(SlowReader { inner: reader, pace, counters }), passed })
    }
}

impl ChunkReader for SlowReader {
    fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>, IngestError> {
        let chunk = self.inner.next(max_rows);
        self.pace.keep(self.counters.bytes.get());
        chunk
    }

    fn truncated_rows(&self) -> u64 {
        self.inner.truncated_rows()
    }

    fn left_out(&mut self) -> LeftOut {
        self.inner.left_out()
    }
}

/// Everything but the source.
struct Job {
    features: Vec<FeatureSpec>,
    label: LabelSpec,
    data: DataSpec,
}

impl Job {
    fn new(directory: &Path) -> Self {
        let feature =
            |name: String, kind| FeatureSpec { columns: vec![name.clone()], name, kind, maximum: None };
        let numeric =
            FeatureKind::Numeric { normalize: Normalize::Log1p, missing: MissingNumber::Value(0.0) };
        let features = (1..=13).map(|i| feature(format!("i{i}"), numeric.clone()));
        let hashed = (1..=26).map(|i| feature(format!("c{i}"), FeatureKind::Hashed { buckets: 100_000 }));
        let data = DataSpec {
            base: directory.to_owned(),
            train: vec!["clicks-*.tfrecord".to_owned()],
            eval: Vec::new(),
            format: None,
            missing: Vec::new(),
            batch_size: 4096,
            epochs: 1,
            shuffle_rows: 100_000,
            lanes: 16,
            prefetch: 4,
            memory_budget_bytes: 2 << 30,
            on_bad_record: OnBadRecord::Fail,
            cache: None,
        };
        let label = LabelSpec { column: "clicked".to_owned(), positive: None, weight: None };
        Self { features: features.chain(hashed).collect(), label, data }
    }

    /// Rows a second of one pass, from the source at `pace` or from the cache in `cache`.
    fn pass(&self, runtime: &Runtime, rate: f64, cache: Option<&Path>) -> Result<f64, Box<dyn Error>> {
        let transform = Transform::resolve(&self.features, &self.label, &[], &Analysis::default())?;
        let data = &self.data;
        let dataset = Arc::new(runtime.block_on(Dataset::open(&data.train, &data.base, None))?);
        let schema = transform.schema(data.batch_size, Position::encoded_bytes(data.lanes) as u32);
        let specification = Specification::of(&self.features, &self.label, data, &Analysis::default());
        let (transform, handle) = (Arc::new(transform), runtime.handle().clone());
        let mut source: Arc<dyn ChunkSource> =
            Arc::new(DatasetSource::new(Arc::clone(&dataset), transform, data.on_bad_record, handle));
        if rate > 0.0 {
            let pace = Arc::new(Pace { bytes_per_second: rate, started: Mutex::new(None) });
            source = Arc::new(Slow { inner: source, pace });
        }
        if let Some(directory) = cache {
            let spec = CacheSpec { directory: directory.to_owned(), max_bytes: 100 << 30 };
            let cache = Arc::new(Cache::new(&spec, CacheOptions::of_budget(data.memory_budget_bytes)));
            source = Arc::new(CachedSource::new(
                source,
                cache,
                &dataset,
                &schema,
                &specification,
                data.on_bad_record,
            ));
        }
        let plan = IngestPlan::training(data, 1, &self.label, schema, source, None)?;
        Ok(ingest::measure(plan)?.rows_per_second)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let directory = PathBuf::from(arguments.first().map_or("target/cache_speed", String::as_str));
    let rows: u64 = arguments.get(1).map_or(Ok(400_000), |text| text.parse())?;
    let rate: f64 = arguments.get(2).map_or(Ok(100.0), |text| text.parse())?;
    fs::create_dir_all(&directory)?;
    let generated = Generate {
        rows,
        output: directory.join("clicks.tfrecord"),
        shards: Some(16),
        threads: 2,
        ..Generate::default()
    }
    .run(&AtomicBool::new(false), &|_| {})?;
    println!("{rows} rows, {} bytes a row in TFRecord", generated.bytes / rows);
    let runtime = Runtime::new()?;
    let job = Job::new(&directory);
    let cache = directory.join("cache");
    let mut rates = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        rates[0].push(job.pass(&runtime, rate * 1e6, None)?);
        let _ = fs::remove_dir_all(&cache);
        rates[1].push(job.pass(&runtime, rate * 1e6, Some(&cache))?);
        rates[2].push(job.pass(&runtime, rate * 1e6, Some(&cache))?);
    }
    let names = ["without a cache", "first, written", "second, read"];
    let mut medians = [0.0; 3];
    for ((name, rates), median) in names.into_iter().zip(&mut rates).zip(&mut medians) {
        rates.sort_by(f64::total_cmp);
        *median = rates[ROUNDS / 2];
        println!("{name:16} {:9.0} / {median:9.0} / {:9.0} rows/s", rates[0], rates[ROUNDS - 1]);
    }
    println!("second against first: {:.1} times", medians[2] / medians[1]);
    files(&cache, rows)?;
    fs::remove_dir_all(&directory)?;
    Ok(())
}

/// What the files hold, how fast they are decoded, and what compressing them would do.
fn files(cache: &Path, rows: u64) -> Result<(), Box<dyn Error>> {
    let paths = fs::read_dir(cache)?.map(|entry| entry.map(|entry| entry.path()));
    let contents: Vec<Vec<u8>> = paths.map(|path| fs::read(path?)).collect::<Result<_, _>>()?;
    let bytes: usize = contents.iter().map(Vec::len).sum();
    println!("cache: {} files, {:.1} bytes a row", contents.len(), bytes as f64 / rows as f64);
    let started = Instant::now();
    for file in &contents {
        std::hint::black_box(read_all(file)?);
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "checked and decoded: {:.1} million rows/s a core, {:.0} MB/s",
        rows as f64 / seconds / 1e6,
        bytes as f64 / seconds / 1e6
    );
    let compressed: Vec<Vec<u8>> =
        contents.iter().map(|file| zstd::bulk::compress(file, 1)).collect::<Result<_, _>>()?;
    let small: usize = compressed.iter().map(Vec::len).sum();
    let started = Instant::now();
    for (file, small) in contents.iter().zip(&compressed) {
        std::hint::black_box(zstd::bulk::decompress(small, file.len())?);
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "zstd -1 would make that {:.0}%, and inflate {:.0} MB/s",
        100.0 * small as f64 / bytes as f64,
        bytes as f64 / seconds / 1e6
    );
    Ok(())
}
