//! `kill -9` of the daemon at random delays: its worker dies with it, the next daemon resumes the job, and the last
//! checkpoint has the same bits as in an undisturbed run.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::time::Duration;

use millstream_tests::programs::{self, Daemon, has_ended, wait_until};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use millstream_tests::tiny_job::{Contents, RandomDelays, TinyJob, kill_count};

/// Kills in a run of `tests/run`.
const KILLS: u32 = 8;

/// The maximum delay between a daemon's first response and its death.
const MAX_DELAY: Duration = Duration::from_millis(500);

#[test]
fn killed_daemons_do_not_change_the_result() {
    let job = TinyJob::new();
    let file = job.file();
    let file = file.to_str().unwrap();
    let submit = |daemon: &Daemon| daemon.json(&["submit", file])["id"].as_str().unwrap().to_owned();

    let mut daemon = Daemon::start(job.directory());
    let undisturbed = submit(&daemon);
    let undisturbed = daemon.succeeded(&undisturbed);
    let wanted = Contents::of(undisturbed["checkpoint"].as_str().unwrap());

    let mut delays = RandomDelays::new();
    let (mut kills, wanted_kills) = (0, kill_count(KILLS));
    while kills < wanted_kills {
        let id = submit(&daemon);
        while kills < wanted_kills && !has_ended(&daemon.show(&id)) {
            std::thread::sleep(delays.next(MAX_DELAY));
            daemon.kill();
            kills += 1;
            daemon = Daemon::start(job.directory());
            daemon.resume_if_held(&id);
        }
        let job = daemon.succeeded(&id);
        Contents::of(job["checkpoint"].as_str().unwrap()).assert_same(&wanted);
    }
    daemon.stop();
}

#[test]
fn a_job_under_way_at_two_deaths_of_the_daemon_is_held_and_the_others_go_on() {
    let job = TinyJob::new();
    let file = job.file();
    let file = file.to_str().unwrap();
    let submit = |daemon: &Daemon, set: &[&str]| {
        let line: Vec<&str> =
            ["submit", file].into_iter().chain(set.iter().flat_map(|set| ["--set", set])).collect();
        daemon.json(&line)["id"].as_str().unwrap().to_owned()
    };
    let is_running = |daemon: &Daemon, id: &str| daemon.show(id)["state"] == "running";

    let mut daemon = Daemon::start(job.directory());
    let suspect = submit(&daemon, &["checkpoint.every_steps=100000000", "data.epochs=100000"]);
    let innocent = submit(&daemon, &["data.epochs=2"]);
    for _ in 0..2 {
        wait_until("the suspect runs", || is_running(&daemon, &suspect));
        daemon.kill();
        daemon = Daemon::start(job.directory());
    }
    let held = daemon.show(&suspect);
    assert_eq!(held["state"], "held", "{held:#}");
    let reason = held["reason"].as_str().unwrap();
    assert!(reason.starts_with("held after the daemon died 2 times while running it"), "{reason}");
    daemon.succeeded(&innocent);
    let metrics = |daemon: &Daemon| String::from_utf8(daemon.run(&["metrics"]).stdout).unwrap();
    let counted = metrics(&daemon);
    assert!(counted.contains("millstream_jobs_ended_total{outcome=\"held\"} 1\n"), "{counted}");
    daemon.stop();
    daemon = Daemon::start(job.directory());
    let kept = metrics(&daemon);
    assert!(kept.contains("millstream_jobs{state=\"held\"} 1\n"), "another daemon knows of it: {kept}");

    // It is a user's turn now. A stop in order does not count as a death.
    assert_eq!(daemon.json(&["resume", &suspect])["state"], "queued");
    let released = metrics(&daemon);
    assert!(released.contains("millstream_jobs{state=\"held\"} 0\n"), "{released}");
    wait_until("the suspect runs", || is_running(&daemon, &suspect));
    daemon.stop();
    let daemon = Daemon::start(job.directory());
    wait_until("the suspect runs", || is_running(&daemon, &suspect));
    let refused = daemon.run(&["remove", &suspect]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("millstream cancel"), "{refused:?}");
    assert_eq!(daemon.json(&["cancel", &suspect])["state"], "cancelled");
    let removed = daemon.json(&["remove", &suspect]);
    assert!(std::path::Path::new(removed["directory"].as_str().unwrap()).is_dir(), "checkpoints stay");
    assert_eq!(daemon.run(&["show", &suspect]).status.code(), Some(1));
    assert_eq!(daemon.json(&["list"])["jobs"].as_array().unwrap().len(), 1);
    daemon.stop();
}

#[test]
fn a_job_that_lacks_descriptors_waits_for_them() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let file = job.file();
    let id = daemon.json(&["submit", file.to_str().unwrap(), "--set", "data.epochs=200"])["id"]
        .as_str()
        .unwrap()
        .to_owned();
    wait_until("the job trains", || daemon.show(&id)["progress"]["step"].as_u64() > Some(0));

    // The limit concerns new descriptors only.
    let pid = Pid::from_raw(daemon.pid() as i32);
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let before = prlimit(pid, Resource::Nofile, Rlimit { current: Some(3), maximum }).unwrap();
    for worker in programs::children(daemon.pid()) {
        programs::kill(worker);
    }
    let log = job.directory().join("daemon.log");
    wait_until("the job waits", || {
        fs::read_to_string(&log).unwrap().contains("waiting for file descriptors")
    });
    prlimit(pid, Resource::Nofile, before).unwrap();
    let ended = daemon.succeeded(&id);
    assert_eq!(ended["attempts"], 2, "{ended:#}");
    daemon.stop();
}
