//! The calls between the hosts of a session.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt};
use millstream_pipeline::ingest::{Exchange, MAX_UNRECEIVED, Peers, SendCredit, SendUpdate, Unsent};
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, channel};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::{SessionHost, SessionId};
use crate::link::{Link, refusal};
use crate::proto::{LaneCredits, LaneMessage, LaneOpening, LaneUpdate};
use crate::server::ThisHost;
use crate::{HostName, LinkError};

/// The most updates or credits in a message.
const MAX_IN_MESSAGE: usize = 64;

/// The largest update, in bytes.
const MAX_UPDATE_BYTES: usize = 8 << 10;

/// How long a call may take to name its session.
const OPENING_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a call waits for its session, because the other host may be ahead.
const SESSION_TIMEOUT: Duration = Duration::from_secs(20);

/// The time between two look-ups of a session.
const SESSION_INTERVAL: Duration = Duration::from_millis(20);

/// How long the last updates may take once this host has left.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason of a host that has left.
const LEFT: &str = "it has left";

/// The most sessions of a host.
const MAX_SESSIONS: usize = 64;

/// The sessions in which this host takes part.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<HashMap<SessionId, Registered>>);

#[derive(Clone, Debug)]
struct Registered {
    session: Arc<Exchange>,
    hosts: Arc<[SessionHost]>,
}

/// A session in which this host takes part. It leaves when this is dropped.
#[derive(Debug)]
pub struct OpenSession {
    id: SessionId,
    session: Arc<Exchange>,
    sessions: Arc<Sessions>,
}

/// Why a session cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// This host takes part in it already.
    #[error("this host takes part in the session already")]
    Again,
    /// Too many sessions are open.
    #[error("this host takes part in {MAX_SESSIONS} sessions; no more are possible")]
    TooMany,
}

/// The replies to a caller: credits for its updates.
pub(crate) type Credits = Pin<Box<dyn Stream<Item = Result<LaneCredits, Status>> + Send>>;

impl Sessions {
    /// Takes part in session `id` as host `host` of `hosts`, which exchange updates about `lanes` lanes. Calls all others from
    /// now on.
    ///
    /// # Errors
    /// If this host takes part already, or in too many sessions.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open(
        this: &Arc<ThisHost>,
        id: SessionId,
        (host, hosts): (usize, Vec<SessionHost>),
        lanes: u32,
    ) -> Result<OpenSession, OpenError> {
        let runtime = Handle::current();
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for number in 0..hosts.len() {
            let (sender, receiver) = channel(capacity(lanes));
            let send = move |lane, update: &[u8]| {
                sender.try_send(LaneUpdate { lane, update: update.to_vec() }).map_err(|error| match error {
                    TrySendError::Full(_) => Unsent::Full,
                    TrySendError::Closed(_) => Unsent::Ended,
                })
            };
            senders.push((number != host).then(|| Box::new(send) as SendUpdate));
            receivers.push(receiver);
        }
        let session = Arc::new(Exchange::new((host, lanes), senders));
        let hosts: Arc<[SessionHost]> = hosts.into();
        let sessions = &this.sessions;
        sessions.register(id, Registered { session: Arc::clone(&session), hosts: Arc::clone(&hosts) })?;
        for (number, updates) in receivers.into_iter().enumerate().filter(|(number, _)| *number != host) {
            let call = Call { id, host, to: number, session: Arc::clone(&session) };
            let (this, address) = (Arc::clone(this), hosts[number].clone());
            runtime.spawn(async move {
                let ended = call.make(&this, &address, updates).await;
                call.session.stop_sending(number);
                match ended {
                    Ok(()) => {
                        // Its own call may still be on the way, with what it has sent.
                        tokio::time::sleep(LEAVE_TIMEOUT).await;
                        call.session.lose_unless_begun(number, LEFT);
                    }
                    // Without this host's updates the other one cannot continue, even if it can still send its own.
                    Err(error) => call.session.lose(number, &error.to_string()),
                }
            });
        }
        Ok(OpenSession { id, session, sessions: Arc::clone(sessions) })
    }

    fn register(&self, id: SessionId, registered: Registered) -> Result<(), OpenError> {
        let mut sessions = self.sessions();
        if sessions.len() >= MAX_SESSIONS {
            return Err(OpenError::TooMany);
        }
        if sessions.contains_key(&id) {
            return Err(OpenError::Again);
        }
        sessions.insert(id, registered);
        Ok(())
    }

    /// Answers a call of the host `caller`, which carries its updates.
    ///
    /// # Errors
    /// If it does not belong to a session of this host.
    pub(crate) async fn answer(
        &self,
        caller: &HostName,
        mut messages: Streaming<LaneMessage>,
    ) -> Result<Credits, Status> {
        let first = tokio::time::timeout(OPENING_TIMEOUT, messages.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("the call names no session in time"))??;
        let opening = first.and_then(|message| message.opening);
        let LaneOpening { session, host } =
            opening.ok_or_else(|| Status::invalid_argument("the call names no session"))?;
        let id = <[u8; 16]>::try_from(session).map(u128::from_le_bytes).map(SessionId);
        let id = id.map_err(|_| Status::invalid_argument("the session's number has 16 bytes"))?;
        let from = host as usize;
        let Registered { session, hosts } = self.wait_for(id).await?;
        if hosts.get(from).is_none_or(|host| host.name != *caller) {
            return Err(Status::permission_denied(format!("{caller} is not host {from} of the session")));
        }
        let (credits, taken) = channel(capacity(session.lanes()));
        // Nobody needs credit once the call has ended. A host that reads none sends no more updates.
        let give: SendCredit = Box::new(move |lane| {
            let _ = credits.try_send(lane);
        });
        session.begin(from, give).map_err(Status::failed_precondition)?;
        tokio::spawn(async move {
            let reason = match receive(&session, from, messages).await {
                Ok(()) => LEFT.to_owned(),
                Err(error) => error,
            };
            session.lose(from, &reason);
        });
        Ok(credit_messages(taken).boxed())
    }

    /// The session, once this host takes part in it.
    async fn wait_for(&self, id: SessionId) -> Result<Registered, Status> {
        let found = async {
            loop {
                let found = self.sessions().get(&id).cloned();
                match found {
                    Some(found) => return found,
                    None => tokio::time::sleep(SESSION_INTERVAL).await,
                }
            }
        };
        let unknown = |_| Status::not_found("this host does not take part in the session");
        tokio::time::timeout(SESSION_TIMEOUT, found).await.map_err(unknown)
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<SessionId, Registered>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenSession {
    /// The exchange.
    pub fn session(&self) -> &Arc<Exchange> {
        &self.session
    }
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        self.session.close();
        self.sessions.sessions().remove(&self.id);
    }
}

