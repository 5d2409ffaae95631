//! The lease of a run in a bucket: the right to train in it, which one daemon has at a time.
//!
//! A local run directory is locked, and the kernel ends the lock with its process. In a bucket, the object `lease.json` says who has
//! the lease. It is changed by conditional writes only: each replaces the version that its writer has read, so of several
//! writers one succeeds.
//!
//! ```text
//! daemon A   take 1 .. renew .. renew .. [suspended]                               renew: refused, A's workers are killed
//! daemon B                                    read, unchanged for EXPIRY: take 2 ..
//! ```
//!
//! * The holder renews it every [`RENEWAL`]. Another daemon takes it when it was released, when its holder is a process of the
//!   same host that is gone, or when it has not changed for [`EXPIRY`] by the clock of the one that waits: clocks of two hosts
//!   are never compared.
//! * The *term* is a number that increases with each group of workers, of whichever daemon. Checkpoints are written in a
//!   term ([`millstream_trainer::checkpoint::store`]), so late writes of earlier workers change nothing.
//! * Before each change of the run the holder [confirms](Lease::confirm) the lease: it was renewed a moment ago, or is now.

use std::fs;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use millstream_io::storage::{Directory, ObjectVersion, Stores};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::task::AbortHandle;

use super::random_characters;

/// The object in the run directory.
pub(crate) const LEASE: &str = "lease.json";

/// Interval between renewals.
const RENEWAL: Duration = Duration::from_secs(10);

/// How long an unchanged lease is respected.
const EXPIRY: Duration = Duration::from_secs(30);

/// Interval between looks at another daemon's lease.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// How long a renewal may take that confirms the lease.
const RENEWED_WITHIN: Duration = Duration::from_secs(5);

/// The time limit of a change that needs the lease. With [`RENEWED_WITHIN`], it is over before [`EXPIRY`].
pub(crate) const CHANGE_TIMEOUT: Duration = Duration::from_secs(20);

/// The age of a renewal up to which it confirms the lease. Services accept about one write of an object a second.
const CONFIRMED_FOR: Duration = Duration::from_secs(2);

/// The most refusals of conditional writes in a row: more mean that the service does not support them.
const MAX_REFUSALS: u32 = 5;

/// How long a release may take.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// The id of the host's boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The contents of the object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    holder: Holder,
    term: u64,
    /// How often the holder has renewed it: no two contents are equal.
    renewals: u64,
    is_released: bool,
}

/// A process that has the lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    /// The name of its host.
    host: String,
    /// Its process id.
    process: u32,
    /// When the process started, in the kernel's ticks since the boot: with it, a process id means one process.
    started: u64,
    /// The boot of the host, and the namespace of its process ids.
    boot: String,
    namespace: String,
    /// Different for each lease of the process.
    nonce: String,
}

/// Why a lease is not confirmed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseError {
    /// Another daemon has it.
    #[error("{0}")]
    Lost(String),
    /// Storage has failed, for this reason. The lease may still be valid.
    #[error("the lease of the run cannot be renewed: {0}")]
    Storage(String),
}

impl From<millstream_io::Error> for LeaseError {
    fn from(error: millstream_io::Error) -> Self {
        Self::Storage(error.to_string())
    }
}

/// The lease of a run, which this process has until it is released or another one takes it.
pub(crate) struct Lease {
    shared: Arc<Shared>,
    renewing: AbortHandle,
}

struct Shared {
    stores: Stores,
    /// The address of the object.
    address: Directory,
    current: Mutex<Current>,
    /// Set once this process no longer has it: why.
    lost: OnceLock<String>,
}

/// The lease as this process has written it.
struct Current {
    record: Record,
    version: ObjectVersion,
    /// When it was last written, before the request.
    renewed: Duration,
}

