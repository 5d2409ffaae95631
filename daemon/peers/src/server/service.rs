//! The calls of other daemons.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use super::stream::Caller;
use super::{Refusals, ThisHost};
use crate::About;
use crate::conduct::Replies;
use crate::hosts::clock_now;
use crate::lanes::Credits;
use crate::measure::{BLOCK_BYTES, MAX_MEASURE};
use crate::proto::peers_server::Peers;
use crate::proto::{
    Block, FromLeader, Greeting, LaneMessage, ProbeReply, ProbeRequest, Received, SendRequest,
};

/// The largest message of another daemon: one about a generation of [`crate::conduct::MAX_RANKS`] ranks fits.
pub(crate) const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// The most measurements at a time.
const MAX_MEASUREMENTS: usize = 16;

/// Called with each daemon that greets; returns the addresses of others for it.
pub(super) type Heard = Box<dyn Fn(&About) -> Vec<String> + Send + Sync>;

/// Answers the calls of other daemons.
pub(super) struct Service {
    this: Arc<ThisHost>,
    refusals: Arc<Refusals>,
    heard: Heard,
    measurements: Arc<Semaphore>,
}

impl Service {
    pub(super) fn new(this: Arc<ThisHost>, refusals: Arc<Refusals>, heard: Heard) -> Self {
        Self { this, refusals, heard, measurements: Arc::new(Semaphore::new(MAX_MEASUREMENTS)) }
    }

    /// Checks that the caller has greeted.
    fn check_greeted<T>(request: &Request<T>) -> Result<(), Status> {
        Self::greeted(&*caller(request)?).map(drop)
    }

    /// What the caller has said about itself.
    fn greeted(caller: &Caller) -> Result<&About, Status> {
        caller.about.get().ok_or_else(|| Status::failed_precondition("a greeting has to come first"))
    }

    fn begin_measurement(&self) -> Result<OwnedSemaphorePermit, Status> {
        let permit = Arc::clone(&self.measurements).try_acquire_owned();
        permit.map_err(|_| Status::resource_exhausted("too many links are being measured; try again"))
    }

    /// The daemon that greets.
    fn hear(caller: &Caller, greeting: Greeting) -> Result<About, String> {
        let (about, _) = About::of_greeting(greeting).map_err(|error| error.to_string())?;
        let About { host, .. } = &about;
        if !caller.certificate.is_for(host) {
            let names = caller.certificate.names().join(", ");
            return Err(format!("the host calls itself {host}, but its certificate is for {names}"));
        }
        if caller.about.get_or_init(|| about.clone()) != &about {
            return Err(format!("{host} greets again as another host"));
        }
        Ok(about)
    }
}

fn caller<T>(request: &Request<T>) -> Result<Arc<Caller>, Status> {
    let caller = request.extensions().get::<Arc<Caller>>();
    caller.cloned().ok_or_else(|| Status::internal("the connection has no certificate"))
}

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Peers for Service {
    async fn greet(&self, request: Request<Greeting>) -> Reply<Greeting> {
        let caller = caller(&request)?;
        match Self::hear(&caller, request.into_inner()) {
            Ok(about) => {
                let known = (self.heard)(&about);
                Ok(Response::new(Greeting { known, ..self.this.about.greeting() }))
            }
            Err(reason) => {
                self.refusals.refuse(caller.address, &reason);
                Err(Status::permission_denied(reason))
            }
        }
    }

    async fn probe(&self, request: Request<ProbeRequest>) -> Reply<ProbeReply> {
        let received_at = clock_now();
        Self::check_greeted(&request)?;
        let status = self.this.status_now();
        Ok(Response::new(status.reply((received_at, clock_now()))))
    }

    async fn receive(&self, request: Request<Streaming<Block>>) -> Reply<Received> {
        Self::check_greeted(&request)?;
        let _permit = self.begin_measurement()?;
        let mut blocks = request.into_inner();
        let counting = async {
            let mut bytes = 0;
            while let Some(block) = blocks.message().await? {
                bytes += block.data.len() as u64;
            }
            Ok(Response::new(Received { bytes }))
        };
        let counted = tokio::time::timeout(2 * MAX_MEASURE, counting).await;
        counted.unwrap_or_else(|_| Err(Status::deadline_exceeded("the measurement takes too long")))
    }

    type LanesStream = Credits;

    async fn lanes(&self, request: Request<Streaming<LaneMessage>>) -> Reply<Self::LanesStream> {
        let caller = caller(&request)?;
        let about = Self::greeted(&caller)?;
        Ok(Response::new(self.this.sessions.answer(&about.host, request.into_inner()).await?))
    }

    type FollowStream = Replies;

    async fn follow(&self, request: Request<Streaming<FromLeader>>) -> Reply<Self::FollowStream> {
        let caller = caller(&request)?;
        let about = Self::greeted(&caller)?;
        Ok(Response::new(self.this.jobs.answer(&about.host, request.into_inner()).await?))
    }

    type SendStream = Pin<Box<dyn Stream<Item = Result<Block, Status>> + Send>>;

    async fn send(&self, request: Request<SendRequest>) -> Reply<Self::SendStream> {
        Self::check_greeted(&request)?;
        let permit = self.begin_measurement()?;
        let wanted = Duration::from_millis(request.into_inner().milliseconds.into());
        let until = Instant::now() + wanted.min(MAX_MEASURE);
        let block = Block { data: vec![0; BLOCK_BYTES] };
        let blocks = stream::repeat_with(move || {
            let _held = &permit;
            Ok(block.clone())
        });
        // Even if the caller reads none of them.
        let blocks = blocks.take_until(tokio::time::sleep_until(until));
        Ok(Response::new(blocks.boxed()))
    }
}
