//! Fetching ahead of decoding: the only place where ingest waits for storage.
//!
//! A task on the runtime reads an object in ranges, a few at a time, and hands them over in order through
//! a bounded channel; the decoding thread takes them as a [`BufRead`]. Dropping the receiving end ends the
//! task.

use std::io::{self, BufRead, Read};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream::FuturesOrdered;
use futures::{StreamExt, TryStreamExt};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::error::Error;
use crate::ingest::{Limits, gate};
use crate::storage::Object;

/// Ranges in flight at once.
const IN_FLIGHT: usize = 2;

/// An object's bytes in order, fetched ahead. Reading blocks, so it must not be done in async code.
pub(crate) struct FetchedBytes {
    ranges: mpsc::Receiver<Result<Bytes, Error>>,
    current: Bytes,
    remaining: u64,
    waited: Duration,
}

impl FetchedBytes {
    /// Starts to fetch all of `object`.
    pub(crate) fn start(object: Object, limits: &Arc<Limits>, runtime: &Handle) -> Self {
        // One range waits in the channel; another in the sender's hand, in the place of one in flight.
        let (sender, ranges) = mpsc::channel(1);
        let remaining = object.size();
        let limits = Arc::clone(limits);
        runtime.spawn(async move {
            let (mut next, mut in_flight) = (0, FuturesOrdered::new());
            loop {
                let ranges = limits.ranges();
                while next < object.size() && in_flight.len() < ranges.in_flight as usize {
                    let range = next..(next + ranges.bytes).min(object.size());
                    next = range.end;
                    let (object, asked_for) = (&object, limits.asked_for(range.end - range.start));
                    in_flight.push_back(async move {
                        let bytes = object.read(range).await;
                        drop(asked_for);
                        bytes
                    });
                }
                let Some(bytes) = in_flight.next().await else { return };
                let failed = bytes.is_err();
                if sender.send(bytes).await.is_err() || failed {
                    return;
                }
            }
        });
        Self { ranges, current: Bytes::new(), remaining, waited: Duration::ZERO }
    }

    /// Bytes not yet taken from the channel.
    pub(crate) fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Time spent waiting for bytes.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }
}

impl BufRead for FetchedBytes {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.current.is_empty() && self.remaining > 0 {
            let start = Instant::now();
            // A channel that closes early means that the runtime has shut down.
            let bytes = match self.ranges.try_recv() {
                Ok(bytes) => bytes,
                Err(_) => gate::waiting(|| self.ranges.blocking_recv()).unwrap_or(Err(Error::Cancelled)),
            };
            self.waited += start.elapsed();
            let bytes = bytes.map_err(io::Error::other)?;
            self.remaining -= bytes.len() as u64;
            self.current = bytes;
        }
        Ok(&self.current)
    }

    fn consume(&mut self, amount: usize) {
        let _ = self.current.split_to(amount);
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
pub(crate) struct FetchedRanges(oneshot::Receiver<Result<Vec<(u64, Bytes)>, Error>>);

impl FetchedRanges {
    /// Starts to fetch `ranges`, which are sorted and do not overlap.
    pub(crate) fn start(object: Object, ranges: Vec<Range<u64>>, runtime: &Handle) -> Self {
        let (sender, receiver) = oneshot::channel();
        runtime.spawn(async move {
            let fetched = futures::stream::iter(ranges)
                .map(|range| {
                    let start = range.start;
                    let read = object.read(range);
                    async move { read.await.map(|bytes| (start, bytes)) }
                })
                .buffered(IN_FLIGHT)
                .try_collect()
                .await;
            // Nobody waits any more: the reader was dropped.
            let _ = sender.send(fetched);
        });
        Self(receiver)
    }

    /// Waits for all of them: where each starts, and its bytes.
    pub(crate) fn wait(self) -> Result<Vec<(u64, Bytes)>, Error> {
        gate::waiting(|| self.0.blocking_recv()).unwrap_or(Err(Error::Cancelled))
    }
}

/// Our own error out of an [`io::Error`] that [`FetchedBytes`] made, or the error back.
pub(crate) fn storage_error(error: io::Error) -> Result<Error, io::Error> {
    error.downcast::<Error>()
}
