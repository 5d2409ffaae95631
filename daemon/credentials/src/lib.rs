//! The credentials of the process at the other end of a Unix socket.
//!
//! The kernel records them when the connection is made, so they do not depend on what the process does later, or on
//! whether it still exists. Reading its entry in `/proc` instead would: a process number may belong to another process by
//! then, and a service with `ProtectProc=invisible` does not see processes of other users. The stable standard library has
//! neither `SO_PEERCRED` nor `SO_PEERGROUPS` (Linux 4.13). rustix has the former, but no value for the process number 0, which
//! the kernel returns for a process that is not visible from here, as from another container.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The number of groups for which there is room at first. Few users have more.
const ROOM: usize = 32;

/// A process and its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process; `None` if it is not visible from here.
    pub pid: Option<i32>,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// The process that connected `socket`, or that made the pair or the listening socket at the other end.
///
/// # Errors
/// When `socket` is not a connected Unix socket.
pub fn peer(socket: impl AsFd) -> io::Result<Peer> {
    let socket = socket.as_fd();
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut bytes = size_of_val(&found) as libc::socklen_t;
    // SAFETY: `found` has room for `bytes` bytes, of which the kernel writes at most so many, and any bytes are valid
    // numbers. `bytes` is a valid `socklen_t` that outlives the call, and the descriptor is open.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut bytes,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // A TCP socket has no user.
    if found.uid == u32::MAX {
        return Err(io::ErrorKind::NotConnected.into());
    }
    Ok(Peer { pid: Some(found.pid).filter(|&pid| pid > 0), uid: found.uid, gid: found.gid })
}

/// The supplementary groups of the process that connected `socket`, or of the process that made the pair.
///
/// # Errors
/// When `socket` is not a connected Unix socket.
pub fn peer_groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let socket = socket.as_fd();
    let mut groups = vec![0; ROOM];
    loop {
        let mut bytes = size_of_val(groups.as_slice()) as libc::socklen_t;
        // SAFETY: `groups` has room for `bytes` bytes, of which the kernel writes at most so many, and any bytes are
        // valid group numbers. `bytes` is a valid `socklen_t` that outlives the call, and the descriptor is open.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<u32>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // Then `bytes` is the necessary size.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::Command;

    use super::*;

    fn own_groups() -> Vec<u32> {
        rustix::process::getgroups().unwrap().into_iter().map(rustix::process::Gid::as_raw).collect()
    }

    #[test]
    fn this_process_is_the_peer_of_its_own_socket() {
        let (one, _other) = UnixStream::pair().unwrap();
        let Peer { pid, uid, gid } = peer(&one).unwrap();
        assert_eq!(pid, i32::try_from(std::process::id()).ok());
        assert_eq!((uid, gid), (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()));
    }

    /// Needs root, to start a process in another namespace. It asks for the process that listens, which is outside.
    #[test]
    fn a_process_that_is_not_visible_has_no_number() {
        if std::env::var_os("MILLSTREAM_LISTENER").is_some() {
            let socket = UnixStream::connect(std::env::var_os("MILLSTREAM_LISTENER").unwrap()).unwrap();
            let found = peer(&socket).unwrap();
            assert_eq!((found.pid, found.uid), (None, 0));
            return;
        }
        let room = std::env::temp_dir().join(format!("millstream-namespace-{}", std::process::id()));
        std::fs::create_dir(&room).unwrap();
        let _listener = UnixListener::bind(room.join("socket")).unwrap();
        let mut inside = Command::new("unshare");
        inside.args(["--pid", "--fork"]).arg(std::env::current_exe().unwrap());
        inside.args(["--exact", "tests::a_process_that_is_not_visible_has_no_number"]);
        let output = inside.env("MILLSTREAM_LISTENER", room.join("socket")).output().unwrap();
        std::fs::remove_dir_all(&room).unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        if message.contains("unshare failed") || message.contains("Operation not permitted") {
            return;
        }
        assert!(output.status.success(), "{}{message}", String::from_utf8_lossy(&output.stdout));
    }

    #[test]
    fn the_groups_of_this_process_are_those_of_its_own_socket() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(peer_groups(&one).unwrap(), own_groups());
    }

    /// Needs root, to give a process other groups.
    #[test]
    fn many_groups_of_another_process_are_found_after_it_has_ended() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let directory = std::env::temp_dir().join(format!("millstream-credentials-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let wanted: Vec<u32> = (5000..5100).collect();
        let groups: Vec<String> = wanted.iter().map(u32::to_string).collect();
        let connect = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])";
        let mut client = Command::new("setpriv");
        client.args(["--groups", &groups.join(","), "python3", "-c", connect]).arg(&path);
        assert!(client.status().unwrap().success());
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(peer_groups(&accepted).unwrap(), wanted);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_socket_without_a_peer_is_an_error() {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(peer_groups(&tcp).is_err() && peer(&tcp).is_err());
    }
}
