//! Writing an object.
//!
//! An object appears whole or not at all: what is written goes up in parts while it is made, and becomes an
//! object when the upload is finished. Dropped before that, nothing of it is seen; its parts are cleared away
//! as far as the service lets them.

use std::path::Path;

use bytes::Bytes;
use object_store::buffered::BufWriter;

use super::address::{self, Address, Scheme};
use super::{Stores, listing};
use crate::error::Error;

/// Bytes of one part, and how many go up at once: what an upload holds in memory.
const PART_BYTES: usize = 8 << 20;
const PARTS: usize = 4;

/// An object being written.
#[derive(Debug)]
pub struct Upload {
    path: String,
    writer: BufWriter,
}

impl Upload {
    /// The most bytes that it holds.
    pub const HELD_BYTES: u64 = (PART_BYTES * (PARTS + 1)) as u64;

    pub(super) async fn create(stores: &Stores, path: &str, base: &Path) -> Result<Self, Error> {
        let parsed = Address::parse(path)?;
        let location = match parsed.scheme {
            Scheme::File => listing::location_of(path, &base.join(parsed.path))?,
            _ => address::location(path, parsed.path)?,
        };
        let store = stores.store(&parsed).await.map_err(|source| Error::storage(path, source))?;
        let control = store.clients().control.clone();
        let writer = BufWriter::with_capacity(control, location, PART_BYTES).with_max_concurrency(PARTS);
        Ok(Self { path: path.to_owned(), writer })
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// What the storage service said.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        self.writer.put(bytes).await.map_err(|source| Error::storage(&self.path, source))
    }

    /// Makes an object of what was written.
    ///
    /// # Errors
    /// What the storage service said.
    pub async fn finish(mut self) -> Result<(), Error> {
        use tokio::io::AsyncWriteExt;
        let finished = self.writer.shutdown().await;
        finished.map_err(|source| Error::Io { path: self.path.clone(), source })
    }

    /// Gives up what was written.
    ///
    /// # Errors
    /// What the storage service said.
    pub async fn abort(mut self) -> Result<(), Error> {
        self.writer.abort().await.map_err(|source| Error::storage(&self.path, source))
    }
}
