//! Access to files on behalf of the user who asks for it.
//!
//! The daemon may have more rights than the users of its socket. A request names files: data, files of terms,
//! checkpoints, directories to write. Before the daemon opens one, it checks whether the requesting user could: search
//! permission for every directory on the way, through every symbolic link, then permission to read or write the end.
//! Root and the daemon's own user are not checked, and neither are checkpoints and output directories below the shared
//! directories of the configuration, in which only the daemon can create links.
//!
//! Data and checkpoints in buckets are read with the daemon's credentials, for any user.
//!
//! The rule is that of the mode bits. Where a file has an access control list, only its owner passes. Links of `/proc`
//! are refused, because they lead elsewhere than they say. A file of terms is opened by the descriptor that was checked.
//! Data, checkpoints and output directories are opened by their path later: a user who can replace a directory of such a
//! path after the check can redirect it. Users who do not trust each other need a daemon each.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};
use millstream_credentials::Peer;
use millstream_io::storage::{StorageSpec, is_local};
use rustix::fs::{CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// The maximum number of symbolic links in a path, as in the kernel.
const MAX_LINKS: usize = 40;

const READ: u32 = 4;
const WRITE: u32 = 2;
const SEARCH: u32 = 1;

/// For whom the daemon acts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Requester {
    /// Root, the daemon's own user, or the program that hosts the daemon.
    #[default]
    Trusted,
    /// Another user.
    User(User),
}

/// A user's rights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    /// Directories in which every user may read and write runs.
    shared: Vec<PathBuf>,
}

/// The credentials of the process at the other end of a connection when it connected.
#[derive(Clone, Debug)]
pub(crate) struct Credentials {
    pub(crate) uid: u32,
    gid: u32,
    groups: Vec<u32>,
    /// The process, for messages only: its number may belong to another one by now.
    pub(crate) pid: Option<i32>,
}

impl Credentials {
    /// Those of the other end of `stream`.
    ///
    /// # Errors
    /// When the kernel does not have them.
    pub(crate) fn of_peer(stream: &impl AsFd) -> io::Result<Self> {
        let Peer { pid, uid, gid } = millstream_credentials::peer(stream)?;
        let groups = millstream_credentials::peer_groups(stream)?;
        Ok(Self { uid, gid, groups, pid })
    }

    #[cfg(test)]
    pub(crate) fn new(uid: u32, gid: u32, groups: Vec<u32>) -> Self {
        Self { uid, gid, groups, pid: None }
    }

    /// Whether the process is one of root or of the daemon's own user.
    pub(crate) fn are_trusted(&self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }

    /// Whether the process is in `group`.
    pub(crate) fn are_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }
}

impl Requester {
    /// A user with these ids.
    pub fn user(uid: u32, gid: u32, groups: Vec<u32>) -> Self {
        Self::User(User { uid, gid, groups, shared: Vec::new() })
    }

    /// The user at the other end of a connection, who may use runs in the directories `shared`.
    pub(crate) fn of_peer(peer: &Credentials, shared: &[PathBuf]) -> Self {
        if peer.are_trusted() {
            return Self::Trusted;
        }
        let Credentials { uid, gid, groups, .. } = peer.clone();
        Self::User(User { uid, gid, groups, shared: shared.to_vec() })
    }

    /// The user's number, unless it is trusted.
    pub(crate) fn uid(&self) -> Option<u32> {
        match self {
            Self::Trusted => None,
            Self::User(user) => Some(user.uid),
        }
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// When the user may not read it, or it is not a regular file, such as a device or a pipe that never ends.
    pub(crate) fn open(&self, path: &Path) -> io::Result<File> {
        let Self::User(user) = self else { return millstream_job::open_regular_file(path) };
        let end = user.walk(path)?;
        user.check(&end, READ, path)?;
        // The descriptor that was checked, whatever the path leads to by now.
        millstream_job::open_regular_file(&link_to(&end))
    }

    /// Checks that the user may use the run or the checkpoint in `directory`: list it, and read each file in it.
    pub(crate) fn check_run(&self, directory: &Path) -> io::Result<()> {
        let Self::User(user) = self else { return Ok(()) };
        if user.shares(directory) {
            return Ok(());
        }
        self.check_read(directory)?;
        for entry in std::fs::read_dir(directory)? {
            self.check_read(&entry?.path())?;
        }
        Ok(())
    }

    /// Checks that the user may read a file, or list a directory and search it.
    ///
    /// # Errors
    /// When the user may not, or this process cannot look.
    pub fn check_read(&self, path: &Path) -> io::Result<()> {
        let Self::User(user) = self else { return Ok(()) };
        let end = user.walk(path)?;
        let is_directory = FileType::from_raw_mode(rustix::fs::fstat(&end)?.st_mode).is_dir();
        user.check(&end, if is_directory { READ | SEARCH } else { READ }, path)
    }

    /// Checks that the user may create files in a directory, or create the directory.
    ///
    /// # Errors
    /// When the user may not, or this process cannot look.
    pub fn check_write(&self, directory: &Path) -> io::Result<()> {
        let Self::User(user) = self else { return Ok(()) };
        if user.shares(directory) {
            return Ok(());
        }
        for existing in directory.ancestors() {
            match user.walk(existing) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
                Ok(end) => return user.check(&end, WRITE | SEARCH, existing),
            }
        }
        Ok(())
    }

