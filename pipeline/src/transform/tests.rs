//! Bad values and unusual column types; the comparison with a reference is in `tests/reference.rs`.

#![allow(clippy::unwrap_used)]

mod documents;
mod labels;
mod reference;
mod typed;
mod vectors;
mod weighted;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::builder::{
    BinaryViewBuilder, GenericListBuilder, LargeBinaryBuilder, ListBuilder, StringBuilder,
    StringDictionaryBuilder,
};
use arrow_array::types::{ArrowPrimitiveType, Float16Type, Float32Type, Int8Type, Int32Type};
use arrow_array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, DurationSecondArray, Float16Array, Float32Array,
    Float64Array, Int8Array, Int64Array, LargeStringArray, ListArray, NullArray, RecordBatch, StringArray,
    StringViewArray, UInt16Array, UInt64Array,
};
use arrow_schema::{Field, Schema};
use millstream_format::Error as FormatError;
use proptest::prelude::*;

use super::*;
use crate::analysis::{Analysis, LearnedVocabulary, Moments, NumberStatistics, Term};
use crate::chunk::RaggedColumn;
use crate::fingerprint::{cross64, fingerprint64};
use crate::spec::{
    FeatureKind, FeatureSpec, LabelColumn, LabelNumbers, LabelSpec, MissingNumber, Normalize, OnBadRecord,
    OutOfRange, Terms,
};

fn feature(name: &str, columns: &[&str], kind: FeatureKind, maximum: Option<u32>) -> FeatureSpec {
    let columns = columns.iter().map(|&c| c.into()).collect();
    FeatureSpec { name: name.into(), columns, kind, maximum, weights: None }
}

fn numeric(normalize: Normalize, missing: MissingNumber) -> FeatureKind {
    FeatureKind::Numeric { normalize, missing }
}

fn given(terms: &[&str], oov_buckets: u32) -> FeatureKind {
    FeatureKind::Vocabulary { terms: Terms::Given(terms.iter().map(|&t| t.into()).collect()), oov_buckets }
}

fn identity(buckets: u32, out_of_range: OutOfRange) -> FeatureKind {
    FeatureKind::Identity { buckets, out_of_range }
}

fn crossed(buckets: u32, boundaries: &[&[f64]]) -> FeatureKind {
    FeatureKind::Crossed { buckets, boundaries: boundaries.iter().map(|of| of.to_vec()).collect() }
}

/// `value` as f16; exact for the values used here.
fn half(value: f32) -> <Float16Type as ArrowPrimitiveType>::Native {
    <Float16Type as ArrowPrimitiveType>::Native::from_f32(value)
}

fn label(positive: Option<&str>) -> LabelSpec {
    LabelSpec::of("y", positive)
}

fn analysis() -> Analysis {
    let statistics = NumberStatistics {
        values: 10,
        missing: 1,
        minimum: -3.0,
        maximum: 17.0,
        plain: Moments { mean: 4.5, deviation: 2.25 },
        logarithm: Moments { mean: 1.25, deviation: 0.5 },
    };
    let terms = ["7", "b", "-1"].map(|term| Term { bytes: term.into(), count: 3 });
    let vocabulary =
        LearnedVocabulary { values: 9, missing: 0, distinct: 3, undercount: 0, terms: terms.into() };
    Analysis {
        stored_types: BTreeMap::new(),
        rows: 11,
        label: None,
        more_labels: Vec::new(),
        numbers: [("n".to_owned(), statistics)].into(),
        vocabularies: [("learned".to_owned(), vocabulary)].into(),
    }
}

