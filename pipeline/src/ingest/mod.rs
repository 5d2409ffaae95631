//! The ingest engine: lanes read, a packer fills the rings.
//!
//! ```text
//! lane 0   fetch -> decode -> transform -> window, permuted --+
//! lane 1   fetch -> decode -> transform -> window, permuted --+-> packer: draw, gather, publish -> rings
//! ...                                                         |
//! lane V-1 fetch -> decode -> transform -> window, permuted --+
//! ```
//!
//! **Threads.** One thread per lane that has splits, one packer, and one tuning thread, which sleeps most of the time.
//! A lane is sequential, since each window follows from the previous one. It mostly decodes and may block on storage; a
//! separate thread lets it do both in straight-line code. The job determines the number of lanes, and the machine the
//! number of cores. So a lane decodes only while it holds one of a few permits, which it releases while it waits
//! ([`DecodePermits`]). The lane whose window is needed next gets a permit first, and a hundred lanes cost no more than
//! a few. Lanes run through all passes of the feed, so they read the next pass while the last batches of the current
//! pass are packed.
//!
//! **Ranks.** Several workers of this host may train one model together, each with a ring. Data is read and decoded
//! once; the packer deals the rows of each global batch to the rings ([`assemble`]).
//!
//! **Hosts.** Several hosts may train one model together. Each reads its own lanes and packs their rows
//! ([`Deal`](crate::order::Deal)); they exchange the extents of windows ([`peers`]).
//!
//! **Resources** that affect only the rate (permits, ranges in flight, the depth of read-ahead) are tuned at run time,
//! within the job's memory budget ([`tuner`]). [`diagnose`] finds the bottleneck.
//!
//! **Bounds.** A lane hands over whole windows through a rendezvous channel, so it is never more than one window ahead.
//! The packer waits for the rings. So back-pressure reaches every stage, and the maximum memory is known in advance
//! ([`IngestPlan`]).
//!
//! **Errors.** A lane hands over an error in place of the window that it could not fill. The packer receives it when
//! the order requires that window. All earlier batches are delivered, and timing does not affect which of several
//! errors ends the feed.
//!
//! **The end.** After the last batch the rings are finished. After an error or a cancellation they are dropped
//! unfinished; consumers can distinguish the two. In both cases every thread is joined.

mod assemble;
mod dataset_source;
mod explain;
mod handover;
mod kept;
mod lane;
mod limit;
mod measure;
mod mixed;
mod peers;
mod plan;
mod source;
mod stats;
mod tuner;

#[cfg(test)]
mod deal_tests;
#[cfg(test)]
mod exactly_once;
#[cfg(test)]
#[path = "../../tests/support/hub.rs"]
mod hub;
#[cfg(test)]
mod packing_tests;
#[cfg(test)]
mod peers_tests;
#[cfg(test)]
mod ranks_tests;
#[cfg(test)]
mod shard_tests;
#[cfg(test)]
mod synthetic;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use millstream_batch::ring::Interrupter;
use millstream_batch::{Producer, scheduling};
use millstream_io::limits::ReadLimits;
use millstream_io::permits::{DecodePermits, Permit};

use self::handover::{Handover, Notify};
use self::lane::{LaneReader, Piece};
use self::tuner::Drive;
use crate::error::Error;
use crate::order::{LanePosition, Position};

pub use self::dataset_source::DatasetSource;
pub use self::explain::{Bound, Diagnosis, Explanation, Resources, StageUse, diagnose};
pub use self::kept::{KeptColumns, KeptRows};
pub use self::measure::{IngestMeasurement, measure};
pub use self::peers::{
    DecodeUpdateError, Exchange, ExchangeError, MAX_ENCODED_BYTES, MAX_TEXT_BYTES, MAX_UNRECEIVED, Peers,
    PieceKey, PieceUpdate, SendCredit, SendUpdate, Unsent,
};
pub use self::plan::{IngestPlan, MemoryNeed};
pub use self::source::{ChunkReader, ChunkSize, ChunkSource, Elastic, Opened, SkippedRecords};
pub use self::stats::{CacheStats, Counter, Counters, IngestStats, Stage, Stages, Stopwatch, WorkClock};
pub use self::tuner::Setting;

