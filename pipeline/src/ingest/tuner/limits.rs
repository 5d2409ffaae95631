//! What a job's reading may use at the moment, and what it uses: numbers that the tuner writes and the
//! stages read, and the other way round.
//!
//! All are plain atomics, looked at once a chunk or once a range and never waited for: a stage that finds
//! itself above a limit that has just been lowered finishes what it has begun. So a limit may be passed
//! for as long as one range takes; the budget counts ranges at their largest, and is not.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Ranges in flight for an object before anything was learned of its storage.
const FIRST_STREAMS: u32 = 2;
/// The most ranges in flight for one object.
pub const MOST_STREAMS: u32 = 16;
/// What an object's reading holds when nobody says what it may: enough for the first streams.
const FIRST_OBJECT_BYTES: u64 = 5 << 20;
/// The largest range worth a request of its own, and the smallest.
const MOST_RANGE_BYTES: u64 = 8 << 20;
const FEWEST_RANGE_BYTES: u64 = 64 << 10;
/// A range that is taken apart and one that waits for its turn, besides those in flight.
const BESIDE: u64 = 2;

/// What the reading of one dataset may use, and what it uses.
#[derive(Debug)]
pub struct Limits {
    /// Ranges in flight for one object.
    streams: AtomicU32,
    /// Bytes that the reading of one object holds at most: in flight, waiting, being decoded.
    object_bytes: AtomicU64,
    /// Bytes asked for and not here yet.
    in_flight_bytes: AtomicU64,
}

/// How an object is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// Bytes of a range.
    pub bytes: u64,
    /// Ranges in flight at once.
    pub in_flight: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams: AtomicU32::new(FIRST_STREAMS),
            object_bytes: AtomicU64::new(FIRST_OBJECT_BYTES),
            in_flight_bytes: AtomicU64::new(0),
        }
    }
}

impl Limits {
    /// The fewest bytes with which an object can be read at all.
    pub const FEWEST_OBJECT_BYTES: u64 = FEWEST_RANGE_BYTES * (1 + BESIDE);

    /// Sets how many ranges of an object are in flight at once.
    pub fn set_streams(&self, streams: u32) {
        self.streams.store(streams.clamp(1, MOST_STREAMS), Ordering::Relaxed);
    }

    /// Ranges of an object that are in flight at once.
    pub fn streams(&self) -> u32 {
        self.streams.load(Ordering::Relaxed)
    }

    /// Sets the most bytes that the reading of one object holds.
    pub fn set_object_bytes(&self, bytes: u64) {
        self.object_bytes.store(bytes.max(Self::FEWEST_OBJECT_BYTES), Ordering::Relaxed);
    }

    /// The most bytes that the reading of one object holds.
    pub fn object_bytes(&self) -> u64 {
        self.object_bytes.load(Ordering::Relaxed)
    }

    /// How to read an object now: as many ranges as are wanted where each can be of a size worth asking
    /// for, else fewer.
    pub fn ranges(&self) -> Ranges {
        let bytes = self.object_bytes();
        let affordable = (bytes / FEWEST_RANGE_BYTES).saturating_sub(BESIDE).max(1);
        let in_flight = u64::from(self.streams()).min(affordable);
        let bytes = (bytes / (in_flight + BESIDE)).clamp(FEWEST_RANGE_BYTES, MOST_RANGE_BYTES);
        // At most `MOST_STREAMS`.
        Ranges { bytes, in_flight: in_flight as u32 }
    }

    /// Notes that so many bytes were asked for, until what is returned is dropped.
    pub fn asked_for(&self, bytes: u64) -> InFlight<'_> {
        self.in_flight_bytes.fetch_add(bytes, Ordering::Relaxed);
        InFlight { limits: self, bytes }
    }

    /// Bytes asked for and not here yet.
    pub fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes.load(Ordering::Relaxed)
    }
}

/// Bytes on their way; see [`Limits::asked_for`].
#[derive(Debug)]
pub struct InFlight<'a> {
    limits: &'a Limits,
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
            let limits = Limits::default();
            limits.set_streams(streams);
            limits.set_object_bytes(bytes);
            let Ranges { bytes: range, in_flight } = limits.ranges();
            let most = bytes.max(Limits::FEWEST_OBJECT_BYTES);
            prop_assert!(range * (u64::from(in_flight) + BESIDE) <= most);
            prop_assert!((1..=MOST_STREAMS).contains(&in_flight) && range >= FEWEST_RANGE_BYTES);
        }
    }

    #[test]
    fn what_is_on_its_way_is_counted_until_it_is_there() {
        let limits = Limits::default();
        let first = limits.asked_for(10);
        {
            let _second = limits.asked_for(5);
            assert_eq!(limits.in_flight_bytes(), 15);
        }
        drop(first);
        assert_eq!(limits.in_flight_bytes(), 0);
    }
}
