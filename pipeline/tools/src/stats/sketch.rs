//! Summaries of many values in bounded memory: distinct count, frequent values, distribution.
//!
//! All of them can be merged, and do not depend on how values were divided except in the order of merges.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use millstream_pipeline::fingerprint::fingerprint64;
use serde::{Deserialize, Serialize};

/// Distinct values are counted exactly up to this number.
const EXACT_DISTINCT: usize = 1 << 14;
/// Registers of the estimate beyond it: a standard error of 0.8 %.
const REGISTER_BITS: u32 = 14;
/// Values whose occurrences are counted at a time.
const COUNTED_VALUES: usize = 1024;
/// Longer values are not counted one by one: they are texts, not categories.
const MAX_COUNTED_BYTES: usize = 256;
/// Buckets of a distribution.
const MAX_BUCKETS: usize = 4096;
/// Buckets of a stored distribution.
const STORED_BUCKETS: usize = 256;
/// Initially, a bucket holds one number. Buckets double in width while there are too many.
const FIRST_SHIFT: u32 = 0;

/// The number of distinct values: exact, then estimated (HyperLogLog, Flajolet et al. 2007).
#[derive(Clone, Default)]
pub(super) struct Distinct {
    hashes: HashSet<u64, BuildHasherDefault<Identity>>,
    /// Empty while the count is exact.
    registers: Vec<u8>,
}

/// Hashes are their own hashes.
#[derive(Clone, Default)]
pub(super) struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = fingerprint64(bytes);
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

impl Distinct {
    pub(super) fn add(&mut self, value: &[u8]) {
        self.add_hash(fingerprint64(value));
    }

    fn add_hash(&mut self, hash: u64) {
        if !self.registers.is_empty() {
            self.raise(hash);
        } else if self.hashes.insert(hash) && self.hashes.len() > EXACT_DISTINCT {
            self.estimate_from_now_on();
        }
    }

    fn estimate_from_now_on(&mut self) {
        self.registers = vec![0; 1 << REGISTER_BITS];
        for hash in std::mem::take(&mut self.hashes) {
            self.raise(hash);
        }
    }

    fn raise(&mut self, hash: u64) {
        let register = &mut self.registers[(hash >> (64 - REGISTER_BITS)) as usize];
        // The position of the first 1 in the other bits; a guard bit bounds it.
        let rank = ((hash << REGISTER_BITS) | (1 << (REGISTER_BITS - 1))).leading_zeros() + 1;
        *register = (*register).max(rank as u8);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        if other.registers.is_empty() {
            other.hashes.iter().for_each(|&hash| self.add_hash(hash));
            return;
        }
        if self.registers.is_empty() {
            self.estimate_from_now_on();
        }
        let pairs = self.registers.iter_mut().zip(&other.registers);
        pairs.for_each(|(register, &other)| *register = (*register).max(other));
    }

    pub(super) fn is_exact(&self) -> bool {
        self.registers.is_empty()
    }

    pub(super) fn count(&self) -> u64 {
        if self.is_exact() {
            return self.hashes.len() as u64;
        }
        let registers = self.registers.len() as f64;
        let sum: f64 = self.registers.iter().map(|&rank| (-f64::from(rank)).exp2()).sum();
        let estimate = 0.7213 / (1.0 + 1.079 / registers) * registers * registers / sum;
        let empty = self.registers.iter().filter(|&&rank| rank == 0).count();
        if estimate <= 2.5 * registers && empty > 0 {
            return (registers * (registers / empty as f64).ln()).round() as u64;
        }
        estimate.round() as u64
    }
}

/// The most frequent values (Misra and Gries, 1982).
#[derive(Clone, Default)]
pub(super) struct Frequent {
    counts: HashMap<Box<[u8]>, u64>,
    undercount: u64,
}

impl Frequent {
    pub(super) fn add(&mut self, value: &[u8], count: u64) {
        if value.len() > MAX_COUNTED_BYTES {
            return;
        }
        if let Some(known) = self.counts.get_mut(value) {
            *known += count;
            return;
        }
        self.counts.insert(value.into(), count);
        if self.counts.len() > COUNTED_VALUES {
            self.prune();
        }
    }

    /// Subtracts the median count from all, and drops values with nothing left.
    fn prune(&mut self) {
        let mut counts: Vec<u64> = self.counts.values().copied().collect();
        let middle = counts.len() / 2;
        let median = *counts.select_nth_unstable(middle).1;
        self.counts.retain(|_, count| {
            *count = count.saturating_sub(median);
            *count > 0
        });
        self.undercount += median;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        let mut sorted: Vec<_> = other.counts.iter().collect();
        sorted.sort_unstable();
        sorted.into_iter().for_each(|(value, &count)| self.add(value, count));
        self.undercount += other.undercount;
    }

    /// The maximum by which a count is too low.
    pub(super) fn undercount(&self) -> u64 {
        self.undercount
    }

