//! Locks on files, and who holds them.
//!
//! A run directory is locked by the worker that trains in it: with `flock` on a file of mode 0600 that the worker opens
//! for writing. A directory can be locked by any user who can read it. Locks end with their process.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{major, minor};

/// The file in a run directory that its worker locks.
const RUN_LOCK_FILE: &str = "lock";

/// Other users cannot open, and thus not lock, the file.
const LOCK_FILE_MODE: u32 = 0o600;

/// Interval between attempts to take a lock.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The kernel's list of locks, in which all locks of the pid namespace have their process.
const PROC_LOCKS: &str = "/proc/locks";

/// The lock of a run directory, held until it is dropped.
#[derive(Debug)]
pub struct RunLock(#[expect(dead_code, reason = "held, not read")] File);

impl RunLock {
    /// Locks the run `directory`, and waits for a worker that has it for at most `limit`.
    ///
    /// # Errors
    /// When another process keeps the lock, which the error names, or the system refuses.
    pub fn acquire(directory: &Path, limit: Duration) -> Result<Self> {
        let path = directory.join(RUN_LOCK_FILE);
        let until = Instant::now() + limit;
        if let Some(file) = acquire(&path, || Instant::now() < until)? {
            return Ok(Self(file));
        }
        let holder = holder(&path).unwrap_or_else(|| "another process".to_owned());
        bail!("{} is locked by {holder}, which is training in this directory", path.display());
    }

    /// Whether a worker has locked the run `directory`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn is_held(directory: &Path) -> io::Result<bool> {
        let file = match OpenOptions::new().write(true).open(directory.join(RUN_LOCK_FILE)) {
            // A run that has not started, or one of an earlier version.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        match file.try_lock() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// Locks the file `path`, which is created if it does not exist, until the returned file is dropped. While another holder
/// has the lock, waits as long as `waits` returns true; then returns `None`.
///
/// # Errors
/// When the system refuses.
pub fn acquire(path: &Path, mut waits: impl FnMut() -> bool) -> Result<Option<File>> {
    let here = || path.display().to_string();
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(LOCK_FILE_MODE);
    let file = options.open(path).with_context(here)?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if waits() => std::thread::sleep(POLL_INTERVAL),
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error).with_context(here),
        }
    }
}

/// The other process that holds a lock of the file `path`, if that is known: `process 123 (sqlite3)`. Does not open the
/// file: closing it would release this process's own locks.
pub fn holder(path: &Path) -> Option<String> {
    let found = fs::metadata(path).ok()?;
    let device = format!("{:02x}:{:02x}", major(found.dev()), minor(found.dev()));
    let locks = fs::read_to_string(PROC_LOCKS).ok()?;
    let pid = holder_in(&locks, (&device, found.ino()), std::process::id())?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!("process {pid} ({})", name.trim_end()))
}

/// The process in the list `locks` that holds a lock of a file, of which a writer's comes first. Some file systems list
/// another device than files report, so a lock of the same inode elsewhere comes last.
fn holder_in(locks: &str, (device, inode): (&str, u64), own: u32) -> Option<u32> {
    let held = locks.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(3);
        // `1: POSIX  ADVISORY  WRITE 4242 08:01:131 120 120`; a line with `->` is of a process that waits.
        let (mode, pid, file) = (fields.next()?, fields.next()?.parse().ok()?, fields.next()?);
        let (on, number) = file.rsplit_once(':')?;
        let is_other = number.parse() == Ok(inode) && pid != own && pid != 0;
        is_other.then_some((on != device, mode != "WRITE", pid))
    });
    held.min().map(|(_, _, pid)| pid)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_lock_of_a_run_excludes_another_and_names_its_process() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        assert!(!RunLock::is_held(path).unwrap());
        // Locking the directory itself, as any user can, has no effect.
        let other = File::open(path).unwrap();
        other.try_lock().unwrap();
        let lock = RunLock::acquire(path, Duration::ZERO).unwrap();
        assert!(RunLock::is_held(path).unwrap());
        assert_eq!(
            fs::metadata(path.join(RUN_LOCK_FILE)).unwrap().permissions().mode() & 0o777,
            LOCK_FILE_MODE
        );
        drop(lock);
        assert!(!RunLock::is_held(path).unwrap());

        let file = path.join(RUN_LOCK_FILE);
        let mut child = Command::new("flock")
            .args(["-F".as_ref(), file.as_os_str(), "sh".as_ref(), "-c".as_ref(), "echo; exec cat".as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let error = RunLock::acquire(path, Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains(&format!("process {} (", child.id())), "{error}");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_list_of_locks_is_read() {
        let locks = "1: POSIX  ADVISORY  READ 7 08:01:131 124 124\n\
                     1: -> POSIX  ADVISORY  WRITE 6 08:01:131 124 124\n\
                     2: POSIX  ADVISORY  WRITE 9 00:2f:131 120 120\n\
                     3: FLOCK  ADVISORY  WRITE 8 08:01:132 0 EOF\n\
                     4: POSIX  ADVISORY  WRITE 4 08:01:131 120 120\n\
                     garbage\n";
        let holder = |device, inode, own| holder_in(locks, (device, inode), own);
        assert_eq!(holder("08:01", 131, 1), Some(4), "a writer comes before a reader");
        assert_eq!(holder("08:01", 131, 4), Some(7), "this process is no other one");
        assert_eq!(holder("00:2f", 131, 1), Some(9));
        assert_eq!(holder("08:01", 132, 1), Some(8));
        assert_eq!(holder("08:01", 133, 1), None);
    }
}
