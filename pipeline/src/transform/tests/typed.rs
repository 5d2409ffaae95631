//! Typed columns: compared with a reference that converts one value at a time; and columns that are refused.

use arrow_array::builder::{BinaryBuilder, PrimitiveDictionaryBuilder};
use arrow_array::types::{Int64Type, UInt8Type, UInt64Type};
use arrow_array::{
    BinaryArray, Decimal256Array, GenericListArray, OffsetSizeTrait, PrimitiveArray,
    TimestampMillisecondArray, UInt8Array,
};
use arrow_buffer::{NullBuffer, OffsetBuffer, i256};
use millstream_batch::{Column, ColumnKind, Dtype};
use millstream_images::{Channels, Crop, Decode, ImageSpec, Jitter, Layout};
use proptest::collection::vec;
use proptest::sample::select;

use super::*;
use crate::chunk::ChunkColumn;
use crate::order::Packing;
use crate::sequences::{Packed, TokenSpec};
use crate::spec::ColumnSpec;
use crate::tokenizer::Tokenizers;

fn column(name: &str, kind: ColumnKind, missing: Option<f64>) -> ColumnSpec {
    ColumnSpec { name: name.into(), column: "x".into(), kind, missing, image: None, tokens: None }
}

fn fixed(dtype: Dtype, shape: &[u32]) -> ColumnKind {
    ColumnKind::Fixed { dtype, shape: shape.to_vec() }
}

/// A value as it is stored.
#[derive(Clone, Debug, PartialEq)]
enum Stored {
    Absent,
    Whole(i128),
    Real(f64),
    Text(String),
}

const WHOLE: [i128; 28] = [
    0,
    1,
    2,
    -1,
    -4,
    7,
    100,
    127,
    128,
    255,
    256,
    -128,
    -129,
    32_767,
    32_768,
    65_535,
    65_536,
    -32_769,
    1 << 31,
    -(1 << 31),
    (1 << 32) - 1,
    1 << 32,
    (1 << 53) + 1,
    (1 << 62) + (1 << 54) + 1,
    (1 << 63) - 1,
    1 << 63,
    -(1 << 63),
    (1 << 64) - 1,
];

const REAL: [f64; 26] = [
    0.0,
    -0.0,
    1.0,
    0.5,
    -4.0,
    3.25,
    255.0,
    256.0,
    -128.0,
    -129.0,
    300.0,
    65_504.0,
    65_519.0,
    65_520.0,
    1e10,
    1e300,
    9_223_372_036_854_775_808.0,
    18_446_744_073_709_551_616.0,
    -9_223_372_036_854_775_808.0,
    4_294_967_295.0,
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    1.000_488_281_250_000_2,
    5.960_464_477_539_063e-8,
    1e-40,
];

const TEXT: [&str; 16] = [
    "1",
    " 7 ",
    "300",
    "2.5",
    "1e3",
    "many",
    "",
    "?",
    " -4",
    "9007199254740993",
    "18446744073709551615",
    "nan",
    "-9223372036854775808",
    "18446744073709551616",
    "-0",
    "0.1",
];

/// The types of columns.
const TYPES: usize = 20;

fn whole<P>(places: &[Option<usize>], of: impl Fn(i128) -> P::Native) -> (ArrayRef, Vec<Stored>)
where
    P: ArrowPrimitiveType<Native: Into<i128>>,
{
    let values = || places.iter().map(|place| place.map(|place| of(WHOLE[place % WHOLE.len()])));
    let stored = values().map(|value| value.map_or(Stored::Absent, |value| Stored::Whole(value.into())));
    (Arc::new(values().collect::<PrimitiveArray<P>>()), stored.collect())
}

fn real<P>(
    places: &[Option<usize>],
    of: impl Fn(f64) -> P::Native,
    back: impl Fn(P::Native) -> f64,
) -> (ArrayRef, Vec<Stored>)
where
    P: ArrowPrimitiveType,
{
    let values = || places.iter().map(|place| place.map(|place| of(REAL[place % REAL.len()])));
    let stored = values().map(|value| value.map_or(Stored::Absent, |value| Stored::Real(back(value))));
    (Arc::new(values().collect::<PrimitiveArray<P>>()), stored.collect())
}

