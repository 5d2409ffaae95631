//! Measures ingest alone: a feed into rings whose consumers only drain them.

use std::time::Instant;

use millstream_batch::{Consumer, RingError};
use serde::Serialize;

use super::explain::Explanation;
use super::plan::IngestPlan;
use super::stats::{IngestStats, Stages};
use crate::error::Error;

/// The result of draining a feed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IngestMeasurement {
    /// Rows delivered.
    pub rows: u64,
    /// Bytes read from storage.
    pub bytes: u64,
    /// Time from the start of reading to the end of the feed.
    pub seconds: f64,
    /// Rows delivered per second.
    pub rows_per_second: f64,
    /// Time from the start of reading to the first batch.
    pub first_batch_seconds: f64,
    /// The planned maximum of memory, in bytes.
    pub planned_bytes: u64,
    /// The time spent in each stage.
    pub stages: Stages,
    /// The bottleneck.
    pub explanation: Explanation,
}

/// Runs a feed to its end at full speed.
///
/// # Errors
/// The error that ended the feed early.
pub fn measure(plan: IngestPlan) -> Result<IngestMeasurement, Error> {
    let (rings, hand_offs) = plan.create_rings()?;
    let consumers: Result<Vec<_>, _> =
        hand_offs.into_iter().map(|hand_off| hand_off.open(plan.ring_schema())).collect();
    let mut consumers = consumers?;
    let (begin, planned_bytes) = (plan.start(), plan.memory().total_bytes());
    let start = Instant::now();
    let ingest = super::start(plan, begin, rings)?;
    let control = ingest.control();
    let mut first_batch_seconds = None;
    while next_batch(&mut consumers)? {
        first_batch_seconds.get_or_insert_with(|| start.elapsed().as_secs_f64());
    }
    let seconds = start.elapsed().as_secs_f64();
    let explanation = control.explain();
    let IngestStats { rows, bytes, stages, .. } = ingest.join()?.stats;
    Ok(IngestMeasurement {
        rows,
        bytes,
        seconds,
        rows_per_second: rows as f64 / seconds,
        first_batch_seconds: first_batch_seconds.unwrap_or(seconds),
        planned_bytes,
        stages,
        explanation,
    })
}

/// Takes the next part from each ring; `false` at the end of the feed. If the feed failed, joining its handle returns
/// the reason.
fn next_batch(consumers: &mut [Consumer]) -> Result<bool, RingError> {
    for consumer in consumers {
        match consumer.next() {
            Ok(Some(_)) => {}
            Ok(None) | Err(RingError::PeerGone) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
