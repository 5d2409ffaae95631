//! Typed views of a slot's memory.
//!
//! The packer fills a [`BatchMut`]; the trainer reads a [`BatchRef`]. Both cover exactly one slot, either in the
//! ring ([`crate::ring`]) or on the heap ([`BatchBuffer`]).

use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::layout::{ALIGNMENT, HEADER_BYTES, Section, SlotLayout};

/// The stream of the job that a batch belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stream {
    /// Used for a training step.
    Train = 0,
    /// Scored, and included in the metrics.
    Eval = 1,
}

/// The metadata of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// The stream it belongs to.
    pub stream: Stream,
    /// The epoch, from 0; for an eval batch, the epoch it follows.
    pub epoch: u32,
    /// The batch's number within its pass over the data, from 0.
    pub batch: u64,
    /// Rows in this batch, at most the schema's. If the global batch is dealt to several parts, those of this part,
    /// possibly 0.
    pub rows: u32,
    /// Rows of the global batch, over the parts of all hosts and ranks: the divisor of a mean over the batch. It may
    /// exceed the schema's rows.
    pub global_rows: u32,
    /// The place of this part's first row in the global batch, where parts follow each other in the order of their
    /// numbers: the rows of all earlier parts.
    pub first_row: u32,
    /// Rows of the fullest part of the global batch, at least `rows`. It is the same in all parts, so all ranks agree
    /// whether any of them needs several passes.
    pub most_rows: u32,
    /// Whether it is the last batch of its pass over the data.
    pub last: bool,
}

impl BatchHeader {
    /// The header of training batch 0 of epoch 0 with `rows` rows, which are the whole global batch, and more batches
    /// to follow.
    pub fn train(rows: u32) -> Self {
        let (stream, last) = (Stream::Train, false);
        Self { stream, epoch: 0, batch: 0, rows, global_rows: rows, first_row: 0, most_rows: rows, last }
    }
}

/// A slot being filled.
///
/// Sections have the schema's full row capacity; [`BatchMut::set_header`] sets how many rows are valid.
pub struct BatchMut<'a> {
    bytes: &'a mut [u8],
    layout: &'a SlotLayout,
}

/// Mutable borrows of all sections of a slot.
pub struct Sections<'a> {
    /// `[L, B]`
    pub labels: &'a mut [f32],
    /// `[B]`, if the schema is weighted.
    pub weights: Option<&'a mut [f32]>,
    /// `[B, D]`, row-major.
    pub dense: &'a mut [f32],
    /// `[F, B]`
    pub ids: &'a mut [u32],
    /// For each ragged feature: offsets `[B + 1]` and values `[B * maximum]`.
    pub ragged: Vec<(&'a mut [u32], &'a mut [u32])>,
    /// For each ragged feature, the weights of its values `[B * maximum]`, if it is weighted.
    pub ragged_weights: Vec<Option<&'a mut [f32]>>,
    /// Each typed column.
    pub columns: Vec<ColumnMut<'a>>,
}

/// A typed column being filled, with the schema's full row capacity.
pub struct ColumnMut<'a> {
    /// `[B + 1]`, unless the column is fixed.
    pub offsets: Option<&'a mut [u32]>,
    /// The bytes of the values, in native byte order.
    pub values: &'a mut [u8],
}

/// A typed column being read. It has the schema's full row capacity: rows beyond those of the batch are zeros, or have
/// no values if the column has offsets ([`BatchMut::pad_columns`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnRef<'a> {
    /// `[B + 1]`, unless the column is fixed: row i holds the values `offsets[i]..offsets[i + 1]`.
    pub offsets: Option<&'a [u32]>,
    /// The bytes of the values, in native byte order. Of a column with offsets, those before the last offset are valid.
    pub values: &'a [u8],
}

/// A slot being read.
#[derive(Clone, Copy)]
pub struct BatchRef<'a> {
    bytes: &'a [u8],
    layout: &'a SlotLayout,
}

/// A batch on the heap, for tests, tools and benchmarks without a ring.
pub struct BatchBuffer {
    layout: Arc<SlotLayout>,
    storage: Vec<Block>,
}

/// Heap memory in units of the slot's alignment.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(256))]
struct Block([u8; ALIGNMENT]);

/// The header as stored at the start of a slot. The rest of the header section is zero.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawHeader {
    stream: u32,
    epoch: u32,
    batch: u64,
    rows: u32,
    last: u32,
    position_bytes: u32,
    global_rows: u32,
    first_row: u32,
    most_rows: u32,
}

impl<'a> BatchMut<'a> {
    /// Views `bytes` as a slot of `layout`.
    ///
    /// # Panics
    /// When `bytes` is not exactly one aligned slot.
    pub fn new(bytes: &'a mut [u8], layout: &'a SlotLayout) -> Self {
        check_slot(bytes, layout);
        Self { bytes, layout }
    }

    /// The slot's layout.
    pub fn layout(&self) -> &SlotLayout {
        self.layout
    }

