//! The ingest engine: lanes read, a packer fills the ring.
//!
//! ```text
//! lane 0   fetch -> decode -> transform -> window, permuted --+
//! lane 1   fetch -> decode -> transform -> window, permuted --+-> packer: draw, gather, publish -> ring
//! ...                                                         |
//! lane V-1 fetch -> decode -> transform -> window, permuted --+
//! ```
//!
//! **Threads.** One for each lane that has splits, one packer, and one that tunes and mostly sleeps. A lane
//! is a sequential program (its next window follows from its last) that spends its time decoding and may
//! block on storage; a thread of its own lets it do both in plain code. How many lanes there are is fixed
//! by the job, how many cores by the machine, so a lane decodes only while it holds one of a few permits,
//! which it gives up to wait ([`DecodePermits`]): the lane whose window is needed next goes first, and a hundred
//! lanes cost no more than a few. The lanes run through all passes of the feed, so the next pass is being
//! read while the last batches of this one are packed.
//!
//! **Resources** that change nothing but the rate (permits, ranges in flight, the depth of read-ahead) are
//! found while running, within the job's memory budget ([`tuner`]); [`diagnose`] finds the bottleneck.
//!
//! **Bounds.** A lane hands over a whole window at a time, face to face: it is
//! never more than one window ahead. The packer waits for the ring. So whoever is slow stops all, and
//! what is held at most is known in advance ([`IngestPlan`]).
//!
//! **Errors.** A lane hands its error over in the place of the window that it could not fill. The packer
//! meets it when the order needs that window; all batches before are delivered, and which of several
//! errors ends the feed does not depend on timing.
//!
//! **The end.** After the last batch the ring is finished. After an error or a cancellation it is
//! dropped unfinished, which its consumer can tell from an end. Either way every thread is joined.

mod assemble;
mod dataset_source;
mod explain;
mod handover;
mod lane;
mod measure;
mod peers;
mod plan;
mod source;
mod stats;
mod tuner;

#[cfg(test)]
mod exactly_once;
#[cfg(test)]
#[path = "../../tests/support/hub.rs"]
mod hub;
#[cfg(test)]
mod peers_tests;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use millstream_batch::Producer;
use millstream_batch::ring::Interrupter;
use millstream_io::limits::ReadLimits;
use millstream_io::permits::{DecodePermits, Permit};

use self::handover::{Handover, Notify};
use self::lane::{LaneReader, Piece};
use self::tuner::Drive;
use crate::error::Error;
use crate::order::{LanePosition, Position, Share};

pub use self::dataset_source::DatasetSource;
pub use self::explain::{Bound, Diagnosis, Explanation, Resources, StageUse, diagnose};
pub use self::measure::{IngestMeasurement, measure};
pub use self::peers::{MAX_UNRECEIVED, Peers, PieceKey, PieceUpdate};
pub use self::plan::{IngestPlan, MemoryNeed};
pub use self::source::{ChunkReader, ChunkSize, ChunkSource, Elastic, Opened, SkippedRecords};
pub use self::stats::{CacheStats, Counter, Counters, IngestStats, Stage, Stages, Stopwatch, WorkClock};
pub use self::tuner::Setting;

/// Ingest at work. Dropped, it is cancelled and waited for.
pub struct IngestHandle {
    control: IngestControl,
    packer: Option<JoinHandle<Result<IngestReport, Error>>>,
}

/// Watches ingest and calls it off, from any thread, while another waits for its end.
#[derive(Clone)]
pub struct IngestControl {
    shared: Arc<Shared>,
    interrupter: Interrupter,
}

/// What a feed came to.
#[derive(Clone, Debug, PartialEq)]
pub struct IngestReport {
    /// All that was done.
    pub stats: IngestStats,
    /// Where the job stands: at the end of its feed.
    pub position: Position,
}

/// What the threads of one feed share.
struct Shared {
    /// Where each live lane hands over.
    lanes: Vec<Handover<Result<Piece, Error>>>,
    /// Where lanes wait for their turn to decode.
    permits: Arc<DecodePermits>,
    /// Rung by all of them, where the packer takes from whichever is ready.
    notify: Option<Arc<Notify>>,
    /// The hosts that this one trains with.
    peers: Option<Arc<dyn Peers>>,
    counters: Arc<Counters>,
    /// What the reading of each source may use.
    limits: Vec<Arc<ReadLimits>>,
    drive: Drive,
    /// As at the start.
    resources: Resources,
}

/// Starts to feed `producer` with what follows `from`.
///
/// # Errors
/// When a thread cannot be started.
pub fn start(plan: IngestPlan, from: Position, producer: Producer) -> Result<IngestHandle, Error> {
    start_with(plan, from, producer, None)
}

/// Starts to feed `producer` with this host's share of what follows `from`: of each global batch, the rows
/// of its own lanes. All of `peers` start from the same position.
///
/// # Errors
/// When a thread cannot be started.
pub fn start_among(
    peers: Arc<dyn Peers>,
    plan: IngestPlan,
    from: Position,
    producer: Producer,
) -> Result<IngestHandle, Error> {
    start_with(plan, from, producer, Some(peers))
}