/// Values of one of [`TYPES`] types of columns.
fn leaf(type_: usize, places: &[Option<usize>]) -> (ArrayRef, Vec<Stored>) {
    let texts = || places.iter().map(|place| place.map(|place| TEXT[place % TEXT.len()]));
    let stored =
        || texts().map(|text| text.map_or(Stored::Absent, |text| Stored::Text(text.into()))).collect();
    let array: ArrayRef = match type_ {
        0 => return whole::<Int8Type>(places, |value| value as i8),
        1 => return whole::<arrow_array::types::Int16Type>(places, |value| value as i16),
        2 => return whole::<Int32Type>(places, |value| value as i32),
        3 => return whole::<Int64Type>(places, |value| value as i64),
        4 => return whole::<UInt8Type>(places, |value| value as u8),
        5 => return whole::<arrow_array::types::UInt16Type>(places, |value| value as u16),
        6 => return whole::<arrow_array::types::UInt32Type>(places, |value| value as u32),
        7 => return whole::<UInt64Type>(places, |value| value as u64),
        8 => return real::<Float16Type>(places, |value| half(value as f32), |value| value.to_f64()),
        9 => return real::<Float32Type>(places, |value| value as f32, f64::from),
        10 => return real::<arrow_array::types::Float64Type>(places, |value| value, |value| value),
        11 => {
            let flags: Vec<Option<bool>> =
                places.iter().map(|place| place.map(|place| place % 2 == 1)).collect();
            let stored =
                flags.iter().map(|flag| flag.map_or(Stored::Absent, |flag| Stored::Whole(flag.into())));
            let stored = stored.collect();
            return (Arc::new(BooleanArray::from(flags)), stored);
        }
        12 => {
            let (_, stored) = whole::<Int64Type>(places, |value| value as i64);
            let mut builder = PrimitiveDictionaryBuilder::<Int32Type, Int64Type>::new();
            for value in &stored {
                builder.append_option(if let Stored::Whole(value) = value {
                    Some(*value as i64)
                } else {
                    None
                });
            }
            return (Arc::new(builder.finish()), stored);
        }
        13 => return (Arc::new(NullArray::new(places.len())), vec![Stored::Absent; places.len()]),
        14 => Arc::new(StringArray::from_iter(texts())),
        15 => Arc::new(LargeStringArray::from_iter(texts())),
        16 => Arc::new(StringViewArray::from_iter(texts())),
        17 => Arc::new(BinaryArray::from_iter(texts())),
        18 => {
            let mut builder = BinaryViewBuilder::new();
            texts().for_each(|text| builder.append_option(text));
            Arc::new(builder.finish())
        }
        _ => {
            let mut builder = StringDictionaryBuilder::<Int8Type>::new();
            texts().for_each(|text| builder.append_option(text));
            Arc::new(builder.finish())
        }
    };
    (array, stored())
}

/// Lists of these lengths. Those that are not present have elements too, which must not be read.
fn in_lists<O: OffsetSizeTrait>(leaf: ArrayRef, lengths: &[usize], present: &[bool]) -> ArrayRef {
    let field = Arc::new(Field::new("item", leaf.data_type().clone(), true));
    let offsets = OffsetBuffer::from_lengths(lengths.iter().copied());
    let nulls = NullBuffer::from(present.to_vec());
    Arc::new(GenericListArray::<O>::new(field, offsets, leaf, Some(nulls)))
}

/// A number, or what a value is instead.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    Absent,
    Whole(i128),
    Real(f64),
    Unreadable,
}

/// With "?" and "-4" for missing values.
fn number(stored: &Stored, is_flag: bool) -> Number {
    match stored {
        Stored::Absent => Number::Absent,
        Stored::Whole(-4) if !is_flag => Number::Absent,
        Stored::Real(-4.0) => Number::Absent,
        Stored::Whole(value) => Number::Whole(*value),
        Stored::Real(value) => Number::Real(*value),
        Stored::Text(text) => match text.trim() {
            "?" | "-4" => Number::Absent,
            text => match (text.parse::<i128>(), text.parse::<f64>()) {
                (Ok(value), _) if (-(1 << 63)..1 << 64).contains(&value) => Number::Whole(value),
                (_, Ok(value)) => Number::Real(value),
                _ => Number::Unreadable,
            },
        },
    }
}

/// The nearest of the values with these bits and their neighbours, or the even one of two that are as near.
fn nearest<D: PartialOrd>(bits: u16, infinity: u16, distance: impl Fn(u16) -> D) -> u16 {
    let (sign, magnitude) = (bits & 1 << 15, bits & !(1 << 15));
    let candidates = [magnitude, magnitude.saturating_sub(1), (magnitude + 1).min(infinity)];
    let mut best = candidates[0];
    for other in candidates {
        let [of_other, of_best] = [other, best].map(|bits| distance(sign | bits));
        if of_other < of_best || (of_other == of_best && other % 2 == 0) {
            best = other;
        }
    }
    sign | best
}

