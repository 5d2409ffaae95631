//! Reads one file of records: fetches bytes, decompresses them, splits them into records, and parses these into chunks.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use millstream_batch::Count;
use millstream_format::compression::{Compression, Decompressed};
use millstream_format::example::{ExampleColumns, Fault};
use millstream_format::record::{AnyReader, Damage, MAX_RECORD_BYTES, ReadError, RecordFormat};
use millstream_format::{Content, Error as FormatError, Projection, SourceError};
use millstream_io::ReadContext;
use millstream_io::fetch::FetchedBytes;
use millstream_io::limits::ReadLimits;
use millstream_io::permits::Permit;
use millstream_io::storage::Object;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::bad_records::BadRecords;
use crate::error::Error;
use crate::parts::{self, Located};

/// A chunk ends after this many bytes of records, regardless of the number of rows requested.
const CHUNK_BYTES: usize = 1 << 20;
/// The length of a record in a part without any readable record, to estimate how many are lost.
const ASSUMED_RECORD_BYTES: u64 = 128;
/// The number of records between two checks whether all features have occurred.
const CHECK_INTERVAL: usize = 64;
/// Memory held besides fetched bytes: the decompressor's window and output, and the chunk under construction. Records
/// longer than a chunk add to it.
pub(crate) const HELD_BYTES: u64 = (1 << 20) + CHUNK_BYTES as u64;

/// The records of a file or of a part of a file. Damage is reported as errors with an address.
pub struct Records {
    object: Object,
    format: RecordFormat,
    /// The file's path, and the start of the part unless it is the start of the file.
    label: Arc<str>,
    /// The byte range that is read.
    range: Range<u64>,
    /// Time spent waiting for the range to be located.
    located: Duration,
    permit: Permit,
    /// The maximum length of a record.
    most_bytes: u64,
    state: State,
}

enum State {
    /// The start of the first record is being located, in a part of so many bytes.
    Locating(oneshot::Receiver<Result<Located, Error>>, u64),
    /// Nothing has been read yet; reading the first bytes blocks.
    Closed(FetchedBytes),
    Open(Box<AnyReader<Decompressed<FetchedBytes>>>, Compression),
    Ended,
}

/// One step through a file.
pub enum Step<'a> {
    /// A record.
    Record {
        /// Its number in the file or in the part, from 0.
        number: u64,
        /// The offset of its frame in the decompressed file.
        offset: u64,
        /// Its data.
        data: &'a [u8],
    },
    /// A damaged record.
    Bad {
        /// The damage, with its address.
        error: Error,
        /// Whether nothing after it can be read.
        ends: bool,
        /// The number of records lost: one, or an estimate if nothing after it can be read.
        lost: u64,
    },
    /// The end of the file or part.
    End,
}

impl Records {
    /// Starts reading a whole file.
    pub fn start(
        object: Object,
        format: RecordFormat,
        limits: &Arc<ReadLimits>,
        context: &ReadContext,
    ) -> Self {
        let state = State::Closed(FetchedBytes::start(object.clone(), limits, context));
        let (label, range) = (object.path().clone(), 0..object.size());
        let (permit, most_bytes) = (context.permit.clone(), MAX_RECORD_BYTES);
        Self { object, format, label, range, located: Duration::ZERO, permit, most_bytes, state }
    }

    /// Reads the records that begin in the byte range `part` of the file. They are numbered from the first of them.
    /// Fails at a record longer than `most_bytes`.
    pub(crate) fn start_part(
        object: Object,
        format: RecordFormat,
        part: Range<u64>,
        most_bytes: u64,
        limits: &Arc<ReadLimits>,
        context: &ReadContext,
    ) -> Self {
        let (label, bytes) = (part_label(&object, part.start), part.end - part.start);
        let permit = context.permit.clone();
        let located = parts::locate(object.clone(), format, part, most_bytes, limits, context);
        let state = State::Locating(located, bytes);
        Self { object, format, label, range: 0..0, located: Duration::ZERO, permit, most_bytes, state }
    }

    /// Fails at a longer record.
    #[must_use]
    pub(crate) fn at_most(self, most_bytes: u64) -> Self {
        Self { most_bytes, ..self }
    }

