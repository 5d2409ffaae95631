//! A member of an etcd cluster, and the connection to it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint as Transport, Identity};

use super::{Failure, MEMBER_TIMEOUT};
use crate::discovery::Target;
use crate::etcd_proto::kv_client::KvClient;
use crate::link::innermost;

/// etcd's port for clients.
const CLIENT_PORT: u16 = 2379;

/// Where a member serves clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    is_encrypted: bool,
    target: Target,
}

/// Files in PEM for TLS. They are read again for each connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdFiles {
    /// The certificate of the authority of the members; `None` for the authorities of the system.
    pub ca: Option<PathBuf>,
    /// The certificate of this host, and its private key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A member and the connection to it, if there is one.
#[derive(Debug)]
pub(super) struct Member {
    endpoint: Endpoint,
    files: EtcdFiles,
    channel: Mutex<Option<Channel>>,
}

impl Endpoint {
    /// Parses `http://HOST:PORT` or `https://HOST:PORT`; the default port is 2379.
    ///
    /// # Errors
    /// If it is none of them; the message says what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (is_encrypted, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            _ => return Err(format!("expected http://HOST:PORT or https://HOST:PORT, found \"{text}\"")),
        };
        let target = Target::parse_with(rest.trim_end_matches('/'), CLIENT_PORT)?;
        Ok(Self { is_encrypted, target })
    }

    /// Whether it is `https://`.
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_encrypted { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.target)
    }
}

impl Member {
    pub(super) fn new(endpoint: Endpoint, files: EtcdFiles) -> Self {
        Self { endpoint, files, channel: Mutex::default() }
    }

    /// A client of this member, over a new connection if there is none.
    pub(super) async fn client(&self) -> Result<KvClient<Channel>, Failure> {
        let connected = self.channel().clone();
        let channel = match connected {
            Some(channel) => channel,
            None => {
                let channel = self.connect().await.map_err(Failure::Silent)?;
                self.channel().insert(channel).clone()
            }
        };
        Ok(KvClient::new(channel))
    }

    /// Forgets the connection: the next one reads the certificates again.
    pub(super) fn disconnect(&self) {
        self.channel().take();
    }

    /// What has happened instead of an answer, to show.
    pub(super) fn explain(&self, failure: &str) -> String {
        // A member that refuses a client without a certificate closes the connection.
        let may_want_one = self.endpoint.is_encrypted && self.files.identity.is_none();
        let hint = if may_want_one { "; it may demand a client certificate" } else { "" };
        format!("{self}: {failure}{hint}")
    }

    fn channel(&self) -> MutexGuard<'_, Option<Channel>> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self) -> Result<Channel, String> {
        let transport =
            Transport::from_shared(self.endpoint.to_string()).map_err(|error| error.to_string())?;
        let mut transport = transport.connect_timeout(MEMBER_TIMEOUT);
        if self.endpoint.is_encrypted {
            let tls = self.files.read(&self.endpoint.target.host)?;
            transport = transport.tls_config(tls).map_err(|error| innermost(&error))?;
        }
        transport.connect().await.map_err(|error| innermost(&error))
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.endpoint.fmt(f)
    }
}

impl EtcdFiles {
    /// The configuration of TLS with a member on `host`.
    fn read(&self, host: &str) -> Result<ClientTlsConfig, String> {
        let read = |path: &Path| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
        let tls = ClientTlsConfig::new().domain_name(host);
        let tls = match &self.ca {
            Some(path) => tls.ca_certificate(Certificate::from_pem(read(path)?)),
            None => tls.with_native_roots(),
        };
        let Some((certificate, key)) = &self.identity else { return Ok(tls) };
        Ok(tls.identity(Identity::from_pem(read(certificate)?, read(key)?)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_addresses_with_a_scheme() {
        for (text, shown) in [
            ("http://etcd-1", "http://etcd-1:2379"),
            ("https://etcd-1.internal:4001/", "https://etcd-1.internal:4001"),
            ("https://[fd00::5]", "https://[fd00::5]:2379"),
        ] {
            let endpoint = Endpoint::parse(text).unwrap();
            assert_eq!(
                (endpoint.to_string().as_str(), endpoint.is_encrypted()),
                (shown, text.contains("s://"))
            );
        }
        for text in ["etcd-1:2379", "unix://etcd", "http://", "http://a:0", "http://a/b"] {
            assert!(Endpoint::parse(text).is_err(), "{text}");
        }
    }
}
