//! Interleaving: merges the lanes of a pass into one sequence of rows.
//!
//! *Shuffled*: one row from each live lane in turn; a lane that has ended leaves the rotation. So row `k` of lane `v`
//! is drawn in round `k`, independent of the other lanes, unless the caller passes over lanes (`deterministic = false`,
//! shards).
//!
//! *Ordered*: one whole split from each lane in turn; as split `i` is in lane `i mod V`, this is the data's
//! order.
//!
//! Adjacent rows of a file are thus V rows apart, and the merge waits for a slow lane: the sequence does not
//! depend on which lanes are ready.
//!
//! [`Merge`] holds no rows. Its caller supplies the extent of a lane's next window on request, and can obtain the
//! position at any time; it identifies the current windows by their start. Invariant: resuming from a position delivers
//! the same rows as an uninterrupted run from there on, and the position after any number of rows does not depend on
//! how the lanes' rows were divided into chunks.

use super::pass::PassOrder;
use super::position::{Cursor, LanePosition, Position, PositionError};

/// The next step of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The next row is row `index` of the current window of `lane`.
    Row { lane: u32, index: u32 },
    /// The caller must first call [`Merge::supply`] or [`Merge::end_lane`] for `lane`.
    Wait { lane: u32 },
    /// All lanes have ended.
    End,
}

/// The extent of a window of a lane, or in an ordered pass of a run of rows of one split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowExtent {
    /// Number of rows; 0 if the documents of a window hold no token.
    pub rows: u32,
    /// Index in the lane of the split in which the next window starts.
    pub split: u32,
    /// Row of that split at which the next window starts.
    pub row: u64,
    /// Ordered pass: whether the split ends with these rows.
    pub ends_split: bool,
    /// Records skipped in splits that ended while this window was read.
    pub skipped: u64,
    /// Index, in drawing order, of the first row that the reader of the lane marked. What a mark means is the reader's
    /// choice: ingest marks rows with a positive label while training still waits for one.
    pub first_marked: Option<u32>,
}

/// The merge of one pass's lanes.
#[derive(Clone, Debug)]
pub(crate) struct Merge {
    ordered: bool,
    lanes: Vec<Lane>,
    turn: usize,
    live: usize,
    /// Records skipped in splits before the current windows.
    skipped: u64,
    /// Whether a marked row was drawn from earlier windows.
    marked_seen: bool,
}

#[derive(Clone, Copy, Debug)]
struct Lane {
    cursor: Cursor,
    ended: bool,
    window: Option<Window>,
}

/// A current window.
#[derive(Clone, Copy, Debug)]
struct Window {
    extent: WindowExtent,
    /// Rows drawn so far.
    drawn: u32,
}

impl Merge {
    /// The merge of the lanes of `order`, starting at `position`, which must be of that pass.
    pub(crate) fn new(order: &PassOrder, position: &Position) -> Self {
        let lanes: Vec<Lane> = (0..order.lanes())
            .zip(&position.lanes)
            .map(|(lane, &at)| match at {
                LanePosition::At(cursor) => {
                    Lane { cursor, ended: order.splits(lane).is_empty(), window: None }
                }
                LanePosition::Ended => Lane { cursor: Cursor::default(), ended: true, window: None },
            })
            .collect();
        Self {
            ordered: order.mixing().is_ordered(),
            turn: position.turn as usize,
            live: lanes.iter().filter(|lane| !lane.ended).count(),
            lanes,
            skipped: position.skipped,
            marked_seen: position.marked_seen,
        }
    }

    /// The next step.
    pub(crate) fn next(&mut self) -> Turn {
        let Some(turn) = self.upcoming() else { return Turn::End };
        let lane = &mut self.lanes[self.turn];
        let Some(window) = &mut lane.window else { return Turn::Wait { lane: turn } };
        let index = window.drawn;
        window.drawn += 1;
        if self.ordered {
            lane.cursor.row += 1;
        } else {
            lane.cursor.drawn += 1;
            if window.drawn == window.extent.rows {
                self.retire_window(self.turn);
            }
            self.advance_turn();
        }
        Turn::Row { lane: turn, index }
    }

