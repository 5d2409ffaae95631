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
//! **Parts.** The packer claims a slot of every ring, fills the parts ([`fill`]), and publishes them only when the whole
//! batch is packed and its header is known. So all ranks receive the same number of batches; a part may have no rows.
//! All parts of a batch carry the same position. There are three rules (`order/deal.rs`):
//!
//! * *Runs.* With R ranks, rank `r` gets the rows `[r c, (r + 1) c)` of a global batch of at most B rows, in the order
//!   in which they are drawn, where `c = ceil(B / R)`. In a short last batch the first ranks are full and the last ones
//!   may have no rows. The rows of ranks on other hosts are drawn, but not packed.
//! * *Lanes.* Each row goes to the part of its lane. Every host draws all rows, and therefore knows how many each part
//!   has, but packs only those of its own lanes. For the lanes of other hosts it receives the extents of their windows
//!   ([`super::peers`]). A batch is full when the *global* batch is full. A part has room for all of it.
//! * *Shards.* As lanes, but the rows of a host's lanes go to its ranks in runs. A batch is full when every host is full, or
//!   has no more rows.
//!
//! **Ready lanes first** (`deterministic = false`, one host, a shuffled pass). The merge skips a lane whose next window
//! is not ready. Only if no lane has rows does the packer wait, for any of them. Each row is still delivered exactly
//! once. Positions remain valid, because they store the state of each lane and not how it was reached. But the
//! composition of batches depends on timing, so neither another run nor a resumed run repeats the batches.
//!
//! **A short last batch** is delivered unless `drop_last` is set; its rows are then drawn and dropped. The preceding
//! batch is not marked as the last, because it is published before the short one is detected.

mod fill;
mod pool;
mod readiness;

use millstream_batch::{BatchHeader, Count, Producer, RingError, Stream};

use super::Shared;
use super::lane::Piece;
use super::peers::{Peers, PieceKey, PieceUpdate};
use super::plan::{IngestPlan, name_of};
use super::source::{ChunkSource, SkippedRecords};
use crate::error::Error;
use crate::images::ImageStage;
use crate::order::{LanePart, LanePosition, Merge, Pass, Position, Turn};
use crate::pack::{Packer, RowRef};
use crate::spec::OnBadRecord;
use fill::{Filled, Part};
use pool::Pool;
use readiness::Readiness;

