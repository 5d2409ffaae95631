//! The local cache: a job's decoded and transformed chunks on a fast disk.
//!
//! The second pass over data from a remote store need not fetch, decompress, parse and transform it again. The
//! transformed rows of a split are written to a file in the cache directory when they are first read, and read
//! from there afterwards: by later epochs, by the job when it resumes, and by other jobs with the same features
//! over the same data.
//!
//! * [`CachedSource`] wraps a source of chunks and is one itself. It serves a split from its file, or reads the
//!   source and passes the rows on to be written.
//! * [`block`] and [`layout`] define the bytes of a file, without I/O; [`write_all`] and [`read_all`] convert whole
//!   files.
//! * [`key`] identifies the contents of a file: if the job or the data changes, so does the key.
//! * [`Cache`] is the directory, and [`writer`] its single writer thread.
//!
//! **Exactness.** A cached read equals an uncached one: the same rows in the same order, bit for bit, the same
//! skipped records with the same reason for the last one, and the same counts of truncated rows. Chunk sizes may
//! differ, which has no effect. So positions are the same, and a job may resume with a cache after running
//! without one.
//!
//! **Never blocks.** Lanes encode rows and enqueue them; they never wait for the disk to write. If the queue is full
//! (it is bounded in bytes, within the job's memory budget), the current split is not cached in this pass, and
//! fewer splits are written concurrently from then on. If a write fails, for example because the disk is full,
//! nothing more is written. Either is logged once, and training continues.
//!
//! **Never wrong.** A CRC-32C bound to the file's key covers all bytes. A file that is truncated, damaged or does not
//! match its name is deleted and logged, and the source is read from that row on.
//!
//! **Crashes.** A file is written as `KEY.part` and renamed to `KEY.chunks` when complete. Nothing is synced: data lost
//! in a power failure is read again, checksums detect corrupted data, and a sync would slow down other users of
//! the disk. A `.part` file without a lock (`flock`, which the kernel releases with its process) is removed when
//! the next job starts to write.
//!
//! **Several jobs** may share a directory. The first to start a split writes it and holds the lock; another job that
//! needs it meanwhile reads its source without waiting. A reader can continue to read an open file that is
//! removed.
//!
//! **Space.** Before the directory would exceed its maximum size, the least recently used files are removed, except
//! those of this job's data and those used since it started. A job reads its data cyclically, so with plain LRU a
//! job with more data than the cache holds would remove each file just before it needs it. Instead, the cached
//! part is kept, and the rest is read from its source in each pass.

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

/// Why bytes are not a valid cache file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(&'static str);
