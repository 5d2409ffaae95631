//! Writes small objects in one request: records that several hosts share.
//!
//! A reader sees an object completely or not at all. [`Stores::put_new`] never replaces one: the service decides which of
//! several writers is first, and a local file gets its name by a hard link, which fails if the name exists.

use std::path::Path;

use object_store::local::LocalFileSystem;
use object_store::path::Path as Location;
use object_store::{ObjectStore, PutMode, PutOptions};

use super::address::{self, Address, Scheme};
use super::{Stores, listing};
use crate::Error;

impl Stores {
    /// Writes an object unless one with this name exists. Returns whether it was written. A relative path starts at `base`;
    /// directories are created.
    ///
    /// # Errors
    /// The address is invalid, or the error of the storage service, which may be that it cannot write conditionally.
    pub async fn put_new(&self, path: &str, base: &Path, bytes: Vec<u8>) -> Result<bool, Error> {
        match self.put_small(path, base, bytes, PutMode::Create).await? {
            Ok(()) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                Ok(false)
            }
            Err(source) => Err(Error::storage(path, source)),
        }
    }

    /// Writes an object, or replaces it.
    ///
    /// # Errors
    /// The address is invalid, or the error of the storage service.
    pub async fn put(&self, path: &str, base: &Path, bytes: Vec<u8>) -> Result<(), Error> {
        let put = self.put_small(path, base, bytes, PutMode::Overwrite).await?;
        put.map_err(|source| Error::storage(path, source))
    }

    async fn put_small(
        &self,
        path: &str,
        base: &Path,
        bytes: Vec<u8>,
        mode: PutMode,
    ) -> Result<object_store::Result<()>, Error> {
        let parsed = Address::parse(path)?;
        let location: Location = match parsed.scheme {
            Scheme::File => listing::location_of(path, &base.join(parsed.path))?,
            _ => address::location(path, parsed.path)?,
        };
        let options = PutOptions { mode, ..PutOptions::default() };
        let put = async {
            if parsed.scheme == Scheme::File {
                let files = LocalFileSystem::new().with_fsync(true);
                return files.put_opts(&location, bytes.into(), options).await;
            }
            let store = self.store(&parsed).await?;
            let clients = store.clients();
            clients.control.put_opts(&location, bytes.into(), options).await
        };
        Ok(self.calls_off().or(put).await?.map(drop))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn the_first_writer_of_a_name_wins() {
        let dir = tempfile::tempdir().unwrap();
        let stores = Stores::default();
        let writers = (0..20_u8).map(|nth| stores.put_new("a/b/1", dir.path(), vec![nth; 100]));
        let written = futures::future::try_join_all(writers).await.unwrap();
        let won: Vec<u8> = (0..20).filter(|&nth| written[usize::from(nth)]).collect();
        assert_eq!(won.len(), 1);
        assert_eq!(std::fs::read(dir.path().join("a/b/1")).unwrap(), vec![won[0]; 100]);
        assert_eq!(std::fs::read_dir(dir.path().join("a/b")).unwrap().count(), 1, "no leftovers");
        stores.put("a/b/1", dir.path(), b"other".to_vec()).await.unwrap();
        assert_eq!(std::fs::read(dir.path().join("a/b/1")).unwrap(), b"other");
    }
}
