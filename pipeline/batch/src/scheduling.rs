//! Configures how the kernel schedules threads.

use std::io;

/// Makes the calling thread, and those that it starts from now on, wait for a processor when they wake up: they no longer interrupt a
/// thread that computes, but run once it sleeps or its time slice ends. Their share of the processors stays the same. A thread whose
/// policy is not the usual one keeps it.
///
/// For threads that work ahead of others. Those of ingest wake up several times per batch, and on a machine whose processors
/// are all busy each of them may otherwise stop the program that trains for a time slice of milliseconds.
///
/// Source: `SCHED_BATCH` in sched(7).
///
/// # Errors
/// The system does not allow it.
pub fn stop_interrupting_others() -> io::Result<()> {
    // SAFETY: it takes an integer; thread 0 is the calling one.
    match unsafe { libc::sched_getscheduler(0) } {
        libc::SCHED_OTHER => {}
        ..0 => return Err(io::Error::last_os_error()),
        _ => return Ok(()),
    }
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads one `sched_param`, which lives until the call returns. Thread 0 is the calling one.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameter) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{fs, thread};

    use super::*;

    /// The policy of the calling thread: field 41 of `stat` in proc_pid_stat(5).
    fn policy() -> i32 {
        let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
        // The second field is a name in parentheses, which may contain spaces.
        let (_, after_name) = stat.rsplit_once(") ").unwrap();
        after_name.split(' ').nth(41 - 3).unwrap().parse().unwrap()
    }

    #[test]
    fn a_thread_and_those_that_it_starts_have_the_policy() {
        let before = policy();
        let of_threads = thread::spawn(|| {
            stop_interrupting_others().unwrap();
            (policy(), thread::spawn(policy).join().unwrap())
        });
        assert_eq!(of_threads.join().unwrap(), (libc::SCHED_BATCH, libc::SCHED_BATCH));
        assert_eq!(policy(), before);
    }
}
