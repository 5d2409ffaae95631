//! The device that a worker computes on.

use std::env;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use millstream_backend::{Backend, Cpu, Cuda, CudaError, DeviceFault, DriverError, Libraries, PinError};
use millstream_trace::Recorder;
use millstream_trainer::spec::DeviceSpec;

use crate::link::Link;
use crate::protocol::FromWorker;

/// The environment variable that names the directory of CUDA's libraries, for hosts whose loader does not
/// find them.
pub const LIBRARIES_VARIABLE: &str = "MILLSTREAM_CUDA_LIBRARIES";

/// The same for UCX, over which several workers of a job communicate.
pub const UCX_LIBRARIES_VARIABLE: &str = "MILLSTREAM_UCX_LIBRARIES";

/// Work that runs on any device.
pub(crate) trait DeviceTask {
    /// Does the work, and returns the last message. `open` opens the device with a number of CPU threads, `None` for one per core; its operations are
    /// recorded by the recorder.
    fn run<B: Backend<Scalar = f32>>(
        self,
        open: impl Fn(Option<u32>, Arc<Recorder>) -> Result<B>,
        link: &mut Link,
    ) -> Result<FromWorker>;
}

/// Runs `task` on the device that `spec` names: the only place that distinguishes devices.
pub(crate) fn with_device(spec: DeviceSpec, task: impl DeviceTask, link: &mut Link) -> Result<FromWorker> {
    match spec {
        DeviceSpec::Cpu => task.run(|threads, recorder| Ok(Cpu::new(threads)?.with_recorder(recorder)), link),
        DeviceSpec::Cuda(number) => task.run(|_, recorder| Ok(cuda(number)?.with_recorder(recorder)), link),
    }
}

/// GPU number `number`.
///
/// # Errors
/// When there is no such GPU, or a library is missing or too old.
///
/// # Panics
/// When the GPU's memory is exhausted: other processes may have freed some by the next attempt.
fn cuda(number: u32) -> Result<Cuda> {
    match Cuda::new(&libraries(), number, kernel_cache().as_deref()) {
        Err(error) if error.is_out_of_memory() => {
            DeviceFault { message: error.to_string(), out_of_memory: true }.raise()
        }
        opened => opened.with_context(|| format!("training.device = \"cuda:{number}\"")),
    }
}

/// Whether a worker has ended with `error` because its device is absent or cannot be opened, while others of the host may work.
pub(crate) fn is_unusable(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| match cause.downcast_ref() {
        Some(CudaError::Driver(DriverError::NoDevice { .. })) => true,
        // This function opens the driver, for all GPUs.
        Some(CudaError::Driver(DriverError::Fault(fault))) => fault.function != "cuInit",
        _ => false,
    })
}

/// Keeps the memory of rings pinned for asynchronous copies. If pinning fails, warns the daemon and keeps none; training
/// continues with slower copies.
///
/// # Errors
/// When the daemon's socket is closed.
pub(crate) fn pinned<P>(pinned: Result<Vec<P>, PinError>, link: &mut Link) -> Result<Vec<P>> {
    match pinned {
        Ok(pinned) => Ok(pinned),
        Err(error) => {
            let message = format!(
                "the ring's memory cannot be pinned for the GPU: each batch is copied once more on the host ({error})"
            );
            link.send(&FromWorker::Warned { message })?;
            Ok(Vec::new())
        }
    }
}

/// The CUDA libraries of this host.
pub(crate) fn libraries() -> Libraries {
    libraries_in(LIBRARIES_VARIABLE)
}

/// The UCX libraries of this host.
pub(crate) fn ucx_libraries() -> Libraries {
    libraries_in(UCX_LIBRARIES_VARIABLE)
}

/// The libraries in the directory that an environment variable names, or those that the loader finds.
fn libraries_in(variable: &str) -> Libraries {
    env::var_os(variable).map_or_else(Libraries::default, |folder| Libraries::of(&PathBuf::from(folder)))
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
