//! Priorities of threads: jobs come before the answers to requests.

use std::io;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use rustix::process::setpriority_process;
use rustix::thread::gettid;
use rustix::time::{ClockId, clock_gettime};

/// The niceness of a thread. Its weight, relative to that of a job's thread, is its share of a core on which both compute
/// (`sched_prio_to_weight` in Linux); of an idle core it gets all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Niceness {
    /// Weight 36 of 1024: a thread of which there is one, such as the one that reads requests.
    OfOne = 15,
    /// Weight 18 of 1024: each of several threads that do the work of requests.
    OfSeveral = 18,
}

/// Lowers the priority of the calling thread, and of those that it starts, below that of jobs.
pub(crate) fn yield_to_jobs(niceness: Niceness) {
    if let Err(error) = setpriority_process(Some(gettid()), niceness as i32) {
        tracing::warn!(%error, "requests have the same priority as jobs");
    }
}

/// The processor time that the calling thread has used.
pub(crate) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Starts threads with the priority of the thread that created it.
///
/// A new thread or process inherits the niceness of the thread that starts it, and only a privileged one can lower it
/// again. So a thread that answers a request cannot start a job by itself.
#[derive(Clone, Debug)]
pub(crate) struct Launcher(Sender<Launch>);

struct Launch {
    name: String,
    work: Box<dyn FnOnce() + Send>,
    started: SyncSender<io::Result<()>>,
}

impl Launcher {
    /// # Errors
    /// When the system refuses a thread.
    pub(crate) fn start() -> io::Result<Self> {
        let (launches, requested) = channel::<Launch>();
        Builder::new().name("launcher".into()).spawn(move || {
            for Launch { name, work, started } in requested {
                // The caller waits for it.
                let _ = started.send(Builder::new().name(name).spawn(work).map(drop));
            }
        })?;
        Ok(Self(launches))
    }

    /// Runs `work` in a new thread.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub(crate) fn spawn(&self, name: String, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let (started, answer) = sync_channel(1);
        let gone = || io::Error::other("the thread that starts others has ended");
        self.0.send(Launch { name, work: Box::new(work), started }).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())?
    }
}
