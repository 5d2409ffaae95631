//! Compares the columnar transform with a reference that processes one text value at a time.

use super::*;

/// A row of the reference: the texts of each column, without absent ones.
type Row = BTreeMap<&'static str, Vec<String>>;

/// The encoding of one feature of one row: a dense value, or ids before truncation.
enum Encoded {
    Dense(f32),
    Ids(Vec<u32>),
}

fn encode(spec: &FeatureSpec, row: &Row, analysis: &Analysis) -> Encoded {
    let texts = &row[spec.columns[0].as_str()];
    let ids = |missing: u32, id: &dyn Fn(&str) -> u32| {
        let present: Vec<u32> = texts.iter().map(|text| id(text)).collect();
        Encoded::Ids(if present.is_empty() && spec.maximum.is_none() { vec![missing] } else { present })
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
            Encoded::Dense(match normalize {
                Normalize::None => x,
                Normalize::Zscore => (x - statistics.plain.mean) / statistics.plain.deviation,
                Normalize::Minmax => (x - statistics.minimum) / (statistics.maximum - statistics.minimum),
                Normalize::Log1p => log1p,
                Normalize::Log1pZscore => {
                    (log1p - statistics.logarithm.mean) / statistics.logarithm.deviation
                }
            } as f32)
        }
        FeatureKind::Vector { .. } => unreachable!("vectors have tests of their own"),
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
            Encoded::Ids(if present.is_empty() && spec.maximum.is_none() { vec![*buckets] } else { present })
        }
    }
}

/// The reference transform.
fn reference(features: &[FeatureSpec], rows: &[Row], analysis: &Analysis) -> Transformed {
    let mut chunk = Chunk { labels: vec![Vec::new()], ..Chunk::default() };
    let mut truncated_rows = 0;
    for _ in features.iter().filter(|spec| spec.maximum.is_some()) {
        chunk.ragged.push(RaggedColumn { offsets: vec![0], values: vec![], weights: None });
    }
    for row in rows {
        chunk.labels[0].push(f32::from(row["y"][0] == "yes"));
        let mut ragged = chunk.ragged.iter_mut();
        for spec in features {
            match (encode(spec, row, analysis), spec.maximum) {
                (Encoded::Dense(value), _) => chunk.dense.push(value),
                (Encoded::Ids(ids), None) => chunk.ids.extend(ids),
                (Encoded::Ids(mut ids), Some(maximum)) => {
                    truncated_rows += u64::from(ids.len() > maximum as usize);
                    ids.truncate(maximum as usize);
                    let column = ragged.next().unwrap();
                    column.values.extend(ids);
                    column.offsets.push(column.values.len() as u32);
                }
            }
        }
    }
    Transformed { chunk, usable: None, truncated_rows }
}

/// A column with one value per row, in one of the types that can hold it.
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

/// A chunk of the columns that `transform` reads, in its order.
fn projected(transform: &Transform, columns: &BTreeMap<&str, ArrayRef>) -> RawChunk {
    let columns = transform.projection().columns.iter().map(|column| {
        let (name, array) = columns.get_key_value(column.name.as_str()).unwrap();
        (*name, array.clone())
    });
    raw(&columns.collect::<Vec<_>>())
}

fn number_text() -> impl Strategy<Value = String> {
    prop_oneof![
        (-9i64..12).prop_map(|v| v.to_string()),
        (-8i64..60).prop_map(|v| (v as f64 / 8.0).to_string())
    ]
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
    fn matches_the_reference(
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
        // Slice off leading rows, so that arrays and lists do not start at the beginning of their buffers.
        let from = from.min(rows.len());
        let whole = projected(&transform, &columns);
        let sliced = RawChunk::new("data/part-0".into(), whole.columns().slice(from, rows.len() - from), 100);
        let mut found = transform.apply(&sliced, &strict()).unwrap();
        let expected = reference(&features, &rows[from..], &analysis());
        // `ln_1p` and `ln` differ in the last bits.
        for (found, expected) in found.chunk.dense.iter_mut().zip(&expected.chunk.dense) {
            prop_assert!((*found - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{found} {expected}");
            *found = *expected;
        }
        prop_assert_eq!(found, expected);
    }
}
