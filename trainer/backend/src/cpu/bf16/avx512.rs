//! Products with AVX-512's `VDPBF16PS`: a tile of 12 rows and 2 vectors of columns stays in registers over the
//! depth of a chunk.
//!
//! The instruction adds the product of each pair's second numbers to a sum, then that of the first, rounding after
//! each.

use std::arch::x86_64::{
    __m512, __m512bh, _mm512_add_ps, _mm512_castsi512_ps, _mm512_dpbf16_ps, _mm512_loadu_ps,
    _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_set1_epi32, _mm512_setzero_ps,
};
use std::mem::transmute;
use std::ops::Range;

use super::{LANES, Out, Panels, fetch, mask_of, pack_pairs, pack_row};
use crate::cpu::gemm::View;

/// Rows per tile.
pub(super) const TILE: usize = 12;
/// Rows of the left factor that are packed together when its columns are contiguous: whole cache lines.
const COLUMNS: usize = 48;
/// Pairs per chunk of the depth, for contiguous rows and for contiguous columns.
const NEAR_PAIRS: usize = 512;
const FAR_PAIRS: usize = 128;

/// Columns per panel: two vectors, or one if that suffices.
pub(super) fn width(columns: usize) -> usize {
    if columns <= LANES { LANES } else { 2 * LANES }
}

/// A left factor packed for tiles: the pair `p` of row `r` is word `r * row + p * pair`.
struct Packed<'a> {
    words: &'a [f32],
    row: usize,
    pair: usize,
}

/// For left factors whose rows are contiguous.
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
            // Prefetch the next rows while this tile is computed.
            let (next, stride) = (TILE.min(lhs.rows - first - rows), lhs.row_stride);
            fetch(lhs.data, (first + rows) * stride + 2 * start, stride, next, 2 * pairs);
            let packed = Packed { words: &words, row: NEAR_PAIRS, pair: 1 };
            tiles(&packed, rhs, start..start + pairs, first..first + rows, &mut out);
        }
    }
}

/// For left factors whose columns are contiguous.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) fn far(lhs: View<'_>, rhs: Panels<'_>, mut out: Out<'_>) {
    let mut words = [0.0; COLUMNS * FAR_PAIRS];
    // The matrix as stored.
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

/// One tile: at most [`TILE`] rows and `V` vectors of columns. `lhs` has words for [`TILE`] rows; those of unneeded
/// rows may have any value.
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
            // SAFETY: within `rhs`, which has `V` vectors per pair.
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
                // SAFETY: the mask excludes lanes past `columns`; rows and columns are within `out` by the second
                // assertion. A vector past all columns has an empty mask, so no element of it is accessed.
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

/// Reinterprets words as pairs of bfloat16 numbers.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn pairs_of(words: __m512) -> __m512bh {
    // SAFETY: both types have 512 bits, and every bit pattern is valid for both.
    unsafe { transmute::<__m512, __m512bh>(words) }
}