    /// Returns the next record. `Err` means a storage error, or a file of another format.
    pub fn step(&mut self) -> Result<Step<'_>, Error> {
        if let State::Locating(_, part_bytes) = self.state
            && let Some(error) = self.locate()?
        {
            let lost = part_bytes.div_ceil(ASSUMED_RECORD_BYTES).max(1);
            return Ok(Step::Bad { error, ends: true, lost });
        }
        if let State::Closed(_) = self.state
            && let Some(bad) = self.open()?
        {
            return Ok(bad);
        }
        let base = self.range.start;
        let State::Open(reader, compression) = &mut self.state else { return Ok(Step::End) };
        match reader.next_record() {
            Ok(Some(record)) => {
                Ok(Step::Record { number: record.number, offset: base + record.offset, data: record.data })
            }
            Ok(None) => Ok(Step::End),
            Err(ReadError::Source(error)) => Err(Error::of_source(&self.label, error)),
            Err(ReadError::Damage(damage)) if damage.truncated && self.range.end < self.object.size() => {
                Err(Error::Cut {
                    path: self.object.path().to_string(),
                    offset: base + damage.offset,
                    boundary: self.range.end,
                })
            }
            Err(ReadError::Damage(damage)) => {
                let bytes = match compression {
                    Compression::None => (self.range.end - base).saturating_sub(damage.offset),
                    _ => self.object.size(),
                };
                let lost = lost_records(&damage, bytes);
                bad((&self.object, self.format, &self.label), base, damage, lost)
            }
        }
    }

    /// The file's path, and the start of the part unless it is the start of the file.
    pub(crate) fn label(&self) -> &Arc<str> {
        &self.label
    }

    /// Waits until the part is located; returns the damage that prevents it, if any.
    fn locate(&mut self) -> Result<Option<Error>, Error> {
        let State::Locating(located, _) = std::mem::replace(&mut self.state, State::Ended) else {
            return Ok(None);
        };
        let start = Instant::now();
        // The channel closes early if the runtime has shut down.
        let located = self.permit.released_while(|| located.blocking_recv()).unwrap_or(Err(Error::Cancelled));
        self.located = start.elapsed();
        let Located { bytes, range, damage } = located?;
        self.range = range;
        if damage.is_none() {
            self.state = State::Closed(bytes);
        }
        Ok(damage)
    }

    /// The compression of the file; known once its first record has been read.
    pub fn compression(&self) -> Compression {
        if let State::Open(_, compression) = self.state { compression } else { Compression::None }
    }

    /// Bytes fetched and consumed so far.
    pub fn bytes_read(&self) -> u64 {
        self.range.end - self.range.start - self.source().map_or(0, FetchedBytes::remaining)
    }

    /// Time spent waiting for bytes.
    pub(crate) fn waited(&self) -> Duration {
        self.located + self.source().map_or(Duration::ZERO, FetchedBytes::waited)
    }

    fn source(&self) -> Option<&FetchedBytes> {
        match &self.state {
            State::Closed(bytes) => Some(bytes),
            State::Open(reader, _) => Some(reader.input().source()),
            State::Locating(..) | State::Ended => None,
        }
    }

    fn open(&mut self) -> Result<Option<Step<'static>>, Error> {
        let State::Closed(bytes) = std::mem::replace(&mut self.state, State::Ended) else { return Ok(None) };
        let at_start = |message| {
            let damage = Damage { message, fatal: true, ..Damage::default() };
            let lost = self.object.size().div_ceil(ASSUMED_RECORD_BYTES).max(1);
            bad((&self.object, self.format, &self.label), 0, damage, lost).map(Some)
        };
        if self.object.size() == 0 && Compression::from_name(self.object.path()).is_some() {
            return at_start("a compressed stream cannot be empty".to_owned());
        }
        match Decompressed::of_records(bytes, self.format) {
            Ok((stream, compression)) => {
                let reader = AnyReader::new(self.format, stream, self.most_bytes);
                self.state = State::Open(Box::new(reader), compression);
                Ok(None)
            }
            Err(error) => match SourceError::unmark(error) {
                Ok(error) => Err(Error::of_source(&self.label, error)),
                Err(error) => at_start(error.to_string()),
            },
        }
    }
}

