//! Features and filters.

use millstream_pipeline::spec::Purpose;
use millstream_trainer::spec::LossSpec;

use super::*;

#[test]
fn a_feature_that_groups_rows_is_kept() {
    let set = ["evaluation.group=user", "features.user.kind=identity", "features.user.buckets=9"];
    let (job, warnings) = parse(SOUND, &set).unwrap();
    assert_eq!(warnings, []);
    assert_eq!(job.evaluation.group.map(|group| group.feature).as_deref(), Some("user"));
    assert_eq!(job.features.iter().filter(|feature| feature.name == "user").count(), 1);
    let (plain, warnings) = parse(SOUND, &set[1..]).unwrap();
    assert_eq!((plain.evaluation.group, warnings.len()), (None, 1), "the feature is unused without a group");
    assert!(plain.features.iter().all(|feature| feature.name != "user"));
}

#[test]
fn values_may_have_weights() {
    let several = ["features.both.multi=true", "features.both.maximum=9", "features.job.multi=true"];
    let set = [&several[..], &["features.job.maximum=5", "features.job.weights=shares"]].concat();
    let parsed = |set: &[&str]| {
        let job = job(SOUND, set);
        let feature = job.features.iter().find(|feature| feature.name == "job").unwrap().clone();
        (feature, job.fingerprint())
    };
    let (with, fingerprint) = parsed(&set);
    assert_eq!(with.weights.as_deref(), Some("shares"));
    let (without, other) = parsed(&set[..4]);
    assert_eq!(without.weights, None);
    assert_ne!(fingerprint, other, "another job");
    // A job's fingerprint and a cache's keys depend on this JSON, so that of features without weights must not change.
    let json = serde_json::json!({
        "name": "job", "columns": ["occupation"], "kind": { "hashed": { "buckets": 1000 } }, "maximum": 5
    });
    assert_eq!(serde_json::to_value(&without).unwrap(), json);
    assert_eq!(serde_json::from_value::<FeatureSpec>(json).unwrap(), without);
}

#[test]
fn unused_features_are_removed_with_a_warning() {
    let text = SOUND.replace("wide.features = [\"education\", \"both\",", "wide.features = [\"both\",");
    let (job, warnings) = parse(&text, &[]).unwrap();
    assert_eq!(warnings, [], "a cross reads `education`");
    assert!(job.features.iter().all(|feature| feature.name != "education"));

    let (job, warnings) = parse(&SOUND.replace(", \"both\"", ""), &[]).unwrap();
    let messages: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(messages, ["job.toml:17:1: warning: feature `both` is not used by the model and is ignored"]);
    assert_eq!(job.features.len(), 4);

    let (_, warnings) = parse(&SOUND.replace("eval = [\"test.parquet\"]", ""), &[]).unwrap();
    assert!(warnings[0].to_string().starts_with("job.toml:4:1: warning: no `eval` in [data]"));
}

#[test]
fn terms_files_are_checked() {
    let text = SOUND.replace("kind = \"vocabulary\"", "kind = \"vocabulary\", file = \"terms.txt\"");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("job.toml");
    let error = |content: Option<&str>| {
        if let Some(content) = content {
            std::fs::write(directory.path().join("terms.txt"), content).unwrap();
        }
        let error = Job::parse(&text, &path, &[]).unwrap_err().to_string();
        error.replace(directory.path().to_str().unwrap(), "DIR")
    };
    assert_eq!(
        error(None),
        "DIR/job.toml:15:43: error: cannot read the terms in DIR/terms.txt: No such file or directory (os error 2)"
    );
    assert_eq!(error(Some("")), "DIR/job.toml:15:43: error: DIR/terms.txt has no terms");
    assert_eq!(
        error(Some("a\nb\na\n")),
        "DIR/job.toml:15:43: error: DIR/terms.txt:3: the term \"a\" is listed twice"
    );
    for endless in ["/dev/zero", "."] {
        let text = text.replace("terms.txt", endless);
        let error = Job::parse(&text, &path, &[]).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }
}

