//! `tf.train.Example` and `tf.train.SequenceExample`: every record that prost decodes yields the same values here,
//! regardless of earlier records in the chunk; and a rejected record leaves no trace. Repeated in turns, records have
//! the same outcome each time, whichever path decodes them.

use std::collections::{BTreeMap, HashMap};

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use millstream_format::example::{ExampleColumns, Fault};
use prost::Message;

use crate::input::Input;

#[derive(Clone, PartialEq, Message)]
struct Example {
    #[prost(message, optional, tag = "1")]
    features: Option<Features>,
    /// Set for a `SequenceExample`.
    #[prost(message, optional, tag = "2")]
    feature_lists: Option<FeatureLists>,
}
#[derive(Clone, PartialEq, Message)]
struct FeatureLists {
    #[prost(map = "string, message", tag = "1")]
    feature_list: HashMap<String, FeatureList>,
}
#[derive(Clone, PartialEq, Message)]
struct FeatureList {
    #[prost(message, repeated, tag = "1")]
    feature: Vec<Feature>,
}
#[derive(Clone, PartialEq, Message)]
struct Features {
    #[prost(map = "string, message", tag = "1")]
    feature: HashMap<String, Feature>,
}
#[derive(Clone, PartialEq, Message)]
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
#[derive(Clone, PartialEq, Message)]
struct BytesList {
    #[prost(bytes = "vec", repeated, tag = "1")]
    value: Vec<Vec<u8>>,
}
#[derive(Clone, PartialEq, Message)]
struct FloatList {
    #[prost(float, repeated, tag = "1")]
    value: Vec<f32>,
}
#[derive(Clone, PartialEq, Message)]
struct Int64List {
    #[prost(int64, repeated, tag = "1")]
    value: Vec<i64>,
}

/// A feature's values in a comparable form: floats by their bits.
#[derive(Clone, Debug, PartialEq)]
enum Values {
    Bytes(Vec<Vec<u8>>),
    Float(Vec<u32>),
    Int(Vec<i64>),
}

/// A row: the features that have a value, by name.
type Row = BTreeMap<String, Values>;

/// The first two bytes give the length of the first of two records.
pub fn check(data: &[u8]) {
    let mut input = Input(data);
    let first = input.below(1 << 16);
    let first = input.take(first);
    let second = input.0;

    let mut chunk = ExampleColumns::every();
    let first_is_good = push(&mut chunk, first);
    let mut alone = chunk_of(first);
    let second_is_good = chunk.push(second).is_ok();
    let good: Vec<&[u8]> = [(first, first_is_good), (second, second_is_good)]
        .into_iter()
        .filter_map(|(record, good)| good.then_some(record))
        .collect();
    let rows = rows_of(&chunk.finish());
    assert_eq!(rows.len(), good.len());
    for (row, record) in rows.iter().zip(good) {
        if let Some(expected) = decode_with_prost(record) {
            assert_eq!(*row, expected);
        }
    }
    if first_is_good && !second_is_good {
        assert_eq!(rows, rows_of(&alone.finish()), "a rejected record leaves no trace");
    }
    check_turns(first, second);
}

/// Pushes two records in turns. If their features differ in order, the path for a constant order gives up after a few.
fn check_turns(first: &[u8], second: &[u8]) {
    let mut chunk = ExampleColumns::every();
    let mut turn = || {
        let outcomes = [chunk.push(first), chunk.push(second)];
        (outcomes, rows_of(&chunk.finish()))
    };
    // In the first turn the records do not know each other's types yet.
    let _ = turn();
    let expected = turn();
    for _ in 0..8 {
        assert_eq!(turn(), expected);
    }
}

/// Pushes the first record and returns whether it was accepted, which it must be if prost can decode it.
fn push(columns: &mut ExampleColumns, record: &[u8]) -> bool {
    let pushed = columns.push(record);
    if decode_with_prost(record).is_some() {
        // prost does not check the wire types of map entries.
        let lenient = matches!(
            pushed,
            Err(Fault::Malformed("`feature` is not a message" | "`feature_list` is not a message"))
        );
        assert!(pushed.is_ok() || lenient, "{pushed:?}, but prost decodes it");
    }
    pushed.is_ok()
}

fn chunk_of(record: &[u8]) -> ExampleColumns {
    let mut columns = ExampleColumns::every();
    push(&mut columns, record);
    columns
}

/// The row that prost decodes. `None` if decoding fails, or if the record cannot be a row: the steps of a list differ in
/// kind, or a name occurs in both the context and the lists.
fn decode_with_prost(record: &[u8]) -> Option<Row> {
    let example = Example::decode(record).ok()?;
    let context = example.features.unwrap_or_default().feature;
    let lists = example.feature_lists.unwrap_or_default().feature_list;
    let mut row = Row::new();
    for (name, list) in lists {
        let mut steps = list.feature.into_iter().filter_map(|feature| feature.kind);
        if context.contains_key(&name) {
            return None;
        }
        let Some(mut all) = steps.next().map(Values::of) else { continue };
        for step in steps {
            match (&mut all, Values::of(step)) {
                (Values::Bytes(all), Values::Bytes(step)) => all.extend(step),
                (Values::Float(all), Values::Float(step)) => all.extend(step),
                (Values::Int(all), Values::Int(step)) => all.extend(step),
                _ => return None,
            }
        }
        row.insert(name, all);
    }
    row.extend(context.into_iter().filter_map(|(name, feature)| Some((name, Values::of(feature.kind?)))));
    // An empty feature is equivalent to an absent one.
    row.retain(|_, values| !values.is_empty());
    Some(row)
}

