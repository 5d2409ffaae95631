//! The lease of a run in a bucket: the right to train in it, which one daemon has at a time.
//!
//! A local run directory is locked, and the kernel ends the lock with its process. In a bucket, a record says who has the lease: the
//! object `lease.json`, or a key of etcd at sites that have it ([`keeping`]). It is changed by conditional writes only: each
//! replaces the version that its writer has read, so of several writers one succeeds.
//!
//! ```text
//! daemon A   take 1 .. renew .. renew .. [suspended]                               renew: refused, A's workers are killed
//! daemon B                                    read, unchanged for EXPIRY: take 2 ..
//! ```
//!
//! * The holder renews it regularly ([`Times`]). Another daemon takes it when it was released, when its holder is a process of the
//!   same host that is gone, or when it has not changed for the expiry by the clock of the one that waits: clocks of two hosts
//!   are never compared.
//! * The *term* is a number that increases with each group of workers, of whichever daemon. Checkpoints are written in a
//!   term ([`millstream_trainer::checkpoint::store`]), so late writes of earlier workers change nothing.
//! * Before each change of the run the holder [confirms](Lease::confirm) the lease: it was renewed a moment ago, or is now.
//!
//! # Runs on several hosts
//!
//! The holder leads all hosts of the job in an *epoch*. An epoch is [`EPOCH_TERMS`] terms, one for each of its generations, so terms increase
//! in all cases. The record also says which checkpoint is the newest ([`Head`]), and how the job has ended. So each of these is changed on
//! condition that the lease is held: by one write that replaces the version that the holder has read. The files of a checkpoint come
//! before, and a checkpoint after the newest one, which a late request may have completed, does not count. Such a holder gives up by
//! itself when it could not renew the lease for a while, because other daemons take it soon.

mod holder;
mod keeping;
mod record;

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use millstream_io::storage::Directory;
use millstream_job::Job;
use millstream_peers::etcd::EtcdError;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Mutex;
use tokio::task::AbortHandle;

use super::Storage;

use self::holder::Holder;
pub(crate) use self::keeping::LEASE;
use self::keeping::{Keeping, Version};
use self::record::{EPOCH_TERMS, Record};
pub(crate) use self::record::{End, Head, Led, generation_term, of_term};

/// The time limits of a lease. All daemons that may take the lease of a run have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    /// Interval between renewals.
    renewal: Duration,
    /// How long an unchanged lease is respected.
    expiry: Duration,
    /// How long a renewal may take that confirms the lease.
    renewed_within: Duration,
    /// The time limit of a change that needs the lease. With `renewed_within`, it is over before `expiry`.
    change: Duration,
    /// The age of the last renewal at which the holder gives up.
    validity: Duration,
}

impl Times {
    /// Of a run on one host: a person resumes it elsewhere.
    pub(crate) const ONE_HOST: Self = Self {
        renewal: Duration::from_secs(10),
        expiry: Duration::from_secs(30),
        renewed_within: Duration::from_secs(5),
        change: Duration::from_secs(20),
        validity: Duration::MAX,
    };

    /// Of a run on several hosts, which wait for a new leader.
    const SEVERAL_HOSTS: Self = Self {
        renewal: Duration::from_secs(3),
        expiry: Duration::from_secs(10),
        renewed_within: Duration::from_secs(2),
        change: Duration::from_secs(5),
        validity: Duration::from_secs(8),
    };

    /// Those of the runs of `job`.
    pub(crate) fn of(job: &Job) -> Self {
        if job.workers.max.is_some() { Self::SEVERAL_HOSTS } else { Self::ONE_HOST }
    }
}

/// Interval between looks at another daemon's lease.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Interval between tries of a write that must succeed.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The age of a renewal up to which it confirms the lease. Services accept about one write of an object a second.
const CONFIRMED_FOR: Duration = Duration::from_secs(2);

/// The most refusals of conditional writes in a row: more mean that the service does not support them.
const MAX_REFUSALS: u32 = 5;

/// How long a release may take.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a released lease is not confirmed.
const RELEASED: &str = "this daemon has released the lease of the run";

/// Why a lease is not confirmed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseError {
    /// Another daemon has it.
    #[error("{0}")]
    Lost(String),
    /// Storage or etcd has failed, for this reason. The lease may still be valid.
    #[error("the lease of the run cannot be renewed: {0}")]
    Storage(String),
}

impl From<millstream_io::Error> for LeaseError {
    fn from(error: millstream_io::Error) -> Self {
        Self::Storage(error.to_string())
    }
}

impl From<EtcdError> for LeaseError {
    fn from(error: EtcdError) -> Self {
        Self::Storage(error.to_string())
    }
}

/// A run in a bucket, and what reads and writes it.
type Place<'a> = (&'a Directory, &'a Storage);