/// A call to another host, which carries the updates of this one.
struct Call {
    id: SessionId,
    host: usize,
    to: usize,
    session: Arc<Exchange>,
}

impl Call {
    /// Calls the host at `address` and sends it `updates`, until one of the two leaves.
    async fn make(
        &self,
        this: &ThisHost,
        SessionHost { name, address }: &SessionHost,
        updates: Receiver<LaneUpdate>,
    ) -> Result<(), LinkError> {
        let mut link = Link::connect(address, this).await?;
        if link.about.host != *name {
            let message = format!("{address} is {}, not {name}", link.about.host);
            return Err(LinkError::Refuses(message));
        }
        let opening = LaneOpening { session: self.id.0.to_le_bytes().to_vec(), host: self.host as u32 };
        let first = LaneMessage { opening: Some(opening), updates: Vec::new() };
        let (left, has_left) = tokio::sync::oneshot::channel();
        let messages = futures::stream::once(async { first }).chain(update_messages(updates, left));
        let admitted = link.clone();
        let credits = async {
            let replies = link.client.lanes(messages).await.map_err(|status| refusal(&status))?;
            let mut replies = replies.into_inner();
            while let Some(LaneCredits { lanes }) =
                replies.message().await.map_err(|status| refusal(&status))?
            {
                lanes.into_iter().for_each(|lane| self.session.taken(self.to, lane));
            }
            Ok(())
        };
        let after_leaving = async {
            if has_left.await.is_ok() {
                tokio::time::sleep(LEAVE_TIMEOUT).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            ended = credits => ended,
            () = after_leaving => Ok(()),
            error = admitted.expelled(this) => Err(error),
        }
    }
}

/// The updates as messages. `left` is sent when there are no more.
fn update_messages(
    updates: Receiver<LaneUpdate>,
    left: tokio::sync::oneshot::Sender<()>,
) -> impl Stream<Item = LaneMessage> + Send {
    let message = |updates| LaneMessage { opening: None, updates };
    let messages = ReceiverStream::new(updates).ready_chunks(MAX_IN_MESSAGE).map(message);
    let end = futures::stream::once(async move {
        let _ = left.send(());
        LaneMessage::default()
    });
    messages.chain(end)
}

/// The credits as messages.
fn credit_messages(taken: Receiver<u32>) -> impl Stream<Item = Result<LaneCredits, Status>> + Send {
    ReceiverStream::new(taken).ready_chunks(MAX_IN_MESSAGE).map(|lanes| Ok(LaneCredits { lanes }))
}

/// Passes the updates of a call to the session, until it ends.
async fn receive(
    session: &Exchange,
    from: usize,
    mut messages: Streaming<LaneMessage>,
) -> Result<(), String> {
    while let Some(LaneMessage { updates, .. }) =
        messages.message().await.map_err(|status| refusal(&status).to_string())?
    {
        for LaneUpdate { lane, update } in updates {
            if update.len() > MAX_UPDATE_BYTES {
                return Err(format!("an update of {} bytes", update.len()));
            }
            session.arrive(from, lane, update)?;
        }
    }
    Ok(())
}

/// Room for the updates or credits of a host that keeps to the bound.
fn capacity(lanes: u32) -> usize {
    lanes as usize * MAX_UNRECEIVED + 1
}