#[test]
fn a_filter_is_a_list_of_conditions() {
    use millstream_format::filter::{Comparison, Condition, Literal, Test};
    let set = |filter: &str| format!("data.filter={filter}");
    let text = "[{ column = \"day\", op = \">=\", value = \"2026-11-01\" }, \
                { column = \"country\", op = \"in\", value = [\"SE\", \"NO\"] }, \
                { column = \"price\", op = \"!=\", value = 0.5 }, { column = \"id\", op = \"is_not_null\" }]";
    let condition = |column: &str, test| Condition { column: column.to_owned(), test };
    let word = |word: &str| Literal::Text(word.to_owned());
    let expected = [
        condition("day", Test::Compare { op: Comparison::GreaterOrEqual, value: word("2026-11-01") }),
        condition("country", Test::OneOf { values: vec![word("SE"), word("NO")] }),
        condition("price", Test::Compare { op: Comparison::NotEqual, value: Literal::Number(0.5) }),
        condition("id", Test::IsNotNull),
    ];
    let written = job(SOUND, &[&set(text)]);
    assert_eq!(written.data.filter, expected);
    let (again, _) = Job::parse(&written.text, Path::new("job.toml"), &[]).unwrap();
    assert_eq!(again.data.filter, expected);

    let wrong = [
        ("[{ column = \"a\", op = \"=\", value = 1 }]", "expected \"==\", \"!=\""),
        ("[{ column = \"a\", op = \"<\" }]", "needs `value`"),
        ("[{ column = \"a\", op = \"in\", value = [] }]", "empty list"),
        ("[{ column = \"a\", op = \"is_null\", value = 1 }]", "is not used by this `op`"),
        ("[{ colum = \"a\", op = \"is_null\" }]", "unknown key `colum`"),
        ("\"a < 7\"", "a list of conditions"),
    ];
    let sides = job(SOUND, &["data.train_filter=[{ column = \"id\", op = \"is_null\" }]", &set(text)]);
    let rows = |purpose| sides.data.rows(purpose).conditions;
    assert_eq!(rows(Purpose::Training)[..4], expected);
    assert_eq!(rows(Purpose::Training)[4..], [condition("id", Test::IsNull)]);
    assert_eq!((rows(Purpose::Evaluation), rows(Purpose::Scoring)), (expected.to_vec(), expected.to_vec()));
    assert_eq!(sides.keys_of("id"), ["`data.filter`", "`data.train_filter`"]);
    for (filter, expected) in wrong {
        let error = parse(SOUND, &[&set(filter)]).unwrap_err().to_string();
        assert!(error.contains(expected), "{filter}: {error}");
    }
}

#[test]
fn a_numeric_feature_defines_its_missing_value() {
    let missing = |value: &str| {
        let set = format!("features.age.missing={value}");
        match job(SOUND, &[&set]).features[0].kind {
            FeatureKind::Numeric { normalize, missing } => {
                assert_eq!(normalize, Normalize::Zscore);
                missing
            }
            ref other => panic!("{other:?}"),
        }
    };
    assert_eq!(missing("error"), MissingNumber::Error);
    assert_eq!(missing("mean"), MissingNumber::Mean);
    assert_eq!(missing("-1"), MissingNumber::Value(-1.0));
}

#[test]
fn a_cross_uses_the_intervals_of_a_bucketized_feature() {
    let kind = |columns: &str| {
        let job = job(&SOUND.replace("[\"education\", \"job\", \"sex\"]", columns), &[]);
        let cross = job.features.into_iter().find(|spec| matches!(spec.kind, FeatureKind::Crossed { .. }));
        let FeatureSpec { kind: FeatureKind::Crossed { boundaries, .. }, columns, .. } = cross.unwrap()
        else {
            unreachable!("only crosses were selected");
        };
        (columns, boundaries)
    };
    assert_eq!(kind("[\"education\", \"sex\"]"), (vec!["education".into(), "sex".into()], vec![]));
    let intervals = vec![vec![], vec![18.0, 25.5]];
    assert_eq!(kind("[\"sex\", \"age_bucket\"]"), (vec!["sex".into(), "age".into()], intervals));
}

