//! The device of a job.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A device, as in a job file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceSpec {
    /// `cpu`: the CPU, with one thread per core or a given number of threads.
    #[default]
    Cpu,
    /// `cuda:N`: GPU number `N` of the host; `cuda` is the first.
    Cuda(u32),
}

impl DeviceSpec {
    /// The syntax, for messages.
    pub const SYNTAX: &'static str = "\"cpu\", \"cuda\", or \"cuda:N\" for GPU number N";

    /// The number of the GPU; `None` for the CPU.
    pub fn gpu(&self) -> Option<u32> {
        match *self {
            Self::Cpu => None,
            Self::Cuda(number) => Some(number),
        }
    }
}

impl Display for DeviceSpec {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => out.write_str("cpu"),
            Self::Cuda(number) => write!(out, "cuda:{number}"),
        }
    }
}

impl FromStr for DeviceSpec {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => {
                let number = text.strip_prefix("cuda:").ok_or(())?;
                number.parse().map(Self::Cuda).map_err(|_| ())
            }
        }
    }
}
