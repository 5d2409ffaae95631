//! Measuring the link to another host.
//!
//! Bytes go over the same kind of connection as all traffic between daemons: TLS over TCP. One connection uses one CPU on
//! each side to encrypt, so a fast network needs several.

use std::time::{Duration, Instant};

use futures::{StreamExt, future, stream};
use tonic::Status;

use crate::LinkError;
use crate::link::{Link, refusal};
use crate::proto::{Block, SendRequest};
use crate::server::ThisHost;

/// The bytes of a message.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;

/// The longest measurement in one direction.
pub(crate) const MAX_MEASURE: Duration = Duration::from_secs(10);

/// How much longer than its duration a measurement may take.
const SLACK: Duration = Duration::from_secs(5);

/// The probes for the round trip.
const PROBES: usize = 20;

/// The speed of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// The shortest time for a question and its answer.
    pub round_trip: Duration,
    /// Bytes per second to the other host.
    pub sent_bytes_per_second: f64,
    /// Bytes per second from the other host.
    pub received_bytes_per_second: f64,
}

/// Measures the link to the daemon at `address` with this many `connections`, each direction for about `duration`.
///
/// # Errors
/// If it cannot be reached, or a connection breaks.
pub async fn measure(
    address: &str,
    this: &ThisHost,
    connections: usize,
    duration: Duration,
) -> Result<Measurement, LinkError> {
    let duration = duration.min(MAX_MEASURE);
    let links = (0..connections.max(1)).map(|_| Link::connect(address, this));
    let mut links = future::try_join_all(links).await?;
    let mut round_trip = Duration::MAX;
    for _ in 0..PROBES {
        let (_, times) = links[0].probe().await?;
        round_trip = round_trip.min(times.round_trip);
    }
    let sent = rate(links.iter_mut().map(|link| send(link, duration))).await?;
    let received = rate(links.iter_mut().map(|link| receive(link, duration))).await?;
    Ok(Measurement { round_trip, sent_bytes_per_second: sent, received_bytes_per_second: received })
}

/// The bytes per second of transfers that run at the same time.
async fn rate(
    transfers: impl Iterator<Item = impl Future<Output = Result<u64, LinkError>>>,
) -> Result<f64, LinkError> {
    let began = Instant::now();
    let bytes: u64 = future::try_join_all(transfers).await?.into_iter().sum();
    Ok(bytes as f64 / began.elapsed().as_secs_f64())
}

/// Sends for a while; returns the number of bytes that have arrived.
async fn send(link: &mut Link, duration: Duration) -> Result<u64, LinkError> {
    let until = Instant::now() + duration;
    let block = Block { data: vec![0; BLOCK_BYTES] };
    let blocks = stream::repeat_with(move || block.clone());
    let blocks = blocks.take_while(move |_| future::ready(Instant::now() < until));
    let receiving = link.client.receive(blocks);
    let received = tokio::time::timeout(duration + SLACK, receiving).await;
    let received = received.map_err(|_| LinkError::Timeout(duration + SLACK))?;
    Ok(received.map_err(|status| refusal(&status))?.into_inner().bytes)
}

/// Receives for a while; returns the number of bytes.
async fn receive(link: &mut Link, duration: Duration) -> Result<u64, LinkError> {
    let milliseconds = u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
    let receiving = async {
        let mut blocks = link.client.send(SendRequest { milliseconds }).await?.into_inner();
        let mut bytes = 0;
        while let Some(block) = blocks.message().await? {
            bytes += block.data.len() as u64;
        }
        Ok::<_, Status>(bytes)
    };
    let received = tokio::time::timeout(duration + SLACK, receiving).await;
    received.map_err(|_| LinkError::Timeout(duration + SLACK))?.map_err(|status| refusal(&status))
}
