//! The address of a rank, which says how the others reach it.

use std::fs;
use std::io;
use std::process;

use rustix::fs::readlink;
use sha2::{Digest, Sha256};

/// The namespaces that processes must share to communicate as those of one host: of process numbers, of memory segments and
/// of network interfaces.
const NAMESPACES: [&str; 3] = ["/proc/self/ns/pid", "/proc/self/ns/ipc", "/proc/self/ns/net"];
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Identifies a host. Containers count as separate hosts, unless they share their namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostId([u8; Self::BYTES]);

impl HostId {
    const BYTES: usize = 8;
    /// Of ranks without a network between hosts.
    pub(super) const ANY: Self = Self([0; Self::BYTES]);

    /// The host of this process.
    pub(super) fn of_this_host() -> io::Result<Self> {
        let mut hash = Sha256::new_with_prefix(fs::read(BOOT_ID)?);
        for namespace in NAMESPACES {
            hash.update(readlink(namespace, Vec::new())?.as_bytes());
        }
        let hash: [u8; 32] = hash.finalize().into();
        let (bytes, _) = hash.split_first_chunk().expect("8 of 32 bytes");
        Ok(Self(*bytes))
    }

    /// A host that stands for number `number` of several, for tests and measurements on one host.
    pub fn imagined(number: u64) -> Self {
        Self(number.to_le_bytes())
    }
}

/// The address of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RankAddress<'a> {
    pub(super) process: u32,
    pub(super) host: HostId,
    /// UCX's address for ranks of the same host.
    pub(super) local: &'a [u8],
    /// UCX's address for ranks of other hosts; empty without a network.
    pub(super) network: &'a [u8],
}

impl<'a> RankAddress<'a> {
    /// The address of this process.
    pub(super) fn of_this_process(host: HostId, local: &'a [u8], network: &'a [u8]) -> Self {
        Self { process: process::id(), host, local, network }
    }

    /// The address as bytes: process number (u32), host (8 bytes), size of the local address (u16), local address, network
    /// address.
    pub(super) fn encode(self) -> Vec<u8> {
        let size = u16::try_from(self.local.len()).expect("an address of less than 64 KiB");
        [&self.process.to_le_bytes()[..], &self.host.0, &size.to_le_bytes(), self.local, self.network]
            .concat()
    }

    /// The address of these bytes, if they are one.
    pub(super) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (process, rest) = bytes.split_first_chunk()?;
        let (host, rest) = rest.split_first_chunk()?;
        let (size, rest) = rest.split_first_chunk()?;
        let (local, network) = rest.split_at_checked(u16::from_le_bytes(*size).into())?;
        let address = Self { process: u32::from_le_bytes(*process), host: HostId(*host), local, network };
        (!local.is_empty()).then_some(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_encoding() {
        let host = HostId::imagined(u64::MAX - 1);
        for network in [&b"network"[..], b""] {
            let address = RankAddress::of_this_process(host, b"local", network);
            let bytes = address.encode();
            assert_eq!(RankAddress::decode(&bytes), Some(address));
            let cut = (0..bytes.len()).filter(|&cut| RankAddress::decode(&bytes[..cut]).is_some());
            assert!(cut.count() == network.len(), "the end of the network's address is the end of the bytes");
        }
    }

    #[test]
    fn a_host_is_known_again() {
        let this = HostId::of_this_host().ok();
        assert!(this.is_some() && this == HostId::of_this_host().ok() && this != Some(HostId::ANY));
    }
}
