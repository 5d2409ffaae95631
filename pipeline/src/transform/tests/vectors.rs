//! Vectors: lists of numbers of one length.

use super::*;

fn vector(size: u32, missing: MissingNumber) -> FeatureSpec {
    feature("v", &["x"], FeatureKind::Vector { size, missing }, None)
}

fn resolved(size: u32, missing: MissingNumber) -> Transform {
    let features = [
        feature(
            "n",
            &["n"],
            FeatureKind::Numeric { normalize: Normalize::None, missing: MissingNumber::Error },
            None,
        ),
        vector(size, missing),
    ];
    Transform::resolve(&features, &label(None), &["-1".to_owned()], &Analysis::default()).unwrap()
}

fn lists(rows: &[Option<&[f32]>]) -> ArrayRef {
    let rows = rows.iter().map(|row| row.map(|row| row.iter().map(|&value| Some(value)).collect::<Vec<_>>()));
    Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))
}

fn rows(vectors: ArrayRef) -> RawChunk {
    let count = vectors.len();
    let numbers = || Arc::new(Float64Array::from_iter_values((0..count).map(|row| row as f64 / 4.0)));
    raw(&[("n", numbers()), ("x", vectors), ("y", Arc::new(Float64Array::from(vec![1.0; count])))])
}

#[test]
fn components_are_dense_columns() {
    let transform = resolved(3, MissingNumber::Value(7.0));
    let schema = transform.schema(8, 8);
    assert_eq!(schema.dense, ["n", "v[0]", "v[1]", "v[2]"]);
    assert!(schema.dense[1..].iter().all(|column| BatchSchema::feature_of(column) == "v"));
    assert_eq!(transform.scalings().count(), 4);
    let values: &[Option<&[f32]>] = &[Some(&[1.0, 2.0, 3.0]), None, Some(&[]), Some(&[-1.0, 0.5, 9.0])];
    let chunk = transform.apply(&rows(lists(values)), &strict()).unwrap().chunk;
    // An absent list, an empty one, and a number that is listed as missing.
    let wanted = [[0.0, 1.0, 2.0, 3.0], [0.25, 7.0, 7.0, 7.0], [0.5, 7.0, 7.0, 7.0], [0.75, 7.0, 0.5, 9.0]];
    assert_eq!(chunk.dense, wanted.concat());
}

#[test]
fn a_vector_of_one_number_may_be_a_plain_column_of_any_number_type() {
    let transform = resolved(1, MissingNumber::Value(0.0));
    let whole: ArrayRef = Arc::new(Int64Array::from(vec![Some(3), None]));
    assert_eq!(transform.apply(&rows(whole), &strict()).unwrap().chunk.dense, [0.0, 3.0, 0.25, 0.0]);
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["1.5", "2"]));
    assert_eq!(transform.apply(&rows(texts), &strict()).unwrap().chunk.dense, [0.0, 1.5, 0.25, 2.0]);
}

#[test]
fn other_lengths_and_values_are_reported_with_their_address() {
    let rejected = |missing, bad: Option<&[f32]>| {
        let rows = rows(lists(&[Some(&[1.0, 2.0]), bad]));
        let (error, rest) = apply_with_bad_record(&resolved(2, missing), &rows);
        assert_eq!(rest.dense, [0.0, 1.0, 2.0], "the other row is kept");
        error
    };
    let at = "data/part-0: record 101, column `x`: ";
    let replaced = MissingNumber::Value(0.0);
    let short = rejected(replaced, Some(&[1.0]));
    assert_eq!(short, format!("{at}expected 2 numbers, the feature's `size`, found 1"));
    assert!(rejected(replaced, Some(&[1.0, 2.0, 3.0])).ends_with("found 3"));
    assert!(rejected(replaced, Some(&[1.0, f32::INFINITY])).contains("expected a number, found `inf`"));
    assert!(rejected(MissingNumber::Error, None).contains("a value is missing"));
    assert!(rejected(MissingNumber::Error, Some(&[-1.0, 2.0])).contains("a value is missing"));
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
    let error = resolved(1, replaced).apply(&rows(texts), &strict()).unwrap_err().to_string();
    assert!(error.contains("record 100, column `x`: expected a number, found `a`"), "{error}");
    for (spec, why) in [
        (vector(0, replaced), "`size`"),
        (FeatureSpec { maximum: Some(2), ..vector(2, replaced) }, "`maximum`"),
    ] {
        let error =
            Transform::resolve(&[spec], &label(None), &[], &Analysis::default()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
