//! The daemon's side of a worker: spawning the process, exchanging messages, and interpreting its exit.
//!
//! A worker must not outlive its job. The worker asks the kernel to kill it when the *thread* that spawned it
//! ends, so [`WorkerProcess::spawn`] runs on the job's own thread, which waits for the worker before it ends.
//! Dropping a [`WorkerProcess`] kills and reaps the process.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use millstream_batch::descriptors::{self, DescriptorError};
use millstream_batch::messages::{self, MessageError};
use millstream_batch::{HandOff, RingError};
use rustix::process::Signal;
use signal_hook::low_level::signal_name;

use millstream_worker::protocol::{FromWorker, IMAGES_GREETING, OBJECTS_GREETING, RECORD_GREETING, ToWorker};

use crate::cgroup::{WorkerGroup, WorkerGroups};

/// The environment variable of the order in which CUDA numbers GPUs: in workers that of `nvidia-smi`, so that jobs and displays
/// mean the same GPU by a number.
const ORDER_VARIABLE: &str = "CUDA_DEVICE_ORDER";

/// Number of last lines of a worker's standard error kept to explain its exit.
const TAIL_LINES: usize = 5;

/// Longer lines of standard error are split at this length.
const MAX_LINE_BYTES: u64 = 4096;

/// What Rust's runtime prints before it aborts on a refused allocation: "memory allocation of 64 bytes
/// failed".
const ALLOCATION_FAILED: &str = "memory allocation of ";

/// Time after which a worker that does not accept a message counts as dead. A separate thread of the worker
/// reads messages, so a live one accepts them at once.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between checks of whether an exiting worker has exited.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The variables of the daemon's environment that a worker inherits. The others may hold secrets, such as the keys with
/// which the daemon reads storage, and nobody can list all names of secrets. A worker reads no storage.
const WORKER_VARIABLES: [&str; 10] = [
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "TZ",
    "TMPDIR",
    "CACHE_DIRECTORY",
    "XDG_CACHE_HOME",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
];

/// A worker also inherits variables with these prefixes: settings of Millstream, of CUDA, NCCL and UCX, of the allocator, of Rust and
/// of sanitizers.
const WORKER_VARIABLE_PREFIXES: [&str; 12] = [
    "LC_",
    "MILLSTREAM_",
    "CUDA_",
    "NVIDIA_",
    "NCCL_",
    "UCX_",
    "RUST_",
    "RAYON_",
    "MALLOC_",
    "GLIBC_",
    "LLVM_PROFILE_",
    "ASAN_",
];

/// The interfaces on which NCCL listens. The prefix `=` demands exactly these names.
const NCCL_INTERFACES: &str = "NCCL_SOCKET_IFNAME";

/// How NCCL reaches other hosts, and the one that uses these interfaces only. A daemon whose environment has one of the variables
/// decides otherwise: for RDMA.
const NCCL_NETWORK: &str = "NCCL_NET";
const NCCL_NETWORK_VARIABLES: [&str; 3] = [NCCL_NETWORK, "NCCL_NET_PLUGIN", "NCCL_IB_HCA"];
const NCCL_SOCKETS: &str = "Socket";

/// Settings of NCCL that a worker does not inherit: a fixed address where all communicators of the host would meet, instead of a
/// secret one for each; and calls that wait for other ranks without a limit.
const NCCL_REFUSED_VARIABLES: [&str; 2] = ["NCCL_COMM_ID", "NCCL_COMM_BLOCKING"];

/// What workers are started from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerProgram {
    /// The program, started with `worker` as its first argument.
    path: PathBuf,
    /// Where workers get control groups of their own.
    groups: Option<WorkerGroups>,
}

impl WorkerProgram {
    /// The same program, whose workers get their own of these groups.
    #[must_use]
    pub(crate) fn in_groups(self, groups: Option<WorkerGroups>) -> Self {
        Self { groups, ..self }
    }
}

impl<P: Into<PathBuf>> From<P> for WorkerProgram {
    fn from(path: P) -> Self {
        Self { path: path.into(), groups: None }
    }
}

