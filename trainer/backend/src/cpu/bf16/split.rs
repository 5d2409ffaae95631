//! fp32 numbers split into sums of three bfloat16 numbers (see [`super`]), packed for tiles.

use std::arch::x86_64::{
    __m512, __m512i, _mm512_add_epi32, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps,
    _mm512_loadu_si512, _mm512_maskz_loadu_ps, _mm512_or_si512, _mm512_permutex2var_epi16, _mm512_set1_epi32,
    _mm512_setzero_si512, _mm512_srli_epi32, _mm512_storeu_ps, _mm512_sub_ps,
};
use std::ops::Range;

use super::amx::{PAIRS, ROW, SIDE, transposed};
use super::{LANES, mask_of, vector_of};
use crate::cpu::gemm::View;

/// Terms per number.
pub(super) const TERMS: usize = 3;

/// The half of an fp32 word that is a bfloat16 number.
const UPPER: i32 = !0xffff;

/// The terms of numbers, each in the upper half of its word. Rounds to nearest, ties away from 0.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn split(numbers: __m512) -> [__m512i; TERMS] {
    let (half_unit, upper) = (_mm512_set1_epi32(0x8000), _mm512_set1_epi32(UPPER));
    let first = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(numbers), half_unit), upper);
    let rest = _mm512_sub_ps(numbers, _mm512_castsi512_ps(first));
    let second = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(rest), half_unit), upper);
    let third = _mm512_sub_ps(rest, _mm512_castsi512_ps(second));
    [first, second, _mm512_castps_si512(third)]
}

/// Packs consecutive numbers as their terms, zero-padded to whole steps; each step is `[term][pair]`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) fn split_row(numbers: &[f32], words: &mut [f32]) {
    assert!(numbers.len().next_multiple_of(2 * PAIRS) * TERMS <= 2 * words.len());
    // Selects the upper halves of two vectors' words.
    let places: [u16; 2 * LANES] = std::array::from_fn(|place| 2 * place as u16 + 1);
    // SAFETY: `places` has exactly as many bytes as a vector.
    let odd = unsafe { _mm512_loadu_si512(places.as_ptr().cast()) };
    for (numbers, words) in numbers.chunks(2 * PAIRS).zip(words.chunks_exact_mut(TERMS * PAIRS)) {
        let (low, high) = (mask_of(numbers.len()), mask_of(numbers.len().saturating_sub(LANES)));
        // SAFETY: the masks exclude lanes past the chunk, and `words` has room for three vectors.
        unsafe {
            let low = split(_mm512_maskz_loadu_ps(low, numbers.as_ptr()));
            let high = split(_mm512_maskz_loadu_ps(high, numbers.as_ptr().wrapping_add(LANES)));
            for (term, (low, high)) in low.into_iter().zip(high).enumerate() {
                let packed = _mm512_permutex2var_epi16(low, odd, high);
                _mm512_storeu_ps(words.as_mut_ptr().add(term * PAIRS), _mm512_castsi512_ps(packed));
            }
        }
    }
}

/// Packs pairs of rows of a row-major matrix as their terms, [`SIDE`] columns from `column` on, zero-padded past
/// the matrix's end.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) fn split_panel(matrix: View<'_>, pairs: Range<usize>, column: usize, words: &mut [f32]) {
    assert!(matrix.column_stride == 1 && matrix.is_within());
    assert!(pairs.len().is_multiple_of(PAIRS) && pairs.len() * TERMS * SIDE <= words.len());
    for vector in (0..SIDE).step_by(LANES) {
        for (number, pair) in pairs.clone().enumerate() {
            let place = number / PAIRS * TERMS * PAIRS * SIDE + number % PAIRS * SIDE + vector;
            // SAFETY: the matrix is row-major and within its slice, and `words` is long enough, by the assertions.
            unsafe {
                let first = split(vector_of(matrix, 2 * pair, column + vector));
                let second = split(vector_of(matrix, 2 * pair + 1, column + vector));
                for (term, (first, second)) in first.into_iter().zip(second).enumerate() {
                    let upper = _mm512_and_si512(second, _mm512_set1_epi32(UPPER));
                    let packed = _mm512_or_si512(_mm512_srli_epi32::<16>(first), upper);
                    let place = words.as_mut_ptr().add(place + term * PAIRS * SIDE);
                    _mm512_storeu_ps(place, _mm512_castsi512_ps(packed));
                }
            }
        }
    }
}

/// Columns of a matrix as rows, aligned to a cache line.
#[repr(align(64))]
struct Columns([f32; LANES * 2 * PAIRS]);

/// As [`pack_tile`](super::amx::pack_tile), for split numbers.
///
/// # Safety
/// The matrix is row-major and within its slice.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn split_tile(matrix: View<'_>, pair: usize, column: usize, words: &mut [f32]) {
    let mut numbers = Columns([0.0; LANES * 2 * PAIRS]);
    for half in 0..2 {
        let mut rows = [_mm512_setzero_si512(); LANES];
        for (number, row) in rows.iter_mut().enumerate() {
            let place = 2 * pair + half * LANES + number;
            // SAFETY: the caller guarantees that the matrix is row-major and within its slice.
            *row = _mm512_castps_si512(unsafe { vector_of(matrix, place, column) });
        }
        for (row, numbers) in transposed(rows).into_iter().zip(numbers.0.chunks_exact_mut(2 * PAIRS)) {
            // SAFETY: half of the chunk is as long as a vector.
            unsafe { _mm512_storeu_ps(numbers.as_mut_ptr().add(half * LANES), _mm512_castsi512_ps(row)) };
        }
    }
    for (numbers, words) in numbers.0.chunks_exact(2 * PAIRS).zip(words.chunks_mut(ROW)) {
        split_row(numbers, words);
    }
}
