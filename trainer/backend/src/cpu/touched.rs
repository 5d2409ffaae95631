//! The table rows that a step touches, with the gradient of each.

use crate::cpu::memory::prefetch;
use crate::merged_rows::{HostMergedRows, MergedRowsOf};

/// Columns of a row that are processed together, in registers.
pub(super) const STRIP: usize = 16;

/// Merged rows per task.
const ROWS: usize = 1024;
/// Prefetch distance for the gradients of merged rows, in rows. Those of a part are read in order, but each table's once only.
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
pub(super) struct MergedPart<'a>(MergedRowsOf<'a, f32>);

impl<'a> MergedPart<'a> {
    /// The number of tasks for the rows of each table.
    pub(super) fn tasks_each(rows: &HostMergedRows<f32>) -> usize {
        let tables = 0..rows.shapes().len();
        tables.map(|number| rows.count(number)).max().unwrap_or(0).div_ceil(ROWS)
    }

    /// The rows of table `number` that belong to its task `task`.
    pub(super) fn new(rows: &'a HostMergedRows<f32>, number: usize, task: usize) -> Self {
        // The table may have fewer tasks than the largest one.
        let [first, end] = [task, task + 1].map(|task| (task * ROWS).min(rows.count(number)));
        Self(rows.table(number).slice(first..end))
    }
}

impl TouchedRows for MergedPart<'_> {
    fn len(&self) -> usize {
        self.0.ids().len()
    }

    fn width(&self) -> usize {
        self.0.width()
    }

    #[inline(always)]
    fn id_of(&self, number: usize) -> u32 {
        self.0.ids()[number]
    }

    #[inline(always)]
    fn sum(&self, number: usize, first: usize, columns: usize) -> [f32; STRIP] {
        let mut sum = [0.0; STRIP];
        sum[..columns].copy_from_slice(&self.0.row(number)[first..][..columns]);
        sum
    }

    #[inline(always)]
    fn sum_of_one(&self, number: usize) -> f32 {
        let (gradients, at) = self.0.place(number);
        gradients[at]
    }

    #[inline(always)]
    fn fetch_ahead(&self, number: usize) {
        if number + ROWS_AHEAD < self.len() {
            let (gradients, first) = self.0.place(number + ROWS_AHEAD);
            prefetch(gradients, first);
        }
    }
}
