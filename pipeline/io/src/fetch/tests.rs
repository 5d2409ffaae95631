#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::storage;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn file(bytes: &[u8]) -> (tempfile::TempDir, Object, tokio::runtime::Runtime) {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), runtime());
    std::fs::write(dir.path().join("a"), bytes).unwrap();
    let object = runtime.block_on(storage::list(&["a".to_owned()], dir.path())).unwrap().remove(0);
    (dir, object, runtime)
}

fn noise(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

proptest! {
    #[test]
    fn pieces_cover_a_range_and_end_at_multiples(start in 0_u64..100, length in 0_u64..100, size in 1_u64..20) {
        let cut: Vec<_> = pieces(start..start + length, size).collect();
        prop_assert_eq!(cut.iter().map(|piece| piece.end - piece.start).sum::<u64>(), length);
        prop_assert!(cut.iter().all(|piece| !piece.is_empty() && piece.start / size == (piece.end - 1) / size));
        prop_assert!(cut.windows(2).all(|pair| pair[0].end == pair[1].start));
        prop_assert_eq!(pieces(start..start + length, size).len(), cut.len());
    }
}

#[test]
fn close_ranges_are_merged() {
    assert_eq!(merged(vec![0..5, 5..7, 9..10, 20..30], 2), [0..10, 20..30]);
    assert_eq!(merged(vec![0..5, 5..7, 9..10], 0), [0..7, 9..10]);
    assert_eq!(merged(vec![], 9), []);
}

#[test]
fn a_file_is_read_whole_and_in_part() {
    let bytes = noise(3 * FILE_BYTES as usize + 4321);
    let (_dir, object, runtime) = file(&bytes);
    let read = |range: Range<u64>| {
        let mut read = Vec::new();
        FetchedBytes::start_range(object.clone(), range, &Arc::default(), &runtime.handle().into())
            .read_to_end(&mut read)
            .unwrap();
        read
    };
    assert!(read(0..object.size()) == bytes);
    for (start, end) in
        [(0, 0), (0, 1), (1, FILE_BYTES), (FILE_BYTES - 1, FILE_BYTES + 1), (77, 3 * FILE_BYTES)]
    {
        assert!(read(start..end) == bytes[start as usize..end as usize], "{start}..{end}");
    }
    assert!(read(5..u64::MAX) == bytes[5..] && read(u64::MAX - 1..u64::MAX).is_empty());
    let ranges = vec![3..9, 9..10, FILE_BYTES..FILE_BYTES + 5];
    let fetched = FetchedRanges::start(object.clone(), ranges, &runtime.handle().into()).wait().unwrap();
    let at = |start: u64, end: u64| (start, Bytes::copy_from_slice(&bytes[start as usize..end as usize]));
    assert_eq!(fetched, [at(3, 10), at(FILE_BYTES, FILE_BYTES + 5)]);
}

#[test]
fn read_ahead_does_not_exceed_its_limit() {
    let (_dir, object, runtime) = file(&noise(20 * FILE_BYTES as usize));
    let limits = Arc::new(ReadLimits::default());
    let mut fetched = FetchedBytes::start(object.clone(), &limits, &runtime.handle().into());
    let held = limits.object_bytes();
    assert!(fetched.next <= held);
    let mut taken = 0;
    while !fetched.fill_buf().unwrap().is_empty() {
        let length = fetched.current.len();
        assert!(fetched.next - taken <= held);
        taken += length as u64;
        fetched.consume(length);
    }
    assert_eq!((taken, fetched.remaining()), (object.size(), 0));
}

#[test]
fn a_file_changed_while_it_is_read_is_rejected() {
    let (dir, object, runtime) = file(&noise(8 * FILE_BYTES as usize));
    let mut fetched = FetchedBytes::start(object, &Arc::default(), &runtime.handle().into());
    fetched.fill_buf().unwrap();
    std::fs::write(dir.path().join("a"), noise(8 * FILE_BYTES as usize + 1)).unwrap();
    let error = io::copy(&mut fetched, &mut io::sink()).unwrap_err();
    assert!(matches!(error.downcast::<Error>(), Ok(Error::Changed { .. })));
}

#[test]
fn cancelled_reads_end_at_once() {
    let (_dir, object, runtime) = file(&noise(8 * FILE_BYTES as usize));
    let mut fetched = FetchedBytes::start(object.clone(), &Arc::default(), &runtime.handle().into());
    object.stores().cancel();
    let error = io::copy(&mut fetched, &mut io::sink()).unwrap_err();
    assert!(matches!(error.downcast::<Error>(), Ok(Error::Cancelled)));
    assert!(matches!(runtime.block_on(object.read(0..1)), Err(Error::Cancelled)));
}
