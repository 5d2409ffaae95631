//! An event file: framed records. After a crash it may end in a truncated record, which readers skip.
//!
//! ```text
//! length of the message   u64, little endian
//! masked CRC-32C of that  u32, little endian
//! the message             an Event
//! masked CRC-32C of that  u32, little endian
//! ```
//!
//! A CRC `c` is stored as `rotate_right(c, 15) + 0xa282ead8`. TensorBoard reads a run's files in order of
//! their names. The timestamp in a new file's name is greater than those of all existing files, so that it
//! sorts last even if the clock went backwards.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crc_fast::{CrcAlgorithm, checksum};
use prost::Message;

use super::event::{Event, EventData, FILE_VERSION};
use super::objects::{self, ObjectFile};
use crate::objects::ObjectClient;
use crate::protocol::Place;

/// Interval between writes; records are buffered in between.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// The prefix of file names; TensorBoard looks for `tfevents` in them.
const PREFIX: &str = "events.out.tfevents.";

/// The time since the Unix epoch; 0 on a clock set before it.
pub(super) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// An event file being written.
pub(super) struct EventFile {
    path: PathBuf,
    output: Output,
    /// Whether it is the first file of its run.
    is_first: bool,
    /// Buffered records.
    pending: Vec<u8>,
    flushed: Instant,
}

/// Where records are written.
enum Output {
    /// A local file, and the bytes of complete records in it.
    File(File, u64),
    /// Objects in a bucket.
    Objects(ObjectFile),
}

impl EventFile {
    /// Creates a file in `place` that sorts after all existing ones. `objects` are those of a place in a bucket.
    pub(super) fn create(place: &Place, objects: Option<ObjectClient>) -> io::Result<Self> {
        let directory = place.shown();
        let names = match &objects {
            Some(objects) => objects::names(objects)?,
            None => {
                fs::create_dir_all(directory)?;
                let files = fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
                files.iter().filter_map(|file| file.file_name().into_string().ok()).collect()
            }
        };
        let newest = newest(&names);
        let time = newest.map_or(0, |time| time.saturating_add(1)).max(since_epoch().as_secs());
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "localhost" } else { host.trim() };
        let name = format!("{PREFIX}{time:010}.{host}.{}", std::process::id());
        let path = directory.join(&name);
        let output = match objects {
            Some(objects) => Output::Objects(ObjectFile::create(objects, name)?),
            None => Output::File(OpenOptions::new().append(true).create_new(true).open(&path)?, 0),
        };
        let (is_first, pending, flushed) = (newest.is_none(), header(), Instant::now());
        Ok(Self { path, output, is_first, pending, flushed })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the directory had no event file when it was created.
    pub(super) fn is_first(&self) -> bool {
        self.is_first
    }

    /// Appends an event with the current time.
    ///
    /// # Errors
    /// When buffered records cannot be written. They are dropped, and the file is truncated to its last
    /// complete record.
    pub(super) fn append(&mut self, step: u64, data: EventData) -> io::Result<()> {
        add_event(step, data, &mut self.pending);
        if self.flushed.elapsed() >= FLUSH_INTERVAL { self.flush() } else { Ok(()) }
    }

    /// Writes buffered records. They then survive this process, but not necessarily a power failure; in a bucket, they appear
    /// later.
    ///
    /// # Errors
    /// As for [`EventFile::append`].
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.flushed = Instant::now();
        let written = match &mut self.output {
            Output::File(file, length) => {
                let written = file.write_all(&self.pending);
                match &written {
                    Ok(()) => *length += self.pending.len() as u64,
                    // Nothing after a partial record would be read. Truncating it needs no disk space.
                    Err(_) => drop(file.set_len(*length)),
                }
                written
            }
            Output::Objects(objects) => objects.append(&self.pending, &header()),
        };
        self.pending.clear();
        written
    }

    /// Writes buffered records, also to a bucket. No event follows.
    ///
    /// # Errors
    /// As for [`EventFile::append`], and when storage is too slow.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.flush()?;
        match &self.output {
            Output::File(..) => Ok(()),
            Output::Objects(objects) => objects.end(),
        }
    }
}

