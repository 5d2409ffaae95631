//! Compares the pass with plain counting, and tests its independence of threads and chunks, and its errors.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use arrow_array::builder::BinaryBuilder;
use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use millstream_format::RawChunk;
use proptest::prelude::*;

use super::partial::Plan;
use super::pass::{Counting, NextChunk, Source};
use super::*;
use crate::bad_records::BadRecords;
use crate::spec::{LabelColumn, LabelNumbers, LabelSpec, OnBadRecord};

/// Number, term, label.
type Record = (Option<f64>, Option<String>, bool);

const UNLIMITED: usize = usize::MAX;

fn features() -> Vec<FeatureSpec> {
    let numeric = FeatureKind::Numeric { normalize: Normalize::Zscore, missing: MissingNumber::Mean };
    let learned = |max_terms, min_count| FeatureKind::Vocabulary {
        terms: Terms::Learned { max_terms, min_count },
        oov_buckets: 1,
    };
    let feature = |name: &str, column: &str, kind| FeatureSpec {
        name: name.into(),
        columns: vec![column.into()],
        kind,
        maximum: None,
        weights: None,
    };
    vec![
        feature("x", "n", numeric),
        feature("all", "t", learned(1000, 1)),
        feature("few", "t", learned(2, 2)),
        feature("hash", "t", FeatureKind::Hashed { buckets: 9 }),
    ]
}

fn label() -> LabelSpec {
    LabelSpec::of("y", Some("yes"))
}

fn chunk(records: &[Record]) -> RawChunk {
    let numbers: ArrayRef = Arc::new(Float64Array::from_iter(records.iter().map(|record| record.0)));
    let terms: ArrayRef = Arc::new(StringArray::from_iter(records.iter().map(|record| record.1.as_deref())));
    let labels: ArrayRef = Arc::new(StringArray::from_iter_values(
        records.iter().map(|record| if record.2 { "yes" } else { "no" }),
    ));
    let fields = [("n", DataType::Float64), ("t", DataType::Utf8), ("y", DataType::Utf8)];
    let schema = Schema::new(fields.map(|(name, data_type)| Field::new(name, data_type, true)).to_vec());
    RawChunk::new(
        "part".into(),
        RecordBatch::try_new(Arc::new(schema), vec![numbers, terms, labels]).unwrap(),
        0,
    )
}

/// Learns from splits that are read in chunks of `chunk_rows` rows.
fn learn(
    splits: &[Vec<Record>],
    chunk_rows: usize,
    threads: usize,
    vocabulary_bytes: usize,
    bad: &BadRecords,
) -> Result<Analysis, Error> {
    learn_of(&label(), splits, chunk_rows, threads, vocabulary_bytes, bad)
}

fn learn_of(
    label: &LabelSpec,
    splits: &[Vec<Record>],
    chunk_rows: usize,
    threads: usize,
    vocabulary_bytes: usize,
    bad: &BadRecords,
) -> Result<Analysis, Error> {
    let features = features();
    let plan = Plan::new(&features, label, &["?".to_owned()], vocabulary_bytes);
    let read = |split: usize| -> Result<NextChunk<'_>, Error> {
        let mut chunks = splits[split].chunks(chunk_rows);
        Ok(Box::new(move || Ok(chunks.next().map(chunk))))
    };
    let source = Source { split_bytes: vec![1; splits.len()], read: &read };
    let cancel = AtomicBool::new(false);
    let counting = Counting {
        plan: &plan,
        source: &source,
        bad,
        cancel: &cancel,
        progress: &|_| {},
        until_positive: false,
    };
    let total = counting.run(threads)?;
    total.check(label)?;
    plan.analysis(&total, &features)
}

fn strict() -> BadRecords {
    BadRecords::new(OnBadRecord::Fail)
}

fn record() -> impl Strategy<Value = Record> {
    let term = prop_oneof![Just("?".to_owned()), "[a-c]{0,2}"];
    (proptest::option::of(-1e3..1e3f64), proptest::option::of(term), any::<bool>())
}

