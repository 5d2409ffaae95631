//! Reads objects ahead of decoding: the only place where ingest waits for storage.
//!
//! The decoding thread reads an object's bytes as a [`BufRead`], or several ranges together. Pieces are read ahead on
//! the runtime: enough that the thread seldom waits, and within the memory budget. Dropping the reader ends its
//! requests. So does cancelling the [`crate::storage::Stores`] that listed the object or closing the decode permits of the
//! reader's ingest; both also wake waiting threads.
//!
//! A piece of a local file is one `pread` on a blocking thread of the runtime. A piece of a remote object passes
//! through layers that all readers of the host share:
//!
//! ```text
//! shared    pieces in flight or recently fetched, so that each crosses the network once
//!   -> streams   the number of concurrent requests: a hill climb on measured throughput
//!   -> request   attempts, back-off, deadline; hedge: a second request if the first is late
//! ```

mod request;

use std::collections::VecDeque;
use std::io::{self, BufRead, Read};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use futures::{FutureExt, StreamExt, TryStreamExt};
use millstream_trace::{Category, Work};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::task::JoinSet;

use super::ReadContext;
use super::buffers::{BLOCK_BYTES, FILE_BYTES};
use super::failure::Failure;
use super::limits::{MAX_STREAMS, Ranges, ReadLimits};
use super::permits::Permit;
use super::shared::Piece;
use super::storage::{DescriptorWait, Object, OpenFile};
use crate::Error;
use crate::ranges::merged;

/// Maximum number of concurrent requests for the blocks of one range.
const BLOCKS_AT_ONCE: usize = 4;
/// Maximum number of concurrent ranges of one object.
const RANGES_AT_ONCE: usize = 4;
/// Before a larger range is read, an attempt is made to reserve its memory, which costs a system call.
const LARGE_BYTES: u64 = 256 << 20;
/// Ranges of a remote object with at most this many bytes between them are fetched as one.
const GAP_BYTES: u64 = 128 << 10;

/// The size of `object`'s pieces within `limits`, and the number of concurrent ones.
fn pieces_of(object: &Object, limits: &ReadLimits) -> (u64, usize) {
    let Ranges { bytes, in_flight } = limits.ranges();
    if object.is_local() {
        return (bytes.min(FILE_BYTES), in_flight as usize);
    }
    // Of fixed sizes, so that readers request the same pieces. The rest of the range's bytes allow more of them.
    let size = 1 << bytes.min(BLOCK_BYTES).ilog2();
    (size, (bytes * u64::from(in_flight) / size).min(MAX_STREAMS.into()) as usize)
}

impl Object {
    /// Reads a byte range, if the object is still the one listed.
    ///
    /// # Errors
    /// [`Error::Changed`] if it has changed; [`Error::Cancelled`] if its [`Stores`](super::storage::Stores) were
    /// cancelled; the service's error, if it persisted until the deadline.
    pub async fn read(&self, range: Range<u64>) -> Result<Bytes, Error> {
        Source::new(self.clone()).read(range).await
    }
}

/// An open object.
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
        self.check(&range)?;
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

    /// Checks before anything is allocated for it that a range may be read: its place and size come from the file.
    fn check(&self, range: &Range<u64>) -> Result<(), Error> {
        let bytes = range.end - range.start;
        if range.end > self.object.size() {
            return Err(self.object.changed());
        }
        let fits =
            || Vec::<u8>::new().try_reserve_exact(usize::try_from(bytes).unwrap_or(usize::MAX)).is_ok();
        // Smaller ones are ordinary.
        if bytes > LARGE_BYTES && !fits() {
            return Err(Error::NoMemory { path: self.object.path().to_string(), bytes });
        }
        Ok(())
    }

    /// Reads several ranges in order. Returns the start and the bytes of each.
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
        let mut wait = DescriptorWait::new(self.object.path(), self.object.store().traffic().deadline);
        loop {
            match self.pread_once(range.clone()).await {
                Err(error) => wait.after(error).await?,
                Ok(bytes) => return Ok(bytes),
            }
        }
    }

    async fn pread_once(&self, range: Range<u64>) -> Result<Bytes, Error> {
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

    /// Part of one block, fetched here or by another reader.
    async fn piece(&self, range: Range<u64>) -> Result<Bytes, Error> {
        let object = &self.object;
        let piece = Piece { object: object.identity(), range: range.clone() };
        let flight = || {
            // On a task, so that bytes arrive while the waiting readers do other work.
            let mut fetching = JoinSet::new();
            fetching.spawn(request::fetch(object.clone(), range));
            land(fetching).boxed()
        };
        object.stores().shared().get(piece, flight).await.map_err(|failure| failure.into_error(object.path()))
    }
}

/// The result of the only task in `fetching`, which is aborted when dropped.
async fn land(mut fetching: JoinSet<Result<Bytes, Failure>>) -> Result<Bytes, Failure> {
    let landed = fetching.join_next().await.expect("the set has a task");
    landed.unwrap_or_else(|error| {
        let source = object_store::Error::JoinError { source: error };
        Err(Failure::Storage(Arc::new(source)))
    })
}

