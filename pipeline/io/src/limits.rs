//! The limits of a dataset's reads, set by the tuner, and their current use.
//!
//! All are atomics, read once per chunk or range. A read that exceeds a limit that was just lowered still completes,
//! so a limit may be exceeded for the duration of one range. The memory budget is not, because it counts every range at
//! its maximum size.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The number of concurrent ranges of an object before its storage was measured.
const INITIAL_STREAMS: u32 = 2;
/// The maximum number of concurrent ranges of one object.
pub const MAX_STREAMS: u32 = 16;
/// The initial limit on an object's bytes: enough for the initial streams.
const INITIAL_OBJECT_BYTES: u64 = 5 << 20;
/// The bounds of a range's size.
const MAX_RANGE_BYTES: u64 = 8 << 20;
const MIN_RANGE_BYTES: u64 = 64 << 10;
/// Ranges held in addition to those in flight: one being decoded and one waiting to be decoded.
const EXTRA_RANGES: u64 = 2;

/// Initially, the memory that decoding one row group may use beyond what its row groups usually need.
const INITIAL_DECODE_BYTES: u64 = 256 << 20;

/// The limits of one dataset's reads, and their use.
#[derive(Debug)]
pub struct ReadLimits {
    streams: AtomicU32,
    object_bytes: AtomicU64,
    decode_bytes: AtomicU64,
    in_flight_bytes: AtomicU64,
}

/// How an object is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// Bytes of a range.
    pub bytes: u64,
    /// Number of concurrent ranges.
    pub in_flight: u32,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self {
            streams: AtomicU32::new(INITIAL_STREAMS),
            object_bytes: AtomicU64::new(INITIAL_OBJECT_BYTES),
            decode_bytes: AtomicU64::new(INITIAL_DECODE_BYTES),
            in_flight_bytes: AtomicU64::new(0),
        }
    }
}

impl ReadLimits {
    /// The minimum number of bytes with which an object can be read.
    pub const MIN_OBJECT_BYTES: u64 = MIN_RANGE_BYTES * (1 + EXTRA_RANGES);

    /// Sets the number of concurrent ranges of an object.
    pub fn set_streams(&self, streams: u32) {
        self.streams.store(streams.clamp(1, MAX_STREAMS), Ordering::Relaxed);
    }

    /// The number of concurrent ranges of an object.
    pub fn streams(&self) -> u32 {
        self.streams.load(Ordering::Relaxed)
    }

    /// Sets the maximum number of bytes of one object in memory: in flight, waiting and being decoded.
    pub fn set_object_bytes(&self, bytes: u64) {
        self.object_bytes.store(bytes.max(Self::MIN_OBJECT_BYTES), Ordering::Relaxed);
    }

    /// The maximum number of bytes of one object in memory.
    pub fn object_bytes(&self) -> u64 {
        self.object_bytes.load(Ordering::Relaxed)
    }

    /// Sets the memory that decoding one row group may use beyond what its row groups usually need: for pages that turn
    /// out to be large.
    pub fn set_decode_bytes(&self, bytes: u64) {
        self.decode_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The memory that decoding one row group may use beyond what its row groups usually need.
    pub fn decode_bytes(&self) -> u64 {
        self.decode_bytes.load(Ordering::Relaxed)
    }

    /// How to read an object within the current limits: with all streams if each range is large enough to justify a
    /// request, and with fewer otherwise.
    pub fn ranges(&self) -> Ranges {
        let bytes = self.object_bytes();
        let affordable = (bytes / MIN_RANGE_BYTES).saturating_sub(EXTRA_RANGES).max(1);
        let in_flight = u64::from(self.streams()).min(affordable);
        let bytes = (bytes / (in_flight + EXTRA_RANGES)).clamp(MIN_RANGE_BYTES, MAX_RANGE_BYTES);
        // At most `MAX_STREAMS`.
        Ranges { bytes, in_flight: in_flight as u32 }
    }

    /// Counts `bytes` as in flight until the returned guard is dropped.
    pub fn request(&self, bytes: u64) -> InFlight<'_> {
        self.in_flight_bytes.fetch_add(bytes, Ordering::Relaxed);
        InFlight { limits: self, bytes }
    }

    /// Bytes in flight.
    pub fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes.load(Ordering::Relaxed)
    }
}

/// Bytes in flight; see [`ReadLimits::request`].
#[derive(Debug)]
pub struct InFlight<'a> {
    limits: &'a ReadLimits,
    bytes: u64,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.limits.in_flight_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_objects_ranges_stay_within_its_bytes(streams in 0_u32..100, bytes in 0_u64..1 << 30) {
            let limits = ReadLimits::default();
            limits.set_streams(streams);
            limits.set_object_bytes(bytes);
            let Ranges { bytes: range, in_flight } = limits.ranges();
            let most = bytes.max(ReadLimits::MIN_OBJECT_BYTES);
            prop_assert!(range * (u64::from(in_flight) + EXTRA_RANGES) <= most);
            prop_assert!((1..=MAX_STREAMS).contains(&in_flight) && range >= MIN_RANGE_BYTES);
        }
    }

    #[test]
    fn bytes_are_in_flight_until_their_guard_is_dropped() {
        let limits = ReadLimits::default();
        let first = limits.request(10);
        {
            let _second = limits.request(5);
            assert_eq!(limits.in_flight_bytes(), 15);
        }
        drop(first);
        assert_eq!(limits.in_flight_bytes(), 0);
    }
}
