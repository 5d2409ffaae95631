//! What a host has for computing on a GPU, and what it lacks: found out without computing anything.

use super::blas;
use super::driver::{Driver, DriverError, Gpu};
use super::library::{Libraries, LibraryError};
use super::nvrtc::Compiler;

/// What was found on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Each library that the backend opens.
    pub libraries: Vec<Found>,
    /// The GPUs that the driver knows, or why it does not say.
    pub gpus: Result<Vec<Gpu>, String>,
}

/// A library of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it is called.
    pub library: &'static str,
    /// Its version, or what is wrong and what to do.
    pub version: Result<String, String>,
}

impl Survey {
    /// Looks at the host that this runs on. Driver and GPU are woken.
    pub fn of(libraries: &Libraries) -> Self {
        let driver = Driver::open(libraries);
        let gpus = match &driver {
            Ok(driver) => gpus(driver),
            Err(error) => Err(error.to_string()),
        };
        let versions = [
            (
                super::driver::NAME.library,
                driver.map(|driver| driver.version()).map_err(|error| error.to_string()),
            ),
            (super::nvrtc::NAME.library, of(Compiler::open(libraries).map(|compiler| compiler.version()))),
            (blas::NAME.library, of(blas::version(libraries))),
        ];
        let found = versions.map(|(library, version)| Found { library, version });
        Self { libraries: found.into(), gpus }
    }
}

fn of(version: Result<String, LibraryError>) -> Result<String, String> {
    version.map_err(|error| error.to_string())
}

fn gpus(driver: &Driver) -> Result<Vec<Gpu>, String> {
    let count = driver.devices().map_err(|fault| fault.to_string())?;
    let described: Result<_, DriverError> = (0..count).map(|number| driver.describe(number)).collect();
    described.map_err(|error| error.to_string())
}
