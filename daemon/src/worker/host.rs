//! The daemon's side of a worker: starting the process, talking to it, and learning how it ended.
//!
//! The process must not outlive what needs it. It asks the kernel to be killed when the *thread* that
//! started it ends, so [`WorkerProcess::spawn`] is called on the job's own thread, which waits for the
//! worker before it ends; and dropping a [`WorkerProcess`] kills and reaps it.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use millstream_backend::NO_MEMORY;
use millstream_batch::{HandOff, RingError};
use rustix::process::Signal;

use super::protocol::{self, FromWorker, ProtocolError, ToWorker};

/// The last lines of a worker's standard error that are kept to explain its end.
const LAST_LINES: usize = 5;

/// A longer line of standard error is cut.
const LINE_BYTES: u64 = 4096;

/// What Rust's runtime says before it ends a process that was refused memory: "memory allocation of 64 bytes failed".
const REFUSED: &str = "memory allocation of ";

/// A worker that does not take a message for so long is as good as dead: it reads them on a thread of its
/// own.
const SEND_LIMIT: Duration = Duration::from_secs(10);

/// How often a worker that should be ending is looked at.
const POLL: Duration = Duration::from_millis(5);

/// A running worker.
pub struct WorkerProcess {
    child: Child,
    socket: UnixStream,
    stderr: Option<JoinHandle<LastWords>>,
}

/// How a worker ended.
#[derive(Clone, Debug)]
pub struct Ending {
    status: ExitStatus,
    last_words: LastWords,
}

/// What a worker wrote to its standard error.
#[derive(Clone, Debug, Default)]
struct LastWords {
    lines: VecDeque<String>,
    /// Whether it said that it was refused memory. A backtrace may have followed.
    was_refused: bool,
    /// Whether it said that its GPU has too little.
    was_refused_by_gpu: bool,
}

impl WorkerProcess {
    /// Starts `program` as a worker. Each line that it writes to its standard error goes to `log`.
    ///
    /// The worker is killed when the calling thread ends.
    ///
    /// # Errors
    /// When the system refuses a process or a socket.
    pub fn spawn(program: &Path, log: impl FnMut(&str) + Send + 'static) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_write_timeout(Some(SEND_LIMIT))?;
        let mut child = Command::new(program)
            .arg0("millstream")
            .arg(super::ARGUMENT)
            .arg(std::process::id().to_string())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let stderr = child.stderr.take();
        let mut worker = Self { child, socket, stderr: None };
        if let Some(stderr) = stderr {
            let reader = move || read_lines(stderr, log);
            worker.stderr = Some(std::thread::Builder::new().name("worker-stderr".into()).spawn(reader)?);
        }
        Ok(worker)
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a message.
    ///
    /// # Errors
    /// When the worker does not take it: it is dead or about to be.
    pub fn send(&mut self, message: &ToWorker) -> Result<(), ProtocolError> {
        protocol::send(&mut self.socket, message)
    }

    /// Hands the worker its ring, once it is ready.
    ///
    /// # Errors
    /// As for [`WorkerProcess::send`].
    pub fn hand_over(&mut self, ring: HandOff) -> Result<(), RingError> {
        ring.send(&self.socket)
    }

    /// Reads the worker's messages on a thread of their own and gives each to `receive`, until that
    /// returns false or the worker is gone; then `gone` is called, last.
    ///
    /// # Errors
    /// When the system refuses a descriptor or a thread.
    pub fn listen(
        &self,
        mut receive: impl FnMut(FromWorker) -> bool + Send + 'static,
        gone: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let mut socket = self.socket.try_clone()?;
        std::thread::Builder::new().name("worker-messages".into()).spawn(move || {
            loop {
                match protocol::receive(&mut socket) {
                    Ok(Some(message)) => {
                        if !receive(message) {
                            break;
                        }
                    }
                    Ok(None) => break,
                    Err(error) => {
                        // A cut message is part of dying; how the process ended says more.
                        tracing::debug!(%error, "a worker's messages ended");
                        break;
                    }
                }
            }
            gone();
        })
    }

    /// Waits until the worker has ended by itself, and kills it when that takes longer than `limit`.
    pub fn wait(mut self, limit: Duration) -> io::Result<Ending> {
        let deadline = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() >= deadline {
                self.child.kill()?;
                break self.child.wait()?;
            }
            std::thread::sleep(POLL);
        };
        let last_words = self.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        Ok(Ending { status, last_words })
    }
}