    /// Writes the header.
    ///
    /// # Panics
    /// When `header.rows` is more than the schema's rows, the rows from `header.first_row` on end beyond
    /// `header.global_rows`, or `header.most_rows` is outside
    /// `header.rows..=header.global_rows`.
    pub fn set_header(&mut self, header: &BatchHeader) {
        assert!(header.rows <= self.layout.schema().rows, "more rows than the slot holds");
        let end = header.first_row.checked_add(header.rows);
        assert!(end.is_some_and(|end| end <= header.global_rows), "more rows than the global batch");
        let most_rows = header.rows..=header.global_rows;
        assert!(most_rows.contains(&header.most_rows), "the rows of the fullest part");
        let raw = self.raw_header();
        raw.stream = header.stream as u32;
        raw.epoch = header.epoch;
        raw.batch = header.batch;
        raw.rows = header.rows;
        raw.global_rows = header.global_rows;
        raw.first_row = header.first_row;
        raw.most_rows = header.most_rows;
        raw.last = u32::from(header.last);
    }

    /// Writes the encoded read position of the job after this batch.
    ///
    /// # Panics
    /// When it is longer than the schema's `position_bytes`.
    pub fn set_position(&mut self, position: &[u8]) {
        let section = self.layout.position;
        assert!(position.len() <= section.bytes, "position longer than the slot's position section");
        self.bytes[section.offset..][..position.len()].copy_from_slice(position);
        self.raw_header().position_bytes =
            u32::try_from(position.len()).expect("the schema bounds it by a u32");
    }

    /// Borrows all sections at once.
    pub fn sections(&mut self) -> Sections<'_> {
        let layout = self.layout;
        let mut rest: &mut [u8] = self.bytes;
        let mut taken = 0;
        let mut take = |section: Section| {
            let bytes = std::mem::take(&mut rest);
            let (_, bytes) = bytes.split_at_mut(section.offset - taken);
            let (section_bytes, tail) = bytes.split_at_mut(section.bytes);
            rest = tail;
            taken = section.offset + section.bytes;
            section_bytes
        };
        let labels = items_mut(take(layout.labels));
        let weights = layout.weights.map(|section| items_mut(take(section)));
        let (dense, ids) = (items_mut(take(layout.dense)), items_mut(take(layout.ids)));
        let ragged = layout.ragged.iter().map(|section| {
            let values = (items_mut(take(section.offsets)), items_mut(take(section.values)));
            (values, section.weights.map(|section| items_mut(take(section))))
        });
        let (ragged, ragged_weights) = ragged.unzip();
        let columns = layout.columns.iter().map(|section| {
            let offsets = section.offsets.map(|offsets| items_mut(take(offsets)));
            ColumnMut { offsets, values: take(section.values) }
        });
        let columns = columns.collect();
        Sections { labels, weights, dense, ids, ragged, ragged_weights, columns }
    }

    /// Empties the rows of typed columns beyond the first `rows`: fixed values become zeros, and other rows have no
    /// values. So a reader that needs all batches of one shape never sees rows of an earlier batch.
    ///
    /// # Panics
    /// When `rows` is more than the schema's rows.
    pub fn pad_columns(&mut self, rows: usize) {
        let capacity = self.layout.schema().rows as usize;
        for ColumnMut { offsets, values } in self.sections().columns {
            match offsets {
                None => {
                    let row = values.len() / capacity;
                    values[row * rows..].fill(0);
                }
                Some(offsets) if rows == 0 => offsets.fill(0),
                Some(offsets) => {
                    let end = offsets[rows];
                    offsets[rows..].fill(end);
                }
            }
        }
    }

    /// A read-only view of the slot.
    pub fn as_ref(&self) -> BatchRef<'_> {
        BatchRef { bytes: self.bytes, layout: self.layout }
    }

    fn raw_header(&mut self) -> &mut RawHeader {
        RawHeader::mut_from_prefix(self.bytes).expect("a slot is aligned and longer than its header").0
    }
}

impl<'a> BatchRef<'a> {
    /// Views `bytes` as a slot of `layout`.
    ///
    /// # Panics
    /// When `bytes` is not exactly one aligned slot.
    pub fn new(bytes: &'a [u8], layout: &'a SlotLayout) -> Self {
        check_slot(bytes, layout);
        Self { bytes, layout }
    }

