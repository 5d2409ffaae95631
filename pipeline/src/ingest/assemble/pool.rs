//! The shuffle pool: the current windows of all lanes.

use std::sync::Arc;

use crate::chunk::Chunk;
use crate::error::Error;
use crate::ingest::lane::{Window, WindowRows};
use crate::order::PassOrder;
use crate::pack::RowRef;
use crate::sequences::Sequence;

/// The current windows.
pub(super) struct Pool {
    /// The chunks of all current windows, grouped by lane.
    pub(super) chunks: Vec<Arc<Chunk>>,
    lanes: Vec<Lane>,
}

struct Lane {
    /// The range of its chunks: the first, and their number.
    first: usize,
    chunks: usize,
    rows: WindowRows,
}

impl Pool {
    pub(super) fn new(order: &PassOrder) -> Self {
        Self { chunks: Vec::new(), lanes: (0..order.lanes()).map(|_| Lane::new()).collect() }
    }

    /// A reference to row `index` of the current window of `lane`. Valid until a window is dropped or added. If rows are
    /// sequences, it has the lane in place of a chunk ([`Pool::sequence`]).
    pub(super) fn row(&self, lane: u32, index: u32) -> RowRef {
        let Lane { first, rows, .. } = &self.lanes[lane as usize];
        match rows {
            WindowRows::OfChunks(rows) => {
                let RowRef { chunk, row } = rows[index as usize];
                RowRef { chunk: *first as u32 + chunk, row }
            }
            WindowRows::Packed(_) => RowRef { chunk: lane, row: index },
        }
    }

    /// The sequence of a reference.
    ///
    /// # Panics
    /// When rows are no sequences.
    pub(super) fn sequence(&self, RowRef { chunk: lane, row }: RowRef) -> Sequence<'_> {
        let Lane { first, chunks, rows } = &self.lanes[lane as usize];
        match rows {
            WindowRows::OfChunks(_) => unreachable!("a lane without sequences"),
            WindowRows::Packed(sequences) => sequences.get(row, &self.chunks[*first..*first + *chunks]),
        }
    }

    pub(super) fn drop_window(&mut self, lane: u32) {
        let Lane { first, chunks, rows } = &mut self.lanes[lane as usize];
        self.chunks.drain(*first..*first + *chunks);
        *rows = WindowRows::OfChunks(Vec::new());
        *chunks = 0;
        self.place_lanes();
    }

    /// Adds the window; returns the error of its last skipped record, if any.
    pub(super) fn hold_window(&mut self, lane: u32, window: Window) -> Option<Error> {
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

impl Lane {
    /// A lane without a window.
    fn new() -> Self {
        Self { first: 0, chunks: 0, rows: WindowRows::OfChunks(Vec::new()) }
    }
}