/// A float of 16 bits, from the bits nearby and the value of any.
fn bits16(number: Number, near: impl Fn(f64) -> u16, value: impl Fn(u16) -> f64, infinity: u16) -> Vec<u8> {
    let beyond = 2.0 * value(infinity - 1) - value(infinity - 2);
    // Infinity counts as the value that would follow the largest.
    let value = |bits: u16| match value(bits) {
        value if value.is_infinite() => beyond.copysign(value),
        value => value,
    };
    let bits = match number {
        Number::Whole(whole) if whole.unsigned_abs() > 1 << 53 => {
            nearest(near(whole as f64), infinity, |bits| (whole - value(bits) as i128).unsigned_abs())
        }
        Number::Whole(whole) => {
            nearest(near(whole as f64), infinity, |bits| (whole as f64 - value(bits)).abs())
        }
        Number::Real(real) if real.is_finite() => {
            nearest(near(real), infinity, |bits| (real - value(bits)).abs())
        }
        Number::Real(real) => near(real),
        _ => unreachable!("only numbers are converted"),
    };
    bits.to_ne_bytes().to_vec()
}

/// The bytes of a number, if it has any in this type.
fn convert(dtype: Dtype, number: Number) -> Option<Vec<u8>> {
    fn bytes<T: TryFrom<i128>, const N: usize>(whole: i128, bytes: impl Fn(T) -> [u8; N]) -> Option<Vec<u8>> {
        Some(bytes(T::try_from(whole).ok()?).to_vec())
    }
    let float = match number {
        Number::Whole(whole) => (whole as f32, whole as f64),
        Number::Real(real) => (real as f32, real),
        _ => return None,
    };
    match dtype {
        Dtype::Float32 => return Some(float.0.to_ne_bytes().to_vec()),
        Dtype::Float64 => return Some(float.1.to_ne_bytes().to_vec()),
        Dtype::Float16 => {
            let value = |bits| <Float16Type as ArrowPrimitiveType>::Native::from_bits(bits).to_f64();
            return Some(bits16(number, |real| half(real as f32).to_bits(), value, 0x7c00));
        }
        Dtype::Bfloat16 => {
            let value = |bits| f64::from(f32::from_bits(u32::from(bits) << 16));
            let near = |real: f64| ((real as f32).to_bits() >> 16) as u16;
            return Some(bits16(number, near, value, 0x7f80));
        }
        _ => {}
    }
    let whole = match number {
        Number::Real(real) if real.fract() != 0.0 || !real.is_finite() || real.abs() > 1e30 => return None,
        Number::Real(real) => real as i128,
        Number::Whole(whole) => whole,
        _ => return None,
    };
    match dtype {
        Dtype::Bool => bytes(whole, |value: u8| [value]).filter(|bytes| bytes[0] < 2),
        Dtype::Uint8 => bytes(whole, u8::to_ne_bytes),
        Dtype::Int8 => bytes(whole, i8::to_ne_bytes),
        Dtype::Uint16 => bytes(whole, u16::to_ne_bytes),
        Dtype::Int16 => bytes(whole, i16::to_ne_bytes),
        Dtype::Uint32 => bytes(whole, u32::to_ne_bytes),
        Dtype::Int32 => bytes(whole, i32::to_ne_bytes),
        Dtype::Uint64 => bytes(whole, u64::to_ne_bytes),
        Dtype::Int64 => bytes(whole, i64::to_ne_bytes),
        Dtype::Float16 | Dtype::Bfloat16 | Dtype::Float32 | Dtype::Float64 => None,
    }
}

/// The values, without the bits of NaNs, which are unspecified.
fn without_nans(dtype: Dtype, bytes: &[u8]) -> Vec<Option<&[u8]>> {
    let values = bytes.chunks(dtype.bytes());
    let is_nan = |bytes: &[u8]| match (dtype, bytes) {
        (Dtype::Float16, &[a, b]) => u16::from_ne_bytes([a, b]) & 0x7fff > 0x7c00,
        (Dtype::Bfloat16, &[a, b]) => u16::from_ne_bytes([a, b]) & 0x7fff > 0x7f80,
        (Dtype::Float32, bytes) => f32::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
        (Dtype::Float64, bytes) => f64::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
        _ => false,
    };
    values.map(|bytes| (!is_nan(bytes)).then_some(bytes)).collect()
}

