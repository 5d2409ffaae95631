//! Fetching ahead of decoding: the only place where ingest waits for storage.
//!
//! The decoding thread takes an object's bytes as a [`BufRead`], or some ranges of it at once; pieces are
//! read ahead of it on the runtime, so many that it seldom waits and no more than its memory budget knows of.
//! Dropping the receiving end ends the reads; so does calling off the [`crate::storage::Stores`] that the
//! object was listed by, which also wakes who waits.
//!
//! A piece of a local file is one `pread` on one of the runtime's blocking threads. A piece of a remote object
//! goes through what all readers of the host share:
//!
//! ```text
//! shared    pieces on their way or just come, so that each crosses the network once
//!   -> streams   how many requests at once: a hill climb on what is measured
//!   -> request   tries, back-off, deadline; hedge: a second request when the first is late
//! ```

pub(crate) mod buffers;
pub(crate) mod cancel;
mod hedge;
mod request;
pub(crate) mod shared;
mod streams;

use std::collections::VecDeque;
use std::io::{self, BufRead, Read};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use futures::{FutureExt, StreamExt, TryStreamExt};
use millstream_trace::{Category, Work};
use tokio::runtime::Handle;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::task::AbortHandle;

pub(crate) use self::request::Traffic;

use self::request::Failure;
use self::shared::Piece;
use crate::error::Error;
use crate::ingest::{Limits, MOST_STREAMS, Ranges, gate};
use crate::storage::{Object, OpenFile};

/// Remote objects are fetched in blocks that start at multiples of this, or of a smaller power of two where
/// memory is short. Splits that do too share no block.
pub(crate) const BLOCK_BYTES: u64 = 2 << 20;
/// The most bytes of one read of a file.
pub(crate) const FILE_BYTES: u64 = 1 << 20;
/// Blocks of one range fetched at once.
const BLOCKS_AT_ONCE: usize = 4;
/// Ranges of one object fetched at once.
const RANGES_AT_ONCE: usize = 4;
/// Ranges of a remote object with no more than this between them are fetched as one.
const GAP_BYTES: u64 = 128 << 10;

/// What was fetched from remote storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchStats {
    /// Requests sent, retries and second requests included.
    pub requests: u64,
    /// Tries after one that failed.
    pub retries: u64,
    /// Second requests beside one that was late.
    pub hedges: u64,
    /// Answers that asked for fewer requests.
    pub throttled: u64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Bytes that were not fetched, because another reader had.
    pub shared_bytes: u64,
    /// Requests that may be made at once, at this time.
    pub streams: usize,
}

/// How pieces of `object` are read within `limits`: bytes of each, and how many at once.
fn pieces_of(object: &Object, limits: &Limits) -> (u64, usize) {
    let Ranges { bytes, in_flight } = limits.ranges();
    if object.is_local() {
        return (bytes.min(FILE_BYTES), in_flight as usize);
    }
    // Of fixed sizes, so that readers ask for the same pieces: what of the ranges fits none is used for more.
    let size = 1 << bytes.min(BLOCK_BYTES).ilog2();
    (size, (bytes * u64::from(in_flight) / size).min(MOST_STREAMS.into()) as usize)
}

/// Reads `range` of `object`: what [`Object::read`] does.
pub(crate) async fn read(object: &Object, range: Range<u64>) -> Result<Bytes, Error> {
    Source::new(object.clone()).read(range).await
}

/// An object being read.
#[derive(Clone)]
struct Source {
    object: Object,
    file: Arc<OpenFile>,
}

impl Source {
    fn new(object: Object) -> Self {
        Self { object, file: Arc::default() }
    }

