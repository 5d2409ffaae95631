//! Mixed data end to end, from files of both formats to batches: each row occurs in an epoch as often as its weight says,
//! from any position, with and without a cache.

#![allow(clippy::unwrap_used)]

#[path = "support/files.rs"]
mod files;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, RecordBatch};
use millstream_batch::{BatchHeader, Consumer, Lease, Stream};
use millstream_pipeline::analysis::Analysis;
use millstream_pipeline::cache::{Cache, CacheOptions, CachedSource, Specification};
use millstream_pipeline::dataset::Dataset;
use millstream_pipeline::ingest::{self, ChunkSource, DatasetSource, IngestPlan, IngestStats};
use millstream_pipeline::order::{Mix, Position, Weight};
use millstream_pipeline::spec::{
    CacheSpec, DataSpec, FeatureKind, FeatureSpec, LabelSpec, MissingNumber, Normalize, Purpose,
};
use millstream_pipeline::transform::Transform;
use tokio::runtime::Runtime;

const ROWS: usize = 2_000;
const EPOCHS: u32 = 4;

/// The weight of each file.
const WEIGHTS: [f64; 4] = [1.0, 2.5, 0.5, 3.0];

fn rows_of(file: usize) -> std::ops::Range<usize> {
    file * ROWS..(file + 1) * ROWS
}

fn label(row: usize) -> f32 {
    (row % 2) as f32
}

fn write_parquet(path: &Path, file: usize) {
    let column = |value: &dyn Fn(usize) -> f32| -> ArrayRef {
        Arc::new(Float32Array::from_iter_values(rows_of(file).map(value)))
    };
    let batch =
        RecordBatch::try_from_iter([("number", column(&|row| row as f32)), ("clicked", column(&label))])
            .unwrap();
    files::write_parquet(path, &batch, 300);
}

fn write_tfrecord(path: &Path, file: usize) {
    let features =
        |row: usize| vec![files::floats("number", &[row as f32]), files::floats("clicked", &[label(row)])];
    files::write_tfrecord(path, rows_of(file).map(features));
}

fn spec(base: &Path, shuffle_rows: u64, threads: Option<u32>) -> DataSpec {
    DataSpec {
        base: base.to_owned(),
        batch_size: 512,
        epochs: EPOCHS,
        shuffle_rows,
        lanes: 4,
        threads,
        split_bytes: 20_000,
        ..DataSpec::default()
    }
}

/// A plan of these files, each with its weight of [`WEIGHTS`].
fn plan(spec: &DataSpec, extension: &str, cache: Option<&Arc<Cache>>, runtime: &Runtime) -> IngestPlan {
    let kind = FeatureKind::Numeric { normalize: Normalize::None, missing: MissingNumber::Error };
    let columns = vec!["number".to_owned()];
    let features = [FeatureSpec { name: "number".into(), columns, kind, maximum: None, weights: None }];
    let label = LabelSpec::of("clicked", None);
    let analysis = Analysis::default();
    let transform = Arc::new(Transform::resolve(&features, &label, &[], &analysis).unwrap());
    let pattern = format!("*.{extension}");
    let dataset = runtime.block_on(Dataset::open(&[pattern], &spec.base, None)).unwrap();
    let dataset = Arc::new(dataset.cut_at(spec.split_bytes).unwrap());
    assert!(dataset.splits().len() > 2 * WEIGHTS.len());
    let weights = dataset.splits().iter().map(|split| Weight::new(WEIGHTS[split.object])).collect();
    let mix = Arc::new(Mix::new(weights, usize::MAX).unwrap());
    let schema = transform.schema(spec.batch_size, Position::encoded_bytes(spec.lanes) as u32);
    let source =
        DatasetSource::new(Arc::clone(&dataset), transform, spec.on_bad_record, runtime.handle().clone());
    let mut source: Arc<dyn ChunkSource> = Arc::new(source);
    if let Some(cache) = cache {
        let rows = Specification::of(&features, &label, (spec, Purpose::Training), &analysis);
        let cached =
            CachedSource::new(source, Arc::clone(cache), &dataset, &schema, &rows, spec.on_bad_record);
        source = Arc::new(cached.unwrap());
    }
    IngestPlan::training(spec, 3, &label, schema, (Arc::clone(&source), Some(mix)), Some(source)).unwrap()
}

/// A batch: its header, the position after it, and the numbers of its rows.
type Seen = (BatchHeader, Vec<u8>, Vec<usize>);

fn run(plan: &IngestPlan, from: Position) -> (Vec<Seen>, IngestStats) {
    let (rings, hand_offs) = plan.create_rings().unwrap();
    let mut consumers: Vec<_> =
        hand_offs.into_iter().map(|hand_off| hand_off.open(plan.ring_schema()).unwrap()).collect();
    let ingest = ingest::start(plan.clone(), from, rings).unwrap();
    let mut seen = Vec::new();
    while let Some(batch) = next(&mut consumers) {
        seen.push(batch);
    }
    (seen, ingest.join().unwrap().stats)
}

