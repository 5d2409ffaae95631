//! Interleaving: the lanes of a pass become one sequence of rows.
//!
//! *Shuffled*: one row from each live lane in turn; a lane that has ended leaves the rotation. Row `k`
//! of lane `v` so comes in round `k`, whatever the other lanes hold.
//!
//! *Ordered*: one whole split from each lane in turn; as split `i` lies in lane `i mod V`, that is the
//! data's order.
//!
//! Rows that were neighbours in a file so lie V places apart, and a slow lane is waited for: the sequence does
//! not depend on who is ready.
//!
//! [`Merge`] decides; it holds no rows. Whoever drives it hands it the extent of a lane's next window
//! when it asks for one, and may ask at any moment for the position, which names the windows in hand by
//! their start. Invariant: what follows a position is what an undisturbed run would have delivered
//! after it, and the position after any number of rows is the same however the lanes' rows were cut
//! into chunks.

use super::pass::PassOrder;
use super::position::{Cursor, LanePosition, Position, PositionError};

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Place `index` of the window of `lane` that is in hand.
    Row { lane: u32, index: u32 },
    /// Nothing can be said before [`Merge::supply`] or [`Merge::end_lane`] is called for `lane`.
    Wait { lane: u32 },
    /// All lanes have ended.
    End,
}

/// A window of a lane, or in an ordered pass any run of rows of one split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Rows held.
    pub rows: u32,
    /// The split in which the next window starts, by its place in the lane.
    pub split: u32,
    /// The row within it.
    pub row: u64,
    /// Ordered: whether the split ends with these rows.
    pub ends_split: bool,
    /// Records left out in splits that ended while this was read.
    pub skipped: u64,
    /// The first place, in the order of drawing, of a row whose label is above 0. Looked for only where
    /// training still waits for one.
    pub first_positive: Option<u32>,
}

/// The merge of one pass's lanes.
#[derive(Clone, Debug)]
pub(crate) struct Merge {
    ordered: bool,
    lanes: Vec<Lane>,
    turn: usize,
    live: usize,
    /// Records left out in splits before the windows in hand.
    skipped: u64,
    /// Whether a row with a label above 0 was drawn from windows before those in hand.
    positive_seen: bool,
}

#[derive(Clone, Copy, Debug)]
struct Lane {
    cursor: Cursor,
    ended: bool,
    in_hand: Option<InHand>,
}

#[derive(Clone, Copy, Debug)]
struct InHand {
    extent: Extent,
    /// Rows drawn from it.
    drawn: u32,
}

impl Merge {
    /// The merge of `order`'s lanes from `position` on, which must be one of that pass.
    pub(crate) fn new(order: &PassOrder, position: &Position) -> Self {
        let lanes: Vec<Lane> = (0..order.lanes())
            .zip(&position.lanes)
            .map(|(lane, &at)| match at {
                LanePosition::At(cursor) => {
                    Lane { cursor, ended: order.splits(lane).is_empty(), in_hand: None }
                }
                LanePosition::Ended => Lane { cursor: Cursor::default(), ended: true, in_hand: None },
            })
            .collect();
        Self {
            ordered: order.mixing().is_ordered(),
            turn: position.turn as usize,
            live: lanes.iter().filter(|lane| !lane.ended).count(),
            lanes,
            skipped: position.skipped,
            positive_seen: position.positive_seen,
        }
    }

    /// The next row, or what is needed to say which it is.
    pub(crate) fn next(&mut self) -> Turn {
        loop {
            if self.live == 0 {
                return Turn::End;
            }
            let turn = self.turn as u32;
            let lane = &mut self.lanes[self.turn];
            if lane.ended {
                self.pass_on();
                continue;
            }
            let Some(hand) = &mut lane.in_hand else { return Turn::Wait { lane: turn } };
            if hand.drawn < hand.extent.rows {
                let index = hand.drawn;
                hand.drawn += 1;
                if self.ordered {
                    lane.cursor.row += 1;
                } else {
                    lane.cursor.drawn += 1;
                    if hand.drawn == hand.extent.rows {
                        self.retire_window();
                    }
                    self.pass_on();
                }
                return Turn::Row { lane: turn, index };
            }
            self.retire_run();
        }
    }

