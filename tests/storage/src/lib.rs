//! An object store for tests: in memory, over HTTP, with faults by script.
//!
//! It speaks what `object_store` asks of Google Cloud Storage, which is the XML API, and so, with path-style
//! addresses, of S3, and of Azure Blob Storage: listings with prefix, delimiter and pages, ranges, conditions,
//! uploads in one and in parts. Beside it stands a metadata server that hands out tokens, so that credentials
//! can be followed and withdrawn. It counts what it serves, object by object.

#![forbid(unsafe_code)]

mod azure;
mod fault;
mod listing;
mod objects;
mod serve;
mod upload;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::AbortHandle;

pub use self::fault::Fault;
pub use self::objects::Served;

use self::fault::Script;
use self::objects::Objects;

/// How the server behaves when no fault is in the script.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes that all bodies together get in a second.
    pub bytes_per_second: Option<u64>,
    /// Time before each answer.
    pub latency: Duration,
    /// Keys and directories on a page of a listing.
    pub page: usize,
    /// Whether requests need a token of the metadata server's.
    pub tokens: bool,
    /// Of 1,000 reads, how many fail, in one way or another.
    pub failing_per_mille: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            bytes_per_second: None,
            latency: Duration::ZERO,
            page: 1_000,
            tokens: false,
            failing_per_mille: 0,
        }
    }
}

/// A running server; ends when dropped.
#[derive(Debug)]
pub struct Server {
    state: Arc<State>,
    address: SocketAddr,
    serving: AbortHandle,
}

/// What requests share.
#[derive(Debug)]
struct State {
    options: Options,
    objects: Mutex<Objects>,
    script: Mutex<Script>,
    /// When the line is free again.
    line: Mutex<Option<tokio::time::Instant>>,
    tokens: Mutex<Tokens>,
    uploads: Mutex<BTreeMap<u64, BTreeMap<u32, Bytes>>>,
    blocks: Mutex<azure::Blocks>,
}

/// Tokens handed out, of which those below `valid_from` are withdrawn.
#[derive(Debug, Default)]
struct Tokens {
    next: u64,
    valid_from: u64,
}

impl Server {
    /// Starts a server on a free port of this host.
    ///
    /// # Errors
    /// When there is none.
    pub async fn start(options: Options) -> io::Result<Self> {
        Self::start_at("127.0.0.1:0", options).await
    }

    /// Starts a server at `address`.
    ///
    /// # Errors
    /// When the address is taken.
    pub async fn start_at(address: &str, options: Options) -> io::Result<Self> {
        let listener = tokio::net::TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let script = Script::new(options.failing_per_mille);
        let state = Arc::new(State {
            options,
            objects: Mutex::default(),
            script: Mutex::new(script),
            line: Mutex::default(),
            tokens: Mutex::default(),
            uploads: Mutex::default(),
            blocks: Mutex::default(),
        });
        let router = serve::router(Arc::clone(&state));
        let serving = tokio::spawn(async move {
            // It does not end by itself.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { state, address, serving: serving.abort_handle() })
    }

    /// `http://HOST:PORT`
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// `HOST:PORT`, where the metadata server is too.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Puts an object, `bucket/key`, in place of any there is.
    pub fn put(&self, name: &str, bytes: impl Into<Bytes>) {
        lock(&self.state.objects).put(name, bytes.into());
    }

    /// Removes an object.
    pub fn remove(&self, name: &str) {
        lock(&self.state.objects).remove(name);
    }

    /// An object's bytes.
    pub fn get(&self, name: &str) -> Option<Bytes> {
        lock(&self.state.objects).get(name).map(|object| object.bytes)
    }

    /// Names of all objects.
    pub fn names(&self) -> Vec<String> {
        lock(&self.state.objects).names()
    }

    /// Uploads that are neither objects yet nor given up.
    pub fn uploads(&self) -> usize {
        lock(&self.state.uploads).len()
    }

    /// What was served of an object.
    pub fn served(&self, name: &str) -> Served {
        lock(&self.state.objects).served(name)
    }

    /// Has the next requests that `faults` fit fail so, one each, in this order.
    pub fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        lock(&self.state.script).queue.extend(faults);
    }

    /// Faults that no request has met yet.
    pub fn unmet(&self) -> usize {
        lock(&self.state.script).queue.len()
    }

    /// Takes no token any more that was handed out before.
    pub fn withdraw_tokens(&self) {
        let mut tokens = lock(&self.state.tokens);
        tokens.valid_from = tokens.next;
    }

    /// Tokens handed out.
    pub fn tokens(&self) -> u64 {
        lock(&self.state.tokens).next
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
