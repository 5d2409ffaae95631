//! The open connections to the control socket, bounded in number.
//!
//! A connection costs a descriptor and buffers, and a client can open connections much faster than it uses them. At the
//! limit, a new connection replaces an old one: of the user with the most connections, the one that has been idle for the
//! longest time. So a user who hoards connections loses their own, and everybody else is served. Viewers, who may be all users
//! of the host, have a part of the connections, and theirs replace each other.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tonic::transport::server::Connected;

use crate::access::{Credentials, Requester};
use crate::actor::Actor;
use crate::roles::Role;
use crate::turns::Answers;

/// The maximum number of connections.
const MAX_CONNECTIONS: usize = 256;

/// Viewers have at most this part of the connections.
const VIEWER_SHARE: usize = 4;

/// Connections use at most this part of the descriptors. Jobs need the rest: for files, rings and workers.
const DESCRIPTOR_SHARE: u64 = 4;

/// The open connections.
pub(crate) struct Connections {
    limit: usize,
    started: Instant,
    /// The number of connections so far; numbers are not reused.
    added: AtomicU64,
    open: Mutex<Vec<Entry>>,
}

struct Entry {
    id: u64,
    uid: u32,
    role: Role,
    use_: Arc<LastUse>,
    /// Sending or dropping it closes the connection.
    close: oneshot::Sender<()>,
}

/// When a connection last received or sent bytes, in nanoseconds since the start of the daemon.
type LastUse = AtomicU64;

/// An accepted connection, open until it is dropped or replaced.
pub(crate) struct Connection {
    stream: UnixStream,
    peer: Peer,
    id: u64,
    use_: Arc<LastUse>,
    replaced: oneshot::Receiver<()>,
    connections: Arc<Connections>,
}

impl Connections {
    /// No connections yet, of as many as this process's limit on descriptors allows. Raises that limit to the maximum.
    pub(crate) fn new() -> Arc<Self> {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        let descriptors = if raised.is_ok() { maximum } else { current }.unwrap_or(u64::MAX);
        let share = usize::try_from(descriptors / DESCRIPTOR_SHARE).unwrap_or(usize::MAX);
        Self::with_limit(share.clamp(1, MAX_CONNECTIONS))
    }

