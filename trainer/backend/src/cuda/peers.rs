//! Sums over the GPUs of all ranks, in place, and what each has for the others, by NCCL.
//!
//! ```text
//! work | backward | ready | backward ... (waits) | join | update ...
//!                      \                        /
//! sums |                | sum of all ranks | summed
//! ```
//!
//! A sum runs beside later work, until work that needs it joins it. A gather of sections of memory
//! ([`rank_rows`](super::rank_rows)) is ordered, waits and fails as a sum does; below, "sum" stands for both.
//!
//! A sum cuts the command list, as an upload does ([`feed`](super::feed)). It is never part of a graph: NCCL demands that
//! all ranks capture the same operations, and a list becomes a graph when it comes again, which ranks do at different steps.
//!
//! NCCL adds each number along a ring or up a tree of ranks, and copies the result to all. So all ranks get the same bits
//! (`src/device/all_reduce.h` of its source); which order it chooses depends on sizes and the host's topology. Sums in
//! NVSwitches, whose order changes, are off: the daemon sets `NCCL_NVLS_ENABLE=0` for its workers.
//!
//! # Lost ranks
//!
//! A sum that waits for a lost rank never ends, and a host that waits for the device would wait with it. So while sums are
//! open, the host polls what it waits for, and whether the oldest sum has failed or exceeds its time limit, which counts
//! from when the device has reached it. Then it raises a [`CollectiveError`]. A call of the driver that may wait for all
//! work comes after the end of all sums ([`Cuda::wait_for_sums`]).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millstream_trace::{Category, OperationInfo, Work};
use zerocopy::{FromBytes, IntoBytes};

use super::Cuda;
use super::buffers::{CudaMatrix, number_bytes};
use super::driver::{DriverError, Event, Stream};
use super::fault::must;
use super::nccl::{self, CallError, Nccl, Section, Summand, UniqueId};
use crate::backend::Backend;
use crate::collective::{Buffer, CollectiveError, Communicator, Deadline, Label, Operation, Round};
use crate::device::Device;
use crate::error::ConnectDevicesError;

/// Interval between checks of what the host waits for. A thread that sleeps leaves its core to the input pipeline.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// The connection of a GPU to those of the other ranks.
pub struct CudaPeers {
    communicator: Arc<nccl::Communicator>,
    /// The number of this rank.
    pub(super) rank: usize,
    /// Runs the sums.
    stream: Stream,
    /// Counts the sums, from 1.
    sums: AtomicU64,
    /// The time limit of a sum.
    limit: Duration,
}

/// Sums that the device may not have completed, the oldest first.
#[derive(Default)]
pub(super) struct OpenSums(Mutex<Sums>);

#[derive(Default)]
struct Sums {
    open: VecDeque<OpenSum>,
    /// Events of completed sums, for the next ones.
    free: Vec<[Event; 2]>,
}

struct OpenSum {
    label: Label,
    communicator: Arc<nccl::Communicator>,
    limit: Duration,
    /// Completes when the device has reached the sum, and when it has ended.
    ready: Event,
    summed: Event,
    /// When the host first saw that the device had reached it.
    began: Option<Instant>,
}

impl OpenSums {
    fn lock(&self) -> MutexGuard<'_, Sums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenSum {
    /// Fails if the sum has failed or exceeds its time limit.
    fn check(&mut self) {
        if let Err(error) = self.communicator.is_idle() {
            failed(self.label, error).raise();
        }
        if self.began.is_none() && must(self.ready.is_over()) {
            self.began = Some(Instant::now());
        }
        if self.began.is_some_and(|began| began.elapsed() > self.limit) {
            late(self.label, self.limit).raise();
        }
    }
}

/// The track of operations over ranks, in recordings.
const PEERS_TRACK: &str = ", other workers";

/// The first contact of the GPUs.
const CONNECT: Label = Label { operation: Operation::Connect, number: 0, round: Round::Only };

/// An operation that reads and writes `bytes` bytes, for recordings.
fn info(name: &'static str, bytes: usize) -> OperationInfo {
    OperationInfo { name, work: Work { bytes: 2 * bytes as u64, ..Work::default() }, shape: None }
}

fn failed(label: Label, error: impl ToString) -> CollectiveError {
    CollectiveError::Device { label, reason: error.to_string() }
}

fn late(label: Label, limit: Duration) -> CollectiveError {
    failed(label, format!("a rank did not complete it within {} s", limit.as_secs_f64()))
}

impl Cuda {
    /// Connects this GPU to those of all ranks of `communicator`, and tries each operation.
    pub(super) fn connect_peers(
        &self,
        communicator: &Communicator,
    ) -> Result<CudaPeers, ConnectDevicesError> {
        let library = Nccl::open(&self.found_in)?;
        let limit = communicator.limit();
        let id = match communicator.rank() {
            0 => Buffer::from(library.unique_id()?.as_bytes()),
            _ => Buffer::default(),
        };
        let id = communicator.broadcast(0, id).join()?;
        let id = UniqueId::read_from_bytes(&id)
            .map_err(|_| failed(CONNECT, format!("the id of rank 0 has {} bytes", id.len())))?;
        let ranks = (communicator.rank(), communicator.ranks());
        let connected =
            nccl::Communicator::connect(library, self.context(), ranks, id, Deadline::after(limit));
        let connected = connected.map_err(|error| match error {
            CallError::Nccl(error) if error.may_be_of_peer() => failed(CONNECT, error).into(),
            CallError::Nccl(error) => error.into(),
            CallError::Driver(error) => ConnectDevicesError::Driver(error),
            CallError::Late => late(CONNECT, limit).into(),
        })?;
        let peers = CudaPeers {
            communicator: Arc::new(connected),
            rank: communicator.rank(),
            stream: Stream::new(self.context()).map_err(DriverError::from)?,
            sums: AtomicU64::new(0),
            limit,
        };
        // GPUs connect in the first operation of each kind: what prevents that is reported before the first step.
        let mut matrix = self.matrix(1, 1);
        self.sum_over_ranks(&peers, |sum| sum(&mut matrix));
        self.gather_over_peers(&peers, &[Section { address: matrix.address(), words: 1, root: 0 }]);
        self.finish();
        Ok(peers)
    }

