//! Measures how the cost of ingest scales with the number of columns, objects, record sizes and lanes. Varies one
//! parameter at a time around a middle point.
//!
//! ```text
//! cargo run --release -p millstream-pipeline --example scale               the grid, as Markdown
//! cargo run --release -p millstream-pipeline --example scale -- --quick    a tenth of its rows
//! cargo run --release -p millstream-pipeline --example scale -- point columns=40 lanes=16 ...
//! cargo run --release -p millstream-pipeline --example scale -- engine lanes=16 ...
//! ```
//!
//! Each point runs in a separate process, so that its peak memory (VmHWM) is measured separately. The process opens the
//! data as a job does, waits for the first batch, drains the feed, and prints a line of JSON. `engine` measures the
//! engine alone: its source returns copies of one prepared chunk.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use millstream_batch::Producer;
use millstream_format::tfrecord::RecordWriter;
use millstream_io::permits::Permit;
use millstream_pipeline::Error;
use millstream_pipeline::analysis::Analysis;
use millstream_pipeline::chunk::Chunk;
use millstream_pipeline::dataset::{Absent, Dataset};
use millstream_pipeline::ingest::{
    self, ChunkReader, ChunkSource, Counters, DatasetSource, IngestPlan, Opened, SkippedRecords,
};
use millstream_pipeline::order::Position;
use millstream_pipeline::spec::{DataSpec, FeatureKind, FeatureSpec, LabelSpec, MissingNumber, Normalize};
use millstream_pipeline::transform::Transform;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// The number of distinct files of a point; further objects are additional names of these files.
const DISTINCT: usize = 8;

#[derive(Clone, Debug)]
struct Point {
    columns: usize,
    objects: usize,
    record_bytes: usize,
    rows: usize,
    lanes: u32,
    shuffle_rows: u64,
    batch_size: u32,
    budget_mib: u64,
}

/// The point around which the others vary one parameter.
const MIDDLE: Point = Point {
    columns: 40,
    objects: 64,
    record_bytes: 0,
    rows: 2_000_000,
    lanes: 16,
    shuffle_rows: 100_000,
    batch_size: 4096,
    budget_mib: 512,
};

impl Point {
    fn parse(arguments: &[String]) -> Self {
        let mut point = MIDDLE;
        for argument in arguments {
            let (key, value) = argument.split_once('=').expect("KEY=VALUE");
            let number: usize = value.parse().expect("a whole number");
            match key {
                "columns" => point.columns = number,
                "objects" => point.objects = number,
                "record_bytes" => point.record_bytes = number,
                "rows" => point.rows = number,
                "lanes" => point.lanes = number as u32,
                "shuffle_rows" => point.shuffle_rows = number as u64,
                "batch_size" => point.batch_size = number as u32,
                "budget_mib" => point.budget_mib = number as u64,
                _ => panic!("no key {key}"),
            }
        }
        point
    }

    fn arguments(&self) -> Vec<String> {
        let Self { columns, objects, record_bytes, rows, lanes, shuffle_rows, batch_size, budget_mib } = self;
        vec![
            format!("columns={columns}"),
            format!("objects={objects}"),
            format!("record_bytes={record_bytes}"),
            format!("rows={rows}"),
            format!("lanes={lanes}"),
            format!("shuffle_rows={shuffle_rows}"),
            format!("batch_size={batch_size}"),
            format!("budget_mib={budget_mib}"),
        ]
    }

    fn spec(&self, base: &Path) -> DataSpec {
        DataSpec {
            base: base.to_owned(),
            train: vec!["*.tfrecord".to_owned()],
            batch_size: self.batch_size,
            shuffle_rows: self.shuffle_rows,
            lanes: self.lanes,
            memory_budget_bytes: self.budget_mib << 20,
            ..DataSpec::default()
        }
    }

    /// Every third column is a number, the others are categories.
    fn is_number(column: usize) -> bool {
        column.is_multiple_of(3)
    }

    fn transform(&self) -> Arc<Transform> {
        let number = FeatureKind::Numeric { normalize: Normalize::None, missing: MissingNumber::Value(0.0) };
        let features: Vec<_> = (0..self.columns)
            .map(|column| FeatureSpec {
                name: format!("c{column}"),
                columns: vec![format!("c{column}")],
                kind: if Self::is_number(column) {
                    number.clone()
                } else {
                    FeatureKind::Hashed { buckets: 100_000 }
                },
                maximum: None,
                weights: None,
            })
            .collect();
        Arc::new(Transform::resolve(&features, &label(), &[], &Analysis::default()).unwrap())
    }
}

fn label() -> LabelSpec {
    LabelSpec::of("clicked", None)
}

/// A length-delimited field of a protobuf message.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 128 {
        out.push(length as u8 | 128);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(bytes);
    out
}

