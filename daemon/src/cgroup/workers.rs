//! A control group for each worker, where systemd has delegated that of the service to the daemon (`Delegate=`, version 2).
//!
//! ```text
//! /sys/fs/cgroup/system.slice/millstreamd.service/daemon/         the daemon
//!                                                 worker-4711/    a worker, and all that it starts
//! ```
//!
//! A worker that uses far more memory than was planned is killed alone, before the host runs out of it, and what a worker leaves
//! behind ends with its group. Elsewhere (by hand, in containers, with version 1) workers stay in the group of the daemon,
//! which also guards them: they end with the thread that started them.
//!
//! <https://systemd.io/CGROUP_DELEGATION>

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millstream_batch::Size;

use super::MOUNT;

/// The attribute with which systemd marks a delegated group.
const DELEGATED: &str = "user.delegate";

/// The groups of the daemon and of a worker; the latter is followed by its process id.
const DAEMON: &str = "daemon";
const WORKER: &str = "worker-";

/// The controllers that limit and count for each worker.
const CONTROLLERS: [&str; 2] = ["+memory", "+pids"];

/// A worker may use this much memory beyond twice what was planned: a limit that ends a sound worker would be worse than none.
const SPARE_BYTES: u64 = 4 << 30;

/// Attempts to remove a group whose last process is ending, and the pause between them.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// The delegated group, in which workers get groups of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerGroups {
    parent: PathBuf,
}

/// The group of a worker. Dropping it ends what is in it, and removes it.
pub(crate) struct WorkerGroup {
    path: PathBuf,
}

impl WorkerGroups {
    /// Takes over the group of this process, and removes the groups that an earlier daemon left in it. `None` if systemd has not
    /// delegated it.
    pub(crate) fn take_over() -> Option<Self> {
        let groups = Self { parent: delegated(&fs::read_to_string("/proc/self/cgroup").ok()?)? };
        match groups.prepare() {
            Ok(()) => {
                tracing::debug!(group = %groups.parent.display(), "workers have control groups of their own");
                Some(groups)
            }
            Err(error) => {
                let parent = groups.parent.display();
                tracing::warn!("workers have no control groups of their own: {parent}: {error}");
                None
            }
        }
    }

    /// Makes room for workers: a group that has controllers for its children must not have processes itself.
    fn prepare(&self) -> io::Result<()> {
        let own = self.parent.join(DAEMON);
        if !own.is_dir() {
            fs::create_dir(&own)?;
        }
        fs::write(own.join("cgroup.procs"), std::process::id().to_string())?;
        for controller in CONTROLLERS {
            // A kernel or a unit may lack one: then workers are not limited in it.
            let _ = fs::write(self.parent.join("cgroup.subtree_control"), controller);
        }
        for entry in fs::read_dir(&self.parent)?.flatten() {
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(WORKER)) {
                drop(WorkerGroup { path: entry.path() });
            }
        }
        Ok(())
    }

    /// Moves the worker `pid` into a group of its own; `None` if that fails.
    pub(crate) fn add(&self, pid: u32) -> Option<WorkerGroup> {
        let group = WorkerGroup { path: self.parent.join(format!("{WORKER}{pid}")) };
        let moved = || {
            fs::create_dir(&group.path)?;
            fs::write(group.path.join("cgroup.procs"), pid.to_string())
        };
        match moved() {
            Ok(()) => Some(group),
            Err(error) => {
                tracing::warn!("worker {pid} has no control group of its own: {error}");
                None
            }
        }
    }
}

/// The group in `listed`, the text of `/proc/self/cgroup`, if it is delegated.
fn delegated(listed: &str) -> Option<PathBuf> {
    let path = listed.lines().find_map(|line| line.strip_prefix("0::/"))?;
    // Without one, the path is the root of a container.
    let group = Path::new(MOUNT).join(path).canonicalize().ok().filter(|_| !path.is_empty())?;
    let mut mark = [0; 1];
    let length = rustix::fs::getxattr(&group, DELEGATED, &mut mark).ok()?;
    (length == 1 && &mark == b"1").then_some(group)
}

impl WorkerGroup {
    /// Limits the memory of the worker, which needs `planned_bytes`: beyond it, the kernel kills it.
    pub(crate) fn limit_memory(&self, planned_bytes: u64) {
        let limit = limit(planned_bytes);
        // The files are absent where the controller is.
        let _ = fs::write(self.path.join("memory.oom.group"), "1");
        if fs::write(self.path.join("memory.max"), limit.to_string()).is_ok() {
            tracing::debug!(group = %self.path.display(), "its memory is limited to {}", Size(limit));
        }
    }
}

fn limit(planned_bytes: u64) -> u64 {
    planned_bytes.saturating_mul(2).saturating_add(SPARE_BYTES)
}

impl Drop for WorkerGroup {
    fn drop(&mut self) {
        for _ in 0..TRIES {
            // Fails where nothing is left to be killed, or the kernel is older than 5.14.
            let _ = fs::write(self.path.join("cgroup.kill"), "1");
            match fs::remove_dir(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::sleep(PAUSE),
                _ => return,
            }
        }
        tracing::warn!("the control group {} has processes that do not end", self.path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_without_the_mark_is_not_delegated() {
        for listed in ["0::/\n", "0::/no/such/group\n", "4:memory:/a\n", ""] {
            assert_eq!(delegated(listed), None, "{listed}");
        }
    }

    #[test]
    fn the_limit_is_far_above_the_plan() {
        assert_eq!(limit(10 << 30), 24 << 30);
        assert_eq!(limit(u64::MAX), u64::MAX);
    }
}
