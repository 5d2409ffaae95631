//! Products with AMX's `TDPBF16PS`: tiles of 16 rows of 64 bytes, in dedicated registers.
//!
//! Two tiles of rows by two tiles of columns stay in registers over the depth of a chunk; each instruction adds 32
//! terms to each of 256 sums. It sums the products of the pairs' first numbers, sums those of their second numbers,
//! then adds both to the accumulator (Intel, as in [`super`], TDPBF16PS). The accumulators of a chunk are reloaded
//! into the tiles for the next one, so chunking does not change the result.
//!
//! Own kernels, in assembly: Rust has no stable AMX intrinsics, and the `gemm` crates do not use AMX.
//!
//! Tiles are configured in one block of assembly and used in others. The compiler never touches tile registers: it
//! uses them only where `amx-tile` is enabled.

use std::arch::asm;
use std::arch::x86_64::{
    __cpuid, __cpuid_count, __m512i, _mm512_castsi512_ps, _mm512_setzero_si512, _mm512_shuffle_i32x4,
    _mm512_storeu_ps, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32,
    _mm512_unpacklo_epi64,
};
use std::ops::Range;
use std::sync::LazyLock;

use super::split::{split_row, split_tile};
use super::{LANES, Out, Panels, fetch, pack_row, packed};
use crate::cpu::gemm::View;

/// Rows, and columns, that are computed at once: two tiles of each.
pub(super) const SIDE: usize = 32;
/// Pairs per tile row.
pub(super) const PAIRS: usize = 16;
/// Words of a packed row per chunk of the depth: a chunk's rows stay in the L1 cache beside a panel.
const CHUNK: usize = 144;
/// Stride of packed rows, in words: the rows of a tile then map to different cache sets.
pub(super) const ROW: usize = CHUNK + PAIRS;

/// Packed rows of the left factor, aligned to a cache line.
#[repr(align(64))]
struct Words([f32; SIDE * ROW]);

/// Sums of two by two partial tiles, aligned like [`Words`].
#[repr(align(64))]
struct Sums([f32; SIDE * SIDE]);

/// Whether the machine has AMX and the system lets this process use it.
pub(super) fn is_available() -> bool {
    static IS_AVAILABLE: LazyLock<bool> = LazyLock::new(|| has_tiles() && may_use_tiles());
    *IS_AVAILABLE
}

fn has_tiles() -> bool {
    const TILES: u32 = 1 << 24;
    const BF16: u32 = 1 << 22;
    let features = if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).edx };
    features & (TILES | BF16) == TILES | BF16
}

/// Asks Linux to enable the tile registers, so that each thread's saved state has room for them (Linux,
/// `Documentation/arch/x86/xstate.rst`). A kernel without AMX support refuses.
fn may_use_tiles() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const REQUEST: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    if !cfg!(target_os = "linux") {
        return false;
    }
    let mut result = ARCH_PRCTL;
    // SAFETY: the system call accesses no memory of the process, and preserves all registers except the declared
    // ones.
    unsafe {
        asm!(
            "syscall", inlateout("rax") result, in("rdi") REQUEST, in("rsi") TILE_DATA,
            lateout("rcx") _, lateout("r11") _, options(nostack),
        );
    }
    result == 0
}

/// The tile configuration: palette 1, 16 rows of 64 bytes each.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIGURATION: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Loads two tiles of rows of the left factor, at a byte offset from the step's start.
macro_rules! left {
    ($bytes:literal) => {
        concat!(
            "tileloadd tmm4, [{first} + {row} + ",
            $bytes,
            "]\n",
            "tileloadd tmm5, [{second} + {row} + ",
            $bytes,
            "]",
        )
    };
}

/// Loads two tiles of columns of a panel, as [`left!`].
macro_rules! panel {
    ($bytes:literal) => {
        concat!(
            "tileloadd tmm6, [{panel} + {line} + ",
            $bytes,
            "]\n",
            "tileloadd tmm7, [{panel} + {line} + 64 + ",
            $bytes,
            "]",
        )
    };
}

/// Multiplies them.
macro_rules! multiply {
    () => {
        "tdpbf16ps tmm0, tmm4, tmm6\n tdpbf16ps tmm2, tmm5, tmm6\n \
         tdpbf16ps tmm1, tmm4, tmm7\n tdpbf16ps tmm3, tmm5, tmm7"
    };
}

/// Configured tiles; released on drop.
struct Tiles(());

impl Tiles {
    /// # Safety
    /// [`is_available`] is true.
    unsafe fn new() -> Self {
        // SAFETY: the caller guarantees that AMX is usable, and the configuration is 64 bytes that Intel's manual
        // allows.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIGURATION, options(nostack, readonly)) };
        Self(())
    }

