//! The section `[peers]`: the daemons of other hosts.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use millstream_peers::discovery::{DEFAULT_PORT, Source, Target};
use millstream_peers::tls::TlsFiles;
use serde::Deserialize;

use super::Surroundings;

/// The prefix of a file among the service's credentials, as `LoadCredential=` of its unit names it.
const CREDENTIAL: &str = "credential:";

/// The keys of the section.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeersSection {
    /// The address on which other daemons are served.
    pub listen: Option<SocketAddr>,
    /// How other hosts reach it, `HOST:PORT`.
    pub address: Option<String>,
    /// The certificate of this host.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The certificate of the authority.
    pub ca: PathBuf,
    /// The list of revoked certificates.
    pub crl: Option<PathBuf>,
    /// Where the others are.
    #[serde(default)]
    pub discover: Vec<String>,
}

/// How a daemon finds and authenticates those of other hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeersConfig {
    /// The address on which other daemons are served.
    pub listen: SocketAddr,
    /// How other hosts reach it; `None` for the address of `listen`, or for the name in the certificate.
    pub address: Option<Target>,
    /// The certificates.
    pub files: TlsFiles,
    /// Where the others are.
    pub sources: Vec<Source>,
}

impl PeersSection {
    pub(super) fn resolve(self, surroundings: &Surroundings) -> Result<PeersConfig> {
        let file = |path: PathBuf| resolve_file(path, surroundings);
        let listen = self.listen.unwrap_or((IpAddr::V4(Ipv4Addr::UNSPECIFIED), DEFAULT_PORT).into());
        let address = self.address.map(|address| Target::parse(&address)).transpose();
        let sources = self.discover.iter().map(|source| Source::parse(source)).collect::<Result<_, _>>();
        Ok(PeersConfig {
            listen,
            address: address.map_err(|error| anyhow::anyhow!("peers.address: {error}"))?,
            files: TlsFiles {
                certificate: file(self.certificate)?,
                key: file(self.key)?,
                ca: file(self.ca)?,
                crl: self.crl.map(file).transpose()?,
            },
            sources: sources.map_err(|error| anyhow::anyhow!("peers.discover: {error}"))?,
        })
    }
}

/// The path of a file; `credential:NAME` is one of the service's credentials.
fn resolve_file(path: PathBuf, surroundings: &Surroundings) -> Result<PathBuf> {
    let Some(name) = path.to_str().and_then(|text| text.strip_prefix(CREDENTIAL)) else { return Ok(path) };
    anyhow::ensure!(
        Path::new(name).file_name().is_some_and(|file| file == name),
        "`{CREDENTIAL}{name}`: expected the name of a credential"
    );
    let directory = surroundings.credentials.as_ref().with_context(|| {
        format!("`{CREDENTIAL}{name}`: this process has no credentials; add LoadCredential={name}:PATH to its unit")
    })?;
    Ok(directory.join(name))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn resolve(text: &str, credentials: Option<&str>) -> Result<PeersConfig> {
        let section: PeersSection = toml::from_str(text)?;
        let credentials = credentials.map(PathBuf::from);
        section.resolve(&Surroundings { credentials, ..Surroundings::default() })
    }

    #[test]
    fn a_section_names_files_and_sources() {
        let text = "certificate = '/c.pem'\nkey = 'credential:peers.key'\nca = '/ca.pem'\n\
                    discover = ['dns:workers.svc', 'bucket:gs://b/peers']";
        let config = resolve(text, Some("/run/credentials/m")).unwrap();
        assert_eq!(config.files.key, Path::new("/run/credentials/m/peers.key"));
        assert_eq!((config.listen.to_string(), config.sources.len()), ("0.0.0.0:7420".to_owned(), 2));
        let error = format!("{:#}", resolve(text, None).unwrap_err());
        assert!(error.contains("LoadCredential=peers.key:PATH"), "{error}");
        let error = format!("{:#}", resolve(&text.replace("peers.key", "../x"), Some("/c")).unwrap_err());
        assert!(error.contains("expected the name of a credential"), "{error}");
    }

    #[test]
    fn mistakes_are_named_with_their_key() {
        let files = "certificate = '/c.pem'\nkey = '/k'\nca = '/ca.pem'\n";
        for (text, expected) in [
            ("certificate = '/c.pem'", "missing field `key`"),
            (&format!("{files}discover = ['train-1']"), "peers.discover: expected \"static:"),
            (&format!("{files}address = 'a:b'"), "peers.address: \"a:b\" is not a host address"),
            (&format!("{files}listen = '7420'"), "socket address"),
            (&format!("{files}name = 'a'"), "unknown field `name`"),
        ] {
            let error = format!("{:#}", resolve(text, None).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }
}
