#![allow(clippy::unwrap_used)]

use std::io::Write;

use serde_json::json;

use crate::compression::{Compression, Compressor, Decompressed};
use crate::record::testing::{Row, row, rows};
use crate::record::{MAX_RECORD_BYTES, RecordFormat};

/// A shard with these columns (name, encoding, size) and encoded samples.
fn shard(columns: &[(&str, &str, Option<u32>)], samples: &[Vec<u8>]) -> Vec<u8> {
    let description = json!({
        "format": "mds",
        "version": 2,
        "column_names": columns.iter().map(|column| column.0).collect::<Vec<_>>(),
        "column_encodings": columns.iter().map(|column| column.1).collect::<Vec<_>>(),
        "column_sizes": columns.iter().map(|column| column.2).collect::<Vec<_>>(),
    });
    let description = description.to_string().into_bytes();
    let mut offset = (4 * (samples.len() + 2) + description.len()) as u32;
    let mut bytes = (samples.len() as u32).to_le_bytes().to_vec();
    bytes.extend(offset.to_le_bytes());
    for sample in samples {
        offset += sample.len() as u32;
        bytes.extend(offset.to_le_bytes());
    }
    [bytes, description, samples.concat()].concat()
}

fn read(bytes: &[u8]) -> Vec<Result<Row, String>> {
    rows(RecordFormat::Mds, bytes, MAX_RECORD_BYTES)
}

const COLUMNS: [(&str, &str, Option<u32>); 3] =
    [("id", "int", Some(8)), ("text", "str", None), ("weight", "float32", Some(4))];

fn sample(id: i64, text: &str, weight: f32) -> Vec<u8> {
    let size = (text.len() as u32).to_le_bytes();
    [&size[..], &id.to_le_bytes(), text.as_bytes(), &weight.to_le_bytes()].concat()
}

#[test]
fn columns_become_features() {
    let bytes = shard(&COLUMNS, &[sample(-5, "one", 0.5), sample(7, "", f32::MAX)]);
    assert_eq!(
        read(&bytes),
        [
            row(&[("id", &["-5"]), ("text", &["one"]), ("weight", &["0.5"])]),
            row(&[("id", &["7"]), ("text", &[""]), ("weight", &["340282350000000000000000000000000000000"])]),
        ]
    );
    assert_eq!(read(&shard(&COLUMNS, &[])), []);
}

#[test]
fn numbers_of_all_types_and_arrays_are_read() {
    let types: [(&str, Vec<u8>, &str); 11] = [
        ("int8", vec![0xff], "-1"),
        ("uint8", vec![0xff], "255"),
        ("int16", vec![0xff, 0xff], "-1"),
        ("uint16", vec![0xff, 0xff], "65535"),
        ("int32", vec![0xff; 4], "-1"),
        ("uint32", vec![0xff; 4], "4294967295"),
        ("int64", vec![0xff; 8], "-1"),
        ("uint64", vec![0xff; 8], "18446744073709551615"),
        ("float16", vec![0x00, 0x3e], "1.5"),
        ("float32", 1.5_f32.to_le_bytes().to_vec(), "1.5"),
        ("float64", 0.1_f64.to_le_bytes().to_vec(), "0.1"),
    ];
    for (name, value, text) in &types {
        let bytes = shard(&[("x", name, Some(value.len() as u32))], std::slice::from_ref(value));
        assert_eq!(read(&bytes), [row(&[("x", &[text])])], "{name}");
        let encoding = format!("ndarray:{name}:3,1");
        let three = value.repeat(3);
        let bytes = shard(&[("x", &encoding, Some(three.len() as u32))], std::slice::from_ref(&three));
        assert_eq!(read(&bytes), [row(&[("x", &[text, text, text])])], "{encoding}");
        // One axis, whose length is a u8; then the type as well.
        let code =
            [9, 8, 17, 16, 33, 32, 65, 64, 18, 34, 66][types.iter().position(|t| t.0 == *name).unwrap()];
        for (encoding, head) in
            [(format!("ndarray:{name}"), vec![4, 2]), ("ndarray".to_owned(), vec![code, 4, 2])]
        {
            let array = [head, value.repeat(2)].concat();
            let sample = [&(array.len() as u32).to_le_bytes()[..], &array].concat();
            assert_eq!(read(&shard(&[("x", &encoding, None)], &[sample])), [row(&[("x", &[text, text])])]);
        }
    }
}

