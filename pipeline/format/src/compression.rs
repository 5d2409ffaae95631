//! Compressed streams, detected from their first bytes rather than the file's name.
//!
//! A stream may be truncated anywhere, and truncation must never look like the end of the stream. The readers of
//! general-purpose crates are lenient here (a zlib stream without its checksum ends like a complete one), and slow. So
//! this crate decompresses the deflate family itself (`inflate/`), and drives the zstd library one step at a time
//! (`zstandard.rs`): the input may end only between two streams. The data readable before damage does not depend on how
//! the input is divided into pieces, so a split yields the same rows each time it is read.
//!
//! TensorFlow's writers produce gzip and zlib; other writers produce Zstandard. TensorFlow's SNAPPY, used for its
//! snapshots, has no magic number and is not supported.

use std::io::{self, BufRead, Cursor, Read, Write};

use flate2::write::{GzEncoder, ZlibEncoder};
use serde::Serialize;

use crate::error::SourceError;
use crate::inflate::Inflate;
use crate::record::RecordFormat;
use crate::zstandard::Zstandard;
use crate::{mds, tar, tfrecord};

/// Bytes needed to detect a compression.
pub const MAGIC_BYTES: usize = 12;

/// The compression of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Uncompressed.
    None,
    /// gzip, with one or more members.
    Gzip,
    /// zlib.
    Zlib,
    /// Zstandard, with one or more frames.
    Zstd,
}

impl Compression {
    /// Detects the compression from a stream's first bytes: at least 12, unless the stream is shorter.
    ///
    /// A TFRecord's first length can look like any magic number, so a length with a valid checksum takes
    /// precedence.
    pub fn detect(start: &[u8]) -> Self {
        if tfrecord::is_header(start) {
            return Self::None;
        }
        match *start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            [method, flags, ..]
                if method & 0x8f == 0x08 && (u16::from_be_bytes([method, flags])) % 31 == 0 =>
            {
                Self::Zlib
            }
            _ => Self::None,
        }
    }

    /// The compression that a file's last extension indicates.
    pub fn from_name(path: &str) -> Option<Self> {
        match path.rsplit_once('.')?.1.to_ascii_lowercase().as_str() {
            "gz" | "gzip" | "tgz" => Some(Self::Gzip),
            "zz" | "zlib" => Some(Self::Zlib),
            "zst" | "zstd" => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// A stream, with the bytes read for detection put back in front.
type Whole<R> = io::Chain<Cursor<Vec<u8>>, Source<R>>;

/// The compressed input. Marks its errors, so that a failed read is not mistaken for damage.
pub struct Source<R>(R);

impl<R: Read> Read for Source<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.read(out).map_err(SourceError::mark)
    }
}

impl<R: BufRead> BufRead for Source<R> {
    #[inline]
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.0.fill_buf().map_err(SourceError::mark)
    }

    #[inline]
    fn consume(&mut self, amount: usize) {
        self.0.consume(amount);
    }
}

/// A decompressed stream. Errors of the input are marked as [`SourceError`]. Reading a truncated stream fails with
/// [`io::ErrorKind::UnexpectedEof`].
pub enum Decompressed<R: BufRead> {
    /// Uncompressed, passed through without a copy.
    Plain(Whole<R>),
    /// gzip or zlib.
    Deflate(Inflate<Whole<R>>),
    /// Zstandard.
    Zstd(Zstandard<Whole<R>>),
}

impl<R: BufRead> Decompressed<R> {
    /// Detects the compression from the first bytes of `input`.
    pub fn new(input: R) -> io::Result<(Self, Compression)> {
        Self::by_start(input, MAGIC_BYTES, Compression::detect)
    }

    /// Detects the compression of a file of this format. Names of files in archives, and numbers of samples in shards, can
    /// look like any magic number, so a valid head takes precedence.
    pub fn of_records(input: R, format: RecordFormat) -> io::Result<(Self, Compression)> {
        let unless = |is_plain: fn(&[u8]) -> bool| {
            move |start: &[u8]| if is_plain(start) { Compression::None } else { Compression::detect(start) }
        };
        match format {
            RecordFormat::TfRecord | RecordFormat::JsonLines => Self::new(input),
            RecordFormat::WebDataset => Self::by_start(input, tar::BLOCK_BYTES, unless(tar::is_archive)),
            RecordFormat::Mds => Self::by_start(input, MAGIC_BYTES, unless(mds::is_shard)),
        }
    }

