//! The rank's end of a feed.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_batch::messages::MessageError;
use millstream_batch::{Consumer, Lease, RingError, RingMapping, messages};

use crate::death;
use crate::error::{Error, HostKind};
use crate::machines::Machine;
use crate::protocol::{Attach, Attached, FromHost, GREETING, ToHost};

/// How long the host may take to say why a feed has ended.
const REASON_TIMEOUT: Duration = Duration::from_secs(2);

/// A rank that has asked for a feed, and waits for the others and for the data to be opened.
pub struct Attaching {
    socket: UnixStream,
    host: HostKind,
}

/// A feed to which this rank is attached. Dropping it leaves the feed.
pub struct FeedClient {
    connection: Arc<Connection>,
    ring: Consumer,
    attached: Attached,
    has_ended: bool,
    /// The number of the last evaluation that was requested.
    evaluation: u32,
    /// The process that attached. A child that it forks has a copy of this value, and must not leave the feed.
    process: u32,
}

/// A pass over held-out data.
pub struct Evaluation {
    connection: Arc<Connection>,
    ring: Consumer,
    number: u32,
    identity: String,
}

/// The connection to the host.
struct Connection {
    socket: UnixStream,
    host: HostKind,
    /// Why the feed has ended early, once the host has said so.
    end: Mutex<Option<FromHost>>,
}

/// The result of waiting for a batch.
pub enum Next {
    /// A batch.
    Batch(Lease),
    /// There are no more.
    End,
    /// It has not arrived within the time to wait.
    NotYet,
}

impl Attaching {
    /// Asks the host at the other end of `socket`, which is of this kind, for a feed.
    ///
    /// # Errors
    /// The host is gone.
    pub fn start(mut socket: UnixStream, host: HostKind, attach: &Attach) -> Result<Self, Error> {
        socket.write_all(&GREETING).map_err(|_| Error::HostGone(host))?;
        messages::send(&mut socket, attach)?;
        Ok(Self { socket, host })
    }

    /// Waits at most `limit` until the feed is open; returns itself if it is not.
    ///
    /// # Errors
    /// The host cannot open the feed, or other ranks ask for another one.
    pub fn wait(self, limit: Duration) -> Result<Result<FeedClient, Self>, Error> {
        let Self { socket, host } = self;
        if !death::wait_for(&socket, limit)? {
            return Ok(Err(Self { socket, host }));
        }
        match receive(&socket, host)? {
            FromHost::Attached(attached) => {
                let ring = Consumer::receive(&socket, &attached.schema)?;
                let connection = Arc::new(Connection { socket, host, end: Mutex::default() });
                let process = std::process::id();
                Ok(Ok(FeedClient { connection, ring, attached, has_ended: false, evaluation: 0, process }))
            }
            other => Err(reason(other)),
        }
    }
}

impl FeedClient {
    /// What the host has said of the feed.
    pub fn attached(&self) -> &Attached {
        &self.attached
    }

    /// The memory of the ring.
    pub fn mapping(&self) -> RingMapping {
        self.ring.mapping()
    }

    /// Waits at most `limit` for the next batch. If one is ready this makes no system call.
    ///
    /// # Errors
    /// The feed has ended early: a bad record, storage that failed, another rank that is gone.
    pub fn next(&mut self, limit: Duration) -> Result<Next, Error> {
        if self.has_ended {
            return Ok(Next::End);
        }
        match next(&mut self.ring, limit) {
            Ok(Next::End) => {
                self.has_ended = true;
                // The host may have ended already.
                let _ = self.connection.send(&ToHost::Finished);
                Ok(Next::End)
            }
            Err(RingError::PeerGone) => Err(self.connection.reason(None)),
            other => Ok(other?),
        }
    }

    /// Sends the host the list of all machines. It waits for that if it reads a shard.
    ///
    /// # Errors
    /// The host is gone.
    pub fn meet(&self, machines: Vec<Machine>) -> Result<(), Error> {
        self.connection.send(&ToHost::Meet { machines }).map_err(|_| self.connection.reason(None))
    }

    /// Asks for a pass over the held-out data `name`. The other ranks must ask for the same.
    ///
    /// # Errors
    /// The host is gone.
    pub fn request_evaluation(&mut self, name: &str) -> Result<(), Error> {
        self.evaluation += 1;
        let request = ToHost::Evaluate { name: name.to_owned(), number: self.evaluation };
        self.connection.send(&request).map_err(|_| self.connection.reason(None))
    }

