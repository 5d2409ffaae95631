//! Devices: buffers and operations of the CPU, of NVIDIA GPUs, and of a plain reference; and communication between the
//! workers of one job ([`collective`]).

mod backend;
pub mod collective;
mod cpu;
mod cuda;
mod description;
mod device;
mod error;
mod fault;
mod float;
mod floors;
mod host;
mod library;
mod merged_rows;
pub mod ops;
pub mod philox;
mod reference;
mod row_sums;
mod sizes;
mod update;

pub use backend::Backend;
pub use cpu::{Cpu, CpuInstructions, CpuMatrix, CpuRowPlan, CpuTable};
pub use cuda::{
    CompileError, Cuda, CudaBatch, CudaError, CudaMatrix, CudaMaxima, CudaMergedRows, CudaPeers, CudaPinned,
    CudaReport, CudaRowPlan, CudaTable, DriverError, Fault, Found, Gpu, NcclError, OpenBlasError,
    OutOfMemory, ProgramError, Resources, Survey,
};
pub use description::{Description, GpuName, LibraryVersion};
pub use device::{
    Axis, BatchShape, Device, IdColumn, Lookup, MatrixShape, PLACE_BITS, Pooling, Scalar, Shapes, TablePart,
    TablePlace, TableShape, WorkspaceUse, ranges_of,
};
pub use error::{BackendError, BatchError, ConnectDevicesError, PinError};
pub use fault::DeviceFault;
pub use float::Float;
pub use floors::Floors;
pub use host::{HostBatch, HostMaxima, HostReport};
pub use library::{Libraries, LibraryError};
pub use merged_rows::{HostMergedRows, MergedShape, PartRows};
pub use ops::{
    Activation, Choice, ColumnSums, GradientColumns, GradientMode, InBatchInput, Loss, MixtureShape,
    Normalization, RowGradients, SavedLayer, SavedNormalization, Sequence, Task,
};
pub use reference::{Reference, ReferenceMatrix, ReferencePlan, ReferenceTable};
pub use row_sums::RowSums;
pub use sizes::{Layout, OperationBytes, Sizes};
pub use update::{Formula, LossScaling, Update};
