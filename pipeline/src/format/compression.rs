//! Compressed streams, told by their first bytes and not by the file's name.
//!
//! A stream may be cut anywhere, and a cut must never look like an end. The readers of general-purpose
//! crates are lenient there (a zlib stream without its checksum ends like a whole one), and slow, so the deflate
//! family is decompressed by hand (`inflate/`), and the zstd library driven by hand (`zstandard.rs`): the end of
//! input is an end only between two streams. What can be read before damage does not depend on how the stream is
//! cut into pieces: a split gives the same rows whenever it is read.
//!
//! gzip and zlib are what TensorFlow's writers offer; Zstandard is for other writers. What TensorFlow calls SNAPPY,
//! for its own snapshots, has no magic number to be told by and is not read.

use std::io::{self, BufRead, Cursor, Read, Write};

use flate2::write::{GzEncoder, ZlibEncoder};
use serde::Serialize;

use crate::format::inflate::Inflate;
use crate::format::tfrecord;
use crate::format::zstandard::Zstandard;

/// Bytes that tell a compression.
pub(crate) const MAGIC_BYTES: usize = 12;

/// How a stream is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// It is not.
    None,
    /// gzip, of one member or several.
    Gzip,
    /// zlib.
    Zlib,
    /// Zstandard, of one frame or several.
    Zstd,
}

impl Compression {
    /// Tells a compression by a stream's first bytes, 12 of them if there are as many.
    ///
    /// A TFRecord's first length can look like any magic number, so one whose checksum is right is
    /// uncompressed, whatever it looks like.
    pub fn of(start: &[u8]) -> Self {
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

    /// What a file's name says, by its last extension.
    pub fn by_name(path: &str) -> Option<Self> {
        match path.rsplit_once('.')?.1.to_ascii_lowercase().as_str() {
            "gz" | "gzip" => Some(Self::Gzip),
            "zz" | "zlib" => Some(Self::Zlib),
            "zst" | "zstd" => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// A stream's first bytes, put back in front of it.
type Whole<R> = io::Chain<Cursor<Vec<u8>>, R>;

/// Any stream, decompressed. Reading fails with [`io::ErrorKind::UnexpectedEof`] where it is cut.
pub enum Decompressed<R: BufRead> {
    /// As it comes, not copied.
    Plain(Whole<R>),
    /// gzip or zlib.
    Deflate(Inflate<Whole<R>>),
    /// Zstandard.
    Zstd(Zstandard<Whole<R>>),
}

impl<R: BufRead> Decompressed<R> {
    /// Reads the first bytes of `input` and decides by them.
    pub fn new(mut input: R) -> io::Result<(Self, Compression)> {
        let mut start = Vec::with_capacity(MAGIC_BYTES);
        input.by_ref().take(MAGIC_BYTES as u64).read_to_end(&mut start)?;
        let compression = Compression::of(&start);
        let whole = Cursor::new(start).chain(input);
        let stream = match compression {
            Compression::None => Self::Plain(whole),
            Compression::Gzip | Compression::Zlib => Self::Deflate(Inflate::new(whole, compression)),
            Compression::Zstd => Self::Zstd(Zstandard::new(whole)?),
        };
        Ok((stream, compression))
    }

    /// The compressed stream, behind its first bytes.
    pub(crate) fn source(&self) -> &R {
        match self {
            Self::Plain(whole) => whole.get_ref().1,
            Self::Deflate(reader) => reader.input().get_ref().1,
            Self::Zstd(reader) => reader.input().get_ref().1,
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

/// Compresses what is written; whole only after [`Compressor::finish`].
pub enum Compressor<W: Write> {
    /// As it is.
    Plain(W),
    /// gzip.
    Gzip(GzEncoder<W>),
    /// zlib.
    Zlib(ZlibEncoder<W>),
    /// Zstandard, with its checksum.
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

    /// Ends the stream and gives the output back.
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
