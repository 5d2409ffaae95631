//! Writing an object.
//!
//! An object appears whole or not at all: what is written goes up in parts while it is made, and becomes an
//! object when the upload is finished. So several can be written and then appear together, as nearly as
//! storage allows. Given up before that, nothing of it is seen, and its parts are cleared away as far as the
//! service lets them; those of a process that died are the bucket's to expire.

use std::path::Path;
use std::time::Duration;

use object_store::{MultipartUpload, ObjectStoreExt};
use tokio::task::{JoinError, JoinSet};

use super::address::{self, Address, Scheme};
use super::{Stores, listing};
use crate::Error;
use crate::cancel::Cancel;

/// Bytes of one of the first parts. Services take ten thousand, so later ones are larger.
const PART_BYTES: usize = 8 << 20;
/// Parts after which they are larger again by as much.
const PARTS_OF_A_SIZE: usize = 2_000;
/// Parts that go up at once.
const PARTS: usize = 4;
/// For how long clearing away is tried.
const ABORT_FOR: Duration = Duration::from_secs(5);

/// An object being written. Holds the part being filled, and those on their way.
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
    /// What the storage service said, of these or earlier bytes; [`Error::Cancelled`] once the stores' reads
    /// and writes were called off.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            let full = PART_BYTES * (1 + self.parts / PARTS_OF_A_SIZE);
            let (taken, rest) = bytes.split_at(bytes.len().min(full - self.part.len()));
            self.part.extend_from_slice(taken);
            bytes = rest;
            if self.part.len() == full {
                self.send_part().await?;
            }
        }
        Ok(())
    }

    /// Sends all that was written, and waits until it is there: as parts, of which [`Upload::finish`] makes an
    /// object.
    ///
    /// # Errors
    /// As [`Upload::write`].
    pub async fn seal(&mut self) -> Result<(), Error> {
        // An object has at least one part.
        if !self.part.is_empty() || self.parts == 0 {
            self.send_part().await?;
        }
        self.wait_for_parts(0).await
    }

    /// Makes an object of what was written, or gives it up.
    ///
    /// # Errors
    /// As [`Upload::write`].
    pub async fn finish(mut self) -> Result<(), Error> {
        let finished = self.complete().await;
        if finished.is_err() {
            // What went wrong first is told.
            let _ = self.abort().await;
        }
        finished
    }

    async fn complete(&mut self) -> Result<(), Error> {
        self.seal().await?;
        let completed = self.cancel.or(self.upload.complete()).await?;
        completed.map(drop).map_err(|source| Error::storage(&self.path, source))
    }

    /// Gives up what was written.
    ///
    /// # Errors
    /// What the storage service said, or that it did not within some seconds.
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

    /// Waits until no more than `most` parts are on their way.
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
