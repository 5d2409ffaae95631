//! TFRecord framing: the reader matches a plain reference on arbitrary bytes in arbitrary pieces, compressed or not;
//! written records read back; and a truncated stream is never mistaken for a complete one.

use std::io::{self, BufRead, Read, Write};

use crc_fast::CrcAlgorithm;
use millstream_format::compression::{Compression, Compressor, Decompressed};
use millstream_format::record::{AnyReader, MAX_RECORD_BYTES, ReadError, RecordFormat};
use millstream_format::tfrecord::RecordWriter;

use crate::input::Input;

/// The number of decompressed bytes after which reading stops, because a few bytes can expand to gigabytes.
const MAX_BYTES: usize = 1 << 20;

const COMPRESSIONS: [Compression; 4] =
    [Compression::None, Compression::Gzip, Compression::Zlib, Compression::Zstd];

/// The result of reading one record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Record { number: u64, offset: u64, data: Vec<u8> },
    Damage { number: u64, offset: u64, fatal: bool },
}

/// The first byte selects whether the rest is read as a file, or split into records that are written and read back.
pub fn check(data: &[u8]) {
    let mut input = Input(data);
    match input.byte() % 2 {
        0 => any_bytes(&mut input),
        _ => round_trip(&mut input),
    }
}

fn any_bytes(input: &mut Input<'_>) {
    let pieces = input.byte();
    let bytes = input.0;
    let whole = any_pieces(RecordFormat::TfRecord, bytes, pieces);
    if Compression::detect(bytes) == Compression::None {
        assert_eq!(whole, reference(bytes), "matches the reference");
    }
}

/// The events of a file, which do not depend on the pieces in which its bytes arrive.
pub(crate) fn any_pieces(format: RecordFormat, bytes: &[u8], pieces: u8) -> Vec<Event> {
    let whole = read(format, bytes);
    assert_eq!(whole, read(format, Pieces::new(bytes, pieces)), "whole and in pieces");
    for pair in whole.windows(2) {
        let (first, second) = (pair[0].position(), pair[1].position());
        // A sample of MDS may be empty.
        let is_later = first.1 < second.1 || format == RecordFormat::Mds && first.1 == second.1;
        assert!(first.0 < second.0 && is_later, "{first:?} is before {second:?}");
    }
    assert!(!whole.iter().rev().skip(1).any(Event::is_fatal), "nothing follows fatal damage");
    whole
}

fn round_trip(input: &mut Input<'_>) {
    let compression = COMPRESSIONS[usize::from(input.byte()) % COMPRESSIONS.len()];
    let (pieces, cut) = (input.byte(), input.below(1 << 16));
    let mut records: Vec<&[u8]> = Vec::new();
    while !input.is_empty() {
        let length = input.byte();
        records.push(input.take(usize::from(length)));
    }
    let mut writer = RecordWriter::new(Compressor::new(Vec::new(), compression).unwrap());
    records.iter().for_each(|record| writer.write(record).unwrap());
    let bytes = writer.into_inner().finish().unwrap();
    let mut offset = 0;
    let written: Vec<Event> = (0..)
        .zip(&records)
        .map(|(number, data)| {
            let event = Event::Record { number, offset, data: data.to_vec() };
            offset += data.len() as u64 + 16;
            event
        })
        .collect();
    let format = RecordFormat::TfRecord;
    assert_eq!(read(format, Pieces::new(&bytes, pieces)), written, "written and read back");

    // A truncation to an empty file is undetectable: an empty file holds no records, compressed or not.
    let cut = 1 + cut % bytes.len().max(1);
    if cut >= bytes.len() {
        return;
    }
    let found = read(format, Pieces::new(&bytes[..cut], pieces));
    if compression == Compression::None {
        assert_eq!(found, reference(&bytes[..cut]), "cut at {cut}");
        return;
    }
    let (last, before) = found.split_last().expect("a truncated stream is damaged");
    assert!(last.is_fatal(), "cut at {cut} of {}: {last:?}", bytes.len());
    assert!(written.starts_with(before), "cut at {cut}: only written records are read");
}

