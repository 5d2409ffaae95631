//! The flight recorder: a rank's last operations, in memory that outlives its process.
//!
//! A hanging collective shows on all ranks but the one at fault, and a killed worker cannot be asked. So each worker records
//! the operations that it begins and ends in an anonymous file, and signs of life while it waits in one. A holder of the
//! file's descriptor, such as the daemon, reads it at any time, also after the worker's death.
//!
//! ```text
//! offset   0   magic      8 bytes, "millfrec"
//!          8   version    u64, [`VERSION`]
//!         16   rank       u64
//!         24   ranks      u64
//!         32   alive      u64, when the thread last ran in an operation; 0 before the first
//!         64   entry 0    number       u64, of the operation; 0: none
//!                         codes        u64: root << 16 | format << 8 | operation
//!                         bytes        u64, that this rank passed
//!                         began, ended, failed
//!                                      u64; ended is 0 until it has succeeded, failed until it has failed
//!                         16 unused bytes
//!        128   entry 1, and so on to [`ENTRIES`]; operation n has entry n % ENTRIES
//! ```
//!
//! Times are nanoseconds of the system's monotonic clock. One thread writes, and readers may read at the same time: an entry has number 0 while it changes, and a reader that finds
//! another number after reading than before skips the entry.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use millstream_batch::shared_memory::anonymous_file;
use rustix::fs::SealFlags;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::time::{ClockId, clock_gettime};

use super::transport::Operation;

/// How many operations a recorder keeps.
const ENTRIES: usize = 1023;

/// The recent time of a rank.
const WINDOW: Duration = Duration::from_secs(30);

const MAGIC: u64 = u64::from_ne_bytes(*b"millfrec");

/// Changes whenever the layout above changes.
const VERSION: u64 = 2;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

#[repr(C, align(64))]
struct Head {
    magic: AtomicU64,
    version: AtomicU64,
    rank: AtomicU64,
    ranks: AtomicU64,
    alive: AtomicU64,
}

#[repr(C, align(64))]
struct Entry {
    number: AtomicU64,
    codes: AtomicU64,
    bytes: AtomicU64,
    began: AtomicU64,
    ended: AtomicU64,
    failed: AtomicU64,
}

#[repr(C)]
struct Contents {
    head: Head,
    entries: [Entry; ENTRIES],
}

const _: () = {
    assert!(offset_of!(Contents, entries) == 64 && size_of::<Entry>() == 64);
    assert!(size_of::<Contents>() == 64 << 10);
};

/// Records the operations of a [`Communicator`](crate::collective::Communicator).
pub struct Recorder {
    contents: Mapping,
}

impl Recorder {
    /// An empty file for the record of rank `rank` among `ranks`.
    ///
    /// # Errors
    /// If the system refuses the memory.
    pub fn create_file(rank: usize, ranks: usize) -> io::Result<OwnedFd> {
        let file = anonymous_file(c"millstream-flight-record")?;
        rustix::fs::ftruncate(&file, size_of::<Contents>() as u64)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        let contents = Mapping::new(&file, ProtFlags::READ | ProtFlags::WRITE)?;
        let head = &contents.get().head;
        head.version.store(VERSION, Ordering::Relaxed);
        head.rank.store(rank as u64, Ordering::Relaxed);
        head.ranks.store(ranks as u64, Ordering::Relaxed);
        head.magic.store(MAGIC, Ordering::Release);
        Ok(file)
    }

    /// Records into a file of [`Recorder::create_file`], which may be from another process.
    ///
    /// # Errors
    /// If it is not such a file of this version.
    pub fn open(file: impl AsFd) -> Result<Self, RecordError> {
        Ok(Self { contents: Mapping::of_record(file, ProtFlags::READ | ProtFlags::WRITE)? })
    }

