//! Reads one cache file: first its tail, then its blocks, with read-ahead.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_disk::{ALIGNMENT, Access, AlignedBuffer, DiskFile, Queue};
use millstream_io::permits::Permit;

use super::Malformed;
use super::block::{BLOCK_BYTES, Shape};
use super::key::Key;
use super::layout::{Contents, TRAILER_BYTES, tail_bytes};
use crate::chunk::Chunk;

/// Maximum number of blocks in flight or waiting to be decoded.
const DEPTH: usize = 4;

/// Bytes read from the end of a file first: the whole tail, unless the file is very large.
const TAIL_BYTES: u64 = 64 << 10;

/// Maximum memory of a reader, unless a row exceeds a block.
pub(crate) const HELD_BYTES: u64 = (DEPTH as u64 + 1) * BLOCK_BYTES as u64;

/// Why a file is unreadable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    /// An I/O error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is malformed.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// Reads the rows of a file in order.
pub(crate) struct CacheReader {
    file: Arc<DiskFile>,
    queue: Queue,
    contents: Contents,
    /// The next block to request.
    next: usize,
    /// Blocks read ahead: `[block % DEPTH]`.
    read: [Option<AlignedBuffer>; DEPTH],
    /// Buffers to reuse.
    spare: Vec<AlignedBuffer>,
    /// The block being decoded, and its remaining rows.
    block: usize,
    rows: Range<usize>,
    current: Option<AlignedBuffer>,
    /// Released while it waits.
    permit: Permit,
    /// Work since the last [`CacheReader::take_work`].
    work: Work,
}

/// Work done by a reader.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    pub(crate) read_bytes: u64,
    pub(crate) waited: Duration,
    /// Truncated rows in the blocks started.
    pub(crate) truncated_rows: u64,
}

impl CacheReader {
    /// Opens the file of `key` and checks that it has columns of `shape`.
    pub(super) fn open(
        file: File,
        access: Access,
        key: &Key,
        shape: &Shape,
        permit: &Permit,
    ) -> Result<Self, Unreadable> {
        let bytes = file.metadata()?.len();
        if bytes == 0 || bytes % ALIGNMENT as u64 != 0 {
            return Err(Malformed("the file is truncated").into());
        }
        let file = Arc::new(DiskFile::new(file, access.direct));
        let mut queue = Queue::new(DEPTH as u32, access.ring);
        let started = Instant::now();
        let mut tail = read(&mut queue, &file, bytes.saturating_sub(TAIL_BYTES)..bytes, permit)?;
        let needed = tail_bytes(&tail[tail.len() - TRAILER_BYTES..])?;
        let start = bytes.checked_sub(needed).ok_or(Malformed("the file is shorter than its tail"))?;
        let mut read_bytes = tail.len() as u64;
        if needed > tail.len() as u64 {
            tail = read(&mut queue, &file, start..bytes, permit)?;
            read_bytes += needed;
        }
        let contents = Contents::parse(&tail[tail.len() - needed as usize..], bytes)?;
        if (&contents.key, &contents.shape) != (key, shape) {
            return Err(Malformed("the file does not match its name").into());
        }
        let work = Work { read_bytes, waited: started.elapsed(), truncated_rows: 0 };
        Ok(Self {
            file,
            queue,
            contents,
            next: 0,
            read: [const { None }; DEPTH],
            spare: vec![tail],
            block: 0,
            rows: 0..0,
            current: None,
            permit: permit.clone(),
            work,
        })
    }

    /// Number of rows in the file.
    pub(crate) fn rows(&self) -> u64 {
        self.contents.rows
    }

    /// Number of skipped records.
    pub(crate) fn left_out(&self) -> u64 {
        self.contents.left_out
    }

    /// The encoded error of the last skipped record.
    pub(crate) fn fault(&self) -> &[u8] {
        &self.contents.fault
    }

    /// Starts reading at row `from`, which must be within the file.
    pub(crate) fn start(&mut self, from: u64) {
        let mut before = 0;
        let passed = |&rows: &u32| {
            let all_passed = before + u64::from(rows) <= from;
            before += if all_passed { u64::from(rows) } else { 0 };
            all_passed
        };
        self.block = self.contents.entries.iter().map(|entry| entry.rows).take_while(passed).count();
        self.next = self.block;
        // Skips the unwanted leading rows of the first block.
        self.rows = (from - before) as usize..usize::MAX;
        self.request();
    }

    /// The next rows, at most `max_rows`; `None` at the end.
    pub(crate) fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>, Unreadable> {
        let Some(entry) = self.contents.entries.get(self.block) else {
            self.work.truncated_rows += std::mem::take(&mut self.contents.truncated_rows);
            return Ok(None);
        };
        let bytes = entry.bytes as usize;
        let fresh = self.current.is_none();
        let buffer = match self.current.take() {
            Some(buffer) => buffer,
            None => self.wait()?,
        };
        let checked = if fresh { self.contents.check(self.block, &buffer)? } else { &buffer[..bytes] };
        let block = self.contents.block(self.block, checked)?;
        if fresh {
            self.work.truncated_rows += block.truncated_rows();
            self.rows.end = block.rows();
        }
        let rows = self.rows.start..self.rows.end.min(self.rows.start + max_rows.max(1));
        let chunk = block.decode(rows.clone());
        self.rows.start = rows.end;
        if self.rows.is_empty() {
            self.block += 1;
            self.rows = 0..usize::MAX;
            self.spare.push(buffer);
            self.request();
        } else {
            self.current = Some(buffer);
        }
        Ok(Some(chunk))
    }

    /// Returns and resets the work counters.
    pub(crate) fn take_work(&mut self) -> Work {
        std::mem::take(&mut self.work)
    }

    /// Requests blocks up to the read-ahead depth.
    fn request(&mut self) {
        while self.next < self.contents.entries.len().min(self.block + DEPTH) {
            let range = self.contents.entries[self.next].range();
            let bytes = (range.end - range.start) as usize;
            let buffer = self.spare.pop().map_or_else(|| AlignedBuffer::zeroed(bytes), |b| b.with_len(bytes));
            self.queue.read(&self.file, range.start, buffer, self.next as u64);
            self.next += 1;
        }
    }

    /// Waits for the current block.
    fn wait(&mut self) -> Result<AlignedBuffer, Unreadable> {
        let started = Instant::now();
        let buffer = loop {
            if let Some(buffer) = self.read[self.block % DEPTH].take() {
                break buffer;
            }
            let Some(done) = self.permit.released_while(|| self.queue.wait()) else {
                return Err(io::Error::other("a read did not complete").into());
            };
            let bytes = done.result?;
            self.work.read_bytes += bytes as u64;
            if bytes != done.buffer.len() {
                return Err(Malformed("the file was truncated").into());
            }
            self.read[done.token as usize % DEPTH] = Some(done.buffer);
        };
        self.work.waited += started.elapsed();
        Ok(buffer)
    }
}

/// Reads part of a file synchronously.
fn read(
    queue: &mut Queue,
    file: &Arc<DiskFile>,
    range: Range<u64>,
    permit: &Permit,
) -> Result<AlignedBuffer, Unreadable> {
    let bytes = (range.end - range.start) as usize;
    queue.read(file, range.start, AlignedBuffer::zeroed(bytes), 0);
    let done =
        permit.released_while(|| queue.wait()).ok_or_else(|| io::Error::other("a read did not complete"))?;
    if done.result? != bytes {
        return Err(Malformed("the file was truncated").into());
    }
    Ok(done.buffer)
}