/// Feeds `rings` from `position` to the end of the feed.
pub(super) fn feed(
    plan: &IngestPlan,
    position: Position,
    rings: &mut [Producer],
    shared: &Shared,
) -> Result<Position, Error> {
    let mut position = position;
    let lanes = plan.deal().map(|deal| deal.of_lanes(plan.order.lanes));
    let skips = matches!(plan.on_bad_record, OnBadRecord::Skip { .. });
    let images = match plan.images() {
        [] => None,
        columns => Some(ImageStage::new(columns, plan.image_threads(), plan.order.seed, skips)?),
    };
    while let Some(pass) = position.pass {
        let order = plan.pass_order(pass);
        let assembler = Assembler {
            plan,
            shared,
            pass,
            lanes: lanes.as_deref(),
            merge: Merge::new(&order, &position),
            pieces: position.lanes.iter().map(first_piece).collect(),
            readiness: shared
                .notify
                .as_deref()
                .filter(|_| !order.mixing().is_ordered())
                .map(|notify| Readiness::new(notify, order.lanes())),
            pool: Pool::new(&order),
            packer: Packer::default(),
            images: images.as_ref(),
            drawn: vec![Vec::new(); rings.len()],
            last_skipped: None,
            broken_images: 0,
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
    /// The part of each lane, if rows are dealt by lanes.
    lanes: Option<&'a [LanePart]>,
    merge: Merge,
    /// The number of each lane's next piece.
    pieces: Vec<u64>,
    /// Set if lanes that are not ready are skipped.
    readiness: Option<Readiness<'a>>,
    pool: Pool,
    packer: Packer,
    images: Option<&'a ImageStage>,
    /// By part that is being filled, the rows that have been drawn but not packed.
    drawn: Vec<Vec<RowRef>>,
    last_skipped: Option<Error>,
    /// Rows of this host whose images are broken, if the ranks are on several hosts. Positions do not count them: those of all
    /// hosts are equal.
    broken_images: u64,
}

/// A row of the pass: a lane, and an index in its current window.
type Place = (u32, u32);

impl Assembler<'_> {
    /// Delivers the rest of the pass; returns the start of the next one.
    fn run(mut self, mut position: Position, rings: &mut [Producer]) -> Result<Position, Error> {
        let mut next = self.draw()?;
        if next.is_none() {
            return Err(self.no_rows());
        }
        let (mut encoded, has_columns) = (Vec::new(), !self.plan.schema.columns.is_empty());
        while let Some(first) = next {
            let counters = &self.shared.counters;
            let slots = counters
                .wait(|counters| &counters.ring_wait, "wait for a free slot", || Producer::claim_all(rings))
                .map_err(ring_error)?;
            let mut parts: Vec<Part<'_>> = slots.into_iter().map(Part::new).collect();
            let Filled { global_rows, most_rows } = self.fill(&mut parts, first)?;
            self.merge.store(&mut position);
            let batch = position.batch;
            position.batch += 1;
            let after = self.draw();
            let last = matches!(after, Ok(None));
            let Pass { stream, epoch } = self.pass;
            let whole =
                BatchHeader { stream, epoch, batch, last, most_rows, ..BatchHeader::train(global_rows) };
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
                if has_columns {
                    part.pad_columns(*rows as usize);
                }
                if let Some(sequences) = self.plan.sequences() {
                    sequences.pad(&mut part, *rows as usize);
                }
            }
            let rows = parts.iter().map(|part| u64::from(part.rows)).sum();
            parts.into_iter().for_each(|part| part.slot.publish());
            self.shared.counters.rows.add(rows);
            self.shared.counters.batches.add(1);
            let skipped = position.skipped_before + position.skipped + self.broken_images;
            self.shared.counters.skipped.set(skipped);
            next = after?;
        }
        Ok(position)
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
        let owner = self.plan.deal().map(|deal| (deal.owner(lane), deal.host()));
        if let (Some(peers), Some((owner, host))) = (self.shared.peers.as_deref(), owner)
            && owner != host
        {
            return self.recv_window(peers, owner, PieceKey { pass: self.pass, lane, number });
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

    /// Waits for the next window of a lane of another host.
    fn recv_window(&mut self, peers: &dyn Peers, host: u32, key: PieceKey) -> Result<(), Error> {
        let error = |message: Option<String>| message.map(|message| Error::Peer { host, message });
        let update = self.shared.counters.wait(
            |counters| &counters.window_wait,
            "wait for a host",
            || peers.recv(host, key),
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
            (OnBadRecord::Skip { limit }, Some(last))
                if self.merge.skipped().saturating_add(self.broken_images) > limit =>
            {
                Err(Error::TooManyBadRecords { limit, last: Box::new(last) })
            }
            (_, last) => {
                self.last_skipped = last;
                Ok(())
            }
        }
    }

    /// The reason that a pass has no rows.
    fn no_rows(&mut self) -> Error {
        let stream = name_of(self.pass.stream);
        let has_filter = self.plan.source(self.pass.stream).is_some_and(ChunkSource::has_filter);
        match Error::of_no_rows(stream, (self.merge.skipped(), self.last_skipped.take()), has_filter) {
            Error::NoRows { .. } if self.plan.sequences().is_some() => {
                Error::Invalid(format!("the documents of the {stream} data have no tokens"))
            }
            error => error,
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
            Count((*rows).into(), if self.plan.sequences().is_some() { "sequence" } else { "row" })
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
