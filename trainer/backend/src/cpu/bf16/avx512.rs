//! Products by AVX-512's `VDPBF16PS`: a tile of 12 rows and 2 vectors of columns stays in registers over the depth of a
//! chunk.
//!
//! The instruction adds the product of each pair's second numbers to a sum, then that of the first, rounding after each.

use std::arch::x86_64::{
    __m512, __m512bh, _mm512_add_ps, _mm512_castsi512_ps, _mm512_dpbf16_ps, _mm512_loadu_ps,
    _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_set1_epi32, _mm512_setzero_ps,
};
use std::mem::transmute;
use std::ops::Range;

use super::{LANES, Out, Panels, fetch, mask_of, pack_pairs, pack_row};
use crate::cpu::gemm::View;

/// Rows of a tile.
pub(super) const TILE: usize = 12;
/// Rows of the left factor that are packed together where their numbers lie far apart: whole cache lines of them.
const COLUMNS: usize = 48;
/// Pairs of a chunk of the depth where a row's numbers lie side by side, and where they lie far apart.
const NEAR_PAIRS: usize = 512;
const FAR_PAIRS: usize = 128;

/// Columns of a panel: two vectors of them, or one where there are no more.
pub(super) fn width(columns: usize) -> usize {
    if columns <= LANES { LANES } else { 2 * LANES }
}

/// A left factor packed for tiles: the pair `p` of row `r` is word `r * row + p * pair`.
struct Packed<'a> {
    words: &'a [f32],
    row: usize,
    pair: usize,
}

/// Of rows whose numbers lie side by side.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) fn near(lhs: View<'_>, rhs: Panels<'_>, mut out: Out<'_>) {
    let mut words = [0.0; TILE * NEAR_PAIRS];
    for start in (0..rhs.pairs()).step_by(NEAR_PAIRS) {
        let pairs = NEAR_PAIRS.min(rhs.pairs() - start);
        for first in (0..lhs.rows).step_by(TILE) {
            let rows = TILE.min(lhs.rows - first);
            for (row, words) in words.chunks_exact_mut(NEAR_PAIRS).take(rows).enumerate() {
                let begin = (first + row) * lhs.row_stride + 2 * start;
                let depth = (2 * pairs).min(lhs.columns - 2 * start);
                pack_row(&lhs.data[begin..begin + depth], words);
            }
            // Those that come next arrive while this tile is computed.
            let (next, stride) = (TILE.min(lhs.rows - first - rows), lhs.row_stride);
            fetch(lhs.data, (first + rows) * stride + 2 * start, stride, next, 2 * pairs);
            let packed = Packed { words: &words, row: NEAR_PAIRS, pair: 1 };
            tiles(&packed, rhs, start..start + pairs, first..first + rows, &mut out);
        }
    }
}

/// Of rows whose numbers lie far apart, and beside those of other rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) fn far(lhs: View<'_>, rhs: Panels<'_>, mut out: Out<'_>) {
    let mut words = [0.0; COLUMNS * FAR_PAIRS];
    // As it lies in memory.
    let matrix = lhs.transposed();
    for column in (0..lhs.rows).step_by(COLUMNS) {
        for start in (0..rhs.pairs()).step_by(FAR_PAIRS) {
            let pairs = FAR_PAIRS.min(rhs.pairs() - start);
            pack_pairs(matrix, start..start + pairs, column, &mut words, COLUMNS);
            let end = lhs.rows.min(column + COLUMNS);
            let (depth, stride) = (2 * (start + pairs), matrix.row_stride);
            let next = (2 * FAR_PAIRS).min(matrix.rows.saturating_sub(depth));
            fetch(matrix.data, depth * stride + column, stride, next, end - column);
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
    for (column, columns, words) in rhs.each(pairs) {
        let stride = out.stride;
        let out = &mut out.numbers[rows.start * stride + column..][..(rows.len() - 1) * stride + columns];
        if rhs.width() == LANES {
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

/// Pairs, as their instructions take them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn pairs_of(words: __m512) -> __m512bh {
    // SAFETY: both are 512 bits, and any are of both types.
    unsafe { transmute::<__m512, __m512bh>(words) }
}
