//! The GPU memory that a job may use.
//!
//! The driver uses some hundreds of megabytes for its context, for our kernels and cuBLASLt's, and for graphs; a
//! display or another program may use more. The amount is unknown before a worker opens the GPU. So a plan leaves 1
//! GiB and a sixteenth of the GPU's memory: 6 GiB of 80.

use anyhow::{Context, Result};
use millstream_trainer::model::ModelPlan;

use super::{Limit, LimitSource};
use millstream_job::AutoBatchSpec;
use millstream_worker::survey::HostSurvey;

/// Memory left to others on any GPU.
const OTHERS_BYTES: u64 = 1 << 30;
/// The additional share left to others: one in this many bytes.
const OTHERS_SHARE: u64 = 16;

/// The memory that a job may use of a GPU with `memory_bytes`.
pub fn usable_bytes(memory_bytes: u64) -> u64 {
    memory_bytes.saturating_sub(OTHERS_BYTES + memory_bytes / OTHERS_SHARE)
}

/// The GPU memory of a model.
pub fn needed_bytes(model: &ModelPlan) -> u64 {
    model.parameter_bytes.saturating_add(model.workspace_bytes)
}

/// The GPU memory limit for an automatic batch size, on each of the GPUs `numbers` of the host that `host` surveys; `None`
/// without GPUs.
///
/// # Errors
/// When neither the job nor the host defines it.
pub(crate) fn limit(
    spec: &AutoBatchSpec,
    numbers: &[u32],
    host: &dyn Fn() -> Result<HostSurvey>,
) -> Result<Option<Limit>> {
    if numbers.is_empty() {
        return Ok(None);
    }
    if let Some(bytes) = spec.gpu_memory_bytes {
        return Ok(Some(Limit { bytes, source: LimitSource::JobOfGpu }));
    }
    let host = host()?;
    let of_gpu = |&number: &u32| {
        let gpu = host.gpu(number).with_context(|| {
            format!(
                "`data.batch_size = \"auto\"` on GPU {number}: its memory size is unknown, and \
                 `data.auto_batch.gpu_memory` is not set"
            )
        })?;
        Ok(usable_bytes(gpu.memory_bytes))
    };
    let all = numbers.iter().map(of_gpu).collect::<Result<Vec<_>>>()?;
    Ok(all.into_iter().min().map(|bytes| Limit { bytes, source: LimitSource::Gpu }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use millstream_worker::survey::{GpuSurvey, LibrarySurvey};

    fn host(gpus: Vec<GpuSurvey>, problem: Option<&str>) -> HostSurvey {
        let library = LibrarySurvey {
            library: "the driver".to_owned(),
            version: problem.is_none().then(|| "13.0".to_owned()),
            problem: problem.map(str::to_owned),
            for_several_gpus: false,
        };
        let of_several = LibrarySurvey {
            library: "collectives".to_owned(),
            version: None,
            problem: Some("one GPU does without it".to_owned()),
            for_several_gpus: true,
        };
        HostSurvey { libraries: vec![of_several, library], gpus, problem: None }
    }

    #[test]
    fn the_limit_is_the_jobs_or_most_of_the_gpus_memory() {
        let spec = AutoBatchSpec { memory_bytes: Some(7), gpu_memory_bytes: None, least: 16, most: 16 };
        let gpu = |number, gib: u64| GpuSurvey {
            number,
            name: "a GPU".to_owned(),
            capability: "9.0".to_owned(),
            multiprocessors: 132,
            memory_bytes: gib << 30,
            opened: None,
        };
        let of_host = || Ok(host(vec![gpu(1, 80), gpu(2, 16)], None));
        let usable = |numbers: &[u32]| limit(&spec, numbers, &of_host).unwrap();
        assert_eq!(usable(&[1]), Some(Limit { bytes: 74 << 30, source: LimitSource::Gpu }));
        assert_eq!(usable(&[1, 2]), Some(Limit { bytes: 14 << 30, source: LimitSource::Gpu }));
        assert_eq!(usable(&[]), None);
        let with_limit = AutoBatchSpec { gpu_memory_bytes: Some(9), ..spec };
        let of_job = limit(&with_limit, &[1], &|| panic!("the job sets the limit")).unwrap();
        assert_eq!(of_job, Some(Limit { bytes: 9, source: LimitSource::JobOfGpu }));
        assert_eq!(usable_bytes(1 << 29), 0);

        let refusal =
            |host: HostSurvey| format!("{:#}", limit(&spec, &[0], &|| Ok(host.clone())).unwrap_err());
        let error = refusal(host(vec![gpu(1, 80)], None));
        for part in ["on GPU 0", "`data.auto_batch.gpu_memory`", "no GPU number 0 on this host, which has 1"]
        {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(refusal(host(Vec::new(), None)).ends_with("no GPU number 0 on this host, which has 0"));
        let error = refusal(host(Vec::new(), Some("it is missing")));
        assert!(error.ends_with("it is missing"), "{error}");
    }
}
