//! The local cache: a job's chunks, decoded and transformed once, kept on a fast disk.
//!
//! The second pass over data from a distant store need not fetch, decompress, parse and transform it again.
//! What a split's rows became is written, as they are first read, to a file of the cache directory, and read
//! from there ever after: by later epochs, by the job when it resumes, by the next job with the same features
//! over the same data.
//!
//! * [`CachedSource`] stands before a source of chunks and is one itself. It serves a split from its file, or
//!   reads the source and hands what it reads on to be written.
//! * [`block`] and [`layout`] are the bytes of a file, without I/O; [`write_all`] and [`read_all`] are all of them at once.
//! * [`key`] says what a file is of: change the job or the data, and it is of something else.
//! * [`Cache`] is the directory, and [`writer`] the one thread that writes to it.
//!
//! **Exactness.** A cached read is an uncached one: the same rows in the same order, bit for bit, the same
//! records left out with the same reason for the last of them, the same counts of truncated rows. How rows fall
//! into chunks may differ, which means nothing. So positions are the same, and a job may resume with a cache
//! where it was begun without.
//!
//! **Never in the way.** Lanes encode and hand over; they never wait for the disk to write. When the queue
//! (bounded in bytes, and in the job's memory budget) is full, the split at hand is not cached in this pass,
//! and fewer splits are written side by side from then on. When a write fails, a full disk for one, nothing more
//! is written. Either is said once, and training goes on.
//!
//! **Never wrong.** All bytes are under a CRC-32C bound to the file's key. A file that is short, damaged or not
//! what its name says is deleted, that is said, and the source is read instead, from the very row.
//!
//! **Crashes.** A file is written as `KEY.part` and renamed to `KEY.chunks` when it is whole. Nothing is
//! synced: what a power failure takes away is read again, what it leaves garbled is found by its checksum, and a
//! sync would slow down the disk for everybody. A `.part` that nobody holds a lock on (`flock`, which goes with
//! its process) is removed when the next job starts to write.
//!
//! **Several jobs** may use one directory. The first to begin a split writes it, holding the lock; another one
//! that comes upon it meanwhile reads its source and does not wait. A reader keeps what it has opened, even if it
//! is removed.
//!
//! **Room.** Before the directory would exceed its size, the files used longest ago are removed, though none of
//! this job's own data, nor any used since it began. A job goes round its data in order, so by plain LRU
//! one whose data exceeds the cache would remove each file just before it comes to need it. Instead, what fits is
//! kept, and the rest is read from its source in each pass.

mod block;
mod key;
mod layout;
mod reader;
mod source;
mod store;
#[cfg(test)]
mod tests;
mod writer;

pub use key::{Key, Specification};
pub use layout::{read_all, write_all};
pub use source::CachedSource;
pub use store::{Cache, CacheOptions};

/// Why bytes are not a cache file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(&'static str);
