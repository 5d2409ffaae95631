//! A connection to another daemon.

use std::error::Error;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::clock::ProbeTimes;
use crate::hosts::clock_now;
use crate::proto::ProbeRequest;
use crate::proto::peers_client::PeersClient;
use crate::protocol::bounded;
use crate::server::{MAX_MESSAGE_BYTES, ThisHost, WINDOW_BYTES};
use crate::tls::{Certificate, Side};
use crate::{About, HostStatus};

/// Time limit to connect, with the handshake and the greeting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for one address of a name that has several.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(2);

/// Time limit for a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// The time between two pings.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// A connection is given up if the other side does not answer a ping within this time.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to another daemon, after the greeting.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) client: PeersClient<Channel>,
    pub(crate) about: About,
    /// The addresses of other hosts that it knew when it was greeted. Not checked.
    pub(crate) known: Arc<[String]>,
    /// The certificates that it has presented.
    chain: Arc<[CertificateDer<'static>]>,
    /// Changes of those of this host since before the handshake.
    changes: watch::Receiver<u64>,
}

/// Why another daemon cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// No connection to its address.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The TLS handshake failed: it has no certificate of the authority, or does not accept this host's.
    #[error("TLS handshake: {0}")]
    Tls(String),
    /// It refuses this host.
    #[error("the other daemon refuses this host: {0}")]
    Refused(String),
    /// This host refuses it.
    #[error("this daemon refuses the host: {0}")]
    Refuses(String),
    /// No answer in time.
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(String),
}

impl Link {
    /// Connects to the daemon at `address` (`HOST:PORT`) and greets it.
    ///
    /// # Errors
    /// If it cannot be reached in time, or one of the two refuses the other.
    pub(crate) async fn connect(address: &str, this: &ThisHost) -> Result<Self, LinkError> {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, Self::connect_patiently(address, this)).await;
        connected.unwrap_or(Err(LinkError::Timeout(CONNECT_TIMEOUT)))
    }

    async fn connect_patiently(address: &str, this: &ThisHost) -> Result<Self, LinkError> {
        let changes = this.identity.changes();
        let stream = connect_to_any(address).await?;
        let connector = TlsConnector::from(Arc::clone(&this.identity.current().client));
        // Not part of the check; see `tls::verify`.
        let name = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::UNSPECIFIED).into());
        let stream = connector.connect(name, stream).await;
        let stream = stream.map_err(|error| LinkError::Tls(error.to_string()))?;
        let (_, session) = stream.get_ref();
        let chain: Vec<_> = session
            .peer_certificates()
            .unwrap_or_default()
            .iter()
            .map(|der| der.clone().into_owned())
            .collect();
        let certificate = chain.first().ok_or_else(|| LinkError::Tls("no certificate".to_owned()))?;
        let certificate = Certificate::parse(certificate).map_err(LinkError::Tls)?;
        let mut client = over(stream).await?;

        let greeted = client.greet(this.about.greeting()).await.map_err(|status| refusal(&status))?;
        let mut greeting = greeted.into_inner();
        let known = std::mem::take(&mut greeting.known);
        let (about, _) =
            About::of_greeting(greeting).map_err(|error| LinkError::Refuses(error.to_string()))?;
        if !certificate.is_for(&about.host) {
            let names = certificate.names().join(", ");
            let host = &about.host;
            let message = format!("the host calls itself {host}, but its certificate is for {names}");
            return Err(LinkError::Refuses(message));
        }
        Ok(Self { client, about, known: known.into(), chain: chain.into(), changes })
    }

    /// Whether this host would still admit the other one: its certificates may have changed since.
    pub(crate) fn is_admitted(&self, this: &ThisHost) -> bool {
        this.identity.admits(Side::Server, &self.chain)
    }

    /// Returns once this host would no longer admit the other one.
    pub(crate) async fn expelled(&self, this: &ThisHost) -> LinkError {
        let mut changes = self.changes.clone();
        while changes.changed().await.is_ok() && self.is_admitted(this) {}
        LinkError::Refuses("its certificate is no longer valid here".to_owned())
    }

    /// The state of the host, and the times of the question and its answer.
    ///
    /// # Errors
    /// If the connection broke, or it does not answer in time.
    pub(crate) async fn probe(&mut self) -> Result<(HostStatus, ProbeTimes), LinkError> {
        let (sent, began) = (clock_now(), Instant::now());
        let answer = tokio::time::timeout(PROBE_TIMEOUT, self.client.probe(ProbeRequest {})).await;
        let answer = answer.map_err(|_| LinkError::Timeout(PROBE_TIMEOUT))?;
        let reply = answer.map_err(|status| refusal(&status))?.into_inner();
        let times = ProbeTimes {
            sent,
            received: reply.received_at,
            replied: reply.sent_at,
            round_trip: began.elapsed(),
        };
        Ok((HostStatus::of_reply(reply), times))
    }
}

/// Connects to the first address of `HOST:PORT` that answers. One that does not answer leaves time for the others.
async fn connect_to_any(address: &str) -> Result<TcpStream, LinkError> {
    let connect = |error: io::Error| LinkError::Connect(error.to_string());
    let mut failure = LinkError::Connect("the name has no address".to_owned());
    for address in tokio::net::lookup_host(address).await.map_err(connect)? {
        match tokio::time::timeout(ADDRESS_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                stream.set_nodelay(true).map_err(connect)?;
                return Ok(stream);
            }
            Ok(Err(error)) => failure = connect(error),
            Err(_) => failure = LinkError::Timeout(ADDRESS_TIMEOUT),
        }
    }
    Err(failure)
}

/// A client over a stream, which is not opened again when it breaks.
pub(crate) async fn over(
    stream: tokio_rustls::client::TlsStream<TcpStream>,
) -> Result<PeersClient<Channel>, LinkError> {
    let stream = Mutex::new(Some(stream));
    let connector = service_fn(move |_| {
        let stream = stream.lock().ok().and_then(|mut stream| stream.take());
        async move { stream.map(TokioIo::new).ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
    });
    // The connector ignores the address, but tonic requires one. With https it would want to do TLS itself.
    let channel = Endpoint::from_static("http://peer")
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .connect_with_connector(connector)
        .await;
    let client = channel.map(|channel| {
        PeersClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    });
    client.map_err(|error| LinkError::Broken(innermost(&error)))
}

/// A failed call: the other daemon refuses it, or the connection broke.
pub(crate) fn refusal(status: &Status) -> LinkError {
    match status.source() {
        Some(source) => LinkError::Broken(innermost(source)),
        None => LinkError::Refused(bounded(status.message().to_owned())),
    }
}

/// The cause of an error, which says more than what wraps it.
pub(crate) fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}