    fn with_limit(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, started: Instant::now(), added: AtomicU64::new(0), open: Mutex::default() })
    }

    /// Adds the connection `stream` of `peer`, who has this role now. At a limit, it replaces another one.
    pub(crate) fn add(self: &Arc<Self>, stream: UnixStream, peer: Peer, role: Role) -> Connection {
        let uid = peer.actor.uid;
        let (close, replaced) = oneshot::channel();
        let use_ = Arc::new(AtomicU64::new(self.now()));
        let id = self.added.fetch_add(1, Ordering::Relaxed);
        let mut open = self.open();
        if let Some(place) = self.to_replace(&open, role) {
            let replaced = open.swap_remove(place);
            tracing::debug!(uid = replaced.uid, "closing an idle connection: too many are open");
            // It may have been closed by the client.
            let _ = replaced.close.send(());
        }
        open.push(Entry { id, uid, role, use_: Arc::clone(&use_), close });
        Connection { stream, peer, id, use_, replaced, connections: Arc::clone(self) }
    }

    /// The connection that one more of a user with this role replaces, if any.
    fn to_replace(&self, open: &[Entry], role: Role) -> Option<usize> {
        let viewers = open.iter().filter(|entry| entry.role == Role::Viewer).count();
        let is_full = open.len() >= self.limit;
        match role {
            Role::Viewer if viewers > 0 && (is_full || viewers >= (self.limit / VIEWER_SHARE).max(1)) => {
                least_deserving(open, |entry| entry.role == Role::Viewer)
            }
            _ if is_full => least_deserving(open, |_| true),
            _ => None,
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn open(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connection to replace among those that `may_go`: of the user with the most, the one unused for the longest time. A
/// viewer's goes before an operator's.
fn least_deserving(open: &[Entry], may_go: impl Fn(&Entry) -> bool) -> Option<usize> {
    let mut counts: HashMap<u32, usize> = HashMap::new();
    for entry in open {
        *counts.entry(entry.uid).or_default() += 1;
    }
    let rank = |entry: &Entry| {
        (std::cmp::Reverse(counts[&entry.uid]), entry.role, entry.use_.load(Ordering::Relaxed))
    };
    let may_go = open.iter().enumerate().filter(|(_, entry)| may_go(entry));
    may_go.min_by_key(|(_, entry)| rank(entry)).map(|(place, _)| place)
}

impl Connection {
    fn used(&self) {
        self.use_.store(self.connections.now(), Ordering::Relaxed);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.open().retain(|entry| entry.id != self.id);
    }
}

/// Who sends the requests of a connection.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) actor: Actor,
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) requester: Requester,
    pub(crate) answers: Answers,
}

impl Peer {
    /// The user with these credentials, who may use runs in the directories `shared` and has this role now.
    pub(crate) fn new(credentials: Credentials, shared: &[PathBuf], role: Role) -> Self {
        Self {
            actor: Actor { uid: credentials.uid },
            requester: Requester::of_peer(&credentials, shared),
            credentials: Arc::new(credentials),
            answers: Answers::none(role),
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if Pin::new(&mut self.replaced).poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            self.used();
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if written.is_ready() {
            self.used();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A connection of `uid`: its server's and its client's end.
    fn connect(connections: &Arc<Connections>, uid: u32) -> (Connection, UnixStream) {
        connect_as(connections, uid, Role::Operator)
    }

    fn connect_as(connections: &Arc<Connections>, uid: u32, role: Role) -> (Connection, UnixStream) {
        let (server, client) = UnixStream::pair().unwrap();
        let peer = Peer::new(Credentials::new(uid, 0, Vec::new()), &[], role);
        (connections.add(server, peer, role), client)
    }

    async fn is_open((server, client): &mut (Connection, UnixStream)) -> bool {
        client.write_all(b"x").await.unwrap();
        server.read_u8().await.is_ok()
    }

    #[tokio::test]
    async fn the_user_with_the_most_connections_loses_the_idlest_one() {
        let connections = Connections::with_limit(4);
        let mut quiet = connect(&connections, 1);
        let mut hoard: Vec<_> = (0..3).map(|_| connect(&connections, 2)).collect();
        assert!(is_open(&mut hoard[0]).await, "used last");
        let mut another = connect(&connections, 3);
        assert!(is_open(&mut quiet).await && is_open(&mut another).await);
        assert!(is_open(&mut hoard[0]).await && is_open(&mut hoard[2]).await);
        assert!(!is_open(&mut hoard[1]).await);
        drop(hoard);
        assert_eq!(connections.open().len(), 2, "a dropped connection leaves its place");
        drop((quiet, another));
        let _last = connect(&connections, 1);
        assert_eq!(connections.open().len(), 1);
    }

    #[tokio::test]
    async fn viewers_replace_only_each_other() {
        let connections = Connections::with_limit(8);
        let mut operators: Vec<_> = (0..5).map(|_| connect(&connections, 1)).collect();
        // Each viewer is another user, with fewer connections than the operator.
        let mut viewers: Vec<_> = (2..6).map(|uid| connect_as(&connections, uid, Role::Viewer)).collect();
        assert_eq!(connections.open().len(), 7);
        for (place, is_wanted) in [false, false, true, true].into_iter().enumerate() {
            assert_eq!(is_open(&mut viewers[place]).await, is_wanted, "{place}");
        }
        for operator in &mut operators {
            assert!(is_open(operator).await);
        }
    }

    #[tokio::test]
    async fn at_equal_numbers_a_viewer_gives_way_to_an_operator() {
        let connections = Connections::with_limit(4);
        let mut viewer = connect_as(&connections, 1, Role::Viewer);
        let mut operators: Vec<_> = (2..5).map(|uid| connect(&connections, uid)).collect();
        assert!(is_open(&mut viewer).await, "used last");
        let _another = connect(&connections, 9);
        assert!(!is_open(&mut viewer).await);
        for operator in &mut operators {
            assert!(is_open(operator).await);
        }
    }

    #[tokio::test]
    async fn a_waiting_read_ends_when_the_connection_is_replaced() {
        let connections = Connections::with_limit(1);
        let (mut first, _client) = connect(&connections, 1);
        let reading = tokio::spawn(async move { first.read_u8().await.map_err(|error| error.kind()) });
        tokio::task::yield_now().await;
        let _second = connect(&connections, 1);
        assert_eq!(reading.await.unwrap(), Err(io::ErrorKind::ConnectionAborted));
    }
}
