//! Event files in a bucket.
//!
//! An object cannot be appended to. So its contents are kept here and written again as a whole, at most every
//! [`UPLOAD_INTERVAL`], until they have [`OBJECT_BYTES`]; then the next object begins. A separate thread writes them, because
//! storage may be slow, and training does not wait for its curves.
//!
//! ```text
//! gs://bucket/logs/census-k3f9q2/events.out.tfevents.1795000000.host.4711.0000
//!                                events.out.tfevents.1795000000.host.4711.0001
//! ```

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::objects::ObjectClient;

/// Interval between writes of an object that grows. Services accept about one write of an object a second.
const UPLOAD_INTERVAL: Duration = Duration::from_secs(20);

/// The size from which on an object is complete, and the most that is appended at once: what the daemon takes in one message is more
/// than both.
const OBJECT_BYTES: usize = 4 << 20;

/// The most complete objects that wait for a slow storage; further events are dropped.
const MAX_WAITING: usize = 16;

/// How long the end of the file waits for the last write.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A sequence of objects that is written as one event file.
pub(super) struct ObjectFile(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Complete objects that are not written yet, by their number.
    complete: VecDeque<(u32, Vec<u8>)>,
    /// The number and the contents of the current object.
    number: u32,
    content: Vec<u8>,
    /// Whether the contents are not written yet.
    is_dirty: bool,
    /// Why a write has failed, until it is reported.
    failed: Option<io::Error>,
    /// Whether nothing is appended any more, and whether the thread has written everything.
    has_ended: bool,
    is_written: bool,
}

impl ObjectFile {
    /// Begins a file with this `name`.
    pub(super) fn create(client: ObjectClient, name: String) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let of_thread = Arc::clone(&shared);
        let upload = move || of_thread.upload(&client, &name);
        std::thread::Builder::new().name("events".into()).spawn(upload)?;
        Ok(Self(shared))
    }

    /// Appends complete records. `header` begins a new object.
    ///
    /// # Errors
    /// Why an earlier write has failed, or that too many wait.
    pub(super) fn append(&self, records: &[u8], header: &[u8]) -> io::Result<()> {
        if records.len() > OBJECT_BYTES {
            return Err(io::Error::other(format!("{} bytes of events at once are too many", records.len())));
        }
        let mut state = self.0.lock();
        if state.complete.len() >= MAX_WAITING {
            return Err(state.failed.take().unwrap_or_else(|| io::Error::other("storage is too slow")));
        }
        state.content.extend(records);
        state.is_dirty = true;
        if state.content.len() >= OBJECT_BYTES {
            let (number, content) = (state.number, std::mem::replace(&mut state.content, header.to_vec()));
            state.complete.push_back((number, content));
            (state.number, state.is_dirty) = (number + 1, false);
        }
        self.0.changed.notify_all();
        state.failed.take().map_or(Ok(()), Err)
    }

    /// Waits until everything is written, for [`END_TIMEOUT`] at most. Nothing may be appended afterwards.
    ///
    /// # Errors
    /// When it could not be written.
    pub(super) fn end(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        state.has_ended = true;
        self.0.changed.notify_all();
        let waiting = |state: &mut State| !state.is_written;
        let ended = self.0.changed.wait_timeout_while(state, END_TIMEOUT, waiting);
        let (mut state, timeout) = ended.unwrap_or_else(PoisonError::into_inner);
        match state.failed.take() {
            Some(error) => Err(error),
            None if timeout.timed_out() => Err(io::ErrorKind::TimedOut.into()),
            None => Ok(()),
        }
    }
}

impl Drop for ObjectFile {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes objects until the file has ended.
    fn upload(&self, client: &ObjectClient, name: &str) {
        let mut next_at = Instant::now();
        loop {
            let mut state = self.lock();
            let (number, content, is_complete) = loop {
                if let Some((number, content)) = state.complete.pop_front() {
                    break (number, content, true);
                }
                let until = next_at.saturating_duration_since(Instant::now());
                if state.is_dirty && (until.is_zero() || state.has_ended) {
                    state.is_dirty = false;
                    break (state.number, state.content.clone(), false);
                }
                if state.has_ended {
                    state.is_written = true;
                    self.changed.notify_all();
                    return;
                }
                let wait = if state.is_dirty { until } else { Duration::MAX };
                let waited = self.changed.wait_timeout(state, wait.min(UPLOAD_INTERVAL));
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            };
            drop(state);
            let location = Path::from(format!("{name}.{number:04}"));
            let put = futures::executor::block_on(client.put(&location, content.clone().into()));
            next_at = Instant::now() + UPLOAD_INTERVAL;
            if let Err(error) = put {
                let mut state = self.lock();
                state.failed = Some(error.into());
                match is_complete {
                    // It is tried again with the next events, unless nothing follows.
                    false => state.is_dirty = !state.has_ended,
                    true if !state.has_ended => {
                        state.complete.push_front((number, content));
                        drop(self.changed.wait_timeout(state, UPLOAD_INTERVAL));
                    }
                    true => {}
                }
            }
        }
    }
}

/// The names of the objects in the directory.
pub(super) fn names(client: &ObjectClient) -> io::Result<Vec<String>> {
    let objects: Vec<_> = futures::executor::block_on(client.list(None).collect());
    let names = objects.into_iter().map(|object| Ok(object?.location.to_string()));
    names.collect::<Result<_, object_store::Error>>().map_err(Into::into)
}
