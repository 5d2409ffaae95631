//! Decompresses the body of a page into exactly as many bytes as its header states.
//!
//! The size is known before anything is allocated, and no codec writes more than that: the codecs of the `parquet`
//! crate for gzip, Brotli and framed LZ4 inflate everything that the input contains, whatever the header states.
//!
//! Source: the Parquet format's `Compression.md`.

use std::cell::RefCell;
use std::io::{Cursor, Read};

use parquet::basic::Compression as Codec;
use parquet::errors::ParquetError;
use zstd::bulk::Decompressor as Zstd;

use crate::compression::Compression;
use crate::inflate::Inflate;

/// Input read at a time by the Brotli decoder.
const BROTLI_INPUT_BYTES: usize = 4096;
/// The header of a block of Hadoop's LZ4: its decompressed and its compressed size.
const HADOOP_HEADER_BYTES: usize = 8;

thread_local! {
    /// The decoder of this thread, about 100 KiB. Pages are decompressed whole, so that no state outlives a page.
    static ZSTD: RefCell<Option<Zstd<'static>>> = const { RefCell::new(None) };
}

/// Decompresses the pages of a column chunk.
pub(super) struct Decompressor {
    codec: Codec,
}

impl Decompressor {
    pub(super) fn new(codec: Codec) -> Self {
        Self { codec }
    }

    /// Whether pages are compressed at all.
    pub(super) fn is_needed(&self) -> bool {
        self.codec != Codec::UNCOMPRESSED
    }

    /// Appends `bytes` bytes, decompressed from `input`, to `out`.
    ///
    /// # Errors
    /// The input is damaged, or decompresses to another number of bytes.
    pub(super) fn decompress(
        &self,
        input: &[u8],
        bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), ParquetError> {
        let start = out.len();
        match self.codec {
            Codec::GZIP(_) => read(Inflate::new(input, Compression::Gzip), bytes, out)?,
            Codec::BROTLI(_) => read(brotli::Decompressor::new(input, BROTLI_INPUT_BYTES), bytes, out)?,
            Codec::ZSTD(_) => zstd(input, bytes, out)?,
            codec => {
                out.resize(start + bytes, 0);
                let into = &mut out[start..];
                let written = match codec {
                    Codec::SNAPPY => snap::raw::Decoder::new().decompress(input, into).map_err(failed)?,
                    Codec::LZ4_RAW => lz4_flex::block::decompress_into(input, into).map_err(failed)?,
                    Codec::LZ4 => lz4(input, into)?,
                    codec => return Err(ParquetError::NYI(format!("compression {codec} is not supported"))),
                };
                out.truncate(start + written);
            }
        }
        match out.len() - start {
            written if written == bytes => Ok(()),
            written => Err(ParquetError::General(format!(
                "a page decompresses to {written} bytes, its header states {bytes}"
            ))),
        }
    }
}

/// Appends at most as many bytes as fit after reserving `bytes`. Memory that is not zeroed first is written once
/// instead of twice.
fn zstd(input: &[u8], bytes: usize, out: &mut Vec<u8>) -> Result<(), ParquetError> {
    out.reserve_exact(bytes);
    let mut into = Cursor::new(out);
    into.set_position(into.get_ref().len() as u64);
    ZSTD.with_borrow_mut(|decoder| {
        let decoder = match decoder {
            Some(decoder) => decoder,
            none => none.insert(Zstd::new().map_err(failed)?),
        };
        decoder.decompress_to_buffer(input, &mut into).map_err(failed)?;
        Ok(())
    })
}

/// Appends at most `bytes` bytes of `stream`, which must then end.
fn read(mut stream: impl Read, bytes: usize, out: &mut Vec<u8>) -> Result<(), ParquetError> {
    out.reserve_exact(bytes);
    stream.by_ref().take(bytes as u64).read_to_end(out).map_err(failed)?;
    match stream.read(&mut [0]).map_err(failed)? {
        0 => Ok(()),
        _ => Err(ParquetError::General(format!("a page decompresses to more than its {bytes} bytes"))),
    }
}

