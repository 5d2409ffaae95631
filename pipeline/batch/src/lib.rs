//! The batch: the one thing that ingest and training share.
//!
//! A job's features fix a [`BatchSchema`]. Both sides compute the same [`SlotLayout`] from it, so a
//! batch crosses from the daemon to a worker as plain memory: no serialisation, no copy.
//!
//! * [`schema`]: what a batch holds.
//! * [`layout`]: where each part lies in a slot, byte for byte.
//! * [`batch`]: typed views of a slot's memory, and a batch on the heap.
//! * [`allocator`]: what the process does with memory that it frees.
//! * [`cache_lines`]: what the processor fetches ahead.
//! * [`ring`]: slots in a sealed memfd, shared by one producer and one consumer process.
//!
//! Built with `--cfg loom` (only to run the model of the ring), the crate has no ring but the model.

pub mod allocator;
pub mod batch;
pub mod cache_lines;
pub mod layout;
pub mod ring;
pub mod schema;

pub use batch::{BatchBuffer, BatchHeader, BatchMut, BatchRef, Stream};
pub use layout::{LayoutError, SlotLayout};
#[cfg(not(loom))]
pub use ring::{Consumer, Filling, HandOff, Interrupter, Leased, Pages, Producer, RingError};
pub use schema::{BatchSchema, IdFeature, RaggedFeature};
