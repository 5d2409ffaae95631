//! The row plan: which rows of which tables a batch touches, in GPU memory.

use std::iter::once;

use millstream_batch::{BatchSchema, SlotLayout};

use super::batch::{CudaBatch, column_of, columns_of};
use super::buffers::Rooms;
use super::driver::{Address, Memory};
use super::kernels::{
    COUNT_DIGITS, ColumnView, DIGIT_BITS, DIGITS, FILL_GROUPS, GroupView, MOVE_IDS, PLACE_DIGITS, Plan,
    SIZE_GROUPS, TILE,
};
use super::{Cuda, host};
use crate::device::{IdColumn, Lookup};

/// The rows of each table that a batch touches: the sorted ids of each group of columns.
pub struct CudaRowPlan {
    /// The most rows of a batch.
    rows: u32,
    /// The number of the batch whose ids are sorted.
    upload: u64,
    arrangement: Arrangement,
    _memory: Memory,
}

/// The memory layout of a plan, starting at a given address.
struct Arrangement {
    groups: Vec<Group>,
    /// The columns of all groups, in order.
    columns: Vec<ColumnView>,
    views: Vec<GroupView>,
    /// The start of each column's ids in its group, and the number of ids in each group.
    starts: Address,
    sizes: Address,
    bytes: usize,
}

/// The columns looked up in one table.
struct Group {
    columns: Vec<IdColumn>,
    capacity: usize,
    /// The index of the group's first column among the columns of all groups.
    first_column: usize,
}

/// A sorted group, as kernels read it.
pub(super) struct Sorted {
    pub(super) ids: Address,
    pub(super) places: Address,
    pub(super) size: Address,
    pub(super) starts: Address,
    pub(super) capacity: usize,
}

impl CudaRowPlan {
    pub(super) fn new(cuda: &Cuda, schema: &BatchSchema, groups: &[Vec<IdColumn>]) -> Self {
        let layout = SlotLayout::of(schema).expect("a model's schema has a layout");
        let mut arrangement = Arrangement::of(&layout, groups);
        let memory = cuda.memory(arrangement.bytes);
        arrangement.move_to(memory.address());
        Self { rows: schema.rows, upload: 0, arrangement, _memory: memory }
    }

    /// GPU memory of a plan and its kernel arguments, in bytes; `u64::MAX` if batches have no layout.
    pub(super) fn bytes_of(schema: &BatchSchema, groups: &[Vec<IdColumn>]) -> u64 {
        let Ok(layout) = SlotLayout::of(schema) else { return u64::MAX };
        let Arrangement { columns, views, bytes, .. } = Arrangement::of(&layout, groups);
        let parts = [bytes, size_of_val(columns.as_slice()), size_of_val(views.as_slice())];
        parts.into_iter().map(Memory::taken).sum()
    }

    /// Sorts the ids of `batch`, concurrently with operations that do not use the plan.
    ///
    /// # Panics
    /// If the batch has another layout than the plan's: the kernels find ids by the plan's.
    pub(super) fn fill(&mut self, cuda: &Cuda, batch: &CudaBatch) {
        let Arrangement { groups, columns, views, starts, sizes, .. } = &self.arrangement;
        let is_alike = self.rows == batch.layout().schema().rows
            && self.columns().map(|column| batch.column(column)).eq(columns.iter().copied());
        assert!(is_alike, "a plan for batches of this schema");
        self.upload = batch.upload_number();
        if groups.is_empty() {
            return;
        }
        let mut plan = Plan {
            batch: batch.address(),
            columns: cuda.constants(columns),
            groups: cuda.constants(views),
            starts: *starts,
            sizes: *sizes,
            rows: batch.rows() as u32,
            group_count: groups.len() as u32,
            ..Plan::default()
        };
        let largest = groups.iter().map(|group| group.capacity).max().unwrap_or(0);
        let groups = groups.len();
        cuda.aside(|| {
            cuda.launch(SIZE_GROUPS, [groups, 1], &plan);
            cuda.launch(FILL_GROUPS, [largest, groups], &plan);
            for pass in 0..views.iter().map(|view| view.passes).max().unwrap_or(0) {
                plan.pass = pass;
                let tiles = largest.div_ceil(TILE as usize);
                cuda.launch_blocks(COUNT_DIGITS, [tiles, groups], &plan);
                cuda.launch_blocks(PLACE_DIGITS, [groups, 1], &plan);
                cuda.launch_blocks(MOVE_IDS, [tiles, groups], &plan);
            }
        });
    }

    /// The columns of all groups.
    pub(super) fn columns(&self) -> impl Iterator<Item = IdColumn> {
        self.arrangement.groups.iter().flat_map(|group| &group.columns).copied()
    }

    /// The group whose columns are exactly those of `lookups`, of the batch that was sorted last.
    ///
    /// # Panics
    /// If that was not `batch`: its ids may be at places that `batch` does not have.
    pub(super) fn sorted(&self, batch: &CudaBatch, lookups: &[Lookup]) -> Sorted {
        assert!(self.upload == batch.upload_number(), "a plan of this batch's ids");
        let is_of_all = |group: &Group| group.columns.iter().eq(lookups.iter().map(|lookup| &lookup.column));
        let Arrangement { groups, views, starts, sizes, .. } = &self.arrangement;
        let number = groups.iter().position(is_of_all).expect("a table's lookups are in the plan");
        let (group, view) = (&groups[number], &views[number]);
        let turn = (view.passes % 2) as usize;
        let words = |number: usize| (number * size_of::<u32>()) as Address;
        Sorted {
            ids: view.ids[turn],
            places: view.places[turn],
            size: sizes + words(number),
            starts: starts + words(group.first_column),
            capacity: group.capacity,
        }
    }
}

