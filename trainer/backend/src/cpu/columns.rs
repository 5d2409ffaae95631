//! Copying and adding rows and columns of matrices.

use crate::cpu::Cpu;
use crate::cpu::parts::{Blocks, Rows};
use crate::ops::{Add, Clear, CopyColumns, CopyRows, Multiply};

/// Batch rows per task.
pub(super) const ROWS: usize = 128;

/// Copies `columns` columns of `from`, from `first` on, to `to`, from `to_first` on.
pub(crate) fn copy(cpu: &Cpu, operation: CopyColumns<'_, Cpu>) {
    let CopyColumns { rows, from: (from, first), to: (to, to_first), columns } = operation;
    run_rows!(cpu, rows, ROWS, to, |row, to| {
        to[to_first..to_first + columns].copy_from_slice(&from.row(row)[first..first + columns]);
    });
}

/// Copies `rows` rows of `from`, from `first` on, to `to`, from `to_first` on.
pub(crate) fn copy_rows(cpu: &Cpu, operation: CopyRows<'_, Cpu>) {
    let CopyRows { rows, from: (from, first), to: (to, to_first) } = operation;
    let stride = to.stride();
    let float = to.float();
    let from = &from.as_slice()[first * stride..];
    let out = Rows::of(&mut to.as_mut_slice()[to_first * stride..], stride);
    run_blocks!(cpu, Blocks::of(rows, ROWS), out, |block, out| {
        out.copy_from_slice(&from[block.start * stride..block.end * stride]);
        float.round_all(out);
    });
}

/// `to += from`, over the columns of `to`.
pub(crate) fn add(cpu: &Cpu, operation: Add<'_, Cpu>) {
    let Add { rows, from, to } = operation;
    run_rows!(cpu, rows, ROWS, to, |row, to| {
        for (to, from) in to.iter_mut().zip(from.row(row)) {
            *to += from;
        }
    });
}

/// Multiplies the first `rows` rows by the first number of `factor`.
pub(crate) fn multiply(cpu: &Cpu, operation: Multiply<'_, Cpu>) {
    let Multiply { rows, factor, matrix } = operation;
    let factor = factor.row(0)[0];
    run_rows!(cpu, rows, ROWS, matrix, |_, row| row.iter_mut().for_each(|number| *number *= factor));
}

/// Zeros the first `rows` rows.
pub(crate) fn clear(cpu: &Cpu, operation: Clear<'_, Cpu>) {
    let Clear { rows, matrix } = operation;
    run_rows!(cpu, rows, ROWS, matrix, |_, row| row.fill(0.0));
}
