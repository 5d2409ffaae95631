//! Sites with etcd: the client against real clusters, and hosts that keep leases there and find each other by it.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::{Duration, Instant};

use millstream_peers::etcd::{Endpoint, Etcd, EtcdError, EtcdFiles, EtcdSpec};
use millstream_tests::etcd::{EtcdCluster, EtcdTls};
use millstream_tests::programs::{Daemon, children, has_ended, wait_until};
use millstream_tests::site::Site;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::hosts::case::{Case, succeed, train, waits_for_ranks};

/// Between requests to a cluster that does not answer yet.
const PAUSE: Duration = Duration::from_millis(50);

#[test]
fn values_are_replaced_if_they_are_unchanged() {
    let (cluster, runtime) = (EtcdCluster::start(1), Runtime::new().unwrap());
    let etcd = cluster.client("site/a");
    runtime.block_on(async {
        let key = etcd.key("leases/x");
        assert_eq!(key, "site/a/leases/x");
        assert_eq!(etcd.get(&key).await.unwrap(), None);
        assert_eq!(etcd.replace(&key, b"0".to_vec(), 1).await.unwrap(), None, "there is none to replace");
        let first = etcd.create(&key, b"1".to_vec()).await.unwrap().unwrap();
        assert_eq!(etcd.create(&key, b"other".to_vec()).await.unwrap(), None);
        let second = etcd.replace(&key, b"2".to_vec(), first).await.unwrap().unwrap();
        assert_eq!(etcd.replace(&key, b"other".to_vec(), first).await.unwrap(), None);
        let kept = etcd.get(&key).await.unwrap().unwrap();
        assert_eq!((kept.bytes, kept.revision), (b"2".to_vec(), second));
        // Deleted and created again: the former version is not the present one.
        etcd.delete(&key).await.unwrap();
        etcd.put(&key, b"2".to_vec()).await.unwrap();
        assert_eq!(etcd.replace(&key, b"other".to_vec(), second).await.unwrap(), None);

        for name in ["peers/b", "peers/a", "peers0", "peer"] {
            etcd.put(&etcd.key(name), name.into()).await.unwrap();
        }
        let keys = |listed: Vec<(String, _)>| listed.into_iter().map(|(key, _)| key).collect::<Vec<_>>();
        let start = etcd.key("peers/");
        assert_eq!(
            keys(etcd.list(&start, 9).await.unwrap()),
            ["site/a/peers/a", "site/a/peers/b"].map(String::from)
        );
        assert_eq!(etcd.list(&start, 1).await.unwrap().len(), 1);
    });
}

#[test]
fn members_that_do_not_answer_are_passed_over() {
    let (mut cluster, runtime) = (EtcdCluster::start(3), Runtime::new().unwrap());
    let etcd = cluster.client("m");
    runtime.block_on(async {
        let mut revision = etcd.create("k", b"0".to_vec()).await.unwrap().unwrap();
        // Each member is gone once, the one that the client asks first among them.
        for member in 0..3 {
            cluster.kill(member);
            revision = replace_until_done(&etcd, revision).await;
            cluster.restart(member);
            wait_for(&cluster.client_of(member)).await;
        }
        // One that accepts connections, but does not answer, costs a time limit, and only once.
        for member in 0..3 {
            cluster.signal(member..member + 1, Signal::STOP);
            revision = replace_until_done(&etcd, revision).await;
            let again = Instant::now();
            assert!(etcd.get("k").await.is_ok());
            assert!(again.elapsed() < Duration::from_secs(1), "{:?}", again.elapsed());
            cluster.signal(member..member + 1, Signal::CONT);
            wait_for(&cluster.client_of(member)).await;
        }
        // Without a majority nothing is certain, and the reason names each member.
        cluster.kill(0);
        cluster.kill(1);
        let began = Instant::now();
        let error = etcd.get("k").await.unwrap_err();
        assert!(matches!(error, EtcdError::Unreachable(_)), "{error}");
        assert!(cluster.endpoints().iter().all(|endpoint| error.to_string().contains(endpoint)), "{error}");
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
        cluster.restart(0);
        wait_for(&etcd).await;
        assert_eq!(etcd.get("k").await.unwrap().unwrap().revision, revision);
    });
}

