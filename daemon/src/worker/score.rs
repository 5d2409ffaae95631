//! A worker that scores: a checkpoint's model over all batches, in their order.

use std::path::Path;

use anyhow::{Result, bail};
use millstream_backend::Cpu;
use millstream_batch::{BatchSchema, RingError};
use millstream_trainer::checkpoint::{CheckpointStore, Extent};
use millstream_trainer::session::Scorer;

use super::process::{Ended, Link};
use super::protocol::{FromWorker, Output, SCORES_PER_MESSAGE};

/// Scores with the checkpoint of `step` of the job in `directory`.
pub(super) fn run(
    directory: &Path,
    step: u64,
    output: Output,
    schema: &BatchSchema,
    threads: Option<u32>,
    group: Option<&str>,
    link: &mut Link,
) -> Result<Ended> {
    let checkpoint = CheckpointStore::local(directory)?.load(step, Extent::Scoring)?;
    let mut scorer = Scorer::open(Cpu::new(threads)?, schema, &checkpoint)?;
    drop(checkpoint);
    if let Some(feature) = group {
        scorer.group_by(feature)?;
    }
    link.send(&FromWorker::Ready { restored: None, passed_over: Vec::new() })?;
    let (mut ring, heard) = link.receive_ring(schema)?;
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
            Output::Scores => send_scores(scorer.predict(leased.batch())?, link)?,
        }
    }
    if output == Output::Metrics {
        let metrics = scorer.end_eval()?;
        link.send(&FromWorker::Evaluated { step, epoch: 0, ends_epoch: false, metrics })?;
    }
    Ok(Ended::Done)
}

fn send_scores(scores: &[f32], link: &mut Link) -> Result<()> {
    if let Some(score) = scores.iter().find(|score| !score.is_finite()) {
        bail!("the model scores a row {score}, which is no score");
    }
    for scores in scores.chunks(SCORES_PER_MESSAGE) {
        link.send(&FromWorker::Scores { scores: scores.to_vec() })?;
    }
    Ok(())
}
