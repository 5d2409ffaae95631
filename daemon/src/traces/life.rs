//! The spans of a job, made of its events.
//!
//! ```text
//! job                      from its submission, or its return, until it ends or the daemon stops
//! |- submit                or `resume`, or `restart` by a new daemon
//! |- queue                 with an event for each reason to wait
//! |- prepare
//! |  |- list data
//! |  |- learn statistics
//! |  `- plan memory
//! `- run
//!    `- attempt            one worker process
//!       |- start worker    until it has its model
//!       |- first batch     until the first steps are reported
//!       |- epoch
//!       |- evaluation
//!       |- checkpoint
//!       `- stop            from the request until the worker has ended
//! ```
//!
//! At most one span of each name is open at a time; the end of a span ends those below it. Events that do not fit the
//! state, such as progress without a worker, change nothing. Steps are not spans: there are too many.

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millstream_control::proto::{Evaluation, JobState, NamedValue};
use opentelemetry::trace::{
    Event, Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};
use sha2::{Digest, Sha256};

use super::{Entry, JobEvent, Stage, shown};
use crate::runs::RunDirectory;
use crate::search;
use crate::state::JobRecord;

/// The events of one span; further ones are counted.
const MAX_EVENTS: usize = 32;

/// A job's spans.
#[derive(Debug)]
pub(super) struct Life {
    trace: TraceId,
    /// Where the trace begins: the id of the span of a new job.
    first: SpanId,
    open: Option<Open>,
    ended: Vec<SpanData>,
    /// Whether the job has ended or the daemon stops: nothing follows.
    is_over: bool,
}

/// The open spans of a job that is in the daemon.
#[derive(Debug)]
struct Open {
    job: Span,
    /// In the queue, in preparation or running.
    phase: Option<Span>,
    /// A stage of the preparation.
    stage: Option<Span>,
    attempt: Option<Attempt>,
}

/// The open spans of a worker.
#[derive(Debug)]
struct Attempt {
    span: Span,
    /// From the worker's start, and then from its readiness, to the first steps.
    start: Option<Span>,
    epoch: Option<Epoch>,
    stop: Option<Span>,
    /// The last known step.
    step: u64,
}

/// The span of an epoch, whose number the first progress report in it has.
#[derive(Debug)]
struct Epoch {
    span: Span,
    number: Option<u32>,
}

/// A span that has not ended.
#[derive(Debug)]
struct Span {
    name: &'static str,
    id: SpanId,
    parent: SpanId,
    start: SystemTime,
    attributes: Vec<KeyValue>,
    events: SpanEvents,
    links: SpanLinks,
}

impl Life {
    /// The life of the job `id`, which is not in the daemon yet.
    pub(super) fn new(id: &str) -> Self {
        let (trace, first) = ids(id);
        Self { trace, first, open: None, ended: Vec::new(), is_over: false }
    }

    /// The id of the trace.
    pub(super) fn trace(&self) -> TraceId {
        self.trace
    }

