//! Faults, by script and by chance.

use std::collections::VecDeque;
use std::time::Duration;

/// What goes wrong with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A read is answered with this status.
    Status(u16),
    /// A read's connection breaks before any of the body.
    Reset,
    /// A read's connection breaks after so many bytes of the body.
    Cut(usize),
    /// A read's body ends early, and says that it is whole.
    Short,
    /// One bit of a read's body is wrong.
    Corrupt,
    /// A read stops after half of the body, for this long.
    Stall(Duration),
    /// A read is not answered for this long.
    Silence(Duration),
    /// A read's body comes at so many bytes a second.
    Trickle(u64),
    /// The object is written again, with the same bytes turned round, just before the read.
    Change,
    /// A read gets the whole object, as from a server that knows no ranges.
    NoRange,
    /// A page of a listing is answered with this status.
    ListStatus(u16),
    /// A listing's second or a later page is the one before it again.
    RepeatPage,
    /// A listing's second or a later page is left out.
    LosePage,
    /// A write is answered with this status.
    WriteStatus(u16),
    /// A write is not answered for this long.
    WriteSilence(Duration),
}

impl Fault {
    fn is_of_listing(self) -> bool {
        matches!(self, Self::ListStatus(_) | Self::RepeatPage | Self::LosePage)
    }

    fn is_of_later_page(self) -> bool {
        matches!(self, Self::RepeatPage | Self::LosePage)
    }

    fn is_of_write(self) -> bool {
        matches!(self, Self::WriteStatus(_) | Self::WriteSilence(_))
    }
}

/// Faults to come.
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

    /// The fault of a read.
    pub(crate) fn of_read(&mut self) -> Option<Fault> {
        self.next(|fault| !fault.is_of_listing() && !fault.is_of_write()).or_else(|| self.by_chance())
    }

    /// The fault of a page.
    pub(crate) fn of_page(&mut self, later: bool) -> Option<Fault> {
        self.next(|fault| fault.is_of_listing() && (later || !fault.is_of_later_page()))
    }

    /// The fault of a write.
    pub(crate) fn of_write(&mut self) -> Option<Fault> {
        self.next(Fault::is_of_write)
    }

    fn next(&mut self, fits: impl Fn(Fault) -> bool) -> Option<Fault> {
        let next = self.queue.iter().position(|&fault| fits(fault))?;
        self.queue.remove(next)
    }

    /// The same requests fail in each run: the chance is a hash of the read's number (splitmix64).
    fn by_chance(&mut self) -> Option<Fault> {
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
