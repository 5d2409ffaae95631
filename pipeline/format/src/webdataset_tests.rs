#![allow(clippy::unwrap_used)]

use std::io::Write;

use crate::Content;
use crate::compression::{Compression, Compressor, Decompressed};
use crate::record::testing::{Row, row, rows};
use crate::record::{MAX_RECORD_BYTES, RecordFormat};
use crate::tar::BLOCK_BYTES;

/// A header of a member, in the layout that POSIX describes, with a checksum.
fn header(name: &[u8], size: &[u8], kind: u8, magic: &[u8], prefix: &[u8]) -> Vec<u8> {
    let mut header = vec![0; BLOCK_BYTES];
    let mut put = |at: usize, field: &[u8]| header[at..at + field.len()].copy_from_slice(field);
    put(0, name);
    put(100, b"0000644\0");
    put(124, size);
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, &[kind]);
    put(257, magic);
    put(345, prefix);
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// A member with its data.
fn member(name: &str, data: &[u8], kind: u8) -> Vec<u8> {
    let size = format!("{:011o}\0", data.len());
    let mut bytes = header(name.as_bytes(), size.as_bytes(), kind, b"ustar\x0000", b"");
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
    bytes
}

fn file(name: &str, data: &[u8]) -> Vec<u8> {
    member(name, data, b'0')
}

/// An archive of these members, with its end.
fn archive(members: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = members.concat();
    bytes.resize(bytes.len() + 2 * BLOCK_BYTES, 0);
    bytes
}

fn read(bytes: &[u8]) -> Vec<Result<Row, String>> {
    rows(RecordFormat::WebDataset, bytes, MAX_RECORD_BYTES)
}

