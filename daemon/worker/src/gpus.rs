//! A worker that reads how busy the host's GPUs are, through NVML, the library of `nvidia-smi`.
//!
//! A separate process, as the survey is: a driver that hangs or crashes takes down this worker, not the daemon, and the
//! driver can be reloaded once the worker has ended. NVML is opened at run time by the crate `nvml-wrapper`, which looks
//! each function up when it is called. So an older driver, a GPU in MIG mode or a call that is not permitted costs one
//! figure, which is then absent, and not the others. The worker opens no CUDA context and uses no memory of the GPU.

use std::env;
use std::ffi::OsString;
use std::path::Path;

use anyhow::{Result, bail};
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use serde::{Deserialize, Serialize};

use crate::device::LIBRARIES_VARIABLE;
use crate::link::Link;
use crate::protocol::{FromWorker, ToWorker};

/// The library's file.
pub const LIBRARY: &str = "libnvidia-ml.so.1";

/// The environment variable that limits the GPUs that CUDA shows.
pub const VISIBLE_VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// The maximum number of GPUs and of processes on each that a sample contains.
const MAX_GPUS: u32 = 64;
const MAX_PROCESSES: usize = 256;

/// The reasons for a lower clock that somebody can mend, with the words that displays show. The others (an idle GPU, clocks
/// that a user has set) are no throttling.
const REASONS: [(ThrottleReasons, &str); 5] = [
    (ThrottleReasons::SW_POWER_CAP, "power_limit"),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, "heat"),
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hardware_heat"),
    (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power_brake"),
    (ThrottleReasons::HW_SLOWDOWN, "hardware_slowdown"),
];

/// What was read from the driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum GpuSample {
    /// The host has no NVML: the loader's error.
    NoLibrary {
        /// The loader's error.
        reason: String,
    },
    /// All GPUs, in the order of `nvidia-smi`; those of `CUDA_VISIBLE_DEVICES`, if that is set.
    Gpus {
        /// The GPUs.
        gpus: Vec<GpuUse>,
    },
}

/// A GPU at a moment. What the driver does not report is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuUse {
    /// Its number in jobs: its index in `nvidia-smi`, or its place in `CUDA_VISIBLE_DEVICES` if that is set.
    pub number: u32,
    /// `GPU-` and a UUID; empty if unknown.
    pub uuid: String,
    /// The vendor's name; empty if unknown.
    pub name: String,
    /// Its address on the PCI bus; empty if unknown.
    pub pci: String,
    /// Why it cannot be read, for example because it fell off the bus.
    pub problem: Option<String>,
    /// Share of the time in which a kernel ran, from 0 to 1, over the driver's last period of up to a second.
    pub busy: Option<f64>,
    /// Share of the same time in which its memory was read or written.
    pub memory_busy: Option<f64>,
    /// Memory in use.
    pub used_bytes: Option<u64>,
    /// All memory.
    pub memory_bytes: Option<u64>,
    /// Temperature in degrees Celsius.
    pub celsius: Option<u32>,
    /// Power draw in watts.
    pub watts: Option<f64>,
    /// The power limit in watts.
    pub limit_watts: Option<f64>,
    /// Why its clocks are lower than they could be.
    pub throttled_by: Vec<String>,
    /// Memory errors that ECC corrected since the driver was loaded.
    pub corrected_errors: Option<u64>,
    /// Memory errors that ECC could not correct since then.
    pub uncorrected_errors: Option<u64>,
    /// Whether the driver keeps it initialized while no program uses it.
    pub is_persistent: Option<bool>,
    /// Whether it is divided into instances (MIG). The driver then does not report `busy`.
    pub is_divided: bool,
    /// The processes that compute on it; `None` if the driver does not list them.
    pub processes: Option<Vec<GpuProcess>>,
}

/// A process that computes on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Its id, outside of all containers.
    pub pid: u32,
    /// Memory that it uses, if known.
    pub bytes: Option<u64>,
}

