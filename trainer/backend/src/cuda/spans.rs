//! Profiling spans of device work, recorded on demand.
//!
//! While recording, each operation is submitted separately, without a graph. It runs between two timed events, and
//! so does each of its kernels and each copy of a batch. This makes steps slower.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard, PoisonError};

use millstream_trace::{Category, OperationInfo, Phase, Recorder, Span, Work, now_ns};

use super::Cuda;
use super::driver::{Event, Stream};
use super::fault::must;

/// The most spans awaiting completion before the oldest ones are queried.
const MOST_WAITING: usize = 256;
/// Clock readings taken; the most precise one becomes the base.
const CLOCK_READINGS: usize = 8;

/// A recording of device work.
pub(super) struct Spans {
    recorder: Arc<Recorder>,
    base: Base,
    waiting: VecDeque<Waiting>,
}

/// A span whose end the device may not have reached yet.
struct Waiting {
    track: String,
    category: Category,
    operation: OperationInfo,
    phase: Option<Phase>,
    start: Arc<Event>,
    end: Arc<Event>,
}

/// A reference point on both clocks.
struct Base {
    event: Event,
    /// The host time just before the event was submitted. It is never later than the event, so no span appears to
    /// end after the host has waited for its end.
    asked_ns: u64,
}

impl Base {
    /// Takes several readings and keeps the one with the shortest interval. The host knows only that an event lies
    /// between two readings of its own clock, and it may be preempted between them.
    fn of(device: &Cuda) -> Self {
        let reading = || {
            let event = must(Event::timed(device.context()));
            let asked_ns = now_ns();
            must(event.record(&device.stream));
            must(event.wait());
            (now_ns() - asked_ns, Self { event, asked_ns })
        };
        let readings = (0..CLOCK_READINGS).map(|_| reading());
        let closest = readings.min_by_key(|(apart_ns, _)| *apart_ns);
        closest.expect("at least one reading").1
    }
}

impl Spans {
    /// Sends the completed spans to the recorder, in order.
    fn report_completed(&mut self) {
        while let Some(first) = self.waiting.front() {
            let Some(from_base) = must(first.start.since(&self.base.event)) else { return };
            let Some(duration) = must(first.end.since(&first.start)) else { return };
            let start_ns = self.base.asked_ns + from_base.as_nanos() as u64;
            let OperationInfo { name, work, shape } = first.operation;
            let span = Span {
                name: Cow::Borrowed(name),
                category: first.category,
                phase: first.phase,
                start_ns,
                end_ns: start_ns + duration.as_nanos() as u64,
                work,
                shape,
            };
            self.recorder.add_to_track(&first.track, span);
            self.waiting.pop_front();
        }
    }
}

impl Cuda {
    pub(super) fn begin_spans(&self, recorder: &Arc<Recorder>) {
        self.flush();
        self.wait_for_sums();
        must(self.stream.wait());
        let spans = Spans { recorder: Arc::clone(recorder), base: Base::of(self), waiting: VecDeque::new() };
        *self.spans() = Some(spans);
    }

    pub(super) fn end_spans(&self) {
        self.flush();
        self.wait_for_sums();
        must(self.copies.wait());
        must(self.stream.wait());
        if let Some(mut spans) = self.spans().take() {
            spans.report_completed();
        }
    }

    pub(super) fn records_spans(&self) -> bool {
        self.spans().is_some()
    }

    /// Submits all pending commands, one kernel at a time, and records each kernel as a span.
    pub(super) fn flush_recorded(&self) {
        let mut commands = self.commands();
        if commands.is_empty() {
            return;
        }
        let mut start = self.point(&self.stream);
        must(commands.flush_each(&self.stream, &self.blas, |name| {
            let end = self.point(&self.stream);
            let kernel = OperationInfo { name, work: Work::default(), shape: None };
            self.span_between(start.take(), end.clone(), ", kernels", Category::Kernel, kernel);
            start = end;
        }));
    }

    /// Runs `work`, which submits `operation` and nothing else to the device, and records the operation as a span.
    pub(super) fn record_operation<T>(&self, operation: OperationInfo, work: impl FnOnce() -> T) -> T {
        self.flush();
        let start = self.point(&self.stream);
        let result = work();
        self.flush();
        self.span(start, &self.stream, "", Category::Operation, operation);
        result
    }

    /// Records an event at the current end of `stream`, while recording is on.
    pub(super) fn point(&self, stream: &Stream) -> Option<Arc<Event>> {
        self.spans().as_ref()?;
        let event = must(Event::timed(self.context()));
        must(event.record(stream));
        Some(Arc::new(event))
    }

    /// Records the work of `stream` since `start` as a span on this GPU's track `part`.
    pub(super) fn span(
        &self,
        start: Option<Arc<Event>>,
        stream: &Stream,
        part: &str,
        category: Category,
        operation: OperationInfo,
    ) {
        self.span_between(start, self.point(stream), part, category, operation);
    }

    fn span_between(
        &self,
        start: Option<Arc<Event>>,
        end: Option<Arc<Event>>,
        part: &str,
        category: Category,
        operation: OperationInfo,
    ) {
        let (Some(start), Some(end)) = (start, end) else { return };
        let mut spans = self.spans();
        let Some(spans) = spans.as_mut() else { return };
        let track = format!("GPU {}{part}", self.gpu().number);
        let phase = spans.recorder.current_phase();
        spans.waiting.push_back(Waiting { track, category, operation, phase, start, end });
        if spans.waiting.len() > MOST_WAITING {
            spans.report_completed();
        }
    }

    fn spans(&self) -> MutexGuard<'_, Option<Spans>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
