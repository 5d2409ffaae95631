//! A worker that scores: a checkpoint's model over all batches, in their order.

use std::path::Path;

use anyhow::{Result, bail};
use millstream_backend::Backend;
use millstream_batch::{BatchSchema, RingError};
use millstream_trainer::checkpoint::{CheckpointScope, CheckpointStore};
use millstream_trainer::session::Scorer;

use super::device;
use super::process::{Ended, Link};
use super::protocol::{FromWorker, Output, SCORES_PER_MESSAGE};

/// Scores with the checkpoint of a step of the job in a directory.
pub(super) fn run<B: Backend<Scalar = f32>>(
    backend: B,
    (directory, step, output): (&Path, u64, Output),
    schema: &BatchSchema,
    group: Option<&str>,
    link: &mut Link,
) -> Result<Ended> {
    let checkpoint = CheckpointStore::local(directory)?.load(step, CheckpointScope::Scoring)?;
    let mut scorer = Scorer::open(backend, schema, &checkpoint)?;
    drop(checkpoint);
    if let Some(feature) = group {
        scorer.group_by(feature)?;
    }
    let device = scorer.device();
    link.send(&FromWorker::Ready { restored: None, passed_over: Vec::new(), device })?;
    let (mut ring, heard) = link.receive_ring(schema)?;
    let _pinned = device::pinned(scorer.pin(&ring.mapping()), link)?;
    loop {
        if heard.wishes.stop().is_some() {
            return Ok(Ended::Stopped);
        }
        let leased = match ring.next() {
            Ok(Some(leased)) => leased,
            Ok(None) => break,
            Err(RingError::Interrupted) => continue,
            Err(RingError::PeerGone) => return Ok(Ended::InputLost),
            Err(error) => return Err(error.into()),
        };
        match output {
            Output::Metrics => scorer.evaluate(leased.batch())?,
            Output::Scores => {
                let rows = leased.batch().rows();
                send_scores(scorer.predict(leased.batch())?, rows, link)?;
            }
        }
    }
    if output == Output::Metrics {
        let metrics = scorer.finish_eval()?;
        link.send(&FromWorker::Evaluated { step, epoch: 0, ends_epoch: false, metrics })?;
    }
    Ok(Ended::Done)
}

/// Sends the scores of `rows` rows, label after label, or class after class.
fn send_scores(scores: &[f32], rows: usize, link: &mut Link) -> Result<()> {
    if let Some(score) = scores.iter().find(|score| !score.is_finite()) {
        bail!("the model scores a row {score}, which is not a number to go by");
    }
    let labels = scores.len() / rows.max(1);
    let most = (SCORES_PER_MESSAGE / labels.max(1)).max(1);
    for start in (0..rows).step_by(most) {
        let of_message = start..rows.min(start + most);
        let of_labels = scores.chunks_exact(rows).flat_map(|of_label| &of_label[of_message.clone()]);
        link.send(&FromWorker::Scores { scores: of_labels.copied().collect() })?;
    }
    Ok(())
}