    pub(super) fn start_sum_over_peers(
        &self,
        peers: &CudaPeers,
        visit: impl FnOnce(&mut dyn FnMut(&mut CudaMatrix)),
    ) {
        self.begin_over_peers();
        let mut summands = Vec::new();
        visit(&mut |matrix| summands.push(matrix.summand()));
        self.enqueue_sum(peers, &summands);
    }

    /// Starts the sum of `summands`, which are memory of this backend.
    pub(super) fn start_sum_of(&self, peers: &CudaPeers, summands: &[Summand]) {
        self.begin_over_peers();
        self.enqueue_sum(peers, summands);
    }

    fn enqueue_sum(&self, peers: &CudaPeers, summands: &[Summand]) {
        let bytes = summands.iter().map(|summand| summand.count * number_bytes(summand.float)).sum();
        let info = (Operation::DeviceSum, info("sum_over_ranks", bytes));
        // SAFETY: memory of this backend is not freed before the sum has ended. Earlier commands precede the sum, and later ones that
        // use the numbers wait for it.
        let sum = |deadline| unsafe { peers.communicator.sum(summands, &peers.stream, deadline) };
        self.enqueue_over_peers(peers, info, sum);
    }

    /// Gathers `sections`, which are memory of this backend.
    pub(super) fn gather_over_peers(&self, peers: &CudaPeers, sections: &[Section]) {
        self.begin_over_peers();
        let bytes = sections.iter().map(|section| section.words * size_of::<u32>()).sum();
        let info = (Operation::DeviceGather, info("gather_rows", bytes));
        // SAFETY: as in `enqueue_sum`.
        let gather = |deadline| unsafe { peers.communicator.gather(sections, &peers.stream, deadline) };
        self.enqueue_over_peers(peers, info, gather);
        self.join_peers();
    }

    /// Lets later commands wait for all operations over ranks.
    pub(super) fn join_peers(&self) {
        self.flush();
        // They end in their order.
        if let Some(last) = self.sums.lock().open.back() {
            must(self.stream.wait_for(&last.summed));
        }
    }

    /// From here on, memory that is dropped stays until the operation has ended that is enqueued next.
    fn begin_over_peers(&self) {
        self.flush();
        self.context().begin_sum();
    }

    /// Enqueues an operation over all ranks after earlier commands.
    fn enqueue_over_peers(
        &self,
        peers: &CudaPeers,
        (operation, info): (Operation, OperationInfo),
        enqueue: impl FnOnce(Deadline) -> Result<(), CallError>,
    ) {
        let [ready, summed] = self.sums.lock().free.pop().unwrap_or_else(|| {
            let event = |_| must(Event::new(self.context()));
            [0, 1].map(event)
        });
        must(ready.record(&self.stream));
        must(peers.stream.wait_for(&ready));
        let start = self.point(&peers.stream);
        let number = peers.sums.fetch_add(1, Ordering::Relaxed) + 1;
        let label = Label { operation, number, round: Round::Only };
        match enqueue(Deadline::after(peers.limit)) {
            Ok(()) => {}
            Err(CallError::Nccl(error)) => failed(label, error).raise(),
            Err(CallError::Driver(error)) => failed(label, error).raise(),
            Err(CallError::Late) => late(label, peers.limit).raise(),
        }
        must(summed.record(&peers.stream));
        self.span(start, &peers.stream, PEERS_TRACK, Category::Operation, info);
        let (communicator, limit) = (Arc::clone(&peers.communicator), peers.limit);
        let sum = OpenSum { label, communicator, limit, ready, summed, began: None };
        self.forget_completed_sums();
        self.sums.lock().open.push_back(sum);
    }

    /// Waits for `event`, or fails with the sum that keeps the device from it.
    pub(super) fn wait_for(&self, event: &Event) {
        while self.has_open_sums() {
            if must(event.is_over()) {
                // It may be behind sums that were open above.
                self.forget_completed_sums();
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        must(event.wait());
    }

    /// Waits for all commands, but not for sums that none of them has joined.
    pub(super) fn wait_for_commands(&self) {
        self.flush();
        if self.has_open_sums() {
            let done = must(Event::new(self.context()));
            must(done.record(&self.stream));
            self.wait_for(&done);
        }
    }

    /// Waits until all sums have ended: before each call in which the driver may wait for the device.
    pub(super) fn wait_for_sums(&self) {
        while self.has_open_sums() {
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Whether sums are open. Fails if the oldest one has failed or exceeds its time limit.
    fn has_open_sums(&self) -> bool {
        self.forget_completed_sums();
        self.sums.lock().open.front_mut().map(OpenSum::check).is_some()
    }

    /// Forgets the sums that the device has completed.
    pub(super) fn forget_completed_sums(&self) {
        let mut sums = self.sums.lock();
        while let Some(OpenSum { ready, summed, .. }) =
            sums.open.pop_front_if(|sum| sum.summed.is_over().is_ok_and(|is_over| is_over))
        {
            self.context().end_sum();
            sums.free.push([ready, summed]);
        }
    }
}

#[cfg(test)]
mod tests;