/// The number of records that cannot be read because of damage. A file that ends within a record misses that record; it
/// does not show whether more followed. Other damage that ends a file loses up to `bytes`, and the records before it
/// determine the estimate. This must be the same each time that the file is read: the position of damage in a compressed
/// file is not known exactly, so the whole stored size counts.
fn lost_records(damage: &Damage, bytes: u64) -> u64 {
    if !damage.fatal || damage.truncated {
        return 1;
    }
    let mean = damage.offset.checked_div(damage.record).unwrap_or(ASSUMED_RECORD_BYTES);
    bytes.div_ceil(mean.max(1)).max(1)
}

/// Reports damage in a file with a label, or in the part of it that begins at byte `base`.
fn bad(
    (object, format, label): (&Object, RecordFormat, &str),
    base: u64,
    damage: Damage,
    lost: u64,
) -> Result<Step<'static>, Error> {
    object.distrust();
    let path = label.to_owned();
    let is_other = |found: &Content| match found {
        Content::Parquet | Content::Tar | Content::Json | Content::Text => true,
        Content::TfRecord(_) => format != RecordFormat::TfRecord,
        Content::Empty | Content::Unknown => false,
    };
    // A later part of a file is known by its first one.
    if let Some(found) = damage.actual_format.filter(is_other)
        && base == 0
    {
        return Err(Error::Format(FormatError::WrongFormat {
            path,
            expected: format.name().name().to_owned(),
            found: found.to_string(),
        }));
    }
    let Damage { offset, record, message, fatal, too_long, .. } = damage;
    let offset = base + offset;
    if too_long {
        let message =
            format!("record {record}, byte {offset}: {message} bytes; {}", parts::LONG_RECORD_ADVICE);
        return Err(Error::Format(FormatError::Mismatch { path, message }));
    }
    let error = Error::Format(FormatError::Damage { path, offset, record, message });
    Ok(Step::Bad { error, ends: fatal, lost })
}

/// The name, for messages, of the part that begins at byte `start`.
pub(crate) fn part_label(object: &Object, start: u64) -> Arc<str> {
    if start == 0 { object.path().clone() } else { format!("{}, from byte {start}", object.path()).into() }
}

/// Describes a bad record, with its address.
pub fn fault(path: &str, columns: &ExampleColumns, fault: Fault, record: u64, offset: u64) -> Error {
    let path = path.to_owned();
    match fault {
        Fault::Malformed(why) => Error::Format(FormatError::Damage {
            path,
            offset,
            record,
            message: format!("no tf.train.Example: {why}"),
        }),
        Fault::Column { column, message } => Error::Format(FormatError::BadValue {
            path,
            record,
            column: columns.name(column).to_owned(),
            message,
        }),
    }
}

/// Reads a file's records as chunks of the projected columns.
pub struct RecordsReader {
    records: Records,
    columns: ExampleColumns,
    bad: BadRecords,
    skip_to: u64,
    ended: bool,
}

impl RecordsReader {
    /// Decodes `records`.
    pub fn of(records: Records, projection: &Projection, bad: BadRecords) -> Self {
        Self { records, columns: ExampleColumns::new(projection), bad, skip_to: 0, ended: false }
    }

    /// The underlying records.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Skips the records before number `record` without decoding them.
    pub fn skip_to(&mut self, record: u64) {
        self.skip_to = record;
    }

    /// Returns the next rows and their record numbers.
    pub fn next_chunk(&mut self, max_rows: usize) -> Result<Option<(RecordBatch, Vec<u64>)>, Error> {
        let max_rows = max_rows.max(1);
        let mut numbers = Vec::with_capacity(max_rows.min(CHECK_INTERVAL * CHECK_INTERVAL));
        let mut taken = 0;
        while !self.ended && numbers.len() < max_rows && taken < CHUNK_BYTES {
            match self.records.step()? {
                Step::End => self.ended = true,
                Step::Record { number, .. } if number < self.skip_to => {}
                Step::Record { number, offset, data } => {
                    taken += data.len();
                    match self.columns.push(data) {
                        Ok(()) => numbers.push(number),
                        Err(why) => {
                            let error = fault(self.records.label(), &self.columns, why, number, offset);
                            self.bad.skip(error)?;
                        }
                    }
                }
                Step::Bad { error, ends, lost } => {
                    self.ended = ends;
                    self.skip_damage(error, ends, lost)?;
                }
            }
        }
        if numbers.is_empty() { Ok(None) } else { Ok(Some((self.columns.finish(), numbers))) }
    }

