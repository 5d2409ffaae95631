//! The built binaries, run as a person or a service manager runs them.

// A test's support fails the test.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Longer than anything that is waited for takes on a slow machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Between looks at what is waited for.
const POLL: Duration = Duration::from_millis(2);

/// A built binary, which lies beside the tests'.
///
/// # Panics
/// When it has not been built.
pub fn program(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().and_then(Path::parent).unwrap().join(name);
    assert!(
        path.exists(),
        "{} is missing: cargo build --workspace --bins, in the tests' profile",
        path.display()
    );
    path
}

/// A `millstreamd` of its own; killed when dropped.
pub struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Daemon {
    /// Starts a daemon with its socket and state in `directory`, and waits until it answers.
    ///
    /// # Panics
    /// When it does not.
    pub fn start(directory: &Path) -> Self {
        Self::start_in(directory, &[])
    }

    /// Starts one in whose environment these variables are.
    ///
    /// # Panics
    /// As [`Daemon::start`].
    pub fn start_in(directory: &Path, variables: &[(&str, &Path)]) -> Self {
        let socket = directory.join("millstreamd.sock");
        let child = Command::new(program("millstreamd"))
            .envs(variables.iter().copied())
            .arg("--socket")
            .arg(&socket)
            .arg("--state")
            .arg(directory.join("state"))
            .stdin(Stdio::null())
            .stderr(fs::File::options().create(true).append(true).open(directory.join("daemon.log")).unwrap())
            .spawn()
            .unwrap();
        let mut daemon = Self { child, socket };
        wait_until("the daemon answers", || {
            let ended = daemon.child.try_wait().unwrap();
            assert!(
                ended.is_none(),
                "the daemon ended: {ended:?}; {}/daemon.log has more",
                directory.display()
            );
            daemon.run(&["list"]).status.success()
        });
        daemon
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

    /// Runs `millstream --json` against this daemon, and returns what it prints.
    ///
    /// # Panics
    /// When it fails.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let arguments: Vec<_> = ["--json"].iter().chain(arguments).copied().collect();
        let output = self.run(&arguments);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {message}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The job as `show` prints it.
    pub fn show(&self, id: &str) -> Value {
        self.json(&["show", id])
    }

    /// Waits for a job's end, and returns it.
    ///
    /// # Panics
    /// When it does not succeed.
    pub fn succeeded(&self, id: &str) -> Value {
        let mut job = Value::Null;
        wait_until("the job ends", || {
            job = self.show(id);
            has_ended(&job)
        });
        assert_eq!(job["state"], "succeeded", "{job:#}");
        job
    }

    /// The daemon's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the daemon, as `kill -9` does, and waits until its workers are gone too.
    ///
    /// # Panics
    /// When a worker outlives it.
    pub fn kill(mut self) {
        let workers = children(self.pid());
        kill(self.pid());
        self.child.wait().unwrap();
        wait_until("the workers are gone", || !workers.iter().any(|&pid| is_alive(pid)));
    }

    /// Stops the daemon, as a service manager does.
    ///
    /// # Panics
    /// When it does not end in order, or leaves its socket behind.
    pub fn stop(mut self) {
        kill_process(pid_of(self.pid()), Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
        assert!(!self.socket.exists(), "the socket is removed");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Over already, when the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a job, as `show` prints it, is over.
pub fn has_ended(job: &Value) -> bool {
    ["succeeded", "failed", "cancelled"].contains(&job["state"].as_str().unwrap())
}

/// The processes that `parent` has started.
pub fn children(parent: u32) -> Vec<u32> {
    processes().filter(|pid| status(*pid).is_some_and(|status| status.parent == parent)).collect()
}

/// The processes of a process group that are alive.
pub fn group(group: u32) -> Vec<u32> {
    processes()
        .filter(|pid| status(*pid).is_some_and(|status| status.group == group && !status.is_zombie()))
        .collect()
}

/// Kills a process, as `kill -9` does; false when it was gone.
pub fn kill(pid: u32) -> bool {
    kill_process(pid_of(pid), Signal::KILL).is_ok()
}

/// Waits until `done`.
///
/// # Panics
/// When that takes longer than anything should.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(POLL);
    }
}

/// Whether a process is there, and more than a body to be collected.
pub fn is_alive(pid: u32) -> bool {
    status(pid).is_some_and(|status| !status.is_zombie())
}

pub(crate) fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

/// What the kernel says of a process.
struct Status {
    state: char,
    parent: u32,
    group: u32,
}

impl Status {
    /// Whether it is over, and only its exit status is there still.
    fn is_zombie(&self) -> bool {
        self.state == 'Z'
    }
}

fn status(pid: u32) -> Option<Status> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some(Status { state, parent: fields.next()?.parse().ok()?, group: fields.next()?.parse().ok()? })
}

fn processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}