impl Lease {
    /// Takes the lease of the run in `directory`, which may take [`EXPIRY`] if another daemon had it. `wait` is called with the
    /// reason when it does, and `lost` with the reason when another daemon takes it later.
    ///
    /// # Errors
    /// When another daemon has it, or storage fails.
    pub(crate) async fn take(
        (directory, stores): (&Directory, &Stores),
        wait: impl Fn(&str),
        lost: impl FnOnce(String) + Send + 'static,
    ) -> Result<Self> {
        let address = directory.join(LEASE);
        let path = address.text().into_owned();
        let holder = Holder::this()?;
        let record = |term| Record { holder: holder.clone(), term, renewals: 0, is_released: false };
        // The version of another daemon's lease, and when it was first seen.
        let mut seen: Option<(ObjectVersion, Duration)> = None;
        let mut refusals = 0;
        let current = loop {
            ensure!(refusals < MAX_REFUSALS, "{}", refused(&address));
            let before = now();
            let Some((json, version)) = stores.get_small(&path, Path::new("/")).await? else {
                let record = record(0);
                match stores.put_new(&path, Path::new("/"), record.to_json()).await? {
                    Some(version) => break Current { record, version, renewed: before },
                    None => refusals += 1,
                }
                continue;
            };
            let found: Record = serde_json::from_slice(&json).with_context(|| {
                format!("{address} is no lease; delete it if no other daemon trains in {directory}")
            })?;
            if found.holder == holder {
                // The response to a request was lost.
                break Current { record: found, version, renewed: before };
            }
            let is_expired = |(first, since): &(ObjectVersion, Duration)| {
                *first == version && before.saturating_sub(*since) >= EXPIRY
            };
            if found.is_released || found.holder.is_gone() || seen.as_ref().is_some_and(is_expired) {
                let record = record(found.term);
                match stores.replace(&path, record.to_json(), &version).await? {
                    Some(version) => break Current { record, version, renewed: before },
                    // Another one was faster, or this one without hearing of it.
                    None => refusals += 1,
                }
                continue;
            }
            match &seen {
                Some((first, _)) if *first != version => {
                    bail!("{}, which renews its lease, trains in {directory}", found.holder);
                }
                Some(_) => {}
                None => {
                    wait(&format!(
                        "{} trained in {directory} and has not released its lease; waiting {} s for a sign of life",
                        found.holder,
                        EXPIRY.as_secs()
                    ));
                    // From the response on: the version may have been written while this process waited for it.
                    seen = Some((version, now()));
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        let shared =
            Shared { stores: stores.clone(), address, current: Mutex::new(current), lost: OnceLock::new() };
        let shared = Arc::new(shared);
        let renewing = tokio::spawn(Arc::clone(&shared).keep(lost)).abort_handle();
        Ok(Self { shared, renewing })
    }

    /// Begins the next term, and returns its number.
    ///
    /// # Errors
    /// When another daemon has the lease, or storage fails.
    pub(crate) async fn begin_term(&self) -> Result<u64, LeaseError> {
        let mut current = self.shared.current.lock().await;
        current.record.term += 1;
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
        match took <= RENEWED_WITHIN {
            true => Ok(()),
            false => Err(LeaseError::Storage(format!("it took {:.0} s", took.as_secs_f64()))),
        }
    }

    /// Why this process no longer has it, if that is known.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.shared.lost.get().map(String::as_str)
    }

    /// Releases it, so that other daemons need not wait. From then on it is not confirmed any more.
    pub(crate) async fn release(&self) {
        self.renewing.abort();
        let release = async {
            let mut current = self.shared.current.lock().await;
            current.record.is_released = true;
            self.shared.renew(&mut current).await
        };
        let released = tokio::time::timeout(RELEASE_TIMEOUT, release).await;
        self.shared.lost.get_or_init(|| "this daemon has released the lease of the run".to_owned());
        match released {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a lease is not released"),
            Err(_) => tracing::debug!("a lease is not released in time"),
        }
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("address", &self.shared.address).finish_non_exhaustive()
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
            tokio::time::sleep(RENEWAL).await;
            let renewed = {
                let mut current = self.current.lock().await;
                self.renew(&mut current).await
            };
            match renewed {
                Ok(()) => {}
                Err(LeaseError::Lost(reason)) => return lost(reason),
                // Nobody else has taken it as long as the next renewal succeeds.
                Err(LeaseError::Storage(error)) => {
                    tracing::warn!(%error, "the lease of a run is not renewed");
                }
            }
        }
    }

    /// Writes the next version of the lease.
    async fn renew(&self, current: &mut Current) -> Result<(), LeaseError> {
        if let Some(reason) = self.lost.get() {
            return Err(LeaseError::Lost(reason.clone()));
        }
        let path = self.address.text();
        for _ in 0..MAX_REFUSALS {
            let began = now();
            current.record.renewals += 1;
            let written = self.stores.replace(&path, current.record.to_json(), &current.version).await?;
            if let Some(version) = written {
                (current.version, current.renewed) = (version, began);
                return Ok(());
            }
            // It has another version: that of an earlier request, whose response was lost, or another daemon's.
            let found = self.stores.get_small(&path, Path::new("/")).await?;
            let of = |json: &[u8]| serde_json::from_slice::<Record>(json).ok();
            let reason = match &found {
                None => format!("{} was deleted", self.address),
                Some((json, version)) => match of(json) {
                    Some(found) if found.holder == current.record.holder => {
                        current.version = version.clone();
                        continue;
                    }
                    Some(found) => {
                        format!("{} has taken over the run: it has {}", found.holder, self.address)
                    }
                    None => format!("{} was overwritten", self.address),
                },
            };
            return Err(LeaseError::Lost(self.lost.get_or_init(|| reason).clone()));
        }
        Err(LeaseError::Storage(refused(&self.address)))
    }
}

/// What is wrong with a service that refuses to replace the version that it has.
fn refused(address: &Directory) -> String {
    format!(
        "{address}: the storage service does not write on condition that an object is unchanged, as a lease needs"
    )
}

impl Record {
    fn to_json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self).expect("a lease has string keys and whole numbers");
        json.push(b'\n');
        json
    }
}

