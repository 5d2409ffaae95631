//! Copying a table out as it lies, state and all.
//!
//! Taking a row's weights and its state apart costs more than reading them, and a checkpoint's copy is what
//! training waits for: so the table's memory is copied from end to end, by all threads, and whoever has the
//! copy takes it apart.

use crate::cpu::Cpu;
use crate::cpu::matrix::CpuTable;
use crate::cpu::parts::{Blocks, Rows};

/// Floats of a task: 32 MiB, of which `memcpy` knows that no cache holds them, and writes past the caches.
const FLOATS: usize = 8 << 20;

/// Copies `table` into `out`, of as many numbers.
pub(crate) fn table(cpu: &Cpu, table: &CpuTable, out: &mut [f32]) {
    let from = table.as_slice();
    assert_eq!(out.len(), from.len(), "as many numbers as the table has");
    run_blocks!(cpu, Blocks::of(from.len(), FLOATS), Rows::of(out, 1), |part, out| {
        out.copy_from_slice(&from[part]);
    });
}
