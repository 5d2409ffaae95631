//! Filling: draws the rows of a global batch, deals them to the parts of this host, and packs them.

use std::time::Duration;

use millstream_batch::ClaimedSlot;
use millstream_trace::{Category, SpanStart, Work};

use super::{Assembler, Place};
use crate::error::Error;
use crate::images::{ImageStage, PackedRows};
use crate::ingest::plan::DealRule;
use crate::ingest::source::SkippedRecords;
use crate::ingest::stats::{Counters, Stopwatch};
use crate::order::{LanePart, Merge, Runs, Shards, Turn};

/// A part of a global batch, in a ring of this host.
pub(super) struct Part<'a> {
    pub(super) slot: ClaimedSlot<'a>,
    /// The place of its first row in the global batch.
    pub(super) first_row: u32,
    /// The rows packed into it.
    pub(super) rows: u32,
}

/// The rows of a global batch, over the parts of all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Filled {
    pub(super) global_rows: u32,
    /// Those of the fullest part.
    pub(super) most_rows: u32,
}

/// Says where the rows of a batch belong, as they are drawn.
trait Dealer {
    /// The place of the part that gets the next row, which is of `lane`; `None` if the part is not of this host.
    fn deal(&mut self, lane: u32) -> Option<u32>;

    /// Whether the batch has room for a row of the lane whose turn it is.
    fn has_room(&self, merge: &mut Merge) -> bool;
}

/// Rows that belong where the function says. It is called once with the lane of each.
struct By<F>(F);

/// The rows of a batch that is dealt by shards.
struct ShardRows<'a> {
    shards: &'a Shards,
    /// The rows that a rank has room for.
    run_rows: u32,
    /// The rows drawn so far, by host.
    rows: Vec<u32>,
}

impl<F: FnMut(u32) -> Option<u32>> Dealer for By<F> {
    fn deal(&mut self, lane: u32) -> Option<u32> {
        (self.0)(lane)
    }

    fn has_room(&self, _: &mut Merge) -> bool {
        true
    }
}

impl<'a> ShardRows<'a> {
    fn new(shards: &'a Shards, run_rows: u32) -> Self {
        Self { shards, run_rows, rows: vec![0; shards.ranks().len()] }
    }

    /// The rows that a host has room for.
    fn room(&self, host: usize) -> u32 {
        self.run_rows.saturating_mul(self.shards.ranks()[host])
    }

    /// The number of rows of all hosts before this one.
    fn rows_before(&self) -> u32 {
        self.rows[..self.shards.deal().host() as usize].iter().sum()
    }
}

impl Dealer for ShardRows<'_> {
    fn deal(&mut self, lane: u32) -> Option<u32> {
        let deal = self.shards.deal();
        let owner = deal.owner(lane);
        let rows = &mut self.rows[owner as usize];
        let place = *rows / self.run_rows;
        *rows += 1;
        (owner == deal.host()).then_some(place)
    }

    fn has_room(&self, merge: &mut Merge) -> bool {
        let has_room = |lane| {
            let owner = self.shards.deal().owner(lane) as usize;
            self.rows[owner] < self.room(owner)
        };
        merge.upcoming().is_none_or(has_room)
    }
}

/// A stretch of filling slots, between two waits for a window.
struct Filling<'a> {
    counters: &'a Counters,
    stretch: Stopwatch,
    start: SpanStart,
}

impl<'a> Filling<'a> {
    fn begin(counters: &'a Counters) -> Self {
        Self { counters, stretch: Stopwatch::start(), start: counters.recorder.start() }
    }

    /// Ends the stretch, in which `rows` rows were packed, and records it.
    fn end(self, rows: u32) {
        self.counters.pack.add(&self.stretch, Duration::ZERO);
        let work = || Work { rows: rows.into(), ..Work::default() };
        self.counters.recorder.add(self.start, Category::Ingest, "pack", work);
    }
}

impl<'a> Part<'a> {
    pub(super) fn new(slot: ClaimedSlot<'a>) -> Self {
        Self { slot, first_row: 0, rows: 0 }
    }
}

