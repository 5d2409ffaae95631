//! Roles on the control socket: who is refused, who may look, who may change what.

#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};

use millstream_tests::programs::{Daemon, program, wait_until};
use millstream_tests::terminal::InTerminal;
use millstream_tests::tiny_job::TinyJob;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;

/// Users without an entry in the system's database: two of the socket's group, and one of no group that the daemon knows.
const MEMBER: (u32, u32) = (64_001, 0);
const OTHER_MEMBER: (u32, u32) = (64_002, 0);
const OUTSIDER: (u32, u32) = (64_003, 64_003);

/// `millstream` as a user with this number and group.
fn command_as((uid, gid): (u32, u32), daemon: &Daemon) -> Command {
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={uid}"), &format!("--regid={gid}"), "--clear-groups"]);
    command.arg(program("millstream")).arg("--socket").arg(daemon.socket());
    command.env_remove("XDG_RUNTIME_DIR").env("HOME", "/nonexistent");
    command
}

/// Runs `millstream --json` as this user.
fn run_as(user: (u32, u32), daemon: &Daemon, arguments: &[&str]) -> Output {
    command_as(user, daemon).arg("--json").args(arguments).output().unwrap()
}

fn json_as(user: (u32, u32), daemon: &Daemon, arguments: &[&str]) -> Value {
    let output = run_as(user, daemon, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Asserts that a command of this user fails with `why`.
fn refused(user: (u32, u32), daemon: &Daemon, arguments: &[&str], why: &str) {
    let output = run_as(user, daemon, arguments);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
    assert!(message.contains(why), "{arguments:?}: {message}");
}

/// Asserts that the daemon closes the connections of this user: at once, or when the request arrives.
fn not_admitted(user: (u32, u32), daemon: &Daemon) {
    let output = run_as(user, daemon, &["list"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("does not admit this user") || message.contains("broke"), "{message}");
}

fn text<'a>(job: &'a Value, key: &str) -> &'a str {
    job[key].as_str().unwrap()
}

fn records(audit: &Value) -> &[Value] {
    audit["records"].as_array().unwrap()
}

/// A job in a directory that every user can read, and a configuration with these keys.
fn prepare(keys: &str) -> TinyJob {
    let job = TinyJob::new();
    fs::set_permissions(job.directory(), Permissions::from_mode(0o755)).unwrap();
    configure(job.directory(), keys);
    job
}

fn configure(directory: &Path, keys: &str) {
    fs::write(directory.join("millstreamd.toml"), format!("max_jobs = 1\n{keys}")).unwrap();
}

#[test]
fn an_outsider_is_refused_unless_looking_is_open_and_then_only_looks() {
    // Only root can become another user.
    if !geteuid().is_root() {
        return;
    }
    let job = prepare("");
    let daemon = Daemon::start(job.directory());
    let mode = || fs::metadata(daemon.socket()).unwrap().mode() & 0o777;
    assert_eq!(mode(), 0o660);
    refused(OUTSIDER, &daemon, &["list"], "permission denied");
    // A socket whose mode was loosened admits no one else.
    fs::set_permissions(daemon.socket(), Permissions::from_mode(0o666)).unwrap();
    not_admitted(OUTSIDER, &daemon);

    let file = job.file();
    let submit = ["submit", file.to_str().unwrap(), "--set", "data.epochs=100000"];
    let id = text(&daemon.json(&submit), "id").to_owned();
    wait_until("the job has a checkpoint", || daemon.show(&id)["checkpoint"].is_string());

    // A reload opens the socket and the daemon.
    configure(job.directory(), "viewers = 'everyone'\n");
    kill_process(Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap(), Signal::HUP).unwrap();
    wait_until("the outsider may look", || run_as(OUTSIDER, &daemon, &["list"]).status.success());
    assert_eq!(mode(), 0o666);
    let shown = json_as(OUTSIDER, &daemon, &["show", &id]);
    assert!(shown["state"] == "running" && text(&shown, "id") == id, "{shown:#}");
    assert!(text(&shown, "directory").is_empty() && shown["checkpoint"].is_null(), "{shown:#}");
    assert!(text(&daemon.show(&id), "directory").starts_with('/'));
    assert_eq!(json_as(OUTSIDER, &daemon, &["list"])["jobs"][0]["directory"], "");
    json_as(OUTSIDER, &daemon, &["history", &id]);
    let top = run_as(OUTSIDER, &daemon, &["top", "--once"]);
    assert!(top.status.success() && String::from_utf8_lossy(&top.stdout).contains(&id), "{top:?}");
    json_as(OUTSIDER, &daemon, &["metrics"]);
    for command in ["cancel", "pause", "resume", "remove", "checkpoint", "logs", "eval", "audit"] {
        refused(OUTSIDER, &daemon, &[command, &id], "may only look at jobs");
    }
    for command in [&["lineage", &id][..], &["export", &id, "-o", "model.onnx"], &["rerun", &id]] {
        refused(OUTSIDER, &daemon, command, "without their directories; members of the group ");
    }
    refused(OUTSIDER, &daemon, &submit, "Submit: user uid 64003 may only look at jobs; members of the group");
    assert_eq!(daemon.show(&id)["state"], "running");
    let audit = daemon.json(&["audit", "--user", "64003", "--since", "1h"]);
    let calls: Vec<_> = records(&audit).iter().map(|record| text(record, "call")).collect();
    let tried = ["cancel", "pause", "resume", "remove", "checkpoint", "logs"];
    // `eval` first asks whether the target is a search.
    assert_eq!(calls, [&tried[..], &["trials", "evaluate", "audit", "submit"]].concat());
    for record in records(&audit) {
        assert!(record["outcome"] == "refused" && record["program"] == "millstream", "{record:#}");
        assert!(text(record, "reason").contains("may only look at jobs"), "{record:#}");
    }
    let doctor = run_as(OUTSIDER, &daemon, &["doctor", "--quick"]);
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("may only look at jobs"), "{doctor:?}");

    // Members of the group still do everything.
    assert_eq!(json_as(MEMBER, &daemon, &["cancel", &id])["state"], "cancelled");

    // Closing it again holds for connections that are open.
    configure(job.directory(), "");
    kill_process(Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap(), Signal::HUP).unwrap();
    wait_until("the outsider is refused", || !run_as(OUTSIDER, &daemon, &["list"]).status.success());
    assert_eq!(mode(), 0o660);
    daemon.stop();
}

