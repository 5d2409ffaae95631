//! A separate emulated GPU per test, and access to the emulator's counters.
#![allow(clippy::unwrap_used)]

use std::ffi::{CStr, c_char, c_int};

use libloading::Symbol;
use millstream_test_cuda::{Library, StandIn};

use crate::{Cuda, Libraries};

/// An emulated GPU that no other test shares.
pub(super) fn alone() -> (StandIn, Cuda) {
    let stand_in = StandIn::whole().unwrap().alone().unwrap();
    let images = stand_in.folder().join("images");
    let cuda = Cuda::new(&Libraries::of(stand_in.folder()), 0, Some(&images)).unwrap();
    (stand_in, cuda)
}

/// The number of calls of a driver function so far.
pub(super) fn calls(stand_in: &StandIn, function: &CStr) -> u64 {
    // SAFETY: `F` is the function's signature in control.h, and `function` is zero-terminated.
    with(
        stand_in,
        c"stand_in_calls",
        |calls: Symbol<'_, unsafe extern "C" fn(*const c_char) -> u64>| unsafe { calls(function.as_ptr()) },
    )
}

/// The value of one of the emulator's counters.
pub(super) fn count(stand_in: &StandIn, what: &CStr) -> u64 {
    // SAFETY: `F` is the function's signature in control.h, and `what` is zero-terminated.
    with(
        stand_in,
        c"stand_in_count",
        |count: Symbol<'_, unsafe extern "C" fn(*const c_char) -> u64>| unsafe { count(what.as_ptr()) },
    )
}

/// Makes the next call of a driver function fail with `code`.
pub(super) fn fail(stand_in: &StandIn, function: &CStr, code: c_int) {
    // SAFETY: `F` is the function's signature in control.h, and `function` is zero-terminated.
    with(
        stand_in,
        c"stand_in_fail",
        |fail: Symbol<'_, unsafe extern "C" fn(*const c_char, u64, c_int)>| unsafe {
            fail(function.as_ptr(), 1, code);
        },
    );
}

/// Makes the `nth` call of a function of the emulated NCCL from now on fail with `code`.
pub(super) fn fail_nccl(stand_in: &StandIn, function: &CStr, nth: u64, code: c_int) {
    // SAFETY: `F` is the function's signature in control.h, and `function` is zero-terminated.
    with_library(
        stand_in,
        Library::Nccl,
        c"stand_in_fail",
        |fail: Symbol<'_, unsafe extern "C" fn(*const c_char, u64, c_int)>| unsafe {
            fail(function.as_ptr(), nth, code);
        },
    );
}

/// Calls `call` with a control function of the emulated driver.
fn with<F, R>(stand_in: &StandIn, name: &CStr, call: impl FnOnce(Symbol<'_, F>) -> R) -> R {
    with_library(stand_in, Library::Cuda, name, call)
}

/// Calls `call` with a control function of an emulated library.
fn with_library<F, R>(
    stand_in: &StandIn,
    library: Library,
    name: &CStr,
    call: impl FnOnce(Symbol<'_, F>) -> R,
) -> R {
    // SAFETY: the library is loaded already, or its initializers impose no requirements. The caller guarantees that `F` is the
    // function's type.
    unsafe {
        let library = libloading::Library::new(stand_in.library(library)).unwrap();
        call(library.get::<F>(name.to_bytes()).unwrap())
    }
}