    /// Checks that the user may read the files of storage settings: a key, and the directory of a catalog.
    pub(crate) fn check_storage(&self, storage: &StorageSpec) -> Result<()> {
        if let Some(key_file) = &storage.gs.service_account {
            self.check_read(key_file).context("`storage.gs.service_account`")?;
        }
        let catalog = storage.catalog.as_deref().filter(|catalog| is_local(catalog).unwrap_or(false));
        if let Some(catalog) = catalog {
            self.check_read(Path::new(catalog)).context("`storage.catalog`")?;
        }
        Ok(())
    }

    /// Checks that the user may read each local file among `paths`, in which objects of cloud storage are URLs.
    pub(crate) fn check_data<'a>(&self, paths: impl Iterator<Item = &'a str>, base: &Path) -> Result<()> {
        let Self::User(user) = self else { return Ok(()) };
        let mut directories: HashMap<PathBuf, OwnedFd> = HashMap::new();
        for path in paths.filter(|path| !path.contains("://")) {
            let path = base.join(path);
            let here = || format!("{}: the user who asks for it cannot read it", path.display());
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                self.check_read(&path).with_context(here)?;
                continue;
            };
            if !directories.contains_key(parent) {
                let end = user.walk(parent).with_context(here)?;
                user.check(&end, SEARCH, parent).with_context(here)?;
                directories.insert(parent.to_owned(), end);
            }
            let end =
                user.walk_from(open_again(&directories[parent])?, Path::new(name)).with_context(here)?;
            user.check(&end, READ, &path).with_context(here)?;
        }
        Ok(())
    }
}

impl User {
    /// Whether `directory` is a shared directory or below one.
    fn shares(&self, directory: &Path) -> bool {
        let is_plain = directory.components().all(|component| component != Component::ParentDir);
        is_plain && self.shared.iter().any(|shared| directory.starts_with(shared))
    }

    /// Follows `path` with the user's rights; returns a descriptor without access.
    fn walk(&self, path: &Path) -> io::Result<OwnedFd> {
        let start = if path.is_absolute() { "/" } else { "." };
        self.walk_from(open_path(CWD, start)?, path)
    }

    fn walk_from(&self, mut at: OwnedFd, path: &Path) -> io::Result<OwnedFd> {
        let mut links = 0;
        let mut place = PathBuf::new();
        let mut rest: Vec<OsString> = components(path);
        while let Some(name) = rest.pop() {
            if name == "/" {
                at = open_path(CWD, "/")?;
                place = PathBuf::from("/");
                continue;
            }
            self.check(&at, SEARCH, &place)?;
            let next = open_path(&at, Path::new(&name))?;
            if !FileType::from_raw_mode(rustix::fs::fstat(&next)?.st_mode).is_symlink() {
                place.push(name);
                at = next;
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(Errno::LOOP.into());
            }
            if rustix::fs::fstatfs(&next)?.f_type == PROC_SUPER_MAGIC {
                return Err(denied(format!("{} is a link in /proc", place.join(name).display())));
            }
            let target = rustix::fs::readlinkat(&next, "", Vec::new())?;
            rest.extend(components(Path::new(std::ffi::OsStr::new(
                target.to_str().map_err(|_| Errno::ILSEQ)?,
            ))));
        }
        Ok(at)
    }

    /// Checks the permissions `wanted` for the file at `end`.
    fn check(&self, end: &OwnedFd, wanted: u32, path: &Path) -> io::Result<()> {
        let found = rustix::fs::fstat(end)?;
        let granted = self.granted(&found);
        let has_list = || {
            found.st_uid != self.uid
                && rustix::fs::getxattr(link_to(end), "system.posix_acl_access", &mut [0_u8; 0]).is_ok()
        };
        if granted & wanted == wanted && !has_list() {
            return Ok(());
        }
        let what = match wanted {
            READ => "read",
            SEARCH => "search",
            WRITE => "write",
            _ if wanted & WRITE == 0 => "list",
            _ => "create files in",
        };
        Err(denied(format!(
            "user {} may not {what} `{}`, which has the mode {:03o} and belongs to user {} and group {}{}",
            self.uid,
            path.display(),
            found.st_mode & 0o777,
            found.st_uid,
            found.st_gid,
            if granted & wanted == wanted { ", with an access control list" } else { "" }
        )))
    }

    /// The permissions that the mode bits of a file grant.
    fn granted(&self, found: &Stat) -> u32 {
        let shift = if found.st_uid == self.uid {
            6
        } else if found.st_gid == self.gid || self.groups.contains(&found.st_gid) {
            3
        } else {
            0
        };
        found.st_mode >> shift & 7
    }
}

/// The components of a path, the last one first.
fn components(path: &Path) -> Vec<OsString> {
    let name = |component: Component<'_>| component.as_os_str().to_owned();
    path.components().rev().map(name).collect()
}

