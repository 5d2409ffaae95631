//! Storage: addresses and globs are resolved to a frozen, sorted listing of objects.
//!
//! Everything is read through [`object_store::ObjectStore`], except for local files, which are read directly. A
//! listing is frozen: each read is conditional on the object being unchanged since it was listed, and fails with
//! [`Error::Changed`] otherwise. So an epoch never mixes two versions of a file.
//!
//! The daemon or a tool creates one [`Stores`]. It holds one set of clients per bucket, so that all jobs share
//! connections, tokens and measurements, and one buffer, so that they share what they fetch ([`super::fetch`]).

mod address;
mod catalog;
mod client;
mod directory;
mod division;
mod frozen;
mod http;
mod listing;
mod local;
mod object;
mod pages;
mod probe;
mod small;
mod spec;
mod upload;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millstream_trace::Recorder;
use parking_lot::Mutex;

pub use self::catalog::{CATALOG_VARIABLE, Catalog, Choice, Column, Numbers, Reference, Version};
pub use self::directory::{Directory, is_address};
pub use self::division::{Division, Named, NamedSplit, Portion, Rule};
pub use self::frozen::{Entry, Kept, Listing};
pub use self::object::Object;
pub use self::probe::Probe;
pub use self::small::ObjectVersion;
pub use self::spec::{AzSpec, GsSpec, S3Spec, StorageSpec};
pub use self::upload::Upload;

pub(crate) use self::client::{Clients, Store};
pub(crate) use self::http::{Permanent, Refused, cause};
pub(crate) use self::local::{DescriptorWait, OpenFile};

use self::address::Address;
use crate::Error;
use crate::buffers::Buffers;
use crate::cancel::Cancel;
use crate::shared::Shared;
use crate::traffic::{FetchStats, Traffic};

/// Maximum number of buckets whose clients are kept.
const MOST_STORES: usize = 256;

/// Access to storage, shared by a host.
///
/// Clones are the same value. [`Stores::for_job`] shares clients and fetched bytes, but is cancelled and recorded
/// separately.
#[derive(Clone, Debug)]
pub struct Stores {
    host: Arc<Host>,
    spec: Arc<StorageSpec>,
    cancel: Cancel,
    recorder: Arc<Recorder>,
}

/// State shared by all users on this host.
#[derive(Debug)]
struct Host {
    next_store: AtomicU64,
    stores: Mutex<Vec<(StorageSpec, Arc<Store>)>>,
    buffers: Buffers,
    shared: Shared,
}

impl Stores {
    /// The default size of the buffer of shared bytes.
    pub const SHARED_BYTES: u64 = 64 << 20;

    /// Storage with these settings. Up to `shared_bytes` of fetched bytes are kept for other readers.
    pub fn new(spec: StorageSpec, shared_bytes: u64) -> Self {
        let host = Host {
            next_store: AtomicU64::new(0),
            stores: Mutex::default(),
            buffers: Buffers::default(),
            shared: Shared::new(shared_bytes),
        };
        Self {
            host: Arc::new(host),
            spec: Arc::new(spec),
            cancel: Cancel::default(),
            recorder: Arc::default(),
        }
    }

    /// The same storage for one job, whose `spec` overrides the host's. [`Stores::cancel`] cancels this job's reads
    /// only.
    #[must_use]
    pub fn for_job(&self, spec: &StorageSpec) -> Self {
        Self {
            host: Arc::clone(&self.host),
            spec: Arc::new(self.spec.overridden_by(spec)),
            cancel: self.cancel.child(),
            recorder: Arc::default(),
        }
    }

    /// Lists the objects that `patterns` match. Relative paths start at `base`.
    ///
    /// `*`, `?` and `[...]` stay within one directory, `**` crosses directories, `{a,b}` is either. Only a glob with
    /// a leading dot matches names that start with one. The listing is sorted by address and has no duplicates.
    ///
    /// # Errors
    /// A pattern matches nothing, storage rejects a request, or a listing fails until the deadline.
    pub async fn list(&self, patterns: &[String], base: &Path) -> Result<Vec<Object>, Error> {
        let matches = self.list_matches(patterns, base).await?;
        let mut objects: Vec<Object> = matches.into_iter().map(|(object, _)| object).collect();
        objects.dedup_by(|a, b| a.is_place_of(b));
        Ok(objects)
    }

