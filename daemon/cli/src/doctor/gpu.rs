//! GPUs: device nodes, driver, libraries, and whether a job could open each GPU. A worker opens them.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use millstream_daemon::survey::open_gpus_with_current_exe;
use millstream_worker::survey::{GpuSurvey, HostSurvey, OpenedGpu};

use super::finding::Finding;
use super::system::{text, within};
use super::xid::Xids;
use super::{gpu_state, xid};
use crate::figures::bytes;

/// Time limit for the driver to open all GPUs.
const LIMIT: Duration = Duration::from_secs(60);

/// The vendor and the class of a GPU in the PCI bus's files.
const NVIDIA: &str = "0x10de";
const DISPLAY_CLASS: &str = "0x03";

const INSTALL: &str = "install NVIDIA's driver 580 or later, then restart the host: packages nvidia-driver-580 or your \
                       cloud's GPU image";

/// What was found out about GPUs.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// NVIDIA's GPUs on the PCI bus.
    on_bus: usize,
    /// The first line of the kernel module's version; `None` if it is not loaded.
    module: Option<String>,
    /// The device nodes, each with the error of opening it.
    nodes: Vec<(String, Option<ErrorKind>)>,
    /// What a worker found; `None` if it did not answer.
    survey: Option<Result<HostSurvey, String>>,
    /// What NVML reports.
    state: gpu_state::State,
    /// The kernel module's errors; `None` if this user may not read them.
    xids: Option<Xids>,
}

impl Facts {
    pub(super) fn gather() -> Self {
        let survey = within(LIMIT, || open_gpus_with_current_exe().map_err(|error| format!("{error:#}")));
        // A driver that hangs is waited for once.
        let state = if survey.is_some() { gpu_state::gather() } else { None };
        Self {
            on_bus: gpus_on_bus(),
            module: text("/proc/driver/nvidia/version")
                .and_then(|text| Some(text.lines().next()?.to_owned())),
            nodes: nodes(),
            survey,
            state,
            xids: xid::gather(),
        }
    }

    /// Whether the host has a GPU, usable or not.
    pub(super) fn has_gpu(&self) -> bool {
        let is_found = matches!(&self.survey, Some(Ok(survey)) if !survey.gpus.is_empty());
        is_found || self.on_bus > 0 || self.module.is_some() || !self.nodes.is_empty()
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        if !self.has_gpu() {
            return vec![Finding::ok("gpu", "no NVIDIA GPU: jobs train on the CPU")];
        }
        let mut findings = vec![self.of_driver()];
        findings.extend(self.of_nodes());
        match &self.survey {
            None => findings.push(Finding::fail(
                "gpu",
                format!("NVIDIA's driver does not answer within {} s", LIMIT.as_secs()),
                "sudo dmesg | grep -i nvrm shows its errors; restart the host",
            )),
            Some(Err(error)) => findings.push(Finding::fail(
                "gpu",
                error.clone(),
                "MILLSTREAM_LOG=debug millstream doctor shows more",
            )),
            Some(Ok(survey)) => findings.extend(of_survey(survey)),
        }
        if self.survey.is_some() {
            findings.extend(gpu_state::findings(&self.state));
        }
        findings.extend(xid::findings(self.xids.as_ref()));
        findings
    }

    fn of_driver(&self) -> Finding {
        match &self.module {
            Some(version) => Finding::ok("gpu.driver", short(version)),
            None if self.on_bus > 0 => Finding::fail(
                "gpu.driver",
                format!("{} on the PCI bus, but NVIDIA's kernel module is not loaded", gpus(self.on_bus)),
                format!("sudo modprobe nvidia; if there is no such module, {INSTALL}"),
            ),
            None => Finding::skipped("gpu.driver", "the kernel module's version is not visible here"),
        }
    }

    fn of_nodes(&self) -> Option<Finding> {
        let closed = self.nodes.iter().find_map(|(node, error)| Some((node, (*error)?)));
        if let Some((node, error)) = closed {
            let advice = format!(
                "ls -l {node}; sudo usermod -aG video $USER, if its group is video, then log in again"
            );
            return Some(Finding::fail("gpu.devices", format!("{node}: {error}"), advice));
        }
        if self.nodes.is_empty() {
            self.module.as_ref()?;
            let advice =
                "sudo nvidia-modprobe -c 0 -u (the packaged service does so); in a container: --gpus all";
            return Some(Finding::fail("gpu.devices", "no /dev/nvidia* nodes", advice));
        }
        Some(Finding::ok("gpu.devices", format!("this user may use {} device nodes", self.nodes.len())))
    }
}

