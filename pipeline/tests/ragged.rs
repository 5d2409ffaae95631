//! Multi-valued features end to end, from files of both formats to batches. Checks each row's values and weights,
//! truncated to the maximum, and the count of truncated rows.

#![allow(clippy::unwrap_used)]

#[path = "support/files.rs"]
mod files;

use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::types::Float64Type;
use arrow_array::{ArrayRef, Float32Array, ListArray, RecordBatch};
use millstream_pipeline::analysis::Analysis;
use millstream_pipeline::dataset::Dataset;
use millstream_pipeline::fingerprint::{bucket, cross64};
use millstream_pipeline::ingest::{self, DatasetSource, IngestPlan};
use millstream_pipeline::order::Position;
use millstream_pipeline::spec::{DataSpec, FeatureKind, FeatureSpec, LabelSpec, MissingNumber, Normalize};
use millstream_pipeline::transform::Transform;
use tokio::runtime::Runtime;

const ROWS: usize = 500;
const TAGS: u32 = 97;
const MAX_TAGS: usize = 3;
const PAIRS: u32 = 1009;
const MAX_PAIRS: usize = 4;

/// Zero to five values; null for every eleventh row.
fn tags(row: usize) -> Option<Vec<String>> {
    (row % 11 != 5).then(|| (0..row * 7 % 6).map(|nth| format!("tag {}", (row + nth * 13) % 40)).collect())
}

/// One weight per tag.
fn tag_weights(row: usize) -> Option<Vec<f32>> {
    Some((0..tags(row)?.len()).map(|nth| (row * 5 + nth * 3) as f32 / 8.0 - 20.0).collect())
}

fn places(row: usize) -> Vec<String> {
    (0..row % 4).map(|nth| format!("place {}", row * 3 + nth)).collect()
}

fn tag_ids(row: usize) -> Vec<u32> {
    tags(row).unwrap_or_default().iter().map(|tag| bucket(tag.as_bytes(), TAGS)).collect()
}

fn pair_ids(row: usize) -> Vec<u32> {
    let tags = tags(row).unwrap_or_default();
    let places = places(row);
    let pairs = tags.iter().flat_map(|tag| places.iter().map(move |place| [tag, place]));
    pairs.map(|pair| (cross64(pair.map(|text| text.as_bytes())) % u64::from(PAIRS)) as u32).collect()
}

fn write_parquet(path: &Path) {
    let lists = |of: &dyn Fn(usize) -> Option<Vec<String>>| -> ArrayRef {
        let mut builder = ListBuilder::new(StringBuilder::new());
        for row in 0..ROWS {
            builder.append_option(of(row).map(|list| list.into_iter().map(Some)));
        }
        Arc::new(builder.finish())
    };
    let weights = ListArray::from_iter_primitive::<Float64Type, _, _>(
        (0..ROWS).map(|row| Some(tag_weights(row)?.into_iter().map(|weight| Some(f64::from(weight))))),
    );
    let numbers = |of: &dyn Fn(usize) -> f32| -> ArrayRef {
        Arc::new(Float32Array::from_iter_values((0..ROWS).map(of)))
    };
    let batch = RecordBatch::try_from_iter([
        ("number", numbers(&|row| row as f32)),
        ("tags", lists(&tags)),
        ("tag_weights", Arc::new(weights)),
        ("places", lists(&|row| Some(places(row)))),
        ("clicked", numbers(&|row| (row % 2) as f32)),
    ])
    .unwrap();
    files::write_parquet(path, &batch, 70);
}

fn write_tfrecord(path: &Path) {
    let features = |row: usize| {
        let mut features =
            vec![files::floats("number", &[row as f32]), files::floats("clicked", &[(row % 2) as f32])];
        features.extend(tags(row).map(|tags| files::texts("tags", &tags)));
        features.extend(tag_weights(row).map(|weights| files::floats("tag_weights", &weights)));
        features.push(files::texts("places", &places(row)));
        features
    };
    files::write_tfrecord(path, (0..ROWS).map(features));
}

