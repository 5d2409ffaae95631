//! Copying a table out as it lies, state and all.
//!
//! Taking a row's weights and its state apart costs more than reading them, and a checkpoint's copy is what
//! training waits for: so the table's memory is copied from end to end, by all threads, and whoever has the
//! copy takes it apart.

use crate::cpu::matrix::CpuTable;
use crate::cpu::memory::Parts;
use crate::cpu::{Cpu, rows_of_task, tasks_for};

/// Floats of a task: 32 MiB, of which `memcpy` knows that no cache holds them, and writes past the caches.
const FLOATS: usize = 8 << 20;

/// Copies `table` into `out`, of as many numbers.
pub(crate) fn table(cpu: &Cpu, table: &CpuTable, out: &mut [f32]) {
    let from = table.as_slice();
    assert_eq!(out.len(), from.len(), "as many numbers as the table has");
    let out = Parts::new(out);
    run!(cpu, tasks_for(from.len(), FLOATS), |task| {
        let part = rows_of_task(task, FLOATS, from.len());
        // SAFETY: the team runs each task once, and its part starts at a multiple of its number.
        unsafe { out.get(part.clone()) }.copy_from_slice(&from[part]);
    });
}
