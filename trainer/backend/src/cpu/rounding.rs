//! Stochastic rounding of new table weights to the table's format. The random numbers depend on the weights'
//! positions.

use crate::cpu::touched::STRIP;
use crate::device::TableShape;
use crate::float::Float;
use crate::philox::philox;

/// Columns that share one counter, one word each.
const WORDS: usize = 4;
/// Counters per strip of columns.
const COUNTERS: usize = STRIP / WORDS;

/// The rounding of one table's weights in one step: see [`crate::ops::StepRows`].
#[derive(Clone, Copy)]
pub(super) struct Rounding {
    float: Float,
    key: u64,
}

impl Rounding {
    /// The rounding of a table of `shape` in one step; `draws` identifies the step.
    pub(super) fn new(shape: TableShape, draws: u64) -> Self {
        Self { float: shape.float, key: draws ^ shape.key }
    }

    /// Rounds weights of row `row`, from column `first` on, which is a multiple of four.
    #[inline(always)]
    pub(super) fn of_row(self, row: u32, first: usize, weights: &mut [f32; STRIP]) {
        if self.float == Float::F32 {
            return;
        }
        let columns = std::array::from_fn(|counter| (first / WORDS + counter) as u32);
        let words = philox(self.key, [[row; COUNTERS], columns, [0; COUNTERS], [0; COUNTERS]]);
        self.draw(weights, std::array::from_fn(|lane| words[lane % WORDS][lane / WORDS]));
    }

    /// Rounds the weights of these rows, which have one weight each.
    #[inline(always)]
    pub(super) fn of_rows(self, rows: [u32; STRIP], weights: &mut [f32; STRIP]) {
        if self.float == Float::F32 {
            return;
        }
        let [words, ..] = philox(self.key, [rows, [0; STRIP], [0; STRIP], [0; STRIP]]);
        self.draw(weights, words);
    }

    /// Compiled separately for each format.
    #[inline(always)]
    fn draw(self, weights: &mut [f32; STRIP], words: [u32; STRIP]) {
        let each = weights.iter_mut().zip(words);
        match self.float {
            Float::F32 => {}
            Float::Bf16 => each.for_each(|(weight, word)| *weight = Float::Bf16.round_drawn(*weight, word)),
            Float::F16 => each.for_each(|(weight, word)| *weight = Float::F16.round_drawn(*weight, word)),
        }
    }
}
