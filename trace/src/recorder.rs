//! Where spans are recorded.
//!
//! A recorder is passed to whoever may have something to record, and mostly nobody looks: then a span costs one
//! relaxed load. While one records, each thread's spans go to a track of their own, under one lock: there is a span for
//! each chunk, batch or operation, never for each row, so the lock is taken some thousand times a second and is
//! practically always free. The number of spans of all tracks is bounded; those beyond are counted and let go.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::span::{Category, Operation, Phase, Span, Work};

/// The most spans of a recording, unless a recorder is made with another number: some 14 MB.
const MOST_SPANS: usize = 1 << 17;

/// The track of spans that may overlap, which are no thread's.
const OVERLAPPING: &str = "storage";

/// Records spans while it is on.
#[derive(Debug)]
pub struct Recorder {
    is_on: AtomicBool,
    /// The phase that training is in: 1 and its place in [`Phase::ALL`], 0 for none.
    phase: AtomicU8,
    most_spans: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    recording: Recording,
    spans: usize,
    tracks: HashMap<Owner, usize>,
}

/// Whose a track is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Owner {
    Thread(ThreadId),
    /// None's: by its name.
    Device(String),
}

/// What was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// By thread.
    pub tracks: Vec<Track>,
    /// When it began and ended.
    pub began_ns: u64,
    /// As above.
    pub ended_ns: u64,
    /// Spans for which there was no room.
    pub dropped: u64,
}

/// The spans of a thread, in the order in which they ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Track {
    /// The thread's name.
    pub name: String,
    /// What it did.
    pub spans: Vec<Span>,
}

/// When something that may be recorded began; nothing where nobody looked then.
#[derive(Clone, Copy, Debug)]
pub struct Start(Option<u64>);

impl Default for Recorder {
    fn default() -> Self {
        Self::with_room_for(MOST_SPANS)
    }
}

impl Recorder {
    /// A recorder of at most so many spans.
    pub fn with_room_for(most_spans: usize) -> Self {
        let (is_on, phase) = (AtomicBool::new(false), AtomicU8::new(0));
        Self { is_on, phase, most_spans, state: Mutex::default() }
    }

    /// Whether spans are recorded.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Whether there is no room for more.
    pub fn is_full(&self) -> bool {
        self.lock().spans >= self.most_spans
    }

