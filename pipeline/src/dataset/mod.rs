//! A dataset: the listed files of one format, cut into splits. Each split is read as a stream of raw chunks.
//!
//! Opening a dataset lists its files and records the generation of each. Later reads return exactly those generations
//! or fail. Reading a split is synchronous for the caller: fetches run ahead of it on a tokio runtime, within a bound,
//! and the thread that asks for the next chunk decodes it.

mod columns;
#[cfg(test)]
mod filter_tests;
mod negatives;
#[cfg(test)]
mod parquet_tests;
mod pinned;
mod portion;
#[cfg(test)]
mod portion_tests;
#[cfg(test)]
mod share_tests;
mod split;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use futures::{StreamExt, TryStreamExt};
use millstream_format::compression::Compression;
use millstream_format::filter::{Condition, ResolvedFilter, RowFilter, Share};
use millstream_format::record::{MAX_RECORD_BYTES, RecordFormat};
use millstream_format::{Content, Error as FormatError, FileFormat, FormatName, Projection};
use millstream_images::is_image;
use millstream_io::ReadContext;
use millstream_io::limits::ReadLimits;
use millstream_io::storage::{self, Object};

use crate::analysis::StoredType;
use crate::bad_records::BadRecords;
use crate::error::Error;
use crate::parquet::row_group::RowGroup;
use crate::parquet::{FooterRoom, ParquetObject};
use crate::records::{self, Records, RecordsReader, part_label};
use crate::{parts, splitmix};

pub use negatives::Negatives;
pub use pinned::{Listed, Pinned};
pub use portion::rows_of;
pub use split::SplitReader;
use split::{Inner, Selection};

/// The minimum split size. For smaller splits, finding the first record costs more than reading in parallel saves.
pub const FEWEST_SPLIT_BYTES: u64 = 64 << 10;

/// The maximum number of splits of a dataset. Each costs about a hundred bytes in the daemon for as long as the job runs,
/// and a file's size is only what its storage claims: a sparse file or a server can claim 7 EiB. With the default split
/// size, this is 64 TiB of TFRecord.
pub const MAX_SPLITS: usize = 1 << 20;

/// The number of leading bytes read to detect a file's format.
const SNIFFED_BYTES: u64 = 512;
/// The maximum number of files opened concurrently when a dataset is opened. With a storage latency of 20 ms, ten
/// thousand footers are read within two seconds.
const OPEN_CONCURRENCY: usize = 128;
/// The memory that a record of a file of records can need, relative to its length: the record, its values, which are up to
/// eight times as long if they are small integers, and the unused half of their buffer.
const HELD_PER_RECORD_BYTE: u64 = 16;
/// The record length that any memory budget permits.
const LEAST_RECORD_LIMIT: u64 = 1 << 20;

/// Listed files of one format, cut into splits.
#[derive(Clone, Debug)]
pub struct Dataset {
    objects: Vec<Object>,
    splits: Vec<Split>,
    files: Files,
    limits: Arc<ReadLimits>,
    /// The lengths of the records seen by [`Dataset::check`].
    record_lengths: OnceLock<RecordLengths>,
    /// The columns seen by [`Dataset::check`].
    stored_types: OnceLock<BTreeMap<String, StoredType>>,
    /// The maximum length in bytes of a record of files of records.
    most_record_bytes: u64,
    filter: Option<Filtered>,
    negatives: Option<Negatives>,
}

/// Lengths of records in bytes.
#[derive(Clone, Copy, Debug)]
struct RecordLengths {
    longest: u64,
    /// With the framing; 0 without records.
    mean: u64,
}

/// A filter, and for each split whether statistics prove that none of its rows passes.
#[derive(Clone, Debug)]
struct Filtered {
    filter: RowFilter,
    conditions: Arc<[Condition]>,
    ruled_out: Vec<bool>,
    /// The number of rows without the filter, if known.
    all_rows: Option<u64>,
}

/// The files, with the metadata read when the dataset was opened.
#[derive(Clone, Debug)]
enum Files {
    Records(RecordFormat),
    /// One per object.
    Parquet(Arc<[ParquetObject]>),
}

/// What to do about features that no examined record has, in files of records.
#[derive(Clone, Copy, Debug)]
pub enum Absent<'a> {
    /// The first is an error: in training data, its name is probably wrong.
    Rejected,
    /// They have no value in any row, unless they are among these columns or there are no others. Writers omit features
    /// without values, so in a small file no record may have an optional feature.
    AllowedExcept(&'a [&'a str]),
}

