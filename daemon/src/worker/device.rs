//! The GPU that a worker computes on, and the survey of a host's GPUs and CUDA libraries.
//!
//! The daemon and the commands never touch a GPU themselves: a driver that hangs or crashes takes down a
//! worker only.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use millstream_backend::{Cuda, DEVICE_FAULT, Found, Gpu, Libraries, PinError, Survey};
use serde::{Deserialize, Serialize};

use super::host::WorkerProcess;
use super::process::Link;
use super::protocol::{FromWorker, ToWorker};

/// The environment variable that names the directory of CUDA's libraries, for hosts whose loader does not
/// find them.
pub const LIBRARIES_VARIABLE: &str = "MILLSTREAM_CUDA_LIBRARIES";

/// Time limit for the driver to answer a survey.
const SURVEY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for a worker to exit after its reply.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

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
}

impl HostSurvey {
    /// GPU number `number`.
    ///
    /// # Errors
    /// When there is no such GPU; the error says why as far as known.
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

    /// Asks a worker started from this executable.
    ///
    /// # Errors
    /// As for [`HostSurvey::from_worker`].
    pub fn from_current_exe() -> Result<Self> {
        Self::from_worker(&env::current_exe()?)
    }

    /// Asks a worker started from `program`.
    ///
    /// # Errors
    /// When the worker cannot be started, or dies before it replies.
    pub fn from_worker(program: &Path) -> Result<Self> {
        let mut worker = WorkerProcess::spawn(program, |_| {})?;
        let (sender, receiver) = sync_channel(1);
        let reader = worker.listen(move |message| sender.send(message).is_ok(), || {})?;
        worker.send(&ToWorker::Survey)?;
        let reply = receiver.recv_timeout(SURVEY_TIMEOUT);
        drop(receiver);
        if let Ok(FromWorker::Surveyed { survey }) = reply {
            worker.wait(EXIT_TIMEOUT)?;
            let _ = reader.join();
            return Ok(survey);
        }
        let exit = worker.wait(Duration::ZERO)?;
        bail!("the worker that surveys GPUs failed: {exit}")
    }

    /// Surveys the host in this process; for workers only.
    pub(super) fn of_this_host() -> Self {
        let Survey { libraries, gpus, problem } = Survey::of(&libraries());
        let library = |Found { library, version, is_for_several }| LibrarySurvey {
            library: String::from(library),
            problem: version.as_ref().err().cloned(),
            version: version.ok(),
            for_several_gpus: is_for_several,
        };
        let gpu = |Gpu {
                       number,
                       name,
                       capability: (major, minor),
                       multiprocessors,
                       memory_bytes,
                       driver: _,
                   }| {
            GpuSurvey { number, name, capability: format!("{major}.{minor}"), multiprocessors, memory_bytes }
        };
        Self {
            libraries: libraries.into_iter().map(library).collect(),
            gpus: gpus.into_iter().map(gpu).collect(),
            problem,
        }
    }
}

/// GPU number `number`.
///
/// # Errors
/// When there is no such GPU, or a library is missing or too old.
///
/// # Panics
/// When the GPU's memory is exhausted: other processes may have freed some by the next attempt.
pub(super) fn cuda(number: u32) -> Result<Cuda> {
    match Cuda::new(&libraries(), number, kernel_cache().as_deref()) {
        Err(error) if error.is_crowded() => panic!("{DEVICE_FAULT}{error}"),
        opened => opened.with_context(|| format!("training.device = \"cuda:{number}\"")),
    }
}

/// Keeps the ring's memory pinned for asynchronous copies. If pinning fails, warns the daemon and returns
/// `None`; training continues with slower copies.
///
/// # Errors
/// When the daemon's socket is closed.
pub(super) fn pinned<P>(pinned: Result<P, PinError>, link: &mut Link) -> Result<Option<P>> {
    match pinned {
        Ok(pinned) => Ok(Some(pinned)),
        Err(error) => {
            let message = format!(
                "the ring's memory cannot be pinned for the GPU: each batch is copied once more on the host ({error})"
            );
            link.send(&FromWorker::Warned { message })?;
            Ok(None)
        }
    }
}

/// The CUDA libraries of this host.
pub fn libraries() -> Libraries {
    env::var_os(LIBRARIES_VARIABLE)
        .map_or_else(Libraries::default, |folder| Libraries::of(&PathBuf::from(folder)))
}

/// The cache directory for compiled kernels, from `CACHE_DIRECTORY` (set by the service manager) or the
/// user's cache directory. Without either, kernels are compiled on every start.
fn kernel_cache() -> Option<PathBuf> {
    let of = |variable: &str| env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
    of("CACHE_DIRECTORY")
        .or_else(|| of("XDG_CACHE_HOME").map(|path| path.join("millstream")))
        .or_else(|| of("HOME").map(|path| path.join(".cache/millstream")))
        .map(|path| path.join("kernels"))
}
