//! Files for direct I/O.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, OFlags};

use crate::buffer::ALIGNMENT;

/// An open file. Offsets and lengths of transfers are multiples of [`ALIGNMENT`], whether direct or not.
#[derive(Debug)]
pub struct DiskFile {
    file: File,
    direct: AtomicBool,
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

impl DiskFile {
    /// Wraps an open file. If `direct` is set and the file system supports it, transfers bypass the page cache.
    pub fn new(file: File, direct: bool) -> Self {
        let this = Self { file, direct: AtomicBool::new(false) };
        if direct && this.set_direct(true).is_ok() {
            this.direct.store(true, Ordering::Relaxed);
        } else {
            // The advice is only a hint, so its failure does not matter.
            let _ = rustix::fs::fadvise(&this.file, 0, None, Advice::Sequential);
        }
        this
    }

    /// Whether transfers bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    /// The underlying file.
    pub fn file(&self) -> &File {
        &self.file
    }

    fn set_direct(&self, direct: bool) -> io::Result<()> {
        let mut flags = rustix::fs::fcntl_getfl(&self.file)?;
        flags.set(OFlags::DIRECT, direct);
        Ok(rustix::fs::fcntl_setfl(&self.file, flags)?)
    }

    /// Transfers `bytes[done..]` synchronously. A read ends early at the end of the file. Returns the number of
    /// bytes transferred, including the first `done`.
    pub(crate) fn transfer(
        &self,
        direction: Direction,
        offset: u64,
        bytes: &mut [u8],
        mut done: usize,
    ) -> io::Result<usize> {
        while done < bytes.len() {
            // A direct read stops inside a sector only at the end of the file.
            if direction == Direction::Read && !done.is_multiple_of(ALIGNMENT) && self.is_direct() {
                break;
            }
            let at = offset + done as u64;
            let moved = match direction {
                Direction::Read => self.file.read_at(&mut bytes[done..], at),
                Direction::Write => self.file.write_at(&bytes[done..], at),
            };
            match moved {
                Ok(0) if direction == Direction::Write => return Err(io::ErrorKind::WriteZero.into()),
                Ok(0) => break,
                Ok(moved) => done += moved,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The device requires a larger alignment, or the file system reports only now that it lacks direct I/O.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput && self.is_direct() => {
                    self.set_direct(false)?;
                    self.direct.store(false, Ordering::Relaxed);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

impl AsFd for DiskFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
