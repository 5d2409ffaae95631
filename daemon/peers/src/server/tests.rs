//! Who is admitted, with real connections on loopback.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::Ipv4Addr;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use super::*;
use crate::authority::Authority;
use crate::link::Link;
use crate::proto::{Block, ProbeRequest};
use crate::tls::TlsFiles;
use crate::{HostName, LinkError};

/// A site: an authority, with the directory of all its files.
pub(crate) struct Site {
    pub(crate) dir: TempDir,
    pub(crate) authority: Authority,
}

impl Site {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create(&dir.path().join("ca"), 10).unwrap();
        Self { dir, authority }
    }

    pub(crate) fn files(&self, name: &str) -> TlsFiles {
        let out = tempfile::tempdir_in(self.dir.path()).unwrap().keep();
        self.authority.files_of(name, &out)
    }

    /// A host with a certificate for `name`, which calls itself `host` and listens at `address`.
    pub(crate) fn host_at(&self, (name, host): (&str, &str), instance: u64, address: &str) -> Arc<ThisHost> {
        let about = About {
            host: HostName::parse(host).unwrap(),
            version: "0.0.1".to_owned(),
            instance,
            address: address.to_owned(),
        };
        let status = || HostStatus { cpus: 12, jobs: 1, wait_fraction: Some(0.25), ..HostStatus::default() };
        Arc::new(ThisHost::new(about, Identity::load(self.files(name)).unwrap(), status))
    }

    fn host(&self, name: &str) -> Arc<ThisHost> {
        self.host_at((name, name), 7, "")
    }
}

/// A server of a host.
struct Served {
    address: SocketAddr,
    this: Arc<ThisHost>,
    refusals: Arc<Refusals>,
    task: JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn served(this: Arc<ThisHost>) -> Served {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let refusals = Arc::new(Refusals::default());
    let task = tokio::spawn(serve(
        listener,
        Arc::clone(&this),
        Arc::clone(&refusals),
        |_| Vec::new(),
        std::future::pending(),
    ));
    Served { address, this, refusals, task }
}

impl Served {
    async fn connect(&self, caller: &ThisHost) -> Result<Link, LinkError> {
        Link::connect(&self.address.to_string(), caller).await
    }

    /// Waits until so many connections are refused.
    async fn refused(&self, count: u64) {
        let reached = async {
            while self.refusals.count() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), reached).await.expect("all are refused");
    }
}

#[tokio::test]
async fn members_greet_and_probe_each_other() {
    let site = Site::new();
    let server = served(site.host("train-1")).await;
    let mut link = server.connect(&site.host("train-2")).await.unwrap();
    assert_eq!(link.about, server.this.about);
    let (status, times) = link.probe().await.unwrap();
    assert_eq!((status.cpus, status.wait_fraction), (12, Some(0.25)));
    assert!(times.sent <= times.received && times.received <= times.replied, "one clock: {times:?}");
    assert_eq!(server.refusals.count(), 0);
}

#[tokio::test]
async fn strangers_are_refused() {
    let (site, other) = (Site::new(), Site::new());
    let server = served(site.host("train-1")).await;

    // Of another authority; each side refuses the other.
    let stranger = other.host("train-2");
    assert!(matches!(server.connect(&stranger).await.unwrap_err(), LinkError::Tls(_)));
    server.refused(1).await;
    // Revoked since the caller has loaded its files.
    let revoked = site.host("train-4");
    site.authority.revoke("train-4").unwrap();
    assert!(server.this.identity.reload().unwrap());
    let error = server.connect(&revoked).await.unwrap_err();
    server.refused(2).await;
    assert!(matches!(error, LinkError::Broken(_) | LinkError::Tls(_)), "{error:?}");

    // Calls itself as another host does.
    let impostor = site.host_at(("train-5", "train-1"), 9, "");
    let error = server.connect(&impostor).await.unwrap_err().to_string();
    assert!(error.contains("the host calls itself train-1, but its certificate is for train-5"), "{error}");
    server.refused(3).await;
    let impostor = served(site.host_at(("train-5", "train-1"), 9, "")).await;
    let error = impostor.connect(&server.this).await.unwrap_err();
    assert!(matches!(&error, LinkError::Refuses(reason) if reason.contains("train-5")), "{error}");

    server.connect(&site.host_at(("*.pods.internal", "pods"), 1, "")).await.unwrap_err();
    server.connect(&site.host_at(("*.pods.internal", "a.pods.internal"), 1, "")).await.unwrap();
}

/// A TLS connection to the server, as a host with `files`.
async fn raw(server: &Served, caller: &ThisHost) -> tokio_rustls::client::TlsStream<TcpStream> {
    let stream = TcpStream::connect(server.address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::clone(&caller.identity.current().client));
    connector.connect("any".try_into().unwrap(), stream).await.unwrap()
}

