//! `kill -9` of the daemon at random delays: its worker dies with it, the next daemon resumes the job, and the last
//! checkpoint has the same bits as in an undisturbed run.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use millstream_tests::programs::{Daemon, has_ended};
use millstream_tests::tiny_job::{Contents, RandomDelays, TinyJob};

const KILLS: u32 = 20;

/// The maximum delay between a daemon's first response and its death.
const MAX_DELAY: Duration = Duration::from_millis(500);

#[test]
fn twenty_killed_daemons_do_not_change_the_result() {
    let job = TinyJob::new();
    let file = job.file();
    let file = file.to_str().unwrap();
    let submit = |daemon: &Daemon| daemon.json(&["submit", file])["id"].as_str().unwrap().to_owned();

    let mut daemon = Daemon::start(job.directory());
    let undisturbed = submit(&daemon);
    let undisturbed = daemon.succeeded(&undisturbed);
    let wanted = Contents::of(undisturbed["checkpoint"].as_str().unwrap());

    let mut delays = RandomDelays::new();
    let mut kills = 0;
    while kills < KILLS {
        let id = submit(&daemon);
        while kills < KILLS && !has_ended(&daemon.show(&id)) {
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
