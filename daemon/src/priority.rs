//! Priorities of threads: jobs come before the answers to requests.

use std::io;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread::Builder;

use rustix::process::setpriority_process;
use rustix::thread::gettid;

/// How far a thread yields to those of jobs, as its niceness. Where clients ask more than there are cores for, the niceness
/// determines what each such thread gets of a core that a job keeps busy; of an idle one it gets all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Yields {
    /// About 7 %: the one thread that accepts connections and reads requests.
    ToJobs = 12,
    /// About 2 %: each of the threads that do the work of requests, of which there are several.
    ToAll = 18,
}

/// Lets the calling thread, and those that it starts, yield.
pub(crate) fn yield_to_jobs(how: Yields) {
    if let Err(error) = setpriority_process(Some(gettid()), how as i32) {
        tracing::warn!(%error, "requests have the same priority as jobs");
    }
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
