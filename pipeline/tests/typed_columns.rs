//! Typed columns end to end, from files of both formats to the batches of one rank or several: each row once per epoch
//! with its values, a padded short batch, and the same batches after a resumption.

#![allow(clippy::unwrap_used)]

#[path = "support/files.rs"]
mod files;

use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::types::Float32Type;
use arrow_array::{ArrayRef, BinaryArray, Float32Array, Int64Array, ListArray, RecordBatch};
use millstream_batch::{BatchHeader, BatchRef, ColumnKind, ColumnRef, Dtype, Stream};
use millstream_pipeline::analysis::Analysis;
use millstream_pipeline::cache::{Cache, CacheOptions, CachedSource, Specification};
use millstream_pipeline::dataset::Dataset;
use millstream_pipeline::ingest::{self, DatasetSource, IngestPlan};
use millstream_pipeline::order::Position;
use millstream_pipeline::spec::{CacheSpec, ColumnSpec, DataSpec, LabelSpec, Purpose};
use millstream_pipeline::transform::Transform;
use tokio::runtime::Runtime;

const ROWS: usize = 103;
const BATCH: u32 = 16;
const EPOCHS: u32 = 2;
const MAX_TAGS: usize = 3;

/// Four numbers of at most eight bits, which are exact in bfloat16.
fn image(row: usize) -> Vec<f32> {
    (0..4).map(|place| ((row * 4 + place) % 256) as f32 / 8.0).collect()
}

/// Missing in some rows.
fn score(row: usize) -> Option<f32> {
    (row % 7 != 3).then(|| row as f32 / 3.0)
}

/// Zero to five numbers, as text; `None` for some rows.
fn tags(row: usize) -> Option<Vec<String>> {
    (row % 11 != 5).then(|| (0..row % 6).map(|nth| (row * 100 + nth).to_string()).collect())
}

/// Any bytes, and none in some rows.
fn url(row: usize) -> Option<String> {
    (row % 5 != 1).then(|| "é/".repeat(row % 4))
}

fn write_parquet(path: &Path) {
    let rows = || 0..ROWS;
    let images = rows().map(|row| Some(image(row).into_iter().map(Some).collect::<Vec<_>>()));
    let mut lists = ListBuilder::new(StringBuilder::new());
    rows().for_each(|row| lists.append_option(tags(row).map(|tags| tags.into_iter().map(Some))));
    let urls: Vec<Option<String>> = rows().map(url).collect();
    let columns: [(&str, ArrayRef); 5] = [
        ("id", Arc::new(Int64Array::from_iter_values(rows().map(|row| row as i64)))),
        ("image", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(images))),
        ("score", Arc::new(rows().map(score).collect::<Float32Array>())),
        ("tags", Arc::new(lists.finish())),
        (
            "url",
            Arc::new(
                urls.iter().map(Option::as_deref).map(|url| url.map(str::as_bytes)).collect::<BinaryArray>(),
            ),
        ),
    ];
    files::write_parquet(path, &RecordBatch::try_from_iter(columns).unwrap(), 20);
}

fn write_tfrecord(path: &Path) {
    let features = |row: usize| {
        let mut features = vec![files::floats("id", &[row as f32]), files::floats("image", &image(row))];
        features.extend(score(row).map(|score| files::floats("score", &[score])));
        features.extend(tags(row).map(|tags| files::texts("tags", &tags)));
        features.extend(url(row).map(|url| files::texts("url", &[url])));
        features
    };
    files::write_tfrecord(path, (0..ROWS).map(features));
}

fn columns() -> Vec<ColumnSpec> {
    let column = |name: &str, kind, missing| ColumnSpec {
        name: name.to_uppercase(),
        column: name.to_owned(),
        kind,
        missing,
        image: None,
        tokens: None,
    };
    let fixed = |dtype, shape: &[u32]| ColumnKind::Fixed { dtype, shape: shape.to_vec() };
    vec![
        column("id", fixed(Dtype::Uint8, &[]), None),
        column("image", fixed(Dtype::Bfloat16, &[2, 2]), None),
        column("score", fixed(Dtype::Float64, &[]), Some(-1.0)),
        column("tags", ColumnKind::Ragged { dtype: Dtype::Int32, maximum: MAX_TAGS as u32 }, None),
        column("url", ColumnKind::Raw { maximum: 9 }, None),
    ]
}

