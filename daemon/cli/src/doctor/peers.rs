//! The daemons of other hosts: which are down, run another version, or have a different clock; and the network between their
//! workers.

use std::fs;
use std::path::Path;
use std::time::Duration;

use millstream_control::proto::{Peer, PeersReply};
use millstream_control::{Client, ClientError};
use millstream_daemon::config::{DataNetwork, DataProtection};
use millstream_worker::check_interface;

use super::finding::Finding;
use crate::printable::printable;

/// Time limit for the daemon to ask all of them.
const LIMIT: Duration = Duration::from_secs(30);

/// Clocks that differ by more make log lines of several hosts hard to compare.
const MAX_OFFSET: f64 = 0.5;

/// What was found out about the other hosts; nothing if the daemon has no peers.
pub(super) async fn findings(socket: &Path) -> Vec<Finding> {
    let asked = async { Client::connect(socket).await?.peers().await };
    match tokio::time::timeout(LIMIT, asked).await {
        Ok(Ok(reply)) => all(&reply),
        // It has no peers, or is older than them.
        Ok(Err(ClientError::Failed(_))) => Vec::new(),
        Ok(Err(error)) => vec![Finding::warn("peers", error.to_string(), "journalctl -u millstreamd -n 50")],
        Err(_) => {
            let late = format!("no answer within {} s", LIMIT.as_secs());
            vec![Finding::warn("peers", late, "journalctl -u millstreamd -n 50")]
        }
    }
}

fn all(PeersReply { this_host, peers, .. }: &PeersReply) -> Vec<Finding> {
    let version = this_host.as_ref().map_or("", |host| &host.version);
    let mut findings: Vec<_> = peers.iter().filter_map(|peer| problem(peer, version)).collect();
    if findings.is_empty() {
        let found = match peers.len() {
            0 => "no other host was found".to_owned(),
            1 => "1 other host is up".to_owned(),
            count => format!("{count} other hosts are up"),
        };
        findings.push(Finding::ok("peers", found));
    }
    findings
}

/// What is wrong with a host.
fn problem(peer: &Peer, version: &str) -> Option<Finding> {
    let name = if peer.name.is_empty() { &peer.address } else { &peer.name };
    let name = printable(name);
    if peer.state != "up" {
        let found = format!("{name} is down: {}", printable(&peer.reason));
        let is_unreachable =
            ["cannot connect", "no answer"].iter().any(|start| peer.reason.starts_with(start));
        let advice = if is_unreachable {
            format!("start millstreamd on {name}, or open its port")
        } else {
            "see \"When a host is missing\" on the manual's page \"Several hosts\"".to_owned()
        };
        return Some(Finding::warn("peers", found, advice));
    }
    if peer.version != version {
        let found = format!("{name} runs version {}, this host {version}", printable(&peer.version));
        return Some(Finding::warn("peers", found, "install the same version of Millstream on all hosts"));
    }
    let offset = peer.clock_offset_seconds.unwrap_or_default();
    if offset.abs() - peer.clock_error_seconds.unwrap_or_default() > MAX_OFFSET {
        let found = format!("the clock of {name} differs by {offset:+.1} s");
        return Some(Finding::warn("peers", found, "timedatectl set-ntp true, on both hosts"));
    }
    None
}

/// What is wrong with the interfaces for the data of workers.
pub(super) fn data_findings(data: &DataNetwork) -> Vec<Finding> {
    let facts = |name| {
        let uevent = fs::read_to_string(format!("/sys/class/net/{name}/uevent")).unwrap_or_default();
        data_finding(name, data.protection, check_interface(name), &uevent)
    };
    data.interfaces().map(facts).collect()
}

/// The finding for interface `name`. `uevent` is the kernel's description of it.
fn data_finding(name: &str, protection: DataProtection, usable: Result<(), String>, uevent: &str) -> Finding {
    const CHECK: &str = "peers.data";
    if let Err(error) = usable {
        let advice =
            "correct peers.data_interface, or bring the interface up; workers of several hosts need it";
        return Finding::fail(CHECK, error, advice);
    }
    let is_wireguard = uevent.lines().any(|line| line == "DEVTYPE=wireguard");
    match protection {
        DataProtection::Wireguard if !is_wireguard => {
            let found = format!(
                "{name} is not a WireGuard interface of the kernel, but data_protection is \"wireguard\""
            );
            Finding::warn(CHECK, found, "set peers.data_interface to the interface that encrypts")
        }
        DataProtection::Wireguard => Finding::ok(CHECK, format!("{name} is up and encrypts")),
        DataProtection::Isolated => Finding::ok(
            CHECK,
            format!("{name} is up; data on it is not encrypted (data_protection \"isolated\")"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Mark;
    use super::*;

    #[test]
    fn the_network_for_data_is_up_and_of_its_kind() {
        let missing = || Err("network interface eth1: this host has none of that name".to_owned());
        let wireguard = "DEVTYPE=wireguard\nINTERFACE=eth1\nIFINDEX=3\n";
        for (protection, usable, uevent, mark, text) in [
            (DataProtection::Isolated, Ok(()), "", Mark::Ok, "eth1 is up; data on it is not encrypted"),
            (DataProtection::Wireguard, Ok(()), wireguard, Mark::Ok, "eth1 is up and encrypts"),
            (DataProtection::Wireguard, Ok(()), "INTERFACE=eth1\n", Mark::Warn, "eth1 is not a WireGuard"),
            (
                DataProtection::Wireguard,
                missing(),
                "",
                Mark::Fail,
                "network interface eth1: this host has none",
            ),
        ] {
            let finding = data_finding("eth1", protection, usable, uevent);
            assert!(finding.mark == mark && finding.found.starts_with(text), "{finding:?}");
        }
    }

    fn peer() -> Peer {
        Peer {
            name: "b".into(),
            address: "b:1".into(),
            state: "up".into(),
            version: "1".into(),
            ..Peer::default()
        }
    }

    fn found(peers: Vec<Peer>) -> Vec<Finding> {
        let this_host = Some(Peer { name: "a".into(), ..peer() });
        all(&PeersReply { this_host, peers, refused_connections: 0 })
    }

    #[test]
    fn hosts_without_problems_are_one_finding() {
        for (count, text) in [(0, "no other host"), (1, "1 other host is up"), (3, "3 other hosts are up")] {
            let findings = found(vec![peer(); count]);
            assert_eq!(findings.len(), 1);
            assert!(findings[0].mark == Mark::Ok && findings[0].found.contains(text), "{findings:?}");
        }
    }

    #[test]
    fn each_problem_names_its_host() {
        let down = Peer { name: String::new(), state: "down".into(), reason: "refused".into(), ..peer() };
        let old = Peer { version: "0".into(), ..peer() };
        let late = Peer { clock_offset_seconds: Some(-2.0), clock_error_seconds: Some(0.1), ..peer() };
        let unsure = Peer { clock_offset_seconds: Some(2.0), clock_error_seconds: Some(1.9), ..peer() };
        let findings = found(vec![down, old, late, unsure]);
        let texts: Vec<_> = findings.iter().map(|finding| finding.found.as_str()).collect();
        let wanted =
            ["b:1 is down: refused", "b runs version 0, this host 1", "the clock of b differs by -2.0 s"];
        assert_eq!(texts, wanted);
        assert!(findings.iter().all(|finding| finding.mark == Mark::Warn && finding.advice.is_some()));
    }
}
