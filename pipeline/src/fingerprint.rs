//! Fingerprint64: the hash that maps values to ids, identical to TensorFlow's.
//!
//! This is FarmHash's `Fingerprint64` (Pike and Alakuijala, 2014; the function is fixed forever), which
//! `tf.strings.to_hash_bucket_fast` reduces modulo the number of buckets. [`cat64`] is TensorFlow's
//! combination of two fingerprints, and [`cross64`] is the hash of `tf.sparse.cross_hashed` over several
//! values. `tests/golden/fingerprint64.json` holds test vectors made by TensorFlow.
//!
//! Own implementation: an id must never change, so the hash must not depend on the version of another crate.

const K0: u64 = 0xc3a5_c85c_97cb_3127;
const K1: u64 = 0xb492_b66f_be98_f273;
const K2: u64 = 0x9ae1_6a3b_2f90_404f;

/// The default key of `tf.sparse.cross_hashed`.
pub const CROSS_KEY: u64 = 0xDE_CAFC_AFFE;

/// The fingerprint of `bytes`.
#[inline]
pub fn fingerprint64(bytes: &[u8]) -> u64 {
    match bytes.len() {
        0..=16 => short(bytes),
        17..=32 => medium(bytes),
        33..=64 => long(bytes),
        _ => longest(bytes),
    }
}

/// The bucket of `bytes` among `buckets`, as in `tf.strings.to_hash_bucket_fast`.
///
/// # Panics
/// If `buckets` is 0.
#[inline]
pub fn bucket(bytes: &[u8], buckets: u32) -> u32 {
    reduce(fingerprint64(bytes), buckets)
}

/// `fingerprint % buckets`.
///
/// # Panics
/// If `buckets` is 0.
#[inline]
pub fn reduce(fingerprint: u64, buckets: u32) -> u32 {
    // Below `buckets`, so it fits in a u32.
    (fingerprint % u64::from(buckets)) as u32
}

/// [`reduce`] with a multiplication instead of a division, so that many fingerprints can be reduced in parallel in
/// vector registers, which have no integer division (Barrett, 1986).
///
/// The reciprocal is `floor((2^64 - 1) / buckets)`, less than 1 below `2^64 / buckets`. The quotient is
/// therefore at most one too small, and one conditional subtraction makes the remainder exact.
#[derive(Clone, Copy, Debug)]
pub struct Modulus {
    buckets: u64,
    reciprocal: u64,
}

impl Modulus {
    /// # Panics
    /// If `buckets` is 0.
    pub fn new(buckets: u32) -> Self {
        Self { buckets: buckets.into(), reciprocal: u64::MAX / u64::from(buckets) }
    }

    /// `fingerprint % buckets`.
    #[inline(always)]
    pub fn reduce(self, fingerprint: u64) -> u32 {
        self.remainder(fingerprint, ((u128::from(fingerprint) * u128::from(self.reciprocal)) >> 64) as u64)
    }

    /// Like [`Modulus::reduce`], using only 32-bit multiplications, which vector registers support.
    #[inline(always)]
    pub fn reduce_in_halves(self, fingerprint: u64) -> u32 {
        let halves = |value: u64| (value & 0xffff_ffff, value >> 32);
        let ((low, high), (reciprocal_low, reciprocal_high)) = (halves(fingerprint), halves(self.reciprocal));
        let (carried, upper) = halves(high * reciprocal_low + ((low * reciprocal_low) >> 32));
        let quotient = high * reciprocal_high + upper + ((low * reciprocal_high + carried) >> 32);
        self.remainder(fingerprint, quotient)
    }

    #[inline(always)]
    fn remainder(self, fingerprint: u64, quotient: u64) -> u32 {
        let remainder = fingerprint.wrapping_sub(quotient.wrapping_mul(self.buckets));
        // Exactly one of the two is below `buckets`, and the other is larger; so the result fits in a u32.
        remainder.min(remainder.wrapping_sub(self.buckets)) as u32
    }
}

