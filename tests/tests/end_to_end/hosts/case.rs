//! Hosts that train one job together: daemons on ports of this machine, with a bucket for data and runs.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use millstream_test_cuda::StandIn;
use millstream_tests::bucket::Bucket;
use millstream_tests::etcd::EtcdCluster;
use millstream_tests::programs::{Daemon, children, has_ended, kill, wait_until};
use millstream_tests::site::{Site, at};
use millstream_tests::tiny_job::{Contents, TinyJob};
use serde_json::Value;

/// The host that trains without others, and those that train together.
const ALONE: &str = "alone";
const TOGETHER: [&str; 4] = ["train-1", "train-2", "train-3", "train-4"];

/// The batch size of the job.
const BATCH: u64 = 32;

/// Hosts, a bucket, and a job with its data there.
pub(crate) struct Case {
    pub(crate) site: Site,
    pub(crate) bucket: Bucket,
    /// The job file.
    pub(crate) file: PathBuf,
    /// The epochs of the job, and the rows of each.
    pub(crate) epochs: u64,
    pub(crate) rows: u64,
    /// The hosts and their ports, which stay when a daemon restarts.
    pub(crate) ports: Vec<(&'static str, u16)>,
    /// Stand-ins for GPUs and their libraries, if the hosts have any.
    pub(crate) gpus: Option<StandIn>,
    /// The etcd cluster of the site, if it has one: hosts find each other by it.
    pub(crate) etcd: Option<EtcdCluster>,
}

impl Case {
    /// With the tiny job, for so many epochs that it trains for seconds even on one host.
    pub(crate) fn new() -> Self {
        Self::of(&TinyJob::new(), 24_000, 48)
    }

    /// With the files of `job`, which have `rows` rows to train on.
    pub(crate) fn of(job: &TinyJob, rows: u64, epochs: u64) -> Self {
        let (site, bucket) = (Site::new(), Bucket::start());
        for entry in fs::read_dir(job.directory()).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if name.ends_with(".parquet") {
                bucket.server.put(&format!("models/data/{name}"), fs::read(entry.path()).unwrap());
            }
        }
        let text = fs::read_to_string(job.file()).unwrap();
        let text = text
            .replace("\"train-*.parquet\"", "\"s3://models/data/train-*.parquet\"")
            .replace("\"eval.parquet\"", "\"s3://models/data/eval.parquet\"")
            .replace("directory = \"checkpoints\"", "directory = \"s3://models/runs\"");
        let file = site.path().join("job.toml");
        fs::write(&file, text).unwrap();
        // All at the same time, so that they differ.
        let names = [ALONE].into_iter().chain(TOGETHER);
        let free: Vec<_> = names.map(|name| (name, TcpListener::bind("127.0.0.1:0").unwrap())).collect();
        let port = |(name, listener): (_, TcpListener)| (name, listener.local_addr().unwrap().port());
        let ports = free.into_iter().map(port).collect();
        Self { site, bucket, file, epochs, rows, ports, gpus: None, etcd: None }
    }

    /// With hosts that have two emulated GPUs each.
    pub(crate) fn with_gpus() -> Self {
        Self { gpus: Some(StandIn::whole().unwrap()), ..Self::new() }
    }

    /// With an etcd cluster of this number of members.
    pub(crate) fn with_etcd(members: usize) -> Self {
        Self { etcd: Some(EtcdCluster::start(members)), ..Self::new() }
    }

    /// The steps of the job.
    pub(crate) fn steps(&self) -> u64 {
        self.epochs * self.rows.div_ceil(BATCH)
    }

    /// The address of a host for others.
    pub(crate) fn address(&self, name: &str) -> String {
        let (_, port) = self.ports.iter().find(|(host, _)| *host == name).unwrap();
        format!("127.0.0.1:{port}")
    }

    /// Starts a host.
    pub(crate) fn start(&self, name: &str) -> Daemon {
        self.configure(name, "lo");
        self.restart(name)
    }

    /// Writes the configuration of a host, whose workers use this network interface.
    pub(crate) fn configure(&self, name: &str, interface: &str) {
        let addresses: Vec<_> = self.ports.iter().map(|(name, _)| self.address(name)).collect();
        let discover = match &self.etcd {
            Some(etcd) => format!("discover = ['etcd']\n{}", etcd.section()),
            None => at(&addresses.iter().map(String::as_str).collect::<Vec<_>>()),
        };
        let keys = format!("data_interface = '{interface}'\ndata_protection = 'isolated'\n{discover}");
        let (_, port) = self.ports.iter().find(|(host, _)| *host == name).unwrap();
        self.site.host_at(name, *port, &keys);
    }

    /// Starts hosts, which know each other.
    pub(crate) fn start_all<const N: usize>(&self) -> [Daemon; N] {
        let daemons = std::array::from_fn(|number| self.start(TOGETHER[number]));
        see_each_other(&daemons);
        daemons
    }

