//! Limits on the requests that are being received.
//!
//! A request is decoded only once it is complete, so until then its bytes wait in memory. One client could start any number
//! of requests and finish none. Here the bytes of all unfinished requests have a common budget, and a request that is not
//! complete in time is rejected. Small requests, which every command but `submit` sends, need no budget: those of a
//! hostile client do not keep another client's command from being answered.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tonic::Status;
use tower::{Layer, Service};

/// The bytes of requests without a budget.
const FREE_BYTES: usize = 16 << 10;

/// The maximum bytes of all unfinished requests beyond [`FREE_BYTES`] each.
const BUDGET_BYTES: usize = 64 << 20;

/// The time limit for receiving a request.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Applies the limits to a service.
#[derive(Clone)]
pub(crate) struct RequestLimits {
    budget: Arc<Semaphore>,
    timeout: Duration,
}

/// A service whose requests are limited.
#[derive(Clone)]
pub(crate) struct Limited<S> {
    inner: S,
    limits: RequestLimits,
}

/// The body of a request.
struct LimitedBody {
    inner: tonic::body::Body,
    budget: Arc<Semaphore>,
    deadline: Pin<Box<Sleep>>,
    free_bytes: usize,
    held: Option<OwnedSemaphorePermit>,
}

impl RequestLimits {
    pub(crate) fn new() -> Self {
        Self { budget: Arc::new(Semaphore::new(BUDGET_BYTES)), timeout: TIMEOUT }
    }
}

impl<S> Layer<S> for RequestLimits {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, limits: self.clone() }
    }
}

impl<S: Service<http::Request<tonic::body::Body>>> Service<http::Request<tonic::body::Body>> for Limited<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> S::Future {
        let RequestLimits { budget, timeout } = self.limits.clone();
        let limited = |inner| LimitedBody {
            inner,
            budget,
            deadline: Box::pin(tokio::time::sleep(timeout)),
            free_bytes: FREE_BYTES,
            held: None,
        };
        self.inner.call(request.map(|body| tonic::body::Body::new(limited(body))))
    }
}

impl LimitedBody {
    /// Counts `bytes` more bytes; an error if they exceed the budget.
    fn hold(&mut self, bytes: usize) -> Result<(), Status> {
        let free = bytes.min(self.free_bytes);
        self.free_bytes -= free;
        let counted = u32::try_from(bytes - free).unwrap_or(u32::MAX);
        if counted == 0 {
            return Ok(());
        }
        let permit = Arc::clone(&self.budget).try_acquire_many_owned(counted);
        let permit = permit.map_err(|_| {
            Status::resource_exhausted("the daemon is receiving too many large requests; try again")
        })?;
        match &mut self.held {
            Some(held) => held.merge(permit),
            held => *held = Some(permit),
        }
        Ok(())
    }
}

impl Body for LimitedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(Status::deadline_exceeded("the request was not complete in time"))));
        }
        let frame = std::task::ready!(Pin::new(&mut self.inner).poll_frame(context)?);
        let bytes = frame.as_ref().and_then(Frame::data_ref).map_or(0, Bytes::len);
        Poll::Ready(match self.hold(bytes) {
            Ok(()) => frame.map(Ok),
            Err(refused) => Some(Err(refused)),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::future::poll_fn;

    use futures::stream;
    use http_body_util::StreamBody;

    use super::*;

    fn body(limits: &RequestLimits, inner: tonic::body::Body) -> LimitedBody {
        let deadline = Box::pin(tokio::time::sleep(limits.timeout));
        LimitedBody {
            inner,
            budget: Arc::clone(&limits.budget),
            deadline,
            free_bytes: FREE_BYTES,
            held: None,
        }
    }

    fn frames(sizes: &'static [usize]) -> tonic::body::Body {
        let frames = sizes.iter().map(|&size| Ok::<_, Status>(Frame::data(Bytes::from(vec![0; size]))));
        tonic::body::Body::new(StreamBody::new(stream::iter(frames)))
    }

    async fn next(body: &mut LimitedBody) -> Option<Result<usize, tonic::Code>> {
        let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await?;
        Some(frame.map(|frame| frame.data_ref().unwrap().len()).map_err(|status| status.code()))
    }

    #[tokio::test]
    async fn unfinished_requests_share_a_budget_and_small_ones_need_none() {
        let limits = RequestLimits { budget: Arc::new(Semaphore::new(100)), timeout: TIMEOUT };
        let mut first = body(&limits, frames(&[FREE_BYTES, 60, 30]));
        for wanted in [FREE_BYTES, 60, 30] {
            assert_eq!(next(&mut first).await, Some(Ok(wanted)));
        }
        assert_eq!(next(&mut first).await, None);
        let mut second = body(&limits, frames(&[FREE_BYTES + 10, 1]));
        assert_eq!(next(&mut second).await, Some(Ok(FREE_BYTES + 10)));
        assert_eq!(next(&mut second).await, Some(Err(tonic::Code::ResourceExhausted)));
        assert_eq!(next(&mut body(&limits, frames(&[FREE_BYTES]))).await, Some(Ok(FREE_BYTES)));
        drop(first);
        assert_eq!(next(&mut body(&limits, frames(&[FREE_BYTES + 90]))).await, Some(Ok(FREE_BYTES + 90)));
    }

    #[tokio::test]
    async fn a_request_that_never_ends_is_rejected() {
        let endless = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Status>>());
        let limits = RequestLimits { timeout: Duration::from_millis(1), ..RequestLimits::new() };
        let mut endless = body(&limits, tonic::body::Body::new(endless));
        assert_eq!(next(&mut endless).await, Some(Err(tonic::Code::DeadlineExceeded)));
    }
}
