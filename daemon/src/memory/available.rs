//! The available memory of the host and of this process's control groups.

use std::fs;
use std::path::{Path, PathBuf};

/// The mount point of control groups.
const GROUPS: &str = "/sys/fs/cgroup";

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
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(memory_of_groups(Path::new(GROUPS), &groups).into_iter().fold(host, Memory::within))
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

/// The memory of each limited group: the groups in `groups`, the text of `/proc/self/cgroup`, and their ancestors.
fn memory_of_groups(root: &Path, groups: &str) -> Vec<Memory> {
    // `0::/path` of version 2, `4:memory:/path` of version 1.
    let named = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        match controllers {
            "" => Some((root.to_owned(), path, ["memory.max", "memory.current", "inactive_file"])),
            _ if controllers.split(',').any(|it| it == "memory") => {
                let files = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];
                Some((root.join("memory"), path, files))
            }
            _ => None,
        }
    });
    named
        .flat_map(|(mount, path, files)| {
            let group = mount.join(path.trim_start_matches('/'));
            let around = group.ancestors().map(Path::to_owned).collect::<Vec<PathBuf>>();
            let within = around.into_iter().take_while(move |group| group.starts_with(&mount));
            within.filter_map(move |group| memory_of(&group, files))
        })
        .collect()
}

/// The memory of a group; `None` if it has no limit or is not visible.
fn memory_of(group: &Path, [limit, used, unused]: [&str; 3]) -> Option<Memory> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    // "max" means no limit.
    let limit: u64 = read(limit)?.trim().parse().ok()?;
    let used: u64 = read(used)?.trim().parse().ok()?;
    let unused = read("memory.stat").and_then(|text| field(&text, unused)).unwrap_or(0);
    Some(Memory { available_bytes: limit.saturating_sub(used.saturating_sub(unused)), total_bytes: limit })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn sizes(available_bytes: u64, total_bytes: u64) -> Memory {
        Memory { available_bytes, total_bytes }
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
        assert_eq!(memory_of_groups(root.path(), "3:cpu:/x\n0::/a/b\n"), [sizes(250, 1000)]);
        put(&group, "200\n", "700\n");
        assert_eq!(memory_of_groups(root.path(), "0::/a/b\n"), [sizes(0, 200), sizes(250, 1000)]);
        assert!(memory_of_groups(root.path(), "0::/elsewhere\n").is_empty());
    }

    #[test]
    fn version_1_groups_are_read() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("memory/a");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("memory.limit_in_bytes"), "1000").unwrap();
        fs::write(group.join("memory.usage_in_bytes"), "600").unwrap();
        fs::write(group.join("memory.stat"), "inactive_file 1\ntotal_inactive_file 100\n").unwrap();
        assert_eq!(memory_of_groups(root.path(), "5:cpu,memory:/a\n0::/\n"), [sizes(500, 1000)]);
    }
}
