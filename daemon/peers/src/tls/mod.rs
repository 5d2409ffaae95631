//! Mutual TLS between daemons.
//!
//! Both sides present a certificate of the same authority, for both directions of use (server and client). TLS 1.3 only. The
//! authority decides who is a member: the holder of any of its certificates may connect, so it should sign nothing else.
//! Certificates that a revocation list names are refused.
//!
//! The files are read again when they change ([`Identity::watch`]), for certificates that a site renews. If the new files are
//! not valid, the old ones stay in use and the log says why. With changed files, each connection is checked again and closed if
//! its certificate is no longer valid, so that a revoked host does not stay connected. Sessions of TLS are not resumed,
//! because that would skip the check.

mod certificate;
mod verify;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rustls::client::Resumption;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::sync::watch;

pub(crate) use self::certificate::Certificate;
use self::verify::MemberVerifier;
use crate::HostName;

/// How often the files are compared with those in use.
const WATCH_INTERVAL: Duration = Duration::from_secs(5);

/// A certificate that expires sooner is reported in the log.
const EXPIRY_WARNING: Duration = Duration::from_secs(14 * 24 * 3600);

/// The time between two warnings about expiry.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// The protocol that ALPN negotiates: HTTP/2.
const ALPN: &[u8] = b"h2";

/// A file that is larger holds something else.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The files of a daemon's identity, all in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Its certificate, followed by those of intermediate authorities, if any.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The certificates of the authority.
    pub ca: PathBuf,
    /// The revocation lists of the authority.
    pub crl: Option<PathBuf>,
}

/// Why files are no identity.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: {error}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file holds something else.
    #[error("{}: {message}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
}

/// The identity of a daemon: its certificate and key, and whom it trusts.
#[derive(Debug)]
pub struct Identity {
    files: TlsFiles,
    current: RwLock<Arc<Material>>,
    /// Changes with the material.
    changes: watch::Sender<u64>,
    /// The name that the host has since its daemon started.
    host: OnceLock<HostName>,
}

/// The side of a connection on which a certificate is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// The files as read at one time.
pub(crate) struct Material {
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) client: Arc<ClientConfig>,
    /// Checks the certificates of daemons that connect.
    clients: Arc<dyn ClientCertVerifier>,
    /// Checks those of daemons to which this one connects.
    servers: Arc<MemberVerifier>,
    certificate: Certificate,
    /// All bytes of the files.
    contents: Contents,
}

#[derive(Clone, PartialEq, Eq)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    ca: Vec<u8>,
    crl: Option<Vec<u8>>,
}

impl Identity {
    /// Reads the files.
    ///
    /// # Errors
    /// If one cannot be read or is not valid, the key belongs to another certificate, or the certificate to another authority
    /// or another time.
    pub fn load(files: TlsFiles) -> Result<Arc<Self>, TlsError> {
        let material = Arc::new(Material::new(&files, Contents::read(&files)?)?);
        let (changes, _) = watch::channel(0);
        Ok(Arc::new(Self { files, current: RwLock::new(material), changes, host: OnceLock::new() }))
    }

    /// The name of this host by its certificate: the first one, or that of a wildcard with the first part of `host_name`. Later
    /// certificates have to be for this name.
    ///
    /// # Errors
    /// If the certificate has no DNS name, or the wildcard gives none.
    pub fn host(&self, host_name: &str) -> Result<HostName, TlsError> {
        let host = self.host_by_certificate(host_name)?;
        Ok(self.host.get_or_init(|| host).clone())
    }

    fn host_by_certificate(&self, host_name: &str) -> Result<HostName, TlsError> {
        let material = self.current();
        let content = |message: String| TlsError::Content { path: self.files.certificate.clone(), message };
        let names = material.certificate.names();
        let exact = names.iter().find(|name| !name.starts_with("*."));
        let name = match (exact, names.first()) {
            (Some(name), _) => name.clone(),
            (None, Some(wildcard)) => {
                wildcard.replacen('*', host_name.split('.').next().unwrap_or_default(), 1)
            }
            (None, None) => return Err(content("the certificate has no DNS name".to_owned())),
        };
        HostName::parse(&name).map_err(|error| content(error.to_string()))
    }

    /// When the certificate expires.
    pub fn expires(&self) -> SystemTime {
        self.current().certificate.expires()
    }

