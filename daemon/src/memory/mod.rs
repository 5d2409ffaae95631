//! The host memory of a job: what it needs, and what the host has.
//!
//! A job that does not fit is refused before any work. Otherwise the kernel would kill its worker, or other programs.

pub(crate) mod available;

use std::fmt;

use anyhow::{Result, bail};
use millstream_batch::Size;
use millstream_job::Job;
use millstream_trainer::model::ModelPlan;
use millstream_trainer::parameter::{NamedTensor, TensorRole};
use millstream_trainer::spec::TrainingSpec;

use crate::ranks;

/// A worker's memory apart from its model: the program's data, the allocator's, and message buffers.
const WORKER_BYTES: u64 = 16 << 20;

/// An allowance for the host memory of NVIDIA's libraries in a worker.
const CUDA_BYTES: u64 = 1 << 30;

/// The memory of a thread: a stack and an arena of the allocator.
const THREAD_BYTES: u64 = 3 << 20;

/// A worker's threads that do not compute: the main thread, the message reader, the checkpoint writer.
const OTHER_THREADS: u64 = 3;

/// Parts below this share of the whole are not worth naming in an error: one in this many bytes.
const NAMED_SHARE: u64 = 20;

/// The least host memory of a job, in bytes, by part. Parts of workers are sums over all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostMemory {
    /// Parameters and optimizer state; 0 if they are on a GPU.
    pub model_bytes: u64,
    /// Activations, gradients and workspaces; on a GPU, transfers to and from it.
    pub workspace_bytes: u64,
    /// The copies of the model from which the workers write checkpoints.
    pub copy_bytes: u64,
    /// The rest of the worker processes.
    pub process_bytes: u64,
    /// Ingest, without the read-ahead that it can do without.
    pub ingest_bytes: u64,
}

/// The memory that a job has to fit into, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// What the host has available now.
    Available(u64),
    /// What the host has for all jobs.
    ForJobs(u64),
}

impl Room {
    /// What the host has available now; `None` if the kernel does not report it.
    pub fn now() -> Option<Self> {
        available::bytes().map(Self::Available)
    }

    /// What it is if `bytes` more are free.
    pub(crate) fn with(self, bytes: u64) -> Self {
        match self {
            Self::Available(room) => Self::Available(room.saturating_add(bytes)),
            Self::ForJobs(room) => Self::ForJobs(room.saturating_add(bytes)),
        }
    }

    /// Its size.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Available(bytes) | Self::ForJobs(bytes) => bytes,
        }
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Available(bytes) => write!(f, "{} available", Size(*bytes)),
            Self::ForJobs(bytes) => write!(f, "{} for jobs", Size(*bytes)),
        }
    }
}

impl HostMemory {
    /// The memory of the workers of `job`, which train a model.
    pub(crate) fn of_job(model: &ModelPlan, job: &Job) -> Self {
        Self::of_workers((model, ranks::here(job)), &job.training, job.workers.model_copies())
    }

    /// The memory of these workers of this host, which train a model, with `copies` copies of it for checkpoints.
    fn of_workers((model, workers): (&ModelPlan, u32), training: &TrainingSpec, copies: u32) -> Self {
        let one = Self::of_worker((model, workers), training, copies);
        let of_all = |bytes: u64| bytes.saturating_mul(workers.into());
        Self {
            model_bytes: of_all(one.model_bytes),
            workspace_bytes: of_all(one.workspace_bytes),
            process_bytes: of_all(one.process_bytes),
            ..one
        }
    }

    /// The memory of one of them, with `copies` copies for checkpoints.
    pub(crate) fn of_worker(
        (model, workers): (&ModelPlan, u32),
        training: &TrainingSpec,
        copies: u32,
    ) -> Self {
        let (model_bytes, workspace_bytes) = match training.device.gpu() {
            None => (model.parameter_bytes, model.workspace_bytes),
            Some(_) => (0, model.staging_bytes),
        };
        let process_bytes = process_bytes(training, workers);
        let copy_bytes = model.copy_bytes.saturating_mul(copies.into());
        Self { model_bytes, workspace_bytes, copy_bytes, process_bytes, ingest_bytes: 0 }
    }