impl Assembler<'_> {
    /// Fills `parts`, which are those of this host, with `first` and the rows that follow.
    pub(super) fn fill(&mut self, parts: &mut [Part<'_>], first: Place) -> Result<Filled, Error> {
        let (plan, lanes) = (self.plan, self.lanes.unwrap_or_default());
        match plan.rule() {
            DealRule::Runs(runs) => self.fill_runs(parts, first, runs),
            DealRule::Lanes(_) => self.fill_by_lanes(parts, first, lanes),
            DealRule::Shards(shards) => self.fill_shard(parts, first, shards),
        }
    }

    /// Fills the parts one after another, each with a run of rows. Also draws the runs of ranks on other hosts, without
    /// packing them.
    fn fill_runs(&mut self, parts: &mut [Part<'_>], first: Place, runs: &Runs) -> Result<Filled, Error> {
        let (batch_rows, part_rows) = (self.plan.schema.rows, self.plan.ring_schema().rows);
        let (mut first, mut global_rows, mut next) = (Some(first), 0, 0);
        for (part, &rank) in parts.iter_mut().zip(runs.here()) {
            let elsewhere = part_rows.saturating_mul(rank - next).min(batch_rows - global_rows);
            global_rows += self.draw_past(&mut first, elsewhere)?;
            part.first_row = global_rows;
            let most = part_rows.min(batch_rows - global_rows);
            let part = std::slice::from_mut(part);
            global_rows += self.fill_with(part, first.take(), most, &mut By(|_| Some(0)))?;
            next = rank + 1;
        }
        global_rows += self.draw_past(&mut first, batch_rows - global_rows)?;
        Ok(Filled { global_rows, most_rows: global_rows.min(part_rows) })
    }

    /// Draws `first`, if it is still there, and the rows that follow, until `rows` are drawn or the pass ends. Returns their
    /// number.
    fn draw_past(&mut self, first: &mut Option<Place>, rows: u32) -> Result<u32, Error> {
        if rows == 0 { Ok(0) } else { self.fill_with(&mut [], first.take(), rows, &mut By(|_| None)) }
    }

    /// Fills all parts at once: each row goes to the part of its lane.
    fn fill_by_lanes(
        &mut self,
        parts: &mut [Part<'_>],
        first: Place,
        lanes: &[LanePart],
    ) -> Result<Filled, Error> {
        let deal = self.plan.deal();
        let mut rows = vec![0; deal.map_or(0, |deal| deal.parts() as usize)];
        let ring_of = |lane: u32| {
            let LanePart { part, ring } = lanes[lane as usize];
            rows[part as usize] += 1;
            ring
        };
        let global_rows = self.fill_with(parts, Some(first), self.plan.schema.rows, &mut By(ring_of))?;
        let here = deal.into_iter().flat_map(|deal| deal.parts_here());
        for (part, number) in parts.iter_mut().zip(here) {
            part.first_row = rows[..number as usize].iter().sum();
        }
        Ok(Filled { global_rows, most_rows: rows.into_iter().max().unwrap_or(0) })
    }

    /// Fills the parts one after another with the rows of this host's lanes, until all hosts are full or have no more rows.
    fn fill_shard(&mut self, parts: &mut [Part<'_>], first: Place, shards: &Shards) -> Result<Filled, Error> {
        let run_rows = self.plan.ring_schema().rows;
        let mut dealer = ShardRows::new(shards, run_rows);
        let room = (0..shards.ranks().len()).map(|host| dealer.room(host)).fold(0, u32::saturating_add);
        let global_rows = self.fill_with(parts, Some(first), room, &mut dealer)?;
        let mut first_row = dealer.rows_before();
        for part in parts {
            part.first_row = first_row;
            first_row += part.rows;
        }
        let most_rows = dealer.rows.iter().max().map_or(0, |&rows| rows.min(run_rows));
        Ok(Filled { global_rows, most_rows })
    }

    /// Fills `parts` with `first`, if it is already drawn, and the rows that follow, where `dealer` says. Ends when `most` rows
    /// are drawn, the lanes that are left have no room, or the pass ends. Returns the number of drawn rows.
    fn fill_with(
        &mut self,
        parts: &mut [Part<'_>],
        first: Option<Place>,
        most: u32,
        dealer: &mut impl Dealer,
    ) -> Result<u32, Error> {
        let shared = self.shared;
        // The lanes without room since the last row.
        let (mut drawn, mut passed) = (0, 0);
        let mut at_work = Filling::begin(&shared.counters);
        if let Some((lane, index)) = first {
            drawn += 1;
            self.note(lane, index, dealer);
        }
        while drawn < most && passed < self.merge.live() {
            if !dealer.has_room(&mut self.merge) {
                self.merge.skip_turn();
                passed += 1;
                continue;
            }
            match self.merge.next() {
                Turn::Row { lane, index } => {
                    (drawn, passed) = (drawn + 1, 0);
                    self.note(lane, index, dealer);
                }
                Turn::Wait { lane } if self.skips(lane) => self.merge.skip_turn(),
                Turn::Wait { lane } => {
                    at_work.end(self.pack(parts)?);
                    self.take_window(lane)?;
                    at_work = Filling::begin(&shared.counters);
                }
                Turn::End => break,
            }
        }
        at_work.end(self.pack(parts)?);
        Ok(drawn)
    }

    /// Notes a drawn row, which is packed later.
    fn note(&mut self, lane: u32, index: u32, dealer: &mut impl Dealer) {
        if let Some(ring) = dealer.deal(lane) {
            self.drawn[ring as usize].push(self.pool.row(lane, index));
        }
    }

    /// Packs the drawn rows of all `parts`. Returns their number.
    fn pack(&mut self, parts: &mut [Part<'_>]) -> Result<u32, Error> {
        for (Part { slot, rows, .. }, drawn) in parts.iter_mut().zip(&self.drawn) {
            let (mut batch, at) = (slot.batch(), *rows as usize);
            match self.plan.sequences() {
                None => self.packer.pack(&mut batch, at, &self.pool.chunks, drawn),
                Some(columns) => {
                    columns.pack(&mut batch, at, drawn.iter().map(|&row| self.pool.sequence(row)));
                }
            }
        }
        if let Some(images) = self.images.filter(|_| !parts.is_empty()) {
            self.decode_images(images, parts)?;
        }
        let mut packed = 0;
        for (part, drawn) in parts.iter_mut().zip(&mut self.drawn) {
            part.rows += drawn.len() as u32;
            packed += drawn.len() as u32;
            drawn.clear();
        }
        Ok(packed)
    }

    /// Decodes the images of the drawn rows of all `parts`, after those that were packed before.
    fn decode_images(&mut self, images: &ImageStage, parts: &mut [Part<'_>]) -> Result<(), Error> {
        let mut batches: Vec<_> = parts.iter_mut().map(|part| (part.slot.batch(), part.rows)).collect();
        let packed = batches.iter_mut().zip(&self.drawn).map(|((batch, at), rows)| {
            let capacity = batch.layout().schema().rows as usize;
            PackedRows { sections: batch.sections(), capacity, at: *at as usize, rows }
        });
        let (packed, counters) = (packed.collect(), &self.shared.counters);
        let decode = || images.decode(packed, &self.pool.chunks, self.pass, counters);
        let SkippedRecords { records, last } =
            counters.wait(|counters| &counters.image_wait, "wait for images", decode)?;
        let all_here = match self.plan.rule() {
            DealRule::Runs(runs) => runs.are_all_here(),
            DealRule::Shards(shards) => shards.runs().are_all_here(),
            DealRule::Lanes(deal) => deal.hosts() == 1,
        };
        match all_here {
            true => self.merge.count_skipped(records),
            false => self.broken_images += records,
        }
        self.check_skipped(last)
    }
}
