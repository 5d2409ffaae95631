//! Where daemons announce themselves: a directory in a bucket, or etcd.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use millstream_io::storage::{Directory, Stores};
use serde::{Deserialize, Serialize};

use super::{MAX_ADDRESSES, Target};
use crate::HostName;
use crate::etcd::Etcd;

const SUFFIX: &str = ".json";

/// A larger object is none of a daemon.
const MAX_BYTES: u64 = 16 << 10;

/// A place of announcements, one for each host by its name.
#[derive(Clone, Debug)]
pub enum Board {
    /// The objects `NAME.json` of a directory.
    Directory(Directory, Stores),
    /// The keys `peers/NAME`.
    Etcd(Etcd),
}

/// What a daemon says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Announcement {
    pub(super) address: String,
    pub(super) instance: String,
}

/// The announcements by name, with their versions.
pub(super) type Announcements = HashMap<HostName, (String, Announcement)>;

impl Board {
    /// All announcements. Those of `known` whose version is still the same are not read again.
    pub(super) async fn list(&self, known: &Announcements) -> Result<Announcements, String> {
        match self {
            Self::Directory(directory, stores) => {
                let pattern = directory.join(&format!("*{SUFFIX}"));
                let objects = stores.find(&pattern.text()).await.map_err(|error| error.to_string())?;
                let mut found = Announcements::new();
                for object in objects.iter().take(MAX_ADDRESSES) {
                    let file = object.path().rsplit('/').next();
                    let name = file.and_then(|file| file.strip_suffix(SUFFIX)).map(HostName::parse);
                    let Some(Ok(name)) = name else { continue };
                    let version = object.version();
                    let announcement = match known.get(&name).filter(|(known, _)| *known == version) {
                        Some((_, announcement)) => Some(announcement.clone()),
                        None if object.size() > MAX_BYTES => None,
                        None => self.read(&name).await,
                    };
                    if let Some(announcement) = announcement {
                        found.insert(name, (version, announcement));
                    }
                }
                Ok(found)
            }
            Self::Etcd(etcd) => {
                let start = etcd.key("peers/");
                let keys = etcd.list(&start, MAX_ADDRESSES).await.map_err(|error| error.to_string())?;
                let named = keys.into_iter().filter_map(|(key, kept)| {
                    let name = HostName::parse(key.strip_prefix(&start)?).ok()?;
                    Some((name, (kept.revision.to_string(), parse(&key, &kept.bytes)?)))
                });
                Ok(named.collect())
            }
        }
    }

    /// The announcement of a host; `None` if there is none, or it cannot be read.
    pub(super) async fn read(&self, name: &HostName) -> Option<Announcement> {
        let place = self.place(name);
        let read = match self {
            Self::Directory(_, stores) => {
                let read = stores.get_small(&place, Path::new("/")).await;
                read.map(|found| found.map(|(bytes, _)| bytes.to_vec())).map_err(|error| error.to_string())
            }
            Self::Etcd(etcd) => {
                let read = etcd.get(&place).await;
                read.map(|found| found.map(|kept| kept.bytes)).map_err(|error| error.to_string())
            }
        };
        let read = read.inspect_err(|error| tracing::debug!("{place} cannot be read: {error}"));
        parse(&place, &read.ok()??)
    }

    /// Writes the announcement of a host.
    pub(super) async fn write(&self, name: &HostName, announcement: &Announcement) -> Result<(), String> {
        let (place, bytes) = (self.place(name), serde_json::to_vec(announcement).unwrap_or_default());
        match self {
            Self::Directory(_, stores) => {
                stores.put(&place, Path::new("/"), bytes).await.map_err(|error| error.to_string())
            }
            Self::Etcd(etcd) => etcd.put(&place, bytes).await.map_err(|error| error.to_string()),
        }
    }

    /// Deletes the announcement of a host.
    pub(super) async fn delete(&self, name: &HostName) -> Result<(), String> {
        let place = self.place(name);
        match self {
            Self::Directory(_, stores) => {
                let deleted = stores.delete(&place, Path::new("/")).await;
                deleted.map(drop).map_err(|error| error.to_string())
            }
            Self::Etcd(etcd) => etcd.delete(&place).await.map_err(|error| error.to_string()),
        }
    }

    fn place(&self, name: &HostName) -> String {
        match self {
            Self::Directory(directory, _) => directory.join(&format!("{name}{SUFFIX}")).text().into_owned(),
            Self::Etcd(etcd) => etcd.key(&format!("peers/{name}")),
        }
    }
}

impl fmt::Display for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(directory, _) => directory.fmt(f),
            Self::Etcd(etcd) => write!(f, "etcd {}", etcd.key("peers")),
        }
    }
}

/// What an announcement at `place` says; `None` if it is none.
fn parse(place: &str, bytes: &[u8]) -> Option<Announcement> {
    let parsed = serde_json::from_slice(bytes).map_err(|error| error.to_string());
    let parsed = parsed.and_then(|announcement: Announcement| {
        let address = Target::parse(&announcement.address)?.to_string();
        Ok(Announcement { address, ..announcement })
    });
    parsed.inspect_err(|error| tracing::debug!("{place} announces no peer: {error}")).ok()
}