/// The codec named LZ4 has three layouts, of different writers: Hadoop's blocks, the LZ4 frame, and a bare block.
/// Returns the number of bytes written to `out`.
fn lz4(input: &[u8], out: &mut [u8]) -> Result<usize, ParquetError> {
    if let Some(written) = hadoop_blocks(input, out) {
        return Ok(written);
    }
    let mut framed = Vec::new();
    if read(lz4_flex::frame::FrameDecoder::new(input), out.len(), &mut framed).is_ok() {
        out[..framed.len()].copy_from_slice(&framed);
        return Ok(framed.len());
    }
    lz4_flex::block::decompress_into(input, out).map_err(failed)
}

/// Decompresses Hadoop's blocks; `None` if `input` does not consist of them.
fn hadoop_blocks(mut input: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut written = 0_usize;
    while !input.is_empty() {
        let (header, rest) = input.split_first_chunk::<HADOOP_HEADER_BYTES>()?;
        let size = |at: usize| header[at..].first_chunk().map(|bytes| u32::from_be_bytes(*bytes) as usize);
        let (bytes, compressed) = (size(0)?, size(4)?);
        let (block, rest) = rest.split_at_checked(compressed)?;
        let into = out.get_mut(written..written.checked_add(bytes)?)?;
        if lz4_flex::block::decompress_into(block, into).ok()? != bytes {
            return None;
        }
        written += bytes;
        input = rest;
    }
    Some(written)
}

fn failed(error: impl std::error::Error) -> ParquetError {
    ParquetError::General(format!("a page cannot be decompressed: {error}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write;

    use flate2::write::GzEncoder;
    use parquet::basic::{BrotliLevel, GzipLevel, ZstdLevel};

    use super::*;

    /// `content` in each codec, LZ4 in each of its layouts.
    fn compressed(content: &[u8]) -> Vec<(Codec, Vec<u8>)> {
        let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(content).unwrap();
        let mut brotli = brotli::CompressorWriter::new(Vec::new(), 4096, 5, 22);
        brotli.write_all(content).unwrap();
        let mut frame = lz4_flex::frame::FrameEncoder::new(Vec::new());
        frame.write_all(content).unwrap();
        let block = lz4_flex::block::compress(content);
        let mut hadoop = Vec::new();
        for part in content.chunks(content.len().div_ceil(2)) {
            let block = lz4_flex::block::compress(part);
            hadoop.extend((part.len() as u32).to_be_bytes());
            hadoop.extend((block.len() as u32).to_be_bytes());
            hadoop.extend(block);
        }
        vec![
            (Codec::GZIP(GzipLevel::default()), gzip.finish().unwrap()),
            (Codec::BROTLI(BrotliLevel::default()), brotli.into_inner()),
            (Codec::ZSTD(ZstdLevel::default()), zstd::encode_all(content, 1).unwrap()),
            (Codec::SNAPPY, snap::raw::Encoder::new().compress_vec(content).unwrap()),
            (Codec::LZ4_RAW, block.clone()),
            (Codec::LZ4, block),
            (Codec::LZ4, frame.finish().unwrap()),
            (Codec::LZ4, hadoop),
        ]
    }

    #[test]
    fn exactly_the_stated_bytes_are_decompressed() {
        let content: Vec<u8> = (0..50_000_u32).flat_map(|number| (number / 3).to_le_bytes()).collect();
        for (codec, input) in compressed(&content) {
            let decompressor = Decompressor::new(codec);
            for _ in 0..2 {
                let mut out = vec![1, 2, 3];
                decompressor.decompress(&input, content.len(), &mut out).unwrap();
                assert!(out[..3] == [1, 2, 3] && out[3..] == content[..], "{codec}");
            }
            for stated in [content.len() - 1, content.len() + 1, 0] {
                let mut out = Vec::new();
                let result = decompressor.decompress(&input, stated, &mut out);
                assert!(result.is_err(), "{codec} as {stated} bytes");
                assert!(out.capacity() <= stated + 64, "{codec} as {stated} bytes: {}", out.capacity());
            }
            let cut = &input[..input.len() / 2];
            assert!(
                decompressor.decompress(cut, content.len(), &mut Vec::new()).is_err(),
                "{codec}, truncated"
            );
        }
    }
}
