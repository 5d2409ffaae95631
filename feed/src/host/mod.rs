//! The host of feeds: reads data for the ranks that attach.
//!
//! One thread accepts connections. The ranks of a run gather in a thread ([`gathering`]), which then runs their session
//! ([`session`]): it waits for what the ranks ask for, and for the death of one. Runs of different users never gather
//! together.
//!
//! The connections and the memory of all feeds ([`budget`]) have bounds.

mod budget;
mod gathering;
mod open_feeds;
mod session;

use std::collections::HashMap;
use std::io::Read;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use millstream_batch::messages;
use millstream_io::storage::Stores;
use tokio::runtime::Handle;

use self::budget::Budget;
use self::open_feeds::OpenFeeds;
use crate::Error;
use crate::access::{Access, Admission, Refusal};
use crate::death::{self, Process};
use crate::protocol::{Attach, FromHost, GREETING, VERSION};

pub use self::open_feeds::{Delivered, FeedStatus, HostStatus};

/// How long a connection may take to send its first message, and the host to send one.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the first rank of a run waits for the others, unless a host says otherwise.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often the host looks whether it is idle or ends.
const IDLE_CHECK: Duration = Duration::from_millis(200);

/// The maximum number of ranks, attached or attaching. Each has a connection, a pidfd and the descriptors of a ring.
const MAX_RANKS: usize = 512;

/// The maximum number of connections that are being refused. Every user of the machine may connect.
const MAX_REFUSALS: usize = 8;

/// How long a process that is refused may take to read the reason.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);

/// A host of feeds. Clones are the same one.
#[derive(Clone)]
pub struct Host(Arc<Shared>);

struct Shared {
    stores: Stores,
    runtime: Handle,
    /// How long the first rank of a run waits for the others.
    patience: Duration,
    /// The runs whose ranks gather, with the way into the thread in which they do.
    gatherings: Mutex<HashMap<Run, Sender<Member>>>,
    /// The memory of all feeds.
    budget: Arc<Budget>,
    feeds: Arc<OpenFeeds>,
    /// Why the host ends, once it does.
    end: OnceLock<String>,
    /// Each connection of a rank has a clone.
    ranks: Arc<()>,
    /// Each connection that is refused has a clone.
    refusals: Arc<()>,
}

/// Names a program whose ranks belong together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Run {
    user: u32,
    name: String,
}

/// A rank that has attached.
struct Member {
    attach: Attach,
    socket: UnixStream,
    process: Process,
    access: Arc<dyn Access>,
    /// Its place among the connections.
    _place: Arc<()>,
}

impl Host {
    /// A host that reads with `stores`, on `runtime`. Its feeds may use any amount of memory.
    pub fn new(stores: &Stores, runtime: Handle) -> Self {
        Self(Arc::new(Shared {
            // Cancelled when the host ends.
            stores: stores.for_job(&Default::default()),
            runtime,
            patience: PATIENCE,
            gatherings: Mutex::default(),
            budget: Arc::new(Budget::new(u64::MAX)),
            feeds: Arc::default(),
            end: OnceLock::new(),
            ranks: Arc::default(),
            refusals: Arc::default(),
        }))
    }

    /// A host as this one, without its feeds, whose ranks wait for the others of their run at most this long.
    #[must_use]
    pub fn with_patience(&self, patience: Duration) -> Self {
        let mut shared = Self::new(&self.0.stores, self.0.runtime.clone()).0;
        if let Some(shared) = Arc::get_mut(&mut shared) {
            shared.patience = patience;
        }
        Self(shared)
    }

    /// Bounds the memory of all feeds together, by the sum of their memory budgets. Open feeds stay open.
    pub fn set_memory(&self, bytes: u64) {
        self.0.budget.set_limit(bytes);
    }

    /// What it does now.
    pub fn status(&self) -> HostStatus {
        let Shared { feeds, budget, .. } = &*self.0;
        HostStatus { reserved_bytes: budget.reserved(), memory_bytes: budget.limit(), ..feeds.status() }
    }

    /// Accepts the ranks that `admission` admits, until the host is closed, or there have been none for `idle` if it is given.
    ///
    /// # Errors
    /// The listener cannot be waited for.
    pub fn serve(
        &self,
        listener: &UnixListener,
        admission: &dyn Admission,
        idle: Option<Duration>,
    ) -> Result<(), Error> {
        let mut active = Instant::now();
        let check = idle.map_or(IDLE_CHECK, |idle| IDLE_CHECK.min(idle));
        while self.end().is_none() && idle.is_none_or(|idle| active.elapsed() < idle) {
            if self.is_active() {
                active = Instant::now();
            }
            if !death::wait_for(listener, check)? {
                continue;
            }
            // Sessions continue while the system has no descriptor, memory or thread for another rank.
            let accepted = listener.accept().and_then(|(socket, _)| Ok((Process::of(&socket)?, socket)));
            let Ok((process, socket)) = accepted else {
                thread::sleep(IDLE_CHECK);
                continue;
            };
            match admission.admit(&socket) {
                Ok(access) => {
                    active = Instant::now();
                    self.receive(socket, process, access);
                }
                Err(Refusal { message }) => self.turn_away(socket, message),
            }
        }
        Ok(())
    }

