//! Compares the path for features in any order with the general path.

use arrow_array::{BinaryArray, Float32Array, Int64Array};

use super::*;
use crate::cells::Cells;

/// What a record has that a writer's usual ones do not.
#[derive(Clone, Debug)]
enum Oddity {
    None,
    /// A feature occurs again, with another value.
    Again(prop::sample::Index, Kind),
    /// The numbers are not packed.
    Unpacked,
    /// A feature of another name.
    Unknown(String),
    /// The entry consists of other fields: a value in pieces, the value first, further fields.
    Fields(prop::sample::Index, Vec<u8>),
    /// The features are split into two messages.
    Split(prop::sample::Index),
    /// A length that takes more bytes than needed.
    LongLength(prop::sample::Index),
    Byte(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Longer(Vec<u8>),
}

fn oddity() -> impl Strategy<Value = Oddity> {
    use prop::sample::Index;
    let index = any::<Index>;
    prop_oneof![
        12 => Just(Oddity::None),
        1 => (index(), (0..3usize).prop_flat_map(kind_of)).prop_map(|(at, kind)| Oddity::Again(at, kind)),
        1 => Just(Oddity::Unpacked),
        1 => "[a-z]{0,20}".prop_map(Oddity::Unknown),
        1 => (index(), entry()).prop_map(|(at, entry)| Oddity::Fields(at, entry)),
        1 => index().prop_map(Oddity::Split),
        1 => index().prop_map(Oddity::LongLength),
        3 => (index(), any::<u8>()).prop_map(|(at, byte)| Oddity::Byte(at, byte)),
        1 => index().prop_map(Oddity::Cut),
        1 => vec(any::<u8>(), 1..5).prop_map(Oddity::Longer),
    ]
}

fn record_of(mut entries: Vec<Vec<u8>>, oddity: &Oddity) -> Vec<u8> {
    let at = |index: &prop::sample::Index, entries: &Vec<Vec<u8>>| index.index(entries.len());
    match oddity {
        Oddity::Unknown(name) => entries.push(entry_of(name, int(&[7]), &Change::None)),
        Oddity::Fields(index, entry) if !entries.is_empty() => {
            let at = at(index, &entries);
            entries.insert(at, delimited(1, entry));
        }
        Oddity::LongLength(index) if !entries.is_empty() => {
            let at = at(index, &entries);
            if entries[at][1] < 0x80 {
                entries[at][1] |= 0x80;
                entries[at].insert(2, 0);
            }
        }
        _ => {}
    }
    let mut record = match oddity {
        Oddity::Split(index) if !entries.is_empty() => {
            let (first, second) = entries.split_at(at(index, &entries));
            [delimited(1, &first.concat()), delimited(1, &second.concat())].concat()
        }
        _ => delimited(1, &entries.concat()),
    };
    match oddity {
        Oddity::Byte(index, byte) => {
            let at = index.index(record.len());
            record[at] = *byte;
        }
        Oddity::Cut(index) => record.truncate(index.index(record.len())),
        Oddity::Longer(bytes) => record.extend(bytes),
        _ => {}
    }
    record
}

/// Names of up to seven, 24 or 120 bytes, which may agree in their first and last eight.
fn names() -> impl Strategy<Value = Vec<String>> {
    let name = |at: usize, length: usize| format!("{0}{at}{0}", "n".repeat(length));
    prop_oneof![0..3usize, 3..11usize, 11..60usize].prop_flat_map(move |longest| {
        vec(0..=longest, 1..14)
            .prop_map(move |lengths| lengths.iter().enumerate().map(|(at, &n)| name(at, n)).collect())
    })
}

/// Records with features in random order, a third of them absent.
fn shuffled_records() -> impl Strategy<Value = (Projection, Vec<Vec<u8>>)> {
    (names(), vec((any::<bool>(), 0..5u8), 14)).prop_flat_map(|(names, uses)| {
        let wanted = names.iter().zip(uses).filter(|(_, (_, wanted))| *wanted > 0);
        let columns =
            wanted.map(|(name, (multi, _))| ProjectedColumn { name: name.clone(), multi }).collect();
        let values: Vec<_> =
            (0..names.len()).map(|column| prop::option::weighted(0.7, kind_of(column))).collect();
        let order = Just((0..names.len()).collect::<Vec<_>>()).prop_shuffle();
        let record = (values, order, oddity()).prop_map(move |(values, order, oddity)| {
            let change = if matches!(oddity, Oddity::Unpacked) { Change::Unpacked } else { Change::None };
            let present = order.iter().filter_map(|&column| Some((column, values[column].clone()?)));
            let again = match &oddity {
                Oddity::Again(at, kind) => Some((at.index(names.len()), kind.clone())),
                _ => None,
            };
            let entries = present.chain(again).map(|(column, kind)| entry_of(&names[column], kind, &change));
            record_of(entries.collect(), &oddity)
        });
        (Just(Projection { columns, ..Projection::default() }), vec(record, 1..40))
    })
}

proptest! {
    #[test]
    fn any_order_matches_the_general_path(
        (projection, records) in shuffled_records(),
        chunk in 1usize..20,
        every in any::<bool>(),
    ) {
        let new = || if every { ExampleColumns::every() } else { ExampleColumns::new(&projection) };
        let (mut fast, mut general) = (new(), new());
        for (number, record) in records.iter().enumerate() {
            prop_assert_eq!(fast.push_scattered(record), general.push_general(record), "record {}", number);
            if number % chunk == 0 {
                prop_assert_eq!(fast.finish(), general.finish());
            }
        }
        prop_assert_eq!(fast.finish(), general.finish());
        let seen = |columns: &ExampleColumns| -> Vec<bool> {
            (0..columns.columns.len()).map(|column| columns.was_seen(column)).collect()
        };
        prop_assert_eq!(seen(&fast), seen(&general));
    }
}

/// The order in which a writer emits the features of its records.
#[derive(Clone, Copy, Debug)]
enum Writer {
    /// Each record in another order.
    Cpp,
    /// The order of the schema, without those that are null.
    Java,
    /// One order for each process, that is, for each half of the records.
    Python,
}

const WRITTEN: u64 = 6000;
const FEATURES: u64 = 17;

fn drawn(row: u64, column: u64) -> u64 {
    (row << 20 ^ column)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(31)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
        >> 20
}

fn written_name(column: u64) -> String {
    format!("user_{}feature_{column}", "very_".repeat(column as usize % 4))
}

fn written(writer: Writer, row: u64) -> Vec<u8> {
    let mut columns: Vec<u64> = (0..FEATURES).filter(|&column| drawn(row, column) % 10 > 2).collect();
    match writer {
        Writer::Cpp => columns.sort_by_key(|&column| drawn(!row, column)),
        Writer::Java => {}
        Writer::Python => columns.sort_by_key(|&column| drawn(!(row / (WRITTEN / 2)), column)),
    }
    let cells: Vec<Cells> = columns.iter().map(|&column| cell(row, column)).collect();
    let names: Vec<String> = columns.iter().map(|&column| written_name(column)).collect();
    ExampleEncoder::default().encode(&names, &cells, 0).unwrap().to_vec()
}

fn cell(row: u64, column: u64) -> Cells {
    let value = drawn(row, column) as i64 >> (column % 40);
    match column % 3 {
        0 => Cells::Int(Int64Array::from(vec![value])),
        1 => Cells::Float(Float32Array::from(vec![value as f32])),
        _ => Cells::Bytes(BinaryArray::from(vec![value.to_string().as_bytes()])),
    }
}

#[test]
fn every_writers_order_is_decoded_without_the_general_path() {
    let wanted = (0..FEATURES).filter(|column| column % 5 < 4);
    let columns = wanted.map(|column| ProjectedColumn { name: written_name(column), multi: column == 3 });
    let projection = Projection { columns: columns.collect(), ..Projection::default() };
    for writer in [Writer::Cpp, Writer::Java, Writer::Python] {
        let (mut fast, mut general) = (ExampleColumns::new(&projection), ExampleColumns::new(&projection));
        let mut learned = 0;
        for row in 0..WRITTEN {
            let record = written(writer, row);
            fast.learner = None;
            assert_eq!(fast.push(&record), Ok(()));
            learned += usize::from(fast.learner.is_some());
            assert_eq!(general.push_general(&record), Ok(()));
        }
        assert_eq!(fast.finish(), general.finish(), "{writer:?}");
        assert!(learned < 30, "{learned} of {WRITTEN} records took the general path: {writer:?}");
    }
}

#[test]
fn constant_order_after_random_order_takes_its_own_path_again() {
    let mut columns = ExampleColumns::every();
    let record = |order: [&str; 3]| example(&order.map(|name| (name, int(&[1]))));
    for row in 0..100 {
        columns.push(&record([["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"]][row % 3])).unwrap();
    }
    assert!(columns.scattered.succeeded());
    let push = |columns: &mut ExampleColumns| columns.push(&record(["a", "b", "c"])).unwrap();
    (0..2100).for_each(|_| push(&mut columns));
    let expected = (0..10).all(|_| {
        push(&mut columns);
        columns.expected.should_try()
    });
    assert!(expected);
}

#[test]
fn unusual_features_do_not_end_the_path_for_any_order() {
    let mut columns = ExampleColumns::new(&projection());
    let long = "long".repeat(50);
    let text = |value: &str| Kind::Bytes(BytesList { value: vec![value.as_bytes().to_vec()] });
    let records = [
        vec![("a", int(&[1])), ("bb", float(&[0.5, 1.5])), ("é", text("x")), ("other", int(&[]))],
        vec![("é", text(&long)), ("other", int(&[1, 2])), ("bb", float(&[])), ("a", int(&[2]))],
        vec![("other", int(&[3])), ("a", int(&[-1])), ("é", text("")), ("bb", float(&[2.5]))],
    ];
    for record in records.iter().cycle().take(4) {
        columns.push_scattered(&example(record)).unwrap();
    }
    let mut accepted = 0;
    for record in records.iter().cycle().take(30) {
        columns.push_scattered(&example(record)).unwrap();
        accepted += usize::from(columns.scattered.succeeded());
    }
    assert_eq!(accepted, 30);
    let found = rows_of(columns.finish().column(1));
    assert_eq!(
        found[..3],
        [
            Some(Row::Float(vec![0.5f32.to_bits(), 1.5f32.to_bits()])),
            None,
            Some(Row::Float(vec![2.5f32.to_bits()]))
        ]
    );
}

#[test]
fn of_a_name_twice_the_later_wins_in_any_order() {
    let mut columns = ExampleColumns::new(&projection());
    for _ in 0..3 {
        columns.push_scattered(&example(&[("a", int(&[1])), ("bb", int(&[2]))])).unwrap();
    }
    assert!(columns.scattered.succeeded());
    columns.push_scattered(&example(&[("a", int(&[3])), ("bb", int(&[4])), ("a", int(&[5]))])).unwrap();
    let chunk = columns.finish();
    assert_eq!(rows_of(chunk.column(0)).last(), Some(&Some(Row::Int(vec![5]))));
    assert_eq!(rows_of(chunk.column(1)).last(), Some(&Some(Row::Int(vec![4]))));
}
