//! A batch in GPU memory: the validated contents of a slot, followed by data derived from its offsets.
//!
//! Kernels validate a batch while they copy it from its slot. They replace invalid ids with 0 and make rows with
//! invalid offsets empty, so operations on the batch are memory-safe, and they record the first fault. Until the
//! host has read that fault, with [`Cuda::check`](crate::Backend::check) or a [report](super::report), no kernel
//! updates a weight. No step has to wait for the result of its batch's validation.

use std::sync::Arc;

use millstream_batch::{BatchRef, BatchSchema, SlotLayout};
use zerocopy::IntoBytes;

use super::Cuda;
use super::buffers::Rooms;
use super::driver::{Address, Memory};
use super::feed::{Feed, SLOTS};
use super::kernels::{CHECK_OFFSETS, ColumnView, Faults, Intake, TAKE_IDS, TAKE_NUMBERS};
use crate::device::{BatchShape, IdColumn};
use crate::error::BatchError;
use crate::host;

/// A validated batch in GPU memory.
pub struct CudaBatch {
    layout: Arc<SlotLayout>,
    memory: Memory,
    shape: BatchShape,
    /// Differs for each batch that was uploaded to any buffer.
    upload_number: u64,
    /// Single-valued columns, then ragged ones.
    columns: Vec<ColumnView>,
    feed: Feed,
}

impl CudaBatch {
    pub(super) fn new(cuda: &Cuda, schema: &BatchSchema) -> Self {
        let layout = Arc::new(SlotLayout::of(schema).expect("a model's schema has a layout"));
        let (columns, bytes) = columns_of(&layout);
        let feed = Feed::new(cuda, &layout);
        let (memory, shape) = (cuda.memory(bytes), BatchShape::of(schema));
        Self { memory, shape, upload_number: cuda.next_upload(), layout, columns, feed }
    }

    /// GPU memory that a batch of `schema` uses, in bytes; `u64::MAX` if the schema has no layout.
    pub(super) fn bytes_of(schema: &BatchSchema) -> u64 {
        let Ok(layout) = SlotLayout::of(schema) else { return u64::MAX };
        let (columns, bytes) = columns_of(&layout);
        let own: u64 = [bytes, size_of_val(columns.as_slice())].into_iter().map(Memory::taken).sum();
        own + SLOTS as u64 * Memory::taken(layout.slot_bytes())
    }

    /// Host memory that stages batches of `schema` if the ring cannot be page-locked, in bytes.
    pub(super) fn staging_bytes_of(schema: &BatchSchema) -> u64 {
        SlotLayout::of(schema).map_or(u64::MAX, |layout| (SLOTS * layout.slot_bytes()) as u64)
    }

    pub(super) fn address(&self) -> Address {
        self.memory.address()
    }

    pub(super) fn shape(&self) -> &BatchShape {
        &self.shape
    }

    pub(super) fn rows(&self) -> usize {
        self.shape.rows
    }

    pub(super) fn upload_number(&self) -> u64 {
        self.upload_number
    }

    pub(super) fn column(&self, column: IdColumn) -> ColumnView {
        column_of(self.layout.schema(), &self.columns, column)
    }

    /// The address of label `label` of all rows.
    pub(super) fn labels(&self, label: usize) -> Address {
        let before =
            self.layout.labels.offset + label * self.layout.schema().rows as usize * size_of::<f32>();
        self.address() + before as Address
    }

    /// The address of the row weights; 0 if all rows weigh 1.
    pub(super) fn weights(&self) -> Address {
        self.layout.weights.map_or(0, |section| self.address() + section.offset as Address)
    }

    pub(super) fn dense(&self) -> Address {
        self.address() + self.layout.dense.offset as Address
    }

    pub(super) fn dense_columns(&self) -> usize {
        self.layout.schema().dense.len()
    }

    /// Enqueues the copy and the validation of `batch`. After an error the batch has no rows.
    pub(super) fn upload(&mut self, cuda: &Cuda, batch: BatchRef<'_>) -> Result<(), BatchError> {
        self.shape.rows = 0;
        self.upload_number = cuda.next_upload();
        if !host::fits(self.layout.schema(), batch.layout().schema()) {
            return Err(BatchError::WrongSchema);
        }
        self.shape.set(batch);
        let intake = self.intake(cuda);
        let numbers = self.rows() * self.dense_columns().max(1);
        let (columns, others) = (self.columns.len(), self.layout.schema().label_count() + 2);
        let (rows, layout) = (self.rows(), Arc::clone(&self.layout));
        self.feed.bring(cuda, batch, &layout, |slot| {
            let intake = Intake { slot, ..intake };
            // Commands put aside may still read the previous batch.
            cuda.join();
            cuda.launch(CHECK_OFFSETS, [rows, columns], &intake);
            cuda.launch(TAKE_IDS, [rows, columns], &intake);
            cuda.launch(TAKE_NUMBERS, [numbers, others], &intake);
        });
        Ok(())
    }

