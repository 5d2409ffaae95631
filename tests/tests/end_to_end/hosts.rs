//! Daemons of several hosts train one model together: through the loss of workers, hosts and the leader, each row once.

#![allow(clippy::unwrap_used)]

pub(crate) mod case;

use std::fs;
use std::time::{Duration, Instant};

use millstream_tests::programs::{Daemon, children, has_ended, is_alive, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use case::{Case, kill_worker, see_each_other, succeed, train, waits_for_ranks};

#[test]
fn hosts_train_as_one_through_the_loss_of_workers_hosts_and_the_leader() {
    let case = Case::new();
    let set = ["workers.reproducible=2"];
    let wanted = case.undisturbed(&set);
    let [first, second] = case.start_two();
    // A host alone waits, so the job does not end meanwhile.
    let id = case.submit(&first, 2, &["workers.reproducible=2", "workers.min=2"]);
    train(&[&first, &second], &id);
    kill_worker(&second);
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
    case.of_end(&ended).assert_same(&wanted);
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
    case.of_end(&ended).assert_same(&wanted);
}

/// NCCL adds the gradients of the GPUs of all hosts. A worker that is lost does not change the rows.
#[test]
fn gpus_of_two_hosts_train_as_one_gpu() {
    let case = Case::with_gpus();
    // Few large steps: kernels run on the host.
    let few = ["data.epochs=1", "data.batch_size=800", "checkpoint.every_steps=5"];
    let run = |daemons: &[&Daemon], devices: &str, more: &[&str]| {
        let devices = format!("workers.devices={devices}");
        let set: Vec<_> = few.iter().chain(more).copied().chain([&*devices]).collect();
        let id = case.submit(daemons[0], 4, &set);
        if let [first, second] = daemons {
            wait_until("a checkpoint is written", || !first.show(&id)["checkpoint"].is_null());
            kill_worker(second);
        }
        let ended = succeed(daemons, &id);
        assert_eq!(ended["progress"]["step"].as_u64(), Some(30), "{ended}");
        ended
    };
    let alone = case.start("alone");
    let wanted = run(&[&alone], "[0]", &["workers.max=1"]);
    alone.stop();
    let [first, second] = case.start_two();
    let ended = run(&[&first, &second], "[0, 1]", &["workers.min=4"]);
    for daemon in [&first, &second] {
        let log = daemon.log(ended["id"].as_str().unwrap());
        let killed = log.lines().find(|line| line.contains("the workers of all hosts are killed: "));
        assert!(killed.is_some_and(|line| line.contains(" of 4 ")), "{log}");
    }
    let auc = |job: &Value| job["eval"]["auc"].as_f64().unwrap_or_else(|| panic!("{job:#}"));
    let (one, several) = (auc(&wanted), auc(&ended));
    assert!((one - several).abs() < 1e-4, "{several}, and on one GPU {one}");
}

/// A reducer adds gradients with the same bits as the workers do without it, through its loss and that of a worker.
#[test]
fn a_reducer_adds_for_the_workers_of_other_hosts() {
    let case = Case::new();
    // So many gradients that workers do not add them among themselves.
    let set = ["workers.reproducible=2", "model.deep.hidden=[64, 32]"];
    let wanted = case.undisturbed(&set);
    let [first, second, reducer] = case.start_all();
    let with_reducer = ["workers.min=2", "workers.reducers=[\"train-3\"]"];
    let id = case.submit(&first, 2, &[&set[..], &with_reducer].concat());
    let hosts = [&first, &second, &reducer];
    train(&hosts, &id);
    let log = reducer.log(&id);
    assert!(log.contains("this host adds gradients for the workers of others"), "{log}");
    let shown = reducer.show(&id);
    // Known only after two sums.
    assert!(shown["workers"][0]["exchange_fraction"].is_number(), "{shown:#}");
    kill_worker(&reducer);
    wait_until("the loss is known", || first.log(&id).contains("host train-3: "));
    train(&hosts, &id);
    kill_worker(&second);
    train(&hosts, &id);
    // Its host is gone: the others continue without it. It takes part again when it is back.
    reducer.kill();
    train(&[&first, &second], &id);
    let reducer = case.restart("train-3");
    let hosts = [&first, &second, &reducer];
    train(&hosts, &id);
    let ended = succeed(&hosts, &id);
    case.of_end(&ended).assert_same(&wanted);
    for daemon in hosts {
        assert!(children(daemon.pid()).is_empty());
    }
}

/// A host without GPUs adds the gradients of those of others.
#[test]
fn a_reducer_without_gpus_adds_for_gpus() {
    let mut case = Case::with_gpus();
    let large = ["data.epochs=1", "data.batch_size=400", "model.deep.hidden=[64, 32]", "workers.devices=[0]"];
    let alone = case.start("alone");
    let id = case.submit(&alone, 1, &large);
    let wanted = alone.succeeded(&id);
    alone.stop();
    let (first, second) = (case.start("train-1"), case.start("train-2"));
    case.gpus = None;
    let reducer = case.start("train-3");
    let hosts = [first, second, reducer];
    see_each_other(&hosts);
    let [first, _, reducer] = &hosts;
    let reduced = ["workers.min=2", "workers.reducers=[\"train-3\"]"];
    let id = case.submit(first, 2, &[&large[..], &reduced].concat());
    let adds = |job: &Value| job["workers"][0]["exchange_fraction"].is_number();
    wait_until("the reducer knows the job", || reducer.run(&["show", &id]).status.success());
    let mut shown = Value::Null;
    wait_until("the reducer takes part in sums", || {
        shown = reducer.show(&id);
        adds(&shown) || has_ended(&shown)
    });
    assert!(adds(&shown), "{shown:#}");
    let auto =
        ["workers.max=2", "workers.reducers=[\"train-3\"]", "data.batch_size=auto"].map(|set| ["--set", set]);
    let line = [&["submit", case.file.to_str().unwrap()], auto.as_flattened()].concat();
    let refused = String::from_utf8(reducer.run(&line).stderr).unwrap();
    assert!(refused.contains("submit the job to a host that trains"), "{refused}");
    let ended = succeed(&hosts.each_ref(), &id);
    assert_eq!(ended["progress"]["step"], wanted["progress"]["step"], "{ended:#}");
    let auc = |job: &Value| job["eval"]["auc"].as_f64().unwrap_or_else(|| panic!("{job:#}"));
    let (one, several) = (auc(&wanted), auc(&ended));
    assert!((one - several).abs() < 1e-4, "{several}, and on one GPU {one}");
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
    // On a host that does not lead it.
    let cancelled = second.json(&["cancel", &id]);
    assert_eq!(cancelled["state"], "cancelled", "{cancelled}");
    let mut other = Value::Null;
    wait_until("the other host knows", || {
        other = first.show(&id);
        has_ended(&other)
    });
    assert_eq!(other["state"], "failed", "{other}");
    assert!(other["reason"].as_str().unwrap().contains("cancelled by a user on host train-2"), "{other}");
    assert!([&first, &second].iter().all(|daemon| children(daemon.pid()).is_empty()));
}

#[test]
fn the_batch_size_is_decided_once_for_all_hosts() {
    let case = Case::new();
    let [first, second] = case.start_two();
    let automatic = ["data.batch_size=auto", "data.auto_batch.most=64", "data.auto_batch.memory=1GiB"];
    let set = [&automatic[..], &["workers.min=2", "data.epochs=2"]].concat();
    let id = case.submit(&first, 2, &set);
    let ended = succeed(&[&first, &second], &id);
    // 24,000 rows an epoch.
    assert_eq!(ended["progress"]["step"].as_u64(), Some(2 * 24_000 / 64), "{ended}");
    let is_decided = |name: &&String| name.ends_with(&format!("{id}/auto_batch.json"));
    assert_eq!(case.bucket.server.names().iter().filter(is_decided).count(), 1);
}

/// As `ncclCommWatchdog` cannot (nccl 1324, pytorch 118369): every host names the worker, its host, and where the others wait.
#[test]
fn a_worker_that_hangs_is_named_on_all_hosts() {
    let case = Case::new();
    let [first, second] = case.start_two();
    let id = case.submit(&first, 2, &["workers.min=2", "workers.timeout_seconds=12"]);
    train(&[&first, &second], &id);
    let stopped = children(second.pid())[0];
    kill_process(Pid::from_raw(stopped as i32).unwrap(), Signal::STOP).unwrap();
    let began = Instant::now();
    let awaited = |daemon: &Daemon| {
        let shown = daemon.show(&id);
        let mut workers = shown["workers"].as_array().into_iter().flatten().cloned();
        workers.find(|worker| !worker["awaited_seconds"].is_null())
    };
    for (daemon, host) in [(&first, Value::from("train-2")), (&second, Value::Null)] {
        wait_until("the worker is named", || awaited(daemon).is_some_and(|worker| worker["host"] == host));
        let worker = awaited(daemon).unwrap();
        assert!(worker["awaited_in"].as_str().unwrap().contains(", number "), "{worker:#}");
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let text = String::from_utf8(first.run(&["show", &id]).stdout).unwrap();
    assert!(text.contains("on host train-2, the others have waited for it for "), "{text}");
    // The others give up, and it is replaced.
    wait_until("the worker is gone", || !is_alive(stopped));
    train(&[&first, &second], &id);
    let logs = [&first, &second].map(|daemon| daemon.log(&id));
    let named = "(host train-2) of 2 hangs, or needs more than `workers.timeout_seconds` = 12";
    assert!(logs.iter().any(|log| log.contains(named)), "{logs:#?}");
    first.json(&["cancel", &id]);
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
