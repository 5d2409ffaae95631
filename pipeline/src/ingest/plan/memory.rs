//! The memory of a plan.
//!
//! The maximum memory is bounded by construction. It is computed here and compared with the job's budget:
//!
//! ```text
//! ring      parts of this host x slots x slot bytes; dealt by lanes, a slot has room for the whole global batch
//! pool      two windows per live lane of this host: the one being drawn from and the one being filled
//!           (2 x shuffle_rows x row bytes; in an ordered pass the same, or a small minimum), and the memory to keep
//!           groups together
//! fixed     independent of the configuration: threads, the runtime, allocator overhead, the listing and the metadata
//!           of the files
//! images    threads x the memory to decode a small image, + that for some of the largest: at most half of the budget, or
//!           one image
//! reading   live lanes x (three chunks: two at the edges of those windows, one under construction;
//!           + the memory of the source per chunk), + the memory of the source shared by all lanes
//! ahead     2 x live lanes x the bytes held per object beyond the minimum: the rest of the budget,
//!           up to the amount that has an effect
//! ```
//!
//! All parts but the last may exceed the budget. The amount of read-ahead within the rest is tuned at run time
//! ([`crate::ingest::tuner`]). Parquet files are fetched by row groups and need no other read-ahead: there, each lane may use
//! its share of the rest for pages that turn out to be larger than usual, and a larger one is an error.
//!
//! Ragged features and typed columns count with their maximum number of values per row, and encoded images and documents
//! of tokens with a usual number of bytes: a window that exceeds it uses what the budget leaves, and ends the feed if that
//! does not suffice ([`crate::ingest::limit`]).

use millstream_batch::{BatchSchema, Column, RaggedFeature, Size, SlotLayout, Stream};
use millstream_io::limits::ReadLimits;

use super::IngestPlan;
use crate::error::Error;
use crate::images::{ImageColumn, ImageThreads};
use crate::ingest::cores;
use crate::ingest::source::ChunkSize;
use crate::order::groups;
use crate::pack::RowRef;
use crate::sequences::SequenceColumns;

/// The minimum number of rows per chunk, regardless of window size and row width.
const FEWEST_CHUNK_ROWS: u64 = 64;

/// The same if rows have images or are documents, which are much larger than other values.
const FEWEST_LARGE_ROWS: u64 = 8;

/// The maximum bytes held per object. More does not make reading faster on any storage.
pub(super) const MOST_OBJECT_BYTES: u64 = 64 << 20;

/// Memory of threads, the runtime and the allocator, besides everything that is counted.
const FIXED_BYTES: u64 = 12 << 20;

/// The memory that the listing uses for an object or a part of one: its name, size and generation.
const SPLIT_BYTES: u64 = 512;

/// The maximum memory of ingest, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Threads, runtime, allocator, listing and the metadata of files.
    pub fixed_bytes: u64,
    /// The slots of all rings.
    pub ring_bytes: u64,
    /// The rows of the shuffle pool.
    pub pool_bytes: u64,
    /// Fetching, decoding and transforming, with minimum read-ahead.
    pub reading_bytes: u64,
    /// Decoding of images: a small one per thread, and some large ones.
    pub image_bytes: u64,
    /// Additional read-ahead, limited by the budget and by the amount that has an effect.
    pub ahead_bytes: u64,
}

/// The memory per live lane of one stream.
#[derive(Clone, Copy, Default)]
struct LaneNeed {
    lanes: u32,
    pool_bytes: u64,
    reading_bytes: u64,
}

impl MemoryNeed {
    /// The total.
    pub fn total_bytes(&self) -> u64 {
        self.least_bytes().saturating_add(self.ahead_bytes)
    }

    /// The minimum that ingest requires.
    pub fn least_bytes(&self) -> u64 {
        let parts =
            [self.fixed_bytes, self.ring_bytes, self.pool_bytes, self.reading_bytes, self.image_bytes];
        parts.into_iter().fold(0, u64::saturating_add)
    }
}

impl IngestPlan {
    /// Computes the memory and divides the budget.
    pub(super) fn within_budget(mut self) -> Result<Self, Error> {
        self.memory = self.memory_need()?;
        self.check_budget()?;
        self.share_rest();
        Ok(self)
    }

    /// The maximum number of rows per chunk of `stream`: the size that its source reads fastest, limited to about a
    /// window, so that partially used chunks at window edges do not enlarge the pool.
    pub(crate) fn chunk_rows(&self, stream: Stream) -> usize {
        let size = self.source(stream).map_or(ChunkSize::OF_RECORDS, |source| source.chunk_size());
        let rows = size.rows.min(size.bytes / self.row_bytes());
        let fewest = if self.varies() { FEWEST_LARGE_ROWS } else { FEWEST_CHUNK_ROWS };
        rows.min(self.mixing(stream).max_rows().into()).max(fewest) as usize
    }

