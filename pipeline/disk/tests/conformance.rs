//! Conformance tests, run in every access mode.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use millstream_disk::{ALIGNMENT, Access, AlignedBuffer, DiskFile, Queue};
use proptest::prelude::*;

/// Directories on the build's disk and in memory (tmpfs refuses `O_DIRECT` on older kernels).
fn directories() -> Vec<tempfile::TempDir> {
    let on_disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let in_memory = Path::new("/dev/shm").is_dir().then(|| tempfile::tempdir_in("/dev/shm").unwrap());
    [Some(on_disk), in_memory].into_iter().flatten().collect()
}

fn for_every_mode(check: impl Fn(&Path, Access, u32)) {
    for directory in directories() {
        for access in Access::ALL {
            for depth in [1, 3, 16] {
                check(directory.path(), access, depth);
            }
        }
    }
}

fn create(path: &Path, access: Access) -> Arc<DiskFile> {
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    Arc::new(DiskFile::new(file, access.direct))
}

fn open(path: &Path, access: Access) -> Arc<DiskFile> {
    Arc::new(DiskFile::new(File::open(path).unwrap(), access.direct))
}

fn buffer(blocks: usize, value: u8) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(blocks * ALIGNMENT);
    buffer.fill(value);
    buffer
}

#[test]
fn files_written_in_one_mode_read_back_in_every_mode() {
    for_every_mode(|directory, access, depth| {
        let path = directory.join("file");
        let file = create(&path, access);
        let mut queue = Queue::new(depth, access.ring);
        let mut offset = 0;
        for number in 0..20_u8 {
            let blocks = usize::from(number % 4) + 1;
            queue.write(&file, offset, buffer(blocks, number), u64::from(number));
            offset += (blocks * ALIGNMENT) as u64;
        }
        let mut tokens: Vec<u64> = Vec::new();
        while let Some(written) = queue.wait() {
            assert_eq!(written.result.unwrap(), written.buffer.len());
            tokens.push(written.token);
        }
        tokens.sort_unstable();
        assert_eq!(tokens, (0..20).collect::<Vec<_>>());
        assert_eq!(queue.pending(), 0);

        let expected = std::fs::read(&path).unwrap();
        assert_eq!(expected.len() as u64, offset);
        for other in Access::ALL {
            let file = open(&path, other);
            let mut queue = Queue::new(depth, other.ring);
            for block in (0..expected.len()).step_by(3 * ALIGNMENT) {
                queue.read(&file, block as u64, AlignedBuffer::zeroed(3 * ALIGNMENT), block as u64);
            }
            let mut read = HashMap::new();
            while let Some(done) = queue.wait() {
                let bytes = done.result.unwrap();
                read.insert(done.token as usize, done.buffer[..bytes].to_vec());
            }
            for (at, bytes) in read.iter() {
                let end = expected.len().min(at + 3 * ALIGNMENT);
                assert_eq!(bytes, &expected[*at..end]);
            }
            assert_eq!(read.len(), expected.len().div_ceil(3 * ALIGNMENT));
        }
    });
}

#[test]
fn reads_stop_at_the_end_of_the_file() {
    for_every_mode(|directory, access, depth| {
        let path = directory.join("file");
        for length in [0, 1, ALIGNMENT - 1, ALIGNMENT, ALIGNMENT + 1, 2 * ALIGNMENT, 2 * ALIGNMENT + 77] {
            let contents: Vec<u8> = (0..length).map(|i| i as u8).collect();
            std::fs::write(&path, &contents).unwrap();
            let file = open(&path, access);
            let mut queue = Queue::new(depth, access.ring);
            for at in [0, ALIGNMENT, 4 * ALIGNMENT] {
                queue.read(&file, at as u64, AlignedBuffer::zeroed(2 * ALIGNMENT), at as u64);
                let done = queue.wait().unwrap();
                let expected = &contents[at.min(length)..length.min(at + 2 * ALIGNMENT)];
                assert_eq!(done.result.unwrap(), expected.len(), "{length} bytes from {at}, {access:?}");
                assert_eq!(&done.buffer[..expected.len()], expected);
            }
        }
    });
}

#[test]
fn failed_transfers_return_an_error_and_the_buffer() {
    for_every_mode(|directory, access, depth| {
        let path = directory.join("file");
        std::fs::write(&path, [1; 2 * ALIGNMENT]).unwrap();
        let file = open(&path, access);
        let mut queue = Queue::new(depth, access.ring);
        let error = |queue: &mut Queue| {
            let done = queue.wait().unwrap();
            (done.token, done.buffer.len(), done.result.unwrap_err().kind())
        };
        queue.read(&file, 1, buffer(1, 0), 7);
        assert_eq!(error(&mut queue), (7, ALIGNMENT, io::ErrorKind::InvalidInput));
        queue.read(&file, 0, AlignedBuffer::zeroed(100), 8);
        assert_eq!(error(&mut queue), (8, 100, io::ErrorKind::InvalidInput));
        queue.write(&file, 0, buffer(1, 0), 9);
        let (token, bytes, _) = error(&mut queue);
        assert_eq!((token, bytes), (9, ALIGNMENT), "the file is read-only");
        assert!(queue.wait().is_none());
        assert_eq!(std::fs::read(&path).unwrap(), [1; 2 * ALIGNMENT]);
    });
}

#[test]
fn dropping_a_queue_waits_for_transfers_in_flight() {
    for_every_mode(|directory, access, depth| {
        let path = directory.join("file");
        let file = create(&path, access);
        let mut queue = Queue::new(depth, access.ring);
        for number in 0..64 {
            queue.write(&file, number * ALIGNMENT as u64, buffer(1, number as u8), number);
        }
        drop((queue, file));
        let written = std::fs::read(&path).unwrap();
        assert_eq!(written.len(), 64 * ALIGNMENT);
        for (number, block) in written.chunks(ALIGNMENT).enumerate() {
            assert!(block.iter().all(|&byte| byte == number as u8));
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn reads_return_the_contents_of_the_file(
        length in 0_usize..40_000,
        reads in proptest::collection::vec((0_u64..12, 1_usize..5), 1..30),
        depth in 1_u32..8,
        mode in 0_usize..4,
    ) {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let contents: Vec<u8> = (0..length).map(|i| (i * 7 / 3) as u8).collect();
        let path = directory.path().join("file");
        std::fs::write(&path, &contents).unwrap();
        let access = Access::ALL[mode];
        let file = open(&path, access);
        let mut queue = Queue::new(depth, access.ring);
        for (token, &(block, blocks)) in (0..).zip(&reads) {
            queue.read(&file, block * ALIGNMENT as u64, AlignedBuffer::zeroed(blocks * ALIGNMENT), token);
        }
        let mut seen = 0;
        while let Some(done) = queue.wait() {
            let (block, blocks) = reads[done.token as usize];
            let start = (block as usize * ALIGNMENT).min(length);
            let end = (start + blocks * ALIGNMENT).min(length);
            let bytes = done.result.unwrap();
            prop_assert_eq!(&done.buffer[..bytes], &contents[start..end]);
            seen += 1;
        }
        prop_assert_eq!(seen, reads.len());
    }
}
