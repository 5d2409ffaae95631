//! The lease of a run in a bucket, and the connections through which its workers write there.
//!
//! The supervisor takes the lease before it prepares the job, because preparation writes to the run directory, and releases it
//! when the job ends or returns to the queue. Each attempt has another term. If another daemon takes the lease, the job
//! fails here: it is that daemon's now.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use millstream_io::storage::Directory;
use millstream_worker::protocol::Place;
use tracing::Level;

use super::{Abort, Event, Prepared, STOP_POLL_INTERVAL, Supervisor};
use crate::objects::{ObjectServer, ServedObjects, Writing};
use crate::runs::{Lease, LeaseError};

/// Where the workers of an attempt write.
pub(super) struct Places {
    pub(super) run: Place,
    /// The directory of TensorBoard events, if the job writes any.
    pub(super) events: Option<Place>,
}

/// Connections of workers for objects. When they are dropped, requests in progress are cancelled and awaited, before the next
/// attempt makes others. What a service has received by then is in the directory of an earlier term.
#[derive(Default)]
pub(super) struct Connections(Vec<ServedObjects>);

impl Drop for Connections {
    fn drop(&mut self) {
        self.0.iter().for_each(ServedObjects::cancel);
        self.0.drain(..).for_each(ServedObjects::wait);
    }
}

impl Supervisor {
    /// Takes the lease of the run, if it is in a bucket.
    pub(super) fn take_lease(&mut self) -> Result<(), Abort> {
        let directory = self.directory();
        if directory.as_local().is_some() || self.lease.is_some() {
            return Ok(());
        }
        let events = self.control.events.clone();
        let lost = move |reason: String| {
            // Waits while the queue is full; fails if the job has ended.
            tokio::task::spawn_blocking(move || events.send(Event::LeaseLost(reason)).is_ok());
        };
        let wait = |reason: &str| {
            self.recorder.log(Level::INFO, reason);
            self.recorder.update(|record| record.reason = reason.to_owned());
        };
        let taken = Lease::take((directory.address(), &self.run_storage.stores), wait, lost);
        match self.unless_stopped(taken) {
            None => self.check_stop(),
            Some(Ok(lease)) => {
                self.lease = Some(Arc::new(lease));
                self.recorder.update(|record| record.reason.clear());
                Ok(())
            }
            Some(Err(error)) => Err(Abort::Failed(format!("{error:#}"))),
        }
    }

    /// Whether another daemon has taken the lease; an event may be of an earlier one.
    pub(super) fn has_lost_lease(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.lost().is_some())
    }

    /// Releases the lease, if there is one.
    pub(super) fn release_lease(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.runtime.block_on(lease.release());
        }
    }

    /// As [`Supervisor::release_lease`], without waiting for that.
    pub(super) fn release_lease_later(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.runtime.spawn(async move { lease.release().await });
        }
    }

    /// The result of `work`; `None` if a stop is requested first.
    fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let stopped = async {
            while self.control.stop_requested().is_none() {
                tokio::time::sleep(STOP_POLL_INTERVAL).await;
            }
        };
        self.runtime.block_on(async {
            tokio::select! {
                done = work => Some(done),
                () = stopped => None,
            }
        })
    }

    /// Where the workers of the next attempt at `prepared` write; `None` if a stop is requested meanwhile.
    ///
    /// # Errors
    /// When the lease is lost, or storage fails.
    pub(super) fn places(&self, prepared: &Prepared) -> Result<Option<Places>, LeaseError> {
        let run = match (prepared.directory.as_local(), &self.lease) {
            (Some(path), _) => Place::Local(path.to_owned()),
            (None, None) => return Err(LeaseError::Lost("the lease of the run is released".to_owned())),
            (None, Some(lease)) => {
                let Some(term) = self.unless_stopped(lease.begin_term()) else { return Ok(None) };
                Place::Bucket { address: prepared.directory.to_string(), term: term? }
            }
        };
        let events = self.event_directory(prepared).map(|directory| match directory.as_local() {
            Some(path) => Place::Local(path.to_owned()),
            None => Place::Bucket { address: directory.to_string(), term: 0 },
        });
        Ok(Some(Places { run, events }))
    }

    /// The directory of the TensorBoard events of the job, if it writes any.
    fn event_directory(&self, prepared: &Prepared) -> Option<Directory> {
        Some(prepared.job.tensorboard.as_ref()?.directory.join(self.recorder.id()))
    }

    /// Connections for the objects that worker `rank` of an attempt writes, in the order in which it receives them. They are
    /// served as long as `connections` exist.
    ///
    /// # Errors
    /// When the system refuses them.
    pub(super) fn connect_objects(
        &self,
        prepared: &Prepared,
        rank: u32,
        connections: &mut Connections,
    ) -> io::Result<Vec<OwnedFd>> {
        let run = match (prepared.directory.as_local(), &self.lease) {
            (None, Some(lease)) => {
                Some((prepared.directory.address().clone(), Writing::Leased(Arc::clone(lease))))
            }
            _ => None,
        };
        // Rank 0 alone writes events.
        let events = self.event_directory(prepared).filter(|place| rank == 0 && place.as_local().is_none());
        let all = run.into_iter().chain(events.map(|directory| (directory, Writing::Allowed)));
        let connect = |(directory, writing)| {
            let (ours, theirs) = UnixStream::pair()?;
            let server = ObjectServer::new(directory, &self.run_storage.stores, writing);
            connections.0.push(server.start(ours, &self.runtime)?);
            Ok(theirs.into())
        };
        all.map(connect).collect()
    }
}
