//! The available memory of the host and of this process's control groups.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cgroup::{self, number};

/// Memory of the host, within the limits of this process's control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Bytes available without swapping: the kernel's estimate for the host, limited by what each control group has left.
    /// A group's inactive file cache counts as available.
    pub(crate) available_bytes: u64,
    /// All bytes: the host's, limited by each control group.
    pub(crate) total_bytes: u64,
}

/// The memory now; `None` if the kernel does not report it.
pub(crate) fn memory() -> Option<Memory> {
    let host = fs::read_to_string("/proc/meminfo").ok()?;
    let kib = |name| field(&host, name)?.checked_mul(1024);
    let host = Memory { available_bytes: kib("MemAvailable:")?, total_bytes: kib("MemTotal:")? };
    Some(memory_of_groups(&cgroup::of_this_process()).fold(host, Memory::within))
}

/// Bytes available without swapping, as in [`Memory`].
pub(crate) fn bytes() -> Option<u64> {
    memory().map(|memory| memory.available_bytes)
}

impl Memory {
    fn within(self, other: Self) -> Self {
        Self {
            available_bytes: self.available_bytes.min(other.available_bytes),
            total_bytes: self.total_bytes.min(other.total_bytes),
        }
    }
}

/// The number of processes of this host that the OOM killer has killed; `None` if the kernel does not report it.
pub(crate) fn kills() -> Option<u64> {
    field(&fs::read_to_string("/proc/vmstat").ok()?, "oom_kill")
}

/// The number after `name` in lines of a name and a number.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| if words.next() == Some(name) { words.next()?.parse().ok() } else { None })
}

/// The memory of each limited group.
fn memory_of_groups(groups: &[PathBuf]) -> impl Iterator<Item = Memory> {
    const VERSION_2: [&str; 3] = ["memory.max", "memory.current", "inactive_file"];
    const VERSION_1: [&str; 3] = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];
    groups.iter().filter_map(|group| memory_of(group, VERSION_2).or_else(|| memory_of(group, VERSION_1)))
}

/// The memory of a group; `None` if it has no limit or is not visible.
fn memory_of(group: &Path, [limit, used, unused]: [&str; 3]) -> Option<Memory> {
    let (limit, used): (u64, u64) = (number(group, limit)?, number(group, used)?);
    let unused = cgroup::text(group, "memory.stat").and_then(|text| field(&text, unused)).unwrap_or(0);
    Some(Memory { available_bytes: limit.saturating_sub(used.saturating_sub(unused)), total_bytes: limit })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::cgroup::groups;

    fn sizes(available_bytes: u64, total_bytes: u64) -> Memory {
        Memory { available_bytes, total_bytes }
    }

    fn of(root: &Path, listed: &str) -> Vec<Memory> {
        memory_of_groups(&groups(root, listed)).collect()
    }

    #[test]
    fn the_host_reports_its_memory() {
        let memory = memory().unwrap();
        assert!(
            memory.available_bytes > 1 << 20 && memory.available_bytes <= memory.total_bytes,
            "{memory:?}"
        );
        let within = sizes(5, 10).within(sizes(7, 9));
        assert_eq!(within, sizes(5, 9));
        assert!(kills().is_some());
    }

    #[test]
    fn ancestors_limit_a_group_and_unused_cache_counts_as_available() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("a/b");
        fs::create_dir_all(&group).unwrap();
        let put = |group: &Path, limit: &str, used: &str| {
            fs::write(group.join("memory.max"), limit).unwrap();
            fs::write(group.join("memory.current"), used).unwrap();
        };
        put(&group, "max\n", "700\n");
        put(&root.path().join("a"), "1000\n", "900\n");
        fs::write(root.path().join("a/memory.stat"), "file 300\ninactive_file 150\n").unwrap();
        assert_eq!(of(root.path(), "3:cpu:/x\n0::/a/b\n"), [sizes(250, 1000)]);
        put(&group, "200\n", "700\n");
        assert_eq!(of(root.path(), "0::/a/b\n"), [sizes(0, 200), sizes(250, 1000)]);
        assert!(of(root.path(), "0::/elsewhere\n").is_empty());
    }

    #[test]
    fn version_1_groups_are_read() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("memory,hugetlb/a");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("memory.limit_in_bytes"), "1000").unwrap();
        fs::write(group.join("memory.usage_in_bytes"), "600").unwrap();
        fs::write(group.join("memory.stat"), "inactive_file 1\ntotal_inactive_file 100\n").unwrap();
        assert_eq!(of(root.path(), "5:memory,hugetlb:/a\n0::/\n"), [sizes(500, 1000)]);
    }
}
