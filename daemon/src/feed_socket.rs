//! The socket for feeds: trainers of other programs attach here, and the daemon reads data for them.
//!
//! It lies beside the control socket, because gRPC carries no descriptors. Its mode and the roles of its users are those of
//! the control socket. A program that attaches reads what its user may read, as a job does that the user submits.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use millstream_feed::Error;
use millstream_feed::access::{Access, Admission, Refusal};
use millstream_feed::host::Host;
use millstream_feed::spec::FeedSpec;
use millstream_io::storage::{Object, Stores};
use millstream_pipeline::spec::DataSpec;

use crate::access::{Credentials, Requester};
use crate::datasets;
use crate::own_access;
use crate::roles::{Role, Roles};
use crate::socket::{Listening, Refusals, SocketFile, feed_socket};

/// What a program can do that the daemon refuses.
const ADVICE: &str =
    "with MILLSTREAM_FEED_SOCKET=none in its environment, a program reads its data by a separate process";

/// The listening socket.
pub(crate) struct FeedSocket(Listening);

/// Decides who may attach.
struct Gate {
    roles: Arc<Roles>,
    refusals: Mutex<Refusals>,
}

/// What the user of a program may read.
struct Reader {
    requester: Requester,
    user: u32,
}

impl FeedSocket {
    /// The socket that a service manager has passed, or a new one beside the control socket at `control`.
    ///
    /// # Errors
    /// As for the control socket.
    pub(crate) fn open(inherited: Option<UnixListener>, control: &Path) -> Result<Self> {
        let path = feed_socket(control);
        let listening = match inherited {
            Some(listener) => Listening::of_inherited(listener),
            None => Listening::bind(&path),
        };
        Ok(Self(listening.with_context(|| format!("socket for feeds {}", path.display()))?))
    }

    pub(crate) fn file(&self) -> &SocketFile {
        self.0.file()
    }

    /// Serves `host` to users with a role, on a thread that ends when the host is closed. Its threads have the priority of
    /// the caller's.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn serve(self, host: Host, roles: Arc<Roles>) -> io::Result<JoinHandle<()>> {
        let gate = Gate { roles, refusals: Mutex::default() };
        let serve = move || {
            let Self(listening) = self;
            if let Err(error) = host.serve(&listening.listener, &gate, None) {
                tracing::error!(%error, "the socket for feeds has failed; further programs cannot attach");
            }
        };
        std::thread::Builder::new().name("feeds".to_owned()).spawn(serve)
    }
}

impl Admission for Gate {
    fn admit(&self, socket: &UnixStream) -> Result<Arc<dyn Access>, Refusal> {
        let peer = Credentials::of_peer(socket).map_err(|error| {
            tracing::warn!(%error, "refused a program without credentials");
            Refusal { message: None }
        })?;
        let refused = |why: &str| {
            let operators = self.roles.who_operates();
            let message = format!("{why}; {operators} may read data through it; {ADVICE}");
            Refusal { message: Some(message) }
        };
        match self.roles.of(&peer) {
            Some(Role::Operator) => {
                Ok(Arc::new(Reader { requester: Requester::of_peer(&peer, &[]), user: peer.uid }))
            }
            Some(Role::Viewer) => Err(refused("this user may only look at the daemon's jobs")),
            None => {
                self.refusals.lock().unwrap_or_else(PoisonError::into_inner).report(&peer);
                Err(refused("the daemon does not admit this user"))
            }
        }
    }
}

impl Access for Reader {
    fn user(&self) -> u32 {
        self.user
    }

    fn check_spec(&self, spec: &FeedSpec) -> Result<(), Error> {
        let data = &spec.data;
        let held_out =
            spec.eval.values().map(|patterns| DataSpec { train: patterns.clone(), ..data.clone() });
        let checked = own_access::check_data(data)
            .and_then(|()| held_out.into_iter().try_for_each(|data| own_access::check_data(&data)))
            .and_then(|()| self.requester.check_storage(&spec.storage));
        checked.map_err(failed)
    }

    fn check_patterns(&self, patterns: &[String], stores: &Stores) -> Result<(), Error> {
        datasets::check_read(patterns, stores, &self.requester).map_err(failed)
    }

    fn check_files(&self, files: &[Object], base: &Path) -> Result<(), Error> {
        self.requester.check_data(files.iter().map(|file| &**file.path()), base).map_err(failed)
    }
}

fn failed(error: anyhow::Error) -> Error {
    Error::Failed(format!("{error:#}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::{RoleSettings, Viewers};
    use crate::roles::Policy;

    /// The answer of a gate with these groups of operators, for this process.
    fn admitted(viewers: Viewers, socket_group: u32) -> Result<u32, Refusal> {
        let settings = RoleSettings { viewers, ..RoleSettings::default() };
        let roles = Arc::new(Roles::new(Policy::of(&settings, socket_group).unwrap()));
        let gate = Gate { roles, refusals: Mutex::default() };
        let (near, _far) = UnixStream::pair().unwrap();
        gate.admit(&near).map(|access| access.user())
    }

    #[test]
    fn the_user_of_the_daemon_is_admitted() {
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(admitted(Viewers::Nobody, 4_000_000), Ok(own));
        assert_eq!(admitted(Viewers::Everyone, 4_000_000), Ok(own));
    }
}
