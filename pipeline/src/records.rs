//! Reading one TFRecord file of Examples: fetched bytes, decompressed, unframed, parsed into chunks.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use millstream_format::compression::{Compression, Decompressed};
use millstream_format::example::{ExampleColumns, Fault};
use millstream_format::tfrecord::{Damage, ReadError, RecordReader};
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

/// A chunk ends after so many bytes of records, whatever the rows asked for.
const CHUNK_BYTES: usize = 1 << 20;
/// How often it is looked whether all features were met, in records.
const LOOK_EVERY: usize = 64;
/// Held besides what is fetched: the decompressor's window and output, and the chunk being made. Records
/// that are longer than a chunk come on top.
pub(crate) const HELD_BYTES: u64 = (1 << 20) + CHUNK_BYTES as u64;

/// The records of a file or of a part of it, with damage as errors with an address.
pub struct Records {
    object: Object,
    /// The file, and where the part begins if that is not its start.
    label: Arc<str>,
    /// The bytes that are read.
    range: Range<u64>,
    /// Time spent waiting for them to be found.
    located: Duration,
    permit: Permit,
    state: State,
}

enum State {
    /// It is being found where the part's records begin.
    Locating(oneshot::Receiver<Result<Located, Error>>),
    /// Nothing read yet: reading the first bytes blocks.
    Closed(FetchedBytes),
    Open(Box<RecordReader<Decompressed<FetchedBytes>>>, Compression),
    Ended,
}

/// One step through a file.
pub enum Step<'a> {
    /// A record.
    Record {
        /// Its number in the file, or in the part of a file, from 0.
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
    },
    /// The end.
    End,
}

impl Records {
    /// Starts to read a whole file.
    pub fn start(object: Object, limits: &Arc<ReadLimits>, context: &ReadContext) -> Self {
        let state = State::Closed(FetchedBytes::start(object.clone(), limits, context));
        let (label, range) = (object.path().clone(), 0..object.size());
        Self { object, label, range, located: Duration::ZERO, permit: context.permit.clone(), state }
    }

    /// The records that begin in `part` of the file's bytes. They are numbered from its first.
    pub(crate) fn start_part(
        object: Object,
        part: Range<u64>,
        limits: &Arc<ReadLimits>,
        context: &ReadContext,
    ) -> Self {
        let label = part_label(&object, part.start);
        let state = State::Locating(parts::locate(object.clone(), part, limits, context));
        Self { object, label, range: 0..0, located: Duration::ZERO, permit: context.permit.clone(), state }
    }

    /// The next record. An `Err` is of storage, or of a file that is of another format altogether.
    pub fn step(&mut self) -> Result<Step<'_>, Error> {
        if let State::Locating(_) = self.state
            && let Some(damage) = self.locate()?
        {
            return Ok(Step::Bad { error: damage, ends: true });
        }
        if let State::Closed(_) = self.state
            && let Some(bad) = self.open()?
        {
            return Ok(bad);
        }
        let base = self.range.start;
        let State::Open(reader, _) = &mut self.state else { return Ok(Step::End) };
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
            Err(ReadError::Damage(damage)) => bad(&self.object, &self.label, base, damage),
        }
    }

    /// The file, and where the part begins if that is not its start.
    pub(crate) fn label(&self) -> &Arc<str> {
        &self.label
    }

    /// Waits until the part is found; returns what is wrong if it is not.
    fn locate(&mut self) -> Result<Option<Error>, Error> {
        let State::Locating(located) = std::mem::replace(&mut self.state, State::Ended) else {
            return Ok(None);
        };
        let start = Instant::now();
        // A channel that closes early means that the runtime has shut down.
        let located = self.permit.released_while(|| located.blocking_recv()).unwrap_or(Err(Error::Cancelled));
        self.located = start.elapsed();
        let Located { bytes, range, damage } = located?;
        self.range = range;
        if damage.is_none() {
            self.state = State::Closed(bytes);
        }
        Ok(damage)
    }

    /// How the file is compressed, once its first record was read.
    pub fn compression(&self) -> Compression {
        if let State::Open(_, compression) = self.state { compression } else { Compression::None }
    }

    /// Bytes of the file fetched and taken so far.
    pub fn bytes_read(&self) -> u64 {
        self.range.end - self.range.start - self.source().map_or(0, FetchedBytes::remaining)
    }

    /// Time spent waiting for them.
    pub(crate) fn waited(&self) -> Duration {
        self.located + self.source().map_or(Duration::ZERO, FetchedBytes::waited)
    }

    fn source(&self) -> Option<&FetchedBytes> {
        match &self.state {
            State::Closed(bytes) => Some(bytes),
            State::Open(reader, _) => Some(reader.input().source()),
            State::Locating(_) | State::Ended => None,
        }
    }

    fn open(&mut self) -> Result<Option<Step<'static>>, Error> {
        let State::Closed(bytes) = std::mem::replace(&mut self.state, State::Ended) else { return Ok(None) };
        let at_start = |message: String| Damage {
            offset: 0,
            record: 0,
            message,
            fatal: true,
            truncated: false,
            actual_format: None,
        };
        if self.object.size() == 0 && Compression::from_name(self.object.path()).is_some() {
            return bad(
                &self.object,
                &self.label,
                0,
                at_start("a compressed stream cannot be empty".to_owned()),
            )
            .map(Some);
        }
        match Decompressed::new(bytes) {
            Ok((stream, compression)) => {
                self.state = State::Open(Box::new(RecordReader::new(stream)), compression);
                Ok(None)
            }
            Err(error) => match SourceError::unmark(error) {
                Ok(error) => Err(Error::of_source(&self.label, error)),
                Err(error) => bad(&self.object, &self.label, 0, at_start(error.to_string())).map(Some),
            },
        }
    }
}