    /// The spans that have ended since the last call.
    pub(super) fn take_ended(&mut self) -> std::vec::Drain<'_, SpanData> {
        self.ended.drain(..)
    }

    /// Records what happens at `now`.
    pub(super) fn record(&mut self, event: JobEvent<'_>, now: SystemTime) {
        if self.is_over {
            return;
        }
        if let (JobEvent::Accepted(entry, record), None) = (event, &self.open) {
            self.accept(entry, record, now);
            return;
        }
        let Some(mut open) = self.open.take() else { return };
        match event {
            JobEvent::Accepted(..) => {}
            JobEvent::Requested(action, actor) => {
                let who = KeyValue::new("user.id", actor.uid.to_string());
                open.job.event(action.call().command(), now, vec![who]);
            }
            JobEvent::Entered { state, reason } => {
                self.enter(open, state, reason, now);
                return;
            }
            JobEvent::Waits { why } => {
                if let Some(queue) = open.phase.as_mut().filter(|phase| phase.name == "queue") {
                    queue.event("wait", now, vec![KeyValue::new("millstream.wait.reason", shown(why))]);
                }
            }
            JobEvent::Stage(stage) => {
                if let Some(phase) = open.phase.as_ref().filter(|phase| phase.name == "prepare") {
                    let next = Span::new(stage.name(), phase.id, now);
                    let last = open.stage.replace(next);
                    self.end(last, Status::Unset, now);
                }
            }
            JobEvent::WorkerStarted { pid, attempt } => {
                self.end_attempt(&mut open, None, now);
                if let Some(run) = &open.phase {
                    let span = Span::new("attempt", run.id, now)
                        .with("process.pid", i64::from(pid))
                        .with("millstream.attempt", i64::from(attempt));
                    open.attempt = Some(Attempt {
                        start: Some(Span::new("start worker", span.id, now)),
                        span,
                        epoch: None,
                        stop: None,
                        step: 0,
                    });
                }
            }
            JobEvent::WorkerEnded { error } => self.end_attempt(&mut open, error, now),
            of_worker => {
                if let Some(attempt) = &mut open.attempt {
                    self.record_worker(attempt, of_worker, now);
                }
            }
        }
        self.open = Some(open);
    }

    /// The daemon stops: ends the spans that are open.
    pub(super) fn leave(&mut self, now: SystemTime) {
        self.is_over = true;
        if let Some(mut open) = self.open.take() {
            self.end_phase(&mut open, Status::Unset, now);
            let job = open.job.with("millstream.job.state", "unfinished");
            self.end(Some(job), Status::Unset, now);
        }
    }

    fn accept(&mut self, entry: Entry, record: &JobRecord, now: SystemTime) {
        let (id, name, began) = match entry {
            Entry::Submitted => (self.first, "submit", UNIX_EPOCH + Duration::from_millis(record.created_ms)),
            Entry::Resumed => (random_id(), "resume", now),
            Entry::Restarted => (random_id(), "restart", now),
        };
        let mut job = Span { id, ..Span::new("job", SpanId::INVALID, began.min(now)) }
            .with("millstream.job.id", record.id.clone())
            .with("millstream.job.name", record.name.clone())
            .with("millstream.job.priority", i64::from(record.priority));
        let mut entered = Span::new(name, id, began.min(now));
        if let Some(owner) = &record.owner {
            for span in [&mut job, &mut entered] {
                span.set("user.id", owner.uid.to_string());
                span.attributes.extend(owner.name.clone().map(|name| KeyValue::new("user.name", name)));
            }
        }
        if entry != Entry::Submitted {
            job.link("first", self.trace, self.first);
        }
        // Of a run in a bucket, that would take requests.
        let directory = record.directory.as_local().map(RunDirectory::local);
        let search = directory.and_then(|directory| search::of_trial(&directory).ok()?);
        if let Some(search) = search.as_ref().and_then(|search| search.address().name()) {
            job.set("millstream.search.id", search.to_owned());
            let (trace, first) = ids(search);
            job.link("search", trace, first);
        }
        self.end(Some(entered), Status::Unset, now);
        let phase = Some(Span::new("queue", id, now));
        self.open = Some(Open { job, phase, stage: None, attempt: None });
    }

    fn enter(&mut self, mut open: Open, state: JobState, reason: &str, now: SystemTime) {
        let has_failed = matches!(state, JobState::Failed | JobState::Held);
        let status = || if has_failed { Status::error(shown(reason)) } else { Status::Unset };
        self.end_phase(&mut open, status(), now);
        if state.is_final() {
            self.is_over = true;
            let mut job = open.job.with("millstream.job.state", state.name());
            if !reason.is_empty() {
                job.set("millstream.job.reason", shown(reason));
            }
            self.end(Some(job), status(), now);
            return;
        }
        let name = match state {
            JobState::Preparing => "prepare",
            JobState::Running => "run",
            _ => "queue",
        };
        let mut phase = Span::new(name, open.job.id, now);
        if !reason.is_empty() {
            phase.set("millstream.job.reason", shown(reason));
        }
        open.phase = Some(phase);
        self.open = Some(open);
    }

    fn record_worker(&mut self, attempt: &mut Attempt, event: JobEvent<'_>, now: SystemTime) {
        let parent = attempt.span.id;
        match event {
            JobEvent::WorkerReady { step, resumed, device } => {
                attempt.step = step;
                attempt.span.set("millstream.device", device.to_owned());
                if resumed {
                    attempt.span.set("millstream.resumed.step", integer(step));
                }
                let start = attempt.start.replace(Span::new("first batch", parent, now));
                self.end(start, Status::Unset, now);
                let epoch =
                    attempt.epoch.replace(Epoch { span: Span::new("epoch", parent, now), number: None });
                self.end_epoch(epoch, now);
            }
            JobEvent::Progress { step, epoch, has_trained } => {
                attempt.step = step;
                if has_trained {
                    self.end(attempt.start.take(), Status::Unset, now);
                }
                self.advance(attempt, epoch, now);
            }
            JobEvent::Evaluated(Evaluation { step, epoch, metrics }, took) => {
                let mut span = Span::new("evaluation", parent, before(now, took));
                span.set("millstream.step", integer(*step));
                span.set("millstream.epoch", i64::from(*epoch));
                for NamedValue { name, value } in metrics {
                    span.attributes.push(KeyValue::new(format!("millstream.metric.{name}"), *value));
                }
                self.end(Some(span), Status::Unset, now);
            }
            // It was committed before, and is only requested again.
            JobEvent::Checkpointed { took, .. } if took.is_zero() => {}
            JobEvent::Checkpointed { step, bytes, took } => {
                let span = Span::new("checkpoint", parent, before(now, took))
                    .with("millstream.step", integer(step))
                    .with("millstream.checkpoint.bytes", integer(bytes));
                self.end(Some(span), Status::Unset, now);
            }
            JobEvent::CheckpointFailed { step, why, took } => {
                let span =
                    Span::new("checkpoint", parent, before(now, took)).with("millstream.step", integer(step));
                self.end(Some(span), Status::error(shown(why)), now);
            }
            JobEvent::Stopping { why } => {
                attempt.stop.get_or_insert_with(|| {
                    Span::new("stop", parent, now).with("millstream.stop.reason", why.to_owned())
                });
            }
            _ => {}
        }
    }

    /// Ends the open epoch if training has come to another one.
    fn advance(&mut self, attempt: &mut Attempt, epoch: u32, now: SystemTime) {
        let Some(open) = &mut attempt.epoch else { return };
        let last = *open.number.get_or_insert(epoch);
        if last != epoch {
            let next = Epoch { span: Span::new("epoch", attempt.span.id, now), number: Some(epoch) };
            let ended = attempt.epoch.replace(next);
            self.end_epoch(ended, now);
        }
    }

    fn end_epoch(&mut self, epoch: Option<Epoch>, now: SystemTime) {
        // Without a number, the worker has reported nothing in it.
        if let Some(Epoch { span, number: Some(number) }) = epoch {
            self.end(Some(span.with("millstream.epoch", i64::from(number))), Status::Unset, now);
        }
    }

    fn end_attempt(&mut self, open: &mut Open, error: Option<(&'static str, &str)>, now: SystemTime) {
        let Some(Attempt { span, start, epoch, stop, step }) = open.attempt.take() else {
            return;
        };
        self.end_epoch(epoch, now);
        for child in [start, stop] {
            self.end(child, Status::Unset, now);
        }
        let mut span = span.with("millstream.step", integer(step));
        let status = match error {
            None => Status::Unset,
            Some((kind, text)) => {
                span.set("error.type", kind);
                Status::error(shown(text))
            }
        };
        self.end(Some(span), status, now);
    }

    /// Ends the phase and what is below it.
    fn end_phase(&mut self, open: &mut Open, status: Status, now: SystemTime) {
        self.end_attempt(open, None, now);
        self.end(open.stage.take(), status.clone(), now);
        self.end(open.phase.take(), status, now);
    }

    fn end(&mut self, span: Option<Span>, status: Status, now: SystemTime) {
        self.ended.extend(span.map(|span| span.ended(self.trace, status, now)));
    }
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Self::Listing => "list data",
            Self::Statistics => "learn statistics",
            Self::Planning => "plan memory",
        }
    }
}

