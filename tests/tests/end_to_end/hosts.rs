//! Daemons of several hosts train one model together: through the loss of workers, hosts and the leader, each row once.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use millstream_tests::bucket::Bucket;
use millstream_tests::programs::{Daemon, children, has_ended, kill, wait_until};
use millstream_tests::site::{Site, at};
use millstream_tests::tiny_job::{Contents, TinyJob};
use serde_json::Value;

/// The epochs of the job, which trains for seconds even on one host, and its steps.
const EPOCHS: u64 = 48;
const STEPS: u64 = EPOCHS * 750;

/// Hosts, a bucket, and a job with its data there.
struct Case {
    site: Site,
    bucket: Bucket,
    /// The job file.
    file: PathBuf,
    /// The hosts and their ports, which stay when a daemon restarts.
    ports: [(&'static str, u16); 3],
}

impl Case {
    fn new() -> Self {
        let (site, bucket, job) = (Site::new(), Bucket::start(), TinyJob::new());
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
        let free =
            ["alone", "train-1", "train-2"].map(|name| (name, TcpListener::bind("127.0.0.1:0").unwrap()));
        let ports = free.map(|(name, listener)| (name, listener.local_addr().unwrap().port()));
        Self { site, bucket, file, ports }
    }

    /// Starts a host.
    fn start(&self, name: &str) -> Daemon {
        let addresses = self.ports.map(|(_, port)| format!("127.0.0.1:{port}"));
        let discover = at(&addresses.each_ref().map(String::as_str));
        let keys = format!("data_interface = 'lo'\ndata_protection = 'isolated'\n{discover}");
        let (_, port) = self.ports.into_iter().find(|(host, _)| *host == name).unwrap();
        self.site.host_at(name, port, &keys);
        self.restart(name)
    }

    /// Starts two hosts, which know each other.
    fn start_two(&self) -> [Daemon; 2] {
        let daemons = ["train-1", "train-2"].map(|name| self.start(name));
        let is_up = |host: &Value| host["state"] == "up";
        wait_until("each host sees the other", || {
            daemons
                .iter()
                .all(|daemon| daemon.json(&["peers"])["peers"].as_array().unwrap().iter().any(is_up))
        });
        daemons
    }

    /// Starts the daemon of a host again.
    fn restart(&self, name: &str) -> Daemon {
        let variables = self.bucket.variables();
        let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, Path::new(value))).collect();
        Daemon::start_in(&self.site.path().join(name), &variables)
    }

    /// Submits the job with up to `max` workers, and returns its id.
    fn submit(&self, daemon: &Daemon, max: u32, set: &[&str]) -> String {
        let own = [format!("workers.max={max}"), format!("data.epochs={EPOCHS}")];
        let set: Vec<_> = own.iter().map(String::as_str).chain(set.iter().copied()).collect();
        daemon.submit(&self.file, &set)
    }

    /// Trains on one host to the end, without interruptions; returns its final checkpoint.
    fn undisturbed(&self, set: &[&str]) -> Contents {
        let daemon = self.start("alone");
        let id = self.submit(&daemon, 4, set);
        let ended = daemon.succeeded(&id);
        daemon.stop();
        self.of(&ended)
    }

    /// The steps of the committed checkpoints.
    fn manifests(&self) -> Vec<u64> {
        let names = self.bucket.server.names();
        let step = |name: &String| name.strip_suffix("/manifest.json")?.rsplit_once("/step-")?.1.parse().ok();
        names.iter().filter_map(step).collect()
    }

    /// The final checkpoint of a job.
    fn of(&self, ended: &Value) -> Contents {
        assert_eq!(ended["progress"]["step"].as_u64(), Some(STEPS), "{ended}");
        Contents::in_bucket(&self.bucket, ended["checkpoint"].as_str().unwrap()).without_job_description()
    }
}

/// The last step that a host knows of a job; 0 before it knows the job.
fn step(daemon: &Daemon, id: &str) -> u64 {
    let output = daemon.run(&["--json", "show", id]);
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    shown["progress"]["step"].as_u64().unwrap_or_default()
}

