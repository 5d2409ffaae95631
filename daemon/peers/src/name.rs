//! Names of hosts.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::protocol::bounded;

/// The maximum length of a DNS name (RFC 1035, section 2.3.4).
const MAX_NAME: usize = 253;

/// The maximum length of a label of it.
const MAX_LABEL: usize = 63;

/// The name of a host: a DNS name in lower case, such as `train-1` or `train-1.europe-west4-a.c.project.internal`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(Arc<str>);

/// Text that is not the name of a host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a host name: expected letters, digits and hyphens in parts separated by dots")]
pub struct InvalidName(String);

impl HostName {
    /// Parses a name; upper case becomes lower case.
    ///
    /// # Errors
    /// If it is not a DNS name.
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        let is_label = |label: &str| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            (1..=MAX_LABEL).contains(&label.len())
                && label.bytes().all(is_plain)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        // An address is no name: certificates distinguish the two.
        let is_address = text.parse::<IpAddr>().is_ok();
        if text.len() > MAX_NAME || is_address || !text.split('.').all(is_label) {
            return Err(InvalidName(bounded(text.to_owned())));
        }
        Ok(Self(text.to_ascii_lowercase().into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
impl HostName {
    /// The valid name `text`.
    pub(crate) fn named(text: &str) -> Self {
        Self::parse(text).expect("a host name")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dns_names_are_host_names() {
        for name in ["a", "train-1", "Train_1.Zone-B.internal", "10.0.0.5.internal", &"a".repeat(63)] {
            assert_eq!(HostName::parse(name).map(|name| name.to_string()), Ok(name.to_ascii_lowercase()));
        }
        let long = format!("{}.{}", "a".repeat(63), "b.".repeat(100));
        for name in
            ["", ".", "a.", "-a", "a-", "a b", "a/b", "*.a", "ä", "a\n", "10.0.0.5", &"a".repeat(64), &long]
        {
            assert!(HostName::parse(name).is_err(), "{name}");
        }
    }
}
