#![allow(clippy::unwrap_used)]

use super::*;

/// The name, size and data of each file of an archive.
fn files(archive: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut reader = TarReader::new(archive);
    let mut files = Vec::new();
    while let Some(member) = reader.next_member().unwrap() {
        let mut data = Vec::new();
        reader.read_to(&mut data).unwrap();
        assert_eq!(member.size, data.len() as u64);
        files.push((String::from_utf8(member.name).unwrap(), data));
    }
    files
}

#[test]
fn written_files_are_read() {
    let names = [
        "a.txt".to_owned(),
        "x".repeat(100),
        "x".repeat(101),
        "é".to_owned(),
        "é".repeat(70),
        // Around lengths of records where the number of their digits changes.
        "y".repeat(988),
        "y".repeat(989),
        "y".repeat(990),
        format!("{}/b", "d".repeat(300)),
    ];
    let data = |place: usize| vec![7; [0, 1, 511, 512, 513, 2000][place % 6]];
    let mut archive = Vec::new();
    for (place, name) in names.iter().enumerate() {
        append_file(&mut archive, name, &data(place));
        assert_eq!(archive.len() % BLOCK_BYTES, 0);
    }
    archive.extend_from_slice(&END);
    let expected: Vec<_> =
        names.iter().enumerate().map(|(place, name)| (name.clone(), data(place))).collect();
    assert_eq!(files(&archive), expected);
}

#[test]
fn short_names_need_one_block() {
    let mut archive = Vec::new();
    append_headers(&mut archive, &"x".repeat(100), (1 << 33) - 1);
    assert_eq!((archive.len(), archive[TYPE]), (BLOCK_BYTES, b'0'));
    assert_eq!(archive[SIZE], *b"77777777777\0");
}

#[test]
fn sizes_beyond_octal_digits_are_in_a_pax_header() {
    for size in [(1 << 33) - 1, 1 << 33, 123 << 40] {
        let mut archive = Vec::new();
        append_headers(&mut archive, "large.bin", size);
        let member = TarReader::new(&archive[..]).next_member().unwrap().unwrap();
        assert_eq!((member.size, &member.name[..]), (size, &b"large.bin"[..]));
        assert_eq!(archive[TYPE] == b'x', size >= 1 << 33, "{size}");
    }
}