/// The fingerprint of 1 to 16 bytes held in registers. `first` holds the first eight bytes in little-endian
/// order, zero-padded; `last` holds the last eight bytes of a text of at least eight, else it equals `first`.
///
/// This is [`fingerprint64`] without memory accesses or branches, so that loops over it vectorize. With
/// `all_long` the compiler drops the code for fewer than eight bytes.
#[inline(always)]
pub(crate) fn fingerprint_of_words(first: u64, last: u64, length: u64, all_long: bool) -> u64 {
    let mul = length_mul(length as usize);
    let long = of_eight_or_more(first, last, mul);
    if all_long {
        return long;
    }
    let from = |byte: u64| first.unbounded_shr((byte.wrapping_mul(8)) as u32);
    let head = first & 0xffff_ffff;
    let middle = hash_pair(length + (head << 3), from(length.wrapping_sub(4)) & 0xffff_ffff, mul);
    let y = (first & 0xff) + ((from(length >> 1) & 0xff) << 8);
    let z = length + ((from(length.wrapping_sub(1)) & 0xff) << 2);
    let least = shift_mix(y.wrapping_mul(K2) ^ z.wrapping_mul(K0)).wrapping_mul(K2);
    let shorter = if length >= 4 { middle } else { least };
    if length >= 8 { long } else { shorter }
}

/// Combines two fingerprints, as TensorFlow's `FingerprintCat64`. Not commutative.
#[inline]
pub fn cat64(first: u64, second: u64) -> u64 {
    const MUL: u64 = 0xc6a4_a793_5bd1_e995;
    let mut joined = first ^ MUL;
    joined ^= shift_mix(second.wrapping_mul(MUL)).wrapping_mul(MUL);
    joined = joined.wrapping_mul(MUL);
    joined = shift_mix(joined).wrapping_mul(MUL);
    shift_mix(joined)
}

/// The fingerprint of several values: [`cat64`] folded over [`CROSS_KEY`] and each value's fingerprint. This
/// is `tf.sparse.cross_hashed` over strings, before the modulo.
pub fn cross64<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    values.into_iter().fold(CROSS_KEY, |crossed, value| cat64(crossed, fingerprint64(value)))
}

#[inline]
fn fetch64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("a slice of 8 bytes"))
}

#[inline]
fn fetch32(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().expect("a slice of 4 bytes")))
}

#[inline(always)]
fn shift_mix(value: u64) -> u64 {
    value ^ (value >> 47)
}

#[inline(always)]
fn hash_pair(u: u64, v: u64, mul: u64) -> u64 {
    let a = shift_mix((u ^ v).wrapping_mul(mul));
    shift_mix((v ^ a).wrapping_mul(mul)).wrapping_mul(mul)
}

/// The multiplier for inputs of up to 64 bytes.
#[inline(always)]
fn length_mul(length: usize) -> u64 {
    K2.wrapping_add(length as u64 * 2)
}

/// 0 to 16 bytes.
#[inline]
fn short(s: &[u8]) -> u64 {
    let length = s.len();
    if length >= 8 {
        of_eight_or_more(fetch64(s, 0), fetch64(s, length - 8), length_mul(length))
    } else if length >= 4 {
        let a = fetch32(s, 0);
        hash_pair(length as u64 + (a << 3), fetch32(s, length - 4), length_mul(length))
    } else if length > 0 {
        let y = u64::from(s[0]) + (u64::from(s[length >> 1]) << 8);
        let z = length as u64 + (u64::from(s[length - 1]) << 2);
        shift_mix(y.wrapping_mul(K2) ^ z.wrapping_mul(K0)).wrapping_mul(K2)
    } else {
        K2
    }
}

/// 8 to 16 bytes, from the first eight and the last eight.
#[inline(always)]
fn of_eight_or_more(first: u64, last: u64, mul: u64) -> u64 {
    let a = first.wrapping_add(K2);
    let c = last.rotate_right(37).wrapping_mul(mul).wrapping_add(a);
    let d = a.rotate_right(25).wrapping_add(last).wrapping_mul(mul);
    hash_pair(c, d, mul)
}

/// 17 to 32 bytes.
fn medium(s: &[u8]) -> u64 {
    let length = s.len();
    let mul = length_mul(length);
    let a = fetch64(s, 0).wrapping_mul(K1);
    let b = fetch64(s, 8);
    let c = fetch64(s, length - 8).wrapping_mul(mul);
    let d = fetch64(s, length - 16).wrapping_mul(K2);
    let (u, v) = fold_four(a, b, c, d, b.wrapping_add(K2), a);
    hash_pair(u, v, mul)
}

