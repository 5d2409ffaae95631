//! NCCL, the library for communication between GPUs. A single GPU does not need it.
//!
//! [`Communicator`] connects the GPU of each rank to those of the others. It is non-blocking: calls return at once, and
//! whether they have taken effect is polled. So a rank that does not take part costs others no more than their time limit.

mod communicator;

use std::ffi::{CStr, c_char, c_int};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::driver::Address;
use crate::library::{Handle, Libraries, Library, LibraryError, Name, functions};
pub(super) use communicator::{CallError, Communicator, Section, Summand};

pub(super) const NAME: Name = Name {
    library: "NVIDIA's collectives library (NCCL)",
    files: &["libnccl.so.2"],
    remedy: "for jobs on several GPUs install package libnccl2 (deb) or libnccl (rpm), 2.18 or later, of the series of \
             CUDA that your driver serves",
};
/// The first version with communicators that can be split, aborted and limited in their blocks per GPU; needs CUDA
/// 12.
const LEAST_VERSION: i32 = 2_180;

/// An `ncclResult_t`: 0 on success, otherwise an error code.
type Status = c_int;
/// Another process is not reachable, or the system refuses something.
const SYSTEM_ERROR: Status = 2;
const REMOTE_ERROR: Status = 6;
/// The call of a non-blocking communicator has yet to take effect. No error.
const IN_PROGRESS: Status = 7;

functions! {
    /// Functions of libnccl. Those of the first list end something, or describe a status.
    struct Functions {
        ncclGetErrorString: fn(status: Status) -> *const c_char,
        ncclGetLastError: fn(communicator: Handle) -> *const c_char,
        ncclCommDestroy: fn(communicator: Handle) -> Status,
    }
    or NcclError {
        ncclGetUniqueId: fn(id: *mut UniqueId),
        ncclCommInitRankConfig: fn(
            communicator: *mut Handle, ranks: c_int, id: UniqueId, rank: c_int, config: *mut Config,
        ),
        ncclCommGetAsyncError: fn(communicator: Handle, status: *mut Status),
        ncclGroupStart: fn(),
        ncclGroupEnd: fn(),
        ncclAllReduce: fn(
            from: Address, to: Address, count: usize, kind: c_int, operation: c_int, communicator: Handle,
            stream: Handle,
        ),
        ncclBroadcast: fn(
            from: Address, to: Address, count: usize, kind: c_int, root: c_int, communicator: Handle, stream: Handle,
        ),
    }
}

/// Identifies one communicator, whose ranks all pass the same id: the address of rank 0 and a random number. A secret, because
/// every process that knows it can join; so it has no `Debug`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct UniqueId([u8; 128]);

/// `ncclConfig_t` as of 2.18. Later versions have more members; they take the size and version into account.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl Config {
    /// Of a communicator whose calls return at once, with defaults otherwise.
    fn non_blocking() -> Self {
        const UNDEFINED: c_int = c_int::MIN;
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 21_800,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
        }
    }
}

/// A failed call of NCCL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{function} of NVIDIA's collectives library (NCCL) failed: {text}")]
pub struct NcclError {
    /// The function that failed.
    pub function: &'static str,
    /// The library's description of the error, and its message about this failure if there is one.
    pub text: String,
    status: Status,
}

impl NcclError {
    /// Whether another rank may be the cause, so that a retry may succeed.
    pub(super) fn may_be_of_peer(&self) -> bool {
        matches!(self.status, SYSTEM_ERROR | REMOTE_ERROR)
    }
}

/// The loaded library.
pub(super) struct Nccl {
    functions: Functions,
}

impl Nccl {
    pub(super) fn open(libraries: &Libraries) -> Result<Self, LibraryError> {
        let (library, _) = open(libraries)?;
        Ok(Self { functions: Functions::load(library)? })
    }

    /// A new id, for one rank to give to all.
    pub(super) fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: `id` is valid for writes during the call.
        unsafe { self.functions.ncclGetUniqueId(&raw mut id) }?;
        Ok(id)
    }
}