/// A running worker.
pub(crate) struct WorkerProcess {
    /// How errors call it.
    name: String,
    child: Child,
    socket: UnixStream,
    stderr: Option<JoinHandle<StderrTail>>,
    /// Dropped once the worker has been reaped.
    group: Option<WorkerGroup>,
}

/// How a worker exited.
#[derive(Clone, Debug)]
pub(crate) struct WorkerExit {
    name: String,
    status: ExitStatus,
    stderr: StderrTail,
}

/// The end of a worker's standard error.
#[derive(Clone, Debug, Default)]
struct StderrTail {
    lines: VecDeque<String>,
    /// Whether it contains Rust's message about a refused allocation, possibly followed by a backtrace.
    allocation_failed: bool,
}

impl WorkerProcess {
    /// Starts `program` as a worker and passes each line of its standard error to `log`. If the worker has others on other hosts, it
    /// reaches them on the interfaces `network`.
    ///
    /// The kernel kills the worker when the calling thread ends.
    ///
    /// # Errors
    /// When the system cannot create the process or its socket.
    pub(crate) fn spawn(
        program: &WorkerProgram,
        network: Option<&str>,
        log: impl FnMut(&str) + Send + 'static,
    ) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        let mut child = Command::new(&program.path)
            .arg0("millstream")
            .arg(millstream_worker::ARGUMENT)
            .arg(std::process::id().to_string())
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| is_inherited(name)))
            .envs(nccl_settings(network, |name| std::env::var_os(name).is_some()))
            .env(ORDER_VARIABLE, "PCI_BUS_ID")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let stderr = child.stderr.take();
        let group = program.groups.as_ref().and_then(|groups| groups.add(child.id()));
        let mut worker = Self { name: "the worker".to_owned(), child, socket, stderr: None, group };
        if let Some(stderr) = stderr {
            let reader = move || read_lines(stderr, log);
            worker.stderr = Some(std::thread::Builder::new().name("worker-stderr".into()).spawn(reader)?);
        }
        Ok(worker)
    }

    /// The same worker, which errors call `name`.
    #[must_use]
    pub(crate) fn named(mut self, name: String) -> Self {
        self.name = name;
        self
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Limits the memory of the worker, which needs `planned_bytes`, to far above that, where it has a control group.
    pub(crate) fn limit_memory(&self, planned_bytes: u64) {
        if let Some(group) = &self.group {
            group.limit_memory(planned_bytes);
        }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// When the worker does not accept it because it is dead or dying.
    pub(crate) fn send(&mut self, message: &ToWorker) -> Result<(), MessageError> {
        messages::send(&mut self.socket, message)
    }

    /// Sends the worker a ring's descriptors.
    ///
    /// # Errors
    /// As for [`WorkerProcess::send`].
    pub(crate) fn send_ring(&mut self, ring: HandOff) -> Result<(), RingError> {
        ring.send(&self.socket)
    }

    /// Sends the worker the file of its flight record, which follows [`ToWorker::Connect`].
    ///
    /// # Errors
    /// As for [`WorkerProcess::send`].
    pub(crate) fn send_record(&self, record: BorrowedFd<'_>) -> Result<(), DescriptorError> {
        descriptors::send(&self.socket, RECORD_GREETING, [record])
    }

    /// Sends the files of the job's images, which follow the assignment.
    ///
    /// # Errors
    /// As for [`WorkerProcess::send`].
    pub(crate) fn send_images(&self, images: [BorrowedFd<'_>; 2]) -> Result<(), DescriptorError> {
        descriptors::send(&self.socket, IMAGES_GREETING, images)
    }

    /// Sends a connection for objects, which follows the images.
    ///
    /// # Errors
    /// As for [`WorkerProcess::send`].
    pub(crate) fn send_objects(&self, connection: BorrowedFd<'_>) -> Result<(), DescriptorError> {
        descriptors::send(&self.socket, OBJECTS_GREETING, [connection])
    }

    /// Reads the worker's messages on a new thread and passes each to `receive` until it returns false or the
    /// worker closes its socket. Then calls `closed`.
    ///
    /// # Errors
    /// When the system cannot duplicate the socket or start a thread.
    pub(crate) fn listen(
        &self,
        mut receive: impl FnMut(FromWorker) -> bool + Send + 'static,
        closed: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let mut socket = self.socket.try_clone()?;
        std::thread::Builder::new().name("worker-messages".into()).spawn(move || {
            loop {
                match messages::receive(&mut socket) {
                    Ok(Some(message)) => {
                        if !receive(message) {
                            break;
                        }
                    }
                    Ok(None) => break,
                    Err(error) => {
                        // A truncated message is part of a crash; the exit status says more.
                        tracing::debug!(%error, "cannot receive from a worker");
                        break;
                    }
                }
            }
            closed();
        })
    }

    /// Waits for the worker to exit, and kills it after `limit`.
    pub(crate) fn wait(mut self, limit: Duration) -> io::Result<WorkerExit> {
        self.wait_for_exit(limit)
    }

    /// As [`WorkerProcess::wait`]. Only the first call has what the worker wrote to standard error.
    pub(crate) fn wait_for_exit(&mut self, limit: Duration) -> io::Result<WorkerExit> {
        let deadline = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() >= deadline {
                self.child.kill()?;
                break self.child.wait()?;
            }
            std::thread::sleep(EXIT_POLL_INTERVAL);
        };
        // A process that the worker left behind may hold its standard error open.
        self.group = None;
        let stderr = self.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        Ok(WorkerExit { name: self.name.clone(), status, stderr })
    }

    /// Kills the worker, without waiting for its end.
    pub(crate) fn kill(&mut self) {
        // Fails only if it has exited.
        let _ = self.child.kill();
    }
}

/// Whether a worker inherits the variable `name`.
fn is_inherited(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| {
        let has_prefix = WORKER_VARIABLE_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        (has_prefix && !NCCL_REFUSED_VARIABLES.contains(&name)) || WORKER_VARIABLES.contains(&name)
    })
}

