//! The CPU: cores, the instructions of the kernels, the frequency governor.

use std::collections::BTreeSet;
use std::fs;

use millstream_daemon::cgroup::Limits;
use millstream_worker::survey::cpu_instructions;

use super::finding::Finding;
use super::system::text;
use crate::figures;

/// What was found out about the CPU.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// Cores that this process may use at a time.
    cores: u64,
    /// Cores' worth of CPU time that its control groups have.
    quota: Option<f64>,
    vectors: &'static str,
    matrices: Option<&'static str>,
    /// The driver and governor of each core, without repetitions; empty if the kernel does not have them.
    governors: BTreeSet<(String, String)>,
}

/// The driver and governor of each core.
fn governors() -> BTreeSet<(String, String)> {
    let Ok(cores) = fs::read_dir("/sys/devices/system/cpu") else { return BTreeSet::new() };
    let of_core = |core: fs::DirEntry| {
        let directory = core.path().join("cpufreq");
        Some((text(directory.join("scaling_driver"))?, text(directory.join("scaling_governor"))?))
    };
    cores.flatten().filter_map(of_core).collect()
}

impl Facts {
    pub(super) fn gather() -> Self {
        let (vectors, matrices) = cpu_instructions();
        Self {
            cores: rustix::thread::sched_getaffinity(None).map_or(1, |set| u64::from(set.count())),
            quota: Limits::of_this_process().cores,
            vectors,
            matrices,
            governors: governors(),
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        [Some(self.of_cores()), Some(self.of_kernels()), self.of_governors()].into_iter().flatten().collect()
    }

    fn of_cores(&self) -> Finding {
        let cores = figures::counted(self.cores, "core");
        let finding = match self.quota {
            Some(quota) if quota < self.cores as f64 => Finding::warn(
                "cpu",
                format!("{cores}, but the control group has the time of {quota:.1}"),
                "raise the quota (CPUQuota= of the service, the CPU limit of the container), or set `training.threads`",
            ),
            _ => Finding::ok("cpu", cores),
        };
        finding.with("cores", self.cores as f64)
    }

    fn of_kernels(&self) -> Finding {
        let matrices = match self.matrices {
            Some(name) => format!("{name} for bf16"),
            None => "bf16 is emulated".to_owned(),
        };
        let found = format!("kernels use {}; {matrices}", self.vectors);
        if self.vectors == "SSE2" {
            let advice = "use a CPU with AVX2; in a VM, give it the host's CPU model (`-cpu host`)";
            return Finding::warn("cpu.kernels", found, advice);
        }
        Finding::ok("cpu.kernels", found)
    }

    /// `None` if the kernel does not control the frequency, as in most VMs.
    fn of_governors(&self) -> Option<Finding> {
        let names: BTreeSet<&str> = self.governors.iter().map(|(_, governor)| governor.as_str()).collect();
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        // In their active mode, these drivers raise the frequency with the load under this name, too.
        let is_slow = |(driver, governor): &(String, String)| {
            let scales = matches!(driver.as_str(), "intel_pstate" | "amd-pstate-epp");
            governor == "powersave" && !scales
        };
        let found = format!("frequency governor {names}");
        let slow = self.governors.iter().any(is_slow);
        let advice = "sudo cpupower frequency-set -g performance";
        (!names.is_empty()).then(|| match slow {
            true => Finding::warn("cpu.governor", found, advice),
            false => Finding::ok("cpu.governor", found),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Mark;
    use super::*;

    fn facts() -> Facts {
        let governors = [("acpi-cpufreq".to_owned(), "performance".to_owned())].into();
        Facts { cores: 8, quota: None, vectors: "AVX2", matrices: None, governors }
    }

    fn marks(facts: &Facts) -> Vec<Mark> {
        facts.findings().iter().map(|finding| finding.mark).collect()
    }

    #[test]
    fn a_fast_cpu_is_ok() {
        assert_eq!(marks(&facts()), [Mark::Ok; 3]);
        let amx = Facts { vectors: "AVX-512", matrices: Some("AMX-BF16"), ..facts() };
        assert_eq!(amx.of_kernels().found, "kernels use AVX-512; AMX-BF16 for bf16");
        let of_vm = Facts { governors: BTreeSet::new(), quota: Some(8.0), ..facts() };
        assert_eq!(marks(&of_vm), [Mark::Ok; 2]);
    }

    #[test]
    fn what_makes_a_cpu_slow_is_a_warning() {
        let limited = Facts { quota: Some(1.5), ..facts() };
        assert_eq!(marks(&limited), [Mark::Warn, Mark::Ok, Mark::Ok]);
        assert_eq!(limited.of_cores().found, "8 cores, but the control group has the time of 1.5");
        assert_eq!(marks(&Facts { vectors: "SSE2", ..facts() })[1], Mark::Warn);
        for (driver, mark) in [("acpi-cpufreq", Mark::Warn), ("intel_pstate", Mark::Ok)] {
            let governors = [(driver.to_owned(), "powersave".to_owned())].into();
            assert_eq!(marks(&Facts { governors, ..facts() })[2], mark, "{driver}");
        }
    }
}
