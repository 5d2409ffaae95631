//! The columnar transform against a plain one that works a value at a time on text, and what bad values
//! and odd column types come to.

#![allow(clippy::unwrap_used)]

mod weighted;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::builder::{
    BinaryViewBuilder, GenericListBuilder, LargeBinaryBuilder, ListBuilder, StringBuilder,
    StringDictionaryBuilder,
};
use arrow_array::types::{ArrowPrimitiveType, Float16Type, Int8Type, Int32Type};
use arrow_array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, DurationSecondArray, Float16Array, Float32Array,
    Float64Array, Int8Array, Int64Array, LargeStringArray, ListArray, NullArray, RecordBatch, StringArray,
    StringViewArray, UInt16Array, UInt64Array,
};
use arrow_schema::{Field, Schema};
use proptest::prelude::*;

use super::*;
use crate::analysis::{Analysis, LearnedVocabulary, Moments, NumberStatistics, Term};
use crate::chunk::RaggedColumn;
use crate::fingerprint::{cross64, fingerprint64};
use crate::spec::{
    FeatureKind, FeatureSpec, LabelColumn, LabelNumbers, LabelSpec, MissingNumber, Normalize, OnBadRecord,
    OutOfRange, Terms,
};

/// A row of the plain side: each column's texts, absent ones left out.
type Row = BTreeMap<&'static str, Vec<String>>;

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

/// A half float, which is exact here.
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

/// One feature of one row, plainly: dense value or ids, before the maximum.
enum Plain {
    Dense(f32),
    Ids(Vec<u32>),
}

fn plain(spec: &FeatureSpec, row: &Row, analysis: &Analysis) -> Plain {
    let texts = &row[spec.columns[0].as_str()];
    let ids = |missing: u32, id: &dyn Fn(&str) -> u32| {
        let present: Vec<u32> = texts.iter().map(|text| id(text)).collect();
        Plain::Ids(if present.is_empty() && spec.maximum.is_none() { vec![missing] } else { present })
    };
    match &spec.kind {
        FeatureKind::Numeric { normalize, missing } => {
            let statistics = &analysis.numbers["n"];
            let x = match (texts.first(), missing) {
                (Some(text), _) => text.parse().unwrap(),
                (None, MissingNumber::Value(value)) => *value,
                (None, _) => statistics.plain.mean,
            };
            let log1p = if x < 0.0 { -(1.0 - x).ln() } else { (1.0 + x).ln() };
            Plain::Dense(match normalize {
                Normalize::None => x,
                Normalize::Zscore => (x - statistics.plain.mean) / statistics.plain.deviation,
                Normalize::Minmax => (x - statistics.minimum) / (statistics.maximum - statistics.minimum),
                Normalize::Log1p => log1p,
                Normalize::Log1pZscore => {
                    (log1p - statistics.logarithm.mean) / statistics.logarithm.deviation
                }
            } as f32)
        }
        FeatureKind::Bucketized { boundaries } => ids(boundaries.len() as u32 + 1, &|text| {
            let x: f64 = text.parse().unwrap();
            boundaries.iter().filter(|&&boundary| boundary <= x).count() as u32
        }),
        FeatureKind::Hashed { buckets } => {
            ids(*buckets, &|text| (fingerprint64(text.as_bytes()) % u64::from(*buckets)) as u32)
        }
        FeatureKind::Vocabulary { terms, oov_buckets } => {
            let list: Vec<String> = match terms {
                Terms::Given(list) => list.clone(),
                Terms::Learned { .. } => {
                    let learned = &analysis.vocabularies[&spec.name].terms;
                    learned.iter().map(|term| String::from_utf8(term.bytes.clone()).unwrap()).collect()
                }
            };
            let n = list.len() as u32;
            ids(n + oov_buckets, &|text| match list.iter().position(|term| term == text) {
                Some(position) => position as u32,
                None => n + (fingerprint64(text.as_bytes()) % u64::from(*oov_buckets)) as u32,
            })
        }
        FeatureKind::Identity { buckets, .. } => ids(*buckets, &|text| {
            let number: i64 = text.parse().unwrap();
            if (0..i64::from(*buckets)).contains(&number) { number as u32 } else { *buckets }
        }),
        FeatureKind::Crossed { buckets, boundaries } => {
            let mut combinations: Vec<Vec<String>> = vec![vec![]];
            for (part, column) in spec.columns.iter().enumerate() {
                let boundaries = boundaries.get(part).map_or(&[][..], Vec::as_slice);
                let value = |text: &String| match boundaries {
                    [] => text.clone(),
                    _ => {
                        let x: f64 = text.parse().unwrap();
                        boundaries.iter().filter(|&&boundary| boundary <= x).count().to_string()
                    }
                };
                let values: Vec<String> = row[column.as_str()].iter().map(value).collect();
                let extended = combinations.iter().flat_map(|combination| {
                    values
                        .iter()
                        .map(move |value| [combination.as_slice(), std::slice::from_ref(value)].concat())
                });
                combinations = extended.collect();
            }
            let id = |combination: &Vec<String>| {
                (cross64(combination.iter().map(|text| text.as_bytes())) % u64::from(*buckets)) as u32
            };
            let present: Vec<u32> = combinations.iter().map(id).collect();
            Plain::Ids(if present.is_empty() && spec.maximum.is_none() { vec![*buckets] } else { present })
        }
    }
}