/// Settings of NCCL that a worker gets in place of the daemon's, whose environment `has` variables. Sums in NVSwitches would change
/// their order from run to run (NCCL's issue 1497). Without a `network`, nothing listens on the networks of this host.
fn nccl_settings(network: Option<&str>, has: impl Fn(&str) -> bool) -> Vec<(&'static str, String)> {
    let mut settings = vec![
        ("NCCL_NVLS_ENABLE", "0".to_owned()),
        (NCCL_INTERFACES, format!("={}", network.unwrap_or("lo"))),
    ];
    if network.is_some() && !NCCL_NETWORK_VARIABLES.into_iter().any(has) {
        settings.push((NCCL_NETWORK, NCCL_SOCKETS.to_owned()));
    }
    settings
}

impl WorkerExit {
    /// Whether the worker ran out of host memory: it aborted after a refused allocation, or the kernel's OOM
    /// killer killed it. `oom_killer_ran` is whether the OOM killer killed any process during the worker's
    /// life. If that is unknown, a SIGKILL counts as the OOM killer's if `is_likely`.
    pub(crate) fn is_out_of_memory(&self, oom_killer_ran: Option<bool>, is_likely: bool) -> bool {
        match self.status.signal().and_then(Signal::from_named_raw) {
            Some(Signal::ABORT) => self.stderr.allocation_failed,
            Some(Signal::KILL) => oom_killer_ran.unwrap_or(is_likely),
            _ => false,
        }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // Usually reaped already. If not, neither call can fail in a way that matters.
        let _ = self.socket.shutdown(Shutdown::Both);
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.group = None;
        if let Some(thread) = self.stderr.take() {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Display for WorkerExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        match (self.status.signal(), self.status.code()) {
            (Some(signal), _) => write!(f, " was killed by signal {signal}{}", describe_signal(signal))?,
            (None, Some(code)) => write!(f, " exited with status {code}")?,
            (None, None) => write!(f, " ended")?,
        }
        let lines: Vec<&str> = self.stderr.lines.iter().map(String::as_str).collect();
        if !lines.is_empty() {
            write!(f, ": {}", lines.join(" | "))?;
        }
        Ok(())
    }
}

fn describe_signal(signal: i32) -> String {
    match signal_name(signal) {
        Some("SIGKILL") => " (SIGKILL: sent by a user, or by the kernel's OOM killer)".to_owned(),
        Some(name) => format!(" ({name})"),
        None => String::new(),
    }
}

/// Passes each line to `log`, and returns the last ones at the end of the stream.
fn read_lines(stderr: ChildStderr, mut log: impl FnMut(&str)) -> StderrTail {
    let mut reader = BufReader::new(stderr);
    let mut last = StderrTail::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
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
        last.allocation_failed |= text.starts_with(ALLOCATION_FAILED);
        if last.lines.len() == TAIL_LINES {
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
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Serializes writing and spawning scripts: a program that one thread writes while another forks is busy
    /// until the other's child has called `exec`.
    static SCRIPT_LOCK: Mutex<()> = Mutex::new(());

    /// Starts a shell script as the worker.
    fn start(directory: &Path, text: &str, log: impl FnMut(&str) + Send + 'static) -> WorkerProcess {
        let _alone = SCRIPT_LOCK.lock().unwrap();
        let path = directory.join("worker.sh");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        WorkerProcess::spawn(&path.into(), None, log).unwrap()
    }

    fn exit_of(text: &str, limit: Duration) -> (String, Vec<String>) {
        let directory = tempfile::tempdir().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&lines);
        let worker = start(directory.path(), text, move |line| log.lock().unwrap().push(line.into()));
        let exit = worker.wait(limit).unwrap();
        let lines = lines.lock().unwrap().clone();
        (exit.to_string(), lines)
    }

    #[test]
    fn an_exit_reports_the_status_and_the_last_lines() {
        let minute = Duration::from_secs(60);
        let (exit, lines) = exit_of("for i in 1 2 3 4 5 6 7; do echo line $i >&2; done; exit 3", minute);
        assert_eq!(exit, "the worker exited with status 3: line 3 | line 4 | line 5 | line 6 | line 7");
        assert_eq!(lines.len(), 7);
        let (exit, _) = exit_of("kill -SEGV $$", minute);
        assert_eq!(exit, "the worker was killed by signal 11 (SIGSEGV)");
        assert_eq!(exit_of("exit 0", minute).0, "the worker exited with status 0");
    }

    #[test]
    fn out_of_memory_is_distinguished_from_other_exits() {
        let out_of_memory = |text: &str, oom_killer_ran, is_likely| {
            let directory = tempfile::tempdir().unwrap();
            let exit = start(directory.path(), text, |_| {}).wait(Duration::from_secs(60)).unwrap();
            exit.is_out_of_memory(oom_killer_ran, is_likely)
        };
        let refused = "echo memory allocation of 64 bytes failed >&2; kill -ABRT $$";
        assert!(out_of_memory(refused, Some(false), false));
        let traced = "echo memory allocation of 64 bytes failed >&2; seq 20 >&2; kill -ABRT $$";
        assert!(out_of_memory(traced, Some(false), false));
        assert!(!out_of_memory("echo another reason >&2; kill -ABRT $$", Some(true), true));
        assert!(!out_of_memory("kill -SEGV $$", Some(true), true));
        assert!(!out_of_memory("echo memory allocation of 64 bytes failed >&2; exit 1", Some(true), true));
        let killed = [(Some(true), false), (Some(false), true), (None, true), (None, false)];
        let killed = killed
            .map(|(oom_killer_ran, is_likely)| out_of_memory("kill -KILL $$", oom_killer_ran, is_likely));
        assert_eq!(killed, [true, false, true, false]);
    }

    #[test]
    fn a_worker_inherits_no_secret() {
        let inherits = |name: &str| is_inherited(OsStr::new(name));
        assert!(["PATH", "CUDA_VISIBLE_DEVICES", "MILLSTREAM_LOG", "LC_ALL"].into_iter().all(inherits));
        for secret in [
            "AWS_SECRET_ACCESS_KEY",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "AZURE_STORAGE_KEY",
            "PATH2",
            "DB_PASSWORD",
            "NCCL_COMM_ID",
            "NCCL_COMM_BLOCKING",
        ] {
            assert!(!inherits(secret), "{secret}");
        }
        // Cargo sets this one for tests.
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        let (_, lines) = exit_of("env >&2", Duration::from_secs(60));
        assert!(lines.iter().any(|line| line.starts_with("PATH=")), "{lines:?}");
        assert!(!lines.iter().any(|line| line.starts_with("CARGO_")), "{lines:?}");
        for setting in ["NCCL_NVLS_ENABLE=0", "NCCL_SOCKET_IFNAME==lo"] {
            assert!(lines.iter().any(|line| line == setting), "{setting}: {lines:?}");
        }
    }

    #[test]
    fn nccl_listens_on_the_network_for_data_only() {
        let settings = |network, has: &[&str]| nccl_settings(network, |name| has.contains(&name));
        let owned = |settings: &[(&'static str, &str)]| -> Vec<_> {
            settings.iter().map(|&(name, value)| (name, value.to_owned())).collect()
        };
        let [switches, here] = [("NCCL_NVLS_ENABLE", "0"), ("NCCL_SOCKET_IFNAME", "=lo")];
        assert_eq!(settings(None, &[]), owned(&[switches, here]));
        let there = ("NCCL_SOCKET_IFNAME", "=eth1,eth2");
        assert_eq!(
            settings(Some("eth1,eth2"), &["NCCL_DEBUG"]),
            owned(&[switches, there, ("NCCL_NET", "Socket")])
        );
        for chosen in ["NCCL_NET", "NCCL_IB_HCA", "NCCL_NET_PLUGIN"] {
            assert_eq!(settings(Some("eth1,eth2"), &[chosen]), owned(&[switches, there]), "{chosen}");
        }
    }

    #[test]
    fn a_worker_that_does_not_exit_is_killed() {
        let began = Instant::now();
        let (exit, _) = exit_of("exec sleep 600", Duration::from_millis(50));
        assert!(exit.contains("signal 9"), "{exit}");
        assert!(began.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn dropping_a_worker_kills_it() {
        let directory = tempfile::tempdir().unwrap();
        let worker = start(directory.path(), "exec sleep 600", |_| {});
        let process = PathBuf::from(format!("/proc/{}", worker.pid()));
        assert!(process.exists());
        drop(worker);
        assert!(!process.exists());
    }

    #[test]
    fn messages_arrive_in_order_and_closing_comes_last() {
        let directory = tempfile::tempdir().unwrap();
        let done = FromWorker::Done { step: 0, stopped_early: None };
        let mut frame = Vec::new();
        messages::send(&mut frame, &done).unwrap();
        std::fs::write(directory.path().join("frame"), &frame).unwrap();
        let text = format!("cd {}; cat frame frame >&0; head -c 3 frame >&0", directory.path().display());
        let worker = start(directory.path(), &text, |_| {});
        let (sender, receiver) = std::sync::mpsc::channel();
        let end = sender.clone();
        let listener = worker
            .listen(move |message| sender.send(Some(message)).is_ok(), move || end.send(None).unwrap())
            .unwrap();
        let received: Vec<_> = receiver.iter().collect();
        assert_eq!(received, [Some(done.clone()), Some(done), None]);
        listener.join().unwrap();
        assert!(worker.wait(Duration::from_secs(60)).is_ok());
    }

    #[test]
    fn long_lines_are_split() {
        let (_, lines) = exit_of("head -c 10000 /dev/zero | tr '\\0' x >&2; exit 0", Duration::from_secs(60));
        assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [4096, 4096, 1808]);
    }
}
