//! The ingest engine: lanes read, a packer fills the ring.
//!
//! ```text
//! lane 0   fetch -> decode -> transform -> window, permuted --+
//! lane 1   fetch -> decode -> transform -> window, permuted --+-> packer: draw, gather, publish -> ring
//! ...                                                         |
//! lane V-1 fetch -> decode -> transform -> window, permuted --+
//! ```
//!
//! **Threads.** One for each lane that has splits, and one packer. A lane is a sequential program (its
//! next window follows from its last) that spends its time decoding and may block on storage; a thread of
//! its own lets it do both in plain code, and the kernel shares the cores. A pool would bound threads by
//! cores, but V, which is fixed by the job, is of that order already, and tasks that block on each other
//! in the order of the merge would have to be scheduled by it. The lanes run through all passes of the
//! feed, so the next pass is being read while the last batches of this one are packed.
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
mod handover;
mod lane;
mod measure;
mod peers;
mod plan;
mod source;
mod stats;

#[cfg(test)]
mod exactly_once;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use millstream_batch::Producer;
use millstream_batch::ring::Interrupter;

pub use self::dataset_source::DatasetSource;
pub use self::measure::{IngestMeasurement, measure};
pub use self::peers::{Hub, MOST_UNHEARD, Peers, PieceKey, Told};
pub use self::plan::{IngestPlan, MemoryNeed};
pub use self::source::{ChunkReader, ChunkSource, LeftOut, Opened};
pub use self::stats::{Clock, Counter, Counters, IngestStats, Stage, Stages};

use self::handover::{Bell, Handover};
use self::lane::{LaneReader, Piece};
use crate::error::Error;
use crate::order::{LanePosition, Position, Share};

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
    /// Rung by all of them, where the packer takes from whichever is ready.
    bell: Option<Arc<Bell>>,
    /// The hosts that this one trains with.
    peers: Option<Arc<dyn Peers>>,
    counters: Arc<Counters>,
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
    let bell = (!plan.deterministic && peers.is_none()).then(Arc::default);
    let shared = Arc::new(Shared {
        lanes: (0..plan.live_lanes()).map(|_| Handover::new(bell.clone())).collect(),
        bell,
        peers,
        counters: Arc::default(),
    });
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
        self.shared.counters.snapshot()
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
    fn share(&self) -> Share {
        self.peers.as_ref().map_or(Share::ALL, |peers| peers.share())
    }

    fn close(&self) {
        for lane in &self.lanes {
            lane.close();
        }
        if let Some(peers) = &self.peers {
            peers.close();
        }
    }

    /// Tells the other hosts of a piece, or of its absence. An error means that this feed was called off.
    fn tell(&self, key: PieceKey, piece: &Result<Option<Piece>, Error>) -> Result<(), Error> {
        let Some(peers) = &self.peers else { return Ok(()) };
        match piece {
            Ok(Some(piece)) => peers.tell(key, Told::of(piece)),
            Ok(None) => Ok(()),
            Err(error) => peers.tell(key, Told::Failed(error.to_string())),
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
    Ok(IngestReport { stats: shared.counters.snapshot(), position })
}

/// A lane's thread. What goes wrong is handed over in the place of a window.
fn run_lane(plan: &IngestPlan, lane: u32, from: &Position, shared: &Shared) {
    let handover = &shared.lanes[lane as usize];
    let read = || read_lane(plan, lane, from, shared);
    let outcome = catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| Err(panicked(&*panic)));
    if let Err(error) = outcome {
        // Closed means that the packer has ended before: it has no use for the error.
        let _ = handover.put(Err(error));
    }
}

/// Reads a lane through all passes from `from` on. A closed handover ends it quietly.
fn read_lane(plan: &IngestPlan, lane: u32, from: &Position, shared: &Shared) -> Result<(), Error> {
    let handover = &shared.lanes[lane as usize];
    let mut next = from.pass;
    let mut at = from.lanes[lane as usize];
    while let Some(pass) = next {
        let order = plan.pass_order(pass);
        if let (LanePosition::At(cursor), Some(source)) = (at, plan.source(pass.stream))
            && !order.splits(lane).is_empty()
        {
            let chunk_rows = plan.chunk_rows(pass.stream);
            let mut reader = LaneReader::new(source, &order, lane, cursor, chunk_rows, &shared.counters)
                .seeking_positive(plan.seeks_positive(pass) && !from.positive_seen);
            loop {
                let key = PieceKey { pass, lane, number: reader.number() };
                let piece = reader.next(&|| handover.is_closed());
                if shared.tell(key, &piece).is_err() {
                    return Ok(());
                }
                let Some(piece) = piece? else { return Ok(()) };
                let end = matches!(piece, Piece::End(_));
                if shared.counters.hand_wait.time(|| handover.put(Ok(piece))).is_err() {
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

fn not_started(error: std::io::Error) -> Error {
    Error::Panicked(format!("a thread could not be started: {error}"))
}

fn panicked(panic: &(dyn Any + Send)) -> Error {
    let message = panic.downcast_ref::<&str>().copied();
    let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Error::Panicked(message.unwrap_or("a thread panicked").to_owned())
}
