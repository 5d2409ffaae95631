//! Discovery by announcements: each daemon writes one with its address, and lists those of the others.
//!
//! ```text
//! gs://bucket/peers/NAME.json    {"address": "10.0.0.5:7420", "instance": "00c0ffee00c0ffee"}
//! etcd millstream/peers/NAME     the same
//! ```
//!
//! An announcement is written when a daemon starts and deleted when it stops. In between nothing is written: each daemon lists all of
//! them regularly, and writes its own again if that is absent. The announcement of a daemon that has been unreachable for long
//! is deleted by any other. If that was wrong, because only the link between the two failed, it is back after the next
//! listing.

use std::collections::HashSet;

use super::board::{Announcement, Announcements, Board};
use crate::{About, HostName};

/// The daemons that announce themselves on a [`Board`].
#[derive(Debug)]
pub struct Registry {
    board: Board,
    known: Announcements,
    /// Whether this daemon has written its announcement.
    is_announced: bool,
    /// The instance of another daemon with the same name, if that was reported.
    reported: Option<String>,
    /// Why this daemon could not announce itself, if that was reported.
    failure: Option<String>,
    /// The names and instances of which the announcements were deleted.
    forgotten: HashSet<(HostName, String)>,
}

impl Registry {
    /// The registry on `board`.
    pub fn new(board: Board) -> Self {
        Self {
            board,
            known: Announcements::new(),
            is_announced: false,
            reported: None,
            failure: None,
            forgotten: HashSet::new(),
        }
    }

    /// Where daemons announce themselves.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// The addresses of all daemons. Then announces the daemon `about`, unless that is done.
    ///
    /// # Errors
    /// The error of storage or etcd when it lists. That of an announcement is logged once, and tried again at the next listing.
    pub async fn find(&mut self, about: &About) -> Result<Vec<String>, String> {
        self.known = self.board.list(&self.known).await?;
        self.check_own(about);
        if !self.is_announced {
            self.announce(about).await;
        }
        Ok(self.known.values().map(|(_, announcement)| announcement.address.clone()).collect())
    }

    /// Deletes the announcement of the daemon at `address`, which has been unreachable for long, unless it has announced itself again.
    pub async fn forget(&mut self, address: &str) {
        let known = self.known.iter().find(|(_, (_, announcement))| announcement.address == address);
        let Some((name, announcement)) = known.map(|(name, (_, known))| (name.clone(), known.clone())) else {
            return;
        };
        self.known.remove(&name);
        // If it comes back, it can reach the board, and only the link to it has failed.
        if !self.forgotten.insert((name.clone(), announcement.instance.clone())) {
            return;
        }
        if self.board.read(&name).await.as_ref() == Some(&announcement) {
            tracing::info!("removing unreachable peer {name} from {}", self.board);
            self.delete(&name).await;
        }
    }

    /// Deletes the announcement of this daemon, if it is still its own.
    pub async fn leave(&mut self, about: &About) {
        let own = self.board.read(&about.host).await;
        if own.is_some_and(|own| own.instance == instance_text(about)) {
            self.delete(&about.host).await;
        }
    }

    async fn announce(&mut self, about: &About) {
        let announcement = Announcement { address: about.address.clone(), instance: instance_text(about) };
        match self.board.write(&about.host, &announcement).await {
            Ok(()) => {
                self.is_announced = true;
                // So that this daemon knows it before the next listing.
                self.known.insert(about.host.clone(), (String::new(), announcement));
            }
            Err(error) => {
                if self.failure.as_ref() != Some(&error) {
                    tracing::warn!("cannot announce this host to peers in {}: {error}", self.board);
                    self.failure = Some(error);
                }
            }
        }
    }

    /// Announces this daemon again at the next listing if its announcement is absent; reports another daemon with its name.
    fn check_own(&mut self, about: &About) {
        let own = self.known.get(&about.host).map(|(_, announcement)| announcement);
        // Before it announces itself, this is its predecessor's.
        let was_announced = self.is_announced;
        self.is_announced &= own.is_some();
        let other = own.filter(|_| was_announced).filter(|own| own.instance != instance_text(about));
        if let Some(Announcement { address, instance }) = other
            && self.reported.as_ref() != Some(instance)
        {
            let (host, board) = (&about.host, &self.board);
            tracing::warn!(
                "{board}: another daemon announces itself as {host}, at {address}; each host needs its own name"
            );
            self.reported = Some(instance.clone());
        }
    }

    async fn delete(&self, name: &HostName) {
        if let Err(error) = self.board.delete(name).await {
            tracing::warn!("cannot remove peer {name} from {}: {error}", self.board);
        }
    }
}

fn instance_text(about: &About) -> String {
    format!("{:016x}", about.instance)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::path::Path;

    use millstream_io::storage::{Directory, Stores};

    use super::*;

    fn about(host: &str, instance: u64) -> About {
        let host = HostName::parse(host).unwrap();
        let address = format!("{host}:7420");
        About { host, version: String::new(), instance, address }
    }

    fn in_directory(path: &Path) -> Registry {
        Registry::new(Board::Directory(Directory::local(path), Stores::default()))
    }

    fn sorted(mut addresses: Vec<String>) -> Vec<String> {
        addresses.sort();
        addresses
    }

    #[tokio::test]
    async fn daemons_find_each_other_in_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let registry = || in_directory(&dir.path().join("peers"));
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
        let registry = || in_directory(dir.path());
        let (mut old, mut new) = (registry(), registry());
        let (before, after) = (about("a", 1), About { address: "elsewhere:1".to_owned(), ..about("a", 2) });
        old.find(&before).await.unwrap();
        new.find(&after).await.unwrap();
        assert_eq!(old.find(&before).await.unwrap(), ["elsewhere:1"]);
        old.leave(&before).await;
        assert_eq!(new.find(&after).await.unwrap(), ["elsewhere:1"]);
    }
}
