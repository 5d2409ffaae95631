//! The state of GPUs as NVML, the library of `nvidia-smi`, reports it: lost GPUs, memory errors, heat. A worker reads it.

use std::time::Duration;

use millstream_daemon::survey::sample_gpus_with_current_exe;
use millstream_worker::gpus::{GpuSample, GpuUse, LIBRARY};

use super::finding::Finding;
use super::system::within;

const CHECK: &str = "gpu.state";

/// Time limit for the driver to answer.
const LIMIT: Duration = Duration::from_secs(60);

/// What was read; `None` if the driver did not answer.
pub(super) type State = Option<Result<GpuSample, String>>;

pub(super) fn gather() -> State {
    within(LIMIT, || sample_gpus_with_current_exe().map_err(|error| format!("{error:#}")))
}

pub(super) fn findings(state: &State) -> Vec<Finding> {
    match state {
        None => vec![Finding::warn(
            CHECK,
            format!("NVIDIA's driver does not report the state of GPUs within {} s", LIMIT.as_secs()),
            "sudo dmesg | grep -i nvrm shows its errors; restart the host",
        )],
        // No failure: where jobs cannot open the driver either, the survey has failed.
        Some(Err(error)) => {
            let (found, advice) = error.split_once("; ").unwrap_or((error, "nvidia-smi shows its state"));
            vec![Finding::warn(CHECK, found, advice)]
        }
        Some(Ok(GpuSample::NoLibrary { reason })) => vec![Finding::warn(
            CHECK,
            format!("`top` and the metrics show no GPUs: {reason}"),
            format!(
                "install {LIBRARY} of the driver's version: package libnvidia-compute-580 on Ubuntu, libnvidia-ml1 on Debian, \
                 libnvidia-ml on RHEL; in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility"
            ),
        )],
        Some(Ok(GpuSample::Gpus { gpus })) => gpus.iter().flat_map(of_gpu).collect(),
    }
}

/// The problems of a GPU; otherwise its description.
fn of_gpu(gpu: &GpuUse) -> Vec<Finding> {
    let name = format!("GPU {}, PCI {}", gpu.number, gpu.pci);
    if let Some(problem) = &gpu.problem {
        let advice =
            "restart the host; if this recurs, check the GPU's power, cooling and slot, or have it replaced";
        return vec![Finding::fail(CHECK, format!("{name}: {problem}"), advice)];
    }
    let celsius = gpu.celsius.map(|celsius| format!(", {celsius} C")).unwrap_or_default();
    let mut findings = Vec::new();
    if let Some(errors) = gpu.uncorrected_errors.filter(|&errors| errors > 0) {
        let pci = &gpu.pci;
        let finding = Finding::warn(
            CHECK,
            format!("{name}: {errors} memory errors since the driver was loaded that ECC could not correct"),
            format!(
                "stop its jobs, then: sudo nvidia-smi -r -i {pci}; if they recur, have it replaced \
                 (nvidia-smi -q -d ECC,ROW_REMAPPER -i {pci})"
            ),
        );
        findings.push(finding.with("uncorrected_errors", errors as f64));
    }
    let is_slowed = |reasons: &[&str]| gpu.throttled_by.iter().any(|found| reasons.contains(&found.as_str()));
    if is_slowed(&["heat", "hardware_heat"]) {
        let finding = Finding::warn(
            CHECK,
            format!("{name}{celsius}: heat lowers its clocks"),
            "check fans, filters, the air flow and the room's temperature; nvidia-smi -q -d TEMPERATURE has its limits",
        );
        findings.push(finding.with("celsius", gpu.celsius.map_or(f64::NAN, f64::from)));
    }
    // Unlike the power limit, which a GPU under full load reaches.
    if is_slowed(&["power_brake", "hardware_slowdown"]) {
        findings.push(Finding::warn(
            CHECK,
            format!("{name}: its power supply lowers its clocks"),
            "check the power cables and supplies of the host; nvidia-smi -q -d PERFORMANCE has the reasons",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, format!("{name}{celsius}: no memory errors, full clocks")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::finding::Mark;
    use super::*;

    fn gpu() -> GpuUse {
        GpuUse { pci: "00000000:17:00.0".into(), celsius: Some(41), ..GpuUse::default() }
    }

    fn of(gpu: GpuUse) -> Vec<Finding> {
        findings(&Some(Ok(GpuSample::Gpus { gpus: vec![gpu] })))
    }

    #[test]
    fn a_sound_gpu_is_ok_even_at_its_power_limit() {
        let busy = GpuUse { throttled_by: vec!["power_limit".into()], ..gpu() };
        for gpu in [gpu(), busy] {
            let findings = of(gpu);
            assert_eq!((findings.len(), findings[0].mark), (1, Mark::Ok));
            let wanted = "GPU 0, PCI 00000000:17:00.0, 41 C: no memory errors, full clocks";
            assert_eq!(findings[0].found, wanted);
        }
    }

    #[test]
    fn each_problem_of_a_gpu_is_named() {
        let slowed = |reason: &str| GpuUse { throttled_by: vec![reason.into()], ..gpu() };
        for (gpu, mark, sign) in [
            (GpuUse { problem: Some("lost".into()), ..gpu() }, Mark::Fail, "restart the host"),
            (
                GpuUse { uncorrected_errors: Some(2), ..gpu() },
                Mark::Warn,
                "nvidia-smi -r -i 00000000:17:00.0",
            ),
            (slowed("heat"), Mark::Warn, "air flow"),
            (slowed("hardware_heat"), Mark::Warn, "air flow"),
            (slowed("power_brake"), Mark::Warn, "power cables"),
            (slowed("hardware_slowdown"), Mark::Warn, "power cables"),
        ] {
            let findings = of(gpu);
            assert_eq!((findings.len(), findings[0].mark), (1, mark), "{findings:?}");
            assert!(findings[0].advice.as_ref().is_some_and(|advice| advice.contains(sign)), "{findings:?}");
        }
        let several = GpuUse { uncorrected_errors: Some(1), ..slowed("heat") };
        assert_eq!(of(several).len(), 2);
    }

    #[test]
    fn without_the_library_or_an_answer_there_is_a_warning_with_advice() {
        let no_library = GpuSample::NoLibrary { reason: "cannot open shared object file".into() };
        let mismatch = "libraries and module are of different versions; restart the host".to_owned();
        for (state, sign) in [
            (None, "dmesg"),
            (Some(Ok(no_library)), "libnvidia-compute-580"),
            (Some(Err(mismatch)), "restart the host"),
            (Some(Err("unknown".to_owned())), "nvidia-smi"),
        ] {
            let findings = findings(&state);
            assert_eq!((findings.len(), findings[0].mark), (1, Mark::Warn));
            assert!(findings[0].advice.as_ref().is_some_and(|advice| advice.contains(sign)), "{findings:?}");
        }
    }
}
