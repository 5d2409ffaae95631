//! Matrix products in bfloat16, by AVX-512's `VDPBF16PS`: twice the terms an instruction of single precision has.
//!
//! The right factor is packed once for an operation into panels of [`Panels::WIDTH`] columns, or 16 where there are no
//! more, in which two rows lie as pairs beside each other (`[pair][column]`, 32 bits each), since the instruction adds
//! products of pairs. Of the left factor a few rows at a time are packed on the stack, and meet every panel: a tile of
//! 12 rows and 2 vectors of columns stays in registers over the depth of a chunk. Packing rounds to bfloat16, to the
//! nearest, ties to even; numbers that are of the format already stay as they are.
//!
//! **How it sums.** `VDPBF16PS` adds the product of each pair's second numbers, then that of the first, to a sum of
//! single precision, rounding after each to the nearest; subnormal numbers, read or made, count as 0, and it ignores
//! what is set of rounding and exceptions (Intel, "Instruction Set Extensions Programming Reference", VDPBF16PS). Two
//! bfloat16 numbers have a product of 16 digits, which single precision holds, so what differs from plain sums of single
//! precision is their order, and what is below 2^-126. The terms are added in the order of the depth, by chunks whose
//! size is fixed: the result is a function of the factors alone.

use std::arch::x86_64::{
    __m256bh, __m256i, __m512, __m512bh, __mmask16, _mm512_add_ps, _mm512_castsi512_ps,
    _mm512_cvtepu16_epi32, _mm512_cvtne2ps_pbh, _mm512_cvtneps_pbh, _mm512_dpbf16_ps, _mm512_loadu_ps,
    _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_or_si512, _mm512_set1_epi32, _mm512_setzero_ps,
    _mm512_slli_epi32, _mm512_storeu_ps,
};
use std::mem::transmute;
use std::ops::Range;

use crate::cpu::gemm::View;
use crate::cpu::memory::{LINE, Parts, prefetch};
use crate::cpu::{Cpu, rows_of_task, tasks_for};

/// Numbers of single precision in a vector.
const LANES: usize = 16;
/// Rows of a tile.
const TILE: usize = 12;
/// Rows of the left factor that are packed together where their numbers lie far apart: whole cache lines of them.
const COLUMNS: usize = 48;
/// Pairs of a chunk of the depth where a row's numbers lie side by side, and where they lie far apart.
const NEAR_PAIRS: usize = 512;
const FAR_PAIRS: usize = 128;
/// Pairs of a task that packs the right factor.
const PACKED_PAIRS: usize = 64;

/// That the machine has the instructions.
#[derive(Clone, Copy)]
pub(crate) struct Instructions(());

impl Instructions {
    /// What lets this module be used, if anything does.
    pub(crate) fn detect() -> Option<Self> {
        let has_all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512bf16");
        has_all.then_some(Self(()))
    }
}

/// The right factor of products, `[K, N]`, packed: made only where the machine has the instructions.
#[derive(Clone, Copy)]
pub(crate) struct Panels<'a> {
    /// `[panel][pair][column]`, each 32 bits of two numbers.
    words: &'a [f32],
    depth: usize,
    columns: usize,
}

impl<'a> Panels<'a> {
    /// Columns of a panel of two vectors.
    const WIDTH: usize = 2 * LANES;

    /// Numbers that the panels of `[depth, columns]` take.
    pub(crate) fn room(depth: usize, columns: usize) -> usize {
        let width = Self::width_of(columns);
        depth.div_ceil(2) * columns.next_multiple_of(width)
    }

    fn width_of(columns: usize) -> usize {
        if columns <= LANES { LANES } else { Self::WIDTH }
    }

