//! What a backend computes on, for people.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A device, and what computes on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// In a few words.
    pub text: String,
    /// Which GPU it is, where it is one.
    pub gpu: Option<GpuName>,
    /// Libraries of the host that take part.
    pub libraries: Vec<LibraryVersion>,
}

/// Which of a host's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuName {
    /// Its number on the host.
    pub number: u32,
    /// As its maker calls it.
    pub name: String,
}

/// A library, and its version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryVersion {
    /// What it is called.
    pub library: String,
    /// As it says itself.
    pub version: String,
}

impl Description {
    /// A device of which there is no more to say.
    pub fn of(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}
