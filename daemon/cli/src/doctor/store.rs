//! Data: is it there, may this user and the daemon read it, and how fast.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use millstream_control::proto::AboutReply;
use millstream_daemon::access::Requester;
use millstream_io::Error;
use millstream_io::storage::{Object, Probe, StorageSpec, Stores, is_local};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::clock;
use super::finding::Finding;
use crate::figures::{bytes, counted};

/// Time limit for a listing.
const LISTING: Duration = Duration::from_secs(20);

/// Time limit for everything else but the measurement.
const LIMIT: Duration = Duration::from_secs(10);

/// The time for which a failing request is retried, in seconds.
const RETRYING_SECONDS: u32 = 5;

/// How long reads are measured, how many run at a time, and how much each reads.
const MEASURING: Duration = Duration::from_secs(3);
const STREAMS: usize = 16;
const READ_BYTES: u64 = 2 << 20;

/// The bytes of the first read.
const FIRST_BYTES: u64 = 64 << 10;

/// At most this many files are checked for the daemon's user.
const CHECKED_FILES: usize = 1_000;

/// Slower than this, ingest waits for storage on most hosts; buckets in the same region are faster.
const SLOW_BYTES_PER_SECOND: f64 = (40 << 20) as f64;
const SLOW_FIRST_BYTE: Duration = Duration::from_millis(400);

/// What is known about the host, besides the data.
#[derive(Clone, Copy)]
pub(super) struct Host<'a> {
    pub(super) daemon: Option<&'a AboutReply>,
    /// Whether the daemon has a private /tmp.
    pub(super) has_private_tmp: bool,
    /// Whether to measure how fast the data is read.
    pub(super) measures: bool,
}

/// What was found out about the data at an address.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// As the user wrote it.
    address: String,
    is_local: bool,
    credentials: Option<String>,
    probe: Probe,
    /// When the probe was answered.
    now: DateTime<Utc>,
    listing: Result<Listing, Trouble>,
    /// `None` if nothing can be read.
    reads: Option<Result<Reads, Trouble>>,
    /// Why the daemon cannot read it.
    daemon: Option<Closed>,
}

#[derive(Clone, Copy, Debug)]
struct Listing {
    objects: u64,
    bytes: u64,
    seconds: f64,
}

#[derive(Clone, Copy, Debug)]
struct Reads {
    first: Duration,
    /// `None` if it was not measured.
    bytes_per_second: Option<f64>,
}

/// Why data cannot be listed or read.
#[derive(Clone, Debug)]
struct Trouble {
    message: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Denied,
    Absent,
    /// An address that means nothing.
    Invalid,
    Other,
}

/// Why the daemon cannot read local files.
#[derive(Clone, Debug)]
enum Closed {
    /// The daemon's user may not.
    Denied { uid: u32, message: String, path: String },
    /// The service does not see the host's /tmp.
    PrivateTmp,
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::BadPattern { .. } | Error::UnsupportedScheme { .. } => Kind::Invalid,
            _ if error.is_denied() => Kind::Denied,
            _ if error.is_absent() => Kind::Absent,
            _ => Kind::Other,
        };
        Self { message: error.to_string(), kind }
    }
}

impl Trouble {
    fn late(address: &str, limit: Duration) -> Self {
        let message = format!("{address}: no answer within {} s", limit.as_secs());
        Self { message, kind: Kind::Other }
    }
}

