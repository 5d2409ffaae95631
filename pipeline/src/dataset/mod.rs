//! A dataset: listed files of one format, cut into splits, each read as a stream of raw chunks.
//!
//! Opening lists and freezes what there is; everything after it reads exactly that, or fails. Reading a
//! split is synchronous for the caller: fetches run ahead of it on a tokio runtime, within a bound, and
//! decoding happens on the thread that asks for the next chunk.

#[cfg(test)]
mod filter_tests;
#[cfg(test)]
mod parquet_tests;
mod split;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use futures::{StreamExt, TryStreamExt};
use millstream_format::filter::{Condition, Filter, ResolvedFilter};
use millstream_format::parquet::ParquetFile;
use millstream_format::{Content, Error as FormatError, FormatName, Projection, format_from_name};
use millstream_io::ReadContext;
use millstream_io::limits::ReadLimits;
use millstream_io::storage::{self, Object};
use tokio::runtime::Handle;

use crate::bad_records::BadRecords;
use crate::error::Error;
use crate::parquet::ParquetObject;
use crate::parquet::row_group::RowGroup;
use crate::records::{Records, RecordsReader, part_label};
use crate::{parts, splitmix};

use split::Inner;
pub use split::SplitReader;

/// An uncompressed TFRecord file of more bytes is cut, where nothing else was said.
pub const DEFAULT_SPLIT_BYTES: u64 = 64 << 20;
/// Splits of fewer bytes are not worth the reads that find where they begin.
pub const FEWEST_SPLIT_BYTES: u64 = 64 << 10;

/// Bytes that tell a file's format.
const SNIFFED_BYTES: u64 = 512;
/// Files looked at at once when a dataset is opened: where storage takes 20 ms to answer, ten thousand footers are
/// here within two seconds.
const OPENING: usize = 128;
/// Records looked at for a feature before it is held to be missing from the data.
const CHECKED_RECORDS: usize = 65_536;

/// Listed files of one format, cut into splits.
#[derive(Debug)]
pub struct Dataset {
    objects: Vec<Object>,
    splits: Vec<Split>,
    files: Files,
    limits: Arc<ReadLimits>,
    /// Bytes of the longest record that [`Dataset::check`] saw.
    longest_record: OnceLock<u64>,
    filter: Option<Filtered>,
}

/// A filter, and for each split whether it is known that no row of it passes.
#[derive(Debug)]
struct Filtered {
    filter: Filter,
    ruled_out: Vec<bool>,
}

/// What is known of the files before they are read.
#[derive(Debug)]
enum Files {
    TfRecord,
    /// One for each object.
    Parquet(Vec<ParquetObject>),
}

/// The smallest unit of reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// Position of its file in the listing.
    pub object: usize,
    /// Which part of the file.
    pub part: SplitPart,
    /// The number of its first record: in its file, or where nobody knows that (a part of a TFRecord file)
    /// 0, and its records are numbered from it.
    pub first_record: u64,
    /// Rows, where the file says so before it is read.
    pub rows: Option<u64>,
    /// Bytes in storage.
    pub bytes: u64,
}

/// Which part of a file a split is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitPart {
    /// All of it.
    Whole,
    /// The records that begin in these bytes of an uncompressed TFRecord file.
    Bytes {
        /// The first.
        start: u64,
        /// One after the last.
        end: u64,
    },
    /// This row group of a Parquet file.
    RowGroup(u32),
}

impl Dataset {
    /// Lists the files that `patterns` (paths and globs, relative to `base`) name, and reads what must be
    /// known of them to cut them into splits. Without `format` the files' names say it, or else their bytes.
    pub async fn open(patterns: &[String], base: &Path, format: Option<FormatName>) -> Result<Self, Error> {
        Self::of(storage::list(patterns, base).await?, format).await
    }

    /// Reads what must be known of listed files to cut them into splits.
    pub async fn of(objects: Vec<Object>, format: Option<FormatName>) -> Result<Self, Error> {
        match common_format(&objects, format).await? {
            FormatName::TfRecord => Ok(Self::of_records(objects, DEFAULT_SPLIT_BYTES)),
            FormatName::Parquet => Self::of_parquet(objects).await,
        }
    }

    /// Cuts files anew: uncompressed TFRecord files of more than `split_bytes` into equal parts of at most
    /// so many. The cuts follow from the files' sizes and names alone. Parquet files stay as they are.
    #[must_use]
    pub fn cut_at(self, split_bytes: u64) -> Self {
        match self.files {
            Files::TfRecord => Self::of_records(self.objects, split_bytes),
            Files::Parquet(_) => self,
        }
    }

    /// What tells these cuts from others of the same files: 0 where each file is one split, or says itself
    /// how it is cut.
    pub fn cuts(&self) -> u64 {
        let part = |split: &Split| match split.part {
            SplitPart::Bytes { start, .. } => Some([split.object as u64, start]),
            SplitPart::Whole | SplitPart::RowGroup(_) => None,
        };
        let cuts = self.splits.iter().filter_map(part).flatten();
        cuts.fold(0, |hash, word| splitmix::mix(hash.wrapping_add(splitmix::GAMMA) ^ word))
    }

