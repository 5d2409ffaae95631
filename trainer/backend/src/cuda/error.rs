//! Why the GPU cannot be used.

use super::blas::OpenBlasError;
use super::driver::{Context, DriverError, Fault, OutOfMemory};
use super::fault::GpuError;
use super::programs::ProgramError;
use crate::library::LibraryError;

/// Why the GPU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// The driver or the device.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The run-time compiler.
    #[error(transparent)]
    Compiler(#[from] LibraryError),
    /// The kernels.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The GEMM library.
    #[error(transparent)]
    Blas(#[from] OpenBlasError),
}

impl CudaError {
    /// The same error; an out-of-memory error also reports the GPU's free memory.
    pub(super) fn of_opened(self, context: &Context) -> Self {
        match self.fault().filter(|fault| fault.is_out_of_memory()) {
            Some(fault) => DriverError::OutOfMemory(Box::new(OutOfMemory {
                gpu: context.gpu().clone(),
                free_bytes: context.free_bytes().ok(),
                fault: fault.clone(),
            }))
            .into(),
            None => self,
        }
    }

    /// Whether the GPU has too little free memory: a retry may succeed after other programs have freed some.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Driver(DriverError::OutOfMemory(_)))
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