/// A row of the reference: its bytes, and whether it was truncated; `None` for a bad record.
fn row(spec: &ColumnSpec, values: &[Stored], is_list: bool, is_flag: bool) -> Option<(Vec<u8>, bool)> {
    let numbers: Vec<Number> = values.iter().map(|value| number(value, is_flag)).collect();
    let is_absent = numbers.is_empty() || (!is_list && numbers == [Number::Absent]);
    let missing = |dtype| convert(dtype, Number::Real(spec.missing?));
    let convert = |dtype, number| match number {
        Number::Absent => missing(dtype),
        number => convert(dtype, number),
    };
    match &spec.kind {
        ColumnKind::Fixed { dtype, shape } => {
            let width = shape.iter().product::<u32>() as usize;
            let numbers = if is_absent { vec![Number::Absent; width] } else { numbers };
            let values: Option<Vec<_>> = numbers.iter().map(|&number| convert(*dtype, number)).collect();
            values.filter(|values| values.len() == width).map(|values| (values.concat(), false))
        }
        ColumnKind::Ragged { dtype, maximum } => {
            let kept = if is_absent { 0 } else { numbers.len().min(*maximum as usize) };
            let values: Option<Vec<_>> =
                numbers[..kept].iter().map(|&number| convert(*dtype, number)).collect();
            values.map(|values| (values.concat(), !is_absent && numbers.len() > kept))
        }
        ColumnKind::Raw { maximum } => {
            let text = match values {
                [] | [Stored::Absent] => "",
                [Stored::Text(text)] if ["?", "-4"].contains(&text.trim()) => "",
                [Stored::Text(text)] => text,
                _ => return None,
            };
            (text.len() <= *maximum as usize).then(|| (text.as_bytes().to_vec(), false))
        }
    }
}

fn kinds() -> impl Strategy<Value = ColumnKind> {
    let dtype = || select(&Dtype::ALL[..]);
    prop_oneof![
        4 => (dtype(), vec(1_u32..3, 0..3)).prop_map(|(dtype, shape)| ColumnKind::Fixed { dtype, shape }),
        4 => (dtype(), 1_u32..4).prop_map(|(dtype, maximum)| ColumnKind::Ragged { dtype, maximum }),
        1 => (1_u32..12).prop_map(|maximum| ColumnKind::Raw { maximum }),
    ]
}

/// Lengths of rows, mostly that of the shape.
fn length(kind: &ColumnKind) -> impl Strategy<Value = usize> + use<> {
    let usual = kind.row_values().unwrap().min(4) as usize;
    let usual = if matches!(kind, ColumnKind::Raw { .. }) { 1 } else { usual };
    prop_oneof![12 => Just(usual), 1 => 0_usize..6]
}

type Rows = Vec<(usize, bool, Vec<Option<usize>>)>;

