//! The host of feeds: reads data for the ranks that attach.
//!
//! One thread accepts connections. The ranks of a run gather in a thread ([`gathering`]), which then runs their session
//! ([`session`]): it waits for what the ranks ask for, and for the death of one.

mod gathering;
mod session;

use std::collections::HashMap;
use std::io::Read;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use millstream_batch::messages;
use millstream_io::storage::Stores;
use tokio::runtime::Handle;

use crate::Error;
use crate::death::{self, Process};
use crate::protocol::{Attach, FromHost, GREETING, VERSION};

/// How long a connection may take to send its first message, and the host to send one.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the first rank of a run waits for the others, unless a host says otherwise.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often the host looks whether it is idle.
const IDLE_CHECK: Duration = Duration::from_millis(200);

/// A host of feeds. Clones are the same one.
#[derive(Clone)]
pub struct Host(Arc<Shared>);

struct Shared {
    stores: Stores,
    runtime: Handle,
    /// How long the first rank of a run waits for the others.
    patience: Duration,
    /// The runs whose ranks gather, with the way into the thread in which they do.
    gatherings: Mutex<HashMap<String, Sender<Member>>>,
}

/// A rank that has attached.
struct Member {
    attach: Attach,
    socket: UnixStream,
    process: Process,
}

impl Host {
    /// A host that reads with `stores`, on `runtime`.
    pub fn new(stores: Stores, runtime: Handle) -> Self {
        Self(Arc::new(Shared { stores, runtime, patience: PATIENCE, gatherings: Mutex::default() }))
    }

    /// The same host, whose ranks wait for the others of their run at most this long.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        let Shared { stores, runtime, .. } = &*self.0;
        let (stores, runtime) = (stores.clone(), runtime.clone());
        Self(Arc::new(Shared { stores, runtime, patience, gatherings: Mutex::default() }))
    }

    /// Accepts ranks of this user, until there have been none for `idle`.
    ///
    /// # Errors
    /// The listener cannot be waited for.
    pub fn serve(&self, listener: &UnixListener, idle: Duration) -> Result<(), Error> {
        let user = rustix::process::getuid().as_raw();
        let mut active = Instant::now();
        while active.elapsed() < idle {
            if self.is_active() {
                active = Instant::now();
            }
            if !death::wait_for(listener, IDLE_CHECK.min(idle))? {
                continue;
            }
            // Sessions continue while the system has no descriptor, memory or thread for another rank.
            let accepted = listener.accept().and_then(|(socket, _)| Ok((Process::of(&socket)?, socket)));
            let Ok((process, socket)) = accepted else {
                thread::sleep(IDLE_CHECK);
                continue;
            };
            // The socket may have a name that every user of the machine can connect to.
            if process.user() != user {
                continue;
            }
            active = Instant::now();
            let this = self.clone();
            let admit = move || this.admit(socket, process);
            // If there is no thread, the connection is closed, which the rank notices.
            let _ = thread::Builder::new().name("feed-attach".to_owned()).spawn(admit);
        }
        Ok(())
    }

    /// Whether some rank is attached, attaches, or has a connection.
    fn is_active(&self) -> bool {
        // Every thread of the host has a clone.
        Arc::strong_count(&self.0) > 1
    }

    /// Reads the first message of a connection, and lets the rank gather with the others of its run.
    fn admit(&self, socket: UnixStream, process: Process) {
        match read_attach(&socket) {
            Ok(Some(attach)) => self.join(Member { attach, socket, process }),
            // It was closed before it said anything.
            Ok(None) => {}
            Err(error) => refuse(&socket, &error.to_string()),
        }
    }

    /// Lets `member` gather with the others of its run.
    fn join(&self, member: Member) {
        let mut gatherings = self.gatherings();
        let run = member.attach.run.clone();
        let first = match gatherings.get(&run) {
            // A gathering removes itself, under the lock, before it drops the receiver.
            Some(gathering) => gathering.send(member).err().map(|SendError(member)| member),
            None => Some(member),
        };
        let Some(first) = first else { return };
        let (sender, others) = channel();
        gatherings.insert(run, sender);
        drop(gatherings);
        let this = self.clone();
        // Dropping the member closes its connection.
        let _ = thread::Builder::new()
            .name("feed-session".to_owned())
            .spawn(move || gathering::run(&this, first, others));
    }

    /// Ends the gathering of `run`: ranks that attach from now on begin another one. Returns those that came too late.
    fn close(&self, run: &str, others: &Receiver<Member>) -> Vec<Member> {
        let mut gatherings = self.gatherings();
        gatherings.remove(run);
        others.try_iter().collect()
    }

    fn gatherings(&self) -> MutexGuard<'_, HashMap<String, Sender<Member>>> {
        self.0.gatherings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Member {
    fn rank(&self) -> u32 {
        self.attach.rank
    }

    /// Whether its process has ended, or has closed the connection. It sends nothing before it is attached.
    fn is_gone(&self) -> bool {
        self.process.has_ended() || death::wait_for(&self.socket, Duration::ZERO).unwrap_or(true)
    }

    fn send(&self, message: &FromHost) -> Result<(), Error> {
        Ok(messages::send(&mut &self.socket, message)?)
    }
}

/// Reads the first message. `None` at an end of file.
fn read_attach(mut socket: &UnixStream) -> Result<Option<Attach>, Error> {
    socket.set_read_timeout(Some(MESSAGE_TIMEOUT))?;
    socket.set_write_timeout(Some(MESSAGE_TIMEOUT))?;
    let mut greeting = [0; GREETING.len()];
    if socket.read_exact(&mut greeting).is_err() || greeting != GREETING {
        return Ok(None);
    }
    let Some(attach) = messages::receive::<Attach>(&mut socket)? else { return Ok(None) };
    let Attach { version, rank, world, .. } = attach;
    if version != VERSION {
        let message =
            format!("the program speaks version {version} of the protocol of feeds, the host {VERSION}");
        return Err(Error::Failed(message));
    }
    if rank >= world {
        return Err(Error::Failed(format!("rank {rank} of {world}: ranks are counted from 0")));
    }
    Ok(Some(attach))
}

/// Sends a rank the reason why it cannot have the feed. It may be gone.
fn refuse(mut socket: &UnixStream, message: &str) {
    let _ = messages::send(&mut socket, &FromHost::Failed { message: message.to_owned() });
}