/// Replies to each [`ToWorker::SampleGpus`], the first of which has been received, until the daemon closes the socket.
///
/// # Errors
/// When the driver does not answer. Another worker may succeed, once the driver is loaded again.
pub(crate) fn serve(link: &mut Link) -> Result<FromWorker> {
    let path = library();
    let nvml = match Nvml::builder().lib_path(&path).init() {
        Ok(nvml) => nvml,
        Err(NvmlError::LibloadingError(error)) => {
            let reason = error.to_string();
            link.send(&FromWorker::GpusSampled { sample: GpuSample::NoLibrary { reason } })?;
            return Ok(FromWorker::Done { step: 0, stopped_early: None });
        }
        Err(error) => bail!(cannot_open(&error)),
    };
    loop {
        link.send(&FromWorker::GpusSampled { sample: GpuSample::Gpus { gpus: sample(&nvml)? } })?;
        match link.receive()? {
            Some(ToWorker::SampleGpus) => {}
            Some(_) => bail!("a worker that watches GPUs has no other assignment"),
            None => return Ok(FromWorker::Done { step: 0, stopped_early: None }),
        }
    }
}

fn cannot_open(error: &NvmlError) -> String {
    match error {
        // After an upgrade of the driver's packages, until the module is loaded again.
        NvmlError::LibRmVersionMismatch => {
            "NVIDIA's libraries and its kernel module are of different versions; restart the host".to_owned()
        }
        NvmlError::DriverNotLoaded => {
            "NVIDIA's kernel module is not loaded; sudo modprobe nvidia, or restart the host".to_owned()
        }
        NvmlError::NoPermission => {
            "this user may not open NVIDIA's driver; ls -l /dev/nvidia* shows who may".to_owned()
        }
        error => format!("NVIDIA's driver cannot be opened: {error}; `nvidia-smi` shows its state"),
    }
}

/// In the directory of CUDA's libraries if one is set, otherwise where the loader finds it.
fn library() -> OsString {
    match env::var_os(LIBRARIES_VARIABLE) {
        Some(folder) => Path::new(&folder).join(LIBRARY).into_os_string(),
        None => LIBRARY.into(),
    }
}

fn sample(nvml: &Nvml) -> Result<Vec<GpuUse>> {
    let lost = |error| format!("NVIDIA's driver does not answer: {error}; `nvidia-smi` shows its state");
    let count = nvml.device_count().map_err(|error| anyhow::anyhow!(lost(error)))?.min(MAX_GPUS);
    let gpus: Vec<GpuUse> = (0..count)
        .map(|number| match nvml.device_by_index(number) {
            Ok(device) => read(number, &device),
            Err(error) => GpuUse { number, problem: Some(error.to_string()), ..GpuUse::default() },
        })
        .collect();
    // After the driver was reloaded, every call fails until NVML is opened again.
    match gpus.iter().map(|gpu| gpu.problem.as_ref()).collect::<Option<Vec<_>>>() {
        Some(problems) if !problems.is_empty() => bail!(lost_all(problems[0])),
        _ => Ok(visible(gpus, env::var(VISIBLE_VARIABLE).ok().as_deref())),
    }
}

/// The GPUs that CUDA shows a process with this value of [`VISIBLE_VARIABLE`], with CUDA's numbers. NVML counts all GPUs of the
/// host, but jobs, the scheduler and displays must mean the same one by a number. CUDA stops at the first entry that names
/// no GPU. An instance of a divided GPU (MIG) has a number, but is none of NVML's GPUs.
fn visible(gpus: Vec<GpuUse>, list: Option<&str>) -> Vec<GpuUse> {
    let Some(list) = list else { return gpus };
    let mut shown = Vec::new();
    for (number, name) in (0..).zip(list.split(',').map(str::trim)) {
        let is_named = |gpu: &&GpuUse| match name.parse::<u32>() {
            Ok(index) => gpu.number == index,
            // CUDA accepts the beginning of a UUID.
            Err(_) => name.starts_with("GPU-") && gpu.uuid.starts_with(name),
        };
        match gpus.iter().find(is_named) {
            Some(gpu) => shown.push(GpuUse { number, ..gpu.clone() }),
            None if name.starts_with("MIG-") => {}
            None => break,
        }
    }
    shown
}

fn lost_all(problem: &str) -> String {
    format!("NVIDIA's driver has lost all GPUs: {problem}; `nvidia-smi` shows their state")
}

