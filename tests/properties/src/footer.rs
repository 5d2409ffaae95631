//! Parquet footers: what the checks of metadata accept neither overflows the stack nor reserves memory without bound.
//!
//! Most mutations of a file damage its pages; here, each byte belongs to the footer.

use std::sync::Once;
use std::thread;

use millstream_format::parquet::{quiet_decoder_panics, row_groups_of};

/// The size of the file that the footers describe.
const FILE_BYTES: u64 = 1 << 40;
/// Half of the stack of an ordinary thread.
const STACK_BYTES: usize = 1 << 20;

/// Decodes the bytes as a footer, without its length and magic number.
pub fn check(data: &[u8]) {
    static QUIET: Once = Once::new();
    QUIET.call_once(quiet_decoder_panics);
    let footer = data.to_vec();
    let decoded =
        thread::Builder::new().stack_size(STACK_BYTES).spawn(move || row_groups_of(&footer, FILE_BYTES));
    let Ok(groups) = decoded.unwrap().join().unwrap() else { return };
    let mut next = 0;
    for group in groups {
        assert_eq!(group.first_row, next);
        next += group.rows;
    }
}

/// The footers of small files.
pub fn seeds() -> Vec<Vec<u8>> {
    let footer = |file: Vec<u8>| {
        let (rest, _magic) = file.split_last_chunk::<4>()?;
        let (rest, length) = rest.split_last_chunk::<4>()?;
        Some(rest[rest.len().checked_sub(u32::from_le_bytes(*length) as usize)?..].to_vec())
    };
    crate::parquet::seeds().into_iter().map(|file| footer(file).unwrap()).collect()
}

/// Headers of lists, structures and maps of Thrift, and large numbers.
pub fn dictionary() -> Vec<Vec<u8>> {
    vec![
        b"ARROW:schema".to_vec(),
        vec![0x19, 0xfc],
        vec![0x1c],
        vec![0x35, 0x02, 0x18],
        vec![0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f],
        vec![0xf1, 0xff, 0xff, 0xff, 0xff, 0x07],
        vec![0x9b],
    ]
}
