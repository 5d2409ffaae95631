//! Discovery by a bucket: each daemon writes an object with its address, and lists those of the others.
//!
//! ```text
//! gs://bucket/peers/NAME.json    {"address": "10.0.0.5:7420", "instance": "00c0ffee00c0ffee"}
//! ```
//!
//! An object is written when a daemon starts and deleted when it stops. In between nothing is written: each daemon lists the
//! directory regularly, reads objects that are new to it, and writes its own again if that is absent. An object whose
//! daemon has been unreachable for long is deleted by any other. If that was wrong, because only the link between the two
//! failed, the object is back after the next listing.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use millstream_io::Error;
use millstream_io::storage::{Directory, Stores};
use serde::{Deserialize, Serialize};

use super::{MAX_ADDRESSES, Target};
use crate::{About, HostName};

const SUFFIX: &str = ".json";

/// A larger object is none of a daemon.
const MAX_BYTES: u64 = 16 << 10;

/// A directory in which daemons announce themselves.
#[derive(Debug)]
pub struct Registry {
    directory: Directory,
    stores: Stores,
    /// By name, the version of the object and what it says.
    known: HashMap<HostName, (String, Announcement)>,
    /// Whether this daemon has written its object.
    is_announced: bool,
    /// The instance of another daemon with the same name, if that was reported.
    reported: Option<String>,
    /// Why this daemon could not announce itself, if that was reported.
    failure: Option<String>,
    /// The names and instances of which the objects were deleted.
    forgotten: HashSet<(HostName, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Announcement {
    address: String,
    instance: String,
}

impl Registry {
    /// The registry in `directory`, which `stores` reads and writes.
    pub fn new(directory: Directory, stores: Stores) -> Self {
        Self {
            directory,
            stores,
            known: HashMap::new(),
            is_announced: false,
            reported: None,
            failure: None,
            forgotten: HashSet::new(),
        }
    }

    /// The directory.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The addresses of all daemons. Then announces the daemon `about`, unless that is done.
    ///
    /// # Errors
    /// The error of storage when it lists. That of an announcement is logged once, and tried again at the next listing.
    pub async fn find(&mut self, about: &About) -> Result<Vec<String>, Error> {
        let objects = self.stores.find(&self.directory.join(&format!("*{SUFFIX}")).text()).await?;
        let mut found = HashMap::new();
        for object in objects.iter().take(MAX_ADDRESSES) {
            let path = object.path();
            let name = path.rsplit('/').next().and_then(|file| file.strip_suffix(SUFFIX));
            let Some(Ok(name)) = name.map(HostName::parse) else { continue };
            let version = object.version();
            let known = self.known.get(&name).filter(|(known, _)| *known == version);
            let announcement = match known {
                Some((_, announcement)) => Some(announcement.clone()),
                None if object.size() > MAX_BYTES => None,
                None => self.read(path).await,
            };
            if let Some(announcement) = announcement {
                found.insert(name, (version, announcement));
            }
        }
        self.known = found;
        self.check_own(about);
        if !self.is_announced {
            self.announce(about).await;
        }
        Ok(self.known.values().map(|(_, announcement)| announcement.address.clone()).collect())
    }

    /// Deletes the object of the daemon at `address`, which has been unreachable for long, unless it has announced itself again.
    pub async fn forget(&mut self, address: &str) {
        let known = self.known.iter().find(|(_, (_, announcement))| announcement.address == address);
        let Some((name, announcement)) = known.map(|(name, (_, known))| (name.clone(), known.clone())) else {
            return;
        };
        self.known.remove(&name);
        // If it comes back, it can reach the directory, and only the link to it has failed.
        if !self.forgotten.insert((name.clone(), announcement.instance.clone())) {
            return;
        }
        if self.read(&self.object(&name)).await.as_ref() == Some(&announcement) {
            let directory = &self.directory;
            tracing::info!("removing unreachable peer {name} from {directory}");
            self.delete(&name).await;
        }
    }

    /// Deletes the object of this daemon, if it is still its own.
    pub async fn leave(&mut self, about: &About) {
        let own = self.read(&self.object(&about.host)).await;
        if own.is_some_and(|own| own.instance == instance_text(about)) {
            self.delete(&about.host).await;
        }
    }

    async fn announce(&mut self, about: &About) {
        let announcement = Announcement { address: about.address.clone(), instance: instance_text(about) };
        let bytes = serde_json::to_vec(&announcement).unwrap_or_default();
        match self.stores.put(&self.object(&about.host), Path::new("/"), bytes).await {
            Ok(()) => {
                self.is_announced = true;
                // So that this daemon knows it before the next listing.
                self.known.insert(about.host.clone(), (String::new(), announcement));
            }
            Err(error) => {
                let error = error.to_string();
                if self.failure.as_ref() != Some(&error) {
                    tracing::warn!("cannot announce this host to peers in {}: {error}", self.directory);
                    self.failure = Some(error);
                }
            }
        }
    }

    /// Announces this daemon again at the next listing if its object is absent; reports another daemon with its name.
    fn check_own(&mut self, about: &About) {
        let own = self.known.get(&about.host).map(|(_, announcement)| announcement);
        // Before it announces itself, this is its predecessor's.
        let was_announced = self.is_announced;
        self.is_announced &= own.is_some();
        let other = own.filter(|_| was_announced).filter(|own| own.instance != instance_text(about));
        if let Some(Announcement { address, instance }) = other
            && self.reported.as_ref() != Some(instance)
        {
            let (host, directory) = (&about.host, &self.directory);
            tracing::warn!(
                "{directory}: another daemon announces itself as {host}, at {address}; each host needs its own name"
            );
            self.reported = Some(instance.clone());
        }
    }

    /// What an object says; `None` if it is gone, cannot be read or says nothing.
    async fn read(&self, path: &str) -> Option<Announcement> {
        let read = self.stores.get_small(path, Path::new("/")).await;
        let read = read.inspect_err(|error| tracing::debug!("{path} cannot be read: {error}"));
        let (bytes, _) = read.ok()??;
        let parsed = serde_json::from_slice(&bytes).map_err(|error| error.to_string());
        let parsed = parsed.and_then(|announcement: Announcement| {
            let address = Target::parse(&announcement.address)?.to_string();
            Ok(Announcement { address, ..announcement })
        });
        parsed.inspect_err(|error| tracing::debug!("{path} announces no peer: {error}")).ok()
    }

    async fn delete(&self, name: &HostName) {
        if let Err(error) = self.stores.delete(&self.object(name), Path::new("/")).await {
            tracing::warn!("cannot remove peer {name} from the directory of peers: {error}");
        }
    }

    fn object(&self, name: &HostName) -> String {
        self.directory.join(&format!("{name}{SUFFIX}")).text().into_owned()
    }
}

fn instance_text(about: &About) -> String {
    format!("{:016x}", about.instance)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    fn about(host: &str, instance: u64) -> About {
        let host = HostName::parse(host).unwrap();
        let address = format!("{host}:7420");
        About { host, version: String::new(), instance, address }
    }

    fn sorted(mut addresses: Vec<String>) -> Vec<String> {
        addresses.sort();
        addresses
    }

    #[tokio::test]
    async fn daemons_find_each_other_in_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let registry = || Registry::new(Directory::local(dir.path().join("peers")), Stores::default());
        let (mut first, mut second) = (registry(), registry());
        let (a, b) = (about("a", 1), about("b", 2));
        assert_eq!(first.find(&a).await.unwrap(), ["a:7420"]);
        assert_eq!(sorted(second.find(&b).await.unwrap()), ["a:7420", "b:7420"]);
        assert_eq!(sorted(first.find(&a).await.unwrap()), ["a:7420", "b:7420"]);

        // What is not from a daemon is passed over.
        fs::write(dir.path().join("peers/x.json"), "{").unwrap();
        fs::write(dir.path().join("peers/-.json"), "{}").unwrap();
        assert_eq!(first.find(&a).await.unwrap().len(), 2);

        // Wrongly deleted, and announced again.
        first.forget("b:7420").await;
        assert_eq!(first.find(&a).await.unwrap(), ["a:7420"]);
        second.find(&b).await.unwrap();
        second.find(&b).await.unwrap();
        assert_eq!(first.find(&a).await.unwrap().len(), 2);

        second.leave(&b).await;
        assert_eq!(first.find(&a).await.unwrap(), ["a:7420"]);
    }

    #[tokio::test]
    async fn a_daemon_does_not_remove_its_successor() {
        let dir = tempfile::tempdir().unwrap();
        let registry = || Registry::new(Directory::local(dir.path()), Stores::default());
        let (mut old, mut new) = (registry(), registry());
        let (before, after) = (about("a", 1), About { address: "elsewhere:1".to_owned(), ..about("a", 2) });
        old.find(&before).await.unwrap();
        new.find(&after).await.unwrap();
        assert_eq!(old.find(&before).await.unwrap(), ["elsewhere:1"]);
        old.leave(&before).await;
        assert_eq!(new.find(&after).await.unwrap(), ["elsewhere:1"]);
    }
}