#[tokio::test]
async fn connections_without_a_certificate_and_garbage_are_refused() {
    let site = Site::new();
    let server = served(site.host("train-1")).await;
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 4096], &[0xff; 100_000], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
    {
        let bytes = garbage.to_vec();
        let address = server.address;
        tokio::task::spawn_blocking(move || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            // The server may close it before all is sent.
            let _ = stream.write_all(&bytes);
            let _ = stream.read_to_end(&mut Vec::new());
        })
        .await
        .unwrap();
    }
    server.refused(4).await;

    let anonymous =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptsAll))
            .with_no_client_auth();
    let stream = TcpStream::connect(server.address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(anonymous));
    let mut stream = connector.connect("any".try_into().unwrap(), stream).await.unwrap();
    let answer = stream.read(&mut [0; 64]).await;
    assert!(answer.is_err_and(|error| error.to_string().contains("CertificateRequired")));
    server.refused(5).await;

    // A member that sends no HTTP/2.
    let member = site.host("train-2");
    let mut stream = raw(&server, &member).await;
    stream.write_all(&[0x55; 10_000]).await.unwrap();
    let mut rest = Vec::new();
    // Closed, with or without a message.
    let _ = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut rest)).await.unwrap();
    server.connect(&member).await.unwrap().probe().await.unwrap();
}

#[tokio::test]
async fn calls_before_the_greeting_and_large_messages_are_refused() {
    let site = Site::new();
    let server = served(site.host("train-1")).await;
    let member = site.host("train-2");
    let mut unknown = crate::link::over(raw(&server, &member).await).await.unwrap();
    let status = unknown.probe(ProbeRequest {}).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::FailedPrecondition);
    let status = unknown.follow(futures::stream::pending()).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::FailedPrecondition);

    let mut link = server.connect(&member).await.unwrap();
    // A caller without limits.
    link.client = link.client.max_encoding_message_size(usize::MAX);
    let block = Block { data: vec![0; MAX_MESSAGE_BYTES + 1] };
    let status = link.client.receive(futures::stream::iter([block])).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::OutOfRange, "{status}");
    let greeting = crate::proto::Greeting { address: "x".repeat(2 << 20), ..member.about.greeting() };
    assert!(link.client.greet(greeting).await.is_err());
    // And the daemon continues.
    link.probe().await.unwrap();
}

const IDLE: u64 = 1_000;

/// Raises the limit on descriptors to the maximum: both ends of all connections are in this process.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

#[tokio::test]
async fn a_thousand_idle_connections_keep_no_member_out() {
    raise_descriptors();
    let site = Site::new();
    let server = served(site.host("train-1")).await;
    let member = site.host("train-2");
    let mut idle = Vec::new();
    // All of one address, as the member is.
    for _ in 0..IDLE {
        idle.push(TcpStream::connect(server.address).await.unwrap());
    }
    server.refused(IDLE / 2).await;
    let began = Instant::now();
    server.connect(&member).await.unwrap().probe().await.unwrap();
    assert!(began.elapsed() < HANDSHAKE_TIMEOUT, "{:?}", began.elapsed());
    // The rest is refused in time.
    server.refused(IDLE).await;
}

#[tokio::test]
async fn changed_certificates_close_the_connections_of_revoked_hosts() {
    let site = Site::new();
    let server = served(site.host("train-1")).await;
    let mut link = server.connect(&site.host("train-2")).await.unwrap();
    link.probe().await.unwrap();
    let mut other = server.connect(&site.host("train-3")).await.unwrap();
    let member = site.host("train-4");
    let outgoing = server.connect(&member).await.unwrap();
    site.authority.revoke("train-3").unwrap();
    assert!(server.this.identity.reload().unwrap());
    let closed = async { while other.probe().await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(10), closed).await.unwrap();
    link.probe().await.expect("the others stay connected");

    // The side that connects checks, too.
    assert!(outgoing.is_admitted(&member));
    site.authority.revoke("train-1").unwrap();
    assert!(member.identity.reload().unwrap());
    assert!(!outgoing.is_admitted(&member));
}

#[tokio::test]
async fn a_link_is_measured_in_both_directions() {
    let site = Site::new();
    let server = served(site.host("train-1")).await;
    let (address, member) = (server.address.to_string(), site.host("train-2"));
    let measured = crate::measure(&address, &member, 2, Duration::from_millis(200)).await.unwrap();
    let crate::Measurement { round_trip, sent_bytes_per_second, received_bytes_per_second } = measured;
    assert!(round_trip < Duration::from_secs(1));
    assert!(sent_bytes_per_second > 1e6 && received_bytes_per_second > 1e6, "{measured:?}");
}

/// A stranger that does not care whom it reaches.
#[derive(Debug)]
struct AcceptsAll;

impl rustls::client::danger::ServerCertVerifier for AcceptsAll {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
