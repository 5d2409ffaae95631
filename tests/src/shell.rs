//! Commands as they are typed into a shell: what they print, how they end, and what they leave behind.

// A test's support fails the test.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;

use rustix::process::{Signal, kill_process_group};
use serde_json::Value;

use crate::programs::{group, pid_of, program, wait_until};

/// A directory that commands are run in. No daemon listens there unless one is started, and whatever they
/// leave behind is found there.
pub struct Shell {
    directory: PathBuf,
    socket: PathBuf,
}

/// A command that runs in the foreground, in a process group of its own. Killed when dropped.
pub struct Job {
    child: Child,
    /// `None` once they were taken.
    outputs: Option<[JoinHandle<String>; 2]>,
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    /// What was typed.
    pub line: String,
    /// Its exit status.
    pub status: ExitStatus,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
}

impl Shell {
    /// A shell in `directory`.
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), socket: directory.join("millstreamd.sock") }
    }

    /// `millstream` with `arguments`, not yet started.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program("millstream"));
        command
            .args(arguments)
            .current_dir(&self.directory)
            .env("MILLSTREAM_SOCKET", &self.socket)
            .env("TMPDIR", &self.directory)
            .env_remove("MILLSTREAM_LOG")
            .stdin(Stdio::null())
            .process_group(0);
        command
    }

    /// Starts `millstream` with `arguments`.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(&self, arguments: &[&str]) -> Job {
        Job::start(&mut self.command(arguments))
    }

    /// Starts `millstream` with `arguments` as a script does with `&`: with SIGINT ignored.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start_in_background(&self, arguments: &[&str]) -> Job {
        let foreground = self.command(arguments);
        let mut command = Command::new("sh");
        command.args(["-c", r#"trap "" INT; exec "$0" "$@""#]).arg(foreground.get_program());
        command.args(foreground.get_args()).process_group(0).stdin(Stdio::null());
        foreground.get_envs().for_each(|(name, value)| match value {
            Some(value) => drop(command.env(name, value)),
            None => drop(command.env_remove(name)),
        });
        command.current_dir(&self.directory);
        Job::start(&mut command)
    }

    /// Runs `millstream` with `arguments` to its end.
    ///
    /// # Panics
    /// When it panicked, or left a process behind.
    pub fn run(&self, arguments: &[&str]) -> Ended {
        let mut ended = self.start(arguments).wait();
        ended.line = format!("millstream {}", arguments.join(" "));
        ended
    }

    /// Every file below the directory. The empty directories too: a run that came to nothing leaves none.
    ///
    /// # Panics
    /// When they cannot be listed.
    pub fn files(&self) -> BTreeSet<PathBuf> {
        let mut files = BTreeSet::new();
        let mut directories = vec![self.directory.clone()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_dir() {
                    directories.push(entry.path());
                }
                files.insert(entry.path().strip_prefix(&self.directory).unwrap().to_owned());
            }
        }
        files
    }
}

impl Job {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = read_all(child.stdout.take().unwrap());
        let stderr = read_all(child.stderr.take().unwrap());
        Self { child, outputs: Some([stdout, stderr]) }
    }

    /// The command's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    ///
    /// # Panics
    /// When the system does not say.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Sends `signal` to the process and all that it has started, as a terminal does.
    pub fn signal(&self, signal: Signal) {
        // Over already, where the moment was a random one.
        let _ = kill_process_group(pid_of(self.pid()), signal);
    }

    /// Waits for the command's end.
    ///
    /// # Panics
    /// When it panicked, or left a process behind.
    pub fn wait(mut self) -> Ended {
        wait_until("the command ends", || self.has_ended());
        let status = self.child.wait().unwrap();
        let pid = self.pid();
        // Workers are killed with whoever started them; that may take the kernel a moment.
        wait_until("its processes are gone", || group(pid).is_empty());
        let [stdout, stderr] = self.outputs.take().unwrap().map(|output| output.join().unwrap());
        assert!(!stderr.contains("panicked"), "{stderr}");
        Ended { line: String::new(), status, stdout, stderr }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Over already, when the test went well.
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Ended {
    /// The exit status as a shell tells it: 128 and more is a signal's.
    ///
    /// # Panics
    /// Never: a process that has ended has one or the other.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap())
    }

    /// Asserts the exit status, and returns itself.
    ///
    /// # Panics
    /// When it is another one.
    #[must_use]
    pub fn with_code(self, code: i32) -> Self {
        assert_eq!(self.code(), code, "{}\n{}", self.line, self.stderr);
        self
    }

    /// The one JSON document on standard output.
    ///
    /// # Panics
    /// When there is anything else.
    pub fn json(&self) -> Value {
        let parsed = serde_json::from_str(&self.stdout);
        parsed.unwrap_or_else(|error| panic!("{}: {error} in {:?}\n{}", self.line, self.stdout, self.stderr))
    }
}

fn read_all(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    })
}