/// The record that a file begins with.
fn header() -> Vec<u8> {
    let mut header = Vec::new();
    add_event(0, EventData::FileVersion(FILE_VERSION.to_owned()), &mut header);
    header
}

/// Appends the record of an event now.
fn add_event(step: u64, data: EventData, records: &mut Vec<u8>) {
    let wall_time = since_epoch().as_secs_f64();
    let event = Event { wall_time, step: i64::try_from(step).unwrap_or(i64::MAX), data: Some(data) };
    frame(&event.encode_to_vec(), records);
}

/// The latest timestamp in these names of event files.
fn newest(names: &[String]) -> Option<u64> {
    let time = |name: &String| name.strip_prefix(PREFIX)?.split_once('.')?.0.parse().ok();
    names.iter().filter_map(time).max()
}

fn frame(message: &[u8], out: &mut Vec<u8>) {
    let length = (message.len() as u64).to_le_bytes();
    out.extend(length);
    out.extend(masked_crc(&length).to_le_bytes());
    out.extend(message);
    out.extend(masked_crc(message).to_le_bytes());
}

fn masked_crc(bytes: &[u8]) -> u32 {
    // The algorithm is 32 bits wide.
    let crc = checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32;
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The events of a file without truncated records.
    pub(in super::super) fn read(path: &Path) -> Vec<Event> {
        let bytes = fs::read(path).unwrap();
        let mut rest = &bytes[..];
        let mut events = Vec::new();
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            let (record, after) = rest.split_at(8 + 4 + length + 4);
            let mut framed = Vec::new();
            frame(&record[12..12 + length], &mut framed);
            assert_eq!(record, framed);
            events.push(Event::decode(&record[12..12 + length]).unwrap());
            rest = after;
        }
        events
    }

    #[test]
    fn records_are_framed_as_in_tensorflow() {
        // tf.io.TFRecordWriter, with the one record b"brain".
        let wanted = b"\x05\0\0\0\0\0\0\0\xea\xb2\x04\x3ebrain\x92\xd2\x79\xcb";
        let mut framed = Vec::new();
        frame(b"brain", &mut framed);
        assert_eq!(framed, wanted);
    }

    #[test]
    fn a_new_file_sorts_last_even_if_the_clock_went_backwards() {
        let directory = tempfile::tempdir().unwrap();
        let runs = directory.path().join("a/b");
        let place = Place::Local(runs.clone());
        let create = || EventFile::create(&place, None).unwrap();
        let (first, second) = (create(), create());
        fs::write(runs.join("events.out.tfevents.4000000000.elsewhere.1"), "").unwrap();
        fs::write(runs.join("events.out.tfevents.notatime"), "").unwrap();
        let third = create();
        let name = |file: &EventFile| file.path().file_name().unwrap().to_owned();
        assert!(name(&first) < name(&second) && name(&second) < name(&third));
        assert!(name(&third).to_str().unwrap().starts_with("events.out.tfevents.4000000001."));
    }

    #[test]
    fn failed_writes_leave_complete_records_only() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(&Place::Local(directory.path().to_owned()), None).unwrap();
        file.flush().unwrap();
        // A file that cannot be written, like one on a full disk.
        let closed = File::open(file.path()).unwrap();
        let Output::File(written, _) = &mut file.output else { panic!() };
        let whole = std::mem::replace(written, closed);
        file.append(1, EventData::FileVersion("lost".into())).unwrap();
        assert!(file.flush().is_err());
        let Output::File(written, _) = &mut file.output else { panic!() };
        *written = whole;
        file.append(2, EventData::FileVersion("kept".into())).unwrap();
        file.flush().unwrap();
        let steps: Vec<_> = read(file.path()).iter().map(|event| event.step).collect();
        assert_eq!(steps, [0, 2]);
    }
}