impl Arrangement {
    fn of(layout: &SlotLayout, groups: &[Vec<IdColumn>]) -> Self {
        let schema = layout.schema();
        let (all, _) = columns_of(layout);
        let mut columns = Vec::new();
        let mut own = Vec::new();
        for group in groups {
            let capacity = group.iter().map(|&column| host::capacity(schema, column)).sum();
            own.push(Group { columns: group.clone(), capacity, first_column: columns.len() });
            columns.extend(group.iter().map(|&column| column_of(schema, &all, column)));
        }
        let mut rooms = Rooms::default();
        let mut place = |numbers: usize| rooms.add(numbers * size_of::<u32>());
        let views = own
            .iter()
            .map(|group| {
                let cardinality = group.columns.iter().map(|&column| host::cardinality(schema, column)).max();
                let bits = u32::BITS - cardinality.unwrap_or(1).saturating_sub(1).leading_zeros();
                GroupView {
                    ids: [place(group.capacity), place(group.capacity)],
                    places: [place(group.capacity), place(group.capacity)],
                    counts: place(DIGITS as usize * group.capacity.div_ceil(TILE as usize)),
                    first_column: group.first_column as u32,
                    columns: group.columns.len() as u32,
                    capacity: group.capacity as u32,
                    passes: bits.div_ceil(DIGIT_BITS),
                }
            })
            .collect();
        let (starts, sizes) = (place(columns.len()), place(own.len()));
        Self { groups: own, columns, views, starts, sizes, bytes: rooms.bytes() }
    }

    /// Moves an arrangement that starts at address 0.
    fn move_to(&mut self, base: Address) {
        for view in &mut self.views {
            let arrays = view.ids.iter_mut().chain(&mut view.places).chain(once(&mut view.counts));
            arrays.for_each(|array| *array += base);
        }
        self.starts += base;
        self.sizes += base;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use millstream_batch::{BatchBuffer, BatchHeader, IdFeature, Stream};

    use super::super::testing::alone;
    use super::*;
    use crate::{
        Backend, Device, Float, Formula, GradientColumns, Pooling, RowGradients, TableShape, Update, ops,
    };

    fn schema(rows: u32) -> BatchSchema {
        BatchSchema {
            rows,
            labels: Vec::new(),
            weighted: false,
            dense: Vec::new(),
            ids: vec![IdFeature { name: "one".into(), cardinality: 4 }],
            ragged: Vec::new(),
            columns: Vec::new(),
            position_bytes: 0,
        }
    }

    fn upload(cuda: &Cuda, rows: u32, batch: &mut CudaBatch) {
        let mut buffer = BatchBuffer::new(Arc::new(SlotLayout::of(&schema(rows)).unwrap()));
        let (stream, epoch, batch_number) = (Stream::Train, 0, 0);
        buffer.as_mut().set_header(&BatchHeader {
            stream,
            epoch,
            batch: batch_number,
            rows,
            global_rows: rows,
            first_row: 0,
            most_rows: rows,
            last: false,
        });
        cuda.upload(buffer.as_ref(), batch).unwrap();
    }

    /// Kernels would read gradients of rows that the batch does not have.
    #[test]
    fn a_plan_of_other_ids_is_refused() {
        let (_stand_in, cuda) = alone();
        let mut batch = cuda.batch(&schema(3));
        let mut plan = cuda.row_plan(&schema(3), &[vec![IdColumn::Single(0)]]);
        let shape = TableShape { rows: 4, width: 1, float: Float::F32, key: 0, states: 0, row_states: 0 };
        let (mut tables, gradient, scale) = ([cuda.table(shape)], cuda.matrix(3, 1), cuda.matrix(1, 1));
        let lookups = [Lookup { column: IdColumn::Single(0), pooling: Pooling::Sum, table: 0, first: 0 }];
        let update = Update::from(Formula::Sgd { learning_rate: 1.0 });
        let mut step = |batch: &CudaBatch, plan: &CudaRowPlan| {
            let columns = GradientColumns::Shared;
            let gradients =
                RowGradients { batch, plan, lookups: &lookups, gradient: &gradient, columns, maxima: None };
            let (update, scale, tables) = (&update, &scale, &mut tables);
            let step = || cuda.run(ops::StepRows { update, scale, draws: 0, gradients: &gradients, tables });
            catch_unwind(AssertUnwindSafe(step)).is_ok()
        };
        upload(&cuda, 3, &mut batch);
        assert!(!step(&batch, &plan));
        cuda.run(ops::PlanRows { batch: &batch, plan: &mut plan });
        assert!(step(&batch, &plan));
        upload(&cuda, 3, &mut batch);
        assert!(!step(&batch, &plan));
        let larger = cuda.batch(&schema(4));
        let plan_larger = || cuda.run(ops::PlanRows { batch: &larger, plan: &mut plan });
        assert!(catch_unwind(AssertUnwindSafe(plan_larger)).is_err());
    }
}
