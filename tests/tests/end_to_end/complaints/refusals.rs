//! What a host lacks is named together with the host and a remedy, before the first step.

use std::fs;
use std::process::Command;

use millstream_tests::programs::{Daemon, has_ended, wait_until};
use serde_json::Value;

use crate::hosts::case::{Case, see_each_other, succeed};

/// Waits until a job has failed without a step; returns the reason.
fn refusal(daemon: &Daemon, id: &str) -> String {
    wait_until("the job fails", || has_ended(&daemon.show(id)));
    let failed = daemon.show(id);
    assert_eq!(failed["state"], "failed", "{failed:#}");
    assert_eq!(failed["progress"]["step"].as_u64().unwrap_or_default(), 0, "{failed:#}");
    failed["reason"].as_str().unwrap().to_owned()
}

/// HugeCTR 287 and 404: a missing or old library on one host is an "unhandled system error".
#[test]
fn a_host_without_a_library_is_named_before_the_first_step() {
    let case = Case::new();
    let first = case.start("train-1");
    case.configure("train-2", "lo");
    let libraries = case.site.path().join("no-libraries");
    let second = case.restart_with("train-2", &[("MILLSTREAM_UCX_LIBRARIES", &libraries)]);
    let daemons = [first, second];
    see_each_other(&daemons);
    let id = case.submit(&daemons[0], 2, &["workers.min=2"]);
    for daemon in &daemons {
        let reason = refusal(daemon, &id);
        for part in ["host train-2: ", "libucp.so.0", "install package libucx0 (deb) or ucx (rpm)"] {
            assert!(reason.contains(part), "{reason}");
        }
    }
}

/// The same complaint about ports: the host is named while the job waits for it.
#[test]
fn a_closed_port_is_named_with_a_remedy() {
    let case = Case::new();
    let daemon = case.start("train-1");
    let id = case.submit(&daemon, 2, &["workers.min=2"]);
    let waits = "waiting for ranks: hosts offer 1, the job needs at least 2";
    wait_until("the job waits", || {
        daemon.show(&id)["reason"].as_str().is_some_and(|reason| reason.starts_with(waits))
    });
    let address = case.address("train-2");
    let hosts = daemon.json(&["peers"]);
    let closed = |host: &&Value| host["address"] == address.as_str();
    let found = hosts["peers"].as_array().unwrap().iter().find(closed).unwrap();
    assert_eq!(found["state"], "down", "{found}");
    assert!(found["reason"].as_str().unwrap().contains("Connection refused"), "{found}");
    let doctor = daemon.run(&["doctor", "--quick"]);
    let doctor = String::from_utf8(doctor.stdout).unwrap();
    assert!(doctor.contains(&format!("start millstreamd on {address}, or open its port")), "{doctor}");
    daemon.json(&["cancel", &id]);
}

/// Set where the test runs among network interfaces of its own.
const INSIDE: &str = "MILLSTREAM_TEST_DEAD_CARD";

/// nccl 286, 1580 and 1581: a second card without a cable, or the wrong one, is used all the same, or the error does not name it.
#[test]
fn hosts_train_beside_a_dead_card_and_name_it_if_they_need_it() {
    if std::env::var_os(INSIDE).is_none() {
        return run_with_dead_card();
    }
    let case = Case { epochs: 1, ..Case::new() };
    let daemons = case.start_two();
    let id = case.submit(&daemons[0], 2, &["workers.min=2"]);
    case.of_end(&succeed(&daemons.each_ref(), &id));

    let [first, second] = daemons;
    second.stop();
    for (interface, problem) in
        [("lo,dead0", "dead0 is down"), ("eth7", "eth7: this host has none of this name")]
    {
        fs::remove_dir_all(case.site.path().join("train-2")).unwrap();
        case.configure("train-2", interface);
        let second = case.restart("train-2");
        wait_until("it is up", || {
            let hosts = first.json(&["peers"]);
            hosts["peers"].as_array().unwrap().iter().any(|host| host["state"] == "up")
        });
        let id = case.submit(&first, 2, &["workers.min=2"]);
        let reason = refusal(&first, &id);
        let named = ["host train-2: ", "peers.data_interface of the daemon's configuration", problem];
        assert!(named.iter().all(|part| reason.contains(part)), "{reason}");
        second.stop();
    }
}

/// Runs the test again where `dead0` is a card with an address and without a cable. Does nothing where a test may not create
/// interfaces.
fn run_with_dead_card() {
    let cards = "ip link set lo up && ip link add dead0 type veth peer name far0 && ip addr add 10.99.0.1/24 dev dead0 \
                 && ip link set dead0 up";
    let within = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net", "sh", "-c", script, "sh"]);
        command
    };
    if !within(cards).output().is_ok_and(|output| output.status.success()) {
        return;
    }
    let test = "complaints::refusals::hosts_train_beside_a_dead_card_and_name_it_if_they_need_it";
    let mut again = within(&format!("{cards} && exec \"$@\""));
    again.arg(std::env::current_exe().unwrap()).args(["--exact", test]).env(INSIDE, "1");
    let output = again.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