    fn of_records(objects: Vec<Object>, split_bytes: u64) -> Self {
        let mut splits = Vec::new();
        for (object, listed) in objects.iter().enumerate() {
            splits.extend(parts::cuts(listed.path(), listed.size(), split_bytes).map(
                |Range { start, end }| {
                    let whole = end - start == listed.size();
                    let part = if whole { SplitPart::Whole } else { SplitPart::Bytes { start, end } };
                    Split { object, part, first_record: 0, rows: None, bytes: end - start }
                },
            ));
        }
        Self {
            objects,
            splits,
            files: Files::TfRecord,
            limits: Arc::default(),
            longest_record: OnceLock::new(),
            filter: None,
        }
    }

    async fn of_parquet(objects: Vec<Object>) -> Result<Self, Error> {
        let files: Vec<ParquetObject> = futures::stream::iter(objects.clone())
            .map(ParquetObject::open)
            .buffered(OPENING)
            .try_collect()
            .await?;
        let mut splits = Vec::new();
        for (object, file) in files.iter().enumerate() {
            for (group, described) in (0..).zip(file.file().groups()) {
                splits.push(Split {
                    object,
                    part: SplitPart::RowGroup(group),
                    first_record: described.first_row,
                    rows: Some(described.rows),
                    bytes: described.bytes,
                });
            }
        }
        Ok(Self {
            objects,
            splits,
            files: Files::Parquet(files),
            limits: Arc::default(),
            longest_record: OnceLock::new(),
            filter: None,
        })
    }

    /// The rows of this dataset that meet all of `conditions`. There are as many splits as before, of how
    /// many rows is not known before they are read; which of them need not be read at all is decided here.
    pub fn filtered(mut self, conditions: &[Condition]) -> Self {
        let Some(filter) = Filter::new(conditions) else { return self };
        let ruled_out = |split: &Split| match (&self.files, split.part) {
            (Files::Parquet(files), SplitPart::RowGroup(group)) => {
                files[split.object].file().rules_out(group as usize, filter.conditions())
            }
            _ => false,
        };
        let ruled_out = self.splits.iter().map(ruled_out).collect();
        self.splits.iter_mut().for_each(|split| split.rows = None);
        self.filter = Some(Filtered { filter, ruled_out });
        self
    }

    /// Whether rows are left out by a filter.
    pub fn is_filtered(&self) -> bool {
        self.filter.is_some()
    }

    /// Splits that are not read, because no row of them can pass the filter.
    pub fn ruled_out_splits(&self) -> usize {
        self.filter.as_ref().map_or(0, |filtered| filtered.ruled_out.iter().filter(|&&out| out).count())
    }

    /// The files, in the order of the listing.
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// Splits, in the order of the listing.
    pub fn splits(&self) -> &[Split] {
        &self.splits
    }

    /// Rows in all, where the files say so before they are read.
    pub fn rows(&self) -> Option<u64> {
        self.splits.iter().map(|split| split.rows).sum()
    }

    /// What reading it may use; it can be changed while it is read.
    pub fn limits(&self) -> &Arc<ReadLimits> {
        &self.limits
    }

    /// What its rows must meet; nothing where there is no filter.
    fn conditions(&self) -> Arc<[Condition]> {
        self.filter.as_ref().map(|filtered| Arc::clone(filtered.filter.conditions())).unwrap_or_default()
    }

    /// Whether its files hold columns: Parquet, and not TFRecord.
    pub fn is_columnar(&self) -> bool {
        matches!(self.files, Files::Parquet(_))
    }

    /// The most bytes that reading one of its objects can make use of, where its [`ReadLimits`] have a say in
    /// it: TFRecord files, which are read from end to end. A row group is fetched whole.
    pub fn elastic_bytes(&self) -> Option<u64> {
        match self.files {
            Files::TfRecord => self.splits.iter().map(|split| split.bytes).max(),
            Files::Parquet(_) => None,
        }
    }

    /// Refuses a projection that the data cannot serve, before any work: a Parquet column that is absent
    /// from a file or of an unusable type, a feature that none of the first 65,536 records holds. Blocks;
    /// call it once after opening, outside of async code.
    ///
    /// Reading does not look for absent features again: a rare one may be absent from a whole file.
    pub fn check(&self, projection: &Projection, runtime: &Handle) -> Result<(), Error> {
        let (projection, _) = self.extended(projection);
        let projection = &projection;
        match &self.files {
            Files::Parquet(files) => {
                let conditions = self.conditions();
                let files: Vec<&ParquetFile> = files.iter().map(ParquetObject::file).collect();
                files.iter().try_for_each(|file| file.check_conditions(&conditions))?;
                Ok(ParquetFile::check(&files, projection)?)
            }
            Files::TfRecord => {
                crate::records::check_features(&self.objects, projection, CHECKED_RECORDS, runtime)
                    .map(|longest| _ = self.longest_record.set(longest))
            }
        }
    }

