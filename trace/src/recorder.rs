//! The span recorder.
//!
//! A recorder is passed to every component that can record. Recording is usually off; then a span costs one relaxed
//! load. While recording is on, each thread has its own track, and all tracks share one lock. Spans cover a chunk, a
//! batch or an operation, never a row, so the lock is taken a few thousand times a second and is rarely contended. The
//! total number of spans is bounded; spans beyond it are dropped and counted.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::span::{Category, OperationInfo, Phase, Span, Work};

/// The default capacity of a recorder: about 14 MB.
const MAX_SPANS: usize = 1 << 17;

/// The track of fetches. They may overlap and belong to no thread.
const FETCH_TRACK: &str = "storage";

/// Records spans between [`begin`](Self::begin) and [`end`](Self::end).
#[derive(Debug)]
pub struct Recorder {
    is_recording: AtomicBool,
    /// The active phase of training: 1 + its index in [`Phase::ALL`], or 0 for none.
    phase: AtomicU8,
    max_spans: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    recording: Recording,
    spans: usize,
    tracks: HashMap<Owner, usize>,
}

/// The owner of a track.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Owner {
    Thread(ThreadId),
    /// A device or another source without a thread, by name.
    Named(String),
}

/// The recorded spans of all tracks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// The tracks, in order of their first span.
    pub tracks: Vec<Track>,
    /// When recording began, as [`now_ns`].
    pub began_ns: u64,
    /// When recording ended, as [`now_ns`].
    pub ended_ns: u64,
    /// Spans dropped because the recorder was full.
    pub dropped: u64,
}

/// The spans of one thread or device, in the order in which they ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Track {
    /// The name of the thread or device.
    pub name: String,
    /// The spans.
    pub spans: Vec<Span>,
}

/// The start time of a span; empty if recording was off at the time.
#[derive(Clone, Copy, Debug)]
pub struct SpanStart(Option<u64>);

impl Default for Recorder {
    fn default() -> Self {
        Self::with_capacity(MAX_SPANS)
    }
}

impl Recorder {
    /// A recorder of at most `max_spans` spans.
    pub fn with_capacity(max_spans: usize) -> Self {
        let (is_recording, phase) = (AtomicBool::new(false), AtomicU8::new(0));
        Self { is_recording, phase, max_spans, state: Mutex::default() }
    }

    /// Whether recording is on.
    #[inline]
    pub fn is_recording(&self) -> bool {
        self.is_recording.load(Ordering::Relaxed)
    }

    /// Whether the recorder has reached its capacity.
    pub fn is_full(&self) -> bool {
        self.lock().spans >= self.max_spans
    }

    /// Starts recording and discards earlier spans.
    pub fn begin(&self) {
        let mut state = self.lock();
        *state = State::default();
        state.recording.began_ns = now_ns();
        self.is_recording.store(true, Ordering::Relaxed);
    }

    /// Stops recording and returns the recording. Spans that have not ended yet are not in it.
    pub fn end(&self) -> Recording {
        let mut state = self.lock();
        self.is_recording.store(false, Ordering::Relaxed);
        let mut recording = std::mem::take(&mut *state).recording;
        recording.ended_ns = now_ns();
        recording
    }

    /// Starts a span: reads the clock if recording is on.
    #[inline]
    pub fn start(&self) -> SpanStart {
        SpanStart(self.is_recording().then(now_ns))
    }

    /// Records a span of this thread, from `start` until now. `describe` is called only if the span is recorded.
    #[inline]
    pub fn add(
        &self,
        start: SpanStart,
        category: Category,
        name: &'static str,
        describe: impl FnOnce() -> Work,
    ) {
        if let Some(start_ns) = start.0 {
            self.record(start_ns, category, None, OperationInfo { name, work: describe(), shape: None });
        }
    }

