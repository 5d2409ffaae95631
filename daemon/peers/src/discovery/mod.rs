//! Where the daemons of other hosts are.
//!
//! A source names addresses; the certificate and the greeting of the daemon that answers decide. So a source need not be right: an address without a
//! daemon is shown as down, one of a stranger is refused, and this host's own is recognised by its greeting.
//!
//! | source | finds |
//! |---|---|
//! | `static:train-1:7420,10.0.0.5:7420` | these addresses |
//! | `dns:workers.default.svc:7420` | all addresses of a DNS name: a headless service of Kubernetes |
//! | `bucket:gs://bucket/peers` | the daemons that announce themselves there: no service besides the bucket |
//! | `etcd` | the daemons that announce themselves in the etcd cluster of the site |
//!
//! The port is optional; the default is [`DEFAULT_PORT`].

mod board;
mod registry;

use std::fmt;
use std::path::Path;

use millstream_io::storage::Directory;

pub use self::board::Board;
pub use self::registry::Registry;

/// The port of daemons for other daemons.
pub const DEFAULT_PORT: u16 = 7420;

/// The most addresses of one source.
pub(crate) const MAX_ADDRESSES: usize = 4096;

/// A source of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// These addresses.
    Static(Vec<Target>),
    /// All addresses of a DNS name.
    Dns(Target),
    /// The daemons that announce themselves in a directory, local or in a bucket.
    Bucket(Directory),
    /// The daemons that announce themselves in etcd.
    Etcd,
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// A DNS name, or an IP address; without the brackets of IPv6.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Source {
    /// Parses `static:...`, `dns:...`, `bucket:...` or `etcd`.
    ///
    /// # Errors
    /// If it is none of them; the message says what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "expected \"static:HOST:PORT,HOST:PORT\", \"dns:NAME:PORT\", \"bucket:gs://BUCKET/PATH\" or \"etcd\", found \"{text}\""
            )
        };
        if text == "etcd" {
            return Ok(Self::Etcd);
        }
        let (kind, value) = text.split_once(':').ok_or_else(expected)?;
        match kind {
            "static" => {
                let targets: Result<Vec<_>, _> =
                    value.split(',').map(|one| Target::parse(one.trim())).collect();
                targets.map(Self::Static)
            }
            "dns" => Target::parse(value).map(Self::Dns),
            "bucket" => {
                let directory = Directory::parse(value, Path::new("/"));
                directory.map(Self::Bucket).map_err(|error| format!("in \"{text}\": {error}"))
            }
            _ => Err(expected()),
        }
    }
}

impl Target {
    /// Parses `HOST` or `HOST:PORT`; an IPv6 address with a port is in brackets.
    ///
    /// # Errors
    /// If there is no host, or the port is not one.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::parse_with(text, DEFAULT_PORT)
    }

    /// The same with another default port.
    pub(crate) fn parse_with(text: &str, default_port: u16) -> Result<Self, String> {
        let bad = |why: &str| Err(format!("\"{text}\" is not a host address: {why}"));
        let (host, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
            Some(Some((host, ""))) => (host, None),
            Some(Some((host, rest))) => match rest.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None => return bad("expected [ADDRESS]:PORT"),
            },
            Some(None) => return bad("the bracket is not closed"),
            None => match text.rsplit_once(':') {
                // More colons: an IPv6 address without a port.
                Some((host, _)) if host.contains(':') => (text, None),
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port = port.map_or(Ok(default_port), str::parse);
        let Ok(port) = port else { return bad("the port is not a number from 1 to 65535") };
        if host.is_empty()
            || port == 0
            || host.chars().any(|c| c.is_whitespace() || c.is_control() || c == '/')
        {
            return bad("expected HOST:PORT");
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// All addresses of a DNS name.
///
/// # Errors
/// If the name cannot be resolved.
pub(crate) async fn resolve(target: &Target) -> Result<Vec<String>, String> {
    let found = tokio::net::lookup_host((target.host.as_str(), target.port)).await;
    let found = found.map_err(|error| format!("cannot resolve {}: {error}", target.host))?;
    Ok(found.map(|address| address.to_string()).take(MAX_ADDRESSES).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_with_and_without_a_port() {
        let cases = [
            ("train-1", "train-1:7420"),
            ("train-1:80", "train-1:80"),
            ("10.0.0.5:7421", "10.0.0.5:7421"),
            ("fd00::5", "[fd00::5]:7420"),
            ("[fd00::5]", "[fd00::5]:7420"),
            ("[fd00::5]:99", "[fd00::5]:99"),
        ];
        for (text, address) in cases {
            let target = Target::parse(text).unwrap();
            assert_eq!(target.to_string(), address);
            assert_eq!(Target::parse(address).unwrap(), target);
        }
        for text in ["", ":1", "a:", "a:0", "a:65536", "a:b", "[fd00::5", "[fd00::5]9", "a b:1", "a/b:1"] {
            assert!(Target::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sources_are_parsed() {
        let target = |text| Target::parse(text).unwrap();
        assert_eq!(
            Source::parse("static:a:1, b").unwrap(),
            Source::Static(vec![target("a:1"), target("b:7420")])
        );
        assert_eq!(Source::parse("dns:workers.svc:9").unwrap(), Source::Dns(target("workers.svc:9")));
        let bucket = Directory::parse("gs://b/peers", Path::new("/")).unwrap();
        assert_eq!(Source::parse("bucket:gs://b/peers").unwrap(), Source::Bucket(bucket));
        for text in
            ["", "static", "static:", "static:a,,b", "dns:", "etcd:a", "bucket:ftp://b", "gs://b/peers"]
        {
            assert!(Source::parse(text).is_err(), "{text}");
        }
    }
}
