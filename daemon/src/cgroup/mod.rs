//! Control groups, of version 1 and 2: those of this process, and one for each worker.
//!
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html>, <https://docs.kernel.org/admin-guide/cgroup-v1>

mod limits;
mod workers;

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub use limits::Limits;
pub use workers::WorkerGroups;

pub(crate) use workers::WorkerGroup;

/// The mount point of control groups.
const MOUNT: &str = "/sys/fs/cgroup";

/// The groups of this process and their ancestors, by their directories.
pub(crate) fn of_this_process() -> Vec<PathBuf> {
    groups(Path::new(MOUNT), &fs::read_to_string("/proc/self/cgroup").unwrap_or_default())
}

/// The groups that `listed` has, the text of `/proc/PID/cgroup`, and their ancestors. Not all need to be visible: in a container
/// the paths can be the host's, where only the root of the mount is.
pub(crate) fn groups(mount: &Path, listed: &str) -> Vec<PathBuf> {
    let directories = |(controllers, path): (&str, &str)| {
        let root = if controllers.is_empty() { mount.to_owned() } else { mount.join(controllers) };
        let within = Path::new(path.trim_start_matches('/')).ancestors();
        within.map(|group| root.join(group)).collect::<Vec<_>>()
    };
    listed.lines().filter_map(entry).flat_map(directories).collect()
}

/// The controllers and the path of a line: `0::/path` of version 2, `4:cpu,cpuacct:/path` of version 1.
fn entry(line: &str) -> Option<(&str, &str)> {
    let mut parts = line.splitn(3, ':').skip(1);
    Some((parts.next()?, parts.next()?))
}

/// The text of a group's file, without spaces around it; `None` if it cannot be read.
pub(crate) fn text(group: &Path, file: &str) -> Option<String> {
    fs::read_to_string(group.join(file)).ok().map(|text| text.trim().to_owned())
}

/// The number in a group's file; `None` if it has another text, such as "max".
pub(crate) fn number<T: FromStr>(group: &Path, file: &str) -> Option<T> {
    text(group, file)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancestors_are_listed_up_to_the_mount() {
        let listed = groups(Path::new("/m"), "4:cpu,cpuacct:/a\n0::/b/c\nnonsense\n1:name=systemd:/\n");
        let wanted = ["/m/cpu,cpuacct/a", "/m/cpu,cpuacct/", "/m/b/c", "/m/b", "/m/", "/m/name=systemd/"];
        assert_eq!(listed, wanted.map(PathBuf::from));
    }
}
