//! A connection of a member.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tonic::transport::server::Connected;

use crate::About;
use crate::tls::Certificate;

/// The daemon at the other end of a connection.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) address: SocketAddr,
    pub(super) certificate: Certificate,
    /// Set by its greeting.
    pub(super) about: OnceLock<About>,
}

/// A connection after its handshake.
pub(super) struct MemberStream<S> {
    stream: S,
    caller: Arc<Caller>,
    /// Returns why it ends.
    ended: Pin<Box<dyn Future<Output = &'static str> + Send>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl<S> MemberStream<S> {
    /// The connection is cut when `ended` is ready; its result says why.
    pub(super) fn new(
        stream: S,
        (address, certificate): (SocketAddr, Certificate),
        permit: Option<OwnedSemaphorePermit>,
        ended: impl Future<Output = &'static str> + Send + 'static,
    ) -> Self {
        let caller = Arc::new(Caller { address, certificate, about: OnceLock::new() });
        Self { stream, caller, ended: Box::pin(ended), _permit: permit }
    }
}

impl<S> Connected for MemberStream<S> {
    type ConnectInfo = Arc<Caller>;

    fn connect_info(&self) -> Self::ConnectInfo {
        Arc::clone(&self.caller)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MemberStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(message) = self.ended.as_mut().poll(context) {
            // A completed future is not polled again.
            self.ended = Box::pin(std::future::ready(message));
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, message)));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MemberStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