#[test]
fn an_identity_feature_defines_the_ids_of_other_numbers() {
    let kind = |more: &str| {
        let text = SOUND.replace("kind = \"vocabulary\"", &format!("kind = \"identity\", buckets = 9{more}"));
        job(&text, &[])
            .features
            .into_iter()
            .map(|spec| spec.kind)
            .find(|kind| matches!(kind, FeatureKind::Identity { .. }))
    };
    let identity = |out_of_range| Some(FeatureKind::Identity { buckets: 9, out_of_range });
    assert_eq!(kind(""), identity(OutOfRange::Error));
    assert_eq!(kind(", out_of_range = \"missing\""), identity(OutOfRange::Missing));
}

#[test]
fn a_share_of_the_training_data_may_be_held_out() {
    use millstream_format::filter::{Share, Side};
    let held_out = |validation: &str| {
        let set = ["data.eval=[]".to_owned(), format!("data.validation={validation}")];
        Job::parse(SOUND, Path::new("job.toml"), &set)
    };
    let (written, warnings) = held_out("{ fraction = 0.1, column = \"user\", seed = 3 }").unwrap();
    assert_eq!(warnings, []);
    let share = |side| [Share { held_out: 0.0..0.1, seed: 3, column: Some("user".to_owned()), side }];
    assert_eq!(written.data.rows(Purpose::Training).shares, share(Side::Rest));
    assert_eq!(written.data.rows(Purpose::Evaluation).shares, share(Side::HeldOut));
    assert_eq!(written.data.rows(Purpose::Scoring).shares, []);
    assert_eq!(written.keys_of("user"), ["`data.validation.column`"]);
    assert_eq!((written.data.has_eval(), written.data.eval_files()), (true, &written.data.train[..]));
    let (other, _) = held_out("{ fraction = 0.1 }").unwrap();
    assert_ne!(other.fingerprint(), written.fingerprint());
    assert_ne!(other.fingerprint(), job(SOUND, &["data.eval=[]"]).fingerprint());

    for (validation, expected) in [
        ("{}", "needs `fraction`: the fraction of rows to hold out, such as 0.1"),
        ("{ fraction = 1 }", "expected a number above 0 and below 1, found 1"),
        ("{ fraction = 0.0 }", "expected a number above 0 and below 1, found 0"),
        ("{ fraction = nan }", "expected a finite number"),
        ("{ fraction = 0.1, columm = \"a\" }", "unknown key `columm`"),
        ("0.1", "expected a table"),
    ] {
        let error = held_out(validation).unwrap_err().to_string();
        assert!(error.contains(expected), "{validation}: {error}");
    }
    let sampled = job(SOUND, &["data.negatives=0.25", "training.loss.negative_weight=0.5"]);
    let LossSpec::BinaryCrossEntropy { negative_weight, .. } = sampled.training.loss else { unreachable!() };
    assert_eq!((sampled.data.negatives, negative_weight), (Some(0.25), 2.0));
    let (again, _) = Job::parse(&sampled.text, Path::new("job.toml"), &[]).unwrap();
    assert_eq!(again.training, sampled.training, "they are weighted once");
    let error = parse(SOUND, &["data.negatives=1.5"]).unwrap_err().to_string();
    assert!(error.contains("expected a number above 0 and below 1, found 1.5"), "{error}");
    let error = parse(SOUND, &["data.validation={ fraction = 0.1 }"]).unwrap_err().to_string();
    assert!(error.contains("either `eval`, or the `validation` share"), "{error}");
}

