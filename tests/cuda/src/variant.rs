//! How a set of stand-ins may differ from the whole and new one.

use std::collections::{BTreeMap, BTreeSet};

/// One of CUDA's libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Library {
    /// The driver.
    Cuda,
    /// The compiler of kernels.
    Nvrtc,
    /// Products of matrices.
    CublasLt,
    /// What several GPUs tell each other.
    Nccl,
}

impl Library {
    pub(crate) const ALL: [Self; 4] = [Self::Cuda, Self::Nvrtc, Self::CublasLt, Self::Nccl];
}

/// What a set of stand-ins lacks, and which versions it reports: those of CUDA 13.0, with NCCL 2.27, unless
/// said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Variant {
    libraries: BTreeSet<Library>,
    functions: BTreeSet<(Library, String)>,
    versions: BTreeMap<Library, u32>,
    has_plain_products: bool,
}

impl Variant {
    /// Without this library's file.
    #[must_use]
    pub fn without(mut self, library: Library) -> Self {
        self.libraries.insert(library);
        self
    }

    /// Without this function in the library.
    #[must_use]
    pub fn without_function(mut self, library: Library, function: &str) -> Self {
        self.functions.insert((library, function.to_owned()));
        self
    }

    /// Reporting a version, given as the driver does: 12080 is CUDA 12.8, with cuBLASLt 12.8; 2180 is NCCL 2.18. CUDA's
    /// libraries before version 13 are found under the file name of version 12, so that code that finds them has to ask
    /// them.
    #[must_use]
    pub fn with_version(mut self, library: Library, version: u32) -> Self {
        self.versions.insert(library, version);
        self
    }

    /// With a cuBLASLt that only multiplies, and does nothing else by the way.
    #[must_use]
    pub fn with_plain_products(mut self) -> Self {
        self.has_plain_products = true;
        self
    }

    pub(crate) fn has_plain_products(&self) -> bool {
        self.has_plain_products
    }

    pub(crate) fn has(&self, library: Library) -> bool {
        !self.libraries.contains(&library)
    }

    /// Functions that the library lacks.
    pub(crate) fn lacks(&self, library: Library) -> impl Iterator<Item = &str> {
        self.functions.iter().filter(move |(of, _)| *of == library).map(|(_, function)| function.as_str())
    }

    pub(crate) fn version(&self, library: Library) -> u32 {
        let newest = if library == Library::Nccl { 2_270 } else { 13_000 };
        self.versions.get(&library).copied().unwrap_or(newest)
    }

    pub(crate) fn file_name(&self, library: Library) -> String {
        let major = if self.version(library) < 13_000 { 12 } else { 13 };
        match library {
            Library::Cuda => "libcuda.so.1".to_owned(),
            Library::Nvrtc => format!("libnvrtc.so.{major}"),
            Library::CublasLt => format!("libcublasLt.so.{major}"),
            Library::Nccl => "libnccl.so.2".to_owned(),
        }
    }
}