/// A column, and for each row the number of its values, whether it is present, and the places of the values.
fn cases() -> impl Strategy<Value = (ColumnKind, Rows)> {
    kinds().prop_flat_map(|kind| {
        let place = proptest::option::weighted(0.95, prop_oneof![3 => 0_usize..4, 1 => 0_usize..1000]);
        let row = (length(&kind), proptest::bool::weighted(0.95), vec(place, 5));
        (Just(kind), vec(row, 0..24))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn matches_the_reference(
        (kind, rows) in cases(),
        type_ in 0..TYPES,
        container in 0_usize..3,
        missing in proptest::option::of(select(vec![0.0, 1.0])),
        from in 0_usize..4,
        listed: bool,
    ) {
        let missing = missing.filter(|_| !matches!(kind, ColumnKind::Raw { .. }));
        let spec = column("c", kind, missing);
        let lengths: Vec<usize> = match container {
            0 => vec![1; rows.len()],
            _ => rows.iter().map(|(length, ..)| (*length).min(5)).collect(),
        };
        let places = rows.iter().zip(&lengths).flat_map(|((_, _, places), &length)| places[..length].to_vec());
        let (leaf, stored) = leaf(type_, &places.collect::<Vec<_>>());
        // Without configured missing values, numbers may be copied as they are.
        let has_missing = stored.iter().any(|value| matches!(value, Stored::Text(_) | Stored::Whole(-4) | Stored::Real(-4.0)));
        prop_assume!(listed || !has_missing);
        let present: Vec<bool> = rows.iter().map(|(_, present, _)| *present).collect();
        let array = match container {
            0 => leaf,
            1 => in_lists::<i32>(leaf, &lengths, &present),
            _ => in_lists::<i64>(leaf, &lengths, &present),
        };
        let missing = if listed { vec!["?".to_owned(), "-4".to_owned()] } else { Vec::new() };

        let from = from.min(rows.len());
        let whole = raw(&[("x", array)]);
        let sliced = RawChunk::new("data/part-0".into(), whole.columns().slice(from, rows.len() - from), 100);
        let transform = Transform::of_columns(std::slice::from_ref(&spec), None, &missing).unwrap();
        let bad = BadRecords::new(OnBadRecord::Skip { limit: 1000 });
        let found = transform.apply(&sliced, &bad);
        if matches!(spec.kind, ColumnKind::Raw { .. }) && type_ < 13 {
            let error = found.unwrap_err();
            prop_assert!(matches!(error, Error::Format(FormatError::WrongType { .. })), "{}", error);
            return Ok(());
        }
        let found = found.unwrap();

        let mut at = 0;
        let mut expected = Vec::new();
        for (row_, &length) in lengths.iter().enumerate() {
            let is_read = container == 0 || present[row_];
            let values = if is_read { &stored[at..at + length] } else { &[] };
            expected.push(row(&spec, values, container > 0, type_ == 11));
            at += length;
        }
        let expected = &expected[from..];
        let usable: Vec<bool> = expected.iter().map(Option::is_some).collect();
        let rows: Vec<&(Vec<u8>, bool)> = expected.iter().flatten().collect();
        prop_assert_eq!(found.chunk.rows(), rows.len());
        prop_assert_eq!(found.usable.unwrap_or(vec![true; usable.len()]), usable);
        prop_assert_eq!(found.truncated_rows, rows.iter().filter(|(_, truncated)| *truncated).count() as u64);
        let dtype = spec.kind.dtype();
        for (row, (bytes, _)) in rows.iter().enumerate() {
            let found = found.chunk.column_row(0, row);
            prop_assert_eq!(without_nans(dtype, found), without_nans(dtype, bytes), "row {}", row);
        }
        let (size, bytes) = match &found.chunk.columns[0] {
            ChunkColumn::Narrow { at, row_bytes } => {
                prop_assert_eq!(*at, 0);
                (*row_bytes, found.chunk.narrow.len())
            }
            ChunkColumn::Fixed { row_bytes, values } => (*row_bytes, values.len()),
            ChunkColumn::Ragged { value_bytes, offsets, values } => {
                prop_assert_eq!((offsets[0], offsets.len()), (0, rows.len() + 1));
                (*value_bytes, values.len())
            }
            ChunkColumn::Images(_) => unreachable!("no column of images"),
        };
        let width = if spec.kind.has_offsets() { 1 } else { spec.kind.row_values().unwrap() as usize };
        prop_assert_eq!(size, dtype.bytes() * width);
        prop_assert_eq!(bytes, rows.iter().map(|(bytes, _)| bytes.len()).sum::<usize>());
    }
}

#[test]
fn the_schema_has_the_columns_in_their_order() {
    let mut specs = [
        column("image", fixed(Dtype::Uint8, &[2, 2]), None),
        column("label", fixed(Dtype::Int32, &[]), Some(-1.0)),
        column("tokens", ColumnKind::Ragged { dtype: Dtype::Bfloat16, maximum: 4 }, None),
        column("url", ColumnKind::Raw { maximum: 8 }, None),
    ];
    for (spec, name) in specs.iter_mut().zip(["i", "l", "t", "u"]) {
        spec.column = name.into();
    }
    let transform = Transform::of_columns(&specs, None, &[]).unwrap();
    assert!(transform.projection().numbers_as_values, "values are needed once");
    let columns: Vec<(&str, bool)> =
        transform.projection().columns.iter().map(|column| (column.name.as_str(), column.multi)).collect();
    assert_eq!(columns, [("i", true), ("l", false), ("t", true), ("u", false)]);
    let columns = specs.iter().map(|spec| Column { name: spec.name.clone(), kind: spec.kind.clone() });
    let expected =
        BatchSchema { rows: 5, position_bytes: 9, columns: columns.collect(), ..BatchSchema::default() };
    assert_eq!(transform.schema(5, 9), expected);
    let written = serde_json::to_value(&specs[1]).unwrap();
    let json = serde_json::json!({
        "name": "label", "column": "l", "kind": "fixed", "dtype": "int32", "shape": [], "missing": -1.0
    });
    assert_eq!(written, json);
    assert_eq!(serde_json::from_value::<ColumnSpec>(written).unwrap(), specs[1]);
}

#[test]
fn narrow_columns_share_a_block() {
    let rows = 100;
    let floats = |row: usize| [row as f32 + 0.25, -(row as f32)];
    let pairs = (0..rows).map(|row| Some(floats(row).map(Some)));
    let triples = (0..rows).map(|row| Some((0..3).map(move |place| Some((row + place) as i64))));
    let data: [(&str, ArrayRef); 6] = [
        // Row 7 is faulty, and row 9 has no value.
        (
            "flag",
            Arc::new(
                (0..rows).map(|row| Some(if row == 7 { 2 } else { row as i64 % 2 })).collect::<Int64Array>(),
            ),
        ),
        ("id", Arc::new((0..rows).map(|row| Some(row as i64 * 0x0102_0304_0506)).collect::<Int64Array>())),
        ("url", Arc::new(StringArray::from_iter_values((0..rows).map(|row| row.to_string())))),
        ("pair", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(pairs))),
        ("triple", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(triples))),
        (
            "count",
            Arc::new((0..rows).map(|row| (row != 9).then_some(row as i64 * 300)).collect::<Int64Array>()),
        ),
    ];
    let kinds = [
        fixed(Dtype::Bool, &[]),
        fixed(Dtype::Int64, &[]),
        ColumnKind::Raw { maximum: 8 },
        fixed(Dtype::Float32, &[2]),
        fixed(Dtype::Uint16, &[3]),
        fixed(Dtype::Uint16, &[]),
    ];
    let specs: Vec<ColumnSpec> = kinds
        .into_iter()
        .zip(&data)
        .map(|(kind, (name, _))| ColumnSpec { column: (*name).into(), ..column(name, kind, Some(1.0)) })
        .map(|spec| ColumnSpec { missing: spec.missing.filter(|_| !spec.kind.has_offsets()), ..spec })
        .collect();
    let transform = Transform::of_columns(&specs, None, &[]).unwrap();
    let bad = BadRecords::new(OnBadRecord::Skip { limit: 1 });
    let Transformed { chunk, usable, .. } = transform.apply(&raw(&data), &bad).unwrap();
    assert_eq!(usable.unwrap().iter().position(|usable| !usable), Some(7));
    let places = chunk.columns.iter().map(|column| match column {
        ChunkColumn::Narrow { at, row_bytes } => Some((*at, *row_bytes)),
        _ => None,
    });
    assert_eq!(
        places.collect::<Vec<_>>(),
        [Some((0, 1)), Some((1, 8)), None, Some((9, 8)), None, Some((17, 2))]
    );
    assert_eq!(chunk.narrow.len(), (rows - 1) * 19);
    for (place, row) in (0..rows).filter(|&row| row != 7).enumerate() {
        let count = if row == 9 { 1 } else { row as u16 * 300 };
        let expected = [
            vec![row as u8 % 2],
            (row as i64 * 0x0102_0304_0506).to_ne_bytes().to_vec(),
            row.to_string().into_bytes(),
            floats(row).map(f32::to_ne_bytes).concat(),
            [0, 1, 2].map(|place| (row as u16 + place).to_ne_bytes()).concat(),
            count.to_ne_bytes().to_vec(),
        ];
        let found: Vec<&[u8]> = (0..6).map(|column| chunk.column_row(column, place)).collect();
        assert_eq!(found, expected, "row {row}");
    }
}