    /// Runs `work` and records it as a span.
    #[inline]
    pub fn time<T>(&self, category: Category, name: &'static str, work: impl FnOnce() -> T) -> T {
        let start = self.start();
        let result = work();
        self.add(start, category, name, Work::default);
        result
    }

    /// Runs `work` as `phase`; operations within it belong to that phase. Only one thread may use phases.
    #[inline]
    pub fn phase<T>(&self, phase: Phase, work: impl FnOnce() -> T) -> T {
        if !self.is_recording() {
            return work();
        }
        let start = self.start();
        let before = self.phase.swap(phase as u8 + 1, Ordering::Relaxed);
        let result = work();
        self.phase.store(before, Ordering::Relaxed);
        self.add(start, Category::Phase, phase.name(), Work::default);
        result
    }

    /// Runs `work` and records it as `operation`.
    pub fn operation<T>(&self, operation: OperationInfo, work: impl FnOnce() -> T) -> T {
        let start = self.start();
        let result = work();
        if let Some(start_ns) = start.0 {
            self.record(start_ns, Category::Operation, self.current_phase(), operation);
        }
        result
    }

    /// Records a span on the named track `track`: for storage, or for a device whose clock was converted to this one.
    pub fn add_to_track(&self, track: &str, span: Span) {
        self.push(Owner::Named(track.to_owned()), span);
    }

    /// The active phase of training.
    pub fn current_phase(&self) -> Option<Phase> {
        let place = self.phase.load(Ordering::Relaxed).checked_sub(1)?;
        Phase::ALL.get(usize::from(place)).copied()
    }

    /// Records a span that ends now.
    #[cold]
    fn record(&self, start_ns: u64, category: Category, phase: Option<Phase>, operation: OperationInfo) {
        let end_ns = now_ns();
        let OperationInfo { name, work, shape } = operation;
        let name = Cow::Borrowed(name);
        let span = Span { name, category, phase, start_ns, end_ns, work, shape };
        match category {
            Category::Fetch => self.add_to_track(FETCH_TRACK, span),
            _ => self.push(Owner::Thread(thread::current().id()), span),
        }
    }

    /// Appends `span` to its owner's track, unless it began before the recording did.
    fn push(&self, owner: Owner, span: Span) {
        let mut state = self.lock();
        if !self.is_recording() || span.start_ns < state.recording.began_ns {
            return;
        }
        if state.spans >= self.max_spans {
            state.recording.dropped += 1;
            return;
        }
        state.spans += 1;
        let next = state.recording.tracks.len();
        let place = *state.tracks.entry(owner.clone()).or_insert(next);
        if place == next {
            let name = match owner {
                Owner::Thread(_) => thread::current().name().unwrap_or("thread").to_owned(),
                Owner::Named(name) => name,
            };
            state.recording.tracks.push(Track { name, spans: Vec::new() });
        }
        state.recording.tracks[place].spans.push(span);
    }

    /// Locks the state. A poisoned lock is safe to use: no panic can leave the state half-updated.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `CLOCK_MONOTONIC` now, in nanoseconds: the clock of all spans.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Never negative.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use super::*;

    const WORK: Work = Work { rows: 3, bytes: 70, flops: 900 };

    fn operation(name: &'static str) -> OperationInfo {
        OperationInfo { name, work: WORK, shape: Some([4, 2]) }
    }

    #[test]
    fn records_nothing_while_off() {
        let recorder = Recorder::default();
        let must_not_run = || panic!("described a span that is not recorded");
        let start = recorder.start();
        recorder.add(start, Category::Ingest, "decode", must_not_run);
        assert_eq!(recorder.phase(Phase::Forward, || recorder.current_phase()), None);
        assert_eq!(recorder.operation(operation("gather"), || 7), 7);
        // A span that began before the recording or ends after it is not part of it.
        recorder.begin();
        recorder.add(start, Category::Ingest, "decode", must_not_run);
        let start = recorder.start();
        let recording = recorder.end();
        recorder.add(start, Category::Ingest, "decode", Work::default);
        assert!(recording.tracks.is_empty());
        recorder.begin();
        recorder.add(start, Category::Ingest, "decode", Work::default);
        let recording = recorder.end();
        assert!(recording.tracks.is_empty() && recording.dropped == 0);
    }