fn of_survey(survey: &HostSurvey) -> Vec<Finding> {
    let mut findings = Vec::new();
    let versions = survey.libraries.iter().filter_map(|library| {
        Some(format!("{} {}", short_name(&library.library), library.version.as_ref()?))
    });
    let versions = versions.collect::<Vec<_>>().join(", ");
    if !versions.is_empty() {
        findings.push(Finding::ok("gpu.libraries", versions));
    }
    for library in &survey.libraries {
        let Some(problem) = &library.problem else { continue };
        let advice = "after installing it, `sudo ldconfig`; or set MILLSTREAM_CUDA_LIBRARIES to the directory of all \
                      CUDA libraries";
        findings.push(match library.for_several_gpus {
            true => Finding::warn("gpu.libraries", format!("{problem}; one GPU works without"), advice),
            false => Finding::fail("gpu.libraries", problem.clone(), advice),
        });
    }
    if let Some(problem) = &survey.problem {
        let advice = "nvidia-smi shows the state; sudo dmesg | grep -i nvrm the driver's errors";
        findings.push(Finding::fail("gpu", problem.clone(), advice));
    }
    findings.extend(survey.gpus.iter().map(of_gpu));
    findings
}

fn of_gpu(gpu: &GpuSurvey) -> Finding {
    let GpuSurvey { number, name, capability, memory_bytes, opened, .. } = gpu;
    let found = format!("cuda:{number}, {name}, compute capability {capability}");
    match opened {
        Some(OpenedGpu::FreeBytes(free)) => {
            let found = format!("{found}, {} of {} free", bytes(*free), bytes(*memory_bytes));
            let finding = match *free < memory_bytes / 2 {
                true => Finding::warn("gpu", found, "nvidia-smi lists the processes that use it"),
                false => Finding::ok("gpu", found),
            };
            finding.with("free_bytes", *free as f64).with("memory_bytes", *memory_bytes as f64)
        }
        Some(OpenedGpu::Problem(problem)) => Finding::fail(
            "gpu",
            format!("{found}: {problem}"),
            "train on another GPU or the CPU (`training.device`); nvidia-smi shows the state of this one",
        ),
        None => Finding::skipped("gpu", format!("{found}; not opened")),
    }
}

/// `cuBLASLt` of `NVIDIA's GEMM library (cuBLASLt)`.
fn short_name(library: &str) -> &str {
    let in_brackets = library.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    in_brackets.unwrap_or(if library.contains("driver") { "CUDA" } else { library })
}

/// The version in the line of the kernel module.
fn short(line: &str) -> String {
    let is_version =
        |word: &&str| word.contains('.') && word.starts_with(|first: char| first.is_ascii_digit());
    match line.split_whitespace().find(is_version) {
        Some(version) => format!("kernel module {version}"),
        None => line.to_owned(),
    }
}

fn gpus(number: usize) -> String {
    if number == 1 { "1 GPU is".to_owned() } else { format!("{number} GPUs are") }
}

fn gpus_on_bus() -> usize {
    let Ok(devices) = fs::read_dir("/sys/bus/pci/devices") else { return 0 };
    let is_gpu = |device: &Path| {
        text(device.join("vendor")).as_deref() == Some(NVIDIA)
            && text(device.join("class")).is_some_and(|class| class.starts_with(DISPLAY_CLASS))
    };
    devices.flatten().filter(|device| is_gpu(&device.path())).count()
}