fn features() -> Vec<FeatureSpec> {
    let hashed = |buckets| FeatureKind::Hashed { buckets };
    let bucketized = || FeatureKind::Bucketized { boundaries: vec![-1.0, 0.0, 2.5, 7.0] };
    vec![
        feature("plain", &["n"], numeric(Normalize::None, MissingNumber::Value(-2.0)), None),
        feature("hash", &["a"], hashed(97), None),
        feature("tags", &["tags"], hashed(1000), Some(3)),
        feature("zscore", &["n"], numeric(Normalize::Zscore, MissingNumber::Mean), None),
        feature("minmax", &["n"], numeric(Normalize::Minmax, MissingNumber::Value(0.0)), None),
        feature("log1p", &["n"], numeric(Normalize::Log1p, MissingNumber::Mean), None),
        feature("logz", &["n"], numeric(Normalize::Log1pZscore, MissingNumber::Mean), None),
        feature("bucket", &["n"], bucketized(), None),
        feature("given", &["a"], given(&["b", "7", "zz"], 3), None),
        feature(
            "learned",
            &["b"],
            FeatureKind::Vocabulary { terms: Terms::Learned { max_terms: 9, min_count: 1 }, oov_buckets: 1 },
            None,
        ),
        feature("cross", &["a", "b", "n"], crossed(10_007, &[]), None),
        feature("cross_tags", &["tags", "a"], crossed(503, &[]), Some(2)),
        feature("numbers", &["numbers"], bucketized(), Some(8)),
        feature("identity", &["b"], identity(10, OutOfRange::Missing), None),
        feature("cross_bucket", &["a", "n"], crossed(1009, &[&[], &[-1.0, 0.0, 2.5, 7.0]]), None),
        feature("cross_lists", &["numbers", "tags"], crossed(601, &[&[-1.0, 2.5]]), Some(3)),
    ]
}

fn lists(values: &[Option<Vec<Option<String>>>], large: bool) -> ArrayRef {
    fn build<O: arrow_array::OffsetSizeTrait>(values: &[Option<Vec<Option<String>>>]) -> ArrayRef {
        let mut builder = GenericListBuilder::<O, _>::new(StringBuilder::new());
        values.iter().for_each(|list| builder.append_option(list.clone()));
        Arc::new(builder.finish())
    }
    if large { build::<i64>(values) } else { build::<i32>(values) }
}

fn raw(columns: &[(&str, ArrayRef)]) -> RawChunk {
    let fields: Vec<Field> =
        columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), true)).collect();
    let arrays = columns.iter().map(|(_, array)| array.clone()).collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap();
    RawChunk::new("data/part-0".into(), batch, 100)
}

fn strict() -> BadRecords {
    BadRecords::new(OnBadRecord::Fail)
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("b".to_owned()),
        Just("7".into()),
        Just("zz".into()),
        Just("".into()),
        "[a-z0-9 é]{0,40}"
    ]
}

/// Null, a missing value, or a value.
fn cell(value: impl Strategy<Value = String>) -> impl Strategy<Value = Option<String>> {
    prop_oneof![1 => Just(None), 1 => Just(Some(" ? ".to_owned())), 6 => value.prop_map(Some)]
}

#[test]
fn the_schema_follows_the_jobs_order() {
    let transform = Transform::resolve(&features(), &label(None), &[], &analysis()).unwrap();
    let schema = transform.schema(256, 64);
    assert_eq!((schema.rows, schema.position_bytes, schema.weighted), (256, 64, false));
    assert_eq!(schema.dense, ["plain", "zscore", "minmax", "log1p", "logz"]);
    let ids: Vec<(&str, u32)> = schema.ids.iter().map(|id| (id.name.as_str(), id.cardinality)).collect();
    assert_eq!(
        ids,
        [
            ("hash", 98),
            ("bucket", 6),
            ("given", 7),
            ("learned", 5),
            ("cross", 10_008),
            ("identity", 11),
            ("cross_bucket", 1010)
        ]
    );
    let ragged: Vec<(&str, u32, u32)> =
        schema.ragged.iter().map(|f| (f.name.as_str(), f.cardinality, f.maximum)).collect();
    assert_eq!(
        ragged,
        [("tags", 1001, 3), ("cross_tags", 504, 2), ("numbers", 6, 8), ("cross_lists", 602, 3)]
    );
    let columns: Vec<(&str, bool)> =
        transform.projection().columns.iter().map(|column| (column.name.as_str(), column.multi)).collect();
    assert_eq!(
        columns,
        [("n", false), ("a", true), ("tags", true), ("b", false), ("numbers", true), ("y", false)]
    );
}

/// A transform of one feature of column `x`.
fn single(kind: FeatureKind, missing: &[&str]) -> Transform {
    let missing: Vec<String> = missing.iter().map(|&m| m.into()).collect();
    Transform::resolve(&[feature("f", &["x"], kind, None)], &label(None), &missing, &Analysis::default())
        .unwrap()
}