fn record(point: &Point, row: usize) -> Vec<u8> {
    let float = |value: f32| field(2, &field(1, &value.to_le_bytes()));
    let integer = |value: u32| {
        let varint = [(value | 128) as u8, (value >> 7 | 128) as u8, (value >> 14 & 127) as u8];
        field(3, &field(1, &varint))
    };
    let feature = |name: &str, value: &[u8]| field(1, &[field(1, name.as_bytes()), field(2, value)].concat());
    let mut out = feature("clicked", &float((row % 2) as f32));
    for column in 0..point.columns {
        let value = (row * 31 + column * 7) as u32;
        let value = if Point::is_number(column) { float(value as f32) } else { integer(value) };
        out.extend(feature(&format!("c{column}"), &value));
    }
    // A feature that is not read pads the record to the requested length.
    if let Some(rest) = point.record_bytes.checked_sub(out.len() + 32) {
        out.extend(feature("payload", &field(1, &field(1, &vec![7; rest]))));
    }
    field(1, &out)
}

fn write(point: &Point, directory: &Path) {
    let rows = (point.rows / point.objects).max(1);
    let records: Vec<_> = (0..1000.min(rows)).map(|row| record(point, row)).collect();
    for object in 0..point.objects {
        let name = |object: usize| directory.join(format!("{object:06}.tfrecord"));
        if object >= DISTINCT {
            fs::hard_link(name(object % DISTINCT), name(object)).unwrap();
            continue;
        }
        let mut writer = RecordWriter::new(BufWriter::new(File::create(name(object)).unwrap()));
        (0..rows).for_each(|row| writer.write(&records[row % records.len()]).unwrap());
    }
}

/// The peak and current resident memory of this process, in bytes.
fn resident() -> (u64, u64) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let of = |key: &str| {
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    };
    (of("VmHWM:"), of("VmRSS:"))
}

fn drain(plan: IngestPlan, start: Instant) -> Value {
    let (producer, hand_off) = Producer::create(plan.ring_schema(), plan.slots()).unwrap();
    let mut consumer = hand_off.open(plan.ring_schema()).unwrap();
    let (memory, begin) = (plan.memory(), plan.start());
    let handle = ingest::start(plan, begin, vec![producer]).unwrap();
    let mut first = None;
    while let Ok(Some(_)) = consumer.next() {
        first.get_or_insert_with(|| start.elapsed().as_secs_f64());
    }
    let seconds = start.elapsed().as_secs_f64();
    let explained = handle.control().explain();
    let stats = handle.join().unwrap().stats;
    let first = first.unwrap();
    json!({
        "rows": stats.rows, "seconds": seconds, "first_batch_seconds": first,
        "rows_per_second": stats.rows as f64 / seconds, "bytes_per_second": stats.bytes as f64 / seconds,
        "peak_bytes": resident().0, "planned_bytes": memory.total_bytes(), "stages": stats.stages,
        "explained": explained,
    })
}

fn measure(point: &Point, directory: &Path) -> Value {
    let before = resident().1;
    let start = Instant::now();
    let runtime = Runtime::new().unwrap();
    let spec = point.spec(directory);
    let dataset = runtime.block_on(Dataset::open(&spec.train, &spec.base, None)).unwrap();
    let dataset = Arc::new(dataset.cut_at(spec.split_bytes).unwrap());
    let opened = start.elapsed().as_secs_f64();
    let transform = point.transform();
    dataset.check(transform.projection(), Absent::Rejected, runtime.handle()).unwrap();
    let checked = start.elapsed().as_secs_f64();
    let schema = transform.schema(spec.batch_size, Position::encoded_bytes(spec.lanes) as u32);
    let source = DatasetSource::new(dataset, transform, spec.on_bad_record, runtime.handle().clone());
    let plan = match IngestPlan::training(&spec, 1, &label(), schema, (Arc::new(source), None), None) {
        Ok(plan) => plan,
        Err(error) => return json!({"error": error.to_string()}),
    };
    let mut found = drain(plan, start);
    found["open_seconds"] = opened.into();
    found["check_seconds"] = (checked - opened).into();
    found["before_bytes"] = before.into();
    found
}

/// A source whose chunks cost only one memory copy.
struct Ready {
    point: Point,
    chunk: Arc<Chunk>,
}

struct ReadyReader {
    chunk: Arc<Chunk>,
    left: usize,
}

impl ChunkSource for Ready {
    fn splits(&self) -> u32 {
        self.point.objects as u32
    }

    fn cuts(&self) -> u64 {
        0
    }

    fn lane_bytes(&self, _chunk_rows: usize) -> u64 {
        0
    }

    fn open(&self, _: u32, _: u64, _: &Permit, _: &Arc<Counters>) -> Result<Opened, Error> {
        let left = self.point.rows / self.point.objects;
        Ok(Opened { reader: Box::new(ReadyReader { chunk: Arc::clone(&self.chunk), left }), passed: 0 })
    }
}

impl ChunkReader for ReadyReader {
    fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>, Error> {
        let rows = max_rows.min(self.left);
        self.left -= rows;
        let of = |values: &[f32]| values[..values.len() / self.chunk.rows() * rows].to_vec();
        Ok((rows > 0).then(|| Chunk {
            labels: vec![of(&self.chunk.labels[0])],
            dense: of(&self.chunk.dense),
            ids: self.chunk.ids[..self.chunk.ids.len() / self.chunk.rows() * rows].to_vec(),
            ..Chunk::default()
        }))
    }

