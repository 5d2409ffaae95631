//! Too little memory for what precedes any job: the context, the kernels and the workspace of matrix products.

use super::{Fault, Gpu};

/// Other programs have left a GPU too little memory to open it.
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
