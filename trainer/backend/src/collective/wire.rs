//! Numbers as they travel between ranks: their formats, and adding them in a fixed order.

use std::ops::AddAssign;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::memory::Buffer;
use crate::Float;
use crate::cpu::simd::Simd;

/// Numbers that are added at a time, so that partial sums stay in the first-level cache.
const BLOCK: usize = 512;

/// A number on the wire.
pub(super) trait Code: Copy + FromBytes + IntoBytes + Immutable + KnownLayout {
    /// The type in which such numbers are added.
    type Sum: Copy + Default + AddAssign;

    /// The nearest number of this format.
    fn encode(x: Self::Sum) -> Self;

    fn decode(self) -> Self::Sum;
}

impl Code for f32 {
    type Sum = Self;

    #[inline(always)]
    fn encode(x: Self) -> Self {
        x
    }

    #[inline(always)]
    fn decode(self) -> Self {
        self
    }
}

impl Code for f64 {
    type Sum = Self;

    #[inline(always)]
    fn encode(x: Self) -> Self {
        x
    }

    #[inline(always)]
    fn decode(self) -> Self {
        self
    }
}

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(transparent)]
pub(super) struct Bf16(u16);

impl Code for Bf16 {
    type Sum = f32;

    #[inline(always)]
    fn encode(x: f32) -> Self {
        Self(Float::Bf16.encode(x))
    }

    #[inline(always)]
    fn decode(self) -> f32 {
        Float::Bf16.decode(self.0)
    }
}

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(transparent)]
pub(super) struct F16(u16);

impl Code for F16 {
    type Sum = f32;

    #[inline(always)]
    fn encode(x: f32) -> Self {
        Self(Float::F16.encode(x))
    }

    #[inline(always)]
    fn decode(self) -> f32 {
        Float::F16.decode(self.0)
    }
}

/// Rounds numbers to `C`.
///
/// # Panics
/// If `encoded` is not aligned memory of as many numbers.
pub(super) fn encode<C: Code<Sum = f32>>(simd: Simd, numbers: &[f32], encoded: &mut [u8]) {
    let codes = codes_mut::<C>(encoded);
    assert_eq!(codes.len(), numbers.len(), "as many numbers");
    simd.run(
        #[inline(always)]
        || codes.iter_mut().zip(numbers).for_each(|(code, &x)| *code = C::encode(x)),
    );
}

/// The numbers that `encoded` contains.
///
/// # Panics
/// As of [`encode`].
pub(super) fn decode<C: Code<Sum = f32>>(simd: Simd, encoded: &[u8], numbers: &mut [f32]) {
    let codes = codes::<C>(encoded);
    assert_eq!(codes.len(), numbers.len(), "as many numbers");
    simd.run(
        #[inline(always)]
        || numbers.iter_mut().zip(codes).for_each(|(x, code)| *x = code.decode()),
    );
}

/// Adds the contributions of all ranks: `own` of rank `rank`, and `received` of the others, by rank. The sum replaces
/// `own`.
pub(super) fn add<C: Code>(simd: Simd, rank: usize, own: &mut Buffer, received: &[Buffer]) {
    if received.len() == 1 {
        return;
    }
    let received: Vec<&[C]> = received.iter().map(|buffer| codes(buffer)).collect();
    let own = codes_mut(own);
    simd.run(
        #[inline(always)]
        || add_codes(rank, own, &received),
    );
}

#[inline(always)]
fn add_codes<C: Code>(rank: usize, own: &mut [C], received: &[&[C]]) {
    let mut partial_sums = vec![[C::Sum::default(); BLOCK]; received.len()]; // [ranks, BLOCK]
    for (block, own) in own.chunks_mut(BLOCK).enumerate() {
        let block = block * BLOCK..block * BLOCK + own.len();
        for (peer, partial) in partial_sums.iter_mut().enumerate() {
            let codes = if peer == rank { &*own } else { &received[peer][block.clone()] };
            partial.iter_mut().zip(codes).for_each(|(x, code)| *x = code.decode());
        }
        let mut stride = partial_sums.len().next_power_of_two() / 2;
        while stride > 0 {
            let (sums, addends) = partial_sums.split_at_mut(stride);
            for (sums, addends) in sums.iter_mut().zip(addends) {
                sums.iter_mut().zip(addends).for_each(|(x, y)| *x += *y);
            }
            stride /= 2;
        }
        own.iter_mut().zip(&partial_sums[0]).for_each(|(code, &x)| *code = C::encode(x));
    }
}

/// Memory of whole numbers, aligned: parts of a sum start at cache lines of an aligned buffer.
fn codes<C: Code>(bytes: &[u8]) -> &[C] {
    FromBytes::ref_from_bytes(bytes).expect("aligned numbers")
}

fn codes_mut<C: Code>(bytes: &mut [u8]) -> &mut [C] {
    FromBytes::mut_from_bytes(bytes).expect("aligned numbers")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order of additions by definition: those of a stride, for each stride.
    fn tree(mut terms: Vec<f32>) -> f32 {
        for stride in [8, 4, 2, 1] {
            for low in 0..stride {
                if low + stride < terms.len() {
                    terms[low] += terms[low + stride];
                }
            }
        }
        terms[0]
    }

    fn check<C: Code<Sum = f32>>(round: impl Fn(f32) -> f32) {
        // Magnitudes differ, so that the order of additions shows.
        let term = |rank: usize, index: usize| {
            let sign = if (rank + index).is_multiple_of(3) { -1.0 } else { 1.0 };
            sign * 1.5_f32.powi((rank * 37 + index * 5) as i32 % 44 - 20)
        };
        let mut orders_differ = false;
        for ranks in 1..=9 {
            for len in [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 3] {
                let contribution = |rank| {
                    let terms: Vec<f32> = (0..len).map(|index| term(rank, index)).collect();
                    let mut encoded = Buffer::zeroed(len * size_of::<C>());
                    encode::<C>(Simd::detect(), &terms, &mut encoded);
                    encoded
                };
                for rank in [0, ranks / 2, ranks - 1] {
                    let received: Vec<Buffer> = (0..ranks).map(contribution).collect();
                    let mut own = contribution(rank);
                    add::<C>(Simd::detect(), rank, &mut own, &received);
                    let mut sums = vec![0.0; len];
                    decode::<C>(Simd::detect(), &own, &mut sums);
                    for (index, sum) in sums.into_iter().enumerate() {
                        let terms: Vec<f32> = (0..ranks).map(|rank| round(term(rank, index))).collect();
                        orders_differ |= terms.iter().sum::<f32>() != tree(terms.clone());
                        assert_eq!(
                            sum.to_bits(),
                            round(tree(terms)).to_bits(),
                            "{ranks} ranks, number {index}"
                        );
                    }
                }
            }
        }
        assert!(orders_differ, "no sum depends on the order");
    }

    #[test]
    fn sums_are_added_in_the_order_of_the_tree_and_rounded_once() {
        check::<f32>(|x| x);
        check::<Bf16>(|x| Float::Bf16.round(x));
        check::<F16>(|x| Float::F16.round(x));
    }
}
