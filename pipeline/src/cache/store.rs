//! The cache directory, as the lanes of a job see it.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, SystemTime};

use millstream_disk::Access;

use super::block::Shape;
use super::key::Key;
use super::reader::{CacheReader, Unreadable};
use super::writer::{self, Message, PartWriter};
use crate::spec::CacheSpec;

/// A whole file's name is its key and this.
pub(crate) const WHOLE: &str = "chunks";
/// One that is being written.
pub(crate) const PART: &str = "part";

/// Splits that are written side by side at most.
const MOST_PARTS: u32 = 64;

/// The longest that the end of a job waits for the disk to take what is in the queue.
const DRAIN: Duration = Duration::from_secs(5);

/// How a cache goes about its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// How files are read and written.
    pub access: Access,
    /// The most bytes that wait to be written.
    pub queue_bytes: u64,
}

impl CacheOptions {
    /// As fast as the system lets it, with a queue that takes a small share of the job's memory budget.
    pub fn of_budget(memory_budget_bytes: u64) -> Self {
        Self { access: Access::BEST, queue_bytes: (memory_budget_bytes / 32).clamp(1 << 20, 32 << 20) }
    }
}

/// A directory of cache files. Nothing is touched before the first split is read.
pub struct Cache {
    shared: Arc<Shared>,
    writer: Mutex<Option<Writing>>,
}

/// The thread that writes, and how it says that it has ended.
struct Writing {
    messages: Sender<Message>,
    ended: Receiver<()>,
}

/// What lanes and the writing thread share.
pub(crate) struct Shared {
    pub(crate) directory: PathBuf,
    pub(crate) max_bytes: u64,
    pub(crate) options: CacheOptions,
    /// When the job began: files used since then are somebody's who is at work.
    pub(crate) began: SystemTime,
    /// Bytes on their way to the disk.
    pub(crate) queued_bytes: AtomicU64,
    /// Splits being written, and how many may be.
    parts: AtomicU32,
    allowed_parts: AtomicU32,
    /// Nothing more is written: the disk has failed, or there is no room that could be made.
    pub(crate) closed: AtomicBool,
    /// Files that this job may come to use.
    own: Mutex<HashSet<Key>>,
    next_part: AtomicU64,
    slow: Once,
    failed: Once,
    damaged: Once,
}

impl Cache {
    /// The cache in `spec.directory`.
    pub fn new(spec: &CacheSpec, options: CacheOptions) -> Self {
        let shared = Shared {
            directory: spec.directory.clone(),
            max_bytes: spec.max_bytes,
            options,
            began: SystemTime::now(),
            queued_bytes: AtomicU64::new(0),
            parts: AtomicU32::new(0),
            allowed_parts: AtomicU32::new(MOST_PARTS),
            closed: AtomicBool::new(false),
            own: Mutex::default(),
            next_part: AtomicU64::new(0),
            slow: Once::new(),
            failed: Once::new(),
            damaged: Once::new(),
        };
        Self { shared: Arc::new(shared), writer: Mutex::new(None) }
    }

    /// The most bytes that wait to be written.
    pub(crate) fn queue_bytes(&self) -> u64 {
        self.shared.options.queue_bytes
    }

    /// Files of these keys are not removed to make room for others.
    pub(crate) fn claim(&self, keys: impl IntoIterator<Item = Key>) {
        self.shared.own().extend(keys);
    }

