//! The tightest limits among the control groups of a process.

use std::path::{Path, PathBuf};

use super::{number, text};

/// Version 1 writes "no limit" as a number about as large as an address space.
const UNLIMITED: u64 = 1 << 60;

/// The tightest limits among a process's groups and their ancestors; `None` where nothing limits it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// Cores' worth of CPU time.
    pub cores: Option<f64>,
    /// Memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
}

impl Limits {
    /// Those of this process.
    pub fn of_this_process() -> Self {
        Self::of(&super::of_this_process())
    }

    fn of(groups: &[PathBuf]) -> Self {
        groups.iter().fold(Self::default(), |limits, group| limits.and(Self::of_group(group)))
    }

    fn of_group(group: &Path) -> Self {
        let cores_2 = || {
            let text = text(group, "cpu.max")?;
            let (quota, period) = text.split_once(' ')?;
            Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
        };
        let cores_1 = || {
            // -1 means no limit.
            let quota: u64 = number(group, "cpu.cfs_quota_us")?;
            Some(quota as f64 / number::<u64>(group, "cpu.cfs_period_us")? as f64)
        };
        let memory = number(group, "memory.max").or_else(|| number(group, "memory.limit_in_bytes"));
        Self {
            cores: cores_2().or_else(cores_1),
            memory_bytes: memory.filter(|&bytes| bytes < UNLIMITED),
            processes: number(group, "pids.max"),
        }
    }

    fn and(self, other: Self) -> Self {
        fn least<T: PartialOrd>(one: Option<T>, other: Option<T>) -> Option<T> {
            match (one, other) {
                (Some(one), Some(other)) => Some(if other < one { other } else { one }),
                (one, other) => one.or(other),
            }
        }
        Self {
            cores: least(self.cores, other.cores),
            memory_bytes: least(self.memory_bytes, other.memory_bytes),
            processes: least(self.processes, other.processes),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use super::*;
    use crate::cgroup::groups;

    #[test]
    fn the_tightest_limit_of_the_groups_and_their_ancestors_counts() {
        let mount = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = mount.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("system.slice/cpu.max", "150000 100000\n");
        put("system.slice/d.service/cpu.max", "max 100000\n");
        put("system.slice/d.service/memory.max", "1073741824\n");
        put("system.slice/memory.max", "max\n");
        put("system.slice/d.service/pids.max", "300\n");
        let limits = Limits::of(&groups(mount.path(), "0::/system.slice/d.service\n"));
        let wanted = Limits { cores: Some(1.5), memory_bytes: Some(1 << 30), processes: Some(300) };
        assert_eq!(limits, wanted);
        assert_eq!(Limits::of(&groups(mount.path(), "0::/user.slice\nnonsense\n")), Limits::default());
    }

    #[test]
    fn groups_of_version_1_are_read_too() {
        let mount = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("cpu,cpuacct/job/cpu.cfs_quota_us", "50000"),
            ("cpu,cpuacct/job/cpu.cfs_period_us", "100000"),
            ("cpu,cpuacct/cpu.cfs_quota_us", "-1"),
            ("memory/memory.limit_in_bytes", "9223372036854771712"),
        ] {
            let path = mount.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let limits = Limits::of(&groups(mount.path(), "8:cpu,cpuacct:/job\n4:memory:/job\n"));
        assert_eq!(limits, Limits { cores: Some(0.5), ..Limits::default() });
    }
}