/// Replaces the value of `k`, as the holder of a lease does. Returns its new revision.
async fn replace_until_done(etcd: &Etcd, revision: i64) -> i64 {
    let value = format!("after {revision}").into_bytes();
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match etcd.replace("k", value.clone(), revision).await {
            Ok(Some(replaced)) => return replaced,
            // An earlier request was applied, whose response was lost.
            Ok(None) => {
                let kept = etcd.get("k").await.unwrap().unwrap();
                assert_eq!(kept.bytes, value);
                return kept.revision;
            }
            // The members elect a leader.
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until the cluster answers.
async fn wait_for(etcd: &Etcd) {
    let until = Instant::now() + Duration::from_secs(60);
    while let Err(error) = etcd.get("k").await {
        assert!(Instant::now() < until, "{error}");
        tokio::time::sleep(PAUSE).await;
    }
}

#[test]
fn clients_and_members_have_certificates() {
    let (site, runtime) = (Site::new(), Runtime::new().unwrap());
    site.host("localhost", "");
    let (ca, files) = (site.path().join("ca"), site.path().join("localhost"));
    let cluster = EtcdCluster::start_encrypted(EtcdTls { ca: &ca, files: &files });
    let endpoint = format!("https://localhost:{}", cluster.port(0));
    let client = |ca: Option<&Path>, files: Option<&Path>| {
        let identity = files.map(|files| (files.join("localhost.pem"), files.join("localhost.key")));
        let files = EtcdFiles { ca: ca.map(|ca| ca.join("ca.pem")), identity };
        let (endpoints, prefix) = (vec![Endpoint::parse(&endpoint).unwrap()], "m".to_owned());
        Etcd::new(EtcdSpec { endpoints, prefix, retry: Duration::ZERO, files })
    };
    let (stranger, other) = (Site::new(), Site::new());
    stranger.host("localhost", "");
    runtime.block_on(async {
        let admitted = client(Some(&ca), Some(&files));
        wait_for(&admitted).await;
        admitted.put("k", b"1".to_vec()).await.unwrap();
        let stranger = stranger.path().join("localhost");
        for (refused, why, message) in [
            (client(Some(&ca), None), "no certificate", "it may demand a client certificate"),
            (client(Some(&ca), Some(&stranger)), "another authority's certificate", "does not answer"),
            (client(None, Some(&files)), "the system's authorities", "certificate"),
            (client(Some(&other.path().join("ca")), Some(&files)), "another authority", "certificate"),
            (client(Some(&site.path().join("absent")), Some(&files)), "no file", "No such file"),
        ] {
            let error = refused.get("k").await.expect_err(why).to_string();
            assert!(error.contains(&endpoint) && error.contains(message), "{why}: {error}");
            assert!(admitted.get("k").await.unwrap().is_some(), "etcd goes on");
        }
    });
}

/// What `lease.json` of a run says.
fn lease_object(case: &Case, id: &str) -> Value {
    serde_json::from_slice(&case.bucket.server.get(&format!("models/runs/{id}/lease.json")).unwrap()).unwrap()
}

/// The keys in etcd that begin with `start`, with their values.
fn keys(case: &Case, start: &str) -> Vec<(String, Value)> {
    let (runtime, etcd) = (Runtime::new().unwrap(), case.etcd.as_ref().unwrap().client("millstream"));
    let mut listed = Vec::new();
    wait_until("etcd answers", || match runtime.block_on(etcd.list(&etcd.key(start), 99)) {
        Ok(found) => {
            listed = found;
            true
        }
        Err(_) => false,
    });
    listed.into_iter().map(|(key, kept)| (key, serde_json::from_slice(&kept.bytes).unwrap())).collect()
}

#[test]
fn hosts_find_each_other_and_keep_the_lease_in_etcd() {
    let mut case = Case::with_etcd(3);
    let set = ["workers.reproducible=2"];
    let wanted = case.undisturbed(&set);
    assert_eq!(keys(&case, "peers/"), [], "a host that stops takes back its announcement");
    let [first, second] = case.start_two();
    assert_eq!(keys(&case, "peers/").len(), 2);
    let id = case.submit(&first, 2, &["workers.reproducible=2", "workers.min=2"]);
    train(&[&first, &second], &id);
    wait_until("a checkpoint is written", || !first.show(&id)["checkpoint"].is_null());
    let leases = keys(&case, &format!("leases/{id}-"));
    let [(key, record)] = &leases[..] else { panic!("{leases:?}") };
    assert!(record["led"]["head"]["step"].as_u64().is_some_and(|step| step > 0), "{record:#}");
    let run = format!("s3://models/runs/{id}");
    assert_eq!(lease_object(&case, &id), json!({ "etcd_key": key, "run": run }));
    // A member of the cluster is gone: the lease is renewed, and nothing happens.
    let before = first.log(&id).lines().count();
    case.etcd.as_mut().unwrap().kill(0);
    let renewals = || keys(&case, &format!("leases/{id}-"))[0].1["renewals"].clone();
    let at_loss = renewals();
    wait_until("the lease is renewed", || renewals() != at_loss);
    train(&[&first, &second], &id);
    let log = first.log(&id);
    assert!(!log.lines().skip(before).any(|line| line.contains("are killed")), "{log}");
    case.etcd.as_mut().unwrap().restart(0);
    // The leader is gone.
    first.kill();
    wait_until("the other host leads", || waits_for_ranks(&second, &id));
    let first = case.restart("train-1");
    train(&[&second, &first], &id);
    // The whole cluster does not answer for longer than the lease is valid: nobody trains, until it does. The workers do
    // not advance meanwhile, or the job would end on a fast machine.
    let etcd = case.etcd.as_ref().unwrap();
    etcd.signal(0..3, Signal::STOP);
    for worker in [&first, &second].into_iter().flat_map(|daemon| children(daemon.pid())) {
        kill_process(Pid::from_raw(i32::try_from(worker).unwrap()).unwrap(), Signal::STOP).unwrap();
    }
    wait_until("nobody trains", || [&first, &second].iter().all(|daemon| children(daemon.pid()).is_empty()));
    etcd.signal(0..3, Signal::CONT);
    train(&[&second, &first], &id);
    let ended = succeed(&[&first, &second], &id);
    case.of_end(&ended).assert_same(&wanted);
    for daemon in [first, second] {
        daemon.stop();
    }
    assert_eq!(keys(&case, "peers/"), []);
    let (_, record) = &keys(&case, &format!("leases/{id}-"))[0];
    assert_eq!((&record["is_released"], &record["led"]["ended"]), (&json!(true), &json!("finished")));
}

/// As after a restart of the whole site.
#[test]
fn a_job_waits_for_an_etcd_that_starts_later() {
    let mut case = Case::with_etcd(1);
    let daemon = case.start("train-1");
    case.etcd.as_mut().unwrap().kill(0);
    let id = daemon.submit(&case.file, &["data.epochs=1"]);
    wait_until("the job is prepared", || daemon.show(&id)["state"] == "preparing");
    std::thread::sleep(Duration::from_secs(3));
    let shown = daemon.show(&id);
    assert_eq!(shown["state"], "preparing", "{shown:#}");
    case.etcd.as_mut().unwrap().restart(0);
    daemon.succeeded(&id);
    assert_eq!(keys(&case, &format!("leases/{id}-")).len(), 1);
}

#[test]
fn a_run_without_checkpoints_that_fails_leaves_no_key() {
    let case = Case::with_etcd(1);
    case.bucket.server.put("models/data/train-damaged.parquet", "not a Parquet file");
    let daemon = case.start("train-1");
    // A count of all changes in etcd.
    let (runtime, etcd) = (Runtime::new().unwrap(), case.etcd.as_ref().unwrap().client("test"));
    let before = runtime.block_on(etcd.create("before", Vec::new())).unwrap().unwrap();
    let id = daemon.submit(&case.file, &["data.epochs=1"]);
    wait_until("the job fails", || has_ended(&daemon.show(&id)));
    let log = daemon.log(&id);
    assert!(log.contains("train-damaged.parquet"), "{log}");
    assert_eq!(keys(&case, "leases/"), []);
    let after = runtime.block_on(etcd.create("after", Vec::new())).unwrap().unwrap();
    assert!(after >= before + 3, "a key is written and deleted: {before}, {after}");
    let names = case.bucket.server.names();
    assert!(!names.iter().any(|name| name.contains("/runs/")), "{names:?}");
}

/// Why a job is in its state.
fn reason(daemon: &Daemon, id: &str) -> String {
    daemon.show(id)["reason"].as_str().unwrap_or_default().to_owned()
}

/// The run decides where its lease is, not the daemon: two daemons that differ in that must not both have it.
#[test]
fn a_run_keeps_its_lease_where_it_has_begun() {
    let mut case = Case::with_etcd(1);
    let one = ["workers.reproducible=2"];
    let wanted = case.undisturbed(&one);
    let daemon = case.start("train-1");
    let in_etcd = case.submit(&daemon, 2, &one);
    train(&[&daemon], &in_etcd);
    daemon.stop();
    let etcd = case.etcd.take();
    let daemon = case.start("train-1");
    let why = "is in etcd, in the key millstream/leases/";
    wait_until("the job waits", || reason(&daemon, &in_etcd).contains(why));
    assert!(children(daemon.pid()).is_empty());
    daemon.json(&["cancel", &in_etcd]);
    let in_bucket = case.submit(&daemon, 2, &one);
    train(&[&daemon], &in_bucket);
    daemon.stop();
    assert!(lease_object(&case, &in_bucket)["term"].is_number());
    // A copy of a run does not share its lease.
    let lease = |id: &str| format!("models/runs/{id}/lease.json");
    let (of_etcd, of_bucket) = (lease(&in_etcd), lease(&in_bucket));
    let [pointer, record] = [&of_etcd, &of_bucket].map(|name| case.bucket.server.get(name).unwrap());
    case.bucket.server.put(&of_bucket, pointer);
    case.etcd = etcd;
    let daemon = case.start("train-1");
    let why = format!("lease.json is of the run in s3://models/runs/{in_etcd}");
    wait_until("the job waits", || reason(&daemon, &in_bucket).contains(&why));
    daemon.stop();
    case.bucket.server.put(&of_bucket, record);
    let daemon = case.start("train-1");
    let ended = daemon.succeeded(&in_bucket);
    case.of_end(&ended).assert_same(&wanted);
    assert!(lease_object(&case, &in_bucket)["term"].is_number(), "it stays in the bucket");
    daemon.json(&["resume", &in_etcd]);
    let ended = daemon.succeeded(&in_etcd);
    case.of_end(&ended).assert_same(&wanted);
    daemon.stop();
    assert!(lease_object(&case, &in_etcd)["etcd_key"].is_string(), "it stays in etcd");
}
