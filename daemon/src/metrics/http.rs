//! Serves the metrics over HTTP: `GET /metrics` on an address of the configuration.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use http::StatusCode;
use http::header::{ACCEPT, HeaderMap};
use http::request::Parts;
use tokio::net::TcpListener;

use super::{Format, render};
use crate::daemon::Daemon;
use crate::http::{self as server, Handler, Limits, Reply};

/// The path of the metrics.
const PATH: &str = "/metrics";

/// With these, the last of the connections that wait to be accepted waits for less than half a second.
const LIMITS: Limits =
    Limits { connections: 8, duration: Duration::from_secs(10), interval: Duration::from_millis(20) };

/// Listens on `address`. Must be called in the context of the runtime that serves.
///
/// # Errors
/// When the address is taken, or is not one of this host.
pub(crate) fn bind(address: SocketAddr) -> Result<TcpListener> {
    let listener = server::bind(address).with_context(|| {
        format!(
            "`metrics_address`: cannot listen on {address}; choose a free port of an address of this host"
        )
    })?;
    let address = listener.local_addr()?;
    tracing::info!(%address, "serving metrics");
    if !address.ip().is_loopback() {
        tracing::warn!(
            %address,
            "metrics, which contain the names of jobs and users, are readable by everyone who can reach this address"
        );
    }
    Ok(listener)
}

/// Answers requests for the metrics of `daemon`.
pub(crate) async fn serve(listener: TcpListener, daemon: Daemon) {
    match server::serve(LIMITS, listener, MetricsPage { daemon }).await {}
}

#[derive(Clone)]
struct MetricsPage {
    daemon: Daemon,
}

impl Handler for MetricsPage {
    async fn get(&self, request: Parts) -> Reply {
        if request.uri.path() != PATH {
            return server::text(StatusCode::NOT_FOUND, "metrics are at /metrics\n");
        }
        let format = accepted(&request.headers);
        let rendered =
            self.daemon.blocking(move |daemon| Ok::<_, anyhow::Error>(render(&daemon.snapshot(), format)));
        match rendered.await {
            Ok(text) => server::content(format.content_type(), text),
            Err(error) => {
                tracing::error!("metrics cannot be collected: {error:#}");
                server::text(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "metrics cannot be collected; see the log of the daemon\n",
                )
            }
        }
    }
}

/// The format that the client prefers: OpenMetrics if it asks for it and does not prefer plain text.
fn accepted(headers: &HeaderMap) -> Format {
    let ranges = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let (mut open_metrics, mut plain) = (0.0_f32, 0.0_f32);
    for range in ranges.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let parameters: Vec<_> = parts.filter_map(|part| part.split_once('=')).collect();
        let parameter = |name| parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        // A weight that is not a number counts as 0.
        let weight = parameter("q").map_or(1.0, |weight| weight.parse().unwrap_or(0.0));
        match kind.as_str() {
            "application/openmetrics-text" => {
                let is_known =
                    parameter("version").is_none_or(|version| ["1.0.0", "0.0.1"].contains(&version));
                open_metrics = open_metrics.max(if is_known { weight } else { 0.0 });
            }
            "text/plain" => plain = plain.max(weight),
            _ => {}
        }
    }
    if open_metrics > 0.0 && open_metrics >= plain { Format::OpenMetrics } else { Format::Prometheus }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