/// The bytes of a row of each column.
fn expected(row: usize) -> Vec<Vec<u8>> {
    let bits16 = |value: f32| ((value.to_bits() >> 16) as u16).to_ne_bytes();
    let tag = |tag: &String| tag.parse::<i32>().unwrap().to_ne_bytes();
    vec![
        vec![row as u8],
        image(row).into_iter().flat_map(bits16).collect(),
        score(row).map_or(-1.0, f64::from).to_ne_bytes().to_vec(),
        tags(row).unwrap_or_default().iter().take(MAX_TAGS).flat_map(tag).collect(),
        url(row).unwrap_or_default().into_bytes(),
    ]
}

struct Data {
    spec: DataSpec,
    dataset: Arc<Dataset>,
    source: Arc<DatasetSource>,
    transform: Arc<Transform>,
}

impl Data {
    fn open(base: &Path, pattern: &str, runtime: &Runtime) -> Self {
        let spec = DataSpec {
            base: base.to_owned(),
            batch_size: BATCH,
            epochs: EPOCHS,
            shuffle_rows: 40,
            lanes: 3,
            prefetch: 3,
            split_bytes: 2000,
            ..DataSpec::default()
        };
        let transform = Arc::new(Transform::of_columns(&columns(), None, &[]).unwrap());
        let dataset = runtime.block_on(Dataset::open(&[pattern.into()], base, None)).unwrap();
        let dataset = Arc::new(dataset.cut_at(spec.split_bytes).unwrap());
        let (read, runtime) = (Arc::clone(&dataset), runtime.handle().clone());
        let source = DatasetSource::new(read, Arc::clone(&transform), spec.on_bad_record, runtime);
        Self { spec, dataset, source: Arc::new(source), transform }
    }

    fn plan(&self) -> IngestPlan {
        let position_bytes = Position::encoded_bytes(self.spec.lanes) as u32;
        let schema = self.transform.schema(self.spec.batch_size, position_bytes);
        IngestPlan::feeding(&self.spec, 3, schema, (self.source.clone(), None)).unwrap()
    }
}

/// A part of a batch: its header, the position after it, and the valid contents of each column, with all padding.
#[derive(Clone, Debug, PartialEq)]
struct Part {
    header: BatchHeader,
    position: Vec<u8>,
    columns: Vec<(Option<Vec<u32>>, Vec<u8>)>,
}

impl Part {
    fn of(batch: BatchRef<'_>) -> Self {
        let columns = batch.layout().schema().columns.iter().enumerate().map(|(number, column)| {
            let ColumnRef { offsets, values } = batch.column(number);
            let last = offsets.and_then(|offsets| offsets.last());
            let valid = last.map_or(values.len(), |&last| last as usize * column.kind.dtype().bytes());
            (offsets.map(<[u32]>::to_vec), values[..valid].to_vec())
        });
        Self { header: batch.header(), position: batch.position().to_vec(), columns: columns.collect() }
    }

    /// The bytes of each column of `row`, padding included.
    fn row(&self, row: usize, capacity: usize) -> Vec<Vec<u8>> {
        let kinds = columns().into_iter().map(|spec| spec.kind);
        let bytes = self.columns.iter().zip(kinds).map(|((offsets, values), kind)| {
            let size = kind.dtype().bytes();
            match offsets {
                Some(offsets) => &values[offsets[row] as usize * size..offsets[row + 1] as usize * size],
                None => &values[row * values.len() / capacity..(row + 1) * values.len() / capacity],
            }
        });
        bytes.map(<[u8]>::to_vec).collect()
    }
}

/// Runs the plan from a position: for each batch, the parts of all ranks.
fn run(plan: &IngestPlan, from: Position) -> (Vec<Vec<Part>>, u64) {
    let (rings, hand_offs) = plan.create_rings().unwrap();
    let mut consumers: Vec<_> =
        hand_offs.into_iter().map(|hand_off| hand_off.open(plan.ring_schema()).unwrap()).collect();
    let ingest = ingest::start(plan.clone(), from, rings).unwrap();
    let mut batches = Vec::new();
    loop {
        let parts: Vec<Part> = consumers
            .iter_mut()
            .map_while(|consumer| consumer.next().unwrap().map(|leased| Part::of(leased.batch())))
            .collect();
        if parts.is_empty() {
            break;
        }
        assert_eq!(parts.len(), consumers.len());
        batches.push(parts);
    }
    (batches, ingest.join().unwrap().stats.truncated_rows)
}