/// The smallest unit of reading: a file or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The index of its file in the listing.
    pub object: usize,
    /// Which part of the file it covers.
    pub part: SplitPart,
    /// The number of its first record within the file. 0 for a part of a file of records, where that number is unknown;
    /// its records are numbered from the start of the part.
    pub first_record: u64,
    /// The number of rows, if the file states it before it is read.
    pub rows: Option<u64>,
    /// Its size in storage, in bytes.
    pub bytes: u64,
}

/// The part of a file that a split covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitPart {
    /// The whole file.
    Whole,
    /// The records that begin in this byte range of an uncompressed file of records.
    Bytes {
        /// The first byte.
        start: u64,
        /// One past the last byte.
        end: u64,
    },
    /// A row group of a Parquet file.
    RowGroup(u32),
}

impl Dataset {
    /// Lists the files that `patterns` match, and reads the metadata required to cut them into splits. Patterns are
    /// paths and globs relative to `base`. Without `format`, the format is detected from the files' names, or else from
    /// their first bytes.
    pub async fn open(patterns: &[String], base: &Path, format: Option<FormatName>) -> Result<Self, Error> {
        Self::of(storage::list(patterns, base).await?, format).await
    }

    /// Opens listed files: reads the metadata required to cut them into splits. A file of records is one split until
    /// [`Dataset::cut_at`].
    ///
    /// # Errors
    /// A file cannot be read or has another format; the files have more than [`MAX_SPLITS`] splits.
    pub async fn of(objects: Vec<Object>, format: Option<FormatName>) -> Result<Self, Error> {
        Self::of_within(objects, format, u64::MAX).await
    }

    /// Opens listed files whose metadata fit a memory budget.
    pub async fn of_within(
        objects: Vec<Object>,
        format: Option<FormatName>,
        budget_bytes: u64,
    ) -> Result<Self, Error> {
        match common_format(&objects, format).await?.file_format().records() {
            Some(format) => Self::of_records(objects, format, u64::MAX),
            None => Self::of_parquet(objects, budget_bytes).await,
        }
    }

    /// Cuts uncompressed files of TFRecord and JSON lines of more than `split_bytes` into equal parts of at most
    /// `split_bytes` each. The cuts depend only on the files' sizes and names. Other files are not affected.
    ///
    /// # Errors
    /// [`Error::TooManySplits`] if this makes more than [`MAX_SPLITS`].
    pub fn cut_at(self, split_bytes: u64) -> Result<Self, Error> {
        match self.files {
            Files::Records(format) => Self::of_records(self.objects, format, split_bytes),
            Files::Parquet(_) => Ok(self),
        }
    }

    /// Limits the length of records, so that one in each of `lanes` lanes fits a memory budget, whatever a file inflates
    /// to. A longer record is an error that `on_bad_record` does not skip: whether it is one depends on the budget, not
    /// on the data.
    #[must_use]
    pub fn with_budget(self, budget_bytes: u64, lanes: u32) -> Self {
        let share = budget_bytes / HELD_PER_RECORD_BYTE / u64::from(lanes.max(1));
        Self { most_record_bytes: share.clamp(LEAST_RECORD_LIMIT, MAX_RECORD_BYTES), ..self }
    }

    /// Identifies these cuts among all cuts of the same files. 0 if each file is one split or defines its own splits.
    pub fn cuts(&self) -> u64 {
        let part = |split: &Split| match split.part {
            SplitPart::Bytes { start, .. } => Some([split.object as u64, start]),
            SplitPart::Whole | SplitPart::RowGroup(_) => None,
        };
        let cuts = self.splits.iter().filter_map(part).flatten();
        cuts.fold(0, |hash, word| splitmix::mix(hash.wrapping_add(splitmix::GAMMA) ^ word))
    }

