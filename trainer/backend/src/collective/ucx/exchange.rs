//! One exchange between processes: its messages, and waiting for them without waiting for dead ranks.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::peer::{Link, Peer};
use super::worker::{InFlight, Progress, UcxError};
use super::{Kind, Workers, tag};
use crate::collective::error::CollectiveError;
use crate::collective::memory::Buffer;
use crate::collective::recorder::Recorder;
use crate::collective::transport::{Deadline, Label, Receive};

/// Size of a head, in bytes.
const HEAD_BYTES: usize = Label::BYTES + size_of::<u64>();
/// Data of up to this size travels with the head.
const MOST_INLINE: usize = 4096;

/// How often an idle rank looks for messages before it sleeps.
const SPINS: u32 = 200;
/// How often a rank looks for the last messages of another one that has ended.
const LAST_LOOKS: u32 = 1000;
/// The longest sleep, and the longest time without a look for dead ranks. UCX 1.13 sometimes signals no event for a
/// message, so its events only shorten a sleep.
const SLEEP: Duration = Duration::from_millis(1);

/// One exchange of a rank or a reducer.
pub(super) struct Exchange<'a> {
    pub(super) terms: Cell<Terms>,
    pub(super) flow: Flow,
    /// The ranks or reducers on the other side, and this rank itself if it is one of them.
    pub(super) with: Range<usize>,
    pub(super) rank: usize,
    pub(super) number: u64,
    pub(super) workers: &'a Workers,
    pub(super) recorder: Option<&'a Recorder>,
}

/// What an exchange belongs to, and when it must be complete.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    pub(super) label: Label,
    pub(super) deadline: Deadline,
    /// Whether the others choose: the first message has the label, and begins the time limit.
    pub(super) is_open: bool,
}

/// Where data goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Both,
    Send,
    Receive,
}

/// One exchange with one other rank.
struct Contact<'a> {
    peer: &'a mut Peer,
    sending: Sends,
    receiving: Receiving,
}

/// Messages on their way to a rank.
type Sends = Vec<InFlight<Arc<Buffer>>>;

enum Receiving {
    Head(InFlight<Buffer>),
    Data(InFlight<Buffer>),
    Complete(Buffer),
}

impl Contact<'_> {
    fn is_complete(&self) -> bool {
        self.sending.is_empty() && matches!(self.receiving, Receiving::Complete(_))
    }

    /// The rank and its data, if that is complete.
    fn into_received(self) -> Option<(usize, Buffer)> {
        match self.receiving {
            Receiving::Complete(data) => Some((self.peer.rank, data)),
            Receiving::Head(_) | Receiving::Data(_) => None,
        }
    }
}

