//! From Parquet files to learned statistics, and to transformed chunks.

#![allow(clippy::unwrap_used)]

#[path = "support/files.rs"]
mod files;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use millstream_pipeline::Error;
use millstream_pipeline::analysis::{Analysis, AnalysisPass};
use millstream_pipeline::bad_records::BadRecords;
use millstream_pipeline::dataset::Dataset;
use millstream_pipeline::fingerprint::bucket;
use millstream_pipeline::spec::{
    FeatureKind, FeatureSpec, LabelSpec, MissingNumber, Normalize, OnBadRecord, Terms,
};
use millstream_pipeline::transform::Transform;
use tokio::runtime::Runtime;

const ROWS: usize = 1000;

/// Writes two files of several row groups each. Ages cycle through 20, 21, ... 69; every tenth is missing.
fn write(directory: &Path) {
    for file in 0..2 {
        let number = |row: usize| file * ROWS + row;
        let age = |row: usize| (!number(row).is_multiple_of(10)).then(|| 20 + (number(row) % 50) as i64);
        let job = |row: usize| ["clerk", "clerk", "?", "farmer", "nurse"][number(row) % 5];
        let income = |row: usize| if number(row).is_multiple_of(4) { ">50K" } else { "<=50K" };
        let columns: [(&str, ArrayRef); 3] = [
            ("age", Arc::new(Int64Array::from_iter((0..ROWS).map(age)))),
            ("job", Arc::new(StringArray::from_iter_values((0..ROWS).map(job)))),
            ("income", Arc::new(StringArray::from_iter_values((0..ROWS).map(income)))),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        files::write_parquet(&directory.join(format!("part-{file}.parquet")), &batch, 300);
    }
}

fn features() -> Vec<FeatureSpec> {
    let feature = |column: &str, kind| FeatureSpec {
        name: column.into(),
        columns: vec![column.into()],
        kind,
        maximum: None,
        weights: None,
    };
    vec![
        feature("age", FeatureKind::Numeric { normalize: Normalize::Zscore, missing: MissingNumber::Mean }),
        feature(
            "job",
            FeatureKind::Vocabulary { terms: Terms::Learned { max_terms: 10, min_count: 1 }, oov_buckets: 1 },
        ),
    ]
}

fn learn(
    dataset: &Dataset,
    features: &[FeatureSpec],
    positive: &str,
    threads: usize,
    runtime: &Runtime,
) -> Result<(Analysis, u64), Error> {
    let label = LabelSpec::of("income", Some(positive));
    let rows = AtomicU64::new(0);
    let analysis = AnalysisPass {
        dataset,
        features,
        label: &label,
        missing: &["?".to_owned()],
        bad: &BadRecords::new(OnBadRecord::Fail),
        threads,
        vocabulary_bytes: 1 << 20,
        reader_bytes: 1 << 20,
        runtime: runtime.handle(),
        cancel: &AtomicBool::new(false),
        progress: &|progress| {
            rows.fetch_max(progress.rows, Ordering::Relaxed);
        },
    }
    .run()?;
    Ok((analysis, rows.into_inner()))
}

#[test]
fn learned_statistics_match_the_data_and_transform_it() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let runtime = Runtime::new().unwrap();
    let dataset = runtime.block_on(Dataset::open(&["*.parquet".to_owned()], directory.path(), None)).unwrap();
    assert_eq!(dataset.splits().len(), 8);
    let (analysis, progress) = learn(&dataset, &features(), ">50K", 3, &runtime).unwrap();
    assert_eq!(learn(&dataset, &features(), ">50K", 1, &runtime).unwrap().0.to_json(), analysis.to_json());

    assert_eq!((analysis.rows, progress), (2000, 2000));
    assert_eq!(analysis.label.as_ref().unwrap().positives, 500);
    let age = analysis.numbers["age"];
    assert_eq!((age.values, age.missing, age.minimum, age.maximum), (1800, 200, 21.0, 69.0));
    assert!((age.plain.mean - 45.0).abs() < 1e-9);
    let jobs: Vec<(&[u8], u64)> =
        analysis.vocabularies["job"].terms.iter().map(|term| (term.bytes.as_slice(), term.count)).collect();
    assert_eq!(jobs, [(&b"clerk"[..], 800), (b"farmer", 400), (b"nurse", 400)]);

    let label = LabelSpec::of("income", Some(">50K"));
    let transform = Transform::resolve(&features(), &label, &["?".to_owned()], &analysis).unwrap();
    let bad = BadRecords::new(OnBadRecord::Fail);
    let (mut sum, mut squares, mut positives, mut ids) = (0.0, 0.0, 0.0, [0; 5]);
    for split in 0..dataset.splits().len() {
        let mut reader = dataset.read(split, transform.projection(), &bad, runtime.handle()).unwrap();
        while let Some(raw) = reader.next_chunk(128).unwrap() {
            let chunk = transform.apply(&raw, &bad).unwrap().chunk;
            assert_eq!(chunk.rows(), raw.rows());
            sum += chunk.dense.iter().sum::<f32>();
            squares += chunk.dense.iter().map(|value| value * value).sum::<f32>();
            positives += chunk.labels[0].iter().sum::<f32>();
            chunk.ids.iter().for_each(|&id| ids[id as usize] += 1);
        }
    }
    // The 1,800 present values have mean 0 and deviation 1; missing values are 0.
    assert!(sum.abs() < 0.01 && (squares - 1800.0).abs() < 0.1, "{sum} {squares}");
    assert_eq!(positives, 500.0);
    assert_eq!(ids, [800, 400, 400, 0, 400]);
}

