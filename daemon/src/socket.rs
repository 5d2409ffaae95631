//! The sockets of the daemon and their access control: the control socket, and beside it the one for feeds.
//!
//! Access is checked twice. A socket has mode 0660, so the kernel admits its owner, root and members of its
//! group; if the configuration gives others a role, the mode is 0666. In addition, the credentials of each accepted
//! connection must have a [role](crate::roles), so a socket whose mode was loosened, or that was passed on, admits no one
//! else.
//!
//! A service manager can pass the listening socket (socket activation): connections then wait while the daemon restarts.
//! Otherwise the daemon creates it under a temporary name, gives it its mode, then renames it into place. It never exists
//! with a wrong mode, and the stale socket file of a killed daemon is replaced atomically. A socket that still answers is
//! left alone.

use std::fs::Permissions;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use listenfd::ListenFd;
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use tokio::net::{UnixListener, UnixStream};

use crate::access::Credentials;
use crate::roles::{Role, Roles};

const SOCKET_MODE: u32 = 0o660;
const OPEN_SOCKET_MODE: u32 = 0o666;
const DIRECTORY_MODE: u32 = 0o750;

/// The least time between two lines about refused connections: every local user can cause them.
const REFUSALS_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum length of a socket's path: `sun_path` without its final zero byte.
const MAX_PATH_BYTES: usize = 107;

/// The number of connections that may wait to be accepted: a new one waits behind all of them, so a flood must not fill a
/// long queue. At the limit, clients try again.
const BACKLOG: i32 = 64;

/// The suffix of the temporary name.
const TEMPORARY_SUFFIX: &str = ".new";

/// The name of the socket for feeds, in the directory of the control socket.
const FEED_SOCKET: &str = "feed.sock";

/// The sockets that a service manager has passed.
#[derive(Debug, Default)]
pub struct Inherited {
    /// The control socket.
    pub control: Option<StdListener>,
    /// The socket for feeds.
    pub feeds: Option<StdListener>,
}

/// A listening socket. Dropping it removes its file, unless the service manager owns it.
pub(crate) struct Listening {
    pub(crate) listener: StdListener,
    file: HeldFile,
}

/// The control socket. Dropping it removes its file, unless the service manager owns it.
pub struct ControlSocket {
    listener: UnixListener,
    file: HeldFile,
    refusals: Refusals,
}

/// The file of a listening socket.
#[derive(Clone, Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    group: u32,
    is_inherited: bool,
}

/// The file of a socket that this process holds: removed when dropped, unless the service manager owns it.
struct HeldFile(SocketFile);

/// Refused connections since the last line about them.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    reported: Option<Instant>,
    unreported: u64,
}

/// The listening sockets that the service manager has passed to this process, if any. Must be called before the process has
/// threads, and before it starts another process: it removes the variables that announce the sockets.
///
/// # Errors
/// When what was passed is not a control socket, a socket for feeds, or both.
pub fn inherited() -> Result<Inherited> {
    let mut passed = ListenFd::from_env();
    let mut inherited = Inherited::default();
    for place in 0..passed.len() {
        let listener =
            passed.take_unix_listener(place).context("a socket that the service manager passed")?;
        let Some(listener) = listener else { continue };
        // Workers must not keep it open.
        fcntl_setfd(&listener, FdFlags::CLOEXEC)?;
        let address = listener.local_addr()?;
        let is_for_feeds = address.as_pathname().is_some_and(|path| path.ends_with(FEED_SOCKET));
        let known = if is_for_feeds { &mut inherited.feeds } else { &mut inherited.control };
        if known.replace(listener).is_some() {
            let count = passed.len();
            bail!(
                "the service manager passed {count} sockets; millstreamd has a control socket and `{FEED_SOCKET}`"
            );
        }
    }
    Ok(inherited)
}

/// The path of the socket for feeds of a daemon with this control socket.
pub(crate) fn feed_socket(control: &Path) -> PathBuf {
    control.with_file_name(FEED_SOCKET)
}

impl Listening {
    /// Listens on a socket that the service manager created.
    ///
    /// # Errors
    /// When it has no path.
    pub(crate) fn of_inherited(listener: StdListener) -> Result<Self> {
        let address = listener.local_addr()?;
        let path = address.as_pathname().context("the socket that the service manager passed has no path")?;
        let path = path.to_owned();
        let group = std::fs::metadata(&path).with_context(|| path.display().to_string())?.gid();
        Ok(Self { listener, file: HeldFile(SocketFile { path, group, is_inherited: true }) })
    }

