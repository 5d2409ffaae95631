//! The connection between two hosts, which carries the updates of both. Numbers are little-endian.
//!
//! ```text
//! 0 u8, lane u32, length u16, bytes   an update
//! 1 u8, lane u32                      credit for an update of the lane
//! 2 u8                                a heartbeat
//! ```
//!
//! A thread writes what this host sends, and a heartbeat if that is nothing; another reads what arrives. So a machine that
//! vanishes without closing its connections is noticed, too.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use millstream_pipeline::ingest::{Exchange, MAX_ENCODED_BYTES, SendCredit, SendUpdate, Unsent};

/// The reason of a host that has left.
const LEFT: &str = "it has left";

/// How long after the end of the exchange the other host may still send, so that it receives all that was sent to it: a
/// connection that is closed with unread bytes is reset.
const DRAIN: Duration = Duration::from_secs(5);

mod kind {
    pub(super) const UPDATE: u8 = 0;
    pub(super) const CREDIT: u8 = 1;
    pub(super) const HEARTBEAT: u8 = 2;
}

/// When silence means that the other host is gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// The longest time between two messages.
    pub(super) heartbeat: Duration,
    /// After this time without one the other host is gone.
    pub(super) silence: Duration,
    /// The same before the first one: the other host may still wait for other machines.
    pub(super) first: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let [heartbeat, silence, first] = [5, 30, 120].map(Duration::from_secs);
        Self { heartbeat, silence, first }
    }
}

/// A connection to another host that is not yet in use.
pub(super) struct Link {
    socket: TcpStream,
    sender: Sender<Message>,
    messages: Receiver<Message>,
}

/// A message to the other host.
enum Message {
    Update(u32, Vec<u8>),
    Credit(u32),
}

impl Link {
    pub(super) fn new(socket: TcpStream) -> Self {
        // The bound of the exchange limits what it holds.
        let (sender, messages) = channel();
        Self { socket, sender, messages }
    }

    /// Sends updates over it.
    pub(super) fn updates(&self) -> SendUpdate {
        let sender = self.sender.clone();
        Box::new(move |lane, update| {
            sender.send(Message::Update(lane, update.to_vec())).map_err(|_| Unsent::Ended)
        })
    }

    /// Sends credit over it.
    pub(super) fn credits(&self) -> SendCredit {
        let sender = self.sender.clone();
        // A host that is gone needs none.
        Box::new(move |lane| drop(sender.send(Message::Credit(lane))))
    }

    /// Carries the messages of `exchange` to host `from`, and its messages to the exchange, until one of the two leaves.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(super) fn start(self, exchange: &Arc<Exchange>, from: usize, timing: Timing) -> io::Result<()> {
        // The exchange has the only senders, and drops them at its end.
        let Self { socket, messages, .. } = self;
        socket.set_read_timeout(Some(timing.first))?;
        socket.set_write_timeout(Some(timing.silence))?;
        let writing = socket.try_clone()?;
        let of_writing = Arc::clone(exchange);
        let write = move || {
            let how = match write(&writing, &messages, timing.heartbeat) {
                Ok(()) => Shutdown::Write,
                Err(error) => {
                    of_writing.lose(from, &error.to_string());
                    // Ends the thread that reads.
                    Shutdown::Both
                }
            };
            let _ = writing.shutdown(how);
        };
        thread::Builder::new().name("feed-machine-out".to_owned()).spawn(write)?;
        let exchange = Arc::clone(exchange);
        let read = move || {
            let end = read(&socket, &exchange, from, timing);
            exchange.lose(from, &end.err().unwrap_or_else(|| LEFT.to_owned()));
            drain(socket);
        };
        thread::Builder::new().name("feed-machine-in".to_owned()).spawn(read)?;
        Ok(())
    }
}

/// Writes messages until there are no more senders.
fn write(socket: &TcpStream, messages: &Receiver<Message>, heartbeat: Duration) -> io::Result<()> {
    let mut out = BufWriter::new(socket);
    out.write_all(&[kind::HEARTBEAT])?;
    out.flush()?;
    loop {
        let mut next = match messages.recv_timeout(heartbeat) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => {
                out.write_all(&[kind::HEARTBEAT])?;
                None
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        while let Some(message) = next {
            match message {
                Message::Update(lane, bytes) => {
                    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
                    out.write_all(&[kind::UPDATE])?;
                    out.write_all(&lane.to_le_bytes())?;
                    out.write_all(&length.to_le_bytes())?;
                    out.write_all(&bytes)?;
                }
                Message::Credit(lane) => {
                    out.write_all(&[kind::CREDIT])?;
                    out.write_all(&lane.to_le_bytes())?;
                }
            }
            next = messages.try_recv().ok();
        }
        out.flush()?;
    }
}

/// Passes what arrives on to the exchange, until the other host leaves. Returns why it is gone otherwise.
fn read(socket: &TcpStream, exchange: &Exchange, from: usize, timing: Timing) -> Result<(), String> {
    let mut input = BufReader::new(socket);
    let mut limit = timing.first;
    loop {
        let kind = match array(&mut input) {
            Ok([kind]) => kind,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Err(format!("nothing has come from it for {} s", limit.as_secs_f32()));
            }
            Err(error) => return Err(error.to_string()),
        };
        pass_on(kind, &mut input, exchange, from)?;
        if limit != timing.silence {
            limit = timing.silence;
            socket.set_read_timeout(Some(limit)).map_err(|error| error.to_string())?;
        }
    }
}

/// Passes the rest of a message of this kind on to the exchange.
fn pass_on(kind: u8, input: &mut impl Read, exchange: &Exchange, from: usize) -> Result<(), String> {
    let broken = |error: io::Error| error.to_string();
    match kind {
        kind::UPDATE => {
            let lane = u32::from_le_bytes(array(input).map_err(broken)?);
            let length = usize::from(u16::from_le_bytes(array(input).map_err(broken)?));
            if length > MAX_ENCODED_BYTES {
                return Err(format!("an update of {length} bytes"));
            }
            let mut update = vec![0; length];
            input.read_exact(&mut update).map_err(broken)?;
            exchange.arrive(from, lane, update)
        }
        kind::CREDIT => {
            exchange.taken(from, u32::from_le_bytes(array(input).map_err(broken)?));
            Ok(())
        }
        kind::HEARTBEAT => Ok(()),
        other => Err(format!("a message of kind {other}")),
    }
}

/// Reads what the other host still sends.
fn drain(socket: TcpStream) {
    let (began, mut discarded) = (Instant::now(), [0; 4096]);
    let _ = socket.set_read_timeout(Some(DRAIN));
    while began.elapsed() < DRAIN && (&socket).read(&mut discarded).is_ok_and(|read| read > 0) {}
}

fn array<const N: usize>(socket: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    socket.read_exact(&mut bytes)?;
    Ok(bytes)
}