    /// Whether rows vary in size, so that a usual one is planned for.
    fn varies(&self) -> bool {
        !self.images.is_empty() || self.sequences.is_some()
    }

    /// The maximum bytes per row in a chunk; of what varies, those that are planned.
    fn row_bytes(&self) -> u64 {
        match &self.sequences {
            Some(sequences) => sequences.planned_bytes(),
            None => row_bytes(&self.schema, &self.images),
        }
    }

    /// How many images are decoded at a time.
    pub(crate) fn image_threads(&self) -> ImageThreads {
        ImageThreads::within(&self.images, self.threads.unwrap_or_else(cores), self.budget_bytes)
    }

    /// The most bytes of the chunks of a window of `stream`, if its rows vary in size.
    pub(crate) fn window_bytes(&self, stream: Stream) -> Option<u64> {
        let planned = match &self.sequences {
            Some(sequences) => sequences.planned_bytes(),
            None => self.images.iter().map(ImageColumn::planned_bytes).reduce(u64::saturating_add)?,
        };
        // The chunks at both edges may have rows of other windows.
        let rows = u64::from(self.mixing(stream).max_rows()) + 2 * self.chunk_rows(stream) as u64;
        // A lane has two windows, and its reader the other half of what the budget leaves.
        Some(planned.saturating_mul(rows).saturating_add(self.extra_bytes / 4))
    }

    fn memory_need(&self) -> Result<MemoryNeed, Error> {
        let layout = SlotLayout::of(&self.part).map_err(|error| Error::Invalid(error.to_string()))?;
        // A lane may already be in the next pass while another lane is in this one, so each lane counts with the stream
        // that needs more memory.
        let (mut pool_bytes, mut reading_bytes) = (0_u64, 0_u64);
        let streams = [Stream::Train, Stream::Eval].map(|stream| self.lane_need(stream));
        for lane in (0..self.live_lanes()).filter(|&lane| self.reads(lane)) {
            let needs = streams.iter().filter(|need| lane < need.lanes);
            pool_bytes =
                pool_bytes.saturating_add(needs.clone().map(|need| need.pool_bytes).max().unwrap_or(0));
            reading_bytes =
                reading_bytes.saturating_add(needs.map(|need| need.reading_bytes).max().unwrap_or(0));
        }
        let sources = self.train.iter().chain(&self.eval);
        let shared_bytes = sources.map(|source| source.shared_bytes()).max().unwrap_or(0);
        reading_bytes = reading_bytes.saturating_add(shared_bytes);
        let slots = u64::from(self.slots).saturating_mul(self.rings().into());
        let ring_bytes = (layout.slot_bytes() as u64).saturating_mul(slots);
        let splits = u64::from(self.splits(Stream::Train)) + u64::from(self.splits(Stream::Eval));
        let held = self.train.iter().chain(&self.eval).map(|source| source.held_bytes());
        let fixed_bytes = held.fold(FIXED_BYTES + SPLIT_BYTES * splits, u64::saturating_add);
        let image_bytes = self.image_threads().bytes(&self.images);
        Ok(MemoryNeed { fixed_bytes, ring_bytes, pool_bytes, reading_bytes, image_bytes, ahead_bytes: 0 })
    }

    fn lane_need(&self, stream: Stream) -> LaneNeed {
        let Some(source) = self.source(stream) else { return LaneNeed::default() };
        let row_bytes = self.row_bytes();
        let window_rows = u64::from(self.mixing(stream).max_rows());
        let chunk_rows = self.chunk_rows(stream);
        let is_grouped = self.order.group.is_some() && !self.mixing(stream).is_ordered();
        let grouping_bytes = if is_grouped { window_rows * groups::ROW_BYTES } else { 0 };
        let packing_bytes = self.sequences().map_or(0, SequenceColumns::working_bytes);
        LaneNeed {
            lanes: self.order.live_lanes(self.splits(stream)),
            pool_bytes: (2 * window_rows)
                .saturating_mul(row_bytes.saturating_add(size_of::<RowRef>() as u64))
                .saturating_add(grouping_bytes),
            reading_bytes: (3 * chunk_rows as u64)
                .saturating_mul(row_bytes)
                .saturating_add(packing_bytes)
                .saturating_add(source.lane_bytes(chunk_rows)),
        }
    }

    /// Assigns the rest of the budget to read-ahead, and what that leaves to the lanes.
    fn share_rest(&mut self) {
        self.share_ahead();
        let rest = self.budget_bytes.saturating_sub(self.memory.total_bytes());
        self.extra_bytes = rest / u64::from(self.lanes_here());
    }

