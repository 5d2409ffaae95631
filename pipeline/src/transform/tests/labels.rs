//! Labels, weights, and data without them.

use super::*;

#[test]
fn bad_labels_and_weights_are_reported_with_an_address() {
    let spec = LabelSpec { weight: Some("w".into()), ..LabelSpec::of("y", None) };
    let transform = Transform::resolve(&[], &spec, &[], &Analysis::default()).unwrap();
    let good: ArrayRef = Arc::new(Float64Array::from(vec![0.0, 1.0]));
    let bad: ArrayRef = Arc::new(Float64Array::from(vec![0.0, 1.5]));
    let negative: ArrayRef = Arc::new(Float64Array::from(vec![2.0, -1.0]));
    let (error, rest) = apply_with_bad_record(&transform, &raw(&[("y", bad), ("w", good.clone())]));
    assert_eq!(error, "data/part-0: record 101, column `y`: expected a label from 0 to 1, found `1.5`");
    assert_eq!((rest.labels, rest.weights), (vec![vec![0.0]], Some(vec![0.0])));
    let (error, rest) = apply_with_bad_record(&transform, &raw(&[("y", good), ("w", negative)]));
    assert_eq!(
        error,
        "data/part-0: record 101, column `w`: expected a finite weight of at least 0, found `-1`"
    );
    assert_eq!(rest.weights, Some(vec![2.0]));
}

#[test]
fn the_positive_label_is_compared_by_value_not_by_text() {
    let labels = |positive: &str, column: ArrayRef| {
        let transform = Transform::resolve(&[], &label(Some(positive)), &[], &Analysis::default()).unwrap();
        transform.apply(&raw(&[("y", column)]), &strict()).unwrap().chunk.labels.remove(0)
    };
    assert_eq!(labels("1", Arc::new(Int64Array::from(vec![0, 1, 2]))), [0.0, 1.0, 0.0]);
    assert_eq!(labels("1.0", Arc::new(Int64Array::from(vec![0, 1]))), [0.0, 1.0]);
    assert_eq!(labels("0.1", Arc::new(Float32Array::from(vec![0.1, 1.0]))), [1.0, 0.0]);
    assert_eq!(labels("true", Arc::new(BooleanArray::from(vec![true, false]))), [1.0, 0.0]);
    assert_eq!(labels("1", Arc::new(BooleanArray::from(vec![true, false]))), [1.0, 0.0]);
    assert_eq!(labels(">50K", Arc::new(StringArray::from(vec![">50K", ">50K."]))), [1.0, 0.0]);
}

#[test]
fn without_labels_only_feature_columns_are_read() {
    let spec = LabelSpec { weight: Some("x".into()), ..LabelSpec::of("y", None) };
    let features = [feature("f", &["x"], FeatureKind::Hashed { buckets: 5 }, None)];
    let transform = Transform::resolve(&features, &spec, &[], &Analysis::default()).unwrap();
    let schema = transform.schema(8, 8);
    let transform = transform.without_label();
    assert_eq!(transform.schema(8, 8), schema);
    assert_eq!(transform.projection().columns.len(), 1);
    let chunk =
        transform.apply(&raw(&[("x", Arc::new(Int64Array::from(vec![1, 2])))]), &strict()).unwrap().chunk;
    assert_eq!((chunk.labels, chunk.weights), (vec![vec![0.0; 2]], Some(vec![1.0; 2])));
}

#[test]
fn several_labels_are_each_decoded_by_their_own_rule() {
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
    assert_eq!(chunk.labels, [[0.0, 1.0], [-7.5, 1e6], [0.25, 1.0]]);
    assert_eq!(chunk.weights, Some(vec![2.0, 3.0]));
    let (error, rest) = apply_with_bad_record(&transform, &columns(floats([1.0, f64::INFINITY])));
    assert_eq!(error, "data/part-0: record 101, column `p`: expected a finite number, found `inf`");
    assert_eq!(rest.labels, [[0.0], [1.0], [0.25]]);
    let unlabelled = transform.without_label();
    assert_eq!(unlabelled.schema(8, 8).labels.len(), 3);
    assert!(unlabelled.projection().columns.is_empty());
}

#[test]
fn a_label_of_counts_refuses_a_negative_number() {
    let first =
        LabelColumn { column: "n".into(), numbers: LabelNumbers::NotNegative, ..LabelColumn::default() };
    let spec = LabelSpec { first, ..LabelSpec::of("n", None) };
    let transform = Transform::resolve(&[], &spec, &[], &Analysis::default()).unwrap();
    let column = |values: [f64; 2]| raw(&[("n", Arc::new(Float64Array::from(values.to_vec())) as ArrayRef)]);
    let chunk = transform.apply(&column([0.0, 12.5]), &strict()).unwrap().chunk;
    assert_eq!(chunk.labels, [[0.0, 12.5]]);
    let (error, _) = apply_with_bad_record(&transform, &column([3.0, -1.0]));
    let expected = "data/part-0: record 101, column `n`: expected a finite number of at least 0, found `-1`";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn a_class_label_is_the_number_of_its_class() {
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
        transform.apply(&raw(&[("y", column)]), &strict()).unwrap().chunk.labels.remove(0)
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
        (
            texts([Some("green"), None, Some("red")]),
            "record 101, column `y`: a value is missing, and labels and weights have no default; leave such rows out with a \
             `filter` in [data] (`is_not_null`), or with `on_bad_record = \"skip\"`",
        ),
    ] {
        let (error, rest) = apply_with_bad_record(&named, &raw(&[("y", column)]));
        assert_eq!(error, format!("data/part-0: {found}"));
        assert_eq!(rest.labels, [[1.0, 0.0]]);
    }
    // Numbers are compared by value, not by text.
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
    let unmatched = transform(&["2.5", "3", "nan"]);
    let (error, rest) = apply_with_bad_record(&unmatched, &raw(&[("y", floats)]));
    assert_eq!(
        (error.as_str(), rest.labels[0].as_slice()),
        (
            "data/part-0: record 101, column `y`: expected one of the label's classes, found `NaN`; if it means missing, add \"NaN\" to `missing` in [data], and set `missing` in a numeric feature",
            [0.0, 1.0].as_slice()
        )
    );
}
