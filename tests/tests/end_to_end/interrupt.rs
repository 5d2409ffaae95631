//! Ctrl-C and other signals at random delays: work is saved or rolled back, no process or partial file is left
//! behind, and a resumed run ends with the same bits as an uninterrupted one.

#![allow(clippy::unwrap_used)]

use std::path::{Component, PathBuf};
use std::time::{Duration, Instant};

use millstream_test_storage::{Fault, Options, Server};
use millstream_tests::programs::{Daemon, children, is_alive, wait_until};
use millstream_tests::shell::{Completed, RunningCommand, Shell};
use millstream_tests::table::Table;
use millstream_tests::tiny_job::{Contents, RandomDelays, TinyJob};
use rustix::process::{Pid, Signal, kill_process};

const TRAIN: [&str; 5] = ["train", "job.toml", "--json", "--set", "data.epochs=6"];
const RESUME: [&str; 6] = ["train", "job.toml", "--json", "--set", "data.epochs=6", "--resume"];

/// The number of effective interrupts, and the maximum delay before each.
const INTERRUPTS: u32 = 6;
const MAX_DELAY: Duration = Duration::from_millis(700);

/// Gives a command time to get into the middle of its work. No assertion depends on it.
const HEAD_START: Duration = Duration::from_millis(300);
/// A prompt exit, even on a busy machine.
const PROMPTLY: Duration = Duration::from_secs(30);

#[test]
fn ctrl_c_at_any_moment_leaves_a_run_that_resumes_to_the_same_bits() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let wanted = Contents::of(checkpoint(&shell.run(&TRAIN).with_code(0)));

    let mut delays = RandomDelays::new();
    let mut max_delay = MAX_DELAY;
    let mut interrupts = 0;
    let mut line = TRAIN.as_slice();
    while interrupts < INTERRUPTS {
        let running = shell.start(line);
        std::thread::sleep(delays.next(max_delay));
        running.signal(Signal::INT);
        let ended = running.wait();
        assert_clean(&shell);
        line = RESUME.as_slice();
        match ended.code() {
            1 | 130 if ended.stderr.contains("no unfinished run") => line = TRAIN.as_slice(),
            // Interrupted before it handled signals, so there was nothing to save. A slow machine needs more time.
            130 if ended.stdout.is_empty() => max_delay += MAX_DELAY,
            130 => {
                assert_eq!(ended.json()["state"], "cancelled", "{}", ended.stderr);
                interrupts += 1;
            }
            0 => {
                Contents::of(checkpoint(&ended)).assert_same(&wanted);
                line = TRAIN.as_slice();
            }
            other => panic!("exit status {other}: {}", ended.stderr),
        }
    }
    let ended = shell.run(line);
    let ended = if ended.stderr.contains("no unfinished run") { shell.run(&TRAIN) } else { ended };
    Contents::of(checkpoint(&ended.with_code(0))).assert_same(&wanted);
    assert_clean(&shell);
}

#[test]
fn a_second_ctrl_c_quits_immediately() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let wanted = Contents::of(checkpoint(&shell.run(&TRAIN).with_code(0)));
    let before = shell.files();

    let mut running = shell.start(&TRAIN);
    wait_until("the run has a checkpoint", || {
        checkpoints(&shell) > before.iter().filter(is_manifest).count()
    });
    // Suspend the worker, so that it makes no progress.
    let worker = only_worker(&running);
    kill_process(worker, Signal::STOP).unwrap();
    running.signal(Signal::INT);
    // Otherwise the two signals could merge into one.
    wait_until("the first Ctrl-C is handled", || running.stderr().contains("press Ctrl-C again to quit"));
    assert!(!running.has_ended(), "the first Ctrl-C waits for a checkpoint");
    let interrupted = Instant::now();
    running.signal(Signal::INT);
    let ended = running.wait();
    assert!(interrupted.elapsed() < PROMPTLY);
    assert_eq!(ended.code(), 130, "{}", ended.stderr);

    let resumed = shell.run(&RESUME).with_code(0);
    Contents::of(checkpoint(&resumed)).assert_same(&wanted);
    assert_clean(&shell);
}

