//! Reads, writes and deletes small objects in one request: records that several hosts share.
//!
//! A reader sees an object completely or not at all. [`Stores::put_new`] never replaces one: the service decides which of
//! several writers is first, and a local file gets its name by a hard link, which fails if the name exists.
//! [`Stores::replace`] replaces one version only, so of several writers that have read it, one succeeds.
//!
//! Requests are retried. So when a response is lost, a conditional write may report that another writer was first although it
//! was this one. Callers to whom that matters write unique contents and read them back.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Location;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutResult, UpdateVersion};

use super::address::{self, Address, Scheme};
use super::{Stores, listing};
use crate::Error;

/// The version of an object, as a conditional write names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectVersion(UpdateVersion);

impl Stores {
    /// Writes an object unless one with this name exists. Returns its version if it was written. A relative path starts at
    /// `base`; directories are created.
    ///
    /// # Errors
    /// The address is invalid, or the error of the storage service, which may be that it cannot write conditionally.
    pub async fn put_new(
        &self,
        path: &str,
        base: &Path,
        bytes: Vec<u8>,
    ) -> Result<Option<ObjectVersion>, Error> {
        let put = self.put_small(path, base, bytes, PutMode::Create).await?;
        if_first(put).map_err(|source| Error::storage(path, source))
    }

    /// Replaces an object if it has `version`. Returns its new version if it was replaced. Not for local files.
    ///
    /// # Errors
    /// As for [`Stores::put_new`].
    pub async fn replace(
        &self,
        path: &str,
        bytes: Vec<u8>,
        version: &ObjectVersion,
    ) -> Result<Option<ObjectVersion>, Error> {
        let mode = PutMode::Update(version.0.clone());
        let put = self.put_small(path, Path::new("/"), bytes, mode).await?;
        let replaced = match if_first(put) {
            // It was deleted.
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            replaced => replaced,
        };
        replaced.map_err(|source| Error::storage(path, source))
    }

    /// Writes an object, or replaces it.
    ///
    /// # Errors
    /// The address is invalid, or the error of the storage service.
    pub async fn put(&self, path: &str, base: &Path, bytes: Vec<u8>) -> Result<(), Error> {
        let put = self.put_small(path, base, bytes, PutMode::Overwrite).await?;
        put.map(drop).map_err(|source| Error::storage(path, source))
    }

    /// Reads an object in one request, with its version; `None` if there is none. A relative path starts at `base`. The caller
    /// knows that it is small.
    ///
    /// # Errors
    /// The address is invalid, or the error of the storage service.
    pub async fn get_small(&self, path: &str, base: &Path) -> Result<Option<(Bytes, ObjectVersion)>, Error> {
        let (store, location) = self.control(path, base).await?;
        let read = async {
            let found = store.get(&location).await?;
            let (e_tag, version) = (found.meta.e_tag.clone(), found.meta.version.clone());
            Ok((found.bytes().await?, ObjectVersion(UpdateVersion { e_tag, version })))
        };
        let read = self.calls_off().or(read).await?;
        if_found(read).map_err(|source| Error::storage(path, source))
    }

    /// Deletes an object. Returns whether there was one, if the service says so. A relative path starts at `base`.
    ///
    /// # Errors
    /// The address is invalid, or the error of the storage service.
    pub async fn delete(&self, path: &str, base: &Path) -> Result<bool, Error> {
        let (store, location) = self.control(path, base).await?;
        let deleted = self.calls_off().or(store.delete(&location)).await?;
        let deleted = if_found(deleted).map_err(|source| Error::storage(path, source))?;
        Ok(deleted.is_some())
    }

    async fn put_small(
        &self,
        path: &str,
        base: &Path,
        bytes: Vec<u8>,
        mode: PutMode,
    ) -> Result<object_store::Result<PutResult>, Error> {
        let (store, location) = self.control(path, base).await?;
        let options = PutOptions { mode, ..PutOptions::default() };
        self.calls_off().or(store.put_opts(&location, bytes.into(), options)).await
    }

    /// The client that looks up and writes the object `path`, and its location there.
    async fn control(&self, path: &str, base: &Path) -> Result<(Arc<dyn ObjectStore>, Location), Error> {
        let parsed = Address::parse(path)?;
        if parsed.scheme == Scheme::File {
            let location = listing::location_of(path, &base.join(parsed.path))?;
            return Ok((Arc::new(LocalFileSystem::new().with_fsync(true)), location));
        }
        let location = address::location(path, parsed.path)?;
        let store = self.calls_off().or(self.store(&parsed)).await?;
        let store = store.map_err(|source| Error::storage(path, source))?;
        Ok((Arc::clone(&store.clients().control), location))
    }
}

/// The version that a conditional write has written, if its condition was met.
fn if_first(put: object_store::Result<PutResult>) -> object_store::Result<Option<ObjectVersion>> {
    match put {
        Ok(PutResult { e_tag, version, .. }) => Ok(Some(ObjectVersion(UpdateVersion { e_tag, version }))),
        Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn if_found<T>(result: object_store::Result<T>) -> object_store::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
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
        let won: Vec<u8> = (0..20).filter(|&nth| written[usize::from(nth)].is_some()).collect();
        assert_eq!(won.len(), 1);
        assert_eq!(std::fs::read(dir.path().join("a/b/1")).unwrap(), vec![won[0]; 100]);
        assert_eq!(std::fs::read_dir(dir.path().join("a/b")).unwrap().count(), 1, "no leftovers");
        stores.put("a/b/1", dir.path(), b"other".to_vec()).await.unwrap();
        assert_eq!(std::fs::read(dir.path().join("a/b/1")).unwrap(), b"other");
    }

    #[tokio::test]
    async fn objects_are_read_and_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let stores = Stores::default();
        assert_eq!(stores.get_small("a", dir.path()).await.unwrap(), None);
        assert!(!stores.delete("a", dir.path()).await.unwrap());
        stores.put("a", dir.path(), b"bytes".to_vec()).await.unwrap();
        assert_eq!(stores.get_small("a", dir.path()).await.unwrap().unwrap().0, "bytes");
        assert!(stores.delete("a", dir.path()).await.unwrap());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