fn plan(base: &Path, pattern: &str, runtime: &Runtime) -> IngestPlan {
    let spec = DataSpec {
        base: base.to_owned(),
        batch_size: 32,
        shuffle_rows: 200,
        lanes: 4,
        prefetch: 3,
        ..DataSpec::default()
    };
    let feature = |name: &str, columns: &[&str], kind, maximum: Option<usize>| FeatureSpec {
        name: name.into(),
        columns: columns.iter().map(|&column| column.into()).collect(),
        kind,
        maximum: maximum.map(|maximum| maximum as u32),
        weights: None,
    };
    let number = FeatureKind::Numeric { normalize: Normalize::None, missing: MissingNumber::Error };
    let pairs = FeatureKind::Crossed { buckets: PAIRS, boundaries: Vec::new() };
    let features = [
        feature("number", &["number"], number, None),
        feature("tags", &["tags"], FeatureKind::Hashed { buckets: TAGS }, Some(MAX_TAGS)),
        feature("pairs", &["tags", "places"], pairs, Some(MAX_PAIRS)),
        FeatureSpec {
            weights: Some("tag_weights".into()),
            ..feature("weighted", &["tags"], FeatureKind::Hashed { buckets: TAGS }, Some(MAX_TAGS))
        },
    ];
    let label = LabelSpec::of("clicked", None);
    let transform = Arc::new(Transform::resolve(&features, &label, &[], &Analysis::default()).unwrap());
    let dataset = Arc::new(runtime.block_on(Dataset::open(&[pattern.into()], base, None)).unwrap());
    let schema = transform.schema(spec.batch_size, Position::encoded_bytes(spec.lanes) as u32);
    let source =
        Arc::new(DatasetSource::new(dataset, transform, spec.on_bad_record, runtime.handle().clone()));
    IngestPlan::training(&spec, 3, &label, schema, (source, None), None).unwrap()
}

/// Feeds the files and checks every row of every batch.
fn check(base: &Path, pattern: &str) {
    let runtime = Runtime::new().unwrap();
    let plan = plan(base, pattern, &runtime);
    let of_one = check_ranks(&plan);
    for ranks in 2..=4 {
        assert_eq!(check_ranks(&plan.clone().with_ranks(ranks).unwrap()), of_one, "{ranks} ranks");
    }
}

/// Feeds all ranks of the plan and checks every row of every part; returns the rows in order.
fn check_ranks(plan: &IngestPlan) -> Vec<usize> {
    let (rings, hand_offs) = plan.create_rings().unwrap();
    let mut consumers: Vec<_> =
        hand_offs.into_iter().map(|hand_off| hand_off.open(plan.ring_schema()).unwrap()).collect();
    let ingest = ingest::start(plan.clone(), plan.start(), rings).unwrap();
    let mut seen = Vec::new();
    for rank in (0..consumers.len()).cycle() {
        let Ok(Some(leased)) = consumers[rank].next() else { break };
        let batch = leased.batch();
        for (place, &number) in batch.dense().iter().enumerate() {
            let row = number as usize;
            for (feature, mut expected, maximum) in
                [(0, tag_ids(row), MAX_TAGS), (1, pair_ids(row), MAX_PAIRS), (2, tag_ids(row), MAX_TAGS)]
            {
                let (offsets, values) = batch.ragged(feature);
                expected.truncate(maximum);
                assert_eq!(
                    values[offsets[place] as usize..offsets[place + 1] as usize],
                    expected,
                    "row {row}"
                );
            }
            let mut expected = tag_weights(row).unwrap_or_default();
            expected.truncate(MAX_TAGS);
            let (offsets, _) = batch.ragged(2);
            let weights = batch.ragged_weights(2).unwrap();
            assert_eq!(weights[offsets[place] as usize..offsets[place + 1] as usize], expected, "row {row}");
            assert_eq!((batch.ragged_weights(0), batch.ragged_weights(1)), (None, None));
            seen.push(row);
        }
    }
    let report = ingest.join().unwrap();
    assert!(!seen.is_sorted());
    let mut sorted = seen.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..ROWS).collect::<Vec<_>>());
    let cut = |ids: Vec<u32>, maximum| u64::from(ids.len() > maximum);
    let truncated: u64 =
        (0..ROWS).map(|row| 2 * cut(tag_ids(row), MAX_TAGS) + cut(pair_ids(row), MAX_PAIRS)).sum();
    assert!(truncated > 50);
    assert_eq!(report.stats.truncated_rows, truncated);
    seen
}

#[test]
fn parquet_lists_become_ragged_features() {
    let directory = tempfile::tempdir().unwrap();
    write_parquet(&directory.path().join("rows.parquet"));
    check(directory.path(), "*.parquet");
}

#[test]
fn example_lists_become_ragged_features() {
    let directory = tempfile::tempdir().unwrap();
    write_tfrecord(&directory.path().join("rows.tfrecord"));
    check(directory.path(), "*.tfrecord");
}
