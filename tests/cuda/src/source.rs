//! The stand-ins' source.

use crate::Library;

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../cpp/", $name)))),*]
    };
}

/// Headers that kernels are compiled with, stored next to the stand-in of NVRTC.
pub(crate) const SHIM: &[(&str, &str)] = files![
    "on_host.h",
    "on_host_atomics.h",
    "on_host_copies.h",
    "on_host_formats.h",
    "on_host_math.h",
    "on_host_tensor.h",
    "on_host_vectors.h",
    "on_host_warps.h",
    "thread.h",
];

/// Headers of the libraries, besides those for kernels.
pub(crate) const HEADERS: &[(&str, &str)] = files![
    "api.h",
    "beside.h",
    "blocks.h",
    "compile.h",
    "control.h",
    "copies.h",
    "driver.h",
    "fibers.h",
    "graphs.h",
    "meeting.h",
    "memory.h",
    "modules.h",
    "products.h",
    "random.h",
    "script.h",
    "segfaults.h",
    "work.h",
];

/// The sources of a library.
pub(crate) fn units(library: Library) -> &'static [(&'static str, &'static str)] {
    match library {
        Library::Cuda => files![
            "blocks.cpp",
            "control.cpp",
            "copies.cpp",
            "device.cpp",
            "driver.cpp",
            "graphs.cpp",
            "memory.cpp",
            "modules.cpp",
            "segfaults.cpp",
            "streams.cpp",
            "switch.cpp",
        ],
        Library::Nvrtc => files!["compile.cpp", "nvrtc.cpp"],
        Library::CublasLt => files!["blas.cpp", "products.cpp"],
        Library::Nccl => files!["meeting.cpp", "nccl.cpp"],
        Library::Nvml => files!["nvml.cpp"],
    }
}
