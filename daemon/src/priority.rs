//! Priorities of threads: jobs come before the answers to requests.

use rustix::process::setpriority_process;
use rustix::thread::gettid;

/// The niceness of the threads that answer requests. Where clients ask more than there are cores for, such a thread gets
/// about 3 % of a busy core; of an idle one it gets all.
const NICENESS: i32 = 15;

/// Lets the calling thread yield to those of jobs.
pub(crate) fn yield_to_jobs() {
    if let Err(error) = setpriority_process(Some(gettid()), NICENESS) {
        tracing::warn!(%error, "requests have the same priority as jobs");
    }
}