    /// Lanes that have not ended.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Leaves out the lane whose turn it is, for this round. Every row still comes once and positions are
    /// good, but which rows make up a batch is then up to whoever calls this.
    pub(crate) fn pass_over(&mut self) {
        self.pass_on();
    }

    /// Takes the next window of `lane` in hand.
    ///
    /// # Errors
    /// When it is shorter than what was already drawn from it before a resume.
    pub(crate) fn supply(&mut self, lane: u32, extent: Extent) -> Result<(), PositionError> {
        let entry = &mut self.lanes[lane as usize];
        debug_assert!(entry.in_hand.is_none() && !entry.ended, "a window that was not asked for");
        if !self.ordered && entry.cursor.drawn >= extent.rows {
            return Err(PositionError::DataChanged { lane });
        }
        entry.in_hand = Some(InHand { extent, drawn: entry.cursor.drawn });
        Ok(())
    }

    /// Learns that `lane` has no further rows, and what was left out since its last window.
    ///
    /// # Errors
    /// When rows were drawn, before a resume, from a window that is now not there.
    pub(crate) fn end_lane(&mut self, lane: u32, skipped: u64) -> Result<(), PositionError> {
        let entry = &mut self.lanes[lane as usize];
        debug_assert!(entry.in_hand.is_none() && !entry.ended, "an end that was not asked for");
        if entry.cursor.drawn > 0 {
            return Err(PositionError::DataChanged { lane });
        }
        entry.ended = true;
        self.live -= 1;
        self.skipped += skipped;
        Ok(())
    }

    /// Records left out so far in this pass, those of the windows in hand included.
    pub(crate) fn skipped(&self) -> u64 {
        let in_hand = self.lanes.iter().filter_map(|lane| lane.in_hand);
        self.skipped + in_hand.map(|hand| hand.extent.skipped).sum::<u64>()
    }

    /// Whether a row with a label above 0 was drawn.
    fn positive_seen(&self) -> bool {
        let in_hand = self.lanes.iter().filter_map(|lane| lane.in_hand);
        self.positive_seen
            || in_hand.into_iter().any(|hand| hand.extent.first_positive.is_some_and(|at| at < hand.drawn))
    }

    /// Writes where the lanes stand into `position`.
    pub(crate) fn store(&self, position: &mut Position) {
        position.turn = self.turn as u32;
        position.skipped = self.skipped;
        position.positive_seen = self.positive_seen();
        position.lanes.clear();
        position.lanes.extend(self.lanes.iter().map(|lane| match lane.ended {
            true => LanePosition::Ended,
            false => LanePosition::At(lane.cursor),
        }));
    }

    fn pass_on(&mut self) {
        self.turn = (self.turn + 1) % self.lanes.len();
    }

    /// Shuffled: the window in hand is drawn; the lane stands at the start of its next one.
    fn retire_window(&mut self) {
        let Lane { cursor, in_hand, .. } = &mut self.lanes[self.turn];
        if let Some(InHand { extent, .. }) = in_hand.take() {
            *cursor = Cursor { split: extent.split, row: extent.row, window: cursor.window + 1, drawn: 0 };
            self.skipped += extent.skipped;
            self.positive_seen |= extent.first_positive.is_some();
        }
    }

    /// Ordered: the run in hand is drawn; at the end of its split the turn passes on.
    fn retire_run(&mut self) {
        let Lane { cursor, in_hand, .. } = &mut self.lanes[self.turn];
        let Some(InHand { extent, .. }) = in_hand.take() else { return };
        self.positive_seen |= extent.first_positive.is_some();
        if extent.ends_split {
            *cursor = Cursor { split: cursor.split + 1, ..Cursor::default() };
            self.skipped += extent.skipped;
            self.pass_on();
        }
    }
}
