//! Resizing with AVX-512.

use std::arch::x86_64::{
    __m512i, _mm_cvtsi32_si128, _mm512_dpwssd_epi32, _mm512_loadu_si512, _mm512_mask_cvtusepi32_storeu_epi8,
    _mm512_maskz_loadu_epi8, _mm512_maskz_permutexvar_epi8, _mm512_max_epi32, _mm512_packs_epi32,
    _mm512_packus_epi16, _mm512_set1_epi32, _mm512_setzero_si512, _mm512_sra_epi32, _mm512_storeu_si512,
    _mm512_unpackhi_epi8, _mm512_unpacklo_epi8,
};

use super::{Pixels, Region, Weights, Window};

/// The bytes of a register.
const BYTES: usize = 64;
/// The sums of a register.
const SUMS: usize = 16;
/// The bytes to which a permutation gathers pairs: each pixel's byte, and a zero.
const GATHERED: u64 = 0x5555_5555_5555_5555;

/// Resizes with AVX-512.
pub(super) struct Wide {
    across: Weights,
    down: Weights,
    groups: Vec<Group>,
    /// Of each group and each pair of its taps.
    pairs: Vec<Pair>,
    /// A row between the passes, with room for a register behind it.
    row: Vec<u8>,
}

/// Pixels of the result whose sums fill a register.
struct Group {
    /// The first byte of the row that they need.
    start: usize,
    /// The first byte of them in the result, and their number.
    out: usize,
    count: usize,
}

/// What two neighbouring pixels add to a group.
struct Pair {
    indices: [u8; BYTES],
    weights: [i16; BYTES / 2],
}

impl Wide {
    /// `None` if the processor lacks instructions.
    pub(super) fn of_host() -> Option<Self> {
        let has_all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("avx512vnni");
        has_all.then(|| Self {
            across: Weights::default(),
            down: Weights::default(),
            groups: Vec::new(),
            pairs: Vec::new(),
            row: Vec::new(),
        })
    }

