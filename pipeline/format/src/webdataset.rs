//! WebDataset: tar archives in which consecutive files with the same key are one sample.
//!
//! The path of a file is divided at the first dot of its last component: `train/000017.seg.png` has the key `train/000017`
//! and the extension `seg.png`. Every file of a sample is a feature, named by its extension in lower case. `__key__` is
//! the sample's key. The members of a JSON object are features too: of `000017.json`, `json.caption` ([`json`](crate::json)).
//! Files without an extension are skipped, those in `__name__`, and hidden files, of which the library makes samples.
//!
//! A file name that occurs twice in a sample is damage of that sample. JSON that is no valid object remains bytes, because
//! Python writes `NaN` and people keep lists: whether that matters depends on what is read.
//!
//! Source: the documentation of the webdataset library, "The WebDataset Format", and its grouping of files.

use std::collections::HashSet;
use std::io::{self, BufRead};

use crate::example::features::FeatureWriter;
use crate::json::{JsonBuffers, flatten};
use crate::other_format::WithStart;
use crate::record::{Damage, ReadError, Record, RecordFormat};
use crate::tar::{Member, TarReader};

/// The name of the feature that holds the key.
const KEY: &str = "__key__";

/// Reads the samples of an archive.
pub struct SampleReader<R> {
    archive: TarReader<WithStart<R>>,
    next: Next,
    number: u64,
    features: FeatureWriter,
    /// The names of the sample's features.
    names: HashSet<String>,
    json: Vec<u8>,
    buffers: JsonBuffers,
}

/// The place in the archive.
enum Next {
    Start,
    /// The bytes of this file, the first one of a sample, come next.
    File(File),
    End,
}

/// A file of a sample.
struct File {
    key: Vec<u8>,
    extension: String,
    member: Member,
}

impl<R: BufRead> SampleReader<R> {
    /// A reader of `input`, which must be uncompressed and at the start of an archive. It ends at a longer sample.
    pub fn new(input: R, most_bytes: u64) -> Self {
        Self {
            archive: TarReader::new(WithStart::new(input)),
            next: Next::Start,
            number: 0,
            features: FeatureWriter::new(most_bytes),
            names: HashSet::new(),
            json: Vec::new(),
            buffers: JsonBuffers::default(),
        }
    }

    /// The input at its current position.
    pub fn input(&self) -> &R {
        self.archive.input().input()
    }

    /// The next sample; `None` at the end. After damage that is not fatal, the next call continues with the next sample.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        let number = self.number;
        let first = match std::mem::replace(&mut self.next, Next::End) {
            Next::Start => self.next_file().map_err(|error| {
                self.archive.input_mut().explain(ReadError::of(error, number, 0), RecordFormat::WebDataset)
            })?,
            Next::File(file) => Some(file),
            Next::End => None,
        };
        let Some(first) = first else { return Ok(None) };
        let offset = first.member.offset;
        let read = self.read_sample(first).map_err(|error| ReadError::of(error, number, offset))?;
        self.number += 1;
        match read {
            Ok(()) => match self.features.finish() {
                Ok(data) => Ok(Some(Record { data, offset, number })),
                Err(error) => Err(ReadError::of(error, number, offset)),
            },
            Err(message) => {
                Err(ReadError::Damage(Damage { offset, record: number, message, ..Damage::default() }))
            }
        }
    }

    /// Reads all files of the sample that starts with `first`. The inner error is the problem of the sample.
    fn read_sample(&mut self, first: File) -> io::Result<Result<(), String>> {
        self.features.start();
        self.features.value(KEY, &first.key);
        self.names.clear();
        self.names.insert(KEY.to_owned());
        let mut problem = None;
        let mut file = first;
        loop {
            let File { key, extension, member } = file;
            if problem.is_none() && self.names.contains(&extension) {
                problem = Some(format!("the sample has two files `{}`", shown(&member.name)));
            }
            if problem.is_none() {
                self.read_file(&extension, member.size)?;
                self.names.insert(extension);
            }
            match self.next_file()? {
                Some(next) if next.key == key => file = next,
                next => {
                    self.next = next.map_or(Next::End, Next::File);
                    return Ok(problem.map_or(Ok(()), Err));
                }
            }
        }
    }

    fn read_file(&mut self, extension: &str, size: u64) -> io::Result<()> {
        let length = usize::try_from(size).unwrap_or(usize::MAX);
        let Some(bytes) = self.features.begin(extension, length) else {
            return self.features.finish().map(drop);
        };
        let start = bytes.len();
        self.archive.read_to(bytes)?;
        if extension != "json" && !extension.ends_with(".json") {
            return Ok(());
        }
        self.json.clear();
        self.json.extend_from_slice(&bytes[start..]);
        let place = self.features.place();
        if flatten(&self.json, &format!("{extension}."), &mut self.features, &mut self.buffers).is_err() {
            self.features.truncate(place);
        }
        Ok(())
    }

    /// The next file that belongs to a sample.
    fn next_file(&mut self) -> io::Result<Option<File>> {
        while let Some(member) = self.archive.next_member()? {
            let Some((key, extension)) = divide(&member.name) else { continue };
            let (key, extension) = (key.to_vec(), String::from_utf8_lossy(extension).to_lowercase());
            return Ok(Some(File { key, extension, member }));
        }
        Ok(None)
    }
}

/// The key and the extension of a path; `None` for files that belong to no sample.
pub(crate) fn divide(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let base = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let dot = base + path[base..].iter().position(|&byte| byte == b'.').filter(|&dot| dot > 0)?;
    let first = path.split(|&byte| byte == b'/').next().unwrap_or_default();
    let is_meta = first.len() >= 4 && first.starts_with(b"__") && first.ends_with(b"__");
    (!is_meta).then(|| (&path[..dot], &path[dot + 1..]))
}

/// A name for messages.
fn shown(name: &[u8]) -> String {
    const MOST: usize = 200;
    let end = if name.len() > MOST { ".." } else { "" };
    format!("{}{end}", name[..name.len().min(MOST)].escape_ascii())
}

#[cfg(test)]
#[path = "webdataset_tests.rs"]
mod tests;
