//! What each worker of a job gets of the host: its GPU and its threads.

use millstream_trainer::spec::{DeviceSpec, TrainingSpec};

/// The numbers of the GPUs on which the workers of a job train, one each; empty on the CPU.
pub fn gpus(training: &TrainingSpec) -> Vec<u32> {
    match training.device.gpu() {
        None => Vec::new(),
        Some(first) if training.gpus.is_empty() => (first..first.saturating_add(training.ranks())).collect(),
        Some(_) => training.gpus.clone(),
    }
}

/// The CPU threads of each worker; `None` for one per core.
pub(crate) fn threads(training: &TrainingSpec) -> Option<u32> {
    let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let divided = || (training.ranks() > 1).then(|| (cores() / training.ranks()).max(1));
    training.threads.or_else(divided)
}

/// How worker `rank` of a job trains.
pub(crate) fn training_of(training: &TrainingSpec, rank: u32) -> TrainingSpec {
    let device =
        gpus(training).get(rank as usize).map_or(DeviceSpec::Cpu, |&number| DeviceSpec::Cuda(number));
    TrainingSpec { device, gpus: Vec::new(), threads: threads(training), ..training.clone() }
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
        assert_eq!(training_of(&several, 2).device, DeviceSpec::Cuda(4));
        assert!(gpus(&on(DeviceSpec::Cpu, 3)).is_empty());
        assert_eq!(gpus(&on(DeviceSpec::Cuda(1), 1)), [1]);
        let chosen = TrainingSpec { gpus: vec![3, 0], ..on(DeviceSpec::Cuda(3), 2) };
        assert_eq!(gpus(&chosen), [3, 0]);
        let second = training_of(&chosen, 1);
        assert_eq!((second.device, gpus(&second).len()), (DeviceSpec::Cuda(0), 2));

        assert_eq!(threads(&on(DeviceSpec::Cpu, 1)), None, "the worker counts the cores");
        let many = threads(&on(DeviceSpec::Cpu, 64)).unwrap_or_default();
        assert!((1..=64).contains(&many), "{many}");
        let given = TrainingSpec { threads: Some(3), ..on(DeviceSpec::Cpu, 4) };
        assert_eq!(training_of(&given, 1).threads, Some(3));
    }
}