fn ids(kind: FeatureKind, missing: &[&str], column: impl Array + 'static) -> Result<Vec<u32>, Error> {
    let labels = Float32Array::from(vec![0.0; column.len()]);
    let raw = raw(&[("x", Arc::new(column)), ("y", Arc::new(labels))]);
    Ok(single(kind, missing).apply(&raw, &strict())?.chunk.ids)
}

#[test]
fn a_value_has_the_same_id_in_every_column_type() {
    let terms = || given(&["2", "-1", "true", "0.1"], 1);
    assert_eq!(ids(terms(), &[], Int64Array::from(vec![Some(2), Some(-1), None])).unwrap(), [0, 1, 5]);
    assert_eq!(ids(terms(), &["-1"], Int8Array::from(vec![2, -1, 3])).unwrap(), [0, 5, 4]);
    assert_eq!(ids(terms(), &["2"], UInt64Array::from(vec![2, u64::MAX])).unwrap(), [5, 4]);
    assert_eq!(ids(terms(), &["2.0"], UInt16Array::from(vec![2, 1])).unwrap(), [5, 4]);
    assert_eq!(ids(terms(), &[], Float64Array::from(vec![2.0, -1.0, 0.1])).unwrap(), [0, 1, 3]);
    assert_eq!(
        ids(terms(), &["-1", "nan"], Float32Array::from(vec![0.1, -1.0, f32::NAN])).unwrap(),
        [3, 5, 5]
    );
    assert_eq!(ids(terms(), &[], BooleanArray::from(vec![true, false])).unwrap(), [2, 4]);
    assert_eq!(ids(terms(), &["?"], StringArray::from(vec!["2", " 2", "? "])).unwrap(), [0, 4, 5]);
    assert_eq!(ids(terms(), &[], NullArray::new(2)).unwrap(), [5, 5]);
    let mut bytes = BinaryViewBuilder::new();
    bytes.append_value(b"2");
    bytes.append_value([0xff]);
    assert_eq!(ids(terms(), &[], bytes.finish()).unwrap(), [0, 4]);
    let mut empty = StringDictionaryBuilder::<Int32Type>::new();
    empty.append_null();
    assert_eq!(ids(terms(), &[], empty.finish()).unwrap(), [5]);
}

#[test]
fn dates_decimals_and_half_floats_read_as_numbers_and_texts() {
    let date = || Date32Array::from(vec![Some(20_778), None]);
    assert_eq!(ids(given(&["2026-11-21"], 1), &[], date()).unwrap(), [0, 2]);
    assert_eq!(ids(FeatureKind::Bucketized { boundaries: vec![20_778.0] }, &[], date()).unwrap(), [1, 2]);
    assert_eq!(ids(FeatureKind::Bucketized { boundaries: vec![1.0] }, &["20778"], date()).unwrap(), [2, 2]);
    let decimals = Decimal128Array::from(vec![1230, 200]).with_precision_and_scale(9, 2).unwrap();
    assert_eq!(ids(given(&["12.3", "2"], 1), &[], decimals).unwrap(), [0, 1]);
    let halves = Float16Array::from_iter_values([1.5, 2.0].map(half));
    assert_eq!(ids(given(&["1.5", "2"], 1), &[], halves).unwrap(), [0, 1]);
}

#[test]
fn cached_dictionaries_do_not_change_results() {
    let transform = single(FeatureKind::Hashed { buckets: 1000 }, &["?"]);
    let chunk = |texts: &[Option<&str>]| {
        let mut builder = StringDictionaryBuilder::<Int32Type>::new();
        texts.iter().for_each(|text| builder.append_option(*text));
        let labels = Float32Array::from(vec![0.0; texts.len()]);
        raw(&[("x", Arc::new(builder.finish())), ("y", Arc::new(labels))])
    };
    let first = chunk(&[Some("a"), Some("b"), None, Some("?"), Some("a")]);
    let second = chunk(&[Some("b"), Some("c"), Some("d")]);
    let part = |raw: &RawChunk, from, rows| {
        RawChunk::new("data/part-0".into(), raw.columns().slice(from, rows), 100)
    };
    let mut scratch = Scratch::default();
    for raw in [part(&first, 0, 3), part(&first, 3, 2), second, part(&first, 1, 4), chunk(&[None])] {
        let found = transform.apply_with(&mut scratch, &raw, &strict()).unwrap();
        assert_eq!(found, transform.apply(&raw, &strict()).unwrap());
        let plain: Vec<u32> = raw
            .columns()
            .column(0)
            .as_dictionary::<Int32Type>()
            .downcast_dict::<StringArray>()
            .unwrap()
            .into_iter()
            .map(|text| match text {
                None | Some("?") => 1000,
                Some(text) => (fingerprint64(text.as_bytes()) % 1000) as u32,
            })
            .collect();
        assert_eq!(found.chunk.ids, plain);
    }
}

