//! Choices for columns of all kinds.

#![allow(clippy::unwrap_used)]

use super::*;

/// A column whose rows hold `values`.
fn column(name: &str, values: impl IntoIterator<Item = String>) -> SampledColumn {
    let mut column = SampledColumn {
        name: name.to_owned(),
        type_name: "text".to_owned(),
        kind: ValueKind::Texts,
        most_values: 1,
        ..SampledColumn::default()
    };
    for value in values {
        column.filled += 1;
        column.values += 1;
        if let Ok(number) = value.parse() {
            column.kind = if column.filled == 1 { ValueKind::Numbers } else { column.kind };
            column.numbers.push(number);
            column.number_count += 1;
        }
        *column.counts.entry(value).or_default() += 1;
    }
    column
}

fn texts(name: &str, value: impl Fn(usize) -> String) -> SampledColumn {
    column(name, (0..ROWS as usize).map(value))
}

const ROWS: u64 = 1000;

fn choose(columns: Vec<SampledColumn>, wishes: &Wishes<'_>) -> Result<Choice, Failure> {
    Choice::of(&Sample { rows: ROWS, is_whole: true, estimated_rows: ROWS, columns }, wishes)
}

const NONE: Wishes<'static> = Wishes { label: None, positive: None };

fn kinds(choice: &Choice) -> Vec<(&str, String)> {
    let kind = |feature: &Feature| match &feature.kind {
        Kind::Vector { size, .. } => format!("vector {size}"),
        Kind::Numeric { normalize, has_absent } => format!("{normalize} {has_absent}"),
        Kind::Bucketized(boundaries) => format!("bucketized {}", boundaries.len()),
        Kind::Vocabulary => "vocabulary".to_owned(),
        Kind::Hashed(buckets) => format!("hashed {buckets}"),
    };
    choice.features.iter().map(|feature| (feature.name.as_str(), kind(feature))).collect()
}

#[test]
fn kinds_follow_the_values() {
    let choice = choose(
        vec![
            texts("age", |row| (17 + row % 70).to_string()),
            texts("gain", |row| if row % 10 == 0 { (row * row).to_string() } else { "0".to_owned() }),
            texts("rooms", |row| (row % 5).to_string()),
            texts("user_id", |row| (row % 300 * 977).to_string()),
            texts("hash", |row| (5_000_000_000_u64 + row as u64 % 2).to_string()),
            texts("row", |row| row.to_string()),
            texts("job title", |row| if row % 9 == 0 { "?".to_owned() } else { format!("j{}", row % 20) }),
            texts("city", |row| format!("c{}", row % 400)),
            texts("comment", |row| format!("comment {row}")),
            texts("country", |_| "SE".to_owned()),
            texts("price", |row| format!("{},{:02}", row % 90, row % 100)),
            column("coupon", std::iter::repeat_n("WELCOME".to_owned(), 20)),
            texts("clicked", |row| (row % 2).to_string()),
        ],
        &NONE,
    )
    .unwrap();
    let found = kinds(&choice);
    let kind = |name: &str| found.iter().find(|(other, _)| *other == name).map(|(_, kind)| kind.as_str());
    assert_eq!(kind("age"), Some("zscore false"));
    assert!(kind("age_bucket").unwrap().starts_with("bucketized "), "{found:?}");
    assert_eq!(kind("gain"), Some("log1p_zscore false"));
    assert_eq!(kind("rooms"), Some("vocabulary"));
    assert_eq!((kind("user_id"), kind("hash")), (Some("vocabulary"), Some("vocabulary")));
    assert_eq!((kind("job_title"), kind("city")), (Some("vocabulary"), Some("vocabulary")));
    // Most rows lack it: whether a row has it is itself information.
    assert_eq!(kind("coupon"), Some("vocabulary"));
    let left_out: Vec<_> = choice.left_out.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(left_out, ["row", "comment", "country", "price"]);
    assert_eq!(choice.missing.iter().collect::<Vec<_>>(), ["?"]);
    assert_eq!(choice.label.column, "clicked");
    assert!(matches!(choice.label.task, Task::Binary(None)));
}