fn read(number: u32, device: &Device<'_>) -> GpuUse {
    let utilization = device.utilization_rates();
    let memory = device.memory_info().ok();
    let share = |percent: u32| f64::from(percent.min(100)) / 100.0;
    let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
    let errors = |kind| device.total_ecc_errors(kind, EccCounter::Volatile).ok();
    let problem = match &utilization {
        Err(error @ (NvmlError::GpuLost | NvmlError::Unknown)) => Some(error.to_string()),
        _ => None,
    };
    GpuUse {
        number,
        uuid: device.uuid().unwrap_or_default(),
        name: device.name().unwrap_or_default(),
        pci: device.pci_info().map(|pci| pci.bus_id).unwrap_or_default(),
        problem,
        busy: utilization.as_ref().ok().map(|found| share(found.gpu)),
        memory_busy: utilization.as_ref().ok().map(|found| share(found.memory)),
        used_bytes: memory.as_ref().map(|memory| memory.used),
        memory_bytes: memory.as_ref().map(|memory| memory.total),
        celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        watts: device.power_usage().ok().map(watts),
        limit_watts: device.enforced_power_limit().ok().map(watts),
        throttled_by: device.current_throttle_reasons().map(words).unwrap_or_default(),
        corrected_errors: errors(MemoryError::Corrected),
        uncorrected_errors: errors(MemoryError::Uncorrected),
        is_persistent: device.is_in_persistent_mode().ok(),
        is_divided: device.mig_mode().is_ok_and(|mode| mode.current != 0),
        processes: device.running_compute_processes().ok().map(|processes| {
            let process = |found: nvml_wrapper::struct_wrappers::device::ProcessInfo| GpuProcess {
                pid: found.pid,
                bytes: match found.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Some(bytes),
                    UsedGpuMemory::Unavailable => None,
                },
            };
            processes.into_iter().take(MAX_PROCESSES).map(process).collect()
        }),
    }
}

/// The words for the reasons. The driver sets `HW_SLOWDOWN` together with its cause.
fn words(reasons: ThrottleReasons) -> Vec<String> {
    let causes = ThrottleReasons::HW_THERMAL_SLOWDOWN | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN;
    let is_explained = reasons.intersects(causes);
    REASONS
        .iter()
        .filter(|(reason, _)| reasons.contains(*reason))
        .filter(|(reason, _)| *reason != ThrottleReasons::HW_SLOWDOWN || !is_explained)
        .map(|(_, word)| (*word).to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_that_are_no_throttling_have_no_word() {
        assert_eq!(words(ThrottleReasons::GPU_IDLE | ThrottleReasons::SYNC_BOOST), [""; 0]);
        let hot = ThrottleReasons::HW_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN;
        assert_eq!(words(hot), ["hardware_heat"]);
        assert_eq!(words(ThrottleReasons::HW_SLOWDOWN), ["hardware_slowdown"]);
        assert_eq!(words(ThrottleReasons::all()).len(), 4);
    }

    #[test]
    fn visible_gpus_have_the_numbers_of_cuda() {
        let gpus: Vec<GpuUse> = (0..4)
            .map(|number| GpuUse { number, uuid: format!("GPU-{number}a-{number}b"), ..GpuUse::default() })
            .collect();
        let shown = |list| -> Vec<(u32, String)> {
            visible(gpus.clone(), list).into_iter().map(|gpu| (gpu.number, gpu.uuid)).collect()
        };
        let numbered = |indices: &[u32]| -> Vec<(u32, String)> {
            (0..).zip(indices).map(|(number, index)| (number, format!("GPU-{index}a-{index}b"))).collect()
        };
        assert_eq!(shown(None), numbered(&[0, 1, 2, 3]));
        assert_eq!(shown(Some("2,0")), numbered(&[2, 0]));
        assert_eq!(shown(Some("GPU-3a, 1")), numbered(&[3, 1]));
        assert_eq!(shown(Some("1,9,2")), numbered(&[1]), "nothing after a GPU that does not exist");
        for none in ["", "-1", "none"] {
            assert_eq!(shown(Some(none)), [], "{none}");
        }
        assert_eq!(shown(Some("MIG-1,2")), [(1, "GPU-2a-2b".to_owned())]);
    }

    #[test]
    fn what_keeps_the_driver_closed_comes_with_what_to_do() {
        for (error, sign) in [
            (NvmlError::LibRmVersionMismatch, "different versions; restart the host"),
            (NvmlError::DriverNotLoaded, "modprobe nvidia"),
            (NvmlError::NoPermission, "ls -l /dev/nvidia*"),
            (NvmlError::Unknown, "nvidia-smi"),
        ] {
            let message = cannot_open(&error);
            assert!(message.contains(sign), "{message}");
        }
    }
}
