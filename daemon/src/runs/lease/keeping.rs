//! Where the record of a lease is kept: in the run directory, or in etcd.
//!
//! ```text
//! gs://bucket/runs/census-k3f9q2/lease.json      {"holder": .., "term": ..}                   the record
//!                                           or   {"etcd_key": "millstream/leases/census-k3f9q2-w81m0z", "run": "gs://bucket/runs/census-k3f9q2"}
//! etcd millstream/leases/census-k3f9q2-w81m0z    {"holder": .., "term": ..}                   the record
//! ```
//!
//! The run decides, not the daemon: otherwise, a daemon with etcd and one without it could both have the lease. The key is written before
//! the object that names it, so the object of a run names a key that exists, and a daemon of another etcd cluster notices. A daemon that
//! is killed in between, or cannot write the object, leaves a key of which nobody knows. The object also has the address of the run,
//! because a copy of the directory must not share the lease.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use millstream_io::storage::{Directory, ObjectVersion, Stores};
use millstream_peers::etcd::{Etcd, Kept};
use serde::{Deserialize, Serialize};

use super::super::random_characters;
use super::record::Record;
use super::{LeaseError, Place};

/// The object in the run directory.
pub(crate) const LEASE: &str = "lease.json";

/// Where the record of a lease is kept.
#[derive(Clone, Debug)]
pub(super) enum Keeping {
    /// In the object with this address.
    Object(Stores, Directory),
    /// In a key.
    Key(Etcd, String),
}

/// The version of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Object(ObjectVersion),
    /// The revision of the key.
    Key(i64),
}

/// What the object in the run directory says if the record is in etcd.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pointer {
    etcd_key: String,
    /// The address of the run.
    run: String,
}

impl Keeping {
    /// Where the record of the run in `directory` is, with its content and version; `None` if the run has had no lease.
    pub(super) async fn find((directory, storage): Place<'_>) -> Result<Option<(Self, Vec<u8>, Version)>> {
        let address = directory.join(LEASE);
        let Some((json, version)) = storage.stores.get_small(&address.text(), Path::new("/")).await? else {
            return Ok(None);
        };
        let Ok(Pointer { etcd_key, run }) = serde_json::from_slice(&json) else {
            let version = Version::Object(version);
            return Ok(Some((Self::Object(storage.stores.clone(), address), json.to_vec(), version)));
        };
        ensure!(
            *directory.text() == run,
            "{address} is of the run in {run}. If {directory} is a copy of it, or it has moved here and no other daemon trains \
             in it, delete {address}"
        );
        let Some(etcd) = &storage.etcd else {
            bail!(
                "the lease of the run in {directory} is in etcd, in the key {etcd_key}; configure that cluster in the section \
                 [etcd] of the daemon"
            );
        };
        let Some(Kept { bytes, revision }) = etcd.get(&etcd_key).await? else {
            bail!(
                "{address} names the key {etcd_key}, which is not in the etcd cluster of this daemon. Configure the cluster \
                 that has it; if that has lost it, and no other daemon trains in {directory}, delete {address}"
            );
        };
        Ok(Some((Self::Key(etcd.clone(), etcd_key), bytes, Version::Key(revision))))
    }

    /// Writes the first record of the run in `directory`: in etcd, if this daemon has it. `None` if another daemon was faster.
    pub(super) async fn begin(
        (directory, storage): Place<'_>,
        record: &Record,
    ) -> Result<Option<(Self, Version)>> {
        let address = directory.join(LEASE);
        let path = address.text().into_owned();
        let put = |json| storage.stores.put_new(&path, Path::new("/"), json);
        let Some(etcd) = &storage.etcd else {
            let keeping = Self::Object(storage.stores.clone(), address.clone());
            let version = put(record.to_json()).await?;
            return Ok(version.map(|version| (keeping, Version::Object(version))));
        };
        let name = directory.name().unwrap_or_default();
        let etcd_key = etcd.key(&format!("leases/{name}-{}", random_characters()?));
        let revision = match etcd.create(&etcd_key, record.to_json()).await? {
            Some(revision) => revision,
            // The response to an earlier request was lost.
            None => match etcd.get(&etcd_key).await? {
                Some(kept) if kept.bytes == record.to_json() => kept.revision,
                _ => return Ok(None),
            },
        };
        let run = directory.text().into_owned();
        let pointer = serde_json::to_vec(&Pointer { etcd_key: etcd_key.clone(), run });
        if put(pointer.context("a key is text")?).await?.is_some() {
            return Ok(Some((Self::Key(etcd.clone(), etcd_key), Version::Key(revision))));
        }
        // Unless it was this process without hearing of it.
        match Self::find((directory, storage)).await? {
            Some((Self::Key(_, key), ..)) if key == etcd_key => {}
            _ => etcd.delete(&etcd_key).await?,
        }
        Ok(None)
    }

    /// The record, if there is one.
    pub(super) async fn get(&self) -> Result<Option<(Vec<u8>, Version)>, LeaseError> {
        match self {
            Self::Object(stores, address) => {
                let found = stores.get_small(&address.text(), Path::new("/")).await?;
                Ok(found.map(|(json, version)| (json.to_vec(), Version::Object(version))))
            }
            Self::Key(etcd, key) => {
                let found = etcd.get(key).await?;
                Ok(found.map(|Kept { bytes, revision }| (bytes, Version::Key(revision))))
            }
        }
    }

    /// Replaces the record if it has `version`. Returns its new version if it was replaced.
    pub(super) async fn replace(
        &self,
        record: &Record,
        version: &Version,
    ) -> Result<Option<Version>, LeaseError> {
        let json = record.to_json();
        match (self, version) {
            (Self::Object(stores, address), Version::Object(version)) => {
                let replaced = stores.replace(&address.text(), json, version).await?;
                Ok(replaced.map(Version::Object))
            }
            (Self::Key(etcd, key), Version::Key(revision)) => {
                Ok(etcd.replace(key, json, *revision).await?.map(Version::Key))
            }
            (Self::Object(..), Version::Key(_)) | (Self::Key(..), Version::Object(_)) => {
                unreachable!("a version is of the record that was read here")
            }
        }
    }
}

impl fmt::Display for Keeping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(_, address) => address.fmt(f),
            Self::Key(_, key) => write!(f, "the etcd key {key}"),
        }
    }
}
