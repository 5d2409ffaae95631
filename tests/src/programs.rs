//! The built binaries as a user or a service manager runs them.

// Test support: a panic fails the test.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A deadline that even a slow, busy machine meets.
const LIMIT: Duration = Duration::from_secs(120);

/// The polling interval.
const POLL: Duration = Duration::from_millis(2);

/// The path of a built binary, in the directory of the tests' binaries.
///
/// # Panics
/// If it has not been built.
pub fn program(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().and_then(Path::parent).unwrap().join(name);
    assert!(
        path.exists(),
        "{} is missing: run `cargo build --workspace --bins` in the tests' profile",
        path.display()
    );
    path
}

/// A dedicated `millstreamd`. Killed when dropped.
pub struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Daemon {
    /// Starts a daemon with its socket and state in `directory`, and waits until it responds. Its configuration is
    /// `millstreamd.toml` there, if that exists; otherwise it runs one job at a time.
    ///
    /// # Panics
    /// If it does not respond.
    pub fn start(directory: &Path) -> Self {
        Self::start_in(directory, &[])
    }

    /// Like [`Daemon::start`], with additional environment variables.
    ///
    /// # Panics
    /// See [`Daemon::start`].
    pub fn start_in(directory: &Path, variables: &[(&str, &Path)]) -> Self {
        Self::start_with(directory, variables, &[])
    }

    /// Like [`Daemon::start_in`], with additional arguments.
    ///
    /// # Panics
    /// See [`Daemon::start`].
    pub fn start_with(directory: &Path, variables: &[(&str, &Path)], arguments: &[&str]) -> Self {
        let socket = directory.join("millstreamd.sock");
        let own = Some(directory.join("millstreamd.toml")).filter(|path| path.exists());
        let usual = || Path::new(env!("CARGO_MANIFEST_DIR")).join("millstreamd.toml");
        let child = Command::new(program("millstreamd"))
            .envs(variables.iter().copied())
            .arg("--socket")
            .arg(&socket)
            .arg("--state")
            .arg(directory.join("state"))
            .arg("--config")
            .arg(own.unwrap_or_else(usual))
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(fs::File::options().create(true).append(true).open(directory.join("daemon.log")).unwrap())
            .spawn()
            .unwrap();
        let mut daemon = Self { child, socket };
        wait_until("the daemon responds", || {
            let exited = daemon.child.try_wait().unwrap();
            assert!(
                exited.is_none(),
                "the daemon exited: {exited:?}; see {}/daemon.log",
                directory.display()
            );
            daemon.run(&["list"]).status.success()
        });
        daemon
    }

    /// The control socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Runs `millstream` against this daemon.
    pub fn run(&self, arguments: &[&str]) -> Output {
        Command::new(program("millstream"))
            .arg("--socket")
            .arg(&self.socket)
            .args(arguments)
            .output()
            .unwrap()
    }

    /// Runs `millstream --json` against this daemon, and returns the parsed output.
    ///
    /// # Panics
    /// If it fails.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let arguments: Vec<_> = ["--json"].iter().chain(arguments).copied().collect();
        let output = self.run(&arguments);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {message}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Submits a job file with these settings, and returns the job's id.
    ///
    /// # Panics
    /// If it is refused.
    pub fn submit(&self, file: &Path, set: &[impl AsRef<str>]) -> String {
        let mut line = vec!["submit", file.to_str().unwrap()];
        line.extend(set.iter().flat_map(|set| ["--set", set.as_ref()]));
        self.json(&line)["id"].as_str().unwrap().to_owned()
    }

    /// The job's log, as `logs` prints it.
    ///
    /// # Panics
    /// If it is not text.
    pub fn log(&self, id: &str) -> String {
        String::from_utf8(self.run(&["logs", id]).stdout).unwrap()
    }

    /// The job as `show` prints it.
    pub fn show(&self, id: &str) -> Value {
        self.json(&["show", id])
    }

    /// Resumes a job that the daemon holds because it was under way when earlier daemons were killed.
    pub fn resume_if_held(&self, id: &str) {
        if self.show(id)["state"] == "held" {
            self.json(&["resume", id]);
        }
    }

    /// Waits until a job ends, however slow it is, and returns it.
    ///
    /// # Panics
    /// If it does not succeed, or does not advance.
    pub fn succeeded(&self, id: &str) -> Value {
        let mut job = self.show(id);
        while !has_ended(&job) {
            let before = job["progress"]["step"].clone();
            wait_until("the job ends or advances", || {
                job = self.show(id);
                has_ended(&job) || job["progress"]["step"] != before
            });
        }
        assert_eq!(job["state"], "succeeded", "{job:#}");
        job
    }

    /// Kills a job's worker each time when training has reached one of `steps`, or the job has ended.
    pub fn kill_worker_after(&self, id: &str, steps: &[u64]) {
        for &step in steps {
            wait_until("the job is under way", || {
                let job = self.show(id);
                has_ended(&job) || job["progress"]["step"].as_u64().is_some_and(|now| now >= step)
            });
            // A worker that has just exited by itself cannot be killed.
            children(self.pid()).into_iter().for_each(|worker| _ = kill(worker));
        }
    }

    /// The daemon's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the daemon with SIGKILL, and waits until its workers are gone.
    ///
    /// # Panics
    /// If a worker outlives it.
    pub fn kill(mut self) {
        let workers = children(self.pid());
        kill(self.pid());
        self.child.wait().unwrap();
        wait_until("the workers are gone", || !workers.iter().any(|&pid| is_alive(pid)));
    }

    /// Stops the daemon as a service manager does.
    ///
    /// # Panics
    /// If it does not exit cleanly, or leaves its socket behind.
    pub fn stop(mut self) {
        kill_process(pid_of(self.pid()), Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
        assert!(!self.socket.exists(), "the socket is removed");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Has already exited if the test succeeded.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a job, as `show` prints it, has ended.
pub fn has_ended(job: &Value) -> bool {
    ["succeeded", "failed", "cancelled", "held"].contains(&job["state"].as_str().unwrap())
}

/// The child processes of `parent`.
pub fn children(parent: u32) -> Vec<u32> {
    processes().filter(|pid| status(*pid).is_some_and(|status| status.parent == parent)).collect()
}

/// The live processes of a process group.
pub fn group(group: u32) -> Vec<u32> {
    processes()
        .filter(|pid| status(*pid).is_some_and(|status| status.group == group && !status.is_zombie()))
        .collect()
}

/// Kills a process with SIGKILL. Returns false if it no longer exists.
pub fn kill(pid: u32) -> bool {
    kill_process(pid_of(pid), Signal::KILL).is_ok()
}

/// Waits until `done` returns true.
///
/// # Panics
/// If the deadline passes.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        std::thread::sleep(POLL);
    }
}

/// Whether a process exists and is not a zombie.
pub fn is_alive(pid: u32) -> bool {
    status(pid).is_some_and(|status| !status.is_zombie())
}

pub(crate) fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

/// A process's entry in `/proc`.
struct Status {
    state: char,
    parent: u32,
    group: u32,
}

impl Status {
    /// Whether it has exited but has not been waited for.
    fn is_zombie(&self) -> bool {
        self.state == 'Z'
    }
}

fn status(pid: u32) -> Option<Status> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain any character.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some(Status { state, parent: fields.next()?.parse().ok()?, group: fields.next()?.parse().ok()? })
}

fn processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}
