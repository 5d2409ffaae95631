//! Matrix products with bfloat16 instructions: for bfloat16 factors, and for fp32 factors where the instructions
//! are fast enough to make splitting worthwhile.
//!
//! The right factor is packed once per operation into panels of columns, in which each two rows form pairs
//! (`[pair][column]`, 32 bits each), because the instructions add products of pairs. Of the left factor, a few rows
//! at a time are packed on the stack and multiplied by every panel. Packing rounds to bfloat16, to nearest, ties to
//! even; numbers that have the format already are unchanged.
//!
//! - [`avx512`]: `VDPBF16PS`, on vectors. Twice the terms of an fp32 instruction.
//! - [`amx`]: `TDPBF16PS`, on tiles. Sixteen times as many terms per cycle, where AMX exists; nearly three times as
//!   many for [`split`] numbers.
//!
//! **fp32.** A number with a 24-bit significand is the sum of three bfloat16 numbers with 8 bits, each the rounded
//! remainder of the previous ones: `x = x1 + x2 + x3`, where `x2` is at most `2^-8 x1` and `x3` at most `2^-16 x1`.
//! Of the nine products of two such sums, six count: `x1 y1 + x1 y2 + x2 y1 + x2 y2 + x1 y3 + x3 y1`. The others
//! are together below `2^-23 x y`, one unit in the last place of fp32, and mostly far below. Products of bfloat16
//! numbers are exact, so only the sums are rounded, as in any fp32 product (Henry, Tang and Heinecke, "Leveraging
//! the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations", 2019). The range is that of
//! fp32, except for numbers within `2^-9` of its maximum, which become infinite; infinite numbers give NaN.
//!
//! **Summation.** The product of two bfloat16 numbers has 16 significant bits, which fp32 holds exactly; sums are
//! fp32, rounded to nearest. Subnormal inputs and results count as 0, and the rounding mode and exception masks are
//! ignored (Intel, "Architecture Instruction Set Extensions Programming Reference"). So results differ from plain
//! fp32 sums only in summation order and below 2^-126. The order is fixed by the instruction and the depth: the
//! result is a function of the factors alone, on machines with the same instructions.

mod amx;
mod avx512;
mod split;

use std::arch::x86_64::{
    __m256bh, __m256i, __m512, __m512bh, __m512i, __mmask16, _mm512_castsi512_ps, _mm512_cvtepu16_epi32,
    _mm512_cvtne2ps_pbh, _mm512_cvtneps_pbh, _mm512_maskz_loadu_ps, _mm512_or_si512, _mm512_slli_epi32,
    _mm512_storeu_ps,
};
use std::mem::transmute;
use std::ops::Range;

use millstream_batch::cache_lines::prefetch_line;

use crate::cpu::Cpu;
use crate::cpu::gemm::View;
use crate::cpu::memory::LINE;
use crate::cpu::parts::{Blocks, Rows};

/// fp32 numbers per vector.
const LANES: usize = 16;
/// Pairs per task that packs the right factor.
const PACKED_PAIRS: usize = 64;

/// Instructions for products that this machine has: created by [`Instructions::detect`] and its variants only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instructions(Kernel);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    Avx512,
    Amx,
    /// fp32.
    AmxSplit,
}

impl Instructions {
    /// The fastest for bfloat16 factors, if any.
    pub(crate) fn detect() -> Option<Self> {
        let vectors = Self::detect_vectors();
        vectors.map(|vectors| if amx::is_available() { Self(Kernel::Amx) } else { vectors })
    }

    /// Vector instructions, even if there are faster ones.
    pub(crate) fn detect_vectors() -> Option<Self> {
        has_vectors().then_some(Self(Kernel::Avx512))
    }

    /// The instructions for fp32 factors, where they are faster than plain fp32 ones.
    pub(crate) fn detect_split() -> Option<Self> {
        (has_vectors() && amx::is_available()).then_some(Self(Kernel::AmxSplit))
    }

