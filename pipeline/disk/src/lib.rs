//! File I/O that bypasses the page cache: aligned buffers, `O_DIRECT`, io_uring.
//!
//! Large files that are read once per pass gain nothing from the page cache: the kernel makes one more copy of
//! each byte and evicts pages that others need. `O_DIRECT` lets the device write straight into the reader's
//! buffer but requires alignment; io_uring keeps several such reads in flight from one thread. A file system
//! or a container may refuse either; the same calls then work without it.
//!
//! * [`AlignedBuffer`]: memory that a device can transfer to and from directly.
//! * [`DiskFile`]: a file, opened for direct I/O if possible.
//! * [`Queue`]: reads and writes in flight, through io_uring if available.
//! * [`prefer_huge_pages`]: fewer page faults in buffers of ordinary reads.
//!
//! **Safety.** A [`Queue`] owns the buffer and a reference to the file of each transfer until the kernel has
//! completed it, and returns the buffer with the result. So safe code cannot access, move or free memory that
//! the kernel may still write to.

mod buffer;
mod file;
mod huge_pages;
mod queue;
mod ring;

pub use buffer::{ALIGNMENT, AlignedBuffer};
pub use file::DiskFile;
pub use huge_pages::prefer_huge_pages;
pub use queue::{Completion, Queue};

/// The access modes to try. A refused mode is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// io_uring instead of sequential `pread` and `pwrite` calls.
    pub ring: bool,
    /// `O_DIRECT` instead of the page cache.
    pub direct: bool,
}

impl Access {
    /// Both modes.
    pub const BEST: Self = Self { ring: true, direct: true };

    /// All combinations, the fastest first, for tests and benchmarks.
    pub const ALL: [Self; 4] = [
        Self::BEST,
        Self { ring: false, direct: true },
        Self { ring: true, direct: false },
        Self { ring: false, direct: false },
    ];
}
