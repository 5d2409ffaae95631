//! `batch_size = "auto"`: the largest batch whose plan fits a memory limit.
//!
//! Sizes are powers of two, planned in ascending order; the last one that fits the limit is chosen. A plan counts the
//! whole job: the parameters, optimizer state, activations, workspaces and process overhead of all workers, the copies for
//! checkpoints, and the minimum that ingest needs. Read-ahead uses the rest of the limit.
//!
//! A GPU has its own memory and limit ([`gpu`]), which cover parameters, optimizer state, activations and workspaces;
//! the rest is on the host.
//!
//! The order of rows, positions and checkpoints depend on the size. So it is decided once, when the job is prepared,
//! and recorded in the run directory with its limit: later attempts use the same size, whatever memory they have. On
//! several hosts, the daemon that the job is submitted to decides, for the fewest workers with which the job trains. A plan may be
//! wrong, so each worker of a job without a checkpoint first rehearses its allocations ([`RehearsalSpec`]). If one runs out
//! of memory before the first checkpoint, the size is [halved](halve) and the job restarts; a job of several hosts fails.
//! After the first checkpoint the size is fixed.

pub mod gpu;

use std::fmt::{self, Display};

use anyhow::{Context, Result, bail};
use millstream_batch::Size;
use millstream_trainer::spec::BatchScaling;
use serde::{Deserialize, Serialize};

use millstream_job::{AutoBatchSpec, Job};
use millstream_worker::protocol::RehearsalSpec;

use crate::memory::available;
use crate::runs::{self, RunDirectory};

/// The chosen size, as recorded in a run directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Decided {
    /// Rows of a batch.
    pub(crate) rows: u32,
    /// The host memory limit for which it was chosen.
    pub(crate) limit_bytes: u64,
    /// The GPU memory limit for which it was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gpu_limit_bytes: Option<u64>,
}

/// A memory limit of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The limit.
    pub bytes: u64,
    /// Its origin.
    pub source: LimitSource,
}

/// The origin of a memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitSource {
    /// The job's `data.auto_batch.memory`.
    Job,
    /// The host's available memory.
    Host,
    /// The job's `data.auto_batch.gpu_memory`.
    JobOfGpu,
    /// The GPU's memory.
    Gpu,
    /// The run directory, which records an earlier choice.
    Run,
}

/// A chosen batch size.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Rows of a batch.
    pub rows: u32,
    /// The job's memory limit.
    pub limit: Limit,
    /// The memory that the job needs at least with this size.
    pub needed_bytes: u64,
    /// The part of it that is the process overhead of all workers.
    pub process_bytes: u64,
    /// The part of the limit that ingest leaves to the workers; `None` if libraries of others allocate from it.
    pub workers_bytes: Option<u64>,
    /// Number of workers of this host.
    pub workers: u32,
    /// The copies for checkpoints, which the first of them has.
    pub copy_bytes: u64,
    /// The same for the GPU, if the job uses one.
    pub gpu: Option<GpuChoice>,
    /// Why twice the rows do not fit; `None` if that was not tried.
    pub why_not_more: Option<String>,
}

/// The GPU memory of a job with a chosen batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuChoice {
    /// The limit.
    pub limit: Limit,
    /// The memory that it needs.
    pub needed_bytes: u64,
}

impl Limit {
    /// The current host memory limit for an automatic batch size.
    ///
    /// # Errors
    /// When neither the job nor the host defines it.
    pub(crate) fn of(spec: &AutoBatchSpec) -> Result<Self> {
        if let Some(bytes) = spec.memory_bytes {
            return Ok(Self { bytes, source: LimitSource::Job });
        }
        let available = available::bytes().context(
            "`data.batch_size = \"auto\"`: the available memory of this host is unknown: set \
             `data.auto_batch.memory`",
        )?;
        Ok(Self { bytes: available / 4 * 3, source: LimitSource::Host })
    }
}

impl Display for LimitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Job => "data.auto_batch.memory",
            Self::Host => "three quarters of the host's available memory",
            Self::JobOfGpu => "data.auto_batch.gpu_memory",
            Self::Gpu => "the GPU's memory, less a reserve for the driver and other programs",
            Self::Run => "the limit of the recorded choice",
        })
    }
}

impl Choice {
    /// The memory rehearsal of worker `number` of this host, of a new job, whose ring has `slots` slots.
    pub(crate) fn rehearsal(&self, slots: u32, number: u32) -> RehearsalSpec {
        let of_each = |bytes: u64| bytes.saturating_sub(self.copy_bytes) / u64::from(self.workers.max(1));
        let copy_bytes = if number == 0 { self.copy_bytes } else { 0 };
        RehearsalSpec { slots, max_bytes: self.workers_bytes.map(|bytes| of_each(bytes) + copy_bytes) }
    }

