//! Recognizes files that have another format than expected.
//!
//! A reader of records keeps a copy of the first bytes of its input, and examines them when the first record cannot be
//! read. A file whose first record is intact is never refused.

use std::io::{self, BufRead, Read};

use crate::compression::{Compression, MAGIC_BYTES};
use crate::error::SourceError;
use crate::record::{Damage, ReadError, RecordFormat, append};
use crate::{Content, tar, tfrecord};

/// The number of bytes that show the format of a file.
const START_BYTES: usize = tar::BLOCK_BYTES;

/// An input with a copy of its first bytes, as far as they were consumed.
pub(crate) struct WithStart<R> {
    input: R,
    start: Vec<u8>,
}

impl<R: BufRead> WithStart<R> {
    /// `input` must be uncompressed and at its start.
    pub(crate) fn new(input: R) -> Self {
        Self { input, start: Vec::new() }
    }

    /// The input at its current position.
    pub(crate) fn input(&self) -> &R {
        &self.input
    }

    /// The first bytes, at most [`START_BYTES`].
    pub(crate) fn start(&self) -> &[u8] {
        &self.start
    }

    /// Moves up to `bytes` bytes to `out`. Stops without an error at damage of the compressed stream, which the next read
    /// reports again.
    pub(crate) fn read_ahead(&mut self, out: &mut Vec<u8>, bytes: usize) -> Result<(), ReadError> {
        match append(self, out, bytes as u64).map_err(SourceError::unmark) {
            Err(Ok(source)) => Err(ReadError::Source(source)),
            Ok(_) | Err(Err(_)) => Ok(()),
        }
    }

    /// Adds the other format of the file, if its first bytes show one, to an error that ends the file at its first record.
    pub(crate) fn explain(&mut self, error: ReadError, expected: RecordFormat) -> ReadError {
        let ReadError::Damage(damage) = error else { return error };
        let missing = START_BYTES.saturating_sub(self.start.len());
        if let Err(error) = self.read_ahead(&mut Vec::new(), missing) {
            return error;
        }
        match recognize(&self.start).filter(|&found| !may_start(expected, found)) {
            Some(found) => ReadError::Damage(damage.of_format(expected, found)),
            None => ReadError::Damage(damage),
        }
    }
}

impl<R: BufRead> BufRead for WithStart<R> {
    #[inline]
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.input.fill_buf()
    }

    #[inline]
    fn consume(&mut self, amount: usize) {
        let room = START_BYTES.saturating_sub(self.start.len()).min(amount);
        // The buffer still holds the consumed bytes.
        if room > 0
            && let Some(copied) = self.input.fill_buf().ok().and_then(|buffer| buffer.get(..room))
        {
            self.start.extend_from_slice(copied);
        }
        self.input.consume(amount);
    }
}

impl<R: BufRead> Read for WithStart<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let amount = self.fill_buf()?.read(out)?;
        self.consume(amount);
        Ok(amount)
    }
}

impl Damage {
    /// Damage that ends a file because the file has another format.
    pub(crate) fn of_format(self, expected: RecordFormat, found: Content) -> Self {
        let message = format!("expected {}, found {found}", expected.name().name());
        Self { message, fatal: true, truncated: false, too_long: false, actual_format: Some(found), ..self }
    }
}

/// The format that the first bytes of an uncompressed file clearly show.
pub(crate) fn recognize(start: &[u8]) -> Option<Content> {
    if start.len() < MAGIC_BYTES {
        return None;
    }
    if tar::is_archive(start) {
        return Some(Content::Tar);
    }
    if tfrecord::is_header(start) {
        return Some(Content::TfRecord(Compression::None));
    }
    match Content::detect_non_tfrecord(start) {
        // A truncated archive can end within the first name.
        Content::Text if start.len() < START_BYTES && !start.contains(&b'\n') => None,
        Content::Empty | Content::Unknown => None,
        found => Some(found),
    }
}