    /// Packs `matrix`, row-major, into `room`.
    pub(crate) fn pack(_: Instructions, cpu: &Cpu, matrix: View<'_>, room: &'a mut [f32]) -> Self {
        let (depth, columns) = (matrix.rows, matrix.columns);
        assert!(matrix.column_stride == 1 && matrix.is_within(), "a row-major matrix within its slice");
        let words = &mut room[..Self::room(depth, columns)];
        let (pairs, width) = (depth.div_ceil(2), Self::width_of(columns));
        let chunks = tasks_for(pairs, PACKED_PAIRS);
        let parts = Parts::new(&mut *words);
        cpu.run(columns.div_ceil(width) * chunks, |task| {
            let (panel, first) = (task / chunks, task % chunks);
            let block = rows_of_task(first, PACKED_PAIRS, pairs);
            let start = panel * pairs * width;
            // SAFETY: each task has pairs of a panel of its own.
            let words = unsafe { parts.get(start + block.start * width..start + block.end * width) };
            // SAFETY: the machine has the instructions.
            unsafe { pack_pairs(matrix, block, panel * width, words, width) };
        });
        Self { words, depth, columns }
    }

    fn pairs(&self) -> usize {
        self.depth.div_ceil(2)
    }
}

/// `out = lhs . rhs`, or `out += lhs . rhs` when `accumulate`; `out` is row-major, its rows `out_stride` apart.
pub(crate) fn product(lhs: View<'_>, rhs: Panels<'_>, out: &mut [f32], out_stride: usize, accumulate: bool) {
    assert_eq!(lhs.columns, rhs.depth, "factors that fit each other");
    assert!(lhs.is_within(), "a factor within its slice");
    assert!(rhs.columns <= out_stride, "rows of the product side by side");
    if lhs.rows == 0 || rhs.columns == 0 {
        return;
    }
    assert!((lhs.rows - 1) * out_stride + rhs.columns <= out.len(), "a product within its slice");
    let out = Out { numbers: out, stride: out_stride, accumulate };
    // SAFETY: the panels are a proof that the machine has the instructions.
    unsafe {
        match (lhs.row_stride, lhs.column_stride) {
            (_, 1) => near(lhs, rhs, out),
            (1, _) => far(lhs, rhs, out),
            strides => panic!("a factor of strides {strides:?}"),
        }
    }
}

/// Where a product goes.
struct Out<'a> {
    numbers: &'a mut [f32],
    stride: usize,
    accumulate: bool,
}

/// A left factor packed for tiles: the pair `p` of row `r` is word `r * row + p * pair`.
struct Packed<'a> {
    words: &'a [f32],
    row: usize,
    pair: usize,
}

/// Of rows whose numbers lie side by side.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn near(lhs: View<'_>, rhs: Panels<'_>, mut out: Out<'_>) {
    let mut words = [0.0; TILE * NEAR_PAIRS];
    for start in (0..rhs.pairs().max(1)).step_by(NEAR_PAIRS) {
        let pairs = NEAR_PAIRS.min(rhs.pairs() - start);
        for first in (0..lhs.rows).step_by(TILE) {
            let rows = TILE.min(lhs.rows - first);
            for (row, words) in words.chunks_exact_mut(NEAR_PAIRS).take(rows).enumerate() {
                let begin = (first + row) * lhs.row_stride + 2 * start;
                let depth = (2 * pairs).min(lhs.columns - 2 * start);
                pack_row(&lhs.data[begin..begin + depth], words);
            }
            // Those that come next arrive while this tile is computed.
            for row in first + TILE..(first + 2 * TILE).min(lhs.rows) {
                fetch(lhs.data, row * lhs.row_stride + 2 * start, 2 * pairs);
            }
            let packed = Packed { words: &words, row: NEAR_PAIRS, pair: 1 };
            tiles(&packed, rhs, start..start + pairs, first..first + rows, &mut out);
        }
    }
}

