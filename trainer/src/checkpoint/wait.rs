//! Waiting for storage from synchronous code.
//!
//! Training owns its thread and has no async runtime. Local files need none, because `object_store` then
//! works inside the poll. For a store that needs a runtime, the caller provides one as a [`BlockOn`].

use std::sync::Arc;

use futures::future::BoxFuture;

/// Runs a future to completion before it returns: `move |work| handle.block_on(work)` for tokio.
pub type BlockOn = Arc<dyn Fn(BoxFuture<'_, ()>) + Send + Sync>;

/// Runs `work` with `block_on` and returns its value.
pub(super) fn wait<T: Send>(block_on: &BlockOn, work: impl Future<Output = T> + Send) -> T {
    let mut value = None;
    block_on(Box::pin(async { value = Some(work.await) }));
    value.expect("`BlockOn` returns after the future's end")
}