impl Functions {
    fn check(&self, function: &'static str, status: Status) -> Result<(), NcclError> {
        if matches!(status, 0 | IN_PROGRESS) {
            return Ok(());
        }
        let text_at = |text: *const c_char| {
            // SAFETY: the library returns null or a zero-terminated string, which is copied before the next call.
            let text =
                (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
            text.filter(|text| !text.is_empty())
        };
        // SAFETY: takes any status.
        let text = text_at(unsafe { (self.ncclGetErrorString)(status) });
        // SAFETY: the last error of the process needs no communicator, says the documentation.
        let detail = text_at(unsafe { (self.ncclGetLastError)(Handle::NULL) });
        let text: Vec<String> = [text, detail].into_iter().flatten().collect();
        Err(NcclError { function, text: text.join(": "), status })
    }
}

/// The version of this host's library.
pub(super) fn version(libraries: &Libraries) -> Result<String, LibraryError> {
    let (_, [major, minor, patch]) = open(libraries)?;
    Ok(format!("{major}.{minor}.{patch}"))
}

/// Loads the library and checks its version, before other functions are looked up: an old library is reported as old rather
/// than as incomplete.
fn open(libraries: &Libraries) -> Result<(Library, [i32; 3]), LibraryError> {
    let library = libraries.open(&NAME)?;
    let mut code = 0;
    // SAFETY: the function pointer has the signature of nccl.h; `code` is valid for writes during the call.
    unsafe {
        let get: unsafe extern "C" fn(*mut c_int) -> c_int = library.function("ncclGetVersion")?;
        get(&raw mut code);
    }
    let version = parts(code);
    library.check_version(1000 * version[0] + 10 * version[1], LEAST_VERSION)?;
    Ok((library, version))
}

/// Decodes a version: `10000 * major + 100 * minor + patch`, or with 1000 instead of 10000 before 2.9.
fn parts(code: i32) -> [i32; 3] {
    let unit = if code < 10_000 { 1_000 } else { 10_000 };
    [code / unit, code % unit / 100, code % 100]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use millstream_test_cuda::{Library as File, StandIn, Variant};

    use super::super::testing::fail_nccl;
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
            (whole.clone().without(File::Nccl), "(NCCL) is not on this host (looked for libnccl.so.2): "),
            (whole.clone().without_function(File::Nccl, "ncclGetVersion"), "no function ncclGetVersion"),
            (whole.clone().with_version(File::Nccl, 2_170), "version 2.17, and Millstream needs 2.18 or"),
            (whole.with_version(File::Nccl, 2_080), "version 2.8, and Millstream needs 2.18 or"),
        ] {
            let problem = found(&variant).unwrap_err();
            assert!(
                problem.contains(what) && problem.contains("package libnccl2 (deb)"),
                "{what}: {problem}"
            );
        }
    }

    #[test]
    fn a_missing_function_is_reported_by_name() {
        for function in ["ncclCommInitRankConfig", "ncclBroadcast"] {
            let stand_in = StandIn::of(&Variant::default().without_function(File::Nccl, function)).unwrap();
            let Err(error) = Nccl::open(&Libraries::of(stand_in.folder())) else { panic!("it was opened") };
            let problem = error.to_string();
            assert!(problem.contains(&format!("has no function {function}: ")), "{problem}");
            assert!(problem.contains("package libnccl2 (deb)"), "{problem}");
        }
    }

    #[test]
    fn a_failed_call_is_reported_with_the_librarys_message() {
        let stand_in = StandIn::whole().unwrap().alone().unwrap();
        let nccl = Nccl::open(&Libraries::of(stand_in.folder())).unwrap();
        assert!(nccl.unique_id().is_ok());
        fail_nccl(&stand_in, c"ncclGetUniqueId", 1, SYSTEM_ERROR);
        let Err(error) = nccl.unique_id() else { panic!("the call fails by script") };
        assert_eq!(
            error.to_string(),
            "ncclGetUniqueId of NVIDIA's collectives library (NCCL) failed: unhandled system error (run with \
             NCCL_DEBUG=INFO for details): ncclGetUniqueId failed by script"
        );
        assert!(error.may_be_of_peer());
    }
}