/// The device nodes that jobs need.
fn nodes() -> Vec<(String, Option<ErrorKind>)> {
    let Ok(devices) = fs::read_dir("/dev") else { return Vec::new() };
    let is_needed = |name: &str| {
        let number = name.strip_prefix("nvidia");
        matches!(number, Some("ctl" | "-uvm")) || number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let names = devices.flatten().filter_map(|device| device.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| is_needed(name)).collect();
    names.sort();
    let opened = |name: String| {
        let path = format!("/dev/{name}");
        let error = File::options().read(true).write(true).open(&path).err();
        (path, error.map(|error| error.kind()))
    };
    names.into_iter().map(opened).collect()
}

#[cfg(test)]
mod tests {
    use millstream_worker::gpus::{GpuSample, GpuUse};
    use millstream_worker::survey::LibrarySurvey;

    use super::super::finding::Mark;
    use super::*;

    fn gpu(opened: OpenedGpu) -> GpuSurvey {
        GpuSurvey {
            number: 0,
            name: "H100".into(),
            capability: "9.0".into(),
            multiprocessors: 132,
            memory_bytes: 80 << 30,
            opened: Some(opened),
        }
    }

    fn sound() -> GpuUse {
        GpuUse { pci: "00000000:17:00.0".into(), celsius: Some(41), ..GpuUse::default() }
    }

    fn library(name: &str, problem: Option<&str>, for_several_gpus: bool) -> LibrarySurvey {
        let version = problem.is_none().then(|| "13.0".to_owned());
        LibrarySurvey { library: name.into(), version, problem: problem.map(Into::into), for_several_gpus }
    }

    fn facts(libraries: Vec<LibrarySurvey>, gpus: Vec<GpuSurvey>) -> Facts {
        Facts {
            on_bus: 1,
            module: Some("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep".into()),
            nodes: vec![("/dev/nvidia0".into(), None)],
            survey: Some(Ok(HostSurvey { libraries, gpus, problem: None })),
            state: Some(Ok(GpuSample::Gpus { gpus: vec![sound()] })),
            xids: Some(Xids::new()),
        }
    }

    fn worst(facts: &Facts) -> Finding {
        let findings = facts.findings();
        let rank = |finding: &&Finding| {
            [Mark::Skipped, Mark::Ok, Mark::Warn, Mark::Fail].iter().position(|mark| *mark == finding.mark)
        };
        findings.iter().max_by_key(rank).cloned().expect("a finding")
    }

    #[test]
    fn a_host_without_a_gpu_is_ok() {
        let nothing = Facts { survey: Some(Err("no worker".into())), ..Facts::default() };
        assert_eq!(nothing.findings(), [Finding::ok("gpu", "no NVIDIA GPU: jobs train on the CPU")]);
    }

    #[test]
    fn a_gpu_is_described() {
        let libraries =
            vec![library("NVIDIA's driver", None, false), library("GEMM (cuBLASLt)", None, false)];
        let facts = facts(libraries, vec![gpu(OpenedGpu::FreeBytes(79 << 30))]);
        let found: Vec<_> = facts.findings().into_iter().map(|finding| finding.found).collect();
        let wanted = [
            "kernel module 580.95.05",
            "this user may use 1 device nodes",
            "CUDA 13.0, cuBLASLt 13.0",
            "cuda:0, H100, compute capability 9.0, 79.0 GiB of 80.0 GiB free",
            "GPU 0, PCI 00000000:17:00.0, 41 C: no memory errors, full clocks",
            "no errors of GPUs in the kernel's log",
        ];
        assert_eq!(found, wanted);
        assert_eq!(worst(&facts).mark, Mark::Ok);
    }

    #[test]
    fn each_obstacle_is_named() {
        let whole = facts(vec![], vec![gpu(OpenedGpu::FreeBytes(79 << 30))]);
        let closed = vec![("/dev/nvidia0".to_owned(), Some(ErrorKind::PermissionDenied))];
        for (facts, mark, check) in [
            (Facts { module: None, ..whole.clone() }, Mark::Fail, "gpu.driver"),
            (Facts { nodes: closed, ..whole.clone() }, Mark::Fail, "gpu.devices"),
            (Facts { nodes: vec![], ..whole.clone() }, Mark::Fail, "gpu.devices"),
            (Facts { survey: None, ..whole.clone() }, Mark::Fail, "gpu"),
            (Facts { survey: Some(Err("dead".into())), ..whole.clone() }, Mark::Fail, "gpu"),
            (facts(vec![library("NVRTC", Some("is absent"), false)], vec![]), Mark::Fail, "gpu.libraries"),
            (facts(vec![library("NCCL", Some("is absent"), true)], vec![]), Mark::Warn, "gpu.libraries"),
            (facts(vec![], vec![gpu(OpenedGpu::FreeBytes(1 << 30))]), Mark::Warn, "gpu"),
            (facts(vec![], vec![gpu(OpenedGpu::Problem("too old".into()))]), Mark::Fail, "gpu"),
            (Facts { state: None, ..whole.clone() }, Mark::Warn, "gpu.state"),
            (
                Facts { xids: Some([(("0".into(), 79), (1, String::new()))].into()), ..whole },
                Mark::Warn,
                "gpu.xid",
            ),
        ] {
            let worst = worst(&facts);
            assert_eq!((worst.mark, worst.check), (mark, check), "{worst:?}");
            assert!(worst.advice.is_some());
        }
    }
}
