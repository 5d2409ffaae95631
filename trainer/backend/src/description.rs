//! A human-readable description of a backend's device and libraries.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A device, and the libraries that it uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// A short description.
    pub text: String,
    /// The GPU, if the device is one.
    pub gpu: Option<GpuName>,
    /// The host's libraries in use.
    pub libraries: Vec<LibraryVersion>,
}

/// A GPU of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuName {
    /// Its number on the host.
    pub number: u32,
    /// The product name.
    pub name: String,
}

/// A library and its version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryVersion {
    /// The display name.
    pub library: String,
    /// As the library reports it.
    pub version: String,
}

impl Description {
    /// A description without GPU or libraries.
    pub fn of(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}
