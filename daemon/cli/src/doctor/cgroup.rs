//! The limits of a process's control groups, of version 1 and 2.

use std::path::Path;

use super::system::{number, text};

/// The mount point of control groups.
const MOUNT: &str = "/sys/fs/cgroup";

/// Version 1 writes "no limit" as a number about as large as an address space.
const UNLIMITED: u64 = 1 << 60;

/// The tightest limits among a process's groups and their ancestors; `None` where nothing limits it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Limits {
    /// Cores' worth of CPU time.
    pub(crate) cores: Option<f64>,
    pub(crate) memory_bytes: Option<u64>,
    /// Processes and threads.
    pub(crate) processes: Option<u64>,
}

impl Limits {
    /// Those of this process.
    pub(crate) fn of_this_process() -> Self {
        Self::of(Path::new(MOUNT), &text("/proc/self/cgroup").unwrap_or_default())
    }

    /// Those of the groups that `listed` has, the text of `/proc/PID/cgroup`.
    fn of(mount: &Path, listed: &str) -> Self {
        let mut limits = Self::default();
        for (controllers, path) in listed.lines().filter_map(entry) {
            let root = if controllers.is_empty() { mount.to_owned() } else { mount.join(controllers) };
            // In a container the path can be the host's, where only the root of the mount is visible.
            for group in Path::new(path.trim_start_matches('/')).ancestors() {
                limits = limits.and(Self::of_group(&root.join(group)));
            }
        }
        limits
    }

    fn of_group(group: &Path) -> Self {
        let cores_2 = || {
            let text = text(group.join("cpu.max"))?;
            let (quota, period) = text.split_once(' ')?;
            Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
        };
        let cores_1 = || {
            let quota = number(group.join("cpu.cfs_quota_us"))?;
            Some(quota as f64 / number(group.join("cpu.cfs_period_us"))? as f64)
        };
        let memory = number(group.join("memory.max")).or_else(|| number(group.join("memory.limit_in_bytes")));
        Self {
            cores: cores_2().or_else(cores_1),
            memory_bytes: memory.filter(|&bytes| bytes < UNLIMITED),
            processes: number(group.join("pids.max")),
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

/// The controllers and the path of a line: `0::/path` of version 2, `4:cpu,cpuacct:/path` of version 1.
fn entry(line: &str) -> Option<(&str, &str)> {
    let mut parts = line.splitn(3, ':').skip(1);
    Some((parts.next()?, parts.next()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use super::*;

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
        let limits = Limits::of(mount.path(), "0::/system.slice/d.service\n");
        let wanted = Limits { cores: Some(1.5), memory_bytes: Some(1 << 30), processes: Some(300) };
        assert_eq!(limits, wanted);
        assert_eq!(Limits::of(mount.path(), "0::/user.slice\nnonsense\n"), Limits::default());
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
        let limits = Limits::of(mount.path(), "8:cpu,cpuacct:/job\n4:memory:/job\n");
        assert_eq!(limits, Limits { cores: Some(0.5), ..Limits::default() });
    }
}