impl Ending {
    /// Whether it was for lack of memory: the process ended itself when it was refused some, or the kernel killed it; or the
    /// GPU had too little.
    /// `kernel_killed` says whether the kernel killed any process for that while this one ran; where that is not known,
    /// a SIGKILL is taken for the kernel's if `is_likely`.
    pub fn is_lack_of_memory(&self, kernel_killed: Option<bool>, is_likely: bool) -> bool {
        match self.status.signal().and_then(Signal::from_named_raw) {
            Some(Signal::ABORT) => self.last_words.was_refused,
            Some(Signal::KILL) => kernel_killed.unwrap_or(is_likely),
            Some(_) => false,
            None => !self.status.success() && self.last_words.was_refused_by_gpu,
        }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // Reaped already, unless something went wrong on the way; then neither call can fail usefully.
        let _ = self.socket.shutdown(Shutdown::Both);
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(thread) = self.stderr.take() {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.status.signal(), self.status.code()) {
            (Some(signal), _) => {
                write!(f, "the worker was killed by signal {signal}{}", signal_name(signal))?;
            }
            (None, Some(code)) => write!(f, "the worker exited with status {code}")?,
            (None, None) => write!(f, "the worker ended")?,
        }
        let lines: Vec<&str> = self.last_words.lines.iter().map(String::as_str).collect();
        if !lines.is_empty() {
            write!(f, ": {}", lines.join(" | "))?;
        }
        Ok(())
    }
}

fn signal_name(signal: i32) -> &'static str {
    let named = [
        (Signal::KILL, " (SIGKILL: by a person, or the kernel for lack of memory)"),
        (Signal::SEGV, " (SIGSEGV)"),
        (Signal::ABORT, " (SIGABRT)"),
        (Signal::BUS, " (SIGBUS)"),
        (Signal::ILL, " (SIGILL)"),
        (Signal::FPE, " (SIGFPE)"),
        (Signal::TERM, " (SIGTERM)"),
        (Signal::INT, " (SIGINT)"),
        (Signal::XCPU, " (SIGXCPU)"),
    ];
    named.iter().find(|(known, _)| known.as_raw() == signal).map_or("", |(_, name)| name)
}