    /// The vendor's name.
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            Kernel::Avx512 => "AVX512-BF16",
            Kernel::Amx | Kernel::AmxSplit => "AMX-BF16",
        }
    }

    /// The number of bfloat16 terms that a number is packed as.
    fn terms(self) -> usize {
        match self.0 {
            Kernel::Avx512 | Kernel::Amx => 1,
            Kernel::AmxSplit => split::TERMS,
        }
    }

    /// The number of pairs that a depth is padded to.
    fn pairs(self, depth: usize) -> usize {
        match self.0 {
            Kernel::Avx512 => depth.div_ceil(2),
            Kernel::Amx | Kernel::AmxSplit => depth.div_ceil(2).next_multiple_of(amx::PAIRS),
        }
    }

    /// Columns per panel of a factor of `columns` columns.
    fn width(self, columns: usize) -> usize {
        match self.0 {
            Kernel::Avx512 => avx512::width(columns),
            Kernel::Amx | Kernel::AmxSplit => amx::SIDE,
        }
    }

    /// Words per pair of rows in a panel of `width` columns.
    fn words(self, width: usize) -> usize {
        self.terms() * width
    }

    /// Rows of the left factor that fill whole tiles: blocks of a multiple of it waste no work.
    pub(crate) fn tile_rows(self) -> usize {
        match self.0 {
            Kernel::Avx512 => avx512::TILE,
            Kernel::Amx | Kernel::AmxSplit => amx::SIDE,
        }
    }

    /// Packs pairs of rows of a row-major matrix, `width` columns from `column` on.
    fn pack(self, matrix: View<'_>, pairs: Range<usize>, column: usize, words: &mut [f32], width: usize) {
        // SAFETY: `Instructions` values exist only where the machine has the instructions.
        unsafe {
            match self.0 {
                Kernel::Avx512 | Kernel::Amx => pack_pairs(matrix, pairs, column, words, width),
                Kernel::AmxSplit => split::split_panel(matrix, pairs, column, words),
            }
        }
    }
}

fn has_vectors() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bf16")
}

/// The packed right factor of products, `[K, N]`; created only where the machine has the instructions.
#[derive(Clone, Copy)]
pub(crate) struct Panels<'a> {
    instructions: Instructions,
    /// `[panel][pair][column]`, each 32 bits of two numbers; for split numbers `[panel][pair / PAIRS][term][pair %
    /// PAIRS][column]`.
    words: &'a [f32],
    depth: usize,
    columns: usize,
}

impl<'a> Panels<'a> {
    /// Floats that the panels of `[depth, columns]` occupy.
    pub(crate) fn room(instructions: Instructions, depth: usize, columns: usize) -> usize {
        instructions.pairs(depth) * instructions.words(columns.next_multiple_of(instructions.width(columns)))
    }

    /// Packs `matrix`, row-major, into `room`.
    pub(crate) fn pack(instructions: Instructions, cpu: &Cpu, matrix: View<'_>, room: &'a mut [f32]) -> Self {
        let (words, pairs, width) = Self::begin(instructions, matrix, room);
        let (depth, columns) = (matrix.rows, matrix.columns);
        let blocks = Blocks::of(pairs, PACKED_PAIRS).across_lists(columns.div_ceil(width));
        let out = Rows::of(&mut *words, instructions.words(width));
        run_blocks!(cpu, blocks, out, |panel, block, words| {
            instructions.pack(matrix, block, panel * width, words, width);
        });
        Self { instructions, words, depth, columns }
    }

    /// The destination of the packed `matrix`, its number of row pairs, and the columns per panel.
    fn begin(
        instructions: Instructions,
        matrix: View<'_>,
        room: &'a mut [f32],
    ) -> (&'a mut [f32], usize, usize) {
        assert!(matrix.column_stride == 1 && matrix.is_within(), "a row-major matrix within its slice");
        let words = &mut room[..Self::room(instructions, matrix.rows, matrix.columns)];
        (words, instructions.pairs(matrix.rows), instructions.width(matrix.columns))
    }

    /// As [`Panels::pack`], on the calling thread only.
    pub(crate) fn pack_alone(instructions: Instructions, matrix: View<'_>, room: &'a mut [f32]) -> Self {
        let (words, pairs, width) = Self::begin(instructions, matrix, room);
        let (depth, columns) = (matrix.rows, matrix.columns);
        let panels = words.chunks_exact_mut((pairs * instructions.words(width)).max(1));
        for (words, column) in panels.zip((0..columns).step_by(width)) {
            instructions.pack(matrix, 0..pairs, column, words, width);
        }
        Self { instructions, words, depth, columns }
    }

    /// As [`Instructions::tile_rows`].
    pub(crate) fn tile_rows(&self) -> usize {
        self.instructions.tile_rows()
    }

    fn pairs(&self) -> usize {
        self.instructions.pairs(self.depth)
    }

    fn width(&self) -> usize {
        self.instructions.width(self.columns)
    }

