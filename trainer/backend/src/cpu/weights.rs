//! The gradient of a fully connected layer by its weights: a sum over the rows of the batch.
//!
//! Where products are packed for tiles, rows are summed in groups, each by itself, and then the groups. So a thread takes
//! rows that it had in the other operations as well, and packs what it needs of them in a piece of memory that stays in
//! its core's second-level cache; taken by inputs, each thread would read what all others have written. Groups follow
//! from the shape alone, so sums do not depend on threads.

use crate::backend::Sum;
#[cfg(target_arch = "x86_64")]
use crate::cpu::bf16::{self, Instructions, Panels};
use crate::cpu::gemm::View;
use crate::cpu::layer::Factor;
use crate::cpu::matrix::CpuMatrix;
#[cfg(target_arch = "x86_64")]
use crate::cpu::memory::{Parts, with_own};
use crate::cpu::{Cpu, rows_of_task, tasks_for};

/// Inputs of a task that sums over all rows, by the library.
const INPUTS: usize = 48;
/// Rows of a group, at least, and how many groups there are at most.
const GROUP: usize = 512;
const GROUPS: usize = 8;
/// Numbers of a gradient that a group still has a sum of its own of: those of a second-level cache, with room to spare.
const GROUPED: usize = 1 << 18;
/// Rows that are packed at once.
const PACKED: usize = 192;
/// Rows of the gradient of a task that sums over groups.
const SUMMED: usize = 16;

/// `weights_gradient = input^T . output_gradient`
pub(crate) fn backward(
    cpu: &Cpu,
    rows: usize,
    input: &CpuMatrix,
    output_gradient: &CpuMatrix,
    sum: Sum,
    weights_gradient: &mut CpuMatrix,
) {
    let (inputs, outputs) = (weights_gradient.rows(), weights_gradient.columns());
    assert!(inputs == input.columns() && outputs == output_gradient.columns());
    let by_output = Factor::of(input.float(), output_gradient, rows);
    #[cfg(target_arch = "x86_64")]
    if let Some(instructions) = by_output.instructions(cpu).filter(|_| inputs * outputs <= GROUPED) {
        return in_groups(cpu, instructions, rows, input, by_output, sum, weights_gradient);
    }
    let mut scratch = cpu.scratch(by_output.room(cpu));
    let by_output = by_output.ready(cpu, scratch.as_mut_slice());
    let out_stride = weights_gradient.stride();
    let out = weights_gradient.parts();
    let each = by_output.rows_of_task(cpu, inputs, INPUTS, usize::MAX);
    run!(cpu, tasks_for(inputs, each), |task| {
        let block = rows_of_task(task, each, inputs);
        let lhs = View::row_major(&input.as_slice()[block.start..], rows, block.len(), input.stride());
        // SAFETY: blocks of inputs are disjoint.
        let out = unsafe { out.get(block.start * out_stride..block.end * out_stride) };
        by_output.product(lhs.transposed(), out, out_stride, sum == Sum::Further);
    });
}

/// The sum of each group's rows, and of these.
#[cfg(target_arch = "x86_64")]
fn in_groups(
    cpu: &Cpu,
    instructions: Instructions,
    rows: usize,
    input: &CpuMatrix,
    by_output: Factor<'_>,
    sum: Sum,
    weights_gradient: &mut CpuMatrix,
) {
    let (inputs, outputs) = (weights_gradient.rows(), weights_gradient.columns());
    let (stride, groups) = (weights_gradient.stride(), tasks_for(rows, GROUP).clamp(1, GROUPS));
    let of_group = rows.div_ceil(groups).next_multiple_of(instructions.tile_rows());
    // Inputs are divided only where there are more threads than groups.
    let tiles = inputs.div_ceil(instructions.tile_rows()).div_ceil(cpu.threads().div_ceil(groups));
    let each = (tiles * instructions.tile_rows()).max(1);
    let blocks = tasks_for(inputs, each);
    let rooms = (by_output.packable_room(), groups * inputs * stride);
    let mut scratch = cpu.scratch(rooms.0 + rooms.1);
    let (room, sums) = scratch.as_mut_slice()[..rooms.0 + rooms.1].split_at_mut(rooms.0);
    let by_output = by_output.packable(cpu, room);
    let of_groups = Parts::new(&mut *sums);
    let room = Panels::room(instructions, PACKED, outputs);
    run!(cpu, groups * blocks, |task| {
        let (group, block) = (task / blocks, rows_of_task(task % blocks, each, inputs));
        let start = group * inputs * stride;
        // SAFETY: each task has a block of inputs of a group of its own.
        let sums = unsafe { of_groups.get(start + block.start * stride..start + block.end * stride) };
        let group = rows_of_task(group, of_group, rows);
        if group.is_empty() {
            sums.fill(0.0);
        }
        with_own(room, |room| {
            for first in group.clone().step_by(PACKED) {
                let rows = first..group.end.min(first + PACKED);
                let panels = Panels::pack_alone(instructions, by_output.rows(rows.clone()), room);
                let lhs = &input.as_slice()[rows.start * input.stride() + block.start..];
                let lhs = View::row_major(lhs, rows.len(), block.len(), input.stride());
                bf16::product(lhs.transposed(), panels, sums, stride, first > group.start);
            }
        });
    });
    let out = weights_gradient.parts();
    run!(cpu, tasks_for(inputs, SUMMED), |task| {
        let block = rows_of_task(task, SUMMED, inputs);
        let part = block.start * stride..block.end * stride;
        // SAFETY: blocks of inputs are disjoint.
        let out = unsafe { out.get(part.clone()) };
        if sum == Sum::Anew {
            out.fill(0.0);
        }
        for sums in sums.chunks_exact(inputs * stride) {
            for (out, sums) in out.chunks_exact_mut(stride).zip(sums[part.clone()].chunks_exact(stride)) {
                // What is past the columns stays 0.
                out[..outputs].iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::float::Float;

    /// A matrix whose numbers follow from their places.
    fn matrix(rows: usize, columns: usize) -> CpuMatrix {
        let mut matrix = CpuMatrix::new(Float::F32, rows, columns);
        let numbers = (0..rows * columns).map(|place| (place * 37 % 101) as f32 / 64.0 - 0.75);
        matrix.write(&numbers.collect::<Vec<_>>());
        matrix
    }

    #[test]
    fn groups_leave_what_is_past_the_columns() {
        let cpu = Cpu::new(Some(2)).unwrap();
        let outputs = 5;
        for (rows, inputs) in [(1, 3), (511, 40), (1100, 40), (5000, 70)] {
            let (input, by_output) = (matrix(rows, inputs), matrix(rows, outputs));
            let mut gradient = CpuMatrix::new(Float::F32, inputs, outputs);
            // What operations before have left.
            cpu.scratch(1 << 20).as_mut_slice().fill(f32::NAN);
            for (sum, times) in [(Sum::Anew, 1.0), (Sum::Further, 2.0)] {
                backward(&cpu, rows, &input, &by_output, sum, &mut gradient);
                for (place, found) in gradient.as_slice().iter().enumerate() {
                    let (to, from) = (place % gradient.stride(), place / gradient.stride());
                    let product =
                        |row: usize| f64::from(input.row(row)[from]) * f64::from(by_output.row(row)[to]);
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