proptest! {
    #[test]
    fn matches_plain_counting(
        splits in proptest::collection::vec(proptest::collection::vec(record(), 0..20), 1..6),
        chunk_rows in 1usize..8,
    ) {
        let mut splits = splits;
        splits[0].push((Some(1.5), None, true));
        let analysis = learn(&splits, chunk_rows, 1, UNLIMITED, &strict()).unwrap();
        prop_assert_eq!(&learn(&splits, 100, 3, UNLIMITED, &strict()).unwrap(), &analysis);
        prop_assert_eq!(&Analysis::from_json(&analysis.to_json()).unwrap(), &analysis);

        let all: Vec<&Record> = splits.iter().flatten().collect();
        let numbers: Vec<f64> = all.iter().filter_map(|record| record.0).collect();
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        let found = &analysis.numbers["n"];
        prop_assert_eq!(analysis.rows as usize, all.len());
        prop_assert_eq!((found.values + found.missing) as usize, all.len());
        prop_assert_eq!(found.values as usize, numbers.len());
        prop_assert_eq!(found.minimum, numbers.iter().copied().fold(f64::INFINITY, f64::min));
        prop_assert!((found.plain.mean - mean).abs() < 1e-9);
        prop_assert_eq!(analysis.label.unwrap().positives as usize, all.iter().filter(|record| record.2).count());

        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for term in all.iter().filter_map(|record| record.1.as_deref()).filter(|&term| term != "?") {
            *counts.entry(term).or_default() += 1;
        }
        let mut expected: Vec<(&str, u64)> = counts.into_iter().collect();
        expected.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        let terms = |feature: &str| -> Vec<(String, u64)> {
            let terms = analysis.vocabularies[feature].terms.iter();
            terms.map(|term| (String::from_utf8(term.bytes.clone()).unwrap(), term.count)).collect()
        };
        let owned = |terms: &[(&str, u64)]| terms.iter().map(|&(t, n)| (t.to_owned(), n)).collect::<Vec<_>>();
        prop_assert_eq!(terms("all"), owned(&expected));
        expected.truncate(2);
        expected.retain(|&(_, count)| count >= 2);
        prop_assert_eq!(terms("few"), owned(&expected));
    }
}

#[test]
fn beyond_the_memory_limit_the_result_depends_only_on_the_data() {
    let record = |i: u64| (Some(i as f64), Some(format!("term {}", i * i % 997)), i.is_multiple_of(3));
    let splits: Vec<Vec<Record>> =
        (0..12).map(|split| (split * 500..split * 500 + 500).map(record).collect()).collect();
    let expected = learn(&splits, 500, 1, 6000, &strict()).unwrap();
    assert!(expected.vocabularies["all"].undercount > 0);
    for threads in [2, 4, 8] {
        assert_eq!(learn(&splits, 37, threads, 6000, &strict()).unwrap().to_json(), expected.to_json());
    }
}

#[test]
fn the_error_for_a_label_that_is_never_positive_lists_its_values() {
    let splits = [vec![(Some(1.0), None, false); 3]];
    let error = learn(&splits, 2, 1, UNLIMITED, &strict()).unwrap_err();
    assert_eq!(error.to_string(), "label `y` is never `yes` in 3 records; it holds `no`");
}

#[test]
fn every_label_is_checked() {
    let splits = [vec![(Some(1.0), Some("a".to_owned()), true), (Some(4.0), Some("b".to_owned()), false)]];
    let with = |positive: &str| {
        let number = LabelColumn { column: "n".into(), numbers: LabelNumbers::Any, ..LabelColumn::default() };
        let term = LabelSpec::of("t", Some(positive)).first;
        let spec = LabelSpec { others: vec![number, term], ..label() };
        learn_of(&spec, &splits, 2, 1, UNLIMITED, &strict())
    };
    let analysis = with("b").unwrap();
    let statistics: Vec<_> = analysis.more_labels.iter().map(|label| (label.mean, label.is_number)).collect();
    assert_eq!(statistics, [(2.5, true), (0.5, false)]);
    let summary = analysis.summary().to_string();
    assert!(
        summary.starts_with("2 rows, 50.00 % positive, mean label 2.5000, 50.00 % positive\n"),
        "{summary}"
    );
    assert_eq!(Analysis::from_json(&analysis.to_json()).unwrap(), analysis);
    let error = with("c").unwrap_err().to_string();
    assert!(error.starts_with("label `t` is never `c` in 2 records; it holds `"), "{error}");
}

#[test]
fn a_label_of_classes_reports_the_share_of_each() {
    let splits: Vec<_> =
        ["a", "b", "a", "d"].map(|term| vec![(Some(1.0), Some(term.to_owned()), true)]).into();
    let of = |classes: [&str; 3]| {
        let classes = classes.map(str::to_owned).to_vec();
        let first = LabelColumn { classes, ..LabelSpec::of("t", None).first };
        learn_of(&LabelSpec { first, ..label() }, &splits, 2, 1, UNLIMITED, &strict())
    };
    let analysis = of(["a", "d", "b"]).unwrap();
    assert_eq!(analysis.label.as_ref().unwrap().classes, [2, 1, 1]);
    let summary = analysis.summary().to_string();
    assert!(summary.starts_with("4 rows, 3 classes of 25.00 to 50.00 %\n"), "{summary}");
    assert_eq!(Analysis::from_json(&analysis.to_json()).unwrap(), analysis);
    // A class may have no rows, but every row must have a class.
    assert_eq!(
        of(["a", "b", "c"]).unwrap_err().to_string(),
        "part: record 0, column `t`: expected one of the label's classes, found `d`"
    );
}

#[test]
fn a_column_without_numbers_is_an_error() {
    let splits = [vec![(None, None, true); 3]];
    let error = learn(&splits, 2, 1, UNLIMITED, &strict()).unwrap_err().to_string();
    assert_eq!(error, "column `n`: all values are missing in 3 records");
}

