//! The packer: draws rows from the lanes' windows, packs them into slots and publishes the slots.
//!
//! [`Merge`] determines the order. This module holds the windows, gathers rows and waits for the rings. Drawn rows are
//! first recorded as references. They are packed together when the batch is full, or when one of their windows is about
//! to be replaced. A window is dropped before the next one is received, so memory never exceeds the plan.
//!
//! To know whether a batch is the last of its pass, the packer requests the row after it. If that request fails, the
//! batch is delivered first. A lane's error therefore ends the feed at the window that it concerns, regardless of when
//! the error occurred.
//!
//! **Ranks.** With R rings, rank `r` gets the rows `[r c, (r + 1) c)` of a global batch of at most B rows, in the order
//! in which they are drawn, where `c = ceil(B / R)`. In a short last batch the first ranks are full and the last ones
//! may have no rows. They get a slot nevertheless, so all ranks receive the same number of batches. The packer claims a
//! slot of every ring, fills the parts one after another, and publishes them only when the whole batch is packed and its
//! header is known. All parts of a batch carry the same position.
//!
//! **Hosts.** With several hosts, each host draws all rows but packs only those of its own lanes. For the lanes of
//! other hosts it receives the extents of their windows ([`super::peers`]). A batch is full when the *global* batch is
//! full, so a host's part may be empty. Several hosts have one rank each.
//!
//! **Ready lanes first** (`deterministic = false`, one host, a shuffled pass). The merge skips a lane whose next window
//! is not ready. Only if no lane has rows does the packer wait, for any of them. Each row is still delivered exactly
//! once. Positions remain valid, because they store the state of each lane and not how it was reached. But the
//! composition of batches depends on timing, so neither another run nor a resumed run repeats the batches.
//!
//! **A short last batch** is delivered unless `drop_last` is set; its rows are then drawn and dropped. The preceding
//! batch is not marked as the last, because it is published before the short one is detected.

use std::sync::Arc;
use std::time::Duration;

use millstream_batch::{BatchHeader, BatchMut, ClaimedSlot, Count, Producer, RingError, Stream};
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

/// Feeds `rings` from `position` to the end of the feed.
pub(super) fn feed(
    plan: &IngestPlan,
    position: Position,
    rings: &mut [Producer],
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
            drawn: Vec::with_capacity(plan.ring_schema().rows as usize),
            last_skipped: None,
        };
        position = assembler.run(position, rings)?;
    }
    Ok(position)
}

/// The packing of one pass.
struct Assembler<'a> {
    plan: &'a IngestPlan,
    shared: &'a Shared,
    pass: Pass,
    share: Share,
    merge: Merge,
    /// The number of each lane's next piece.
    pieces: Vec<u64>,
    /// Set if lanes that are not ready are skipped.
    readiness: Option<Readiness<'a>>,
    pool: Pool,
    packer: Packer,
    /// Rows that have been drawn but not packed.
    drawn: Vec<RowRef>,
    last_skipped: Option<Error>,
}

/// A row of the pass: a lane, and an index in its current window.
type Place = (u32, u32);

/// Tracks which lanes may have become ready.
struct Readiness<'a> {
    notify: &'a Notify,
    /// The number of changes of the notify when last read.
    rings: u64,
    /// By lane, the value of `rings` when the lane was last found not ready.
    polled: Vec<Option<u64>>,
    /// The number of lanes found not ready at the current value of `rings`.
    absent: usize,
}

/// The current windows.
struct Pool {
    /// The chunks of all current windows, grouped by lane.
    chunks: Vec<Arc<Chunk>>,
    lanes: Vec<Lane>,
}

#[derive(Default)]
struct Lane {
    /// The range of its chunks: the first, and their number.
    first: usize,
    chunks: usize,
    rows: Vec<RowRef>,
}

/// A rank's part of a global batch.
struct Part<'a> {
    slot: ClaimedSlot<'a>,
    /// The place of its first row in the global batch.
    first_row: u32,
    /// The rows packed into it.
    rows: u32,
}

/// A stretch of filling a slot, between two waits for a window.
struct Filling<'a> {
    counters: &'a Counters,
    stretch: Stopwatch,
    start: SpanStart,
    /// The number of rows packed before.
    before: usize,
}

impl<'a> Filling<'a> {
    fn begin(counters: &'a Counters, before: usize) -> Self {
        Self { counters, stretch: Stopwatch::start(), start: counters.recorder.start(), before }
    }

