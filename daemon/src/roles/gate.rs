//! The check of each request in front of the services: its user's role, and the limits of viewers.
//!
//! A request that is refused never reaches a service, and its message is not read.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, Full, Limited};
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use super::limits::{OpenCall, ViewerCalls};
use super::{Call, Role, Roles, needed_role};
use crate::audit::Attempt;
use crate::connections::Peer;
use crate::daemon::Daemon;

/// The maximum size of a viewer's message: an id and a few numbers.
const MAX_VIEWER_MESSAGE_BYTES: usize = 4 << 10;

/// Checks requests.
#[derive(Clone)]
pub(crate) struct Gate {
    roles: Arc<Roles>,
    /// Records refused requests.
    daemon: Daemon,
    viewers: Arc<ViewerCalls>,
}

/// A service behind the gate.
#[derive(Clone)]
pub(crate) struct Guarded<S> {
    inner: S,
    gate: Gate,
}

/// The body of a reply to a viewer, whose call is open until it is dropped.
struct ViewerReply {
    inner: Body,
    _call: OpenCall,
}

type Request = http::Request<Body>;
type Response = http::Response<Body>;

impl Gate {
    pub(crate) fn new(roles: Arc<Roles>, daemon: Daemon) -> Self {
        Self { roles, daemon, viewers: ViewerCalls::new() }
    }

    /// The role in which `peer` may send a request to `path`.
    ///
    /// # Errors
    /// When it may not.
    fn admit(&self, peer: &Peer, path: &str) -> Result<Role, Status> {
        let refused = |may: &str| {
            let (method, actor) = (path.rsplit('/').next().unwrap_or_default(), peer.actor);
            let who = self.roles.who_operates();
            Err(Status::permission_denied(format!("{method}: user {actor} {may}; {who} may do that")))
        };
        match self.roles.of(&peer.credentials) {
            Some(role) if role >= needed_role(path) => Ok(role),
            Some(_) => refused("may only look at jobs"),
            None => refused("may not use this daemon any more"),
        }
    }

    /// Records a refused request.
    fn record(&self, peer: &Peer, path: &str, refused: &Status) {
        if let Some(call) = Call::of_path(path) {
            Attempt::new(&self.daemon, &peer.credentials, call, "").ended::<()>(&Err(refused.clone()));
        }
    }

    /// Answers a viewer within the limits.
    async fn answer_viewer<S>(&self, mut inner: S, request: Request, uid: u32) -> Result<Response, S::Error>
    where
        S: Service<Request, Response = Response>,
    {
        let Some(call) = self.viewers.open(uid) else {
            let busy = "too many calls of viewers are open; close some, or try again";
            return Ok(Status::resource_exhausted(busy).into_http());
        };
        let response = if Call::of_path(request.uri().path()).is_some() {
            // Nobody waits for a message that does not come.
            let request = match complete(request).await {
                Ok(request) => request,
                Err(status) => return Ok(status.into_http()),
            };
            let _turn = self.viewers.answers.acquire().await;
            inner.call(request).await?
        } else {
            inner.call(request).await?
        };
        Ok(response.map(|inner| Body::new(ViewerReply { inner, _call: call })))
    }
}

impl<S> Layer<S> for Gate {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { inner, gate: self.clone() }
    }
}

impl<S> Service<Request> for Guarded<S>
where
    S: Service<Request, Response = Response> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        // The one that is ready; its clone may not be.
        let following = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, following);
        let gate = self.gate.clone();
        Box::pin(async move {
            let Some(peer) = request.extensions().get::<Peer>().cloned() else {
                return Ok(Status::internal("the connection has no credentials").into_http());
            };
            match gate.admit(&peer, request.uri().path()) {
                Ok(role) => {
                    request.extensions_mut().insert(role);
                    match role {
                        Role::Operator => inner.call(request).await,
                        Role::Viewer => gate.answer_viewer(inner, request, peer.actor.uid).await,
                    }
                }
                Err(refused) => {
                    gate.record(&peer, request.uri().path(), &refused);
                    Ok(refused.into_http())
                }
            }
        })
    }
}

/// The request with its whole message.
async fn complete(request: Request) -> Result<Request, Status> {
    let (head, body) = request.into_parts();
    let received = Limited::new(body, MAX_VIEWER_MESSAGE_BYTES).collect().await.map_err(|error| {
        let refused = error.downcast::<Status>().map(|status| *status);
        refused.unwrap_or_else(|_| Status::resource_exhausted("the request is too large"))
    })?;
    Ok(Request::from_parts(head, Body::new(Full::new(received.to_bytes()))))
}

impl http_body::Body for ViewerReply {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
