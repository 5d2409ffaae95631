//! The survey of a host's GPUs and CUDA libraries.
//!
//! Only workers touch a GPU: a driver that hangs or crashes takes down a worker, not the daemon.

use anyhow::{Result, anyhow};
use millstream_backend::{Cpu, CpuInstructions, Found, Gpu, Survey};
use serde::{Deserialize, Serialize};

use crate::device;

/// The GPUs and CUDA libraries of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSurvey {
    /// The CUDA libraries and the driver.
    pub libraries: Vec<LibrarySurvey>,
    /// The GPUs that the driver reports.
    pub gpus: Vec<GpuSurvey>,
    /// Why the driver does not report one or all of the GPUs.
    pub problem: Option<String>,
}

/// An NVIDIA library on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibrarySurvey {
    /// Its name.
    pub library: String,
    /// Its version, if it is installed and recent enough.
    pub version: Option<String>,
    /// Otherwise the problem and its remedy.
    pub problem: Option<String>,
    /// Whether only jobs on several GPUs need it.
    pub for_several_gpus: bool,
}

/// A GPU of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuSurvey {
    /// Its index.
    pub number: u32,
    /// The vendor's name of the GPU.
    pub name: String,
    /// Compute capability, as in `9.0`.
    pub capability: String,
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Total memory.
    pub memory_bytes: u64,
    /// The result of opening it, if the survey was asked to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened: Option<OpenedGpu>,
}

/// A GPU that was opened as a job opens it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpenedGpu {
    /// The memory that no process holds.
    FreeBytes(u64),
    /// Why a job cannot use it.
    Problem(String),
}

/// The instructions that training on the CPU uses on this host: of vectors, and of bfloat16 matrices if it has any.
pub fn cpu_instructions() -> (&'static str, Option<&'static str>) {
    let CpuInstructions { vectors, matrices } = Cpu::instructions();
    (vectors, matrices)
}

impl HostSurvey {
    /// GPU number `number`.
    ///
    /// # Errors
    /// When there is no such GPU; the error contains the reason if it is known.
    pub fn gpu(&self, number: u32) -> Result<&GpuSurvey> {
        let gpu = self.gpus.iter().find(|gpu| gpu.number == number);
        let library_problem = || {
            let mut needed = self.libraries.iter().filter(|library| !library.for_several_gpus);
            let problem = needed.find_map(|library| library.problem.as_ref());
            problem.filter(|_| self.gpus.is_empty())
        };
        gpu.ok_or_else(|| match self.problem.as_ref().or_else(library_problem) {
            Some(problem) => anyhow!("{problem}"),
            None => anyhow!("there is no GPU number {number} on this host, which has {}", self.gpus.len()),
        })
    }

    /// Surveys the host in this process, and opens the GPUs if `opens`; for workers only.
    pub(crate) fn of_this_host(opens: bool) -> Self {
        let survey = Survey::of(&device::libraries());
        let opened = if opens { survey.try_gpus(&device::libraries()) } else { Vec::new() };
        let mut opened = opened.into_iter().map(|opened| match opened {
            Ok(free_bytes) => OpenedGpu::FreeBytes(free_bytes),
            Err(problem) => OpenedGpu::Problem(problem),
        });
        let Survey { libraries, gpus, problem } = survey;
        let library = |Found { library, version, is_for_several }| LibrarySurvey {
            library: String::from(library),
            problem: version.as_ref().err().cloned(),
            version: version.ok(),
            for_several_gpus: is_for_several,
        };
        let gpu =
            |Gpu { number, name, capability: (major, minor), multiprocessors, memory_bytes, driver: _ }| {
                let (capability, opened) = (format!("{major}.{minor}"), opened.next());
                GpuSurvey { number, name, capability, multiprocessors, memory_bytes, opened }
            };
        Self {
            libraries: libraries.into_iter().map(library).collect(),
            gpus: gpus.into_iter().map(gpu).collect(),
            problem,
        }
    }
}