    /// Each panel's first column, number of columns, and words of `pairs`.
    fn each(&self, pairs: Range<usize>) -> impl Iterator<Item = (usize, usize, &'a [f32])> {
        let Self { words, columns, .. } = *self;
        let (width, all) = (self.width(), self.pairs());
        let each = self.instructions.words(width);
        (0..columns).step_by(width).map(move |column| {
            let panel = &words[column / width * all * each..];
            (column, width.min(columns - column), &panel[pairs.start * each..pairs.end * each])
        })
    }
}

/// `out = lhs . rhs`, or `out += lhs . rhs` when `accumulate`; `out` is row-major, its rows `out_stride` apart.
pub(crate) fn product(lhs: View<'_>, rhs: Panels<'_>, out: &mut [f32], out_stride: usize, accumulate: bool) {
    assert_eq!(lhs.columns, rhs.depth, "factors of equal depth");
    assert!(lhs.is_within(), "a factor within its slice");
    assert!(rhs.columns <= out_stride, "a row stride of at least the product's columns");
    if lhs.rows == 0 || rhs.columns == 0 {
        return;
    }
    assert!((lhs.rows - 1) * out_stride + rhs.columns <= out.len(), "a product within its slice");
    let out = Out { numbers: out, stride: out_stride, accumulate };
    if rhs.depth == 0 {
        return out.without_terms(lhs.rows, rhs.columns);
    }
    // SAFETY: `rhs` exists only where the machine has its instructions.
    unsafe {
        match (rhs.instructions.0, lhs.row_stride, lhs.column_stride) {
            (Kernel::Avx512, _, 1) => avx512::near(lhs, rhs, out),
            (Kernel::Avx512, 1, _) => avx512::far(lhs, rhs, out),
            (Kernel::Amx, _, 1) => amx::near::<1>(lhs, rhs, out),
            (Kernel::Amx, 1, _) => amx::far::<1>(lhs, rhs, out),
            (Kernel::AmxSplit, _, 1) => amx::near::<{ split::TERMS }>(lhs, rhs, out),
            (Kernel::AmxSplit, 1, _) => amx::far::<{ split::TERMS }>(lhs, rhs, out),
            (_, row, column) => panic!("a factor of strides {row} and {column}"),
        }
    }
}

/// The destination of a product.
struct Out<'a> {
    numbers: &'a mut [f32],
    stride: usize,
    accumulate: bool,
}

impl Out<'_> {
    /// Completes a product of depth 0.
    fn without_terms(self, rows: usize, columns: usize) {
        if !self.accumulate {
            self.numbers.chunks_mut(self.stride).take(rows).for_each(|row| row[..columns].fill(0.0));
        }
    }
}

/// Prefetches the cache lines of `columns` floats of each of `rows` rows, `stride` apart, starting at `start`.
#[inline(always)]
fn fetch(numbers: &[f32], start: usize, stride: usize, rows: usize, columns: usize) {
    let start = numbers.as_ptr().wrapping_add(start);
    for row in 0..rows {
        let row = start.wrapping_add(row * stride);
        (0..columns.div_ceil(LINE)).for_each(|line| prefetch_line(row.wrapping_add(line * LINE)));
    }
}

/// A mask of the first `numbers` of [`LANES`] lanes.
fn mask_of(numbers: usize) -> __mmask16 {
    if numbers >= LANES { __mmask16::MAX } else { (1 << numbers) - 1 }
}

/// Reinterprets bfloat16 numbers for integer instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn half_pairs(numbers: __m256bh) -> __m256i {
    // SAFETY: both types have 256 bits, and every bit pattern is valid for both.
    unsafe { transmute::<__m256bh, __m256i>(numbers) }
}

/// Packs consecutive numbers, zero-padded to whole vectors.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn pack_row(numbers: &[f32], words: &mut [f32]) {
    assert!(numbers.len().next_multiple_of(2 * LANES) <= 2 * words.len());
    for (numbers, words) in numbers.chunks(2 * LANES).zip(words.chunks_exact_mut(LANES)) {
        let (low, high) = (mask_of(numbers.len()), mask_of(numbers.len().saturating_sub(LANES)));
        // SAFETY: the masks exclude lanes past the chunk; a vector of words is 64 bytes.
        unsafe {
            let low = _mm512_maskz_loadu_ps(low, numbers.as_ptr());
            let high = _mm512_maskz_loadu_ps(high, numbers.as_ptr().wrapping_add(LANES));
            let packed = transmute::<__m512bh, __m512>(_mm512_cvtne2ps_pbh(high, low));
            _mm512_storeu_ps(words.as_mut_ptr(), packed);
        }
    }
}

