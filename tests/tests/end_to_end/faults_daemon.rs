//! `kill -9` of the daemon at random delays: its worker dies with it, the next daemon resumes the job, and the last
//! checkpoint has the same bits as in an undisturbed run.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use millstream_tests::programs::{Daemon, has_ended};
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
        }
        let job = daemon.succeeded(&id);
        Contents::of(job["checkpoint"].as_str().unwrap()).assert_same(&wanted);
    }
    daemon.stop();
}