/// Whether an intact or damaged file of a format can start like this.
fn may_start(format: RecordFormat, content: Content) -> bool {
    match format {
        RecordFormat::TfRecord => matches!(content, Content::TfRecord(_)),
        RecordFormat::JsonLines => matches!(content, Content::Json | Content::Text),
        RecordFormat::WebDataset => content == Content::Tar,
        RecordFormat::Mds => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::{BufReader, Write};

    use super::*;
    use crate::compression::{Compressor, Decompressed};
    use crate::record::testing::{row, rows};
    use crate::record::{AnyReader, MAX_RECORD_BYTES};
    use crate::tfrecord::RecordWriter;

    const FORMATS: [RecordFormat; 3] = [RecordFormat::JsonLines, RecordFormat::WebDataset, RecordFormat::Mds];

    fn member(name: &[u8], kind: u8) -> Vec<u8> {
        let mut header = vec![0; START_BYTES];
        header[..name.len()].copy_from_slice(name);
        header[148..156].fill(b' ');
        header[156] = kind;
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        header
    }

    fn framed(record: &[u8]) -> Vec<u8> {
        let mut writer = RecordWriter::new(Vec::new());
        writer.write(record).unwrap();
        writer.into_inner()
    }

    fn compressed(bytes: &[u8], compression: Compression) -> Vec<u8> {
        let mut compressor = Compressor::new(Vec::new(), compression).unwrap();
        compressor.write_all(bytes).unwrap();
        compressor.finish().unwrap()
    }

    /// The result of the first record, if the input arrives in pieces of this size.
    fn first(format: RecordFormat, bytes: &[u8], piece: usize) -> Result<(), Damage> {
        let (input, _) = Decompressed::of_records(BufReader::with_capacity(piece, bytes), format).unwrap();
        match AnyReader::new(format, input, MAX_RECORD_BYTES).next_record() {
            Ok(Some(_)) => Ok(()),
            Ok(None) => panic!("no record"),
            Err(ReadError::Damage(damage)) => Err(damage),
            Err(ReadError::Source(error)) => panic!("{error}"),
        }
    }

    #[test]
    fn files_of_other_formats_are_recognized() {
        let tfrecord = Content::TfRecord(Compression::None);
        let files = [
            (b"age,sex\n39,Male\n50,Female\n".to_vec(), Content::Text),
            ("wide,".repeat(200).into_bytes(), Content::Text),
            (b"{\"a\": 1}\n{\"a\": 2}\n".to_vec(), Content::Json),
            (b"PAR1\x15\x04\x15\x10\x15\x14\x4c\x15\n{}\n".to_vec(), Content::Parquet),
            (framed(b"a record"), tfrecord),
            // Its length begins like a blank line.
            (framed(b"ten bytes!"), tfrecord),
            (framed(&[b'\n'; 700]), tfrecord),
            ([member(b"0.txt", b'0'), vec![0; 1024]].concat(), Content::Tar),
        ];
        let mut recognized = 0;
        for format in FORMATS {
            for (bytes, found) in &files {
                // Text of several lines is refused as JSON lines.
                if may_start(format, *found) && !bytes.starts_with(b"age") {
                    continue;
                }
                for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
                    let bytes = compressed(bytes, compression);
                    for piece in [1, 7, 4096] {
                        let damage = first(format, &bytes, piece).unwrap_err();
                        assert_eq!(damage.actual_format, Some(*found), "{format:?} {compression:?} {piece}");
                        assert!(damage.fatal && !damage.truncated);
                        assert_eq!(
                            damage.message,
                            format!("expected {}, found {found}", format.name().name())
                        );
                        recognized += 1;
                    }
                }
            }
        }
        assert_eq!(recognized, 9 * (8 - 2 + 8 - 1 + 8));
    }

    #[test]
    fn a_first_line_that_is_too_long_can_be_another_format() {
        let error = |text: &[u8]| rows(RecordFormat::JsonLines, text, 50).pop().unwrap().unwrap_err();
        let parquet = [b"PAR1", &[0; 100][..]].concat();
        assert_eq!(error(&parquet), "!expected JSON lines, found Parquet");
        for start in ["{\"a\": ", "any text\n{\"a\": ", "any text "] {
            let text = format!("{start}{}", "1".repeat(1000));
            assert!(error(text.as_bytes()).starts_with("!a record of more than 50 bytes"));
        }
    }

    #[test]
    fn damaged_files_are_not_taken_for_others() {
        let files = [
            (RecordFormat::WebDataset, b"train/000000017.jpg".to_vec()),
            (RecordFormat::WebDataset, [member(b"train/", b'5'), vec![1; 512]].concat()),
            (RecordFormat::WebDataset, [member(b"PAR1/", b'5'), vec![1; 512]].concat()),
            (RecordFormat::WebDataset, [0xff, 0].repeat(512)),
            (RecordFormat::Mds, [0xff, 0].repeat(512)),
            (RecordFormat::Mds, b"\x0a\0\0\0".to_vec()),
            (RecordFormat::Mds, b"\x0a".to_vec()),
            (RecordFormat::JsonLines, b"\0\0\0\0 no format\nknown\n".to_vec()),
            (RecordFormat::JsonLines, b"one line of text\n".to_vec()),
            (RecordFormat::JsonLines, b"{\"a\": damaged}\nanother line\n".to_vec()),
            (RecordFormat::JsonLines, b"{damaged\nanother line\nanother line\n".to_vec()),
            (RecordFormat::JsonLines, b"\xef\xbb\xbf\n {damaged\nanother line\n".to_vec()),
            (RecordFormat::JsonLines, b"\n  \n[1, 2, 3]\n[1, 2, 3]\n".to_vec()),
        ];
        for (format, bytes) in files {
            let damage = first(format, &bytes, 4096).unwrap_err();
            assert_eq!(damage.actual_format, None, "{format:?}: {}", bytes.escape_ascii());
            assert!(!damage.message.starts_with("expected "), "{}", damage.message);
        }
    }

    #[test]
    fn lines_behind_a_damaged_first_one_are_read() {
        let objects = |count: usize| (0..count).map(|number| format!("{{\"a\": {number}}}\n"));
        for first in ["made by a program\n", "\n\nlue\": 1}\n", &format!("{}\n", "x".repeat(100_000))] {
            for between in ["", "\n", "another line\n", "\u{feff} "] {
                // More than is read ahead.
                let text = format!("{first}{between}{}", objects(10_000).collect::<String>());
                for piece in [3, 50_000] {
                    let input = BufReader::with_capacity(piece, text.as_bytes());
                    let found = rows(RecordFormat::JsonLines, input, MAX_RECORD_BYTES);
                    let damaged = found.iter().take_while(|row| row.is_err()).count();
                    assert_eq!(damaged, if between.starts_with('a') { 2 } else { 1 });
                    let numbers = (0..10_000).map(|number: i32| row(&[("a", &[&number.to_string()])]));
                    assert!(found[damaged..].iter().cloned().eq(numbers));
                }
            }
        }
    }

    #[test]
    fn text_behind_an_object_is_damage() {
        let text = "\n\u{feff}{\"a\": 1}\nsome text\nmore text\n";
        let found = rows(RecordFormat::JsonLines, text.as_bytes(), MAX_RECORD_BYTES);
        assert_eq!((found.len(), &found[0]), (3, &row(&[("a", &["1"])])));
        for damage in &found[1..] {
            assert!(damage.as_ref().unwrap_err().starts_with("not a JSON object"), "{damage:?}");
        }
    }

    #[test]
    fn damage_in_the_bytes_read_ahead_is_reported_in_its_place() {
        let bytes = compressed(b"a line of text\n{\"a\": 1}\n", Compression::Gzip);
        let (input, _) = Decompressed::new(&bytes[..bytes.len() - 4]).unwrap();
        let found = rows(RecordFormat::JsonLines, input, MAX_RECORD_BYTES);
        assert_eq!((found.len(), &found[1]), (3, &row(&[("a", &["1"])])));
        let [first, last] = [0, 2].map(|at| found[at].as_ref().unwrap_err());
        assert!(first.starts_with("not a JSON object") && last.starts_with('!'), "{found:?}");
    }

    /// A reader that fails once, and then ends.
    struct FailsOnce(bool);

    impl Read for FailsOnce {
        fn read(&mut self, _out: &mut [u8]) -> io::Result<usize> {
            if std::mem::replace(&mut self.0, true) { Ok(0) } else { Err(io::Error::other("no answer")) }
        }
    }

    #[test]
    fn a_failed_read_ahead_is_not_taken_for_the_end() {
        for format in FORMATS {
            let input = (&b"a line of text\nand more text\n"[..]).chain(BufReader::new(FailsOnce(false)));
            let (input, _) = Decompressed::new(input).unwrap();
            let read = AnyReader::new(format, input, MAX_RECORD_BYTES).next_record().map(drop);
            assert!(matches!(read, Err(ReadError::Source(_))), "{format:?}: {read:?}");
        }
    }
}
