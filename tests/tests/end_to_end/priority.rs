//! Threads of jobs have the priority of the daemon, also if a request started the job; threads that answer requests have a
//! lower one.

#![allow(clippy::unwrap_used)]

use std::fs;

use millstream_tests::programs::{Daemon, children, wait_until};
use millstream_tests::tiny_job::TinyJob;

/// The name and the niceness of each thread of a process.
fn threads(process: u32) -> Vec<(String, i32)> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    // A thread may end while it is looked at.
    let texts = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok());
    let parsed = texts.map(|text| {
        let (name, fields) = text.split_once('(').unwrap().1.rsplit_once(')').unwrap();
        // Field 19 of proc_pid_stat(5); field 3 is the first one after the name.
        (name.to_owned(), fields.split_whitespace().nth(19 - 3).unwrap().parse().unwrap())
    });
    parsed.collect()
}

#[test]
fn jobs_do_not_inherit_the_niceness_of_requests() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let file = job.file();
    let line = ["submit", file.to_str().unwrap(), "--set", "data.epochs=100000"];
    let id = daemon.json(&line)["id"].as_str().unwrap().to_owned();
    wait_until("the job trains", || {
        daemon.show(&id)["progress"]["step"].as_u64().is_some_and(|step| step > 0)
    });
    let usual = threads(std::process::id())[0].1;

    let of_daemon = threads(daemon.pid());
    let niceness = |start: &str| {
        let of = of_daemon.iter().filter(|(name, _)| name.starts_with(start)).map(|(_, niceness)| *niceness);
        let of: Vec<i32> = of.collect();
        assert!(!of.is_empty(), "no thread {start}: {of_daemon:?}");
        of
    };
    for start in ["job ", "ingest-", "worker-", "tokio-rt-"] {
        assert!(niceness(start).iter().all(|&niceness| niceness == usual), "{of_daemon:?}");
    }
    assert!(niceness("control").iter().all(|&niceness| niceness > usual), "{of_daemon:?}");
    let [worker] = children(daemon.pid())[..] else { panic!("one worker") };
    assert!(threads(worker).iter().all(|(_, niceness)| *niceness == usual), "{:?}", threads(worker));
    let _ = daemon.json(&["cancel", &id]);
    daemon.stop();
}
