//! The state directory: its lock, its permissions, and the boot of the host in which it was last used.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result, bail};
use millstream_worker::locks;

use super::Store;

/// The file in the state directory that a daemon locks. It holds the id of the boot in which the daemon runs.
const LOCK_FILE: &str = "lock";
const DATABASE_FILE: &str = "state.sqlite";
/// The files that SQLite keeps beside it.
const WAL_FILE: &str = "state.sqlite-wal";
const INDEX_FILE: &str = "state.sqlite-shm";

/// The kernel's id of the current boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Other users can neither read the state nor lock its files. A directory that exists keeps its mode, because users may
/// read checkpoints below it.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// The opened state.
pub(crate) struct OpenState {
    /// The database.
    pub(crate) store: Store,
    /// The lock of the directory, held while it is open. A state in memory has none.
    pub(crate) lock: Option<File>,
    /// Whether the daemon that last used the directory ran in the current boot of the host.
    pub(crate) same_boot: bool,
}

impl OpenState {
    /// A state that ends with the daemon.
    pub(crate) fn in_memory() -> Result<Self> {
        Ok(Self { store: Store::open_in_memory()?, lock: None, same_boot: true })
    }

    /// Opens and locks a directory, which it creates if it does not exist.
    ///
    /// # Errors
    /// When another daemon uses it, or the system refuses.
    pub(crate) fn open(directory: &Path) -> Result<Self> {
        let here = || format!("state directory {}", directory.display());
        DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory).with_context(here)?;
        let options =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(FILE_MODE).clone();
        let mut lock = options.open(directory.join(LOCK_FILE)).with_context(here)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = locks::holder(&directory.join(LOCK_FILE));
                let holder = holder.map(|holder| format!(": {holder}")).unwrap_or_default();
                bail!("another daemon uses the {}{holder}", here());
            }
            Err(TryLockError::Error(error)) => return Err(error).with_context(here),
        }
        let boot = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
        let mut last_boot = String::new();
        lock.read_to_string(&mut last_boot).with_context(here)?;
        let same_boot = last_boot == boot;
        if !same_boot {
            lock.set_len(0).and_then(|()| lock.write_all_at(boot.as_bytes(), 0)).with_context(here)?;
        }
        // SQLite gives its other files the mode of this one.
        let database = directory.join(DATABASE_FILE);
        options.open(&database).with_context(here)?;
        for name in [LOCK_FILE, DATABASE_FILE, WAL_FILE, INDEX_FILE] {
            restrict(&directory.join(name), FILE_MODE).with_context(here)?;
        }
        Ok(Self { store: Store::open(&database)?, lock: Some(lock), same_boot })
    }
}

/// Removes the permissions beyond `mode`, if the file exists. Another user's file stays as it is, with a warning.
fn restrict(path: &Path, mode: u32) -> io::Result<()> {
    let found = match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?.permissions().mode() & 0o7777,
    };
    if found & !mode == 0 {
        return Ok(());
    }
    match std::fs::set_permissions(path, Permissions::from_mode(found & mode)) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            tracing::warn!(path = %path.display(), "other users can lock or read the state: its mode is {found:o}");
            Ok(())
        }
        set => set,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_closed_to_other_users_even_if_it_was_open() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("state");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        drop(OpenState::open(&directory).unwrap());
        assert_eq!(mode(&directory), DIRECTORY_MODE);
        for (name, mode) in [("state.sqlite", 0o644), ("lock", 0o666)] {
            std::fs::set_permissions(directory.join(name), Permissions::from_mode(mode)).unwrap();
        }
        let open = OpenState::open(&directory).unwrap();
        let files: Vec<_> =
            std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 4, "{files:?}");
        assert!(files.iter().all(|file| mode(file) == FILE_MODE), "{files:?}");
        assert!(OpenState::open(&directory).err().unwrap().to_string().contains("another daemon uses"));
        drop(open);
    }

    #[test]
    fn a_restart_of_the_host_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let same_boot = || OpenState::open(directory.path()).unwrap().same_boot;
        assert_eq!([same_boot(), same_boot()], [false, true]);
        std::fs::write(
            directory.path().join(LOCK_FILE),
            "an earlier boot, with a longer id than usual".repeat(3),
        )
        .unwrap();
        assert_eq!([same_boot(), same_boot()], [false, true]);
    }
}
