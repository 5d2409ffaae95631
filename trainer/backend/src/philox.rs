//! Philox4x32-10: random numbers as a function of a key and a counter.
//!
//! Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", 2011, section 3.3, with its
//! constants. Numbers can be computed in any order and on any device, so no generator state is stored.

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: usize = 10;

/// Four random words for each of `LANES` counters; `counters[i]` are the words `i` of all of them.
#[inline(always)]
pub fn philox<const LANES: usize>(key: u64, counters: [[u32; LANES]; 4]) -> [[u32; LANES]; 4] {
    let mut keys = [key as u32, (key >> 32) as u32];
    let mut words = counters;
    for _ in 0..ROUNDS {
        let [a, b, c, d] = words;
        let mut next = [[0; LANES]; 4];
        for lane in 0..LANES {
            let first = u64::from(MULTIPLIERS[0]) * u64::from(a[lane]);
            let second = u64::from(MULTIPLIERS[1]) * u64::from(c[lane]);
            next[0][lane] = (second >> 32) as u32 ^ b[lane] ^ keys[0];
            next[1][lane] = second as u32;
            next[2][lane] = (first >> 32) as u32 ^ d[lane] ^ keys[1];
            next[3][lane] = first as u32;
        }
        words = next;
        keys = [keys[0].wrapping_add(WEYL[0]), keys[1].wrapping_add(WEYL[1])];
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of the paper's Random123 library, kat_vectors.
    #[test]
    fn known_answers() {
        let of_one = |key, counter: [u32; 4]| philox::<1>(key, counter.map(|word| [word])).map(|[word]| word);
        assert_eq!(of_one(0, [0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(of_one(u64::MAX, [u32::MAX; 4]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            of_one(0x299f_31d0_a409_3822, [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
