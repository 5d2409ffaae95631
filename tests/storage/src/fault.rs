//! Scripted and random faults.

use std::collections::VecDeque;
use std::time::Duration;

/// A fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A read fails with this status.
    Status(u16),
    /// A read's connection is reset before any byte of the body.
    Reset,
    /// A read's connection is reset after this many bytes of the body.
    Cut(usize),
    /// A read's body is too short, but matches its content length.
    Short,
    /// One bit of a read's body is flipped.
    Corrupt,
    /// A read pauses for this long after half of the body.
    Stall(Duration),
    /// A read gets no response for this long.
    Silence(Duration),
    /// A read's body arrives at this many bytes per second.
    Trickle(u64),
    /// The object is overwritten with its bytes in reverse order just before the read.
    Change,
    /// A read gets the whole object, as from a server without range support.
    NoRange,
    /// A page of a listing fails with this status.
    ListStatus(u16),
    /// A later page of a listing repeats the previous one.
    RepeatPage,
    /// A later page of a listing is skipped.
    LosePage,
    /// A write fails with this status.
    WriteStatus(u16),
    /// A write gets no response for this long.
    WriteSilence(Duration),
}

impl Fault {
    fn affects_listing(self) -> bool {
        matches!(self, Self::ListStatus(_) | Self::RepeatPage | Self::LosePage)
    }

    fn affects_later_page(self) -> bool {
        matches!(self, Self::RepeatPage | Self::LosePage)
    }

    fn affects_write(self) -> bool {
        matches!(self, Self::WriteStatus(_) | Self::WriteSilence(_))
    }
}

/// Pending faults.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) queue: VecDeque<Fault>,
    failing_per_mille: u32,
    reads: u64,
}

impl Script {
    pub(crate) fn new(failing_per_mille: u32) -> Self {
        Self { queue: VecDeque::new(), failing_per_mille, reads: 0 }
    }

    /// The fault of the next read, scripted or random.
    pub(crate) fn for_read(&mut self) -> Option<Fault> {
        self.next(|fault| !fault.affects_listing() && !fault.affects_write()).or_else(|| self.random())
    }

    /// The fault of the next page of a listing.
    pub(crate) fn for_page(&mut self, later: bool) -> Option<Fault> {
        self.next(|fault| fault.affects_listing() && (later || !fault.affects_later_page()))
    }

    /// The fault of the next write.
    pub(crate) fn for_write(&mut self) -> Option<Fault> {
        self.next(Fault::affects_write)
    }

    fn next(&mut self, fits: impl Fn(Fault) -> bool) -> Option<Fault> {
        let next = self.queue.iter().position(|&fault| fits(fault))?;
        self.queue.remove(next)
    }

    /// Reproducible: a hash of the read's number (SplitMix64) decides which reads fail.
    fn random(&mut self) -> Option<Fault> {
        self.reads += 1;
        let mut hash = self.reads.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        hash ^= hash >> 31;
        let faults = [Fault::Status(503), Fault::Status(500), Fault::Reset, Fault::Cut(100_000)];
        (hash % 1_000 < u64::from(self.failing_per_mille))
            .then(|| faults[(hash >> 32) as usize % faults.len()])
    }
}