/// Of rows whose numbers lie far apart, and beside those of other rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn far(lhs: View<'_>, rhs: Panels<'_>, mut out: Out<'_>) {
    let mut words = [0.0; COLUMNS * FAR_PAIRS];
    // As it lies in memory.
    let matrix = lhs.transposed();
    for column in (0..lhs.rows).step_by(COLUMNS) {
        for start in (0..rhs.pairs().max(1)).step_by(FAR_PAIRS) {
            let pairs = FAR_PAIRS.min(rhs.pairs() - start);
            pack_pairs(matrix, start..start + pairs, column, &mut words, COLUMNS);
            let end = lhs.rows.min(column + COLUMNS);
            for row in 2 * (start + pairs)..(2 * (start + pairs + FAR_PAIRS)).min(matrix.rows) {
                fetch(matrix.data, row * matrix.row_stride + column, end - column);
            }
            for first in (column..end).step_by(TILE) {
                let packed = Packed { words: &words[first - column..], row: 1, pair: COLUMNS };
                tiles(&packed, rhs, start..start + pairs, first..end.min(first + TILE), &mut out);
            }
        }
    }
}

/// The tiles of some rows and of all columns, over some pairs of the depth.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn tiles(lhs: &Packed<'_>, rhs: Panels<'_>, pairs: Range<usize>, rows: Range<usize>, out: &mut Out<'_>) {
    let accumulate = out.accumulate || pairs.start > 0;
    let width = Panels::width_of(rhs.columns);
    for panel in 0..rhs.columns.div_ceil(width) {
        let words = &rhs.words[panel * rhs.pairs() * width..][pairs.start * width..pairs.end * width];
        let (column, stride) = (panel * width, out.stride);
        let columns = width.min(rhs.columns - column);
        let out = &mut out.numbers[rows.start * stride + column..][..(rows.len() - 1) * stride + columns];
        if width == LANES {
            tile::<1>(lhs, words, out, stride, (rows.len(), columns), accumulate);
        } else {
            tile::<2>(lhs, words, out, stride, (rows.len(), columns), accumulate);
        }
    }
}

/// One tile: at most [`TILE`] rows and `V` vectors of columns. `lhs` has words of [`TILE`] rows, whatever they are of
/// those that are not wanted.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn tile<const V: usize>(
    lhs: &Packed<'_>,
    rhs: &[f32],
    out: &mut [f32],
    stride: usize,
    (rows, columns): (usize, usize),
    accumulate: bool,
) {
    let pairs = rhs.len() / (V * LANES);
    assert!(pairs == 0 || (TILE - 1) * lhs.row + (pairs - 1) * lhs.pair < lhs.words.len());
    assert!(rows <= TILE && columns <= V * LANES && (rows - 1) * stride + columns <= out.len());
    let mut sums = [[_mm512_setzero_ps(); V]; TILE];
    let (left, right) = (lhs.words.as_ptr().cast::<i32>(), rhs.as_ptr());
    for pair in 0..pairs {
        let mut panel = [_mm512_setzero_ps(); V];
        for (vector, numbers) in panel.iter_mut().enumerate() {
            // SAFETY: within `rhs`, which has `V` vectors a pair.
            *numbers = unsafe { _mm512_loadu_ps(right.add((pair * V + vector) * LANES)) };
        }
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: within the words, by the first assertion.
            let word = unsafe { *left.add(row * lhs.row + pair * lhs.pair) };
            let numbers = pairs_of(_mm512_castsi512_ps(_mm512_set1_epi32(word)));
            for (sum, panel) in sums.iter_mut().zip(&panel) {
                *sum = _mm512_dpbf16_ps(*sum, numbers, pairs_of(*panel));
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        if row < rows {
            for (vector, &sum) in sums.iter().enumerate() {
                let mask = mask_of(columns.saturating_sub(vector * LANES));
                // SAFETY: the mask leaves out what is past `columns`; rows and columns are within `out` by the second
                // assertion. A vector past all columns has an empty mask, and no number of it is touched.
                unsafe {
                    let place = out.as_mut_ptr().wrapping_add(row * stride + vector * LANES);
                    let before =
                        if accumulate { _mm512_maskz_loadu_ps(mask, place) } else { _mm512_setzero_ps() };
                    _mm512_mask_storeu_ps(place, mask, _mm512_add_ps(before, sum));
                }
            }
        }
    }
}

/// Asks for the cache lines of `count` numbers.
fn fetch(numbers: &[f32], start: usize, count: usize) {
    for line in (start..start + count).step_by(LINE) {
        prefetch(numbers, line);
    }
}

/// The first `numbers` lanes, of which there are [`LANES`].
fn mask_of(numbers: usize) -> __mmask16 {
    if numbers >= LANES { __mmask16::MAX } else { (1 << numbers) - 1 }
}

/// Pairs, as their instructions take them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn pairs_of(words: __m512) -> __m512bh {
    // SAFETY: both are 512 bits, and any are of both types.
    unsafe { transmute::<__m512, __m512bh>(words) }
}