/// The whole transform, plainly.
fn reference(features: &[FeatureSpec], rows: &[Row], analysis: &Analysis) -> Transformed {
    let mut chunk = Chunk::default();
    let mut truncated_rows = 0;
    for _ in features.iter().filter(|spec| spec.maximum.is_some()) {
        chunk.ragged.push(RaggedColumn { offsets: vec![0], values: vec![], weights: None });
    }
    for row in rows {
        chunk.labels.push(f32::from(row["y"][0] == "yes"));
        let mut ragged = chunk.ragged.iter_mut();
        for spec in features {
            match (plain(spec, row, analysis), spec.maximum) {
                (Plain::Dense(value), _) => chunk.dense.push(value),
                (Plain::Ids(ids), None) => chunk.ids.extend(ids),
                (Plain::Ids(mut ids), Some(maximum)) => {
                    truncated_rows += u64::from(ids.len() > maximum as usize);
                    ids.truncate(maximum as usize);
                    let column = ragged.next().unwrap();
                    column.values.extend(ids);
                    column.offsets.push(column.values.len() as u32);
                }
            }
        }
    }
    Transformed { chunk, truncated_rows }
}

/// A column of one value a row, as one of the types that can hold it.
fn column(values: &[Option<String>], kind: u8) -> ArrayRef {
    let texts = || values.iter().map(Option::as_deref);
    let numbers = || texts().map(|text| text.map(|text| text.parse::<f64>()).transpose());
    let whole: Option<Vec<Option<i64>>> =
        texts().map(|text| text.map(|text| text.parse()).transpose()).collect::<Result<_, _>>().ok();
    match (kind % 9, whole, numbers().collect::<Result<Vec<_>, _>>()) {
        (0, Some(whole), _) => Arc::new(Int64Array::from(whole)),
        (1, Some(whole), _) => Arc::new(Int8Array::from_iter(whole.iter().map(|v| v.map(|v| v as i8)))),
        (2, _, Ok(numbers)) => Arc::new(Float64Array::from(numbers)),
        (3, _, Ok(numbers)) => Arc::new(Float32Array::from_iter(numbers.iter().map(|v| v.map(|v| v as f32)))),
        (4, _, _) => Arc::new(LargeStringArray::from_iter(texts())),
        (5, _, _) => Arc::new(StringViewArray::from_iter(texts())),
        (6, _, _) => {
            let mut builder = StringDictionaryBuilder::<Int8Type>::new();
            texts().for_each(|text| builder.append_option(text));
            Arc::new(builder.finish())
        }
        (7, _, _) => {
            let mut builder = LargeBinaryBuilder::new();
            texts().for_each(|text| builder.append_option(text));
            Arc::new(builder.finish())
        }
        (8, _, _) if values.iter().all(Option::is_none) => Arc::new(NullArray::new(values.len())),
        _ => Arc::new(StringArray::from_iter(texts())),
    }
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

/// The columns in the order that `transform` wants them.
fn projected(transform: &Transform, columns: &BTreeMap<&str, ArrayRef>) -> RawChunk {
    let columns = transform.projection().columns.iter().map(|column| {
        let (name, array) = columns.get_key_value(column.name.as_str()).unwrap();
        (*name, array.clone())
    });
    raw(&columns.collect::<Vec<_>>())
}

fn strict() -> BadRecords {
    BadRecords::new(OnBadRecord::Fail)
}

fn number_text() -> impl Strategy<Value = String> {
    prop_oneof![
        (-9i64..12).prop_map(|v| v.to_string()),
        (-8i64..60).prop_map(|v| (v as f64 / 8.0).to_string())
    ]
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

/// Null, one of the values that stand for missing, or a value.
fn cell(value: impl Strategy<Value = String>) -> impl Strategy<Value = Option<String>> {
    prop_oneof![1 => Just(None), 1 => Just(Some(" ? ".to_owned())), 6 => value.prop_map(Some)]
}

type Record = (
    Option<String>,
    Option<String>,
    Option<String>,
    Option<Vec<Option<String>>>,
    Option<Vec<Option<String>>>,
    bool,
);

fn record() -> impl Strategy<Value = Record> {
    let list = |texts| proptest::option::weighted(0.8, proptest::collection::vec(texts, 0..6));
    let integers = (-5i64..15).prop_map(|v| v.to_string());
    (
        cell(number_text()),
        cell(word()),
        prop_oneof![Just(None), integers.prop_map(Some)],
        list(cell(word()).boxed()),
        list(cell(number_text()).boxed()),
        any::<bool>(),
    )
}

proptest! {
    #[test]
    fn agrees_with_the_plain_transform(
        records in proptest::collection::vec(record(), 0..30),
        kinds: [u8; 3],
        large: bool,
        from in 0usize..4,
    ) {
        let features = features();
        let missing = ["?".to_owned(), "-4".to_owned()];
        let transform = Transform::resolve(&features, &label(Some("yes")), &missing, &analysis()).unwrap();
        let texts = |pick: fn(&Record) -> &Option<String>| -> Vec<Option<String>> {
            records.iter().map(|record| pick(record).clone()).collect()
        };
        let columns: BTreeMap<&str, ArrayRef> = [
            ("n", column(&texts(|r| &r.0), kinds[0])),
            ("a", column(&texts(|r| &r.1), kinds[1])),
            ("b", column(&texts(|r| &r.2), kinds[2])),
            ("tags", lists(&records.iter().map(|r| r.3.clone()).collect::<Vec<_>>(), large)),
            ("numbers", lists(&records.iter().map(|r| r.4.clone()).collect::<Vec<_>>(), large)),
            ("y", Arc::new(StringArray::from_iter_values(records.iter().map(|r| if r.5 { "yes" } else { "no" })))),
        ].into();
        let present = |text: &Option<String>| text.clone().filter(|text| !["?", "-4"].contains(&text.trim()));
        let all = |list: &Option<Vec<Option<String>>>| list.iter().flatten().filter_map(present).collect::<Vec<_>>();
        let rows: Vec<Row> = records.iter().map(|record| {
            [
                ("n", present(&record.0).into_iter().collect()),
                ("a", present(&record.1).into_iter().collect()),
                ("b", present(&record.2).into_iter().collect()),
                ("tags", all(&record.3)),
                ("numbers", all(&record.4)),
                ("y", vec![if record.5 { "yes".to_owned() } else { "no".to_owned() }]),
            ].into()
        }).collect();
        // From some row on, so that arrays and lists start amid their buffers.
        let from = from.min(rows.len());
        let whole = projected(&transform, &columns);
        let sliced = RawChunk::new("data/part-0".into(), whole.columns().slice(from, rows.len() - from), 100);
        let mut found = transform.apply(&sliced, &strict()).unwrap();
        let expected = reference(&features, &rows[from..], &analysis());
        // ln_1p and ln differ in the last bits.
        for (found, expected) in found.chunk.dense.iter_mut().zip(&expected.chunk.dense) {
            prop_assert!((*found - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{found} {expected}");
            *found = *expected;
        }
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn the_schema_is_in_the_jobs_order() {
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

/// A transform of one feature over column `x`.
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
fn a_value_has_the_same_id_whatever_type_holds_it() {
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
fn dates_decimals_and_half_floats_are_numbers_and_texts() {
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
fn a_memory_of_dictionaries_changes_nothing() {
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
    let mut memory = Memory::default();
    for raw in [part(&first, 0, 3), part(&first, 3, 2), second, part(&first, 1, 4), chunk(&[None])] {
        let found = transform.apply_with(&mut memory, &raw, &strict()).unwrap();
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
    // 0.7 is above its f32: compared as f64, an f32 of 0.7 would fall below the boundary.
    let kind = || FeatureKind::Bucketized { boundaries: vec![0.7] };
    assert_eq!(ids(kind(), &[], Float32Array::from(vec![0.7, 0.6])).unwrap(), [1, 0]);
    assert_eq!(ids(kind(), &[], Float64Array::from(vec![0.7, f64::INFINITY, -0.7])).unwrap(), [1, 1, 0]);
}

#[test]
fn a_column_without_spread_becomes_zero() {
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
        assert_eq!(chunk.labels, [0.0, 0.5, 1.0]);
    }
}

/// The error of the only bad record, and what is left when it may be skipped.
fn refused(transform: &Transform, raw: &RawChunk) -> (String, Chunk) {
    let error = transform.apply(raw, &strict()).unwrap_err();
    assert!(error.is_bad_record(), "{error}");
    let lenient = BadRecords::new(OnBadRecord::Skip { limit: 10 });
    let transformed = transform.apply(raw, &lenient).unwrap();
    assert_eq!(lenient.skipped() as usize, raw.rows() - transformed.chunk.rows());
    (error.to_string(), transformed.chunk)
}

#[test]
fn bad_values_have_an_address_and_can_be_left_out() {
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
            "expected a number, found `NaN`",
        ),
        (
            number(MissingNumber::Error),
            Arc::new(Float32Array::from(vec![1.0, f32::NAN, 3.0])),
            "expected a number, found `NaN`",
        ),
        (
            number(MissingNumber::Value(0.0)),
            Arc::new(Float64Array::from(vec![1.0, f64::INFINITY, 3.0])),
            "expected a number, found `inf`",
        ),
        (
            number(MissingNumber::Error),
            Arc::new(Int64Array::from(vec![Some(1), None, Some(3)])),
            "a value is missing; give the feature `missing = \"mean\"`, or a number to stand for it",
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
            "expected one value, found 2",
        ),
        (
            number(MissingNumber::Error),
            Arc::new(StringArray::from(vec!["1", &"x".repeat(50), "3"])),
            "expected a number, found `xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx`...",
        ),
    ];
    for (transform, column, message) in cases {
        let (error, rest) = refused(&transform, &raw(&[("x", column), ("y", labels.clone())]));
        assert_eq!(error, format!("data/part-0: record 101, column `x`: {message}"));
        assert_eq!(rest.labels, [1.0, 1.0]);
    }
}

#[test]
fn bad_labels_and_weights_have_an_address() {
    let spec = LabelSpec { weight: Some("w".into()), ..LabelSpec::of("y", None) };
    let transform = Transform::resolve(&[], &spec, &[], &Analysis::default()).unwrap();
    let good: ArrayRef = Arc::new(Float64Array::from(vec![0.0, 1.0]));
    let bad: ArrayRef = Arc::new(Float64Array::from(vec![0.0, 1.5]));
    let negative: ArrayRef = Arc::new(Float64Array::from(vec![2.0, -1.0]));
    let (error, rest) = refused(&transform, &raw(&[("y", bad), ("w", good.clone())]));
    assert_eq!(error, "data/part-0: record 101, column `y`: expected a label from 0 to 1, found `1.5`");
    assert_eq!((rest.labels, rest.weights), (vec![0.0], Some(vec![0.0])));
    let (error, rest) = refused(&transform, &raw(&[("y", good), ("w", negative)]));
    assert_eq!(
        error,
        "data/part-0: record 101, column `w`: expected a finite weight of at least 0, found `-1`"
    );
    assert_eq!(rest.weights, Some(vec![2.0]));
}

#[test]
fn the_positive_value_is_compared_by_what_it_means() {
    let labels = |positive: &str, column: ArrayRef| {
        let transform = Transform::resolve(&[], &label(Some(positive)), &[], &Analysis::default()).unwrap();
        transform.apply(&raw(&[("y", column)]), &strict()).unwrap().chunk.labels
    };
    assert_eq!(labels("1", Arc::new(Int64Array::from(vec![0, 1, 2]))), [0.0, 1.0, 0.0]);
    assert_eq!(labels("1.0", Arc::new(Int64Array::from(vec![0, 1]))), [0.0, 1.0]);
    assert_eq!(labels("0.1", Arc::new(Float32Array::from(vec![0.1, 1.0]))), [1.0, 0.0]);
    assert_eq!(labels("true", Arc::new(BooleanArray::from(vec![true, false]))), [1.0, 0.0]);
    assert_eq!(labels("1", Arc::new(BooleanArray::from(vec![true, false]))), [1.0, 0.0]);
    assert_eq!(labels(">50K", Arc::new(StringArray::from(vec![">50K", ">50K."]))), [1.0, 0.0]);
}

#[test]
fn without_labels_only_the_features_columns_are_read() {
    let spec = LabelSpec { weight: Some("x".into()), ..LabelSpec::of("y", None) };
    let features = [feature("f", &["x"], FeatureKind::Hashed { buckets: 5 }, None)];
    let transform = Transform::resolve(&features, &spec, &[], &Analysis::default()).unwrap();
    let schema = transform.schema(8, 8);
    let transform = transform.without_label();
    assert_eq!(transform.schema(8, 8), schema);
    assert_eq!(transform.projection().columns.len(), 1);
    let chunk =
        transform.apply(&raw(&[("x", Arc::new(Int64Array::from(vec![1, 2])))]), &strict()).unwrap().chunk;
    assert_eq!((chunk.labels, chunk.weights), (vec![0.0; 2], Some(vec![1.0; 2])));
}

#[test]
fn a_column_of_no_use_is_the_wrong_type() {
    let spans: ArrayRef = Arc::new(DurationSecondArray::from(vec![0]));
    let labels: ArrayRef = Arc::new(Int64Array::from(vec![0]));
    for kind in [numeric(Normalize::None, MissingNumber::Error), FeatureKind::Hashed { buckets: 5 }] {
        let raw = raw(&[("x", spans.clone()), ("y", labels.clone())]);
        let error =
            single(kind, &[]).apply(&raw, &BadRecords::new(OnBadRecord::Skip { limit: 9 })).unwrap_err();
        assert!(matches!(&error, Error::WrongType { column, .. } if column == "x"), "{error}");
    }
    let mut nested = ListBuilder::new(ListBuilder::new(StringBuilder::new()));
    nested.append_null();
    let raw = raw(&[("x", Arc::new(nested.finish())), ("y", labels)]);
    assert!(single(FeatureKind::Hashed { buckets: 5 }, &[]).apply(&raw, &strict()).is_err());
}

#[test]
fn features_that_make_no_sense_are_refused() {
    let cases = [
        (feature("f", &["x"], FeatureKind::Hashed { buckets: 0 }, None), "buckets"),
        (feature("f", &["x"], FeatureKind::Hashed { buckets: u32::MAX }, None), "more than fit"),
        (feature("f", &["x"], crossed(9, &[]), None), "two columns"),
        (feature("f", &["x", "y"], FeatureKind::Hashed { buckets: 9 }, None), "exactly one column"),
        (feature("f", &["x"], numeric(Normalize::None, MissingNumber::Error), Some(3)), "maximum"),
        (feature("f", &["x"], numeric(Normalize::Zscore, MissingNumber::Error), None), "no statistics"),
        (feature("f", &["x"], FeatureKind::Bucketized { boundaries: vec![1.0, 1.0] }, None), "increasing"),
        (feature("f", &["x"], given(&["a", "b", "a"], 1), None), "`a` is in the vocabulary twice"),
        (feature("f", &["x"], given(&["a"], 0), None), "oov_buckets"),
        (feature("f", &["x"], FeatureKind::Hashed { buckets: 9 }, Some(0)), "at least 1"),
    ];
    for (spec, message) in cases {
        let error =
            Transform::resolve(&[spec], &label(None), &[], &Analysis::default()).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn each_of_several_labels_means_what_it_is_said_to() {
    let number = LabelColumn {
        name: "price".into(),
        column: "p".into(),
        numbers: LabelNumbers::Any,
        ..LabelColumn::default()
    };
    let first = LabelColumn { name: "bought".into(), ..LabelSpec::of("y", Some("yes")).first };
    let surely = LabelColumn { name: "surely".into(), ..LabelSpec::of("s", None).first };
    let spec = LabelSpec { first, others: vec![number, surely], weight: Some("w".into()) };
    let transform = Transform::resolve(&[], &spec, &[], &Analysis::default()).unwrap();
    assert_eq!(transform.schema(8, 8).labels, ["bought", "price", "surely"]);
    let floats = |values: [f64; 2]| -> ArrayRef { Arc::new(Float64Array::from(values.to_vec())) };
    let columns = |price| {
        let bought: ArrayRef = Arc::new(StringArray::from(vec!["no", "yes"]));
        raw(&[("y", bought), ("p", price), ("s", floats([0.25, 1.0])), ("w", floats([2.0, 3.0]))])
    };
    let chunk = transform.apply(&columns(floats([-7.5, 1e6])), &strict()).unwrap().chunk;
    assert_eq!((chunk.labels, chunk.weights), (vec![0.0, 1.0], Some(vec![2.0, 3.0])));
    assert_eq!(chunk.more_labels, [-7.5, 0.25, 1e6, 1.0]);
    let (error, rest) = refused(&transform, &columns(floats([1.0, f64::INFINITY])));
    assert_eq!(error, "data/part-0: record 101, column `p`: expected a finite number, found `inf`");
    assert_eq!((rest.labels, rest.more_labels), (vec![0.0], vec![1.0, 0.25]));
    let unlabelled = transform.without_label();
    assert_eq!(unlabelled.schema(8, 8).labels.len(), 3);
    assert!(unlabelled.projection().columns.is_empty());
}

#[test]
fn a_label_of_classes_is_the_number_of_one() {
    let spec = |classes: &[&str]| {
        let classes = classes.iter().map(|&class| class.to_owned()).collect();
        LabelSpec {
            first: LabelColumn { classes, ..LabelSpec::of("y", None).first },
            ..LabelSpec::of("y", None)
        }
    };
    let transform =
        |classes: &[&str]| Transform::resolve(&[], &spec(classes), &[], &Analysis::default()).unwrap();
    let named = transform(&["red", "green", "7"]);
    let texts = |values: [Option<&str>; 3]| -> ArrayRef { Arc::new(StringArray::from(values.to_vec())) };
    let labels = |transform: &Transform, column: ArrayRef| {
        transform.apply(&raw(&[("y", column)]), &strict()).unwrap().chunk.labels
    };
    assert_eq!(labels(&named, texts([Some("7"), Some("red"), Some("green")])), [2.0, 0.0, 1.0]);
    for (column, found) in [
        (
            texts([Some("green"), Some("Red"), Some("red")]),
            "record 101, column `y`: expected one of the label's classes, found `Red`",
        ),
        (
            texts([Some("green"), Some("7.0"), Some("red")]),
            "record 101, column `y`: expected one of the label's classes, found `7.0`",
        ),
        (texts([Some("green"), None, Some("red")]), "record 101, column `y`: a value is missing"),
    ] {
        let (error, rest) = refused(&named, &raw(&[("y", column)]));
        assert_eq!(error, format!("data/part-0: {found}"));
        assert_eq!(rest.labels, [1.0, 0.0]);
    }
    // Numbers are what they are, however they are written.
    let numbered = transform(&["10", "-0", "2.50", "0.1"]);
    let whole: ArrayRef = Arc::new(Int64Array::from(vec![0, 10, 0]));
    assert_eq!(labels(&numbered, whole), [1.0, 0.0, 1.0]);
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![2.5, 10.0, -0.0]));
    assert_eq!(labels(&numbered, floats), [2.0, 0.0, 1.0]);
    let floats: ArrayRef = Arc::new(Float32Array::from(vec![2.5, 0.1]));
    assert_eq!(labels(&numbered, floats), [2.0, 3.0]);
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![2.5, f64::NAN, 3.0]));
    let flags: ArrayRef = Arc::new(BooleanArray::from(vec![true, false]));
    assert_eq!(labels(&transform(&["false", "true"]), flags.clone()), [1.0, 0.0]);
    assert_eq!(labels(&transform(&["1", "0"]), flags), [0.0, 1.0]);
    let unheard = transform(&["2.5", "3", "nan"]);
    let (error, rest) = refused(&unheard, &raw(&[("y", floats)]));
    assert_eq!(
        (error.as_str(), rest.labels.as_slice()),
        (
            "data/part-0: record 101, column `y`: expected one of the label's classes, found `NaN`",
            [0.0, 1.0].as_slice()
        )
    );
}
