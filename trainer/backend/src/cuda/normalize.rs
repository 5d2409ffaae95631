//! Normalization of rows and of columns.

use super::Cuda;
use super::buffers::CudaMatrix;
use super::interactions::warps;
use super::kernels::{
    COLUMN_MEANS, COLUMN_VARIANCES, MERGE_MOMENTS, MergeMoments, Moments, NORMALIZE_BACKWARD,
    NORMALIZE_BY_PARAMETERS, NORMALIZE_FORWARD, NORMALIZE_ROW_MEANS, Normalize, ROW_MOMENTS,
};
use super::layers::{PAIR_BYTES, column_blocks, partial_bytes};
use crate::device::Axis;
use crate::ops::{
    self, ColumnSums, GradientMode, Normalization, NormalizeBackward, NormalizeForward, NormalizeParameters,
    SavedNormalization,
};

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
        moments.partials = self.scratch(partial_bytes(rows, columns));
        let share = 1.0 / rows.max(1) as f32;
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

    pub(super) fn normalize_parameters(&self, operation: NormalizeParameters<'_, Self>) {
        let NormalizeParameters { rows, layer, saved, grad, mode, scale_grad, shift_grad } = operation;
        let columns = saved.input.columns();
        let partials = self.scratch(partial_bytes(rows, columns));
        let arguments = Normalize { partials, ..of_gradient(rows, layer, saved, grad) };
        self.launch_blocks(NORMALIZE_BY_PARAMETERS, column_blocks(rows, columns), &arguments);
        self.finish_columns(rows, columns, partials, [Some(scale_grad), Some(shift_grad)], mode, 1.0);
    }

    pub(super) fn normalize_backward(&self, operation: NormalizeBackward<'_, Self>) {
        let NormalizeBackward { rows, layer, saved, grad, columns } = operation;
        let of_gradient = of_gradient(rows, layer, saved, grad);
        let arguments = match columns {
            Some(ColumnSums { rows: all_rows, scale, shift }) => Normalize {
                scale_sums: scale.view(),
                shift_sums: shift.view(),
                all_rows: all_rows as u32,
                ..of_gradient
            },
            None => {
                let arguments = Normalize { of_rows: self.scratch(rows * PAIR_BYTES), ..of_gradient };
                self.launch(NORMALIZE_ROW_MEANS, warps(rows), &arguments);
                arguments
            }
        };
        self.launch(NORMALIZE_BACKWARD, [rows * saved.input.columns(), 1], &arguments);
    }
}

/// Workspace of a normalization, in bytes: partial sums over rows, or two means of each row.
pub(super) fn scratch_bytes(axis: Axis, rows: usize, columns: usize) -> usize {
    let of_rows = if axis == Axis::Row { rows * PAIR_BYTES } else { 0 };
    partial_bytes(rows, columns).max(of_rows)
}

/// The arguments of a gradient, without those of one of the kernels.
fn of_gradient(
    rows: usize,
    layer: &Normalization<'_, CudaMatrix>,
    saved: &SavedNormalization<'_, CudaMatrix>,
    grad: &CudaMatrix,
) -> Normalize {
    Normalize {
        output: saved.output.view(),
        gradient: grad.view(),
        ..arguments(rows, layer, (saved.mean, saved.variance), saved.input)
    }
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
