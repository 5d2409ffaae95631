//! Feeding a worker: the ring's producing end, and the ingest that fills it.
//!
//! Also where a job's data section becomes what ingest reads.

use std::sync::Arc;

use anyhow::{Context, Result};
use millstream_batch::{BatchSchema, HandOff, Producer, RingError};
use millstream_pipeline::Error;
use millstream_pipeline::dataset::Dataset;
use millstream_pipeline::ingest::{
    self, ChunkSource, DatasetSource, IngestControl, IngestHandle, IngestPlan,
};
use millstream_pipeline::order::Position;
use millstream_pipeline::spec::DataSpec;
use millstream_pipeline::transform::Transform;
use tokio::runtime::Handle;

/// An ingest at work. Dropped, it is called off.
pub(crate) struct Feed {
    ingest: IngestHandle,
}

impl Feed {
    /// Makes a ring and begins to fill it, from `position` or the beginning.
    ///
    /// # Errors
    /// When the position is not one of this job's, or the system refuses memory or threads.
    pub(crate) fn start(plan: &IngestPlan, position: Option<&[u8]>) -> Result<(Self, HandOff)> {
        let position = match position {
            Some(bytes) => plan.resume(bytes).context("going on from a checkpoint")?,
            None => plan.start(),
        };
        let (ring, hand_off) = Producer::create(plan.schema(), plan.slots())?;
        let ingest = ingest::start(plan.clone(), position, ring)?;
        Ok((Self { ingest }, hand_off))
    }

    /// A handle to watch it with.
    pub(crate) fn control(&self) -> IngestControl {
        self.ingest.control()
    }

    /// Records left out since the feed began, those before a resume included.
    pub(crate) fn skipped(&self) -> u64 {
        self.ingest.stats().skipped_records
    }

    /// Calls ingest off, if it has not ended, and says how it ended.
    ///
    /// # Errors
    /// What it failed with; `Cancelled` when it was called off.
    pub(crate) fn stop(self) -> Result<(), Error> {
        self.ingest.cancel();
        self.ingest.join().map(drop)
    }
}

/// Whether ingest ended only because its worker did, or because it was told to.
pub(crate) fn is_echo(error: &Error) -> bool {
    matches!(error, Error::Cancelled | Error::Ring(RingError::PeerGone | RingError::Interrupted))
}

/// Lists what `patterns` of a job's data section name.
///
/// # Errors
/// When they name nothing, or not what they should.
pub(crate) fn open(patterns: &[String], data: &DataSpec, runtime: &Handle) -> Result<Arc<Dataset>, Error> {
    Ok(Arc::new(runtime.block_on(Dataset::open(patterns, &data.base, data.format))?))
}

/// A dataset as `transform` sees it.
///
/// # Errors
/// When it has not the columns that the transform needs.
pub(crate) fn source(
    dataset: Arc<Dataset>,
    transform: &Arc<Transform>,
    data: &DataSpec,
    runtime: &Handle,
) -> Result<Arc<dyn ChunkSource>, Error> {
    dataset.check(transform.projection(), runtime)?;
    let (transform, runtime) = (Arc::clone(transform), runtime.clone());
    Ok(Arc::new(DatasetSource::new(dataset, transform, data.on_bad_record, runtime)))
}

/// What a slot holds for this transform and data section.
pub(crate) fn schema(transform: &Transform, data: &DataSpec) -> BatchSchema {
    let position_bytes = Position::encoded_bytes(data.lanes);
    transform.schema(data.batch_size, u32::try_from(position_bytes).unwrap_or(u32::MAX))
}
