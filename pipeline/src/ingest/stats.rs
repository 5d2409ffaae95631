//! What ingest has done, and where its time went.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millstream_trace::{Category, Recorder};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use millstream_io::clock::Clock;

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
    /// What the local cache has saved.
    pub cache: CacheStats,
    /// Where the time went.
    pub stages: Stages,
}

/// What the local cache has done. Waiting for its disk and decoding its files count with the stages `fetch`
/// and `decode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CacheStats {
    /// Splits served from it.
    pub hits: u64,
    /// Splits that were not there.
    pub misses: u64,
    /// Bytes read from it.
    pub read_bytes: u64,
    /// Bytes of the files handed to it.
    pub written_bytes: u64,
}

/// Seconds by stage. Lanes work side by side: their seconds are summed over them, and may exceed the
/// time that passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stages {
    /// Lanes waiting for bytes from storage.
    pub fetch: Stage,
    /// Lanes decoding (decompression, checksums, parsing). Waiting is for a core, with this or any other work of
    /// lanes: for their turn, when as many decode as may, and for the kernel, when it runs something else.
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
    /// At work, on a core.
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
    /// Splits served from the local cache.
    pub cache_hits: Counter,
    /// Splits that were not there.
    pub cache_misses: Counter,
    /// Bytes read from the local cache.
    pub cache_read_bytes: Counter,
    /// Bytes of the files handed to it.
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
    pub(crate) window_wait: Clock,
    pub(crate) ring_wait: Clock,
    /// Where the same work is recorded, span by span, while somebody looks.
    pub(crate) recorder: Arc<Recorder>,
}

/// A number that threads add to.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

/// Time that threads were at work: on a core, and held up by the kernel, which ran something else there.
#[derive(Debug, Default)]
pub struct WorkClock {
    core: Clock,
    held_up: Clock,
}

/// A stretch of work of the thread that began it.
#[derive(Debug)]
pub struct Stopwatch {
    began: Instant,
    /// Time that the thread had had on a core.
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

    /// What it has come to.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl WorkClock {
    /// Does `work` and adds the time that it took.
    pub fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let stopwatch = Stopwatch::start();
        let result = work();
        self.add(&stopwatch, Duration::ZERO);
        result
    }

    /// Adds the time since `stretch` began on this thread, of which it has waited so much for something else
    /// than a core.
    pub fn add(&self, stretch: &Stopwatch, waited: Duration) {
        let core = core_time().saturating_sub(stretch.core);
        self.core.add(core);
        self.held_up.add(stretch.began.elapsed().saturating_sub(waited).saturating_sub(core));
    }
}

impl Stopwatch {
    /// Begins now.
    pub fn start() -> Self {
        Self { began: Instant::now(), core: core_time() }
    }
}

/// Time that this thread has had on a core.
fn core_time() -> Duration {
    // Never negative.
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

impl Counters {
    /// Counters of a feed whose work is recorded by `recorder`.
    pub(crate) fn recorded_by(recorder: &Arc<Recorder>) -> Self {
        Self { recorder: Arc::clone(recorder), ..Self::default() }
    }

    /// Does `wait`, which blocks, and adds the time to the clock that `clock` picks.
    pub(crate) fn wait<T>(
        &self,
        clock: impl Fn(&Self) -> &Clock,
        name: &'static str,
        wait: impl FnOnce() -> T,
    ) -> T {
        clock(self).time(|| self.recorder.time(Category::Wait, name, wait))
    }

    /// All but what the permits and the limits know.
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
                ring: Stage { busy_seconds: 0.0, wait_seconds: self.ring_wait.seconds() },
            },
        }
    }
}
