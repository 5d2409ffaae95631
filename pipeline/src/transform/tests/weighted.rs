//! Weighted values: compared with plain (value, weight) pairs; and rows with unusable weights.

use arrow_array::builder::Float64Builder;
use arrow_array::types::{Float32Type, Int64Type};
use millstream_format::Error as FormatError;
use proptest::collection::vec;

use super::*;

const MAXIMUM: usize = 3;

fn weighted(kind: FeatureKind) -> FeatureSpec {
    FeatureSpec { weights: Some("w".into()), ..feature("tags", &["tags"], kind, Some(MAXIMUM as u32)) }
}

fn transform(kind: FeatureKind) -> Transform {
    let missing = ["?".to_owned(), "-4".to_owned()];
    Transform::resolve(&[weighted(kind)], &label(Some("yes")), &missing, &Analysis::default()).unwrap()
}

/// A chunk of these values and weights.
fn chunk(tags: ArrayRef, weights: ArrayRef) -> RawChunk {
    let labels = StringArray::from(vec!["yes"; tags.len()]);
    raw(&[("tags", tags), ("w", weights), ("y", Arc::new(labels))])
}

/// A row of a column of number lists.
type Numbers = Option<Vec<Option<f64>>>;

fn doubles(rows: &[Numbers]) -> ArrayRef {
    let mut builder = ListBuilder::new(Float64Builder::new());
    rows.iter().for_each(|row| builder.append_option(row.clone()));
    Arc::new(builder.finish())
}

fn texts(rows: &[&[&str]]) -> ArrayRef {
    let rows = rows.iter().map(|row| Some(row.iter().map(|&text| Some(text.to_owned())).collect()));
    lists(&rows.collect::<Vec<_>>(), false)
}

proptest! {
    #[test]
    fn values_and_weights_stay_paired(
        rows in vec(proptest::option::weighted(0.8, vec((cell(word()), -40_i8..40), 0..6)), 0..30),
        large: bool,
        whole: bool,
        from in 0_usize..4,
    ) {
        let kind = FeatureKind::Hashed { buckets: 1000 };
        let number = |weight: i8| f64::from(weight) / if whole { 1.0 } else { 8.0 };
        let values: Vec<_> =
            rows.iter().map(|row| row.as_ref().map(|row| row.iter().map(|(text, _)| text.clone()).collect())).collect();
        // -4 means missing, so it may be a weight only beside an absent value.
        let usable = |(text, weight): &(Option<String>, i8)| match text.as_deref().map(str::trim) {
            None | Some("?" | "-4") => None,
            Some(_) if number(*weight) == -4.0 => Some(4.0),
            Some(_) => Some(number(*weight)),
        };
        let numbers: Vec<_> =
            rows.iter().map(|row| row.as_ref().map(|row| row.iter().map(usable).collect::<Vec<_>>())).collect();
        let weights: ArrayRef = if whole {
            let whole = numbers.iter().map(|row| {
                row.as_ref().map(|row| row.iter().map(|weight| weight.map(|weight| weight as i64)).collect::<Vec<_>>())
            });
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(whole))
        } else {
            doubles(&numbers)
        };
        let from = from.min(rows.len());
        let raw = chunk(lists(&values, large), weights);
        let raw = RawChunk::new("data/part-0".into(), raw.columns().slice(from, rows.len() - from), 100);
        let found = transform(kind).apply(&raw, &strict()).unwrap();

        let mut expected = RaggedColumn { offsets: vec![0], values: vec![], weights: Some(vec![]) };
        let mut truncated_rows = 0;
        for row in &rows[from..] {
            let pairs: Vec<(u32, f32)> = row.iter().flatten().filter_map(|pair| {
                let text = pair.0.as_ref()?;
                Some(((fingerprint64(text.as_bytes()) % 1000) as u32, usable(pair)? as f32))
            }).collect();
            truncated_rows += u64::from(pairs.len() > MAXIMUM);
            for (id, weight) in pairs.into_iter().take(MAXIMUM) {
                expected.values.push(id);
                expected.weights.as_mut().unwrap().push(weight);
            }
            expected.offsets.push(expected.values.len() as u32);
        }
        prop_assert_eq!(&found.chunk.ragged[0], &expected);
        prop_assert_eq!(found.truncated_rows, truncated_rows);
    }
}

#[test]
fn the_schema_marks_weighted_features() {
    let features = [weighted(FeatureKind::Hashed { buckets: 9 }), features().swap_remove(2)];
    let transform = Transform::resolve(&features, &label(None), &[], &Analysis::default()).unwrap();
    let ragged = transform.schema(8, 8).ragged;
    assert_eq!([ragged[0].weighted, ragged[1].weighted], [true, false]);
    let columns = &transform.projection().columns;
    let columns: Vec<_> = columns.iter().map(|column| (column.name.as_str(), column.multi)).collect();
    assert_eq!(columns, [("tags", true), ("w", true), ("y", false)]);
    let unlabelled = transform.without_label();
    assert_eq!(unlabelled.projection().columns.len(), 2, "prediction reads value weights, too");
}

