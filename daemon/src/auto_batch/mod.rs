//! `batch_size = "auto"`: the largest batch whose plan fits a memory limit.
//!
//! Sizes are powers of two. They are planned from the least on, and the last one that fits the limit is taken; what a
//! plan takes grows with its rows. A plan counts all of a job: in the worker parameters, optimizer state, activations,
//! workspaces, the copy for checkpoints and what any process takes, and in ingest what it cannot do without. What
//! ingest takes besides, to read ahead, comes out of what is left of the limit.
//!
//! A GPU has memory of its own, and a limit of its own ([`gpu`]): parameters, optimizer state, activations and workspaces are
//! there, the rest is on the host.
//!
//! The order of rows, positions and checkpoints depend on the size. So it is decided once, when a job is prepared, and
//! kept in its run's directory with the limit that it was decided for: every later attempt, by whatever daemon and
//! however much memory there is then, has the same batches. A plan may still be wrong, so the worker of a job that has
//! no checkpoint yet tries first to take all of that memory ([`RehearsalSpec`]). When it dies for lack of memory before
//! there is a checkpoint, the size is [halved](halve), and the job begins again; from the first checkpoint on it stays.

pub(crate) mod available;
pub mod gpu;

use std::fmt::{self, Display};
use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result, bail};
use millstream_trainer::model::ModelPlan;
use millstream_trainer::spec::{BatchScaling, TrainingSpec};
use serde::{Deserialize, Serialize};

use millstream_job::{AutoBatchSpec, Job, LEAST_AUTO_ROWS};
use millstream_worker::protocol::RehearsalSpec;

use crate::runs;

/// What a worker takes besides its model: the program's own data, the allocator's, what its messages are made in.
const WORKER_BYTES: u64 = 16 << 20;

/// What NVIDIA's libraries take of the host in a worker's process: an allowance.
const CUDA_BYTES: u64 = 1 << 30;

/// What each of its threads takes: a stack and an arena of the allocator.
const THREAD_BYTES: u64 = 3 << 20;

/// Threads of a worker besides those that compute: its own, the one that listens, the one that writes checkpoints.
const OTHER_THREADS: u64 = 3;

/// A size that was decided, as a run's directory keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Decided {
    /// Rows of a batch.
    pub(crate) rows: u32,
    /// The memory limit that it was decided for.
    pub(crate) limit_bytes: u64,
    /// The same of the GPU's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gpu_limit_bytes: Option<u64>,
}

/// The memory that a job may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// All of it.
    pub bytes: u64,
    /// Who says so.
    pub source: LimitSource,
}

/// Who says what memory a job may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitSource {
    /// The job: `data.auto_batch.memory`.
    Job,
    /// The host, by what it had available.
    Host,
    /// The job, of its GPU: `data.auto_batch.gpu_memory`.
    JobOfGpu,
    /// The GPU, by what it has.
    Gpu,
    /// An earlier time, whose decision the run keeps.
    Run,
}

/// A size that was found.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Rows of a batch.
    pub rows: u32,
    /// What the job may take.
    pub limit: Limit,
    /// What it takes at least, with these batches.
    pub needed_bytes: u64,
    /// The part of it that the worker's process takes, whatever its model is.
    pub process_bytes: u64,
    /// Of the limit, what ingest leaves to the worker; `None` where libraries that are not ours take some of it as they see
    /// fit.
    pub worker_bytes: Option<u64>,
    /// What it takes of its GPU, where it has one.
    pub gpu: Option<GpuChoice>,
    /// Why not twice the rows; `None` where that was not looked for.
    pub why_not_more: Option<String>,
}

/// What a job with batches of a size that was found takes of its GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuChoice {
    /// What it may take.
    pub limit: Limit,
    /// What it takes.
    pub needed_bytes: u64,
}

impl Limit {
    /// What the plan of a job with a size to be found must fit, at this moment.
    ///
    /// # Errors
    /// When the job does not say, and the host does not either.
    pub(crate) fn of(spec: &AutoBatchSpec) -> Result<Self> {
        if let Some(bytes) = spec.memory_bytes {
            return Ok(Self { bytes, source: LimitSource::Job });
        }
        let available = available::bytes().context(
            "`data.batch_size = \"auto\"`: this host does not say what memory it has available: set \
             `data.auto_batch.memory`",
        )?;
        Ok(Self { bytes: available / 4 * 3, source: LimitSource::Host })
    }
}

impl Display for LimitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Job => "data.auto_batch.memory",
            Self::Host => "three quarters of what the host has available",
            Self::JobOfGpu => "data.auto_batch.gpu_memory",
            Self::Gpu => "the GPU's memory, less what the driver and others may take",
            Self::Run => "the limit that it was decided for",
        })
    }
}

impl Choice {
    /// The memory rehearsal of the worker of a new job, whose ring has `slots` slots.
    pub(crate) fn rehearsal(&self, slots: u32) -> RehearsalSpec {
        RehearsalSpec { slots, max_bytes: self.worker_bytes }
    }

