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

use std::sync::Arc;
use std::time::Instant;

use millstream_batch::{BatchHeader, BatchMut, Producer, RingError, Stream};

use super::Shared;
use super::lane::{Piece, Window};
use super::plan::{IngestPlan, name_of};
use super::source::LeftOut;
use crate::chunk::Chunk;
use crate::error::Error;
use crate::order::{Merge, Pass, PassOrder, Position, Turn};
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
            merge: Merge::new(&order, &position),
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
    merge: Merge,
    pool: Pool,
    packer: Packer,
    /// Rows drawn and not yet packed.
    drawn: Vec<RowRef>,
    last_left_out: Option<Error>,
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
            let mut slot = counters.ring_wait.time(|| producer.fill()).map_err(ring_error)?;
            let rows = self.fill(&mut slot.batch(), first)?;
            self.merge.store(&mut position);
            let batch = position.batch;
            position.batch += 1;
            let after = self.draw();
            let last = matches!(after, Ok(None));
            let header = BatchHeader { stream: self.pass.stream, epoch: self.pass.epoch, batch, rows, last };
            slot.batch().set_header(&header);
            self.look_for_positive(&slot.batch(), &mut position, &header)?;
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

    /// Fills a slot with `first` and the rows that follow; returns how many there are.
    fn fill(&mut self, batch: &mut BatchMut<'_>, first: RowRef) -> Result<u32, Error> {
        let capacity = self.plan.schema.rows as usize;
        let mut packed = 0;
        let mut at_work = Instant::now();
        self.drawn.push(first);
        while packed + self.drawn.len() < capacity {
            match self.merge.next() {
                Turn::Row { lane, index } => self.drawn.push(self.pool.row(lane, index)),
                Turn::Wait { lane } => {
                    packed += self.pack(batch, packed);
                    self.shared.counters.pack.add(at_work.elapsed());
                    self.take_window(lane)?;
                    at_work = Instant::now();
                }
                Turn::End => break,
            }
        }
        packed += self.pack(batch, packed);
        self.shared.counters.pack.add(at_work.elapsed());
        Ok(packed as u32)
    }

    /// Packs what was drawn, from row `at` of the batch on.
    fn pack(&mut self, batch: &mut BatchMut<'_>, at: usize) -> usize {
        self.packer.pack(batch, at, &self.pool.chunks, &self.drawn);
        let rows = self.drawn.len();
        self.drawn.clear();
        rows
    }

    /// The next row of the pass, while none is drawn and not yet packed.
    fn draw(&mut self) -> Result<Option<RowRef>, Error> {
        loop {
            match self.merge.next() {
                Turn::Row { lane, index } => return Ok(Some(self.pool.row(lane, index))),
                Turn::Wait { lane } => self.take_window(lane)?,
                Turn::End => return Ok(None),
            }
        }
    }

    /// Waits for what `lane` comes up with next.
    fn take_window(&mut self, lane: u32) -> Result<(), Error> {
        self.pool.drop_window(lane);
        let handover = &self.shared.lanes[lane as usize];
        if !handover.is_ready() {
            self.shared.gate.wanted(lane);
        }
        let piece = self.shared.counters.window_wait.time(|| handover.take());
        match piece.map_err(|_| Error::Cancelled)?? {
            Piece::Window(window) => {
                self.merge.supply(lane, window.extent)?;
                let last = self.pool.hold_window(lane, window);
                self.check_left_out(last)
            }
            Piece::End(LeftOut { records, last }) => {
                self.merge.end_lane(lane, records)?;
                self.check_left_out(last)
            }
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
    fn look_for_positive(
        &self,
        batch: &BatchMut<'_>,
        position: &mut Position,
        header: &BatchHeader,
    ) -> Result<(), Error> {
        let Some(label) = &self.plan.label else { return Ok(()) };
        if header.stream == Stream::Eval || position.positive_seen {
            return Ok(());
        }
        position.positive_seen = batch.as_ref().labels().iter().any(|&label| label > 0.0);
        if position.positive_seen || !header.last || header.epoch > 0 {
            return Ok(());
        }
        Err(Error::NeverPositive {
            column: label.column.clone(),
            positive: label.positive.clone(),
            records: header.batch.saturating_mul(self.plan.schema.rows.into()) + u64::from(header.rows),
            seen: Vec::new(),
        })
    }

    fn next_pass(&self, position: &Position) -> Position {
        Position {
            positive_seen: position.positive_seen,
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

/// A wait for the ring that was interrupted ended because ingest was called off.
fn ring_error(error: RingError) -> Error {
    match error {
        RingError::Interrupted => Error::Cancelled,
        other => Error::Ring(other),
    }
}
