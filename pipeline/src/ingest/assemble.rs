//! The packer: it draws rows from the lanes' windows, packs them into slots and publishes these.
//!
//! The order is decided by [`Merge`]; here windows are held, rows gathered and the ring waited for. Rows
//! drawn are only noted, and packed together when the batch is full or when a window they lie in is
//! about to be replaced. An old window is dropped before the next is taken, so that never more than the
//! plan's memory is held.
//!
//! Whether a batch is the last of its pass is known by looking for the row after it. If that look meets
//! an error, the batch is delivered first: what a lane could not read stops the feed at the window that
//! holds it, whenever it was met.
//!
//! **Hosts.** Of several hosts each draws all rows and packs those of its own lanes; of the others' lanes it
//! receives the extents ([`super::peers`]). So a batch is full when the *global* batch is, and may hold no row.
//!
//! **Whichever is ready** (`deterministic = false`, one host, a shuffled pass). A lane whose next window is
//! not there is left out of the rotation until it is; only when no lane has rows does the packer wait, for
//! any of them. Each row still comes exactly once and positions are as good as ever, for they name where
//! each lane stands, whatever way it got there; but which rows meet in a batch depends on timing, so neither
//! a second run nor a resumed one repeats the batches.
//!
//! **The last short batch** is delivered unless `drop_last` is asked for; then its rows are drawn and left
//! out. That it would be short is known too late to mark the batch before it as the last.

use std::sync::Arc;
use std::time::Duration;

use millstream_batch::{BatchHeader, BatchMut, Producer, RingError, Stream};
use millstream_trace::{Category, SpanStart, Work};

use super::Shared;
use super::handover::Notify;
use super::lane::{Piece, Window};
use super::peers::{Peers, PieceKey, PieceUpdate};
use super::plan::{IngestPlan, name_of};
use super::source::SkippedRecords;
use super::stats::{Counters, Stopwatch};
use crate::chunk::Chunk;
use crate::error::Error;
use crate::order::{LanePosition, Merge, Pass, PassOrder, Position, Share, Turn};
use crate::pack::{Packer, RowRef};
use crate::spec::OnBadRecord;

/// Feeds `producer` from `position` to the end of the feed.
pub(super) fn feed(
    plan: &IngestPlan,
    position: Position,
    producer: &mut Producer,
    shared: &Shared,
) -> Result<Position, Error> {
    let mut position = position;
    while let Some(pass) = position.pass {
        let order = plan.pass_order(pass);
        let assembler = Assembler {
            plan,
            shared,
            pass,
            share: shared.share(),
            merge: Merge::new(&order, &position),
            pieces: position.lanes.iter().map(first_piece).collect(),
            readiness: shared
                .notify
                .as_deref()
                .filter(|_| !order.mixing().is_ordered())
                .map(|notify| Readiness::new(notify, order.lanes())),
            pool: Pool::new(&order),
            packer: Packer::default(),
            drawn: Vec::with_capacity(plan.schema.rows as usize),
            last_left_out: None,
        };
        position = assembler.run(position, producer)?;
    }
    Ok(position)
}

/// One pass being packed.
struct Assembler<'a> {
    plan: &'a IngestPlan,
    shared: &'a Shared,
    pass: Pass,
    share: Share,
    merge: Merge,
    /// Number of the next piece of each lane.
    pieces: Vec<u64>,
    /// Where lanes that are not ready are left out of the rotation.
    readiness: Option<Readiness<'a>>,
    pool: Pool,
    packer: Packer,
    /// Rows drawn and not yet packed.
    drawn: Vec<RowRef>,
    last_left_out: Option<Error>,
}

/// A row of the pass: a lane, and a place in its window.
type Place = (u32, u32);

/// Which lanes are worth a look.
struct Readiness<'a> {
    notify: &'a Notify,
    /// How often it was rung, when last asked.
    rings: u64,
    /// That count when a lane was last found not ready.
    looked: Vec<Option<u64>>,
    /// Lanes found not ready at the present count.
    absent: usize,
}

