//! `millstream train` interrupted by Ctrl-C and by `kill -9`: no process is left running, and `--resume` ends with the
//! same bits as an undisturbed run.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use millstream_tests::programs::{children, is_alive, kill, program, wait_until};
use millstream_tests::tiny_job::{Contents, TinyJob};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Starts `millstream train` without a daemon, so that it hosts one itself.
fn train(job: &TinyJob, more: &[&str]) -> Child {
    Command::new(program("millstream"))
        .arg("--socket")
        .arg(job.directory().join("nobody.sock"))
        .args(["--json", "train"])
        .arg(job.file())
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn succeeded(output: &Output) -> Contents {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(outcome["state"], "succeeded");
    Contents::of(outcome["checkpoint"].as_str().unwrap())
}

/// The directories of the job's runs.
fn runs(job: &TinyJob) -> Vec<PathBuf> {
    let entries = fs::read_dir(job.directory().join("checkpoints")).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn has_checkpoint(run: &Path) -> bool {
    let mut entries = fs::read_dir(run).into_iter().flatten().flatten();
    entries.any(|entry| entry.path().join("manifest.json").exists())
}

/// Waits until a run not in `before` has committed a checkpoint, and returns its worker.
fn wait_for_checkpoint(job: &TinyJob, train: &Child, before: &[PathBuf]) -> u32 {
    wait_until("there is a checkpoint", || {
        runs(job).iter().any(|run| !before.contains(run) && has_checkpoint(run))
    });
    let workers = children(train.id());
    assert_eq!(workers.len(), 1, "there is one worker");
    workers[0]
}

#[test]
fn an_interrupted_run_stops_cleanly_and_resumes_to_the_same_bits() {
    let job = TinyJob::new();
    let wanted = succeeded(&train(&job, &[]).wait_with_output().unwrap());
    let before = runs(&job);

    let child = train(&job, &[]);
    let worker = wait_for_checkpoint(&job, &child, &before);
    for pid in [child.id(), worker] {
        // Like a terminal, which signals the whole process group.
        kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::INT).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(outcome["state"], "cancelled", "{outcome:#}");
    assert!(!is_alive(worker), "no worker is left");
    assert!(!job.directory().join("nobody.sock").exists());

    let changed = ["--resume", "--set", "data.batch_size=31"];
    let changed = String::from_utf8(train(&job, &changed).wait_with_output().unwrap().stderr).unwrap();
    assert!(changed.contains("differs in `data.batch_size` (") && changed.contains(", now 31)"), "{changed}");

    succeeded(&train(&job, &["--resume"]).wait_with_output().unwrap()).assert_same(&wanted);
    assert_eq!(runs(&job).len(), before.len() + 1, "the same run was resumed");
}

#[test]
fn a_killed_run_takes_its_worker_with_it_and_resumes_to_the_same_bits() {
    let job = TinyJob::new();
    let wanted = succeeded(&train(&job, &[]).wait_with_output().unwrap());
    let before = runs(&job);

    let mut child = train(&job, &[]);
    let worker = wait_for_checkpoint(&job, &child, &before);
    assert!(kill(child.id()));
    child.wait().unwrap();
    wait_until("the worker is gone", || !is_alive(worker));

    // Other statistics would give other features, so a resume does not accept them.
    let run = runs(&job).into_iter().find(|run| !before.contains(run)).unwrap();
    let statistics = fs::read(run.join("analysis.json")).unwrap();
    let digit = statistics.iter().rposition(u8::is_ascii_digit).unwrap();
    let mut changed = statistics.clone();
    changed[digit] = if changed[digit] == b'1' { b'2' } else { b'1' };
    fs::write(run.join("analysis.json"), changed).unwrap();
    let refused = train(&job, &["--resume"]).wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("/analysis.json has SHA-256"), "{stderr}");
    fs::write(run.join("analysis.json"), statistics).unwrap();

    succeeded(&train(&job, &["--resume"]).wait_with_output().unwrap()).assert_same(&wanted);
    let nothing = train(&job, &["--resume"]).wait_with_output().unwrap();
    assert_eq!(nothing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("no unfinished run"));
}