    fn of_records(objects: Vec<Object>, format: RecordFormat, split_bytes: u64) -> Result<Self, Error> {
        let mut splits = Vec::new();
        for (object, listed) in objects.iter().enumerate() {
            let (path, size) = (listed.path(), listed.size());
            let room = (MAX_SPLITS - splits.len()) as u64;
            if parts::count(path, format, size, split_bytes) > room {
                return Err(too_many_parts(listed, split_bytes));
            }
            splits.extend(parts::cuts(path, format, size, split_bytes).map(|Range { start, end }| {
                let whole = end - start == size;
                let part = if whole { SplitPart::Whole } else { SplitPart::Bytes { start, end } };
                Split { object, part, first_record: 0, rows: None, bytes: end - start }
            }));
        }
        Ok(Self {
            objects,
            splits,
            files: Files::Records(format),
            limits: Arc::default(),
            record_lengths: OnceLock::new(),
            stored_types: OnceLock::new(),
            most_record_bytes: MAX_RECORD_BYTES,
            filter: None,
            negatives: None,
        })
    }

    async fn of_parquet(objects: Vec<Object>, budget_bytes: u64) -> Result<Self, Error> {
        let room = FooterRoom::new(budget_bytes);
        let files: Vec<ParquetObject> = futures::stream::iter(objects.clone())
            .map(|object| ParquetObject::open_within(object, &room))
            .buffered(OPEN_CONCURRENCY)
            .try_collect()
            .await?;
        let mut splits = Vec::new();
        for (object, file) in files.iter().enumerate() {
            if file.file().groups().len() > MAX_SPLITS - splits.len() {
                let path = objects[object].path().to_string();
                let advice = "; write larger row groups, or train on fewer files".to_owned();
                return Err(Error::TooManySplits { path, limit: MAX_SPLITS, advice });
            }
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
            files: Files::Parquet(files.into()),
            limits: Arc::default(),
            record_lengths: OnceLock::new(),
            stored_types: OnceLock::new(),
            most_record_bytes: MAX_RECORD_BYTES,
            filter: None,
            negatives: None,
        })
    }

    /// The dataset of the rows that pass `filter`, besides the filters that it has. The number of splits is the same; their
    /// row counts are unknown. Splits that statistics rule out are determined here and are not read. The metadata of files is
    /// shared, the [limits](Dataset::limits) are not.
    ///
    /// # Panics
    /// If its negative rows are sampled already.
    #[must_use]
    pub fn filtered(&self, filter: &RowFilter) -> Self {
        assert!(self.negatives.is_none(), "a dataset is filtered before it is sampled");
        let mut dataset = Self { limits: Arc::default(), ..self.clone() };
        if filter.is_empty() {
            return dataset;
        }
        let filter = &self.filter.as_ref().map_or(filter.clone(), |earlier| earlier.filter.and(filter));
        let conditions = &filter.conditions;
        let ruled_out = |split: &Split| match (&self.files, split.part) {
            (Files::Parquet(files), SplitPart::RowGroup(group)) => {
                files[split.object].file().rules_out(group as usize, conditions)
            }
            _ => false,
        };
        let ruled_out = self.splits.iter().map(ruled_out).collect();
        dataset.splits.iter_mut().for_each(|split| split.rows = None);
        let all_rows = self.filter.as_ref().map_or_else(|| self.rows(), |earlier| earlier.all_rows);
        let conditions = conditions.as_slice().into();
        dataset.filter = Some(Filtered { filter: filter.clone(), conditions, ruled_out, all_rows });
        dataset
    }

    /// The dataset without most of its negative rows. The row counts of its splits are unknown.
    #[must_use]
    pub fn sampled(mut self, negatives: Negatives) -> Self {
        self.splits.iter_mut().for_each(|split| split.rows = None);
        Self { negatives: Some(negatives), ..self }
    }

    /// The filter, if it has one.
    pub(crate) fn row_filter(&self) -> Option<&RowFilter> {
        self.filter.as_ref().map(|filtered| &filtered.filter)
    }

    /// Whether some records may not be rows of it.
    pub fn is_filtered(&self) -> bool {
        self.filter.is_some() || self.negatives.is_some()
    }

    /// The number of splits that are not read because none of their rows can pass the filter.
    pub fn ruled_out_splits(&self) -> usize {
        self.filter.as_ref().map_or(0, |filtered| filtered.ruled_out.iter().filter(|&&out| out).count())
    }

    /// The files, in listing order.
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// The splits, in listing order.
    pub fn splits(&self) -> &[Split] {
        &self.splits
    }

    /// The total number of rows, if all files state it before they are read.
    pub fn rows(&self) -> Option<u64> {
        self.splits.iter().map(|split| split.rows).sum()
    }

    /// An estimate of the number of rows: of uncompressed files of records, by the mean length of the records that
    /// [`Dataset::check`] examined; of a share, by its fraction. `None` for other files and with conditions.
    pub fn estimated_rows(&self) -> Option<u64> {
        if self.negatives.is_some() {
            return None;
        }
        let (all_rows, fraction) = match &self.filter {
            None => (self.rows(), 1.0),
            Some(Filtered { filter: RowFilter { shares, conditions }, all_rows, .. })
                if conditions.is_empty() =>
            {
                (*all_rows, shares.iter().map(Share::expected).product())
            }
            Some(_) => return None,
        };
        let rows = all_rows.or_else(|| self.rows_by_bytes())?;
        Some((rows as f64 * fraction).round() as u64)
    }

    fn rows_by_bytes(&self) -> Option<u64> {
        let is_plain = |object: &Object| Compression::from_name(object.path()).is_none();
        if self.is_columnar() || !self.objects.iter().all(is_plain) {
            return None;
        }
        let mean = self.record_lengths.get()?.mean;
        let bytes: u64 = self.splits.iter().map(|split| split.bytes).sum();
        (mean > 0).then(|| bytes.div_ceil(mean))
    }

    /// The limits on reading; they can be changed while reading.
    pub fn limits(&self) -> &Arc<ReadLimits> {
        &self.limits
    }

    /// The filter's conditions; empty without a filter.
    fn conditions(&self) -> Arc<[Condition]> {
        self.filter.as_ref().map(|filtered| Arc::clone(&filtered.conditions)).unwrap_or_default()
    }

    /// Whether the files are columnar: Parquet, not records.
    pub fn is_columnar(&self) -> bool {
        matches!(self.files, Files::Parquet(_))
    }

    /// The most bytes that reading one object can use, if [`ReadLimits`] govern it: `Some` for files of records, which
    /// are streamed, `None` for Parquet files, whose row groups are fetched whole.
    pub fn elastic_bytes(&self) -> Option<u64> {
        match self.files {
            Files::Records(_) => self.splits.iter().map(|split| split.bytes).max(),
            Files::Parquet(_) => None,
        }
    }

    /// The memory of the files' metadata.
    pub fn metadata_bytes(&self) -> u64 {
        match &self.files {
            Files::Records(_) => 0,
            Files::Parquet(files) => files.iter().map(|file| file.file().metadata_bytes()).sum(),
        }
    }

    /// The most bytes that a reader of this split usually holds at a time, excluding the chunk that it has returned. It
    /// may use [`ReadLimits::decode_bytes`] more. If reading is elastic, this assumes the minimum of its [`ReadLimits`].
    pub fn reader_bytes(&self, split: usize, projection: &Projection) -> u64 {
        let (projection, _) = self.selection(projection);
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
            (Files::Parquet(_), _) => split.bytes,
            (Files::Records(format), _) => {
                let longest = self.record_lengths.get().map_or(0, |lengths| lengths.longest);
                let longest = longest.saturating_mul(format.copies());
                ReadLimits::MIN_OBJECT_BYTES.min(split.bytes)
                    + format.index_bytes(split.bytes)
                    + records::HELD_BYTES
                    + parts::HELD_BYTES
                    + longest
            }
        }
    }

    /// Starts reading a split; fetching begins immediately. With a bare runtime as the context, it reads without a
    /// decode permit.
    ///
    /// # Panics
    /// If the split does not exist.
    pub fn read(
        &self,
        split: usize,
        projection: &Projection,
        bad: &BadRecords,
        context: impl Into<ReadContext>,
    ) -> Result<SplitReader, Error> {
        let context = &context.into();
        let ruled_out = self.filter.as_ref().is_some_and(|filtered| filtered.ruled_out[split]);
        let (projection, selection) = self.selection(projection);
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
                let (group, bad) = (group as usize, bad.clone());
                let group = RowGroup::start(file, group, plan, &conditions, bad, &self.limits, context);
                Inner::RowGroup(Box::new(group))
            }
            (Files::Parquet(_), _) => Inner::Nothing,
            (&Files::Records(format), part) => {
                let records = match part {
                    SplitPart::Bytes { start, end } => {
                        let most_bytes = self.most_record_bytes;
                        Records::start_part(object, format, start..end, most_bytes, &self.limits, context)
                    }
                    SplitPart::Whole | SplitPart::RowGroup(_) => {
                        Records::start(object, format, &self.limits, context)
                    }
                };
                let records = records.at_most(self.most_record_bytes);
                Inner::Records(Box::new(RecordsReader::of(records, projection, bad.clone())))
            }
        };
        Ok(SplitReader::new(path, inner, selection.map(|selection| (selection, bad.clone()))))
    }

    /// The projection, extended by the columns that the selection of rows needs, and the selection.
    fn selection<'a>(&self, projection: &'a Projection) -> (Cow<'a, Projection>, Option<Selection>) {
        if !self.is_filtered() {
            return (Cow::Borrowed(projection), None);
        }
        let none = RowFilter::default();
        let filter = self.filter.as_ref().map_or(&none, |filtered| &filtered.filter);
        let (mut extended, filter) = ResolvedFilter::new(filter, projection);
        let negatives = self.negatives.as_ref();
        let negatives = negatives.map(|negatives| (negatives.clone(), negatives.project(&mut extended)));
        (Cow::Owned(extended), Some(Selection { filter, negatives }))
    }
}

