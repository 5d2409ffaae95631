//! The table rows that a step touches, with the gradient of each.

use crate::cpu::Cpu;
use crate::cpu::memory::prefetch;
use crate::device::Shapes;
use crate::merged_rows::HostMergedRows;

/// Columns of a row that are processed together, in registers.
pub(super) const STRIP: usize = 16;

/// Merged rows per task.
const ROWS: usize = 1024;
/// Prefetch distance for the gradients of merged rows, in rows. They are read in order, but each table's are read once only.
const ROWS_AHEAD: usize = 8;

/// Some touched rows of one table.
pub(super) trait TouchedRows {
    /// The number of rows.
    fn len(&self) -> usize;
    /// The table's columns.
    fn width(&self) -> usize;
    /// The id of row `number`.
    fn id_of(&self, number: usize) -> u32;
    /// The gradient of `columns` columns of row `number`, from `first` on.
    fn sum(&self, number: usize, first: usize, columns: usize) -> [f32; STRIP];
    /// The same for a table of one column.
    fn sum_of_one(&self, number: usize) -> f32;
    /// Prefetches the gradients of later rows, before row `number` is processed.
    fn fetch_ahead(&self, number: usize);

    /// The id of row `number`, if there is one.
    #[inline(always)]
    fn id(&self, number: usize) -> Option<u32> {
        (number < self.len()).then(|| self.id_of(number))
    }

    /// A row's strips: first column and number of columns.
    #[inline(always)]
    fn strips(&self) -> impl Iterator<Item = (usize, usize)> + use<Self> {
        let whole = self.width() / STRIP * STRIP;
        let rest = self.width() - whole;
        (0..whole).step_by(STRIP).map(|first| (first, STRIP)).chain((rest > 0).then_some((whole, rest)))
    }
}

/// Some of the rows of a table that all parts of a batch touch.
pub(super) struct MergedPart<'a> {
    ids: &'a [u32],
    sums: &'a [f32],
    width: usize,
}

impl<'a> MergedPart<'a> {
    /// The number of tasks for the rows of each table.
    pub(super) fn tasks_each(rows: &HostMergedRows<f32>) -> usize {
        rows.tables().iter().map(|table| table.ids().len()).max().unwrap_or(0).div_ceil(ROWS)
    }

    /// The rows of table `number` that belong to its task `task`.
    pub(super) fn new(rows: &'a HostMergedRows<f32>, number: usize, task: usize) -> Self {
        let (table, width) = (&rows.tables()[number], Cpu::merged_shapes(rows)[number].width);
        // The table may have fewer tasks than the largest one.
        let [first, end] = [task, task + 1].map(|task| (task * ROWS).min(table.ids().len()));
        let rows = first..end;
        Self { sums: &table.sums()[rows.start * width..rows.end * width], ids: &table.ids()[rows], width }
    }
}

impl TouchedRows for MergedPart<'_> {
    fn len(&self) -> usize {
        self.ids.len()
    }

    fn width(&self) -> usize {
        self.width
    }

    #[inline(always)]
    fn id_of(&self, number: usize) -> u32 {
        self.ids[number]
    }

    #[inline(always)]
    fn sum(&self, number: usize, first: usize, columns: usize) -> [f32; STRIP] {
        let mut sum = [0.0; STRIP];
        sum[..columns].copy_from_slice(&self.sums[number * self.width + first..][..columns]);
        sum
    }

    #[inline(always)]
    fn sum_of_one(&self, number: usize) -> f32 {
        self.sums[number]
    }

    #[inline(always)]
    fn fetch_ahead(&self, number: usize) {
        prefetch(self.sums, (number + ROWS_AHEAD) * self.width);
    }
}
