//! The addresses at which other machines may reach this one.
//!
//! A datagram socket that is connected sends nothing, but gets the address that the kernel would send from.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, ToSocketAddrs, UdpSocket};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// The most addresses of a name that are tried.
const MAX_OF_NAME: usize = 8;

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 128;

/// The first port that is not of the system.
const LEAST_PORT: u16 = 1024;

/// Any port: nothing is sent.
const DISCARD: u16 = 9;

/// Addresses of documentation, which are routed like those of the internet (RFC 5737, RFC 3849).
const FAR: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// The addresses, the best first: the one that is used for the machine `toward`, then those for machines of the internet.
/// Loopback comes last, for machines that are simulated on one.
pub(super) fn of_this_machine(toward: Option<&str>) -> Vec<IpAddr> {
    let near = toward.and_then(|name| (name, DISCARD).to_socket_addrs().ok());
    let near = near.into_iter().flatten().take(MAX_OF_NAME);
    let far = FAR.iter().filter_map(|address| Some(SocketAddr::new(address.parse().ok()?, DISCARD)));
    let mut addresses: Vec<IpAddr> = Vec::new();
    for to in near.chain(far) {
        if let Some(address) = source(to).filter(|address| !addresses.contains(address)) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        addresses.push(IpAddr::from([127, 0, 0, 1]));
    }
    addresses.sort_by_key(IpAddr::is_loopback);
    addresses
}

/// Listens at all addresses at the first free port from `first` to `last`.
///
/// # Errors
/// Why none is free, or may not be chosen.
pub(super) fn listen_at_one_of((first, last): (u16, u16)) -> Result<TcpListener, String> {
    let named = if first == last { format!("port {first}") } else { format!("ports {first} to {last}") };
    if first < LEAST_PORT || last < first {
        return Err(format!("{named}: choose ascending ports from {LEAST_PORT} on for shards"));
    }
    let mut problem = None;
    for port in first..=last {
        match listen(port) {
            Ok(listener) => return Ok(listener),
            Err(error) => problem = Some(error),
        }
    }
    let problem = problem.map(|error| error.to_string()).unwrap_or_default();
    Err(format!(
        "{named}: none is free for shards on this machine: {problem}; each program that reads shards needs one"
    ))
}

/// Listens at all addresses, of IPv4 and IPv6, at `port`; the system chooses one if that is 0.
pub(super) fn listen(port: u16) -> io::Result<TcpListener> {
    // A system may have no IPv6.
    listen_on_both(port).or_else(|error| match error.kind() {
        io::ErrorKind::AddrInUse => Err(error),
        _ => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
    })
}

fn listen_on_both(port: u16) -> io::Result<TcpListener> {
    let socket =
        rustix::net::socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The system's default may be IPv6 only.
    sockopt::set_ipv6_v6only(&socket, false)?;
    // A port of connections that have ended is free.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// The address from which the kernel would send to `to`.
fn source(to: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(to).ok()?;
    let address = socket.local_addr().ok()?.ip();
    // An address of one link says nothing without the link.
    let is_of_link = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    (!is_of_link && !address.is_unspecified()).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_free_port_is_taken() {
        // Ports that another test may take at the same time are tried until two in a row are free.
        for first in (20_000..30_000).step_by(2) {
            let ports = (first, first + 1);
            let (Ok(one), Ok(two)) = (listen_at_one_of(ports), listen_at_one_of(ports)) else { continue };
            let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port()).ok();
            assert_eq!([port(&one), port(&two)], [Some(first), Some(first + 1)]);
            let error = listen_at_one_of(ports).err().unwrap_or_default();
            assert!(error.starts_with(&format!("ports {first} to {}: none is free", first + 1)), "{error}");
            return;
        }
        panic!("no ports are free");
    }

    #[test]
    fn ports_of_the_system_and_descending_ones_are_refused() {
        for ports in [(0, 0), (80, 2000), (3000, 2999)] {
            assert!(listen_at_one_of(ports).is_err_and(|error| error.contains("from 1024 on")));
        }
    }

    #[test]
    fn loopback_comes_last_and_no_address_twice() {
        let addresses = of_this_machine(Some("127.0.0.1"));
        assert_eq!(addresses.last(), Some(&IpAddr::from([127, 0, 0, 1])));
        assert_eq!(addresses.iter().filter(|address| address.is_loopback()).count(), 1);
        assert!(!of_this_machine(Some("no such name.invalid")).is_empty());
        assert!(!of_this_machine(None).is_empty());
    }
}