impl Holder {
    /// This process, with a new lease.
    fn this() -> Result<Self> {
        let process = std::process::id();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Ok(Self {
            host: host.trim().to_owned(),
            process,
            started: started(process).context("/proc does not show this process")?,
            boot: fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned(),
            namespace: namespace().unwrap_or_default(),
            nonce: random_characters()?,
        })
    }

    /// Whether it was a process of this host that is gone, or this process, which has ended that lease.
    fn is_gone(&self) -> bool {
        let Ok(this) = Self::this() else { return false };
        let is_visible = !self.boot.is_empty() && self.boot == this.boot && self.namespace == this.namespace;
        let is_this = (self.process, self.started) == (this.process, this.started);
        is_visible && (is_this || is_gone(self.process, self.started))
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} on host {}", self.process, self.host)
    }
}

/// The namespace of the process ids that this process sees.
fn namespace() -> Option<String> {
    fs::read_link("/proc/self/ns/pid").ok()?.into_os_string().into_string().ok()
}

/// When a process started, in ticks since the boot; `None` if `/proc` does not show it or it has ended.
fn started(process: u32) -> Option<u64> {
    // The second field is the name in parentheses, which may contain anything. The state follows; the time is field 22.
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let has_ended = matches!(fields.next()?, "Z" | "X");
    let started = fields.nth(18)?.parse().ok()?;
    (!has_ended).then_some(started)
}

/// Whether the process that `started` then is gone. Processes of other users may be hidden.
fn is_gone(process: u32, started_then: u64) -> bool {
    let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) else { return true };
    match rustix::process::test_kill_process(pid) {
        Err(Errno::SRCH) => true,
        Err(_) => started(process).is_some_and(|started| started != started_then),
        Ok(()) => started(process) != Some(started_then),
    }
}

/// The time since the boot of the host, which goes on while the host is suspended.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_holder_is_gone_if_its_process_is() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let process = child.id();
        let holder = Holder { process, started: started(process).unwrap(), ..Holder::this().unwrap() };
        assert!(!holder.is_gone());
        let earlier = Holder { started: holder.started - 1, ..holder.clone() };
        assert!(earlier.is_gone(), "another process has its number now");
        child.kill().unwrap();
        // Nobody has waited for it yet.
        while !holder.is_gone() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(holder.is_gone());
        for elsewhere in [
            Holder { boot: "another".into(), ..holder.clone() },
            Holder { namespace: "pid:[1]".into(), ..holder.clone() },
            Holder { boot: String::new(), ..holder },
        ] {
            assert!(!elsewhere.is_gone(), "{elsewhere:?}: nothing is known of it");
        }
        assert!(Holder::this().unwrap().is_gone(), "this process takes its own lease again");
    }

    #[test]
    fn no_two_contents_are_equal() {
        let record = || Record { holder: Holder::this().unwrap(), term: 1, renewals: 0, is_released: false };
        let (first, second) = (record(), record());
        assert_ne!(first.to_json(), second.to_json());
        assert_eq!(serde_json::from_slice::<Record>(&first.to_json()).unwrap(), first);
    }
}
