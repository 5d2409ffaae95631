//! The weight gradient of a layer, summed in groups of rows, for products with packed tiles.
//!
//! Rows are summed per group, then over the groups. A thread therefore processes rows that it also had in the other
//! operations, and packs what it needs of them into a separate workspace that stays in its core's L2 cache. If the
//! work were divided by inputs, each thread would read data written by all others. Groups depend on the shape
//! alone, so sums do not depend on the number of threads.

use crate::cpu::Cpu;
use crate::cpu::bf16::{self, Instructions, Panels};
use crate::cpu::gemm::View;
use crate::cpu::layer::Factor;
use crate::cpu::matrix::CpuMatrix;
use crate::cpu::parts::{Blocks, PerThread, Rows, block_of};
use crate::ops::GradientMode;

/// The least number of rows per group, and the most groups.
const ROWS: usize = 512;
const GROUPS: usize = 8;
/// The largest gradient, in floats, of which each group keeps a separate sum: it fits in an L2 cache with room to
/// spare.
const GROUPED: usize = 1 << 18;
/// Floats that rows are packed into at once: by one thread for itself, and by all threads if there are no groups.
const PACKED: usize = 1 << 16;
const PACKED_BY_ALL: usize = 1 << 22;
/// Rows per tile. Between one and `MOST_TILES` tiles are packed at once.
const TILE: usize = 32;
const MOST_TILES: usize = 64;
/// Rows of the gradient per task that sums over groups.
const SUMMED: usize = 16;

/// Whether groups are worthwhile for weights of this shape.
pub(crate) fn suit(inputs: usize, outputs: usize) -> bool {
    inputs * outputs <= GROUPED && TILE * packed_row(outputs) <= PACKED
}

/// Rows of `outputs` outputs that all threads pack together at once.
pub(crate) fn packed_by_all(outputs: usize) -> usize {
    rows_packed_to(PACKED_BY_ALL, outputs)
}

/// Rows of `outputs` outputs that fit, packed, in `numbers` floats; at least one tile.
fn rows_packed_to(numbers: usize, outputs: usize) -> usize {
    (numbers / packed_row(outputs) / TILE).clamp(1, MOST_TILES) * TILE
}

/// The most floats that a packed row occupies: three terms of half a float each, padded to whole tiles.
fn packed_row(outputs: usize) -> usize {
    outputs.next_multiple_of(TILE).max(TILE) * 3 / 2
}

/// Workspace of the weight gradient for this shape, in floats, if products are packed and `threads` threads pack.
/// Excludes the workspace for rounding.
pub(crate) fn work(instructions: Instructions, threads: usize, inputs: usize, outputs: usize) -> usize {
    if suit(inputs, outputs) {
        threads * PACKED + GROUPS * inputs * CpuMatrix::stride_of(outputs)
    } else {
        Panels::room(instructions, packed_by_all(outputs), outputs)
    }
}

/// Sums the rows of each group, then the groups.
pub(crate) fn backward(
    cpu: &Cpu,
    instructions: Instructions,
    rows: usize,
    input: &CpuMatrix,
    output_grad: Factor<'_>,
    mode: GradientMode,
    weight_grad: &mut CpuMatrix,
) {
    let (inputs, outputs) = (weight_grad.rows(), weight_grad.columns());
    let (stride, groups) = (weight_grad.stride(), rows.div_ceil(ROWS).clamp(1, GROUPS));
    let of_group = rows.div_ceil(groups).next_multiple_of(TILE);
    // Divide the inputs only if there are more threads than groups.
    let tiles = inputs.div_ceil(TILE).div_ceil(cpu.threads().div_ceil(groups));
    let each = (tiles * TILE).max(1);
    let packed = rows_packed_to(PACKED, outputs);
    let rooms = (output_grad.packable_room(), cpu.threads() * PACKED, groups * inputs * stride);
    let all = rooms.0 + rooms.1 + rooms.2;
    let mut scratch = cpu.scratch(all);
    let (room, rest) = scratch.as_mut_slice()[..all].split_at_mut(rooms.0);
    let (of_threads, sums) = rest.split_at_mut(rooms.1);
    let output_grad = output_grad.packable(cpu, room);
    let blocks = Blocks::of(inputs, each).in_lists(groups);
    let out = (Rows::of(sums, stride), PerThread::of(of_threads, PACKED));
    run_blocks!(cpu, blocks, out, |group, block, (sums, room)| {
        let group = block_of(group, of_group, rows);
        if group.is_empty() {
            sums.fill(0.0);
        }
        for first in group.clone().step_by(packed) {
            let rows = first..group.end.min(first + packed);
            let panels = Panels::pack_alone(instructions, output_grad.rows(rows.clone()), room);
            let lhs = &input.as_slice()[rows.start * input.stride() + block.start..];
            let lhs = View::row_major(lhs, rows.len(), block.len(), input.stride());
            bf16::product(lhs.transposed(), panels, sums, stride, first > group.start);
        }
    });
    run_blocks!(cpu, Blocks::of(inputs, SUMMED), weight_grad.by_rows(), |block, out| {
        let part = block.start * stride..block.end * stride;
        if mode == GradientMode::Write {
            out.fill(0.0);
        }
        for sums in sums.chunks_exact(inputs * stride) {
            for (out, sums) in out.chunks_exact_mut(stride).zip(sums[part.clone()].chunks_exact(stride)) {
                // The padding past the columns stays 0.
                out[..outputs].iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
            }
        }
    });
}