    /// Starts two hosts, which know each other.
    pub(crate) fn start_two(&self) -> [Daemon; 2] {
        self.start_all()
    }

    /// Starts the daemon of a host, again or after [`Case::configure`].
    pub(crate) fn restart(&self, name: &str) -> Daemon {
        self.restart_with(name, &[])
    }

    /// The same with further environment variables.
    pub(crate) fn restart_with(&self, name: &str, more: &[(&str, &Path)]) -> Daemon {
        let variables = self.bucket.variables();
        let variables = variables.iter().map(|(name, value)| (*name, Path::new(value)));
        let mut variables: Vec<_> = variables.chain(more.iter().copied()).collect();
        // Compiled kernels of the stand-in are files of this checkout. In the user's cache, they would outlive it.
        let cache = self.site.path().join("cache");
        if let Some(gpus) = &self.gpus {
            variables.extend([
                ("MILLSTREAM_CUDA_LIBRARIES", gpus.folder()),
                ("MILLSTREAM_STAND_IN_DEVICES", Path::new("2")),
                ("CACHE_DIRECTORY", &cache),
            ]);
        }
        Daemon::start_in(&self.site.path().join(name), &variables)
    }

    /// Submits the job with up to `max` workers, and returns its id.
    pub(crate) fn submit(&self, daemon: &Daemon, max: u32, set: &[&str]) -> String {
        let own = [format!("workers.max={max}"), format!("data.epochs={}", self.epochs)];
        let set: Vec<_> = own.iter().map(String::as_str).chain(set.iter().copied()).collect();
        daemon.submit(&self.file, &set)
    }

    /// Trains on one host to the end, without interruptions; returns its final checkpoint.
    pub(crate) fn undisturbed(&self, set: &[&str]) -> Contents {
        let daemon = self.start(ALONE);
        let id = self.submit(&daemon, 4, set);
        let ended = daemon.succeeded(&id);
        daemon.stop();
        self.of_end(&ended)
    }

    /// The steps of the committed checkpoints.
    pub(crate) fn manifests(&self) -> Vec<u64> {
        let names = self.bucket.server.names();
        let step = |name: &String| name.strip_suffix("/manifest.json")?.rsplit_once("/step-")?.1.parse().ok();
        names.iter().filter_map(step).collect()
    }

    /// The final checkpoint of a job, which has trained on each row once an epoch.
    pub(crate) fn of_end(&self, ended: &Value) -> Contents {
        assert_eq!(ended["progress"]["step"].as_u64(), Some(self.steps()), "{ended:#}");
        assert_eq!(ended["progress"]["examples"].as_u64(), Some(self.epochs * self.rows), "{ended:#}");
        Contents::in_bucket(&self.bucket, ended["checkpoint"].as_str().unwrap()).without_job_description()
    }
}

/// Waits until each of these hosts knows all others.
pub(crate) fn see_each_other(daemons: &[Daemon]) {
    let is_up = |host: &&Value| host["state"] == "up";
    wait_until("each host sees the others", || {
        daemons.iter().all(|daemon| {
            let hosts = daemon.json(&["peers"]);
            hosts["peers"].as_array().unwrap().iter().filter(is_up).count() == daemons.len() - 1
        })
    });
}

/// The last step that a host knows of a job; 0 before it knows the job.
pub(crate) fn step(daemon: &Daemon, id: &str) -> u64 {
    let output = daemon.run(&["--json", "show", id]);
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    shown["progress"]["step"].as_u64().unwrap_or_default()
}

/// Waits until each of these hosts has a worker and the job has advanced.
pub(crate) fn train(daemons: &[&Daemon], id: &str) {
    wait_until("all hosts train", || {
        daemons.iter().all(|daemon| !children(daemon.pid()).is_empty() && step(daemon, id) > 0)
    });
    let before = step(daemons[0], id);
    wait_until("the job advances", || {
        let shown = daemons[0].show(id);
        assert!(!has_ended(&shown), "{shown:#}");
        step(daemons[0], id) >= before + 300
    });
}

/// Kills a worker of a host, once it has one: those of all hosts may just be replaced.
pub(crate) fn kill_worker(daemon: &Daemon) {
    wait_until("the host has a worker", || children(daemon.pid()).first().is_some_and(|&pid| kill(pid)));
}

/// Whether a host leads the job, and waits for another one.
pub(crate) fn waits_for_ranks(daemon: &Daemon, id: &str) -> bool {
    let shown = daemon.show(id);
    shown["reason"]
        .as_str()
        .unwrap_or_default()
        .contains("waiting for ranks: hosts offer 1, the job needs at least 2")
}

/// Waits until the job has succeeded on each of these hosts, and returns it.
pub(crate) fn succeed(daemons: &[&Daemon], id: &str) -> Value {
    let mut ended = Value::Null;
    daemons.iter().for_each(|daemon| ended = daemon.succeeded(id));
    ended
}