    /// The most frequent values, by count and then by bytes, unless their counts are mostly uncertain.
    pub(super) fn top(&self, most: usize) -> Vec<(&[u8], u64)> {
        let certain = self.counts.iter().filter(|&(_, &count)| count > self.undercount);
        let mut sorted: Vec<_> = certain.map(|(value, &count)| (&**value, count)).collect();
        sorted.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
        sorted.truncate(most);
        sorted
    }
}

/// Counts of values by a few bits of their hash: a distribution of values that are too many to count one by one.
#[derive(Clone)]
pub(super) struct Hashed([u64; Self::BINS]);

impl Hashed {
    const BINS: usize = 64;

    pub(super) fn add(&mut self, value: &[u8]) {
        self.0[fingerprint64(value) as usize % Self::BINS] += 1;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(count, more)| *count += more);
    }

    pub(super) fn counts(&self) -> &[u64] {
        &self.0
    }
}

impl Default for Hashed {
    fn default() -> Self {
        Self([0; Self::BINS])
    }
}

/// A distribution to store: counts of numbers by their leading bits. The buckets of two sketches nest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sketch {
    /// The number of trailing bits that a bucket ignores.
    shift: u32,
    /// The leading bits of the numbers in each bucket, ascending, and their count.
    buckets: Vec<(i64, u64)>,
}

impl Sketch {
    /// The counts of two distributions in the same buckets, in the order of the numbers.
    pub(super) fn aligned(&self, other: &Self) -> Vec<(u64, u64)> {
        let shift = self.shift.max(other.shift);
        let mut counts: BTreeMap<i64, (u64, u64)> = BTreeMap::new();
        let of = |sketch: &Self| {
            // A stored sketch may be damaged; 63 bits leave the sign.
            let by = (shift - sketch.shift).min(63);
            sketch.buckets.iter().map(move |&(key, count)| (key >> by, count)).collect::<Vec<_>>()
        };
        for (key, count) in of(self) {
            let known = &mut counts.entry(key).or_default().0;
            *known = known.saturating_add(count);
        }
        for (key, count) in of(other) {
            let known = &mut counts.entry(key).or_default().1;
            *known = known.saturating_add(count);
        }
        counts.into_values().collect()
    }
}

/// Moments and distribution of numbers.
#[derive(Clone)]
pub(super) struct Numbers {
    pub(super) count: u64,
    /// Infinite or not a number; not part of the rest.
    pub(super) non_finite: u64,
    pub(super) minimum: f64,
    pub(super) maximum: f64,
    pub(super) mean: f64,
    /// The sum of squared differences from the mean.
    squares: f64,
    /// The number of values by their leading bits.
    buckets: BTreeMap<i64, u64>,
    shift: u32,
}

impl Default for Numbers {
    fn default() -> Self {
        Self {
            count: 0,
            non_finite: 0,
            minimum: f64::INFINITY,
            maximum: f64::NEG_INFINITY,
            mean: 0.0,
            squares: 0.0,
            buckets: BTreeMap::new(),
            shift: FIRST_SHIFT,
        }
    }
}

impl Numbers {
    pub(super) fn add(&mut self, value: f64) {
        if !value.is_finite() {
            self.non_finite += 1;
            return;
        }
        self.count += 1;
        self.minimum = self.minimum.min(value);
        self.maximum = self.maximum.max(value);
        // Welford, 1962.
        let difference = value - self.mean;
        self.mean += difference / self.count as f64;
        self.squares += difference * (value - self.mean);
        *self.buckets.entry(ordered(value) >> self.shift).or_default() += 1;
        self.coarsen();
    }

    fn coarsen(&mut self) {
        while self.buckets.len() > MAX_BUCKETS {
            self.shift_to(self.shift + 1);
        }
    }