/// The second of three rows is bad, and its error has an address; the other rows are kept.
#[test]
fn a_row_with_unusable_weights_is_a_bad_record() {
    let one = || Some(vec![Some(0.5)]);
    let two = |weight| Some(vec![Some(1.5), weight]);
    let count = |values, weights| {
        format!("expected one weight per value of column `tags` ({values}), found {weights}")
    };
    let cases: [(&[&str], Numbers, String); 9] = [
        (&["a", "b"], one(), count(2, 1)),
        (&["a"], two(Some(2.0)), count(1, 2)),
        (&["a"], None, count(1, 0)),
        (&["a"], Some(vec![]), count(1, 0)),
        (&[], one(), count(0, 1)),
        (&["a", "b"], two(Some(f64::NAN)), "expected a finite weight, found `NaN`; if it means missing, add \"NaN\" to `missing` in [data], and set `missing` in a numeric feature".into()),
        (&["a", "b"], two(Some(f64::NEG_INFINITY)), "expected a finite weight, found `-inf`".into()),
        (
            &["a", "b"],
            two(Some(1e39)),
            "expected a finite weight, found `1000000000000000000000000000000000000000`".into(),
        ),
        (&["a", "b"], two(None), "a value is missing".into()),
    ];
    let transform = transform(FeatureKind::Hashed { buckets: 1000 });
    for (tags, weights, message) in cases {
        let raw = chunk(texts(&[&["x"], tags, &["y"]]), doubles(&[one(), weights, one()]));
        let (error, rest) = apply_with_bad_record(&transform, &raw);
        assert_eq!(error, format!("data/part-0: record 101, column `w`: {message}"));
        assert_eq!(rest.ragged[0].offsets, [0, 1, 2]);
        assert_eq!(rest.ragged[0].weights, Some(vec![0.5, 0.5]));
    }
}

#[test]
fn weights_of_skipped_values_are_not_checked() {
    let tags = texts(&[&["a", "?", "b"], &["a", "b", "c", "d"]]);
    let weights = doubles(&[
        Some(vec![Some(1.0), None, Some(3.0)]),
        Some(vec![Some(1.0), Some(2.0), Some(3.0), Some(f64::NAN)]),
    ]);
    let found =
        transform(FeatureKind::Hashed { buckets: 1000 }).apply(&chunk(tags, weights), &strict()).unwrap();
    assert_eq!(found.chunk.ragged[0].weights, Some(vec![1.0, 3.0, 1.0, 2.0, 3.0]));
    assert_eq!(found.truncated_rows, 1);
}

#[test]
fn columns_without_lists_have_one_weight_per_row() {
    let transform = transform(FeatureKind::Identity { buckets: 9, out_of_range: OutOfRange::Error });
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![Some(3), None, Some(4)]));
    let weights: ArrayRef = Arc::new(Float32Array::from(vec![Some(0.5), None, Some(-2.0)]));
    let column = &transform.apply(&chunk(ids.clone(), weights.clone()), &strict()).unwrap().chunk.ragged[0];
    assert_eq!((&column.offsets[..], &column.values[..]), (&[0, 1, 1, 2][..], &[3, 4][..]));
    assert_eq!(column.weights, Some(vec![0.5, -2.0]));
    // A column that the file lacks reads as null, which is valid only if there are no values either.
    let absent: ArrayRef = Arc::new(NullArray::new(3));
    let empty = transform.apply(&chunk(absent.clone(), absent.clone()), &strict()).unwrap().chunk;
    assert_eq!(empty.ragged[0], RaggedColumn { offsets: vec![0; 4], values: vec![], weights: Some(vec![]) });
    for (ids, weights) in [(ids, absent.clone()), (absent, weights)] {
        let error = transform.apply(&chunk(ids, weights), &strict()).unwrap_err().to_string();
        assert!(error.contains("record 100, column `w`: expected one weight per value"), "{error}");
    }
    let lists = ListArray::from_iter_primitive::<Float32Type, _, _>(vec![Some(vec![Some(7.0)]), None]);
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![Some(3), None]));
    let column = &transform.apply(&chunk(ids, Arc::new(lists)), &strict()).unwrap().chunk.ragged[0];
    assert_eq!(column.weights, Some(vec![7.0]));
}

/// A weighted row reports the fault of a value, too.
#[test]
fn an_out_of_range_weighted_value_is_reported() {
    let transform = transform(FeatureKind::Identity { buckets: 9, out_of_range: OutOfRange::Error });
    let ids = ListArray::from_iter_primitive::<Int64Type, _, _>(vec![Some(vec![Some(1), Some(9)])]);
    let error = transform
        .apply(&chunk(Arc::new(ids), doubles(&[Some(vec![Some(1.0), Some(1.0)])])), &strict())
        .unwrap_err();
    let expected = "record 100, column `tags`: expected a whole number from 0 to 8, found `9`";
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn weights_that_are_not_numbers_are_type_errors_or_bad_records() {
    let transform = transform(FeatureKind::Hashed { buckets: 9 });
    let spans: ArrayRef = Arc::new(DurationSecondArray::from(vec![0]));
    let error = transform.apply(&chunk(texts(&[&["a"]]), spans), &strict()).unwrap_err();
    assert!(
        matches!(&error, Error::Format(FormatError::WrongType { column, .. }) if column == "w"),
        "{error}"
    );
    let written = transform.apply(&chunk(texts(&[&["a"]]), texts(&[&[" 0.25 "]])), &strict()).unwrap();
    assert_eq!(written.chunk.ragged[0].weights, Some(vec![0.25]));
    let error = transform.apply(&chunk(texts(&[&["a"]]), texts(&[&["much"]])), &strict()).unwrap_err();
    assert!(error.to_string().contains("column `w`: expected a finite weight, found `much`"), "{error}");
}

#[test]
fn weights_require_a_multi_valued_single_column_feature() {
    let hashed = weighted(FeatureKind::Hashed { buckets: 9 });
    let cross = FeatureSpec { columns: vec!["a".into(), "b".into()], ..weighted(crossed(9, &[])) };
    for (spec, message) in [
        (
            FeatureSpec { maximum: None, ..hashed },
            "feature `tags`: `weights` require a multi-valued feature (set `maximum`)",
        ),
        (cross, "feature `tags`: a cross cannot have `weights`"),
    ] {
        let error = Transform::resolve(&[spec], &label(None), &[], &Analysis::default()).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}
