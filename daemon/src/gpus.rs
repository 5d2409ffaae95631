//! How busy the host's GPUs are, read by a worker while somebody looks.
//!
//! [`GpuWatch::now`] returns the newest sample and never waits for the driver, but for a bounded time while nobody has looked
//! for long. It starts a thread, which starts a worker (`millstream_worker::gpus`) and asks it for a sample each
//! [`PERIOD`]. After [`IDLE`] without a look both end, so that an idle daemon neither wakes up nor keeps the driver from being
//! reloaded. Metrics that are scraped each minute keep them.
//!
//! A driver that does not answer costs the worker, which is killed, and at most this thread: the daemon shows the last
//! sample with its age and the problem, and asks a new worker after a time that doubles up to [`MAX_PAUSE`].

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millstream_worker::LIBRARIES_VARIABLE;
use millstream_worker::gpus::{GpuSample, GpuUse};
use millstream_worker::protocol::{FromWorker, ToWorker};

use crate::snapshot::{GpuJob, GpuSnapshot, GpusSnapshot, JobSnapshot};
use crate::state::now_ms;
use crate::worker::{WorkerProcess, WorkerProgram};

/// The time between two samples.
const PERIOD: Duration = Duration::from_secs(2);

/// A sample that is older is marked as old.
const FRESH: Duration = Duration::from_secs(7);

/// The time after the last look at which the watch ends. Longer than the usual interval of a Prometheus.
const IDLE: Duration = Duration::from_secs(150);

/// How long the first look waits for the first sample.
const FIRST_WAIT: Duration = Duration::from_millis(1500);

/// Time limits for the driver. Without persistence mode it initializes each GPU when it is opened.
const OPEN_LIMIT: Duration = Duration::from_secs(30);
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The pause after a failure; it doubles up to the maximum.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The pause after which the library is looked for again on a host that lacks it.
const NO_LIBRARY_PAUSE: Duration = Duration::from_secs(300);

/// A device node that exists where NVIDIA's driver is loaded.
const DEVICE_NODE: &str = "/dev/nvidiactl";

/// Watches the GPUs while somebody looks.
pub(crate) struct GpuWatch {
    shared: Arc<Shared>,
}

struct Shared {
    /// The program of workers.
    worker: WorkerProgram,
    state: Mutex<State>,
    /// Notified when the state has changed.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_watching: bool,
    looked: Option<Instant>,
    sample: Option<Sample>,
    /// Why there is no newer sample.
    problem: Option<String>,
    /// The library is not looked for before.
    absent_until: Option<Instant>,
}

#[derive(Clone)]
struct Sample {
    gpus: Vec<GpuUse>,
    at: Instant,
    at_ms: u64,
}

/// Why a worker was given up.
enum End {
    Idle,
    NoLibrary(String),
    Problem(String),
}

impl GpuWatch {
    /// A watch that starts `worker` when somebody looks.
    pub(crate) fn new(worker: WorkerProgram) -> Self {
        Self { shared: Arc::new(Shared { worker, state: Mutex::default(), changed: Condvar::new() }) }
    }

    /// The GPUs, each with the jobs of `jobs` that use it; `None` on a host without any.
    pub(crate) fn now(&self, jobs: &[JobSnapshot]) -> Option<GpusSnapshot> {
        if !has_driver() {
            return None;
        }
        let shared = &self.shared;
        let mut state = shared.state();
        let now = Instant::now();
        state.looked = Some(now);
        if state.absent_until.is_some_and(|until| now < until) {
            return None;
        }
        if !state.is_watching {
            state.is_watching = start(Arc::clone(shared));
        }
        let is_first = |state: &mut State| {
            let is_old = state.sample.as_ref().is_none_or(|sample| sample.at.elapsed() > FRESH);
            state.is_watching && state.problem.is_none() && is_old
        };
        let waited = shared.changed.wait_timeout_while(state, FIRST_WAIT, is_first);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let State { sample, problem, .. } = &*state;
        if sample.is_none() && problem.is_none() {
            return None;
        }
        let (sampled_ms, is_stale) = match sample {
            Some(sample) => (Some(sample.at_ms), sample.at.elapsed() > FRESH || problem.is_some()),
            None => (None, true),
        };
        let gpus = sample.as_ref().map(|sample| sample.gpus.clone()).unwrap_or_default();
        let problem = problem.clone();
        drop(state);
        Some(GpusSnapshot { gpus: with_jobs(gpus, jobs), sampled_ms, is_stale, problem })
    }
}

/// Whether the host may have NVML. A container with GPUs has the node, too.
fn has_driver() -> bool {
    std::env::var_os(LIBRARIES_VARIABLE).is_some() || Path::new(DEVICE_NODE).exists()
}