    /// Operation `number`, counted from 1, begins.
    pub(super) fn begin(&self, operation: Operation, number: u64, bytes: usize) {
        let (code, format, root) = operation.codes();
        let entry = self.entry(number);
        entry.number.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        entry
            .codes
            .store(u64::from(root) << 16 | u64::from(format) << 8 | u64::from(code), Ordering::Relaxed);
        entry.bytes.store(bytes as u64, Ordering::Relaxed);
        entry.began.store(now(), Ordering::Relaxed);
        entry.ended.store(0, Ordering::Relaxed);
        entry.failed.store(0, Ordering::Relaxed);
        entry.number.store(number, Ordering::Release);
        self.show_life();
    }

    /// The thread runs. Transports call this while they wait for other ranks, many times a second.
    pub(super) fn show_life(&self) {
        self.contents.get().head.alive.store(now(), Ordering::Release);
    }

    /// Operation `number`, the last that began, has succeeded.
    pub(super) fn end(&self, number: u64) {
        self.entry(number).ended.store(now(), Ordering::Release);
    }

    /// Operation `number`, the last that began, has failed.
    pub(super) fn fail(&self, number: u64) {
        self.entry(number).failed.store(now(), Ordering::Release);
    }

    fn entry(&self, number: u64) -> &Entry {
        &self.contents.get().entries[(number % ENTRIES as u64) as usize]
    }
}

/// What a recorder has kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlightRecord {
    /// The rank that recorded.
    pub rank: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// When it last showed life in an operation, on the system's monotonic clock; zero before the first.
    pub alive: Duration,
    /// The last operations, by number.
    pub operations: Vec<RecordedOperation>,
}

/// An operation in a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedOperation {
    /// The operation.
    pub operation: Operation,
    /// Its number, counted from 1.
    pub number: u64,
    /// The bytes that this rank passed.
    pub bytes: u64,
    /// When it began, on the system's monotonic clock.
    pub began: Duration,
    /// When it succeeded; `None` while it is open, and if it failed.
    pub ended: Option<Duration>,
    /// When it failed.
    pub failed: Option<Duration>,
}

