//! When the device did what it was asked for, while somebody looks.
//!
//! Each operation is handed to the driver by itself then, without a graph, between two events that tell the time, and so
//! are its kernels and each copy of a batch. Steps take longer by what that costs.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard, PoisonError};

use millstream_trace::{Category, OperationInfo, Phase, Recorder, Span, Work, now_ns};

use super::Cuda;
use super::driver::{Event, Stream};
use super::fault::must;

/// Spans that may wait for the device before the first of them are asked.
const MOST_WAITING: usize = 256;
/// Points in time that are taken before the one that both clocks know best is chosen.
const CLOCK_READINGS: usize = 8;

/// A recording of what a device does.
pub(super) struct Spans {
    recorder: Arc<Recorder>,
    base: Base,
    waiting: VecDeque<Waiting>,
}

/// What the device has yet to do, or to be asked about.
struct Waiting {
    track: String,
    category: Category,
    operation: OperationInfo,
    phase: Option<Phase>,
    start: Arc<Event>,
    end: Arc<Event>,
}

/// A point in time that both clocks know.
struct Base {
    event: Event,
    /// When the host asked for it: not after it, so that no span seems to end after the host has waited for its end.
    asked_ns: u64,
}

impl Base {
    /// The host knows of an event only that it was between two readings of its own clock, and may be held up between
    /// them: of several events, the one whose readings are closest.
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
        closest.expect("more than no readings").1
    }
}

impl Spans {
    /// Tells the recorder of those that are done, in their order.
    fn tell(&mut self) {
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
        must(self.stream.wait());
        let spans = Spans { recorder: Arc::clone(recorder), base: Base::of(self), waiting: VecDeque::new() };
        *self.spans() = Some(spans);
    }

    pub(super) fn end_spans(&self) {
        self.flush();
        must(self.copies.wait());
        must(self.stream.wait());
        if let Some(mut spans) = self.spans().take() {
            spans.tell();
        }
    }

    pub(super) fn records_spans(&self) -> bool {
        self.spans().is_some()
    }

    /// Has the device do what was asked for so far, one kernel after the other, each a span.
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

    /// Does `work`, which asks the device for `operation` and for nothing else.
    pub(super) fn record_operation<T>(&self, operation: OperationInfo, work: impl FnOnce() -> T) -> T {
        self.flush();
        let start = self.point(&self.stream);
        let result = work();
        self.flush();
        self.span(start, &self.stream, "", Category::Operation, operation);
        result
    }

    /// The point that `stream` has come to, where spans are recorded.
    pub(super) fn point(&self, stream: &Stream) -> Option<Arc<Event>> {
        self.spans().as_ref()?;
        let event = must(Event::timed(self.context()));
        must(event.record(stream));
        Some(Arc::new(event))
    }

    /// What was asked of `stream` since `start` is a span, of the track of this GPU's `part`.
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
            spans.tell();
        }
    }

    fn spans(&self) -> MutexGuard<'_, Option<Spans>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
