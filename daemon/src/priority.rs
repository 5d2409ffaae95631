//! Priorities of threads: jobs come before the answers to requests.

use std::io;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread::Builder;

use rustix::process::setpriority_process;
use rustix::thread::gettid;

/// The niceness of the threads that answer requests. Where clients ask more than there are cores for, such a thread gets
/// about 3 % of a busy core; of an idle one it gets all.
const NICENESS: i32 = 15;

/// Lets the calling thread, and those that it starts, yield to those of jobs.
pub(crate) fn yield_to_jobs() {
    if let Err(error) = setpriority_process(Some(gettid()), NICENESS) {
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