/// The windows being drawn from.
struct Pool {
    /// The chunks of all windows, lane by lane.
    chunks: Vec<Arc<Chunk>>,
    lanes: Vec<Lane>,
}

#[derive(Default)]
struct Lane {
    /// Where its chunks begin, and how many they are.
    first: usize,
    chunks: usize,
    rows: Vec<RowRef>,
}

/// A stretch of filling a slot, between two waits for a window.
struct Filling<'a> {
    counters: &'a Counters,
    stretch: Stopwatch,
    start: SpanStart,
    /// Rows packed before.
    before: usize,
}

impl<'a> Filling<'a> {
    fn begin(counters: &'a Counters, before: usize) -> Self {
        Self { counters, stretch: Stopwatch::start(), start: counters.recorder.start(), before }
    }

    /// Counts it, when `packed` rows are in the slot.
    fn end(self, packed: usize) {
        let rows = (packed - self.before) as u64;
        self.counters.pack.add(&self.stretch, Duration::ZERO);
        self.counters.recorder.add(self.start, Category::Ingest, "pack", || Work { rows, ..Work::default() });
    }
}

impl Assembler<'_> {
    /// Delivers the rest of the pass; returns the beginning of the next.
    fn run(mut self, mut position: Position, producer: &mut Producer) -> Result<Position, Error> {
        let mut next = self.draw()?;
        if next.is_none() {
            return Err(Error::NoRows { stream: name_of(self.pass.stream) });
        }
        let mut encoded = Vec::new();
        while let Some(first) = next {
            let counters = &self.shared.counters;
            let mut slot = counters
                .wait(|counters| &counters.ring_wait, "wait for a free slot", || producer.claim())
                .map_err(ring_error)?;
            let (rows, global_rows) = self.fill(&mut slot.batch(), first)?;
            self.merge.store(&mut position);
            let batch = position.batch;
            position.batch += 1;
            let after = self.draw();
            let last = matches!(after, Ok(None));
            let Pass { stream, epoch } = self.pass;
            let header = BatchHeader { stream, epoch, batch, rows, global_rows, last };
            self.check_positive(&position, &header)?;
            if self.drops(&header) {
                self.refuse_no_batch(&header)?;
                position = self.next_pass(&position);
                self.shared.counters.skipped.set(position.skipped_before);
                return Ok(position);
            }
            slot.batch().set_header(&header);
            if last {
                position = self.next_pass(&position);
            }
            position.encode(&mut encoded);
            slot.batch().set_position(&encoded);
            slot.publish();
            self.shared.counters.rows.add(u64::from(rows));
            self.shared.counters.batches.add(1);
            self.shared.counters.skipped.set(position.skipped_before + position.skipped);
            next = after?;
        }
        Ok(position)
    }

    /// Fills a slot with `first` and the rows that follow; returns how many are here, and how many there are.
    fn fill(&mut self, batch: &mut BatchMut<'_>, first: Place) -> Result<(u32, u32), Error> {
        let capacity = self.plan.schema.rows;
        let (mut packed, mut global_rows) = (0, 0);
        let shared = self.shared;
        let mut at_work = Filling::begin(&shared.counters, packed);
        let mut note = |assembler: &mut Self, (lane, index): Place| {
            global_rows += 1;
            if assembler.share.owns(lane) {
                assembler.drawn.push(assembler.pool.row(lane, index));
            }
            global_rows < capacity
        };
        let mut more = note(self, first);
        while more {
            match self.merge.next() {
                Turn::Row { lane, index } => more = note(self, (lane, index)),
                Turn::Wait { lane } if self.leaves_out(lane) => self.merge.skip_turn(),
                Turn::Wait { lane } => {
                    packed += self.pack(batch, packed);
                    at_work.end(packed);
                    self.take_window(lane)?;
                    at_work = Filling::begin(&shared.counters, packed);
                }
                Turn::End => break,
            }
        }
        packed += self.pack(batch, packed);
        at_work.end(packed);
        Ok((packed as u32, global_rows))
    }

    /// Packs what was drawn, from row `at` of the batch on.
    fn pack(&mut self, batch: &mut BatchMut<'_>, at: usize) -> usize {
        self.packer.pack(batch, at, &self.pool.chunks, &self.drawn);
        let rows = self.drawn.len();
        self.drawn.clear();
        rows
    }

    /// The next row of the pass, while none is drawn and not yet packed.
    fn draw(&mut self) -> Result<Option<Place>, Error> {
        loop {
            match self.merge.next() {
                Turn::Row { lane, index } => return Ok(Some((lane, index))),
                Turn::Wait { lane } if self.leaves_out(lane) => self.merge.skip_turn(),
                Turn::Wait { lane } => self.take_window(lane)?,
                Turn::End => return Ok(None),
            }
        }
    }

    /// Whether a lane that has no window in hand is left out of this round. When no lane has rows, this
    /// waits until one of them is ready.
    fn leaves_out(&mut self, lane: u32) -> bool {
        let Some(readiness) = &mut self.readiness else { return false };
        if readiness.is_ready(lane, || self.shared.lanes[lane as usize].is_ready()) {
            return false;
        }
        let wait = || readiness.wait_if_none(self.merge.live());
        self.shared.counters.wait(|counters| &counters.window_wait, "wait for a window", wait);
        true
    }

    /// Waits for what `lane` comes up with next.
    fn take_window(&mut self, lane: u32) -> Result<(), Error> {
        let number = self.pieces[lane as usize];
        self.pieces[lane as usize] += 1;
        if let Some(peers) = self.shared.peers.as_deref().filter(|_| !self.share.owns(lane)) {
            return self.recv_window(peers, PieceKey { pass: self.pass, lane, number });
        }
        self.pool.drop_window(lane);
        let handover = &self.shared.lanes[lane as usize];
        if !handover.is_ready() {
            self.shared.permits.prioritize(lane);
        }
        let piece = self.shared.counters.wait(
            |counters| &counters.window_wait,
            "wait for a window",
            || handover.recv(),
        );
        match piece.map_err(|_| Error::Cancelled)?? {
            Piece::Window(window) => {
                self.merge.supply(lane, window.extent)?;
                let last = self.pool.hold_window(lane, window);
                self.check_left_out(last)
            }
            Piece::End(SkippedRecords { records, last }) => {
                self.merge.end_lane(lane, records)?;
                self.check_left_out(last)
            }
        }
    }

    /// Waits for the next window of another host's lane.
    fn recv_window(&mut self, peers: &dyn Peers, key: PieceKey) -> Result<(), Error> {
        let host = self.share.owner(key.lane);
        let error = |message: Option<String>| message.map(|message| Error::Peer { host, message });
        let update = self.shared.counters.wait(
            |counters| &counters.window_wait,
            "wait for a host",
            || peers.recv(key),
        );
        match update? {
            PieceUpdate::Window(extent, left_out) => {
                self.merge.supply(key.lane, extent)?;
                self.check_left_out(error(left_out))
            }
            PieceUpdate::End(records, left_out) => {
                self.merge.end_lane(key.lane, records)?;
                self.check_left_out(error(left_out))
            }
            PieceUpdate::Failed(message) => Err(Error::Peer { host, message }),
        }
    }

    fn check_left_out(&mut self, last: Option<Error>) -> Result<(), Error> {
        self.last_left_out = last.or(self.last_left_out.take());
        match (self.plan.on_bad_record, self.last_left_out.take()) {
            (OnBadRecord::Skip { limit }, Some(last)) if self.merge.skipped() > limit => {
                Err(Error::TooManyBadRecords { limit, last: Box::new(last) })
            }
            (_, last) => {
                self.last_left_out = last;
                Ok(())
            }
        }
    }

    /// The first epoch of training must show a positive label by its end.
    fn check_positive(&self, position: &Position, header: &BatchHeader) -> Result<(), Error> {
        let Some(label) = self.plan.label.as_ref().filter(|_| self.plan.seeks_positive(self.pass)) else {
            return Ok(());
        };
        if position.marked_seen || !header.last {
            return Ok(());
        }
        Err(Error::NeverPositive {
            column: label.column.clone(),
            positive: label.positive.clone(),
            records: header.batch.saturating_mul(self.plan.schema.rows.into())
                + u64::from(header.global_rows),
            seen: Vec::new(),
        })
    }

    /// Whether a batch is the short one that the job has no use for.
    fn drops(&self, header: &BatchHeader) -> bool {
        self.plan.drop_last && header.stream == Stream::Train && header.global_rows < self.plan.schema.rows
    }

    /// Refuses an epoch that would not take a step.
    fn refuse_no_batch(&self, header: &BatchHeader) -> Result<(), Error> {
        if header.batch > 0 {
            return Ok(());
        }
        let BatchHeader { global_rows: rows, .. } = header;
        let batch_rows = self.plan.schema.rows;
        Err(Error::Invalid(format!(
            "the training data holds {rows} rows, fewer than batch_size = {batch_rows}, and drop_last leaves \
             out short batches"
        )))
    }

    fn next_pass(&self, position: &Position) -> Position {
        Position {
            marked_seen: position.marked_seen,
            skipped_before: position.skipped_before + self.merge.skipped(),
            ..Position::start_of(
                self.plan.feed.after(self.pass),
                position.lanes.len() as u32,
                position.fingerprint,
            )
        }
    }
}

