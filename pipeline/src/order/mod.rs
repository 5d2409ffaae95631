//! The order of rows, as a pure function of (data, seed, epoch, lanes, shuffle pool, groups, batch size).
//!
//! No I/O, no threads, no clock: machine, cache and thread count do not affect the rows of a batch. An epoch:
//!
//! ```text
//! splits  0 1 2 3 4 5 6          permuted by (seed, epoch)                     pass
//!   5 2 0 6 1 4 3                assigned to V = 3 lanes
//! lane 0: 5 6 3                  a lane is the rows of its splits, in order
//! lane 1: 2 1
//! lane 2: 0 4
//! lane 0: [w][ window ][ wi      cut into windows of W = shuffle_rows / V      window
//! lane 1: [ win][ window ][      rows, each permuted by (seed, epoch, lane,
//! lane 2: [window ][ window      window); the first length differs by lane
//! batch:  0 1 2 0 1 2 0 1 ...    one row from each live lane in turn           merge
//! ```
//!
//! An ordered pass (evaluation, prediction, or `shuffle_rows = 0`) permutes nothing and takes whole splits from
//! the lanes in turn, so lanes read in parallel and rows keep the data's order.
//!
//! | module | responsibility |
//! |---|---|
//! | `pass.rs` | lanes: the splits of each lane, in order |
//! | `window.rs`, [`PassOrder::permute`] | the shuffle pool: how far rows are mixed |
//! | `groups.rs` | the permutation of a window that keeps groups of rows together |
//! | `packing.rs` | documents of tokens, packed into sequences of one length |
//! | `merge.rs` | interleaving: the lane of the next row of a batch |
//! | `mix.rs` | weights: how often the rows of each split occur in an epoch |
//! | `position.rs` | the encoded read position of a job |
//! | `deal.rs` | the part of each row, and its host, if several workers train together |
//! | `random.rs` | the random number generator |
//!
//! Invariants, each with a property test:
//!
//! * Each pass delivers every row of the data exactly once; with weights, as often as the [`Mix`] says.
//! * With a group feature, the rows of a group are adjacent within each window.
//! * If documents are packed, a row is a sequence, and each token of a window is in exactly one.
//! * The current windows hold at most `shuffle_rows` rows.
//! * Resuming from a [`Position`] taken after any batch delivers exactly the batches and positions that follow.
//!   Resuming reads at most one window per lane again.
//! * Rows and positions do not depend on how splits are divided into chunks.
//! * Batches and positions do not depend on the number of hosts and workers, which may change after any batch. Only if
//!   each host reads a shard of a feed, batches depend on the hosts ([`Shards`]); these may change, too.
//! * The number of rows need not be known in advance.
//!
//! A test compares the module with a reference implementation over whole lists (`reference.rs`).
//!
//! A job with `deterministic = false` waives the exact batches of the third invariant, and the fifth invariant: batches
//! then consist of the rows that are ready (`ingest/assemble.rs`). Resuming still delivers each remaining row exactly
//! once.

mod deal;
pub(crate) mod groups;
mod merge;
mod mix;
pub(crate) mod packing;
mod pass;
mod position;
mod random;
mod window;

#[cfg(test)]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

pub(crate) use deal::LanePart;
pub use deal::{Deal, Runs, Shards};
pub use merge::WindowExtent;
pub(crate) use merge::{Merge, Turn};
pub(crate) use mix::Sample;
pub use mix::{Mix, Weight};
pub use packing::Packing;
pub use pass::{Cut, Feed, Mixing, OrderSpec, Pass, PassOrder};
pub use position::{Cursor, LanePosition, Position, PositionError};
pub(crate) use random::image_random;
pub(crate) use window::Cutter;
