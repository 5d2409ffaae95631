//! Writes cache files: the lanes encode rows, and a writer thread writes them.
//!
//! One thread writes all files of a job, with several writes in flight; lanes only encode rows and send the bytes.
//! The channel is bounded by its contents: blocks by the queue's byte limit, other messages by the number of
//! splits being written, three messages each.

use std::collections::HashMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::SystemTime;

use millstream_disk::{AlignedBuffer, DiskFile, Queue};

use super::block::{self, BLOCK_BYTES, Shape};
use super::key::Key;
use super::layout::Contents;
use super::store::{COMPLETE, PART, Shared};
use crate::chunk::Chunk;

/// Maximum writes in flight.
const DEPTH: u32 = 8;

/// Rows are buffered until they have this many decoded bytes.
const FLUSH_BYTES: usize = BLOCK_BYTES / 2;

/// The directory is scanned again after writing this fraction (1/n) of its maximum size, as other jobs may write too.
const SCAN_FRACTION: u64 = 32;

/// Maximum memory of a lane for the split that it writes: buffered rows, and a block being encoded.
pub(crate) const HELD_BYTES: u64 = 2 * BLOCK_BYTES as u64;

/// A message from a lane to the writer thread.
pub(crate) enum Message {
    /// Starts a split's file; the writer sets `dropped` if the file is not written.
    Begin { part: u64, key: Key, dropped: Arc<AtomicBool> },
    /// The next bytes of the file.
    Bytes { part: u64, buffer: AlignedBuffer },
    /// The file is complete.
    End { part: u64 },
    /// The file is abandoned.
    Abandon { part: u64 },
}

/// The lane's handle of one split's file. Dropping it before [`PartWriter::end`] abandons the file.
pub(crate) struct PartWriter {
    shared: Arc<Shared>,
    messages: Sender<Message>,
    part: u64,
    contents: Contents,
    /// Offset of the next block.
    end: u64,
    /// Buffered rows, too few for a block.
    buffered: Chunk,
    /// Rows truncated since the last block.
    truncated_rows: u64,
    dropped: Arc<AtomicBool>,
    ended: bool,
}

impl PartWriter {
    pub(super) fn begin(
        shared: Arc<Shared>,
        messages: Sender<Message>,
        part: u64,
        key: Key,
        shape: Shape,
    ) -> Self {
        let dropped = Arc::new(AtomicBool::new(false));
        // If the thread has ended, later sends fail too and the part is dropped.
        let _ = messages.send(Message::Begin { part, key, dropped: Arc::clone(&dropped) });
        let contents = Contents::new(key, shape);
        let buffered = Chunk::default();
        Self { shared, messages, part, contents, end: 0, buffered, truncated_rows: 0, dropped, ended: false }
    }

    /// Adds the next rows of the split. `false` if the file is dropped.
    pub(crate) fn push(&mut self, chunk: &Chunk, truncated_rows: u64) -> bool {
        if self.dropped.load(Ordering::Relaxed) || !self.contents.shape.fits(chunk) {
            return false;
        }
        self.truncated_rows += truncated_rows;
        let few = |chunk: &Chunk| block::decoded_bytes(chunk, &self.contents.shape) < FLUSH_BYTES;
        if self.buffered.rows() == 0 && !few(chunk) {
            return self.write_rows(chunk);
        }
        self.buffered.append(chunk);
        if few(&self.buffered) {
            return true;
        }
        let rows = std::mem::take(&mut self.buffered);
        self.write_rows(&rows)
    }

    /// Ends the split, with the truncated rows since the last chunk and the total of skipped records. Returns the length
    /// of the file, unless it is dropped.
    pub(crate) fn end(mut self, truncated_rows: u64, left_out: u64, fault: Vec<u8>) -> Option<u64> {
        self.truncated_rows += truncated_rows;
        let rows = std::mem::take(&mut self.buffered);
        if !self.write_rows(&rows) {
            return None;
        }
        self.contents.truncated_rows = self.truncated_rows;
        (self.contents.left_out, self.contents.fault) = (left_out, fault);
        let tail = self.contents.encode();
        if !self.send(tail) {
            return None;
        }
        self.ended = true;
        self.messages.send(Message::End { part: self.part }).ok().map(|()| self.end)
    }

    fn write_rows(&mut self, chunk: &Chunk) -> bool {
        let mut start = 0;
        while start < chunk.rows() {
            let rows = start..start + block::rows_within(chunk, &self.contents.shape, start);
            start = rows.end;
            let truncated = u32::try_from(std::mem::take(&mut self.truncated_rows)).unwrap_or(u32::MAX);
            let count = rows.len() as u32;
            let encoded = block::encode(chunk, &self.contents.shape, rows, truncated);
            if !self.contents.add(&encoded, count) || !self.send(encoded.buffer) {
                return false;
            }
        }
        true
    }