#[test]
fn images_and_tokens_are_never_narrow() {
    let image = ImageSpec {
        height: 1,
        width: 1,
        channels: Channels::Gray,
        crop: Crop::None,
        flip: false,
        jitter: Jitter::default(),
        normalize: None,
        layout: Layout::Nhwc,
        dtype: Dtype::Uint8,
        decode: Decode::Exact,
        max_pixels: 1,
        average_bytes: None,
    };
    let spec = ColumnSpec { image: Some(image.clone()), ..column("c", image.column_kind(), None) };
    assert_eq!(spec.kind.row_bytes(), 1);
    let transform = Transform::of_columns(&[spec], None, &[]).unwrap();
    let jpeg = BinaryArray::from_vec(vec![&[0xff, 0xd8, 0xff, 0xe0]]);
    let chunk = transform.apply(&raw(&[("x", Arc::new(jpeg))]), &strict()).unwrap().chunk;
    assert!(matches!(&chunk.columns[..], [ChunkColumn::Images(_)]));

    let packing = SequenceSpec { length: 1, how: Packing::BestFit };
    let packed = Packed { spec: &packing, tokenizers: &Tokenizers::new() };
    let kind = packing.column_kind(Dtype::Int32);
    let spec = ColumnSpec { tokens: Some(TokenSpec::default()), ..column("c", kind, None) };
    let transform = Transform::of_columns(&[spec], Some(packed), &[]).unwrap();
    let tokens = ListArray::from_iter_primitive::<Int64Type, _, _>([Some([Some(5), Some(6)])]);
    let chunk = transform.apply(&raw(&[("x", Arc::new(tokens))]), &strict()).unwrap().chunk;
    assert!(matches!(&chunk.columns[..], [ChunkColumn::Ragged { .. }]));
}

