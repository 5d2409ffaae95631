//! Streaming Zstandard decompression.
//!
//! If a library call encounters damage, it also drops the data that it decoded before the damage. So each call passes
//! exactly as many bytes as the previous one requested: the calls, and hence the bytes decoded before damage, do not
//! depend on how the input is split. This passes one block at a time, which also saves the library a copy.
//!
//! A frame chooses the decoder's memory, its window. RFC 8878 recommends that decoders support windows up to 8 MiB and
//! that encoders need no larger one; `zstd` needs more only with `--ultra` or `--long`. Larger ones are an error: each
//! lane of a job may hold a window.
//!
//! Source: RFC 8878.

use std::io::{self, BufRead, Read};

use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use crate::error::SourceError;

/// Output buffer of one call: two maximum-size blocks.
const OUTPUT_BYTES: usize = 256 << 10;
/// The largest window, as a power of two.
const MAX_WINDOW_LOG: u32 = 23;
/// Bytes that determine the length of a frame header.
const FRAME_START_BYTES: usize = 5;

/// Decodes consecutive frames as one stream.
pub struct Zstandard<R> {
    input: R,
    frames: Frames,
    /// Input collected for the next call, if the pieces of input are smaller than it requires.
    gathered: Vec<u8>,
    output: Box<[u8]>,
    read: usize,
    written: usize,
    /// The error that ended the stream; later reads repeat it.
    failure: Option<io::Error>,
}

/// The decoder and the input that its next call requires.
struct Frames {
    decoder: Decoder<'static>,
    /// Bytes to pass to the next call.
    wanted: usize,
    /// Whether the position is between frames, the only place where input may end.
    between: bool,
}

impl Frames {
    /// Decodes `bytes`; returns the number of bytes consumed and produced.
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
        let mut decoder = Decoder::new()?;
        decoder.set_parameter(DParameter::WindowLogMax(MAX_WINDOW_LOG))?;
        Ok(Self {
            input,
            frames: Frames { decoder, wanted: FRAME_START_BYTES, between: true },
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

    /// Decodes until there is output or the input ends.
    fn advance(&mut self) -> io::Result<()> {
        (self.read, self.written) = (0, 0);
        while self.written == 0 {
            let piece = self.input.fill_buf()?;
            let wanted = self.frames.wanted;
            if self.gathered.is_empty() && piece.len() >= wanted {
                let (consumed, written) = self.frames.call(&piece[..wanted], &mut self.output)?;
                self.input.consume(consumed);
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
                let (consumed, written) = self.frames.call(&self.gathered, &mut self.output)?;
                self.gathered.drain(..consumed);
                self.written = written;
                if ended && written == 0 && self.gathered.is_empty() && !self.frames.between {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the compressed stream is truncated",
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
            // An error is permanent.
            if self.failure.is_none()
                && let Err(error) = self.advance()
            {
                self.failure = Some(SourceError::repeat(&error));
                return Err(error);
            }
            if let Some(error) = &self.failure {
                return Err(SourceError::repeat(error));
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
