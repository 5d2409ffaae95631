//! End to end, from files to batches: datasets of both formats through ingest and the ring.

#![allow(clippy::unwrap_used)]

#[path = "support/files.rs"]
mod files;
#[path = "support/hub.rs"]
mod hub;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, RecordBatch, StringArray};
use millstream_batch::{BatchHeader, HandOff, Producer, Stream};
use millstream_format::Error as FormatError;
use millstream_pipeline::Error;
use millstream_pipeline::analysis::Analysis;
use millstream_pipeline::dataset::Dataset;
use millstream_pipeline::fingerprint::bucket;
use millstream_pipeline::ingest::{
    self, DatasetSource, IngestPlan, IngestReport, MAX_UNRECEIVED, Peers, PieceKey, PieceUpdate,
};
use millstream_pipeline::order::{Deal, Position};
use millstream_pipeline::spec::{
    DataSpec, FeatureKind, FeatureSpec, LabelSpec, MissingNumber, Normalize, OnBadRecord,
};
use millstream_pipeline::transform::Transform;
use millstream_trace::{Category, Recorder};
use tokio::runtime::Runtime;

const FILES: usize = 3;
const ROWS: usize = 100;
const BUCKETS: u32 = 50;

/// A row's number, which its column `number` holds; NaN for unusable rows.
fn number(row: usize, bad: bool) -> f32 {
    if bad && row % 40 == 7 { f32::NAN } else { row as f32 }
}

fn word(row: usize) -> String {
    format!("word {}", row % 17)
}