#[test]
fn bad_values_are_reported_with_their_address() {
    let ints = |rows: [Option<Vec<i64>>; 2]| -> ArrayRef {
        let rows = rows.map(|row| row.map(|row| row.into_iter().map(Some).collect::<Vec<_>>()));
        Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(rows))
    };
    let ragged = || ColumnKind::Ragged { dtype: Dtype::Int16, maximum: 2 };
    let url = || ColumnKind::Raw { maximum: 4 };
    let cases: [(ColumnKind, ArrayRef, &str); 12] = [
        (
            fixed(Dtype::Uint8, &[28, 28]),
            ints([Some(vec![1; 784]), Some(vec![1, 2, 3])]),
            "expected 784 values, the product of `shape`, found 3",
        ),
        (fixed(Dtype::Uint8, &[1]), ints([Some(vec![1]), Some(vec![1, 2])]), "expected one value, found 2"),
        (
            fixed(Dtype::Uint8, &[2]),
            ints([Some(vec![1, 2]), Some(vec![1, 300])]),
            "expected a whole number from 0 to 255, found `300`",
        ),
        (
            fixed(Dtype::Uint8, &[2]),
            ints([Some(vec![1, 2]), None]),
            "a value is missing; set `missing` in the column to the number that replaces it",
        ),
        (
            ragged(),
            ints([None, Some(vec![1, -40_000])]),
            "expected a whole number from -32768 to 32767, found `-40000`",
        ),
        (
            fixed(Dtype::Int64, &[]),
            Arc::new(Float64Array::from(vec![1.0, 0.5])),
            "expected a whole number from -9223372036854775808 to 9223372036854775807, found `0.5`",
        ),
        (
            fixed(Dtype::Uint64, &[]),
            Arc::new(Int8Array::from(vec![1, -1])),
            "expected a whole number from 0 to 18446744073709551615, found `-1`",
        ),
        (
            fixed(Dtype::Bool, &[]),
            Arc::new(Int8Array::from(vec![1, 2])),
            "expected a boolean, 0 or 1, found `2`",
        ),
        (
            fixed(Dtype::Float32, &[]),
            Arc::new(StringArray::from(vec!["1", "one"])),
            "expected a number, found `one`",
        ),
        (
            fixed(Dtype::Int32, &[]),
            Arc::new(Float32Array::from(vec![1.0, f32::NAN])),
            "expected a whole number from -2147483648 to 2147483647, found `NaN`",
        ),
        (
            url(),
            Arc::new(StringArray::from(vec!["a", "abcde"])),
            "expected at most 4 bytes, the column's `maximum`, found 5",
        ),
        (
            url(),
            lists(&[Some(vec![Some("a".into())]), Some(vec![Some("a".into()), None])], false),
            "expected one value, found 2",
        ),
    ];
    for (kind, array, message) in cases {
        let transform = Transform::of_columns(&[column("c", kind, None)], None, &[]).unwrap();
        let (error, rest) = apply_with_bad_record(&transform, &raw(&[("x", array)]));
        assert_eq!(error, format!("data/part-0: record 101, column `x`: {message}"));
        assert_eq!(rest.rows(), 1);
    }
}

/// The bytes of a column of `dtype` with one value per row.
fn values(dtype: Dtype, array: impl Array + 'static) -> Vec<u8> {
    let transform = Transform::of_columns(&[column("c", fixed(dtype, &[]), None)], None, &[]).unwrap();
    let chunk = transform.apply(&raw(&[("x", Arc::new(array))]), &strict()).unwrap().chunk;
    assert_eq!(chunk.columns, [ChunkColumn::Narrow { at: 0, row_bytes: dtype.bytes() }]);
    chunk.narrow
}