/// `path` is `object`, or a part of it that begins at byte `base`.
fn bad(object: &Object, path: &str, base: u64, damage: Damage) -> Result<Step<'static>, Error> {
    object.distrust();
    let path = path.to_owned();
    if let Some(found @ (Content::Parquet | Content::Text)) = damage.actual_format {
        return Err(Error::Format(FormatError::WrongFormat {
            path,
            expected: "TFRecord".to_owned(),
            found: found.to_string(),
        }));
    }
    let Damage { offset, record, message, fatal, .. } = damage;
    Ok(Step::Bad {
        error: Error::Format(FormatError::Damage { path, offset: base + offset, record, message }),
        ends: fatal,
    })
}

/// What messages call the part of a file that begins at byte `start`.
pub(crate) fn part_label(object: &Object, start: u64) -> Arc<str> {
    if start == 0 { object.path().clone() } else { format!("{}, from byte {start}", object.path()).into() }
}

/// What is wrong with a record, with its address.
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

/// A file's records as chunks of the projected columns.
pub struct RecordsReader {
    records: Records,
    columns: ExampleColumns,
    bad: BadRecords,
    skip_to: u64,
    ended: bool,
}

impl RecordsReader {
    /// Starts to read a whole file.
    pub fn start(
        object: Object,
        projection: &Projection,
        bad: BadRecords,
        limits: &Arc<ReadLimits>,
        context: &ReadContext,
    ) -> Self {
        Self::of(Records::start(object, limits, context), projection, bad)
    }

    pub(crate) fn of(records: Records, projection: &Projection, bad: BadRecords) -> Self {
        Self { records, columns: ExampleColumns::new(projection), bad, skip_to: 0, ended: false }
    }

    /// The records that it reads.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Skips the records before number `record` without decoding them.
    pub fn skip_to(&mut self, record: u64) {
        self.skip_to = record;
    }

    /// The next rows and their records' numbers.
    pub fn next_chunk(&mut self, max_rows: usize) -> Result<Option<(RecordBatch, Vec<u64>)>, Error> {
        let max_rows = max_rows.max(1);
        let mut numbers = Vec::with_capacity(max_rows.min(LOOK_EVERY * LOOK_EVERY));
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
                Step::Bad { error, ends } => {
                    self.ended = ends;
                    self.skip_damage(error, ends)?;
                }
            }
        }
        if numbers.is_empty() { Ok(None) } else { Ok(Some((self.columns.finish(), numbers))) }
    }

    fn skip_damage(&self, error: Error, ends: bool) -> Result<(), Error> {
        if let Error::Format(FormatError::Damage { record, .. }) = error
            && record < self.skip_to
            && !ends
        {
            return Ok(());
        }
        let path = self.records.label();
        self.bad.skip(error)?;
        if ends {
            tracing::warn!(%path, "nothing after the damage can be read: the rest of it is left out");
        }
        Ok(())
    }
}

/// Refuses a projection with a column that none of the first `limit` records of all files has. Returns the
/// length of the longest record looked at.
pub(crate) fn check_features(
    objects: &[Object],
    projection: &Projection,
    limit: usize,
    runtime: &Handle,
) -> Result<u64, Error> {
    let limits = Arc::default();
    let mut longest = 0;
    let mut columns = ExampleColumns::new(projection);
    let mut looked_at = 0;
    let absent =
        |columns: &ExampleColumns| (0..projection.columns.len()).find(|&column| !columns.was_seen(column));
    'files: for object in objects {
        let mut records = Records::start(object.clone(), &limits, &runtime.into());
        loop {
            match records.step()? {
                Step::End | Step::Bad { ends: true, .. } => break,
                // What to do about a bad record is decided when it is read in earnest.
                Step::Bad { .. } => {}
                Step::Record { data, .. } => {
                    longest = longest.max(data.len() as u64);
                    drop(columns.push(data));
                }
            }
            looked_at += 1;
            if looked_at % LOOK_EVERY == 0 {
                columns.finish();
                if looked_at >= limit || absent(&columns).is_none() {
                    break 'files;
                }
            }
        }
    }
    match (absent(&columns), objects.first()) {
        (Some(column), Some(object)) if looked_at > 0 => {
            let wanted = &projection.columns[column].name;
            Err(FormatError::missing_column(object.path(), wanted, columns.names_seen()).into())
        }
        _ => Ok(longest),
    }
}
