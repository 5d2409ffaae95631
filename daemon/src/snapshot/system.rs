//! What processes and the host use, from `/proc`. What cannot be read is absent.

use std::fs;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use crate::memory::available;

/// What a process uses, or several together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessUse {
    /// Resident memory, shared memory such as rings included.
    pub resident_bytes: u64,
    /// Processor time of its threads, in user and kernel mode.
    pub cpu_seconds: f64,
    /// Threads.
    pub threads: u64,
}

/// File descriptors of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFiles {
    /// Open ones.
    pub open: u64,
    /// The maximum; `None` for no limit.
    pub maximum: Option<u64>,
}

/// The host.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostUse {
    /// Memory available without swapping, within the limits of the daemon's control groups.
    pub available_bytes: Option<u64>,
    /// All memory, within the same limits.
    pub memory_bytes: Option<u64>,
    /// Cores that this process may use.
    pub cores: u64,
    /// Mean number of runnable threads over the last 1, 5 and 15 minutes.
    pub load: Option<[f64; 3]>,
}

/// The host's name; empty if unknown.
pub(crate) fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim_end().to_owned()
}

impl ProcessUse {
    /// Of this process.
    pub(crate) fn of_self() -> Option<Self> {
        Self::in_stat(&fs::read_to_string("/proc/self/stat").ok()?)
    }

    /// Of the process `pid`.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Self::in_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Of the processes `pids` together, without those that have exited; `None` if all have.
    pub(crate) fn of_all(pids: &[u32]) -> Option<Self> {
        pids.iter().filter_map(|&pid| Self::of(pid)).reduce(|sum, process| Self {
            resident_bytes: sum.resident_bytes.saturating_add(process.resident_bytes),
            cpu_seconds: sum.cpu_seconds + process.cpu_seconds,
            threads: sum.threads.saturating_add(process.threads),
        })
    }

    /// In the text of `/proc/PID/stat` (proc_pid_stat(5)).
    fn in_stat(stat: &str) -> Option<Self> {
        // The name, in parentheses, may contain any character. The state, field 3, follows.
        let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let (user_ticks, system_ticks) = (field(14)?, field(15)?);
        Some(Self {
            resident_bytes: field(24)?.saturating_mul(page_size() as u64),
            cpu_seconds: user_ticks.saturating_add(system_ticks) as f64 / clock_ticks_per_second() as f64,
            threads: field(20)?,
        })
    }
}

impl OpenFiles {
    /// Of this process.
    pub(crate) fn of_self() -> Option<Self> {
        let listed = fs::read_dir("/proc/self/fd").ok()?.count() as u64;
        // One of them lists the others.
        Some(Self { open: listed.saturating_sub(1), maximum: getrlimit(Resource::Nofile).current })
    }
}

impl HostUse {
    /// Now.
    pub(crate) fn now() -> Self {
        let memory = available::memory();
        Self {
            available_bytes: memory.map(|memory| memory.available_bytes),
            memory_bytes: memory.map(|memory| memory.total_bytes),
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64),
            load: fs::read_to_string("/proc/loadavg").ok().and_then(|text| load_in(&text)),
        }
    }
}

/// In the text of `/proc/loadavg`.
fn load_in(text: &str) -> Option<[f64; 3]> {
    let mut words = text.split_whitespace().map(|word| word.parse().ok());
    Some([words.next()??, words.next()??, words.next()??])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn fields_are_found_behind_any_process_name() {
        let stat = "7 (a) 1 (b) S 1 7 7 0 -1 4194560 10 0 0 0 250 50 0 0 20 0 13 0 99 1000000 300 18446744073709551615";
        let found = ProcessUse::in_stat(stat).unwrap();
        let ticks = clock_ticks_per_second() as f64;
        assert_eq!((found.threads, found.resident_bytes), (13, 300 * page_size() as u64));
        assert!((found.cpu_seconds - 300.0 / ticks).abs() < 1e-9);
        for broken in ["", "7 (a", "7 (a) S 1 7", ")"] {
            assert_eq!(ProcessUse::in_stat(broken), None, "{broken:?}");
        }
        assert_eq!(load_in("0.31 0.97 1.23 1/300 7\n"), Some([0.31, 0.97, 1.23]));
        assert_eq!(load_in("0.31 x"), None);
    }

    #[test]
    fn this_process_and_host_are_seen() {
        let before = ProcessUse::of_self().unwrap();
        let same = ProcessUse::of(std::process::id()).unwrap();
        assert!(before.resident_bytes > 1 << 20 && same.cpu_seconds >= before.cpu_seconds);
        assert_eq!(ProcessUse::of(u32::MAX), None);
        let own = std::process::id();
        let twice = ProcessUse::of_all(&[own, u32::MAX, own]).unwrap();
        assert!(twice.cpu_seconds >= 2.0 * same.cpu_seconds && twice.resident_bytes > before.resident_bytes);
        assert_eq!(ProcessUse::of_all(&[u32::MAX]), None);
        let files = OpenFiles::of_self().unwrap();
        let _more: Vec<_> = (0..10).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        assert!(OpenFiles::of_self().unwrap().open > files.open);
        let host = HostUse::now();
        assert!(host.available_bytes.unwrap() <= host.memory_bytes.unwrap() && host.cores > 0);
        assert!(host.load.is_some());
    }
}
