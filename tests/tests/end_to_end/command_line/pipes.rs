//! Output into pipes whose reader exits: commands end quietly and without failure.

use std::io::{BufRead, BufReader, pipe};
use std::process::{ChildStdout, Command, Stdio};

use millstream_tests::programs::{Daemon, program, wait_until};
use millstream_tests::shell::Shell;
use millstream_tests::tiny_job::TinyJob;
use rustix::process::{Pid, Signal, kill_process};

const SHORT: [&str; 2] = ["--set", "data.epochs=1"];

#[test]
fn a_reader_that_exits_after_one_line_is_not_a_failure() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let line = [&["train", "job.toml", "--json"][..], &SHORT].concat();
    let checkpoint = shell.run(&line).with_code(0).json()["checkpoint"].as_str().unwrap().to_owned();
    let daemon = Daemon::start(job.directory());
    for line in [
        vec!["predict", &checkpoint, "train-*.parquet"],
        vec!["predict", &checkpoint, "train-*.parquet", "--format", "jsonl"],
        vec!["eval", &checkpoint, "--json"],
        vec!["check", "job.toml"],
        vec!["inspect", "train-0.parquet", "--json"],
        [&["train", "job.toml"][..], &SHORT].concat(),
        vec!["list"],
        vec!["logs", "tiny"],
        vec!["--help"],
        vec!["train", "--help"],
    ] {
        let (code, stderr) = with_head(shell.command(&line));
        assert_eq!(code, Some(0), "{line:?}: {stderr}");
        assert!(!stderr.contains("panicked") && !stderr.contains("roken pipe"), "{line:?}: {stderr}");
    }
    daemon.stop();
}

/// Neither output has a reader: only the exit code shows the result.
#[test]
fn commands_work_without_any_reader() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    for (line, wanted) in [
        ([&["train", "job.toml"][..], &SHORT].concat(), 0),
        ([&["train", "job.toml", "--json"][..], &SHORT].concat(), 0),
        (vec!["check", "job.toml"], 0),
        (vec!["train", "job.toml", "--set", "data.train=[\"none.parquet\"]"], 1),
        (vec!["train", "job.toml", "--set", "data.train=[\"none.parquet\"]", "--json"], 1),
        (vec!["train", "job.toml", "--set", "data.sed=1", "--json"], 2),
        (vec!["list"], 1),
    ] {
        let mut command = shell.command(&line);
        // Library logging writes to a closed pipe, too.
        command.env("MILLSTREAM_LOG", "debug").stdout(closed_pipe()).stderr(closed_pipe());
        let mut child = command.spawn().unwrap();
        wait_until("the command exits", || child.try_wait().unwrap().is_some());
        assert_eq!(child.wait().unwrap().code(), Some(wanted), "{line:?}");
    }
}

#[test]
fn a_daemon_whose_log_has_no_reader_keeps_running() {
    let job = TinyJob::new();
    let shell = Shell::new(job.directory());
    let mut daemon = Command::new(program("millstreamd"))
        .arg("--socket")
        .arg(job.directory().join("millstreamd.sock"))
        .arg("--state")
        .arg(job.directory().join("state"))
        .stderr(closed_pipe())
        .spawn()
        .unwrap();
    wait_until("the daemon listens", || shell.run(&["list"]).code() == 0);
    let _ = shell.run(&[&["train", "job.toml"][..], &SHORT].concat()).with_code(0);
    kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
}

/// Runs a command as `| head -n 1` does. Returns its exit code and standard error.
fn with_head(mut command: Command) -> (Option<i32>, String) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    let reader: ChildStdout = child.stdout.take().unwrap();
    BufReader::with_capacity(1, reader).read_line(&mut first).unwrap();
    assert!(!first.is_empty());
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn closed_pipe() -> Stdio {
    let (_, writer) = pipe().unwrap();
    writer.into()
}
