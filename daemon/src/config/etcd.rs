//! The section `[etcd]`: the etcd cluster of the site.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use millstream_peers::etcd::{Endpoint, EtcdFiles, EtcdSpec};
use serde::Deserialize;

use super::{Surroundings, resolve_file};

/// The default key prefix.
const DEFAULT_PREFIX: &str = "millstream";

/// How long members are asked again if none answers. Leases that are held have shorter limits.
const RETRY: Duration = Duration::from_secs(30);

/// The keys of the section.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdSection {
    /// The members of the cluster, or some of them.
    pub endpoints: Vec<String>,
    /// The key prefix of Millstream.
    pub prefix: Option<String>,
    /// The certificate of the authority of the members.
    pub ca: Option<PathBuf>,
    /// The certificate of this host.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
}

impl EtcdSection {
    pub(super) fn resolve(self, surroundings: &Surroundings) -> Result<EtcdSpec> {
        let endpoints: Result<Vec<_>, _> = self.endpoints.iter().map(|text| Endpoint::parse(text)).collect();
        let endpoints = endpoints.map_err(|error| anyhow!("etcd.endpoints: {error}"))?;
        ensure!(!endpoints.is_empty(), "etcd.endpoints: at least one is needed");
        let prefix = self.prefix.as_deref().unwrap_or(DEFAULT_PREFIX).trim_end_matches('/');
        ensure!(!prefix.is_empty(), "etcd.prefix: expected one such as \"{DEFAULT_PREFIX}\"");
        let file = |path: PathBuf| resolve_file(path, surroundings);
        let identity = match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => Some((file(certificate)?, file(key)?)),
            (None, None) => None,
            _ => anyhow::bail!("etcd.certificate, etcd.key: set both or neither"),
        };
        let files = EtcdFiles { ca: self.ca.map(file).transpose()?, identity };
        if let Some(endpoint) = endpoints.iter().find(|endpoint| !endpoint.is_encrypted()) {
            ensure!(
                files == EtcdFiles::default(),
                "etcd.endpoints: certificates are for https://, and {endpoint} is not"
            );
        }
        Ok(EtcdSpec { endpoints, prefix: prefix.to_owned(), retry: RETRY, files })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use super::*;

    fn resolve(text: &str) -> Result<EtcdSpec> {
        let credentials = Some("/run/credentials/m".into());
        let section: EtcdSection = toml::from_str(text)?;
        section.resolve(&Surroundings { credentials, ..Surroundings::default() })
    }

    #[test]
    fn a_section_names_members_and_files() {
        let spec = resolve(
            "endpoints = ['https://etcd-1', 'https://etcd-2:4001']\nca = '/ca.pem'\ncertificate = '/c.pem'\nkey = 'credential:etcd.key'\n\
             prefix = 'sites/a/'",
        );
        let spec = spec.unwrap();
        let shown: Vec<_> = spec.endpoints.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["https://etcd-1:2379", "https://etcd-2:4001"]);
        assert_eq!(spec.prefix, "sites/a");
        let key = Path::new("/run/credentials/m/etcd.key").to_owned();
        assert_eq!(spec.files.identity, Some(("/c.pem".into(), key)));
        assert_eq!(resolve("endpoints = ['http://etcd-1']").unwrap().prefix, "millstream");
    }

    #[test]
    fn mistakes_are_named_with_their_key() {
        let one = "endpoints = ['http://etcd-1']\n";
        for (text, expected) in [
            ("prefix = 'a'", "missing field `endpoints`"),
            ("endpoints = []", "etcd.endpoints: at least one"),
            ("endpoints = ['etcd-1']", "etcd.endpoints: expected http://HOST:PORT"),
            (&format!("{one}prefix = '/'"), "etcd.prefix: expected one"),
            (&format!("{one}ca = '/ca.pem'"), "certificates are for https://, and http://etcd-1:2379 is not"),
            ("endpoints = ['https://a']\nkey = '/k'", "etcd.certificate, etcd.key: set both or neither"),
            (&format!("{one}user = 'a'"), "unknown field `user`"),
        ] {
            let error = format!("{:#}", resolve(text).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }
}