#[test]
fn consecutive_files_with_one_key_are_a_sample() {
    let bytes = archive(&[
        member("train/", b"", b'5'),
        file("README", b"no extension"),
        file("__meta__/about.txt", b"skipped"),
        file("__meta__", b"skipped"),
        file("__part/a.txt", b"kept"),
        file("train/000.jpg", b"\xff\xd8"),
        file("train/000.CLS", b"7\n"),
        file("train/000.seg.png", b""),
        file("train/.hidden.txt", b"skipped"),
        file("train/001.json", br#"{"caption": "a dog", "size": {"w": 3}}"#),
        file("train/001.jpg", b"x"),
        file("./002.txt", b"two"),
    ]);
    assert_eq!(
        read(&bytes),
        [
            row(&[("__key__", &["__part/a"]), ("txt", &["kept"])]),
            row(&[
                ("__key__", &["train/000"]),
                ("jpg", &["\\xff\\xd8"]),
                ("cls", &["7\\n"]),
                ("seg.png", &[""])
            ]),
            row(&[
                ("__key__", &["train/001"]),
                ("json", &[r#"{\"caption\": \"a dog\", \"size\": {\"w\": 3}}"#]),
                ("json.caption", &["a dog"]),
                ("json.size.w", &["3"]),
                ("jpg", &["x"]),
            ]),
            row(&[("__key__", &["./002"]), ("txt", &["two"])]),
        ]
    );
}

#[test]
fn damage_of_a_sample_leaves_the_others() {
    let bytes = archive(&[
        file("0.txt", b"a"),
        file("0.txt", b"b"),
        file("0.cls", b"1"),
        file("1.__key__", b"x"),
        file("2.json", b"[1]"),
        file("3.json", b"{\"a\": 1, \"b\": NaN}"),
        file("3.txt", b"c"),
    ]);
    let read = read(&bytes);
    assert_eq!(read[0], Err("the sample has two files `0.txt`".to_owned()));
    assert_eq!(read[1], Err("the sample has two files `1.__key__`".to_owned()));
    let json = r#"{\"a\": 1, \"b\": NaN}"#;
    assert_eq!(
        read[2..],
        [
            row(&[("__key__", &["2"]), ("json", &["[1]"])]),
            row(&[("__key__", &["3"]), ("json", &[json]), ("txt", &["c"])]),
        ]
    );
}

#[test]
fn names_and_sizes_have_extensions() {
    let long = format!("{}/000.txt", "d".repeat(300));
    let gnu = [
        member("././@LongLink", format!("{long}\0").as_bytes(), b'L'),
        member("short-ignored", b"gnu", b'0'),
    ];
    let line = |key: &str, value: &str| {
        // The length of the line counts its own digits.
        let rest = format!(" {key}={value}\n");
        let length =
            (1..5).map(|digits| rest.len() + digits).find(|n| n.to_string().len() + rest.len() == *n);
        format!("{}{rest}", length.unwrap())
    };
    let pax = [
        member("g", line("comment", "x").as_bytes(), b'g'),
        member(
            "PaxHeader",
            (line("mtime", "1.5") + &line("path", &long) + &line("size", "3")).as_bytes(),
            b'x',
        ),
        // The size in the header is another one, as of a file of more than 8 GiB.
        [
            header(b"short-ignored", b"77777777777\0", b'0', b"ustar\x0000", b""),
            b"pax".to_vec(),
            vec![0; 509],
        ]
        .concat(),
    ];
    let prefix = [
        header(b"000.txt", b"00000000003\0", b'0', b"ustar\x0000", "d".repeat(150).as_bytes()),
        [b"ust".to_vec(), vec![0; 509]].concat(),
    ];
    let binary = [
        header(b"9.txt", b"\x80\0\0\0\0\0\0\0\0\0\0\x03", b'0', b"ustar  \0", b""),
        [b"bin".to_vec(), vec![0; 509]].concat(),
    ];
    // Before POSIX: no magic number, sizes with spaces.
    let old = [header(b"8.txt", b"         3 \0", 0, b"", b""), [b"old".to_vec(), vec![0; 509]].concat()];
    let key = format!("{}/000", "d".repeat(300));
    let short = format!("{}/000", "d".repeat(150));
    for (members, key, text) in [
        (gnu.concat(), key.as_str(), "gnu"),
        (pax.concat(), &key, "pax"),
        (prefix.concat(), &short, "ust"),
        (binary.concat(), "9", "bin"),
        (old.concat(), "8", "old"),
    ] {
        assert_eq!(read(&archive(&[members])), [row(&[("__key__", &[key]), ("txt", &[text])])]);
    }
}

#[test]
fn a_truncated_archive_is_damaged_wherever_it_ends() {
    let whole = archive(&[file("0.txt", b"a"), file("0.cls", b"1"), file("1.txt", &[b'x'; 600])]);
    let intact = read(&whole);
    assert_eq!(intact.len(), 2);
    // Only zeros may follow the first block of zeros.
    let end = whole.len() - BLOCK_BYTES;
    assert_eq!(read(&whole[..end]), intact);
    for cut in 0..end {
        let found = read(&whole[..cut]);
        let (last, before) = found.split_last().unwrap();
        assert!(last.as_ref().unwrap_err().starts_with("!the file ends within"), "cut at {cut}: {last:?}");
        assert!(intact.starts_with(before), "cut at {cut}");
    }
}

#[test]
fn a_first_name_that_looks_compressed_is_a_name() {
    // As the first bytes of zlib.
    let bytes = archive(&[file("80000.jpg", b"x")]);
    assert_eq!(Compression::detect(&bytes), Compression::Zlib);
    assert_eq!(Content::detect(&bytes[..BLOCK_BYTES]), Content::Tar);
    let (stream, compression) = Decompressed::of_records(&*bytes, RecordFormat::WebDataset).unwrap();
    assert_eq!(compression, Compression::None);
    assert_eq!(rows(RecordFormat::WebDataset, stream, MAX_RECORD_BYTES).len(), 1);
    // Compressed, it is an archive as well, whose checksum is at its end.
    let mut compressor = Compressor::new(Vec::new(), Compression::Gzip).unwrap();
    compressor.write_all(&bytes).unwrap();
    let bytes = compressor.finish().unwrap();
    for cut in [0, 1, 8] {
        let cut = &bytes[..bytes.len() - cut];
        let (stream, _) = Decompressed::of_records(cut, RecordFormat::WebDataset).unwrap();
        let read = rows(RecordFormat::WebDataset, stream, MAX_RECORD_BYTES);
        assert_eq!(read.iter().all(Result::is_ok), cut.len() == bytes.len(), "{read:?}");
    }
}

#[test]
fn problems_of_an_archive_are_named() {
    let error = |bytes: &[u8]| read(bytes).pop().unwrap().unwrap_err();
    let mut flipped = archive(&[file("0.txt", b"a")]);
    flipped[3] ^= 1;
    assert_eq!(error(&flipped), "!no header of a tar archive");
    assert_eq!(error(&archive(&[member("0.txt", b"a", b'S')])), "!sparse files are not supported");
    let size = header(b"0.txt", b"-0000000001\0", b'0', b"ustar\x0000", b"");
    assert!(error(&archive(&[size])).contains("the size of a file is not a number"));
    let pax = member("PaxHeader", b"99 path=x\n", b'x');
    assert_eq!(error(&archive(&[pax, file("0.txt", b"a")])), "!a pax header is malformed");
    let name = member("x", b"0.\xe9", b'L');
    assert_eq!(
        read(&archive(&[name.clone(), file("0.txt", b"a")])),
        [row(&[("__key__", &["0"]), ("\u{fffd}", &["a"])])]
    );
    assert_eq!(error(&archive(&[name])), "!the archive ends behind an extended header");
    let pax = member("PaxHeader", b"29 size=18446744073709551615\n", b'x');
    let no_size = "!the size in a pax header is not a number";
    assert_eq!(error(&archive(&[pax, file("0.txt", b"a")])), no_size);
    let whole = archive(&[file("0.txt", b"a")]);
    assert_eq!(error(&[&whole[..], &whole].concat()), "!data follow the end of the archive");
    let flat = r#"{"name of an object": {"a": 1, "b": 2, "c": 3, "d": 4}}"#;
    let limited = rows(RecordFormat::WebDataset, &*archive(&[file("0.json", flat.as_bytes())]), 150);
    assert!(limited[0].as_ref().unwrap_err().contains("more than 150 bytes"), "{limited:?}");
    let long = [file("0.txt", b"a"), file("1.txt", &[b'x'; 600])];
    let limited = rows(RecordFormat::WebDataset, &*archive(&long), 200);
    let error = limited[1].as_ref().unwrap_err();
    assert!(limited[0].is_ok() && error.contains("exceeds the limit of 200"), "{error}");
}
