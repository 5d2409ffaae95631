//! Counters and timings of ingest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millstream_trace::{Category, Recorder};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use millstream_io::clock::Clock;

/// A snapshot of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct IngestStats {
    /// Rows published.
    pub rows: u64,
    /// Batches published.
    pub batches: u64,
    /// Rows decoded and transformed, including those in the shuffle pool that are not published yet.
    pub rows_decoded: u64,
    /// Chunks decoded.
    pub chunks: u64,
    /// Bytes read from storage.
    pub bytes: u64,
    /// Bytes requested and not received yet.
    pub in_flight_bytes: u64,
    /// Records skipped since the feed began, including those before a resume.
    pub skipped_records: u64,
    /// Rows that lost values of a multi-valued feature to its maximum, counted as they are read.
    pub truncated_rows: u64,
    /// The counters of the local cache.
    pub cache: CacheStats,
    /// Time by stage.
    pub stages: Stages,
}

/// The counters of the local cache. Waiting for its disk counts as stage `fetch`, and decoding its files as stage
/// `decode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CacheStats {
    /// Splits served from the cache.
    pub hits: u64,
    /// Splits that were not in the cache.
    pub misses: u64,
    /// Bytes read from the cache.
    pub read_bytes: u64,
    /// Bytes of the files passed to the cache for writing.
    pub written_bytes: u64,
}

/// Seconds by stage. Lanes run in parallel: their seconds are summed over all lanes and may exceed the elapsed time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stages {
    /// Lanes waiting for bytes from storage.
    pub fetch: Stage,
    /// Lanes decoding (decompression, checksums, parsing). Waiting includes all waits of lanes for a core, for this or
    /// any other work: for a decode permit, and for the kernel to schedule the thread.
    pub decode: Stage,
    /// Lanes transforming values to dense numbers and ids.
    pub transform: Stage,
    /// Lanes permuting windows. Waiting means that the lane is idle until the packer takes its window.
    pub shuffle: Stage,
    /// The packer filling slots. Waiting is for a lane's next window.
    pub pack: Stage,
    /// Threads decoding images into slots. Waiting is that of the packer, for the images of the rows that it has packed.
    pub images: Stage,
    /// The packer waiting for a free slot in every ring: for the slowest consumer.
    pub ring: Stage,
}

/// Seconds of one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stage {
    /// CPU time.
    pub busy_seconds: f64,
    /// Waiting.
    pub wait_seconds: f64,
}

impl IngestStats {
    /// The difference to `before`. Values that describe the whole feed or the current moment are kept.
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
                images: now.images.since(&then.images),
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

/// The live counters of ingest. Updated once per chunk, window or batch, never per row.
#[derive(Debug, Default)]
pub struct Counters {
    /// Bytes read from storage.
    pub bytes: Counter,
    /// Rows that lost values of a multi-valued feature to its maximum.
    pub truncated_rows: Counter,
    /// Splits served from the local cache.
    pub cache_hits: Counter,
    /// Splits that were not in the local cache.
    pub cache_misses: Counter,
    /// Bytes read from the local cache.
    pub cache_read_bytes: Counter,
    /// Bytes of the files passed to the local cache for writing.
    pub cache_written_bytes: Counter,
    /// Decoding.
    pub decode: WorkClock,
    /// Transforming.
    pub transform: WorkClock,
    pub(crate) rows_decoded: Counter,
    pub(crate) chunks: Counter,
    pub(crate) rows: Counter,
    pub(crate) batches: Counter,
    pub(crate) skipped: Counter,
    pub(crate) shuffle: WorkClock,
    pub(crate) hand_wait: Clock,
    pub(crate) pack: WorkClock,
    pub(crate) images: WorkClock,
    pub(crate) image_wait: Clock,
    pub(crate) window_wait: Clock,
    pub(crate) ring_wait: Clock,
    /// Records the same work as spans while recording is on.
    pub(crate) recorder: Arc<Recorder>,
}

/// An atomic counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

/// Time that threads spent working: CPU time, and time in which they were ready but not scheduled by the kernel.
#[derive(Debug, Default)]
pub struct WorkClock {
    core: Clock,
    held_up: Clock,
}

/// Measures work of the thread that started it.
#[derive(Debug)]
pub struct Stopwatch {
    began: Instant,
    /// The thread's CPU time at the start.
    core: Duration,
}

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl WorkClock {
    /// Runs `work` and adds its duration.
    pub fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let stopwatch = Stopwatch::start();
        let result = work();
        self.add(&stopwatch, Duration::ZERO);
        result
    }

    /// Adds the time since `stretch` was started on this thread. `waited` is the part spent waiting for something other
    /// than a core.
    pub fn add(&self, stretch: &Stopwatch, waited: Duration) {
        let core = core_time().saturating_sub(stretch.core);
        self.core.add(core);
        self.held_up.add(stretch.began.elapsed().saturating_sub(waited).saturating_sub(core));
    }
}

impl Stopwatch {
    /// Starts measuring.
    pub fn start() -> Self {
        Self { began: Instant::now(), core: core_time() }
    }
}

/// The CPU time of this thread.
fn core_time() -> Duration {
    // It is never negative.
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

impl Counters {
    /// Counters of a feed, whose work is also recorded by `recorder`.
    pub(crate) fn recorded_by(recorder: &Arc<Recorder>) -> Self {
        Self { recorder: Arc::clone(recorder), ..Self::default() }
    }

    /// Runs `wait`, which blocks, and adds its duration to the clock selected by `clock`.
    pub(crate) fn wait<T>(
        &self,
        clock: impl Fn(&Self) -> &Clock,
        name: &'static str,
        wait: impl FnOnce() -> T,
    ) -> T {
        clock(self).time(|| self.recorder.time(Category::Wait, name, wait))
    }

    /// All statistics except those kept by the permits and the limits.
    pub(crate) fn snapshot(&self) -> IngestStats {
        let stage =
            |work: &WorkClock, wait: f64| Stage { busy_seconds: work.core.seconds(), wait_seconds: wait };
        let held_up = [&self.decode, &self.transform, &self.shuffle].map(|work| work.held_up.seconds());
        IngestStats {
            rows: self.rows.get(),
            batches: self.batches.get(),
            rows_decoded: self.rows_decoded.get(),
            chunks: self.chunks.get(),
            bytes: self.bytes.get(),
            in_flight_bytes: 0,
            skipped_records: self.skipped.get(),
            truncated_rows: self.truncated_rows.get(),
            cache: CacheStats {
                hits: self.cache_hits.get(),
                misses: self.cache_misses.get(),
                read_bytes: self.cache_read_bytes.get(),
                written_bytes: self.cache_written_bytes.get(),
            },
            stages: Stages {
                fetch: Stage::default(),
                decode: stage(&self.decode, held_up.iter().sum()),
                transform: stage(&self.transform, 0.0),
                shuffle: stage(&self.shuffle, self.hand_wait.seconds()),
                pack: stage(&self.pack, self.window_wait.seconds()),
                images: stage(&self.images, self.image_wait.seconds()),
                ring: Stage { busy_seconds: 0.0, wait_seconds: self.ring_wait.seconds() },
            },
        }
    }
}
