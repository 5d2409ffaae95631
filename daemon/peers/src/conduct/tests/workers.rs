//! Workers that train by a timer, in lockstep over all hosts of their generation.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::super::{Reports, Workers};
use crate::HostName;
use crate::generations::member::WorkerEvent;
use crate::generations::{Address, Assignment, GenerationId, Note, Outcome, Reason, Start, When};

const SPAWN_TIME: Duration = Duration::from_millis(30);
const STEP_TIME: Duration = Duration::from_millis(5);
const EXIT_TIME: Duration = Duration::from_millis(20);

/// Workers save the model after each step that this divides.
const SAVE_EVERY: u64 = 5;

/// What the workers of all hosts share.
#[derive(Debug)]
pub(super) struct Training {
    generations: Mutex<BTreeMap<GenerationId, Progress>>,
    /// The number of steps of the job.
    steps: AtomicU64,
}

#[derive(Debug)]
struct Progress {
    assignment: Assignment,
    start: Option<Start>,
    /// The last step of each host whose workers train.
    steps: HashMap<HostName, u64>,
    /// The common step after which they stop.
    stop: Option<u64>,
}

enum Next {
    Wait,
    Step,
    Stop,
    End,
}

impl Training {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { generations: Mutex::default(), steps: AtomicU64::new(u64::MAX) })
    }

    /// Lets the job end some steps later.
    pub(super) fn finish(&self) {
        let generations = self.generations.lock().unwrap();
        let steps = generations.values().flat_map(|progress| progress.steps.values());
        self.steps.store(steps.max().unwrap() + 12, Ordering::SeqCst);
    }

    /// The hosts of a generation.
    pub(super) fn hosts(&self, generation: GenerationId) -> Vec<HostName> {
        self.generations.lock().unwrap()[&generation].assignment.keys().cloned().collect()
    }

    fn propose(&self, generation: GenerationId, assignment: Assignment) {
        let mut generations = self.generations.lock().unwrap();
        let (start, steps, stop) = (None, HashMap::new(), None);
        let new = Progress { assignment: assignment.clone(), start, steps, stop };
        let progress = generations.entry(generation).or_insert(new);
        assert_eq!(progress.assignment, assignment, "all hosts get the same assignment");
    }

    fn begin(&self, generation: GenerationId, host: &HostName, start: Start) {
        let mut generations = self.generations.lock().unwrap();
        let progress = generations.get_mut(&generation).unwrap();
        assert_eq!(*progress.start.get_or_insert(start), start, "all hosts get the same start");
        progress.steps.insert(host.clone(), start.step());
    }

    fn stop_after(&self, generation: GenerationId, step: u64) {
        let mut generations = self.generations.lock().unwrap();
        let progress = generations.get_mut(&generation).unwrap();
        let newest = progress.steps.values().max().copied().unwrap();
        progress.stop.get_or_insert(step.max(newest));
    }

    fn next(&self, generation: GenerationId, host: &HostName) -> Next {
        let mut generations = self.generations.lock().unwrap();
        let Progress { assignment, steps, stop, .. } = generations.get_mut(&generation).unwrap();
        let step = steps[host];
        if step >= self.steps.load(Ordering::SeqCst) {
            return Next::End;
        }
        if *stop == Some(step) {
            return Next::Stop;
        }
        if steps.len() < assignment.len() || steps.values().any(|other| *other < step) {
            return Next::Wait;
        }
        steps.insert(host.clone(), step + 1);
        Next::Step
    }
}

/// The workers of one host.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) host: HostName,
    training: Arc<Training>,
    /// How many generations have workers here.
    pub(super) alive: AtomicUsize,
    pub(super) outcome: Mutex<Option<Outcome>>,
    /// What the leader's daemon has said.
    pub(super) notes: Mutex<Vec<Note>>,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    generation: GenerationId,
    reports: Reports,
    begin: Option<oneshot::Sender<Start>>,
    task: AbortHandle,
}

impl Seat {
    pub(super) fn new(host: HostName, training: &Arc<Training>) -> Arc<Self> {
        let (training, alive) = (Arc::clone(training), AtomicUsize::new(0));
        let (outcome, notes, running) = (Mutex::default(), Mutex::default(), Mutex::default());
        Arc::new(Self { host, training, alive, outcome, notes, running })
    }

    /// The generation of its workers.
    pub(super) fn generation(&self) -> GenerationId {
        self.running.lock().unwrap().as_ref().unwrap().generation
    }