#[test]
fn boundaries_compare_with_f32_columns_as_f32() {
    // 0.7 rounds down to f32. Compared as f64, an f32 of 0.7 would fall below the boundary.
    let kind = || FeatureKind::Bucketized { boundaries: vec![0.7] };
    assert_eq!(ids(kind(), &[], Float32Array::from(vec![0.7, 0.6])).unwrap(), [1, 0]);
    assert_eq!(ids(kind(), &[], Float64Array::from(vec![0.7, f64::INFINITY, -0.7])).unwrap(), [1, 1, 0]);
}

#[test]
fn a_constant_column_scales_to_zero() {
    let mut analysis = analysis();
    let numbers = analysis.numbers.get_mut("n").unwrap();
    numbers.plain.deviation = 0.0;
    numbers.maximum = numbers.minimum;
    for normalize in [Normalize::Zscore, Normalize::Minmax] {
        let features = [feature("f", &["n"], numeric(normalize, MissingNumber::Mean), None)];
        let transform = Transform::resolve(&features, &label(None), &[], &analysis).unwrap();
        let raw = raw(&[
            ("n", Arc::new(Float64Array::from(vec![Some(4.5), Some(1e9), None]))),
            ("y", Arc::new(Float64Array::from(vec![0.0, 0.5, 1.0]))),
        ]);
        let chunk = transform.apply(&raw, &strict()).unwrap().chunk;
        assert_eq!(chunk.dense, [0.0; 3]);
        assert_eq!(chunk.labels, [[0.0, 0.5, 1.0]]);
    }
}

/// The error for a chunk with one bad record, and the rest of the chunk when bad records are skipped.
fn apply_with_bad_record(transform: &Transform, raw: &RawChunk) -> (String, Chunk) {
    let error = transform.apply(raw, &strict()).unwrap_err();
    assert!(error.is_bad_record(), "{error}");
    let lenient = BadRecords::new(OnBadRecord::Skip { limit: 10 });
    let transformed = transform.apply(raw, &lenient).unwrap();
    assert_eq!(lenient.skipped() as usize, raw.rows() - transformed.chunk.rows());
    (error.to_string(), transformed.chunk)
}

