//! Tar archives of regular files, read and written from start to end.
//!
//! An archive is a sequence of members, each a header of 512 bytes and data padded to a multiple of 512 bytes; a block of
//! zeros ends it. The reader knows ustar, paths and sizes of pax, GNU's long names and large sizes, and the headers of older
//! programs. It skips directories, links, devices and global headers.
//!
//! ```text
//! byte   0  name[100]  mode[8] uid[8] gid[8]  size[12]  mtime[12]  checksum[8]  type  link name[100]
//!      257  "ustar\0"  version[2]  ..  345  prefix[155]
//! ```
//!
//! [`append_file`] writes ustar headers without an owner or a time, such that equal files have equal archives. A pax header
//! precedes them if the name is long or not ASCII, or the size needs more than 11 octal digits.
//!
//! An archive without the block of zeros is an error, as it may have been truncated between two members, and so is one with
//! other bytes behind that block.
//!
//! Sources: POSIX.1-2024, `pax`, "ustar Interchange Format" and "pax Header Block"; GNU tar manual, "Basic Tar Format".

use std::io::{self, BufRead};
use std::ops::Range;

use crate::record::{append, ends_within, fill};

/// The size of headers, and of the unit to which data are padded.
pub(crate) const BLOCK_BYTES: usize = 512;
/// The maximum size of a name and of a pax header. Linux limits paths to 4 KiB.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;

/// The maximum size of a file, that of POSIX's `off_t`.
const MAX_FILE_BYTES: u64 = i64::MAX as u64;

/// The end of an archive: two blocks of zeros.
pub(crate) const END: [u8; 2 * BLOCK_BYTES] = [0; 2 * BLOCK_BYTES];
/// The name in pax headers, as Python has it.
const PAX_NAME: &str = "././@PaxHeader";

const NAME: Range<usize> = 0..100;
const MODE: Range<usize> = 100..108;
const OWNER: Range<usize> = 108..116;
const GROUP: Range<usize> = 116..124;
const SIZE: Range<usize> = 124..136;
const TIME: Range<usize> = 136..148;
const CHECKSUM: Range<usize> = 148..156;
const TYPE: usize = 156;
const MAGIC: Range<usize> = 257..262;
/// The version of archives with a prefix; in those of GNU, spaces are in its place.
const VERSION: Range<usize> = 263..265;
const PREFIX: Range<usize> = 345..500;

/// Reads the members of an archive.
pub(crate) struct TarReader<R> {
    input: R,
    offset: u64,
    /// Bytes of the current member that have not been read, and the padding behind them.
    data: u64,
    padding: u64,
    is_ended: bool,
}

/// A regular file in an archive. Its bytes come next.
#[derive(Debug)]
pub(crate) struct Member {
    /// The path.
    pub(crate) name: Vec<u8>,
    /// The number of its bytes.
    pub(crate) size: u64,
    /// The offset of its first header in the archive.
    pub(crate) offset: u64,
}

/// Values of pax headers, which override those of the next header.
#[derive(Default)]
struct Extensions {
    name: Option<Vec<u8>>,
    size: Option<u64>,
}

impl<R: BufRead> TarReader<R> {
    /// A reader of `input`, which must be uncompressed and at the start of an archive.
    pub(crate) fn new(input: R) -> Self {
        Self { input, offset: 0, data: 0, padding: 0, is_ended: false }
    }

    pub(crate) fn input(&self) -> &R {
        &self.input
    }

    pub(crate) fn input_mut(&mut self) -> &mut R {
        &mut self.input
    }

    /// The next regular file; `None` at the end. Skips the rest of the previous one.
    pub(crate) fn next_member(&mut self) -> io::Result<Option<Member>> {
        let mut extensions = Extensions::default();
        let mut first = None;
        while !self.is_ended {
            self.skip_rest()?;
            let offset = *first.get_or_insert(self.offset);
            let Some(header) = self.header()? else {
                return if offset + BLOCK_BYTES as u64 == self.offset {
                    self.end()
                } else {
                    Err(no_member())
                };
            };
            let (kind, size) = (header[TYPE], self.size(&header)?);
            match kind {
                b'L' => extensions.name = Some(without_zeros(&self.extension(size)?).to_vec()),
                // `X` is that of Solaris.
                b'x' | b'X' => {
                    extensions.read(&self.extension(size)?).map_err(|message| invalid(message.to_owned()))?;
                }
                b'S' => return Err(invalid("sparse files are not supported".to_owned())),
                // Links, devices and directories have no data, whatever their size says.
                b'1'..=b'6' => (extensions, first) = (Extensions::default(), None),
                b'0' | b'7' | 0 => {
                    let Extensions { name, size: of_pax } = extensions;
                    let size = of_pax.unwrap_or(size);
                    self.expect(size);
                    return Ok(Some(Member { name: name.unwrap_or_else(|| path(&header)), size, offset }));
                }
                // Long names of links, global headers, labels of volumes and members of unknown types.
                _ => {
                    self.expect(size);
                    match kind {
                        b'K' => {}
                        b'g' => first = None,
                        _ => (extensions, first) = (Extensions::default(), None),
                    }
                }
            }
        }
        Ok(None)
    }

