//! A server that answers requests with arbitrary bytes, which may have no end.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::lock;

/// The maximum length of a request's head that is read.
const MAX_HEAD: usize = 64 << 10;

/// What the server sends for one request, before it closes the connection.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// The status line, headers and the start of the body.
    pub start: Vec<u8>,
    /// Bytes that follow, repeated until the client disconnects.
    pub endless: Vec<u8>,
}

impl Reply {
    /// These bytes and nothing else.
    pub fn just(start: impl Into<Vec<u8>>) -> Self {
        Self { start: start.into(), endless: Vec::new() }
    }

    /// These bytes, and then others without end.
    pub fn endless(start: impl Into<Vec<u8>>, endless: impl Into<Vec<u8>>) -> Self {
        Self { start: start.into(), endless: endless.into() }
    }
}

/// A running server, stopped when dropped.
#[derive(Debug)]
pub struct Hostile {
    address: SocketAddr,
    seen: Arc<Seen>,
    serving: AbortHandle,
}

#[derive(Debug, Default)]
struct Seen {
    requests: Mutex<Vec<String>>,
    sent: AtomicU64,
}

impl Hostile {
    /// Starts a server on a free local port. `reply` receives a request, of whose body
    /// a part may be missing, or whatever else a client sent.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start(reply: impl Fn(&str) -> Reply + Send + Sync + 'static) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (seen, reply) = (Arc::new(Seen::default()), Arc::new(reply));
        let shared = Arc::clone(&seen);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, reply) = (Arc::clone(&shared), Arc::clone(&reply));
                tokio::spawn(async move {
                    // The client has disconnected.
                    let _ = answer(stream, &seen, &*reply).await;
                });
            }
        });
        Ok(Self { address, seen, serving: serving.abort_handle() })
    }

    /// `HOST:PORT`
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://HOST:PORT`
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What `reply` received so far.
    pub fn requests(&self) -> Vec<String> {
        lock(&self.seen.requests).clone()
    }

    /// The number of bytes sent so far.
    pub fn sent(&self) -> u64 {
        self.seen.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(
    mut stream: TcpStream,
    seen: &Seen,
    reply: &(dyn Fn(&str) -> Reply + Sync),
) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < MAX_HEAD {
        let more = stream.read_buf(&mut head).await?;
        // Anything but a request, such as a TLS handshake, is answered at once.
        if more == 0 || !head[0].is_ascii_uppercase() {
            break;
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let Reply { start, endless } = reply(&head);
    lock(&seen.requests).push(head);
    let mut next = start;
    loop {
        stream.write_all(&next).await?;
        seen.sent.fetch_add(next.len() as u64, Ordering::Relaxed);
        if endless.is_empty() {
            return stream.shutdown().await;
        }
        next.clone_from(&endless);
    }
}