    /// The kernels' argument; the slot is set later.
    fn intake(&self, cuda: &Cuda) -> Intake {
        let schema = self.layout.schema();
        Intake {
            slot: 0,
            batch: self.address(),
            columns: cuda.constants_or_none(&self.columns),
            faults: cuda.faults.address(),
            labels: self.layout.labels.offset as u64,
            weights: self.layout.weights.map_or(0, |section| section.offset as u64),
            dense: self.layout.dense.offset as u64,
            label_count: schema.label_count() as u32,
            label_stride: schema.rows,
            dense_columns: schema.dense.len() as u32,
            rows: self.rows() as u32,
        }
    }

    /// The layout, used to describe a fault found in this batch.
    pub(super) fn layout(&self) -> &Arc<SlotLayout> {
        &self.layout
    }
}

impl Faults {
    const NONE: u64 = u64::MAX;

    /// No fault.
    pub(super) const CLEAR: Self = Self {
        of_offsets: Self::NONE,
        of_ids: Self::NONE,
        found: Self::NONE,
        batch: 0,
        row: 0,
        first: 0,
        second: 0,
        unused: 0,
    };

    /// The fault found in the batch at `address` with layout `layout`, if any, as the host's validation would
    /// report it.
    pub(super) fn of(&self, address: Address, layout: &SlotLayout) -> Result<(), BatchError> {
        if self.found == Self::NONE || self.batch != address {
            return Ok(());
        }
        let (schema, column) = (layout.schema(), (self.found >> 33) as usize);
        let (is_of_ids, row) = (self.found >> 32 & 1 == 1, self.row as usize);
        let (feature, cardinality) = match column.checked_sub(schema.ids.len()) {
            None => (schema.ids[column].name.clone(), schema.ids[column].cardinality),
            Some(ragged) => (schema.ragged[ragged].name.clone(), schema.ragged[ragged].cardinality),
        };
        Err(match is_of_ids {
            true => BatchError::IdOutOfRange { feature, row, id: self.first, cardinality },
            false => BatchError::BadOffsets { feature, row, from: self.first, to: self.second },
        })
    }
}

impl Cuda {
    /// Clears the recorded fault after the host has read it.
    pub(super) fn clear_faults(&self) {
        self.copy_to(self.faults.address(), Faults::CLEAR.as_bytes());
    }

    /// The address that update kernels check: all ones if no fault was found since the last report.
    pub(super) fn fault(&self) -> Address {
        self.faults.address() + std::mem::offset_of!(Faults, found) as Address
    }

    /// Waits, returns the fault found in the last uploaded batch, and clears it.
    pub(super) fn check_batch(&self, batch: &CudaBatch) -> Result<(), BatchError> {
        let mut faults = Faults::CLEAR;
        self.copy_from(faults.as_mut_bytes(), self.faults.address());
        let sound = faults.of(batch.address(), batch.layout());
        if sound.is_err() {
            self.clear_faults();
        }
        sound
    }
}

/// The view of `column` among the `columns` that [`columns_of`] returned.
pub(super) fn column_of(schema: &BatchSchema, columns: &[ColumnView], column: IdColumn) -> ColumnView {
    match column {
        IdColumn::Single(feature) => columns[feature],
        IdColumn::Ragged(feature) => columns[schema.ids.len() + feature],
    }
}

/// The location of each id column, single-valued ones first, and the batch's total size in bytes.
pub(super) fn columns_of(layout: &SlotLayout) -> (Vec<ColumnView>, usize) {
    let schema = layout.schema();
    let rows = schema.rows as usize;
    let mut rooms = Rooms(layout.slot_bytes());
    let single = schema.ids.iter().enumerate().map(|(feature, spec)| ColumnView {
        ids: (layout.ids.offset + feature * rows * size_of::<u32>()) as u64,
        cardinality: spec.cardinality,
        maximum: 1,
        ..ColumnView::default()
    });
    let mut columns: Vec<ColumnView> = single.collect();
    for (spec, section) in schema.ragged.iter().zip(&layout.ragged) {
        let values = rows * spec.maximum as usize;
        let [mean_scales, root_scales] = [rows; 2].map(|rows| rooms.add(rows * size_of::<f64>()));
        columns.push(ColumnView {
            ids: section.values.offset as u64,
            offsets: section.offsets.offset as u64,
            rows: rooms.add(values * size_of::<u32>()),
            weights: section.weights.map_or(0, |section| section.offset as u64),
            mean_scales,
            root_scales,
            cardinality: spec.cardinality,
            maximum: spec.maximum,
        });
    }
    (columns, rooms.bytes())
}