    /// The certificate of this host.
    pub fn certificate(&self) -> CertificateDer<'static> {
        self.current().certificate.der().clone()
    }

    pub(crate) fn current(&self) -> Arc<Material> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes when other material is in use, so that connections with the former one are to be closed.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether a chain of certificates is that of a member now, used on this side.
    pub(crate) fn admits(&self, side: Side, chain: &[CertificateDer<'_>]) -> bool {
        let material = self.current();
        let Some((end_entity, intermediates)) = chain.split_first() else { return false };
        match side {
            Side::Client => {
                material.clients.verify_client_cert(end_entity, intermediates, UnixTime::now()).is_ok()
            }
            Side::Server => material.servers.check(chain).is_ok(),
        }
    }

    /// Reads the files again. Returns whether they have changed.
    ///
    /// # Errors
    /// As for [`Identity::load`]; the former material stays in use.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let contents = Contents::read(&self.files)?;
        if contents == self.current().contents {
            return Ok(false);
        }
        let material = Arc::new(Material::new(&self.files, contents)?);
        if let Some(host) = self.host.get().filter(|host| !material.certificate.is_for(host)) {
            let names = material.certificate.names().join(", ");
            let message = format!(
                "the certificate is for {names}, but this host is {host}; restart the daemon to rename it"
            );
            return Err(TlsError::Content { path: self.files.certificate.clone(), message });
        }
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = material;
        self.changes.send_modify(|change| *change += 1);
        Ok(true)
    }

    /// Reads the files again whenever they have changed, and warns before the certificate expires. Never returns.
    pub async fn watch(self: Arc<Self>) {
        let mut reported = None;
        let mut warn_at = tokio::time::Instant::now();
        loop {
            if tokio::time::Instant::now() >= warn_at {
                self.warn_of_expiry();
                warn_at += EXPIRY_INTERVAL;
            }
            tokio::time::sleep(WATCH_INTERVAL).await;
            let identity = Arc::clone(&self);
            let Ok(reloaded) = tokio::task::spawn_blocking(move || identity.reload()).await else { return };
            match reloaded {
                Ok(true) => {
                    tracing::info!("the certificates for peers have changed; connections are checked again");
                    reported = None;
                }
                Ok(false) => reported = None,
                Err(error) => {
                    let error = error.to_string();
                    if reported.as_ref() != Some(&error) {
                        tracing::warn!(
                            "cannot use the changed certificates for peers: {error}; the previous ones stay in use"
                        );
                        reported = Some(error);
                    }
                }
            }
        }
    }

    fn warn_of_expiry(&self) {
        let path = self.files.certificate.display();
        match self.expires().duration_since(SystemTime::now()) {
            Err(_) => tracing::warn!("{path}: the certificate for peers has expired; issue a new one"),
            Ok(left) if left < EXPIRY_WARNING => {
                let days = left.as_secs_f64() / (24.0 * 3600.0);
                tracing::warn!("{path}: the certificate for peers expires in {days:.1} days");
            }
            Ok(_) => {}
        }
    }
}

impl Contents {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        Ok(Self {
            certificate: read(&files.certificate)?,
            key: read(&files.key)?,
            ca: read(&files.ca)?,
            crl: files.crl.as_deref().map(read).transpose()?,
        })
    }
}

impl Material {
    fn new(files: &TlsFiles, contents: Contents) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let at = |path: &Path| {
            let path = path.to_owned();
            move |message: String| TlsError::Content { path: path.clone(), message }
        };
        let (in_certificate, in_key, in_ca) = (at(&files.certificate), at(&files.key), at(&files.ca));
        let chain = certificates(&contents.certificate).map_err(&in_certificate)?;
        let certificate = Certificate::parse(&chain[0]).map_err(&in_certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&contents.key)
            .map_err(|error| in_key(format!("no private key: {error}")))?;
        let mut roots = RootCertStore::empty();
        for root in certificates(&contents.ca).map_err(&in_ca)? {
            roots.add(root).map_err(|error| in_ca(error.to_string()))?;
        }
        let roots = Arc::new(roots);
        let in_crl = at(files.crl.as_deref().unwrap_or(Path::new("")));
        let revoked = contents.crl.as_deref().map(revocation_lists).transpose().map_err(&in_crl)?;
        let revoked = revoked.unwrap_or_default();

        let servers = Arc::new(MemberVerifier::new(&roots, &provider, revoked.clone()).map_err(&in_crl)?);
        // An own certificate that others refuse is an error here, and not on every one of them.
        servers.check(&chain).map_err(&in_certificate)?;
        let clients = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .with_crls(revoked)
            .allow_unknown_revocation_status()
            .build()
            .map_err(|error| in_crl(error.to_string()))?;
        let as_client = clients.verify_client_cert(&chain[0], &chain[1..], UnixTime::now());
        as_client.map_err(|error| in_certificate(error.to_string()))?;
        let fits = |error: rustls::Error| {
            in_key(format!("the key does not fit the certificate {}: {error}", files.certificate.display()))
        };
        let mut server = server_config(&provider)
            .with_client_cert_verifier(Arc::clone(&clients))
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(&fits)?;
        let mut client = client_config(&provider)
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&servers) as Arc<dyn ServerCertVerifier>)
            .with_client_auth_cert(chain, key)
            .map_err(&fits)?;
        server.alpn_protocols = vec![ALPN.to_vec()];
        client.alpn_protocols = vec![ALPN.to_vec()];
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        client.resumption = Resumption::disabled();
        let (server, client) = (Arc::new(server), Arc::new(client));
        Ok(Self { server, client, clients, servers, certificate, contents })
    }
}

impl std::fmt::Debug for Material {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Material").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// TLS 1.3 with the ciphers of `provider`, which has all of them.
fn server_config(
    provider: &Arc<CryptoProvider>,
) -> rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier> {
    let versions =
        ServerConfig::builder_with_provider(Arc::clone(provider)).with_protocol_versions(&[&TLS13]);
    versions.expect("the provider has the ciphers of TLS 1.3")
}

fn client_config(
    provider: &Arc<CryptoProvider>,
) -> rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier> {
    let versions =
        ClientConfig::builder_with_provider(Arc::clone(provider)).with_protocol_versions(&[&TLS13]);
    versions.expect("the provider has the ciphers of TLS 1.3")
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let of_file = |error| TlsError::File { path: path.to_owned(), error };
    let size = fs::metadata(path).map_err(of_file)?.len();
    if size > MAX_FILE_BYTES {
        let message = format!("{size} bytes are too many for certificates in PEM");
        return Err(TlsError::Content { path: path.to_owned(), message });
    }
    fs::read(path).map_err(of_file)
}

/// The certificates of a PEM file, at least one.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err("no certificate in PEM".to_owned()),
        Err(error) => Err(format!("not a certificate in PEM: {error}")),
    }
}

fn revocation_lists(pem: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err("no revocation list in PEM".to_owned()),
        all => all.map_err(|error| format!("not a revocation list in PEM: {error}")),
    }
}

#[cfg(test)]
mod tests;
