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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use millstream_batch::{BatchHeader, Producer};

    use super::*;

    fn publish(producer: &mut Producer) {
        let mut slot = producer.claim().unwrap();
        slot.batch().set_header(&BatchHeader::train(1));
        slot.publish();
    }

    #[test]
    fn a_wait_ends_once_all_rings_have_a_batch() {
        const LIMIT: Duration = Duration::from_millis(20);
        let schema = BatchSchema {
            rows: 1,
            labels: Vec::new(),
            weighted: false,
            dense: vec!["x".to_owned()],
            ids: Vec::new(),
            ragged: Vec::new(),
            columns: Vec::new(),
            position_bytes: 0,
        };
        for late in [0, 1] {
            let (mut producers, consumers): (Vec<_>, Vec<_>) = (0..2)
                .map(|_| Producer::create(&schema, 1).unwrap())
                .map(|(producer, handoff)| (producer, handoff.open(&schema).unwrap()))
                .unzip();
            let mut rings = Rings(consumers);
            publish(&mut producers[1 - late]);
            let began = Instant::now();
            assert!(!rings.wait(LIMIT).unwrap() && began.elapsed() >= LIMIT);
            publish(&mut producers[late]);
            assert!(rings.wait(LIMIT).unwrap() && rings.has_next());
            assert_eq!(rings.next().unwrap().unwrap().batches().len(), 2);
            rings.0[late].interrupter().interrupt();
            publish(&mut producers[1 - late]);
            assert!(matches!(rings.wait(LIMIT), Err(RingError::Interrupted)));
        }
    }
}