/// The lease of a run, which this process has until it is released or another one takes it.
pub(crate) struct Lease {
    shared: Arc<Shared>,
    renewing: AbortHandle,
}

/// What came of a try to take a lease.
pub(crate) enum Taken {
    /// This process has it.
    Lease(Lease),
    /// Another daemon has it, or may. The state of a run that it leads.
    Held(Option<Led>),
}

/// A look at another daemon's lease.
#[derive(Debug)]
pub(crate) struct Look {
    version: Version,
    /// When this version was first seen.
    since: Duration,
    holder: Holder,
}

/// A found lease that is another daemon's.
struct Found {
    record: Record,
    version: Version,
}

struct Shared {
    times: Times,
    keeping: Keeping,
    current: Mutex<Current>,
    /// Set once this process no longer has it: why.
    lost: OnceLock<String>,
}

/// The lease as this process has written it.
struct Current {
    record: Record,
    version: Version,
    /// When it was last written, before the request.
    renewed: Duration,
}

impl Lease {
    /// Takes the lease of the run in `directory`, which may take as long as a lease is respected if another daemon had it. `wait` is
    /// called with the reason when it does, and `lost` with the reason when another daemon takes it later.
    ///
    /// # Errors
    /// When another daemon has it, or storage fails.
    pub(crate) async fn take(
        (directory, storage): Place<'_>,
        times: Times,
        wait: impl Fn(&str),
        lost: impl FnOnce(String) + Send + 'static,
    ) -> Result<Self> {
        let mut look: Option<Look> = None;
        let written = loop {
            let found = match Self::look((directory, storage), times, &mut look).await? {
                Ok(written) => break written,
                Err(found) => found,
            };
            match &look {
                Some(look) if look.version != found.version => {
                    bail!("{}, which renews its lease, trains in {directory}", found.record.holder);
                }
                Some(_) => {}
                None => {
                    wait(&format!(
                        "{} trained in {directory} and has not released its lease; waiting {} s for a sign of life",
                        found.record.holder,
                        times.expiry.as_secs()
                    ));
                    look = Some(Look::at(found));
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        Ok(Self::held(written, times, lost))
    }

    /// As [`Lease::take`], without waiting: called regularly with the same `look`, it takes the lease as soon as that expires.
    ///
    /// # Errors
    /// When storage fails.
    pub(crate) async fn try_take(
        place: Place<'_>,
        times: Times,
        look: &mut Option<Look>,
        lost: impl FnOnce(String) + Send + 'static,
    ) -> Result<Taken> {
        let found = match Self::look(place, times, look).await? {
            Ok(written) => return Ok(Taken::Lease(Self::held(written, times, lost))),
            Err(found) => found,
        };
        let led = found.record.led.clone();
        if look.as_ref().is_none_or(|look| look.version != found.version) {
            *look = Some(Look::at(found));
        }
        Ok(Taken::Held(led))
    }

    /// Writes the lease, unless another daemon has it or may have it. Then returns that one's.
    async fn look(
        (directory, storage): Place<'_>,
        times: Times,
        look: &mut Option<Look>,
    ) -> Result<Result<(Keeping, Current), Found>> {
        let holder = Holder::this()?;
        for _ in 0..MAX_REFUSALS {
            let before = now();
            let Some((keeping, json, version)) = Keeping::find((directory, storage)).await? else {
                let record = Record::of(holder.clone());
                match Keeping::begin((directory, storage), &record).await? {
                    Some((keeping, version)) => {
                        return Ok(Ok((keeping, Current { record, version, renewed: before })));
                    }
                    None => continue,
                }
            };
            let found: Record = serde_json::from_slice(&json).with_context(|| {
                format!("{keeping} is no lease; delete it if no other daemon trains in {directory}")
            })?;
            if found.holder == holder {
                // The response to a request was lost.
                return Ok(Ok((keeping, Current { record: found, version, renewed: before })));
            }
            let is_expired =
                |look: &Look| look.version == version && before.saturating_sub(look.since) >= times.expiry;
            if !(found.is_released || found.holder.is_gone() || look.as_ref().is_some_and(is_expired)) {
                return Ok(Err(Found { record: found, version }));
            }
            let record = Record { term: found.term, led: found.led, ..Record::of(holder.clone()) };
            // If not, another one was faster, or this one without hearing of it.
            if let Some(version) = keeping.replace(&record, &version).await? {
                return Ok(Ok((keeping, Current { record, version, renewed: before })));
            }
        }
        bail!("{}", refused(&directory.join(LEASE)))
    }

    /// A lease that this process has written.
    fn held(
        (keeping, current): (Keeping, Current),
        times: Times,
        lost: impl FnOnce(String) + Send + 'static,
    ) -> Self {
        let shared = Shared { times, keeping, current: Mutex::new(current), lost: OnceLock::new() };
        let shared = Arc::new(shared);
        let renewing = tokio::spawn(Arc::clone(&shared).keep(lost)).abort_handle();
        Self { shared, renewing }
    }

    /// The time limit of a change that needs the lease.
    pub(crate) fn change_timeout(&self) -> Duration {
        self.shared.times.change
    }

    /// The state of a run on several hosts, if a daemon has led it.
    pub(crate) async fn led(&self) -> Option<Led> {
        self.shared.current.lock().await.record.led.clone()
    }

    /// Begins the next epoch of a run on several hosts, and returns its number. Without a state of the run, `newest` is the newest
    /// checkpoint.
    ///
    /// # Errors
    /// As for [`Lease::begin_term`].
    pub(crate) async fn begin_epoch(&self, newest: Option<Head>) -> Result<(u64, Led), LeaseError> {
        let mut current = self.shared.current.lock().await;
        // The record may be newer than the checkpoints: a person has deleted the one before.
        let last = newest.map_or(0, |head| head.term).max(current.record.term);
        let epoch = last / EPOCH_TERMS + 1;
        current.record.term = generation_term(epoch, 0).saturating_add(EPOCH_TERMS - 1);
        current.record.led.get_or_insert(Led { head: newest, ended: None });
        self.shared.renew(&mut current).await?;
        Ok((epoch, current.record.led.clone().unwrap_or_default()))
    }

    /// Makes `head` the newest checkpoint of a run on several hosts. Returns once that is certain.
    ///
    /// # Errors
    /// When the lease is lost.
    pub(crate) async fn move_head(&self, head: Head) -> Result<(), String> {
        self.change_led(|led| led.head = Some(head)).await
    }

    /// Records how a job on several hosts has ended. Returns once that is certain.
    ///
    /// # Errors
    /// When the lease is lost.
    pub(crate) async fn conclude(&self, end: End) -> Result<(), String> {
        self.change_led(|led| led.ended = Some(end)).await
    }

    /// Changes the state of a run on several hosts. Every later renewal writes it, too: so it is written, or the lease is lost.
    async fn change_led(&self, change: impl FnOnce(&mut Led)) -> Result<(), String> {
        let mut current = self.shared.current.lock().await;
        change(current.record.led.get_or_insert_default());
        loop {
            match self.shared.renew(&mut current).await {
                Ok(()) => return Ok(()),
                Err(LeaseError::Lost(reason)) => return Err(reason),
                Err(LeaseError::Storage(error)) => match self.shared.give_up(&current, &error) {
                    Some(reason) => return Err(reason),
                    None => tokio::time::sleep(RETRY_INTERVAL).await,
                },
            }
        }
    }

    /// Begins the next term, and returns its number.
    ///
    /// # Errors
    /// When another daemon has the lease, or storage fails.
    pub(crate) async fn begin_term(&self) -> Result<u64, LeaseError> {
        let mut current = self.shared.current.lock().await;
        current.record.term += 1;
        // The checkpoints in the directory count again.
        current.record.led = None;
        self.shared.renew(&mut current).await?;
        Ok(current.record.term)
    }

    /// Returns if this process has the lease now.
    ///
    /// # Errors
    /// As for [`Lease::begin_term`].
    pub(crate) async fn confirm(&self) -> Result<(), LeaseError> {
        let mut current = self.shared.current.lock().await;
        if self.shared.lost.get().is_none() && now().saturating_sub(current.renewed) < CONFIRMED_FOR {
            return Ok(());
        }
        self.shared.renew(&mut current).await?;
        let took = now().saturating_sub(current.renewed);
        // The lease is valid for some time after the request, and a change must be completed within it.
        match took <= self.shared.times.renewed_within {
            true => Ok(()),
            false => Err(LeaseError::Storage(format!("it took {:.0} s", took.as_secs_f64()))),
        }
    }

    /// Why this process no longer has it, if that is known.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.shared.lost.get().map(String::as_str)
    }

    /// Gives it up without a release, for this reason: requests of this process may still be on the way, so other daemons wait until it
    /// expires.
    pub(crate) fn abandon(&self, reason: &str) {
        self.shared.lost.get_or_init(|| reason.to_owned());
        self.renewing.abort();
    }

    /// Allows a job that has failed to go on.
    ///
    /// # Errors
    /// When the lease is lost.
    pub(crate) async fn reopen(&self) -> Result<(), String> {
        self.change_led(|led| led.ended = None).await
    }

    /// Releases it, so that other daemons need not wait. From then on it is not confirmed any more.
    pub(crate) async fn release(&self) {
        self.renewing.abort();
        let release = async {
            let mut current = self.shared.current.lock().await;
            current.record.is_released = true;
            let released = self.shared.renew(&mut current).await;
            // Before anything confirms it by that renewal.
            self.shared.lost.get_or_init(|| RELEASED.to_owned());
            released
        };
        let released = tokio::time::timeout(RELEASE_TIMEOUT, release).await;
        self.shared.lost.get_or_init(|| RELEASED.to_owned());
        match released {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a lease is not released"),
            Err(_) => tracing::debug!("a lease is not released in time"),
        }
    }
}

/// Deletes the record of the run in `directory`, whose lease this process has, or nobody.
///
/// # Errors
/// When storage or etcd fails.
pub(super) async fn remove((directory, storage): Place<'_>) -> Result<()> {
    let found = Keeping::find((directory, storage)).await?;
    storage.stores.delete(&directory.join(LEASE).text(), Path::new("/")).await?;
    if let Some((Keeping::Key(etcd, key), ..)) = found {
        etcd.delete(&key).await?;
    }
    Ok(())
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("keeping", &self.shared.keeping).finish_non_exhaustive()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

impl Shared {
    /// Renews the lease until another daemon has it; then calls `lost`.
    async fn keep(self: Arc<Self>, lost: impl FnOnce(String)) {
        loop {
            let age = now().saturating_sub(self.current.lock().await.renewed);
            let left = self.times.validity.saturating_sub(age);
            tokio::time::sleep(self.times.renewal.min(left).max(RETRY_INTERVAL)).await;
            let mut current = self.current.lock().await;
            match self.renew(&mut current).await {
                Ok(()) => {}
                Err(LeaseError::Lost(reason)) => return lost(reason),
                // Nobody else has taken it as long as the next renewal succeeds.
                Err(LeaseError::Storage(error)) => {
                    tracing::warn!(%error, "the lease of a run is not renewed");
                    if let Some(reason) = self.give_up(&current, &error) {
                        return lost(reason);
                    }
                }
            }
        }
    }

    /// Gives up a lease that was not renewed for too long, because of `error`. Returns the reason if it was.
    fn give_up(&self, current: &Current, error: &str) -> Option<String> {
        let age = now().saturating_sub(current.renewed);
        let reason =
            || format!("the lease of the run was not renewed for {:.0} s: {error}", age.as_secs_f64());
        (age >= self.times.validity).then(|| self.lost.get_or_init(reason).clone())
    }

    /// Writes the next version of the lease, within the time for which it is valid.
    async fn renew(&self, current: &mut Current) -> Result<(), LeaseError> {
        let age = now().saturating_sub(current.renewed);
        let limit = self.times.validity.saturating_sub(age).max(self.times.renewed_within);
        match tokio::time::timeout(limit, self.write(current)).await {
            Ok(written) => written,
            Err(_) => Err(LeaseError::Storage(format!("no answer within {:.0} s", limit.as_secs_f64()))),
        }
    }

    async fn write(&self, current: &mut Current) -> Result<(), LeaseError> {
        if let Some(reason) = self.lost.get() {
            return Err(LeaseError::Lost(reason.clone()));
        }
        let keeping = &self.keeping;
        for _ in 0..MAX_REFUSALS {
            let began = now();
            current.record.renewals += 1;
            let written = keeping.replace(&current.record, &current.version).await?;
            if let Some(version) = written {
                (current.version, current.renewed) = (version, began);
                return Ok(());
            }
            // It has another version: that of an earlier request, whose response was lost, or another daemon's.
            let found = keeping.get().await?;
            let of = |json: &[u8]| serde_json::from_slice::<Record>(json).ok();
            let reason = match &found {
                None => format!("{keeping} was deleted"),
                Some((json, version)) => match of(json) {
                    Some(found) if found.holder == current.record.holder => {
                        current.version = version.clone();
                        continue;
                    }
                    Some(found) => format!("{} has taken over the run: it has {keeping}", found.holder),
                    None => format!("{keeping} was overwritten"),
                },
            };
            return Err(LeaseError::Lost(self.lost.get_or_init(|| reason).clone()));
        }
        Err(LeaseError::Storage(refused(keeping)))
    }
}

/// What is wrong with a service that refuses to replace the version that it has.
fn refused(place: &impl std::fmt::Display) -> String {
    format!("{place}: the service does not write on condition that an object is unchanged, as a lease needs")
}

impl Look {
    /// The lease is `found` now: from the response on, because the version may have been written while this process waited for it.
    fn at(found: Found) -> Self {
        Self { version: found.version, since: now(), holder: found.record.holder }
    }

    /// Who has the lease.
    pub(crate) fn holder(&self) -> String {
        self.holder.to_string()
    }
}

/// The time since the boot of the host, which goes on while the host is suspended.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}