    #[test]
    fn spans_have_work_times_and_phase() {
        let recorder = Recorder::default();
        recorder.begin();
        recorder.phase(Phase::Backward, || {
            recorder.operation(operation("layer_backward"), || thread::sleep(Duration::from_millis(2)));
        });
        recorder.operation(operation("clear"), || ());
        let recording = recorder.end();
        let [track] = &recording.tracks[..] else { panic!("{recording:?}") };
        assert_eq!(Some(track.name.as_str()), thread::current().name());
        let [inner, outer, last] = &track.spans[..] else { panic!("{track:?}") };
        assert_eq!(
            (&*inner.name, inner.category, inner.phase),
            ("layer_backward", Category::Operation, Some(Phase::Backward))
        );
        assert_eq!((inner.work, inner.shape), (WORK, Some([4, 2])));
        assert_eq!((&*outer.name, outer.category, outer.phase), ("backward", Category::Phase, None));
        assert_eq!(last.phase, None);
        assert!(inner.end_ns - inner.start_ns >= 2_000_000);
        let times =
            [recording.began_ns, outer.start_ns, inner.start_ns, inner.end_ns, outer.end_ns, last.start_ns];
        assert!(times.is_sorted() && last.end_ns <= recording.ended_ns);
    }

    #[test]
    fn capacity_is_bounded_and_dropped_spans_are_counted() {
        let recorder = Recorder::with_capacity(5);
        recorder.begin();
        for _ in 0..5 {
            assert!(!recorder.is_full());
            recorder.time(Category::Wait, "wait", || ());
        }
        assert!(recorder.is_full());
        for _ in 0..3 {
            recorder.time(Category::Wait, "wait", || ());
        }
        let recording = recorder.end();
        assert_eq!((recording.tracks[0].spans.len(), recording.dropped), (5, 3));
        // The next recording starts empty.
        recorder.begin();
        recorder.time(Category::Wait, "wait", || ());
        let recording = recorder.end();
        assert_eq!((recording.tracks[0].spans.len(), recording.dropped), (1, 0));
    }

    #[test]
    fn threads_have_separate_tracks_and_lose_no_span() {
        const THREADS: usize = 8;
        const SPANS: usize = 500;
        let recorder = Recorder::with_capacity(THREADS * SPANS - 100);
        recorder.begin();
        thread::scope(|scope| {
            for number in 0..THREADS {
                let work = || {
                    for _ in 0..SPANS {
                        recorder.time(Category::Ingest, "decode", || ());
                    }
                };
                thread::Builder::new().name(format!("lane-{number}")).spawn_scoped(scope, work).unwrap();
            }
        });
        let recording = recorder.end();
        let mut names: Vec<_> = recording.tracks.iter().map(|track| track.name.clone()).collect();
        names.sort();
        assert_eq!(names, (0..THREADS).map(|number| format!("lane-{number}")).collect::<Vec<_>>());
        let kept: usize = recording.tracks.iter().map(|track| track.spans.len()).sum();
        assert_eq!((kept, recording.dropped), (THREADS * SPANS - 100, 100));
        for track in &recording.tracks {
            assert!(track.spans.is_sorted_by_key(|span| span.end_ns));
        }
    }

    #[test]
    fn fetches_of_all_threads_share_a_track() {
        let recorder = Recorder::default();
        recorder.begin();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| recorder.time(Category::Fetch, "fetch", || ()));
            }
        });
        let recording = recorder.end();
        let [track] = &recording.tracks[..] else { panic!("{recording:?}") };
        assert_eq!((track.name.as_str(), track.spans.len()), (FETCH_TRACK, 2));
    }
}