    /// Reads the bytes behind the first block of zeros, which must be zeros: a compressed stream has its checksum at its end.
    fn end(&mut self) -> io::Result<Option<Member>> {
        self.is_ended = true;
        loop {
            let buffer = fill(&mut self.input)?;
            if buffer.is_empty() {
                return Ok(None);
            }
            if buffer.iter().any(|&byte| byte != 0) {
                return Err(invalid("data follow the end of the archive".to_owned()));
            }
            let amount = buffer.len();
            self.consume(amount);
        }
    }

    /// Appends the data of the current member to `out`.
    pub(crate) fn read_to(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        let appended = append(&mut self.input, out, self.data)?;
        self.offset += appended;
        self.data -= appended;
        if self.data > 0 { Err(ends_within("a member")) } else { Ok(()) }
    }

    fn skip_rest(&mut self) -> io::Result<()> {
        let mut rest = self.data.saturating_add(self.padding);
        (self.data, self.padding) = (0, 0);
        while rest > 0 {
            let amount = usize::try_from(rest).unwrap_or(usize::MAX).min(self.fill("a member")?.len());
            self.consume(amount);
            rest -= amount as u64;
        }
        Ok(())
    }

    /// The next header; `None` if the archive ends.
    fn header(&mut self) -> io::Result<Option<[u8; BLOCK_BYTES]>> {
        let mut header = [0; BLOCK_BYTES];
        let mut filled = 0;
        while filled < BLOCK_BYTES {
            let what = if filled == 0 { "the archive, whose last blocks are missing" } else { "a header" };
            let buffer = self.fill(what)?;
            let amount = buffer.len().min(BLOCK_BYTES - filled);
            header[filled..filled + amount].copy_from_slice(&buffer[..amount]);
            self.consume(amount);
            filled += amount;
        }
        if header == [0; BLOCK_BYTES] {
            return Ok(None);
        }
        if !is_header(&header) {
            return Err(invalid("no header of a tar archive".to_owned()));
        }
        Ok(Some(header))
    }

    /// The size that a header states: octal digits, or a big-endian number after the byte `0x80` (GNU).
    fn size(&self, header: &[u8; BLOCK_BYTES]) -> io::Result<u64> {
        let field = &header[SIZE];
        let size = match *field {
            [0x80, .., b7, b6, b5, b4, b3, b2, b1, b0] if field[1..4] == [0; 3] => {
                Some(u64::from_be_bytes([b7, b6, b5, b4, b3, b2, b1, b0]))
            }
            _ => octal(field),
        };
        size.filter(|&size| size <= MAX_FILE_BYTES).ok_or_else(|| {
            invalid(format!("the size of a file is not a number: {:?}", field.escape_ascii().to_string()))
        })
    }

    /// Announces data of this size.
    fn expect(&mut self, size: u64) {
        (self.data, self.padding) = (size, size.wrapping_neg() % BLOCK_BYTES as u64);
    }

    /// The data of a header that extends the next one.
    fn extension(&mut self, size: u64) -> io::Result<Vec<u8>> {
        if size > MAX_EXTENSION_BYTES {
            return Err(invalid(format!("an extended header of {size} bytes exceeds {MAX_EXTENSION_BYTES}")));
        }
        self.expect(size);
        let mut bytes = Vec::new();
        self.read_to(&mut bytes)?;
        Ok(bytes)
    }

    /// Buffered bytes, at least one.
    fn fill(&mut self, what: &str) -> io::Result<&[u8]> {
        let buffer = fill(&mut self.input)?;
        if buffer.is_empty() {
            return Err(ends_within(what));
        }
        Ok(buffer)
    }

    fn consume(&mut self, amount: usize) {
        self.input.consume(amount);
        self.offset += amount as u64;
    }
}