#[test]
fn many_values_are_hashed_into_several_times_as_many_buckets() {
    let many = |row: usize| format!("v{}", row % 600);
    let mut wide = column("wide", (0..4_000).map(|row| format!("v{}", row % 1_500)));
    wide.filled = ROWS;
    let choice = choose(vec![texts("few", many), wide, texts("label", |row| (row % 2).to_string())], &NONE);
    assert_eq!(
        kinds(&choice.unwrap()),
        [("few", "vocabulary".to_owned()), ("wide", "hashed 10000".to_owned())]
    );
}

#[test]
fn the_label_is_guessed_or_asked_for() {
    let feature = || texts("x", |row| format!("v{}", row % 7));
    let income = texts("income", |row| if row % 4 == 0 { ">50K".to_owned() } else { "<=50K".to_owned() });
    let label = |columns, wishes: &Wishes<'_>| choose(columns, wishes).map(|choice| choice.label);
    let found = label(vec![feature(), income], &NONE).unwrap();
    assert!(matches!(&found.task, Task::Binary(Some(positive)) if positive == ">50K"), "{}", found.why);
    let last = texts("z", |row| if row % 3 == 0 { "a".to_owned() } else { "b".to_owned() });
    let found = label(vec![feature(), last.clone()], &NONE).unwrap();
    assert!(
        matches!(&found.task, Task::Binary(Some(positive)) if positive == "a"),
        "the rarer: {}",
        found.why
    );
    let other = texts("w", |row| (row % 2).to_string());
    let ambiguous = label(vec![last.clone(), other.clone(), feature()], &NONE).err().unwrap().to_string();
    assert!(ambiguous.contains("--label") && ambiguous.contains("`z`, `w`"), "{ambiguous}");
    let given = Wishes { label: Some("w"), positive: None };
    assert_eq!(label(vec![last.clone(), other, feature()], &given).unwrap().column, "w");
    let unknown = Wishes { label: Some("v"), positive: None };
    assert!(label(vec![last, feature()], &unknown).err().unwrap().to_string().contains("no column `v`"));
    let price = texts("rating", |row| (row % 50).to_string());
    assert!(matches!(label(vec![feature(), price], &NONE).unwrap().task, Task::Number));
    let classes = texts("class", |row| format!("c{}", row % 3));
    let found = label(vec![feature(), classes], &NONE).unwrap();
    assert!(matches!(&found.task, Task::Classes(classes) if classes == &["c0", "c1", "c2"]));
}

#[test]
fn marks_of_missing_values_are_found() {
    let country = texts("country", |row| ["NA", "SE", "NO"][row % 3].to_owned());
    let status = texts("status", |row| ["N/A", "open", "closed"][row % 3].to_owned());
    let mut x = texts("x", |row| row.to_string());
    x.counts.insert("inf".to_owned(), 1);
    x.values += 1;
    let label = texts("label", |row| (row % 2).to_string());
    let choice = choose(vec![country, status, x, label], &NONE).unwrap();
    assert_eq!(choice.missing.iter().collect::<Vec<_>>(), ["N/A", "inf"]);
}

#[test]
fn ids_that_repeat_are_features() {
    let movie = texts("movieId", |row| (row % 990).to_string());
    let row = texts("row_id", |row| format!("r{row}"));
    let label = texts("label", |row| (row % 2).to_string());
    let choice = choose(vec![movie, row, label], &NONE).unwrap();
    assert_eq!(kinds(&choice), [("movieId", "vocabulary".to_owned())]);
}

#[test]
fn seconds_since_1970_are_no_feature() {
    let seconds = |name: &str| texts(name, |row| (1_790_000_000 + 977 * row).to_string());
    let milliseconds = texts("ts", |row| (1_790_000_000_123_u64 + row as u64 % 2 * 40).to_string());
    let label = texts("label", |row| (row % 2).to_string());
    let x = texts("x", |row| format!("v{}", row % 7));
    let choice = choose(vec![seconds("seen"), milliseconds, seconds("user_id"), x, label], &NONE).unwrap();
    assert_eq!(kinds(&choice), [("x", "vocabulary".to_owned())]);
    let [seen, ts, user] = &choice.left_out[..] else { panic!("{:?}", choice.left_out) };
    let wanted =
        "seconds since 1970, 2026-09-21 to 2026-10-02; write the hour or weekday into a column to use it";
    assert_eq!((seen.0.as_str(), seen.1.as_str()), ("seen", wanted));
    assert!(ts.1.starts_with("milliseconds since 1970"), "{}", ts.1);
    assert!(user.1.starts_with("identifies rows"), "an id by its name: {}", user.1);
}