    fn skip_damage(&self, error: Error, ends: bool, lost: u64) -> Result<(), Error> {
        if let Error::Format(FormatError::Damage { record, .. }) = error
            && record < self.skip_to
            && !ends
        {
            return Ok(());
        }
        if !ends || !self.bad.skips() {
            return self.bad.skip_all(error, lost);
        }
        let note = format!("nothing after it can be read, about {} lost", Count(lost, "record"));
        self.bad.skip_all(error.noting(&note), lost)
    }
}

/// What [`examine`] found in the first records.
pub(crate) struct Examined {
    /// The length in bytes of the longest record.
    pub(crate) longest: u64,
    /// The mean size in bytes in an uncompressed file, of the last record that was read its decoded size; 0 without records.
    pub(crate) mean: u64,
    /// The columns, by their position in the projection, that no record has.
    pub(crate) absent: Vec<usize>,
    /// The names of the features in the records.
    pub(crate) names: Vec<String>,
    /// The columns with the types of their values; null if no record has any.
    pub(crate) schema: SchemaRef,
}

/// Examines the first records of all files until each column of `projection` has occurred, and at most `limit` records.
///
/// # Errors
/// A file cannot be read, has a record longer than `most_bytes`, or all records are damaged.
pub(crate) fn examine(
    objects: &[Object],
    format: RecordFormat,
    projection: &Projection,
    limit: usize,
    most_bytes: u64,
    runtime: &Handle,
) -> Result<Examined, Error> {
    let limits = Arc::default();
    let (mut longest, mut total, mut whole) = (0, 0, 0);
    let mut damage = None;
    let mut columns = ExampleColumns::new(projection);
    let mut examined = 0;
    let absent = |columns: &ExampleColumns| -> Vec<usize> {
        (0..projection.columns.len()).filter(|&column| !columns.was_seen(column)).collect()
    };
    'files: for object in objects {
        let mut records =
            Records::start(object.clone(), format, &limits, &runtime.into()).at_most(most_bytes);
        let mut previous = None;
        loop {
            match records.step()? {
                Step::End => {
                    if let (Some((start, estimate)), Compression::None) = (previous, records.compression()) {
                        total = total - estimate + records.bytes_read().saturating_sub(start);
                    }
                    break;
                }
                // Bad records are handled when the file is read for its rows.
                Step::Bad { error, ends, .. } => {
                    damage.get_or_insert(error);
                    if ends {
                        break;
                    }
                }
                Step::Record { data, offset, .. } => {
                    let length = data.len() as u64;
                    // The size in the file of all but the last record is the distance to the next one.
                    if let Some((start, estimate)) = previous.replace((offset, length)) {
                        total = total - estimate + (offset - start);
                    }
                    (longest, total, whole) = (longest.max(length), total + length, whole + 1);
                    drop(columns.push(data));
                }
            }
            examined += 1;
            // A few bytes can be inflated to long records, so they are not held until the next check.
            if columns.bytes() >= CHUNK_BYTES {
                columns.finish();
            }
            if examined % CHECK_INTERVAL == 0 {
                columns.finish();
                if examined >= limit || absent(&columns).is_empty() {
                    break 'files;
                }
            }
        }
    }
    if let (0, Some(error)) = (whole, damage) {
        return Err(error);
    }
    let absent = if examined > 0 { absent(&columns) } else { Vec::new() };
    let mean = total / u64::max(whole, 1);
    let schema = columns.finish().schema();
    let names = columns.names_seen().map(str::to_owned).collect();
    Ok(Examined { longest, mean, absent, names, schema })
}
