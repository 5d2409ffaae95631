//! Connections to a daemon: a running one, or one hosted in this process.

use millstream_control::{Client, ClientError};
use millstream_daemon::daemon::Daemon;
use millstream_daemon::service;

use crate::arguments::Place;
use crate::context::Context;
use crate::failure::Failure;

/// A client and, if this process hosts it, the daemon.
pub(crate) struct Connection {
    pub(crate) client: Client,
    hosted: Option<Daemon>,
}

/// Connects to the running daemon.
pub(crate) async fn to_daemon(context: &Context) -> Result<Client, Failure> {
    match context.socket() {
        Some(socket) => Ok(Client::connect(socket).await?),
        None => Err(Failure::Usage(
            "the path of the control socket is unknown: set --socket or XDG_RUNTIME_DIR".to_owned(),
        )),
    }
}

/// Why this user may not run jobs in the daemon, if that is so.
async fn restriction(client: &mut Client) -> Option<String> {
    match client.about().await {
        Ok(about) if about.role == "viewer" => {
            let groups = about.operators.join(", ");
            Some(format!("this user may only look at the daemon's jobs; members of {groups} may run some"))
        }
        Err(ClientError::Lost(_)) => Some("the daemon does not admit this user".to_owned()),
        // A daemon without roles, or one that reports an error with the request that follows.
        _ => None,
    }
}

impl Connection {
    /// Connects to the running daemon or, if there is none that accepts this user, hosts one in this process. The hosted
    /// daemon has the same API; only its checkpoints outlive the process.
    pub(crate) async fn at(place: Place, context: &Context) -> Result<Self, Failure> {
        if place.daemon {
            return Ok(Self { client: to_daemon(context).await?, hosted: None });
        }
        if let Some(socket) = context.socket().filter(|_| !place.local) {
            match Client::connect(socket).await {
                Ok(mut client) => match restriction(&mut client).await {
                    Some(restriction) if !context.is_socket_given() => {
                        context.screen.note(&format!("{restriction}; running in this process instead"));
                    }
                    _ => return Ok(Self { client, hosted: None }),
                },
                Err(ClientError::NoDaemon { .. }) => {}
                Err(error @ (ClientError::Denied { .. } | ClientError::Refused { .. }))
                    if !context.is_socket_given() =>
                {
                    context.screen.note(&format!("{error}; running in this process instead"));
                }
                Err(error) => return Err(error.into()),
            }
        }
        let daemon = Daemon::start_embedded()?;
        let client = Client::in_process(service::serve_in_process(daemon.clone())).await?;
        Ok(Self { client, hosted: Some(daemon) })
    }

    /// Whether this process hosts the daemon.
    pub(crate) fn is_hosted(&self) -> bool {
        self.hosted.is_some()
    }

    /// Stops a hosted daemon and waits until its workers have exited.
    pub(crate) async fn close(self) {
        if let Some(daemon) = self.hosted {
            daemon.shutdown().await;
        }
    }
}