    /// Number of lanes that have not ended.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// The lane that the next step is about; `None` if all have ended.
    pub(crate) fn upcoming(&mut self) -> Option<u32> {
        while self.live > 0 {
            let lane = &self.lanes[self.turn];
            if lane.ended {
                self.advance_turn();
            } else if lane.window.is_some_and(|window| window.drawn >= window.extent.rows) {
                self.retire_run();
            } else {
                return Some(self.turn as u32);
            }
        }
        None
    }

    /// Skips the current lane for this round. Every row is still delivered once and positions remain valid, but the
    /// composition of batches then depends on the caller.
    pub(crate) fn skip_turn(&mut self) {
        self.advance_turn();
    }

    /// Supplies the next window of `lane`.
    ///
    /// # Errors
    /// When it is not longer than the number of rows drawn from it before resuming.
    pub(crate) fn supply(&mut self, lane: u32, extent: WindowExtent) -> Result<(), PositionError> {
        let entry = &mut self.lanes[lane as usize];
        debug_assert!(entry.window.is_none() && !entry.ended, "a window that was not requested");
        let drawn = entry.cursor.drawn;
        if !self.ordered && drawn > 0 && drawn >= extent.rows {
            return Err(PositionError::DataChanged { lane });
        }
        entry.window = Some(Window { extent, drawn });
        if !self.ordered && extent.rows == 0 {
            self.retire_window(lane as usize);
        }
        Ok(())
    }

    /// Ends `lane`, with the number of records skipped since its last window.
    ///
    /// # Errors
    /// When rows were drawn before resuming from a window that no longer exists.
    pub(crate) fn end_lane(&mut self, lane: u32, skipped: u64) -> Result<(), PositionError> {
        let entry = &mut self.lanes[lane as usize];
        debug_assert!(entry.window.is_none() && !entry.ended, "an end that was not requested");
        if entry.cursor.drawn > 0 {
            return Err(PositionError::DataChanged { lane });
        }
        entry.ended = true;
        self.live -= 1;
        self.skipped = self.skipped.saturating_add(skipped);
        Ok(())
    }

    /// Counts `records` drawn rows as skipped.
    pub(crate) fn count_skipped(&mut self, records: u64) {
        self.skipped = self.skipped.saturating_add(records);
    }

    /// Records skipped so far in this pass, including the current windows.
    pub(crate) fn skipped(&self) -> u64 {
        let windows = self.lanes.iter().filter_map(|lane| lane.window);
        windows.map(|window| window.extent.skipped).fold(self.skipped, u64::saturating_add)
    }

    /// Whether a marked row was drawn.
    fn marked_seen(&self) -> bool {
        let windows = self.lanes.iter().filter_map(|lane| lane.window);
        self.marked_seen
            || windows
                .into_iter()
                .any(|window| window.extent.first_marked.is_some_and(|at| at < window.drawn))
    }

    /// Stores the state of the lanes in `position`.
    pub(crate) fn store(&self, position: &mut Position) {
        position.turn = self.turn as u32;
        position.skipped = self.skipped;
        position.marked_seen = self.marked_seen();
        position.lanes.clear();
        position.lanes.extend(self.lanes.iter().map(|lane| match lane.ended {
            true => LanePosition::Ended,
            false => LanePosition::At(lane.cursor),
        }));
    }

    fn advance_turn(&mut self) {
        self.turn = (self.turn + 1) % self.lanes.len();
    }

    /// Shuffled pass: ends the fully drawn window of `lane`, which moves to the start of its next one.
    fn retire_window(&mut self, lane: usize) {
        let Lane { cursor, window, .. } = &mut self.lanes[lane];
        if let Some(Window { extent, .. }) = window.take() {
            *cursor = Cursor { split: extent.split, row: extent.row, window: cursor.window + 1, drawn: 0 };
            self.skipped = self.skipped.saturating_add(extent.skipped);
            self.marked_seen |= extent.first_marked.is_some();
        }
    }

    /// Ordered pass: ends the fully drawn run; at the end of its split the next lane follows.
    fn retire_run(&mut self) {
        let Lane { cursor, window, .. } = &mut self.lanes[self.turn];
        let Some(Window { extent, .. }) = window.take() else { return };
        self.marked_seen |= extent.first_marked.is_some();
        if extent.ends_split {
            *cursor = Cursor { split: cursor.split + 1, ..Cursor::default() };
            self.skipped = self.skipped.saturating_add(extent.skipped);
            self.advance_turn();
        }
    }
}
