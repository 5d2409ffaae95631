//! A lane's rows are cut into windows: the shuffle pool.
//!
//! # The shuffle pool
//!
//! Of each live lane one window is in hand at a time, permuted as a whole, and with `W = shuffle_rows / live
//! lanes` rows each they come to no more than `shuffle_rows`. A row so travels anywhere within its window,
//! windows hold rows of splits that the epoch has thrown together anew, and the first window of each lane is
//! shorter than the others by another amount, so that lanes do not reload at once. Compared with a pool from
//! which one row is drawn and one put back, as others do, a row cannot stay behind for long; but a window can
//! be named by where it starts, which makes the state of the shuffle a few numbers instead of its rows, and
//! resuming exact without replaying what was drawn.
//!
//! Invariants: windows of a lane follow each other without gap or overlap; all have `W` rows but the first
//! and the last; where a window starts depends on nothing but the lane's rows.
//!
//! # Cutting
//!
//! In a shuffled pass a window is `W` consecutive rows of the lane, across the ends of splits and
//! whatever chunks they come in; in an ordered pass it is a run of rows of one split. A [`Cutter`] is
//! told how many rows are at hand and says how many of them belong to the window being filled.
//!
//! Records left out of a split are counted when its end is met, in the window being filled then. A
//! window that is full does not look for the end of its split, so where the count lands does not depend
//! on how rows came, and reading a window again counts the same.

use super::merge::Extent;
use super::pass::PassOrder;
use super::position::{Cursor, PositionError};

/// Cuts the rows of one lane into windows.
#[derive(Debug)]
pub(crate) struct Cutter<'a> {
    order: &'a PassOrder,
    lane: u32,
    /// The split being read, by its place in the lane, and rows of it that were met.
    split: u32,
    row: u64,
    /// Rows of the split that lie before the position resumed from.
    before: u64,
    window: u64,
    /// Rows in the window being filled.
    rows: u32,
    skipped: u64,
}

/// What becomes of rows at hand: so many lie before the position, the next so many are the window's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) before: u32,
    pub(crate) kept: u32,
}

impl<'a> Cutter<'a> {
    /// Starts at the window that `from` names.
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

    /// The split to read now (0), or after so many others; `None` when the lane has no more.
    pub(crate) fn upcoming(&self, after: usize) -> Option<u32> {
        self.order.splits(self.lane).get(self.split as usize + after).copied()
    }

    /// Rows of the split to read now that lie before the position resumed from.
    pub(crate) fn before(&self) -> u64 {
        self.before
    }

    /// So many of them were left out by whoever reads the split.
    pub(crate) fn pass(&mut self, rows: u64) {
        self.row += rows;
    }

    /// Number of the window being filled.
    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// Whether the window being filled has all its rows.
    pub(crate) fn is_full(&self) -> bool {
        self.rows == self.limit()
    }

    /// Rows that the window being filled can hold.
    pub(crate) fn limit(&self) -> u32 {
        self.order.window_rows(self.lane, self.window)
    }

    /// Takes rows into the window, of the next `available` rows of the split.
    pub(crate) fn take(&mut self, available: u32) -> Taken {
        let before = self.before.saturating_sub(self.row).min(u64::from(available)) as u32;
        let kept = (available - before).min(self.limit() - self.rows);
        self.row += u64::from(before) + u64::from(kept);
        self.rows += kept;
        Taken { before, kept }
    }

    /// The split has no more rows, and so many of its records were left out. In an ordered pass the
    /// window ends with it, and is returned.
    ///
    /// # Errors
    /// When the split ends before the position resumed from.
    pub(crate) fn end_split(&mut self, skipped: u64) -> Result<Option<Extent>, PositionError> {
        if self.row < self.before {
            return Err(PositionError::DataChanged { lane: self.lane });
        }
        self.split += 1;
        (self.row, self.before) = (0, 0);
        self.skipped += skipped;
        let ordered = self.order.mixing().is_ordered();
        Ok(ordered.then(|| Extent { ends_split: true, ..self.cut() }))
    }

    /// The window as it is, if it holds any rows; the next one begins.
    pub(crate) fn finish(&mut self) -> Option<Extent> {
        (self.rows > 0).then(|| self.cut())
    }

    /// Records left out since the last window, once the lane has ended.
    pub(crate) fn left_out(&self) -> u64 {
        self.skipped
    }

    fn cut(&mut self) -> Extent {
        let extent = Extent {
            rows: self.rows,
            split: self.split,
            row: self.row,
            ends_split: false,
            skipped: self.skipped,
            first_positive: None,
        };
        self.window += 1;
        (self.rows, self.skipped) = (0, 0);
        extent
    }
}