/// Starts the thread. The worker ends with it.
fn start(shared: Arc<Shared>) -> bool {
    let started = std::thread::Builder::new().name("gpus".into()).spawn(move || shared.watch());
    started.inspect_err(|error| tracing::warn!(%error, "cannot start the thread that watches GPUs")).is_ok()
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks workers until nobody looks any more.
    fn watch(&self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let began = Instant::now();
            match self.ask_worker() {
                End::Idle => break,
                End::NoLibrary(reason) => {
                    tracing::debug!(%reason, "GPUs are not watched: the host has no NVML");
                    let mut state = self.state();
                    state.absent_until = Some(Instant::now() + NO_LIBRARY_PAUSE);
                    (state.sample, state.problem) = (None, None);
                    break;
                }
                End::Problem(problem) => self.report(&problem),
            }
            // A worker that answered for a while has shown that the driver works.
            if began.elapsed() > MAX_PAUSE {
                pause = FIRST_PAUSE;
            }
            if !self.is_wanted_after(pause) {
                break;
            }
            pause = (pause * 2).min(MAX_PAUSE);
        }
        self.state().is_watching = false;
        self.changed.notify_all();
    }

    /// Logs a problem once, and shows it until the next sample.
    fn report(&self, problem: &str) {
        let before = self.state().problem.replace(problem.to_owned());
        if before.as_deref() != Some(problem) {
            tracing::warn!("GPUs cannot be watched: {problem}");
        }
        self.changed.notify_all();
    }

    /// Asks one worker for samples until nobody looks, or it fails.
    fn ask_worker(&self) -> End {
        let log = |line: &str| tracing::debug!("worker that watches GPUs: {line}");
        let mut worker = match WorkerProcess::spawn(&self.worker, None, log) {
            Ok(worker) => worker,
            Err(error) => return End::Problem(format!("no worker can be started: {error}")),
        };
        let (sender, receiver) = sync_channel(1);
        if let Err(error) = worker.listen(move |message| sender.send(message).is_ok(), || {}) {
            return End::Problem(format!("no worker can be asked: {error}"));
        }
        let mut limit = OPEN_LIMIT;
        loop {
            let end = match worker.send(&ToWorker::SampleGpus) {
                Ok(()) => self.take_sample(&receiver, limit),
                Err(error) => Some(End::Problem(format!("the worker cannot be asked: {error}"))),
            };
            if let Some(end) = end {
                // Reported before the worker is dropped, which waits for it: one that the driver has stopped for good cannot
                // be killed.
                if let End::Problem(problem) = &end {
                    self.report(problem);
                }
                return end;
            }
            limit = ANSWER_LIMIT;
            if !self.is_wanted_after(PERIOD) {
                return End::Idle;
            }
        }
    }

    /// Stores the next sample; otherwise why there is none.
    fn take_sample(&self, receiver: &Receiver<FromWorker>, limit: Duration) -> Option<End> {
        let problem = match receiver.recv_timeout(limit) {
            Ok(FromWorker::GpusSampled { sample: GpuSample::Gpus { gpus } }) => {
                let mut state = self.state();
                if state.problem.take().is_some() {
                    tracing::info!("GPUs are watched again");
                }
                state.sample = Some(Sample { gpus, at: Instant::now(), at_ms: now_ms() });
                self.changed.notify_all();
                return None;
            }
            Ok(FromWorker::GpusSampled { sample: GpuSample::NoLibrary { reason } }) => {
                return Some(End::NoLibrary(reason));
            }
            Ok(FromWorker::Failed { message }) => message,
            Ok(_) => "unexpected message from the worker".to_owned(),
            Err(RecvTimeoutError::Timeout) => {
                format!(
                    "NVIDIA's driver has not answered for {} s; `nvidia-smi` shows its state",
                    limit.as_secs()
                )
            }
            Err(RecvTimeoutError::Disconnected) => {
                "the worker that asks NVIDIA's driver died; `sudo dmesg | grep -i nvrm` shows the driver's errors"
                    .to_owned()
            }
        };
        Some(End::Problem(problem))
    }

    /// Waits; then whether somebody has looked lately.
    fn is_wanted_after(&self, pause: Duration) -> bool {
        std::thread::sleep(pause);
        self.state().looked.is_some_and(|looked| looked.elapsed() < IDLE)
    }
}

/// Assigns the processes on each GPU to jobs by their workers' ids.
///
/// In a container, the driver lists processes by their ids outside, which are not known here. A host's only GPU is then that
/// of the jobs that train on a GPU.
fn with_jobs(gpus: Vec<GpuUse>, jobs: &[JobSnapshot]) -> Vec<GpuSnapshot> {
    let of_job = |job| {
        let JobSnapshot { worker, record, .. }: &JobSnapshot = job;
        worker.iter().flat_map(|worker| &worker.pids).map(|&pid| (pid, record.id.as_str()))
    };
    let workers: BTreeMap<u32, &str> = jobs.iter().flat_map(of_job).collect();
    let is_only = gpus.len() == 1;
    let assigned = |found: GpuUse| {
        let processes = found.processes.as_deref().unwrap_or_default();
        let mut of_jobs: Vec<GpuJob> = Vec::new();
        for process in processes {
            if let Some(id) = workers.get(&process.pid) {
                of_jobs.push(GpuJob { id: (*id).to_owned(), bytes: process.bytes });
            }
        }
        let known: u64 = of_jobs.iter().filter_map(|job| job.bytes).sum();
        let listed: Option<u64> = processes.iter().map(|process| process.bytes).sum();
        let mut other_bytes = listed.filter(|_| found.processes.is_some()).map(|all| all - known);
        if of_jobs.is_empty() && is_only {
            let on_gpu = |job: &&JobSnapshot| {
                job.worker.is_some() && job.record.device.as_ref().is_some_and(|device| device.gpu.is_some())
            };
            of_jobs.extend(
                jobs.iter().filter(on_gpu).map(|job| GpuJob { id: job.record.id.clone(), bytes: None }),
            );
            if !of_jobs.is_empty() {
                other_bytes = None;
            }
        }
        GpuSnapshot { found, jobs: of_jobs, other_bytes }
    };
    gpus.into_iter().map(assigned).collect()
}

#[cfg(test)]
#[path = "gpus_tests.rs"]
mod tests;
