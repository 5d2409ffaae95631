//! Feeding the workers of a job: ingest that fills their rings. Also creates the ingest source of a job's data section.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use millstream_batch::{BatchSchema, Count, HandOff, RingError};
use millstream_io::storage::{Listing, Object, Stores};
use millstream_pipeline::Error;
use millstream_pipeline::cache::{Cache, CachedSource, Specification};
use millstream_pipeline::dataset::{Dataset, Listed, Pinned};
use millstream_pipeline::ingest::{self, ChunkSource, IngestControl, IngestHandle, IngestPlan, Peers};
use millstream_pipeline::spec::DataSpec;
use tokio::runtime::Handle;

use crate::access::Requester;
use crate::runs::RunDirectory;
use crate::sources::Sources;
use crate::{datasets, runs};

/// A running ingest, cancelled on drop.
pub(crate) struct Feed {
    ingest: IngestHandle,
}

impl Feed {
    /// Creates the ring of each rank of the plan and starts to fill them, from `position` or the start. Returns the
    /// hand-offs in the order of the ranks.
    ///
    /// # Errors
    /// When the position belongs to another job, or the system refuses memory or threads.
    pub(crate) fn start(plan: &IngestPlan, position: Option<&[u8]>) -> Result<(Self, Vec<HandOff>)> {
        Self::start_among(None, plan, position)
    }

    /// As [`Feed::start`], together with the ingest of other hosts, if there are any.
    ///
    /// # Errors
    /// As for [`Feed::start`].
    pub(crate) fn start_among(
        peers: Option<Arc<dyn Peers>>,
        plan: &IngestPlan,
        position: Option<&[u8]>,
    ) -> Result<(Self, Vec<HandOff>)> {
        let position = match position {
            Some(bytes) => plan.resume(bytes).context("resuming from a checkpoint")?,
            None => plan.start(),
        };
        let (rings, hand_offs) = plan.create_rings()?;
        let ingest = ingest::start_among(peers, plan.clone(), position, rings)?;
        Ok((Self { ingest }, hand_offs))
    }

    /// As [`Feed::start`], for the only worker of a plan with one rank.
    ///
    /// # Errors
    /// As for [`Feed::start`]; also when the plan has several ranks.
    pub(crate) fn start_single(plan: &IngestPlan, position: Option<&[u8]>) -> Result<(Self, HandOff)> {
        let (feed, rings) = Self::start(plan, position)?;
        let [ring] = <[HandOff; 1]>::try_from(rings)
            .map_err(|rings| anyhow!("the plan has {} ranks; expected one", rings.len()))?;
        Ok((feed, ring))
    }

    /// A handle for monitoring the ingest.
    pub(crate) fn control(&self) -> IngestControl {
        self.ingest.control()
    }

    /// Records skipped since the start of the job.
    pub(crate) fn skipped(&self) -> u64 {
        self.ingest.stats().skipped_records
    }

    /// Rows read by this ingest that were truncated to a feature's `maximum`.
    pub(crate) fn truncated(&self) -> u64 {
        self.ingest.stats().truncated_rows
    }

    /// Stops ingest and returns its result.
    ///
    /// # Errors
    /// The error of ingest; `Cancelled` if it was still running.
    pub(crate) fn stop(self) -> Result<(), Error> {
        self.ingest.cancel();
        self.ingest.join().map(drop)
    }
}

/// Whether ingest ended only because its worker did, or because it was cancelled.
pub(crate) fn is_echo(error: &Error) -> bool {
    matches!(error, Error::Cancelled | Error::Ring(RingError::PeerGone | RingError::Interrupted))
}

/// Opens the files that `patterns` of a job's data section match. If a listing exists under the directory and name of
/// `frozen`, opens the versions in it; otherwise writes the listing there. The dataset is filtered only where the patterns name
/// splits of registered datasets.
///
/// # Errors
/// When a pattern matches nothing, or files of another format.
pub(crate) fn open(
    patterns: &[String],
    data: &DataSpec,
    (stores, requester): (&Stores, &Requester),
    frozen: Option<(&RunDirectory, &str)>,
    runtime: &Handle,
) -> Result<Dataset> {
    open_listed(list(patterns, data, (stores, requester), runtime)?, data, frozen, runtime)
}

/// As [`open`], with the files of `data.train` and their weights.
///
/// # Errors
/// As for [`open`].
pub(crate) fn open_sources(
    data: &DataSpec,
    (stores, requester): (&Stores, &Requester),
    frozen: Option<(&RunDirectory, &str)>,
    runtime: &Handle,
) -> Result<(Dataset, Sources)> {
    let Pinned { patterns, rows } = pinned(&data.train, (stores, requester), runtime)?;
    let matches = runtime.block_on(stores.list_matches(&patterns, &data.base))?;
    requester.check_data(matches.iter().map(|(object, _)| &**object.path()), &data.base)?;
    let sources = Sources::of(data, &matches);
    let mut objects: Vec<Object> = matches.into_iter().map(|(object, _)| object).collect();
    objects.dedup_by_key(|object| object.address());
    Ok((open_listed(Listed { objects, rows }, data, frozen, runtime)?, sources))
}

fn open_listed(
    Listed { mut objects, rows }: Listed,
    data: &DataSpec,
    frozen: Option<(&RunDirectory, &str)>,
    runtime: &Handle,
) -> Result<Dataset> {
    if let Some((directory, name)) = frozen {
        objects = freeze(directory, name, objects)?;
    }
    Ok(Listed { objects, rows }.open(data, runtime)?)
}

/// Resolves versions of datasets and the names of splits, which `requester` must be allowed to read.
fn pinned(
    patterns: &[String],
    (stores, requester): (&Stores, &Requester),
    runtime: &Handle,
) -> Result<Pinned> {
    Pinned::of(patterns, stores, runtime, |patterns| datasets::check_read(patterns, stores, requester))
}

/// The files that `patterns` match, which `requester` may read, and which of their rows.
///
/// # Errors
/// When a pattern matches nothing, or files that the requester may not read.
pub(crate) fn list(
    patterns: &[String],
    data: &DataSpec,
    (stores, requester): (&Stores, &Requester),
    runtime: &Handle,
) -> Result<Listed> {
    let listed = pinned(patterns, (stores, requester), runtime)?.list(stores, &data.base, runtime)?;
    requester.check_data(listed.objects.iter().map(|object| &**object.path()), &data.base)?;
    Ok(listed)
}

fn freeze(directory: &RunDirectory, name: &str, objects: Vec<Object>) -> Result<Vec<Object>> {
    let here = || directory.file(name);
    let Some(text) = runs::get_text(directory, name)? else {
        runs::put(directory, name, Listing::of(&objects).to_text().as_bytes())?;
        return Ok(objects);
    };
    let kept = Listing::parse(&text).with_context(here)?.keep(objects)?;
    if kept.added > 0 {
        tracing::warn!(
            listing = here(),
            "{} added after the job started; the job does not read what was added",
            Count(kept.added as u64, "file")
        );
    }
    Ok(kept.objects)
}

/// Puts the job's cache in front of the source, for rows of `schema` that `specification` identifies.
///
/// # Errors
/// See [`CachedSource::new`].
pub(crate) fn cached(
    source: Arc<dyn ChunkSource>,
    cache: &Arc<Cache>,
    dataset: &Dataset,
    schema: &BatchSchema,
    specification: &Specification,
    data: &DataSpec,
) -> Result<Arc<dyn ChunkSource>, Error> {
    let cache = Arc::clone(cache);
    let source = CachedSource::new(source, cache, dataset, schema, specification, data.on_bad_record)?;
    Ok(Arc::new(source))
}