/// Gives each line to `log`, and returns the last ones when the other end is closed.
fn read_lines(stderr: ChildStderr, mut log: impl FnMut(&str)) -> LastWords {
    let mut reader = BufReader::new(stderr);
    let mut last = LastWords::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if text.is_empty() {
            continue;
        }
        log(text);
        last.was_refused |= text.starts_with(REFUSED);
        last.was_refused_by_gpu |= text.contains(NO_MEMORY);
        if last.lines.len() == LAST_LINES {
            last.lines.pop_front();
        }
        last.lines.push_back(text.to_owned());
    }
    last
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::PermissionsExt;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A program that one thread writes while another one forks is busy until the other's child has run.
    static WRITING: Mutex<()> = Mutex::new(());

    /// Starts a shell script in the worker's place.
    fn start(directory: &Path, text: &str, log: impl FnMut(&str) + Send + 'static) -> WorkerProcess {
        let _alone = WRITING.lock().unwrap();
        let path = directory.join("worker.sh");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        WorkerProcess::spawn(&path, log).unwrap()
    }

    fn end_of(text: &str, limit: Duration) -> (String, Vec<String>) {
        let directory = tempfile::tempdir().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&lines);
        let worker = start(directory.path(), text, move |line| log.lock().unwrap().push(line.into()));
        let ending = worker.wait(limit).unwrap();
        let lines = lines.lock().unwrap().clone();
        (ending.to_string(), lines)
    }

    #[test]
    fn the_end_of_a_worker_says_how_and_its_last_words() {
        let minute = Duration::from_secs(60);
        let (ending, lines) = end_of("for i in 1 2 3 4 5 6 7; do echo line $i >&2; done; exit 3", minute);
        assert_eq!(ending, "the worker exited with status 3: line 3 | line 4 | line 5 | line 6 | line 7");
        assert_eq!(lines.len(), 7);
        let (ending, _) = end_of("kill -SEGV $$", minute);
        assert_eq!(ending, "the worker was killed by signal 11 (SIGSEGV)");
        assert_eq!(end_of("exit 0", minute).0, "the worker exited with status 0");
    }

    #[test]
    fn lack_of_memory_is_told_from_other_ends() {
        let lacked = |text: &str, kernel_killed, is_likely| {
            let directory = tempfile::tempdir().unwrap();
            let ending = start(directory.path(), text, |_| {}).wait(Duration::from_secs(60)).unwrap();
            ending.is_lack_of_memory(kernel_killed, is_likely)
        };
        let refused = "echo memory allocation of 64 bytes failed >&2; kill -ABRT $$";
        assert!(lacked(refused, Some(false), false));
        let traced = "echo memory allocation of 64 bytes failed >&2; seq 20 >&2; kill -ABRT $$";
        assert!(lacked(traced, Some(false), false));
        assert!(!lacked("echo another reason >&2; kill -ABRT $$", Some(true), true));
        assert!(!lacked("kill -SEGV $$", Some(true), true));
        assert!(!lacked("echo memory allocation of 64 bytes failed >&2; exit 1", Some(true), true));
        let of_gpu = format!("echo ERROR worker: {NO_MEMORY} for 64 bytes >&2; exit");
        assert!(lacked(&format!("{of_gpu} 101"), Some(false), false));
        assert!(!lacked(&format!("{of_gpu} 0"), Some(false), false));
        assert!(!lacked("echo ERROR worker: another reason >&2; exit 101", Some(false), false));
        let killed = [(Some(true), false), (Some(false), true), (None, true), (None, false)];
        let killed =
            killed.map(|(kernel_killed, is_likely)| lacked("kill -KILL $$", kernel_killed, is_likely));
        assert_eq!(killed, [true, false, true, false]);
    }

    #[test]
    fn a_worker_that_does_not_end_is_killed() {
        let began = Instant::now();
        let (ending, _) = end_of("exec sleep 600", Duration::from_millis(50));
        assert!(ending.contains("signal 9"), "{ending}");
        assert!(began.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn a_dropped_worker_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let worker = start(directory.path(), "exec sleep 600", |_| {});
        let process = std::path::PathBuf::from(format!("/proc/{}", worker.pid()));
        assert!(process.exists());
        drop(worker);
        assert!(!process.exists());
    }

    #[test]
    fn messages_arrive_in_order_and_the_end_is_told_last() {
        let directory = tempfile::tempdir().unwrap();
        let done = FromWorker::Done { stopped_early: None };
        let mut frame = Vec::new();
        protocol::send(&mut frame, &done).unwrap();
        std::fs::write(directory.path().join("frame"), &frame).unwrap();
        let text = format!("cd {}; cat frame frame >&0; head -c 3 frame >&0", directory.path().display());
        let worker = start(directory.path(), &text, |_| {});
        let (sender, receiver) = std::sync::mpsc::channel();
        let end = sender.clone();
        let listener = worker
            .listen(move |message| sender.send(Some(message)).is_ok(), move || end.send(None).unwrap())
            .unwrap();
        let heard: Vec<_> = receiver.iter().collect();
        assert_eq!(heard, [Some(done.clone()), Some(done), None]);
        listener.join().unwrap();
        assert!(worker.wait(Duration::from_secs(60)).is_ok());
    }

    #[test]
    fn endless_lines_are_cut_and_not_kept() {
        let (_, lines) = end_of("head -c 10000 /dev/zero | tr '\\0' x >&2; exit 0", Duration::from_secs(60));
        assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [4096, 4096, 1808]);
    }
}
