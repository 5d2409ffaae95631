//! The checksums of gzip members and zlib streams.

use crc_fast::{CrcAlgorithm, Digest};

/// The largest prime below 2^16.
const ADLER_MODULUS: u32 = 65_521;
/// The number of bytes that can be summed before the sums must be reduced, as in zlib, rounded down to blocks of 32.
const ADLER_RUN: usize = 5536;

/// A running checksum.
pub enum Checksum {
    /// Of gzip.
    Crc32(Box<Digest>),
    /// Of zlib.
    Adler32 {
        /// The sum of the bytes, plus 1.
        sum: u32,
        /// The sum of all values of `sum`.
        sums: u32,
    },
}

impl Checksum {
    /// The CRC-32 of no bytes.
    pub fn crc32() -> Self {
        Self::Crc32(Box::new(Digest::new(CrcAlgorithm::Crc32IsoHdlc)))
    }

    /// The Adler-32 of no bytes.
    pub fn adler32() -> Self {
        Self::Adler32 { sum: 1, sums: 0 }
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc32(digest) => digest.update(bytes),
            Self::Adler32 { sum, sums } => {
                for run in bytes.chunks(ADLER_RUN) {
                    let (blocks, rest) = run.as_chunks::<32>();
                    for block in blocks {
                        // Each byte contributes once for itself and once for each byte that follows.
                        let weighted =
                            block.iter().zip((1..=32).rev()).map(|(&byte, weight)| u32::from(byte) * weight);
                        *sums += 32 * *sum + weighted.sum::<u32>();
                        *sum += block.iter().map(|&byte| u32::from(byte)).sum::<u32>();
                    }
                    for &byte in rest {
                        *sum += u32::from(byte);
                        *sums += *sum;
                    }
                    *sum %= ADLER_MODULUS;
                    *sums %= ADLER_MODULUS;
                }
            }
        }
    }

    /// The checksum of the bytes so far.
    pub fn value(&self) -> u32 {
        match self {
            Self::Crc32(digest) => digest.finalize() as u32,
            Self::Adler32 { sum, sums } => sums << 16 | sum,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adler32_matches_its_definition() {
        for length in [0, 1, 31, 32, 33, 5535, 5536, 5552, 5553, 20_000] {
            for byte in [1u8, 0xff] {
                let bytes = vec![byte; length];
                let plain = bytes.iter().fold((1u64, 0u64), |(sum, sums), &byte| {
                    let sum = (sum + u64::from(byte)) % 65_521;
                    (sum, (sums + sum) % 65_521)
                });
                let mut checksum = Checksum::adler32();
                checksum.update(&bytes);
                assert_eq!(u64::from(checksum.value()), plain.1 << 16 | plain.0, "{length}");
            }
        }
        // The usual test vector for RFC 1950.
        let mut checksum = Checksum::adler32();
        checksum.update(b"Wikipedia");
        assert_eq!(checksum.value(), 0x11e6_0398);
    }
}