    /// Listens at `path`, creating its directory if it does not exist. The socket is closed to users outside of its group.
    ///
    /// # Errors
    /// When another daemon answers there, when a file that is not a socket exists there, or when the system
    /// refuses.
    pub(crate) fn bind(path: &Path) -> Result<Self> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(TEMPORARY_SUFFIX);
        let temporary = PathBuf::from(temporary);
        if temporary.as_os_str().as_bytes().len() > MAX_PATH_BYTES {
            bail!("the socket's path is longer than {} bytes", MAX_PATH_BYTES - TEMPORARY_SUFFIX.len());
        }
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            create_directory(directory).with_context(|| format!("directory {}", directory.display()))?;
        }
        ensure_unused(path)?;
        ensure_unused(&temporary)?;
        remove(&temporary)?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddrUnix::new(&temporary)?)?;
        listen(&socket, BACKLOG)?;
        std::fs::set_permissions(&temporary, Permissions::from_mode(SOCKET_MODE))?;
        let group = std::fs::metadata(&temporary)?.gid();
        std::fs::rename(&temporary, path)?;
        let file = SocketFile { path: path.to_owned(), group, is_inherited: false };
        Ok(Self { listener: socket.into(), file: HeldFile(file) })
    }

    pub(crate) fn file(&self) -> &SocketFile {
        &self.file.0
    }
}

impl ControlSocket {
    /// Listens on a socket that the service manager created.
    ///
    /// # Errors
    /// When it has no path.
    pub fn of_inherited(listener: StdListener) -> Result<Self> {
        Self::of(Listening::of_inherited(listener)?)
    }

    /// Listens at `path`, creating its directory if it does not exist. The socket is closed to users outside of its group.
    ///
    /// # Errors
    /// When another daemon answers there, when a file that is not a socket exists there, or when the system
    /// refuses.
    pub fn bind(path: &Path) -> Result<Self> {
        let listening = Listening::bind(path).and_then(Self::of);
        listening.with_context(|| format!("control socket {}", path.display()))
    }

    fn of(Listening { listener, file }: Listening) -> Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { listener: UnixListener::from_std(listener)?, file, refusals: Refusals::default() })
    }

    /// Where clients connect.
    pub fn path(&self) -> &Path {
        &self.file.0.path
    }

    pub(crate) fn file(&self) -> &SocketFile {
        &self.file.0
    }

    /// Waits for the next connection of a user who has one of the `roles`; returns it, the user's credentials and the role.
    ///
    /// # Errors
    /// When the listening socket itself fails.
    pub(crate) async fn accept(&mut self, roles: &Roles) -> io::Result<(UnixStream, Credentials, Role)> {
        loop {
            let (stream, _) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) if is_transient(&error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    // Out of descriptors: wait for some to be closed.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            match Credentials::of_peer(&stream) {
                Ok(peer) => match roles.of(&peer) {
                    Some(role) => return Ok((stream, peer, role)),
                    None => self.refusals.report(&peer),
                },
                Err(error) => tracing::warn!(%error, "refused a connection without credentials"),
            }
        }
    }
}

impl SocketFile {
    /// The group of the socket.
    pub(crate) fn group(&self) -> u32 {
        self.group
    }

    /// Opens the socket to all users, or closes it to those outside of its group. The mode of a socket of the service
    /// manager, and the directories above, stay as they are: a warning says what to change.
    pub(crate) fn open_to_all(&self, is_open: bool) -> Result<()> {
        if !self.is_inherited {
            let mode = if is_open { OPEN_SOCKET_MODE } else { SOCKET_MODE };
            std::fs::set_permissions(&self.path, Permissions::from_mode(mode))
                .with_context(|| format!("socket {}: setting its mode", self.path.display()))?;
        }
        if let Some(closed) = is_open.then(|| self.closed_part()).flatten() {
            tracing::warn!("{closed}");
        }
        Ok(())
    }

    /// What keeps users out who have a role, and what to do.
    fn closed_part(&self) -> Option<String> {
        let mode = |path: &Path| std::fs::metadata(path).map_or(0o777, |found| found.mode());
        let path = self.path.display();
        if mode(&self.path) & 0o006 != 0o006 {
            return Some(format!(
                "the configuration gives users outside of the socket's group a role, but the mode of {path} keeps them \
                 out: set `SocketMode=0666` with `systemctl edit millstreamd.socket`, then restart that unit"
            ));
        }
        let closed = self.path.ancestors().skip(1).find(|above| mode(above) & 0o001 == 0)?;
        let closed = closed.display();
        Some(format!(
            "the configuration gives users outside of the socket's group a role, but they cannot reach {path}: \
             `chmod o+x {closed}` lets them"
        ))
    }
}

impl Refusals {
    /// Logs a refused connection, unless another one was logged recently.
    pub(crate) fn report(&mut self, peer: &Credentials) {
        let now = Instant::now();
        if self.reported.is_some_and(|last| now - last < REFUSALS_INTERVAL) {
            self.unreported += 1;
            return;
        }
        let before = std::mem::take(&mut self.unreported);
        tracing::warn!(uid = peer.uid, pid = peer.pid, before, "refused a connection");
        self.reported = Some(now);
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        let Self(SocketFile { path, is_inherited, .. }) = self;
        if *is_inherited {
            return;
        }
        if let Err(error) = remove(path) {
            tracing::warn!(%error, path = %path.display(), "cannot remove the socket");
        }
    }
}

fn create_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    std::fs::DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory)
}