    fn left_out(&mut self) -> SkippedRecords {
        SkippedRecords::default()
    }
}

fn measure_engine(point: &Point) -> Value {
    let spec = point.spec(Path::new(""));
    let schema = point.transform().schema(spec.batch_size, Position::encoded_bytes(spec.lanes) as u32);
    let rows = 8192;
    let chunk = Arc::new(Chunk {
        labels: vec![vec![1.0; rows]],
        dense: vec![0.5; rows * schema.dense.len()],
        ids: vec![7; rows * schema.ids.len()],
        ..Chunk::default()
    });
    let source = Arc::new(Ready { point: point.clone(), chunk });
    let plan = IngestPlan::training(&spec, 1, &label(), schema, (source, None), None).unwrap();
    drain(plan, Instant::now())
}

/// Measures a point in a separate process, over data in a temporary directory.
fn run(point: &Point, room: &Path) -> Value {
    let directory = room.join("data");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    write(point, &directory);
    let this = std::env::current_exe().unwrap();
    let output = Command::new(this).arg("measure").arg(&directory).args(point.arguments()).output().unwrap();
    fs::remove_dir_all(&directory).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|_| json!({"error": String::from_utf8_lossy(&output.stderr)}))
}

fn grid(quick: bool) -> Vec<(&'static str, Vec<Point>)> {
    let scale = |rows: usize| if quick { rows / 10 } else { rows };
    let middle = Point { rows: scale(MIDDLE.rows), ..MIDDLE };
    let lanes = [1, 2, 4, 8, 16, 32, 64].map(|lanes| Point { lanes, ..middle.clone() });
    let columns = [1, 10, 40, 100, 300, 1000].map(|columns| Point {
        columns,
        rows: scale((80_000_000 / columns.max(10)).min(4_000_000)),
        shuffle_rows: (4_000_000 / columns as u64).min(100_000),
        batch_size: if columns > 300 { 1024 } else { 4096 },
        ..MIDDLE
    });
    let objects = [1, 10, 100, 1_000, 10_000, 100_000].map(|objects| Point { objects, ..middle.clone() });
    let record_bytes = [100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000].map(|record_bytes| Point {
        columns: 2,
        record_bytes,
        rows: scale((2_000_000_000 / record_bytes).min(4_000_000)).max(100),
        shuffle_rows: 64,
        batch_size: 64,
        objects: 16,
        lanes: 8,
        ..MIDDLE
    });
    let budgets = [64, 128, 256, 512, 1024, 2048].map(|budget_mib| Point { budget_mib, ..middle.clone() });
    vec![
        ("lanes", lanes.into()),
        ("columns", columns.into()),
        ("objects", objects.into()),
        ("record bytes", record_bytes.into()),
        ("budget", budgets.into()),
    ]
}

fn main() {
    millstream_batch::allocator::return_large_blocks_to_os();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("measure") => {
            println!("{}", measure(&Point::parse(&arguments[2..]), Path::new(&arguments[1])));
        }
        Some("engine") => println!("{}", measure_engine(&Point::parse(&arguments[1..]))),
        Some("point") => {
            let room = std::env::temp_dir().join(format!("millstream-scale-{}", std::process::id()));
            println!("{:#}", run(&Point::parse(&arguments[1..]), &room));
            let _ = fs::remove_dir_all(PathBuf::from(&room));
        }
        only => print_grid(only == Some("--quick")),
    }
}

fn print_grid(quick: bool) {
    let room = std::env::temp_dir().join(format!("millstream-scale-{}", std::process::id()));
    for (name, points) in grid(quick) {
        println!("### {name}\n");
        println!(
            "| {name} | rows/s | MB/s | first batch, s | peak, MiB | planned, MiB | budget, MiB | binds |"
        );
        println!("|---|---|---|---|---|---|---|---|");
        for point in points {
            let at = match name {
                "lanes" => point.lanes as usize,
                "columns" => point.columns,
                "objects" => point.objects,
                "budget" => point.budget_mib as usize,
                _ => point.record_bytes,
            };
            let found = run(&point, &room);
            let Some(rate) = found["rows_per_second"].as_f64() else {
                println!("| {at} | {} |", found["error"]);
                continue;
            };
            let number = |key: &str| found[key].as_f64().unwrap_or(f64::NAN);
            println!(
                "| {at} | {rate:.0} | {:.0} | {:.3} | {:.0} | {:.0} | {} | {} |",
                number("bytes_per_second") / 1e6,
                number("first_batch_seconds"),
                number("peak_bytes") / 1048576.0,
                number("planned_bytes") / 1048576.0,
                point.budget_mib,
                found["explained"]["whole"]["bound"].as_str().unwrap_or("-"),
            );
        }
        println!();
    }
    let _ = fs::remove_dir_all(&room);
}