    /// The total.
    pub fn total_bytes(&self) -> u64 {
        let Self { model_bytes, workspace_bytes, copy_bytes, process_bytes, ingest_bytes } = *self;
        let parts = [model_bytes, workspace_bytes, copy_bytes, process_bytes, ingest_bytes];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// Checks that a job with the tensors of `model` fits into `room`.
    ///
    /// # Errors
    /// When it does not. Names the largest parts and what to change.
    pub fn check(&self, model: &ModelPlan, room: Room) -> Result<()> {
        let total = self.total_bytes();
        if total <= room.bytes() {
            return Ok(());
        }
        let (of_model, of_tables) = (
            "parameters and optimizer state",
            "use fewer ids in the largest features (`buckets`, `max_terms`), a lower `embedding_dim`, or an optimizer with \
             less state",
        );
        let mut parts = [
            (self.model_bytes, of_model, of_tables),
            (
                self.workspace_bytes,
                "activations, gradients and workspaces",
                "lower `data.batch_size`, or set `training.micro_batch_size`",
            ),
            (self.copy_bytes, "copies for checkpoints", of_tables),
            (self.process_bytes, "worker processes", "lower `workers.per_host` or `training.threads`"),
            (
                self.ingest_bytes,
                "ingest",
                "lower `data.prefetch`, `data.shuffle_rows`, `data.lanes` or `data.batch_size`",
            ),
        ];
        parts.sort_by_key(|&(bytes, ..)| std::cmp::Reverse(bytes));
        let named = parts.iter().filter(|(bytes, ..)| *bytes >= total / NAMED_SHARE);
        let named: Vec<_> = named
            .map(|(bytes, name, _)| {
                let largest = if *name == of_model { largest(&model.tensors) } else { String::new() };
                format!("{} for {name}{largest}", Size(*bytes))
            })
            .collect();
        bail!(
            "the job needs {} of memory, and this host has {room}: {}; {}",
            Size(total),
            named.join(", "),
            parts[0].2
        )
    }
}

/// Names the largest parameter: ` (the largest is embedding.user, 1000000 x 64)`.
fn largest(tensors: &[NamedTensor]) -> String {
    let parameters = tensors.iter().filter(|tensor| tensor.role == TensorRole::Parameter);
    let largest = parameters.max_by_key(|tensor| tensor.len());
    largest.map_or_else(String::new, |NamedTensor { name, shape, .. }| {
        let shape: Vec<_> = shape.iter().map(ToString::to_string).collect();
        format!(" (the largest is `{name}`, {})", shape.join(" x "))
    })
}

/// The memory of one of `workers` workers of this host apart from its model.
pub(crate) fn process_bytes(training: &TrainingSpec, workers: u32) -> u64 {
    let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let (threads, libraries) = match training.device.gpu() {
        None => (ranks::threads(training, workers).map_or_else(cores, u64::from), 0),
        Some(_) => (0, CUDA_BYTES),
    };
    WORKER_BYTES + libraries + (threads + OTHER_THREADS) * THREAD_BYTES
}

/// The memory that this host can give to programs at most; `None` if the kernel does not report it.
pub(crate) fn limit_bytes() -> Option<u64> {
    available::memory().map(|memory| memory.total_bytes)
}

/// The memory that this host can give to a job now; `None` if the kernel does not report it.
pub fn available_bytes() -> Option<u64> {
    available::bytes()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn model(name: &str, shape: [usize; 2]) -> ModelPlan {
        ModelPlan {
            tensors: vec![
                NamedTensor { name: "deep.bias".into(), shape: vec![8], role: TensorRole::Parameter },
                NamedTensor { name: name.into(), shape: shape.into(), role: TensorRole::Parameter },
            ],
            parameters: 0,
            parameter_bytes: 0,
            workspace_bytes: 0,
            staging_bytes: 0,
            copy_bytes: 0,
        }
    }

    #[test]
    fn a_job_that_does_not_fit_is_refused_with_its_largest_parts() {
        let model = model("embedding.user", [1_000_000_000, 16]);
        let memory = HostMemory {
            model_bytes: 119 * GIB,
            workspace_bytes: 1 << 20,
            copy_bytes: 60 * GIB,
            process_bytes: 1 << 20,
            ingest_bytes: GIB,
        };
        let error = memory.check(&model, Room::Available(23 * GIB)).unwrap_err().to_string();
        let wanted = "the job needs 180.0 GiB of memory, and this host has 23.0 GiB available: 119.0 GiB for parameters \
                      and optimizer state (the largest is `embedding.user`, 1000000000 x 16), 60.0 GiB for copies for \
                      checkpoints; use fewer ids in the largest features (`buckets`, `max_terms`), a lower \
                      `embedding_dim`, or an optimizer with less state";
        assert_eq!(error, wanted);
        memory.check(&model, Room::ForJobs(memory.total_bytes())).unwrap();
        let huge = HostMemory { model_bytes: u64::MAX, ..memory };
        assert_eq!(huge.total_bytes(), u64::MAX);
    }

    #[test]
    fn several_workers_each_have_a_model_and_one_copies_it() {
        let plan = ModelPlan {
            parameter_bytes: 5 * GIB,
            workspace_bytes: 3 * GIB,
            copy_bytes: 2 * GIB,
            ..model("deep.layer.0.weight", [8, 8])
        };
        let of = |ranks| {
            let training =
                TrainingSpec { workers: NonZeroU32::new(ranks), threads: Some(2), ..TrainingSpec::default() };
            HostMemory::of_workers((&plan, training.ranks()), &training, 1)
        };
        let (one, four) = (of(1), of(4));
        assert_eq!((four.model_bytes, four.workspace_bytes, four.copy_bytes), (20 * GIB, 12 * GIB, 2 * GIB));
        assert_eq!(four.process_bytes, 4 * one.process_bytes);
    }

    #[test]
    fn advice_is_about_the_largest_part() {
        let model = model("deep.layer.0.weight", [8, 8]);
        let batch = HostMemory { workspace_bytes: 9 * GIB, ingest_bytes: GIB, ..HostMemory::default() };
        let error = batch.check(&model, Room::Available(GIB)).unwrap_err().to_string();
        assert!(error.ends_with("lower `data.batch_size`, or set `training.micro_batch_size`"), "{error}");
        let ingest = HostMemory { ingest_bytes: 3 * GIB, ..HostMemory::default() };
        let error = ingest.check(&model, Room::Available(GIB)).unwrap_err().to_string();
        assert!(error.contains("available: 3.0 GiB for ingest; lower `data.prefetch`"), "{error}");
    }
}