    pub(super) fn resize(
        &mut self,
        source: Pixels<'_>,
        window: Window,
        region: Region,
        size: (u32, u32),
        out: &mut [u8],
    ) {
        // SAFETY: `of_host` has found that the processor has the instructions.
        unsafe { self.resize_with_instructions(source, window, region, size, out) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni")]
    fn resize_with_instructions(
        &mut self,
        source: Pixels<'_>,
        window: Window,
        region: Region,
        (width, height): (u32, u32),
        out: &mut [u8],
    ) {
        let channels = source.channels.count();
        let (pitch, out_pitch) = (source.width as usize * channels, width as usize * channels);
        let fits = |window: u32, start: u32, size: u32| start <= size && window <= size - start;
        assert!(
            fits(window.width, window.left, source.width) && fits(window.height, window.top, source.height),
            "the window lies in the source"
        );
        let source = &source.bytes[..pitch * source.height as usize];
        // A dimension that keeps its pixels needs no pass.
        let is_kept =
            |start: f64, length: f64, results: u32| start == start.round() && length == f64::from(results);
        let keeps_columns = is_kept(region.left, region.width, width);
        let keeps_rows = is_kept(region.top, region.height, height);
        let columns = if keeps_columns {
            region.left as usize..region.left as usize + width as usize
        } else {
            self.across.fill(window.width, region.left, region.width, width);
            let last = self.across.starts.len() - 1;
            // Taps of the last pixel that lie beyond the window have no weight.
            let taps = self.across.of(last).iter().rposition(|&weight| weight != 0).map_or(1, |tap| tap + 1);
            self.across.starts[0] as usize
                ..(self.across.starts[last] as usize + taps).min(window.width as usize)
        };
        let bytes = columns.len() * channels;
        let first = (window.left as usize + columns.start) * channels;
        self.row.clear();
        self.row.resize(bytes.next_multiple_of(BYTES) + BYTES, 0);
        if !keeps_columns {
            self.group(columns.start, channels);
        }
        if !keeps_rows {
            self.down.fill(window.height, region.top, region.height, height);
        }
        let line = |row: usize| &source[(window.top as usize + row) * pitch + first..][..bytes];
        let mut rows = Vec::with_capacity(self.down.taps);
        for (number, out) in out.chunks_exact_mut(out_pitch).enumerate() {
            if keeps_rows {
                self.row[..bytes].copy_from_slice(line(region.top as usize + number));
            } else {
                let (start, weights) = (self.down.starts[number] as usize, self.down.of(number));
                // A row behind the last one has no weight.
                let row = |tap: usize| line((start + tap).min(window.height as usize - 1));
                rows.clear();
                rows.extend((0..weights.len()).map(row));
                vertical(&rows, weights, self.down.bits, &mut self.row);
            }
            if keeps_columns {
                out.copy_from_slice(&self.row[..out_pitch]);
            } else {
                horizontal(&self.row, &self.groups, &self.pairs, (channels, self.across.bits), out);
            }
        }
    }

    /// Makes the groups and pairs of the weights across, of rows that begin at pixel `first`.
    fn group(&mut self, first: usize, channels: usize) {
        self.groups.clear();
        self.pairs.clear();
        let (starts, taps) = (&self.across.starts, self.across.taps);
        let mut next = 0;
        while next < starts.len() {
            let fits = |end: usize| {
                (starts[end] - starts[next]) as usize + 2 <= BYTES / channels
                    && (end - next + 1) * channels <= SUMS
            };
            let count = (next..starts.len()).take_while(|&end| fits(end)).count();
            let start = starts[next] as usize;
            for tap in (0..taps).step_by(2) {
                let mut pair = Pair { indices: [0; BYTES], weights: [0; BYTES / 2] };
                for place in 0..count {
                    let offset = starts[next + place] as usize - start;
                    let weights = &self.across.of(next + place)[tap..tap + 2];
                    for channel in 0..channels {
                        let sum = place * channels + channel;
                        for (side, &weight) in weights.iter().enumerate() {
                            pair.indices[4 * sum + 2 * side] = ((offset + side) * channels + channel) as u8;
                            pair.weights[2 * sum + side] = weight;
                        }
                    }
                }
                self.pairs.push(pair);
            }
            self.groups.push(Group {
                start: (start - first) * channels,
                out: next * channels,
                count: count * channels,
            });
            next += count;
        }
        // The last taps of a group may lie behind the row, without weight.
        let most = self.groups.iter().map(|group| group.start).max().unwrap_or(0) + taps * channels + BYTES;
        self.row.resize(self.row.len().max(most), 0);
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let weights = |weights: &Weights| 4 * weights.starts.capacity() + 10 * weights.values.capacity();
        weights(&self.across)
            + weights(&self.down)
            + self.groups.capacity() * size_of::<Group>()
            + self.pairs.capacity() * size_of::<Pair>()
            + self.row.capacity()
    }

    pub(super) fn release(&mut self) {
        (self.across, self.down) = (Weights::default(), Weights::default());
        (self.groups, self.pairs, self.row) = (Vec::new(), Vec::new(), Vec::new());
    }
}

/// Sums rows of equal length with `weights`. `out` has room for whole registers.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni")]
fn vertical(rows: &[&[u8]], weights: &[i16], bits: u32, out: &mut [u8]) {
    let (half, shift) = (_mm512_set1_epi32(1 << (bits - 1)), _mm_cvtsi32_si128(bits as i32));
    let (zero, bytes) = (_mm512_setzero_si512(), rows[0].len());
    for at in (0..bytes).step_by(BYTES) {
        let left = bytes - at;
        let mask = if left >= BYTES { u64::MAX } else { (1 << left) - 1 };
        // SAFETY: the row has `left` bytes from here on, to which the mask restricts the load.
        let load = |row: &[u8]| unsafe { _mm512_maskz_loadu_epi8(mask, row[at..].as_ptr().cast()) };
        let mut sums = [half; 4];
        for (rows, weights) in rows.chunks_exact(2).zip(weights.chunks_exact(2)) {
            if weights == [0, 0] {
                continue;
            }
            let (upper, lower) = (load(rows[0]), load(rows[1]));
            let both = u32::from(weights[0] as u16) | u32::from(weights[1] as u16) << 16;
            let both = _mm512_set1_epi32(both as i32);
            let (low, high) = (_mm512_unpacklo_epi8(upper, lower), _mm512_unpackhi_epi8(upper, lower));
            sums[0] = _mm512_dpwssd_epi32(sums[0], _mm512_unpacklo_epi8(low, zero), both);
            sums[1] = _mm512_dpwssd_epi32(sums[1], _mm512_unpackhi_epi8(low, zero), both);
            sums[2] = _mm512_dpwssd_epi32(sums[2], _mm512_unpacklo_epi8(high, zero), both);
            sums[3] = _mm512_dpwssd_epi32(sums[3], _mm512_unpackhi_epi8(high, zero), both);
        }
        let [a, b, c, d] = sums.map(|sum| _mm512_sra_epi32(sum, shift));
        let levels = _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
        let out: &mut [u8; BYTES] = (&mut out[at..at + BYTES]).try_into().expect("of this length");
        // SAFETY: the array has as many bytes.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), levels) };
    }
}

/// Sums the pixels of a row.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni")]
fn horizontal(row: &[u8], groups: &[Group], pairs: &[Pair], (channels, bits): (usize, u32), out: &mut [u8]) {
    let (half, shift) = (_mm512_set1_epi32(1 << (bits - 1)), _mm_cvtsi32_si128(bits as i32));
    let of_group = pairs.len() / groups.len();
    for (group, pairs) in groups.iter().zip(pairs.chunks_exact(of_group)) {
        let mut sums = half;
        let starts = (group.start..).step_by(2 * channels);
        for (pair, start) in pairs.iter().zip(starts) {
            let from: &[u8; BYTES] = row[start..][..BYTES].try_into().expect("of this length");
            let from = load(from);
            let gathered = _mm512_maskz_permutexvar_epi8(GATHERED, load(&pair.indices), from);
            // SAFETY: the array has as many bytes.
            let weights = unsafe { _mm512_loadu_si512(pair.weights.as_ptr().cast()) };
            sums = _mm512_dpwssd_epi32(sums, gathered, weights);
        }
        let sums = _mm512_max_epi32(_mm512_sra_epi32(sums, shift), _mm512_setzero_si512());
        let out = &mut out[group.out..][..group.count];
        let mask = ((1_u32 << group.count) - 1) as u16;
        // SAFETY: the mask restricts the store to the bytes of `out`.
        unsafe { _mm512_mask_cvtusepi32_storeu_epi8(out.as_mut_ptr().cast(), mask, sums) };
    }
}

#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; BYTES]) -> __m512i {
    // SAFETY: the array has as many bytes.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}
