//! The section `[peers]`: the daemons of other hosts.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Result, bail};
use millstream_peers::discovery::{DEFAULT_PORT, Source, Target};
use millstream_peers::tls::TlsFiles;
use serde::Deserialize;

use super::{Surroundings, resolve_file};

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
    /// The network interfaces for the data that workers of several hosts exchange, separated by commas.
    pub data_interface: Option<String>,
    /// What protects that data.
    pub data_protection: Option<DataProtection>,
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
    /// The network for the data that workers of several hosts exchange.
    pub data: Option<DataNetwork>,
}

/// The network between workers of several hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataNetwork {
    /// The interfaces, separated by commas.
    pub interface: String,
    /// What protects the data.
    pub protection: DataProtection,
}

/// What protects data that is neither encrypted nor authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataProtection {
    /// The network encrypts it.
    Wireguard,
    /// Only the hosts of the jobs can reach the network.
    Isolated,
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
            data: DataNetwork::resolve(self.data_interface, self.data_protection)?,
        })
    }
}

impl DataNetwork {
    /// The names of the interfaces.
    pub fn interfaces(&self) -> impl Iterator<Item = &str> {
        self.interface.split(',')
    }

    fn resolve(interface: Option<String>, protection: Option<DataProtection>) -> Result<Option<Self>> {
        match (interface, protection) {
            (None, None) => Ok(None),
            (None, Some(_)) => {
                bail!(
                    "peers.data_protection: without peers.data_interface it protects nothing; set both or neither"
                )
            }
            (Some(_), None) => bail!(
                "peers.data_interface: set peers.data_protection as well. Workers exchange data without encryption and \
                 authentication, so the interface must be that of a network that encrypts (\"wireguard\"), or that only the \
                 hosts of your jobs can reach (\"isolated\")"
            ),
            (Some(interface), Some(protection)) => {
                let data = Self { interface, protection };
                if let Some(name) = data.interfaces().find(|name| !is_interface_name(name)) {
                    bail!(
                        "peers.data_interface: \"{name}\" is not the name of a network interface, such as \"eth1\""
                    );
                }
                Ok(Some(data))
            }
        }
    }
}

/// Whether the kernel allows this name for a network interface.
fn is_interface_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':');
    (1..=15).contains(&name.len()) && name.bytes().all(is_allowed) && !matches!(name, "." | "..")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

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
    fn a_network_for_data_is_protected() {
        let files = "certificate = '/c.pem'\nkey = '/k'\nca = '/ca.pem'\n";
        let data = |keys: &str| resolve(&format!("{files}{keys}"), None).unwrap().data;
        assert_eq!(data(""), None);
        for (word, protection) in
            [("wireguard", DataProtection::Wireguard), ("isolated", DataProtection::Isolated)]
        {
            let keys = format!("data_interface = 'eth1,lo'\ndata_protection = '{word}'");
            let found = data(&keys).unwrap();
            assert_eq!(found.protection, protection);
            assert_eq!(found.interfaces().collect::<Vec<_>>(), ["eth1", "lo"]);
        }
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
            (
                &format!("{files}data_interface = 'eth1'"),
                "peers.data_interface: set peers.data_protection as well",
            ),
            (
                &format!("{files}data_protection = 'isolated'"),
                "peers.data_protection: without peers.data_interface",
            ),
            (&format!("{files}data_interface = 'eth1'\ndata_protection = 'none'"), "unknown variant `none`"),
            (
                &format!("{files}data_interface = 'eth1, eth2'\ndata_protection = 'isolated'"),
                "peers.data_interface: \" eth2\" is not the name of a network interface",
            ),
        ] {
            let error = format!("{:#}", resolve(text, None).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }
}
