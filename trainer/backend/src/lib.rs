//! Devices: buffers, kernels and fused operations of the CPU and its plain reference.

mod backend;
mod cpu;
mod cuda;
mod description;
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
    CompileError, Crowded, Cuda, CudaBatch, CudaError, CudaMatrix, CudaPinned, CudaReport, CudaRowPlan,
    CudaTable, DEVICE_FAULT, DriverError, Fault, Found, Gpu, Libraries, LibraryError, NO_MEMORY,
    OpenBlasError, ProgramError, Resources, Survey,
};
pub use description::{Description, GpuName, LibraryVersion};
pub use device::{
    Device, IdColumn, Lookup, MatrixShape, Operation, PLACE_BITS, Pooling, Scalar, TablePart, TablePlace,
    TableShape,
};
pub use error::{BackendError, BatchError, PinError};
pub use float::Float;
pub use host::{HostBatch, HostReport};
pub use measured::{Floors, Measured, MeasuredBatch, MeasuredPlan};
pub use normalization::{Axis, Normalization, Normalized};
pub use reference::{Reference, ReferenceMatrix, ReferencePlan, ReferenceTable};
pub use retrieval::InBatchSoftmax;
pub use sizes::{Layout, OperationBytes, Sizes};
pub use update::{Formula, LossScaling, Update};
