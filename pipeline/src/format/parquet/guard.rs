//! Running decoding code that is not ours: there are damaged files that make it panic.
//!
//! A panic is caught and becomes an error with an address, like any other damage. What a panic prints is
//! up to the process's one panic hook, which a library has no business to change: a program that wants
//! nothing printed calls [`quiet_decoder_panics`] as it starts.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};

thread_local! {
    /// Whether this thread is within [`guarded`].
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Keeps panics that are caught, and told as damage of a file, from being printed as well. All others
/// go to the hook there was. For the start of a program, before there are threads.
pub fn quiet_decoder_panics() {
    let others = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !GUARDED.get() {
            others(info);
        }
    }));
}

/// Runs `decode`; its error, or that it panicked, as text.
pub(super) fn guarded<T, E: ToString>(decode: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    let outer = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(decode));
    GUARDED.set(outer);
    match result {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the decoder cannot make sense of it".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_ends_the_guard() {
        let result = guarded(|| -> Result<(), String> { panic!("on a damaged file") });
        assert_eq!(result, Err("the decoder cannot make sense of it".to_owned()));
        assert!(!GUARDED.get());
        assert_eq!(guarded(|| Err::<(), _>("no")), Err("no".to_owned()));
    }
}
