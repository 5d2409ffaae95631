//! Catches panics of the `parquet` crate, which some damaged files cause.
//!
//! A caught panic becomes an error with a location, like any other damage. Its output is up to the process-wide
//! panic hook, which a library must not change implicitly: a program that wants no output calls
//! [`quiet_decoder_panics`] at start-up.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};

thread_local! {
    /// Whether this thread is inside [`guarded`].
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Suppresses the output of panics that are caught and reported as damage. Other panics go to the previous hook.
/// Call it at start-up, before other threads exist.
pub fn quiet_decoder_panics() {
    let previous = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !GUARDED.get() {
            previous(info);
        }
    }));
}

/// Runs `decode`; returns its error, or that it panicked, as text.
pub(super) fn guarded<T, E: ToString>(decode: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    let outer = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(decode));
    GUARDED.set(outer);
    match result {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the decoder panicked on it".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_become_errors_and_end_the_guard() {
        let result = guarded(|| -> Result<(), String> { panic!("on a damaged file") });
        assert_eq!(result, Err("the decoder panicked on it".to_owned()));
        assert!(!GUARDED.get());
        assert_eq!(guarded(|| Err::<(), _>("no")), Err("no".to_owned()));
    }
}
