//! gzip and zlib streams assembled from pieces that are compressed in parallel.
//!
//! Deflate blocks can be concatenated if each ends on a byte boundary, which a *sync flush* ensures, and only
//! the last is marked final; the checksum of the whole follows from those of its parts. The result is a single
//! standard stream. This is pigz's method (Adler, 2007), except that pigz passes a dictionary from piece to
//! piece: pieces are large here, and omitting it costs about 0.1 % in size.

use std::io;

use crc_fast::CrcAlgorithm;
use flate2::{Compress, FlushCompress, Status};
use millstream_format::inflate::checksum;

/// An empty final block.
const EMPTY_FINAL_BLOCK: [u8; 2] = [3, 0];
/// The modulus of Adler-32: the largest prime below 2^16.
const ADLER: u32 = 65_521;

/// A container of a deflate stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Container {
    Gzip,
    Zlib,
}

/// The checksum and length that a container stores in its trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checksum {
    check: u32,
    bytes: u64,
}

impl Container {
    pub(super) fn header(self) -> &'static [u8] {
        match self {
            // No name, no time, unknown operating system.
            Self::Gzip => &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff],
            Self::Zlib => &[0x78, 0x9c],
        }
    }

    /// The checksum of zero bytes.
    pub(super) fn start(self) -> Checksum {
        Checksum { check: u32::from(self == Self::Zlib), bytes: 0 }
    }

    /// Compresses a piece and computes its checksum.
    pub(super) fn piece(self, data: &[u8]) -> io::Result<(Vec<u8>, Checksum)> {
        let mut state = Compress::new(flate2::Compression::default(), false);
        let mut out = Vec::with_capacity(data.len() / 2 + 64);
        loop {
            let rest = &data[state.total_in() as usize..];
            let status = state.compress_vec(rest, &mut out, FlushCompress::Sync).map_err(io::Error::other)?;
            // Unused capacity means that the flush is complete.
            if state.total_in() == data.len() as u64 && out.len() < out.capacity() {
                break;
            }
            if status == Status::BufError && out.len() < out.capacity() {
                return Err(io::Error::other("the compressor made no progress"));
            }
            out.reserve(out.len() / 2 + 64);
        }
        let mut checksum = match self {
            Self::Gzip => checksum::Checksum::crc32(),
            Self::Zlib => checksum::Checksum::adler32(),
        };
        checksum.update(data);
        Ok((out, Checksum { check: checksum.value(), bytes: data.len() as u64 }))
    }

    /// The checksum of the concatenation of two byte sequences.
    pub(super) fn combine(self, before: Checksum, next: Checksum) -> Checksum {
        let check = match self {
            Self::Gzip => crc_fast::checksum_combine(
                CrcAlgorithm::Crc32IsoHdlc,
                before.check.into(),
                next.check.into(),
                next.bytes,
            ) as u32,
            Self::Zlib => combine_adler(before.check, next),
        };
        Checksum { check, bytes: before.bytes + next.bytes }
    }

    /// The bytes that end the stream.
    pub(super) fn trailer(self, sum: Checksum) -> Vec<u8> {
        let mut trailer = EMPTY_FINAL_BLOCK.to_vec();
        match self {
            Self::Gzip => {
                trailer.extend(sum.check.to_le_bytes());
                // The format stores the length modulo 2^32.
                trailer.extend((sum.bytes as u32).to_le_bytes());
            }
            Self::Zlib => trailer.extend(sum.check.to_be_bytes()),
        }
        trailer
    }
}

/// Combines two Adler-32 checksums. Each byte of the first part adds its value to the second sum once more for
/// each byte that follows; the initial 1 of the second part must not count twice.
fn combine_adler(before: u32, next: Checksum) -> u32 {
    let modulus = u64::from(ADLER);
    let (a1, b1) = (u64::from(before & 0xffff), u64::from(before >> 16));
    let (a2, b2) = (u64::from(next.check & 0xffff), u64::from(next.check >> 16));
    let length = next.bytes % modulus;
    let a = (a1 + a2 + modulus - 1) % modulus;
    let b = (b1 + b2 + length * (a1 + modulus - 1)) % modulus;
    (b << 16 | a) as u32
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Read;

    use flate2::read::{GzDecoder, ZlibDecoder};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_form_one_stream(
            pieces in proptest::collection::vec(proptest::collection::vec(0_u8..4, 0..20_000), 0..6),
            noise in proptest::collection::vec(any::<u8>(), 0..70_000),
        ) {
            let pieces: Vec<Vec<u8>> = pieces.into_iter().chain([noise, vec![0xff; 140_000]]).collect();
            for container in [Container::Gzip, Container::Zlib] {
                let mut stream = container.header().to_vec();
                let mut sum = container.start();
                for piece in &pieces {
                    let (compressed, piece_sum) = container.piece(piece).unwrap();
                    stream.extend(compressed);
                    sum = container.combine(sum, piece_sum);
                }
                stream.extend(container.trailer(sum));
                let mut plain = Vec::new();
                // Both readers verify the checksum, and gzip's the length.
                match container {
                    Container::Gzip => GzDecoder::new(&stream[..]).read_to_end(&mut plain).unwrap(),
                    Container::Zlib => ZlibDecoder::new(&stream[..]).read_to_end(&mut plain).unwrap(),
                };
                prop_assert!(plain == pieces.concat());
            }
        }
    }
}
