//! The GPU that a worker computes on, and what a host has and lacks for that.
//!
//! The daemon and the commands never touch a GPU: a driver that hangs or crashes takes nobody with it but a worker.

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

/// Names a folder that CUDA's libraries are in, if the system's loader does not find them.
pub const LIBRARIES: &str = "MILLSTREAM_CUDA_LIBRARIES";

/// A driver that says nothing for so long is not waited for.
const SURVEY_LIMIT: Duration = Duration::from_secs(60);
/// How long the worker may take to end, having told all.
const END_LIMIT: Duration = Duration::from_secs(5);

/// What a host has for computing on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSurvey {
    /// What kernels need besides a GPU.
    pub libraries: Vec<LibrarySurvey>,
    /// The GPUs that the driver knows.
    pub gpus: Vec<GpuSurvey>,
    /// Why it does not say so of one of them, or of any.
    pub problem: Option<String>,
}

/// A library of NVIDIA's on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibrarySurvey {
    /// What it is called.
    pub library: String,
    /// Its version, if it is there and will do.
    pub version: Option<String>,
    /// Else what is wrong, and what to do.
    pub problem: Option<String>,
    /// Whether only jobs on several GPUs need it.
    pub for_several_gpus: bool,
}

/// A GPU of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuSurvey {
    /// Its number.
    pub number: u32,
    /// As its maker calls it.
    pub name: String,
    /// Compute capability, as in `9.0`.
    pub capability: String,
    /// How many multiprocessors it has.
    pub multiprocessors: u32,
    /// All its memory.
    pub memory_bytes: u64,
}

impl HostSurvey {
    /// GPU number `number`.
    ///
    /// # Errors
    /// When there is none: why, as far as it is known.
    pub fn gpu(&self, number: u32) -> Result<&GpuSurvey> {
        let gpu = self.gpus.iter().find(|gpu| gpu.number == number);
        let of_libraries = || {
            let mut needed = self.libraries.iter().filter(|library| !library.for_several_gpus);
            let problem = needed.find_map(|library| library.problem.as_ref());
            problem.filter(|_| self.gpus.is_empty())
        };
        gpu.ok_or_else(|| match self.problem.as_ref().or_else(of_libraries) {
            Some(problem) => anyhow!("{problem}"),
            None => anyhow!("there is no GPU number {number} on this host, which has {}", self.gpus.len()),
        })
    }

    /// Asks a worker, started as this program is.
    ///
    /// # Errors
    /// As of [`HostSurvey::by_worker`].
    pub fn by_this_program() -> Result<Self> {
        Self::by_worker(&env::current_exe()?)
    }

    /// Asks a worker, started as `program`.
    ///
    /// # Errors
    /// When there is no worker, or it dies before it answers.
    pub fn by_worker(program: &Path) -> Result<Self> {
        let mut worker = WorkerProcess::spawn(program, |_| {})?;
        let (answer, answers) = sync_channel(1);
        let listening = worker.listen(move |message| answer.send(message).is_ok(), || {})?;
        worker.send(&ToWorker::Survey)?;
        let answered = answers.recv_timeout(SURVEY_LIMIT);
        drop(answers);
        if let Ok(FromWorker::Surveyed { survey }) = answered {
            worker.wait(END_LIMIT)?;
            let _ = listening.join();
            return Ok(survey);
        }
        let ending = worker.wait(Duration::ZERO)?;
        bail!("looking for GPUs, a worker ended: {ending}")
    }

    /// Looks by itself; for a worker.
    pub(super) fn of_host() -> Self {
        let Survey { libraries, gpus, problem } = Survey::of(&libraries());
        let of_library = |Found { library, version, is_for_several }| LibrarySurvey {
            library: String::from(library),
            problem: version.as_ref().err().cloned(),
            version: version.ok(),
            for_several_gpus: is_for_several,
        };
        let of_gpu = |Gpu {
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
            libraries: libraries.into_iter().map(of_library).collect(),
            gpus: gpus.into_iter().map(of_gpu).collect(),
            problem,
        }
    }
}

/// GPU number `number`.
///
/// # Errors
/// When there is none, or a library is missing or too old.
///
/// # Panics
/// When it has no room: others may have left it by the next try.
pub(super) fn cuda(number: u32) -> Result<Cuda> {
    match Cuda::new(&libraries(), number, kernel_folder().as_deref()) {
        Err(error) if error.is_crowded() => panic!("{DEVICE_FAULT}{error}"),
        opened => opened.with_context(|| format!("training.device = \"cuda:{number}\"")),
    }
}

/// What holds the ring's memory for the device to copy from by itself. Where it cannot be had that is said, and training goes on.
///
/// # Errors
/// When nobody listens.
pub(super) fn pinned<P>(pinned: Result<P, PinError>, link: &mut Link) -> Result<Option<P>> {
    match pinned {
        Ok(pinned) => Ok(Some(pinned)),
        Err(error) => {
            let message = format!(
                "the GPU cannot copy from the ring's memory by itself: each batch is copied once more on the host \
                 ({error})"
            );
            link.send(&FromWorker::Warned { message })?;
            Ok(None)
        }
    }
}

/// CUDA's libraries of this host.
pub fn libraries() -> Libraries {
    env::var_os(LIBRARIES).map_or_else(Libraries::default, |folder| Libraries::of(&PathBuf::from(folder)))
}

/// Where kernels are kept that were compiled for this host's GPU: where the service manager says, or where a user's caches
/// are. Without either they are compiled anew each time.
fn kernel_folder() -> Option<PathBuf> {
    let of = |variable: &str| env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
    of("CACHE_DIRECTORY")
        .or_else(|| of("XDG_CACHE_HOME").map(|path| path.join("millstream")))
        .or_else(|| of("HOME").map(|path| path.join(".cache/millstream")))
        .map(|path| path.join("kernels"))
}
