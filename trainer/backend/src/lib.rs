//! Devices: buffers, kernels and fused operations of the CPU and its plain reference.

mod backend;
mod cpu;
mod cuda;
mod device;
mod error;
mod float;
mod host;
mod measured;
mod normalization;
pub mod philox;
mod reference;
mod retrieval;
mod sizes;
mod update;

pub use backend::{
    Activation, Backend, GradientColumns, LayerGradient, Loss, MixtureShape, RowGradients, Sum, Task,
};
pub use cpu::{Cpu, CpuMatrix, CpuRowPlan, CpuTable};
pub use cuda::{
    CompileError, Cuda, CudaBatch, CudaError, CudaMatrix, CudaRowPlan, CudaTable, DEVICE_FAULT, DriverError,
    Fault, Found, Gpu, Libraries, LibraryError, OpenBlasError, ProgramError, Resources, Survey,
};
pub use device::{
    Device, IdColumn, Lookup, MatrixShape, PLACE_BITS, Pooling, Scalar, TablePart, TablePlace, TableShape,
};
pub use error::{BackendError, BatchError};
pub use float::Float;
pub use host::HostBatch;
pub use measured::{Floors, Measured, MeasuredBatch, MeasuredPlan};
pub use normalization::{Axis, Normalization, Normalized};
pub use reference::{Reference, ReferenceMatrix, ReferencePlan, ReferenceTable};
pub use retrieval::InBatchSoftmax;
pub use sizes::Sizes;
pub use update::{Formula, LossScaling, Update};