impl Pool {
    fn new(order: &PassOrder) -> Self {
        Self { chunks: Vec::new(), lanes: (0..order.lanes()).map(|_| Lane::default()).collect() }
    }

    /// Place `index` of the window of `lane`. Good until a window is dropped or held.
    fn row(&self, lane: u32, index: u32) -> RowRef {
        let lane = &self.lanes[lane as usize];
        let RowRef { chunk, row } = lane.rows[index as usize];
        RowRef { chunk: lane.first as u32 + chunk, row }
    }

    fn drop_window(&mut self, lane: u32) {
        let Lane { first, chunks, rows } = &mut self.lanes[lane as usize];
        self.chunks.drain(*first..*first + *chunks);
        *rows = Vec::new();
        *chunks = 0;
        self.place_lanes();
    }

    /// Returns what the window says of records left out.
    fn hold_window(&mut self, lane: u32, window: Window) -> Option<Error> {
        let Lane { first, chunks, rows } = &mut self.lanes[lane as usize];
        *rows = window.rows;
        *chunks = window.chunks.len();
        self.chunks.splice(*first..*first, window.chunks);
        self.place_lanes();
        window.last_left_out
    }

    fn place_lanes(&mut self) {
        let mut next = 0;
        for lane in &mut self.lanes {
            lane.first = next;
            next += lane.chunks;
        }
    }
}

