//! The cache directory, as used by the lanes of a job.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Once};
use std::time::{Duration, SystemTime};

use millstream_disk::Access;
use millstream_io::permits::Permit;
use parking_lot::Mutex;

use super::block::Shape;
use super::key::Key;
use super::reader::{CacheReader, Unreadable};
use super::writer::{self, Message, PartWriter};
use crate::spec::CacheSpec;

/// File extension of a complete file, whose stem is its key.
pub(crate) const COMPLETE: &str = "chunks";
/// File extension of a file being written.
pub(crate) const PART: &str = "part";

/// Maximum number of splits written concurrently.
const MAX_PARTS: u32 = 64;

/// Maximum time that the end of a job waits for the queue to be written.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Options of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// Access mode for reading and writing files.
    pub access: Access,
    /// Maximum bytes waiting to be written.
    pub queue_bytes: u64,
}

impl CacheOptions {
    /// The fastest access mode, and a queue that uses a small share of the job's memory budget.
    pub fn of_budget(memory_budget_bytes: u64) -> Self {
        Self { access: Access::BEST, queue_bytes: (memory_budget_bytes / 32).clamp(1 << 20, 32 << 20) }
    }
}

/// A directory of cache files. It is not accessed before the first split is read.
pub struct Cache {
    shared: Arc<Shared>,
    writer: Mutex<Option<WriterThread>>,
}

/// The channels to and from the writer thread.
struct WriterThread {
    messages: Sender<Message>,
    /// Disconnects, or receives, when the thread has ended.
    ended: Receiver<()>,
}

/// State shared by lanes and the writer thread.
pub(crate) struct Shared {
    pub(crate) directory: PathBuf,
    pub(crate) max_bytes: u64,
    pub(crate) options: CacheOptions,
    /// Start time of the job. Files used since then belong to running jobs.
    pub(crate) started: SystemTime,
    /// Bytes queued or being written.
    pub(crate) queued_bytes: AtomicU64,
    /// Number of splits being written, and its current limit.
    parts: AtomicU32,
    allowed_parts: AtomicU32,
    /// Set when nothing more is written: the disk has failed, or the cache is full.
    pub(crate) closed: AtomicBool,
    /// Keys of the files of this job.
    pub(crate) own: Mutex<HashSet<Key>>,
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
            started: SystemTime::now(),
            queued_bytes: AtomicU64::new(0),
            parts: AtomicU32::new(0),
            allowed_parts: AtomicU32::new(MAX_PARTS),
            closed: AtomicBool::new(false),
            own: Mutex::default(),
            next_part: AtomicU64::new(0),
            slow: Once::new(),
            failed: Once::new(),
            damaged: Once::new(),
        };
        Self { shared: Arc::new(shared), writer: Mutex::new(None) }
    }

    /// Maximum bytes waiting to be written.
    pub(crate) fn queue_bytes(&self) -> u64 {
        self.shared.options.queue_bytes
    }

    /// Protects the files of these keys from being removed to free space.
    pub(crate) fn protect(&self, keys: impl IntoIterator<Item = Key>) {
        self.shared.own.lock().extend(keys);
    }

    /// Opens the file of `key`, if it exists and has columns of `shape`.
    pub(crate) fn open(&self, key: &Key, shape: &Shape, permit: &Permit) -> Option<CacheReader> {
        let path = self.shared.path(key, COMPLETE);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                self.shared.damaged(&path, &error);
                return None;
            }
        };
        // Marks the file as used for other jobs. This fails in a read-only directory, which can still be read.
        let _ = file.set_modified(SystemTime::now());
        match CacheReader::open(file, self.shared.options.access, key, shape, permit) {
            Ok(reader) => Some(reader),
            Err(why) => {
                self.discard(key, &why);
                None
            }
        }
    }

    /// Removes the invalid file of `key`.
    pub(crate) fn discard(&self, key: &Key, why: &Unreadable) {
        let path = self.shared.path(key, COMPLETE);
        self.shared.damaged(&path, why);
        // If this fails the file is already gone, or is rejected again next time.
        let _ = fs::remove_file(&path);
    }

    /// Starts to write the file of `key`; `None` if writing is disabled or too many splits are being written.
    pub(crate) fn write(&self, key: &Key, shape: &Shape) -> Option<PartWriter> {
        let shared = &self.shared;
        if shared.closed.load(Ordering::Relaxed) || !shared.acquire_part() {
            return None;
        }
        let Some(messages) = self.messages() else {
            shared.release_part();
            return None;
        };
        let part = shared.next_part.fetch_add(1, Ordering::Relaxed);
        Some(PartWriter::begin(Arc::clone(shared), messages, part, *key, *shape))
    }

    /// The channel to the writer thread, which the first call starts.
    fn messages(&self) -> Option<Sender<Message>> {
        let mut writer = self.writer.lock();
        if writer.is_none() {
            let (messages, received) = mpsc::channel();
            let (ending, ended) = mpsc::channel();
            let shared = Arc::clone(&self.shared);
            let run = move || {
                writer::run(&shared, &received);
                // The receiver may be gone.
                let _ = ending.send(());
            };
            if let Err(error) = std::thread::Builder::new().name("cache-writer".to_owned()).spawn(run) {
                self.shared.failed(&error);
                return None;
            }
            *writer = Some(WriterThread { messages, ended });
        }
        writer.as_ref().map(|writer| writer.messages.clone())
    }
}

