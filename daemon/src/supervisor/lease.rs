//! The lease of a run in a bucket, and the connections through which its workers write there.
//!
//! The supervisor takes the lease before it prepares the job, because preparation writes to the run directory, and releases it
//! when the job ends or returns to the queue. Each attempt has another term. If another daemon takes the lease, the job
//! fails here: it is that daemon's now.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use millstream_io::storage::Directory;
use millstream_worker::protocol::Place;
use tracing::Level;

use super::{Abort, Event, Prepared, STOP_POLL_INTERVAL, Supervisor};
use crate::objects::{ObjectServer, ServedObjects, Writing};
use crate::runs::{Lease, LeaseError, Look, RunDirectory, Taken, Times};

/// Interval between looks at the lease of another daemon that prepares the job.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

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
        if self.job.workers.max.is_some() {
            return self.take_free_lease(&directory);
        }
        let lost = self.on_lost_lease();
        let wait = |reason: &str| self.wait_for_lease(reason);
        let place = (directory.address(), &self.run_storage);
        let taken = Lease::take(place, Times::of(&self.job), wait, lost);
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

    /// Takes the lease of a run on several hosts, unless another daemon leads it: then everything that preparation writes exists.
    fn take_free_lease(&mut self, directory: &RunDirectory) -> Result<(), Abort> {
        let (place, times) = ((directory.address(), &self.run_storage), Times::of(&self.job));
        let mut look = None;
        loop {
            self.check_stop()?;
            let taken = Lease::try_take(place, times, &mut look, self.on_lost_lease());
            let reason = match self.unless_stopped(taken) {
                None => continue,
                Some(Ok(Taken::Lease(lease))) => {
                    self.lease = Some(Arc::new(lease));
                    break;
                }
                Some(Ok(Taken::Held(Some(_)))) => break,
                Some(Ok(Taken::Held(None))) => {
                    format!("{} prepares the job", look.as_ref().map(Look::holder).unwrap_or_default())
                }
                Some(Err(error)) => format!("waiting for the run: {error:#}"),
            };
            self.wait_for_lease(&reason);
            std::thread::sleep(LOOK_INTERVAL);
        }
        self.recorder.update(|record| record.reason.clear());
        Ok(())
    }

    /// Returns what informs the job's thread once another daemon has taken the lease.
    fn on_lost_lease(&self) -> impl FnOnce(String) + Send + 'static {
        let events = self.control.events.clone();
        move |reason: String| {
            // Waits while the queue is full; fails if the job has ended.
            tokio::task::spawn_blocking(move || events.send(Event::LeaseLost(reason)).is_ok());
        }
    }

    /// Shows why the job waits for the lease.
    fn wait_for_lease(&self, reason: &str) {
        if self.recorder.record().reason != reason {
            self.recorder.log(Level::INFO, reason);
            self.recorder.update(|record| record.reason = reason.to_owned());
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
        Ok(Some(Places { run, events: self.event_place(prepared) }))
    }

    /// Where the job writes TensorBoard events, if it does.
    pub(super) fn event_place(&self, prepared: &Prepared) -> Option<Place> {
        let directory = self.event_directory(prepared)?;
        Some(match directory.as_local() {
            Some(path) => Place::Local(path.to_owned()),
            None => Place::Bucket { address: directory.to_string(), term: 0 },
        })
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
        let lease = self.lease.as_ref().filter(|_| prepared.directory.as_local().is_none());
        let writing = lease.map(|lease| Writing::Leased(Arc::clone(lease)));
        self.connect_to(prepared, (rank, writing), connections)
    }

    /// As [`Supervisor::connect_objects`], where `writing` says what the worker may write to a run in a bucket.
    ///
    /// # Errors
    /// As there.
    pub(super) fn connect_to(
        &self,
        prepared: &Prepared,
        (rank, writing): (u32, Option<Writing>),
        connections: &mut Connections,
    ) -> io::Result<Vec<OwnedFd>> {
        let run = writing.map(|writing| (prepared.directory.address().clone(), writing));
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
