//! Compares the decoder with prost, the reference.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type};
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::ProjectedColumn;

mod order;

#[derive(Clone, PartialEq, prost::Message)]
struct Example {
    #[prost(message, optional, tag = "1")]
    features: Option<Features>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct Features {
    #[prost(map = "string, message", tag = "1")]
    feature: HashMap<String, Feature>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct Feature {
    #[prost(oneof = "Kind", tags = "1, 2, 3")]
    kind: Option<Kind>,
}
#[derive(Clone, PartialEq, prost::Oneof)]
enum Kind {
    #[prost(message, tag = "1")]
    Bytes(BytesList),
    #[prost(message, tag = "2")]
    Float(FloatList),
    #[prost(message, tag = "3")]
    Int(Int64List),
}
#[derive(Clone, PartialEq, prost::Message)]
struct BytesList {
    #[prost(bytes = "vec", repeated, tag = "1")]
    value: Vec<Vec<u8>>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct FloatList {
    #[prost(float, repeated, tag = "1")]
    value: Vec<f32>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct Int64List {
    #[prost(int64, repeated, tag = "1")]
    value: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SequenceExample {
    #[prost(message, optional, tag = "1")]
    context: Option<Features>,
    #[prost(message, optional, tag = "2")]
    feature_lists: Option<FeatureLists>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct FeatureLists {
    #[prost(map = "string, message", tag = "1")]
    feature_list: HashMap<String, FeatureList>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct FeatureList {
    #[prost(message, repeated, tag = "1")]
    feature: Vec<Feature>,
}

/// A feature's values in comparable form (floats as bits).
#[derive(Clone, Debug, PartialEq)]
enum Row {
    Bytes(Vec<Vec<u8>>),
    Float(Vec<u32>),
    Int(Vec<i64>),
}

impl Row {
    fn of(feature: &Feature) -> Option<Self> {
        Some(match feature.kind.as_ref()? {
            Kind::Bytes(list) => Self::Bytes(list.value.clone()),
            Kind::Float(list) => Self::Float(list.value.iter().map(|value| value.to_bits()).collect()),
            Kind::Int(list) => Self::Int(list.value.clone()),
        })
    }

    fn of_array(array: &ArrayRef) -> Self {
        match array.data_type() {
            DataType::Binary => {
                Self::Bytes(array.as_binary::<i32>().iter().map(|value| value.unwrap().to_vec()).collect())
            }
            DataType::Float32 => Self::Float(
                array.as_primitive::<Float32Type>().values().iter().map(|v| v.to_bits()).collect(),
            ),
            DataType::Int64 => Self::Int(array.as_primitive::<Int64Type>().values().to_vec()),
            other => panic!("{other}"),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Bytes(values) => values.len(),
            Self::Float(values) => values.len(),
            Self::Int(values) => values.len(),
        }
    }
}

/// The values of each row of a column; an empty list counts as absent.
fn rows_of(array: &ArrayRef) -> Vec<Option<Row>> {
    (0..array.len())
        .map(|row| match array.data_type() {
            DataType::Null => None,
            _ if array.is_null(row) => None,
            DataType::List(_) => Some(Row::of_array(&array.as_list::<i32>().value(row))),
            _ => Some(Row::of_array(&array.slice(row, 1))),
        })
        .map(|row| row.filter(|row| row.len() > 0))
        .collect()
}

const COLUMNS: [(&str, bool); 5] =
    [("a", false), ("bb", true), ("", true), ("long_name_of_a_column", false), ("é", true)];

fn projection() -> Projection {
    let column = |&(name, multi): &(&str, bool)| ProjectedColumn { name: name.to_owned(), multi };
    Projection { columns: COLUMNS.iter().map(column).collect(), ..Projection::default() }
}

/// The reference: decodes everything, then selects columns.
#[derive(Default)]
struct Reference {
    columns: [Vec<Option<Row>>; COLUMNS.len()],
    kinds: [Option<std::mem::Discriminant<Row>>; COLUMNS.len()],
}

impl Reference {
    /// Appends the record; returns whether it is valid as a row.
    fn push(&mut self, example: &Example) -> bool {
        let empty = HashMap::new();
        let features = example.features.as_ref().map_or(&empty, |features| &features.feature);
        let mut kinds = self.kinds;
        let mut row = Vec::new();
        for (column, (name, multi)) in COLUMNS.iter().enumerate() {
            let mut value = features.get(*name).and_then(Row::of);
            if let Some(present) = &value {
                let kind = std::mem::discriminant(present);
                if present.len() == 0 {
                    value = None;
                } else if *kinds[column].get_or_insert(kind) != kind || (!multi && present.len() > 1) {
                    return false;
                }
            }
            row.push(value);
        }
        for (column, value) in row.into_iter().enumerate() {
            if value.is_some() {
                self.kinds[column] = kinds[column];
            }
            self.columns[column].push(value);
        }
        true
    }
}

fn delimited(tag: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag << 3 | 2];
    prost::encoding::encode_varint(payload.len() as u64, &mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

/// Unknown fields, including a group.
fn unknown() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        10 => Just(vec![]),
        1 => Just(vec![9 << 3, 0x96, 0x01]),
        1 => Just([&[9 << 3 | 1][..], &[7; 8]].concat()),
        1 => Just(delimited(9, b"xyz")),
        1 => Just([&[9 << 3 | 5][..], &[7; 4]].concat()),
        1 => Just(vec![9 << 3 | 3, 8 << 3 | 3, 1 << 3, 5, 8 << 3 | 4, 9 << 3 | 4]),
    ]
}

fn ints() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![any::<i64>(), -3i64..300, Just(i64::MIN), Just(i64::MAX)];
    (vec((value, any::<bool>()), 0..4), unknown()).prop_map(|(values, unknown)| {
        let mut list = unknown;
        for (value, packed) in values {
            let mut number = Vec::new();
            prost::encoding::encode_varint(value as u64, &mut number);
            if packed {
                list.extend(delimited(1, &[number.clone(), number].concat()));
            } else {
                list.push(1 << 3);
                list.extend(number);
            }
        }
        list
    })
}

fn floats() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![any::<u32>(), Just(f32::NAN.to_bits()), Just(1.5f32.to_bits())];
    (vec((value, any::<bool>()), 0..4), unknown()).prop_map(|(values, unknown)| {
        let mut list = unknown;
        for (bits, packed) in values {
            if packed {
                list.extend(delimited(1, &[bits.to_le_bytes(), bits.to_le_bytes()].concat()));
            } else {
                list.push(1 << 3 | 5);
                list.extend(bits.to_le_bytes());
            }
        }
        list
    })
}

fn texts() -> impl Strategy<Value = Vec<u8>> {
    (vec(vec(any::<u8>(), 0..200), 0..3), unknown()).prop_map(|(values, unknown)| {
        values.iter().map(|value| delimited(1, value)).chain([unknown]).flatten().collect()
    })
}

/// A `Feature` in a regular or an irregular encoding.
fn feature() -> impl Strategy<Value = Vec<u8>> {
    let piece = || {
        prop_oneof![
            texts().prop_map(|list| delimited(1, &list)),
            floats().prop_map(|list| delimited(2, &list)),
            ints().prop_map(|list| delimited(3, &list)),
        ]
    };
    let usual = prop_oneof![
        any::<i64>().prop_map(|value| Kind::Int(Int64List { value: vec![value] })),
        any::<f32>().prop_map(|value| Kind::Float(FloatList { value: vec![value] })),
        vec(any::<u8>(), 0..20).prop_map(|value| Kind::Bytes(BytesList { value: vec![value] })),
    ];
    prop_oneof![
        2 => usual.prop_map(|kind| Feature { kind: Some(kind) }.encode_to_vec()),
        1 => (vec(piece(), 0..3), unknown())
            .prop_map(|(pieces, unknown)| pieces.into_iter().chain([unknown]).flatten().collect()),
    ]
}

fn entry() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![
        8 => (0..COLUMNS.len()).prop_map(|column| COLUMNS[column].0.to_owned()),
        2 => "[a-z]{0,3}",
    ];
    let values = prop_oneof![6 => vec(feature(), 1), 1 => vec(feature(), 0..4)];
    (name, values, unknown(), 0..8u8).prop_map(|(name, values, unknown, order)| {
        let key = delimited(1, name.as_bytes());
        let values: Vec<u8> = values.iter().flat_map(|value| delimited(2, value)).collect();
        match order {
            0 => [values, unknown, key].concat(),
            1 => [unknown, values].concat(),
            _ => [key, values, unknown].concat(),
        }
    })
}

fn record() -> impl Strategy<Value = Vec<u8>> {
    let features = || {
        (vec(entry(), 0..9), unknown()).prop_map(|(entries, unknown)| {
            entries.iter().map(|entry| delimited(1, entry)).chain([unknown]).flatten().collect::<Vec<u8>>()
        })
    };
    (prop_oneof![6 => vec(features(), 1), 1 => vec(features(), 0..3)], unknown()).prop_map(
        |(messages, unknown)| {
            messages.iter().map(|features| delimited(1, features)).chain([unknown]).flatten().collect()
        },
    )
}

proptest! {
    #[test]
    fn decoded_values_match_prost(records in vec(record(), 1..12), chunk in 1..8usize) {
        let mut ours = ExampleColumns::new(&projection());
        let mut reference = Reference::default();
        let mut found: [Vec<Option<Row>>; COLUMNS.len()] = Default::default();
        let mut take = |ours: &mut ExampleColumns| {
            let chunk = ours.finish();
            for (rows, array) in found.iter_mut().zip(chunk.columns()) {
                assert_eq!(array.len(), chunk.num_rows());
                rows.extend(rows_of(array));
            }
        };
        for (number, record) in records.iter().enumerate() {
            let example = Example::decode(&record[..]).expect("generated records are valid");
            let pushed = ours.push(record);
            prop_assert_eq!(pushed.is_ok(), reference.push(&example), "{:?} {:?}", pushed, example);
            if number % chunk == 0 {
                take(&mut ours);
            }
        }
        take(&mut ours);
        prop_assert_eq!(found, reference.columns);
    }

    #[test]
    fn encoded_records_decode_with_prost(records in vec(record(), 1..8)) {
        let mut columns = ExampleColumns::every();
        let read: Vec<&Vec<u8>> = records.iter().filter(|record| columns.push(record).is_ok()).collect();
        let chunk = columns.finish();
        let names: Vec<String> = (0..chunk.num_columns()).map(|column| columns.name(column).to_owned()).collect();
        let cells: Vec<_> = chunk.columns().iter().map(|column| crate::cells::Cells::of(column).unwrap()).collect();
        let values = |record: &[u8]| -> std::collections::BTreeMap<String, Row> {
            let features = Example::decode(record).unwrap().features.unwrap_or_default().feature;
            let rows = features.iter().filter_map(|(name, feature)| Some((name.clone(), Row::of(feature)?)));
            rows.filter(|(_, row)| row.len() > 0).collect()
        };
        let mut encoder = ExampleEncoder::default();
        for (row, record) in read.into_iter().enumerate() {
            let written = encoder.encode(&names, &cells, row).unwrap();
            prop_assert_eq!(values(written), values(record));
        }
    }

    #[test]
    fn damaged_records_never_panic_and_match_prost(
        record in record(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut record = record;
        for (at, byte) in changes {
            if !record.is_empty() {
                let at = at.index(record.len());
                record[at] = byte;
            }
        }
        for record in [&record[..], &record[..cut.index(record.len() + 1)]] {
            let mut ours = ExampleColumns::new(&projection());
            let pushed = ours.push(record);
            prop_assert_eq!(ours.rows(), usize::from(pushed.is_ok()));
            // prost ignores the wire type of map entries.
            let lenient = pushed == Err(Fault::Malformed("`feature` is not a message"));
            // For prost's `Example`, feature lists are an unknown field with arbitrary contents.
            let lists = SequenceExample::decode(record).map_or(true, |sequence| sequence.feature_lists.is_some());
            if let (Ok(example), false) = (Example::decode(record), lenient || lists) {
                let mut reference = Reference::default();
                prop_assert_eq!(pushed.is_ok(), reference.push(&example), "{:?} {:?}", pushed, example);
                let found: Vec<_> = ours.finish().columns().iter().map(rows_of).collect();
                prop_assert_eq!(&found[..], &reference.columns[..]);
            }
            let mut every = ExampleColumns::every();
            let _ = every.push(record);
            every.finish();
        }
    }
}

/// Mostly one value, sometimes none or several; often near the lengths at which the encoding changes.
fn kind_of(column: usize) -> impl Strategy<Value = Kind> {
    let ints = prop_oneof![any::<i64>(), (0u32..64).prop_map(|bits| (1u64 << bits) as i64), -2i64..2];
    let count = prop_oneof![12 => Just(1usize), 1 => Just(0), 1 => Just(3)];
    let texts = prop_oneof![4 => 0usize..40, 1 => 90usize..140];
    (ints, any::<f32>(), texts, count).prop_map(move |(int, float, length, count)| match column % 3 {
        0 => Kind::Int(Int64List { value: vec![int; count] }),
        1 => Kind::Float(FloatList { value: vec![float; count] }),
        _ => Kind::Bytes(BytesList { value: vec![vec![length as u8; length]; count] }),
    })
}

/// A modification that makes a record differ from the preceding ones.
#[derive(Clone, Debug)]
enum Change {
    None,
    Swap(prop::sample::Index),
    Twice(prop::sample::Index),
    Unpacked,
    New,
    Byte(prop::sample::Index, u8),
    Cut(prop::sample::Index),
}

fn change() -> impl Strategy<Value = Change> {
    use prop::sample::Index;
    prop_oneof![
        8 => Just(Change::None),
        1 => any::<Index>().prop_map(Change::Swap),
        1 => any::<Index>().prop_map(Change::Twice),
        1 => Just(Change::Unpacked),
        1 => Just(Change::New),
        2 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        1 => any::<Index>().prop_map(Change::Cut),
    ]
}

/// Records with the same features in the same order, like a writer's, with some modifications.
fn similar_records() -> impl Strategy<Value = (Projection, Vec<Vec<u8>>)> {
    let column = (prop_oneof![4 => 0usize..12, 1 => 12usize..60, 1 => 100usize..130], any::<bool>(), 0..5u8);
    vec(column, 1..12).prop_flat_map(|columns| {
        let names: Vec<String> = columns
            .iter()
            .enumerate()
            .map(|(at, &(length, ..))| format!("{}{at}", "n".repeat(length)))
            .collect();
        let wanted = columns.iter().zip(&names).filter(|((.., wanted), _)| *wanted > 0);
        let projection = Projection {
            columns: wanted
                .map(|(&(_, multi, _), name)| ProjectedColumn { name: name.clone(), multi })
                .collect(),
            ..Projection::default()
        };
        let values: Vec<_> =
            (0..names.len()).map(|column| prop::option::weighted(0.9, kind_of(column))).collect();
        let record = (values, change()).prop_map(move |(values, change)| {
            let entries =
                names.iter().zip(values).filter_map(|(name, kind)| Some(entry_of(name, kind?, &change)));
            changed(entries.collect(), &change)
        });
        (Just(projection), vec(record, 1..40))
    })
}

fn entry_of(name: &str, kind: Kind, change: &Change) -> Vec<u8> {
    let feature = match (&kind, change) {
        (Kind::Int(list), Change::Unpacked) => {
            let mut bytes = Vec::new();
            for &value in &list.value {
                bytes.push(1 << 3);
                prost::encoding::encode_varint(value as u64, &mut bytes);
            }
            delimited(3, &bytes)
        }
        (Kind::Float(list), Change::Unpacked) => {
            let values =
                list.value.iter().flat_map(|value| [&[1 << 3 | 5][..], &value.to_le_bytes()].concat());
            delimited(2, &values.collect::<Vec<u8>>())
        }
        _ => Feature { kind: Some(kind) }.encode_to_vec(),
    };
    delimited(1, &[delimited(1, name.as_bytes()), delimited(2, &feature)].concat())
}

fn changed(mut entries: Vec<Vec<u8>>, change: &Change) -> Vec<u8> {
    match change {
        Change::Swap(at) if entries.len() > 1 => {
            let at = at.index(entries.len() - 1);
            entries.swap(at, at + 1);
        }
        Change::Twice(at) if !entries.is_empty() => entries.push(entries[at.index(entries.len())].clone()),
        Change::New => entries.insert(entries.len() / 2, entry_of("new", int(&[7]), change)),
        _ => {}
    }
    let mut record = delimited(1, &entries.concat());
    match change {
        Change::Byte(at, byte) => {
            let at = at.index(record.len());
            record[at] = *byte;
        }
        Change::Cut(at) => record.truncate(at.index(record.len())),
        _ => {}
    }
    record
}

proptest! {
    #[test]
    fn fast_path_matches_general_path((projection, records) in similar_records(), chunk in 1usize..20, every in any::<bool>()) {
        let new = || if every { ExampleColumns::every() } else { ExampleColumns::new(&projection) };
        let (mut fast, mut general) = (new(), new());
        for (number, record) in records.iter().enumerate() {
            prop_assert_eq!(fast.push(record), general.push_general(record), "record {}", number);
            if number % chunk == 0 {
                prop_assert_eq!(fast.finish(), general.finish());
            }
        }
        prop_assert_eq!(fast.finish(), general.finish());
    }

    #[test]
    fn sequence_examples_match_prost(records in vec((record(), lists()), 1..8)) {
        let mut ours = ExampleColumns::every();
        for (context, lists) in records {
            let record = [context, delimited(2, &lists)].concat();
            let Ok(decoded) = SequenceExample::decode(&record[..]) else { panic!("generated records are valid") };
            let names = |columns: &ExampleColumns| (0..columns.columns.len()).map(|at| columns.name(at).to_owned()).collect::<Vec<_>>();
            match (ours.push(&record), sequence_row(&decoded)) {
                (Ok(()), Some(row)) => {
                    let chunk = ours.finish();
                    let found: std::collections::BTreeMap<_, _> = names(&ours)
                        .into_iter()
                        .zip(chunk.columns())
                        .filter_map(|(name, array)| Some((name, rows_of(array).pop()??)))
                        .collect();
                    prop_assert_eq!(found, row);
                }
                // Kinds fixed by earlier records, names in context and lists, steps of several kinds.
                (Err(Fault::Column { .. }), _) => {}
                (outcome, row) => prop_assert!(false, "{:?} {:?}", outcome, row),
            }
        }
    }
}

/// The entries of a `FeatureLists`.
fn lists() -> impl Strategy<Value = Vec<u8>> {
    let steps = (0..3usize, 0usize..6).prop_flat_map(|(kind, count)| vec(kind_of(kind), count));
    let list = ("s[a-d]", steps, unknown()).prop_map(|(name, steps, unknown)| {
        let steps = steps.into_iter().map(|kind| delimited(1, &Feature { kind: Some(kind) }.encode_to_vec()));
        let list = [steps.collect::<Vec<_>>().concat(), unknown].concat();
        delimited(1, &[delimited(1, name.as_bytes()), delimited(2, &list)].concat())
    });
    vec(list, 0..5).prop_map(|lists| lists.concat())
}

/// All features of a record with values; `None` if it is not valid as a row.
fn sequence_row(record: &SequenceExample) -> Option<std::collections::BTreeMap<String, Row>> {
    let mut row = std::collections::BTreeMap::new();
    for (name, feature) in record.context.iter().flat_map(|context| &context.feature) {
        row.extend(Row::of(feature).map(|values| (name.clone(), values)));
    }
    for (name, list) in record.feature_lists.iter().flat_map(|lists| &lists.feature_list) {
        let mut all: Option<Row> = None;
        for step in list.feature.iter().filter_map(Row::of).filter(|step| step.len() > 0) {
            match (&mut all, step) {
                (None, step) => all = Some(step),
                (Some(Row::Bytes(all)), Row::Bytes(step)) => all.extend(step),
                (Some(Row::Float(all)), Row::Float(step)) => all.extend(step),
                (Some(Row::Int(all)), Row::Int(step)) => all.extend(step),
                _ => return None,
            }
        }
        if let Some(all) = all
            && row.insert(name.clone(), all).is_some()
        {
            return None;
        }
    }
    row.retain(|_, values| values.len() > 0);
    Some(row)
}

fn sequence(context: &[(&str, Kind)], lists: &[(&str, Vec<Kind>)]) -> Vec<u8> {
    let entry = |(name, steps): &(&str, Vec<Kind>)| {
        let step = |kind: &Kind| delimited(1, &Feature { kind: Some(kind.clone()) }.encode_to_vec());
        let list: Vec<u8> = steps.iter().flat_map(step).collect();
        delimited(1, &[delimited(1, name.as_bytes()), delimited(2, &list)].concat())
    };
    [example(context), delimited(2, &lists.iter().flat_map(entry).collect::<Vec<u8>>())].concat()
}

#[test]
fn feature_lists_concatenate_their_steps() {
    let mut columns = ExampleColumns::new(&projection());
    let steps = vec![int(&[1]), int(&[2, 3]), int(&[]), int(&[4])];
    columns.push(&sequence(&[("a", float(&[0.5]))], &[("bb", steps)])).unwrap();
    columns.push(&sequence(&[], &[("bb", vec![]), ("unknown", vec![int(&[1])])])).unwrap();
    columns.push(&sequence(&[], &[])).unwrap();
    let fault = columns.push(&sequence(&[], &[("bb", vec![int(&[1]), float(&[1.0])])]));
    let message = "holds int64 in one step and float in another".to_owned();
    assert_eq!(fault, Err(Fault::Column { column: 1, message }));
    let fault = columns.push(&sequence(&[("bb", int(&[1]))], &[("bb", vec![int(&[1])])]));
    let message = "is both in the context and in the feature lists".to_owned();
    assert_eq!(fault, Err(Fault::Column { column: 1, message }));
    let fault = columns.push(&sequence(&[], &[("a", vec![float(&[1.0]), float(&[2.0])])]));
    assert_eq!(
        fault,
        Err(Fault::Column {
            column: 0,
            message: "holds 2 values, expected one; a feature with several has `multi = true`".to_owned()
        })
    );
    // A truncated step does not continue in the next one.
    let steps = [delimited(1, &delimited(3, &[0x0a, 2, 7])), delimited(1, &delimited(3, &[0x0a]))].concat();
    let cut = delimited(1, &[delimited(1, b"bb"), delimited(2, &steps)].concat());
    assert_eq!(columns.push(&delimited(2, &cut)), Err(Fault::Malformed("a length exceeds its message")));
    let chunk = columns.finish();
    assert_eq!(rows_of(chunk.column(1)), [Some(Row::Int(vec![1, 2, 3, 4])), None, None]);
    assert!(chunk.column(1).is_valid(1), "an empty list is not absent");
    assert!(chunk.column(1).is_null(2));
}

fn example(features: &[(&str, Kind)]) -> Vec<u8> {
    let feature = |(name, kind): &(&str, Kind)| {
        let feature = Feature { kind: Some(kind.clone()) }.encode_to_vec();
        delimited(1, &[delimited(1, name.as_bytes()), delimited(2, &feature)].concat())
    };
    delimited(1, &features.iter().flat_map(feature).collect::<Vec<u8>>())
}

fn int(value: &[i64]) -> Kind {
    Kind::Int(Int64List { value: value.to_vec() })
}

fn float(value: &[f32]) -> Kind {
    Kind::Float(FloatList { value: value.to_vec() })
}

#[test]
fn invalid_records_leave_columns_unchanged() {
    let mut columns = ExampleColumns::new(&projection());
    // The very first record is invalid, so it must not fix any types.
    let fault = columns.push(&example(&[("bb", int(&[1])), ("long_name_of_a_column", int(&[1, 2]))]));
    let message = "holds 2 values, expected one; a feature with several has `multi = true`".to_owned();
    assert_eq!(fault, Err(Fault::Column { column: 3, message }));
    columns.push(&example(&[("bb", float(&[1.0, 2.0])), ("a", int(&[5]))])).unwrap();
    let fault = columns.push(&example(&[("bb", int(&[1])), ("a", int(&[6]))]));
    let message = "holds int64 where earlier records hold float".to_owned();
    assert_eq!(fault, Err(Fault::Column { column: 1, message }));
    assert_eq!(columns.push(&[0xff]), Err(Fault::Malformed("a number is truncated")));
    columns.push(&example(&[("a", int(&[7]))])).unwrap();
    let chunk = columns.finish();
    assert_eq!(rows_of(chunk.column(0)), [Some(Row::Int(vec![5])), Some(Row::Int(vec![7]))]);
    assert_eq!(rows_of(chunk.column(1)).len(), 2);
    assert_eq!(chunk.column(3).data_type(), &DataType::Null);
}

#[test]
fn a_number_without_an_end_is_an_error_on_every_path() {
    let number = |value: &[u8]| {
        let feature = delimited(3, &delimited(1, value));
        delimited(1, &delimited(1, &[delimited(1, b"a"), delimited(2, &feature)].concat()))
    };
    let message = "a number is truncated".to_owned();
    for bytes in 1..10 {
        let mut value = vec![0x80; bytes];
        let cut = number(&value);
        *value.last_mut().unwrap() = 1;
        let whole = number(&value);
        for push in [ExampleColumns::push, ExampleColumns::push_scattered, ExampleColumns::push_general] {
            let mut columns = ExampleColumns::new(&projection());
            for _ in 0..3 {
                push(&mut columns, &whole).unwrap();
            }
            let fault = Fault::Column { column: 0, message: message.clone() };
            assert_eq!(push(&mut columns, &cut), Err(fault), "{bytes} bytes");
            assert_eq!(
                rows_of(columns.finish().column(0)),
                vec![Some(Row::Int(vec![1 << (7 * (bytes - 1))])); 3]
            );
        }
    }
}

#[test]
fn types_persist_across_chunks() {
    let mut columns = ExampleColumns::new(&projection());
    columns.push(&example(&[("a", int(&[1]))])).unwrap();
    columns.finish();
    columns.push(&example(&[])).unwrap();
    assert_eq!(columns.finish().column(0).data_type(), &DataType::Int64);
    assert!(columns.push(&example(&[("a", float(&[1.0]))])).is_err());
}

#[test]
fn features_without_values_count_as_seen() {
    let mut columns = ExampleColumns::new(&projection());
    columns.push(&example(&[("a", int(&[]))])).unwrap();
    assert_eq!((columns.was_seen(0), columns.was_seen(1)), (true, false));
}

#[test]
fn every_feature_becomes_a_column_without_a_projection() {
    let mut columns = ExampleColumns::every();
    columns.push(&example(&[("x", int(&[1]))])).unwrap();
    columns.push(&example(&[("y", float(&[2.0, 3.0])), ("x", float(&[]))])).unwrap();
    let chunk = columns.finish();
    assert_eq!([columns.name(0), columns.name(1)], ["x", "y"]);
    assert_eq!(rows_of(chunk.column(0)), [Some(Row::Int(vec![1])), None]);
    assert!(chunk.column(0).is_valid(1), "an empty list is not absent");
    assert!(chunk.column(1).is_null(0));
    let mut seen: Vec<_> = columns.names_seen().collect();
    seen.sort_unstable();
    assert_eq!(seen, ["x", "y"]);
}

#[test]
fn a_chunk_of_more_values_than_offsets_is_an_error() {
    let mut columns = ExampleColumns::new(&projection());
    let record = example(&[("a", int(&[1]))]);
    columns.record_bytes = i32::MAX as usize - record.len();
    columns.push(&record).unwrap();
    assert_eq!(columns.push(&record), Err(Fault::Malformed("its values exceed the offsets of a chunk")));
    assert_eq!(columns.finish().num_rows(), 1);
    columns.push(&record).unwrap();
}

#[test]
fn long_names_are_not_stored() {
    let mut columns = ExampleColumns::every();
    let (kept, ignored) = ("k".repeat(1024), "i".repeat(1025));
    columns.push(&example(&[(&kept, int(&[1])), (&ignored, int(&[2]))])).unwrap();
    assert_eq!(columns.names_seen().collect::<Vec<_>>(), [&kept]);
    assert_eq!(columns.finish().num_columns(), 1);
}