    /// Ends all feeds: their ranks get the reason `why`. Further ranks are refused. Returns once all feeds have ended, after
    /// `limit` at the latest.
    pub fn close(&self, why: &str, limit: Duration) {
        // A second call changes nothing.
        let _ = self.0.end.set(why.to_owned());
        if !self.0.feeds.wait_for_none(limit / 2) {
            // Storage that hangs.
            self.0.stores.cancel();
            self.0.feeds.wait_for_none(limit / 2);
        }
    }

    /// Why the host ends, if it does.
    fn end(&self) -> Option<Error> {
        self.0.end.get().map(|why| Error::Failed(why.clone()))
    }

    /// Whether some rank is attached, attaches, or has a connection.
    fn is_active(&self) -> bool {
        // Every thread of the host has a clone.
        Arc::strong_count(&self.0) > 1
    }

    /// Receives the first message of a connection in a thread, and lets the rank gather with the others of its run.
    fn receive(&self, socket: UnixStream, process: Process, access: Arc<dyn Access>) {
        let place = Arc::clone(&self.0.ranks);
        if Arc::strong_count(&place) > MAX_RANKS + 1 {
            let message = format!("{MAX_RANKS} ranks are attached already; try again when some have left");
            return self.turn_away(socket, Some(message));
        }
        let this = self.clone();
        let receive = move || match read_attach(&socket) {
            Ok(Some(attach)) => this.join(Member { attach, socket, process, access, _place: place }),
            // It was closed before it said anything.
            Ok(None) => {}
            Err(error) => refuse(&socket, &error.to_string()),
        };
        // If there is no thread, the connection is closed, which the rank notices.
        let _ = thread::Builder::new().name("feed-attach".to_owned()).spawn(receive);
    }

    /// Sends the process at the other end the reason why it may not attach.
    fn turn_away(&self, socket: UnixStream, message: Option<String>) {
        let place = Arc::clone(&self.0.refusals);
        let Some(message) = message.filter(|_| Arc::strong_count(&place) <= MAX_REFUSALS + 1) else { return };
        let answer = move || {
            let _place = place;
            let _ = socket.set_write_timeout(Some(REFUSAL_TIMEOUT));
            let _ = socket.set_read_timeout(Some(REFUSAL_TIMEOUT));
            refuse(&socket, &message);
            let _ = socket.shutdown(Shutdown::Write);
            // The answer might be lost if the connection were closed before its bytes are read.
            let began = Instant::now();
            let mut discarded = [0; 4096];
            while began.elapsed() < REFUSAL_TIMEOUT
                && (&socket).read(&mut discarded).is_ok_and(|read| read > 0)
            {}
        };
        let _ = thread::Builder::new().name("feed-refusal".to_owned()).spawn(answer);
    }

    /// Lets `member` gather with the others of its run.
    fn join(&self, member: Member) {
        let mut gatherings = self.gatherings();
        let run = member.run();
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
    fn end_gathering(&self, run: &Run, others: &Receiver<Member>) -> Vec<Member> {
        let mut gatherings = self.gatherings();
        gatherings.remove(run);
        others.try_iter().collect()
    }

    fn gatherings(&self) -> MutexGuard<'_, HashMap<Run, Sender<Member>>> {
        self.0.gatherings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Member {
    fn run(&self) -> Run {
        Run { user: self.access.user(), name: self.attach.run.clone() }
    }

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
    let Attach { version, rank, world, local_world, .. } = attach;
    if version != VERSION {
        let message =
            format!("the program speaks version {version} of the protocol of feeds, the host {VERSION}");
        return Err(Error::Failed(message));
    }
    if local_world as usize > MAX_RANKS {
        let message = format!("{local_world} ranks on this machine: a host serves at most {MAX_RANKS}");
        return Err(Error::Failed(message));
    }
    if rank >= world {
        return Err(Error::Failed(format!("rank {rank} of {world}: ranks are counted from 0")));
    }
    if local_world == 0 || local_world > world {
        return Err(Error::Failed(format!("{local_world} ranks on this machine, of {world} in all")));
    }
    Ok(Some(attach))
}

/// Sends a rank the reason why it cannot have the feed. It may be gone.
fn refuse(mut socket: &UnixStream, message: &str) {
    let _ = messages::send(&mut socket, &FromHost::Failed { message: message.to_owned() });
}