    async fn read(&self, range: Range<u64>) -> Result<Bytes, Error> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let stores = self.object.stores();
        let (cancel, start, bytes) =
            (stores.calls_off().clone(), stores.recorder().start(), range.end - range.start);
        let read = if self.object.is_local() {
            cancel.or(self.pread(range)).await?
        } else {
            cancel.or(self.fetch(range)).await?
        };
        stores.recorder().add(start, Category::Fetch, "fetch", || Work { bytes, ..Work::default() });
        read
    }

    /// Reads several ranges, in their order: where each starts, and its bytes.
    async fn read_all(&self, ranges: Vec<Range<u64>>) -> Result<Vec<(u64, Bytes)>, Error> {
        futures::stream::iter(ranges)
            .map(|range| {
                let start = range.start;
                let read = self.read(range);
                async move { read.await.map(|bytes| (start, bytes)) }
            })
            .buffered(RANGES_AT_ONCE)
            .try_collect()
            .await
    }

    async fn pread(&self, range: Range<u64>) -> Result<Bytes, Error> {
        let Self { object, file } = self.clone();
        let read = move || file.read(&object, range, object.stores().buffers());
        match tokio::task::spawn_blocking(read).await {
            Ok(read) => read,
            Err(error) if error.is_cancelled() => Err(Error::Cancelled),
            Err(error) => Err(Error::Panicked(error.to_string())),
        }
    }

    async fn fetch(&self, range: Range<u64>) -> Result<Bytes, Error> {
        let mut pieces = pieces(range.clone(), BLOCK_BYTES);
        match (pieces.next(), pieces.len()) {
            (Some(piece), 0) => self.piece(piece).await,
            (first, _) => {
                let mut bytes = BytesMut::with_capacity((range.end - range.start) as usize);
                let fetched = first.into_iter().chain(pieces).map(|piece| self.piece(piece));
                let mut fetched = futures::stream::iter(fetched).buffered(BLOCKS_AT_ONCE);
                while let Some(piece) = fetched.try_next().await? {
                    bytes.extend_from_slice(&piece);
                }
                Ok(bytes.freeze())
            }
        }
    }

    /// Part of one block, fetched by us or by another reader.
    async fn piece(&self, range: Range<u64>) -> Result<Bytes, Error> {
        let object = &self.object;
        let piece = Piece { object: object.identity(), range: range.clone() };
        let flight = || {
            // On a task of its own, so that bytes flow while those who wait for them do other things.
            let fetching = Flying(tokio::spawn(request::fetch(object.clone(), range)));
            async move { fetching.land().await }.boxed()
        };
        object.stores().shared().get(piece, flight).await.map_err(|failure| failure.of(object))
    }
}

/// A fetch at work; ends when dropped.
struct Flying(tokio::task::JoinHandle<Result<Bytes, Failure>>);

impl Flying {
    async fn land(mut self) -> Result<Bytes, Failure> {
        let landed = (&mut self.0).await;
        landed.unwrap_or_else(|error| {
            let source = object_store::Error::JoinError { source: error };
            Err(Failure::Storage(Arc::new(source)))
        })
    }
}

impl Drop for Flying {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// `range`, cut at the multiples of `size`.
fn pieces(range: Range<u64>, size: u64) -> impl ExactSizeIterator<Item = Range<u64>> {
    let Range { start, end } = range;
    let count = if start < end { (end.div_ceil(size) - start / size) as usize } else { 0 };
    let first = start / size;
    (0..count).map(move |piece| {
        let at = (first + piece as u64) * size;
        at.max(start)..(at + size).min(end)
    })
}

/// An object's bytes in order, fetched ahead. Reading blocks, so it must not be done in async code.
pub(crate) struct FetchedBytes {
    source: Source,
    limits: Arc<Limits>,
    runtime: Handle,
    /// What is read, or has been: the next bytes first.
    ahead: VecDeque<Ahead>,
    /// Where the next piece to be read starts.
    next: u64,
    end: u64,
    current: Bytes,
    remaining: u64,
    waited: Duration,
}

/// A piece that is read ahead.
type Ahead = Pending<Bytes>;

/// What a task is going to send; the task is ended when this is dropped.
struct Pending<T> {
    result: oneshot::Receiver<Result<T, Error>>,
    task: Aborting,
}

struct Aborting(AbortHandle);

impl Drop for Aborting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<T: Send + 'static> Pending<T> {
    fn start(runtime: &Handle, work: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        let (sender, result) = oneshot::channel();
        // Where nobody takes it, the reader was dropped.
        let task = runtime.spawn(async move { drop(sender.send(work.await)) });
        Self { result, task: Aborting(task.abort_handle()) }
    }

    /// What has come already. A channel that closes early means that the runtime has shut down.
    fn now(&mut self) -> Option<Result<T, Error>> {
        match self.result.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Closed) => Some(Err(Error::Cancelled)),
            Err(TryRecvError::Empty) => None,
        }
    }

    /// Waits, outside of async code.
    fn wait(self) -> Result<T, Error> {
        let Self { result, task } = self;
        let result = result.blocking_recv().unwrap_or(Err(Error::Cancelled));
        drop(task);
        result
    }
}

