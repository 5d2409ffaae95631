//! Folders of images by class, the layout of torchvision's `ImageFolder` without nested directories: each file is a row.
//!
//! | column | value |
//! |---|---|
//! | `image` | the bytes of the file |
//! | `class` | the name of its directory |
//! | `label` | the number of the class among the classes of all files, sorted by name |
//! | `path` | its address below the directory that has all directories of classes |
//!
//! Many small files are read at the same time, in the order of the listing, within bounds for their number and bytes.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, Int64Array, StringArray};
use arrow_schema::DataType;
use bytes::Bytes;
use millstream_format::record::MAX_RECORD_BYTES;
use millstream_format::{Content, Error as FormatError, FileFormat};
use millstream_io::Error as IoError;
use millstream_io::storage::Object;
use millstream_pipeline::Error;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::progress::Progress;

/// The columns and their types.
pub(crate) const COLUMNS: [(&str, DataType); 4] = [
    ("image", DataType::Binary),
    ("class", DataType::Utf8),
    ("label", DataType::Int64),
    ("path", DataType::Utf8),
];

/// The maximum number of files, and their bytes, that are being read or wait for their turn. One file is always allowed.
const MOST_FILES: usize = 32;
const MOST_BYTES: u64 = 32 << 20;
/// The number of classes that a note lists.
const SHOWN_CLASSES: usize = 100;

/// Images and their classes.
pub(crate) struct ImageFolder<'a> {
    objects: &'a [Object],
    /// Sorted by name.
    classes: Vec<String>,
    /// The number of leading parts of addresses that all files have in common, and the same as text.
    common: usize,
    root: String,
}

impl<'a> ImageFolder<'a> {
    /// The folder of these files; `None` if they are no images.
    ///
    /// # Errors
    /// Some files are images by their extension and others are not, or an image has no directory.
    pub(crate) fn of(objects: &'a [Object], given: Option<FileFormat>) -> Result<Option<Self>, Error> {
        let is_image = |object: &&Object| match given {
            Some(given) => given == FileFormat::Images,
            None => FileFormat::from_name(object.path()) == Some(FileFormat::Images),
        };
        let Some(first) = objects.iter().find(is_image) else { return Ok(None) };
        if let Some(other) = objects.iter().find(|object| !is_image(object)) {
            return Err(Error::Invalid(format!(
                "{}: not an image by its extension, as {} is; name the images only, such as 'photos/*/*.jpg'",
                other.path(),
                first.path()
            )));
        }
        let mut classes = BTreeSet::new();
        let mut common = directories(first)?.to_vec();
        common.pop();
        for object in objects {
            let directories = directories(object)?;
            if let [above @ .., class] = &directories[..] {
                classes.insert((*class).to_owned());
                let same = common.iter().zip(above).take_while(|(one, other)| one == other).count();
                common.truncate(same);
            }
        }
        let root = common.join("/");
        Ok(Some(Self { objects, classes: classes.into_iter().collect(), common: common.len(), root }))
    }

    /// The directory that has all files, for messages.
    pub(crate) fn root(&self) -> &str {
        if self.root.is_empty() { "." } else { &self.root }
    }

    /// The number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.objects.len()
    }

    /// The bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.objects.iter().map(Object::size).sum()
    }

    /// The classes with their labels.
    pub(crate) fn note(&self) -> String {
        let shown = self.classes.iter().take(SHOWN_CLASSES).enumerate();
        let shown: Vec<String> = shown.map(|(label, class)| format!("{label} {class}")).collect();
        let more = match self.classes.len().saturating_sub(SHOWN_CLASSES) {
            0 => String::new(),
            more => format!(", and {more} more in the column `class`"),
        };
        let noun = if self.classes.len() == 1 { "class" } else { "classes" };
        format!("{}: {} {noun}: {}{more}", self.root(), self.classes.len(), shown.join(", "))
    }

    /// The rows from row `first` on.
    pub(crate) fn rows_from(&'a self, first: u64, runtime: &Handle) -> ImageRows<'a> {
        let next = usize::try_from(first).unwrap_or(usize::MAX).min(self.objects.len());
        ImageRows {
            folder: self,
            runtime: runtime.clone(),
            next,
            reads: VecDeque::new(),
            bytes_ahead: 0,
            bytes_read: 0,
            skips_bad: false,
            first_bad: None,
        }
    }
}

/// The parts of an address but the last one, which is the name of the file.
fn directories(object: &Object) -> Result<Vec<&str>, Error> {
    let mut parts: Vec<&str> = object.path().split('/').collect();
    parts.pop();
    // `gs:`, an empty part and the bucket are no directories.
    let names = if object.path().contains("://") { 3 } else { 0 };
    match parts.get(names..).and_then(<[_]>::last) {
        None | Some(&("" | "." | "..")) => Err(Error::Invalid(format!(
            "{}: has no directory, whose name is the class of the image; keep the images in one directory per class, such as \
             photos/cat/1.jpg",
            object.path()
        ))),
        Some(_) => Ok(parts),
    }
}

