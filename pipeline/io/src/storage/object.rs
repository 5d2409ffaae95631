//! An object as it was listed. Reads are conditional on it being unchanged.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use object_store::{GetOptions, GetRange, GetResult, ObjectMeta};

use super::Stores;
use super::client::Store;
use crate::Error;
use crate::shared::Identity;

/// An object as it was listed.
#[derive(Clone, Debug)]
pub struct Object {
    path: Arc<str>,
    store: Arc<Store>,
    meta: Arc<ObjectMeta>,
    stores: Stores,
}

impl Object {
    pub(super) fn new(path: Arc<str>, store: Arc<Store>, mut meta: ObjectMeta, stores: &Stores) -> Self {
        // Azure's responses quote the tag, its listings do not.
        meta.e_tag = meta.e_tag.map(|tag| if tag.ends_with('"') { tag } else { format!("\"{tag}\"") });
        Self { path, store, meta: Arc::new(meta), stores: stores.clone() }
    }

    /// The path as the user wrote it, with wildcards resolved.
    pub fn path(&self) -> &Arc<str> {
        &self.path
    }

    /// Bytes in storage.
    pub fn size(&self) -> u64 {
        self.meta.size
    }

    /// When it was last written, by the clock of the service.
    pub fn modified(&self) -> SystemTime {
        self.meta.last_modified.into()
    }

    /// The version: the tag, or else the generation, or else the time of the last change. The tag comes first because
    /// listings contain it, but no generation.
    pub fn version(&self) -> String {
        let version = self.meta.e_tag.as_ref().or(self.meta.version.as_ref());
        version.cloned().unwrap_or_else(|| self.meta.last_modified.to_rfc3339())
    }

    /// The address on any machine: a URL, or an absolute path.
    pub fn address(&self) -> String {
        format!("{}/{}", self.store.root, self.meta.location)
    }

    /// Whether it is a local or mounted file.
    pub fn is_local(&self) -> bool {
        self.store.is_local()
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    pub(crate) fn stores(&self) -> &Stores {
        &self.stores
    }

    pub(crate) fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    /// Drops the shared bytes of this object, which were found damaged; the next reader fetches them again.
    pub fn distrust(&self) {
        if self.is_local() {
            return;
        }
        self.stores.shared().forget(&self.identity());
    }

    pub(crate) fn identity(&self) -> Identity {
        Identity {
            store: self.store.id,
            location: self.meta.location.as_ref().into(),
            version: self.version().into(),
        }
    }

    /// The request for `range` of the listed version.
    ///
    /// A tag is the strongest condition, and every cloud has one. Without it (plain web servers) the request is
    /// conditional on the time of the last change, if the server reports it.
    pub(crate) fn request(&self, range: Range<u64>) -> GetOptions {
        let mut options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        match &self.meta.e_tag {
            Some(tag) => options.if_match = Some(tag.clone()),
            None if self.meta.last_modified.timestamp() > 0 => {
                options.if_unmodified_since = Some(self.meta.last_modified);
            }
            None => {}
        }
        options
    }

    /// Whether a response has the listed version. Not every server respects conditions.
    pub(crate) fn is_same(&self, answer: &GetResult) -> bool {
        let differ = |listed: &Option<String>, got: &Option<String>| matches!((listed, got), (Some(listed), Some(got)) if listed != got);
        answer.meta.size == self.meta.size
            && !differ(&self.meta.e_tag, &answer.meta.e_tag)
            && !differ(&self.meta.version, &answer.meta.version)
    }

    pub(crate) fn changed(&self) -> Error {
        Error::Changed { path: self.path.to_string() }
    }

    /// The order of a listing, the same on every machine.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        (self.store.root.as_str(), &self.meta.location)
            .cmp(&(other.store.root.as_str(), &other.meta.location))
            .then_with(|| self.path.cmp(&other.path))
    }

    pub(super) fn is_place_of(&self, other: &Self) -> bool {
        self.store.root == other.store.root && self.meta.location == other.meta.location
    }
}