    /// Multiplies [`SIDE`] rows of `left`, [`ROW`] words apart, by a panel. Adds the products to `sums`, [`SIDE`]
    /// rows that are `stride` floats apart, or overwrites them. Numbers are sums of `TERMS` terms.
    fn add<const TERMS: usize>(
        &mut self,
        left: &Words,
        panel: &[f32],
        sums: &mut [f32],
        stride: usize,
        to_sums: bool,
    ) {
        let steps = panel.len() / (TERMS * PAIRS * SIDE);
        assert!(steps * TERMS * PAIRS <= CHUNK && steps > 0);
        assert!((SIDE - 1) * stride + SIDE <= sums.len());
        let (row, line) = (ROW * size_of::<f32>(), stride * size_of::<f32>());
        // SAFETY: `self` proves that tiles are configured. By the assertions, `left` has `steps` tiles of two times
        // 16 rows for each term, the panel as many tiles of two times 16 columns, and the sums are within their
        // slice.
        unsafe {
            let second_sums = sums.as_mut_ptr().add(16 * stride);
            if to_sums {
                asm!(
                    "tileloadd tmm0, [{first} + {line}]",
                    "tileloadd tmm1, [{first} + {line} + 64]",
                    "tileloadd tmm2, [{second} + {line}]",
                    "tileloadd tmm3, [{second} + {line} + 64]",
                    first = in(reg) sums.as_ptr(), second = in(reg) second_sums, line = in(reg) line,
                    options(nostack, readonly),
                );
            } else {
                asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack));
            }
            macro_rules! steps {
                ($left:literal, $panel:literal, $($instruction:expr),+) => {
                    asm!(
                        "2:",
                        $($instruction,)+
                        concat!("add {first}, ", $left),
                        concat!("add {second}, ", $left),
                        concat!("add {panel}, ", $panel),
                        "dec {steps}",
                        "jnz 2b",
                        first = inout(reg) left.0.as_ptr() => _,
                        second = inout(reg) left.0.as_ptr().add(16 * ROW) => _,
                        panel = inout(reg) panel.as_ptr() => _,
                        steps = inout(reg) steps => _,
                        row = in(reg) row, line = in(reg) SIDE * size_of::<f32>(),
                        options(nostack, readonly),
                    )
                };
            }
            if TERMS == 1 {
                steps!("64", "2048", left!("0"), panel!("0"), multiply!());
            } else {
                // Small terms first: (1, 3), (1, 2), (2, 2), (2, 1), (3, 1), (1, 1).
                steps!(
                    "192",
                    "6144",
                    left!("0"),
                    panel!("4096"),
                    multiply!(),
                    panel!("2048"),
                    multiply!(),
                    left!("64"),
                    multiply!(),
                    panel!("0"),
                    multiply!(),
                    left!("128"),
                    multiply!(),
                    left!("0"),
                    multiply!()
                );
            }
            asm!(
                "tilestored [{first} + {line}], tmm0",
                "tilestored [{first} + {line} + 64], tmm1",
                "tilestored [{second} + {line}], tmm2",
                "tilestored [{second} + {line} + 64], tmm3",
                first = in(reg) sums.as_mut_ptr(), second = in(reg) second_sums, line = in(reg) line,
                options(nostack),
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: `new` configured the tiles, so AMX is usable.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// For left factors whose rows are contiguous.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) fn near<const TERMS: usize>(lhs: View<'_>, rhs: Panels<'_>, mut out: Out<'_>) {
    // SAFETY: panels of this kind exist only where AMX is usable.
    let mut tiles = unsafe { Tiles::new() };
    let mut words = Words([0.0; SIDE * ROW]);
    let chunk = CHUNK / TERMS;
    for start in (0..rhs.pairs()).step_by(chunk) {
        let pairs = start..rhs.pairs().min(start + chunk);
        let columns = 2 * start..lhs.columns.min(2 * pairs.end);
        for first in (0..lhs.rows).step_by(SIDE) {
            let rows = first..lhs.rows.min(first + SIDE);
            for (row, words) in rows.clone().zip(words.0.chunks_exact_mut(ROW)) {
                let numbers = &lhs.data[row * lhs.row_stride..][columns.clone()];
                if TERMS == 1 { pack_row(numbers, words) } else { split_row(numbers, words) }
            }
            // Prefetch the next rows while these are computed.
            let (next, stride) = (SIDE.min(lhs.rows - rows.end), lhs.row_stride);
            fetch(lhs.data, rows.end * stride + columns.start, stride, next, columns.len());
            multiply::<TERMS>(&mut tiles, &words, rhs, pairs.clone(), rows, &mut out);
        }
    }
}

/// For left factors whose columns are contiguous.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) fn far<const TERMS: usize>(lhs: View<'_>, rhs: Panels<'_>, mut out: Out<'_>) {
    // SAFETY: panels of this kind exist only where AMX is usable.
    let mut tiles = unsafe { Tiles::new() };
    let mut words = Words([0.0; SIDE * ROW]);
    // The matrix as stored.
    let matrix = lhs.transposed();
    let chunk = CHUNK / TERMS;
    for start in (0..rhs.pairs()).step_by(chunk) {
        let pairs = start..rhs.pairs().min(start + chunk);
        for first in (0..lhs.rows).step_by(SIDE) {
            let rows = first..lhs.rows.min(first + SIDE);
            for pair in pairs.clone().step_by(PAIRS) {
                for vector in (0..rows.len()).step_by(LANES) {
                    let words = &mut words.0[vector * ROW + TERMS * (pair - start)..];
                    // SAFETY: the matrix is row-major, and within its slice because the left factor is.
                    unsafe {
                        if TERMS == 1 {
                            pack_tile(matrix, pair, first + vector, words);
                        } else {
                            split_tile(matrix, pair, first + vector, words);
                        }
                    }
                }
            }
            // Prefetch the next rows while these are computed.
            let (next, depth) = if rows.end < lhs.rows { (rows.end, start) } else { (0, pairs.end) };
            let (stride, count) =
                (matrix.row_stride, (2 * pairs.len()).min(matrix.rows.saturating_sub(2 * depth)));
            fetch(matrix.data, 2 * depth * stride + next, stride, count, SIDE.min(lhs.rows - next));
            multiply::<TERMS>(&mut tiles, &words, rhs, pairs.clone(), rows, &mut out);
        }
    }
}

