#![allow(clippy::unwrap_used)]

use millstream_io::storage::Directory;

use super::*;
use crate::actor::{Action, Actor};
use crate::state::Owner;

/// A life with one event per second, and the spans that have ended.
struct Story {
    life: Life,
    seconds: u64,
    spans: Vec<SpanData>,
}

fn record() -> JobRecord {
    let mut record = JobRecord::new("census-k3f9q2", "census", Directory::local("/runs/census-k3f9q2"));
    record.owner = Some(Owner { uid: 1001, name: Some("ann".into()) });
    record.created_ms = 500;
    record
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

impl Story {
    /// The story of a job that is queued at second 1.
    fn begin(entry: Entry) -> Self {
        let mut story = Self { life: Life::new("census-k3f9q2"), seconds: 0, spans: Vec::new() };
        story.tell(&[JobEvent::Accepted(entry, &record())]);
        story
    }

    fn tell(&mut self, events: &[JobEvent<'_>]) {
        for &event in events {
            self.seconds += 1;
            self.life.record(event, at(self.seconds));
        }
        self.spans.extend(self.life.take_ended());
    }

    fn span(&self, name: &str) -> &SpanData {
        let mut named = self.spans.iter().filter(|span| span.name == name);
        let span = named.next().unwrap_or_else(|| panic!("no {name} in {:?}", self.tree()));
        assert!(named.next().is_none(), "{name} occurs once");
        span
    }

    /// Each span with its parent's name, its times and whether it failed, in the order of their ends.
    fn tree(&self) -> Vec<(String, String, u64, u64)> {
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap().as_secs();
        let name_of = |id: SpanId| {
            let parent = self.spans.iter().find(|span| span.span_context.span_id() == id);
            parent.map_or_else(String::new, |parent| parent.name.to_string())
        };
        let spans = self.spans.iter();
        let row = |span: &SpanData| {
            (
                span.name.to_string(),
                name_of(span.parent_span_id),
                seconds(span.start_time),
                seconds(span.end_time),
            )
        };
        spans.map(row).collect()
    }
}

fn value(span: &SpanData, key: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == key);
    found.unwrap_or_else(|| panic!("{} lacks {key}", span.name)).value.to_string()
}

const ENTERED: [JobEvent<'_>; 2] = [
    JobEvent::Entered { state: JobState::Preparing, reason: "" },
    JobEvent::Entered { state: JobState::Running, reason: "" },
];

const READY: JobEvent<'_> = JobEvent::WorkerReady { step: 0, resumed: false, device: "the CPU" };

fn progress(step: u64, epoch: u32) -> JobEvent<'static> {
    JobEvent::Progress { step, epoch, has_trained: true }
}

