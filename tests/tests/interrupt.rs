//! Ctrl-C and its like, at moments that nobody chose: what was begun is saved or taken back, nothing is
//! left running or lying about, and what goes on later ends with the bits of a run that nothing disturbed.

#![allow(clippy::unwrap_used)]

use std::path::{Component, PathBuf};
use std::time::{Duration, Instant};

use millstream_test_storage::{Fault, Options, Server};
use millstream_tests::programs::{Daemon, children, is_alive, wait_until};
use millstream_tests::shell::{Ended, Job, Shell};
use millstream_tests::table::Table;
use millstream_tests::tiny_job::{Contents, Moments, TinyJob};
use rustix::process::{Pid, Signal, kill_process};

const TRAIN: [&str; 5] = ["train", "job.toml", "--json", "--set", "data.epochs=6"];
const RESUME: [&str; 6] = ["train", "job.toml", "--json", "--set", "data.epochs=6", "--resume"];

/// Interrupts that have hit, and how long each run is left alone at most.
const INTERRUPTS: u32 = 6;
const LONGEST_LIFE: Duration = Duration::from_millis(700);

/// Long enough to tell a program that waits from one that quits at once.
const A_WHILE: Duration = Duration::from_millis(300);
const AT_ONCE: Duration = Duration::from_secs(10);

#[test]
fn ctrl_c_at_any_moment_leaves_a_run_that_ends_with_the_same_bits() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let wanted = Contents::of(checkpoint(&shell.run(&TRAIN).with_code(0)));

    let mut moments = Moments::new();
    let mut interrupts = 0;
    let mut line = TRAIN.as_slice();
    while interrupts < INTERRUPTS {
        let running = shell.start(line);
        std::thread::sleep(moments.next(LONGEST_LIFE));
        running.signal(Signal::INT);
        let ended = running.wait();
        assert_in_order(&shell);
        line = RESUME.as_slice();
        match ended.code() {
            // Before it listened for signals there was nothing to save.
            130 => assert_eq!(ended.stdout, ""),
            1 if ended.stderr.contains("no unfinished run") => line = TRAIN.as_slice(),
            1 => assert_eq!(ended.json()["state"], "cancelled", "{}", ended.stderr),
            0 => {
                Contents::of(checkpoint(&ended)).assert_same(&wanted);
                line = TRAIN.as_slice();
            }
            other => panic!("exit status {other}: {}", ended.stderr),
        }
        interrupts += u32::from(ended.code() == 1);
    }
    let ended = shell.run(line);
    let ended = if ended.stderr.contains("no unfinished run") { shell.run(&TRAIN) } else { ended };
    Contents::of(checkpoint(&ended.with_code(0))).assert_same(&wanted);
    assert_in_order(&shell);
}

#[test]
fn a_second_ctrl_c_quits_at_once() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let wanted = Contents::of(checkpoint(&shell.run(&TRAIN).with_code(0)));
    let before = shell.files();

    let mut running = shell.start(&TRAIN);
    wait_until("it has a checkpoint", || checkpoints(&shell) > before.iter().filter(is_manifest).count());
    // A worker that does not get anywhere.
    let worker = only_worker(&running);
    kill_process(worker, Signal::STOP).unwrap();
    running.signal(Signal::INT);
    std::thread::sleep(A_WHILE);
    assert!(!running.has_ended(), "the first one waits for a checkpoint");
    let asked = Instant::now();
    running.signal(Signal::INT);
    let ended = running.wait();
    assert!(asked.elapsed() < AT_ONCE);
    assert_eq!(ended.code(), 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("press again to quit at once"), "{}", ended.stderr);

    let resumed = shell.run(&RESUME).with_code(0);
    Contents::of(checkpoint(&resumed)).assert_same(&wanted);
    assert_in_order(&shell);
}