/// Why a flight record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The system refuses it.
    #[error("flight record: {0}")]
    Os(#[from] io::Error),
    /// The file is no flight record of this version.
    #[error("flight record: {0}")]
    Format(&'static str),
}

impl FlightRecord {
    /// Reads the file of a recorder.
    ///
    /// # Errors
    /// If it is not the file of a recorder of this version.
    pub fn read(file: impl AsFd) -> Result<Self, RecordError> {
        let mapping = Mapping::of_record(file, ProtFlags::READ)?;
        let Contents { head, entries } = mapping.get();
        let mut operations: Vec<RecordedOperation> = entries.iter().filter_map(Entry::read).collect();
        operations.sort_unstable_by_key(|operation| operation.number);
        let (rank, ranks) = (&head.rank, &head.ranks);
        let [rank, ranks] = [rank, ranks].map(|number| number.load(Ordering::Relaxed) as usize);
        Ok(Self { rank, ranks, alive: Duration::from_nanos(head.alive.load(Ordering::Acquire)), operations })
    }

    /// The oldest operation that has not succeeded.
    pub fn oldest_open(&self) -> Option<&RecordedOperation> {
        self.operations.iter().find(|operation| operation.ended.is_none())
    }

    /// The share of its recent time in which this rank was in operations, from 0 to 1; `None` before the second operation. The
    /// slowest rank of a world waits the least.
    pub fn share_in_operations(&self) -> Option<f64> {
        let last = self.operations.last()?;
        let end = last.ended.unwrap_or(last.began);
        let is_recent = |operation: &RecordedOperation| operation.began + WINDOW >= end;
        let recent = &self.operations[self.operations.iter().position(is_recent)?..];
        let span = end.checked_sub(recent[0].began).filter(|span| !span.is_zero() && recent.len() > 1)?;
        let time = |operation: &RecordedOperation| operation.ended?.checked_sub(operation.began);
        let in_operations: Duration = recent.iter().filter_map(time).sum();
        Some(in_operations.as_secs_f64() / span.as_secs_f64())
    }

    /// The number of the last operation that began; 0 if none has.
    pub(super) fn last_begun(&self) -> u64 {
        self.operations.last().map_or(0, |operation| operation.number)
    }
}

impl Entry {
    fn read(&self) -> Option<RecordedOperation> {
        let number = self.number.load(Ordering::Acquire);
        let codes = self.codes.load(Ordering::Relaxed);
        let [code, format, root @ ..] = codes.to_le_bytes();
        let operation = Operation::of_codes(code, format, u16::from_le_bytes([root[0], root[1]]));
        let bytes = self.bytes.load(Ordering::Relaxed);
        let began = Duration::from_nanos(self.began.load(Ordering::Relaxed));
        let moment = |time: &AtomicU64| match time.load(Ordering::Relaxed) {
            0 => None,
            time => Some(Duration::from_nanos(time)),
        };
        let (ended, failed) = (moment(&self.ended), moment(&self.failed));
        fence(Ordering::Acquire);
        let is_stable = number != 0 && self.number.load(Ordering::Relaxed) == number;
        is_stable.then_some(())?;
        Some(RecordedOperation { operation: operation?, number, bytes, began, ended, failed })
    }
}

/// A mapping of a recorder's file.
struct Mapping {
    base: NonNull<Contents>,
}

// SAFETY: `Mapping` owns its mapping, which is valid in every thread of the process until `drop`.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps a sealed file of the size of [`Contents`].
    fn new(fd: impl AsFd, access: ProtFlags) -> io::Result<Self> {
        // SAFETY: with a null address and without `FIXED`, the kernel chooses an unused range: no existing memory is
        // affected.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), size_of::<Contents>(), access, MapFlags::SHARED, fd, 0)
        };
        Ok(Self { base: NonNull::new(base?.cast()).expect("the kernel maps null only on request") })
    }

    /// Maps the file of a record.
    fn of_record(file: impl AsFd, access: ProtFlags) -> Result<Self, RecordError> {
        // The seal keeps the size, so that no access to the mapping can fault.
        match rustix::fs::fcntl_get_seals(&file) {
            Ok(seals) if seals.contains(SEALS) => {}
            _ => return Err(RecordError::Format("the file is not sealed against resizing")),
        }
        let size = rustix::fs::fstat(&file).map_err(io::Error::from)?.st_size;
        if size != size_of::<Contents>() as i64 {
            return Err(RecordError::Format("the file has another size"));
        }
        let mapping = Self::new(&file, access)?;
        let head = &mapping.get().head;
        if head.magic.load(Ordering::Acquire) != MAGIC || head.version.load(Ordering::Relaxed) != VERSION {
            return Err(RecordError::Format("the file was written by another version of Millstream"));
        }
        Ok(mapping)
    }

    fn get(&self) -> &Contents {
        // SAFETY: the mapping has the size of `Contents`, page alignment, and the lifetime of `self`; the seals keep the
        // file's size. Any bytes are valid contents, all of which are atomics. A read-only mapping is only loaded from.
        unsafe { self.base.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: only this value unmaps the range, which `mmap` returned, and all borrows of it have ended.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), size_of::<Contents>()) };
        debug_assert!(unmapped.is_ok(), "unmapping an owned mapping succeeds");
    }
}