    /// As [`Stores::list`] of one absolute pattern, which need not match anything.
    ///
    /// # Errors
    /// As for [`Stores::list`], but for a pattern without a match.
    pub async fn find(&self, pattern: &str) -> Result<Vec<Object>, Error> {
        match self.list(&[pattern.to_owned()], Path::new("/")).await {
            Err(Error::EmptyGlob { .. } | Error::NotFound { .. }) => Ok(Vec::new()),
            listed => listed,
        }
    }

    /// As [`Stores::list`], with the index of the pattern that matches an object. An object that several patterns match
    /// occurs once for each.
    ///
    /// # Errors
    /// See [`Stores::list`].
    pub async fn list_matches(
        &self,
        patterns: &[String],
        base: &Path,
    ) -> Result<Vec<(Object, usize)>, Error> {
        let base = std::path::absolute(base).map_err(|source| Error::file(base, source))?;
        let mut objects = Vec::new();
        for (place, pattern) in patterns.iter().enumerate() {
            let found = self.cancel.or(listing::resolve(self, pattern, &base)).await??;
            if objects.len() + found.len() > pages::MAX_OBJECTS {
                return Err(pages::too_many(pattern));
            }
            objects.extend(found.into_iter().map(|object| (object, place)));
        }
        objects.sort_by(|(a, _), (b, _)| a.compare(b));
        Ok(objects)
    }

    /// Starts to write an object; a relative path starts at `base`.
    ///
    /// # Errors
    /// The address is invalid, or its storage cannot be reached.
    pub async fn create(&self, path: &str, base: &Path) -> Result<Upload, Error> {
        let base = std::path::absolute(base).map_err(|source| Error::file(base, source))?;
        Upload::create(self, path, &base).await
    }

    /// Cancels all reads and writes of objects by this value and its clones, permanently. Waiting calls return
    /// [`Error::Cancelled`] immediately, even if storage hangs.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Waits until this value is cancelled.
    pub async fn cancelled(&self) {
        self.cancel.given().await;
    }

    /// Statistics of the whole host.
    pub fn stats(&self) -> FetchStats {
        let stores = self.host.stores.lock();
        let mut stats = FetchStats { shared_bytes: self.host.shared.hit_bytes(), ..FetchStats::default() };
        stores
            .iter()
            .map(|(_, store)| store.traffic())
            .for_each(|traffic: &Traffic| traffic.add_to(&mut stats));
        stats
    }

    /// The clients for `address`, created if needed.
    async fn store(&self, address: &Address<'_>) -> object_store::Result<Arc<Store>> {
        let known = |stores: &[(StorageSpec, Arc<Store>)]| {
            let mut stores = stores.iter();
            let same = stores.find(|(spec, store)| store.root == address.root && *spec == *self.spec);
            same.map(|(_, store)| Arc::clone(store))
        };
        if let Some(store) = known(&self.host.stores.lock()) {
            return Ok(store);
        }
        let id = self.host.next_store.fetch_add(1, Ordering::Relaxed);
        let made = Arc::new(Store::open(id, address, &self.spec).await?);
        let mut stores = self.host.stores.lock();
        if let Some(store) = known(&stores) {
            return Ok(store);
        }
        if stores.len() >= MOST_STORES {
            stores.retain(|(_, store)| Arc::strong_count(store) > 1);
        }
        stores.push(((*self.spec).clone(), Arc::clone(&made)));
        Ok(made)
    }

    /// The recorder of this value's reads.
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    pub(crate) fn buffers(&self) -> &Buffers {
        &self.host.buffers
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.host.shared
    }

    pub(crate) fn calls_off(&self) -> &Cancel {
        &self.cancel
    }
}

impl Default for Stores {
    fn default() -> Self {
        Self::new(StorageSpec::default(), Self::SHARED_BYTES)
    }
}

/// Whether `address` is a local file.
///
/// # Errors
/// The address is invalid.
pub fn is_local(address: &str) -> Result<bool, Error> {
    Ok(Address::parse(address)?.scheme == address::Scheme::File)
}

/// Lists the objects that `patterns` match, with separate [`Stores`], for callers that read nothing else.
///
/// # Errors
/// See [`Stores::list`].
pub async fn list(patterns: &[String], base: &Path) -> Result<Vec<Object>, Error> {
    Stores::default().list(patterns, base).await
}

#[cfg(test)]
mod tests;