#[test]
fn a_stopped_daemon_saves_its_job_for_the_next_one() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    // The first job is still running when the third has been queued.
    let long = ["job.toml", "--set", "data.epochs=60"];
    let wanted = shell.run(&[&["train", "--json"], &long[..]].concat()).with_code(0);
    let wanted = Contents::of(checkpoint(&wanted));
    let submit = [&["submit"], &long[..]].concat();

    let daemon = Daemon::start(job.directory());
    let first = shell.run(&submit).with_code(0).stdout.trim().to_owned();
    let second = shell.run(&submit).with_code(0).stdout.trim().to_owned();
    wait_until("the first job trains", || daemon.show(&first)["progress"]["step"].as_u64() > Some(300));
    let follower = shell.start(&[&["train"], &long[..]].concat());
    // It may not watch the job yet.
    wait_until("the third job is queued", || follower.stderr().contains("runs in the daemon"));
    assert_eq!(daemon.json(&["list"])["jobs"].as_array().unwrap().len(), 3);
    let workers = children(daemon.pid());
    assert_eq!(workers.len(), 1);
    daemon.stop();
    assert!(!workers.into_iter().any(is_alive), "workers exit before their daemon");
    assert!(
        shell
            .files()
            .iter()
            .any(|path| path.starts_with(format!("checkpoints/{first}")) && is_manifest(&path))
    );
    assert_clean(&shell);
    let message = follower.wait().with_code(1).stderr;
    assert!(message.contains("resumes the job at its next start"), "{message}");

    let daemon = Daemon::start(job.directory());
    for id in [first, second] {
        let job = daemon.succeeded(&id);
        Contents::of(job["checkpoint"].as_str().unwrap()).assert_same(&wanted);
    }
    daemon.stop();
}

#[test]
fn ctrl_c_cancels_a_job_in_the_daemon_but_does_not_stop_the_daemon() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let daemon = Daemon::start(job.directory());
    // Long enough that it does not end before the signal.
    let long = ["--set", "data.epochs=40"];
    let running = shell.start(&[&TRAIN[..], &long].concat());
    wait_until("the job trains", || {
        let jobs = daemon.json(&["list"]);
        jobs["jobs"][0]["progress"]["step"].as_u64() > Some(0)
    });
    running.signal(Signal::INT);
    let outcome = running.wait().with_code(130).json();
    assert_eq!(outcome["state"], "cancelled");
    let shown = daemon.show(outcome["job"].as_str().unwrap());
    assert_eq!((&shown["state"], &shown["checkpoint"]), (&outcome["state"], &outcome["checkpoint"]));
    assert!(children(daemon.pid()).is_empty());
    let resumed = shell.run(&[&RESUME[..], &long].concat()).with_code(0).json();
    assert_eq!((&resumed["job"], &resumed["state"]), (&outcome["job"], &"succeeded".into()));
    daemon.stop();
}

#[test]
fn output_files_are_complete_or_absent() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let checkpoint =
        checkpoint(&shell.run(&["train", "job.toml", "--json", "--set", "data.epochs=1"]).with_code(0));
    let checkpoint = checkpoint.to_str().unwrap();
    let _ = shell.run(&["generate", "--rows", "300000", "many.tfrecord"]).with_code(0);
    Table::clicks(500_000, 1).write_parquet(&job.directory().join("train-many.parquet"));
    let before = shell.files();
    for line in [
        &["predict", checkpoint, "train-many.parquet", "--output", "scores.csv"][..],
        &["generate", "--rows", "20000000", "rows.tfrecord"],
        &["generate", "--rows", "20000000", "--shards", "3", "rows.parquet"],
        &["convert", "many.tfrecord", "rows@3.tfrecord.gz", "--threads", "1"],
    ] {
        let mut running = shell.start(line);
        if line[0] == "predict" {
            // Suspend the worker, so that the command is interrupted in the middle of its work.
            wait_until("there is a worker", || !children(running.pid()).is_empty());
            kill_process(only_worker(&running), Signal::STOP).unwrap();
        }
        wait_until("the command writes a file", || shell.files() != before || running.has_ended());
        assert!(!running.has_ended(), "{line:?}");
        std::thread::sleep(HEAD_START);
        running.signal(Signal::INT);
        let ended = running.wait();
        assert_eq!(ended.code(), 130, "{line:?}: {}", ended.stderr);
        assert_eq!(shell.files(), before, "{line:?}");
    }
}

