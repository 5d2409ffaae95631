//! What each worker of a job gets of the host: its GPU and its threads.

use millstream_job::Job;
use millstream_pipeline::Error;
use millstream_pipeline::ingest::IngestPlan;
use millstream_pipeline::order::Deal;
use millstream_trainer::spec::{DeviceSpec, TrainingSpec};

/// The numbers of the GPUs on which the workers of a job train, one each; empty on the CPU.
pub fn gpus(training: &TrainingSpec) -> Vec<u32> {
    match training.device.gpu() {
        None => Vec::new(),
        Some(first) if training.gpus.is_empty() => (first..first.saturating_add(training.ranks())).collect(),
        Some(_) => training.gpus.clone(),
    }
}

/// The number of workers of `job` on this host, at most.
pub(crate) fn here(job: &Job) -> u32 {
    if job.workers.max.is_some() { job.workers.per_host } else { job.training.ranks() }
}

/// A plan whose batches are dealt to the workers of `job`, all on this host.
///
/// # Errors
/// When the memory budget is too small for their rings.
pub(crate) fn dealt(plan: IngestPlan, job: &Job) -> Result<IngestPlan, Error> {
    let parts = job.training.parts();
    if job.workers.max.is_none() {
        return plan.with_ranks(parts);
    }
    match Deal::among_ranks(0, &[job.training.ranks()], parts) {
        Some(deal) => plan.with_deal(deal),
        None => Err(Error::Invalid(format!("{parts} parts of a batch for {} workers", job.training.ranks()))),
    }
}

/// The CPU threads of each of `workers` workers of this host; `None` for one per core.
pub(crate) fn threads(training: &TrainingSpec, workers: u32) -> Option<u32> {
    let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let divided = || (workers > 1).then(|| (cores() / workers).max(1));
    training.threads.or_else(divided)
}

/// How worker `number` of `workers` workers of this host trains.
pub(crate) fn training_of(training: &TrainingSpec, (number, workers): (u32, u32)) -> TrainingSpec {
    let device =
        gpus(training).get(number as usize).map_or(DeviceSpec::Cpu, |&number| DeviceSpec::Cuda(number));
    TrainingSpec { device, gpus: Vec::new(), threads: threads(training, workers), ..training.clone() }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn each_worker_has_its_own_gpu_and_its_share_of_the_threads() {
        let on = |device, ranks| TrainingSpec {
            device,
            workers: NonZeroU32::new(ranks),
            ..TrainingSpec::default()
        };
        let several = on(DeviceSpec::Cuda(2), 3);
        assert_eq!(gpus(&several), [2, 3, 4]);
        assert_eq!(training_of(&several, (2, 3)).device, DeviceSpec::Cuda(4));
        assert!(gpus(&on(DeviceSpec::Cpu, 3)).is_empty());
        assert_eq!(gpus(&on(DeviceSpec::Cuda(1), 1)), [1]);
        let chosen = TrainingSpec { gpus: vec![3, 0], ..on(DeviceSpec::Cuda(3), 2) };
        assert_eq!(gpus(&chosen), [3, 0]);
        let second = training_of(&chosen, (1, 2));
        assert_eq!((second.device, gpus(&second).len()), (DeviceSpec::Cuda(0), 2));

        assert_eq!(threads(&on(DeviceSpec::Cpu, 1), 1), None, "the worker counts the cores");
        let many = threads(&on(DeviceSpec::Cpu, 64), 64).unwrap_or_default();
        assert!((1..=64).contains(&many), "{many}");
        let given = TrainingSpec { threads: Some(3), ..on(DeviceSpec::Cpu, 4) };
        assert_eq!(training_of(&given, (1, 4)).threads, Some(3));
    }
}
