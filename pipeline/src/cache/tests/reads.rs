//! Cached reads return the same rows as uncached ones, even if the file is damaged or removed.

use millstream_io::permits::Permit;

use super::super::read_all;
use super::super::store::COMPLETE;
use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn cached_reads_match_uncached_reads(
        (chunk, shape) in chunks(0_usize..400),
        repeat in 1_usize..40,
        skips in any::<bool>(),
        max_rows in proptest::sample::select(vec![1_usize, 7, 64, 2048]),
        later_rows in proptest::sample::select(vec![1_usize, 50, 300, 5000]),
        from in any::<u16>(),
        mode in 0_usize..4,
    ) {
        // Sometimes large enough for several blocks.
        let chunk = repeated(&chunk, repeat);
        let left_out = if skips { 0 } else { 3 };
        let policy = if skips { OnBadRecord::Fail } else { OnBadRecord::Skip { limit: 3 } };
        let rows = Rows { splits: vec![chunk], skips, left_out, ..Rows::default() };
        let directory = tempfile::tempdir().unwrap();
        let options = CacheOptions { access: Access::ALL[mode], ..OPTIONS };
        let open = || cached(&rows, shape, cache(directory.path(), options, 1 << 30), policy, 1);
        let from = u64::from(from) % (rows.splits[0].rows() as u64 + 1);

        let (expected, _) = read(&rows, 0, 0, max_rows);
        let (first, counters) = read(&open(), 0, 0, max_rows);
        prop_assert_eq!(&first, &expected);
        let stats = counters.snapshot().cache;
        prop_assert_eq!((stats.hits, stats.misses), (0, 1));
        prop_assert!(stats.written_bytes > 0);

        let opened = rows.opened.load(Ordering::Relaxed);
        let (second, counters) = read(&open(), 0, 0, later_rows);
        prop_assert_eq!(&second, &expected);
        let stats = counters.snapshot().cache;
        prop_assert_eq!((stats.hits, stats.misses, stats.written_bytes), (1, 0, 0));

        let (resumed, _) = read(&open(), 0, from, later_rows);
        prop_assert_eq!(rows.opened.load(Ordering::Relaxed), opened, "the source was not opened");
        let (expected, _) = read(&rows, 0, from, max_rows);
        // Truncated rows are counted per block.
        let expected = Read { truncated_rows: resumed.truncated_rows, ..expected };
        prop_assert_eq!(resumed, expected);
    }

    #[test]
    fn damaged_files_are_detected(
        (chunk, shape) in chunks(1_usize..200),
        at in any::<u32>(),
        flip in 1_u8..,
        truncate in any::<bool>(),
        from in any::<u16>(),
    ) {
        let chunk = repeated(&chunk, 1200 / chunk.rows());
        let rows = Rows { splits: vec![chunk], skips: true, ..Rows::default() };
        let directory = tempfile::tempdir().unwrap();
        let open = || cached(&rows, shape, cache(directory.path(), OPTIONS, 1 << 30), OnBadRecord::Fail, 1);
        read(&open(), 0, 0, 100);
        let file = directory.path().join(format!("{}.{COMPLETE}", key(0, 1)));
        let mut bytes = fs::read(&file).unwrap();
        let at = at as usize % bytes.len();
        if truncate { bytes.truncate(at) } else { bytes[at] ^= flip }
        fs::write(&file, &bytes).unwrap();

        let from = u64::from(from) % rows.splits[0].rows() as u64;
        let opened = rows.opened.load(Ordering::Relaxed);
        let (seen, _) = read(&open(), 0, from, 64);
        let detected = rows.opened.load(Ordering::Relaxed) > opened;
        let (expected, _) = read(&rows, 0, from, 64);
        prop_assert_eq!(&seen.labels, &expected.labels);
        prop_assert_eq!(Read { truncated_rows: 0, ..seen }, Read { truncated_rows: 0, ..expected });
        // Damage in padding, or in blocks before the first row to read, goes undetected.
        prop_assert!(detected || !truncate);
        prop_assert!(detected != file.exists() || from == 0);
        if !detected && from == 0 {
            prop_assert!(read_all(&bytes).is_ok());
        }
    }
}

#[test]
fn skipped_records_are_reported_and_limited_like_uncached() {
    let (mut rows, shape) = numbered(1, 5000);
    (rows.left_out, rows.skips) = (4, false);
    let directory = tempfile::tempdir().unwrap();
    let read_with = |policy| {
        let source = cached(&rows, shape, cache(directory.path(), OPTIONS, 1 << 30), policy, 1);
        let (seen, counters) = read(&source, 0, 0, 512);
        assert_eq!(seen.left_out, 4);
        assert_eq!(seen.last.unwrap(), "data: record 4, column `c`: no \"number\"\n");
        counters.snapshot().cache.hits
    };
    assert_eq!(read_with(OnBadRecord::Skip { limit: 4 }), 0);
    assert_eq!(read_with(OnBadRecord::Skip { limit: 4 }), 1);
    // These exceed the limit, so the source is read and reports the error.
    assert_eq!(read_with(OnBadRecord::Skip { limit: 3 }), 0);
    assert_eq!(read_with(OnBadRecord::Fail), 0);
}

#[test]
fn partially_read_splits_leave_no_file() {
    let (rows, shape) = numbered(1, 500_000);
    let directory = tempfile::tempdir().unwrap();
    let source = cached(&rows, shape, cache(directory.path(), OPTIONS, 1 << 30), OnBadRecord::Fail, 1);
    let mut reader = source.open(0, 0, &Permit::default(), &Arc::default()).unwrap().reader;
    (0..200).for_each(|_| drop(reader.next(2048).unwrap().unwrap()));
    drop((reader, source));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    // Nor does a split resumed by a source that skips to the row.
    let source = cached(&rows, shape, cache(directory.path(), OPTIONS, 1 << 30), OnBadRecord::Fail, 1);
    read(&source, 0, 10, 2048);
    drop(source);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_cached_source_has_the_filter_of_its_source() {
    let directory = tempfile::tempdir().unwrap();
    let (rows, shape) = numbered(1, 10);
    for has_filter in [false, true] {
        let rows = Rows { has_filter, ..rows.clone() };
        let cache = cache(directory.path(), OPTIONS, 1 << 30);
        assert_eq!(cached(&rows, shape, cache, OnBadRecord::Fail, 1).has_filter(), has_filter);
    }
}