/// Checks every row of every part, and what pads it; returns the rows of each epoch, in order.
fn check_rows(batches: &[Vec<Part>], capacity: usize) -> Vec<Vec<usize>> {
    let mut epochs = vec![Vec::new(); EPOCHS as usize];
    let padding: Vec<Vec<u8>> = vec![vec![0], vec![0; 8], vec![0; 8], vec![], vec![]];
    for part in batches.iter().flatten() {
        assert_eq!(part.header.stream, Stream::Train);
        for place in 0..capacity {
            let found = part.row(place, capacity);
            if place >= part.header.rows as usize {
                assert_eq!(found, padding, "row {place} of {:?}", part.header);
                continue;
            }
            let row = usize::from(found[0][0]);
            assert_eq!(found, expected(row), "row {row}");
            epochs[part.header.epoch as usize].push(row);
        }
    }
    epochs
}

fn check(base: &Path, pattern: &str) {
    let runtime = Runtime::new().unwrap();
    let data = Data::open(base, pattern, &runtime);
    assert!(data.dataset.splits().len() > 1);
    let whole = data.plan();
    let truncated =
        EPOCHS as usize * (0..ROWS).filter(|&row| tags(row).unwrap_or_default().len() > MAX_TAGS).count();
    assert!(truncated > 20);
    let mut orders = Vec::new();
    for ranks in [1, 3] {
        let plan = whole.clone().with_ranks(ranks).unwrap();
        let capacity = plan.ring_schema().rows as usize;
        let (batches, truncated_rows) = run(&plan, plan.start());
        assert_eq!(truncated_rows, truncated as u64);
        assert_eq!(batches.len(), EPOCHS as usize * ROWS.div_ceil(BATCH as usize));
        let epochs = check_rows(&batches, capacity);
        for rows in &epochs {
            assert!(!rows.is_sorted());
            let mut sorted = rows.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..ROWS).collect::<Vec<_>>());
        }
        assert_ne!(epochs[0], epochs[1]);
        let short = batches.iter().filter(|parts| parts[0].header.global_rows < BATCH);
        assert!(short.clone().count() == EPOCHS as usize && short.clone().all(|parts| parts[0].header.last));
        assert!(ranks == 1 || short.clone().all(|parts| parts[2].header.rows == 0), "an empty part");
        for done in [0, batches.len() / 2 - 1, batches.len() / 2, batches.len() - 2] {
            let position = plan.resume(&batches[done][0].position).unwrap();
            assert_eq!(run(&plan, position).0, batches[done + 1..], "resumed after batch {done}");
        }
        orders.push(epochs);
    }
    assert_eq!(orders[0], orders[1], "the number of ranks does not change the order");
}

#[test]
fn parquet_columns_keep_their_types() {
    let directory = tempfile::tempdir().unwrap();
    write_parquet(&directory.path().join("rows.parquet"));
    check(directory.path(), "*.parquet");
}

#[test]
fn example_features_become_typed_columns() {
    let directory = tempfile::tempdir().unwrap();
    write_tfrecord(&directory.path().join("rows.tfrecord"));
    check(directory.path(), "*.tfrecord");
}

#[test]
fn the_cache_refuses_typed_columns() {
    let directory = tempfile::tempdir().unwrap();
    write_tfrecord(&directory.path().join("rows.tfrecord"));
    let runtime = Runtime::new().unwrap();
    let Data { spec, dataset, source, transform } = Data::open(directory.path(), "*.tfrecord", &runtime);
    let cache_spec = CacheSpec { directory: directory.path().join("cache"), max_bytes: 1 << 20 };
    let cache = Arc::new(Cache::new(&cache_spec, CacheOptions::of_budget(1 << 30)));
    let (label, analysis) = (LabelSpec::of("id", None), Analysis::default());
    let rows = Specification::of(&[], &label, (&spec, Purpose::Training), &analysis);
    let cached =
        CachedSource::new(source, cache, &dataset, &transform.schema(4, 8), &rows, spec.on_bad_record);
    let error = cached.err().unwrap().to_string();
    assert!(error.contains("column `ID`") && error.contains("cache"), "{error}");
}
