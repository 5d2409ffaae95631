//! The listener for other daemons.
//!
//! A connection passes three checks, each before any memory is spent on the next: the TLS handshake with a certificate of the
//! authority, within [`HANDSHAKE_TIMEOUT`]; a greeting with a version that this daemon speaks and a name of the certificate;
//! and for each call, that it has greeted. The number of unfinished handshakes is bounded: at the limit, a new one replaces
//! the oldest of the address (of IPv6: the /64) that has the most, so that a stranger who opens thousands replaces only its own.

mod handshakes;
mod refusals;
mod service;
mod stream;

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Router;

use self::handshakes::Handshakes;
pub use self::refusals::Refusals;
pub(crate) use self::service::MAX_MESSAGE_BYTES;
use self::service::Service;
use self::stream::MemberStream;
use crate::conduct::{Accepted, Jobs, RunAddress};
use crate::lanes::Sessions;
use crate::proto::peers_server::PeersServer;
use crate::tls::{Certificate, Identity, Side};
use crate::{About, HostName, HostStatus};

/// Time limit for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The most connections of members. Two daemons have one in each direction, and some more while they measure their link.
const MAX_CONNECTIONS: usize = 4096;

/// The most open calls of a connection.
const MAX_CALLS: u32 = 64;

/// The time between two pings.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// A connection is closed if the other side does not answer a ping within this time.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Room for bytes in flight, which bounds the rate over a link with a long round trip.
pub(crate) const WINDOW_BYTES: u32 = 4 << 20;

/// The most bytes of headers.
const MAX_HEADER_BYTES: u32 = 16 << 10;

/// The pause after an error of the listener, such as a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Time limit for open calls at the end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Connections that have passed the handshake and wait to be served.
const QUEUE: usize = 64;

/// This host, as other daemons see it.
pub struct ThisHost {
    /// What it says about itself.
    pub about: About,
    /// Its certificate, and whom it trusts.
    pub identity: Arc<Identity>,
    /// Its state now. Must not block.
    pub status: Box<dyn Fn() -> HostStatus + Send + Sync>,
    /// The sessions in which it takes part.
    pub(crate) sessions: Arc<Sessions>,
    /// The jobs in which it takes part.
    pub(crate) jobs: Jobs,
    began: Instant,
}

impl ThisHost {
    /// A host whose daemon starts now. `status` need not fill in the time since then.
    pub fn new(
        about: About,
        identity: Arc<Identity>,
        status: impl Fn() -> HostStatus + Send + Sync + 'static,
    ) -> Self {
        let (sessions, jobs) = (Arc::default(), Jobs::new(Box::new(|_, _| None)));
        Self { about, identity, status: Box::new(status), sessions, jobs, began: Instant::now() }
    }

    /// Takes part in the jobs that `accept` accepts, given the address of a job's run and the host of its leader; none by
    /// default. It is called once for each job until that ends. Must not block or use [`ThisHost::jobs`].
    #[must_use]
    pub fn accepting(
        mut self,
        accept: impl Fn(&RunAddress, &HostName) -> Option<Accepted> + Send + Sync + 'static,
    ) -> Self {
        self.jobs = Jobs::new(Box::new(accept));
        self
    }

    /// The jobs in which it takes part.
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// Its state now.
    pub fn status_now(&self) -> HostStatus {
        HostStatus { up_seconds: self.began.elapsed().as_secs(), ..(self.status)() }
    }
}

/// Serves other daemons on `listener` until `stop`. `heard` is called with each daemon that greets, and returns the addresses of
/// others for it. Calls that are still open after [`DRAIN_TIMEOUT`] are cut off, so the other daemons notice at once when it ends.
///
/// # Panics
/// Outside a tokio runtime.
pub async fn serve(
    listener: TcpListener,
    this: Arc<ThisHost>,
    refusals: Arc<Refusals>,
    heard: impl Fn(&About) -> Vec<String> + Send + Sync + 'static,
    stop: impl Future<Output = ()>,
) {
    let (end, ended) = oneshot::channel::<()>();
    let (_open, closing) = watch::channel(());
    let (admitted, incoming) = mpsc::channel(QUEUE);
    let service = Service::new(Arc::clone(&this), Arc::clone(&refusals), Box::new(heard));
    let server = router(service)
        .serve_with_incoming_shutdown(ReceiverStream::new(incoming), async { drop(ended.await) });
    let mut server = pin!(server);
    tokio::select! {
        served = &mut server => return report(served),
        () = accept_all(listener, (this, closing), refusals, admitted) => {}
        () = stop => {}
    }
    drop(end);
    match tokio::time::timeout(DRAIN_TIMEOUT, server).await {
        Ok(served) => report(served),
        Err(_) => tracing::debug!("calls of peers were still open at the end"),
    }
}

