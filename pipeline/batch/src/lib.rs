//! The batch: the only data shared by ingest and training.
//!
//! A job's features determine a [`BatchSchema`]. Both sides compute the same [`SlotLayout`] from it, so a
//! batch crosses from the daemon to a worker as plain memory: no serialisation, no copy.
//!
//! * [`schema`]: the contents of a batch.
//! * [`column`]: typed columns of a batch.
//! * [`float16`]: conversion to floats of 16 bits.
//! * [`layout`]: the byte offset of each section in a slot.
//! * [`batch`]: typed views of a slot's memory, and a batch on the heap.
//! * [`allocator`]: settings of the C library's allocator.
//! * [`cache_lines`]: prefetching into the processor's caches.
//! * [`scheduling`]: how the kernel schedules threads.
//! * `descriptors`: passing file descriptors to another process.
//! * [`messages`]: JSON messages over a socket.
//! * `shared_memory`: numbers in anonymous files, and such files.
//! * [`ring`]: slots in a sealed memfd, shared by one producer and one consumer process.
//! * [`count`]: counts of things, as messages show them.
//! * [`size`]: sizes in bytes, as messages show them.
//!
//! Built with `--cfg loom`, the crate replaces the ring by its model; see `ring/model.rs`.

pub mod allocator;
pub mod batch;
pub mod cache_lines;
pub mod column;
pub mod count;
#[cfg(not(loom))]
pub mod descriptors;
pub mod float16;
pub mod layout;
pub mod messages;
mod part;
pub mod ring;
pub mod scheduling;
pub mod schema;
#[cfg(not(loom))]
pub mod shared_memory;
pub mod size;

pub use batch::{BatchBuffer, BatchHeader, BatchMut, BatchRef, ColumnMut, ColumnRef, Sections, Stream};
pub use column::{Column, ColumnKind, Dtype};
pub use count::Count;
pub use layout::{LayoutError, SlotLayout};
#[cfg(not(loom))]
pub use ring::{ClaimedSlot, Consumer, HandOff, Interrupter, Lease, Producer, RingError, RingMapping};
pub use schema::{BatchSchema, IdFeature, RaggedFeature};
pub use size::Size;
