//! The thread that runs the collective operations of a worker.
//!
//! The caller continues to compute while operations run. Since all ranks must run them in the same order, one thread runs
//! them one after another, in the order of the calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::error::CollectiveError;
use super::memory::{Buffer, Element};
use super::operations::{Operations, Summand};
use super::recorder::Recorder;
use super::transport::{Operation, Transport};
use crate::Float;

/// The most operations that wait for their turn. Further calls block, which bounds the memory that waits.
const MOST_WAITING: usize = 256;

/// A worker's access to all ranks of its world.
///
/// Calls return immediately. All ranks must make the same calls in the same order. After an operation has failed, all later
/// ones fail with its error.
///
/// Dropping a communicator waits for the operations that were begun, because other ranks need this one in them.
pub struct Communicator {
    rank: usize,
    ranks: usize,
    limit: Duration,
    calls: Option<SyncSender<Call>>,
    thread: Option<JoinHandle<()>>,
    started: Instant,
    /// The time of all operations that have ended, in nanoseconds.
    busy_ns: Arc<AtomicU64>,
}

/// A call for the thread, which numbers it.
type Call = Box<dyn FnOnce(&mut Server, u64) + Send>;

/// For how long a communicator has existed, and operations have taken place, from the begin on this rank: mostly it waits for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UseOfTime {
    /// The communicator's age.
    pub alive: Duration,
    /// The time in operations that have ended.
    pub in_operations: Duration,
}

impl UseOfTime {
    /// The share of time in operations since `earlier`, from 0 to 1; `None` if no time has passed.
    pub fn share_since(self, earlier: Self) -> Option<f64> {
        let alive = self.alive.saturating_sub(earlier.alive).as_secs_f64();
        let busy = self.in_operations.saturating_sub(earlier.in_operations).as_secs_f64();
        // An operation counts as a whole when it ends, even if it began before.
        (alive > 0.0).then(|| (busy / alive).min(1.0))
    }
}

/// The future result of an operation. Dropping it has no influence on the operation.
#[must_use = "an operation may fail"]
#[derive(Debug)]
pub struct Ticket<R> {
    result: Receiver<Result<R, CollectiveError>>,
}

impl<R> Ticket<R> {
    /// Waits for the result.
    ///
    /// # Errors
    /// If the operation, or an earlier one of the same communicator, has failed.
    pub fn join(self) -> Result<R, CollectiveError> {
        self.result.recv().unwrap_or(Err(CollectiveError::Panicked))
    }
}

impl Communicator {
    /// Starts the thread. An operation fails that takes longer than `limit` from its begin on this rank. With a recorder,
    /// operations are recorded.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn new(
        transport: impl Transport + 'static,
        limit: Duration,
        recorder: Option<Recorder>,
    ) -> std::io::Result<Self> {
        let (rank, ranks) = (transport.rank(), transport.ranks());
        let (calls, waiting) = sync_channel::<Call>(MOST_WAITING);
        let operations = Operations::new(Box::new(transport), limit, recorder);
        let busy_ns = Arc::new(AtomicU64::new(0));
        let server = Server { operations, broken: None, busy_ns: Arc::clone(&busy_ns) };
        let thread = std::thread::Builder::new()
            .name(format!("collective-{rank}"))
            .spawn(move || server.serve(&waiting))?;
        let calls = Some(calls);
        Ok(Self { rank, ranks, limit, calls, thread: Some(thread), started: Instant::now(), busy_ns })
    }

    /// The age of this communicator, and for how much of it operations have taken place.
    pub fn use_of_time(&self) -> UseOfTime {
        let in_operations = Duration::from_nanos(self.busy_ns.load(Ordering::Relaxed));
        UseOfTime { alive: self.started.elapsed(), in_operations }
    }

    /// The number of this rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The time limit of an operation.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Adds the numbers of all ranks, element by element. All ranks get the same bits, in every run. Each rank must pass
    /// equally many numbers.
    ///
    /// Fp32 numbers travel as `wire`. If it has 16 bits, each contribution is rounded to it once, the contributions are
    /// added in fp32, and the sum is rounded once. Beyond the largest fp16 number they become infinite. Fp64 numbers travel
    /// and are added as they are.
    pub fn sum<T: Summand>(&self, numbers: Buffer<T>, wire: Float) -> Ticket<Buffer<T>> {
        let bytes = size_of_val(&numbers[..]);
        self.call(T::operation(wire), bytes, move |operations| T::sum(operations, numbers, wire))
    }

    /// Sends `parts[r]` to each rank `r`; returns what each rank sent to this one, by rank. Sizes may differ and be zero.
    pub fn exchange<T: Element>(&self, parts: Vec<Buffer<T>>) -> Ticket<Vec<Buffer<T>>> {
        let bytes = parts.iter().map(|part| size_of_val(&part[..])).sum();
        self.call(Operation::Exchange(T::FORMAT), bytes, move |operations| operations.exchange(parts))
    }

    /// The parts of all ranks, by rank. Sizes may differ and be zero.
    pub fn gather<T: Element>(&self, part: Buffer<T>) -> Ticket<Vec<Buffer<T>>> {
        let bytes = size_of_val(&part[..]);
        self.call(Operation::Gather(T::FORMAT), bytes, move |operations| operations.gather(part))
    }

    /// The data of rank `root`, on all ranks. Other ranks may pass an empty buffer.
    pub fn broadcast<T: Element>(&self, root: usize, data: Buffer<T>) -> Ticket<Buffer<T>> {
        let bytes = size_of_val(&data[..]);
        // Ranks beyond the format's range do not exist either; the operation refuses them.
        let operation =
            Operation::Broadcast { format: T::FORMAT, root: u16::try_from(root).unwrap_or(u16::MAX) };
        self.call(operation, bytes, move |operations| operations.broadcast(root, data))
    }

    /// Completes after all ranks have called it.
    pub fn barrier(&self) -> Ticket<()> {
        self.call(Operation::Barrier, 0, Operations::barrier)
    }

    fn call<R: Send + 'static>(
        &self,
        operation: Operation,
        bytes: usize,
        run: impl FnOnce(&mut Operations) -> Result<R, CollectiveError> + Send + 'static,
    ) -> Ticket<R> {
        let (sender, result) = sync_channel(1);
        let call = move |server: &mut Server, number| {
            // Nobody waits if the ticket was dropped.
            let _ = sender.send(server.run(operation, number, bytes, run));
        };
        if let Some(calls) = &self.calls {
            // If the thread has panicked, the ticket finds that nobody will answer.
            let _ = calls.send(Box::new(call));
        }
        Ticket { result }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.calls = None;
        // A panic was reported by the thread's tickets.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// What the thread works with.
struct Server {
    operations: Operations,
    /// The first error.
    broken: Option<CollectiveError>,
    busy_ns: Arc<AtomicU64>,
}

impl Server {
    /// Runs calls until the communicator is dropped.
    fn serve(mut self, calls: &Receiver<Call>) {
        for (number, call) in (1..).zip(calls) {
            call(&mut self, number);
        }
    }

    fn run<R>(
        &mut self,
        operation: Operation,
        number: u64,
        bytes: usize,
        run: impl FnOnce(&mut Operations) -> Result<R, CollectiveError>,
    ) -> Result<R, CollectiveError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let began = Instant::now();
        self.operations.begin(operation, number, bytes);
        let outcome = run(&mut self.operations);
        self.operations.end(outcome.is_ok());
        let busy_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.busy_ns.fetch_add(busy_ns, Ordering::Relaxed);
        self.broken = outcome.as_ref().err().cloned();
        outcome
    }
}