/// Fails unless `path` is free or a socket without a listener.
fn ensure_unused(path: &Path) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
        Ok(found) if !found.file_type().is_socket() => bail!("a file that is not a socket is in the way"),
        Ok(_) => {}
    }
    let address = SocketAddrUnix::new(path)?;
    let client = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )?;
    match connect(&client, &address) {
        // `AGAIN`: many connections wait to be accepted.
        Ok(()) | Err(Errno::AGAIN) => bail!("another daemon is listening here"),
        Err(Errno::CONNREFUSED) => Ok(()),
        Err(error) => Err(error).context("cannot tell whether another daemon is listening here"),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether `accept` failed transiently.
fn is_transient(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    let transient =
        [Errno::CONNABORTED, Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::INTR];
    errno.is_some_and(|errno| transient.contains(&errno))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::config::{RoleSettings, Viewers};
    use crate::roles::Policy;

    fn roles(socket: &ControlSocket) -> Roles {
        Roles::new(Policy::of(&RoleSettings::default(), socket.file().group()).unwrap())
    }

    #[tokio::test]
    async fn a_socket_has_its_mode_answers_and_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/millstreamd.sock");
        let mut socket = ControlSocket::bind(&path).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&path), SOCKET_MODE);
        assert_eq!(mode(path.parent().unwrap()), DIRECTORY_MODE);
        let roles = roles(&socket);
        let (accepted, connected) = tokio::join!(socket.accept(&roles), UnixStream::connect(&path));
        assert!(accepted.is_ok() && connected.is_ok());
        drop(socket);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_socket_in_use_is_left_alone_and_a_stale_one_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("d.sock");
        let first = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let error = format!("{:#}", ControlSocket::bind(&path).err().unwrap());
        assert!(error.contains("another daemon is listening") && error.contains("d.sock"), "{error}");
        drop(first);
        let second = ControlSocket::bind(&path).unwrap();
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        drop(second);
    }

    #[tokio::test]
    async fn few_connections_wait_and_a_full_queue_is_no_free_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("d.sock");
        let _socket = ControlSocket::bind(&path).unwrap();
        let mut waiting = Vec::new();
        let refused = loop {
            match UnixStream::connect(&path).await {
                Ok(client) => waiting.push(client),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        assert!((64..=66).contains(&waiting.len()), "{}", waiting.len());
        let error = format!("{:#}", ControlSocket::bind(&path).err().unwrap());
        assert!(error.contains("another daemon is listening"), "{error}");
    }

    #[tokio::test]
    async fn a_file_that_is_not_a_socket_is_never_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notes.txt");
        std::fs::write(&path, "keep me").unwrap();
        let error = format!("{:#}", ControlSocket::bind(&path).err().unwrap());
        assert!(error.contains("not a socket"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "keep me");
        let long = directory.path().join("x".repeat(MAX_PATH_BYTES));
        assert!(format!("{:#}", ControlSocket::bind(&long).err().unwrap()).contains("longer"));
    }

    #[tokio::test]
    async fn an_inherited_socket_answers_and_keeps_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("d.sock");
        let mut socket =
            ControlSocket::of_inherited(std::os::unix::net::UnixListener::bind(&path).unwrap()).unwrap();
        assert_eq!(socket.path(), path);
        let roles = roles(&socket);
        let (accepted, connected) = tokio::join!(socket.accept(&roles), UnixStream::connect(&path));
        assert!(accepted.is_ok() && connected.is_ok());
        drop(socket);
        assert!(path.exists());
    }

    #[tokio::test]
    async fn only_owner_root_and_group_are_admitted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("d.sock");
        let mut socket = ControlSocket::bind(&path).unwrap();
        let roles = roles(&socket);
        let (accepted, _connected) = tokio::join!(socket.accept(&roles), UnixStream::connect(&path));
        let (_stream, peer, role) = accepted.unwrap();
        assert_eq!((role, roles.of(&peer)), (Role::Operator, Some(Role::Operator)));
    }

    #[tokio::test]
    async fn a_socket_is_opened_for_viewers_and_closed_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("d.sock");
        let mode = || std::fs::metadata(&path).unwrap().mode() & 0o777;
        let socket = ControlSocket::bind(&path).unwrap();
        for (viewers, wanted) in [(Viewers::Everyone, OPEN_SOCKET_MODE), (Viewers::Nobody, SOCKET_MODE)] {
            let settings = RoleSettings { viewers, ..RoleSettings::default() };
            let policy = Policy::of(&settings, socket.file().group()).unwrap();
            socket.file().open_to_all(policy.needs_open_socket()).unwrap();
            assert_eq!(mode(), wanted);
        }
        drop(socket);

        // A service manager's stays as it is, and the daemon says what to do.
        let inherited = std::os::unix::net::UnixListener::bind(&path).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(SOCKET_MODE)).unwrap();
        let socket = ControlSocket::of_inherited(inherited).unwrap();
        socket.file().open_to_all(true).unwrap();
        assert_eq!(mode(), SOCKET_MODE);
        assert!(socket.file().closed_part().unwrap().contains("SocketMode=0666"));
        std::fs::set_permissions(&path, Permissions::from_mode(OPEN_SOCKET_MODE)).unwrap();
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o700)).unwrap();
        let advice = socket.file().closed_part().unwrap();
        assert!(advice.contains(&format!("chmod o+x {}", directory.path().display())), "{advice}");
    }
}