    /// Waits at most `limit` for the evaluation that was requested last; `None` if it has not begun.
    ///
    /// # Errors
    /// The data cannot be opened, the other ranks ask for other data, or the feed has ended.
    pub fn wait_for_evaluation(&mut self, limit: Duration) -> Result<Option<Evaluation>, Error> {
        let socket = &self.connection.socket;
        if !death::wait_for(socket, limit)? {
            return Ok(None);
        }
        match receive(socket, self.connection.host)? {
            FromHost::EvalRing { number, schema, identity } => {
                let ring = Consumer::receive(socket, &schema)?;
                let connection = Arc::clone(&self.connection);
                // One that is not wanted any more ends here.
                Ok((number == self.evaluation).then(|| Evaluation { connection, ring, number, identity }))
            }
            FromHost::EvalFailed { number, .. } if number != self.evaluation => Ok(None),
            FromHost::EvalFailed { message, .. } => Err(Error::Failed(message)),
            other => Err(self.connection.ends(other)),
        }
    }
}

impl Drop for FeedClient {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // Children may have copies of the descriptor, which would keep the connection open.
            let _ = self.connection.socket.shutdown(Shutdown::Both);
        }
    }
}

impl Evaluation {
    /// A hash that all machines whose ranks evaluate together must have.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The slots of its ring.
    pub fn slots(&self) -> usize {
        self.ring.slots()
    }

    /// The memory of its ring.
    pub fn mapping(&self) -> RingMapping {
        self.ring.mapping()
    }

    /// Waits at most `limit` for the next batch.
    ///
    /// # Errors
    /// The evaluation has ended early.
    pub fn next(&mut self, limit: Duration) -> Result<Next, Error> {
        match next(&mut self.ring, limit) {
            Err(RingError::PeerGone) => Err(self.connection.reason(Some(self.number))),
            other => Ok(other?),
        }
    }
}

impl Connection {
    fn send(&self, message: &ToHost) -> Result<(), Error> {
        Ok(messages::send(&mut &self.socket, message)?)
    }

    /// Why the producer of the feed's ring is gone, or of that of an evaluation.
    fn reason(&self, evaluation: Option<u32>) -> Error {
        if let Some(end) = &*self.end() {
            return reason(end.clone());
        }
        while death::wait_for(&self.socket, REASON_TIMEOUT).unwrap_or(false) {
            match receive(&self.socket, self.host) {
                Ok(FromHost::EvalRing { schema, .. }) => drop(Consumer::receive(&self.socket, &schema)),
                Ok(FromHost::EvalFailed { number, message }) => {
                    if Some(number) == evaluation {
                        return Error::Failed(message);
                    }
                }
                Ok(end) => return self.ends(end),
                Err(error) => return error,
            }
        }
        match evaluation {
            Some(_) => Error::Failed(
                "the evaluation has ended early: another rank has left it, or this one has begun another"
                    .to_owned(),
            ),
            None => Error::HostGone(self.host),
        }
    }

    /// Notes that the feed has ended early.
    fn ends(&self, end: FromHost) -> Error {
        *self.end() = Some(end.clone());
        reason(end)
    }

    fn end(&self) -> MutexGuard<'_, Option<FromHost>> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn next(ring: &mut Consumer, limit: Duration) -> Result<Next, RingError> {
    if !ring.wait(limit)? {
        return Ok(Next::NotYet);
    }
    Ok(ring.next()?.map_or(Next::End, Next::Batch))
}

fn receive(mut socket: &UnixStream, host: HostKind) -> Result<FromHost, Error> {
    match messages::receive(&mut socket) {
        Ok(message) => message.ok_or(Error::HostGone(host)),
        Err(MessageError::Io(_)) => Err(Error::HostGone(host)),
        Err(error) => Err(error.into()),
    }
}

/// The error of a message that ends a feed.
fn reason(message: FromHost) -> Error {
    match message {
        FromHost::Failed { message } | FromHost::EvalFailed { message, .. } => Error::Failed(message),
        FromHost::Lost { rank, why } => Error::RankLost { rank, why },
        FromHost::Attached(_) | FromHost::EvalRing { .. } => {
            Error::Failed("the host has sent a ring that was not requested".to_owned())
        }
    }
}