/// A running feed. Dropping it cancels ingest and waits for its threads.
pub struct IngestHandle {
    control: IngestControl,
    packer: Option<JoinHandle<Result<IngestReport, Error>>>,
}

/// Observes and cancels ingest from any thread, while another thread waits for its end.
#[derive(Clone)]
pub struct IngestControl {
    shared: Arc<Shared>,
    /// Of each ring.
    interrupters: Arc<[Interrupter]>,
}

/// The result of a feed.
#[derive(Clone, Debug, PartialEq)]
pub struct IngestReport {
    /// The final counters.
    pub stats: IngestStats,
    /// The position of the job: the end of its feed.
    pub position: Position,
}

/// State shared by the threads of one feed.
struct Shared {
    /// The handover of each live lane.
    lanes: Vec<Handover<Result<Piece, Error>>>,
    /// The permits that lanes wait for before they decode.
    permits: Arc<DecodePermits>,
    /// Notified by all handovers if the packer takes from whichever lane is ready.
    notify: Option<Arc<Notify>>,
    /// The other hosts of the job.
    peers: Option<Arc<dyn Peers>>,
    counters: Arc<Counters>,
    /// The read limits of each source.
    limits: Vec<Arc<ReadLimits>>,
    drive: Drive,
    /// The resources at the start.
    resources: Resources,
}

/// Starts feeding `rings` with the batches after `from`. They are those of the plan's ranks, in order
/// ([`IngestPlan::create_rings`]).
///
/// # Errors
/// A thread cannot be started, or the number of rings is not the plan's.
pub fn start(plan: IngestPlan, from: Position, rings: Vec<Producer>) -> Result<IngestHandle, Error> {
    start_among(None, plan, from, rings)
}

/// Starts feeding `rings` with this host's parts of the batches after `from`, which are all without `peers`. All
/// `peers` must start from the same position, with the same deal of parts to hosts
/// ([`IngestPlan::with_deal`]).
///
/// # Errors
/// As for [`start`], or the plan's deal is not among these hosts.
pub fn start_among(
    peers: Option<Arc<dyn Peers>>,
    plan: IngestPlan,
    from: Position,
    rings: Vec<Producer>,
) -> Result<IngestHandle, Error> {
    check_rings(&plan, &rings, peers.as_deref())?;
    // Hosts can agree only on an order that does not depend on which lanes are ready.
    let notify = (!plan.deterministic && peers.is_none()).then(Arc::default);
    let tuner = plan.tuner(cores());
    plan.allow_rest();
    let shared = Arc::new(Shared {
        lanes: (0..plan.live_lanes()).map(|_| Handover::new(notify.clone())).collect(),
        permits: Arc::new(DecodePermits::new(plan.live_lanes(), tuner.setting().decoders, &plan.recorder)),
        notify,
        peers,
        counters: Arc::new(Counters::recorded_by(&plan.recorder)),
        limits: plan.elastic().map(|elastic| Arc::clone(elastic.limits)).collect(),
        drive: Drive::new(tuner.clone()),
        resources: plan.resources(cores()),
    });
    shared.apply(tuner.setting());
    let interrupters = rings.iter().map(Producer::interrupter).collect();
    let packer = {
        let shared = Arc::clone(&shared);
        thread::Builder::new()
            .name("ingest-packer".to_owned())
            .spawn(move || run(&plan, from, rings, &shared))
            .map_err(not_started)?
    };
    Ok(IngestHandle { control: IngestControl { shared, interrupters }, packer: Some(packer) })
}

fn check_rings(plan: &IngestPlan, rings: &[Producer], peers: Option<&dyn Peers>) -> Result<(), Error> {
    let (given, planned) = (rings.len(), plan.rings());
    if given != planned as usize {
        return Err(Error::Invalid(format!("{given} rings for a plan of {planned}")));
    }
    let dealt = plan.deal().map_or((0, 1), |deal| (deal.host(), deal.hosts()));
    let (host, hosts) = peers.map_or((0, 1), |peers| (peers.host(), peers.hosts()));
    if dealt != (host, hosts) {
        return Err(Error::Invalid(format!(
            "the batches are dealt for host {} of {}; this is host {host} of {hosts}",
            dealt.0, dealt.1
        )));
    }
    Ok(())
}