/// Nanoseconds of the monotonic clock, which all processes of a host share.
pub(super) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::Float;
    use crate::collective::memory::Format;

    const SUM: Operation = Operation::Sum(Float::F16);
    const BROADCAST: Operation = Operation::Broadcast { format: Format::U64, root: 258 };

    fn recorder(rank: usize, ranks: usize) -> (Recorder, OwnedFd) {
        let file = Recorder::create_file(rank, ranks).unwrap();
        (Recorder::open(&file).unwrap(), file)
    }

    #[test]
    fn a_record_outlives_its_recorder() {
        let (recorder, file) = recorder(1, 3);
        recorder.begin(SUM, 1, 4000);
        recorder.end(1);
        recorder.begin(BROADCAST, 2, 16);
        drop(recorder);
        let record = FlightRecord::read(&file).unwrap();
        assert_eq!((record.rank, record.ranks, record.operations.len()), (1, 3, 2));
        let [first, second] = &record.operations[..] else { unreachable!() };
        assert_eq!((first.operation, first.number, first.bytes), (SUM, 1, 4000));
        assert!(first.ended.unwrap() >= first.began && second.began >= first.ended.unwrap());
        assert_eq!((second.operation, second.number, second.bytes, second.ended), (BROADCAST, 2, 16, None));
        assert_eq!((record.oldest_open(), second.failed), (Some(second), None));
        assert!(record.alive >= second.began);
        // Another process goes on with the same file.
        Recorder::open(&file).unwrap().fail(2);
        let failed = FlightRecord::read(&file).unwrap().operations[1].failed;
        assert!(failed.unwrap() >= second.began);
    }

    #[test]
    fn the_last_operations_are_kept() {
        let (recorder, file) = recorder(0, 1);
        let last = 3 * ENTRIES as u64 + 7;
        for number in 1..=last {
            recorder.begin(SUM, number, 4);
            recorder.end(number);
        }
        let record = FlightRecord::read(&file).unwrap();
        let numbers: Vec<u64> = record.operations.iter().map(|operation| operation.number).collect();
        assert_eq!(numbers, (last + 1 - ENTRIES as u64..=last).collect::<Vec<u64>>());
        assert_eq!(record.oldest_open(), None);
    }

    #[test]
    fn the_share_of_operations_is_that_of_the_recent_time() {
        let operation = |number: u64, began: u64, milliseconds: Option<u64>| {
            let began = Duration::from_secs(began);
            let ended = milliseconds.map(|milliseconds| began + Duration::from_millis(milliseconds));
            RecordedOperation { operation: SUM, number, bytes: 4, began, ended, failed: None }
        };
        let share = |operations: &[RecordedOperation]| {
            let operations = operations.to_vec();
            FlightRecord { rank: 0, ranks: 2, alive: Duration::ZERO, operations }.share_in_operations()
        };
        let long_ago = operation(1, 10, Some(900));
        let recent = [operation(2, 100, Some(500)), operation(3, 101, Some(1000))];
        assert_eq!(share(&recent), Some(0.75));
        assert_eq!(share(&[std::slice::from_ref(&long_ago), &recent[..]].concat()), Some(0.75));
        // The time in an open operation is not known yet.
        assert_eq!(share(&[&recent[..], &[operation(4, 103, None)]].concat()), Some(0.5));
        assert_eq!([share(&[]), share(&[long_ago])], [None, None]);
    }

    /// Entries that are read while they change are consistent or skipped.
    #[test]
    fn readers_never_see_half_an_entry() {
        let (recorder, file) = recorder(0, 1);
        std::thread::scope(|scope| {
            let writer = scope.spawn(move || {
                for number in 1..200_000 {
                    recorder.begin(
                        if number % 2 == 0 { SUM } else { BROADCAST },
                        number,
                        number as usize * 3,
                    );
                    recorder.end(number);
                }
            });
            let mut seen = 0;
            while !writer.is_finished() || seen == 0 {
                for entry in FlightRecord::read(&file).unwrap().operations {
                    let expected = if entry.number % 2 == 0 { SUM } else { BROADCAST };
                    assert_eq!((entry.operation, entry.bytes), (expected, entry.number * 3));
                    seen += 1;
                }
            }
        });
    }

    #[test]
    fn other_files_are_refused() {
        let message = |file: &OwnedFd| {
            let [read, opened] = [FlightRecord::read(file).err(), Recorder::open(file).err()];
            assert_eq!(read.as_ref().map(RecordError::to_string), opened.map(|error| error.to_string()));
            read.unwrap().to_string()
        };
        let file = anonymous_file(c"test").unwrap();
        assert_eq!(message(&file), "flight record: the file is not sealed against resizing");
        rustix::fs::fcntl_add_seals(&file, SEALS).unwrap();
        assert_eq!(message(&file), "flight record: the file has another size");
        let file = anonymous_file(c"test").unwrap();
        rustix::fs::ftruncate(&file, size_of::<Contents>() as u64).unwrap();
        rustix::fs::fcntl_add_seals(&file, SEALS).unwrap();
        assert_eq!(message(&file), "flight record: the file was written by another version of Millstream");
    }
}
