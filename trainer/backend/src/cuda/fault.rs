//! GPU errors that operations cannot return.

use std::fmt::Display;

use crate::fault::DeviceFault;

/// An error of the GPU.
pub(super) trait GpuError: Display {
    /// Whether the GPU is out of memory.
    fn is_out_of_memory(&self) -> bool {
        false
    }
}

/// Raises a [`DeviceFault`] if `result` is an error.
pub(super) fn must<T, E: GpuError>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|fault| match fault.is_out_of_memory() {
        true => out_of_memory("", &fault),
        false => DeviceFault { message: format!("the device failed: {fault}"), out_of_memory: false }.raise(),
    })
}

pub(super) fn out_of_memory(what: &str, fault: &dyn Display) -> ! {
    let advice = "give the job a smaller `batch_size`, a `micro_batch_size`, or smaller tables";
    let message = format!("the device failed: the GPU has too little memory{what}: {advice} ({fault})");
    DeviceFault { message, out_of_memory: true }.raise()
}
