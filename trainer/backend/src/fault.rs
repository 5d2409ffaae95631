//! Faults of a device.

use std::panic;

/// A fault after which a device is unusable, or has run out of memory.
///
/// An operation cannot return it. It is the payload of a panic, which the caller's thread does not survive, so that
/// the process that owns the device can report it and end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFault {
    /// A human-readable message.
    pub message: String,
    /// Whether the device is out of memory.
    pub out_of_memory: bool,
}

impl DeviceFault {
    /// Panics with this fault as the payload.
    ///
    /// # Panics
    /// Always.
    pub fn raise(self) -> ! {
        panic::panic_any(self)
    }
}
