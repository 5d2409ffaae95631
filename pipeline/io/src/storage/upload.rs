//! Writes an object.
//!
//! An object appears completely or not at all: the data is uploaded in parts while it is produced, and the parts become
//! an object when the upload is finished. So several objects can be written and then appear together, as far as storage
//! allows. If an upload is abandoned, nothing becomes visible, and its parts are removed if the service permits it;
//! parts left by a killed process are removed by the bucket's lifecycle rules.

use std::path::Path;
use std::time::Duration;

use object_store::{MultipartUpload, ObjectStoreExt};
use tokio::task::{JoinError, JoinSet};

use super::address::{self, Address, Scheme};
use super::{Stores, listing};
use crate::Error;
use crate::cancel::Cancel;

/// The size of the first parts. Services allow ten thousand parts, so later ones are larger.
const PART_BYTES: usize = 8 << 20;
/// The number of parts after which the part size increases by `PART_BYTES`.
const PARTS_OF_A_SIZE: usize = 2_000;
/// The maximum number of parts in flight.
const PARTS: usize = 4;
/// The timeout for aborting an upload.
const ABORT_FOR: Duration = Duration::from_secs(5);

/// An object being written. Holds the part being filled and the parts in flight.
#[derive(Debug)]
pub struct Upload {
    path: String,
    cancel: Cancel,
    upload: Box<dyn MultipartUpload>,
    part: Vec<u8>,
    /// Parts sent so far.
    parts: usize,
    going_up: JoinSet<object_store::Result<()>>,
}

impl Upload {
    pub(super) async fn create(stores: &Stores, path: &str, base: &Path) -> Result<Self, Error> {
        let parsed = Address::parse(path)?;
        let location = match parsed.scheme {
            Scheme::File => listing::location_of(path, &base.join(parsed.path))?,
            _ => address::location(path, parsed.path)?,
        };
        let cancel = stores.calls_off().clone();
        let begin = async {
            let store = stores.store(&parsed).await?;
            let clients = store.clients();
            clients.control.put_multipart(&location).await
        };
        let upload = cancel.or(begin).await?.map_err(|source| Error::storage(path, source))?;
        let (part, going_up) = (Vec::new(), JoinSet::new());
        Ok(Self { path: path.to_owned(), cancel, upload, part, parts: 0, going_up })
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// The error of the storage service for these or earlier bytes; [`Error::Cancelled`] once the stores were
    /// cancelled.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            let full = self.full_part_bytes();
            let (taken, rest) = bytes.split_at(bytes.len().min(full - self.part.len()));
            self.part.extend_from_slice(taken);
            bytes = rest;
            if self.part.len() == full {
                self.send_part().await?;
            }
        }
        Ok(())
    }

    /// As [`Upload::write`], without a copy if `bytes` are a whole part.
    ///
    /// # Errors
    /// See [`Upload::write`].
    pub async fn write_owned(&mut self, bytes: Vec<u8>) -> Result<(), Error> {
        if !self.part.is_empty() || bytes.len() != self.full_part_bytes() {
            return self.write(&bytes).await;
        }
        self.part = bytes;
        self.send_part().await
    }

    /// The size of the part that is being filled.
    fn full_part_bytes(&self) -> usize {
        PART_BYTES * (1 + self.parts / PARTS_OF_A_SIZE)
    }

    /// Uploads all data written so far, and waits until it is stored as parts, which [`Upload::finish`] turns into an
    /// object.
    ///
    /// # Errors
    /// See [`Upload::write`].
    pub async fn seal(&mut self) -> Result<(), Error> {
        // An object has at least one part.
        if !self.part.is_empty() || self.parts == 0 {
            self.send_part().await?;
        }
        self.wait_for_parts(0).await
    }

    /// Turns the written data into an object. On failure, aborts the upload.
    ///
    /// # Errors
    /// See [`Upload::write`].
    pub async fn finish(mut self) -> Result<(), Error> {
        let finished = self.complete().await;
        if finished.is_err() {
            // The first error is the one returned.
            let _ = self.abort().await;
        }
        finished
    }

    async fn complete(&mut self) -> Result<(), Error> {
        self.seal().await?;
        let completed = self.cancel.or(self.upload.complete()).await?;
        completed.map(drop).map_err(|source| Error::storage(&self.path, source))
    }

    /// Discards the written data.
    ///
    /// # Errors
    /// The error of the storage service, or a timeout.
    pub async fn abort(mut self) -> Result<(), Error> {
        self.going_up.shutdown().await;
        match tokio::time::timeout(ABORT_FOR, self.upload.abort()).await {
            Ok(aborted) => aborted.map_err(|source| Error::storage(&self.path, source)),
            Err(_) => Err(Error::Cancelled),
        }
    }

    async fn send_part(&mut self) -> Result<(), Error> {
        self.wait_for_parts(PARTS - 1).await?;
        let part = std::mem::take(&mut self.part);
        self.parts += 1;
        self.going_up.spawn(self.upload.put_part(part.into()));
        Ok(())
    }

    /// Waits until at most `most` parts are in flight.
    async fn wait_for_parts(&mut self, most: usize) -> Result<(), Error> {
        while self.going_up.len() > most {
            let Some(sent) = self.cancel.or(self.going_up.join_next()).await? else { break };
            sent.map_err(|error: JoinError| object_store::Error::JoinError { source: error })
                .and_then(|sent| sent)
                .map_err(|source| Error::storage(&self.path, source))?;
        }
        Ok(())
    }
}
