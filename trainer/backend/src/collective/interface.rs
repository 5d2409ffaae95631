//! Network interfaces of this host.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int};
use std::io;
use std::net::Ipv6Addr;
use std::ptr;

/// Why a network interface cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// It does not exist.
    #[error("network interface {name}: this host has none of this name, only {}", others.join(", "))]
    Missing {
        /// Its name.
        name: String,
        /// The interfaces of this host.
        others: Vec<String>,
    },
    /// It is down, or has no carrier.
    #[error("network interface {name} is down")]
    Down {
        /// Its name.
        name: String,
    },
    /// It has no address.
    #[error("network interface {name} has no IP address")]
    Address {
        /// Its name.
        name: String,
    },
    /// The system does not list interfaces.
    #[error("network interface {name}: the system does not list its interfaces: {source}")]
    System {
        /// Its name.
        name: String,
        /// The system's message.
        source: io::Error,
    },
}

/// The properties of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Interface {
    is_up: bool,
    has_address: bool,
}

/// Checks that this host has a network interface of this name that is up and has an IP address. One that is only valid on the
/// link does not count.
///
/// # Errors
/// If not.
pub fn check_interface(name: &str) -> Result<(), InterfaceError> {
    let found = interfaces().map_err(|source| InterfaceError::System { name: name.to_owned(), source })?;
    check(name, &found)
}

fn check(name: &str, interfaces: &BTreeMap<String, Interface>) -> Result<(), InterfaceError> {
    let name = name.to_owned();
    match interfaces.get(&name) {
        None => Err(InterfaceError::Missing { name, others: interfaces.keys().cloned().collect() }),
        Some(Interface { is_up: false, .. }) => Err(InterfaceError::Down { name }),
        Some(Interface { has_address: false, .. }) => Err(InterfaceError::Address { name }),
        Some(_) => Ok(()),
    }
}

/// The interfaces of this host.
fn interfaces() -> io::Result<BTreeMap<String, Interface>> {
    let mut interfaces = BTreeMap::<String, Interface>::new();
    let mut first = ptr::null_mut();
    // SAFETY: `first` is valid for writes.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut next = first;
    // SAFETY: each entry of the list is null, or valid until it is freed.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: the name is zero-terminated and as valid as its entry.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        // SAFETY: an address is null, or as valid as its entry, of the size that its family says.
        let has_address = unsafe { entry.ifa_addr.as_ref() }.is_some_and(|address| {
            match c_int::from(address.sa_family) {
                libc::AF_INET => true,
                libc::AF_INET6 => {
                    // SAFETY: it has this family.
                    let address = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
                    !Ipv6Addr::from(address.sin6_addr.s6_addr).is_unicast_link_local()
                }
                _ => false,
            }
        });
        let running = (libc::IFF_UP | libc::IFF_RUNNING).cast_unsigned();
        let interface = interfaces.entry(name).or_default();
        interface.is_up |= entry.ifa_flags & running == running;
        interface.has_address |= has_address;
        next = entry.ifa_next;
    }
    // SAFETY: the list is freed once, after its last use.
    unsafe { libc::freeifaddrs(first) };
    Ok(interfaces)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_loopback_interface_can_be_used() {
        check_interface("lo").unwrap();
    }

    #[test]
    fn problems_name_the_interface() {
        let interface = |name: &str, is_up, has_address| (name.to_owned(), Interface { is_up, has_address });
        let found = BTreeMap::from([
            interface("eth0", true, true),
            interface("eth1", false, true),
            interface("eth2", true, false),
        ]);
        check("eth0", &found).unwrap();
        for (name, message) in [
            ("eth1", "network interface eth1 is down"),
            ("eth2", "network interface eth2 has no IP address"),
            ("eth", "network interface eth: this host has none of this name, only eth0, eth1, eth2"),
        ] {
            assert_eq!(check(name, &found).unwrap_err().to_string(), message);
        }
    }
}
