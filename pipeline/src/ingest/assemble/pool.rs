//! The shuffle pool: the current windows of all lanes.

use std::sync::Arc;

use crate::chunk::Chunk;
use crate::error::Error;
use crate::ingest::lane::Window;
use crate::order::PassOrder;
use crate::pack::RowRef;

/// The current windows.
pub(super) struct Pool {
    /// The chunks of all current windows, grouped by lane.
    pub(super) chunks: Vec<Arc<Chunk>>,
    lanes: Vec<Lane>,
}

#[derive(Default)]
struct Lane {
    /// The range of its chunks: the first, and their number.
    first: usize,
    chunks: usize,
    rows: Vec<RowRef>,
}

impl Pool {
    pub(super) fn new(order: &PassOrder) -> Self {
        Self { chunks: Vec::new(), lanes: (0..order.lanes()).map(|_| Lane::default()).collect() }
    }

    /// A reference to row `index` of the current window of `lane`. Valid until a window is dropped or added.
    pub(super) fn row(&self, lane: u32, index: u32) -> RowRef {
        let lane = &self.lanes[lane as usize];
        let RowRef { chunk, row } = lane.rows[index as usize];
        RowRef { chunk: lane.first as u32 + chunk, row }
    }

    pub(super) fn drop_window(&mut self, lane: u32) {
        let Lane { first, chunks, rows } = &mut self.lanes[lane as usize];
        self.chunks.drain(*first..*first + *chunks);
        *rows = Vec::new();
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