impl Extensions {
    /// Reads a pax header: lines `LENGTH KEY=VALUE`, whose length counts the whole line.
    fn read(&mut self, mut header: &[u8]) -> Result<(), &'static str> {
        let malformed = "a pax header is malformed";
        while !header.is_empty() {
            let space = header.iter().position(|&byte| byte == b' ').ok_or(malformed)?;
            let length = number(&header[..space], 10).ok_or(malformed)?;
            let length = usize::try_from(length).map_err(|_| malformed)?;
            let line = header.get(space + 1..length).and_then(|line| line.strip_suffix(b"\n"));
            let line = line.ok_or(malformed)?;
            let equals = line.iter().position(|&byte| byte == b'=').ok_or(malformed)?;
            let (key, value) = (&line[..equals], &line[equals + 1..]);
            match key {
                b"path" => self.name = Some(value.to_vec()),
                b"size" => {
                    let size = number(value, 10).filter(|&size| size <= MAX_FILE_BYTES);
                    self.size = Some(size.ok_or("the size in a pax header is not a number")?);
                }
                _ if key.starts_with(b"GNU.sparse.") => return Err("sparse files are not supported"),
                _ => {}
            }
            header = &header[length..];
        }
        Ok(())
    }
}

/// Appends a regular file with these bytes to an archive. The name must have no zero byte.
pub(crate) fn append_file(archive: &mut Vec<u8>, name: &str, data: &[u8]) {
    append_headers(archive, name, data.len() as u64);
    append_padded(archive, data);
}

/// The headers of a file.
fn append_headers(archive: &mut Vec<u8>, name: &str, size: u64) {
    let mut records = Vec::new();
    if name.len() > NAME.len() || !name.is_ascii() {
        append_record(&mut records, "path", name);
    }
    let octal_size = if size < 1 << (3 * (SIZE.len() - 1)) {
        size
    } else {
        append_record(&mut records, "size", &size.to_string());
        0
    };
    if !records.is_empty() {
        archive.extend_from_slice(&header(PAX_NAME, b'x', records.len() as u64));
        append_padded(archive, &records);
    }
    archive.extend_from_slice(&header(name, b'0', octal_size));
}

fn append_padded(archive: &mut Vec<u8>, data: &[u8]) {
    archive.extend_from_slice(data);
    archive.resize(archive.len() + data.len().wrapping_neg() % BLOCK_BYTES, 0);
}

/// Appends a record of a pax header: `LENGTH KEY=VALUE`, whose length counts the whole line.
fn append_record(records: &mut Vec<u8>, key: &str, value: &str) {
    let rest = format!(" {key}={value}\n");
    let mut length = rest.len();
    while length != rest.len() + length.to_string().len() {
        length = rest.len() + length.to_string().len();
    }
    records.extend_from_slice(format!("{length}{rest}").as_bytes());
}

/// A ustar header. A longer name is cut.
fn header(name: &str, kind: u8, size: u64) -> [u8; BLOCK_BYTES] {
    let mut header = [0; BLOCK_BYTES];
    let mut put = |at: usize, field: &[u8]| header[at..at + field.len()].copy_from_slice(field);
    put(NAME.start, &name.as_bytes()[..name.floor_char_boundary(NAME.len())]);
    put(MODE.start, b"0000644\0");
    put(OWNER.start, b"0000000\0");
    put(GROUP.start, b"0000000\0");
    put(SIZE.start, format!("{size:011o}\0").as_bytes());
    put(TIME.start, b"00000000000\0");
    put(CHECKSUM.start, b"        ");
    put(TYPE, &[kind]);
    put(MAGIC.start, b"ustar\0");
    put(VERSION.start, b"00");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// Whether a file starts as an archive.
pub(crate) fn is_archive(start: &[u8]) -> bool {
    start.first_chunk().is_some_and(|header| *header != [0; BLOCK_BYTES] && is_header(header))
}

/// Whether the checksum of a header matches: the sum of its bytes, with spaces as the checksum.
fn is_header(header: &[u8; BLOCK_BYTES]) -> bool {
    let of_spaces = CHECKSUM.len() as u64 * u64::from(b' ');
    let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    octal(&header[CHECKSUM]) == Some(sum(header) - sum(&header[CHECKSUM]) + of_spaces)
}

/// The path that a header states.
fn path(header: &[u8; BLOCK_BYTES]) -> Vec<u8> {
    let name = without_zeros(&header[NAME]);
    let prefix = without_zeros(&header[PREFIX]);
    let has_prefix = header[MAGIC] == *b"ustar" && header[VERSION] == *b"00" && !prefix.is_empty();
    if has_prefix { [prefix, b"/", name].concat() } else { name.to_vec() }
}

fn without_zeros(field: &[u8]) -> &[u8] {
    field.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// A number of octal digits, between spaces and zero bytes.
fn octal(field: &[u8]) -> Option<u64> {
    let field = without_zeros(field).trim_ascii();
    if field.is_empty() { Some(0) } else { number(field, 8) }
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let is_plain = digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits)
        .ok()
        .filter(|_| is_plain)
        .and_then(|digits| u64::from_str_radix(digits, radix).ok())
}

fn no_member() -> io::Error {
    invalid("the archive ends behind an extended header".to_owned())
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
#[path = "tar_tests.rs"]
mod tests;