#[test]
fn json_is_read_as_in_json_lines() {
    let of = |text: &str| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let samples = [of(r#"{"a": [1, 2]}"#), of("[3, 4.5]"), of("5"), of("{"), of("null")];
    let read = read(&shard(&[("x", "json", None)], &samples));
    assert_eq!(
        read[..3],
        [row(&[("x.a", &["1", "2"])]), row(&[("x", &["3", "4.5"])]), row(&[("x", &["5"])])]
    );
    let error = read[3].as_ref().unwrap_err();
    assert!(error.starts_with("column `x`: "), "{error}");
    assert_eq!(read[4], row(&[("x", &[])]));
}

#[test]
fn damage_is_named_and_truncation_never_the_end() {
    let whole = shard(&COLUMNS, &[sample(1, "one", 1.0), sample(2, "two", 2.0)]);
    let intact = read(&whole);
    for cut in 0..whole.len() {
        let found = read(&whole[..cut]);
        let (last, before) = found.split_last().unwrap();
        assert!(last.as_ref().unwrap_err().starts_with("!the file ends within"), "cut at {cut}: {last:?}");
        assert!(intact.starts_with(before));
    }
    let mut wrong = sample(1, "one", 1.0);
    wrong[0] = 4;
    let read_both = read(&shard(&COLUMNS, &[wrong, sample(2, "two", 2.0)]));
    assert_eq!(read_both[0], Err("the sizes of its columns exceed the sample".to_owned()));
    assert_eq!(read_both[1], intact[1]);
    let error = |bytes: &[u8]| read(bytes).pop().unwrap().unwrap_err();
    let mut longer = sample(1, "one", 1.0);
    longer.push(0);
    assert_eq!(error(&shard(&COLUMNS, &[longer])), "the sample is longer than its columns");
    assert!(error(&shard(&[("x", "future", None)], &[])).contains("encoding `future`: is not supported"));
    assert!(error(&shard(&[("x", "int", Some(4))], &[])).contains("encoding `int`: has another size"));
    let mut descending = whole;
    descending[8..12].fill(0);
    assert!(error(&descending).contains("not ascending"));
    assert!(error(b"\xff\xff\xff\xff").contains("4294967295 samples, more than"));
    assert_eq!(error(&[&shard(&COLUMNS, &[])[..], b"x"].concat()), "!data follow the last sample");
    let long = rows(RecordFormat::Mds, &*shard(&COLUMNS, &[sample(1, &"x".repeat(99), 1.0)]), 100);
    assert_eq!(long, [Err("!a record of 115 bytes exceeds the limit of 100".to_owned())]);
    // One axis of two values, of which one exists; and a shape that the size of the column contradicts.
    let one = [&7_u32.to_le_bytes()[..], &[4, 2, 1, 0, 0, 0, 0]].concat();
    assert!(error(&shard(&[("x", "ndarray:int32", None)], &[one])).contains("no array"));
    assert!(error(&shard(&[("x", "ndarray:int8:2,2", Some(3))], &[vec![1, 2, 3]])).contains("no array"));
    // Numbers of samples that look like the first bytes of zlib and gzip.
    for (samples, magic) in [(376, [0x78, 0x01]), (35_615, [0x1f, 0x8b])] {
        let bytes = shard(&[("x", "int8", Some(1))], &vec![vec![1]; samples]);
        assert_eq!(bytes[..2], magic);
        let (stream, compression) = Decompressed::of_records(&*bytes, RecordFormat::Mds).unwrap();
        assert_eq!(compression, Compression::None);
        assert_eq!(rows(RecordFormat::Mds, stream, MAX_RECORD_BYTES).len(), samples);
    }
    // A compressed shard whose stream has lost its checksum.
    let mut compressor = Compressor::new(Vec::new(), Compression::Gzip).unwrap();
    compressor.write_all(&shard(&COLUMNS, &[sample(1, "one", 1.0)])).unwrap();
    let bytes = compressor.finish().unwrap();
    for cut in [0, 1, 8] {
        let cut = &bytes[..bytes.len() - cut];
        let (stream, _) = Decompressed::of_records(cut, RecordFormat::Mds).unwrap();
        let read = rows(RecordFormat::Mds, stream, MAX_RECORD_BYTES);
        assert_eq!(read.iter().all(Result::is_ok), cut.len() == bytes.len(), "{read:?}");
    }
}
