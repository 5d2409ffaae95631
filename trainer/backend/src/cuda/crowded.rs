//! A GPU without room for what comes before any job: its context, kernels, and what products work in.

use super::driver::{Context, DriverError, Fault, Gpu};
use super::fault::GpuError;
use super::{CudaError, OpenBlasError, ProgramError};

/// Why a GPU cannot be opened that is there, and new enough, and full.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "GPU {number} ({name}) has too little memory left to begin with: {left}, and nothing of this job is there yet; \
     end what else runs on it (`nvidia-smi` lists it), or give the job another by `training.device` ({fault})",
    number = .gpu.number,
    name = .gpu.name,
    left = left(.gpu, *.free_bytes)
)]
pub struct Crowded {
    /// Which.
    pub gpu: Gpu,
    /// What nobody holds of its memory, where the driver says it.
    pub free_bytes: Option<u64>,
    /// What the driver says.
    pub fault: Fault,
}

fn left(gpu: &Gpu, free_bytes: Option<u64>) -> String {
    match free_bytes {
        Some(free) => format!("{free} bytes are free of its {}", gpu.memory_bytes),
        None => format!("it has {} bytes in all", gpu.memory_bytes),
    }
}

impl CudaError {
    /// The same error, or if it is of too little memory, what is known of that memory.
    pub(super) fn of_opened(self, context: &Context) -> Self {
        match self.fault().filter(|fault| fault.is_out_of_memory()) {
            Some(fault) => DriverError::Crowded(Box::new(Crowded {
                gpu: context.gpu().clone(),
                free_bytes: context.free_bytes().ok(),
                fault: fault.clone(),
            }))
            .into(),
            None => self,
        }
    }

    /// Whether the GPU had too little memory: with others gone, another try may do better.
    pub fn is_crowded(&self) -> bool {
        matches!(self, Self::Driver(DriverError::Crowded(_)))
    }

    fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Driver(DriverError::Fault(fault))
            | Self::Program(ProgramError::Load { fault, .. })
            | Self::Blas(OpenBlasError::Fault(fault)) => Some(fault),
            _ => None,
        }
    }
}
