//! Checks of crafted bytes, of which each made the `parquet` crate abort, hang or reserve memory without bound.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use parquet::arrow::ArrowWriter;
use parquet::file::metadata::ParquetMetaDataReader;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use super::super::grammar::{MAX_SCHEMA_DEPTH, check_column_index, check_footer, check_offset_index};
use super::super::{MAX_METADATA_BYTES, row_groups_of};
use super::*;

/// The header of a list.
fn list(element: u8, count: u64) -> Vec<u8> {
    if count < 15 {
        vec![(count as u8) << 4 | element]
    } else {
        [vec![0xf0 | element], varint(count)].concat()
    }
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn zigzag(value: i64) -> Vec<u8> {
    varint((value << 1 ^ value >> 63) as u64)
}

/// A group with `children`, or a column of integers without.
fn element(name: &str, children: i64) -> Vec<u8> {
    let kind: &[u8] = if children == 0 { &[0x15, 2, 0x25, 2, 0x18] } else { &[0x35, 2, 0x18] };
    let mut bytes = [kind, &varint(name.len() as u64), name.as_bytes()].concat();
    if children != 0 {
        bytes.push(0x15);
        bytes.extend(zigzag(children));
    }
    bytes.push(0);
    bytes
}

/// A footer without rows and with this schema.
fn footer(elements: &[Vec<u8>]) -> Vec<u8> {
    let schema = [list(wire::STRUCT, elements.len() as u64), elements.concat()].concat();
    [&[0x15, 2, 0x19], &schema[..], &[0x16, 0, 0x19, 0x0c, 0]].concat()
}

/// A column within `depth` groups and the root.
fn nested(depth: usize) -> Vec<u8> {
    let mut elements = vec![element("g", 1); depth + 1];
    elements.push(element("c", 0));
    footer(&elements)
}

fn rejected(bytes: &[u8], expected: &str) {
    let error = row_groups_of(bytes, 1 << 40).unwrap_err();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn schemas_nest_up_to_a_limit() {
    assert_eq!(row_groups_of(&nested(0), 100), Ok(Vec::new()));
    assert_eq!(row_groups_of(&nested(MAX_SCHEMA_DEPTH - 1), 100), Ok(Vec::new()));
    rejected(&nested(MAX_SCHEMA_DEPTH), "nests groups more than 64 deep");
    rejected(&nested(2_000), "nests groups more than 64 deep");
    rejected(&nested(1_000_000), "nests groups more than 64 deep");
}

#[test]
fn groups_have_the_children_that_they_claim() {
    let of = |children| footer(&[element("root", children), element("a", 0), element("b", 0)]);
    assert_eq!(row_groups_of(&of(2), 100), Ok(Vec::new()));
    rejected(&of(i64::from(i32::MAX)), "claims 2147483645 columns and groups more than the 3");
    rejected(&of(3), "claims 1 columns");
    rejected(&of(1), "more than the 2 elements in its root");
    rejected(&of(-1), "claims -1 children");
    rejected(&of((1 << 32) + 2), "overflows");
}

#[test]
fn a_long_name_is_not_repeated_without_bound() {
    let columns = 20_000;
    let group = element(&"n".repeat(100_000), columns);
    let mut elements = vec![element("root", 1), group];
    elements.extend((0..columns).map(|_| element("c", 0)));
    assert!(footer(&elements).len() < 300_000);
    rejected(&footer(&elements), "describes 20002 columns and groups");
}

#[test]
fn lists_fit_the_bytes_and_have_the_types_of_the_format() {
    let claimed = [&[0x15, 2, 0x19], &list(wire::STRUCT, 1 << 30)[..], &[0; 20]].concat();
    rejected(&claimed, "a list claims 1073741824 elements");
    // The crate reads a schema from what is encoded as a text.
    let hidden = nested(2_000);
    let mut disguised = [&[0x15, 2, 0x18], &varint(hidden.len() as u64)[..]].concat();
    disguised.extend(&hidden);
    disguised.extend([0x16, 0, 0x19, 0x0c, 0]);
    rejected(&disguised, "has type 8");
    // A text longer than the bytes.
    rejected(&[&[0x15, 2, 0x58][..], &varint(u64::MAX)].concat(), "claims 18446744073709551615 bytes");
}

#[test]
fn unknown_fields_are_skipped_up_to_a_depth() {
    let with = |field: &[u8]| {
        let mut bytes = nested(0);
        bytes.pop();
        // Field 30, by number.
        bytes.extend([field[0], 60]);
        bytes.extend(&field[1..]);
        bytes.push(0);
        bytes
    };
    let map = [vec![wire::MAP, 2, 0x85], vec![1, b'a', 2, 1, b'b', 4]].concat();
    let lists = [vec![wire::LIST], list(wire::SET, 1), list(wire::BINARY, 2), vec![1, b'x', 0]].concat();
    for known in [
        vec![wire::TRUE],
        vec![wire::I8, 1],
        [vec![wire::DOUBLE], vec![0; 8]].concat(),
        [vec![wire::UUID], vec![0; 16]].concat(),
        vec![wire::STRUCT, 0x16, 2, 0x18, 1, b'x', 0x1c, 0, 0],
        vec![wire::MAP, 0],
        vec![wire::LIST, 0],
        map,
        lists,
    ] {
        assert_eq!(row_groups_of(&with(&known), 100), Ok(Vec::new()), "{known:?}");
    }
    let structs = |depth: usize| [vec![wire::STRUCT], vec![0x1c; depth - 1], vec![0; depth]].concat();
    assert_eq!(row_groups_of(&with(&structs(MAX_UNKNOWN_DEPTH)), 100), Ok(Vec::new()));
    rejected(&with(&structs(MAX_UNKNOWN_DEPTH + 1)), "nests more than 32 deep");
    rejected(&with(&structs(100_000)), "nests more than 32 deep");
    // The crate would count to 2^31 for each of these, without consuming a byte.
    let booleans = |count| [vec![wire::LIST], list(wire::FALSE, count)].concat();
    rejected(&with(&booleans(i32::MAX as u64)), "claims 2147483647 elements");
    rejected(&with(&[booleans(3), vec![1; 3]].concat()), "a list of booleans");
    rejected(&with(&[wire::MAP, 2, 0x11, 0, 0]), "a list of booleans");
    rejected(&with(&[14]), "unknown type 14");
}

#[test]
fn page_indexes_fit_their_bytes() {
    let offsets = [vec![0x19], list(wire::STRUCT, 1), vec![0x16, 8, 0x15, 20, 0x16, 0, 0, 0]].concat();
    assert_eq!(check_offset_index(&offsets), Ok(()));
    let claimed = [vec![0x19], list(wire::STRUCT, i32::MAX as u64), vec![0; 9]].concat();
    assert!(check_offset_index(&claimed).unwrap_err().contains("claims 2147483647 elements"));
    let claimed = [vec![0x19], list(wire::TRUE, i32::MAX as u64), vec![0; 9]].concat();
    assert!(check_column_index(&claimed).unwrap_err().contains("claims 2147483647 elements"));
}

#[test]
fn damaged_integers_and_ends_are_errors() {
    rejected(&[], "end within a structure");
    rejected(&[0x15], "end within a structure");
    rejected(&[&[0x15][..], &[0x80; 40], &[1]].concat(), "overflows");
    rejected(&[&[0x15][..], &zigzag(1 << 40)].concat(), "overflows");
    rejected(&[&[0x05][..], &zigzag(40_000)].concat(), "no valid number");
    let whole = nested(3);
    (0..whole.len()).for_each(|length| _ = row_groups_of(&whole[..length], 100).unwrap_err());
}

#[test]
fn a_wide_file_with_many_row_groups_is_within_the_limits() {
    let columns: Vec<(String, ArrayRef)> = (0..50)
        .map(|column| (format!("c{column}"), Arc::new(Int64Array::from_iter_values(0..20)) as ArrayRef))
        .collect();
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let plain = WriterProperties::builder().set_statistics_enabled(EnabledStatistics::None).build();
    for properties in [plain, WriterProperties::default()] {
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
        for _ in 0..200 {
            writer.write(&batch).unwrap();
            writer.flush().unwrap();
        }
        let file = writer.into_inner().unwrap();
        let length = u32::from_le_bytes(*file[..file.len() - 4].last_chunk().unwrap()) as usize;
        let footer = &file[file.len() - 8 - length..file.len() - 8];
        assert!(check_footer(footer).unwrap() < MAX_METADATA_BYTES);
        assert_eq!(row_groups_of(footer, file.len() as u64).unwrap().len(), 200);
        // The expected factor is far below the limit.
        let decoded = ParquetMetaDataReader::decode_metadata(footer).unwrap().memory_size();
        assert!(decoded < 16 * footer.len(), "{decoded} for {}", footer.len());
    }
}
