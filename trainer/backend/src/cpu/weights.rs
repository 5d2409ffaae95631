//! The gradient of a fully connected layer with respect to its weights: a sum over the rows of the batch.

use std::ops::Range;

use crate::cpu::Cpu;
use crate::cpu::gemm::View;
#[cfg(target_arch = "x86_64")]
use crate::cpu::groups;
use crate::cpu::layer::Factor;
use crate::cpu::matrix::CpuMatrix;
use crate::cpu::parts::Blocks;
use crate::ops::GradientMode;

/// Inputs per task that sums over all rows, when the library multiplies.
const INPUTS: usize = 48;

/// `weight_grad = input^T . output_grad`
pub(crate) fn backward(
    cpu: &Cpu,
    rows: usize,
    input: &CpuMatrix,
    output_grad: &CpuMatrix,
    mode: GradientMode,
    weight_grad: &mut CpuMatrix,
) {
    let (inputs, outputs) = (weight_grad.rows(), weight_grad.columns());
    assert!(inputs == input.columns() && outputs == output_grad.columns());
    // The library packs internally, and its summation order depends on the number of rows.
    let most = rows.max(1);
    #[cfg(target_arch = "x86_64")]
    let most = {
        let output_grad = Factor::of(input.float(), output_grad, 0..rows);
        match output_grad.instructions(cpu) {
            Some(instructions) if groups::suit(inputs, outputs) => {
                return groups::backward(cpu, instructions, rows, input, output_grad, mode, weight_grad);
            }
            Some(_) => groups::packed_by_all(outputs),
            None => most,
        }
    };
    for first in (0..rows.max(1)).step_by(most) {
        let rows = first..rows.min(first + most);
        let sum = if first == 0 { mode } else { GradientMode::Accumulate };
        let output_grad = Factor::of(input.float(), output_grad, rows.clone());
        over(cpu, rows, input, output_grad, sum, weight_grad);
    }
}

/// The sum over some rows, divided among tasks by inputs.
fn over(
    cpu: &Cpu,
    rows: Range<usize>,
    input: &CpuMatrix,
    output_grad: Factor<'_>,
    mode: GradientMode,
    weight_grad: &mut CpuMatrix,
) {
    let (inputs, out_stride) = (weight_grad.rows(), weight_grad.stride());
    let mut scratch = cpu.scratch(output_grad.room(cpu));
    let output_grad = output_grad.ready(cpu, scratch.as_mut_slice());
    let each = output_grad.rows_of_task(cpu, inputs, INPUTS, usize::MAX);
    run_blocks!(cpu, Blocks::of(inputs, each), weight_grad.by_rows(), |block, out| {
        let lhs = &input.as_slice()[rows.start * input.stride() + block.start..];
        let lhs = View::row_major(lhs, rows.len(), block.len(), input.stride());
        output_grad.product(lhs.transposed(), out, out_stride, mode == GradientMode::Accumulate);
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::float::Float;

    /// A matrix whose values are a function of their positions.
    fn matrix(rows: usize, columns: usize) -> CpuMatrix {
        let mut matrix = CpuMatrix::new(Float::F32, rows, columns);
        let numbers = (0..rows * columns).map(|place| (place * 37 % 101) as f32 / 64.0 - 0.75);
        matrix.write(&numbers.collect::<Vec<_>>());
        matrix
    }

    #[test]
    fn gradients_are_sums_over_rows_and_leave_what_is_past_the_columns() {
        let cpu = Cpu::new(Some(2)).unwrap();
        // The last is too wide for groups, and its rows are packed in two chunks.
        let shapes = [(1, 3, 17), (511, 40, 17), (1100, 40, 17), (5000, 70, 17), (2100, 3, 1400)];
        for (rows, inputs, outputs) in shapes {
            let (input, output_grad) = (matrix(rows, inputs), matrix(rows, outputs));
            let mut gradient = CpuMatrix::new(Float::F32, inputs, outputs);
            assert!(gradient.stride() > outputs || outputs != 17);
            // The workspace may contain values of earlier operations.
            cpu.scratch(1 << 20).as_mut_slice().fill(f32::NAN);
            for (sum, times) in [(GradientMode::Write, 1.0), (GradientMode::Accumulate, 2.0)] {
                backward(&cpu, rows, &input, &output_grad, sum, &mut gradient);
                for (place, found) in gradient.as_slice().iter().enumerate() {
                    let (to, from) = (place % gradient.stride(), place / gradient.stride());
                    let product =
                        |row: usize| f64::from(input.row(row)[from]) * f64::from(output_grad.row(row)[to]);
                    let expected =
                        if to < outputs { times * (0..rows).map(product).sum::<f64>() } else { 0.0 };
                    assert!(
                        (f64::from(*found) - expected).abs() <= 1e-6 * rows as f64,
                        "{rows}: {found}, not {expected}"
                    );
                }
            }
        }
    }
}
