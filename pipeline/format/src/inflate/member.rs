//! Headers and trailers of gzip members (RFC 1952) and zlib streams (RFC 1950).

use std::io::{self, BufRead};

use super::checksum::Checksum;
use super::{Inflate, State, invalid};
use crate::compression::Compression;

impl<R: BufRead> Inflate<R> {
    pub(super) fn start_member(&mut self) -> io::Result<()> {
        self.floor = self.written;
        self.unchecked = self.written;
        self.checked = 0;
        self.checksum = match self.kind {
            Compression::Gzip => self.gzip_header()?,
            _ => self.zlib_header()?,
        };
        self.state = State::Block;
        Ok(())
    }

    fn gzip_header(&mut self) -> io::Result<Checksum> {
        const HEADER_CHECKSUM: u8 = 2;
        const EXTRA: u8 = 4;
        const NAME: u8 = 8;
        const COMMENT: u8 = 16;

        let mut checksum = Checksum::crc32();
        let mut next = |this: &mut Self| -> io::Result<u8> {
            let byte = this.take(8)? as u8;
            checksum.update(&[byte]);
            Ok(byte)
        };
        if [next(self)?, next(self)?] != [0x1f, 0x8b] {
            return Err(invalid("invalid data after a gzip member"));
        }
        let (method, flags) = (next(self)?, next(self)?);
        if method != 8 {
            return Err(invalid("a gzip member uses an unknown compression method"));
        }
        if flags >= 32 {
            return Err(invalid("a gzip header has unknown flags"));
        }
        for _time_level_and_system in 0..6 {
            next(self)?;
        }
        if flags & EXTRA != 0 {
            let bytes = u16::from_le_bytes([next(self)?, next(self)?]);
            for _ in 0..bytes {
                next(self)?;
            }
        }
        for text in [NAME, COMMENT] {
            while flags & text != 0 && next(self)? != 0 {}
        }
        if flags & HEADER_CHECKSUM != 0 {
            let expected = checksum.value() & 0xffff;
            if self.take(16)? as u32 != expected {
                return Err(invalid("the checksum of a gzip header does not match"));
            }
        }
        Ok(Checksum::crc32())
    }

    fn zlib_header(&mut self) -> io::Result<Checksum> {
        const DICTIONARY: u8 = 0x20;

        let (method, flags) = (self.take(8)? as u8, self.take(8)? as u8);
        if method & 0x0f != 8 || method >> 4 > 7 || u16::from_be_bytes([method, flags]) % 31 != 0 {
            return Err(invalid("a zlib header is missing"));
        }
        if flags & DICTIONARY != 0 {
            return Err(invalid("a zlib stream requires a preset dictionary"));
        }
        Ok(Checksum::adler32())
    }

    /// Compares the trailer's checksum and length with the output.
    pub(super) fn end_member(&mut self) -> io::Result<()> {
        self.check();
        let _padding = self.take(self.held % 8)?;
        let stored = self.take(32)? as u32;
        let expected = self.checksum.value();
        let (stored, bytes) = match self.kind {
            Compression::Gzip => (stored, Some(self.take(32)? as u32)),
            _ => (stored.swap_bytes(), None),
        };
        if stored != expected {
            return Err(invalid("the checksum of the decompressed bytes does not match"));
        }
        if bytes.is_some_and(|bytes| bytes != self.checked as u32) {
            return Err(invalid("the number of decompressed bytes does not match"));
        }
        self.state = State::Between;
        Ok(())
    }
}
