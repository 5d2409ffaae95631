//! A small HTTP server for displays of the daemon's state: it answers `GET` requests on a TCP address.
//!
//! Every client that reaches the address is served, so clients are bounded in number and in time. A connection answers one
//! request, whose body is not read, and ends at a deadline. At the limit, a new connection replaces the oldest: clients that
//! hold connections open cannot keep others out, whose requests are answered in milliseconds. Connections are accepted at
//! a bounded rate, which bounds the processor time that all clients together can cost. All of it runs on the threads of
//! the control socket, whose priority is lower than that of jobs.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::AbortHandle;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 16;

/// The maximum size of a request's head.
const MAX_HEAD_BYTES: usize = 8 << 10;

/// The maximum number of header fields.
const MAX_FIELDS: usize = 64;

/// Bounds on what clients can hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Open connections.
    pub(crate) connections: usize,
    /// The time from the acceptance of a connection to its end.
    pub(crate) duration: Duration,
    /// The time between two acceptances.
    pub(crate) interval: Duration,
}

/// A complete response.
pub(crate) type Reply = Response<Full<Bytes>>;

/// Answers requests.
pub(crate) trait Handler: Clone + Send + 'static {
    /// The response to a `GET` request.
    fn get(&self, request: Parts) -> impl Future<Output = Reply> + Send;
}

/// Listens on `address`. Must be called in the context of the runtime that serves.
///
/// # Errors
/// When the address is taken, or is not one of this host.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    listen(address, BACKLOG)
}

/// Listens on `address`, where `backlog` connections may wait to be accepted. As [`bind`] otherwise.
///
/// # Errors
/// As for [`bind`].
pub(crate) fn listen(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restarted daemon does not wait for the connections of the one before.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(backlog)
}

/// Answers the requests of all clients with `handler`.
pub(crate) async fn serve(limits: Limits, listener: TcpListener, handler: impl Handler) -> Infallible {
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
                let answering = tokio::spawn(answer(stream, handler.clone(), limits.duration));
                open.push_back(answering.abort_handle());
            }
            // The client has left, or descriptors are exhausted.
            Err(error) => tracing::debug!(%error, "cannot accept an HTTP connection"),
        }
        tokio::time::sleep(limits.interval).await;
    }
}

/// Answers one request.
async fn answer(stream: TcpStream, handler: impl Handler, limit: Duration) {
    let service = service_fn(move |request: Request<Incoming>| {
        let handler = handler.clone();
        async move {
            let (head, _) = request.into_parts();
            Ok::<_, Infallible>(match head.method {
                Method::GET => handler.get(head).await,
                _ => not_allowed(),
            })
        }
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
        Ok(Err(error)) => tracing::debug!(%error, "an HTTP request failed"),
        Err(_) => tracing::debug!("an HTTP request was not answered in time"),
    }
}

fn not_allowed() -> Reply {
    let mut reply = text(StatusCode::METHOD_NOT_ALLOWED, "this address only answers GET\n");
    reply.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
    reply
}

/// A response of plain text.
pub(crate) fn text(status: StatusCode, text: impl Into<Bytes>) -> Reply {
    let mut reply = content("text/plain; charset=utf-8", text);
    *reply.status_mut() = status;
    reply
}

/// A successful response.
pub(crate) fn content(content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(body.into()));
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

#[cfg(test)]
mod tests;