    fn by_start(
        input: R,
        bytes: usize,
        detect: impl Fn(&[u8]) -> Compression,
    ) -> io::Result<(Self, Compression)> {
        let mut input = Source(input);
        let mut start = Vec::with_capacity(bytes);
        input.by_ref().take(bytes as u64).read_to_end(&mut start)?;
        let compression = detect(&start);
        let whole = Cursor::new(start).chain(input);
        let stream = match compression {
            Compression::None => Self::Plain(whole),
            Compression::Gzip | Compression::Zlib => Self::Deflate(Inflate::new(whole, compression)),
            Compression::Zstd => Self::Zstd(Zstandard::new(whole)?),
        };
        Ok((stream, compression))
    }

    /// The compressed stream, positioned after the bytes consumed so far.
    pub fn source(&self) -> &R {
        match self {
            Self::Plain(whole) => &whole.get_ref().1.0,
            Self::Deflate(reader) => &reader.input().get_ref().1.0,
            Self::Zstd(reader) => &reader.input().get_ref().1.0,
        }
    }
}

impl<R: BufRead> BufRead for Decompressed<R> {
    #[inline]
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match self {
            Self::Plain(reader) => reader.fill_buf(),
            Self::Deflate(reader) => reader.fill_buf(),
            Self::Zstd(reader) => reader.fill_buf(),
        }
    }

    #[inline]
    fn consume(&mut self, amount: usize) {
        match self {
            Self::Plain(reader) => reader.consume(amount),
            Self::Deflate(reader) => reader.consume(amount),
            Self::Zstd(reader) => reader.consume(amount),
        }
    }
}

impl<R: BufRead> Read for Decompressed<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let amount = self.fill_buf()?.read(out)?;
        self.consume(amount);
        Ok(amount)
    }
}

/// A compressing writer. The stream is complete only after [`Compressor::finish`].
pub enum Compressor<W: Write> {
    /// Uncompressed.
    Plain(W),
    /// gzip.
    Gzip(GzEncoder<W>),
    /// zlib.
    Zlib(ZlibEncoder<W>),
    /// Zstandard, with a checksum.
    Zstd(zstd::Encoder<'static, W>),
}

impl<W: Write> Compressor<W> {
    /// Starts a stream.
    pub fn new(output: W, compression: Compression) -> io::Result<Self> {
        Ok(match compression {
            Compression::None => Self::Plain(output),
            Compression::Gzip => Self::Gzip(GzEncoder::new(output, flate2::Compression::default())),
            Compression::Zlib => Self::Zlib(ZlibEncoder::new(output, flate2::Compression::default())),
            Compression::Zstd => {
                let mut encoder = zstd::Encoder::new(output, zstd::DEFAULT_COMPRESSION_LEVEL)?;
                encoder.include_checksum(true)?;
                Self::Zstd(encoder)
            }
        })
    }

    /// Starts a stream of this many bytes. Zstandard states them in its header, which some programs need.
    pub fn sized(output: W, compression: Compression, bytes: u64) -> io::Result<Self> {
        let mut compressor = Self::new(output, compression)?;
        if let Self::Zstd(encoder) = &mut compressor {
            encoder.set_pledged_src_size(Some(bytes))?;
        }
        Ok(compressor)
    }

    /// Ends the stream and returns the output.
    pub fn finish(self) -> io::Result<W> {
        match self {
            Self::Plain(output) => Ok(output),
            Self::Gzip(encoder) => encoder.finish(),
            Self::Zlib(encoder) => encoder.finish(),
            Self::Zstd(encoder) => encoder.finish(),
        }
    }
}

impl<W: Write> Write for Compressor<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(writer) => writer.write(bytes),
            Self::Gzip(writer) => writer.write(bytes),
            Self::Zlib(writer) => writer.write(bytes),
            Self::Zstd(writer) => writer.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(writer) => writer.flush(),
            Self::Gzip(writer) => writer.flush(),
            Self::Zlib(writer) => writer.flush(),
            Self::Zstd(writer) => writer.flush(),
        }
    }
}