    /// Ends the stretch and records it; the slot then holds `packed` rows.
    fn end(self, packed: usize) {
        let rows = (packed - self.before) as u64;
        self.counters.pack.add(&self.stretch, Duration::ZERO);
        self.counters.recorder.add(self.start, Category::Ingest, "pack", || Work { rows, ..Work::default() });
    }
}

impl Assembler<'_> {
    /// Delivers the rest of the pass; returns the start of the next one.
    fn run(mut self, mut position: Position, rings: &mut [Producer]) -> Result<Position, Error> {
        let mut next = self.draw()?;
        if next.is_none() {
            return Err(Error::NoRows { stream: name_of(self.pass.stream) });
        }
        let mut encoded = Vec::new();
        while let Some(first) = next {
            let counters = &self.shared.counters;
            let slots = counters
                .wait(|counters| &counters.ring_wait, "wait for a free slot", || Producer::claim_all(rings))
                .map_err(ring_error)?;
            let mut parts: Vec<Part<'_>> =
                slots.into_iter().map(|slot| Part { slot, first_row: 0, rows: 0 }).collect();
            let global_rows = self.fill(&mut parts, first)?;
            self.merge.store(&mut position);
            let batch = position.batch;
            position.batch += 1;
            let after = self.draw();
            let last = matches!(after, Ok(None));
            let Pass { stream, epoch } = self.pass;
            let whole = BatchHeader { stream, epoch, batch, last, ..BatchHeader::train(global_rows) };
            self.check_positive(&position, &whole)?;
            if self.drops(&whole) {
                self.refuse_no_batch(&whole)?;
                position = self.next_pass(&position);
                self.shared.counters.skipped.set(position.skipped_before);
                return Ok(position);
            }
            if last {
                position = self.next_pass(&position);
            }
            position.encode(&mut encoded);
            for Part { slot, first_row, rows } in &mut parts {
                let mut part = slot.batch();
                part.set_header(&BatchHeader { rows: *rows, first_row: *first_row, ..whole });
                part.set_position(&encoded);
            }
            let rows = parts.iter().map(|part| u64::from(part.rows)).sum();
            parts.into_iter().for_each(|part| part.slot.publish());
            self.shared.counters.rows.add(rows);
            self.shared.counters.batches.add(1);
            self.shared.counters.skipped.set(position.skipped_before + position.skipped);
            next = after?;
        }
        Ok(position)
    }

    /// Fills the parts of a global batch, one after another, with `first` and the rows that follow. Returns the number
    /// of global rows.
    fn fill(&mut self, parts: &mut [Part<'_>], first: Place) -> Result<u32, Error> {
        let (batch_rows, part_rows) = (self.plan.schema.rows, self.plan.ring_schema().rows);
        let (mut first, mut global_rows) = (Some(first), 0);
        for Part { slot, first_row, rows } in parts {
            *first_row = global_rows;
            let most = part_rows.min(batch_rows - global_rows);
            let (packed, drawn) = self.fill_part(&mut slot.batch(), first.take(), most)?;
            *rows = packed;
            global_rows += drawn;
        }
        Ok(global_rows)
    }

    /// Fills a part with `first`, if it is already drawn, and the rows that follow, until `most` rows are drawn or the
    /// pass ends. Returns the number of packed rows, which are those of this host, and of drawn rows.
    fn fill_part(
        &mut self,
        batch: &mut BatchMut<'_>,
        first: Option<Place>,
        most: u32,
    ) -> Result<(u32, u32), Error> {
        let (mut packed, mut drawn) = (0, 0);
        let shared = self.shared;
        let mut at_work = Filling::begin(&shared.counters, packed);
        let mut note = |assembler: &mut Self, (lane, index): Place| {
            drawn += 1;
            if assembler.share.owns(lane) {
                assembler.drawn.push(assembler.pool.row(lane, index));
            }
            drawn < most
        };
        let mut more = first.map_or(most > 0, |first| note(self, first));
        while more {
            match self.merge.next() {
                Turn::Row { lane, index } => more = note(self, (lane, index)),
                Turn::Wait { lane } if self.skips(lane) => self.merge.skip_turn(),
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
        Ok((packed as u32, drawn))
    }

    /// Packs the drawn rows, starting at row `at` of the batch.
    fn pack(&mut self, batch: &mut BatchMut<'_>, at: usize) -> usize {
        self.packer.pack(batch, at, &self.pool.chunks, &self.drawn);
        let rows = self.drawn.len();
        self.drawn.clear();
        rows
    }

    /// Draws the next row of the pass. All drawn rows must be packed, because this may replace a window.
    fn draw(&mut self) -> Result<Option<Place>, Error> {
        loop {
            match self.merge.next() {
                Turn::Row { lane, index } => return Ok(Some((lane, index))),
                Turn::Wait { lane } if self.skips(lane) => self.merge.skip_turn(),
                Turn::Wait { lane } => self.take_window(lane)?,
                Turn::End => return Ok(None),
            }
        }
    }

    /// Whether to skip `lane`, which has no current window, in this round. If no lane has rows, first waits until a
    /// lane is ready.
    fn skips(&mut self, lane: u32) -> bool {
        let Some(readiness) = &mut self.readiness else { return false };
        if readiness.is_ready(lane, || self.shared.lanes[lane as usize].is_ready()) {
            return false;
        }
        let wait = || readiness.wait_if_none(self.merge.live());
        self.shared.counters.wait(|counters| &counters.window_wait, "wait for a window", wait);
        true
    }

    /// Waits for the next piece of `lane`.
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
                self.check_skipped(last)
            }
            Piece::End(SkippedRecords { records, last }) => {
                self.merge.end_lane(lane, records)?;
                self.check_skipped(last)
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
                self.check_skipped(error(left_out))
            }
            PieceUpdate::End(records, left_out) => {
                self.merge.end_lane(key.lane, records)?;
                self.check_skipped(error(left_out))
            }
            PieceUpdate::Failed(message) => Err(Error::Peer { host, message }),
        }
    }

    fn check_skipped(&mut self, last: Option<Error>) -> Result<(), Error> {
        self.last_skipped = last.or(self.last_skipped.take());
        match (self.plan.on_bad_record, self.last_skipped.take()) {
            (OnBadRecord::Skip { limit }, Some(last)) if self.merge.skipped() > limit => {
                Err(Error::TooManyBadRecords { limit, last: Box::new(last) })
            }
            (_, last) => {
                self.last_skipped = last;
                Ok(())
            }
        }
    }

    /// Fails if the first epoch of training ends without a positive label.
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

    /// Whether the batch is short and the job drops short batches.
    fn drops(&self, header: &BatchHeader) -> bool {
        self.plan.drop_last && header.stream == Stream::Train && header.global_rows < self.plan.schema.rows
    }

    /// Rejects an epoch without any training step.
    fn refuse_no_batch(&self, header: &BatchHeader) -> Result<(), Error> {
        if header.batch > 0 {
            return Ok(());
        }
        let BatchHeader { global_rows: rows, .. } = header;
        let batch_rows = self.plan.schema.rows;
        Err(Error::Invalid(format!(
            "the training data holds {}, fewer than batch_size = {batch_rows}, and drop_last skips short batches",
            Count((*rows).into(), "row")
        )))
    }

    fn next_pass(&self, position: &Position) -> Position {
        Position {
            marked_seen: position.marked_seen,
            skipped_before: position.skipped_before.saturating_add(self.merge.skipped()),
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

    /// A reference to row `index` of the current window of `lane`. Valid until a window is dropped or added.
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

    /// Adds the window; returns the error of its last skipped record, if any.
    fn hold_window(&mut self, lane: u32, window: Window) -> Option<Error> {
        let Lane { first, chunks, rows } = &mut self.lanes[lane as usize];
        *rows = window.rows;
        *chunks = window.chunks.len();
        self.chunks.splice(*first..*first, window.chunks);
        self.place_lanes();
        window.last_skipped
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
        Self { notify, rings: notify.changes(), polled: vec![None; lanes as usize], absent: 0 }
    }

    /// Whether `lane` is ready according to `probe`, which is called again only after the notify has changed.
    fn is_ready(&mut self, lane: u32, probe: impl FnOnce() -> bool) -> bool {
        let rings = self.notify.changes();
        if rings != self.rings {
            (self.rings, self.absent) = (rings, 0);
        }
        let polled = &mut self.polled[lane as usize];
        if *polled == Some(rings) {
            return false;
        }
        if probe() {
            return true;
        }
        *polled = Some(rings);
        self.absent += 1;
        false
    }

    /// Waits for the notify if all `live` lanes were found not ready since it last changed.
    fn wait_if_none(&self, live: usize) {
        if self.absent >= live {
            self.notify.wait(self.rings);
        }
    }
}

/// The number of a lane's first piece when starting at `at`.
fn first_piece(at: &LanePosition) -> u64 {
    match at {
        LanePosition::At(cursor) => cursor.window,
        LanePosition::Ended => 0,
    }
}

/// Converts a ring error. An interrupted wait means that ingest was cancelled.
fn ring_error(error: RingError) -> Error {
    match error {
        RingError::Interrupted => Error::Cancelled,
        other => Error::Ring(other),
    }
}