#[test]
fn a_viewer_opens_a_jobs_page_in_top_without_reading_its_log() {
    // As above.
    if !geteuid().is_root() {
        return;
    }
    let job = prepare("viewers = 'everyone'\n");
    let daemon = Daemon::start(job.directory());
    let file = job.file();
    let submit = ["submit", file.to_str().unwrap(), "--set", "data.epochs=100000"];
    let id = text(&daemon.json(&submit), "id").to_owned();
    wait_until("training", || daemon.show(&id)["progress"]["step"].as_u64() > Some(0));
    let mut command = command_as(OUTSIDER, &daemon);
    command.args(["top", "--interval", "0.2"]);
    let mut top = InTerminal::start(command, 160, 40);
    top.wait_for(&id);
    top.press("\r");
    top.wait_for("bottleneck");
    top.press("c");
    top.wait_for("[y/n]");
    top.press("y");
    top.wait_for("may only look at jobs");
    top.press("q");
    let (status, printed) = top.wait();
    assert_eq!(status.code(), Some(0), "{printed:?}");
    assert_eq!(daemon.show(&id)["state"], "running");
    let audit = daemon.json(&["audit", "--user", "64003", "--since", "1h"]);
    let calls: Vec<_> = records(&audit).iter().map(|record| text(record, "call")).collect();
    assert_eq!(calls, ["cancel"], "the page does not ask for what the daemon refuses and records");
    daemon.stop();
}

