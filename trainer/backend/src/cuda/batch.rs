//! A batch in a GPU's memory: the slot as the host has it, checked there, and behind it what follows from its offsets.

use millstream_batch::{BatchRef, BatchSchema, SlotLayout};

use super::buffers::ALIGNMENT;
use super::driver::{Address, Memory};
use super::kernels::{CHECK_IDS, CHECK_OFFSETS, CheckColumns, ColumnView};
use super::{Cuda, bytes_of};
use crate::device::{IdColumn, Pooling};
use crate::error::BatchError;
use crate::host;

/// A batch in the memory of a GPU, checked.
pub struct CudaBatch {
    layout: SlotLayout,
    memory: Memory,
    rows: usize,
    /// Columns of one id a row, then ragged ones.
    columns: Vec<ColumnView>,
    /// The first fault that was found.
    fault: Memory,
}

/// As kernels number poolings.
pub(super) fn code(pooling: Pooling) -> u32 {
    match pooling {
        Pooling::Sum => 0,
        Pooling::Mean => 1,
        Pooling::SqrtN => 2,
    }
}

/// A fault that kernels report: see `report` of batch.cu.
struct Fault {
    column: usize,
    is_of_ids: bool,
    place: usize,
}

impl Fault {
    const NONE: u64 = u64::MAX;

    fn of(word: u64) -> Option<Self> {
        let (column, place) = ((word >> 33) as usize, word as u32 as usize);
        (word != Self::NONE).then_some(Self { column, is_of_ids: word >> 32 & 1 == 1, place })
    }
}

impl CudaBatch {
    pub(super) fn new(cuda: &Cuda, schema: &BatchSchema) -> Self {
        let layout = SlotLayout::of(schema).expect("a model's schema has a layout");
        let (columns, bytes) = columns_of(&layout);
        Self { memory: cuda.memory(bytes), fault: cuda.memory(size_of::<u64>()), layout, rows: 0, columns }
    }

    /// Bytes of the GPU's memory that a batch of `schema` takes, as many as can be where it has no layout.
    pub(super) fn bytes_of(schema: &BatchSchema) -> u64 {
        let Ok(layout) = SlotLayout::of(schema) else { return u64::MAX };
        let (columns, bytes) = columns_of(&layout);
        [bytes, size_of_val(columns.as_slice()), size_of::<u64>()].into_iter().map(Memory::taken).sum()
    }

    /// Bytes of the host's memory that batches of `schema` come through: two, of which one is filled while the other is
    /// copied.
    pub(super) fn staging_bytes_of(schema: &BatchSchema) -> u64 {
        SlotLayout::of(schema).map_or(u64::MAX, |layout| 2 * layout.slot_bytes() as u64)
    }