fn open_path(at: impl AsFd, path: impl AsRef<Path>) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, path.as_ref(), flags, Mode::empty())?)
}

fn open_again(directory: &OwnedFd) -> io::Result<OwnedFd> {
    directory.try_clone()
}

/// The link in `/proc` to an open descriptor of this process.
fn link_to(descriptor: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd()).into()
}

fn denied(message: String) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, message)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// Users who own no file here: with the group of `path`, and without.
    fn others(path: &Path) -> [Requester; 2] {
        let found = fs::metadata(path).unwrap();
        let user = |groups| {
            let (uid, gid) = (found.uid() + 1, found.gid() + 1);
            Requester::User(User { uid, gid, groups, shared: vec!["/shared".into()] })
        };
        [user(vec![found.gid() + 2, found.gid()]), user(Vec::new())]
    }

    /// A directory that everybody can search, and all directories above it.
    fn open_directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        set_mode(directory.path(), 0o755);
        directory
    }

    #[test]
    fn the_mode_bits_decide_who_reads_a_file() {
        let directory = open_directory();
        let path = directory.path().join("terms.txt");
        fs::write(&path, "a\n").unwrap();
        let [member, other] = others(&path);
        let found = fs::metadata(&path).unwrap();
        let owner = {
            let (uid, gid) = (found.uid(), found.gid() + 1);
            Requester::User(User { uid, gid, groups: Vec::new(), shared: Vec::new() })
        };
        for (mode, allowed) in
            [(0o600, [true, false, false]), (0o640, [true, true, false]), (0o604, [true, false, true])]
        {
            set_mode(&path, mode);
            for (requester, allowed) in [&owner, &member, &other].into_iter().zip(allowed) {
                let opened = requester.open(&path);
                assert_eq!(opened.is_ok(), allowed, "{mode:o} {requester:?}");
                assert_eq!(requester.check_read(&path).is_ok(), allowed);
                let name = path.to_str().unwrap();
                assert_eq!(
                    requester.check_data([name, "gs://b/x"].into_iter(), Path::new("/")).is_ok(),
                    allowed
                );
            }
        }
        set_mode(&path, 0o000);
        assert!(owner.check_read(&path).is_err() && Requester::Trusted.check_read(&path).is_ok());
    }

    #[test]
    fn every_directory_on_the_way_must_be_searchable_through_links_too() {
        let directory = open_directory();
        let inner = directory.path().join("closed");
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("data"), "").unwrap();
        set_mode(&inner.join("data"), 0o644);
        let link = directory.path().join("link");
        symlink("closed/../closed/data", &link).unwrap();
        let absolute = directory.path().join("absolute");
        symlink(&link, &absolute).unwrap();
        let [_, other] = others(&inner);
        for (mode, allowed) in [(0o700, false), (0o711, true)] {
            set_mode(&inner, mode);
            for path in [&inner.join("data"), &link, &absolute] {
                assert_eq!(other.check_read(path).is_ok(), allowed, "{mode:o} {}", path.display());
                let name = path.to_str().unwrap();
                assert_eq!(other.check_data([name].into_iter(), Path::new("/")).is_ok(), allowed);
            }
        }
        assert!(other.check_read(&inner).is_err(), "searchable, but not readable");
        let error = other.check_read(&inner).unwrap_err().to_string();
        assert!(error.contains("may not list") && error.contains("mode 711"), "{error}");
        let looped = directory.path().join("looped");
        symlink("looped", &looped).unwrap();
        assert_eq!(other.check_read(&looped).unwrap_err().raw_os_error(), Some(Errno::LOOP.raw_os_error()));
        assert!(other.check_read(Path::new("/proc/self/status")).is_err());
        assert!(other.check_read(Path::new("/proc/1/root/etc/hostname")).is_err());
    }

    #[test]
    fn writing_needs_permission_in_the_nearest_directory_that_exists() {
        let directory = open_directory();
        let [member, other] = others(directory.path());
        let path = directory.path().join("runs/new");
        for (mode, allowed) in [(0o755, [false, false]), (0o775, [true, false]), (0o777, [true, true])] {
            set_mode(directory.path(), mode);
            let checked = [&member, &other].map(|requester| requester.check_write(&path).is_ok());
            assert_eq!(checked, allowed, "{mode:o}");
        }
        fs::create_dir(directory.path().join("runs")).unwrap();
        set_mode(&directory.path().join("runs"), 0o755);
        for (path, is_shared) in
            [("/shared/a", true), ("/shared", true), ("/shared2", false), ("/shared/../etc", false)]
        {
            assert_eq!(other.check_write(Path::new(path)).is_ok(), is_shared, "{path}");
        }
        assert!(member.check_write(&path).is_err() && Requester::Trusted.check_write(&path).is_ok());
    }

    #[test]
    fn a_device_or_a_pipe_is_not_opened() {
        let [_, other] = others(Path::new("/"));
        for requester in [&other, &Requester::Trusted] {
            let error = requester.open(Path::new("/dev/zero")).unwrap_err().to_string();
            assert!(error.contains("not a regular file"), "{error}");
        }
    }
}