    /// Sends a note to the leader's daemon.
    pub(super) async fn send(&self, note: Note) {
        let reports = self.running.lock().unwrap().as_ref().unwrap().reports.clone();
        reports.send(WorkerEvent::Note(note)).await;
    }

    /// A worker dies.
    pub(super) async fn die(&self) {
        let reports = {
            let running = self.running.lock().unwrap();
            let running = running.as_ref().unwrap();
            running.task.abort();
            running.reports.clone()
        };
        reports.send(WorkerEvent::Died(Reason::new("killed"))).await;
    }

    fn exit(&self) {
        assert_eq!(self.alive.swap(0, Ordering::SeqCst), 1);
    }

    async fn train(
        self: Arc<Self>,
        generation: GenerationId,
        (addresses, begun): (Vec<Address>, oneshot::Receiver<Start>),
        reports: Reports,
    ) {
        tokio::time::sleep(SPAWN_TIME).await;
        reports.send(WorkerEvent::Ready(addresses)).await;
        let Ok(start) = begun.await else { return };
        self.training.begin(generation, &self.host, start);
        let mut step = start.step();
        loop {
            tokio::time::sleep(STEP_TIME).await;
            match self.training.next(generation, &self.host) {
                Next::Wait => {}
                Next::Step => {
                    step += 1;
                    reports.send(WorkerEvent::Step(step)).await;
                    if step.is_multiple_of(SAVE_EVERY) {
                        save(&reports, step).await;
                    }
                }
                Next::Stop => {
                    save(&reports, step).await;
                    self.exit();
                    return reports.send(WorkerEvent::Gone).await;
                }
                Next::End => {
                    save(&reports, step).await;
                    return reports.send(WorkerEvent::AtEnd(step)).await;
                }
            }
        }
    }
}

async fn save(reports: &Reports, step: u64) {
    reports.send(WorkerEvent::Imaged(step)).await;
    reports.send(WorkerEvent::Saved(step)).await;
}

/// The address of a rank's worker.
fn address(generation: GenerationId, rank: u32) -> Address {
    format!("{generation}/{rank}").into_bytes().into()
}

/// Runs the workers of a seat.
pub(super) struct Fake(pub(super) Arc<Seat>);

impl Workers for Fake {
    fn spawn(&mut self, generation: GenerationId, assignment: Assignment, reports: Reports) {
        let seat = &self.0;
        assert_eq!(seat.alive.fetch_add(1, Ordering::SeqCst), 0, "earlier workers have exited");
        let ranks = assignment[&seat.host];
        let addresses =
            (ranks.first..ranks.first + ranks.count).map(|rank| address(generation, rank)).collect();
        seat.training.propose(generation, assignment);
        let (begin, begun) = oneshot::channel();
        let task = Arc::clone(seat).train(generation, (addresses, begun), reports.clone());
        let task = tokio::spawn(task).abort_handle();
        *seat.running.lock().unwrap() = Some(Running { generation, reports, begin: Some(begin), task });
    }

    fn start(
        &mut self,
        generation: GenerationId,
        start: Start,
        senders: BTreeMap<HostName, HostName>,
        addresses: Vec<Address>,
    ) {
        let world = addresses.len() as u32;
        assert!((0..world).map(|rank| address(generation, rank)).eq(addresses), "by rank");
        assert!(senders.is_empty() || matches!(start, Start::Image(_)));
        let mut running = self.0.running.lock().unwrap();
        let running = running.as_mut().filter(|running| running.generation == generation).unwrap();
        running.begin.take().unwrap().send(start).unwrap();
    }

    fn stop_after(&mut self, generation: GenerationId, step: u64) {
        self.0.training.stop_after(generation, step);
    }

    fn explain(&mut self, _: GenerationId, _: When, _: Reason) {}

    fn kill(&mut self, generation: GenerationId) {
        let running = self.0.running.lock().unwrap().take();
        let running = running.filter(|running| running.generation == generation).unwrap();
        running.task.abort();
        let seat = Arc::clone(&self.0);
        tokio::spawn(async move {
            tokio::time::sleep(EXIT_TIME).await;
            // They may have stopped just before.
            seat.alive.store(0, Ordering::SeqCst);
            running.reports.send(WorkerEvent::Gone).await;
        });
    }

    fn hear(&mut self, _: GenerationId, note: Note) {
        self.0.notes.lock().unwrap().push(note);
    }

    fn over(&mut self, outcome: Outcome) {
        *self.0.outcome.lock().unwrap() = Some(outcome);
    }
}