/// `min_count` is a frequency filter: rarer terms are out of vocabulary, like terms never seen.
#[test]
fn a_term_below_the_minimum_count_is_out_of_vocabulary() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let runtime = Runtime::new().unwrap();
    let dataset = runtime.block_on(Dataset::open(&["*.parquet".to_owned()], directory.path(), None)).unwrap();
    for (min_count, learned) in [(400, vec!["clerk", "farmer", "nurse"]), (401, vec!["clerk"])] {
        let terms = Terms::Learned { max_terms: 10, min_count };
        let job =
            FeatureSpec { kind: FeatureKind::Vocabulary { terms, oov_buckets: 3 }, ..features().remove(1) };
        let (analysis, _) = learn(&dataset, std::slice::from_ref(&job), ">50K", 2, &runtime).unwrap();
        let missing = ["?".to_owned()];
        let label = LabelSpec::of("income", Some(">50K"));
        let transform = Transform::resolve(&[job], &label, &missing, &analysis).unwrap();
        let bad = BadRecords::new(OnBadRecord::Fail);
        let mut reader = dataset.read(0, transform.projection(), &bad, runtime.handle()).unwrap();
        let raw = reader.next_chunk(5).unwrap().unwrap();
        let ids = transform.apply(&raw, &bad).unwrap().chunk.ids;
        let id = |term: &str| match learned.iter().position(|known| *known == term) {
            Some(place) => place as u32,
            None if term == "?" => learned.len() as u32 + 3,
            None => learned.len() as u32 + bucket(term.as_bytes(), 3),
        };
        assert_eq!(ids, ["clerk", "clerk", "?", "farmer", "nurse"].map(id), "{min_count}");
    }
}

#[test]
fn a_wrong_positive_value_is_detected_before_training_even_if_nothing_is_learned() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let runtime = Runtime::new().unwrap();
    let dataset = runtime.block_on(Dataset::open(&["*.parquet".to_owned()], directory.path(), None)).unwrap();
    let hashed = [FeatureSpec { kind: FeatureKind::Hashed { buckets: 9 }, ..features().remove(1) }];
    for features in [features(), hashed.to_vec()] {
        let error = learn(&dataset, &features, "50000+", 2, &runtime).unwrap_err();
        let message = "label `income` is never `50000+` in 2000 records; it holds `<=50K`, `>50K`";
        assert!(error.to_string().starts_with(message), "{error}");
    }
    let (analysis, rows) = learn(&dataset, &hashed, ">50K", 1, &runtime).unwrap();
    assert_eq!(analysis, Analysis::default());
    assert!(rows < 2000, "the pass stops at the first positive label");
}
