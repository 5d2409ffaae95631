//! Stand-ins for CUDA's libraries, so that code for GPUs is tested without one: host code and kernels.
//!
//! `libcuda.so.1`, `libnvrtc.so`, `libcublasLt.so` and `libnccl.so` with the functions that the CUDA backend calls, in C++
//! (`cpp/`).
//! They do what the documentation says and nothing sooner: streams are queues that run when somebody waits, in an
//! order drawn at random among those that are allowed, so that a missing wait shows. Kernels are compiled by the
//! system's C++ compiler and run on the host, a thread of a block a fiber. Memory is poisoned, bounds are checked, and
//! what is freed stays out of reach.
//!
//! A [`StandIn`] is a folder with the libraries, made once and kept in cargo's target directory. A [`Variant`] lacks
//! something, or says that it is older. How tests steer the stand-ins (faults by script, counts, the seed) is in
//! `cpp/control.h`; programs that tests start can be steered by the environment, which that file names too.

#![forbid(unsafe_code)]

mod build;
mod source;
mod variant;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

pub use self::variant::{Library, Variant};

/// A folder with the libraries.
#[derive(Debug)]
pub struct StandIn {
    folder: PathBuf,
    variant: Variant,
    is_own: bool,
}

impl StandIn {
    /// All libraries, whole and new.
    ///
    /// # Errors
    /// When the C++ compiler (`CXX`, else `c++`) cannot be run or the libraries cannot be kept.
    pub fn whole() -> io::Result<Self> {
        Self::of(&Variant::default())
    }

    /// A variant of them.
    ///
    /// # Errors
    /// As [`StandIn::whole`].
    pub fn of(variant: &Variant) -> io::Result<Self> {
        Ok(Self { folder: build::folder_of(variant)?, variant: variant.clone(), is_own: false })
    }

    /// A copy for one test alone. Libraries are loaded once a file, so a process that loads those of a copy has
    /// devices, scripts and counts of its own in them. The copy is gone when this is dropped; what is loaded stays.
    ///
    /// # Errors
    /// When the files cannot be copied.
    pub fn alone(&self) -> io::Result<Self> {
        static COPIES: AtomicU64 = AtomicU64::new(0);
        let copy = COPIES.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.with_file_name(format!("alone-{}-{copy}", process::id()));
        build::copy(&self.folder, &folder)?;
        Ok(Self { folder, variant: self.variant.clone(), is_own: true })
    }

    /// Where the libraries lie, under the names by which the loader looks for them.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file of a library, which is not there if the variant lacks it.
    pub fn library(&self, library: Library) -> PathBuf {
        self.folder.join(self.variant.file_name(library))
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        if self.is_own {
            // What is left over goes with the target directory.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
