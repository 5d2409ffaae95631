//! Running out of memory before any job's data: for the context, the kernels or the cuBLASLt workspace.

use super::{Fault, Gpu};

/// Other processes left too little free memory on a GPU to open it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "GPU {number} ({name}) has too little free memory to start: {left}, and this job has allocated none yet; stop \
     other programs on it (`nvidia-smi` lists them), or choose another GPU with `training.device` ({fault})",
    number = .gpu.number,
    name = .gpu.name,
    left = left(.gpu, *.free_bytes)
)]
pub struct OutOfMemory {
    /// The GPU.
    pub gpu: Gpu,
    /// Bytes of free memory, if the driver reports them.
    pub free_bytes: Option<u64>,
    /// The driver's error.
    pub fault: Fault,
}

fn left(gpu: &Gpu, free_bytes: Option<u64>) -> String {
    match free_bytes {
        Some(free) => format!("{free} bytes are free of its {}", gpu.memory_bytes),
        None => format!("it has {} bytes in all", gpu.memory_bytes),
    }
}
