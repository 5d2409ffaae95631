//! Which GPUs of this host a job means by `workers.devices`.
//!
//! A UUID, and `"all"`, become numbers when the job is submitted. The job keeps them: a resumed job has as many workers as
//! before, though its host may have got other GPUs since.

use anyhow::{Error, Result};
use millstream_document::problems::DocumentError;
use millstream_job::{DeviceName, Devices, Job};
use millstream_worker::gpus::{GpuSample, GpuUse};

/// Why the GPUs of a job are unknown.
#[derive(Debug, thiserror::Error)]
pub enum DevicesError {
    /// The job names GPUs that the host lacks.
    #[error(transparent)]
    Invalid(#[from] DocumentError),
    /// The driver could not be asked.
    #[error("{0:#}")]
    Other(#[from] Error),
}

/// The job with the numbers of its GPUs, which `sample` reads from the driver.
///
/// # Errors
/// When the host lacks a GPU, or `sample` fails.
pub fn resolve(job: Job, sample: impl FnOnce() -> Result<GpuSample>) -> Result<Job, DevicesError> {
    let setting = setting(&job, sample)?;
    Ok(if setting.is_empty() {
        job
    } else {
        Job::parse(&job.text, &job.data.base.join("job.toml"), &setting)?.0
    })
}

/// Checks that this host has the GPUs `wanted`, by their numbers. One whose GPUs are unknown may have them.
///
/// # Errors
/// When it lacks one, or `sample` fails.
pub(crate) fn check(wanted: &[u32], sample: impl FnOnce() -> Result<GpuSample>) -> Result<()> {
    if wanted.is_empty() {
        return Ok(());
    }
    let GpuSample::Gpus { gpus } = sample()? else { return Ok(()) };
    let names = wanted.iter().map(|&number| DeviceName::Number(number)).collect();
    numbers(&Devices::Chosen(names), &gpus).map(drop).map_err(Error::msg)
}

/// The override that replaces `workers.devices` by the numbers of the GPUs, for [`Job::parse`]; none where they are numbers
/// already.
///
/// # Errors
/// As for [`resolve`].
pub(crate) fn setting(
    job: &Job,
    sample: impl FnOnce() -> Result<GpuSample>,
) -> Result<Vec<String>, DevicesError> {
    let Some(devices) = &job.workers.devices else { return Ok(Vec::new()) };
    let found = match (sample()?, devices.numbers()) {
        (GpuSample::Gpus { gpus }, _) => numbers(devices, &gpus),
        // The worker reports a missing GPU.
        (GpuSample::NoLibrary { .. }, Some(_)) => return Ok(Vec::new()),
        (GpuSample::NoLibrary { reason }, None) => Err(format!(
            "the GPUs of this host are unknown: {reason}; install NVIDIA's driver, or list numbers"
        )),
    };
    let numbers = found.map_err(|message| job.workers.devices_error(message))?;
    if devices.numbers().is_some_and(|given| given == numbers) {
        return Ok(Vec::new());
    }
    let numbers: Vec<_> = numbers.iter().map(u32::to_string).collect();
    Ok(vec![format!("workers.devices=[{}]", numbers.join(", "))])
}

/// The numbers of these devices among the GPUs of the host, or why there are none.
fn numbers(devices: &Devices, gpus: &[GpuUse]) -> Result<Vec<u32>, String> {
    let has = || {
        let describe = |gpu: &GpuUse| format!("{} ({}, {})", gpu.number, gpu.uuid, gpu.name);
        let all: Vec<_> = gpus.iter().map(describe).collect();
        if all.is_empty() { "it has none".to_owned() } else { format!("it has {}", all.join(", ")) }
    };
    let names = match devices {
        Devices::All if gpus.is_empty() => return Err("this host has no GPU".to_owned()),
        Devices::All => return Ok(gpus.iter().map(|gpu| gpu.number).collect()),
        Devices::Chosen(names) => names,
    };
    let mut numbers = Vec::with_capacity(names.len());
    for name in names {
        let is_named = |gpu: &&GpuUse| match name {
            DeviceName::Number(number) => gpu.number == *number,
            DeviceName::Uuid(uuid) => gpu.uuid == *uuid,
        };
        let Some(gpu) = gpus.iter().find(is_named) else {
            return Err(format!("this host has no GPU {name}; {}", has()));
        };
        if numbers.contains(&gpu.number) {
            return Err(format!("GPU {name} is listed twice; {}", has()));
        }
        numbers.push(gpu.number);
    }
    Ok(numbers)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use anyhow::bail;

    use super::*;

    const JOB: &str = r#"name = "clicks"
data = { train = ["train.parquet"] }
label = { column = "clicked" }
features = { age = { kind = "numeric" } }
model = { kind = "mlp", features = ["age"], hidden = [4], optimizer = { kind = "adam" } }
"#;

    fn job(devices: &str) -> Job {
        let set = [format!("workers.devices={devices}")];
        Job::parse(JOB, Path::new("/jobs/job.toml"), &set).unwrap().0
    }

    fn host(count: u32) -> Result<GpuSample> {
        let gpu = |number| GpuUse {
            number,
            uuid: format!("GPU-{number}{number}"),
            name: "H100".into(),
            ..GpuUse::default()
        };
        Ok(GpuSample::Gpus { gpus: (0..count).map(gpu).collect() })
    }

    fn no_library() -> Result<GpuSample> {
        Ok(GpuSample::NoLibrary { reason: "no libnvidia-ml.so.1".to_owned() })
    }

    #[test]
    fn all_and_uuids_become_numbers() {
        for (devices, numbers) in [
            ("all", &[0, 1, 2][..]),
            ("[\"GPU-22\", \"GPU-00\"]", &[2, 0]),
            ("[1, \"GPU-00\"]", &[1, 0]),
            ("[2, 1]", &[2, 1]),
        ] {
            let resolved = resolve(job(devices), || host(3)).unwrap();
            assert_eq!(
                (&resolved.training.gpus[..], resolved.training.ranks() as usize),
                (numbers, numbers.len())
            );
            // The resolved text needs no host.
            let again = Job::parse(&resolved.text, Path::new("job.toml"), &[]).unwrap().0;
            assert_eq!(again.training.gpus, numbers);
        }
        assert_eq!(resolve(job("[2, 1]"), no_library).unwrap().training.gpus, [2, 1]);
    }

    #[test]
    fn a_host_is_checked_for_the_gpus_of_a_job() {
        check(&[], || bail!("it must not be asked")).unwrap();
        check(&[1, 0], || host(2)).unwrap();
        check(&[7], no_library).unwrap();
        let error = check(&[0, 1], || host(1)).unwrap_err().to_string();
        assert_eq!(error, "this host has no GPU 1; it has 0 (GPU-00, H100)");
    }

    #[test]
    fn missing_gpus_are_reported_with_those_of_the_host() {
        let error = |devices: &str, count| resolve(job(devices), || host(count)).unwrap_err().to_string();
        assert_eq!(
            error("[0, \"GPU-7\"]", 2),
            "--set workers.devices=[0, \"GPU-7\"]: error: this host has no GPU \"GPU-7\"; it has 0 (GPU-00, H100), \
             1 (GPU-11, H100)"
        );
        assert_eq!(error("[0]", 0), "--set workers.devices=[0]: error: this host has no GPU 0; it has none");
        assert!(error("[0, \"GPU-00\"]", 2).contains("GPU \"GPU-00\" is listed twice"));
        assert_eq!(error("all", 0), "--set workers.devices=all: error: this host has no GPU");
        let unknown = resolve(job("all"), no_library).unwrap_err().to_string();
        assert!(unknown.contains("the GPUs of this host are unknown: no libnvidia-ml.so.1"), "{unknown}");
    }
}