/// Packs pairs of rows of a row-major matrix, `width` columns from `column` on: whole vectors, zero-padded past the
/// matrix's end.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn pack_pairs(matrix: View<'_>, pairs: Range<usize>, column: usize, words: &mut [f32], width: usize) {
    assert!(matrix.column_stride == 1 && matrix.is_within());
    assert!(width.is_multiple_of(LANES) && pairs.len() * width <= words.len());
    for vector in (0..width).step_by(LANES) {
        for (number, pair) in pairs.clone().enumerate() {
            // SAFETY: `words` is long enough and the matrix is row-major and within its slice, by the assertions.
            unsafe {
                let place = words.as_mut_ptr().add(number * width + vector);
                _mm512_storeu_ps(place, _mm512_castsi512_ps(packed(matrix, pair, column + vector)));
            }
        }
    }
}

/// Two rows of a row-major matrix as pairs: a vector of columns from `column` on, zero-padded past the matrix's
/// end.
///
/// # Safety
/// The matrix is row-major and within its slice.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn packed(matrix: View<'_>, pair: usize, column: usize) -> __m512i {
    // SAFETY: the caller guarantees that the matrix is row-major and within its slice.
    let (low, high) =
        unsafe { (vector_of(matrix, 2 * pair, column), vector_of(matrix, 2 * pair + 1, column)) };
    // No closure: it would have no target features, so the compiler would not always inline it.
    let low = _mm512_cvtepu16_epi32(half_pairs(_mm512_cvtneps_pbh(low)));
    let high = _mm512_cvtepu16_epi32(half_pairs(_mm512_cvtneps_pbh(high)));
    _mm512_or_si512(low, _mm512_slli_epi32::<16>(high))
}