#[test]
fn a_bad_record_fails_the_pass_or_is_not_counted() {
    let mut split = vec![(Some(1.0), Some("a".to_owned()), true); 4];
    split[2] = (Some(f64::NAN), Some("b".to_owned()), true);
    let error = learn(&[split.clone()], 4, 1, UNLIMITED, &strict()).unwrap_err().to_string();
    assert!(
        error.starts_with("part: record 2, column `n`: expected a number, found `NaN`; if it means missing"),
        "{error}"
    );

    let lenient = BadRecords::new(OnBadRecord::Skip { limit: 1 });
    let analysis = learn(&[split], 4, 1, UNLIMITED, &lenient).unwrap();
    assert_eq!((analysis.rows, lenient.skipped()), (3, 1));
    assert_eq!(analysis.vocabularies["all"].terms, [Term { bytes: b"a".to_vec(), count: 3 }]);
}

/// Runs over splits that each hold one positive row, except those for which `error` returns an error.
fn run(
    splits: usize,
    error: &(dyn Fn(usize) -> Option<Error> + Sync),
    until_positive: bool,
    cancel: bool,
) -> (Result<u64, Error>, Vec<usize>) {
    let features = features();
    let plan = Plan::new(&features, &label(), &[], UNLIMITED);
    let started = Mutex::new(Vec::new());
    let read = |split: usize| -> Result<NextChunk<'_>, Error> {
        started.lock().unwrap().push(split);
        let mut rows = error(split).map_or(Ok(Some(chunk(&[(Some(1.0), None, true)]))), Err);
        Ok(Box::new(move || std::mem::replace(&mut rows, Ok(None))))
    };
    let source = Source { split_bytes: vec![1; splits], read: &read };
    let cancel = AtomicBool::new(cancel);
    let bad = strict();
    let counting = Counting {
        plan: &plan,
        source: &source,
        bad: &bad,
        cancel: &cancel,
        progress: &|_| {},
        until_positive,
    };
    let rows = counting.run(2).map(|total| total.rows);
    (rows, started.into_inner().unwrap())
}

#[test]
fn reports_the_first_error_in_the_order_of_splits() {
    let error = |split: usize| (split >= 3).then(|| Error::Invalid(format!("split {split}")));
    let (rows, started) = run(1000, &error, false, false);
    assert_eq!(rows.unwrap_err().to_string(), "split 3");
    assert!(started.len() < 20, "no more splits are started after one has failed");
}

#[test]
fn the_pass_can_be_cancelled() {
    assert!(matches!(run(10, &|_| None, false, true).0, Err(Error::Cancelled)));
}

#[test]
fn the_search_for_a_positive_label_stops_at_the_first() {
    let (rows, started) = run(1000, &|_| None, true, false);
    assert!(rows.unwrap() >= 1);
    assert!(started.len() < 20);
}

#[test]
fn every_split_is_counted_once() {
    let (rows, mut started) = run(100, &|_| None, false, false);
    started.sort_unstable();
    assert_eq!((rows.unwrap(), started), (100, (0..100).collect()));
}

#[test]
fn terms_that_are_not_utf8_are_stored() {
    let mut bytes = BinaryBuilder::new();
    bytes.append_value([0xff, 0x00]);
    bytes.append_value("é");
    let features = [features().remove(1)];
    let plan = Plan::new(&features, &label(), &[], UNLIMITED);
    let schema =
        Schema::new(vec![Field::new("t", DataType::Binary, true), Field::new("y", DataType::Utf8, true)]);
    let labels: ArrayRef = Arc::new(StringArray::from(vec!["yes", "no"]));
    let batch = RecordBatch::try_new(Arc::new(schema), vec![Arc::new(bytes.finish()), labels]).unwrap();
    let mut total = plan.start();
    plan.count(&RawChunk::new("part".into(), batch, 0), &strict(), &mut total).unwrap();
    let analysis = plan.analysis(&total, &features).unwrap();
    let json = analysis.to_json();
    assert!(json.contains(r#"[["é",1],[{"hex":"ff00"},1]]"#), "{json}");
    assert_eq!(Analysis::from_json(&json).unwrap(), analysis);
    assert!(Analysis::from_json(&json.replace("ff00", "f")).is_err());
}

#[test]
fn the_summary_shows_what_was_learned() {
    let splits = [vec![(Some(1.0), Some("a".to_owned()), true), (None, Some("b".to_owned()), false)]];
    let summary = learn(&splits, 9, 1, UNLIMITED, &strict()).unwrap().summary().to_string();
    assert_eq!(
        summary,
        "2 rows, 50.00 % positive\n\
         n: 1 to 1, mean 1.0000, deviation 0.0000, 1 missing (constant: no information)\n\
         all: 2 of 2 terms, 100.00 % of values, 0 missing\n\
         few: 0 of 2 terms, 0.00 % of values, 0 missing\n"
    );
    assert_eq!(Analysis::default().summary().to_string(), "nothing to learn\n");
}