    /// The file of `key`, if it is there, and one of `shape`.
    pub(crate) fn open(&self, key: &Key, shape: &Shape) -> Option<CacheReader> {
        let path = self.shared.path(key, WHOLE);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                self.shared.damaged(&path, &error);
                return None;
            }
        };
        // Tells other jobs that the file is in use. A directory that cannot be written to serves as well.
        let _ = file.set_modified(SystemTime::now());
        match CacheReader::open(file, self.shared.options.access, key, shape) {
            Ok(reader) => Some(reader),
            Err(why) => {
                self.discard(key, &why);
                None
            }
        }
    }

    /// Removes the file of `key`, which is not what it should be.
    pub(crate) fn discard(&self, key: &Key, why: &Unreadable) {
        let path = self.shared.path(key, WHOLE);
        self.shared.damaged(&path, why);
        // Gone already, or not to be removed: then it is passed over again the next time.
        let _ = fs::remove_file(&path);
    }

    /// Begins to write the file of `key`; `None` when that is not to be.
    pub(crate) fn write(&self, key: &Key, shape: &Shape) -> Option<PartWriter> {
        let shared = &self.shared;
        if shared.closed.load(Ordering::Relaxed) || !shared.take_part() {
            return None;
        }
        let Some(messages) = self.messages() else {
            shared.release_part();
            return None;
        };
        let part = shared.next_part.fetch_add(1, Ordering::Relaxed);
        Some(PartWriter::begin(Arc::clone(shared), messages, part, *key, *shape))
    }

    /// To the writing thread, which is started by the first who asks.
    fn messages(&self) -> Option<Sender<Message>> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if writer.is_none() {
            let (messages, received) = mpsc::channel();
            let (ending, ended) = mpsc::channel();
            let shared = Arc::clone(&self.shared);
            let run = move || {
                writer::run(&shared, &received);
                // Nobody may be waiting.
                let _ = ending.send(());
            };
            if let Err(error) = std::thread::Builder::new().name("cache-writer".to_owned()).spawn(run) {
                self.shared.failed(&error);
                return None;
            }
            *writer = Some(Writing { messages, ended });
        }
        writer.as_ref().map(|writing| writing.messages.clone())
    }
}

impl Drop for Cache {
    /// What is whole is still written, unless the disk takes very long.
    fn drop(&mut self) {
        let writer = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Writing { messages, ended }) = writer {
            drop(messages);
            // Late or not, the thread ends by itself.
            let _ = ended.recv_timeout(DRAIN);
        }
    }
}

impl Shared {
    pub(crate) fn path(&self, key: &Key, extension: &str) -> PathBuf {
        self.directory.join(format!("{key}.{extension}"))
    }

    pub(crate) fn own(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes room in the queue for `bytes`, if there is.
    pub(crate) fn enqueue(&self, bytes: u64) -> bool {
        let fits = |queued: u64| queued.checked_add(bytes).filter(|&all| all <= self.options.queue_bytes);
        self.queued_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    fn take_part(&self) -> bool {
        let allowed = self.allowed_parts.load(Ordering::Relaxed);
        let more = |parts| (parts < allowed).then_some(parts + 1);
        self.parts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// A split is not written any more.
    pub(crate) fn release_part(&self) {
        self.parts.fetch_sub(1, Ordering::Relaxed);
    }

    /// A split was written to its end: another one may be beside the others.
    pub(crate) fn more_parts(&self) {
        let more = |allowed| (allowed < MOST_PARTS).then_some(allowed + 1);
        // As many as there may ever be.
        let _ = self.allowed_parts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// The disk does not keep up: half as many splits are to be written side by side.
    pub(crate) fn fewer_parts(&self) {
        let parts = self.parts.load(Ordering::Relaxed);
        self.allowed_parts.store((parts / 2).max(1), Ordering::Relaxed);
        let directory = self.directory.display();
        self.slow.call_once(|| {
            tracing::warn!(
                %directory,
                "the cache's disk does not keep up: some of the data is not cached in this pass"
            );
        });
    }

    /// Nothing more is written.
    pub(crate) fn failed(&self, error: &io::Error) {
        self.closed.store(true, Ordering::Relaxed);
        let directory = self.directory.display();
        self.failed.call_once(|| {
            tracing::warn!(%directory, %error, "the cache cannot be written to: training goes on without");
        });
    }

    /// There is no room, and none to be made.
    pub(crate) fn full(&self, used_bytes: u64) {
        self.closed.store(true, Ordering::Relaxed);
        let (directory, max_bytes) = (self.directory.display(), self.max_bytes);
        self.failed.call_once(|| {
            tracing::warn!(
                %directory, used_bytes, max_bytes,
                "the cache is full: the rest of the data is read from its source in each pass"
            );
        });
    }

    fn damaged(&self, path: &Path, why: &dyn std::fmt::Display) {
        let path = path.display();
        let mut first = false;
        self.damaged.call_once(|| first = true);
        if first {
            tracing::warn!(%path, %why, "a cache file cannot be used: its source is read instead");
        } else {
            tracing::debug!(%path, %why, "another cache file cannot be used");
        }
    }
}
