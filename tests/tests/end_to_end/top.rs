//! `millstream top`: in a terminal, with its keys, and as text.

#![allow(clippy::unwrap_used)]

use millstream_tests::programs::{Daemon, has_ended, wait_until};
use millstream_tests::shell::Shell;
use millstream_tests::terminal::InTerminal;
use millstream_tests::tiny_job::TinyJob;
use rustix::process::Signal;

/// Begins and ends the screen that programs use which draw over all of it.
const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";

fn submit(daemon: &Daemon, job: &TinyJob, epochs: u32) -> String {
    let (file, epochs) = (job.file(), format!("data.epochs={epochs}"));
    let submitted = daemon.json(&["submit", file.to_str().unwrap(), "--set", &epochs]);
    submitted["id"].as_str().unwrap().to_owned()
}

#[test]
fn top_shows_jobs_and_changes_them_by_key() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let shell = Shell::new(job.directory());
    let id = submit(&daemon, &job, 100_000);
    wait_until("training", || daemon.show(&id)["progress"]["step"].as_u64() > Some(0));
    let mut top = InTerminal::start(shell.command(&["top", "--interval", "0.2"]), 140, 40);
    top.wait_for(ENTER);
    top.wait_for(&id);
    top.wait_for("running");
    // Its page.
    top.press("\r");
    top.wait_for("bottleneck");
    top.wait_for("rows/s");
    top.press("c");
    top.wait_for("[y/n]");
    assert!(!has_ended(&daemon.show(&id)), "cancelled without an answer");
    top.press("y");
    wait_until("cancelled", || daemon.show(&id)["state"] == "cancelled");
    top.wait_for("cancelled");
    top.press("q");
    let (status, printed) = top.wait();
    assert_eq!(status.code(), Some(0));
    assert!(printed.trim_end().contains(LEAVE), "{printed:?}");
}

#[test]
fn top_restores_the_terminal_when_a_signal_ends_it_and_outlives_the_daemon() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let shell = Shell::new(job.directory());
    let top = InTerminal::start(shell.command(&["top", "--interval", "0.2"]), 100, 30);
    top.wait_for("submit");
    daemon.stop();
    top.wait_for("daemon");
    let _again = Daemon::start(job.directory());
    top.signal(Signal::TERM);
    let (status, printed) = top.wait();
    assert_eq!(status.code(), Some(143), "{printed:?}");
    assert!(printed.contains(LEAVE), "{printed:?}");
}

#[test]
fn top_prints_one_picture_without_a_terminal() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let shell = Shell::new(job.directory());
    let (first, second) = (submit(&daemon, &job, 100_000), submit(&daemon, &job, 1));
    wait_until("training", || daemon.show(&first)["progress"]["step"].as_u64() > Some(0));
    wait_until("the second job waits", || daemon.show(&second)["waits_for"].is_string());
    let picture = shell.run(&["top"]).with_code(0).stdout;
    let line = |id: &str| picture.lines().find(|line| line.starts_with(id)).unwrap_or_default();
    assert!(line(&first).contains("running") && line(&second).contains("waits: "), "{picture}");
    assert!(picture.lines().all(|line| line.chars().count() <= 120), "{picture}");
    assert!(!picture.contains('\u{1b}'), "{picture:?}");

    let snapshot = daemon.json(&["top"]);
    assert_eq!(snapshot["jobs"][0]["job"]["id"], first.as_str());
    assert_eq!(snapshot["queued_jobs"], 1);
    assert!(snapshot["jobs"][0]["worker"]["resident_bytes"].as_u64() > Some(1 << 20));
    assert!(snapshot["process"]["cpu_seconds"].as_f64() > Some(0.0) && snapshot["host"]["cores"].is_u64());

    daemon.stop();
    let refused = shell.run(&["top"]).with_code(1);
    assert!(refused.stderr.contains("no daemon listens"), "{}", refused.stderr);
}