    fn share_ahead(&mut self) {
        let largest = self.elastic().map(|elastic| elastic.most_object_bytes).max();
        let Some(largest) = largest.filter(|&largest| largest > ReadLimits::MIN_OBJECT_BYTES) else { return };
        let objects = 2 * u64::from(self.lanes_here());
        let rest = self.budget_bytes.saturating_sub(self.memory.least_bytes()) / objects;
        let most = largest.min(MOST_OBJECT_BYTES) - ReadLimits::MIN_OBJECT_BYTES;
        let more = rest.min(most);
        self.object_bytes = ReadLimits::MIN_OBJECT_BYTES + more;
        self.memory.ahead_bytes = objects * more;
    }

    /// Lets each lane use its share of what the budget leaves.
    pub(crate) fn allow_rest(&self) {
        let extra = if self.varies() { self.extra_bytes / 2 } else { self.extra_bytes };
        self.train.iter().chain(&self.eval).for_each(|source| source.allow(extra));
    }

    fn check_budget(&self) -> Result<(), Error> {
        let MemoryNeed { fixed_bytes, ring_bytes, pool_bytes, reading_bytes, image_bytes, .. } = self.memory;
        if self.memory.least_bytes() <= self.budget_bytes {
            return Ok(());
        }
        let decoding = match self.images.first() {
            Some(ImageColumn { spec, .. }) => {
                let (size, max_pixels, threads) =
                    (Size(image_bytes), spec.max_pixels, self.image_threads().threads);
                format!("{size} to decode images of max_pixels = {max_pixels} in {threads} threads, ")
            }
            None => String::new(),
        };
        let documents = match self.sequences() {
            Some(sequences) => format!(" documents of {} tokens (`average`)", sequences.average_tokens()),
            None => String::new(),
        };
        let what = format!(
            "ingest ({} for prefetch = {} batches of batch_size = {} rows, {} for shuffle_rows = {}{documents}, {} to \
             read lanes = {}, {decoding}{} independent of the configuration; lower one of these, or raise memory_budget)",
            Size(ring_bytes),
            self.slots,
            self.schema.rows,
            Size(pool_bytes),
            self.order.shuffle_rows,
            Size(reading_bytes),
            self.order.lanes,
            Size(fixed_bytes),
        );
        Err(Error::OverBudget {
            what,
            needed_bytes: self.memory.least_bytes(),
            budget_bytes: self.budget_bytes,
        })
    }
}

/// The maximum bytes per row in a chunk, of images those that are planned.
fn row_bytes(schema: &BatchSchema, images: &[ImageColumn]) -> u64 {
    let words = schema.label_count() as u64
        + u64::from(schema.weighted)
        + schema.dense.len() as u64
        + schema.ids.len() as u64;
    let of_values = |feature: &RaggedFeature| (1 + u64::from(feature.weighted)) * u64::from(feature.maximum);
    let ragged: u64 = schema.ragged.iter().map(|feature| 1 + of_values(feature)).sum();
    let columns = schema.columns.iter().enumerate().map(|(number, Column { kind, .. })| {
        if let Some(images) = images.iter().find(|images| images.number == number) {
            // An offset and a record number.
            return images.planned_bytes() + 12;
        }
        let offset = if kind.has_offsets() { 4 } else { 0 };
        kind.row_bytes().saturating_add(offset)
    });
    columns.fold(4 * (words + ragged), u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use millstream_batch::{ColumnKind, Dtype};

    use super::*;

    #[test]
    fn typed_columns_count_at_their_maximum() {
        let with = |kinds: &[ColumnKind]| {
            let column = |kind: &ColumnKind| Column { name: String::new(), kind: kind.clone() };
            let columns = kinds.iter().map(column).collect();
            row_bytes(&BatchSchema { rows: 1, columns, ..BatchSchema::default() }, &[])
        };
        let fixed = ColumnKind::Fixed { dtype: Dtype::Uint16, shape: vec![5, 7] };
        let ragged = ColumnKind::Ragged { dtype: Dtype::Float64, maximum: 3 };
        let raw = ColumnKind::Raw { maximum: 100 };
        assert_eq!(with(&[]), 4);
        assert_eq!(with(&[fixed, ragged, raw]), 4 + 70 + (4 + 24) + (4 + 100));
        let unbounded = ColumnKind::Fixed { dtype: Dtype::Bool, shape: vec![u32::MAX, u32::MAX] };
        assert_eq!(with(&[unbounded.clone(), unbounded]), u64::MAX);
    }
}