impl IngestControl {
    /// The counters so far.
    pub fn stats(&self) -> IngestStats {
        self.shared.stats()
    }

    /// The current state: the bottleneck, and suggested changes.
    pub fn explain(&self) -> Explanation {
        let (stats, standing) = (self.stats(), self.shared.drive.standing());
        let Setting { decoders, streams, object_bytes } = standing.setting;
        let settled = standing.settled;
        let resources = Resources { decoders, streams, object_bytes, settled, ..self.shared.resources };
        Explanation {
            resources,
            in_flight_bytes: stats.in_flight_bytes,
            recent: diagnose(&stats.since(&standing.before), standing.recent_seconds, &resources),
            whole: diagnose(&stats, standing.seconds, &resources),
            cache: (stats.cache.hits + stats.cache.misses > 0).then_some(stats.cache),
            truncated_rows: stats.truncated_rows,
        }
    }

    /// The diagnosis of the last `seconds`, since the counters were `before`.
    pub fn explain_since(&self, before: &IngestStats, seconds: f64) -> Diagnosis {
        let resources = self.explain().resources;
        diagnose(&self.stats().since(before), seconds, &resources)
    }

    /// Cancels the feed, even if storage hangs. [`IngestHandle::join`] then returns [`Error::Cancelled`], unless the feed
    /// had already ended.
    pub fn cancel(&self) {
        self.shared.close();
        self.interrupters.iter().for_each(Interrupter::interrupt);
    }
}

impl IngestHandle {
    /// The counters so far.
    pub fn stats(&self) -> IngestStats {
        self.control.stats()
    }

    /// Cancels the feed; see [`IngestControl::cancel`].
    pub fn cancel(&self) {
        self.control.cancel();
    }

    /// A handle to observe and cancel the feed with while another thread waits in [`IngestHandle::join`].
    pub fn control(&self) -> IngestControl {
        self.control.clone()
    }

    /// Waits for the end of the feed.
    ///
    /// # Errors
    /// The error that ended the feed early.
    pub fn join(mut self) -> Result<IngestReport, Error> {
        self.packer.take().map_or(Err(Error::Cancelled), |packer| {
            packer.join().unwrap_or_else(|panic| Err(panicked(&*panic)))
        })
    }
}

impl Drop for IngestHandle {
    fn drop(&mut self) {
        if let Some(packer) = self.packer.take() {
            self.cancel();
            // The result is discarded on drop.
            let _ = packer.join();
        }
    }
}

impl Shared {
    fn stats(&self) -> IngestStats {
        let mut stats = self.counters.snapshot();
        stats.in_flight_bytes = self.limits.iter().map(|limits| limits.in_flight_bytes()).sum();
        stats.stages.fetch.wait_seconds = self.permits.fetching.seconds();
        stats.stages.decode.wait_seconds += self.permits.queueing.seconds();
        stats
    }

    fn apply(&self, setting: Setting) {
        self.permits.set_permits(setting.decoders);
        for limits in &self.limits {
            limits.set_streams(setting.streams);
            limits.set_object_bytes(setting.object_bytes);
        }
    }

    fn close(&self) {
        // Before reads are cancelled, so that no lane sends other hosts the error of its read.
        if let Some(peers) = &self.peers {
            peers.close();
        }
        for lane in &self.lanes {
            lane.close();
        }
        self.permits.close();
        self.drive.end();
    }

    /// Sends the other hosts an update about a piece, or an error. Fails if this feed was cancelled.
    fn publish(&self, key: PieceKey, piece: &Result<Option<Piece>, Error>) -> Result<(), Error> {
        let Some(peers) = &self.peers else { return Ok(()) };
        match piece {
            Ok(Some(piece)) => peers.send(key, PieceUpdate::of(piece)),
            Ok(None) => Ok(()),
            Err(error) => peers.send(key, PieceUpdate::Failed(error.to_string())),
        }
    }
}