/// Multiplies some packed rows by all columns, over some pairs of the depth.
#[inline(always)]
fn multiply<const TERMS: usize>(
    tiles: &mut Tiles,
    left: &Words,
    rhs: Panels<'_>,
    pairs: Range<usize>,
    rows: Range<usize>,
    out: &mut Out<'_>,
) {
    let to_sums = out.accumulate || pairs.start > 0;
    for (column, columns, panel) in rhs.each(pairs) {
        let stride = out.stride;
        let numbers = &mut out.numbers[rows.start * stride + column..];
        if rows.len() == SIDE && columns == SIDE {
            // Prefetch the destination of the sums while they are computed.
            fetch(numbers, 0, stride, SIDE, SIDE);
            tiles.add::<TERMS>(left, panel, numbers, stride, to_sums);
            continue;
        }
        let mut sums = Sums([0.0; SIDE * SIDE]);
        for (sums, numbers) in sums.0.chunks_exact_mut(SIDE).zip(numbers.chunks(stride)).take(rows.len()) {
            sums[..columns].copy_from_slice(&numbers[..columns]);
        }
        tiles.add::<TERMS>(left, panel, &mut sums.0, SIDE, to_sums);
        for (sums, numbers) in sums.0.chunks_exact(SIDE).zip(numbers.chunks_mut(stride)).take(rows.len()) {
            numbers[..columns].copy_from_slice(&sums[..columns]);
        }
    }
}

/// Packs a tile of [`LANES`] columns and [`PAIRS`] pairs of rows of a row-major matrix: a row of words for each
/// column, [`ROW`] apart.
///
/// # Safety
/// The matrix is row-major and within its slice.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn pack_tile(matrix: View<'_>, pair: usize, column: usize, words: &mut [f32]) {
    assert!((LANES - 1) * ROW + PAIRS <= words.len());
    let mut rows = [_mm512_setzero_si512(); PAIRS];
    for (number, row) in rows.iter_mut().enumerate() {
        // SAFETY: the caller guarantees that the matrix is row-major and within its slice.
        *row = unsafe { packed(matrix, pair + number, column) };
    }
    for (number, row) in transposed(rows).into_iter().enumerate() {
        // SAFETY: within `words`, by the assertion.
        unsafe { _mm512_storeu_ps(words.as_mut_ptr().add(number * ROW), _mm512_castsi512_ps(row)) };
    }
}

/// Transposes a square of words: by pairs of words, by fours, and by quarters of vectors.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn transposed(rows: [__m512i; 16]) -> [__m512i; 16] {
    // For each four rows: the words of columns `c`, `c + 4`, `c + 8` and `c + 12`, side by side.
    let mut fours = [[_mm512_setzero_si512(); 4]; 4];
    for (four, rows) in fours.iter_mut().zip(rows.as_chunks::<4>().0) {
        let low = [_mm512_unpacklo_epi32(rows[0], rows[1]), _mm512_unpacklo_epi32(rows[2], rows[3])];
        let high = [_mm512_unpackhi_epi32(rows[0], rows[1]), _mm512_unpackhi_epi32(rows[2], rows[3])];
        *four = [
            _mm512_unpacklo_epi64(low[0], low[1]),
            _mm512_unpackhi_epi64(low[0], low[1]),
            _mm512_unpacklo_epi64(high[0], high[1]),
            _mm512_unpackhi_epi64(high[0], high[1]),
        ];
    }
    let mut out = [_mm512_setzero_si512(); 16];
    for column in 0..4 {
        let [a, b, c, d] = fours.map(|four| four[column]);
        let even = [_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0x88>(c, d)];
        let odd = [_mm512_shuffle_i32x4::<0xdd>(a, b), _mm512_shuffle_i32x4::<0xdd>(c, d)];
        out[column] = _mm512_shuffle_i32x4::<0x88>(even[0], even[1]);
        out[column + 4] = _mm512_shuffle_i32x4::<0x88>(odd[0], odd[1]);
        out[column + 8] = _mm512_shuffle_i32x4::<0xdd>(even[0], even[1]);
        out[column + 12] = _mm512_shuffle_i32x4::<0xdd>(odd[0], odd[1]);
    }
    out
}
