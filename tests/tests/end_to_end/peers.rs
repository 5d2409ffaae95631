//! Daemons of several hosts find, authenticate and measure each other.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use millstream_tests::bucket::Bucket;
use millstream_tests::programs::{Daemon, wait_until};
use millstream_tests::site::{Site, address, at};
use serde_json::Value;

/// What a daemon says about another host.
fn seen(daemon: &Daemon, name: &str) -> Option<Value> {
    let hosts = daemon.json(&["peers"]);
    let named = hosts["peers"].as_array().unwrap().iter().filter(|host| host["name"] == name);
    // After it has moved, its former address is known as well.
    named.cloned().min_by_key(|host| host["state"] != "up")
}

fn is_up(daemon: &Daemon, name: &str) -> bool {
    seen(daemon, name).is_some_and(|host| host["state"] == "up")
}

fn log(directory: &Path) -> String {
    fs::read_to_string(directory.join("daemon.log")).unwrap()
}

#[test]
fn daemons_of_two_hosts_find_and_measure_each_other() {
    let site = Site::new();
    let first = site.start("train-1", "");
    let second = site.start("train-2", &at(&[&address(&first)]));
    wait_until("each sees the other", || is_up(&first, "train-2") && is_up(&second, "train-1"));

    let host = seen(&second, "train-1").unwrap();
    assert!(host["cpus"].as_u64().unwrap() > 0 && host["memory_bytes"].as_u64().unwrap() > 1 << 20, "{host}");
    let offset = host["clock_offset_seconds"].as_f64().unwrap();
    assert!(offset.abs() <= host["clock_error_seconds"].as_f64().unwrap() + 1e-3, "one clock: {host}");
    let shown = String::from_utf8(second.run(&["peers"]).stdout).unwrap();
    assert!(shown.contains("train-2 (this host)") && shown.contains("train-1"), "{shown}");
    let metrics = String::from_utf8(second.run(&["metrics"]).stdout).unwrap();
    assert!(metrics.contains("millstream_peers{state=\"up\"} 1\n"), "{metrics}");

    let measured = second.json(&["peers", "--measure", "train-1", "--connections", "2"]);
    let link = &measured["peers"][0];
    assert_eq!(link["name"], "train-1");
    for key in ["sent_bytes_per_second", "received_bytes_per_second", "round_trip_seconds"] {
        assert!(link[key].as_f64().unwrap() > 0.0, "{link}");
    }
    let unknown = second.run(&["peers", "--measure", "train-9"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no peer is called train-9"));

    // Killed, and started again at another port, from where it greets the other one.
    first.kill();
    wait_until("the loss is seen", || seen(&second, "train-1").is_some_and(|host| host["state"] == "down"));
    let down = seen(&second, "train-1").unwrap();
    assert!(!down["reason"].as_str().unwrap().is_empty(), "{down}");
    let failed = second.run(&["peers", "--measure", "train-1"]);
    assert_eq!(failed.status.code(), Some(1), "a link that cannot be measured is a failure");
    let directory = site.path().join("train-1");
    let text = fs::read_to_string(directory.join("millstreamd.toml")).unwrap();
    fs::write(directory.join("millstreamd.toml"), format!("{text}{}\n", at(&[&address(&second)]))).unwrap();
    let first = Daemon::start(&directory);
    wait_until("it is back", || is_up(&second, "train-1") && is_up(&first, "train-2"));
    let measured = second.json(&["peers", "--measure", "train-1"]);
    assert_eq!(measured["peers"][0]["error"], "", "not the former address: {measured}");
    let log = log(&site.path().join("train-2"));
    for line in ["peer train-1 at", "is up", "is lost"] {
        assert!(log.contains(line), "{log}");
    }
}

#[test]
fn strangers_and_revoked_hosts_are_refused_and_logged() {
    let (site, other) = (Site::new(), Site::new());
    let daemon = site.start("train-1", "");
    let address = address(&daemon);
    let stranger = other.start("train-2", &at(&[&address]));
    wait_until("the stranger is refused", || {
        let hosts = stranger.json(&["peers"]);
        hosts["peers"][0]["reason"].as_str().is_some_and(|reason| reason.contains("TLS handshake"))
    });
    stranger.kill();
    let refused = || daemon.json(&["peers"])["refused_connections"].as_u64().unwrap();
    let before = refused();
    assert!(before > 0);
    let mut scan = TcpStream::connect(&address).unwrap();
    scan.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    // An alert, or only the end.
    let _ = scan.read_to_end(&mut Vec::new());
    wait_until("the scan is refused", || refused() > before);

    let member = site.start("train-3", &at(&[&address]));
    wait_until("the member is admitted", || is_up(&member, "train-1") && is_up(&daemon, "train-3"));
    assert_eq!(daemon.json(&["peers"])["peers"].as_array().unwrap().len(), 1);
    let lines = log(&site.path().join("train-1"));
    assert!(lines.contains("refused a connection from 127.0.0.1"), "{lines}");

    let _done = site.shell.run(&["peers", "revoke", "--ca", "ca", "train-3"]).with_code(0);
    wait_until("the revoked host is refused", || {
        let seen = seen(&daemon, "train-3");
        seen.is_some_and(|host| host["state"] == "down") && !is_up(&member, "train-1")
    });
    let again = Daemon::start(&site.host("train-4", &at(&[&address])));
    wait_until("another member is admitted", || is_up(&daemon, "train-4") && is_up(&again, "train-1"));
}

#[test]
fn daemons_find_each_other_in_a_bucket() {
    let (site, bucket) = (Site::new(), Bucket::start());
    let variables = bucket.variables();
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, Path::new(value))).collect();
    let start = |name: &str| {
        let directory = site.host(name, "discover = ['bucket:s3://models/peers']");
        Daemon::start_in(&directory, &variables)
    };
    let names = ["train-1", "train-2", "train-3"];
    let daemons = names.map(start);
    for daemon in &daemons {
        wait_until("it sees both others", || {
            let hosts = daemon.json(&["peers"]);
            hosts["peers"].as_array().unwrap().iter().filter(|host| host["state"] == "up").count() == 2
        });
    }
    let announced = || bucket.objects("models/peers/").map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(announced().len(), 3);
    let [first, second, third] = daemons;
    first.stop();
    assert_eq!(announced().len(), 2, "a daemon that stops removes itself: {:?}", announced());
    second.kill();
    assert_eq!(announced().len(), 2);
    wait_until("only the others are down", || {
        let hosts = third.json(&["peers"]);
        let hosts = hosts["peers"].as_array().unwrap();
        assert_eq!(hosts.len(), 2, "{hosts:?}");
        hosts.iter().all(|host| host["state"] == "down")
    });
}

