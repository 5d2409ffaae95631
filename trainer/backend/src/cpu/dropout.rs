//! Dropout: zeros elements at random, as a function of their positions.

use crate::ops::Dropout;

use crate::cpu::Cpu;
use crate::philox::philox;

/// Batch rows per task.
const ROWS: usize = 64;
/// Counters whose random words are generated at once.
const LANES: usize = 16;

/// Multiplies each number by `1 / keep`, or by 0.
pub(crate) fn dropout(cpu: &Cpu, operation: Dropout<'_, Cpu>) {
    let Dropout { rows, keep, key, matrix } = operation;
    let (factor, below) = ((1.0 / keep) as f32, threshold(keep));
    run_rows!(cpu, rows.len(), ROWS, matrix, |place, numbers| {
        let row = (rows.start + place) as u32;
        for (first, numbers) in (0..).step_by(LANES).zip(numbers.chunks_mut(4 * LANES)) {
            let counters = [[row; LANES], std::array::from_fn(|lane| first + lane as u32)];
            let words = philox(key, [counters[0], counters[1], [0; LANES], [0; LANES]]);
            for (numbers, words) in numbers.chunks_mut(LANES).zip(words) {
                for (number, word) in numbers.iter_mut().zip(words) {
                    *number *= if u64::from(word) < below { factor } else { 0.0 };
                }
            }
        }
    });
}

/// Words below this are kept.
pub(crate) fn threshold(keep: f64) -> u64 {
    (keep * (1_u64 << 32) as f64) as u64
}
