//! An object store for tests: in memory, over HTTP, with scripted faults.
//!
//! It implements the requests that `object_store` makes to Google Cloud Storage (through the XML API, and thus, with
//! path-style addresses, to S3) and to Azure Blob Storage: listings with prefix, delimiter and pages, ranges, conditions,
//! and uploads in one or several parts. It also acts as a metadata server that issues tokens, so that tests can observe
//! and revoke credentials. It counts what it serves per object. [`Hostile`] is a server that sends arbitrary bytes.

#![forbid(unsafe_code)]

mod azure;
mod fault;
mod hostile;
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
pub use self::hostile::{Hostile, Reply};
pub use self::objects::Served;

use self::fault::Script;
use self::objects::Objects;

/// The server's behaviour apart from faults.
#[derive(Clone, Debug)]
pub struct Options {
    /// The total bandwidth for bodies.
    pub bytes_per_second: Option<u64>,
    /// The delay before each response.
    pub latency: Duration,
    /// Keys and directories per page of a listing.
    pub page: usize,
    /// Whether requests require a token from the metadata server.
    pub tokens: bool,
    /// The number of reads out of 1,000 that fail at random.
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

/// A running server, stopped when dropped.
#[derive(Debug)]
pub struct Server {
    state: Arc<State>,
    address: SocketAddr,
    serving: AbortHandle,
}

/// State shared by all requests.
#[derive(Debug)]
struct State {
    options: Options,
    objects: Mutex<Objects>,
    script: Mutex<Script>,
    /// When the simulated network link is next free.
    line: Mutex<Option<tokio::time::Instant>>,
    tokens: Mutex<Tokens>,
    uploads: Mutex<BTreeMap<u64, BTreeMap<u32, Bytes>>>,
    blocks: Mutex<azure::Blocks>,
}

/// Issued tokens; those below `valid_from` are revoked.
#[derive(Debug, Default)]
struct Tokens {
    next: u64,
    valid_from: u64,
}

impl Server {
    /// Starts a server on a free local port.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start(options: Options) -> io::Result<Self> {
        Self::start_at("127.0.0.1:0", options).await
    }

    /// Starts a server at `address`.
    ///
    /// # Errors
    /// The address is in use.
    pub async fn start_at(address: &str, options: Options) -> io::Result<Self> {
        Self::start_with(address, options, []).await
    }

    /// Starts a server at `address` that has these objects, `bucket/key` and bytes, from its first answer on.
    ///
    /// # Errors
    /// The address is in use.
    pub async fn start_with(
        address: &str,
        options: Options,
        objects: impl IntoIterator<Item = (String, Bytes)>,
    ) -> io::Result<Self> {
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
        objects.into_iter().for_each(|(name, bytes)| {
            lock(&state.objects).put(&name, bytes);
        });
        let router = serve::router(Arc::clone(&state));
        let serving = tokio::spawn(async move {
            // Runs until aborted.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { state, address, serving: serving.abort_handle() })
    }

    /// `http://HOST:PORT`
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// `HOST:PORT`, also of the metadata server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stores an object, `bucket/key`, replacing any previous one.
    pub fn put(&self, name: &str, bytes: impl Into<Bytes>) {
        lock(&self.state.objects).put(name, bytes.into());
    }

    /// Deletes an object.
    pub fn remove(&self, name: &str) {
        lock(&self.state.objects).remove(name);
    }

    /// An object's bytes.
    pub fn get(&self, name: &str) -> Option<Bytes> {
        lock(&self.state.objects).get(name).map(|object| object.bytes)
    }

    /// The names of all objects.
    pub fn names(&self) -> Vec<String> {
        lock(&self.state.objects).names()
    }

    /// The number of uploads in progress.
    pub fn uploads(&self) -> usize {
        lock(&self.state.uploads).len()
    }

    /// The reads of an object so far.
    pub fn served(&self, name: &str) -> Served {
        lock(&self.state.objects).served(name)
    }

    /// Appends faults to the script. Each affects the next request of its kind.
    pub fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        lock(&self.state.script).queue.extend(faults);
    }

    /// Removes the scripted faults that no request has met.
    pub fn clear_script(&self) {
        lock(&self.state.script).queue.clear();
    }

    /// The number of scripted faults that no request has met yet.
    pub fn unmet(&self) -> usize {
        lock(&self.state.script).queue.len()
    }

    /// Revokes all tokens issued so far.
    pub fn revoke_tokens(&self) {
        let mut tokens = lock(&self.state.tokens);
        tokens.valid_from = tokens.next;
    }

    /// The number of tokens issued.
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
