//! `kill -9` of the worker at random delays: the job continues without intervention, and its last checkpoint has the
//! same bits as in an undisturbed run.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use millstream_tests::programs::{Daemon, children, has_ended, kill};
use millstream_tests::tiny_job::{Contents, RandomDelays, TinyJob, kill_count};

/// Kills in a run of `tests/run`.
const KILLS: u32 = 8;

/// The maximum delay before a kill.
const MAX_DELAY: Duration = Duration::from_millis(400);

#[test]
fn killed_workers_do_not_change_the_result() {
    let job = TinyJob::new();
    let file = job.file();
    let file = file.to_str().unwrap();
    let daemon = Daemon::start(job.directory());
    let submit = || daemon.json(&["submit", file])["id"].as_str().unwrap().to_owned();

    let undisturbed = daemon.succeeded(&submit());
    assert_eq!(undisturbed["attempts"], 1);
    let wanted = Contents::of(undisturbed["checkpoint"].as_str().unwrap());

    let mut delays = RandomDelays::new();
    let (mut kills, wanted_kills) = (0, kill_count(KILLS));
    while kills < wanted_kills {
        let id = submit();
        let mut killed_here = 0;
        while kills < wanted_kills && !has_ended(&daemon.show(&id)) {
            std::thread::sleep(delays.next(MAX_DELAY));
            let killed = children(daemon.pid()).into_iter().filter(|&worker| kill(worker)).count() as u32;
            kills += killed;
            killed_here += killed;
            wait_for_progress(&daemon, &id);
        }
        let job = daemon.succeeded(&id);
        let attempts = job["attempts"].as_u64().unwrap() as u32;
        // A worker killed after its final report needs no successor.
        assert!((killed_here..=killed_here + 1).contains(&attempts), "{killed_here} kills, {job:#}");
        Contents::of(job["checkpoint"].as_str().unwrap()).assert_same(&wanted);
    }
    assert!(children(daemon.pid()).is_empty());
    daemon.stop();
}

/// Waits until a new worker commits a checkpoint, because three deaths without one fail the job.
fn wait_for_progress(daemon: &Daemon, id: &str) {
    let before = daemon.show(id)["checkpoint"].clone();
    millstream_tests::programs::wait_until("there is a new checkpoint", || {
        let job = daemon.show(id);
        has_ended(&job) || job["checkpoint"] != before
    });
}