/// Answers a member whose handshake is done, over `stream`, until it closes the connection.
///
/// # Errors
/// If its certificate cannot be parsed, or what it sends is not HTTP/2.
pub async fn serve_member(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    certificate: &CertificateDer<'_>,
    this: &Arc<ThisHost>,
) -> Result<(), String> {
    let caller = ((Ipv4Addr::LOCALHOST, 0).into(), Certificate::parse(certificate)?);
    let member = MemberStream::new(stream, caller, None, std::future::pending());
    let service = Service::new(Arc::clone(this), Arc::default(), Box::new(|_| Vec::new()));
    let only = futures::stream::once(async { Ok::<_, Infallible>(member) });
    router(service).serve_with_incoming(only).await.map_err(|error| error.to_string())
}

/// The server of a service, with its limits.
fn router(service: Service) -> Router {
    let service = PeersServer::new(service)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    tonic::transport::Server::builder()
        .max_concurrent_streams(MAX_CALLS)
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .add_service(service)
}

fn report(served: Result<(), tonic::transport::Error>) {
    if let Err(error) = served {
        tracing::error!("the server for peers failed: {error}");
    }
}

type Admitted = mpsc::Sender<Result<MemberStream<TlsStream<TcpStream>>, Infallible>>;

/// Accepts connections and admits those that pass the handshake.
async fn accept_all(
    listener: TcpListener,
    (this, closing): (Arc<ThisHost>, watch::Receiver<()>),
    refusals: Arc<Refusals>,
    admitted: Admitted,
) {
    let handshakes = Arc::new(Handshakes::default());
    let members = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!("cannot accept a connection of a peer: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&members).try_acquire_owned() else {
            refusals.refuse(address, "too many connections are open");
            continue;
        };
        let (handshake, replaced) = handshakes.begin(address.ip());
        let (this, refusals, admitted) = (Arc::clone(&this), Arc::clone(&refusals), admitted.clone());
        let closing = closing.clone();
        tokio::spawn(async move {
            let admission = async {
                tokio::select! {
                    shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, admit(stream, address, &this, (permit, closing))) => {
                        shaken.unwrap_or_else(|_| Err(format!("no TLS handshake within {} s", HANDSHAKE_TIMEOUT.as_secs())))
                    }
                    () = replaced => Err("too many unfinished TLS handshakes of this address".to_owned()),
                }
            };
            match admission.await {
                Ok(member) => drop(admitted.send(Ok(member)).await),
                Err(reason) => refusals.refuse(address, &reason),
            }
            drop(handshake);
        });
    }
}

/// The TLS handshake of a connection.
async fn admit(
    stream: TcpStream,
    address: SocketAddr,
    this: &ThisHost,
    (permit, mut closing): (OwnedSemaphorePermit, watch::Receiver<()>),
) -> Result<MemberStream<TlsStream<TcpStream>>, String> {
    // Before the handshake, so that a change in between is noticed.
    let changes = this.identity.changes();
    let material = this.identity.current();
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let acceptor = TlsAcceptor::from(Arc::clone(&material.server));
    let stream = acceptor.accept(stream).await.map_err(|error| error.to_string())?;
    let (_, session) = stream.get_ref();
    let chain = session.peer_certificates().unwrap_or_default();
    let chain: Vec<_> = chain.iter().map(|der| der.clone().into_owned()).collect();
    let certificate = Certificate::parse(chain.first().ok_or_else(|| "no certificate".to_owned())?)?;
    let expelled = until_expelled(Arc::clone(&this.identity), changes, chain);
    let ended = async move {
        tokio::select! {
            () = expelled => "the certificate is no longer valid here",
            _ = closing.changed() => "the server has ended",
        }
    };
    Ok(MemberStream::new(stream, (address, certificate), Some(permit), ended))
}

/// Ready once the certificates of this host have changed and no longer admit a client with this chain.
async fn until_expelled(
    identity: Arc<Identity>,
    mut changes: watch::Receiver<u64>,
    chain: Vec<CertificateDer<'static>>,
) {
    while changes.changed().await.is_ok() {
        if !identity.admits(Side::Client, &chain) {
            return;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