impl Exchange<'_> {
    /// Sends `parts` to the others, and returns what they sent, in order; nothing if they choose the terms and all have left.
    pub(super) fn run(
        &self,
        peers: &mut [Option<Peer>],
        parts: Vec<Arc<Buffer>>,
        receive: Receive<'_>,
    ) -> Result<Vec<Buffer>, CollectiveError> {
        let received = self.try_run(peers, parts, receive);
        received.map_err(|error| match error {
            // UCX reports an error if it must attach a segment of a process that has ended, or if a rank of another host has
            // left and closed its connections.
            CollectiveError::Engine { peer, .. }
                if peers[peer].as_mut().is_some_and(|peer| peer.is_gone(self.workers)) =>
            {
                self.absent(vec![peer], Vec::new())
            }
            CollectiveError::Engine { label, peer, reason }
                if peers[peer].as_ref().is_some_and(|peer| matches!(peer.link, Link::Network)) =>
            {
                let reason = format!("{reason}; its process has ended, or its host cannot be reached");
                CollectiveError::Engine { label, peer, reason }
            }
            error => error,
        })
    }

    fn try_run(
        &self,
        peers: &mut [Option<Peer>],
        parts: Vec<Arc<Buffer>>,
        mut receive: Receive<'_>,
    ) -> Result<Vec<Buffer>, CollectiveError> {
        let mut received: Vec<Buffer> = self.with.clone().map(|_| Buffer::default()).collect();
        // Each rank starts with another one, so that not all send to the same one first.
        let (before, after) = peers[self.with.clone()].split_at_mut(self.rank % received.len().max(1));
        let mut contacts = Vec::with_capacity(received.len());
        for peer in after.iter_mut().chain(before).flatten() {
            contacts.push(self.contact(peer, &parts)?);
        }
        drop(parts);
        self.complete(&mut contacts, &mut receive)?;
        for (peer, buffer) in contacts.into_iter().filter_map(Contact::into_received) {
            received[self.place(peer)] = buffer;
        }
        Ok(received)
    }

    /// The place of a rank or reducer among those of the exchange.
    fn place(&self, peer: usize) -> usize {
        peer - self.with.start
    }

    fn label(&self) -> Label {
        self.terms.get().label
    }

    /// Starts to exchange with a rank.
    fn contact<'a>(&self, peer: &'a mut Peer, parts: &[Arc<Buffer>]) -> Result<Contact<'a>, CollectiveError> {
        let start = || -> Result<(Receiving, Sends), UcxError> {
            let receiving = match self.flow {
                Flow::Send => Receiving::Complete(Buffer::default()),
                Flow::Both | Flow::Receive => Receiving::Head(self.expect_head(peer)?),
            };
            let sending = match self.flow {
                Flow::Receive => Vec::new(),
                Flow::Both | Flow::Send => self.send(peer, &parts[self.place(peer.rank)])?,
            };
            Ok((receiving, sending))
        };
        let (receiving, sending) = start().map_err(|error| self.engine(peer.rank, error))?;
        Ok(Contact { peer, sending, receiving })
    }

    /// Starts to receive the head of a rank.
    fn expect_head(&self, peer: &Peer) -> Result<InFlight<Buffer>, UcxError> {
        let expected = Buffer::zeroed(HEAD_BYTES + MOST_INLINE);
        self.workers.of(&peer.link).receive(expected, self.tag(peer.rank, Kind::Head))
    }

    /// Sends a part to a rank. Returns the messages that have not been sent at once.
    fn send(&self, peer: &Peer, part: &Arc<Buffer>) -> Result<Sends, UcxError> {
        let worker = self.workers.of(&peer.link);
        let inline = if part.len() <= MOST_INLINE { &part[..] } else { &[] };
        let mut head = Buffer::zeroed(HEAD_BYTES + inline.len());
        head[..Label::BYTES].copy_from_slice(&self.label().encode());
        head[Label::BYTES..HEAD_BYTES].copy_from_slice(&(part.len() as u64).to_le_bytes());
        head[HEAD_BYTES..].copy_from_slice(inline);
        let data = (part.len() > MOST_INLINE).then(|| (part.clone(), Kind::Data));
        let mut sending = Vec::new();
        for (message, kind) in std::iter::once((Arc::new(head), Kind::Head)).chain(data) {
            match worker.send(&peer.endpoint, message, self.tag(self.rank, kind))? {
                Progress::Open(message) => sending.push(message),
                Progress::Complete(()) => {}
            }
        }
        Ok(sending)
    }

    /// Waits until all contacts are complete, or all have left if they choose the terms.
    fn complete(
        &self,
        contacts: &mut [Contact<'_>],
        receive: &mut Receive<'_>,
    ) -> Result<(), CollectiveError> {
        let (mut idle, mut last_look) = (0, Instant::now());
        loop {
            let has_happened = self.advance(contacts, receive)?;
            if contacts.iter().all(Contact::is_complete) {
                return Ok(());
            }
            idle = if has_happened { 0 } else { idle + 1 };
            // UCX reports progress again and again while a message to a dead rank cannot be sent.
            if idle >= SPINS || last_look.elapsed() >= SLEEP {
                self.look_around(contacts, receive, idle >= SPINS)?;
                if self.terms.get().is_open && contacts.iter().all(|contact| contact.peer.farewell.is_none())
                {
                    return Ok(());
                }
                last_look = Instant::now();
            } else if !has_happened {
                std::thread::yield_now();
            }
        }
    }

    /// Advances all messages. Returns whether anything has happened.
    fn advance(
        &self,
        contacts: &mut [Contact<'_>],
        receive: &mut Receive<'_>,
    ) -> Result<bool, CollectiveError> {
        let has_happened = self.workers.progress();
        for contact in contacts.iter_mut().filter(|contact| !contact.is_complete()) {
            self.advance_sends(contact)?;
            self.advance_receive(contact, receive)?;
        }
        Ok(has_happened)
    }

    fn advance_sends(&self, contact: &mut Contact<'_>) -> Result<(), CollectiveError> {
        for message in std::mem::take(&mut contact.sending) {
            let sent = self.workers.of(&contact.peer.link).sent(message);
            match sent.map_err(|error| self.engine(contact.peer.rank, error))? {
                Progress::Open(message) => contact.sending.push(message),
                Progress::Complete(()) => {}
            }
        }
        Ok(())
    }

    fn advance_receive(
        &self,
        contact: &mut Contact<'_>,
        receive: &mut Receive<'_>,
    ) -> Result<(), CollectiveError> {
        let peer = contact.peer.rank;
        let worker = self.workers.of(&contact.peer.link);
        let received = |message| worker.received(message).map_err(|error| self.engine(peer, error));
        let receiving = std::mem::replace(&mut contact.receiving, Receiving::Complete(Buffer::default()));
        contact.receiving = match receiving {
            Receiving::Head(message) => match received(message)? {
                Progress::Open(message) => Receiving::Head(message),
                Progress::Complete((head, bytes)) => self.read_head(contact.peer, &head[..bytes], receive)?,
            },
            Receiving::Data(message) => match received(message)? {
                Progress::Open(message) => Receiving::Data(message),
                Progress::Complete((data, bytes)) if bytes == data.len() => Receiving::Complete(data),
                Progress::Complete(_) => return Err(self.damaged(peer)),
            },
            complete @ Receiving::Complete(_) => complete,
        };
        Ok(())
    }

    /// Checks a head, and takes the data behind it or starts to receive it.
    fn read_head(
        &self,
        sender: &Peer,
        head: &[u8],
        receive: &mut Receive<'_>,
    ) -> Result<Receiving, CollectiveError> {
        let peer = sender.rank;
        let (Some((label, rest)), true) = (head.split_first_chunk(), head.len() >= HEAD_BYTES) else {
            return Err(self.damaged(peer));
        };
        let (size, inline) = rest.split_first_chunk().ok_or_else(|| self.damaged(peer))?;
        let theirs = Label::decode(*label).ok_or_else(|| self.damaged(peer))?;
        let size = usize::try_from(u64::from_le_bytes(*size)).map_err(|_| self.damaged(peer))?;
        if let Terms { deadline, is_open: true, .. } = self.terms.get() {
            if let Some(recorder) = self.recorder {
                recorder.begin(theirs.operation, theirs.number, size);
            }
            self.terms.set(Terms { label: theirs, deadline: deadline.restarted(), is_open: false });
        }
        if theirs != self.label() {
            return Err(CollectiveError::Mismatch { rank: self.rank, ours: self.label(), peer, theirs });
        }
        let mut buffer = receive.buffer((self.label(), self.rank), (peer, self.place(peer)), size)?;
        if size <= MOST_INLINE {
            if inline.len() != size {
                return Err(self.damaged(peer));
            }
            buffer.copy_from_slice(inline);
            return Ok(Receiving::Complete(buffer));
        }
        let data = self.workers.of(&sender.link).receive(buffer, self.tag(peer, Kind::Data));
        data.map(Receiving::Data).map_err(|error| self.engine(peer, error))
    }

    /// Shows life, and looks for dead ranks and at the deadline. With `sleeps`, waits for a limited time until something happens.
    fn look_around(
        &self,
        contacts: &mut [Contact<'_>],
        receive: &mut Receive<'_>,
        sleeps: bool,
    ) -> Result<(), CollectiveError> {
        if let Some(recorder) = self.recorder {
            recorder.show_life();
        }
        let own_error = |error| self.engine(self.rank, error);
        let ended = self.wait(contacts, sleeps).map_err(own_error)?;
        let mut is_over = !ended.is_empty();
        for contact in contacts.iter_mut() {
            let has_left = contact.peer.has_left(self.workers).map_err(own_error)?;
            is_over |= has_left && !contact.is_complete() || self.workers.failure(contact.peer).is_some();
        }
        // What a rank has sent before its end is here already. Data is received one look after its head.
        for look in 0..LAST_LOOKS {
            if !is_over || !self.advance(contacts, receive)? && look > 0 {
                break;
            }
        }
        let Terms { deadline, is_open, .. } = self.terms.get();
        let mut dead = Vec::new();
        for contact in contacts.iter_mut() {
            let has_left = contact.peer.has_left(self.workers).map_err(own_error)?;
            // One that has left before anything began has nothing to send any more.
            let is_missing = if has_left {
                !contact.is_complete() && !is_open
            } else {
                ended.contains(&contact.peer.rank)
            };
            dead.extend(is_missing.then_some(contact.peer.rank));
            if !has_left {
                let failure = self.workers.failure(contact.peer);
                failure.map_or(Ok(()), |error| Err(self.engine(contact.peer.rank, error)))?;
            }
        }
        dead.sort_unstable();
        if !dead.is_empty() {
            return Err(self.absent(dead, Vec::new()));
        }
        let late = open(contacts);
        if !is_open && deadline.left().is_zero() && !late.is_empty() {
            return Err(self.absent(Vec::new(), late));
        }
        Ok(())
    }

    /// The ranks of this host whose processes have ended, but for those that have left before. With `sleeps`, waits for one, or
    /// another event, for a limited time.
    fn wait(&self, contacts: &[Contact<'_>], sleeps: bool) -> Result<Vec<usize>, UcxError> {
        let Terms { deadline, is_open, .. } = self.terms.get();
        let longest = if is_open { SLEEP } else { SLEEP.min(deadline.left()) };
        let sleep = if sleeps && self.workers.arm()? { longest } else { Duration::ZERO };
        let peers = contacts.iter().map(|contact| &*contact.peer).filter(|peer| peer.farewell.is_some());
        let present: Vec<_> = peers
            .filter_map(|peer| match &peer.link {
                Link::Process(process) => Some((peer.rank, process)),
                Link::Network => None,
            })
            .collect();
        let mut descriptors: Vec<PollFd<'_>> =
            present.iter().map(|(_, process)| PollFd::new(process, PollFlags::IN)).collect();
        for worker in self.workers.all() {
            descriptors.push(PollFd::from_borrowed_fd(worker.events()?, PollFlags::IN));
        }
        let limit = Timespec { tv_sec: 0, tv_nsec: sleep.as_nanos() as i64 };
        // An interrupted wait is a short one.
        let _ = poll(&mut descriptors, Some(&limit));
        let ended = present.iter().zip(&descriptors).filter(|(_, process)| !process.revents().is_empty());
        Ok(ended.map(|((rank, _), _)| *rank).collect())
    }

    fn tag(&self, sender: usize, kind: Kind) -> u64 {
        tag(kind, sender, self.number)
    }

    fn engine(&self, peer: usize, error: UcxError) -> CollectiveError {
        CollectiveError::Engine { label: self.label(), peer, reason: error.to_string() }
    }

    fn absent(&self, dead: Vec<usize>, late: Vec<usize>) -> CollectiveError {
        let Terms { label, deadline, .. } = self.terms.get();
        deadline.absent(label, dead, late)
    }

    fn damaged(&self, peer: usize) -> CollectiveError {
        let reason =
            "a message has an unknown form; all workers must be of one version of Millstream".to_owned();
        CollectiveError::Engine { label: self.label(), peer, reason }
    }
}

/// The ranks whose exchange is not complete, in order.
fn open(contacts: &[Contact<'_>]) -> Vec<usize> {
    let open = contacts.iter().filter(|contact| !contact.is_complete());
    let mut ranks: Vec<usize> = open.map(|contact| contact.peer.rank).collect();
    ranks.sort_unstable();
    ranks
}