fn too_many_parts(object: &Object, split_bytes: u64) -> Error {
    let size = object.size();
    let least = size.div_ceil(MAX_SPLITS as u64).max(split_bytes);
    let advice = if size > split_bytes {
        format!(
            ", whose size is {size} bytes; if that is right, increase data.split_bytes from {split_bytes} to more than \
             {least}"
        )
    } else {
        "; merge the files into larger ones, or train on fewer".to_owned()
    };
    Error::TooManySplits { path: object.path().to_string(), limit: MAX_SPLITS, advice }
}

/// The error of an image file, which is read as a row of another file. `millstream convert` takes the class of an image from
/// the name of its directory.
fn must_be_converted(path: &str) -> Error {
    let after_slash = |path: &str| path.rfind('/').map_or(0, |slash| slash + 1);
    let (directory, name) = path.split_at(after_slash(path));
    let class = directory.strip_suffix('/').map(|class| class.split_at(after_slash(class)));
    let (above, convert) = match class {
        // The name after `://` is that of a bucket.
        Some((above, class)) if !matches!(class, "" | "." | "..") && !above.ends_with("://") => {
            (above, "convert them")
        }
        _ => (directory, "move them into one directory per class and convert them"),
    };
    let extension = name.rsplit_once('.').map_or("jpg", |(_, extension)| extension);
    Error::Invalid(format!(
        "{path}: jobs and feeds do not read image files; {convert}: millstream convert '{above}*/*.{extension}' \
         'images-*.parquet' --shards 32"
    ))
}