#[test]
fn the_weight_of_rows_is_no_feature() {
    let weight = |name: &str| texts(name, |row| format!("{}.5", row % 40));
    let whole = |name: &str| texts(name, |row| (40 + row % 80).to_string());
    let with_zeros = texts("weight", |row| format!("{}", (row % 40) as f64 / 2.0));
    let mut with_absent = weight("weight");
    with_absent.filled -= 1;
    let x = || texts("x", |row| format!("v{}", row % 7));
    let label = || texts("label", |row| (row % 2).to_string());
    for column in [weight("weight"), weight("Sample_Weight"), whole("example_weight")] {
        let name = column.name.clone();
        let choice = choose(vec![column, x(), label()], &NONE).unwrap();
        assert_eq!(choice.weight, Some(name.clone()));
        assert_eq!(kinds(&choice), [("x", "vocabulary".to_owned())], "{name}");
        assert!(choice.left_out[0].1.contains("[label]"), "{}", choice.left_out[0].1);
    }
    for column in [whole("weight"), weight("weight_kg"), with_zeros, with_absent] {
        let choice = choose(vec![column, x(), label()], &NONE).unwrap();
        assert!(choice.weight.is_none() && choice.features.len() > 1, "{:?}", choice.left_out);
    }
    let wanted = Wishes { label: Some("weight"), positive: None };
    assert_eq!(choose(vec![weight("weight"), x(), label()], &wanted).unwrap().weight, None);
    let both = choose(vec![weight("weight"), weight("sample_weight"), x(), label()], &NONE).unwrap();
    assert_eq!(both.weight.as_deref(), Some("sample_weight"));
}

#[test]
fn names_are_unique_and_plain() {
    let plain = |name: &str| texts(name, |row| format!("v{}", row % 7));
    let label = texts("label", |row| (row % 2).to_string());
    let choice = choose(vec![plain("a b"), plain("a.b"), plain("\u{e9}"), label], &NONE).unwrap();
    let names: Vec<_> = choice.features.iter().map(|feature| feature.name.as_str()).collect();
    assert_eq!(names, ["a_b", "a_b_2", "\u{e9}"]);
    assert_eq!(choice.features[1].column, "a.b");
}

#[test]
fn numbers_are_rounded_for_people() {
    assert_eq!([round_up(1), round_up(3), round_up(1_001), round_up(5_000)], [1, 5, 2_000, 5_000]);
    assert_eq!([short(12_345.678), short(0.5), short(1e9), short(-3.0)], ["12350", "0.5", "1e9", "-3"]);
    let numbers: Vec<f64> = (0..1200).map(f64::from).collect();
    assert_eq!(quantiles(&numbers).len(), INTERVALS - 1);
    assert!(quantiles(&[1.0, 1.0, 1.0]).is_empty());
    let mostly_zero: Vec<f64> = (0..1200).map(|number| f64::from((number - 1000).max(0))).collect();
    let boundaries = quantiles(&mostly_zero);
    assert_eq!((boundaries[0], boundaries.len()), (1.0, INTERVALS));
}

#[test]
fn lists_of_numbers_of_one_length_are_vectors() {
    let vector = |name: &str, of_last: usize| {
        let mut column = texts(name, |row| format!("{}.5", row % 7));
        column.most_values = 4;
        (column.values, column.filled) = (4 * (ROWS - 2) + of_last as u64, ROWS - 1);
        column
    };
    let label = || texts("clicked", |row| (row % 2).to_string());
    let choice = choose(vec![label(), vector("image", 4)], &NONE).unwrap();
    let [image] = &choice.features[..] else { panic!("{:?}", choice.features.len()) };
    assert!(matches!(image.kind, Kind::Vector { size: 4, has_absent: true }) && image.maximum.is_none());
    assert_eq!(image.why, "4 numbers per row, absent in some");
    let uneven =
        choose(vec![label(), vector("image", 3), texts("a", |row| format!("v{}", row % 9))], &NONE).unwrap();
    assert!(uneven.features.iter().all(|feature| feature.name != "image"));
}
