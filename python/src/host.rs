//! Hosting feeds in a process of this package, beside the programs that use them.

use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::time::Duration;

use millstream_batch::allocator::return_large_blocks_to_os;
use millstream_batch::scheduling::stop_interrupting_others;
use millstream_feed::Error;
use millstream_feed::access::SameUser;
use millstream_feed::host::Host;
use millstream_feed::spec::FeedSpec;
use millstream_io::storage::Stores;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sha2::{Digest, Sha256};

use crate::errors::exception;

/// The feed of an object of JSON, as self-contained TOML.
#[pyfunction]
pub(crate) fn resolve(arguments: &str) -> PyResult<String> {
    let object = serde_json::from_str(arguments).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let spec = FeedSpec::of_arguments(&object).map_err(|error| exception(error.into()))?;
    Ok(spec.text)
}

/// The feed of the text of a file, as self-contained TOML.
#[pyfunction]
pub(crate) fn parse(text: &str, path: &str) -> PyResult<String> {
    let spec = FeedSpec::parse(text, Path::new(path)).map_err(|error| exception(error.into()))?;
    Ok(spec.text)
}

/// The feed of this self-contained TOML, without short last batches.
#[pyfunction]
pub(crate) fn with_drop_last(text: &str) -> PyResult<String> {
    let spec = FeedSpec::parse_with(text, Path::new("feed"), &["data.drop_last=true".to_owned()]);
    Ok(spec.map_err(|error| exception(error.into()))?.text)
}

/// The address of the host of a program. It has no name in any file system, and is this user's.
pub(crate) fn address(program: &str) -> io::Result<SocketAddr> {
    let user = rustix::process::getuid().as_raw();
    let hash = Sha256::digest(format!("{user}\n{program}").as_bytes());
    let hash: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    SocketAddr::from_abstract_name(format!("millstream-feed-{hash}"))
}

/// Listens for the ranks of `program`; returns the descriptor, or `None` if another process does.
#[pyfunction]
pub(crate) fn listen(program: &str) -> PyResult<Option<RawFd>> {
    match address(program).and_then(|address| UnixListener::bind_addr(&address)) {
        Ok(listener) => Ok(Some(listener.into_raw_fd())),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Hosts feeds for the ranks that connect to the listening socket `fd`, until there have been none for `idle_seconds`.
#[pyfunction]
pub(crate) fn serve(py: Python<'_>, fd: RawFd, idle_seconds: f64) -> PyResult<()> {
    let idle = Duration::try_from_secs_f64(idle_seconds)
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    if fd < 0 {
        return Err(PyValueError::new_err("a descriptor is not negative"));
    }
    // SAFETY: the caller passes the ownership of the descriptor; `listen` has made it and nothing else uses it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // Neither changes what is delivered: where the system refuses, the program that trains is interrupted more often.
    return_large_blocks_to_os();
    let _ = stop_interrupting_others();
    py.detach(|| serve_on(fd.into(), idle)).map_err(exception)
}

fn serve_on(listener: UnixListener, idle: Duration) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let host = Host::new(&Stores::default(), runtime.handle().clone());
    host.serve(&listener, &SameUser, Some(idle))
}
