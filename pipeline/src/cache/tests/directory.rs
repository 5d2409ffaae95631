//! The cache directory: leftovers, concurrent jobs, limits.

use std::time::{Duration, SystemTime};

use super::super::store::{COMPLETE, PART};
use super::*;

#[test]
fn abandoned_parts_are_removed_and_locked_ones_kept() {
    let (rows, shape) = numbered(3, 1000);
    let directory = tempfile::tempdir().unwrap();
    let part = |split| directory.path().join(format!("{}.{PART}", key(split, 1)));
    fs::write(part(0), "part of a file").unwrap();
    fs::write(part(1), "another's").unwrap();
    fs::write(directory.path().join("notes.txt"), "not ours").unwrap();
    let locked = fs::File::open(part(1)).unwrap();
    locked.lock().unwrap();
    for hits in [0, 2] {
        let source = cached(&rows, shape, cache(directory.path(), OPTIONS, 1 << 30), OnBadRecord::Fail, 1);
        assert_eq!(pass(&source, &rows), hits);
        drop(source);
        assert_eq!(files(directory.path(), PART), [part(1)]);
        assert_eq!(files(directory.path(), COMPLETE).len(), 2);
    }
    assert_eq!(fs::read(part(1)).unwrap(), b"another's");
    drop(locked);
    for hits in [2, 3] {
        let source = cached(&rows, shape, cache(directory.path(), OPTIONS, 1 << 30), OnBadRecord::Fail, 1);
        assert_eq!(pass(&source, &rows), hits);
    }
    assert!(directory.path().join("notes.txt").exists());
}

#[test]
fn concurrent_jobs_share_a_directory() {
    let (rows, shape) = numbered(40, 3000);
    let directory = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for job in 0..4 {
            let (rows, directory) = (&rows, directory.path());
            scope.spawn(move || {
                for _ in 0..3 {
                    let cache = cache(directory, OPTIONS, 1 << 30);
                    pass(&cached(rows, shape, cache, OnBadRecord::Fail, job % 2), rows);
                }
            });
        }
    });
    assert_eq!(files(directory.path(), PART), [] as [PathBuf; 0]);
    assert_eq!(files(directory.path(), COMPLETE).len(), 80);
    for job in 0..2 {
        let source = cached(&rows, shape, cache(directory.path(), OPTIONS, 1 << 30), OnBadRecord::Fail, job);
        assert_eq!(pass(&source, &rows), 40);
    }
}

#[test]
fn a_full_queue_only_disables_caching() {
    let (rows, shape) = numbered(4, 200_000);
    let directory = tempfile::tempdir().unwrap();
    let options = CacheOptions { queue_bytes: 0, ..OPTIONS };
    for _ in 0..2 {
        let source = cached(&rows, shape, cache(directory.path(), options, 1 << 30), OnBadRecord::Fail, 1);
        assert_eq!(pass(&source, &rows), 0);
        drop(source);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}

#[test]
fn an_invalid_directory_only_disables_caching() {
    let (rows, shape) = numbered(4, 1000);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let source = cached(&rows, shape, cache(&file, OPTIONS, 1 << 30), OnBadRecord::Fail, 1);
    assert_eq!((pass(&source, &rows), pass(&source, &rows)), (0, 0));
}

#[test]
fn old_files_are_removed_and_own_files_kept() {
    let (rows, shape) = numbered(12, 5000);
    let directory = tempfile::tempdir().unwrap();
    let open = |max_bytes, job| {
        cached(&rows, shape, cache(directory.path(), OPTIONS, max_bytes), OnBadRecord::Fail, job)
    };
    let bytes = || -> u64 {
        files(directory.path(), COMPLETE).iter().map(|path| path.metadata().unwrap().len()).sum()
    };
    assert_eq!(pass(&open(1 << 30, 1), &rows), 0);
    let one = bytes() / 12;
    let limit = 5 * one;
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    for path in files(directory.path(), COMPLETE) {
        fs::File::open(path).unwrap().set_modified(long_ago).unwrap();
    }

    // Another job frees space by removing old files, and then keeps its own.
    let source = open(limit, 2);
    assert_eq!(pass(&source, &rows), 0);
    drop(source);
    assert!(bytes() <= limit, "{} of {limit}", bytes());
    let source = open(limit, 2);
    let kept = pass(&source, &rows);
    assert!((3..=5).contains(&kept), "{kept}");
    assert_eq!(pass(&source, &rows), kept);
    drop(source);
    assert!(bytes() <= limit);
    // The first job's files were removed.
    assert_eq!(pass(&open(limit, 1), &rows), 0);
}
