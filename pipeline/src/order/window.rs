//! Divides a lane's rows into windows: the shuffle pool.
//!
//! # The shuffle pool
//!
//! Each live lane has one current window, permuted as a whole. With `W = shuffle_rows / live lanes` rows each, the
//! windows together hold at most `shuffle_rows` rows. A row can move anywhere within its window, each epoch
//! combines splits differently, and the length of the first window differs by lane, so that lanes do not reload
//! simultaneously. Unlike in a reservoir pool, from which one row is drawn and replaced at a time, a row cannot
//! be delayed beyond its window. In return, a window is identified by its start: the shuffle state is a few
//! numbers instead of rows, and resuming is exact without replaying.
//!
//! Invariants: the windows of a lane are contiguous and disjoint; all but the first and the last have `W`
//! rows; the start of a window depends only on the lane's rows.
//!
//! # Windows
//!
//! In a shuffled pass a window is `W` consecutive rows of the lane, across the boundaries of splits and
//! chunks; in an ordered pass it is a run of rows of one split. A [`Cutter`] is given the number of available
//! rows and returns how many belong to the current window.
//!
//! Skipped records of a split are counted at its end, in the window being filled. A full window does not
//! look for the end of its split, so the window that counts them does not depend on chunk sizes, and
//! reading a window again gives the same count.

use super::merge::WindowExtent;
use super::pass::PassOrder;
use super::position::{Cursor, PositionError};

/// Divides the rows of one lane into windows.
#[derive(Debug)]
pub(crate) struct Cutter<'a> {
    order: &'a PassOrder,
    lane: u32,
    /// Index of the current split in the lane, and the number of its rows read so far.
    split: u32,
    row: u64,
    /// Rows of the split before the resume position.
    before: u64,
    window: u64,
    /// Rows in the current window.
    rows: u32,
    skipped: u64,
}

/// The use of available rows: the first `before` precede the resume position, the next `kept` belong to the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) before: u32,
    pub(crate) kept: u32,
}

impl<'a> Cutter<'a> {
    /// Starts at the window that `from` identifies.
    pub(crate) fn new(order: &'a PassOrder, lane: u32, from: Cursor) -> Self {
        Self {
            order,
            lane,
            split: from.split,
            row: 0,
            before: from.row,
            window: from.window,
            rows: 0,
            skipped: 0,
        }
    }

    /// The split to read after `after` others, 0 being the current one; `None` at the end of the lane.
    pub(crate) fn upcoming(&self, after: usize) -> Option<u32> {
        self.order.splits(self.lane).get(self.split as usize + after).copied()
    }

    /// Rows of the current split before the resume position.
    pub(crate) fn before(&self) -> u64 {
        self.before
    }

    /// Records that the reader has skipped `rows` of them.
    pub(crate) fn pass(&mut self, rows: u64) {
        self.row += rows;
    }

    /// Number of the current window.
    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// Whether the current window is full.
    pub(crate) fn is_full(&self) -> bool {
        self.rows == self.limit()
    }

    /// Capacity of the current window.
    pub(crate) fn limit(&self) -> u32 {
        self.order.window_rows(self.lane, self.window)
    }

    /// Adds rows to the window from the next `available` rows of the split.
    pub(crate) fn take(&mut self, available: u32) -> Taken {
        let before = self.before.saturating_sub(self.row).min(u64::from(available)) as u32;
        let kept = (available - before).min(self.limit() - self.rows);
        self.row += u64::from(before) + u64::from(kept);
        self.rows += kept;
        Taken { before, kept }
    }

    /// Ends the split, in which `skipped` records were skipped. In an ordered pass this also ends and returns the
    /// window.
    ///
    /// # Errors
    /// When the split ends before the resume position.
    pub(crate) fn end_split(&mut self, skipped: u64) -> Result<Option<WindowExtent>, PositionError> {
        if self.row < self.before {
            return Err(PositionError::DataChanged { lane: self.lane });
        }
        self.split += 1;
        (self.row, self.before) = (0, 0);
        self.skipped = self.skipped.saturating_add(skipped);
        let ordered = self.order.mixing().is_ordered();
        Ok(ordered.then(|| WindowExtent { ends_split: true, ..self.cut() }))
    }

    /// Ends the current window; `None` if it is empty.
    pub(crate) fn finish(&mut self) -> Option<WindowExtent> {
        (self.rows > 0).then(|| self.cut())
    }

    /// Records skipped since the last window, once the lane has ended.
    pub(crate) fn skipped_at_end(&self) -> u64 {
        self.skipped
    }

    fn cut(&mut self) -> WindowExtent {
        let extent = WindowExtent {
            rows: self.rows,
            split: self.split,
            row: self.row,
            ends_split: false,
            skipped: self.skipped,
            first_marked: None,
        };
        self.window += 1;
        (self.rows, self.skipped) = (0, 0);
        extent
    }
}
