//! A GPU of its own for a test, and what its stand-in tells.
#![allow(clippy::unwrap_used)]

use std::ffi::{CStr, c_char, c_int};

use libloading::Symbol;
use millstream_test_cuda::{Library, StandIn};

use crate::{Cuda, Libraries};

/// A GPU that nobody else has.
pub(super) fn alone() -> (StandIn, Cuda) {
    let stand_in = StandIn::whole().unwrap().alone().unwrap();
    let images = stand_in.folder().join("images");
    let cuda = Cuda::new(&Libraries::of(stand_in.folder()), 0, Some(&images)).unwrap();
    (stand_in, cuda)
}

/// How often the driver's function was called.
pub(super) fn calls(stand_in: &StandIn, function: &CStr) -> u64 {
    // SAFETY: as control.h declares it.
    with(
        stand_in,
        c"stand_in_calls",
        |calls: Symbol<'_, unsafe extern "C" fn(*const c_char) -> u64>| unsafe { calls(function.as_ptr()) },
    )
}

/// How much there is of something.
pub(super) fn count(stand_in: &StandIn, what: &CStr) -> u64 {
    // SAFETY: as control.h declares it.
    with(
        stand_in,
        c"stand_in_count",
        |count: Symbol<'_, unsafe extern "C" fn(*const c_char) -> u64>| unsafe { count(what.as_ptr()) },
    )
}

/// Has the next call of the driver's function fail.
pub(super) fn fail(stand_in: &StandIn, function: &CStr, code: c_int) {
    // SAFETY: as control.h declares it.
    with(
        stand_in,
        c"stand_in_fail",
        |fail: Symbol<'_, unsafe extern "C" fn(*const c_char, u64, c_int)>| unsafe {
            fail(function.as_ptr(), 1, code);
        },
    );
}

/// With a control function of the driver, which is open already.
fn with<F, R>(stand_in: &StandIn, name: &CStr, call: impl FnOnce(Symbol<'_, F>) -> R) -> R {
    // SAFETY: the library that is open already, and its function as control.h declares it.
    unsafe {
        let driver = libloading::Library::new(stand_in.library(Library::Cuda)).unwrap();
        call(driver.get::<F>(name.to_bytes()).unwrap())
    }
}
