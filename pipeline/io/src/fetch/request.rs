//! Fetches one piece of a remote object, with retries and hedging.
//!
//! These failures are retried: status 408, 429, and 500 and above; a connection that is refused, reset or silent; a
//! body that is truncated or slower than a limit (as with curl's `--speed-limit`); a response with another range than
//! requested. Bytes received so far are kept: the next attempt requests the rest, on the condition that the object is
//! unchanged. Between attempts are random pauses ([`pause`]); attempts end at a deadline. A response of 401 or 403 renews
//! the credentials, up to twice, because a token may have expired by the service's clock or been revoked. A lack of file
//! descriptors is retried, too. What no retry can heal, such as a port that does not speak TLS or a forbidden redirect,
//! fails at once.
//!
//! Corrupted bytes are not detected here, because services send no checksum of a range. Formats detect them by the
//! checksums of TFRecord frames and Parquet pages.

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::{Either, select};
use tokio::time::{sleep, timeout};

use crate::buffers::Buffer;
use crate::failure::Failure;
use crate::storage::{Clients, Object, Permanent, Refused, cause};
use crate::{pause, redact};

/// An attempt slower than this many bytes per second, over the same time, has failed too.
const TRICKLE: u64 = 16 << 10;
/// Maximum number of renewals of credentials.
const RENEWALS: u32 = 2;

/// Why an attempt failed.
enum Trouble {
    Final(Failure),
    /// A retry with other credentials may succeed.
    Denied(object_store::Error, Arc<Clients>),
    /// A retry may succeed.
    Passing {
        message: String,
        throttled: bool,
    },
}

impl Trouble {
    fn passing(message: impl Into<String>) -> Self {
        Self::Passing { message: message.into(), throttled: false }
    }

    fn of(error: object_store::Error, clients: &Arc<Clients>) -> Self {
        use object_store::Error as E;
        match error {
            E::Precondition { .. } | E::NotFound { .. } | E::NotModified { .. } => {
                Self::Final(Failure::Changed)
            }
            E::Unauthenticated { .. } | E::PermissionDenied { .. } => {
                Self::Denied(error, Arc::clone(clients))
            }
            E::NotSupported { .. } | E::NotImplemented { .. } | E::InvalidPath { .. } => {
                Self::Final(Failure::Storage(Arc::new(error)))
            }
            error if cause::<Permanent>(&error).is_some() => Self::Final(Failure::Storage(Arc::new(error))),
            error => match cause::<Refused>(&error) {
                // The range is past the end: the object is shorter now.
                Some(Refused { status: 416, .. }) => Self::Final(Failure::Changed),
                Some(refused) if !refused.is_passing() => Self::Final(Failure::Storage(Arc::new(error))),
                Some(refused) => {
                    Self::Passing { message: refused.to_string(), throttled: refused.is_throttling() }
                }
                None => Self::passing(root_cause(&error)),
            },
        }
    }
}

