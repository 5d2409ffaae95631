//! Files read and written past the page cache: aligned buffers, `O_DIRECT`, io_uring.
//!
//! Large files that are read once in a pass gain nothing from the page cache: the kernel copies each byte
//! once more and throws out pages that others need. `O_DIRECT` lets the device write straight into the
//! reader's buffer, at the price of alignment; io_uring keeps several such reads under way from one thread.
//! Both may be refused, by a file system or by a container, and then the same calls go on without.
//!
//! * [`AlignedBuffer`]: memory that a device can read into.
//! * [`DiskFile`]: a file, direct where it can be.
//! * [`Queue`]: reads and writes under way, through io_uring where there is one.
//!
//! **Safety.** A [`Queue`] owns the buffer and a share of the file of each transfer until the kernel is
//! done with it, and gives the buffer back with the result; so no safe code can touch, move or free memory
//! that the kernel may still write to. This is the only thing that the `unsafe` in here rests on.

mod buffer;
mod file;
mod queue;
mod ring;

pub use buffer::{ALIGNMENT, AlignedBuffer};
pub use file::DiskFile;
pub use queue::{Completion, Queue};

/// Which of the fast ways to try. What is refused is gone without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// io_uring, rather than one `pread` or `pwrite` after the other.
    pub ring: bool,
    /// `O_DIRECT`, rather than the page cache.
    pub direct: bool,
}

impl Access {
    /// Both.
    pub const BEST: Self = Self { ring: true, direct: true };

    /// Every combination, the best first: what a test or a measurement goes over.
    pub const ALL: [Self; 4] = [
        Self::BEST,
        Self { ring: false, direct: true },
        Self { ring: true, direct: false },
        Self { ring: false, direct: false },
    ];
}
