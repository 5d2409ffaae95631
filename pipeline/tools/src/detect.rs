//! Detects the format of a file, and the separator of its fields, from its first bytes and its name.

use std::io::Read;

use millstream_format::compression::{Compression, Decompressed};
use millstream_format::csv::CsvOptions;
use millstream_format::json_lines::is_json;
use millstream_format::{Content, Error as FormatError, FileFormat};
use millstream_io::storage::Object;
use millstream_pipeline::Error;
use tokio::runtime::Handle;

/// The number of leading bytes read, and the number of those that are decompressed.
const SNIFFED_BYTES: u64 = 64 << 10;
/// Separators other than the comma.
const SEPARATORS: [u8; 3] = [b'\t', b';', b'|'];

/// The format of a file.
pub(crate) struct Detected {
    pub(crate) format: FileFormat,
    /// The given layout of CSV, with the detected separator.
    pub(crate) csv: CsvOptions,
    /// The first bytes, decompressed.
    pub(crate) start: Vec<u8>,
    /// What was assumed, for the user to check.
    pub(crate) note: Option<String>,
}

/// Detects the format of a file, unless it is given.
///
/// # Errors
/// The file cannot be read, is empty, or has an unsupported format.
pub(crate) fn detect(
    object: &Object,
    csv: &CsvOptions,
    given: Option<FileFormat>,
    runtime: &Handle,
) -> Result<Detected, Error> {
    let head = runtime.block_on(object.read(0..object.size().min(SNIFFED_BYTES)))?;
    let start = decompressed(&head);
    let format = match given {
        Some(format) => format,
        None => by_content(object, &head, &start)?,
    };
    if head.is_empty() && format != FileFormat::TfRecord
        || format.is_text() && head.len() as u64 == object.size() && start.iter().all(u8::is_ascii_whitespace)
    {
        return Err(wrong_format(object, "records", "an empty file"));
    }
    let mut detected = Detected { format, csv: csv.clone(), start, note: None };
    if format == FileFormat::Csv && csv.delimiter.is_none() {
        detected.find_separator(object.path());
    }
    Ok(detected)
}

fn by_content(object: &Object, head: &[u8], start: &[u8]) -> Result<FileFormat, Error> {
    let by_name = FileFormat::from_name(object.path());
    match Content::detect(head) {
        Content::Parquet => Ok(FileFormat::Parquet),
        Content::TfRecord(Compression::None) => Ok(FileFormat::TfRecord),
        // The prefix of a compressed file may be too short to detect its contents.
        Content::TfRecord(_) => Ok(by_name.unwrap_or(FileFormat::TfRecord)),
        Content::Tar => Ok(FileFormat::WebDataset),
        Content::Json | Content::Text if by_name == Some(FileFormat::JsonLines) || is_json(start) => {
            Ok(FileFormat::JsonLines)
        }
        Content::Json | Content::Text => Ok(FileFormat::Csv),
        found @ (Content::Empty | Content::Unknown) => by_name.ok_or_else(|| {
            wrong_format(
                object,
                "TFRecord, Parquet, WebDataset, CSV, JSON lines, or MDS named .mds",
                &found.to_string(),
            )
        }),
    }
}

fn wrong_format(object: &Object, expected: &str, found: &str) -> Error {
    Error::Format(FormatError::WrongFormat {
        path: object.path().to_string(),
        expected: expected.to_owned(),
        found: found.to_owned(),
    })
}

/// The start of the decompressed file.
fn decompressed(head: &[u8]) -> Vec<u8> {
    let mut start = Vec::new();
    if let Ok((stream, _)) = Decompressed::new(head) {
        // `head` may end within a compressed stream; the bytes before that suffice.
        let _ = stream.take(SNIFFED_BYTES).read_to_end(&mut start);
    }
    start
}

impl Detected {
    /// Sets the separator of fields: a tab for `.tsv`, else a comma. If the first line has no comma, it is the most
    /// frequent other separator that the second line has as well.
    fn find_separator(&mut self, path: &str) {
        let name = path.to_ascii_lowercase();
        let name = name.trim_end_matches(".gz").trim_end_matches(".zst").trim_end_matches(".zz");
        if name.ends_with(".tsv") || name.ends_with(".tab") {
            self.csv.delimiter = Some(b'\t');
            return;
        }
        let is_data = |line: &&[u8]| {
            !line.trim_ascii().is_empty()
                && self.csv.comment.is_none_or(|comment| line.first() != Some(&comment))
        };
        let mut lines = self.start.split(|&byte| byte == b'\n').filter(is_data);
        let Some(first) = lines.next() else { return };
        if separators(first, b',') > 0 {
            return;
        }
        let second = lines.next().unwrap_or(first);
        let frequent = |separator: &u8| (separators(first, *separator), separators(second, *separator));
        let found =
            SEPARATORS.into_iter().filter(|separator| frequent(separator).0 > 0 && frequent(separator).1 > 0);
        if let Some(separator) = found.max_by_key(|separator| frequent(separator).0) {
            self.csv.delimiter = Some(separator);
            let shown =
                if separator == b'\t' { "tabs".to_owned() } else { format!("`{}`", char::from(separator)) };
            self.note =
                Some(format!("{path}: fields are separated by {shown}; --delimiter sets another separator"));
        }
    }
}

/// The number of separators outside of quotes.
fn separators(line: &[u8], separator: u8) -> usize {
    let mut is_quoted = false;
    line.iter()
        .filter(|&&byte| {
            is_quoted ^= byte == b'"';
            byte == separator && !is_quoted
        })
        .count()
}
