//! Recognising that file descriptors are exhausted.
//!
//! Clients of the socket or another process of the host may exhaust them. The job that happens to open a file next is not
//! at fault. Its supervisor waits and tries again, without counting an attempt against the retry budget.

use std::time::Duration;

use rustix::io::Errno;

/// Interval between attempts of a job that lacks descriptors.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// Whether an error is that the process (`EMFILE`) or the system (`ENFILE`) is out of descriptors. Errors of storage and of
/// data formats contain the system's error as text.
pub(super) fn is_exhausted(error: &str) -> bool {
    let mark = |errno: Errno| format!("(os error {})", errno.raw_os_error());
    error.contains(&mark(Errno::MFILE)) || error.contains(&mark(Errno::NFILE))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn exhausted_descriptors_are_recognised_in_any_error() {
        for errno in [Errno::MFILE, Errno::NFILE] {
            let error = anyhow::Error::from(io::Error::from(errno)).context("data/a.parquet");
            assert!(is_exhausted(&format!("{error:#}")), "{error:#}");
        }
        let other = io::Error::from(Errno::NOENT).to_string();
        assert!(!is_exhausted(&other), "{other}");
    }
}