impl Facts {
    /// Looks at the data at `address`; a relative path starts at `base`.
    pub(super) async fn gather(address: &str, base: &Path, spec: &StorageSpec, host: Host<'_>) -> Self {
        let deadline_seconds = Some(RETRYING_SECONDS);
        let stores = Stores::new(StorageSpec { deadline_seconds, ..spec.clone() }, 0);
        let is_local = is_local(address).unwrap_or(false);
        let (credentials, probe) = match is_local {
            true => (None, None),
            false => {
                tokio::join!(async { timeout(LIMIT, stores.credentials(address)).await.ok()?.ok() }, async {
                    timeout(LIMIT, stores.probe(address)).await.ok()?.ok()
                },)
            }
        };
        let now = Utc::now();
        let pattern = pattern(address, base, is_local);
        let began = Instant::now();
        let listed = timeout(LISTING, async {
            let named = stores.named(&[pattern]).await?;
            stores.list(&named.patterns, base).await
        });
        let listed = listed.await;
        let listed = listed.map_or_else(|_| Err(Trouble::late(address, LISTING)), |listed| Ok(listed?));
        let seconds = began.elapsed().as_secs_f64();
        let (reads, daemon) = match &listed {
            Ok(objects) => {
                let measures = host.measures;
                (read(address, &stores, objects, measures).await, closed(objects, base, is_local, host))
            }
            Err(_) => (None, None),
        };
        let listing = listed.map(|objects| Listing {
            objects: objects.len() as u64,
            bytes: objects.iter().map(Object::size).sum(),
            seconds,
        });
        let probe = probe.unwrap_or_default();
        Self { address: address.to_owned(), is_local, credentials, probe, now, listing, reads, daemon }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let clock = clock::compared(self.probe.date.as_deref(), self.now);
        let more = [self.of_reads(), self.of_daemon(), clock];
        std::iter::once(self.of_listing()).chain(more.into_iter().flatten()).collect()
    }