impl Values {
    fn of(kind: Kind) -> Self {
        match kind {
            Kind::Bytes(list) => Self::Bytes(list.value),
            Kind::Float(list) => Self::Float(list.value.iter().map(|value| value.to_bits()).collect()),
            Kind::Int(list) => Self::Int(list.value),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Bytes(values) => values.is_empty(),
            Self::Float(values) => values.is_empty(),
            Self::Int(values) => values.is_empty(),
        }
    }
}

fn rows_of(chunk: &RecordBatch) -> Vec<Row> {
    let schema = chunk.schema();
    let row = |row: usize| {
        let columns = schema.fields().iter().zip(chunk.columns());
        columns
            .filter(|(_, array)| !array.data_type().is_null() && array.is_valid(row))
            .map(|(field, array)| (field.name().clone(), array.as_list::<i32>().value(row)))
            .filter(|(_, values)| !values.is_empty())
            .map(|(name, values)| (name, values_of(&values)))
            .collect()
    };
    (0..chunk.num_rows()).map(row).collect()
}

fn values_of(array: &ArrayRef) -> Values {
    if let Some(values) = array.as_binary_opt::<i32>() {
        Values::Bytes(values.iter().map(|value| value.unwrap().to_vec()).collect())
    } else if let Some(values) = array.as_primitive_opt::<Float32Type>() {
        Values::Float(values.values().iter().map(|value| value.to_bits()).collect())
    } else {
        Values::Int(array.as_primitive::<Int64Type>().values().to_vec())
    }
}

/// Pairs of records with features of every kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let kinds = [
        Kind::Bytes(BytesList { value: vec![b"red".to_vec(), Vec::new()] }),
        Kind::Float(FloatList { value: vec![1.5, f32::NAN] }),
        Kind::Int(Int64List { value: vec![-1, 0, i64::MAX] }),
        Kind::Int(Int64List { value: Vec::new() }),
    ];
    let record = |kinds: &[Kind]| {
        let feature = |(name, kind): (u8, &Kind)| {
            (char::from(b'a' + name).to_string(), Feature { kind: Some(kind.clone()) })
        };
        let feature = (0..).zip(kinds).map(feature).collect();
        Example { features: Some(Features { feature }), feature_lists: None }.encode_to_vec()
    };
    let sequence = |names: &[&str], kinds: &[Kind]| {
        let feature = kinds.iter().map(|kind| Feature { kind: Some(kind.clone()) }).collect();
        let list = FeatureList { feature };
        let feature_list = names.iter().map(|&name| (name.to_owned(), list.clone())).collect();
        Example { features: None, feature_lists: Some(FeatureLists { feature_list }) }.encode_to_vec()
    };
    let ordered = |names: &str, kinds: [&Kind; 3]| {
        let features = names.bytes().map(|name| {
            let kind = kinds[usize::from(name) % 3].clone();
            let feature = [(char::from(name).to_string(), Feature { kind: Some(kind) })].into();
            Features { feature }.encode_to_vec()
        });
        let features = features.collect::<Vec<_>>().concat();
        [&[0x0a, features.len() as u8][..], &features].concat()
    };
    let one = [
        &Kind::Bytes(BytesList { value: vec![b"blue".to_vec()] }),
        &Kind::Float(FloatList { value: vec![-0.5] }),
        &Kind::Int(Int64List { value: vec![300] }),
    ];
    let pair =
        |first: &[u8], second: &[u8]| [&(first.len() as u16).to_le_bytes()[..], first, second].concat();
    let all = record(&kinds);
    vec![
        pair(&all, &all),
        pair(&record(&kinds[..1]), &record(&kinds[1..])),
        pair(b"", &all),
        pair(
            &sequence(&["a", "b"], &kinds[2..]),
            &[&record(&kinds[..1])[..], &sequence(&["c"], &kinds[..1])].concat(),
        ),
        // Other orders, absent features, several values, and a name that occurs twice.
        pair(&ordered("abcdef", one), &ordered("fcadbe", one)),
        pair(&ordered("dbfeca", one), &ordered("bdf", one)),
        pair(&ordered("abc", one), &ordered("cba", [&kinds[0], &kinds[1], &kinds[2]])),
        pair(&ordered("cab", one), &ordered("abca", one)),
        // Unpacked numbers: fixed 32 bits, and a varint.
        pair(
            b"\x0a\x0f\x0a\x0d\x0a\x01a\x12\x08\x12\x06\x0d\x00\x00\x80\x3f\x0a\x00",
            b"\x0a\x0b\x0a\x09\x0a\x01b\x12\x04\x1a\x02\x08\x05",
        ),
    ]
}

/// Beginnings of messages.
pub fn dictionary() -> Vec<Vec<u8>> {
    [
        &b"\x0a\x01a\x12"[..],
        b"\x0a\x00",
        b"\x12\x00",
        b"\x1a\x02\x0a\x00",
        b"\x0a\x02",
        b"\x12\x06\x0a\x04",
        b"\x0b\x0c",
    ]
    .map(<[u8]>::to_vec)
    .into()
}