    /// The most bytes that a reader of this split holds at a time, besides the chunk it has returned; where
    /// reading is elastic, with the least that its [`ReadLimits`] can be.
    pub fn reader_bytes(&self, split: usize, projection: &Projection) -> u64 {
        let (projection, _) = self.extended(projection);
        let split = &self.splits[split];
        match (&self.files, split.part) {
            (Files::Parquet(files), SplitPart::RowGroup(group)) => {
                let file = files[split.object].file();
                let conditions = self.conditions();
                file.plan(&projection).map_or(split.bytes, |plan| {
                    let index = file.index_ranges(group as usize, &plan, &conditions);
                    let index: u64 = index.iter().map(|range| range.end - range.start).sum();
                    file.decoding_bytes(group as usize, &plan).saturating_add(index)
                })
            }
            _ => {
                // The record and what was made of it.
                let longest = 2 * self.longest_record.get().copied().unwrap_or(0);
                ReadLimits::MIN_OBJECT_BYTES.min(split.bytes)
                    + crate::records::HELD_BYTES
                    + parts::HELD_BYTES
                    + longest
            }
        }
    }

    /// Starts to read a split: fetching begins now. A runtime as the context reads without a decode permit.
    ///
    /// # Panics
    /// If there is no such split.
    pub fn read(
        &self,
        split: usize,
        projection: &Projection,
        bad: &BadRecords,
        context: impl Into<ReadContext>,
    ) -> Result<SplitReader, Error> {
        let context = &context.into();
        let ruled_out = self.filter.as_ref().is_some_and(|filtered| filtered.ruled_out[split]);
        let (projection, filter) = self.extended(projection);
        let projection = &projection;
        let split = &self.splits[split];
        let object = self.objects[split.object].clone();
        let path = match split.part {
            SplitPart::Bytes { start, .. } => part_label(&object, start),
            SplitPart::Whole | SplitPart::RowGroup(_) => object.path().clone(),
        };
        let inner = match (&self.files, split.part) {
            _ if ruled_out => Inner::Nothing,
            (Files::Parquet(files), SplitPart::RowGroup(group)) => {
                let file = &files[split.object];
                let plan = file.file().plan(projection)?;
                let conditions = self.conditions();
                let group = RowGroup::start(file, group as usize, plan, &conditions, bad.clone(), context);
                Inner::RowGroup(Box::new(group))
            }
            (_, part) => {
                let records = match part {
                    SplitPart::Bytes { start, end } => {
                        Records::start_part(object, start..end, &self.limits, context)
                    }
                    SplitPart::Whole | SplitPart::RowGroup(_) => {
                        Records::start(object, &self.limits, context)
                    }
                };
                Inner::Records(Box::new(RecordsReader::of(records, projection, bad.clone())))
            }
        };
        Ok(SplitReader::new(path, inner, filter.map(|filter| (filter, bad.clone()))))
    }

    /// The projection with what the filter needs besides.
    fn extended<'a>(&self, projection: &'a Projection) -> (Cow<'a, Projection>, Option<ResolvedFilter>) {
        match &self.filter {
            None => (Cow::Borrowed(projection), None),
            Some(Filtered { filter, .. }) => {
                let (extended, applied) = filter.extend(projection);
                (Cow::Owned(extended), Some(applied))
            }
        }
    }
}

/// The one format of all files.
async fn common_format(objects: &[Object], told: Option<FormatName>) -> Result<FormatName, Error> {
    if let Some(format) = told {
        return Ok(format);
    }
    let formats: Vec<FormatName> =
        futures::stream::iter(objects).map(format_of).buffered(OPENING).try_collect().await?;
    let first = *formats.first().ok_or_else(|| Error::Invalid("no files are given".to_owned()))?;
    match formats.iter().position(|&format| format != first) {
        None => Ok(first),
        Some(other) => Err(Error::Format(FormatError::WrongFormat {
            path: objects[other].path().to_string(),
            expected: format!("{}, as {} is", name_of(first), objects[0].path()),
            found: name_of(formats[other]).to_owned(),
        })),
    }
}

async fn format_of(object: &Object) -> Result<FormatName, Error> {
    if let Some(format) = format_from_name(object.path()) {
        return Ok(format);
    }
    let start = object.read(0..object.size().min(SNIFFED_BYTES)).await?;
    match Content::detect(&start) {
        Content::TfRecord(_) => Ok(FormatName::TfRecord),
        Content::Parquet => Ok(FormatName::Parquet),
        other => Err(Error::Format(FormatError::WrongFormat {
            path: object.path().to_string(),
            expected: "TFRecord or Parquet".to_owned(),
            found: other.to_string(),
        })),
    }
}

fn name_of(format: FormatName) -> &'static str {
    match format {
        FormatName::TfRecord => "TFRecord",
        FormatName::Parquet => "Parquet",
    }
}