/// The next global batch, from the parts of all ranks.
fn next(consumers: &mut [Consumer]) -> Option<Seen> {
    let parts: Vec<Lease> =
        consumers.iter_mut().filter_map(|consumer| consumer.next().ok().flatten()).collect();
    let first = parts.first()?.batch();
    let mut all = Vec::new();
    for part in &parts {
        let batch = part.batch();
        let rows: Vec<usize> = batch.dense().iter().map(|&number| number as usize).collect();
        assert!(rows.iter().zip(batch.labels(0)).all(|(&row, &found)| found == label(row)));
        assert_eq!(batch.header().first_row as usize, all.len());
        assert_eq!(batch.position(), first.position());
        all.extend(rows);
    }
    let header = first.header();
    assert_eq!(all.len(), header.global_rows as usize);
    Some((
        BatchHeader { rows: header.global_rows, most_rows: header.global_rows, ..header },
        first.position().to_vec(),
        all,
    ))
}

/// How often each row occurs in each epoch of training.
fn counts(seen: &[Seen]) -> Vec<BTreeMap<usize, u32>> {
    let mut counts = vec![BTreeMap::new(); EPOCHS as usize];
    for (header, _, rows) in seen.iter().filter(|(header, ..)| header.stream == Stream::Train) {
        rows.iter().for_each(|&row| *counts[header.epoch as usize].entry(row).or_default() += 1);
    }
    counts
}

fn assert_weights(seen: &[Seen]) {
    let counts = counts(seen);
    for (file, weight) in WEIGHTS.into_iter().enumerate() {
        let drawn = weight.fract();
        let count = |epoch: usize, row| counts[epoch].get(&row).copied().unwrap_or(0);
        for epoch in 0..EPOCHS as usize {
            let drawn_rows = rows_of(file).filter(|&row| count(epoch, row) > weight as u32).count();
            assert!(
                rows_of(file)
                    .all(|row| [0, u32::from(drawn > 0.0)].contains(&(count(epoch, row) - weight as u32))),
                "file {file}, epoch {epoch}"
            );
            // Five standard deviations of a binomial distribution.
            let excess = drawn_rows as f64 - ROWS as f64 * drawn;
            assert!(
                excess.abs() <= 5.0 * (ROWS as f64 * drawn * (1.0 - drawn)).sqrt(),
                "{file} {epoch}: {excess}"
            );
        }
        // In four epochs, halves add up to whole numbers.
        let total = |row| (0..EPOCHS as usize).map(|epoch| count(epoch, row)).sum::<u32>();
        assert!(rows_of(file).all(|row| f64::from(total(row)) == weight * f64::from(EPOCHS)));
    }
    let evaluated = seen.iter().filter(|(header, ..)| (header.stream, header.epoch) == (Stream::Eval, 1));
    let evaluated: Vec<usize> = evaluated.flat_map(|(_, _, rows)| rows.iter().copied()).collect();
    assert_eq!(evaluated, (0..WEIGHTS.len() * ROWS).collect::<Vec<_>>(), "evaluation has no weights");
}

/// Checks one format: the weights, and that neither threads, nor a cache, nor ranks, nor the place of a resume change a
/// batch.
fn check(extension: &str, write: fn(&Path, usize), shuffle_rows: u64) {
    let directory = tempfile::tempdir().unwrap();
    (0..WEIGHTS.len()).for_each(|file| write(&directory.path().join(format!("{file}.{extension}")), file));
    let runtime = Runtime::new().unwrap();
    let whole_plan = plan(&spec(directory.path(), shuffle_rows, None), extension, None, &runtime);
    let (whole, _) = run(&whole_plan, whole_plan.start());
    assert_weights(&whole);
    for threads in [1, 3] {
        let plan = plan(&spec(directory.path(), shuffle_rows, Some(threads)), extension, None, &runtime);
        assert_eq!(run(&plan, plan.start()).0, whole, "{threads} threads");
    }
    let store = CacheSpec { directory: directory.path().join("cache"), max_bytes: 1 << 30 };
    for is_full in [false, true] {
        let cache = Arc::new(Cache::new(&store, CacheOptions::of_budget(1 << 30)));
        let plan = plan(&spec(directory.path(), shuffle_rows, None), extension, Some(&cache), &runtime);
        let (seen, stats) = run(&plan, plan.start());
        assert!(seen == whole, "with a cache that is full: {is_full}");
        assert!(stats.cache.hits > 0 && (stats.cache.misses == 0) == is_full, "{:?}", stats.cache);
    }
    for ranks in [2, 3] {
        let dealt = whole_plan.clone().with_ranks(ranks).unwrap();
        assert!(run(&dealt, dealt.start()).0 == whole, "dealt to {ranks} ranks");
    }
    for done in (0..whole.len()).step_by(5) {
        let (rest, _) = run(&whole_plan, whole_plan.resume(&whole[done].1).unwrap());
        assert!(rest == whole[done + 1..], "resumed after batch {done}");
    }
}

#[test]
fn rows_of_parquet_occur_as_often_as_their_weights_say() {
    check("parquet", write_parquet, 3_000);
}

#[test]
fn rows_of_tfrecord_occur_as_often_as_their_weights_say() {
    check("tfrecord", write_tfrecord, 3_000);
}

#[test]
fn mixed_data_can_keep_its_order() {
    check("parquet", write_parquet, 0);
}