#[test]
fn a_daemon_with_mistakes_in_its_configuration_does_not_start() {
    let site = Site::new();
    let directory = site.host("train-1", "");
    let path = directory.join("millstreamd.toml");
    let good = fs::read_to_string(&path).unwrap();
    let refused = |text: &str| {
        fs::write(&path, text).unwrap();
        let output = std::process::Command::new(millstream_tests::programs::program("millstreamd"))
            .args(["--config", path.to_str().unwrap(), "--socket", directory.join("s").to_str().unwrap()])
            .args(["--state", directory.join("state").to_str().unwrap()])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let error = refused(&good.replace("train-1.key", "absent.key"));
    assert!(error.contains("absent.key: No such file"), "{error}");
    let error = refused(&good.replace("127.0.0.1:0", "192.0.2.1:7420"));
    assert!(error.contains("`peers.listen`: cannot listen on 192.0.2.1:7420"), "{error}");
    let error = refused(&format!("{good}discover = ['train-2']"));
    assert!(error.contains("peers.discover: expected \"static:HOST:PORT"), "{error}");

    fs::write(&path, "max_jobs = 1").unwrap();
    let alone = Daemon::start(&directory);
    let output = alone.run(&["peers"]);
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("no section [peers]"), "{message}");

    // An authority is never replaced, and neither is a key.
    let again = site.shell.run(&["peers", "init-ca", "ca"]).with_code(1).stderr;
    assert!(again.contains("ca.key: the file exists"), "{again}");
    let again = site.shell.run(&["peers", "issue", "--ca", "ca", "--out", "train-1", "train-1"]).with_code(1);
    assert!(again.stderr.contains("train-1.key: the file exists"), "{}", again.stderr);
}