/// The format that all files share.
async fn common_format(objects: &[Object], requested: Option<FormatName>) -> Result<FormatName, Error> {
    if let Some(format) = requested {
        return Ok(format);
    }
    let formats: Vec<FormatName> =
        futures::stream::iter(objects).map(format_of).buffered(OPEN_CONCURRENCY).try_collect().await?;
    let first = *formats.first().ok_or_else(|| Error::Invalid("no files are given".to_owned()))?;
    match formats.iter().position(|&format| format != first) {
        None => Ok(first),
        Some(other) => Err(Error::Format(FormatError::WrongFormat {
            path: objects[other].path().to_string(),
            expected: format!("{}, as {} is", first.name(), objects[0].path()),
            found: formats[other].name().to_owned(),
        })),
    }
}

async fn format_of(object: &Object) -> Result<FormatName, Error> {
    if let Some(format) = FormatName::from_name(object.path()) {
        return Ok(format);
    }
    let is_named_image = FileFormat::from_name(object.path()) == Some(FileFormat::Images);
    let start = object.read(0..object.size().min(SNIFFED_BYTES)).await?;
    match Content::detect(&start) {
        content if is_named_image && (content == Content::Unknown || is_image(&start)) => {
            Err(must_be_converted(object.path()))
        }
        Content::TfRecord(_) => Ok(FormatName::TfRecord),
        Content::Parquet => Ok(FormatName::Parquet),
        Content::Json => Ok(FormatName::JsonLines),
        Content::Tar => Ok(FormatName::WebDataset),
        other => Err(Error::Format(FormatError::WrongFormat {
            path: object.path().to_string(),
            expected: FormatName::NAMES.to_owned(),
            found: other.to_string(),
        })),
    }
}
