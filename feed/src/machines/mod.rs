//! Hosts of several machines whose ranks train together, if each reads a shard of the data.
//!
//! Only the ranks know each other, so they introduce their hosts:
//!
//! 1. A host listens at a port, of those that its ranks allow. They get a [`Meeting`]: how it can be reached, and a random token.
//! 2. The ranks exchange the meetings through their framework, and send their host the list of all ([`Machine`]).
//! 3. The hosts connect to each other: each to those before it in the list. A [`handshake`] proves at both ends the knowledge of
//!    all tokens.
//! 4. Ingest exchanges its updates over the connections ([`link`]): some tens of bytes for thousands of rows.
//!
//! Without the tokens, which only the ranks exchange, a connection is refused. The updates themselves, numbers of rows and the texts of
//! errors, are neither encrypted nor signed, as in the exchange of gradients: the network between the machines must be
//! private.

mod addresses;
mod handshake;
mod link;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use millstream_pipeline::Error as DataError;
use millstream_pipeline::ingest::{Exchange, Peers, PieceKey, PieceUpdate, SendUpdate};
use millstream_pipeline::order::{Runs, Shards};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha512};

use crate::Error;
use crate::death;
use crate::error::named;
use crate::protocol::ShardRequest;
use crate::state::hex;
use handshake::{Greeting, Secret};
use link::{Link, Timing};

/// How long an attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The time between two attempts.
const RETRY: Duration = Duration::from_millis(100);

/// The most connections that shake hands at a time. Everyone who reaches the port may connect.
const MAX_HANDSHAKES: usize = 64;

/// The most machines.
const MAX_MACHINES: usize = 1024;

/// The most addresses of a machine.
const MAX_ADDRESSES: usize = 16;

/// Advice for machines that do not reach each other.
const MUST_CONNECT: &str = "machines that read shards must be able to connect to each other over TCP, at the ports of \
    MILLSTREAM_SHARD_PORTS, and at any port without it; MILLSTREAM_SHARD_ADDRESS sets the address at which a machine is reached";

/// Bytes of a token.
const TOKEN_BYTES: usize = 32;

/// How the hosts of other machines reach a host.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meeting {
    /// Its addresses, the best first.
    pub addresses: Vec<IpAddr>,
    /// Its port.
    pub port: u16,
    /// Random bytes, in hexadecimal: a part of the secret of all hosts.
    pub token: String,
}

/// A machine, with its ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The numbers of its ranks.
    pub ranks: Vec<u32>,
    /// How to reach its host.
    pub meeting: Meeting,
}

/// The other hosts, for the ingest of this one, which leaves them when this value is dropped.
#[derive(Debug)]
pub(crate) struct OtherHosts {
    exchange: Arc<Exchange>,
}

/// Hosts that are connected.
#[derive(Debug)]
pub(crate) struct Met {
    /// The others.
    pub(crate) others: OtherHosts,
    /// The shards, as this host sees them.
    pub(crate) shards: Shards,
    /// The ranks of each machine, by the number of its host.
    pub(crate) ranks: Vec<Vec<u32>>,
}

/// A host that waits for the list of all machines.
#[derive(Debug)]
pub(crate) struct Waiting {
    listener: TcpListener,
    meeting: Meeting,
}

impl fmt::Debug for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { addresses, port, .. } = self;
        write!(f, "{addresses:?}, port {port}")
    }
}

impl Peers for OtherHosts {
    fn host(&self) -> u32 {
        self.exchange.host()
    }

    fn hosts(&self) -> u32 {
        self.exchange.hosts()
    }

    fn send(&self, key: PieceKey, update: PieceUpdate) -> Result<(), DataError> {
        self.exchange.send(key, update)
    }

    fn recv(&self, owner: u32, key: PieceKey) -> Result<PieceUpdate, DataError> {
        self.exchange.recv(owner, key)
    }

    fn close(&self) {
        self.exchange.close();
    }
}

impl Drop for OtherHosts {
    fn drop(&mut self) {
        self.exchange.close();
    }
}

impl Waiting {
    /// Listens, as a rank asks.
    ///
    /// # Errors
    /// No port is free, or the system has no random bytes.
    pub(crate) fn open(request: &ShardRequest) -> Result<Self, Error> {
        let listener = match request.ports {
            None => addresses::listen(0)?,
            Some(ports) => addresses::listen_at_one_of(ports).map_err(Error::Failed)?,
        };
        let addresses = match request.address {
            Some(address) => vec![address],
            None => addresses::of_this_machine(request.toward.as_deref()),
        };
        let port = listener.local_addr()?.port();
        let token = hex(&handshake::random::<TOKEN_BYTES>()?);
        Ok(Self { listener, meeting: Meeting { addresses, port, token } })
    }