impl FetchedBytes {
    /// Starts to fetch all of `object`.
    pub(crate) fn start(object: Object, limits: &Arc<Limits>, runtime: &Handle) -> Self {
        let whole = 0..object.size();
        Self::start_range(object, whole, limits, runtime)
    }

    /// Starts to fetch `range` of `object`, as far as it reaches.
    pub(crate) fn start_range(
        object: Object,
        range: Range<u64>,
        limits: &Arc<Limits>,
        runtime: &Handle,
    ) -> Self {
        let end = range.end.min(object.size());
        let start = range.start.min(end);
        let mut this = Self {
            source: Source::new(object),
            limits: Arc::clone(limits),
            runtime: runtime.clone(),
            ahead: VecDeque::new(),
            next: start,
            end,
            current: Bytes::new(),
            remaining: end - start,
            waited: Duration::ZERO,
        };
        this.read_ahead();
        this
    }

    /// Bytes not yet taken.
    pub(crate) fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Time spent waiting for bytes.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    fn read_ahead(&mut self) {
        let (size, ahead) = pieces_of(&self.source.object, &self.limits);
        while self.ahead.len() < ahead && self.next < self.end {
            let range = self.next..(self.next / size * size + size).min(self.end);
            self.next = range.end;
            let (source, limits) = (self.source.clone(), Arc::clone(&self.limits));
            self.ahead.push_back(Pending::start(&self.runtime, async move {
                let _asked_for = limits.asked_for(range.end - range.start);
                source.read(range).await
            }));
        }
    }
}

impl BufRead for FetchedBytes {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.current.is_empty() && self.remaining > 0 {
            // Its memory goes back before the next piece needs some.
            self.current = Bytes::new();
            let Some(mut next) = self.ahead.pop_front() else {
                return Err(io::Error::other(Error::Cancelled));
            };
            let bytes = match next.now() {
                Some(bytes) => bytes,
                None => {
                    let start = Instant::now();
                    let bytes = gate::waiting(|| next.wait());
                    self.waited += start.elapsed();
                    bytes
                }
            };
            let bytes = bytes.map_err(io::Error::other)?;
            self.remaining -= bytes.len() as u64;
            self.current = bytes;
            self.read_ahead();
        }
        Ok(&self.current)
    }

    fn consume(&mut self, amount: usize) {
        self.current.advance(amount);
    }
}

impl Read for FetchedBytes {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let amount = self.fill_buf()?.read(out)?;
        self.consume(amount);
        Ok(amount)
    }
}

/// Some ranges of an object, fetched at once.
pub(crate) struct FetchedRanges(Pending<Vec<(u64, Bytes)>>);

impl FetchedRanges {
    /// Starts to fetch `ranges`, which are sorted and do not overlap. Ones that are close to each other may
    /// come as one.
    pub(crate) fn start(object: Object, ranges: Vec<Range<u64>>, runtime: &Handle) -> Self {
        Self::start_after(object, Vec::new(), |_| ranges, runtime)
    }

    /// The same, for ranges that follow from others, which are fetched before and are among the result.
    pub(crate) fn start_after(
        object: Object,
        first: Vec<Range<u64>>,
        then: impl FnOnce(Vec<(u64, Bytes)>) -> Vec<Range<u64>> + Send + 'static,
        runtime: &Handle,
    ) -> Self {
        let gap = if object.is_local() { 0 } else { GAP_BYTES };
        let source = Source::new(object);
        Self(Pending::start(runtime, async move {
            let mut fetched = source.read_all(first).await?;
            let ranges = then(fetched.clone());
            fetched.extend(source.read_all(merged(ranges, gap)).await?);
            Ok(fetched)
        }))
    }

    /// Waits for all of them: where each starts, and its bytes.
    pub(crate) fn wait(self) -> Result<Vec<(u64, Bytes)>, Error> {
        gate::waiting(|| self.0.wait())
    }
}

/// Sorted ranges, those with at most `gap` bytes between them as one.
pub(crate) fn merged(ranges: Vec<Range<u64>>, gap: u64) -> Vec<Range<u64>> {
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end + gap => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Our own error out of an [`io::Error`] that [`FetchedBytes`] made, or the error back.
pub(crate) fn storage_error(error: io::Error) -> Result<Error, io::Error> {
    error.downcast::<Error>()
}

#[cfg(test)]
mod tests;
