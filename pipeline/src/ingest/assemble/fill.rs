//! Filling: draws the rows of a global batch, deals them to the parts of this host, and packs them.

use std::time::Duration;

use millstream_batch::ClaimedSlot;
use millstream_trace::{Category, SpanStart, Work};

use super::{Assembler, Place};
use crate::error::Error;
use crate::images::{ImageStage, PackedRows};
use crate::ingest::source::SkippedRecords;
use crate::ingest::stats::{Counters, Stopwatch};
use crate::order::{LanePart, Runs, Turn};

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
        match plan.runs() {
            Some(runs) => self.fill_runs(parts, first, runs),
            None => self.fill_by_lanes(parts, first, lanes),
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
            global_rows += self.fill_with(std::slice::from_mut(part), first.take(), most, |_| Some(0))?;
            next = rank + 1;
        }
        global_rows += self.draw_past(&mut first, batch_rows - global_rows)?;
        Ok(Filled { global_rows, most_rows: global_rows.min(part_rows) })
    }

    /// Draws `first`, if it is still there, and the rows that follow, until `rows` are drawn or the pass ends. Returns their
    /// number.
    fn draw_past(&mut self, first: &mut Option<Place>, rows: u32) -> Result<u32, Error> {
        if rows == 0 { Ok(0) } else { self.fill_with(&mut [], first.take(), rows, |_| None) }
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
        let global_rows = self.fill_with(parts, Some(first), self.plan.schema.rows, ring_of)?;
        let here = deal.into_iter().flat_map(|deal| deal.parts_here());
        for (part, number) in parts.iter_mut().zip(here) {
            part.first_row = rows[..number as usize].iter().sum();
        }
        Ok(Filled { global_rows, most_rows: rows.into_iter().max().unwrap_or(0) })
    }

    /// Fills `parts` with `first`, if it is already drawn, and the rows that follow, until `most` rows are drawn or the
    /// pass ends. `ring_of` is called once with the lane of each row and returns the place of its part in `parts`, if it
    /// is one of these. Returns the number of drawn rows.
    fn fill_with(
        &mut self,
        parts: &mut [Part<'_>],
        first: Option<Place>,
        most: u32,
        mut ring_of: impl FnMut(u32) -> Option<u32>,
    ) -> Result<u32, Error> {
        let shared = self.shared;
        let mut drawn = 0;
        let mut note = |assembler: &mut Self, (lane, index): Place| {
            drawn += 1;
            if let Some(ring) = ring_of(lane) {
                assembler.drawn[ring as usize].push(assembler.pool.row(lane, index));
            }
            drawn < most
        };
        let mut at_work = Filling::begin(&shared.counters);
        let mut more = first.map_or(most > 0, |first| note(self, first));
        while more {
            match self.merge.next() {
                Turn::Row { lane, index } => more = note(self, (lane, index)),
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
        match self.plan.runs() {
            Some(runs) if !runs.are_all_here() => self.broken_images += records,
            _ => self.merge.count_skipped(records),
        }
        self.check_skipped(last)
    }
}