    fn shift_to(&mut self, shift: u32) {
        let by = shift - self.shift;
        self.shift = shift;
        for (key, count) in std::mem::take(&mut self.buckets) {
            *self.buckets.entry(key >> by).or_default() += count;
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.non_finite += other.non_finite;
        if other.count == 0 {
            return;
        }
        // Chan et al., 1979.
        let (own, others) = (self.count as f64, other.count as f64);
        let difference = other.mean - self.mean;
        self.count += other.count;
        self.mean += difference * others / self.count as f64;
        self.squares += other.squares + difference * difference * own * others / self.count as f64;
        self.minimum = self.minimum.min(other.minimum);
        self.maximum = self.maximum.max(other.maximum);
        let mut other = other.clone();
        let shift = self.shift.max(other.shift);
        self.shift_to(shift);
        other.shift_to(shift);
        for (key, count) in other.buckets {
            *self.buckets.entry(key).or_default() += count;
        }
        self.coarsen();
    }

    /// The population standard deviation.
    pub(super) fn deviation(&self) -> f64 {
        (self.squares / (self.count as f64).max(1.0)).sqrt()
    }

    /// The value below which a share of the values is, within the width of a bucket.
    pub(super) fn quantile(&self, share: f64) -> f64 {
        let wanted = (share * self.count as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        for (&key, &count) in &self.buckets {
            below += count;
            if below >= wanted {
                return self.middle(key);
            }
        }
        self.maximum
    }

    /// Counts in `bins` intervals of equal width from the minimum to the maximum.
    pub(super) fn histogram(&self, bins: usize) -> Vec<u64> {
        let mut counts = vec![0; bins];
        let width = self.maximum - self.minimum;
        for (&key, &count) in &self.buckets {
            let place = (self.middle(key) - self.minimum) / width * bins as f64;
            // NaN, of a width of 0, becomes 0.
            counts[(place as usize).min(bins - 1)] += count;
        }
        counts
    }

    /// The distribution, to store.
    pub(super) fn sketch(&self) -> Sketch {
        let mut stored = self.clone();
        while stored.buckets.len() > STORED_BUCKETS {
            stored.shift_to(stored.shift + 1);
        }
        Sketch { shift: stored.shift, buckets: stored.buckets.into_iter().collect() }
    }

    /// A typical value of a bucket.
    fn middle(&self, key: i64) -> f64 {
        let half = (1_i64 << self.shift) >> 1;
        let (low, middle) = (key << self.shift, (key << self.shift) | half);
        // Integers and zero are the lowest of their bucket; others spread over it.
        let low = unordered(low);
        let typical = if low.fract() == 0.0 { low } else { unordered(middle) };
        typical.clamp(self.minimum, self.maximum)
    }
}

/// The bits of a float as an integer in the same order.
fn ordered(value: f64) -> i64 {
    let bits = value.to_bits() as i64;
    bits ^ (((bits >> 63) as u64) >> 1) as i64
}

fn unordered(key: i64) -> f64 {
    f64::from_bits((key ^ (((key >> 63) as u64) >> 1) as i64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_values_are_counted_exactly_then_within_two_percent() {
        for (values, is_exact) in
            [(0_u64, true), (1000, true), (16_384, true), (20_000, false), (300_000, false)]
        {
            let (mut left, mut right) = (Distinct::default(), Distinct::default());
            for value in 0..values {
                left.add(&value.to_le_bytes());
                right.add(&(values - 1 - value / 2).to_le_bytes());
            }
            left.merge(&right);
            assert_eq!(left.is_exact(), is_exact, "{values}");
            let error = left.count().abs_diff(values) as f64;
            assert!(
                error <= if is_exact { 0.0 } else { 0.025 * values as f64 },
                "{values}: {}",
                left.count()
            );
        }
    }

    #[test]
    fn frequent_values_survive_many_rare_ones() {
        let mut frequent = Frequent::default();
        for round in 0..20_000_u32 {
            frequent.add(if round % 3 == 0 { b"a" } else { b"b" }, 1);
            frequent.add(&round.to_le_bytes(), 1);
        }
        let top = frequent.top(5);
        assert_eq!(top.len(), 2);
        assert_eq!((top[0].0, top[1].0), (&b"b"[..], &b"a"[..]));
        assert!(top[0].1 + frequent.undercount() >= 13_333 && top[0].1 <= 13_333);
    }

    #[test]
    fn moments_quantiles_and_histograms() {
        let (mut left, mut right, mut whole) = (Numbers::default(), Numbers::default(), Numbers::default());
        for value in 0..10_000 {
            let value = f64::from(value) - 5000.0;
            whole.add(value);
            if value < -1234.0 { left.add(value) } else { right.add(value) }
        }
        whole.add(f64::NAN);
        left.merge(&right);
        assert_eq!(
            (whole.count, whole.non_finite, whole.minimum, whole.maximum),
            (10_000, 1, -5000.0, 4999.0)
        );
        for numbers in [&whole, &left] {
            assert!((numbers.mean + 0.5).abs() < 1e-9 && (numbers.deviation() - 2886.75).abs() < 0.01);
            assert!((numbers.quantile(0.9) - 4000.0).abs() < 40.0, "{}", numbers.quantile(0.9));
            let histogram = numbers.histogram(10);
            assert!(histogram.iter().all(|&count| (900..1100).contains(&count)), "{histogram:?}");
        }
        assert!(whole.buckets.len() <= MAX_BUCKETS);
        let mut flags = Numbers::default();
        [0.0, 0.0, 1.0].into_iter().for_each(|flag| flags.add(flag));
        assert_eq!((flags.histogram(2), flags.quantile(0.5)), (vec![2, 1], 0.0));
        let mut one = Numbers::default();
        one.add(7.0);
        assert_eq!(one.histogram(3), [1, 0, 0]);
    }

    #[test]
    fn order_of_bits_is_order_of_numbers() {
        let sorted = [f64::MIN, -2.5, -1.0, -1e-300, 0.0, 1e-300, 1.0, 2.5, f64::MAX];
        assert!(sorted.windows(2).all(|pair| ordered(pair[0]) < ordered(pair[1])));
        assert!(sorted.iter().all(|&value| unordered(ordered(value)) == value));
    }
}