    /// The slot's layout.
    pub fn layout(&self) -> &'a SlotLayout {
        self.layout
    }

    /// The whole slot.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The batch's metadata. Whatever the memory holds, the rows fit in the slot and lie within the global batch: counts
    /// are clamped.
    pub fn header(&self) -> BatchHeader {
        let raw = self.raw_header();
        let rows = raw.rows.min(self.layout.schema().rows);
        let global_rows = raw.global_rows.max(rows);
        BatchHeader {
            stream: if raw.stream == Stream::Eval as u32 { Stream::Eval } else { Stream::Train },
            epoch: raw.epoch,
            batch: raw.batch,
            rows,
            global_rows,
            first_row: raw.first_row.min(global_rows - rows),
            most_rows: raw.most_rows.clamp(rows, global_rows),
            last: raw.last != 0,
        }
    }

    /// Rows in this batch.
    pub fn rows(&self) -> usize {
        self.header().rows as usize
    }

    /// Label `label` of each row, `[rows]`.
    ///
    /// # Panics
    /// When `label` is out of range.
    pub fn labels(&self, label: usize) -> &'a [f32] {
        let schema = self.layout.schema();
        assert!(label < schema.label_count(), "no label {label}");
        &items::<f32>(self.section(self.layout.labels))[label * schema.rows as usize..][..self.rows()]
    }

    /// Row weights, `[rows]`, if the schema is weighted.
    pub fn weights(&self) -> Option<&'a [f32]> {
        self.layout.weights.map(|section| &items::<f32>(self.section(section))[..self.rows()])
    }

    /// Dense values, `[rows, D]`, row-major.
    pub fn dense(&self) -> &'a [f32] {
        &items::<f32>(self.section(self.layout.dense))[..self.rows() * self.layout.schema().dense.len()]
    }

    /// The ids of single-id feature `feature`, `[rows]`.
    ///
    /// # Panics
    /// When `feature` is out of range.
    pub fn ids(&self, feature: usize) -> &'a [u32] {
        let stride = self.layout.schema().rows as usize;
        assert!(feature < self.layout.schema().ids.len(), "no id feature {feature}");
        &items::<u32>(self.section(self.layout.ids))[feature * stride..][..self.rows()]
    }

    /// Offsets `[rows + 1]` and values of ragged feature `feature`.
    ///
    /// # Panics
    /// When `feature` is out of range.
    pub fn ragged(&self, feature: usize) -> (&'a [u32], &'a [u32]) {
        let section = self.layout.ragged[feature];
        let offsets = &items::<u32>(self.section(section.offsets))[..self.rows() + 1];
        let values = items(self.section(section.values));
        let used = offsets.last().map_or(0, |&end| end as usize).min(values.len());
        (offsets, &values[..used])
    }

    /// The weights of ragged feature `feature`, if it is weighted. Only the first `values.len()` are valid; the slice
    /// covers the whole section.
    ///
    /// # Panics
    /// When `feature` is out of range.
    pub fn ragged_weights(&self, feature: usize) -> Option<&'a [f32]> {
        self.layout.ragged[feature].weights.map(|section| items(self.section(section)))
    }

    /// Typed column `column`.
    ///
    /// # Panics
    /// When `column` is out of range.
    pub fn column(&self, column: usize) -> ColumnRef<'a> {
        let section = self.layout.columns[column];
        let offsets = section.offsets.map(|offsets| items(self.section(offsets)));
        ColumnRef { offsets, values: self.section(section.values) }
    }

    /// The encoded read position of the job after this batch.
    pub fn position(&self) -> &'a [u8] {
        let section = self.section(self.layout.position);
        &section[..section.len().min(self.raw_header().position_bytes as usize)]
    }

    fn section(&self, section: Section) -> &'a [u8] {
        &self.bytes[section.offset..section.offset + section.bytes]
    }

    fn raw_header(&self) -> &'a RawHeader {
        RawHeader::ref_from_prefix(self.bytes).expect("a slot is aligned and longer than its header").0
    }
}

impl BatchBuffer {
    /// A zeroed batch of `layout`.
    pub fn new(layout: Arc<SlotLayout>) -> Self {
        let storage = vec![Block([0; ALIGNMENT]); layout.slot_bytes() / ALIGNMENT];
        Self { layout, storage }
    }

    /// A copy of `batch`.
    pub fn copy_of(batch: BatchRef<'_>) -> Self {
        let mut copy = Self::new(Arc::new(batch.layout().clone()));
        copy.storage.as_mut_bytes().copy_from_slice(batch.bytes());
        copy
    }

    /// A mutable view of the batch.
    pub fn as_mut(&mut self) -> BatchMut<'_> {
        BatchMut::new(self.storage.as_mut_bytes(), &self.layout)
    }

    /// A read-only view of the batch.
    pub fn as_ref(&self) -> BatchRef<'_> {
        BatchRef::new(self.storage.as_bytes(), &self.layout)
    }
}

fn check_slot(bytes: &[u8], layout: &SlotLayout) {
    const { assert!(HEADER_BYTES >= size_of::<RawHeader>()) };
    assert_eq!(bytes.len(), layout.slot_bytes(), "a slice must be exactly one slot");
    assert!(bytes.as_ptr().addr().is_multiple_of(ALIGNMENT), "a slot must be aligned");
}

const SECTION: &str = "the layout aligns sections and sizes them in whole items";

fn items<T: FromBytes + Immutable>(section: &[u8]) -> &[T] {
    <[T]>::ref_from_bytes(section).expect(SECTION)
}

fn items_mut<T: FromBytes + IntoBytes>(section: &mut [u8]) -> &mut [T] {
    <[T]>::mut_from_bytes(section).expect(SECTION)
}