    /// Records from now on; forgets what was recorded before.
    pub fn begin(&self) {
        let mut state = self.lock();
        *state = State::default();
        state.recording.began_ns = now_ns();
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Records no more, and returns what was. What has not ended by now is not in it.
    pub fn end(&self) -> Recording {
        let mut state = self.lock();
        self.is_on.store(false, Ordering::Relaxed);
        let mut recording = std::mem::take(&mut *state).recording;
        recording.ended_ns = now_ns();
        recording
    }

    /// Takes the time, where spans are recorded.
    #[inline]
    pub fn start(&self) -> Start {
        Start(self.is_on().then(now_ns))
    }

    /// Records a span of this thread, from `start` until now. `describe` is asked where it is recorded.
    #[inline]
    pub fn add(&self, start: Start, category: Category, name: &'static str, describe: impl FnOnce() -> Work) {
        if let Some(start_ns) = start.0 {
            self.keep(start_ns, category, None, Operation { name, work: describe(), shape: None });
        }
    }

    /// Does `work`, which is a span.
    #[inline]
    pub fn time<T>(&self, category: Category, name: &'static str, work: impl FnOnce() -> T) -> T {
        let start = self.start();
        let result = work();
        self.add(start, category, name, Work::default);
        result
    }

    /// Does `work`, which is a phase; operations in it are the phase's. Of one thread alone.
    #[inline]
    pub fn phase<T>(&self, phase: Phase, work: impl FnOnce() -> T) -> T {
        if !self.is_on() {
            return work();
        }
        let start = self.start();
        let before = self.phase.swap(phase as u8 + 1, Ordering::Relaxed);
        let result = work();
        self.phase.store(before, Ordering::Relaxed);
        self.add(start, Category::Phase, phase.name(), Work::default);
        result
    }

    /// Does `work`, which is `operation`.
    pub fn operation<T>(&self, operation: Operation, work: impl FnOnce() -> T) -> T {
        let start = self.start();
        let result = work();
        if let Some(start_ns) = start.0 {
            self.keep(start_ns, Category::Operation, self.current_phase(), operation);
        }
        result
    }

    /// Records a span that is no thread's, on the track `track`: of storage, or of a device with a clock of its own that
    /// was brought onto this one.
    pub fn add_to(&self, track: &str, span: Span) {
        self.put(Owner::Device(track.to_owned()), span);
    }

    /// The phase that training is in.
    pub fn current_phase(&self) -> Option<Phase> {
        let place = self.phase.load(Ordering::Relaxed).checked_sub(1)?;
        Phase::ALL.get(usize::from(place)).copied()
    }

    /// Keeps a span that ends now. One that began before the recording did is none of it.
    #[cold]
    fn keep(&self, start_ns: u64, category: Category, phase: Option<Phase>, operation: Operation) {
        let end_ns = now_ns();
        let Operation { name, work, shape } = operation;
        let name = Cow::Borrowed(name);
        let span = Span { name, category, phase, start_ns, end_ns, work, shape };
        match category {
            Category::Fetch => self.add_to(OVERLAPPING, span),
            _ => self.put(Owner::Thread(thread::current().id()), span),
        }
    }

    fn put(&self, owner: Owner, span: Span) {
        let mut state = self.lock();
        if !self.is_on() || span.start_ns < state.recording.began_ns {
            return;
        }
        if state.spans >= self.most_spans {
            state.recording.dropped += 1;
            return;
        }
        state.spans += 1;
        let next = state.recording.tracks.len();
        let place = *state.tracks.entry(owner.clone()).or_insert(next);
        if place == next {
            let name = match owner {
                Owner::Thread(_) => thread::current().name().unwrap_or("thread").to_owned(),
                Owner::Device(name) => name,
            };
            state.recording.tracks.push(Track { name, spans: Vec::new() });
        }
        state.recording.tracks[place].spans.push(span);
    }

    /// Nothing under the lock can leave it half-changed.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `CLOCK_MONOTONIC` now, in nanoseconds: what spans are told by.
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

    fn operation(name: &'static str) -> Operation {
        Operation { name, work: WORK, shape: Some([4, 2]) }
    }

    #[test]
    fn nothing_is_recorded_while_nobody_looks() {
        let recorder = Recorder::default();
        let unasked = || panic!("asked what was done");
        let start = recorder.start();
        recorder.add(start, Category::Ingest, "decode", unasked);
        assert_eq!(recorder.phase(Phase::Forward, || recorder.current_phase()), None);
        assert_eq!(recorder.operation(operation("gather"), || 7), 7);
        // What began before a recording is none of it, and neither is what ends after.
        recorder.begin();
        recorder.add(start, Category::Ingest, "decode", unasked);
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
    fn spans_say_what_was_done_when_and_in_which_phase() {
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
    fn memory_is_bounded_and_what_is_let_go_is_counted() {
        let recorder = Recorder::with_room_for(5);
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
        // The next one has room again.
        recorder.begin();
        recorder.time(Category::Wait, "wait", || ());
        let recording = recorder.end();
        assert_eq!((recording.tracks[0].spans.len(), recording.dropped), (1, 0));
    }

    #[test]
    fn each_thread_has_its_track_and_no_span_is_lost_between_them() {
        const THREADS: usize = 8;
        const SPANS: usize = 500;
        let recorder = Recorder::with_room_for(THREADS * SPANS - 100);
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
    fn fetches_of_any_thread_share_a_track() {
        let recorder = Recorder::default();
        recorder.begin();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| recorder.time(Category::Fetch, "fetch", || ()));
            }
        });
        let recording = recorder.end();
        let [track] = &recording.tracks[..] else { panic!("{recording:?}") };
        assert_eq!((track.name.as_str(), track.spans.len()), (OVERLAPPING, 2));
    }
}
