//! A file that transfers go to and from directly where its file system can.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, OFlags};

use crate::buffer::ALIGNMENT;

/// An open file. Transfers are at multiples of [`ALIGNMENT`] and of as many bytes, direct or not.
#[derive(Debug)]
pub struct DiskFile {
    file: File,
    direct: AtomicBool,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

impl DiskFile {
    /// Takes an open file, past the page cache if `direct` says so and its file system does not refuse.
    pub fn new(file: File, direct: bool) -> Self {
        let this = Self { file, direct: AtomicBool::new(false) };
        if direct && this.set_direct(true).is_ok() {
            this.direct.store(true, Ordering::Relaxed);
        } else {
            // Advice: nothing depends on it.
            let _ = rustix::fs::fadvise(&this.file, 0, None, Advice::Sequential);
        }
        this
    }

    /// Whether transfers go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    /// The file itself.
    pub fn file(&self) -> &File {
        &self.file
    }

    fn set_direct(&self, direct: bool) -> io::Result<()> {
        let mut flags = rustix::fs::fcntl_getfl(&self.file)?;
        flags.set(OFlags::DIRECT, direct);
        Ok(rustix::fs::fcntl_setfl(&self.file, flags)?)
    }

    /// Transfers all of `bytes`, `done` of which are transferred already, and waits for it. A read ends early
    /// at the end of the file. Returns how many were transferred in all.
    pub(crate) fn transfer(
        &self,
        direction: Direction,
        offset: u64,
        bytes: &mut [u8],
        mut done: usize,
    ) -> io::Result<usize> {
        while done < bytes.len() {
            // Only the end of a file leaves a direct read in the middle of a sector.
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
                // A device that wants more than our alignment, or a file system that says so only now.
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
