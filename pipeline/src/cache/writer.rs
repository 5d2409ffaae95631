//! Cache files being written: the lanes' end, which encodes, and the thread that writes.
//!
//! One thread for all files of a job, with several writes under way: a lane only encodes rows and hands bytes
//! over. The channel between them is bounded by what may be sent: blocks by the queue's bytes, the rest by the
//! number of splits that are written at once, three messages each.

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
use super::store::{PART, Shared, WHOLE};
use crate::chunk::Chunk;

/// Writes under way at once.
const DEPTH: u32 = 8;

/// Rows wait until there are so many bytes of them, decoded.
const FLUSH_BYTES: usize = BLOCK_BYTES / 2;

/// The directory is looked at again when this share of its size was written since: others may write too.
const SCAN_SHARE: u64 = 32;

/// Bytes that a lane may hold for the split that it writes: rows that wait, and a block in the making.
pub(crate) const HELD_BYTES: u64 = 2 * BLOCK_BYTES as u64;

/// What a lane has to say.
pub(crate) enum Message {
    /// A split's file is to be begun; `dropped` is set when that turns out to be in vain.
    Begin { part: u64, key: Key, dropped: Arc<AtomicBool> },
    /// The file's next bytes.
    Bytes { part: u64, buffer: AlignedBuffer },
    /// It is whole.
    End { part: u64 },
    /// It is not going to be.
    Abandon { part: u64 },
}