/// Rows of images, which are read ahead.
pub(crate) struct ImageRows<'a> {
    folder: &'a ImageFolder<'a>,
    runtime: Handle,
    /// The next file of the rows.
    next: usize,
    /// The reads of the next files.
    reads: VecDeque<JoinHandle<Result<Bytes, IoError>>>,
    /// The bytes of these files.
    bytes_ahead: u64,
    bytes_read: u64,
    skips_bad: bool,
    first_bad: Option<Error>,
}

impl<'a> ImageRows<'a> {
    /// Skips files that are no images, and keeps the first error.
    pub(crate) fn skipping_bad(mut self) -> Self {
        self.skips_bad = true;
        self
    }

    /// The first error of a skipped file.
    pub(crate) fn into_first_bad(mut self) -> Option<Error> {
        self.first_bad.take()
    }

    /// The bytes of the files so far.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// The next row: its file, and the columns in the order of [`COLUMNS`]. Chunks of several rows would begin at the first row
    /// of each thread, and pages of Parquet depend on where chunks end.
    ///
    /// # Errors
    /// A file cannot be read, or is no image.
    pub(crate) fn next_chunk(
        &mut self,
        progress: &Progress,
    ) -> Result<Option<(&'a Object, Vec<ArrayRef>)>, Error> {
        let folder = self.folder;
        while let Some(object) = folder.objects.get(self.next) {
            progress.check()?;
            let image = self.read_next()?;
            progress.add_file();
            if let Err(error) = check(object, &image) {
                if !self.skips_bad {
                    return Err(error);
                }
                self.first_bad.get_or_insert(error);
                continue;
            }
            let parts: Vec<&str> = object.path().split('/').collect();
            let class = parts.iter().rev().nth(1).copied().unwrap_or_default();
            let label = folder.classes.binary_search_by(|known| known.as_str().cmp(class));
            let path = parts[folder.common..].join("/");
            // Exact capacities: builders would reserve 15 KiB per row.
            let columns: Vec<ArrayRef> = vec![
                Arc::new(BinaryArray::from_iter_values([&image])),
                Arc::new(StringArray::from_iter_values([class])),
                Arc::new(Int64Array::from_iter_values([label.unwrap_or_default() as i64])),
                Arc::new(StringArray::from_iter_values([path])),
            ];
            return Ok(Some((object, columns)));
        }
        Ok(None)
    }

    /// The bytes of the next file.
    fn read_next(&mut self) -> Result<Bytes, Error> {
        self.read_ahead();
        let size = self.folder.objects[self.next].size();
        let Some(read) = self.reads.pop_front() else { return Ok(Bytes::new()) };
        self.next += 1;
        self.bytes_ahead -= size;
        self.bytes_read += size;
        let bytes =
            self.runtime.block_on(read).map_err(|_| Error::Panicked("a read of an image".to_owned()))?;
        self.read_ahead();
        Ok(bytes?)
    }

    /// Starts reads of the next files, within the bounds.
    fn read_ahead(&mut self) {
        while let Some(object) = self.folder.objects.get(self.next + self.reads.len()) {
            let fits = self.reads.len() < MOST_FILES && self.bytes_ahead + object.size() <= MOST_BYTES;
            if !fits && !self.reads.is_empty() {
                return;
            }
            // `check` refuses files that are not read whole.
            let range = 0..object.size().min(MAX_RECORD_BYTES + 1);
            let object = object.clone();
            self.bytes_ahead += object.size();
            self.reads.push_back(self.runtime.spawn(async move {
                if range.is_empty() { Ok(Bytes::new()) } else { object.read(range).await }
            }));
        }
    }
}

impl Drop for ImageRows<'_> {
    fn drop(&mut self) {
        self.reads.iter().for_each(JoinHandle::abort);
    }
}

/// Refuses files that are not JPEG, PNG or WebP, whatever their extension, as decoders do.
fn check(object: &Object, bytes: &[u8]) -> Result<(), Error> {
    if bytes.len() as u64 > MAX_RECORD_BYTES {
        let size = object.size();
        return Err(Error::Invalid(format!(
            "{}: an image of {size} bytes exceeds the limit of {MAX_RECORD_BYTES}; remove it",
            object.path()
        )));
    }
    let is_webp = bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP");
    if bytes.starts_with(b"\xff\xd8\xff") || bytes.starts_with(b"\x89PNG\r\n\x1a\n") || is_webp {
        return Ok(());
    }
    Err(Error::Format(FormatError::WrongFormat {
        path: object.path().to_string(),
        expected: "an image in JPEG, PNG or WebP".to_owned(),
        found: Content::detect(&bytes[..bytes.len().min(512)]).to_string(),
    }))
}