#[test]
fn a_daemon_that_is_told_to_stop_saves_its_job_for_the_next_one() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let wanted = Contents::of(checkpoint(&shell.run(&TRAIN).with_code(0)));
    let submit = ["submit", "job.toml", "--set", "data.epochs=6"];

    let daemon = Daemon::start(job.directory());
    let first = shell.run(&submit).with_code(0).stdout.trim().to_owned();
    let second = shell.run(&submit).with_code(0).stdout.trim().to_owned();
    wait_until("it trains", || daemon.show(&first)["progress"]["step"].as_u64() > Some(300));
    let follower = shell.start(&["train", "job.toml", "--set", "data.epochs=6"]);
    wait_until("another one waits", || daemon.json(&["list"])["jobs"].as_array().unwrap().len() == 3);
    let workers = children(daemon.pid());
    assert_eq!(workers.len(), 1);
    daemon.stop();
    assert!(!workers.into_iter().any(is_alive), "the worker has ended before its daemon");
    assert!(
        shell
            .files()
            .iter()
            .any(|path| path.starts_with(format!("checkpoints/{first}")) && is_manifest(&path))
    );
    assert_in_order(&shell);
    let told = follower.wait().with_code(1).stderr;
    assert!(told.contains("takes the job up again at its next start"), "{told}");

    let daemon = Daemon::start(job.directory());
    for id in [first, second] {
        let job = daemon.succeeded(&id);
        Contents::of(job["checkpoint"].as_str().unwrap()).assert_same(&wanted);
    }
    daemon.stop();
}

#[test]
fn ctrl_c_stops_a_job_that_runs_in_the_daemon_and_not_the_daemon() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let daemon = Daemon::start(job.directory());
    let running = shell.start(&TRAIN);
    wait_until("it trains", || {
        let jobs = daemon.json(&["list"]);
        jobs["jobs"][0]["progress"]["step"].as_u64() > Some(0)
    });
    running.signal(Signal::INT);
    let outcome = running.wait().with_code(1).json();
    assert_eq!(outcome["state"], "cancelled");
    let shown = daemon.show(outcome["job"].as_str().unwrap());
    assert_eq!((&shown["state"], &shown["checkpoint"]), (&outcome["state"], &outcome["checkpoint"]));
    assert!(children(daemon.pid()).is_empty());
    let resumed = shell.run(&RESUME).with_code(0).json();
    assert_eq!((&resumed["job"], &resumed["state"]), (&outcome["job"], &"succeeded".into()));
    daemon.stop();
}

#[test]
fn what_is_written_elsewhere_is_whole_or_absent() {
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
            // For it to be in the middle of something, its worker must not get anywhere.
            wait_until("it has a worker", || !children(running.pid()).is_empty());
            kill_process(only_worker(&running), Signal::STOP).unwrap();
        }
        wait_until("it writes", || shell.files() != before || running.has_ended());
        assert!(!running.has_ended(), "{line:?}");
        std::thread::sleep(A_WHILE);
        running.signal(Signal::INT);
        let ended = running.wait();
        assert!([1, 130].contains(&ended.code()), "{line:?}: {}", ended.stderr);
        assert_eq!(shell.files(), before, "{line:?}");
    }
}

#[test]
fn reads_that_hang_do_not_hold_up_ctrl_c() {
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
            assert!(started.elapsed() < AT_ONCE, "{line:?}: {:?}", started.elapsed());
            assert!([1, 130].contains(&ended.code()), "{line:?}: {}", ended.stderr);
        }
    }
}

/// The checkpoint that a run of `train --json` names.
fn checkpoint(ended: &Ended) -> PathBuf {
    PathBuf::from(ended.json()["checkpoint"].as_str().unwrap())
}

/// Nothing lies about but the job, its data, a daemon's state, and runs with whole checkpoints.
fn assert_in_order(shell: &Shell) {
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
            ["checkpoints", run, step] => {
                let manifest = PathBuf::from_iter(["checkpoints", run, step, "manifest.json"]);
                step.starts_with("step-") && files.contains(&manifest)
            }
            ["checkpoints", _, _, part] => parts.contains(&part),
            _ => false,
        };
        assert!(known, "{} is left", path.display());
    }
}

fn is_manifest(path: &&PathBuf) -> bool {
    path.ends_with("manifest.json")
}

fn checkpoints(shell: &Shell) -> usize {
    shell.files().iter().filter(is_manifest).count()
}

fn only_worker(running: &Job) -> Pid {
    let workers = children(running.pid());
    assert_eq!(workers.len(), 1);
    pid(workers[0])
}

fn pid(pid: u32) -> Pid {
    Pid::from_raw(pid.try_into().unwrap()).unwrap()
}
