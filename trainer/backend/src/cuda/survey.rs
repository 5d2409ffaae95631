//! Survey of a host's GPUs and libraries, and of what is missing; computes nothing.

use super::driver::{Context, Driver, DriverError, Gpu};
use super::nvrtc::Compiler;
use super::{blas, nccl};
use crate::library::{Libraries, LibraryError};

/// The findings on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Each library that the backend opens.
    pub libraries: Vec<Found>,
    /// The GPUs that the driver reports.
    pub gpus: Vec<Gpu>,
    /// Why the driver, though present and new enough, fails to report the GPUs or one of them.
    pub problem: Option<String>,
}

/// A library of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The library's display name.
    pub library: &'static str,
    /// The version, or an error with a suggested fix.
    pub version: Result<String, String>,
    /// Whether only jobs on several GPUs need it.
    pub is_for_several: bool,
}

impl Survey {
    /// Opens each GPU, as a job does, and returns its free memory in bytes or why it cannot be used, in the order of
    /// `gpus`.
    pub fn try_gpus(&self, libraries: &Libraries) -> Vec<Result<u64, String>> {
        let open = |gpu: &Gpu| -> Result<u64, DriverError> {
            Ok(Context::new(Driver::open(libraries)?, gpu.number)?.free_bytes()?)
        };
        self.gpus.iter().map(|gpu| open(gpu).map_err(|error| error.to_string())).collect()
    }

    /// Surveys this host. Initializes the driver and the GPUs.
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

/// The GPUs that the driver describes, and the first error about another.
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