fn write_parquet(directory: &Path) {
    for file in 0..FILES {
        let rows = file * ROWS..(file + 1) * ROWS;
        let columns: [(&str, ArrayRef); 3] = [
            ("number", Arc::new(Float32Array::from_iter_values(rows.clone().map(|row| number(row, false))))),
            ("word", Arc::new(StringArray::from_iter_values(rows.clone().map(word)))),
            ("clicked", Arc::new(Float32Array::from_iter_values(rows.map(|row| (row % 2) as f32)))),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        files::write_parquet(&directory.join(format!("{file}.parquet")), &batch, 30);
    }
}

fn write_tfrecord(directory: &Path) {
    for file in 0..FILES {
        let features = |row: usize| {
            vec![
                files::floats("number", &[number(row, true)]),
                files::texts("word", &[word(row)]),
                files::floats("clicked", &[(row % 2) as f32]),
            ]
        };
        let path = directory.join(format!("{file}.tfrecord"));
        files::write_tfrecord(&path, (file * ROWS..(file + 1) * ROWS).map(features));
    }
}

fn spec(base: &Path, on_bad_record: OnBadRecord) -> DataSpec {
    DataSpec {
        base: base.to_owned(),
        batch_size: 16,
        epochs: 2,
        shuffle_rows: 60,
        lanes: 4,
        prefetch: 3,
        memory_budget_bytes: 1 << 30,
        on_bad_record,
        ..DataSpec::default()
    }
}

fn plan(spec: &DataSpec, pattern: &str, runtime: &Runtime) -> IngestPlan {
    let feature = |column: &str, kind| FeatureSpec {
        name: column.into(),
        columns: vec![column.into()],
        kind,
        maximum: None,
        weights: None,
    };
    let features = [
        feature("number", FeatureKind::Numeric { normalize: Normalize::None, missing: MissingNumber::Error }),
        feature("word", FeatureKind::Hashed { buckets: BUCKETS }),
    ];
    let label = LabelSpec::of("clicked", None);
    let transform = Arc::new(Transform::resolve(&features, &label, &[], &Analysis::default()).unwrap());
    let dataset = runtime.block_on(Dataset::open(&[pattern.into()], &spec.base, None)).unwrap();
    let dataset = Arc::new(dataset.cut_at(spec.split_bytes).unwrap());
    let schema = transform.schema(spec.batch_size, Position::encoded_bytes(spec.lanes) as u32);
    let source =
        Arc::new(DatasetSource::new(dataset, transform, spec.on_bad_record, runtime.handle().clone()));
    IngestPlan::training(spec, 3, &label, schema, (source.clone(), None), Some(source)).unwrap()
}

/// A batch: its header, the position after it, and the numbers of its rows.
type Seen = (BatchHeader, Vec<u8>, Vec<usize>);

fn run(plan: &IngestPlan, from: Position) -> (Vec<Seen>, Result<IngestReport, Error>) {
    let (producer, hand_off) = Producer::create(plan.schema(), plan.slots()).unwrap();
    let mut consumer = hand_off.open(plan.schema()).unwrap();
    let ingest = ingest::start(plan.clone(), from, vec![producer]).unwrap();
    let mut seen = Vec::new();
    while let Ok(Some(leased)) = consumer.next() {
        let batch = leased.batch();
        let rows: Vec<usize> = batch.dense().iter().map(|&number| number as usize).collect();
        for (i, &row) in rows.iter().enumerate() {
            assert_eq!(batch.ids(0)[i], bucket(word(row).as_bytes(), BUCKETS));
            assert_eq!(batch.labels(0)[i], (row % 2) as f32);
        }
        seen.push((batch.header(), batch.position().to_vec(), rows));
    }
    (seen, ingest.join())
}

/// Runs a whole feed, then resumes it after every batch.
fn check(plan: &IngestPlan, rows: &[usize]) -> IngestReport {
    let (whole, report) = run(plan, plan.start());
    let report = report.unwrap();
    for (stream, epoch) in [(Stream::Train, 0), (Stream::Eval, 0), (Stream::Train, 1), (Stream::Eval, 1)] {
        let of_pass = |header: &BatchHeader| (header.stream, header.epoch) == (stream, epoch);
        let pass = whole.iter().filter(|(header, ..)| of_pass(header));
        let mut delivered: Vec<usize> = pass.flat_map(|(_, _, rows)| rows.iter().copied()).collect();
        if stream == Stream::Train {
            assert!(!delivered.is_sorted());
            delivered.sort_unstable();
        }
        assert_eq!(delivered, rows);
    }
    for (done, (_, position, _)) in whole.iter().enumerate() {
        let (rest, resumed) = run(plan, plan.resume(position).unwrap());
        assert_eq!(rest, whole[done + 1..]);
        assert_eq!(resumed.unwrap().position, report.position);
    }
    report
}

#[test]
fn parquet_is_delivered_exactly_once_and_resumes_anywhere() {
    let directory = tempfile::tempdir().unwrap();
    write_parquet(directory.path());
    let runtime = Runtime::new().unwrap();
    let plan = plan(&spec(directory.path(), OnBadRecord::Fail), "*.parquet", &runtime);
    let report = check(&plan, &(0..FILES * ROWS).collect::<Vec<_>>());
    assert_eq!(report.stats.rows, 4 * (FILES * ROWS) as u64);
    assert!(report.stats.bytes > 0);
}

#[test]
fn tracing_does_not_change_a_feed_and_records_every_stage() {
    let directory = tempfile::tempdir().unwrap();
    write_parquet(directory.path());
    let runtime = Runtime::new().unwrap();
    let plan = plan(&spec(directory.path(), OnBadRecord::Fail), "*.parquet", &runtime);
    let (unrecorded, _) = run(&plan, plan.start());
    let recorder = Arc::new(Recorder::default());
    let plan = plan.recorded_by(&recorder);
    recorder.begin();
    let (recorded, report) = run(&plan, plan.start());
    let recording = recorder.end();
    assert_eq!(recorded, unrecorded);
    let spans = recording.tracks.iter().flat_map(|track| &track.spans);
    let rows_of = |stage: &str| {
        let of_stage = spans.clone().filter(|span| span.category == Category::Ingest && span.name == stage);
        of_stage.map(|span| span.work.rows).sum::<u64>()
    };
    let rows = 4 * (FILES * ROWS) as u64;
    assert_eq!(["decode", "transform", "shuffle", "pack"].map(rows_of), [rows; 4]);
    let decoded = spans.clone().filter(|span| span.name == "decode").map(|span| span.work.bytes).sum::<u64>();
    assert_eq!(decoded, report.unwrap().stats.bytes);
    assert!(spans.clone().any(|span| span.name == "wait for a window"));
    // One track for the packer, and one per lane.
    let names: BTreeSet<&str> = recording.tracks.iter().map(|track| track.name.as_str()).collect();
    assert!(names.contains("ingest-packer") && names.contains("ingest-lane-0"), "{names:?}");
}

#[test]
fn tfrecord_is_delivered_exactly_once_without_bad_records() {
    let directory = tempfile::tempdir().unwrap();
    write_tfrecord(directory.path());
    let runtime = Runtime::new().unwrap();
    let rows: Vec<usize> = (0..FILES * ROWS).filter(|&row| !number(row, true).is_nan()).collect();
    let bad = (FILES * ROWS - rows.len()) as u64;
    assert!(bad > 5);

    let limited = |limit| spec(directory.path(), OnBadRecord::Skip { limit });
    let report = check(&plan(&limited(bad), "*.tfrecord", &runtime), &rows);
    assert_eq!(report.stats.skipped_records, 4 * bad);
    let listed = (0..FILES).map(|i| directory.path().join(format!("{i}.tfrecord")).metadata().unwrap().len());
    assert_eq!(report.stats.bytes, 4 * listed.sum::<u64>());

    let plan_of_fewer = plan(&limited(bad - 1), "*.tfrecord", &runtime);
    let (_, report) = run(&plan_of_fewer, plan_of_fewer.start());
    let Err(Error::TooManyBadRecords { last, .. }) = report else { panic!("{report:?}") };
    assert!(matches!(*last, Error::Format(FormatError::BadValue { .. })), "{last}");

    let strict = plan(&spec(directory.path(), OnBadRecord::Fail), "*.tfrecord", &runtime);
    let (_, report) = run(&strict, strict.start());
    let message = report.unwrap_err().to_string();
    assert!(message.contains(".tfrecord: record 7, column `number`"), "{message}");
}

#[test]
fn parts_of_tfrecord_files_are_delivered_exactly_once_and_resume_anywhere() {
    let directory = tempfile::tempdir().unwrap();
    write_tfrecord(directory.path());
    let runtime = Runtime::new().unwrap();
    let rows: Vec<usize> = (0..FILES * ROWS).filter(|&row| !number(row, true).is_nan()).collect();
    let bad = (FILES * ROWS - rows.len()) as u64;
    let mut spec = spec(directory.path(), OnBadRecord::Skip { limit: bad });
    spec.split_bytes = 1000;
    let in_parts = plan(&spec, "*.tfrecord", &runtime);
    let report = check(&in_parts, &rows);
    assert_eq!(report.stats.skipped_records, 4 * bad);

    // A position is invalid if files are split differently, even into the same number of parts.
    let (seen, _) = run(&in_parts, in_parts.start());
    let parts = |split_bytes| {
        let cut = DataSpec { split_bytes, ..spec.clone() };
        plan(&cut, "*.tfrecord", &runtime).resume(&seen[3].1).is_ok()
    };
    assert!(parts(1000) && !parts(500) && !parts(1 << 30));

    // Three hosts, the first with two parts; each row goes to exactly one of them.
    let hosts = hub::Hub::connect(3).into_iter().map(|peers| {
        let deal = Deal::new(peers.host(), &[0, 1, 2, 0]).unwrap();
        let plan = in_parts.clone().with_deal(deal).unwrap();
        let (rings, hand_offs) = plan.create_rings().unwrap();
        let open = |hand_off: HandOff| hand_off.open(plan.ring_schema()).unwrap();
        let consumers: Vec<_> = hand_offs.into_iter().map(open).collect();
        (ingest::start_among(Some(peers), plan, in_parts.start(), rings).unwrap(), consumers)
    });
    let (handles, consumers): (Vec<_>, Vec<_>) = hosts.unzip();
    let mut consumers: Vec<_> = consumers.into_iter().flatten().collect();
    assert_eq!(consumers.len(), 4);
    for (header, position, rows) in &seen {
        let mut together = Vec::new();
        for consumer in &mut consumers {
            let leased = consumer.next().unwrap().unwrap();
            let batch = leased.batch();
            let BatchHeader { rows, first_row, most_rows, .. } = batch.header();
            assert_eq!(batch.header(), BatchHeader { rows, first_row, most_rows, ..*header });
            assert_eq!(batch.position(), position);
            together.extend(batch.dense().iter().map(|&number| number as usize));
        }
        let mut rows = rows.clone();
        rows.sort_unstable();
        together.sort_unstable();
        assert_eq!(together, rows);
    }
    for handle in handles {
        assert_eq!(handle.join().unwrap().position, report.position);
    }
}
