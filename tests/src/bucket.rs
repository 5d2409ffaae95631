//! A bucket, and how commands reach it.

// Test support: a panic fails the test.
#![allow(clippy::unwrap_used)]

use millstream_test_storage::{Options, Server};
use tokio::runtime::Runtime;

/// A server of buckets with Amazon's interface, which runs until it is dropped.
pub struct Bucket {
    /// The server.
    pub server: Server,
    _runtime: Runtime,
}

impl Bucket {
    /// Starts a server without objects.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let server = runtime.block_on(Server::start(Options::default())).unwrap();
        Self { server, _runtime: runtime }
    }

    /// The environment of a command that uses the buckets by their `s3://` addresses.
    pub fn variables(&self) -> [(&'static str, String); 3] {
        [
            ("AWS_ENDPOINT_URL", self.server.endpoint()),
            ("AWS_ACCESS_KEY_ID", "id".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
        ]
    }

    /// The objects of which the names start with `prefix`, by the rest of their names.
    pub fn objects(&self, prefix: &str) -> impl Iterator<Item = (String, Vec<u8>)> {
        let names = self.server.names().into_iter();
        names.filter_map(move |name| {
            let rest = name.strip_prefix(prefix)?.to_owned();
            Some((rest, self.server.get(&name)?.to_vec()))
        })
    }
}
