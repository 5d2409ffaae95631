//! A worker that scores: runs a checkpoint's model over all batches in order.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use millstream_backend::Backend;
use millstream_batch::{BatchSchema, RingError};
use millstream_trace::Recorder;
use millstream_trainer::checkpoint::{CheckpointScope, CheckpointStore};
use millstream_trainer::session::Scorer;

use crate::device::{self, DeviceTask};
use crate::link::Link;
use crate::protocol::{FromWorker, SCORES_PER_MESSAGE, ScoreOutput, ScoreRole};

/// Scores all batches with one checkpoint.
pub(crate) struct ScoreTask {
    pub(crate) role: ScoreRole,
    pub(crate) schema: BatchSchema,
}

impl DeviceTask for ScoreTask {
    fn run<B: Backend<Scalar = f32>>(
        self,
        open: impl Fn(Option<u32>, Arc<Recorder>) -> Result<B>,
        link: &mut Link,
    ) -> Result<FromWorker> {
        let Self { role: ScoreRole { directory, step, output, device: _, threads, group }, schema } = self;
        let checkpoint = CheckpointStore::local(&directory)?.load(step, CheckpointScope::Scoring)?;
        let mut scorer = Scorer::open(open(threads, Arc::default())?, &schema, &checkpoint)?;
        drop(checkpoint);
        if let Some(groups) = &group {
            scorer.group_by(groups)?;
        }
        let device = scorer.device();
        link.send(&FromWorker::Ready { restored: None, passed_over: Vec::new(), device })?;
        let began = Instant::now();
        let (mut rings, receiver, _) = link.receive_rings(&schema, 1)?;
        let _pinned = device::pinned(rings.mappings().map(|pages| scorer.pin(&pages)).collect(), link)?;
        loop {
            if receiver.commands.stop().is_some() {
                return Ok(FromWorker::Stopped);
            }
            let parts = match rings.next() {
                Ok(Some(parts)) => parts,
                Ok(None) => break,
                Err(RingError::Interrupted) => continue,
                Err(RingError::PeerGone) => return Ok(FromWorker::InputLost),
                Err(error) => return Err(error.into()),
            };
            for batch in parts.batches() {
                match output {
                    ScoreOutput::Metrics => scorer.evaluate(batch)?,
                    ScoreOutput::Scores => send_scores(scorer.predict(batch)?, batch.rows(), link)?,
                }
            }
        }
        if output == ScoreOutput::Metrics {
            let metrics = scorer.finish_eval()?;
            let seconds = began.elapsed().as_secs_f64();
            link.send(&FromWorker::Evaluated { step, epoch: 0, ends_epoch: false, metrics, seconds })?;
        }
        Ok(FromWorker::Done { step: 0, stopped_early: None })
    }
}

/// Sends the scores of `rows` rows, column-major: label by label, or class by class.
fn send_scores(scores: &[f32], rows: usize, link: &mut Link) -> Result<()> {
    if let Some(score) = scores.iter().find(|score| !score.is_finite()) {
        bail!("the model predicts {score} for a row; predictions must be finite");
    }
    let labels = scores.len() / rows.max(1);
    let rows_per_message = (SCORES_PER_MESSAGE / labels.max(1)).max(1);
    for start in (0..rows).step_by(rows_per_message) {
        let range = start..rows.min(start + rows_per_message);
        let columns = scores.chunks_exact(rows).flat_map(|column| &column[range.clone()]);
        link.send(&FromWorker::Scores { scores: columns.copied().collect() })?;
    }
    Ok(())
}