/// One split's file, as the lane that reads the split sees it. Dropped before its end, it comes to nothing.
pub(crate) struct PartWriter {
    shared: Arc<Shared>,
    messages: Sender<Message>,
    part: u64,
    contents: Contents,
    /// Where the next block goes.
    end: u64,
    /// Rows that are too few for a block.
    waiting: Chunk,
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
        // A thread that has ended takes nothing, and the part comes to nothing.
        let _ = messages.send(Message::Begin { part, key, dropped: Arc::clone(&dropped) });
        let contents = Contents::of_nothing(key, shape);
        let waiting = Chunk::default();
        Self { shared, messages, part, contents, end: 0, waiting, truncated_rows: 0, dropped, ended: false }
    }

    /// Adds the split's next rows. `false` when it comes to nothing, and may be dropped.
    pub(crate) fn push(&mut self, chunk: &Chunk, truncated_rows: u64) -> bool {
        if self.dropped.load(Ordering::Relaxed) || !self.contents.shape.fits(chunk) {
            return false;
        }
        self.truncated_rows += truncated_rows;
        let few = |chunk: &Chunk| block::decoded_bytes(chunk, &self.contents.shape) < FLUSH_BYTES;
        if self.waiting.rows() == 0 && !few(chunk) {
            return self.write_rows(chunk);
        }
        append(&mut self.waiting, chunk);
        if few(&self.waiting) {
            return true;
        }
        let rows = std::mem::take(&mut self.waiting);
        self.write_rows(&rows)
    }

    /// The split has no more rows: `truncated_rows` were met since the last, and so many records left out in
    /// all. Returns the file's bytes, if it is to be.
    pub(crate) fn end(mut self, truncated_rows: u64, left_out: u64, fault: Vec<u8>) -> Option<u64> {
        self.truncated_rows += truncated_rows;
        let rows = std::mem::take(&mut self.waiting);
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
            self.shared.fewer_parts();
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

/// Puts `more` after the rows of `chunk`, which has the same columns or no rows at all.
fn append(chunk: &mut Chunk, more: &Chunk) {
    if chunk.rows() == 0 {
        chunk.clone_from(more);
        return;
    }
    chunk.labels.extend_from_slice(&more.labels);
    chunk.more_labels.extend_from_slice(&more.more_labels);
    if let (Some(weights), Some(more)) = (&mut chunk.weights, &more.weights) {
        weights.extend_from_slice(more);
    }
    chunk.dense.extend_from_slice(&more.dense);
    chunk.ids.extend_from_slice(&more.ids);
    for (column, more) in chunk.ragged.iter_mut().zip(&more.ragged) {
        let end = column.values.len() as u32;
        column.offsets.extend(more.offsets[1..].iter().map(|offset| end + offset));
        column.values.extend_from_slice(&more.values);
        if let (Some(weights), Some(more)) = (&mut column.weights, &more.weights) {
            weights.extend_from_slice(more);
        }
    }
}

/// The writing thread: until nobody is left who could send anything.
pub(super) fn run(shared: &Shared, messages: &Receiver<Message>) {
    let mut writer = Writer::start(shared);
    loop {
        // Whoever waits for both waits for the disk: it is what bounds the queue.
        let message = if writer.queue.pending() == 0 {
            messages.recv().map_err(|_| TryRecvError::Disconnected)
        } else {
            messages.try_recv()
        };
        match message {
            Ok(message) => writer.take(message),
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
    /// Bytes in the directory when it was last looked at, and written since.
    scanned_bytes: u64,
    written_bytes: u64,
}

struct Part {
    key: Key,
    /// `None` once it is known to come to nothing.
    file: Option<Arc<DiskFile>>,
    dropped: Arc<AtomicBool>,
    end: u64,
    under_way: u32,
    whole: bool,
}

/// A file of the directory that is ours.
struct Found {
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

    fn take(&mut self, message: Message) {
        match message {
            Message::Begin { part, key, dropped } => {
                let file = self.create(&key);
                dropped.store(file.is_none(), Ordering::Relaxed);
                self.parts.insert(part, Part { key, file, dropped, end: 0, under_way: 0, whole: false });
            }
            Message::Bytes { part, buffer } => self.write(part, buffer),
            Message::End { part } => {
                if let Some(found) = self.parts.get_mut(&part) {
                    found.whole = true;
                }
                self.settle(part);
            }
            Message::Abandon { part } => {
                self.fail(part);
                self.settle(part);
            }
        }
    }

    /// The file to write to; `None` when another job is writing it, or has, or when it cannot be made.
    fn create(&self, key: &Key) -> Option<Arc<DiskFile>> {
        if self.shared.closed.load(Ordering::Relaxed) || self.shared.path(key, WHOLE).exists() {
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
        let wanted = self.parts.get(&number).is_some_and(|part| part.file.is_some());
        let room = wanted && self.make_room(bytes);
        if wanted && !room {
            self.shared.full(self.scanned_bytes + self.written_bytes);
            self.fail(number);
        }
        match self.parts.get_mut(&number).map(|part| (part.file.clone(), part)) {
            Some((Some(file), part)) if room => {
                let offset = part.end;
                part.end += bytes;
                part.under_way += 1;
                self.written_bytes += bytes;
                self.queue.write(&file, offset, buffer, number);
            }
            _ => drop(self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed)),
        }
    }

    /// Waits for a write to end.
    fn complete(&mut self) {
        let Some(done) = self.queue.wait() else { return };
        self.shared.queued_bytes.fetch_sub(done.buffer.len() as u64, Ordering::Relaxed);
        if let Some(part) = self.parts.get_mut(&done.token) {
            part.under_way -= 1;
        }
        if let Err(error) = done.result {
            self.shared.failed(&error);
            self.fail(done.token);
        }
        self.settle(done.token);
    }

    /// The part comes to nothing. Its bytes are freed when nothing is written to it any more.
    fn fail(&mut self, number: u64) {
        let Some(part) = self.parts.get_mut(&number) else { return };
        part.dropped.store(true, Ordering::Relaxed);
        part.whole = true;
        if let Some(file) = part.file.take() {
            // While the lock is held, so that it is nobody else's. What cannot be removed is swept up later.
            let _ = fs::remove_file(self.shared.path(&part.key, PART));
            drop(file);
            let since = part.end.min(self.written_bytes);
            self.written_bytes -= since;
            self.scanned_bytes = self.scanned_bytes.saturating_sub(part.end - since);
        }
    }

    /// Ends a part that has nothing to wait for.
    fn settle(&mut self, number: u64) {
        let Some(part) = self.parts.get(&number) else { return };
        if !part.whole || part.under_way > 0 {
            return;
        }
        if part.file.is_some() {
            let (from, to) = (self.shared.path(&part.key, PART), self.shared.path(&part.key, WHOLE));
            match fs::rename(from, to) {
                Ok(()) => self.shared.more_parts(),
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
            self.settle(number);
        }
    }

    /// Whether `bytes` more fit, once files were removed that may be.
    fn make_room(&mut self, bytes: u64) -> bool {
        let most = self.shared.max_bytes;
        let fits = |writer: &Self| {
            writer.scanned_bytes.saturating_add(writer.written_bytes).saturating_add(bytes) <= most
        };
        if fits(self) && self.written_bytes <= most / SCAN_SHARE {
            return true;
        }
        // So that the files' lengths say all that was written.
        while self.queue.pending() > 0 {
            self.complete();
        }
        let mut found = self.scan(false);
        found.retain(|found| found.used < self.shared.began && !self.shared.own().contains(&found.key));
        found.sort_by_key(|found| found.used);
        for Found { key, bytes, .. } in found {
            if fits(self) {
                break;
            }
            if fs::remove_file(self.shared.path(&key, WHOLE)).is_ok() {
                self.scanned_bytes = self.scanned_bytes.saturating_sub(bytes);
            }
        }
        fits(self)
    }

    /// Looks at the directory: counts its bytes and returns the whole files. With `sweep`, parts that nobody
    /// writes to are removed.
    fn scan(&mut self, sweep: bool) -> Vec<Found> {
        let mut whole = Vec::new();
        (self.scanned_bytes, self.written_bytes) = (0, 0);
        let entries = fs::read_dir(&self.shared.directory).into_iter().flatten().flatten();
        for entry in entries {
            let path = entry.path();
            let key = path.file_stem().and_then(|stem| Key::parse(stem.to_str()?));
            let (Some(key), Some(extension)) = (key, path.extension().and_then(|e| e.to_str())) else {
                continue;
            };
            if extension == PART && sweep && matches!(lock(&path, false), Ok(Some(_))) {
                // While the lock is held: nobody can have begun to write to it.
                let _ = fs::remove_file(&path);
                continue;
            }
            // Removed by somebody else just now.
            let Ok(metadata) = entry.metadata() else { continue };
            if extension == PART || extension == WHOLE {
                self.scanned_bytes += metadata.len();
            }
            if extension == WHOLE {
                let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                whole.push(Found { key, bytes: metadata.len(), used });
            }
        }
        whole
    }
}

/// Opens a part and takes its lock, emptied if it is to be written; `None` when another process has it.
fn lock(path: &Path, create: bool) -> io::Result<Option<File>> {
    let file = File::options().write(true).create(create).truncate(false).open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // Whoever had it may have renamed or removed it in between.
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
