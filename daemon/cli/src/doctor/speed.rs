//! A short measurement of a disk: how fast it writes and reads, the way checkpoints and the cache do.
//!
//! The file has no name, so nothing of it remains however the command ends.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_disk::{AlignedBuffer, DiskFile, Queue};
use rustix::fs::{CWD, Mode, OFlags};

/// At most this much is written.
const MAX_BYTES: u64 = 256 << 20;

/// Time limit for writing, and for reading.
const LIMIT: Duration = Duration::from_secs(1);

/// The size of a transfer, and their number in flight.
const TRANSFER_BYTES: usize = 4 << 20;
const DEPTH: usize = 4;

/// The result of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Speed {
    pub(super) write_bytes_per_second: f64,
    pub(super) read_bytes_per_second: f64,
    /// Whether transfers bypassed the page cache; otherwise, reads come from memory.
    pub(super) is_direct: bool,
}

/// What a directory's file system supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Support {
    pub(super) direct: bool,
    pub(super) ring: bool,
}

/// A file without a name in `directory`.
pub(super) fn nameless(directory: &Path) -> io::Result<File> {
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::openat(CWD, directory, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
        Ok(file) => Ok(file.into()),
        // Network file systems have no such files: give it a name for a moment.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR | rustix::io::Errno::NOENT) => {
            let path = directory.join(format!(".millstream-doctor-{}", std::process::id()));
            let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether the file system of `directory` has direct transfers, and the kernel io_uring.
pub(super) fn support(directory: &Path) -> io::Result<Support> {
    let file = Arc::new(DiskFile::new(nameless(directory)?, true));
    let mut queue = Queue::new(1, true);
    queue.write(&file, 0, AlignedBuffer::zeroed(millstream_disk::ALIGNMENT), 0);
    queue.wait().map_or(Ok(0), |done| done.result)?;
    Ok(Support { direct: file.is_direct(), ring: queue.uses_ring() })
}

/// Measures the file system of `directory`.
pub(super) fn measure(directory: &Path) -> io::Result<Speed> {
    let file = Arc::new(DiskFile::new(nameless(directory)?, true));
    let began = Instant::now();
    let written = transfer(&file, MAX_BYTES, true)?;
    file.file().sync_data()?;
    let write_bytes_per_second = written as f64 / began.elapsed().as_secs_f64();
    let began = Instant::now();
    let read = transfer(&file, written, false)?;
    let read_bytes_per_second = read as f64 / began.elapsed().as_secs_f64();
    Ok(Speed { write_bytes_per_second, read_bytes_per_second, is_direct: file.is_direct() })
}

/// Writes or reads up to `most` bytes from the start of `file`, within the time limit. Returns the number of bytes.
fn transfer(file: &Arc<DiskFile>, most: u64, writes: bool) -> io::Result<u64> {
    let mut queue = Queue::new(DEPTH as u32, true);
    let mut buffers: Vec<AlignedBuffer> = (0..DEPTH).map(|_| filled()).collect();
    let until = Instant::now() + LIMIT;
    let (mut offset, mut done) = (0, 0);
    loop {
        while offset + TRANSFER_BYTES as u64 <= most && Instant::now() < until {
            let Some(buffer) = buffers.pop() else { break };
            match writes {
                true => queue.write(file, offset, buffer, 0),
                false => queue.read(file, offset, buffer, 0),
            }
            offset += TRANSFER_BYTES as u64;
        }
        let Some(completion) = queue.wait() else { return Ok(done) };
        done += completion.result? as u64;
        buffers.push(completion.buffer);
    }
}

/// A buffer that file systems can neither compress nor store as a hole.
fn filled() -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(TRANSFER_BYTES);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for word in buffer.as_chunks_mut::<8>().0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state.to_le_bytes();
    }
    buffer
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_measurement_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        support(directory.path()).unwrap();
        let speed = measure(directory.path()).unwrap();
        assert!(speed.write_bytes_per_second > 0.0 && speed.read_bytes_per_second > 0.0, "{speed:?}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(measure(&directory.path().join("absent")).is_err());
    }
}
