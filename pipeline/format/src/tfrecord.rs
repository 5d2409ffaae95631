//! TFRecord framing.
//!
//! ```text
//! byte  0   length of the data, u64, little-endian
//!       8   masked CRC-32C of those eight bytes
//!      12   the data
//!  12 + n   masked CRC-32C of the data
//! ```
//!
//! A CRC `c` is stored masked, as `rotate_right(c, 15) + 0xa282ead8`. The length has a separate checksum, so
//! there are two kinds of damage: if only the data are wrong, the reader can continue at the next record; if
//! the length is wrong, the position of the next record is unknown.

use std::io::{self, BufRead, Write};

use crc_fast::CrcAlgorithm;

use crate::Content;
use crate::record::{self, Damage, MAX_RECORD_BYTES, ReadError, Record, append, ends_within};

/// Bytes of a frame before the data.
pub(crate) const HEADER_BYTES: usize = 12;
/// Bytes of a frame after the data.
pub(crate) const FOOTER_BYTES: usize = 4;

/// Splits a byte stream into records. A record that lies entirely in the input's buffer is not copied.
pub struct RecordReader<R> {
    input: R,
    /// Bytes of the last returned record, still in the input's buffer.
    pending: usize,
    /// A record that spans several buffers of the input.
    carry: Vec<u8>,
    offset: u64,
    number: u64,
    actual_format: Option<Content>,
    /// The maximum length of a record.
    most_bytes: u64,
}

/// The location of a frame.
enum Place {
    /// At the start of the input's buffer, with this length.
    Input(usize),
    /// In `carry`.
    Carry,
}

impl<R: BufRead> RecordReader<R> {
    /// A reader of `input`, which must be uncompressed and at the start of a record.
    pub fn new(input: R) -> Self {
        Self {
            input,
            pending: 0,
            carry: Vec::new(),
            offset: 0,
            number: 0,
            actual_format: None,
            most_bytes: MAX_RECORD_BYTES,
        }
    }

    /// Ends at a longer record, before reading or inflating its data.
    #[must_use]
    pub fn at_most(self, bytes: u64) -> Self {
        Self { most_bytes: bytes, ..self }
    }

    /// The input at its current position.
    pub fn input(&self) -> &R {
        &self.input
    }

    /// The next record; `None` if the input ends between records. After damage that is not fatal, the next call
    /// continues after the damaged record.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        self.input.consume(std::mem::take(&mut self.pending));
        let place = match self.locate() {
            Ok(Some(place)) => place,
            Ok(None) => return Ok(None),
            Err(error) => return Err(self.broken(error)),
        };
        let (offset, number) = (self.offset, self.number);
        let frame = match place {
            Place::Input(length) => {
                self.pending = length;
                // The buffer still holds the frame that `locate` found.
                self.input.fill_buf().ok().and_then(|buffer| buffer.get(..length)).unwrap_or_default()
            }
            Place::Carry => &self.carry,
        };
        self.offset += frame.len() as u64;
        self.number += 1;
        match unframe(frame) {
            Some(data) => Ok(Some(Record { data, offset, number })),
            None => Err(ReadError::Damage(Damage {
                offset,
                record: number,
                message: format!(
                    "the data checksum does not match ({} bytes)",
                    frame.len().saturating_sub(HEADER_BYTES + FOOTER_BYTES)
                ),
                ..Damage::default()
            })),
        }
    }

    fn locate(&mut self) -> io::Result<Option<Place>> {
        let buffer = match self.input.fill_buf() {
            Ok(buffer) => buffer,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return self.locate(),
            Err(error) => return Err(error),
        };
        if buffer.is_empty() {
            return Ok(None);
        }
        let (available, header) = (buffer.len(), buffer.first_chunk().copied());
        if let Some(header) = header {
            let frame_bytes = self.frame_bytes(&header)?;
            if frame_bytes <= available {
                return Ok(Some(Place::Input(frame_bytes)));
            }
        }
        self.carry.clear();
        self.carry_to(HEADER_BYTES, "a record header")?;
        let header = self.carry.first_chunk().copied().unwrap_or_default();
        let frame_bytes = self.frame_bytes(&header)?;
        self.carry_to(frame_bytes, "a record")?;
        Ok(Some(Place::Carry))
    }

    /// The length of the whole frame.
    #[inline]
    fn frame_bytes(&mut self, header: &[u8; HEADER_BYTES]) -> io::Result<usize> {
        let message = match length_of(header) {
            Some(length @ ..=MAX_RECORD_BYTES) if length > self.most_bytes => {
                return Err(record::too_long(length, self.most_bytes));
            }
            Some(length @ ..=MAX_RECORD_BYTES) => {
                return Ok(HEADER_BYTES + length as usize + FOOTER_BYTES);
            }
            Some(length) => format!("the length of {length} bytes exceeds the maximum of {MAX_RECORD_BYTES}"),
            None => "the length checksum does not match".to_owned(),
        };
        if self.number == 0 {
            self.actual_format = Some(Content::detect_non_tfrecord(header));
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, message))
    }

    /// Moves input to `carry` until it holds `length` bytes.
    fn carry_to(&mut self, length: usize, what: &str) -> io::Result<()> {
        let missing = length.saturating_sub(self.carry.len());
        append(&mut self.input, &mut self.carry, missing as u64)?;
        let held = self.carry.len();
        if held < length {
            return Err(ends_within(format_args!("{what}, after {held} of {length} bytes")));
        }
        Ok(())
    }

    fn broken(&self, error: io::Error) -> ReadError {
        match ReadError::of(error, self.number, self.offset) {
            ReadError::Damage(damage) => {
                ReadError::Damage(Damage { actual_format: self.actual_format, ..damage })
            }
            source => source,
        }
    }
}

/// Writes records.
pub struct RecordWriter<W> {
    output: W,
}

impl<W: Write> RecordWriter<W> {
    /// A writer to `output`.
    pub fn new(output: W) -> Self {
        Self { output }
    }

    /// Writes one record.
    pub fn write(&mut self, data: &[u8]) -> io::Result<()> {
        let length = (data.len() as u64).to_le_bytes();
        self.output.write_all(&length)?;
        self.output.write_all(&masked_crc(&length).to_le_bytes())?;
        self.output.write_all(data)?;
        self.output.write_all(&masked_crc(data).to_le_bytes())
    }

    /// Returns the output, which the caller finishes.
    pub fn into_inner(self) -> W {
        self.output
    }
}

/// Whether these are the first bytes of a record.
pub(crate) fn is_header(start: &[u8]) -> bool {
    start.first_chunk().is_some_and(|header| length_of(header).is_some())
}

/// The data of a complete frame, if its checksum matches.
#[inline]
pub(crate) fn unframe(frame: &[u8]) -> Option<&[u8]> {
    let (rest, footer) = frame.split_last_chunk::<FOOTER_BYTES>()?;
    let data = rest.get(HEADER_BYTES..)?;
    (masked_crc(data) == u32::from_le_bytes(*footer)).then_some(data)
}

/// The length of the data, if its checksum matches.
#[inline]
pub(crate) fn length_of(header: &[u8; HEADER_BYTES]) -> Option<u64> {
    let (length, crc) = header.split_first_chunk::<8>()?;
    let crc = u32::from_le_bytes(*crc.first_chunk()?);
    (masked_crc(length) == crc).then_some(u64::from_le_bytes(*length))
}

#[inline]
fn masked_crc(bytes: &[u8]) -> u32 {
    let crc = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32;
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
#[path = "tfrecord_tests.rs"]
mod tests;
