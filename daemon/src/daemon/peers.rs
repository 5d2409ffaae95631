//! What the daemon says to those of other hosts.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use millstream_peers::HostStatus;
use tokio::runtime::Handle;

use super::Daemon;
use crate::peers::Peers;
use crate::runs::Storage;

/// Where NVIDIA's driver describes its GPUs. Reading it wakes up none of them.
const GPUS: &str = "/proc/driver/nvidia/gpus";

impl Daemon {
    /// Returns a function that reports the state of this host. It does not keep the daemon alive, and does not wait for a driver: the names of
    /// the GPUs are read once, on a thread of `runtime`.
    pub(crate) fn host_statuses(&self, runtime: &Handle) -> impl Fn() -> HostStatus + Send + Sync + 'static {
        let gpus = Arc::new(OnceLock::new());
        let reading = Arc::clone(&gpus);
        runtime.spawn_blocking(move || reading.set(gpu_names(Path::new(GPUS))));
        let shared = Arc::downgrade(&self.shared);
        move || {
            let status = shared.upgrade().map(|shared| Self { shared }.host_status()).unwrap_or_default();
            HostStatus { gpus: gpus.get().cloned().unwrap_or_default(), ..status }
        }
    }

    /// The state of this host: sums over its jobs, without their names.
    fn host_status(&self) -> HostStatus {
        let (running, capacity) = {
            let jobs = self.shared.jobs();
            (jobs.running.clone(), jobs.scheduler.capacity())
        };
        let progress: Vec<_> = running.iter().map(|active| active.recorder.record().progress).collect();
        let rates = progress.iter().map(|job| job.examples_per_second);
        let trained = progress.iter().filter(|job| job.step > 0);
        let waits: Vec<_> = trained.map(|job| job.input_wait_fraction).collect();
        HostStatus {
            cpus: capacity.threads,
            memory_bytes: capacity.memory_bytes,
            jobs: u32::try_from(running.len()).unwrap_or(u32::MAX),
            examples_per_second: rates.sum(),
            wait_fraction: (!waits.is_empty()).then(|| waits.iter().sum::<f64>() / waits.len() as f64),
            // Not known here.
            ..HostStatus::default()
        }
    }

    /// The daemons of other hosts, if it has peers.
    pub(crate) fn peers(&self) -> Option<&Arc<Peers>> {
        self.shared.peers.get()
    }

    /// Sets the daemons of other hosts, once.
    pub(crate) fn set_peers(&self, peers: Arc<Peers>) {
        let first = self.shared.peers.set(peers);
        debug_assert!(first.is_ok(), "the peers are set once");
    }

    /// Its storage, without settings of a job.
    pub(crate) fn shared_storage(&self) -> &Storage {
        &self.shared.storage
    }
}

/// The names of the GPUs that the driver describes in `directory`, in the order of their bus addresses.
fn gpu_names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut entries: Vec<_> = entries.map(|entry| entry.path()).collect();
    entries.sort();
    let model = |path: &PathBuf| {
        let text = fs::read_to_string(path.join("information")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
        Some(line.trim().to_owned())
    };
    entries.iter().filter_map(model).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn gpus_have_the_names_that_the_driver_gives_them() {
        let dir = tempfile::tempdir().unwrap();
        for (bus, text) in [
            ("0000:65:00.0", "Model: \t\t NVIDIA H200\nIRQ:   \t\t 189\n"),
            ("0000:19:00.0", "Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t GPU-1\n"),
            ("0000:99:00.0", "IRQ: 7\n"),
        ] {
            fs::create_dir(dir.path().join(bus)).unwrap();
            fs::write(dir.path().join(bus).join("information"), text).unwrap();
        }
        assert_eq!(gpu_names(dir.path()), ["NVIDIA H100 80GB HBM3", "NVIDIA H200"]);
        assert!(gpu_names(&dir.path().join("absent")).is_empty());
    }
}