pub(crate) fn read(format: RecordFormat, input: impl BufRead) -> Vec<Event> {
    let mut events = Vec::new();
    let Ok((stream, _)) = Decompressed::of_records(input, format) else {
        return vec![Event::Damage { number: 0, offset: 0, fatal: true }];
    };
    let mut reader = AnyReader::new(format, stream, MAX_RECORD_BYTES);
    let mut bytes = 0;
    while bytes < MAX_BYTES {
        match reader.next_record() {
            Ok(None) => break,
            Ok(Some(record)) => {
                bytes += record.data.len() + 16;
                let (number, offset) = (record.number, record.offset);
                events.push(Event::Record { number, offset, data: record.data.to_vec() });
            }
            Err(ReadError::Damage(damage)) => {
                bytes += 16;
                let (number, offset, fatal) = (damage.record, damage.offset, damage.fatal);
                events.push(Event::Damage { number, offset, fatal });
                if fatal {
                    break;
                }
            }
            Err(error) => panic!("nothing is fetched here: {error:?}"),
        }
    }
    events
}

/// The reference for [`read`], which follows the format byte by byte.
fn reference(bytes: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    let (mut at, mut read) = (0, 0);
    while at < bytes.len() && read < MAX_BYTES {
        let (number, offset) = (events.len() as u64, at as u64);
        let rest = &bytes[at..];
        let length = rest.get(..8).map(|length| u64::from_le_bytes(length.try_into().unwrap()));
        let sound = length.filter(|&length| {
            rest.get(8..12).is_some_and(|crc| crc == masked_crc(&rest[..8]).to_le_bytes())
                && length <= MAX_RECORD_BYTES
        });
        let frame = sound.and_then(|length| rest.get(..length as usize + 16));
        let Some(frame) = frame else {
            events.push(Event::Damage { number, offset, fatal: true });
            break;
        };
        let (data, crc) = frame[12..].split_at(frame.len() - 16);
        if crc == masked_crc(data).to_le_bytes() {
            events.push(Event::Record { number, offset, data: data.to_vec() });
            read += frame.len();
        } else {
            events.push(Event::Damage { number, offset, fatal: false });
            read += 16;
        }
        at += frame.len();
    }
    events
}

fn masked_crc(bytes: &[u8]) -> u32 {
    let crc = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32;
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

impl Event {
    fn position(&self) -> (u64, u64) {
        match *self {
            Self::Record { number, offset, .. } | Self::Damage { number, offset, .. } => (number, offset),
        }
    }

    pub(crate) fn is_fatal(&self) -> bool {
        matches!(self, Self::Damage { fatal: true, .. })
    }
}

/// A reader that returns its bytes in pieces of random lengths, drawn from `seed`.
struct Pieces<'a> {
    rest: &'a [u8],
    piece: usize,
    state: u32,
}

impl<'a> Pieces<'a> {
    fn new(rest: &'a [u8], seed: u8) -> Self {
        Self { rest, piece: 0, state: u32::from(seed) + 1 }
    }
}

impl BufRead for Pieces<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.piece == 0 {
            self.state = self.state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let most = 1 << (self.state >> 29);
            self.piece = (1 + (self.state >> 8) as usize % most).min(self.rest.len());
        }
        Ok(&self.rest[..self.piece])
    }

    fn consume(&mut self, amount: usize) {
        self.piece -= amount;
        self.rest = &self.rest[amount..];
    }
}

impl Read for Pieces<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let amount = self.fill_buf()?.read(out)?;
        self.consume(amount);
        Ok(amount)
    }
}

/// Files of each compression, and records to write.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (number, compression) in (0..).zip(COMPRESSIONS) {
        let mut writer = RecordWriter::new(Compressor::new(Vec::new(), compression).unwrap());
        for record in [&b"one"[..], b"", &[7; 300]] {
            writer.write(record).unwrap();
        }
        let mut file = vec![0, number];
        file.write_all(&writer.into_inner().finish().unwrap()).unwrap();
        seeds.push(file);
        seeds.push([&[1, number, 3, 40, 0][..], b"\x03one\x00\x05three"].concat());
    }
    // A record with corrupted data, followed by an intact one.
    let mut damaged = seeds[0].clone();
    damaged[15] ^= 1;
    seeds.push(damaged);
    seeds
}

/// Magic numbers, and the headers of short records.
pub fn dictionary() -> Vec<Vec<u8>> {
    let header = |length: u64| {
        let length = length.to_le_bytes();
        [&length[..], &masked_crc(&length).to_le_bytes()].concat()
    };
    let lengths = [0, 1, 2, 4, 16, 255, 4096, MAX_RECORD_BYTES, MAX_RECORD_BYTES + 1, u64::MAX];
    let magic = [&b"\x1f\x8b\x08"[..], b"\x28\xb5\x2f\xfd", b"\x78\x9c", b"PAR1"];
    lengths.into_iter().map(header).chain(magic.map(<[u8]>::to_vec)).collect()
}
