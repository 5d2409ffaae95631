//! The order of rows, as a pure function of (data, seed, epoch, lanes, shuffle pool, batch size).
//!
//! No I/O, no threads, no clock: the same rows come in the same batches whatever machine, cache or
//! number of threads reads them. What makes an epoch:
//!
//! ```text
//! splits  0 1 2 3 4 5 6          permuted by (seed, epoch)                     pass
//!   5 2 0 6 1 4 3                dealt to V = 3 lanes
//! lane 0: 5 6 3                  a lane is the rows of its splits, in order
//! lane 1: 2 1
//! lane 2: 0 4
//! lane 0: [w][ window ][ wi      cut into windows of W = shuffle_rows / V      window
//! lane 1: [ win][ window ][      rows, each permuted by (seed, epoch, lane,
//! lane 2: [window ][ window      window); the first is shorter, by lane
//! batch:  0 1 2 0 1 2 0 1 ...    one row from each live lane in turn           merge
//! ```
//!
//! An ordered pass (evaluation, prediction, or `shuffle_rows = 0`) permutes nothing and takes whole
//! splits in turn, so that lanes read side by side and rows still come in the data's order.
//!
//! | page | what it decides |
//! |---|---|
//! | `pass.rs` | lanes: which splits a lane reads, and in which sequence |
//! | `window.rs`, [`PassOrder::permute`] | the shuffle pool: how far a row may travel |
//! | `merge.rs` | interleaving: which lane gives the next row of a batch |
//! | `position.rs` | the cursor: where a job stands, in bytes |
//! | `hosts.rs` | whose lanes are whose, where several hosts train together |
//! | `random.rs` | the numbers that all of it is keyed by |
//!
//! Invariants, each with its property test:
//!
//! * Every row of the data comes exactly once in each pass.
//! * No more than `shuffle_rows` rows are held in windows being drawn from.
//! * A [`Position`] taken after any batch gives, when resumed from, exactly the batches that follow,
//!   with the positions that follow. Resuming reads at most one window a lane again.
//! * Neither rows nor positions depend on how splits are cut into chunks.
//! * Neither batches nor positions depend on the number of hosts, which may change after any batch.
//! * No count of rows is needed in advance.
//!
//! A test compares all this with a plain implementation over whole lists (`reference.rs`).
//!
//! A job that says `deterministic = false` gives up the second half of the third invariant, and the fifth:
//! batches are then made of whatever is ready (`ingest/assemble.rs`). The first half is kept: what follows a
//! position is each row that had not come, once.

mod hosts;
mod merge;
mod pass;
mod position;
mod random;
mod window;

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

pub use hosts::Share;
pub use merge::Extent;
pub(crate) use merge::{Merge, Turn};
pub use pass::{Cut, Feed, Mixing, OrderSpec, Pass, PassOrder};
pub use position::{Cursor, LanePosition, Position, PositionError};
pub(crate) use window::Cutter;
