//! The memory rehearsal: checks before the first step that memory suffices, for an automatically chosen batch
//! size.
//!
//! The worker creates a ring, a model and a checkpoint copy as in training, fills the ring's slots with full
//! synthetic batches, takes a step and drops everything. Weights and the position in the data are unaffected. One of several
//! workers does so alone, with its part of a batch, and the copy only if it is the first: what it would receive from the others
//! is not part of it.
//! Meanwhile a resource limit refuses the process more private memory than the job's limit allows, so a wrong
//! plan fails now rather than hours later: the first allocation beyond the limit aborts the process, which
//! the daemon recognizes as out of memory. If the machine or its control group has less memory than the
//! limit, the OOM killer ends the process instead. The limit is lifted afterwards, because the memory of
//! evaluations grows with their rows, not with the batch size. On a GPU the same rehearsal tests the GPU's
//! memory. The host memory is then not limited, because NVIDIA's libraries do not report a refused
//! allocation.
//!
//! Synthetic rows have the maximum size: multi-valued features have as many values as allowed, and ids are
//! spread over their tables.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result};
use millstream_backend::Backend;
use millstream_backend::collective::{Alone, Communicator};
use millstream_batch::{BatchHeader, BatchMut, BatchSchema, Consumer, Producer, Stream};
use millstream_trainer::session::Session;
use millstream_trainer::spec::{ModelSpec, TrainingSpec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::protocol::RehearsalSpec;

/// The distance of neighbouring rows' ids, modulo the number of ids: 2^32 divided by the golden ratio, which
/// leaves no gaps.
const ID_STRIDE: u32 = 0x9e37_79b9;

/// Limits this process's private memory until dropped.
struct MemoryLimit {
    before: Rlimit,
}

/// Allocates what training allocates, within `spec`'s limit if it has one, and frees it: with `copies` copies
/// for checkpoints. The process aborts when that is too much.
///
/// # Errors
/// When the system cannot create a ring or threads, or the model is invalid.
pub(crate) fn run<B: Backend<Scalar = f32>>(
    backend: B,
    spec: RehearsalSpec,
    (model, schema, training): (&ModelSpec, &BatchSchema, &TrainingSpec),
    copies: usize,
) -> Result<()> {
    let part = &training.part_schema(schema);
    let (mut producer, hand_off) = Producer::create(part, spec.slots)?;
    let (theirs, ours) = UnixStream::pair()?;
    hand_off.send(&theirs)?;
    let mut ring = Consumer::receive(&ours, part)?;
    for _ in 0..spec.slots {
        let mut slot = producer.claim()?;
        fill(&mut slot.batch(), part);
        slot.publish();
    }
    let limit = spec.max_bytes.map(MemoryLimit::set).transpose()?;
    let leased = ring.next()?.context("a filled ring is empty")?;
    let alone = Communicator::new(Alone, Duration::from_secs(60), None)?;
    Session::new(backend, model, schema, training)?.dry_run(leased.batch(), alone, copies)?;
    drop(limit);
    Ok(())
}

impl MemoryLimit {
    fn set(most_bytes: u64) -> Result<Self> {
        let before = getrlimit(Resource::Data);
        let most = before.current.map_or(most_bytes, |current| current.min(most_bytes));
        let limit = Rlimit { current: Some(most), maximum: before.maximum };
        setrlimit(Resource::Data, limit).context("cannot limit this process's memory")?;
        Ok(Self { before })
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // Cannot fail: restores the previous limit.
        let _ = setrlimit(Resource::Data, self.before);
    }
}

/// Fills `batch` with synthetic rows.
fn fill(batch: &mut BatchMut<'_>, schema: &BatchSchema) {
    let rows = schema.rows;
    batch.set_header(&BatchHeader {
        stream: Stream::Train,
        epoch: 0,
        batch: 0,
        rows,
        global_rows: rows,
        first_row: 0,
        most_rows: rows,
        last: false,
    });
    batch.set_position(&vec![0; schema.position_bytes as usize]);
    let sections = batch.sections();
    for pair in sections.labels.chunks_mut(2) {
        pair.copy_from_slice(&[0.0, 1.0][..pair.len()]);
    }
    if let Some(weights) = sections.weights {
        weights.fill(1.0);
    }
    sections.dense.fill(0.5);
    for (ids, feature) in sections.ids.chunks_exact_mut(rows as usize).zip(&schema.ids) {
        spread(ids, feature.cardinality);
    }
    for ((offsets, values), feature) in sections.ragged.into_iter().zip(&schema.ragged) {
        for (offset, row) in offsets.iter_mut().zip(0..) {
            *offset = row * feature.maximum;
        }
        spread(values, feature.cardinality);
    }
    sections.ragged_weights.into_iter().flatten().for_each(|weights| weights.fill(1.0));
}

/// Writes distinct or nearly distinct ids below `cardinality`.
fn spread(ids: &mut [u32], cardinality: u32) {
    let mut place = 0_u32;
    for id in ids {
        *id = ((u64::from(place) * u64::from(cardinality)) >> 32) as u32;
        place = place.wrapping_add(ID_STRIDE);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;
    use std::sync::Arc;

    use millstream_batch::{BatchBuffer, IdFeature, RaggedFeature, SlotLayout};

    use super::*;

    fn schema(rows: u32) -> BatchSchema {
        BatchSchema {
            rows,
            labels: vec!["one".into(), "other".into()],
            weighted: true,
            dense: vec!["x".into(), "y".into()],
            ids: vec![
                IdFeature { name: "few".into(), cardinality: 3 },
                IdFeature { name: "many".into(), cardinality: u32::MAX },
            ],
            ragged: vec![RaggedFeature {
                name: "tags".into(),
                cardinality: 5_000,
                maximum: 4,
                weighted: true,
            }],
            columns: Vec::new(),
            position_bytes: 24,
        }
    }

    #[test]
    fn synthetic_rows_are_full_valid_and_spread() {
        let schema = schema(300);
        let mut buffer = BatchBuffer::new(Arc::new(SlotLayout::of(&schema).unwrap()));
        fill(&mut buffer.as_mut(), &schema);
        let batch = buffer.as_ref();
        assert_eq!((batch.rows(), batch.header().global_rows, batch.position().len()), (300, 300, 24));
        assert_eq!(batch.labels(1).iter().sum::<f32>(), 150.0);
        let distinct = |ids: &[u32]| ids.iter().collect::<BTreeSet<_>>().len();
        assert_eq!([distinct(batch.ids(0)), distinct(batch.ids(1))], [3, 300]);
        assert!(batch.ids(0).iter().all(|&id| id < 3));
        let (offsets, values) = batch.ragged(0);
        assert_eq!((offsets.len(), offsets[300], values.len()), (301, 1_200, 1_200));
        assert!(offsets.windows(2).all(|pair| pair[1] - pair[0] == 4));
        assert!(values.iter().all(|&id| id < 5_000) && distinct(values) > 1_000);
        assert_eq!(batch.ragged_weights(0).map(|weights| weights.iter().sum()), Some(1_200.0));
    }
}
