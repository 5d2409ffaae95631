//! JSON lines, WebDataset and MDS: records do not depend on the pieces in which a file arrives, they are Examples, and a
//! truncated archive or shard is never mistaken for a complete one.

use std::io::Write;

use millstream_format::compression::{Compression, Compressor, Decompressed};
use millstream_format::example::ExampleColumns;
use millstream_format::record::RecordFormat;

use crate::framing::{Event, any_pieces};
use crate::input::Input;

const FORMATS: [RecordFormat; 3] = [RecordFormat::JsonLines, RecordFormat::WebDataset, RecordFormat::Mds];

/// The first byte selects the format.
pub fn check(data: &[u8]) {
    let mut input = Input(data);
    let format = FORMATS[usize::from(input.byte()) % FORMATS.len()];
    let (pieces, cut) = (input.byte(), input.below(1 << 16));
    let bytes = input.0;
    let events = any_pieces(format, bytes, pieces);
    for event in &events {
        if let Event::Record { data, .. } = event {
            ExampleColumns::every().push(data).expect("every record is an Example");
        }
    }
    let is_plain = |bytes| matches!(Decompressed::of_records(bytes, format), Ok((_, Compression::None)));
    if format == RecordFormat::JsonLines || !is_plain(bytes) || !is_plain(&bytes[..cut % (bytes.len() + 1)]) {
        return;
    }
    // A part of the file has the same first records, and ends with damage unless it is complete: nothing follows, or only bytes
    // after the end of a shard, which are damage of the whole file.
    let cut = cut % (bytes.len() + 1);
    let found = any_pieces(format, &bytes[..cut], pieces);
    let behind = events.get(found.len()..).unwrap_or_default();
    let is_complete = match behind {
        [] => found == events,
        [Event::Damage { offset, fatal: true, .. }] => *offset == cut as u64 && events.starts_with(&found),
        _ => false,
    };
    let (last, before) = found.split_last().map_or((None, &[][..]), |(last, before)| (Some(last), before));
    assert!(events.starts_with(before), "{found:?} is the start of {events:?}");
    assert!(is_complete || last.is_some_and(Event::is_fatal), "cut at {cut}: {found:?} of {events:?}");
}

/// A file of each format.
pub fn seeds() -> Vec<Vec<u8>> {
    let lines = br#"{"a": 1, "b": {"c": [1.5, "x", true]}, "d": null}
{"a": 2, "e": [[1], {"f": "\u00e9"}]}
not JSON
{"a": 3}"#;
    let files =
        [("0.jpg", &b"\xff\xd8"[..]), ("0.json", br#"{"a": 1}"#), ("1.txt", b"one"), ("2.json", b"[")];
    let members = files.map(|(name, data)| member(name, data, b'0'));
    let extended = [member("pax", b"13 path=3.txt\n", b'x'), member("gnu", b"4.txt\0", b'L')];
    let extended = extended.map(|header| [header, member("short", b"x", b'0')].concat());
    let archive = [&members.concat()[..], &extended.concat(), &[0; 1024]].concat();
    let seed = |format: u8, bytes: &[u8]| [&[format, 3, 200, 1], bytes].concat();
    let gzip = compressed(&archive);
    vec![seed(0, lines), seed(1, &archive), seed(1, &gzip), seed(2, &shard()), seed(2, &compressed(&shard()))]
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut compressor = Compressor::new(Vec::new(), Compression::Gzip).unwrap();
    compressor.write_all(bytes).unwrap();
    compressor.finish().unwrap()
}

/// A member of a tar archive.
fn member(name: &str, data: &[u8], kind: u8) -> Vec<u8> {
    let mut header = vec![0; 512];
    let mut put = |at: usize, field: &[u8]| header[at..at + field.len()].copy_from_slice(field);
    put(0, name.as_bytes());
    put(124, format!("{:011o}", data.len()).as_bytes());
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header.extend_from_slice(data);
    header.resize(header.len().next_multiple_of(512), 0);
    header
}

/// A shard of MDS with two samples of a number, a text, JSON and an array.
fn shard() -> Vec<u8> {
    let description = br#"{"column_encodings": ["int", "str", "json", "ndarray"],
        "column_names": ["a", "b", "c", "d"], "column_sizes": [8, null, null, null]}"#;
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let array = [33, 4, 2, 1, 0, 0, 0, 2, 0, 0, 0];
    let sample = [&words(&[2, 10, array.len() as u32, 7, 0])[..], br#"ok{"e": [1]}"#, &array].concat();
    let first = (4 * 4 + description.len()) as u32;
    let length = sample.len() as u32;
    [&words(&[2, first, first + length, first + 2 * length]), &description[..], &sample, &sample].concat()
}

/// Parts of names, numbers and JSON.
pub fn dictionary() -> Vec<Vec<u8>> {
    let parts =
        ["ustar", "path=", "size=", "{\"a\": ", "[", "null", "\\u00e9", "ndarray:int32:2", "\"int8\""];
    parts.map(|part| part.as_bytes().to_vec()).to_vec()
}