#[test]
fn bad_values_are_reported_with_an_address_or_skipped() {
    let labels: ArrayRef = Arc::new(Int64Array::from(vec![1, 0, 1]));
    let number = |missing| single(numeric(Normalize::None, missing), &[]);
    let whole = || single(identity(4, OutOfRange::Error), &[]);
    let cases: [(Transform, ArrayRef, &str); 12] = [
        (
            whole(),
            Arc::new(Int64Array::from(vec![3, 4, 0])),
            "expected a whole number from 0 to 3, found `4`",
        ),
        (
            whole(),
            Arc::new(Int8Array::from(vec![3, -1, 0])),
            "expected a whole number from 0 to 3, found `-1`",
        ),
        (
            whole(),
            Arc::new(Float64Array::from(vec![3.0, 0.5, 0.0])),
            "expected a whole number from 0 to 3, found `0.5`",
        ),
        (
            single(identity(4, OutOfRange::Missing), &[]),
            Arc::new(StringArray::from(vec!["9", "two", "0"])),
            "expected a whole number from 0 to 3, found `two`",
        ),
        (
            Transform::resolve(
                &[feature("f", &["x", "y"], crossed(9, &[&[1.5]]), None)],
                &label(None),
                &[],
                &Analysis::default(),
            )
            .unwrap(),
            Arc::new(Float32Array::from(vec![3.0, f32::NAN, 0.0])),
            "expected a number, found `NaN`; if it means missing, add \"NaN\" to `missing` in [data], and set `missing` in a numeric feature",
        ),
        (
            number(MissingNumber::Error),
            Arc::new(Float32Array::from(vec![1.0, f32::NAN, 3.0])),
            "expected a number, found `NaN`; if it means missing, add \"NaN\" to `missing` in [data], and set `missing` in a numeric feature",
        ),
        (
            number(MissingNumber::Value(0.0)),
            Arc::new(Float64Array::from(vec![1.0, f64::INFINITY, 3.0])),
            "expected a number, found `inf`",
        ),
        (
            number(MissingNumber::Error),
            Arc::new(Int64Array::from(vec![Some(1), None, Some(3)])),
            "a value is missing; set `missing = \"mean\"` or a default number in the feature",
        ),
        (
            number(MissingNumber::Error),
            Arc::new(StringArray::from(vec!["1", "many", " 3 "])),
            "expected a number, found `many`",
        ),
        (
            single(FeatureKind::Bucketized { boundaries: vec![2.0] }, &[]),
            Arc::new(StringArray::from(vec!["1", "", "3"])),
            "expected a number, found ``",
        ),
        (
            single(FeatureKind::Hashed { buckets: 5 }, &[]),
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(vec![
                Some(vec![Some(1)]),
                Some(vec![Some(1), Some(2)]),
                None,
            ])),
            "expected one value, found 2; set `multi = true` in the feature, with `maximum`",
        ),
        (
            number(MissingNumber::Error),
            Arc::new(StringArray::from(vec!["1", &"x".repeat(50), "3"])),
            "expected a number, found `xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx`...",
        ),
    ];
    for (transform, column, message) in cases {
        let (error, rest) = apply_with_bad_record(&transform, &raw(&[("x", column), ("y", labels.clone())]));
        assert_eq!(error, format!("data/part-0: record 101, column `x`: {message}"));
        assert_eq!(rest.labels, [[1.0, 1.0]]);
    }
}

#[test]
fn an_unsupported_column_type_is_an_error() {
    let spans: ArrayRef = Arc::new(DurationSecondArray::from(vec![0]));
    let labels: ArrayRef = Arc::new(Int64Array::from(vec![0]));
    for kind in [numeric(Normalize::None, MissingNumber::Error), FeatureKind::Hashed { buckets: 5 }] {
        let raw = raw(&[("x", spans.clone()), ("y", labels.clone())]);
        let error =
            single(kind, &[]).apply(&raw, &BadRecords::new(OnBadRecord::Skip { limit: 9 })).unwrap_err();
        assert!(
            matches!(&error, Error::Format(FormatError::WrongType { column, .. }) if column == "x"),
            "{error}"
        );
    }
    let mut nested = ListBuilder::new(ListBuilder::new(StringBuilder::new()));
    nested.append_null();
    let raw = raw(&[("x", Arc::new(nested.finish())), ("y", labels)]);
    assert!(single(FeatureKind::Hashed { buckets: 5 }, &[]).apply(&raw, &strict()).is_err());
}

#[test]
fn invalid_features_are_rejected() {
    let cases = [
        (feature("f", &["x"], FeatureKind::Hashed { buckets: 0 }, None), "buckets"),
        (feature("f", &["x"], FeatureKind::Hashed { buckets: u32::MAX }, None), "do not fit"),
        (feature("f", &["x"], crossed(9, &[]), None), "at least two columns"),
        (feature("f", &["x", "y"], FeatureKind::Hashed { buckets: 9 }, None), "exactly one column"),
        (feature("f", &["x"], numeric(Normalize::None, MissingNumber::Error), Some(3)), "maximum"),
        (feature("f", &["x"], numeric(Normalize::Zscore, MissingNumber::Error), None), "no statistics"),
        (feature("f", &["x"], FeatureKind::Bucketized { boundaries: vec![1.0, 1.0] }, None), "increasing"),
        (feature("f", &["x"], given(&["a", "b", "a"], 1), None), "`a` occurs twice in the vocabulary"),
        (feature("f", &["x"], given(&["a"], 0), None), "oov_buckets"),
        (feature("f", &["x"], FeatureKind::Hashed { buckets: 9 }, Some(0)), "at least 1"),
    ];
    for (spec, message) in cases {
        let error =
            Transform::resolve(&[spec], &label(None), &[], &Analysis::default()).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}