/// 33 to 64 bytes.
fn long(s: &[u8]) -> u64 {
    let length = s.len();
    let mul = length_mul(length);
    let a = fetch64(s, 0).wrapping_mul(K2);
    let b = fetch64(s, 8);
    let c = fetch64(s, length - 8).wrapping_mul(mul);
    let d = fetch64(s, length - 16).wrapping_mul(K2);
    let (y, v) = fold_four(a, b, c, d, b.wrapping_add(K2), a);
    let z = hash_pair(y, v, mul);
    let e = fetch64(s, 16).wrapping_mul(mul);
    let f = fetch64(s, 24);
    let g = y.wrapping_add(fetch64(s, length - 32)).wrapping_mul(mul);
    let h = z.wrapping_add(fetch64(s, length - 24)).wrapping_mul(mul);
    let (u, v) = fold_four(e, f, g, h, f.wrapping_add(a), e);
    hash_pair(u, v, mul)
}

/// `(rotate(a + b, 43) + rotate(c, 30) + d, base + rotate(turned, 18) + c)`
#[inline]
fn fold_four(a: u64, b: u64, c: u64, d: u64, turned: u64, base: u64) -> (u64, u64) {
    let u = a.wrapping_add(b).rotate_right(43).wrapping_add(c.rotate_right(30)).wrapping_add(d);
    let v = base.wrapping_add(turned.rotate_right(18)).wrapping_add(c);
    (u, v)
}

/// The 56-byte state for inputs over 64 bytes, which are folded in 64 bytes at a time.
struct State {
    x: u64,
    y: u64,
    z: u64,
    v: (u64, u64),
    w: (u64, u64),
}

impl State {
    /// Folds in the first 64 bytes of `s`. `factor` is 1 except for the last block.
    #[inline]
    fn fold(&mut self, s: &[u8], mul: u64, factor: u64) {
        let Self { x, y, z, v, w } = self;
        *x = x
            .wrapping_add(*y)
            .wrapping_add(v.0)
            .wrapping_add(fetch64(s, 8))
            .rotate_right(37)
            .wrapping_mul(mul);
        *y = y.wrapping_add(v.1).wrapping_add(fetch64(s, 48)).rotate_right(42).wrapping_mul(mul);
        *x ^= w.1.wrapping_mul(factor);
        *y = y.wrapping_add(v.0.wrapping_mul(factor)).wrapping_add(fetch64(s, 40));
        *z = z.wrapping_add(w.0).rotate_right(33).wrapping_mul(mul);
        *v = weak_hash(s, v.1.wrapping_mul(mul), x.wrapping_add(w.0));
        *w = weak_hash(&s[32..], z.wrapping_add(w.1), y.wrapping_add(fetch64(s, 16)));
        std::mem::swap(z, x);
    }
}

/// A 16-byte hash of 32 bytes and two seeds.
#[inline]
fn weak_hash(s: &[u8], a: u64, b: u64) -> (u64, u64) {
    let (w, x, y, z) = (fetch64(s, 0), fetch64(s, 8), fetch64(s, 16), fetch64(s, 24));
    let a = a.wrapping_add(w);
    let b = b.wrapping_add(a).wrapping_add(z).rotate_right(21);
    let c = a;
    let a = a.wrapping_add(x).wrapping_add(y);
    let b = b.wrapping_add(a.rotate_right(44));
    (a.wrapping_add(z), b.wrapping_add(c))
}

/// More than 64 bytes.
fn longest(s: &[u8]) -> u64 {
    const SEED: u64 = 81;
    let y = SEED.wrapping_mul(K1).wrapping_add(113);
    let mut state = State {
        x: SEED.wrapping_mul(K2).wrapping_add(fetch64(s, 0)),
        y,
        z: shift_mix(y.wrapping_mul(K2).wrapping_add(113)).wrapping_mul(K2),
        v: (0, 0),
        w: (0, 0),
    };
    // All whole blocks except the one with the last byte; then the last 64 bytes.
    let last = s.len() - 1;
    for block in s[..last / 64 * 64].chunks_exact(64) {
        state.fold(block, K1, 1);
    }
    let mul = K1.wrapping_add((state.z & 0xff) << 1);
    state.w.0 = state.w.0.wrapping_add((last & 63) as u64);
    state.v.0 = state.v.0.wrapping_add(state.w.0);
    state.w.0 = state.w.0.wrapping_add(state.v.0);
    state.fold(&s[s.len() - 64..], mul, 9);
    let State { x, y, z, v, w } = state;
    let first = hash_pair(v.0, w.0, mul).wrapping_add(shift_mix(y).wrapping_mul(K0)).wrapping_add(z);
    let second = hash_pair(v.1, w.1, mul).wrapping_add(x);
    hash_pair(first, second, mul)
}
