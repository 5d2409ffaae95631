//! Normalization of rows and of columns.

use super::Cuda;
use super::buffers::{CudaMatrix, Rooms};
use super::driver::Address;
use super::interactions::warps;
use super::kernels::{
    COLUMN_MEANS, COLUMN_VARIANCES, MERGE_MOMENTS, MergeMoments, Moments, NORMALIZE_BACKWARD,
    NORMALIZE_BY_PARAMETERS, NORMALIZE_COLUMN_MEANS, NORMALIZE_FORWARD, NORMALIZE_ROW_MEANS, Normalize,
    ROW_MOMENTS,
};
use super::layers::{PAIR_BYTES, column_blocks, partial_bytes, shares};
use crate::device::Axis;
use crate::ops::{self, GradientMode, Normalization, NormalizeBackward, NormalizeForward};

impl Cuda {
    pub(super) fn moments(&self, operation: ops::Moments<'_, Self>) {
        let ops::Moments { rows, axis, input, mean, variance } = operation;
        let columns = input.columns();
        let mut moments = Moments {
            input: input.view(),
            mean: mean.view(),
            variance: variance.view(),
            rows: rows as u32,
            ..Moments::default()
        };
        if axis == Axis::Row {
            self.launch(ROW_MOMENTS, warps(rows), &moments);
            return;
        }
        moments.partials = self.scratch(Work::of(axis, rows, columns).bytes);
        let share = 1.0 / rows as f32;
        for (entry, to) in [(COLUMN_MEANS, &*mean), (COLUMN_VARIANCES, variance)] {
            self.launch_blocks(entry, column_blocks(rows, columns), &moments);
            let to = [Some(to), None];
            self.finish_columns(rows, columns, moments.partials, to, GradientMode::Write, share);
        }
    }

    pub(super) fn merge_moments(&self, operation: ops::MergeMoments<'_, Self>) {
        let ops::MergeMoments { rows, part, moments, mean, variance } = operation;
        let merge = MergeMoments {
            moments: moments.view(),
            mean: mean.view(),
            variance: variance.view(),
            rows: rows as u32,
            part: part.min(rows) as u32,
        };
        self.launch(MERGE_MOMENTS, [moments.columns(), 1], &merge);
    }

    pub(super) fn normalize_forward(&self, operation: NormalizeForward<'_, Self>) {
        let NormalizeForward { rows, layer, moments, input, output } = operation;
        let arguments = Normalize { output: output.view(), ..arguments(rows, layer, moments, input) };
        self.launch(NORMALIZE_FORWARD, [rows * input.columns(), 1], &arguments);
    }

    pub(super) fn normalize_backward(&self, operation: NormalizeBackward<'_, Self>) {
        let NormalizeBackward { rows, layer, saved, grad, mode, scale_grad, shift_grad } = operation;
        let (input, columns) = (saved.input, saved.input.columns());
        let work = Work::of(layer.axis, rows, columns);
        let scratch = self.scratch(work.bytes);
        let partials = scratch + work.partials;
        let arguments = Normalize {
            output: saved.output.view(),
            gradient: grad.view(),
            partials,
            of_lines: scratch + work.of_lines,
            shares: shares(rows) as u32,
            ..arguments(rows, layer, (saved.mean, saved.variance), input)
        };
        self.launch_blocks(NORMALIZE_BY_PARAMETERS, column_blocks(rows, columns), &arguments);
        // With column moments, one call covers all rows, so its sums are complete and overwrite.
        let sum = if layer.axis == Axis::Column { GradientMode::Write } else { mode };
        let to = [Some(&*scale_grad), Some(&*shift_grad)];
        self.finish_columns(rows, columns, partials, to, sum, 1.0);
        match layer.axis {
            Axis::Row => self.launch(NORMALIZE_ROW_MEANS, warps(rows), &arguments),
            Axis::Column => self.launch(NORMALIZE_COLUMN_MEANS, [columns, 1], &arguments),
        }
        self.launch(NORMALIZE_BACKWARD, [rows * columns, 1], &arguments);
    }
}

/// The workspace of a normalization.
struct Work {
    partials: Address,
    of_lines: Address,
    bytes: usize,
}

impl Work {
    fn of(axis: Axis, rows: usize, columns: usize) -> Self {
        let lines = if axis == Axis::Row { rows } else { columns };
        let mut rooms = Rooms::default();
        Self {
            partials: rooms.add(partial_bytes(rows, columns)),
            of_lines: rooms.add(lines * PAIR_BYTES),
            bytes: rooms.bytes(),
        }
    }
}

/// Workspace of a normalization, in bytes.
pub(super) fn scratch_bytes(axis: Axis, rows: usize, columns: usize) -> usize {
    Work::of(axis, rows, columns).bytes
}

fn arguments(
    rows: usize,
    layer: &Normalization<'_, CudaMatrix>,
    (mean, variance): (&CudaMatrix, &CudaMatrix),
    input: &CudaMatrix,
) -> Normalize {
    Normalize {
        input: input.view(),
        mean: mean.view(),
        variance: variance.view(),
        scale: layer.scale.view(),
        shift: layer.shift.view(),
        epsilon: layer.epsilon as f32,
        rows: rows as u32,
        is_by_row: u32::from(layer.axis == Axis::Row),
        is_rectified: u32::from(layer.is_rectified),
        ..Normalize::default()
    }
}
