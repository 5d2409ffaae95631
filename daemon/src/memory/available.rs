//! The available memory of the host and of this process's control groups.

use std::fs;
use std::path::{Path, PathBuf};

/// The mount point of control groups.
const GROUPS: &str = "/sys/fs/cgroup";

/// Bytes available without swapping: the kernel's estimate for the host, limited by what each control group has left.
/// A group's inactive file cache counts as available. `None` if the kernel does not report it.
pub(crate) fn bytes() -> Option<u64> {
    let memory = fs::read_to_string("/proc/meminfo").ok()?;
    let of_host = field(&memory, "MemAvailable:")?.checked_mul(1024)?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(left_in_groups(Path::new(GROUPS), &groups).into_iter().fold(of_host, u64::min))
}

/// The bytes that the host and this process's control groups allow at most; `None` if the kernel does not report it.
pub(crate) fn limit() -> Option<u64> {
    let memory = fs::read_to_string("/proc/meminfo").ok()?;
    let of_host = field(&memory, "MemTotal:")?.checked_mul(1024)?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = groups_around(Path::new(GROUPS), &groups);
    Some(limits.filter_map(|(group, [limit, ..])| read_limit(&group, limit)).fold(of_host, u64::min))
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

/// The bytes that each limited group has left: the groups in `groups`, the text of `/proc/self/cgroup`, and their
/// ancestors.
fn left_in_groups(root: &Path, groups: &str) -> Vec<u64> {
    groups_around(root, groups).filter_map(|(group, files)| left_in(&group, files)).collect()
}

/// The memory groups in `groups` and their ancestors, each with the names of its files: the limit, the use, and the field
/// of `memory.stat` with the part of the use that the kernel can free.
fn groups_around(root: &Path, groups: &str) -> impl Iterator<Item = (PathBuf, [&'static str; 3])> {
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
    named.flat_map(|(mount, path, files)| {
        let group = mount.join(path.trim_start_matches('/'));
        let around = group.ancestors().map(Path::to_owned).collect::<Vec<PathBuf>>();
        let within = around.into_iter().take_while(move |group| group.starts_with(&mount));
        within.map(move |group| (group, files))
    })
}

/// The bytes that a group has left; `None` if it has no limit or is not visible.
fn left_in(group: &Path, [limit, used, unused_field]: [&str; 3]) -> Option<u64> {
    let limit = read_limit(group, limit)?;
    let used: u64 = fs::read_to_string(group.join(used)).ok()?.trim().parse().ok()?;
    let unused = fs::read_to_string(group.join("memory.stat")).ok();
    let unused = unused.and_then(|text| field(&text, unused_field)).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(unused)))
}

/// A group's limit; `None` if it has none, or is not visible.
fn read_limit(group: &Path, file: &str) -> Option<u64> {
    // "max" means no limit.
    fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_host_reports_its_memory() {
        let available = bytes().unwrap();
        assert!(available > 1 << 20, "{available}");
        assert!(limit().unwrap() >= available);
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
        assert_eq!(left_in_groups(root.path(), "3:cpu:/x\n0::/a/b\n"), [250]);
        put(&group, "200\n", "700\n");
        assert_eq!(left_in_groups(root.path(), "0::/a/b\n"), [0, 250]);
        assert!(left_in_groups(root.path(), "0::/elsewhere\n").is_empty());
    }

    #[test]
    fn version_1_groups_are_read() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("memory/a");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("memory.limit_in_bytes"), "1000").unwrap();
        fs::write(group.join("memory.usage_in_bytes"), "600").unwrap();
        fs::write(group.join("memory.stat"), "inactive_file 1\ntotal_inactive_file 100\n").unwrap();
        assert_eq!(left_in_groups(root.path(), "5:cpu,memory:/a\n0::/\n"), [500]);
    }
}
