//! Waiting for storage from synchronous code.
//!
//! Training owns its thread and no runtime. Local files need none: `object_store` then does its work
//! inside the poll. For a store that needs a runtime, the caller brings one as a [`BlockOn`].

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread::{self, Thread};

use futures::future::BoxFuture;

/// Runs a future to its end before it returns: `move |work| handle.block_on(work)` for tokio.
pub type BlockOn = Arc<dyn Fn(BoxFuture<'_, ()>) + Send + Sync>;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls `work` on this thread, asleep in between.
pub(crate) fn park_until_done(work: BoxFuture<'_, ()>) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut work = pin!(work);
    while work.as_mut().poll(&mut context).is_pending() {
        thread::park();
    }
}

/// The value of `work`, waited for by `block_on`.
pub(super) fn wait<T: Send>(block_on: &BlockOn, work: impl Future<Output = T> + Send) -> T {
    let mut value = None;
    block_on(Box::pin(async { value = Some(work.await) }));
    value.expect("`BlockOn` returns after the future's end")
}