/// A vector of a row of a row-major matrix, from `column` on, zero-padded past the matrix's end.
///
/// # Safety
/// The matrix is row-major and within its slice.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn vector_of(matrix: View<'_>, row: usize, column: usize) -> __m512 {
    let columns = if row < matrix.rows { matrix.columns.saturating_sub(column) } else { 0 };
    let start = matrix.data.as_ptr().wrapping_add(row * matrix.row_stride + column);
    // SAFETY: the mask excludes columns and rows past the end of the matrix, which is within its slice.
    unsafe { _mm512_maskz_loadu_ps(mask_of(columns), start) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::float::Float;
    use crate::philox::philox;

    /// Numbers of both signs and of sizes near 1, rounded or not.
    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let number = |item: usize| philox(seed, [item as u32, 0, 0, 0].map(|word| [word]))[0][0];
        (0..count).map(|item| number(item) as f32 / (1_u32 << 31) as f32 - 1.0).collect()
    }

    /// All instructions that this machine has.
    fn available() -> Vec<Instructions> {
        let fastest = Instructions::detect().filter(|found| found.0 == Kernel::Amx);
        [Instructions::detect_vectors(), fastest, Instructions::detect_split()]
            .into_iter()
            .flatten()
            .collect()
    }

    /// The value of a factor's number after packing.
    fn packed(instructions: Instructions, number: f32) -> f32 {
        if instructions.0 == Kernel::AmxSplit { number } else { Float::Bf16.round(number) }
    }

    fn check(
        instructions: Instructions,
        cpu: &Cpu,
        (rows, depth, columns): (usize, usize, usize),
        is_far: bool,
    ) {
        let (stride, out_stride) = (depth.max(rows) + 3, columns + 1);
        let (left, right) = (numbers(stride * stride, 1), numbers(depth * out_stride, 2));
        let lhs = if is_far {
            View::row_major(&left, depth, rows, stride).transposed()
        } else {
            View::row_major(&left, rows, depth, stride)
        };
        let mut room = vec![f32::NAN; Panels::room(instructions, depth, columns)];
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
                    let factors = [left, right[k * out_stride + column]];
                    let [left, right] = factors.map(|number| packed(instructions, number));
                    let term = f64::from(left) * f64::from(right);
                    sum += term;
                    size += term.abs();
                }
                let what = format!("{instructions:?} {rows} {depth} {columns}, far: {is_far}, item {item}");
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
    fn products_are_those_of_packed_factors() {
        let cpu = Cpu::new(Some(2)).unwrap();
        for rows in [1, 11, 12, 13, 47, 48, 49, 100] {
            for depth in [0, 1, 2, 3, 31, 33, 64, 255, 257, 429, 1030] {
                for columns in [1, 5, 16, 17, 32, 33, 64, 70] {
                    for instructions in available() {
                        check(instructions, &cpu, (rows, depth, columns), false);
                        check(instructions, &cpu, (rows, depth, columns), true);
                    }
                }
            }
        }
    }

    /// The product of one pair.
    fn sum_of(instructions: Instructions, before: f32, left: [f32; 2], right: [f32; 2]) -> f32 {
        let cpu = Cpu::new(Some(1)).unwrap();
        let mut room = vec![0.0; Panels::room(instructions, 2, 1)];
        let panels = Panels::pack(instructions, &cpu, View::row_major(&right, 2, 1, 1), &mut room);
        let mut out = [before];
        product(View::row_major(&left, 1, 2, 2), panels, &mut out, 1, true);
        out[0]
    }

    #[test]
    fn extremes_are_as_documented() {
        let (least, tiny) = (f32::MIN_POSITIVE, f32::MIN_POSITIVE / 2.0);
        for instructions in available() {
            let sum_of = |before, left, right| sum_of(instructions, before, left, right);
            assert_eq!(sum_of(0.0, [1.0, 0.0], [least, 0.0]), least);
            // Subnormal factors and sums count as 0.
            assert_eq!(sum_of(0.0, [1.0, 0.0], [tiny, 0.0]), 0.0);
            assert_eq!(sum_of(0.0, [0.5, 0.0], [least, 0.0]), 0.0);
            let infinite = sum_of(1.0, [f32::MAX, 0.0], [2.0, 0.0]);
            assert!(if instructions.terms() > 1 { infinite.is_nan() } else { infinite == f32::INFINITY });
            assert!(sum_of(1.0, [f32::INFINITY, 1.0], [1.0, f32::NEG_INFINITY]).is_nan());
            assert!(sum_of(1.0, [f32::NAN, 1.0], [0.0, 1.0]).is_nan());
        }
    }

    #[test]
    fn split_numbers_have_products_of_single_precision() {
        let Some(instructions) = Instructions::detect_split() else { return };
        let (large, small) = (2.0_f32.powi(126), 2.0_f32.powi(-60));
        let scales = [(1.0, 1.0), (large, small), (small, 1.0), (3.0, large)];
        let mut worst: f64 = 0.0;
        for (number, (left, right)) in numbers(5000, 1).into_iter().zip(numbers(5000, 2)).enumerate() {
            let (by_left, by_right) = scales[number % scales.len()];
            let (left, right) = (left * by_left, right * by_right);
            let expected = f64::from(left) * f64::from(right);
            if expected.abs() < f64::from(f32::MAX) {
                let found = sum_of(instructions, 0.0, [left, 0.0], [right, 0.0]);
                worst = worst.max(((f64::from(found) - expected) / expected).abs());
            }
        }
        // Two roundings: that of the sum, and the dropped products of the smallest terms.
        assert!(worst < 2.0_f64.powi(-23), "{worst}");
        // Bits that only the third terms have.
        for tail in [1.0, -1.0].map(|sign| 1.0 + sign * f32::EPSILON) {
            assert_eq!(sum_of(instructions, 0.0, [tail, 0.0], [1.0, 0.0]), tail);
            assert_eq!(sum_of(instructions, -1.0, [1.0, 0.0], [tail, 0.0]), tail - 1.0);
        }
    }

    #[test]
    fn sums_of_split_numbers_are_as_exact_as_those_of_single_precision() {
        let Some(instructions) = Instructions::detect_split() else { return };
        let cpu = Cpu::new(Some(1)).unwrap();
        for depth in [1, 4, 16, 64, 429, 2048] {
            let (left, right) = (numbers(32 * depth, 3), numbers(depth * 32, 4));
            let (lhs, rhs) =
                (View::row_major(&left, 32, depth, depth), View::row_major(&right, depth, 32, 32));
            let mut room = vec![0.0; Panels::room(instructions, depth, 32)];
            let panels = Panels::pack(instructions, &cpu, rhs, &mut room);
            let mut found = [[0.0; 32 * 32]; 2];
            product(lhs, panels, &mut found[0], 32, false);
            crate::cpu::gemm::product(lhs, rhs, &mut found[1], 32, false);
            // For all sums: the squared errors relative to the terms' sizes.
            let [split, plain] = found.map(|sums| {
                let squares = sums.iter().enumerate().map(|(place, &sum)| {
                    let terms = (0..depth).map(|k| {
                        f64::from(left[place / 32 * depth + k]) * f64::from(right[k * 32 + place % 32])
                    });
                    let (exact, size) = terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
                    ((f64::from(sum) - exact) / size).powi(2)
                });
                squares.sum::<f64>().sqrt()
            });
            assert!(split <= 1.1 * plain, "{depth} terms: {split:e}, and by single precision {plain:e}");
        }
    }
}
