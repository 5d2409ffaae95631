//! Commands as typed into a shell: their output, exit status, and the files they leave behind.

// Test support: a panic fails the test.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::process::{Signal, kill_process_group};
use serde_json::Value;

use crate::programs::{group, pid_of, program, wait_until};

/// A directory to run commands in. Their socket and temporary files are in it as well; a daemon listens there only
/// if the test starts one.
pub struct Shell {
    directory: PathBuf,
    socket: PathBuf,
    variables: Vec<(&'static str, String)>,
}

/// A command running in the foreground, in its own process group. Killed when dropped.
pub struct RunningCommand {
    child: Child,
    /// `None` once taken.
    outputs: Option<[Output; 2]>,
}

/// The result of a command.
#[derive(Debug)]
pub struct Completed {
    /// The command line.
    pub line: String,
    /// The exit status.
    pub status: ExitStatus,
    /// The complete standard output.
    pub stdout: String,
    /// The complete standard error.
    pub stderr: String,
}

impl Shell {
    /// A shell in `directory`.
    pub fn new(directory: &Path) -> Self {
        let socket = directory.join("millstreamd.sock");
        Self { directory: directory.to_owned(), socket, variables: Vec::new() }
    }

    /// The same shell with further environment variables.
    #[must_use]
    pub fn with_variables(self, variables: &[(&'static str, String)]) -> Self {
        Self { variables: variables.to_vec(), ..self }
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
            .envs(self.variables.iter().cloned())
            .stdin(Stdio::null())
            .process_group(0);
        command
    }

    /// Starts `millstream` with `arguments`.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(&self, arguments: &[&str]) -> RunningCommand {
        RunningCommand::start(&mut self.command(arguments))
    }

    /// Starts `millstream` with `arguments` as a script does with `&`: with SIGINT ignored.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_in_background(&self, arguments: &[&str]) -> RunningCommand {
        let foreground = self.command(arguments);
        let mut command = Command::new("sh");
        command.args(["-c", r#"trap "" INT; exec "$0" "$@""#]).arg(foreground.get_program());
        command.args(foreground.get_args()).process_group(0).stdin(Stdio::null());
        foreground.get_envs().for_each(|(name, value)| match value {
            Some(value) => drop(command.env(name, value)),
            None => drop(command.env_remove(name)),
        });
        command.current_dir(&self.directory);
        RunningCommand::start(&mut command)
    }

    /// Runs `millstream` with `arguments` to completion.
    ///
    /// # Panics
    /// If it panicked, or left a process behind.
    pub fn run(&self, arguments: &[&str]) -> Completed {
        let mut ended = self.start(arguments).wait();
        ended.line = format!("millstream {}", arguments.join(" "));
        ended
    }

    /// All files below the directory, and all directories, because a failed run must not leave empty ones.
    ///
    /// # Panics
    /// If they cannot be listed.
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

impl RunningCommand {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = Output::read(child.stdout.take().unwrap());
        let stderr = Output::read(child.stderr.take().unwrap());
        Self { child, outputs: Some([stdout, stderr]) }
    }

    /// The command's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has exited.
    ///
    /// # Panics
    /// If the system call fails.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// The standard error printed so far.
    ///
    /// # Panics
    /// If the output cannot be read.
    pub fn stderr(&self) -> String {
        let [_, stderr] = self.outputs.as_ref().unwrap();
        String::from_utf8_lossy(&stderr.bytes.lock().unwrap()).into_owned()
    }

    /// Sends `signal` to the process and all its descendants, as a terminal does.
    pub fn signal(&self, signal: Signal) {
        // The process may have exited already.
        let _ = kill_process_group(pid_of(self.pid()), signal);
    }

    /// Waits until the command exits.
    ///
    /// # Panics
    /// If it panicked, or left a process behind.
    pub fn wait(mut self) -> Completed {
        wait_until("the command exits", || self.has_ended());
        let status = self.child.wait().unwrap();
        let pid = self.pid();
        // Workers are killed together with their parent, which may take the kernel a moment.
        wait_until("its processes are gone", || group(pid).is_empty());
        let [stdout, stderr] = self.outputs.take().unwrap().map(Output::finish);
        assert!(!stderr.contains("panicked"), "{stderr}");
        Completed { line: String::new(), status, stdout, stderr }
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        // Has already exited if the test succeeded.
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Completed {
    /// The exit code as a shell reports it: 128 plus the signal number if a signal ended the process.
    ///
    /// # Panics
    /// Never: a process that has exited has one or the other.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap())
    }

    /// Asserts the exit code, and returns itself.
    ///
    /// # Panics
    /// If the exit code differs.
    #[must_use]
    pub fn with_code(self, code: i32) -> Self {
        assert_eq!(self.code(), code, "{}\n{}", self.line, self.stderr);
        self
    }

    /// Standard output, parsed as a single JSON document.
    ///
    /// # Panics
    /// If it is anything else.
    pub fn json(&self) -> Value {
        let parsed = serde_json::from_str(&self.stdout);
        parsed.unwrap_or_else(|error| panic!("{}: {error} in {:?}\n{}", self.line, self.stdout, self.stderr))
    }
}

/// An output of a command, which a thread collects as it is printed.
struct Output {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Output {
    fn read(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::default();
        let mut collected = Collected(Arc::clone(&bytes));
        let reader = std::thread::spawn(move || {
            io::copy(&mut pipe, &mut collected).unwrap();
        });
        Self { bytes, reader }
    }

    /// The complete output, once the command has closed it.
    fn finish(self) -> String {
        self.reader.join().unwrap();
        String::from_utf8(std::mem::take(&mut self.bytes.lock().unwrap())).unwrap()
    }
}

struct Collected(Arc<Mutex<Vec<u8>>>);

impl Write for Collected {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
