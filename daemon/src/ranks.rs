//! What each worker of a job gets of the host: its GPU and its threads.

use std::num::NonZeroU32;

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

/// How `job` is planned: with the fewest workers with which it trains, which then have the largest parts of each batch.
pub(crate) fn planned(job: &Job) -> TrainingSpec {
    let workers = NonZeroU32::new(fewest(job).iter().sum());
    TrainingSpec { workers, ..job.training.clone() }
}

/// A plan whose batches are dealt to the workers of a job as [`planned`], this host being the first.
///
/// # Errors
/// When the memory budget is too small for their rings.
pub(crate) fn dealt(plan: IngestPlan, job: &Job) -> Result<IngestPlan, Error> {
    let parts = planned(job).parts();
    if job.workers.max.is_none() {
        return plan.with_ranks(parts);
    }
    let workers = fewest(job);
    match Deal::among_ranks(0, &workers, parts) {
        Some(deal) => plan.with_deal(deal),
        None => {
            let workers: u32 = workers.iter().sum();
            Err(Error::Invalid(format!("{parts} parts of a batch for {workers} workers")))
        }
    }
}

/// The fewest workers of each host with which `job` trains, those of this one first.
fn fewest(job: &Job) -> Vec<u32> {
    let here = here(job);
    if job.workers.max.is_none() {
        return vec![here];
    }
    let least = job.workers.min.max(here);
    let all = match job.workers.reproducible {
        None => least,
        Some(parts) => (least..=parts).find(|&workers| parts % workers == 0).unwrap_or(parts),
    };
    let (hosts, rest) = (all / here, all % here);
    let whole = std::iter::repeat_n(here, hosts as usize);
    whole.chain((rest > 0).then_some(rest)).collect()
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
    use std::path::Path;

    use super::*;

    #[test]
    fn a_job_of_several_hosts_is_planned_with_the_fewest_workers() {
        let of_job = |set: &[&str]| {
            let text = r#"name = "clicks"
data = { train = ["gs://b/train.parquet"], batch_size = 64, lanes = 64 }
label = { column = "clicked" }
features = { age = { kind = "numeric" } }
model = { kind = "mlp", features = ["age"], hidden = [4], optimizer = { kind = "adam" } }
checkpoint = { directory = "gs://b/runs" }
"#;
            let set: Vec<_> = set.iter().map(|&text| text.to_owned()).collect();
            let (job, _) =
                Job::parse(text, Path::new("job.toml"), &set).map_err(|error| error.to_string())?;
            let planned = planned(&job);
            assert_eq!(planned.ranks(), fewest(&job).iter().sum::<u32>());
            Ok::<_, String>(fewest(&job))
        };
        assert_eq!(of_job(&["workers.per_host=4", "workers.min=2"]), Ok(vec![4]));
        assert_eq!(of_job(&["workers.per_host=4", "workers.max=16"]), Ok(vec![4]));
        assert_eq!(of_job(&["workers.per_host=2", "workers.max=16", "workers.min=5"]), Ok(vec![2, 2, 1]));
        let parts = ["workers.per_host=2", "workers.max=16", "workers.min=5", "workers.reproducible=16"];
        assert_eq!(of_job(&parts), Ok(vec![2; 4]));
    }

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