#[test]
fn a_group_may_look_and_another_one_operates() {
    // As above.
    if !geteuid().is_root() {
        return;
    }
    let job = prepare("operators = ['64003']\nviewers = ['0']\n");
    let daemon = Daemon::start(job.directory());
    json_as(OUTSIDER, &daemon, &["list"]);
    refused(OUTSIDER, &daemon, &["cancel", "nope"], "no job `nope`");
    json_as(MEMBER, &daemon, &["list"]);
    refused(MEMBER, &daemon, &["cancel", "nope"], "members of the group 64003 and root may do that");
    not_admitted((64_004, 64_004), &daemon);
    daemon.stop();

    configure(job.directory(), "operators = ['no-such-group']\n");
    let daemon = Command::new(program("millstreamd"))
        .arg("--config")
        .arg(job.directory().join("millstreamd.toml"))
        .arg("--socket")
        .arg(job.directory().join("other.sock"))
        .arg("--state")
        .arg(job.directory().join("other"))
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&daemon.stderr);
    assert!(!daemon.status.success() && message.contains("`no-such-group`"), "{message}");
}

#[test]
fn jobs_are_left_to_their_owners_if_the_configuration_says_so() {
    // As above.
    if !geteuid().is_root() {
        return;
    }
    let job = prepare("operators_change = 'own'\n");
    let output = job.directory().join("checkpoints");
    fs::create_dir(&output).unwrap();
    fs::set_permissions(&output, Permissions::from_mode(0o777)).unwrap();
    let daemon = Daemon::start(job.directory());
    let file = job.file();
    let submit = ["submit", file.to_str().unwrap(), "--set", "data.epochs=100000"];
    let id = text(&json_as(MEMBER, &daemon, &submit), "id").to_owned();
    wait_until("the job has a checkpoint", || daemon.show(&id)["checkpoint"].is_string());
    for command in ["cancel", "pause", "resume", "remove", "checkpoint"] {
        refused(OTHER_MEMBER, &daemon, &[command, &id], "belongs to uid 64001: only its owner");
    }
    json_as(OTHER_MEMBER, &daemon, &["show", &id]);
    assert_eq!(json_as(MEMBER, &daemon, &["pause", &id])["state"], "paused");
    refused(
        OTHER_MEMBER,
        &daemon,
        &["submit", file.to_str().unwrap(), "--set", "data.epochs=100000", "--resume"],
        "belongs to uid 64001",
    );
    assert_eq!(daemon.json(&["cancel", &id])["state"], "cancelled", "root may");
    assert_eq!(text(&json_as(MEMBER, &daemon, &["remove", &id]), "id"), id);

    // The records outlive the job.
    let root = "root".to_owned();
    let [member, other] = [MEMBER, OTHER_MEMBER].map(|(uid, _)| format!("uid {uid}"));
    let refused = ["cancel", "pause", "resume", "remove", "checkpoint"].map(|call| (&other, call, "refused"));
    let mut wanted = vec![(&member, "submit", "done")];
    wanted.extend(refused);
    wanted.extend([(&member, "pause", "done"), (&root, "cancel", "done"), (&member, "remove", "done")]);
    let audit = daemon.json(&["audit", &id]);
    let who = |record: &Value| {
        record["user"].as_str().map_or_else(|| format!("uid {}", record["uid"]), str::to_owned)
    };
    let users: Vec<_> = records(&audit).iter().map(who).collect();
    let found: Vec<_> = std::iter::zip(&users, records(&audit))
        .map(|(user, record)| (user, text(record, "call"), text(record, "outcome")))
        .collect();
    assert_eq!(found, wanted);
    assert!(records(&audit).iter().all(|record| record["job_name"] == "tiny"), "{audit:#}");
    let last = daemon.json(&["audit", "-n", "2", "tiny"]);
    assert_eq!(records(&last), &records(&audit)[wanted.len() - 2..]);
    assert_eq!(last["omitted"], wanted.len() - 2);
    // The attempt to submit again has no job.
    assert!(records(&daemon.json(&["audit", "--user", "64002"])).iter().any(|record| {
        record["call"] == "submit" && record["outcome"] == "refused" && record["job"] == ""
    }));
    let shown = String::from_utf8(daemon.run(&["audit", &id]).stdout).unwrap();
    assert!(shown.lines().nth(1).unwrap().contains("uid 64001  millstream ("), "{shown}");
    daemon.stop();
}
