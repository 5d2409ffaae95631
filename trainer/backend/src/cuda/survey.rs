//! What a host has for computing on a GPU, and what it lacks: found out without computing anything.

use super::driver::{Driver, Gpu};
use super::library::{Libraries, LibraryError};
use super::nvrtc::Compiler;
use super::{blas, nccl};

/// What was found on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Each library that the backend opens.
    pub libraries: Vec<Found>,
    /// The GPUs that the driver knows.
    pub gpus: Vec<Gpu>,
    /// Why it does not say so of one of them, or of any, though it is there and new enough.
    pub problem: Option<String>,
}

/// A library of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it is called.
    pub library: &'static str,
    /// Its version, or what is wrong and what to do.
    pub version: Result<String, String>,
    /// Whether one GPU does without it.
    pub is_for_several: bool,
}

impl Survey {
    /// Looks at the host that this runs on. Driver and GPU are woken.
    pub fn of(libraries: &Libraries) -> Self {
        let driver = Driver::open(libraries);
        let (gpus, problem) = driver.as_ref().map(gpus).unwrap_or_default();
        let versions = [
            (
                super::driver::NAME.library,
                driver.map(|driver| driver.version()).map_err(|error| error.to_string()),
            ),
            (super::nvrtc::NAME.library, of(Compiler::open(libraries).map(|compiler| compiler.version()))),
            (blas::NAME.library, of(blas::version(libraries))),
            (nccl::NAME.library, of(nccl::version(libraries))),
        ];
        let found = versions.map(|(library, version)| Found {
            library,
            version,
            is_for_several: library == nccl::NAME.library,
        });
        Self { libraries: found.into(), gpus, problem }
    }
}

fn of(version: Result<String, LibraryError>) -> Result<String, String> {
    version.map_err(|error| error.to_string())
}

/// Those that the driver describes, and why it does not describe another.
fn gpus(driver: &Driver) -> (Vec<Gpu>, Option<String>) {
    let count = match driver.devices() {
        Ok(count) => count,
        Err(fault) => return (Vec::new(), Some(fault.to_string())),
    };
    let (mut gpus, mut problem) = (Vec::new(), None);
    for number in 0..count {
        match driver.describe(number) {
            Ok(gpu) => gpus.push(gpu),
            Err(error) => problem = problem.or_else(|| Some(format!("GPU {number}: {error}"))),
        }
    }
    (gpus, problem)
}