impl Span {
    fn new(name: &'static str, parent: SpanId, start: SystemTime) -> Self {
        Self {
            name,
            id: random_id(),
            parent,
            start,
            attributes: Vec::new(),
            events: SpanEvents::default(),
            links: SpanLinks::default(),
        }
    }

    fn with(mut self, key: &'static str, value: impl Into<opentelemetry::Value>) -> Self {
        self.set(key, value);
        self
    }

    fn set(&mut self, key: &'static str, value: impl Into<opentelemetry::Value>) {
        self.attributes.push(KeyValue::new(key, value));
    }

    fn event(&mut self, name: impl Into<Cow<'static, str>>, at: SystemTime, attributes: Vec<KeyValue>) {
        if self.events.events.len() < MAX_EVENTS {
            self.events.events.push(Event::new(name, at, attributes, 0));
        } else {
            self.events.dropped_count += 1;
        }
    }

    fn link(&mut self, to: &'static str, trace: TraceId, span: SpanId) {
        let context = SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::NONE);
        self.links.links.push(Link::new(context, vec![KeyValue::new("millstream.link", to)], 0));
    }

    fn ended(self, trace: TraceId, status: Status, end: SystemTime) -> SpanData {
        let context = SpanContext::new(trace, self.id, TraceFlags::SAMPLED, false, TraceState::NONE);
        SpanData {
            span_context: context,
            parent_span_id: self.parent,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: self.name.into(),
            start_time: self.start,
            // The clock may have been set back.
            end_time: end.max(self.start),
            attributes: self.attributes,
            dropped_attributes_count: 0,
            events: self.events,
            links: self.links,
            status,
            instrumentation_scope: InstrumentationScope::builder("millstream")
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
        }
    }
}

/// The ids of a job's trace and of its first span. A run keeps its id on another host, and so its trace.
fn ids(job: &str) -> (TraceId, SpanId) {
    let digest = Sha256::new().chain_update(b"millstream job\0").chain_update(job).finalize();
    let (trace, span) = (digest[..16].try_into(), digest[16..24].try_into());
    (TraceId::from_bytes(trace.unwrap_or_default()), SpanId::from_bytes(span.unwrap_or_default()))
}

fn random_id() -> SpanId {
    RandomIdGenerator::default().new_span_id()
}

fn before(now: SystemTime, took: Duration) -> SystemTime {
    now.checked_sub(took).unwrap_or(now)
}

fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