    fn check(&self) -> &'static str {
        if self.is_local { "path" } else { "store" }
    }

    fn of_listing(&self) -> Finding {
        let Listing { objects, bytes: size, seconds } = match &self.listing {
            Ok(listing) => *listing,
            Err(trouble) => return self.failure(self.check(), trouble),
        };
        let mut found = format!("{}: {}, {}", self.address, counted(objects, "file"), bytes(size));
        if !self.is_local {
            found += &format!(", listed in {:.0} ms", seconds * 1e3);
        }
        if let Some(region) = &self.probe.region {
            found += &format!("; region {region}");
        }
        if let Some(credentials) = &self.credentials {
            found += &format!("; credentials: {credentials}");
        }
        Finding::ok(self.check(), found)
            .with("files", objects as f64)
            .with("bytes", size as f64)
            .with("listing_seconds", seconds)
    }

    fn of_reads(&self) -> Option<Finding> {
        let check = if self.is_local { "path.read" } else { "store.read" };
        let Reads { first, bytes_per_second } = match self.reads.as_ref()? {
            Ok(reads) => *reads,
            Err(trouble) => return Some(self.failure(check, trouble)),
        };
        let first_ms = first.as_secs_f64() * 1e3;
        let mut found = format!("first bytes after {first_ms:.1} ms");
        if let Some(rate) = bytes_per_second {
            found += &format!(", {STREAMS} parallel reads: {}/s", bytes(rate as u64));
        }
        let is_slow = bytes_per_second.is_some_and(|rate| rate < SLOW_BYTES_PER_SECOND);
        let finding = if !self.is_local && (is_slow || first > SLOW_FIRST_BYTE) {
            let advice = "use a bucket in the region of this host, or a larger VM; `[data.cache]` keeps rows on a local disk";
            Finding::warn(check, found, advice)
        } else {
            Finding::ok(check, found)
        };
        let finding = finding.with("first_byte_ms", first_ms);
        Some(
            bytes_per_second
                .into_iter()
                .fold(finding, |finding, rate| finding.with("bytes_per_second", rate)),
        )
    }

    fn of_daemon(&self) -> Option<Finding> {
        Some(match self.daemon.as_ref()? {
            Closed::Denied { uid, message, path } => Finding::fail(
                "path.daemon",
                format!("the daemon cannot read it: {message}"),
                format!(
                    "sudo setfacl -R -m u:{uid}:rX {path}, and -m u:{uid}:x each directory above; or train with --local"
                ),
            ),
            Closed::PrivateTmp => Finding::fail(
                "path.daemon",
                "the service has a private /tmp and does not see these files",
                "move them, for example to /srv; or train with --local",
            ),
        })
    }

    fn failure(&self, check: &'static str, trouble: &Trouble) -> Finding {
        let Trouble { message, kind } = trouble;
        let mut found = message.clone();
        if let Some(credentials) = self.credentials.as_ref().filter(|_| *kind == Kind::Denied) {
            found += &format!("; credentials: {credentials}");
        }
        Finding::fail(check, found, self.advice(*kind))
    }

    fn advice(&self, kind: Kind) -> String {
        let (scheme, rest) = self.address.split_once("://").unwrap_or_default();
        let bucket = rest.split('/').next().unwrap_or_default();
        let is_anonymous = self.credentials.as_deref().is_some_and(|source| source.starts_with("none"));
        match (kind, scheme) {
            (Kind::Denied, "") => "sudo setfacl -R -m u:$USER:rX on the files, and -m u:$USER:x on the directories above".into(),
            (Kind::Denied, "gs" | "gcs") if is_anonymous => {
                "gcloud auth application-default login, or attach a service account to the VM".into()
            }
            (Kind::Denied, "gs" | "gcs") => format!(
                "gcloud storage buckets add-iam-policy-binding gs://{bucket} --member=serviceAccount:EMAIL \
                 --role=roles/storage.objectViewer; a VM also needs --scopes=cloud-platform"
            ),
            (Kind::Denied, "s3" | "s3a") => {
                format!("allow s3:ListBucket and s3:GetObject on {bucket} for these credentials; aws s3 ls s3://{bucket}/ tries them")
            }
            (Kind::Denied, "http" | "https") => "the web server refuses; only public files can be read".into(),
            (Kind::Denied, _) => format!("give the role Storage Blob Data Reader on the container {bucket} to these credentials"),
            (Kind::Absent, "") => "ls -l the path; relative paths start at the current directory, those of a job at its file".into(),
            (Kind::Absent, "gs" | "gcs") => format!("gcloud storage ls gs://{bucket}/ shows what there is"),
            (Kind::Absent, "s3" | "s3a") => format!("aws s3 ls s3://{bucket}/ shows what there is"),
            (Kind::Absent, _) => "check the spelling of the address".into(),
            (Kind::Invalid, _) => "correct the address: gs://BUCKET/PATH, s3://, az://, https:// or a path".into(),
            (Kind::Other, "") => "if it is a network mount, check its server: df and mount show it".into(),
            (Kind::Other, _) => {
                "check the network and the endpoint in [storage]: curl -sI https://storage.googleapis.com shows whether the \
                 host reaches the internet"
                    .into()
            }
        }
    }
}

/// The pattern of the files at an address: a directory or a bucket stands for the files in it.
fn pattern(address: &str, base: &Path, is_local: bool) -> String {
    let path = address.split_once("://").map_or(address, |(_, path)| path);
    let is_directory = match is_local {
        true => base.join(path).is_dir(),
        false => !path.contains('/') || path.ends_with('/'),
    };
    match is_directory {
        true => format!("{}/*", address.trim_end_matches('/')),
        false => address.to_owned(),
    }
}

/// Reads the first bytes of the first object, then as much of all as fits into the time.
async fn read(
    address: &str,
    stores: &Stores,
    objects: &[Object],
    measures: bool,
) -> Option<Result<Reads, Trouble>> {
    let object = objects.iter().find(|object| object.size() > 0)?;
    let began = Instant::now();
    match timeout(LIMIT, object.read(0..object.size().min(FIRST_BYTES))).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => return Some(Err(error.into())),
        Err(_) => return Some(Err(Trouble::late(address, LIMIT))),
    }
    let first = began.elapsed();
    if !measures {
        return Some(Ok(Reads { first, bytes_per_second: None }));
    }
    let measured = measure(stores, objects.to_vec()).await;
    Some(measured.map(|rate| Reads { first, bytes_per_second: Some(rate) }))
}