#[test]
fn a_whole_life_is_one_tree() {
    let mut story = Story::begin(Entry::Submitted);
    let metrics = vec![NamedValue { name: "auc".into(), value: 0.75 }];
    let evaluation = Evaluation { step: 20, epoch: 1, metrics };
    story.tell(&[
        JobEvent::Waits { why: "2 jobs run" },
        ENTERED[0],
        JobEvent::Stage(Stage::Listing),
        JobEvent::Stage(Stage::Statistics),
        JobEvent::Stage(Stage::Planning),
        ENTERED[1],
        JobEvent::WorkerStarted { pid: 7, attempt: 1 },
        READY,
        progress(10, 0),
        progress(20, 1),
        JobEvent::Evaluated(&evaluation, Duration::from_secs(3)),
        JobEvent::Checkpointed { step: 20, bytes: 4096, took: Duration::from_secs(2) },
        JobEvent::WorkerEnded { error: None },
        JobEvent::Entered { state: JobState::Succeeded, reason: "" },
    ]);
    let expected = [
        ("submit", "job", 0, 1),
        ("queue", "job", 1, 3),
        ("list data", "prepare", 4, 5),
        ("learn statistics", "prepare", 5, 6),
        ("plan memory", "prepare", 6, 7),
        ("prepare", "job", 3, 7),
        ("start worker", "attempt", 8, 9),
        ("first batch", "attempt", 9, 10),
        ("epoch", "attempt", 9, 11),
        ("evaluation", "attempt", 9, 12),
        ("checkpoint", "attempt", 11, 13),
        ("epoch", "attempt", 11, 14),
        ("attempt", "run", 8, 14),
        ("run", "job", 7, 15),
        ("job", "", 0, 15),
    ];
    let expected =
        expected.map(|(name, parent, start, end)| (name.to_owned(), parent.to_owned(), start, end));
    assert_eq!(story.tree(), expected);
    let trace = story.life.trace();
    assert!(story.spans.iter().all(|span| span.span_context.trace_id() == trace));
    assert!(story.spans.iter().all(|span| span.status == Status::Unset));
    let job = story.span("job");
    assert_eq!(
        (value(job, "user.name"), value(job, "millstream.job.state")),
        ("ann".into(), "succeeded".into())
    );
    assert_eq!(value(story.span("attempt"), "process.pid"), "7");
    assert_eq!(value(story.span("checkpoint"), "millstream.checkpoint.bytes"), "4096");
    assert_eq!(value(story.span("evaluation"), "millstream.metric.auc"), "0.75");
    let wait = &story.span("queue").events[0];
    assert_eq!(wait.attributes[0], KeyValue::new("millstream.wait.reason", "2 jobs run"));
    assert!(story.life.open.is_none());
}

#[test]
fn a_worker_that_dies_fails_its_attempt_and_not_the_job() {
    let mut story = Story::begin(Entry::Submitted);
    story.tell(&ENTERED);
    story.tell(&[
        JobEvent::WorkerStarted { pid: 7, attempt: 1 },
        READY,
        progress(10, 0),
        JobEvent::CheckpointFailed { step: 10, why: "no space", took: Duration::ZERO },
        JobEvent::WorkerEnded { error: Some(("worker_died", "killed by https://me:sesame@host/a")) },
        JobEvent::WorkerStarted { pid: 8, attempt: 2 },
        JobEvent::WorkerReady { step: 8, resumed: true, device: "the CPU" },
        JobEvent::Requested(Action::Pause, Actor { uid: 0 }),
        JobEvent::Stopping { why: "paused" },
        JobEvent::WorkerEnded { error: None },
        JobEvent::Entered { state: JobState::Paused, reason: "paused by a user" },
        // Too late.
        progress(11, 0),
        JobEvent::Entered { state: JobState::Running, reason: "" },
    ]);
    let attempts: Vec<_> = story.spans.iter().filter(|span| span.name == "attempt").collect();
    let (first, second) = (attempts[0], attempts[1]);
    assert_eq!(first.status, Status::error("killed by https://***@host/a"));
    assert_eq!(
        (value(first, "error.type"), value(first, "millstream.step")),
        ("worker_died".into(), "10".into())
    );
    assert_eq!(
        (second.status.clone(), value(second, "millstream.resumed.step")),
        (Status::Unset, "8".into())
    );
    assert_eq!(story.span("checkpoint").status, Status::error("no space"));
    assert_eq!(story.span("stop").parent_span_id, second.span_context.span_id());
    assert_eq!(story.span("run").status, Status::Unset);
    let job = story.span("job");
    assert_eq!((&job.status, job.events[0].name.as_ref()), (&Status::Unset, "pause"));
    assert_eq!(story.spans.last().map(|span| span.name.as_ref()), Some("job"));
}

#[test]
fn a_failure_marks_what_failed_and_all_above_it() {
    let mut story = Story::begin(Entry::Submitted);
    let failed = JobEvent::Entered { state: JobState::Failed, reason: "no data" };
    story.tell(&[ENTERED[0], JobEvent::Stage(Stage::Listing), failed]);
    for name in ["list data", "prepare", "job"] {
        assert_eq!(story.span(name).status, Status::error("no data"), "{name}");
    }
    assert_eq!(story.span("queue").status, Status::Unset);
}

