//! Faults of a device.

use std::panic;

/// A fault after which nothing on a device can be used, or too little memory on it.
///
/// An operation cannot return it. It is the payload of a panic, which the caller's thread does not survive, so that
/// the process that owns the device can report it and end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFault {
    /// What failed, for a person.
    pub message: String,
    /// Whether the device has too little memory.
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