/// Numbers of bfloat16, as instructions of whole numbers take them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn half_pairs(numbers: __m256bh) -> __m256i {
    // SAFETY: both are 256 bits, and any are of both types.
    unsafe { transmute::<__m256bh, __m256i>(numbers) }
}

/// Packs numbers that lie side by side, and zeros up to whole vectors.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn pack_row(numbers: &[f32], words: &mut [f32]) {
    assert!(numbers.len().next_multiple_of(2 * LANES) <= 2 * words.len());
    for (numbers, words) in numbers.chunks(2 * LANES).zip(words.chunks_exact_mut(LANES)) {
        let (low, high) = (mask_of(numbers.len()), mask_of(numbers.len().saturating_sub(LANES)));
        // SAFETY: the masks leave out what is past the chunk; a vector of words is 64 bytes.
        unsafe {
            let low = _mm512_maskz_loadu_ps(low, numbers.as_ptr());
            let high = _mm512_maskz_loadu_ps(high, numbers.as_ptr().wrapping_add(LANES));
            let packed = transmute::<__m512bh, __m512>(_mm512_cvtne2ps_pbh(high, low));
            _mm512_storeu_ps(words.as_mut_ptr(), packed);
        }
    }
}

/// Packs pairs of rows of a row-major matrix, `width` columns from `column` on: whole vectors of them, and zeros where
/// the matrix ends.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn pack_pairs(matrix: View<'_>, pairs: Range<usize>, column: usize, words: &mut [f32], width: usize) {
    assert!(matrix.column_stride == 1 && matrix.is_within());
    assert!(width.is_multiple_of(LANES) && pairs.len() * width <= words.len());
    let stride = matrix.row_stride;
    for vector in (0..width).step_by(LANES) {
        let column = column + vector;
        let mask = mask_of(matrix.columns.saturating_sub(column));
        let start = matrix.data.as_ptr().wrapping_add(column);
        for (number, pair) in pairs.clone().enumerate() {
            let first = start.wrapping_add(2 * pair * stride);
            let second_mask = if 2 * pair + 1 < matrix.rows { mask } else { 0 };
            // SAFETY: the masks leave out columns and rows past the end of the matrix, which is within its slice; there
            // are as many words, by the second assertion.
            unsafe {
                let first_row = _mm512_maskz_loadu_ps(mask, first);
                let second_row = _mm512_maskz_loadu_ps(second_mask, first.wrapping_add(stride));
                let low = _mm512_cvtepu16_epi32(half_pairs(_mm512_cvtneps_pbh(first_row)));
                let high = _mm512_cvtepu16_epi32(half_pairs(_mm512_cvtneps_pbh(second_row)));
                let packed = _mm512_or_si512(low, _mm512_slli_epi32::<16>(high));
                let place = words.as_mut_ptr().add(number * width + vector);
                _mm512_storeu_ps(place, _mm512_castsi512_ps(packed));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::float::Float;
    use crate::philox::philox;

    /// Numbers of every kind of sign and size near 1, rounded or not.
    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let number = |item: usize| philox(seed, [item as u32, 0, 0, 0].map(|word| [word]))[0][0];
        (0..count).map(|item| number(item) as f32 / (1_u32 << 31) as f32 - 1.0).collect()
    }

    fn check(cpu: &Cpu, (rows, depth, columns): (usize, usize, usize), is_far: bool) {
        let instructions = Instructions::detect().unwrap();
        let (stride, out_stride) = (depth.max(rows) + 3, columns + 1);
        let (left, right) = (numbers(stride * stride, 1), numbers(depth * out_stride, 2));
        let lhs = if is_far {
            View::row_major(&left, depth, rows, stride).transposed()
        } else {
            View::row_major(&left, rows, depth, stride)
        };
        let mut room = vec![f32::NAN; Panels::room(depth, columns)];
        let rhs = View::row_major(&right, depth, columns, out_stride);
        let panels = Panels::pack(instructions, cpu, rhs, &mut room);
        let before = numbers(rows * out_stride, 3);
        for accumulate in [false, true] {
            let mut out = before.clone();
            product(lhs, panels, &mut out, out_stride, accumulate);
            for (item, (&found, &before)) in out.iter().zip(&before).enumerate() {
                let (row, column) = (item / out_stride, item % out_stride);
                let (mut sum, mut size) = (if accumulate { f64::from(before) } else { 0.0 }, 1.0);
                for k in 0..depth {
                    let left = lhs.data[row * lhs.row_stride + k * lhs.column_stride];
                    let [left, right] = [left, right[k * out_stride + column]].map(|x| Float::Bf16.round(x));
                    let term = f64::from(left) * f64::from(right);
                    sum += term;
                    size += term.abs();
                }
                let what = format!("{rows} {depth} {columns}, far: {is_far}, item {item}");
                if column == columns {
                    assert_eq!(found.to_bits(), before.to_bits(), "{what}: not of the product");
                } else {
                    let error = (f64::from(found) - sum).abs();
                    assert!(error <= 1e-6 * size, "{what}: {found}, not {sum}");
                }
            }
        }
    }

    #[test]
    fn products_are_those_of_rounded_factors() {
        let Some(_) = Instructions::detect() else { return };
        let cpu = Cpu::new(Some(2)).unwrap();
        for rows in [1, 11, 12, 13, 47, 48, 49, 100] {
            for depth in [1, 2, 3, 31, 33, 64, 255, 257, 429, 1030] {
                for columns in [1, 5, 16, 17, 32, 33, 64, 70] {
                    check(&cpu, (rows, depth, columns), false);
                    check(&cpu, (rows, depth, columns), true);
                }
            }
        }
    }

    /// One product of one pair.
    fn sum_of(before: f32, left: [f32; 2], right: [f32; 2]) -> f32 {
        let cpu = Cpu::new(Some(1)).unwrap();
        let mut room = vec![0.0; Panels::room(2, 1)];
        let instructions = Instructions::detect().unwrap();
        let panels = Panels::pack(instructions, &cpu, View::row_major(&right, 2, 1, 1), &mut room);
        let mut out = [before];
        product(View::row_major(&left, 1, 2, 2), panels, &mut out, 1, true);
        out[0]
    }

    #[test]
    fn extremes_are_as_documented() {
        let Some(_) = Instructions::detect() else { return };
        let (least, tiny) = (f32::MIN_POSITIVE, f32::MIN_POSITIVE / 2.0);
        assert_eq!(sum_of(0.0, [1.0, 0.0], [least, 0.0]), least);
        // Subnormal factors and sums count as 0.
        assert_eq!(sum_of(0.0, [1.0, 0.0], [tiny, 0.0]), 0.0);
        assert_eq!(sum_of(0.0, [0.5, 0.0], [least, 0.0]), 0.0);
        assert_eq!(sum_of(1.0, [f32::MAX, 0.0], [2.0, 0.0]), f32::INFINITY);
        assert!(sum_of(1.0, [f32::INFINITY, 1.0], [1.0, f32::NEG_INFINITY]).is_nan());
        assert!(sum_of(1.0, [f32::NAN, 1.0], [0.0, 1.0]).is_nan());
    }
}