    /// What is kept of it.
    pub(crate) fn decided(&self) -> Decided {
        let gpu_limit_bytes = self.gpu.map(|gpu| gpu.limit.bytes);
        Decided { rows: self.rows, limit_bytes: self.limit.bytes, gpu_limit_bytes }
    }
}

impl Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, limit: Limit { bytes, source }, needed_bytes, why_not_more, gpu, .. } = self;
        write!(f, "batches of {rows} rows, which take {needed_bytes} of {bytes} bytes ({source})")?;
        if let Some(GpuChoice { limit: Limit { bytes, source }, needed_bytes }) = gpu {
            write!(f, ", and on the GPU {needed_bytes} of {bytes} bytes ({source})")?;
        }
        why_not_more.as_ref().map_or(Ok(()), |why| write!(f, "; no more since {why}"))
    }
}

/// The bytes of the host that a worker takes for `model`, trained so.
pub(crate) fn worker_bytes(model: &ModelPlan, training: &TrainingSpec) -> u64 {
    let [parameters, workspace] = match training.device.gpu() {
        None => [model.parameter_bytes, model.workspace_bytes],
        Some(_) => [0, model.staging_bytes],
    };
    let parts = [parameters, workspace, model.copy_bytes, process_bytes(training)];
    parts.into_iter().fold(0, u64::saturating_add)
}

/// The bytes that it takes whatever its model is.
pub(crate) fn process_bytes(training: &TrainingSpec) -> u64 {
    let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let (threads, libraries) = match training.device.gpu() {
        None => (training.threads.map_or_else(cores, u64::from), 0),
        Some(_) => (0, CUDA_BYTES),
    };
    WORKER_BYTES + libraries + (threads + OTHER_THREADS) * THREAD_BYTES
}

/// The largest power of two, from the least on and not above `most`, for which there is a plan; that plan, and why
/// there is none for twice the rows, unless it is `most`.
///
/// # Errors
/// Why there is none for the least.
pub(crate) fn largest<T>(
    most: u32,
    mut plan: impl FnMut(u32) -> Result<T>,
) -> Result<(u32, T, Option<anyhow::Error>)> {
    let mut rows = LEAST_AUTO_ROWS;
    let mut fits = plan(rows).with_context(|| {
        format!("`data.batch_size = \"auto\"`: not even batches of {LEAST_AUTO_ROWS} rows can be")
    })?;
    while rows <= most / 2 {
        match plan(2 * rows) {
            Ok(plan) => (rows, fits) = (2 * rows, plan),
            Err(error) => return Ok((rows, fits, Some(error))),
        }
    }
    Ok((rows, fits, None))
}

/// The size that was decided for the run in `directory`, if one was.
///
/// # Errors
/// When what is kept there cannot be read.
pub(crate) fn decided(directory: &Path) -> Result<Option<Decided>> {
    let path = directory.join(runs::AUTO_BATCH);
    let here = || path.display().to_string();
    match fs::read(&path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes).with_context(here)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(here),
    }
}

/// Keeps what was decided for the run in `directory`, in the place of what was before.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn keep(directory: &Path, decided: Decided) -> Result<()> {
    let json = serde_json::to_vec(&decided)?;
    runs::put(directory, runs::AUTO_BATCH, &json)
        .with_context(|| directory.join(runs::AUTO_BATCH).display().to_string())
}

/// Has the run in `directory`, which has no checkpoint, go on with half the rows.
///
/// # Errors
/// When there would be fewer than a batch should have; when it cannot be written.
pub(crate) fn halve(directory: &Path, before: Decided) -> Result<Decided> {
    let after = Decided { rows: before.rows / 2, ..before };
    if after.rows < LEAST_AUTO_ROWS {
        let Decided { rows, limit_bytes, gpu_limit_bytes } = before;
        let of_gpu = gpu_limit_bytes.map(|bytes| format!(", and on the GPU {bytes}")).unwrap_or_default();
        bail!(
            "`data.batch_size = \"auto\"`: there is not enough memory for batches of {rows} rows, and fewer are not \
             tried: the plan is within {limit_bytes} bytes{of_gpu}, and the system does not give them"
        );
    }
    keep(directory, after)?;
    Ok(after)
}

/// The learning rates of `job`, whose size is known, and what they follow from.
pub(crate) fn told_rates(job: &Job) -> String {
    let rates: Vec<_> =
        job.learning_rates().into_iter().map(|(name, rate)| format!("{name} {rate}")).collect();
    format!("learning rates{}: {}", told_scaling(job), rates.join(", "))
}

/// How the learning rates of `job` are others once it is `after`, with batches of another size.
pub(crate) fn told_change(before: &Job, after: &Job) -> String {
    let both = before.learning_rates().into_iter().zip(after.learning_rates().into_values());
    let rates: Vec<_> = both.map(|((name, before), after)| format!("{name} {before} -> {after}")).collect();
    format!("learning rates{}: {}", told_scaling(after), rates.join(", "))
}

fn told_scaling(job: &Job) -> String {
    let Some(scaling) = job.batch_scaling else { return String::new() };
    let BatchScaling { reference, rule } = scaling;
    format!(" {:.4} times those for {reference} rows ({})", scaling.factor(job.data.batch_size), rule.name())
}

#[cfg(test)]
mod tests;
