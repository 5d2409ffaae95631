//! Variants of the stand-ins: incomplete or older libraries.

use std::collections::{BTreeMap, BTreeSet};

/// One of CUDA's libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Library {
    /// The driver.
    Cuda,
    /// The kernel compiler.
    Nvrtc,
    /// Matrix products (GEMM).
    CublasLt,
    /// Collectives between GPUs.
    Nccl,
    /// The state of GPUs, as nvidia-smi shows it.
    Nvml,
}

impl Library {
    pub(crate) const ALL: [Self; 5] = [Self::Cuda, Self::Nvrtc, Self::CublasLt, Self::Nccl, Self::Nvml];
}

/// The functions and libraries that a set of stand-ins lacks, and the versions that it reports; by default those of CUDA
/// 13.0, with NCCL 2.27.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Variant {
    libraries: BTreeSet<Library>,
    functions: BTreeSet<(Library, String)>,
    versions: BTreeMap<Library, u32>,
    has_plain_products: bool,
    copy: u32,
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

    /// Reporting a version, encoded as the driver does: 12080 is CUDA 12.8, with cuBLASLt 12.8; 2180 is NCCL 2.18. CUDA
    /// libraries before version 13 have the file name of version 12, so that code must query their version.
    #[must_use]
    pub fn with_version(mut self, library: Library, version: u32) -> Self {
        self.versions.insert(library, version);
        self
    }

    /// With a cuBLASLt that supports no epilogues.
    #[must_use]
    pub fn with_plain_products(mut self) -> Self {
        self.has_plain_products = true;
        self
    }

    /// Copy `number` of the same libraries, kept like any variant. Libraries are loaded once per file, so a process has the
    /// devices of each copy.
    #[must_use]
    pub fn copy(mut self, number: u32) -> Self {
        self.copy = number;
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
            Library::Nvml => "libnvidia-ml.so.1".to_owned(),
        }
    }
}