    /// The part that the run directory records.
    pub(crate) fn decided(&self) -> Decided {
        let gpu_limit_bytes = self.gpu.map(|gpu| gpu.limit.bytes);
        Decided { rows: self.rows, limit_bytes: self.limit.bytes, gpu_limit_bytes }
    }
}

impl Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, limit: Limit { bytes, source }, needed_bytes, why_not_more, gpu, .. } = self;
        let (needed, limit) = (Size(*needed_bytes), Size(*bytes));
        write!(f, "batches of {rows} rows, which need {needed} of {limit} ({source})")?;
        if let Some(GpuChoice { limit: Limit { bytes, source }, needed_bytes }) = gpu {
            write!(f, ", and on the GPU {} of {} ({source})", Size(*needed_bytes), Size(*bytes))?;
        }
        why_not_more.as_ref().map_or(Ok(()), |why| write!(f, "; not larger because {why}"))
    }
}

/// Finds the largest power of two, from `least` up to `most`, for which `plan` succeeds. Returns it with its plan, and the
/// error for twice the rows unless it is `most`.
///
/// # Errors
/// The error for the smallest size.
pub(crate) fn largest<T>(
    least: u32,
    most: u32,
    mut plan: impl FnMut(u32) -> Result<T>,
) -> Result<(u32, T, Option<anyhow::Error>)> {
    let mut rows = least;
    let mut fits = plan(rows).with_context(|| {
        format!("`data.batch_size = \"auto\"`: batches of {least} rows, the minimum, do not fit")
    })?;
    while rows <= most / 2 {
        match plan(2 * rows) {
            Ok(plan) => (rows, fits) = (2 * rows, plan),
            Err(error) => return Ok((rows, fits, Some(error))),
        }
    }
    Ok((rows, fits, None))
}

/// The size recorded in the run directory `directory`, if any.
///
/// # Errors
/// When the record cannot be read.
pub(crate) fn decided(directory: &RunDirectory) -> Result<Option<Decided>> {
    let here = || directory.file(runs::AUTO_BATCH);
    let text = runs::get_text(directory, runs::AUTO_BATCH)?;
    text.map(|text| serde_json::from_str(&text).with_context(here)).transpose()
}

/// Records the size in the run directory `directory`.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn keep(directory: &RunDirectory, decided: Decided) -> Result<()> {
    runs::put(directory, runs::AUTO_BATCH, &serde_json::to_vec(&decided)?)
}

/// Halves the size of the run in `directory`, which has no checkpoint, to `least` rows or more.
///
/// # Errors
/// When the size would be below the minimum, or cannot be recorded.
pub(crate) fn halve(directory: &RunDirectory, before: Decided, least: u32) -> Result<Decided> {
    let after = Decided { rows: before.rows / 2, ..before };
    if after.rows < least {
        let Decided { rows, limit_bytes, gpu_limit_bytes } = before;
        let of_gpu =
            gpu_limit_bytes.map(|bytes| format!(", and on the GPU {}", Size(bytes))).unwrap_or_default();
        bail!(
            "`data.batch_size = \"auto\"`: there is not enough memory for batches of {rows} rows, and smaller \
             batches are not tried: the plan fits {}{of_gpu}, but the system refuses to allocate that",
            Size(limit_bytes)
        );
    }
    keep(directory, after)?;
    Ok(after)
}

/// The learning rates of `job`, whose batch size is known, and how they were scaled.
pub(crate) fn format_rates(job: &Job) -> String {
    let rates: Vec<_> =
        job.learning_rates().into_iter().map(|(name, rate)| format!("{name} {rate}")).collect();
    format!("learning rates{}: {}", format_scaling(job), rates.join(", "))
}

/// The change of learning rates from `before` to `after`, which differ in batch size.
pub(crate) fn format_rate_change(before: &Job, after: &Job) -> String {
    let both = before.learning_rates().into_iter().zip(after.learning_rates().into_values());
    let rates: Vec<_> = both.map(|((name, before), after)| format!("{name} {before} -> {after}")).collect();
    format!("learning rates{}: {}", format_scaling(after), rates.join(", "))
}

fn format_scaling(job: &Job) -> String {
    let Some(scaling) = job.batch_scaling else { return String::new() };
    let BatchScaling { reference, rule } = scaling;
    format!(" {:.4} times those for {reference} rows ({})", scaling.factor(job.data.batch_size), rule.name())
}

#[cfg(test)]
mod tests;
