//! The feeds that are open at a host, for programs that show them.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millstream_pipeline::ingest::{Explanation, IngestControl, IngestStats};
use sha2::{Digest, Sha256};

use super::budget::Reservation;

/// The characters of ids. Those that look like others are absent.
const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// The number of random characters of an id.
const ID_CHARACTERS: usize = 6;

/// An open feed at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedStatus {
    /// Identifies it among the feeds of this host.
    pub id: String,
    /// The user of the program.
    pub user: u32,
    /// The name of the program's run.
    pub run: String,
    /// The number of ranks on this host.
    pub ranks: u32,
    /// The ranks that are attached.
    pub attached: u32,
    /// When its ranks had gathered, in milliseconds since the Unix epoch.
    pub began_ms: u64,
    /// The memory reserved for it, in bytes.
    pub memory_bytes: u64,
    /// Whether an evaluation is under way.
    pub evaluates: bool,
    /// Its input; `None` while its files are opened.
    pub ingest: Option<Explanation>,
    /// What it has delivered.
    pub delivered: Delivered,
}

/// What feeds have delivered, evaluations included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Rows of the ranks on this host.
    pub rows: u64,
    /// Global batches.
    pub batches: u64,
    /// Bytes read from storage.
    pub bytes: u64,
}

/// What a host does at a moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostStatus {
    /// The open feeds, the oldest first.
    pub feeds: Vec<FeedStatus>,
    /// Feeds that were opened since the host started, those that are open included.
    pub opened: u64,
    /// What all of these have delivered.
    pub delivered: Delivered,
    /// The memory reserved for open feeds, in bytes.
    pub reserved_bytes: u64,
    /// The memory that feeds may use, in bytes.
    pub memory_bytes: u64,
}

/// The feeds that are open.
#[derive(Default)]
pub(super) struct OpenFeeds {
    feeds: Mutex<Feeds>,
    /// Notified when a feed ends.
    ended: Condvar,
}

#[derive(Default)]
struct Feeds {
    /// By number, in the order of their beginning.
    open: BTreeMap<u64, Arc<Feed>>,
    /// The number of feeds so far.
    opened: u64,
    /// What those that have ended have delivered.
    delivered: Delivered,
}

struct Feed {
    id: String,
    user: u32,
    run: String,
    ranks: u32,
    began_ms: u64,
    memory: Reservation,
    now: Mutex<Now>,
}

#[derive(Default)]
struct Now {
    attached: u32,
    training: Option<IngestControl>,
    evaluation: Option<IngestControl>,
    /// By evaluations that have ended.
    evaluated: Delivered,
}

/// A feed, listed until this is dropped.
pub(super) struct ListedFeed {
    feeds: Arc<OpenFeeds>,
    number: u64,
    feed: Arc<Feed>,
}

impl OpenFeeds {
    /// Adds a feed of `ranks` ranks of the run `run` of `user`.
    pub(super) fn add(
        self: &Arc<Self>,
        (user, run): (u32, &str),
        ranks: u32,
        memory: Reservation,
    ) -> ListedFeed {
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut feeds = self.feeds();
        let number = feeds.opened;
        feeds.opened += 1;
        let feed = Arc::new(Feed {
            id: id(began, number),
            user,
            run: run.to_owned(),
            ranks,
            began_ms: u64::try_from(began.as_millis()).unwrap_or(u64::MAX),
            memory,
            now: Mutex::new(Now { attached: ranks, ..Now::default() }),
        });
        feeds.open.insert(number, Arc::clone(&feed));
        drop(feeds);
        ListedFeed { feeds: Arc::clone(self), number, feed }
    }

    /// The feeds and their sums, without the memory of the host.
    pub(super) fn status(&self) -> HostStatus {
        let (open, opened, mut delivered) = {
            let feeds = self.feeds();
            (feeds.open.values().cloned().collect::<Vec<_>>(), feeds.opened, feeds.delivered)
        };
        let feeds: Vec<_> = open.iter().map(|feed| feed.status()).collect();
        feeds.iter().for_each(|feed| delivered.add(feed.delivered));
        HostStatus { feeds, opened, delivered, ..HostStatus::default() }
    }

    /// Waits at most `limit` until no feed is open; returns whether none is.
    pub(super) fn wait_for_none(&self, limit: Duration) -> bool {
        let some = |feeds: &mut Feeds| !feeds.open.is_empty();
        let waited = self.ended.wait_timeout_while(self.feeds(), limit, some);
        waited.map_or(true, |(feeds, _)| feeds.open.is_empty())
    }

    fn feeds(&self) -> MutexGuard<'_, Feeds> {
        self.feeds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ListedFeed {
    pub(super) fn id(&self) -> &str {
        &self.feed.id
    }

    pub(super) fn trains(&self, control: IngestControl) {
        self.feed.now().training = Some(control);
    }

    pub(super) fn evaluates(&self, control: IngestControl) {
        self.feed.now().evaluation = Some(control);
    }

    /// Counts what the evaluation has delivered.
    pub(super) fn has_evaluated(&self) {
        let mut now = self.feed.now();
        let delivered = now.evaluation.take().map(|control| Delivered::of(&control.stats()));
        now.evaluated.add(delivered.unwrap_or_default());
    }

    pub(super) fn set_attached(&self, ranks: u32) {
        self.feed.now().attached = ranks;
    }

    /// What it has delivered.
    pub(super) fn delivered(&self) -> Delivered {
        self.feed.now().delivered()
    }
}

impl Drop for ListedFeed {
    fn drop(&mut self) {
        let mut feeds = self.feeds.feeds();
        feeds.delivered.add(self.feed.now().delivered());
        feeds.open.remove(&self.number);
        drop(feeds);
        self.feeds.ended.notify_all();
    }
}

impl Feed {
    fn status(&self) -> FeedStatus {
        let now = self.now();
        FeedStatus {
            id: self.id.clone(),
            user: self.user,
            run: self.run.clone(),
            ranks: self.ranks,
            attached: now.attached,
            began_ms: self.began_ms,
            memory_bytes: self.memory.bytes(),
            evaluates: now.evaluation.is_some(),
            ingest: now.training.as_ref().map(IngestControl::explain),
            delivered: now.delivered(),
        }
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Now {
    fn delivered(&self) -> Delivered {
        let mut delivered = self.evaluated;
        for control in self.training.iter().chain(&self.evaluation) {
            delivered.add(Delivered::of(&control.stats()));
        }
        delivered
    }
}

impl Delivered {
    fn of(stats: &IngestStats) -> Self {
        Self { rows: stats.rows, batches: stats.batches, bytes: stats.bytes }
    }

    fn add(&mut self, other: Self) {
        self.rows = self.rows.saturating_add(other.rows);
        self.batches = self.batches.saturating_add(other.batches);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// An id such as `feed-k3f9q2`. Those of a later host differ, because they depend on the time.
fn id(began: Duration, number: u64) -> String {
    let seed = format!("{} {} {number}", began.as_nanos(), std::process::id());
    let characters = Sha256::digest(seed.as_bytes());
    let characters = characters.iter().map(|&byte| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()]));
    format!("feed-{}", characters.take(ID_CHARACTERS).collect::<String>())
}