/// Bytes per second of parallel reads.
async fn measure(stores: &Stores, objects: Vec<Object>) -> Result<f64, Trouble> {
    let (before, began) = (stores.stats().bytes, Instant::now());
    let until = began + MEASURING;
    let ranges = objects.into_iter().flat_map(|object| {
        let size = object.size();
        let starts = (0..size).step_by(READ_BYTES as usize);
        starts.map(move |start| (object.clone(), start..size.min(start + READ_BYTES)))
    });
    // As many as a fast network can read in that time, so that the list is bounded.
    const MOST: usize = 1 << 14;
    let ranges: Arc<Vec<_>> = Arc::new(ranges.take(MOST).collect());
    let (next, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for _ in 0..STREAMS {
        let (ranges, next, done) = (Arc::clone(&ranges), Arc::clone(&next), Arc::clone(&done));
        tasks.spawn(async move {
            while let Some((object, range)) = ranges.get(next.fetch_add(1, Ordering::Relaxed)) {
                let Ok(read) = timeout_at(until, object.read(range.clone())).await else { break };
                done.fetch_add(read?.len() as u64, Ordering::Relaxed);
            }
            Ok::<_, Error>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        // A task ends early only if the runtime does.
        ended.unwrap_or(Ok(()))?;
    }
    // Of remote objects, the parts of unfinished reads count, too.
    let read = done.load(Ordering::Relaxed).max(stores.stats().bytes - before);
    Ok(read as f64 / began.elapsed().as_secs_f64())
}

/// Why the daemon cannot read the files, as far as this user can see.
fn closed(objects: &[Object], base: &Path, is_local: bool, host: Host<'_>) -> Option<Closed> {
    let daemon = host.daemon.filter(|_| is_local)?;
    let paths: Vec<_> =
        objects.iter().take(CHECKED_FILES).map(|object| base.join(&**object.path())).collect();
    let is_temporary = |path: &Path| path.starts_with("/tmp") || path.starts_with("/var/tmp");
    if host.has_private_tmp && paths.iter().any(|path| is_temporary(path)) {
        return Some(Closed::PrivateTmp);
    }
    paths.iter().find_map(|path| {
        let message = denied(daemon, |user| user.check_read(path))?;
        Some(Closed::Denied { uid: daemon.uid, message, path: path.display().to_string() })
    })
}

/// Why the daemon's user may not do what `check` tries; `None` if it may, or if this user cannot see.
pub(super) fn denied(
    daemon: &AboutReply,
    check: impl FnOnce(&Requester) -> io::Result<()>,
) -> Option<String> {
    if daemon.uid == 0 || daemon.uid == rustix::process::geteuid().as_raw() {
        return None;
    }
    let user = Requester::user(daemon.uid, daemon.gid, daemon.groups.clone());
    // An error of the system concerns this user.
    check(&user).err().filter(|error| error.raw_os_error().is_none()).map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::finding::Mark;
    use super::*;

    fn facts(address: &str) -> Facts {
        let is_local = !address.contains("://");
        Facts {
            address: address.to_owned(),
            is_local,
            credentials: (!is_local).then(|| "the VM's metadata server".to_owned()),
            probe: Probe::default(),
            now: Utc::now(),
            listing: Ok(Listing { objects: 3, bytes: 3 << 20, seconds: 0.1 }),
            reads: Some(Ok(Reads { first: Duration::from_millis(20), bytes_per_second: Some(1e9) })),
            daemon: None,
        }
    }

    fn failing(address: &str, kind: Kind) -> Finding {
        let trouble = Trouble { message: "refused".to_owned(), kind };
        let facts = Facts { listing: Err(trouble), reads: None, ..facts(address) };
        facts.findings().remove(0)
    }

    #[test]
    fn readable_data_is_described() {
        let probe = Probe { region: Some("eu-west-1".to_owned()), date: None };
        let findings = Facts { probe, ..facts("s3://b/x-*") }.findings();
        let wanted = "s3://b/x-*: 3 files, 3.0 MiB, listed in 100 ms; region eu-west-1; credentials: the VM's metadata server";
        assert_eq!(findings[0], Finding { found: wanted.to_owned(), ..findings[0].clone() });
        assert_eq!(findings[1].found, "first bytes after 20.0 ms, 16 parallel reads: 953.7 MiB/s");
        assert!(findings.iter().all(|finding| finding.mark == Mark::Ok));
        assert_eq!(facts("/data/x").of_listing().found, "/data/x: 3 files, 3.0 MiB");
    }

    #[test]
    fn a_refusal_names_the_credentials_and_the_command_that_grants_the_right() {
        for (address, sign) in [
            ("gs://b/x", "add-iam-policy-binding gs://b "),
            ("s3://b/x", "aws s3 ls s3://b/"),
            ("az://b/x", "Storage Blob Data Reader"),
            ("https://h/x", "public"),
            ("/data/x", "setfacl"),
        ] {
            let finding = failing(address, Kind::Denied);
            assert_eq!(finding.mark, Mark::Fail);
            assert!(finding.advice.clone().is_some_and(|advice| advice.contains(sign)), "{finding:?}");
            assert_eq!(finding.found.contains("metadata"), address != "/data/x");
        }
        let trouble = Trouble { message: "refused".to_owned(), kind: Kind::Denied };
        let credentials = Some("none (anonymous)".to_owned());
        let nobody = Facts { credentials, listing: Err(trouble), ..facts("gs://b/x") };
        assert!(
            nobody.of_listing().advice.is_some_and(|advice| advice.contains("application-default login"))
        );
    }

    #[test]
    fn each_trouble_has_advice() {
        for address in ["gs://b/x", "s3://b/x", "az://b/x", "https://h/x", "/data/x"] {
            for kind in [Kind::Absent, Kind::Invalid, Kind::Other] {
                let finding = failing(address, kind);
                assert!(finding.mark == Mark::Fail && finding.advice.is_some(), "{finding:?}");
            }
        }
    }

    #[test]
    fn slow_stores_and_files_closed_to_the_daemon_are_reported() {
        let slow =
            |first_ms, rate| Reads { first: Duration::from_millis(first_ms), bytes_per_second: Some(rate) };
        for reads in [slow(900, 1e9), slow(20, 1e6)] {
            let mark = |address| {
                let facts = Facts { reads: Some(Ok(reads)), ..facts(address) };
                facts.of_reads().map(|finding| finding.mark)
            };
            assert_eq!([mark("gs://b/x"), mark("/data/x")], [Some(Mark::Warn), Some(Mark::Ok)]);
        }
        let closed = Closed::Denied { uid: 998, message: "user 998 may not".into(), path: "/data/x".into() };
        for closed in [closed, Closed::PrivateTmp] {
            let finding = Facts { daemon: Some(closed), ..facts("/data/x") }.of_daemon().expect("a finding");
            assert!(finding.mark == Mark::Fail && finding.advice.is_some());
        }
    }

    #[test]
    fn directories_and_buckets_stand_for_their_files() {
        let directory = tempfile::tempdir().expect("a directory");
        let base = directory.path();
        let root = base.to_str().expect("text");
        for (address, is_local, wanted) in [
            ("gs://b", false, "gs://b/*".to_owned()),
            ("gs://b/x/", false, "gs://b/x/*".to_owned()),
            ("gs://b/x", false, "gs://b/x".to_owned()),
            (root, true, format!("{root}/*")),
            ("x.csv", true, "x.csv".to_owned()),
        ] {
            assert_eq!(pattern(address, base, is_local), wanted);
        }
    }
}