#[test]
fn hanging_reads_do_not_delay_ctrl_c() {
    const HANGING: usize = 10_000;
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for line in [
        &["inspect", "URL"][..],
        &["train", "job.toml", "--set", "data.train=[\"URL\"]"],
        &["bench", "ingest", "job.toml", "--set", "data.train=[\"URL\"]"],
    ] {
        let server = runtime.block_on(Server::start(Options::default())).unwrap();
        server.put("b/train.parquet", std::fs::read(job.directory().join("train-0.parquet")).unwrap());
        let url = format!("{}/b/train.parquet", server.endpoint());
        let line: Vec<String> = line.iter().map(|word| word.replace("URL", &url)).collect();
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        server.script(vec![Fault::Silence(Duration::from_secs(600)); HANGING]);
        for start in [Shell::start, Shell::start_in_background] {
            let before = server.unmet();
            let running = start(&shell, &line);
            wait_until("a read hangs", || server.unmet() < before);
            let started = Instant::now();
            running.signal(Signal::INT);
            let ended = running.wait();
            assert!(started.elapsed() < PROMPTLY, "{line:?}: {:?}", started.elapsed());
            assert_eq!(ended.code(), 130, "{line:?}: {}", ended.stderr);
        }
    }
}

/// The checkpoint named in the output of `train --json`.
fn checkpoint(ended: &Completed) -> PathBuf {
    PathBuf::from(ended.json()["checkpoint"].as_str().unwrap())
}

/// Asserts that there are no files but the job, its data, a daemon's state, and runs with complete checkpoints.
fn assert_clean(shell: &Shell) {
    let parts = ["manifest.json", "model.safetensors", "optimizer.safetensors", "job.toml", "analysis.json"];
    let files = shell.files();
    assert!(!files.is_empty());
    for path in &files {
        let names: Vec<_> = path
            .components()
            .map(|component| match component {
                Component::Normal(name) => name.to_str().unwrap(),
                other => panic!("{other:?}"),
            })
            .collect();
        let known = match names[..] {
            ["checkpoints"] | ["state", ..] | ["job.toml" | "daemon.log" | "eval.parquet"] => true,
            [data] => data.starts_with("train-"),
            ["checkpoints", _] => true,
            ["checkpoints", _, "job.toml" | "analysis.json" | "train.listing" | "eval.listing"] => true,
            ["checkpoints", _, "checksums.sha256" | "lock"] => true,
            ["checkpoints", run, step] => {
                let manifest = PathBuf::from_iter(["checkpoints", run, step, "manifest.json"]);
                step.starts_with("step-") && files.contains(&manifest)
            }
            ["checkpoints", _, _, part] => parts.contains(&part),
            _ => false,
        };
        assert!(known, "{} was left behind", path.display());
    }
}

fn is_manifest(path: &&PathBuf) -> bool {
    path.ends_with("manifest.json")
}

fn checkpoints(shell: &Shell) -> usize {
    shell.files().iter().filter(is_manifest).count()
}

fn only_worker(running: &RunningCommand) -> Pid {
    let workers = children(running.pid());
    assert_eq!(workers.len(), 1);
    pid(workers[0])
}

fn pid(pid: u32) -> Pid {
    Pid::from_raw(pid.try_into().unwrap()).unwrap()
}
