//! The rings from which a worker takes its parts of each batch.
//!
//! Usually there is one. If batches are cut into more parts than there are workers, each worker has several rings, and takes
//! a slot of each for a step.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use millstream_batch::{BatchRef, BatchSchema, Consumer, Interrupter, Lease, RingError, RingMapping};

/// The rings of a worker, in the order of its parts.
pub(crate) struct Rings(Vec<Consumer>);

/// A worker's parts of a batch, in order.
pub(crate) struct Parts(Vec<Lease>);

impl Rings {
    /// Receives `count` rings of slots of `schema`.
    ///
    /// # Errors
    /// When the daemon does not send them.
    pub(crate) fn receive(socket: &UnixStream, schema: &BatchSchema, count: u32) -> Result<Self, RingError> {
        (0..count).map(|_| Consumer::receive(socket, schema)).collect::<Result<_, _>>().map(Self)
    }

    /// What interrupts a wait for a slot.
    pub(crate) fn interrupters(&self) -> impl Iterator<Item = Interrupter> + '_ {
        self.0.iter().map(Consumer::interrupter)
    }

    /// The memory of each ring.
    pub(crate) fn mappings(&self) -> impl Iterator<Item = RingMapping> + '_ {
        self.0.iter().map(Consumer::mapping)
    }

    /// Whether the next batch is there.
    pub(crate) fn has_next(&mut self) -> bool {
        self.0.iter_mut().all(|ring| ring.has_next())
    }

    /// Waits at most `limit` for the next batch or the end; returns whether [`Rings::next`] need not wait.
    ///
    /// # Errors
    /// As of [`Consumer::wait`].
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<bool, RingError> {
        let deadline = Instant::now() + limit;
        for ring in &mut self.0 {
            if !ring.wait(deadline.saturating_duration_since(Instant::now()))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits for the next batch; `None` at the end. All parts of a batch are published together, so all rings end together.
    ///
    /// # Errors
    /// As of [`Consumer::next`].
    pub(crate) fn next(&mut self) -> Result<Option<Parts>, RingError> {
        let parts: Result<Option<Vec<_>>, _> = self.0.iter_mut().map(Consumer::next).collect();
        Ok(parts?.map(Parts))
    }
}

impl Parts {
    pub(crate) fn batches(&self) -> Vec<BatchRef<'_>> {
        self.0.iter().map(Lease::batch).collect()
    }
}