    /// How to reach it.
    pub(crate) fn meeting(&self) -> &Meeting {
        &self.meeting
    }

    /// Connects to the hosts of the other `machines`, within `limit`, for an exchange about `lanes` lanes. This host has the
    /// ranks of `runs`, and `check` says whether it can read its shard. Blocks; ends early once `is_cancelled`.
    ///
    /// # Errors
    /// This machine is not in the list or the ranks do not fit together, the shards cannot be read, a machine cannot be
    /// reached, or it was cancelled.
    pub(crate) fn meet(
        &self,
        mut machines: Vec<Machine>,
        (runs, lanes): (&Runs, u32),
        check: impl FnOnce(&Shards) -> Result<(), Error>,
        limit: Duration,
        is_cancelled: &AtomicBool,
    ) -> Result<Met, Error> {
        let failed = |message: String| Err(Error::Failed(message));
        let has_too_many = |machine: &Machine| machine.meeting.addresses.len() > MAX_ADDRESSES;
        if machines.len() > MAX_MACHINES || machines.iter().any(has_too_many) {
            return failed(format!(
                "more than {MAX_MACHINES} machines, or {MAX_ADDRESSES} addresses of one, cannot read shards"
            ));
        }
        sort(&mut machines);
        let Some(here) = machines.iter().position(|machine| machine.meeting.token == self.meeting.token)
        else {
            return failed("the list of the machines that read shards does not have this one".to_owned());
        };
        let ranks: Vec<Vec<u32>> = machines.iter().map(|machine| machine.ranks.clone()).collect();
        let shards = Shards::new(here as u32, &ranks, lanes)?;
        if shards.runs() != runs {
            return failed(
                "the list of the machines does not have the ranks that have attached to this host".to_owned(),
            );
        }
        // Before anything is connected.
        check(&shards)?;
        let secret = secret(&machines);
        let connecting = Connecting { waiting: self, machines: &machines, here, secret, is_cancelled };
        let sockets = connecting.sockets(Instant::now() + limit)?;
        Ok(Met { others: start_links(sockets, here, lanes)?, shards, ranks })
    }
}

/// Sorts machines by their ranks, which are ascending then.
pub(crate) fn sort(machines: &mut [Machine]) {
    machines.iter_mut().for_each(|machine| machine.ranks.sort_unstable());
    machines.sort_by_key(|machine| machine.ranks.first().copied());
}

/// The secret of hosts that have met: a hash of their tokens.
fn secret(machines: &[Machine]) -> Secret {
    let tokens = machines.iter().map(|machine| &machine.meeting.token);
    let hash = tokens.fold(Sha512::new(), |hash, token| {
        hash.chain_update((token.len() as u64).to_le_bytes()).chain_update(token)
    });
    Secret(hash.finalize().into())
}

/// Exchanges updates over the sockets to the other machines, by number.
fn start_links(sockets: Vec<Option<TcpStream>>, here: usize, lanes: u32) -> Result<OtherHosts, Error> {
    let links: Vec<_> = sockets.into_iter().map(|socket| socket.map(Link::new)).collect();
    let updates = links.iter().map(|link| link.as_ref().map(Link::updates));
    let updates: Vec<Option<SendUpdate>> = updates.collect();
    // If a link cannot start, this closes those that have.
    let others = OtherHosts { exchange: Arc::new(Exchange::new((here, lanes), updates)) };
    for (from, link) in links.into_iter().enumerate() {
        let Some(link) = link else { continue };
        others.exchange.begin(from, link.credits()).map_err(Error::Failed)?;
        link.start(&others.exchange, from, Timing::default())?;
    }
    Ok(others)
}

/// Calls a function when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Connects hosts that have met.
struct Connecting<'a> {
    waiting: &'a Waiting,
    machines: &'a [Machine],
    here: usize,
    secret: Secret,
    is_cancelled: &'a AtomicBool,
}

