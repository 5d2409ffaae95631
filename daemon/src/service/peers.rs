//! The calls about other hosts.

use std::time::Duration;

use futures::StreamExt;
use millstream_control::proto;
use millstream_peers::hosts::{PeerSnapshot, PeerState};
use millstream_peers::{About, HostStatus};
use tonic::{Response, Status};

use super::{Replies, Reply, Service, error_status};
use crate::peers::{Measured, Peers};

/// The default number of connections of a measurement.
const CONNECTIONS: u32 = 4;

/// The maximum number of them.
const MAX_CONNECTIONS: u32 = 16;

/// The default duration of a measurement in one direction.
const MILLISECONDS: u32 = 1_000;

/// The maximum duration.
const MAX_MILLISECONDS: u32 = 10_000;

/// The answer of a daemon without peers.
const NO_PEERS: &str = "this daemon has no peers: its configuration has no section [peers]; the manual's page \
                        \"Several hosts\" explains it";

impl Service {
    fn peers_of_daemon(&self) -> Result<&Peers, Status> {
        self.daemon.peers().map(AsRef::as_ref).ok_or_else(|| Status::failed_precondition(NO_PEERS))
    }

    /// This host and the others.
    pub(super) async fn list_peers(&self) -> Reply<proto::PeersReply> {
        let peers = self.peers_of_daemon()?;
        let others = peers.now().await;
        Ok(Response::new(proto::PeersReply {
            this_host: Some(this_host(peers.this_host())),
            peers: others.into_iter().map(peer).collect(),
            refused_connections: peers.refused(),
        }))
    }

    /// The links to other hosts, each when it is measured.
    pub(super) async fn measure_links(
        &self,
        request: proto::MeasurePeersRequest,
    ) -> Reply<Replies<proto::PeerMeasurement>> {
        let proto::MeasurePeersRequest { hosts, connections, milliseconds } = request;
        let given = |value: u32, default: u32| if value == 0 { default } else { value };
        let (connections, milliseconds) =
            (given(connections, CONNECTIONS), given(milliseconds, MILLISECONDS));
        if connections > MAX_CONNECTIONS || milliseconds > MAX_MILLISECONDS {
            let limits = format!("at most {MAX_CONNECTIONS} connections and {MAX_MILLISECONDS} ms");
            return Err(Status::invalid_argument(limits));
        }
        let how = (connections as usize, Duration::from_millis(milliseconds.into()));
        let measured = self.peers_of_daemon()?.measure(&hosts, how).await.map_err(error_status)?;
        Ok(Response::new(measured.map(|measured| Ok(measurement(measured))).boxed()))
    }
}

fn this_host((about, status): (About, HostStatus)) -> proto::Peer {
    let up_seconds = status.up_seconds as f64;
    let peer = proto::Peer { state: "up".to_owned(), state_seconds: up_seconds, ..proto::Peer::default() };
    with_status(with_about(peer, about), status)
}

fn peer(snapshot: PeerSnapshot) -> proto::Peer {
    let PeerSnapshot { address, about, state, since, status, clock, round_trip } = snapshot;
    let (state, reason) = match state {
        PeerState::Up => ("up", String::new()),
        PeerState::Down(reason) => ("down", reason),
    };
    let peer = about.map(|about| with_about(proto::Peer::default(), about)).unwrap_or_default();
    let peer = with_status(peer, status.unwrap_or_default());
    proto::Peer {
        address,
        state: state.to_owned(),
        reason,
        state_seconds: since.as_secs_f64(),
        round_trip_seconds: round_trip.map(|time| time.as_secs_f64()),
        clock_offset_seconds: clock.map(|offset| offset.seconds),
        clock_error_seconds: clock.map(|offset| offset.error_seconds),
        ..peer
    }
}

fn with_about(peer: proto::Peer, About { host, version, address, .. }: About) -> proto::Peer {
    proto::Peer { name: host.to_string(), version, address, ..peer }
}

fn with_status(peer: proto::Peer, status: HostStatus) -> proto::Peer {
    let HostStatus { up_seconds, gpus, cpus, memory_bytes, jobs, examples_per_second, wait_fraction } =
        status;
    proto::Peer { up_seconds, gpus, cpus, memory_bytes, jobs, examples_per_second, wait_fraction, ..peer }
}

fn measurement(Measured { name, address, result }: Measured) -> proto::PeerMeasurement {
    let measured = proto::PeerMeasurement { name, address, ..proto::PeerMeasurement::default() };
    match result {
        Ok(found) => proto::PeerMeasurement {
            round_trip_seconds: found.round_trip.as_secs_f64(),
            sent_bytes_per_second: found.sent_bytes_per_second,
            received_bytes_per_second: found.received_bytes_per_second,
            ..measured
        },
        Err(error) => proto::PeerMeasurement { error: error.to_string(), ..measured },
    }
}
