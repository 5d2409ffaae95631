//! NCCL, the library for communication between GPUs: checks which version a host has. A single GPU does not need
//! it.

use std::ffi::c_int;

use crate::library::{Libraries, LibraryError, Name};

pub(super) const NAME: Name = Name {
    library: "NVIDIA's collectives library (NCCL)",
    files: &["libnccl.so.2"],
    remedy: "for jobs on several GPUs install package libnccl2 (deb) or libnccl (rpm), 2.18 or later, of the series of \
             CUDA that your driver serves",
};
/// The first version with communicators that can be split, aborted and limited in their blocks per GPU; needs CUDA
/// 12.
const LEAST_VERSION: i32 = 2_180;

/// The version of this host's library.
pub(super) fn version(libraries: &Libraries) -> Result<String, LibraryError> {
    let library = libraries.open(&NAME)?;
    let mut code = 0;
    // SAFETY: the function pointer has the signature of nccl.h; `code` is valid for writes during the call.
    unsafe {
        let get: unsafe extern "C" fn(*mut c_int) -> c_int = library.function("ncclGetVersion")?;
        get(&raw mut code);
    }
    let [major, minor, patch] = parts(code);
    library.check_version(1000 * major + 10 * minor, LEAST_VERSION)?;
    Ok(format!("{major}.{minor}.{patch}"))
}

/// Decodes a version: `10000 * major + 100 * minor + patch`, or with 1000 instead of 10000 before 2.9.
fn parts(code: i32) -> [i32; 3] {
    let unit = if code < 10_000 { 1_000 } else { 10_000 };
    [code / unit, code % unit / 100, code % 100]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use millstream_test_cuda::{Library, StandIn, Variant};

    use super::*;

    #[test]
    fn versions_are_counted_in_two_ways() {
        assert_eq!(parts(2_804), [2, 8, 4]);
        assert_eq!(parts(20_907), [2, 9, 7]);
        assert_eq!(parts(22_703), [2, 27, 3]);
    }

    #[test]
    fn the_version_or_the_problem_is_reported() {
        let found = |variant: &Variant| {
            let stand_in = StandIn::of(variant).unwrap();
            version(&Libraries::of(stand_in.folder())).map_err(|error| error.to_string())
        };
        let whole = Variant::default();
        assert_eq!(found(&whole), Ok("2.27.3".to_owned()));
        for (variant, what) in [
            (whole.clone().without(Library::Nccl), "(NCCL) is not on this host (looked for libnccl.so.2): "),
            (whole.clone().without_function(Library::Nccl, "ncclGetVersion"), "no function ncclGetVersion"),
            (whole.clone().with_version(Library::Nccl, 2_170), "version 2.17, and Millstream needs 2.18 or"),
            (whole.with_version(Library::Nccl, 2_080), "version 2.8, and Millstream needs 2.18 or"),
        ] {
            let problem = found(&variant).unwrap_err();
            assert!(
                problem.contains(what) && problem.contains("package libnccl2 (deb)"),
                "{what}: {problem}"
            );
        }
    }
}
