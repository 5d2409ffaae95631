//! Zstandard, decompressed as it comes.
//!
//! The library decodes what one call of it brings, and where that is damaged it also drops what the call has
//! decoded before the damage. So that the bytes that are read do not depend on how input falls into pieces, each
//! call brings as many bytes as the one before asked for, no more and no fewer: the calls are the same for the
//! same stream. That is a block at a time, which also spares the library a copy.
//!
//! Source: RFC 8878.

use std::io::{self, BufRead, Read};

use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

/// Output of a call: two of the largest blocks.
const OUTPUT_BYTES: usize = 256 << 10;
/// What tells how long a frame's header is.
const FRAME_START_BYTES: usize = 5;

/// Frames, one after the other, as one stream.
pub struct Zstandard<R> {
    input: R,
    frames: Frames,
    /// Bytes of the next call that came in pieces too small for it.
    gathered: Vec<u8>,
    output: Box<[u8]>,
    read: usize,
    written: usize,
    /// What ended it.
    failure: Option<(io::ErrorKind, String)>,
}

/// The decoder, and what it is to be called with.
struct Frames {
    decoder: Decoder<'static>,
    /// Bytes of the next call.
    wanted: usize,
    /// Between frames: here, and only here, input may end.
    between: bool,
}

impl Frames {
    /// Brings `bytes` to the decoder: how many of them it took, and how many it made.
    fn call(&mut self, bytes: &[u8], output: &mut [u8]) -> io::Result<(usize, usize)> {
        let mut input = InBuffer::around(bytes);
        let mut output = OutBuffer::around(output);
        let hint = self
            .decoder
            .run(&mut input, &mut output)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        let left = bytes.len() - input.pos();
        self.between = hint == 0;
        self.wanted = match left {
            _ if self.between => left.max(FRAME_START_BYTES),
            0 => hint,
            left => left,
        };
        Ok((input.pos(), output.pos()))
    }
}

impl<R: BufRead> Zstandard<R> {
    pub(crate) fn new(input: R) -> io::Result<Self> {
        Ok(Self {
            input,
            frames: Frames { decoder: Decoder::new()?, wanted: FRAME_START_BYTES, between: true },
            gathered: Vec::new(),
            output: vec![0; OUTPUT_BYTES].into_boxed_slice(),
            read: 0,
            written: 0,
            failure: None,
        })
    }

    /// The compressed stream.
    pub(crate) fn input(&self) -> &R {
        &self.input
    }

    /// Makes some output, or none where input has ended.
    fn advance(&mut self) -> io::Result<()> {
        (self.read, self.written) = (0, 0);
        while self.written == 0 {
            let piece = self.input.fill_buf()?;
            let wanted = self.frames.wanted;
            if self.gathered.is_empty() && piece.len() >= wanted {
                let (taken, written) = self.frames.call(&piece[..wanted], &mut self.output)?;
                self.input.consume(taken);
                self.written = written;
                continue;
            }
            let ended = piece.is_empty();
            if ended && self.gathered.is_empty() && self.frames.between {
                break;
            }
            let missing = piece.len().min(wanted - self.gathered.len());
            self.gathered.extend_from_slice(&piece[..missing]);
            self.input.consume(missing);
            if self.gathered.len() == wanted || ended {
                let (taken, written) = self.frames.call(&self.gathered, &mut self.output)?;
                self.gathered.drain(..taken);
                self.written = written;
                if ended && written == 0 && self.gathered.is_empty() && !self.frames.between {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the compressed stream is cut short",
                    ));
                }
            }
        }
        Ok(())
    }
}

impl<R: BufRead> BufRead for Zstandard<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.read == self.written {
            // It stays failed, whatever the reader does next.
            if self.failure.is_none()
                && let Err(error) = self.advance()
            {
                self.failure = Some((error.kind(), error.to_string()));
                return Err(error);
            }
            if let Some((kind, message)) = &self.failure {
                return Err(io::Error::new(*kind, message.clone()));
            }
        }
        Ok(&self.output[self.read..self.written])
    }

    fn consume(&mut self, amount: usize) {
        self.read = (self.read + amount).min(self.written);
    }
}

impl<R: BufRead> Read for Zstandard<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let amount = self.fill_buf()?.read(out)?;
        self.consume(amount);
        Ok(amount)
    }
}
