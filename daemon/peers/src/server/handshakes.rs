//! The unfinished handshakes, bounded in number.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The most unfinished handshakes.
const MAX_HANDSHAKES: usize = 256;

/// The unfinished handshakes, the oldest first.
#[derive(Default)]
pub(super) struct Handshakes(Mutex<State>);

#[derive(Default)]
struct State {
    begun: u64,
    open: Vec<Open>,
}

struct Open {
    number: u64,
    network: IpAddr,
    /// Dropping it ends the handshake.
    _replace: oneshot::Sender<()>,
}

/// An unfinished handshake, until it is dropped.
pub(super) struct Handshake {
    all: Arc<Handshakes>,
    number: u64,
}

impl Handshakes {
    /// Begins a handshake with `address`, and returns it with a future that is ready once another one replaces it.
    pub(super) fn begin(self: &Arc<Self>, address: IpAddr) -> (Handshake, impl Future<Output = ()> + use<>) {
        let (replace, replaced) = oneshot::channel();
        let mut state = self.state();
        if state.open.len() == MAX_HANDSHAKES {
            let place = state.oldest_of_the_busiest();
            state.open.remove(place);
        }
        let number = state.begun;
        state.begun += 1;
        state.open.push(Open { number, network: network_of(address), _replace: replace });
        let handshake = Handshake { all: Arc::clone(self), number };
        (handshake, async move { drop(replaced.await) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The place of the oldest handshake of the network that has the most.
    fn oldest_of_the_busiest(&self) -> usize {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for open in &self.open {
            *counts.entry(open.network).or_default() += 1;
        }
        let most = counts.values().max().copied().unwrap_or_default();
        self.open.iter().position(|open| counts[&open.network] == most).unwrap_or_default()
    }
}

/// The network of one host: an address of IPv4, 64 bits of one of IPv6.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address @ IpAddr::V4(_) => address,
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.all.state().open.retain(|open| open.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures::FutureExt;

    use super::*;

    #[test]
    fn one_host_has_one_network() {
        let network = |text: &str| network_of(text.parse().expect("an address"));
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), network("2001:db8:1:2::9"));
        assert_ne!(network("2001:db8:1:2::9"), network("2001:db8:1:3::9"));
        assert_eq!(network("::ffff:10.0.0.1"), network("10.0.0.1"));
        assert_ne!(network("10.0.0.2"), network("10.0.0.1"));
    }

    #[test]
    fn a_stranger_replaces_its_own_handshakes() {
        let all = Arc::new(Handshakes::default());
        let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
        let (good, kept) = all.begin(address(1));
        let mut kept = kept.boxed();
        let strangers: Vec<_> = (0..2 * MAX_HANDSHAKES).map(|_| all.begin(address(2))).collect();
        assert_eq!(all.state().open.len(), MAX_HANDSHAKES);
        assert!((&mut kept).now_or_never().is_none());
        let mut replaced = 0;
        for (handshake, ended) in strangers {
            replaced += usize::from(ended.now_or_never().is_some());
            drop(handshake);
        }
        assert_eq!(replaced, MAX_HANDSHAKES + 1);
        assert_eq!(all.state().open.len(), 1);
        drop(good);
        assert_eq!(all.state().open.len(), 0);
    }
}