/// Closes the lanes' handovers when the packer ends, for any reason.
struct CloseOnDrop<'a>(&'a Shared);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The packer thread: starts the lanes, packs, and joins the lanes.
fn run(
    plan: &IngestPlan,
    from: Position,
    mut rings: Vec<Producer>,
    shared: &Shared,
) -> Result<IngestReport, Error> {
    // Where the system refuses it, only the program that trains is interrupted more often.
    let _ = scheduling::stop_interrupting_others();
    let position = thread::scope(|scope| {
        let _closing = CloseOnDrop(shared);
        let tune = || shared.drive.run(&|| shared.stats(), &|setting| shared.apply(setting));
        thread::Builder::new()
            .name("ingest-tuner".to_owned())
            .spawn_scoped(scope, tune)
            .map_err(not_started)?;
        for lane in (0..shared.lanes.len() as u32).filter(|&lane| plan.reads(lane)) {
            let from = &from;
            thread::Builder::new()
                .name(format!("ingest-lane-{lane}"))
                .spawn_scoped(scope, move || run_lane(plan, lane, from, shared))
                .map_err(not_started)?;
        }
        assemble::feed(plan, from.clone(), &mut rings, shared)
    })?;
    rings.into_iter().for_each(Producer::finish);
    Ok(IngestReport { stats: shared.stats(), position })
}

/// A lane thread. Errors are handed over in place of a window.
fn run_lane(plan: &IngestPlan, lane: u32, from: &Position, shared: &Shared) {
    let handover = &shared.lanes[lane as usize];
    let read = || {
        let permit = shared.permits.of_lane(lane);
        read_lane(plan, lane, from, shared, &permit)
    };
    let outcome = catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| Err(panicked(&*panic)));
    if let Err(error) = outcome {
        // The handover is closed if the packer has ended; the error is then irrelevant.
        let _ = handover.send(Err(error));
    }
}

/// Reads a lane through all passes, starting at `from`. Returns silently when the handover is closed.
fn read_lane(
    plan: &IngestPlan,
    lane: u32,
    from: &Position,
    shared: &Shared,
    permit: &Permit,
) -> Result<(), Error> {
    let handover = &shared.lanes[lane as usize];
    let mut next = from.pass;
    let mut at = from.lanes[lane as usize];
    while let Some(pass) = next {
        let order = plan.pass_order(pass);
        let mixed = plan.mixed_source(pass);
        let mixed = mixed.as_ref().map(|source| source as &dyn ChunkSource);
        if let (LanePosition::At(cursor), Some(source)) = (at, mixed.or(plan.source(pass.stream)))
            && !order.splits(lane).is_empty()
        {
            let chunk_rows = plan.chunk_rows(pass.stream);
            let mut reader =
                LaneReader::new(source, &order, lane, cursor, chunk_rows, &shared.counters, permit)
                    .seeking_positive(plan.seeks_positive(pass) && !from.marked_seen)
                    .limiting(plan.window_bytes(pass.stream))
                    .packing(plan.sequences());
            loop {
                let key = PieceKey { pass, lane, number: reader.number() };
                let piece = reader.next(&|| handover.is_closed());
                if shared.publish(key, &piece).is_err() {
                    return Ok(());
                }
                let Some(piece) = piece? else { return Ok(()) };
                let end = matches!(piece, Piece::End(_));
                if shared
                    .counters
                    .wait(|counters| &counters.hand_wait, "wait for the packer", || handover.send(Ok(piece)))
                    .is_err()
                {
                    return Ok(());
                }
                if end {
                    break;
                }
            }
        }
        next = plan.feed.after(pass);
        at = LanePosition::At(Default::default());
    }
    Ok(())
}

/// The number of cores available to this process.
fn cores() -> u32 {
    thread::available_parallelism().map_or(1, |cores| cores.get() as u32)
}

fn not_started(error: std::io::Error) -> Error {
    Error::Panicked(format!("cannot start a thread: {error}"))
}

fn panicked(panic: &(dyn Any + Send)) -> Error {
    let message = panic.downcast_ref::<&str>().copied();
    let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Error::Panicked(message.unwrap_or("a thread panicked").to_owned())
}
