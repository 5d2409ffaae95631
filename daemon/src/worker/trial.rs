//! Trying whether memory suffices, before the first step of a job whose batch size was found and not given.
//!
//! The worker makes a ring, a model and a checkpoint's copy as it will have them, fills the ring's slots with full
//! batches of made-up rows, takes a step on one and drops everything: neither weights nor the place in the data know of
//! it. While it does, the system refuses it more memory of its own than the limit leaves it, so that a plan that is
//! wrong shows here and not after hours: the process dies of the first allocation that is too much, which the daemon
//! takes for what it is. Where the machine, or a control group, has less than the limit, the kernel kills it as well.
//! From then on nothing is refused: what evaluations gather grows with their rows, and is no matter of batches. On a GPU
//! the same is done, so that its memory is tried; what NVIDIA's libraries take of the host is not limited, since they
//! would not say that it was.
//!
//! Made-up rows take as much as any can: multi-valued features have all the values that they may, and ids are spread
//! over their tables.

use std::os::unix::net::UnixStream;

use anyhow::{Context, Result};
use millstream_backend::Backend;
use millstream_batch::{BatchHeader, BatchMut, BatchSchema, Consumer, Producer, Stream};
use millstream_trainer::session::Session;
use millstream_trainer::spec::{ModelSpec, TrainingSpec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::auto_batch::TrialSpec;

/// Neighbouring rows' ids lie so far apart, modulo their number: 2^32 over the golden ratio, which leaves no gaps.
const SPREAD: u32 = 0x9e37_79b9;

/// How much memory of its own this process may have, until dropped.
struct Limited {
    before: Rlimit,
}

/// Takes what training takes, of `spec`'s limit if it has one, and gives it back. Dies where that is too much.
///
/// # Errors
/// When the system refuses a ring, or threads; when the model cannot be.
pub(super) fn run<B: Backend<Scalar = f32>>(
    backend: B,
    spec: TrialSpec,
    model: &ModelSpec,
    schema: &BatchSchema,
    training: &TrainingSpec,
) -> Result<()> {
    let (mut producer, hand_off) = Producer::create(schema, spec.slots)?;
    let (theirs, ours) = UnixStream::pair()?;
    hand_off.send(&theirs)?;
    let mut ring = Consumer::receive(&ours, schema)?;
    for _ in 0..spec.slots {
        let mut slot = producer.claim()?;
        fill(&mut slot.batch(), schema);
        slot.publish();
    }
    let limited = spec.most_bytes.map(Limited::to).transpose()?;
    let leased = ring.next()?.context("a ring that was filled is empty")?;
    Session::new(backend, model, schema, training)?.dry_run(leased.batch())?;
    drop(limited);
    Ok(())
}

impl Limited {
    fn to(most_bytes: u64) -> Result<Self> {
        let before = getrlimit(Resource::Data);
        let most = before.current.map_or(most_bytes, |current| current.min(most_bytes));
        let limit = Rlimit { current: Some(most), maximum: before.maximum };
        setrlimit(Resource::Data, limit).context("the system does not limit this process's memory")?;
        Ok(Self { before })
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // No more than what it was before.
        let _ = setrlimit(Resource::Data, self.before);
    }
}

/// Makes up a full batch.
fn fill(batch: &mut BatchMut<'_>, schema: &BatchSchema) {
    let rows = schema.rows;
    batch.set_header(&BatchHeader {
        stream: Stream::Train,
        epoch: 0,
        batch: 0,
        rows,
        global_rows: rows,
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

/// Ids below `cardinality`, few of them the same.
fn spread(ids: &mut [u32], cardinality: u32) {
    let mut place = 0_u32;
    for id in ids {
        *id = ((u64::from(place) * u64::from(cardinality)) >> 32) as u32;
        place = place.wrapping_add(SPREAD);
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
            position_bytes: 24,
        }
    }

    #[test]
    fn made_up_rows_are_full_sound_and_spread() {
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
