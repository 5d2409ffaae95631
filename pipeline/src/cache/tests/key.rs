//! Cache keys.

use super::super::Specification;
use crate::analysis::Analysis;
use crate::spec::{
    CacheSpec, DataSpec, FeatureKind, FeatureSpec, LabelColumn, LabelNumbers, LabelSpec, OnBadRecord,
    Purpose, Terms, ValidationSpec,
};

fn feature(kind: FeatureKind) -> FeatureSpec {
    FeatureSpec { name: "f".into(), columns: vec!["c".into()], kind, maximum: None, weights: None }
}

#[test]
fn specifications_change_exactly_with_what_affects_rows() {
    let vocabulary =
        FeatureKind::Vocabulary { terms: Terms::Learned { max_terms: 9, min_count: 1 }, oov_buckets: 1 };
    let features = [feature(vocabulary.clone())];
    let label = LabelSpec::of("l", None);
    let data = DataSpec {
        base: "/data".into(),
        train: vec!["a".into()],
        batch_size: 16,
        epochs: 2,
        shuffle_rows: 60,
        lanes: 4,
        ..DataSpec::default()
    };
    let learned = |terms: &str| -> Analysis {
        let vocabulary = format!(r#"{{"values":9,"missing":0,"distinct":2,"undercount":0,"terms":{terms}}}"#);
        let json = format!(r#"{{"rows":9,"label":null,"numbers":{{}},"vocabularies":{{"f":{vocabulary}}}}}"#);
        Analysis::from_json(&json).unwrap()
    };
    let analysis = learned(r#"[["a",5],["b",4]]"#);
    let plain = Specification::of(&features, &label, (&data, Purpose::Training), &analysis);

    let elsewhere = DataSpec {
        base: "/elsewhere".into(),
        train: vec!["b".into()],
        epochs: 7,
        on_bad_record: OnBadRecord::Skip { limit: 1 },
        cache: Some(CacheSpec { directory: "/cache".into(), max_bytes: 1 }),
        ..data.clone()
    };
    assert_eq!(Specification::of(&features, &label, (&elsewhere, Purpose::Training), &analysis), plain);
    let counts = learned(r#"[["a",50],["b",40]]"#);
    assert_eq!(Specification::of(&features, &label, (&data, Purpose::Training), &counts), plain);

    // The rows of both purposes are the same unless the job divides them.
    let of = |data: &DataSpec, purpose| Specification::of(&features, &label, (data, purpose), &analysis);
    assert_eq!(of(&data, Purpose::Evaluation), plain);
    let validation = ValidationSpec { fraction: 0.1, column: None, seed: 0 };
    let divided = DataSpec { validation: Some(validation), ..data.clone() };
    assert_ne!(of(&divided, Purpose::Training), plain);
    assert_ne!(of(&divided, Purpose::Training), of(&divided, Purpose::Evaluation));
    assert_eq!(of(&divided, Purpose::Scoring), plain);

    let missing = DataSpec { missing: vec!["?".into()], ..data.clone() };
    let other_label = LabelSpec::of("l", Some("yes"));
    let of_numbers = LabelColumn { numbers: LabelNumbers::Any, ..label.first.clone() };
    let two_labels = LabelSpec { others: vec![of_numbers.clone()], ..label.clone() };
    let of_numbers = LabelSpec { first: of_numbers, ..label.clone() };
    let classes = |of: [&str; 2]| LabelSpec {
        first: LabelColumn { classes: of.map(str::to_owned).to_vec(), ..label.first.clone() },
        ..label.clone()
    };
    let (of_classes, turned) = (classes(["a", "b"]), classes(["b", "a"]));
    let other_feature = [FeatureSpec { maximum: Some(3), ..feature(vocabulary.clone()) }];
    let weighted = [FeatureSpec { weights: Some("w".into()), ..other_feature[0].clone() }];
    let two = [feature(vocabulary), feature(FeatureKind::Hashed { buckets: 3 })];
    let changed = [
        Specification::of(&features, &label, (&missing, Purpose::Training), &analysis),
        Specification::of(&features, &other_label, (&data, Purpose::Training), &analysis),
        Specification::of(&features, &two_labels, (&data, Purpose::Training), &analysis),
        Specification::of(&features, &of_numbers, (&data, Purpose::Training), &analysis),
        Specification::of(&features, &of_classes, (&data, Purpose::Training), &analysis),
        Specification::of(&features, &turned, (&data, Purpose::Training), &analysis),
        Specification::of(&other_feature, &label, (&data, Purpose::Training), &analysis),
        Specification::of(&weighted, &label, (&data, Purpose::Training), &analysis),
        Specification::of(&two, &label, (&data, Purpose::Training), &analysis),
        Specification::of(&features, &label, (&data, Purpose::Training), &learned(r#"[["b",5],["a",4]]"#)),
        Specification::of(&features, &label, (&data, Purpose::Training), &learned(r#"[["ab",5]]"#)),
        Specification::of(&features, &label, (&data, Purpose::Training), &Analysis::default()),
    ];
    for (number, one) in changed.iter().enumerate() {
        assert!(*one != plain && !changed[..number].contains(one), "change {number}");
    }
}