impl Connecting<'_> {
    /// A socket to every other machine, by number: this host connects to those before it, and the others connect to this one.
    fn sockets(&self, deadline: Instant) -> Result<Vec<Option<TcpStream>>, Error> {
        let sockets: Mutex<Vec<Option<TcpStream>>> = Mutex::new(self.machines.iter().map(|_| None).collect());
        let failure: Mutex<Option<Error>> = Mutex::new(None);
        let insert = |number: usize, socket: TcpStream| {
            let mut sockets = sockets.lock().unwrap_or_else(PoisonError::into_inner);
            // A machine has one connection, its first.
            sockets[number].get_or_insert(socket);
        };
        let missing = || {
            let sockets = sockets.lock().unwrap_or_else(PoisonError::into_inner);
            (self.here + 1..sockets.len()).filter(|&number| sockets[number].is_none()).collect::<Vec<_>>()
        };
        thread::scope(|scope| {
            for to in 0..self.here {
                let (insert, failure) = (&insert, &failure);
                scope.spawn(move || match self.connect(to, deadline) {
                    Ok(socket) => insert(to, socket),
                    Err(error) => {
                        failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    }
                });
            }
            self.accept(&insert, &missing, deadline)
        })?;
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(sockets.into_inner().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Connects to a machine, at whichever of its addresses has the right host.
    fn connect(&self, to: usize, deadline: Instant) -> Result<TcpStream, Error> {
        let Machine { ranks, meeting } = &self.machines[to];
        loop {
            let mut problems = Vec::new();
            for &address in &meeting.addresses {
                let address = SocketAddr::new(address, meeting.port);
                let connected = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)
                    .and_then(|socket| self.greeting(to).call(socket, &self.secret));
                match connected {
                    Ok(socket) => return Ok(socket),
                    Err(error) => problems.push(format!("{address}: {error}")),
                }
                self.check_cancelled()?;
            }
            if Instant::now() > deadline {
                return Err(Error::Failed(format!(
                    "the machine of {} cannot be reached at {}; {MUST_CONNECT}",
                    named(ranks),
                    problems.join(", ")
                )));
            }
            thread::sleep(RETRY);
            self.check_cancelled()?;
        }
    }

    /// Accepts connections until none is `missing`.
    fn accept(
        &self,
        insert: &(dyn Fn(usize, TcpStream) + Sync),
        missing: &dyn Fn() -> Vec<usize>,
        deadline: Instant,
    ) -> Result<(), Error> {
        // Sockets that shake hands, by the order in which they came.
        let pending: Mutex<BTreeMap<u64, TcpStream>> = Mutex::default();
        let pending = || pending.lock().unwrap_or_else(PoisonError::into_inner);
        thread::scope(|scope| {
            // Those that are left are of strangers, and need not be waited for.
            let _ended =
                OnDrop(|| pending().values().for_each(|socket| drop(socket.shutdown(Shutdown::Both))));
            for number in 0.. {
                let missing = missing();
                let Some(&first) = missing.first() else { return Ok(()) };
                self.check_cancelled()?;
                if Instant::now() > deadline {
                    let others = if missing.len() > 1 { " and others" } else { "" };
                    return Err(Error::Failed(format!(
                        "the machine of {}{others} has not connected to this one, at {:?}, in time; {MUST_CONNECT}",
                        named(&self.machines[first].ranks),
                        self.waiting.meeting
                    )));
                }
                if !death::wait_for(&self.waiting.listener, RETRY)? {
                    continue;
                }
                let accepted =
                    self.waiting.listener.accept().and_then(|(socket, _)| Ok((socket.try_clone()?, socket)));
                let Ok((of_pending, socket)) = accepted else {
                    // The system has no descriptor now.
                    thread::sleep(RETRY);
                    continue;
                };
                if pending().len() >= MAX_HANDSHAKES {
                    continue;
                }
                pending().insert(number, of_pending);
                let pending = &pending;
                scope.spawn(move || {
                    let is_expected = |from: usize| from > self.here && from < self.machines.len();
                    let answered = handshake::answer(socket, &self.secret, self.here, is_expected);
                    pending().remove(&number);
                    if let Ok((from, socket)) = answered {
                        insert(from, socket);
                    }
                });
            }
            Ok(())
        })
    }

    fn greeting(&self, to: usize) -> Greeting {
        Greeting { from: self.here as u32, to: to as u32 }
    }

    fn check_cancelled(&self) -> Result<(), Error> {
        match self.is_cancelled.load(Ordering::Relaxed) {
            true => Err(Error::Failed("connecting the machines was cancelled".to_owned())),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
