//! What ingest has done, and where its time went.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

/// A snapshot of ingest at work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct IngestStats {
    /// Rows published.
    pub rows: u64,
    /// Batches published.
    pub batches: u64,
    /// Rows decoded and transformed; those that wait in the shuffle pool are not published yet.
    pub rows_decoded: u64,
    /// Chunks that they came in.
    pub chunks: u64,
    /// Bytes read from storage.
    pub bytes: u64,
    /// Bytes asked for and not here yet, at this moment.
    pub in_flight_bytes: u64,
    /// Records left out since the feed began, those before a resume included.
    pub skipped_records: u64,
    /// Rows that lost values of a multi-valued feature to its maximum, as read.
    pub truncated_rows: u64,
    /// Where the time went.
    pub stages: Stages,
}

/// Seconds by stage. Lanes work side by side: their seconds are summed over them, and may exceed the
/// time that passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stages {
    /// Lanes waiting for bytes from storage.
    pub fetch: Stage,
    /// Lanes decoding (decompression, checksums, parsing); waiting is for their turn, when as many decode
    /// as may.
    pub decode: Stage,
    /// Lanes transforming values to dense numbers and ids.
    pub transform: Stage,
    /// Lanes permuting windows; waiting is for the packer to take a window, that is, having nothing to do.
    pub shuffle: Stage,
    /// The packer filling slots; waiting is for a lane's next window.
    pub pack: Stage,
    /// The packer waiting for the consumer to free a slot.
    pub ring: Stage,
}

/// Seconds of one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stage {
    /// At work.
    pub busy_seconds: f64,
    /// Waiting.
    pub wait_seconds: f64,
}

impl IngestStats {
    /// What was done since `before`. What is counted for the whole feed, or for this moment, stays as it is.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let (now, then) = (&self.stages, &before.stages);
        Self {
            rows: self.rows - before.rows,
            batches: self.batches - before.batches,
            rows_decoded: self.rows_decoded - before.rows_decoded,
            chunks: self.chunks - before.chunks,
            bytes: self.bytes - before.bytes,
            truncated_rows: self.truncated_rows - before.truncated_rows,
            stages: Stages {
                fetch: now.fetch.since(&then.fetch),
                decode: now.decode.since(&then.decode),
                transform: now.transform.since(&then.transform),
                shuffle: now.shuffle.since(&then.shuffle),
                pack: now.pack.since(&then.pack),
                ring: now.ring.since(&then.ring),
            },
            ..*self
        }
    }
}

impl Stage {
    fn since(&self, before: &Self) -> Self {
        Self {
            busy_seconds: self.busy_seconds - before.busy_seconds,
            wait_seconds: self.wait_seconds - before.wait_seconds,
        }
    }
}

/// What ingest counts while it works. Touched once a chunk, window or batch, never once a row.
#[derive(Debug, Default)]
pub struct Counters {
    /// Bytes read from storage.
    pub bytes: Counter,
    /// Rows that lost values of a multi-valued feature to its maximum.
    pub truncated_rows: Counter,
    /// Decoding.
    pub decode: Clock,
    /// Transforming.
    pub transform: Clock,
    pub(crate) rows_decoded: Counter,
    pub(crate) chunks: Counter,
    pub(crate) rows: Counter,
    pub(crate) batches: Counter,
    pub(crate) skipped: Counter,
    pub(crate) shuffle: Clock,
    pub(crate) hand_wait: Clock,
    pub(crate) pack: Clock,
    pub(crate) window_wait: Clock,
    pub(crate) ring_wait: Clock,
}

/// A number that threads add to.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

/// Time that threads add to, in nanoseconds.
#[derive(Debug, Default)]
pub struct Clock(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Clock {
    /// Does `work` and adds the time that it took.
    pub fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.add(start.elapsed());
        result
    }

    /// Adds time measured elsewhere.
    pub fn add(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.0.load(Ordering::Relaxed) as f64 / 1e9
    }
}

impl Counters {
    /// All but what is known at the gate and in fetching.
    pub(crate) fn snapshot(&self) -> IngestStats {
        let stage = |busy: f64, wait: f64| Stage { busy_seconds: busy, wait_seconds: wait };
        IngestStats {
            rows: self.rows.get(),
            batches: self.batches.get(),
            rows_decoded: self.rows_decoded.get(),
            chunks: self.chunks.get(),
            bytes: self.bytes.get(),
            in_flight_bytes: 0,
            skipped_records: self.skipped.get(),
            truncated_rows: self.truncated_rows.get(),
            stages: Stages {
                fetch: Stage::default(),
                decode: stage(self.decode.seconds(), 0.0),
                transform: stage(self.transform.seconds(), 0.0),
                shuffle: stage(self.shuffle.seconds(), self.hand_wait.seconds()),
                pack: stage(self.pack.seconds(), self.window_wait.seconds()),
                ring: stage(0.0, self.ring_wait.seconds()),
            },
        }
    }
}