#[test]
fn a_new_daemon_continues_the_trace_and_links_to_its_first_span() {
    let mut first = Story::begin(Entry::Submitted);
    first.tell(&ENTERED);
    first.life.leave(at(9));
    first.tell(&[]);
    let mut second = Story::begin(Entry::Restarted);
    second.tell(&[JobEvent::Entered { state: JobState::Cancelled, reason: "cancelled by a user" }]);
    let (before, after) = (first.span("job"), second.span("job"));
    assert_eq!(value(before, "millstream.job.state"), "unfinished");
    assert_eq!(before.span_context.trace_id(), after.span_context.trace_id());
    assert_ne!(before.span_context.span_id(), after.span_context.span_id());
    assert_eq!(after.links[0].span_context.span_id(), before.span_context.span_id());
    assert!(before.links.is_empty() && second.span("restart").parent_span_id == after.span_context.span_id());
    assert_ne!(Life::new("census-k3f9q3").trace(), first.life.trace());
}

#[test]
fn a_trial_links_to_its_search() {
    let mut life = Life::new("census-3-a");
    let directory = tempfile::tempdir().unwrap();
    let search = directory.path().join("census-search-b");
    std::fs::create_dir(&search).unwrap();
    std::fs::write(search.join(crate::runs::SEARCH), "{}").unwrap();
    let trial = JobRecord { directory: Directory::local(search.join("census-3-a")), ..record() };
    life.record(JobEvent::Accepted(Entry::Submitted, &trial), at(1));
    life.leave(at(2));
    let spans: Vec<_> = life.take_ended().collect();
    let job = spans.last().unwrap();
    assert_eq!(value(job, "millstream.search.id"), "census-search-b");
    assert_eq!(job.links[0].span_context.trace_id(), Life::new("census-search-b").trace());
}

#[test]
fn events_of_any_order_and_number_are_harmless() {
    let mut story = Story::begin(Entry::Resumed);
    let evaluation = Evaluation::default();
    let events = [
        JobEvent::WorkerEnded { error: Some(("failed", "x")) },
        READY,
        progress(3, 9),
        JobEvent::Stage(Stage::Planning),
        JobEvent::Waits { why: "a" },
        JobEvent::Evaluated(&evaluation, Duration::ZERO),
        JobEvent::Stopping { why: "x" },
        ENTERED[1],
        JobEvent::WorkerStarted { pid: 1, attempt: 1 },
        JobEvent::WorkerStarted { pid: 2, attempt: 2 },
        JobEvent::Entered { state: JobState::Queued, reason: "" },
        JobEvent::Accepted(Entry::Submitted, &record()),
    ];
    for turn in 0..events.len() {
        for step in 0..events.len() {
            story.tell(&[events[(turn * step + turn) % events.len()]]);
        }
    }
    for _ in 0..2 * MAX_EVENTS {
        story.tell(&[JobEvent::Requested(Action::Checkpoint, Actor { uid: 0 })]);
    }
    story.life.leave(at(story.seconds + 1));
    story.tell(&[]);
    let ids: std::collections::HashSet<_> =
        story.spans.iter().map(|span| span.span_context.span_id()).collect();
    assert_eq!(ids.len(), story.spans.len(), "each span ends once");
    let parents = story.spans.iter().map(|span| span.parent_span_id);
    assert!(parents.into_iter().all(|id| id == SpanId::INVALID || ids.contains(&id)), "{:?}", story.tree());
    let job = story.spans.last().unwrap();
    assert_eq!((job.name.as_ref(), job.events.events.len()), ("job", MAX_EVENTS));
    assert!(job.events.dropped_count > 0);
}