/// Splits `range` at the multiples of `size`.
fn pieces(range: Range<u64>, size: u64) -> impl ExactSizeIterator<Item = Range<u64>> {
    let Range { start, end } = range;
    let count = if start < end { (end.div_ceil(size) - start / size) as usize } else { 0 };
    let first = start / size;
    (0..count).map(move |piece| {
        let at = (first + piece as u64) * size;
        at.max(start)..(at + size).min(end)
    })
}

/// An object's bytes in order, read ahead. Reading blocks, so it must not be done in async code.
pub struct FetchedBytes {
    source: Source,
    limits: Arc<ReadLimits>,
    context: ReadContext,
    /// Pieces requested or read, in order.
    ahead: VecDeque<Ahead>,
    /// The start of the next piece to request.
    next: u64,
    end: u64,
    current: Bytes,
    remaining: u64,
    waited: Duration,
}

/// A piece read ahead.
type Ahead = Pending<Bytes>;

/// The result of a task, which is aborted on drop.
struct Pending<T> {
    result: oneshot::Receiver<Result<T, Error>>,
    task: JoinSet<()>,
}

impl<T: Send + 'static> Pending<T> {
    fn start(context: &ReadContext, work: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        let (sender, result) = oneshot::channel();
        let permit = context.permit.clone();
        let work = async move { permit.unless_closed(work).await.flatten() };
        // Sending fails if the reader was dropped.
        let mut task = JoinSet::new();
        task.spawn_on(async move { drop(sender.send(work.await)) }, &context.runtime);
        Self { result, task }
    }

    /// The result, if it is ready. A channel that closes early means that the runtime was shut down.
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
    pub fn start(object: Object, limits: &Arc<ReadLimits>, context: &ReadContext) -> Self {
        let whole = 0..object.size();
        Self::start_range(object, whole, limits, context)
    }

    /// Starts to fetch `range` of `object`, up to the object's end.
    pub fn start_range(
        object: Object,
        range: Range<u64>,
        limits: &Arc<ReadLimits>,
        context: &ReadContext,
    ) -> Self {
        let end = range.end.min(object.size());
        let start = range.start.min(end);
        let mut this = Self {
            source: Source::new(object),
            limits: Arc::clone(limits),
            context: context.clone(),
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

    /// Bytes not yet read.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Time spent waiting for bytes.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    fn read_ahead(&mut self) {
        let (size, ahead) = pieces_of(&self.source.object, &self.limits);
        while self.ahead.len() < ahead && self.next < self.end {
            let range = self.next..(self.next / size * size + size).min(self.end);
            self.next = range.end;
            let (source, limits) = (self.source.clone(), Arc::clone(&self.limits));
            self.ahead.push_back(Pending::start(&self.context, async move {
                let _in_flight = limits.request(range.end - range.start);
                source.read(range).await
            }));
        }
    }
}

impl BufRead for FetchedBytes {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.current.is_empty() && self.remaining > 0 {
            // Frees its memory before the next piece needs some.
            self.current = Bytes::new();
            let Some(mut next) = self.ahead.pop_front() else {
                return Err(io::Error::other(Error::Cancelled));
            };
            let bytes = match next.now() {
                Some(bytes) => bytes,
                None => {
                    let start = Instant::now();
                    let bytes = self.context.permit.released_while(|| next.wait());
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

/// Several ranges of an object, fetched concurrently.
pub struct FetchedRanges {
    pending: Pending<Vec<(u64, Bytes)>>,
    permit: Permit,
}

impl FetchedRanges {
    /// Starts to fetch `ranges`, which are sorted and disjoint. Adjacent ones may be merged.
    pub fn start(object: Object, ranges: Vec<Range<u64>>, context: &ReadContext) -> Self {
        Self::start_after(object, Vec::new(), |_| ranges, context)
    }

    /// The same for ranges that depend on `first` ranges, which are fetched before and included in the result.
    pub fn start_after(
        object: Object,
        first: Vec<Range<u64>>,
        then: impl FnOnce(Vec<(u64, Bytes)>) -> Vec<Range<u64>> + Send + 'static,
        context: &ReadContext,
    ) -> Self {
        let gap = if object.is_local() { 0 } else { GAP_BYTES };
        let source = Source::new(object);
        let pending = Pending::start(context, async move {
            let mut fetched = source.read_all(first).await?;
            let ranges = then(fetched.clone());
            fetched.extend(source.read_all(merged(ranges, gap)).await?);
            Ok(fetched)
        });
        Self { pending, permit: context.permit.clone() }
    }

    /// Waits for all ranges. Returns the start and the bytes of each.
    pub fn wait(self) -> Result<Vec<(u64, Bytes)>, Error> {
        let Self { pending, permit } = self;
        permit.released_while(|| pending.wait())
    }
}

#[cfg(test)]
mod tests;
