//! Copying a table to the host in its memory layout, including state.
//!
//! Separating a row's weights from its state costs more than reading them, and training waits for a checkpoint's
//! copy. So all threads copy the table's memory from end to end, and the receiver of the copy separates the parts.

use crate::cpu::Cpu;
use crate::cpu::matrix::CpuTable;
use crate::cpu::parts::{Blocks, Rows};

/// Floats per task: 32 MiB, large enough for `memcpy` to use non-temporal stores, which bypass the caches.
const FLOATS: usize = 8 << 20;

/// Copies the numbers of `table` from `first` on into `out`.
pub(crate) fn table(cpu: &Cpu, table: &CpuTable, first: usize, out: &mut [f32]) {
    let from = &table.as_slice()[first..first + out.len()];
    run_blocks!(cpu, Blocks::of(from.len(), FLOATS), Rows::of(out, 1), |part, out| {
        out.copy_from_slice(&from[part]);
    });
}