    fn send(&mut self, buffer: AlignedBuffer) -> bool {
        let bytes = buffer.len() as u64;
        if !self.shared.enqueue(bytes) {
            self.shared.lower_part_limit();
            return false;
        }
        self.end += bytes;
        let sent = self.messages.send(Message::Bytes { part: self.part, buffer });
        if sent.is_err() {
            self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        sent.is_ok()
    }
}

impl Drop for PartWriter {
    fn drop(&mut self) {
        if !self.ended && self.messages.send(Message::Abandon { part: self.part }).is_err() {
            self.shared.release_part();
        }
    }
}

/// The writer thread: runs until all senders are gone.
pub(super) fn run(shared: &Shared, messages: &Receiver<Message>) {
    let mut writer = Writer::start(shared);
    loop {
        // Block on messages only while no write is pending; otherwise wait for the disk, which bounds the queue.
        let message = if writer.queue.pending() == 0 {
            messages.recv().map_err(|_| TryRecvError::Disconnected)
        } else {
            messages.try_recv()
        };
        match message {
            Ok(message) => writer.handle(message),
            Err(_) if writer.queue.pending() > 0 => writer.complete(),
            Err(_) => break,
        }
        while writer.queue.pending() >= DEPTH as usize {
            writer.complete();
        }
    }
    writer.abandon_all();
}

struct Writer<'a> {
    shared: &'a Shared,
    queue: Queue,
    parts: HashMap<u64, Part>,
    /// Bytes in the directory at the last scan, and written since.
    scanned_bytes: u64,
    written_bytes: u64,
}

struct Part {
    key: Key,
    /// `None` once the file is dropped.
    file: Option<Arc<DiskFile>>,
    dropped: Arc<AtomicBool>,
    end: u64,
    /// Writes in flight.
    in_flight: u32,
    /// All messages were received.
    ended: bool,
}

/// A complete cache file in the directory.
struct CacheFile {
    key: Key,
    bytes: u64,
    used: SystemTime,
}