/// The innermost cause, which is the informative one.
fn root_cause(error: &object_store::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// A piece being fetched.
struct Part {
    range: Range<u64>,
    buffer: Buffer,
    filled: usize,
}

impl Part {
    fn new(object: &Object, range: Range<u64>) -> Self {
        let buffer = object.stores().buffers().take((range.end - range.start) as usize);
        Self { range, buffer, filled: 0 }
    }

    fn missing(&self) -> Range<u64> {
        self.range.start + self.filled as u64..self.range.end
    }

    /// Appends received bytes. If they exceed the requested range, drops all of them and returns false.
    fn append(&mut self, bytes: &[u8]) -> bool {
        let room = self.buffer.as_mut().get_mut(self.filled..self.filled + bytes.len());
        let Some(room) = room else {
            self.filled = 0;
            return false;
        };
        room.copy_from_slice(bytes);
        self.filled += bytes.len();
        true
    }
}

/// Fetches a non-empty `range` of a remote object.
pub(crate) async fn fetch(object: Object, range: Range<u64>) -> Result<Bytes, Failure> {
    let store = Arc::clone(object.store());
    let traffic = store.traffic();
    let _turn = traffic.streams.turn().await;
    let begun = Instant::now();
    let mut part = Part::new(&object, range);
    let (mut tries, mut renewals) = (0, 0);
    loop {
        tries += 1;
        let left = traffic.deadline.saturating_sub(begun.elapsed());
        let message = match timeout(left, hedged(&object, part)).await {
            Ok((part, Ok(()))) => {
                traffic.streams.ended(part.buffer.as_ref().len() as u64);
                return Ok(part.buffer.into_bytes());
            }
            Ok((rest, Err(trouble))) => {
                part = rest;
                match trouble {
                    Trouble::Final(failure) => return Err(failure),
                    Trouble::Denied(error, _) if renewals == RENEWALS => {
                        return Err(Failure::Storage(Arc::new(error)));
                    }
                    Trouble::Denied(error, used) => {
                        renewals += 1;
                        store.renew(&used);
                        root_cause(&error)
                    }
                    Trouble::Passing { message, throttled } => {
                        if throttled {
                            traffic.throttled.fetch_add(1, Ordering::Relaxed);
                            traffic.streams.throttled();
                        }
                        message
                    }
                }
            }
            Err(_) => return Err(gave_up(tries, begun, "no response before the deadline".to_owned())),
        };
        let pause = pause::after(tries);
        if begun.elapsed() + pause >= traffic.deadline {
            return Err(gave_up(tries, begun, message));
        }
        tracing::debug!(path = %redact(object.path()), tries, message = %redact(&message), "retrying a read");
        traffic.retries.fetch_add(1, Ordering::Relaxed);
        sleep(pause).await;
    }
}

fn gave_up(tries: u32, begun: Instant, message: String) -> Failure {
    Failure::GaveUp { tries, seconds: begun.elapsed().as_secs(), message }
}

/// One attempt, with a second concurrent one if the first is late.
async fn hedged(object: &Object, part: Part) -> (Part, Result<(), Trouble>) {
    let traffic = object.store().traffic();
    let (whole, missing) = (part.range.clone(), part.missing());
    let late = traffic.hedging.begin(missing.end - missing.start);
    let mut first = pin!(attempt(object, part));
    if let Ok(done) = timeout(late, &mut first).await {
        return done;
    }
    if !traffic.hedging.pay() {
        return first.await;
    }
    traffic.hedges.fetch_add(1, Ordering::Relaxed);
    // The second one requests the whole piece, so that the first of them to finish suffices.
    let second = pin!(attempt(object, Part::new(object, whole)));
    match select(first, second).await {
        Either::Left(((part, Err(Trouble::Passing { .. })), second)) => match second.await {
            (whole, Ok(())) => (whole, Ok(())),
            (_, failed) => (part, failed),
        },
        Either::Right(((_, Err(Trouble::Passing { .. })), first)) => first.await,
        Either::Left((done, _)) | Either::Right((done, _)) => done,
    }
}

/// One request and its body.
async fn attempt(object: &Object, mut part: Part) -> (Part, Result<(), Trouble>) {
    let (begun, missing) = (Instant::now(), part.missing());
    let done = receive(object, &mut part).await;
    if done.is_ok() {
        object.store().traffic().hedging.note(missing.end - missing.start, begun.elapsed());
    }
    (part, done)
}

async fn receive(object: &Object, part: &mut Part) -> Result<(), Trouble> {
    let traffic = object.store().traffic();
    let (clients, missing) = (object.store().clients(), part.missing());
    traffic.requests.fetch_add(1, Ordering::Relaxed);
    let request = clients.reads.get_opts(&object.meta().location, object.request(missing.clone()));
    let silent = || Trouble::passing(format!("no data received for {:?}", traffic.silence));
    let answer = timeout(traffic.silence, request)
        .await
        .map_err(|_| silent())?
        .map_err(|error| Trouble::of(error, &clients))?;
    if !object.is_same(&answer) {
        return Err(Trouble::Final(Failure::Changed));
    }
    if answer.range != missing {
        let message = format!("requested bytes {:?}, received {:?}", missing, answer.range);
        return Err(Trouble::passing(message));
    }
    let mut body = answer.into_stream();
    let (mut since, mut came) = (Instant::now(), 0);
    while let Some(bytes) = timeout(traffic.silence, body.next()).await.map_err(|_| silent())? {
        let bytes = bytes.map_err(|error| Trouble::of(error, &clients))?;
        traffic.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if !part.append(&bytes) {
            return Err(Trouble::passing("received more bytes than requested"));
        }
        came += bytes.len() as u64;
        if since.elapsed() >= traffic.silence {
            if came < TRICKLE * traffic.silence.as_secs().max(1) {
                return Err(Trouble::passing(format!("received only {came} bytes in {:?}", traffic.silence)));
            }
            (since, came) = (Instant::now(), 0);
        }
    }
    if part.missing().is_empty() {
        return Ok(());
    }
    let (got, wanted) = (part.filled, part.buffer.as_ref().len());
    Err(Trouble::passing(format!("received {got} of {wanted} bytes")))
}