#[test]
fn training_data_has_weights() {
    let set = |train: &str| format!("data.train={train}");
    let parse = |train: &str| parse(SOUND, &[&set(train)]).map(|(job, _)| job);
    let text = r#"["a", { files = "b", weight = 2.5 }, { weight = 1, files = ["c", "d"] }, { files = ["e", "f"], weight = 3 }]"#;
    let mixed = parse(text).unwrap();
    assert_eq!(mixed.data.train, ["a", "b", "c", "d", "e", "f"]);
    assert_eq!(mixed.data.train_weights, [1.0, 2.5, 1.0, 1.0, 3.0, 3.0]);
    assert!(mixed.data.is_mixed() && mixed.data.draws_rows());
    assert_eq!(mixed.data.weighted_files(), [("b", 2.5), ("e", 3.0), ("f", 3.0)].into());
    let (again, _) = Job::parse(&mixed.text, Path::new("job.toml"), &[]).unwrap();
    assert_eq!((&again.data, again.fingerprint()), (&mixed.data, mixed.fingerprint()));
    let in_tables = SOUND.replace("train = [\"train-*.parquet\"]\n", "").replace(
        "[label]",
        "[[data.train]]\nfiles = \"a\"\nweight = 0.5\n[[data.train]]\nfiles = [\"b\"]\nweight = 1\n[label]",
    );
    let in_tables = job(&in_tables, &[]);
    assert_eq!(
        (&in_tables.data.train[..], &in_tables.data.train_weights[..]),
        (&["a".to_owned(), "b".to_owned()][..], &[0.5, 1.0][..])
    );
    let (again, _) = Job::parse(&in_tables.text, Path::new("job.toml"), &[]).unwrap();
    assert_eq!(again.data, in_tables.data);

    // Weights of 1 are none.
    let (plain, ones) =
        (parse("[\"a\", \"b\"]").unwrap(), parse(r#"["a", { files = "b", weight = 1.0 }]"#).unwrap());
    assert_eq!((&ones.data, ones.fingerprint()), (&plain.data, plain.fingerprint()));
    let other = parse(r#"["a", { files = "b", weight = 0.5 }]"#).unwrap();
    assert_ne!(other.fingerprint(), plain.fingerprint());
    assert!(other.differences(&plain)[0].starts_with("`data.train` ("), "{:?}", other.differences(&plain));

    for (train, expected) in [
        ("[{ files = \"a\" }]", "an entry of `train` needs `weight`: how often each row occurs in an epoch"),
        ("[{ weight = 2 }]", "an entry of `train` needs `files`: paths or globs"),
        ("[{ files = \"a\", weight = 0 }]", "expected a number from 0.001 to 100, found 0"),
        ("[{ files = \"a\", weight = -1 }]", "expected a number from 0.001 to 100, found -1"),
        ("[{ files = \"a\", weight = 100.5 }]", "expected a number from 0.001 to 100, found 100.5"),
        ("[{ files = \"a\", weight = nan }]", "expected a finite number"),
        ("[{ files = \"a\", weight = \"2\" }]", "expected a number, found a string"),
        ("[{ files = [], weight = 2 }]", "`files` names no data"),
        ("[{ files = \"\", weight = 2 }]", "a path is empty"),
        (
            "[{ file = \"a\", weight = 2 }]",
            "unknown key `file` in an entry of `train`; did you mean `files`?",
        ),
        ("[7]", "expected a string, found a whole number"),
        ("{ files = \"a\", weight = 2 }", "expected a list of strings, found a table"),
        ("[]", "`train` names no data"),
    ] {
        let error = parse(train).unwrap_err().to_string();
        assert!(error.contains(expected), "{train}: {error}");
    }
}

#[test]
fn a_vector_has_a_size() {
    let set =
        |vector: &str| ["features.image=".to_owned() + vector, "model.deep.features=[\"image\"]".to_owned()];
    let parse = |vector: &str| Job::parse(SOUND, Path::new("job.toml"), &set(vector));
    let (written, _) = parse("{ kind = \"vector\", size = 4, missing = 0, column = \"pixels\" }").unwrap();
    let image = written.features.iter().find(|feature| feature.name == "image").unwrap();
    assert_eq!(image.kind, FeatureKind::Vector { size: 4, missing: MissingNumber::Value(0.0) });
    assert_eq!(image.columns, ["pixels"]);
    for (vector, expected) in [
        ("{ kind = \"vector\" }", "needs `size`: the number of values of each row"),
        ("{ kind = \"vector\", size = 0 }", "from 1 to 4096, found 0"),
        ("{ kind = \"vector\", size = 4, missing = \"mean\" }", "a vector has no mean"),
        ("{ kind = \"vector\", size = 4, normalize = \"zscore\" }", "unknown key `normalize`"),
        ("{ kind = \"vector\", size = 4, multi = true }", "unknown key `multi`"),
    ] {
        let error = parse(vector).unwrap_err().to_string();
        assert!(error.contains(expected), "{vector}: {error}");
    }
    let bracket = "features={ \"a[0]\" = { kind = \"numeric\" } }".to_owned();
    let error = Job::parse(SOUND, Path::new("job.toml"), &[bracket]).unwrap_err().to_string();
    assert!(error.contains("a vector's component"), "{error}");
}