impl<'a> Writer<'a> {
    fn start(shared: &'a Shared) -> Self {
        let queue = Queue::new(DEPTH, shared.options.access.ring);
        let mut writer = Self { shared, queue, parts: HashMap::new(), scanned_bytes: 0, written_bytes: 0 };
        match fs::create_dir_all(&shared.directory) {
            Ok(()) => drop(writer.scan(true)),
            Err(error) => shared.failed(&error),
        }
        writer
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Begin { part, key, dropped } => {
                let file = self.create(&key);
                dropped.store(file.is_none(), Ordering::Relaxed);
                self.parts.insert(part, Part { key, file, dropped, end: 0, in_flight: 0, ended: false });
            }
            Message::Bytes { part, buffer } => self.write(part, buffer),
            Message::End { part } => {
                if let Some(found) = self.parts.get_mut(&part) {
                    found.ended = true;
                }
                self.finish(part);
            }
            Message::Abandon { part } => {
                self.fail(part);
                self.finish(part);
            }
        }
    }

    /// Creates the file to write; `None` if another job writes or has written it, or if creating it fails.
    fn create(&self, key: &Key) -> Option<Arc<DiskFile>> {
        if self.shared.closed.load(Ordering::Relaxed) || self.shared.path(key, COMPLETE).exists() {
            return None;
        }
        match lock(&self.shared.path(key, PART), true) {
            Ok(file) => Some(Arc::new(DiskFile::new(file?, self.shared.options.access.direct))),
            Err(error) => {
                self.shared.failed(&error);
                None
            }
        }
    }

    fn write(&mut self, number: u64, buffer: AlignedBuffer) {
        let bytes = buffer.len() as u64;
        let active = self.parts.get(&number).is_some_and(|part| part.file.is_some());
        let fits = active && self.free_space(bytes);
        if active && !fits {
            self.shared.full(self.scanned_bytes + self.written_bytes);
            self.fail(number);
        }
        match self.parts.get_mut(&number).map(|part| (part.file.clone(), part)) {
            Some((Some(file), part)) if fits => {
                let offset = part.end;
                part.end += bytes;
                part.in_flight += 1;
                self.written_bytes += bytes;
                self.queue.write(&file, offset, buffer, number);
            }
            _ => drop(self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed)),
        }
    }

    /// Waits for a write to complete.
    fn complete(&mut self) {
        let Some(done) = self.queue.wait() else { return };
        self.shared.queued_bytes.fetch_sub(done.buffer.len() as u64, Ordering::Relaxed);
        if let Some(part) = self.parts.get_mut(&done.token) {
            part.in_flight -= 1;
        }
        if let Err(error) = done.result {
            self.shared.failed(&error);
            self.fail(done.token);
        }
        self.finish(done.token);
    }

    /// Drops the part. Its space is freed when its last write completes.
    fn fail(&mut self, number: u64) {
        let Some(part) = self.parts.get_mut(&number) else { return };
        part.dropped.store(true, Ordering::Relaxed);
        part.ended = true;
        if let Some(file) = part.file.take() {
            // Under the lock, so that it is not another job's file. If this fails, a later scan removes it.
            let _ = fs::remove_file(self.shared.path(&part.key, PART));
            drop(file);
            let since = part.end.min(self.written_bytes);
            self.written_bytes -= since;
            self.scanned_bytes = self.scanned_bytes.saturating_sub(part.end - since);
        }
    }

    /// Ends a part that has ended and has no writes in flight.
    fn finish(&mut self, number: u64) {
        let Some(part) = self.parts.get(&number) else { return };
        if !part.ended || part.in_flight > 0 {
            return;
        }
        if part.file.is_some() {
            let (from, to) = (self.shared.path(&part.key, PART), self.shared.path(&part.key, COMPLETE));
            match fs::rename(from, to) {
                Ok(()) => self.shared.raise_part_limit(),
                Err(error) => {
                    self.shared.failed(&error);
                    self.fail(number);
                }
            }
        }
        self.parts.remove(&number);
        self.shared.release_part();
    }

    fn abandon_all(&mut self) {
        let left: Vec<u64> = self.parts.keys().copied().collect();
        for number in left {
            self.fail(number);
            self.finish(number);
        }
    }

    /// Removes old files until `bytes` more fit; returns whether they do.
    fn free_space(&mut self, bytes: u64) -> bool {
        let max = self.shared.max_bytes;
        let fits = |writer: &Self| {
            writer.scanned_bytes.saturating_add(writer.written_bytes).saturating_add(bytes) <= max
        };
        if fits(self) && self.written_bytes <= max / SCAN_FRACTION {
            return true;
        }
        // Complete all writes, so that file lengths include them.
        while self.queue.pending() > 0 {
            self.complete();
        }
        let mut found = self.scan(false);
        found
            .retain(|found| found.used < self.shared.started && !self.shared.own.lock().contains(&found.key));
        found.sort_by_key(|found| found.used);
        for CacheFile { key, bytes, .. } in found {
            if fits(self) {
                break;
            }
            if fs::remove_file(self.shared.path(&key, COMPLETE)).is_ok() {
                self.scanned_bytes = self.scanned_bytes.saturating_sub(bytes);
            }
        }
        fits(self)
    }

    /// Scans the directory: counts its bytes and returns the complete files. With `sweep`, removes parts that no
    /// process is writing.
    fn scan(&mut self, sweep: bool) -> Vec<CacheFile> {
        let mut files = Vec::new();
        (self.scanned_bytes, self.written_bytes) = (0, 0);
        let entries = fs::read_dir(&self.shared.directory).into_iter().flatten().flatten();
        for entry in entries {
            let path = entry.path();
            let key = path.file_stem().and_then(|stem| Key::parse(stem.to_str()?));
            let (Some(key), Some(extension)) = (key, path.extension().and_then(|e| e.to_str())) else {
                continue;
            };
            if extension == PART && sweep && matches!(lock(&path, false), Ok(Some(_))) {
                // Under the lock, so no process can have started to write it.
                let _ = fs::remove_file(&path);
                continue;
            }
            // Another process has just removed it.
            let Ok(metadata) = entry.metadata() else { continue };
            if extension == PART || extension == COMPLETE {
                self.scanned_bytes += metadata.len();
            }
            if extension == COMPLETE {
                let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                files.push(CacheFile { key, bytes: metadata.len(), used });
            }
        }
        files
    }
}

/// Opens and locks a part, truncating it if `create` is set; `None` if another process holds the lock.
fn lock(path: &Path, create: bool) -> io::Result<Option<File>> {
    let file = File::options().write(true).create(create).truncate(false).open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // The previous holder may have renamed or removed the file in between.
    let named = match fs::metadata(path) {
        Ok(named) => named,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let opened = file.metadata()?;
    if (named.dev(), named.ino()) != (opened.dev(), opened.ino()) {
        return Ok(None);
    }
    if create {
        file.set_len(0)?;
    }
    Ok(Some(file))
}