    pub(super) fn address(&self) -> Address {
        self.memory.address()
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn column(&self, column: IdColumn) -> ColumnView {
        column_of(self.layout.schema(), &self.columns, column)
    }

    /// Label `label` of each row.
    pub(super) fn labels(&self, label: usize) -> Address {
        let before =
            self.layout.labels.offset + label * self.layout.schema().rows as usize * size_of::<f32>();
        self.address() + before as Address
    }

    /// Of rows; 0 where all weigh 1.
    pub(super) fn weights(&self) -> Address {
        self.layout.weights.map_or(0, |section| self.address() + section.offset as Address)
    }

    pub(super) fn dense(&self) -> Address {
        self.address() + self.layout.dense.offset as Address
    }

    pub(super) fn dense_columns(&self) -> usize {
        self.layout.schema().dense.len()
    }

    /// Copies and checks `batch`. On an error no rows are held.
    pub(super) fn upload(&mut self, cuda: &Cuda, batch: BatchRef<'_>) -> Result<(), BatchError> {
        self.rows = 0;
        if !host::fits(self.layout.schema(), batch.layout().schema()) {
            return Err(BatchError::WrongSchema);
        }
        let rows = batch.rows();
        self.copy(cuda, batch);
        if self.columns.is_empty() {
            self.rows = rows;
            return Ok(());
        }
        cuda.copy_to(self.fault.address(), &Fault::NONE.to_ne_bytes());
        let columns = cuda.constants(&self.columns);
        let arguments = CheckColumns {
            batch: self.address(),
            columns,
            fault: self.fault.address(),
            rows: rows as u32,
            unused: 0,
        };
        cuda.launch(CHECK_OFFSETS, [rows, self.columns.len()], &arguments);
        cuda.launch(CHECK_IDS, [rows, self.columns.len()], &arguments);
        match Fault::of(cuda.read_word(self.fault.address())) {
            None => self.rows = rows,
            Some(fault) => return Err(self.describe(cuda, &fault, rows)),
        }
        Ok(())
    }

    /// The sections of a slot of any layout to where this one has them.
    fn copy(&self, cuda: &Cuda, batch: BatchRef<'_>) {
        let (schema, rows) = (self.layout.schema(), batch.rows());
        let stride = schema.rows as usize * size_of::<f32>();
        let put = |place: usize, bytes: &[u8]| cuda.copy_to(self.address() + place as Address, bytes);
        for label in 0..schema.label_count() {
            put(self.layout.labels.offset + label * stride, bytes_of(batch.labels(label)));
        }
        if let (Some(section), Some(weights)) = (self.layout.weights, batch.weights()) {
            put(section.offset, bytes_of(weights));
        }
        put(self.layout.dense.offset, bytes_of(batch.dense()));
        for feature in 0..schema.ids.len() {
            put(self.layout.ids.offset + feature * stride, bytes_of(batch.ids(feature)));
        }
        for (feature, section) in self.layout.ragged.iter().enumerate() {
            let (offsets, values) = batch.ragged(feature);
            put(section.offsets.offset, bytes_of(&offsets[..=rows]));
            put(section.values.offset, bytes_of(values));
            if let (Some(section), Some(weights)) = (section.weights, batch.ragged_weights(feature)) {
                put(section.offset, bytes_of(&weights[..values.len()]));
            }
        }
    }

    /// What is wrong, as the host would say it.
    fn describe(&self, cuda: &Cuda, fault: &Fault, rows: usize) -> BatchError {
        let (schema, column) = (self.layout.schema(), self.columns[fault.column]);
        let word = |place: u64, number: usize| {
            let mut bytes = [0; size_of::<u32>()];
            cuda.copy_from(&mut bytes, self.address() + place + (number * size_of::<u32>()) as Address);
            u32::from_ne_bytes(bytes)
        };
        let feature = match fault.column.checked_sub(schema.ids.len()) {
            None => schema.ids[fault.column].name.clone(),
            Some(ragged) => schema.ragged[ragged].name.clone(),
        };
        let (place, offset) = (fault.place, |number| word(column.offsets, number));
        if !fault.is_of_ids {
            return match offset(0) {
                0 => {
                    BatchError::BadOffsets { feature, row: place, from: offset(place), to: offset(place + 1) }
                }
                first => BatchError::BadOffsets { feature, row: 0, from: first, to: first },
            };
        }
        let row = match column.offsets {
            0 => place,
            _ => (0..rows).take_while(|&row| offset(row) as usize <= place).count() - 1,
        };
        BatchError::IdOutOfRange {
            feature,
            row,
            id: word(column.ids, place),
            cardinality: column.cardinality,
        }
    }
}

/// That of `column`, of those that [`columns_of`] gave.
pub(super) fn column_of(schema: &BatchSchema, columns: &[ColumnView], column: IdColumn) -> ColumnView {
    match column {
        IdColumn::Single(feature) => columns[feature],
        IdColumn::Ragged(feature) => columns[schema.ids.len() + feature],
    }
}

/// Where each column of ids lies, those of one id a row first; and the bytes of all.
pub(super) fn columns_of(layout: &SlotLayout) -> (Vec<ColumnView>, usize) {
    let schema = layout.schema();
    let rows = schema.rows as usize;
    let mut end = layout.slot_bytes();
    let mut place = |bytes: usize| {
        let start = end;
        end += bytes.next_multiple_of(ALIGNMENT);
        start as u64
    };
    let single = schema.ids.iter().enumerate().map(|(feature, spec)| ColumnView {
        ids: (layout.ids.offset + feature * rows * size_of::<u32>()) as u64,
        offsets: 0,
        rows: 0,
        weights: 0,
        mean_scales: 0,
        root_scales: 0,
        cardinality: spec.cardinality,
        maximum: 1,
    });
    let mut columns: Vec<ColumnView> = single.collect();
    for (spec, section) in schema.ragged.iter().zip(&layout.ragged) {
        let values = rows * spec.maximum as usize;
        let (mean_scales, root_scales) = (place(rows * size_of::<f64>()), place(rows * size_of::<f64>()));
        columns.push(ColumnView {
            ids: section.values.offset as u64,
            offsets: section.offsets.offset as u64,
            rows: place(values * size_of::<u32>()),
            weights: section.weights.map_or(0, |section| section.offset as u64),
            mean_scales,
            root_scales,
            cardinality: spec.cardinality,
            maximum: spec.maximum,
        });
    }
    (columns, end)
}