/// Waits until each of these hosts has a worker and the job has advanced.
fn train(daemons: &[&Daemon], id: &str) {
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

/// Whether a host leads the job, and waits for another one.
fn waits_for_ranks(daemon: &Daemon, id: &str) -> bool {
    let shown = daemon.show(id);
    shown["reason"]
        .as_str()
        .unwrap_or_default()
        .contains("waiting for ranks: hosts offer 1, the job needs at least 2")
}

/// Waits until the job has succeeded on each of these hosts, and returns it.
fn succeed(daemons: &[&Daemon], id: &str) -> Value {
    let mut ended = Value::Null;
    daemons.iter().for_each(|daemon| ended = daemon.succeeded(id));
    ended
}

#[test]
fn hosts_train_as_one_through_the_loss_of_workers_hosts_and_the_leader() {
    let case = Case::new();
    let set = ["workers.reproducible=2"];
    let wanted = case.undisturbed(&set);
    let [first, second] = case.start_two();
    // A host alone waits, so the job does not end meanwhile.
    let id = case.submit(&first, 2, &["workers.reproducible=2", "workers.min=2"]);
    train(&[&first, &second], &id);
    kill(children(second.pid())[0]);
    train(&[&first, &second], &id);
    // A host is gone, and comes back.
    second.kill();
    let second = case.restart("train-2");
    train(&[&first, &second], &id);
    // The leader is gone, and follows the other host when it is back.
    first.kill();
    wait_until("the other host leads", || waits_for_ranks(&second, &id));
    let first = case.restart("train-1");
    train(&[&second, &first], &id);
    let ended = succeed(&[&first, &second], &id);
    case.of(&ended).assert_same(&wanted);
    assert_eq!(case.bucket.server.uploads(), 0);
    for daemon in [first, second] {
        daemon.stop();
    }
}

#[test]
fn hosts_leave_and_join_without_repeating_a_row() {
    let case = Case::new();
    let wanted = case.undisturbed(&["workers.reproducible=2"]);
    let [first, second] = case.start_two();
    // It waits while there is one host.
    let id = case.submit(&first, 2, &["workers.reproducible=2", "workers.min=2"]);
    train(&[&first, &second], &id);
    // Stopped as by a service manager: at a step boundary, with a checkpoint.
    second.stop();
    let second = case.restart("train-2");
    train(&[&first, &second], &id);
    first.stop();
    let first = case.restart("train-1");
    train(&[&second, &first], &id);
    // A host that a user pauses, too; it follows again when it is resumed.
    let paused = first.json(&["pause", &id]);
    assert_eq!(paused["state"], "paused", "{paused}");
    assert!(children(first.pid()).is_empty());
    wait_until("the job waits", || waits_for_ranks(&second, &id));
    first.json(&["resume", &id]);
    train(&[&second, &first], &id);
    let ended = succeed(&[&first, &second], &id);
    case.of(&ended).assert_same(&wanted);
}

#[test]
fn a_job_is_watched_and_cancelled_from_its_hosts() {
    let case = Case::new();
    let [first, second] = case.start_two();
    let id = case.submit(&first, 2, &["workers.min=2"]);
    train(&[&first, &second], &id);
    let checkpoint = second.json(&["checkpoint", &id]);
    let at = checkpoint["step"].as_u64().unwrap();
    assert!(case.manifests().contains(&at), "{checkpoint}");
    for daemon in [&first, &second] {
        let shown = daemon.show(&id);
        assert!(shown["checkpoint"].as_str().unwrap().starts_with("s3://models/runs/"), "{shown}");
        let log = daemon.log(&id);
        assert!(log.contains(&format!("checkpoint at step {at}")), "{log}");
    }
    let refused = second.run(&["profile", &id]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("cannot be profiled yet"));
    let cancelled = first.json(&["cancel", &id]);
    assert_eq!(cancelled["state"], "cancelled", "{cancelled}");
    let mut other = Value::Null;
    wait_until("the other host knows", || {
        other = second.show(&id);
        has_ended(&other)
    });
    assert_eq!(other["state"], "failed", "{other}");
    assert!(other["reason"].as_str().unwrap().contains("cancelled by a user on host train-1"), "{other}");
    assert!([&first, &second].iter().all(|daemon| children(daemon.pid()).is_empty()));
}

#[test]
fn a_daemon_without_peers_refuses_a_job_for_several_hosts() {
    let case = Case::new();
    let directory = case.site.path().join("lonely");
    fs::create_dir(&directory).unwrap();
    let daemon = Daemon::start(&directory);
    let refused = daemon.run(&["submit", case.file.to_str().unwrap(), "--set", "workers.max=2"]);
    assert_eq!(refused.status.code(), Some(1));
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("set `[peers]` in its configuration"), "{error}");
}