fn start_with(
    plan: IngestPlan,
    from: Position,
    producer: Producer,
    peers: Option<Arc<dyn Peers>>,
) -> Result<IngestHandle, Error> {
    // Hosts can only agree on an order that does not depend on who is ready.
    let notify = (!plan.deterministic && peers.is_none()).then(Arc::default);
    let tuner = plan.tuner(cores());
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
    let interrupter = producer.interrupter();
    let packer = {
        let shared = Arc::clone(&shared);
        thread::Builder::new()
            .name("ingest-packer".to_owned())
            .spawn(move || run(&plan, from, producer, &shared))
            .map_err(not_started)?
    };
    Ok(IngestHandle { control: IngestControl { shared, interrupter }, packer: Some(packer) })
}

impl IngestControl {
    /// What was done so far.
    pub fn stats(&self) -> IngestStats {
        self.shared.stats()
    }

    /// How it goes, what holds it back, and what to do about it.
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

    /// How it went since it stood at `before`, `seconds` ago, and what held it back.
    pub fn explain_since(&self, before: &IngestStats, seconds: f64) -> Diagnosis {
        let resources = self.explain().resources;
        diagnose(&self.stats().since(before), seconds, &resources)
    }

    /// Calls the work off at any moment. [`IngestHandle::join`] then returns [`Error::Cancelled`], unless
    /// the feed had ended already.
    pub fn cancel(&self) {
        self.shared.close();
        self.interrupter.interrupt();
    }
}

impl IngestHandle {
    /// What was done so far.
    pub fn stats(&self) -> IngestStats {
        self.control.stats()
    }

    /// Calls the work off; see [`IngestControl::cancel`].
    pub fn cancel(&self) {
        self.control.cancel();
    }

    /// A handle to watch and cancel with while this one is waited on.
    pub fn control(&self) -> IngestControl {
        self.control.clone()
    }

    /// Waits for the end of the feed.
    ///
    /// # Errors
    /// What ended the feed early.
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
            // Whoever drops a handle does not ask how the feed ended.
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

    fn share(&self) -> Share {
        self.peers.as_ref().map_or(Share::ALL, |peers| peers.share())
    }

    fn close(&self) {
        for lane in &self.lanes {
            lane.close();
        }
        self.permits.close();
        self.drive.end();
        if let Some(peers) = &self.peers {
            peers.close();
        }
    }

    /// Tells the other hosts of a piece, or of its absence. An error means that this feed was called off.
    fn publish(&self, key: PieceKey, piece: &Result<Option<Piece>, Error>) -> Result<(), Error> {
        let Some(peers) = &self.peers else { return Ok(()) };
        match piece {
            Ok(Some(piece)) => peers.send(key, PieceUpdate::of(piece)),
            Ok(None) => Ok(()),
            Err(error) => peers.send(key, PieceUpdate::Failed(error.to_string())),
        }
    }
}

/// Closes the lanes' handovers when the packer is done, however it ends.
struct CloseOnDrop<'a>(&'a Shared);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The packer's thread: starts the lanes, packs, and waits for them.
fn run(
    plan: &IngestPlan,
    from: Position,
    mut producer: Producer,
    shared: &Shared,
) -> Result<IngestReport, Error> {
    let position = thread::scope(|scope| {
        let _closing = CloseOnDrop(shared);
        let tune = || shared.drive.run(&|| shared.stats(), &|setting| shared.apply(setting));
        thread::Builder::new()
            .name("ingest-tuner".to_owned())
            .spawn_scoped(scope, tune)
            .map_err(not_started)?;
        let share = shared.share();
        for lane in (0..shared.lanes.len() as u32).filter(|&lane| share.owns(lane)) {
            let from = &from;
            thread::Builder::new()
                .name(format!("ingest-lane-{lane}"))
                .spawn_scoped(scope, move || run_lane(plan, lane, from, shared))
                .map_err(not_started)?;
        }
        assemble::feed(plan, from.clone(), &mut producer, shared)
    })?;
    producer.finish();
    Ok(IngestReport { stats: shared.stats(), position })
}

/// A lane's thread. What goes wrong is handed over in the place of a window.
fn run_lane(plan: &IngestPlan, lane: u32, from: &Position, shared: &Shared) {
    let handover = &shared.lanes[lane as usize];
    let read = || {
        let permit = shared.permits.of_lane(lane);
        read_lane(plan, lane, from, shared, &permit)
    };
    let outcome = catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| Err(panicked(&*panic)));
    if let Err(error) = outcome {
        // Closed means that the packer has ended before: it has no use for the error.
        let _ = handover.send(Err(error));
    }
}

/// Reads a lane through all passes from `from` on. A closed handover ends it quietly.
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
        if let (LanePosition::At(cursor), Some(source)) = (at, plan.source(pass.stream))
            && !order.splits(lane).is_empty()
        {
            let chunk_rows = plan.chunk_rows(pass.stream);
            let mut reader =
                LaneReader::new(source, &order, lane, cursor, chunk_rows, &shared.counters, permit)
                    .seeking_positive(plan.seeks_positive(pass) && !from.marked_seen);
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

/// Cores that this process may use.
fn cores() -> u32 {
    thread::available_parallelism().map_or(1, |cores| cores.get() as u32)
}

fn not_started(error: std::io::Error) -> Error {
    Error::Panicked(format!("a thread could not be started: {error}"))
}

fn panicked(panic: &(dyn Any + Send)) -> Error {
    let message = panic.downcast_ref::<&str>().copied();
    let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Error::Panicked(message.unwrap_or("a thread panicked").to_owned())
}
