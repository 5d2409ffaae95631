//! The limits of the process that runs jobs: files, threads, locked memory.

use millstream_control::proto::AboutReply;
use millstream_daemon::cgroup::Limits;
use rustix::process::{Resource, getrlimit};

use super::finding::Finding;
use super::system::number;
use crate::figures::{bytes, count};

/// Below this, a daemon with a few jobs that read many objects waits for descriptors.
const FEW_FILES: u64 = 4_096;

/// Below this, threads cannot be started on a host with many cores.
const FEW_THREADS: u64 = 1_024;

/// Below this, the ring of a job with the default settings cannot be pinned.
const LITTLE_LOCKED_BYTES: u64 = 1 << 30;

/// What was found out about limits. `None` is no limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// Whether they are the daemon's, else of this session.
    of_daemon: bool,
    /// Whether the process is one of root, to whom the number of processes does not apply.
    is_root: bool,
    open_files: Option<u64>,
    processes: Option<u64>,
    locked_bytes: Option<u64>,
    /// The kernel's limit on threads.
    kernel_threads: Option<u64>,
    /// The limit of the session's control groups on processes and threads.
    group_threads: Option<u64>,
    /// Whether the host has a GPU.
    has_gpu: bool,
}

impl Facts {
    pub(super) fn gather(daemon: Option<&AboutReply>, has_gpu: bool) -> Self {
        let limit = |resource| getrlimit(resource).current;
        let (of_daemon, is_root, [open_files, processes, locked_bytes]) = match daemon {
            Some(about) => (true, about.uid == 0, [about.open_files, about.processes, about.locked_bytes]),
            None => (
                false,
                rustix::process::geteuid().is_root(),
                [Resource::Nofile, Resource::Nproc, Resource::Memlock].map(limit),
            ),
        };
        Self {
            of_daemon,
            is_root,
            open_files,
            processes,
            locked_bytes,
            kernel_threads: number("/proc/sys/kernel/threads-max"),
            group_threads: Limits::of_this_process().processes.filter(|_| !of_daemon),
            has_gpu,
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        vec![self.of_files(), self.of_threads(), self.of_locked()]
    }

    fn whose(&self) -> &'static str {
        if self.of_daemon { "the daemon" } else { "this session" }
    }

    /// How to raise a limit.
    fn raise(&self, of_service: &str, of_shell: &str) -> String {
        if self.of_daemon {
            format!(
                "set {of_service} in the service (sudo systemctl edit millstreamd), or `{of_shell}` before millstreamd"
            )
        } else {
            format!("{of_shell}; permanently in /etc/security/limits.conf")
        }
    }

    fn of_files(&self) -> Finding {
        let Some(most) = self.open_files else {
            return Finding::ok("limits.files", format!("{}: any number of open files", self.whose()));
        };
        let found = format!("{}: {} open files", self.whose(), count(most));
        match most < FEW_FILES {
            true => Finding::warn("limits.files", found, self.raise("LimitNOFILE=65536", "ulimit -n 65536")),
            false => Finding::ok("limits.files", found),
        }
        .with("limit", most as f64)
    }

    fn of_threads(&self) -> Finding {
        let of_user = self.processes.filter(|_| !self.is_root);
        let limits = [
            (
                self.group_threads,
                "set TasksMax=infinity, or raise the container's limit on processes".to_owned(),
            ),
            (of_user, self.raise("LimitNPROC=infinity", "ulimit -u unlimited")),
            (self.kernel_threads, "sudo sysctl kernel.threads-max=65536".to_owned()),
        ];
        let least = limits.into_iter().filter_map(|(most, advice)| Some((most?, advice))).min();
        let Some((most, advice)) = least else {
            return Finding::ok("limits.threads", format!("{}: any number of threads", self.whose()));
        };
        let found = format!("{}: {} threads", self.whose(), count(most));
        match most < FEW_THREADS {
            true => Finding::warn("limits.threads", found, advice),
            false => Finding::ok("limits.threads", found),
        }
        .with("limit", most as f64)
    }

    fn of_locked(&self) -> Finding {
        let Some(most) = self.locked_bytes else {
            return Finding::ok("limits.locked", format!("{}: any amount of locked memory", self.whose()));
        };
        let found = format!("{}: {} of locked memory", self.whose(), bytes(most));
        let finding = if !self.has_gpu {
            Finding::ok("limits.locked", format!("{found}; only GPUs need more"))
        } else if most < LITTLE_LOCKED_BYTES {
            let advice = self.raise("LimitMEMLOCK=infinity", "ulimit -l unlimited");
            Finding::warn("limits.locked", format!("{found}: batches may not be pinned for the GPU"), advice)
        } else {
            Finding::ok("limits.locked", found)
        };
        finding.with("limit_bytes", most as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Mark;
    use super::*;

    fn facts() -> Facts {
        Facts {
            open_files: Some(65_536),
            processes: Some(90_000),
            kernel_threads: Some(180_000),
            has_gpu: true,
            ..Facts::default()
        }
    }

    fn marks(facts: &Facts) -> [Mark; 3] {
        [facts.of_files(), facts.of_threads(), facts.of_locked()].map(|finding| finding.mark)
    }

    #[test]
    fn the_limits_of_a_service_are_ok() {
        assert_eq!(marks(&facts()), [Mark::Ok; 3]);
        assert_eq!(facts().of_threads().found, "this session: 90,000 threads");
        assert_eq!(marks(&Facts::default()), [Mark::Ok; 3]);
        // Root's processes have no limit but the kernel's.
        let root = Facts { is_root: true, processes: Some(1), ..facts() };
        assert_eq!(root.of_threads().found, "this session: 180,000 threads");
        assert_eq!(Facts { has_gpu: false, locked_bytes: Some(1), ..facts() }.of_locked().mark, Mark::Ok);
    }

    #[test]
    fn tight_limits_are_warnings_with_the_command_that_raises_them() {
        let tight = Facts { open_files: Some(256), locked_bytes: Some(8 << 20), ..facts() };
        assert_eq!(marks(&tight), [Mark::Warn, Mark::Ok, Mark::Warn]);
        assert!(tight.of_files().advice.is_some_and(|advice| advice.starts_with("ulimit -n 65536")));
        let of_daemon = Facts { of_daemon: true, ..tight };
        assert!(of_daemon.of_files().advice.is_some_and(|advice| advice.contains("LimitNOFILE=65536")));
        for limited in [
            Facts { group_threads: Some(100), ..facts() },
            Facts { processes: Some(100), ..facts() },
            Facts { kernel_threads: Some(100), ..facts() },
        ] {
            assert_eq!(limited.of_threads().found, "this session: 100 threads");
            assert_eq!(limited.of_threads().mark, Mark::Warn);
        }
    }
}