#[test]
fn dates_times_and_decimals_are_read_as_numbers() {
    let dates = Date32Array::from(vec![20_778, -1]);
    assert_eq!(values(Dtype::Int32, dates), [20_778_i32, -1].map(i32::to_ne_bytes).concat());
    let times = TimestampMillisecondArray::from(vec![1500]);
    assert_eq!(values(Dtype::Float32, times), 1.5_f32.to_ne_bytes());
    let decimals = Decimal128Array::from(vec![200]).with_precision_and_scale(9, 2).unwrap();
    assert_eq!(values(Dtype::Uint8, decimals), [2]);
    // Floats do not have these.
    let large = [(1 << 53) + 1, -(1 << 53) - 1, i64::MAX, i64::MIN];
    let scaled = |scale: i8| {
        let power = 10_i128.pow(scale.unsigned_abs().into());
        let mantissas = large.map(|value| i128::from(value) * power).to_vec();
        Decimal128Array::from(mantissas).with_precision_and_scale(38, scale).unwrap()
    };
    for scale in [0, 4] {
        assert_eq!(values(Dtype::Int64, scaled(scale)), large.map(i64::to_ne_bytes).concat());
    }
    let two = i256::from_i128(2).checked_mul(i256::from_i128(10_i128.pow(38))).unwrap();
    let wide = Decimal256Array::from(vec![two]).with_precision_and_scale(76, 38).unwrap();
    assert_eq!(values(Dtype::Uint8, wide), [2]);
    let largest = Decimal256Array::from(vec![i256::from_i128(u64::MAX.into())])
        .with_precision_and_scale(76, 0)
        .unwrap();
    assert_eq!(values(Dtype::Uint64, largest), u64::MAX.to_ne_bytes());
    // The bits of a NaN stay as stored.
    let nan = f32::from_bits(0x7fa0_1234);
    assert_eq!(values(Dtype::Float32, Float32Array::from(vec![nan])), nan.to_ne_bytes());
}

#[test]
fn unsupported_types_are_errors() {
    let apply = |kind, array: ArrayRef| {
        let transform = Transform::of_columns(&[column("c", kind, None)], None, &[]).unwrap();
        transform.apply(&raw(&[("x", array)]), &BadRecords::new(OnBadRecord::Skip { limit: 9 })).unwrap_err()
    };
    let spans = || Arc::new(DurationSecondArray::from(vec![0]));
    let mut bytes = BinaryBuilder::new();
    bytes.append_value(b"a");
    let numbers = apply(fixed(Dtype::Float32, &[]), spans()).to_string();
    assert!(numbers.contains("column `x`") && numbers.contains("numbers, dates"), "{numbers}");
    let raw_kind = || ColumnKind::Raw { maximum: 4 };
    for array in [spans() as ArrayRef, Arc::new(UInt8Array::from(vec![1]))] {
        let error = apply(raw_kind(), array).to_string();
        assert!(error.contains("column `x`") && error.contains("text or bytes"), "{error}");
    }
    let transform = Transform::of_columns(&[column("c", raw_kind(), None)], None, &[]).unwrap();
    let chunk = transform.apply(&raw(&[("x", Arc::new(bytes.finish()))]), &strict()).unwrap().chunk;
    assert_eq!(chunk.columns[0].row(0), b"a");
}

#[test]
fn invalid_columns_are_refused_by_name() {
    let ragged = |maximum| ColumnKind::Ragged { dtype: Dtype::Int8, maximum };
    let cases = [
        (column("c", fixed(Dtype::Int8, &[3, 0]), None), "`shape` = [3, 0]"),
        (column("c", fixed(Dtype::Int8, &[1 << 16, 1 << 16]), None), "lower a size"),
        (column("c", ragged(0), None), "`maximum` must be at least 1"),
        (column("c", ColumnKind::Raw { maximum: 0 }, None), "`maximum` must be at least 1"),
        (column("c", ColumnKind::Raw { maximum: 1 }, Some(0.0)), "remove `missing`"),
        (
            column("c", fixed(Dtype::Int8, &[]), Some(128.0)),
            "`missing` = 128 is not a whole number from -128 to 127",
        ),
        (column("c", ragged(1), Some(0.5)), "`missing` = 0.5"),
    ];
    for (spec, why) in cases {
        let error = Transform::of_columns(&[spec], None, &[]).unwrap_err().to_string();
        assert!(error.starts_with("column `c`: ") && error.contains(why), "{error}");
    }
    let twice = [column("c", ragged(1), None), column("c", fixed(Dtype::Int8, &[]), None)];
    let error = Transform::of_columns(&twice, None, &[]).unwrap_err().to_string();
    assert!(error.contains("column `c`: two columns"), "{error}");
    assert!(Transform::of_columns(&[], None, &[]).is_err());
}