impl<'a> Readiness<'a> {
    fn new(notify: &'a Notify, lanes: u32) -> Self {
        Self { notify, rings: notify.changes(), looked: vec![None; lanes as usize], absent: 0 }
    }

    /// Whether `lane` is ready, by `look`; which is not called again before the notify was rung.
    fn is_ready(&mut self, lane: u32, look: impl FnOnce() -> bool) -> bool {
        let rings = self.notify.changes();
        if rings != self.rings {
            (self.rings, self.absent) = (rings, 0);
        }
        let looked = &mut self.looked[lane as usize];
        if *looked == Some(rings) {
            return false;
        }
        if look() {
            return true;
        }
        *looked = Some(rings);
        self.absent += 1;
        false
    }

    /// Waits for the notify if all of `live` lanes were looked at since it was last rung, and are not ready.
    fn wait_if_none(&self, live: usize) {
        if self.absent >= live {
            self.notify.wait(self.rings);
        }
    }
}

/// The number of a lane's first piece from a position on.
fn first_piece(at: &LanePosition) -> u64 {
    match at {
        LanePosition::At(cursor) => cursor.window,
        LanePosition::Ended => 0,
    }
}

/// A wait for the ring that was interrupted ended because ingest was called off.
fn ring_error(error: RingError) -> Error {
    match error {
        RingError::Interrupted => Error::Cancelled,
        other => Error::Ring(other),
    }
}
