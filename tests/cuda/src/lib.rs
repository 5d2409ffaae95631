//! Stand-ins for the CUDA libraries, to test GPU code without a GPU, both host code and kernels.
//!
//! `libcuda.so.1`, `libnvrtc.so`, `libcublasLt.so` and `libnccl.so` implement the functions that the CUDA backend calls, in
//! C++ (`cpp/`). They behave as documented, and do everything as late as possible: streams are queues that run when a thread
//! waits, in a random order among those allowed, so that a missing wait is noticed. Kernels are compiled by the system's C++
//! compiler and run on the host, with one fiber per thread of a block. Memory is poisoned, bounds are checked, and freed
//! memory stays inaccessible. `libnvidia-ml.so.1` reports the state of these GPUs, which a test can script (`cpp/nvml.cpp`).
//! The ranks of `libnccl.so` are threads or processes, with devices of any of these folders (`cpp/nccl.cpp`).
//!
//! A [`StandIn`] is a folder with the libraries, built once and kept in cargo's target directory. A [`Variant`] lacks a
//! function or library, or reports an older version. `cpp/control.h` documents how tests control the stand-ins (scripted
//! faults, counts, the seed), including the environment variables for programs that tests start.

#![forbid(unsafe_code)]

mod build;
mod source;
mod variant;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io, process};

pub use self::variant::{Library, Variant};

/// A folder with the libraries.
#[derive(Debug)]
pub struct StandIn {
    folder: PathBuf,
    variant: Variant,
    is_own: bool,
}

impl StandIn {
    /// All libraries, complete and of the current version.
    ///
    /// # Errors
    /// The C++ compiler (`CXX`, else `c++`) cannot be run, or the libraries cannot be stored.
    pub fn whole() -> io::Result<Self> {
        Self::of(&Variant::default())
    }

    /// A variant of the libraries.
    ///
    /// # Errors
    /// See [`StandIn::whole`].
    pub fn of(variant: &Variant) -> io::Result<Self> {
        Ok(Self { folder: build::folder_of(variant)?, variant: variant.clone(), is_own: false })
    }

    /// Lets a test use the GPUs of several ranks while no other test of this process does. These share the emulated GPUs, and the driver
    /// waits for the work of all when it frees memory: also for sums whose ranks wait for each other.
    pub fn turn() -> MutexGuard<'static, ()> {
        static IN_USE: Mutex<()> = Mutex::new(());
        IN_USE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A private copy for one test. Libraries are loaded once per file, so a process that loads a copy's libraries gets
    /// separate devices, scripts and counts. The copy is deleted when this is dropped; loaded libraries stay loaded.
    ///
    /// # Errors
    /// The files cannot be copied.
    pub fn alone(&self) -> io::Result<Self> {
        static COPIES: AtomicU64 = AtomicU64::new(0);
        let copy = COPIES.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.with_file_name(format!("alone-{}-{copy}", process::id()));
        build::copy(&self.folder, &folder)?;
        Ok(Self { folder, variant: self.variant.clone(), is_own: true })
    }

    /// The folder of the libraries, under the names that the loader searches for.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file of a library, which does not exist if the variant lacks it.
    pub fn library(&self, library: Library) -> PathBuf {
        self.folder.join(self.variant.file_name(library))
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        if self.is_own {
            // Leftovers are deleted with the target directory.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