impl Drop for Cache {
    /// Waits for complete files to be written, up to [`DRAIN_TIMEOUT`].
    fn drop(&mut self) {
        let writer = self.writer.get_mut().take();
        if let Some(WriterThread { messages, ended }) = writer {
            drop(messages);
            // After the timeout, the thread continues and ends by itself.
            let _ = ended.recv_timeout(DRAIN_TIMEOUT);
        }
    }
}

impl Shared {
    pub(crate) fn path(&self, key: &Key, extension: &str) -> PathBuf {
        self.directory.join(format!("{key}.{extension}"))
    }

    /// Reserves `bytes` of the queue, if available.
    pub(crate) fn enqueue(&self, bytes: u64) -> bool {
        let fits = |queued: u64| queued.checked_add(bytes).filter(|&all| all <= self.options.queue_bytes);
        self.queued_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Counts one more split being written, if the limit allows.
    fn acquire_part(&self) -> bool {
        let allowed = self.allowed_parts.load(Ordering::Relaxed);
        let more = |parts| (parts < allowed).then_some(parts + 1);
        self.parts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Counts one split less being written.
    pub(crate) fn release_part(&self) {
        self.parts.fetch_sub(1, Ordering::Relaxed);
    }

    /// Raises the limit by one after a split was written completely.
    pub(crate) fn raise_part_limit(&self) {
        let more = |allowed| (allowed < MAX_PARTS).then_some(allowed + 1);
        // Fails only at the maximum.
        let _ = self.allowed_parts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Halves the limit when the disk does not keep up.
    pub(crate) fn lower_part_limit(&self) {
        let parts = self.parts.load(Ordering::Relaxed);
        self.allowed_parts.store((parts / 2).max(1), Ordering::Relaxed);
        let directory = self.directory.display();
        self.slow.call_once(|| {
            tracing::warn!(
                %directory,
                "the cache disk does not keep up: some data is not cached in this pass"
            );
        });
    }

    /// Disables writing after an error.
    pub(crate) fn failed(&self, error: &io::Error) {
        self.closed.store(true, Ordering::Relaxed);
        let directory = self.directory.display();
        self.failed.call_once(|| {
            tracing::warn!(%directory, %error, "writing to the cache failed: training continues without caching more data");
        });
    }

    /// Disables writing because no more space can be freed.
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
            tracing::warn!(%path, %why, "a cache file is unusable: reading its source instead");
        } else {
            tracing::debug!(%path, %why, "another cache file is unusable");
        }
    }
}
