//! Serves the metrics over HTTP: `GET /metrics` on an address of the configuration.
//!
//! Every client that reaches the address is served, so clients are bounded in number and in time. A connection answers one request
//! and ends at a deadline. At the limit, a new connection replaces the oldest: clients that hold connections open cannot
//! keep a scraper out, whose request is answered in milliseconds. Connections are accepted at a bounded rate, which bounds
//! the processor time that all clients together can cost. All of it runs on the threads of the control socket, whose
//! priority is lower than that of jobs.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::AbortHandle;

use super::{Format, render};
use crate::daemon::Daemon;

/// The path of the metrics.
const PATH: &str = "/metrics";

/// Connections that wait to be accepted. At the rate below, the last one waits for less than half a second.
const BACKLOG: u32 = 16;

/// The maximum size of a request's head.
const MAX_HEAD_BYTES: usize = 8 << 10;

/// The maximum number of header fields.
const MAX_FIELDS: usize = 64;

/// Bounds on what clients can hold.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Open connections.
    connections: usize,
    /// The time from the acceptance of a connection to its end.
    duration: Duration,
    /// The time between two acceptances.
    interval: Duration,
}

const LIMITS: Limits =
    Limits { connections: 8, duration: Duration::from_secs(10), interval: Duration::from_millis(20) };

/// Listens on `address`. Must be called in the context of the runtime that serves.
///
/// # Errors
/// When the address is taken, or is not one of this host.
pub(crate) fn bind(address: SocketAddr) -> Result<TcpListener> {
    let listen = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // A restarted daemon does not wait for the connections of the one before.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    let listener = listen().with_context(|| {
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
pub(crate) async fn serve(listener: TcpListener, daemon: Daemon) -> Infallible {
    serve_within(LIMITS, listener, daemon).await
}

async fn serve_within(limits: Limits, listener: TcpListener, daemon: Daemon) -> Infallible {
    // The oldest first.
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                open.retain(|connection| !connection.is_finished());
                if open.len() >= limits.connections
                    && let Some(oldest) = open.pop_front()
                {
                    oldest.abort();
                }
                let answering = tokio::spawn(answer(stream, daemon.clone(), limits.duration));
                open.push_back(answering.abort_handle());
            }
            // The client has left, or descriptors are exhausted.
            Err(error) => tracing::debug!(%error, "cannot accept a connection for metrics"),
        }
        tokio::time::sleep(limits.interval).await;
    }
}

/// Answers one request.
async fn answer(stream: TcpStream, daemon: Daemon, limit: Duration) {
    let service = service_fn(move |request| {
        let daemon = daemon.clone();
        async move { Ok::<_, Infallible>(respond(&request, &daemon).await) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_FIELDS)
        // The deadline of the connection bounds it.
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(limit, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a request for metrics failed"),
        Err(_) => tracing::debug!("a request for metrics was not answered in time"),
    }
}

/// The response to a request, whose body is not read.
async fn respond(request: &Request<Incoming>, daemon: &Daemon) -> Response<Full<Bytes>> {
    if request.uri().path() != PATH {
        return message(StatusCode::NOT_FOUND, "metrics are at /metrics\n");
    }
    if request.method() != Method::GET {
        let mut response = message(StatusCode::METHOD_NOT_ALLOWED, "metrics are read with GET\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return response;
    }
    let format = accepted(request.headers());
    let text = daemon.blocking(move |daemon| Ok::<_, anyhow::Error>(render(&daemon.snapshot(), format)));
    match text.await {
        Ok(text) => with_type(format.content_type(), text.into()),
        Err(error) => {
            tracing::error!("metrics cannot be collected: {error:#}");
            message(
                StatusCode::INTERNAL_SERVER_ERROR,
                "metrics cannot be collected; see the log of the daemon\n",
            )
        }
    }
}

fn message(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = with_type("text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()));
    *response.status_mut() = status;
    response
}

fn with_type(content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
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
