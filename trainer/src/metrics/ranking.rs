//! Ranks rows by score: exactly, and above a limit in a histogram.
//!
//! Rows are sorted by the bits of their scores, which sort like the scores because none is negative. As none
//! is above 1 either, the two highest bits are free: if all rows have weight 1 and label 0 or 1, a row is one
//! `u32` with its label in the lowest bit.
//!
//! When rows would exceed the limit, they move to a [`Histogram`] in order, and so do all later rows. The
//! result is bit-identical to a histogram from the first row on.

use super::areas::Sweep;
use super::histogram::Histogram;

/// The rows to rank.
#[derive(Clone, Debug)]
pub(super) struct Ranking {
    rows: Rows,
    /// The memory limit of exact rows.
    exact_bytes: usize,
}

#[derive(Clone, Debug)]
enum Rows {
    /// Every row has weight 1 and label 0 or 1: `score bits << 1 | label`.
    Counted(Vec<u32>),
    /// Any weights and labels.
    Weighted(Vec<WeightedRow>),
    /// More rows than the limit.
    Binned(Histogram),
}

/// A row of any weight and label.
#[derive(Clone, Copy, Debug)]
pub(super) struct WeightedRow {
    /// Bits that sort like scores.
    pub(super) score_bits: u32,
    pub(super) label: f32,
    pub(super) weight: f32,
}

impl Ranking {
    /// A ranking that is exact while its rows use at most `exact_bytes`.
    pub(super) fn new(exact_bytes: usize) -> Self {
        Self { rows: Rows::Counted(Vec::new()), exact_bytes }
    }

    pub(super) fn exact_bytes(&self) -> usize {
        self.exact_bytes
    }

    /// Reserves memory for more rows, within the limit.
    pub(super) fn reserve(&mut self, rows: usize) {
        match &mut self.rows {
            Rows::Counted(keys) => reserve(keys, rows, self.exact_bytes),
            Rows::Weighted(all) => reserve(all, rows, self.exact_bytes),
            Rows::Binned(_) => {}
        }
    }

    /// Removes all rows. Later rows are ranked exactly again.
    pub(super) fn clear(&mut self) {
        match &mut self.rows {
            Rows::Counted(keys) => keys.clear(),
            Rows::Weighted(rows) => rows.clear(),
            Rows::Binned(_) => self.rows = Rows::Counted(Vec::new()),
        }
    }

    /// Adds a row.
    pub(super) fn push(&mut self, row: WeightedRow) {
        self.make_fit(&row);
        match &mut self.rows {
            Rows::Counted(keys) => keys.push(row.key()),
            Rows::Weighted(rows) => rows.push(row),
            Rows::Binned(histogram) => histogram.add(&row),
        }
    }

    /// The sums over all rows. Sorts them.
    pub(super) fn sweep(&mut self) -> Sweep {
        match &mut self.rows {
            Rows::Counted(keys) => {
                keys.sort_unstable();
                sweep_counted(keys)
            }
            Rows::Weighted(rows) => {
                // By all fields, so that sums do not depend on the order of arrival.
                rows.sort_unstable_by_key(WeightedRow::order);
                sweep_weighted(rows)
            }
            Rows::Binned(histogram) => histogram.sweep(),
        }
    }

    /// Converts the stored rows so that `row` can be added.
    fn make_fit(&mut self, row: &WeightedRow) {
        let (rows, row_bytes) = match &self.rows {
            Rows::Counted(keys) if row.is_counted() => (keys.len(), size_of::<u32>()),
            Rows::Counted(keys) => (keys.len(), size_of::<WeightedRow>()),
            Rows::Weighted(rows) => (rows.len(), size_of::<WeightedRow>()),
            Rows::Binned(_) => return,
        };
        if rows >= self.exact_bytes / row_bytes {
            self.bin();
        } else if let Rows::Counted(keys) = &self.rows
            && !row.is_counted()
        {
            let mut rows = keys.iter().map(|&key| WeightedRow::of_key(key)).collect();
            reserve(&mut rows, 1, self.exact_bytes);
            self.rows = Rows::Weighted(rows);
        }
    }

    fn bin(&mut self) {
        let mut histogram = Histogram::new();
        match &self.rows {
            Rows::Counted(keys) => keys.iter().for_each(|&key| histogram.add(&WeightedRow::of_key(key))),
            Rows::Weighted(rows) => rows.iter().for_each(|row| histogram.add(row)),
            Rows::Binned(_) => return,
        }
        self.rows = Rows::Binned(histogram);
    }
}

impl WeightedRow {
    /// A row: `score` and `label` in `[0, 1]`, `weight` finite and not negative.
    pub(super) fn new(score: f32, label: f32, weight: f32) -> Self {
        // Adding zero turns a negative zero, whose bits would sort last, into a positive one.
        Self { score_bits: (score + 0.0).to_bits(), label, weight }
    }

    /// A row of any finite score and label, for rankings within groups.
    pub(super) fn of_any_score(score: f32, label: f32, weight: f32) -> Self {
        let bits = (score + 0.0).to_bits();
        // Above those of any score that is not negative, or below them in reverse.
        let is_negative = bits >> 31 == 1;
        Self { score_bits: if is_negative { !bits } else { bits | 1 << 31 }, label, weight }
    }

    /// The weights of its positive and negative part.
    pub(super) fn parts(&self) -> (f64, f64) {
        let (weight, label) = (f64::from(self.weight), f64::from(self.label));
        (weight * label, weight * (1.0 - label))
    }

    /// The sort key, starting with the score. Rows that compare equal are equal.
    pub(super) fn order(&self) -> (u32, u32, u32) {
        (self.score_bits, self.label.to_bits(), self.weight.to_bits())
    }

    fn is_counted(&self) -> bool {
        self.weight == 1.0 && (self.label == 0.0 || self.label == 1.0)
    }

    fn key(&self) -> u32 {
        self.score_bits << 1 | u32::from(self.label == 1.0)
    }

    fn of_key(key: u32) -> Self {
        Self { score_bits: key >> 1, label: (key & 1) as f32, weight: 1.0 }
    }
}

/// Sums over rows that are sorted by score.
pub(super) fn sweep_weighted(sorted: &[WeightedRow]) -> Sweep {
    let mut sweep = Sweep::default();
    for tied in sorted.chunk_by(|a, b| a.score_bits == b.score_bits).rev() {
        let (mut positive, mut negative) = (0.0, 0.0);
        for (of_positive, of_negative) in tied.iter().map(WeightedRow::parts) {
            positive += of_positive;
            negative += of_negative;
        }
        sweep.tied(positive, negative);
    }
    sweep
}

fn sweep_counted(sorted: &[u32]) -> Sweep {
    let mut sweep = Sweep::default();
    for tied in sorted.chunk_by(|a, b| a >> 1 == b >> 1).rev() {
        let positive = tied.iter().filter(|&key| key & 1 == 1).count();
        sweep.tied(positive as f64, (tied.len() - positive) as f64);
    }
    sweep
}

/// Reserves memory for more elements: by doubling, to reallocate rarely, but not beyond `most_bytes`.
pub(super) fn reserve<T>(elements: &mut Vec<T>, more: usize, most_bytes: usize) {
    let most = most_bytes / size_of::<T>();
    let wanted = elements.len().saturating_add(more).min(most);
    if wanted > elements.capacity() {
        let buffers = wanted.max(elements.capacity().saturating_mul(2).min(most));
        elements.reserve_exact(buffers - elements.len());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;
    use crate::metrics::areas::Area;

    fn ranked(rows: &[WeightedRow], exact_bytes: usize) -> Ranking {
        let mut ranking = Ranking::new(exact_bytes);
        rows.iter().for_each(|&row| ranking.push(row));
        ranking
    }

    fn areas(rows: &[WeightedRow], exact_bytes: usize) -> [Option<Area>; 2] {
        let sweep = ranked(rows, exact_bytes).sweep();
        [sweep.roc(), sweep.precision_recall()]
    }

    /// Many scores in few bins, near both ends and in between: some tied, some alone in their bins.
    fn crowded_score() -> impl Strategy<Value = f32> {
        let base = prop::sample::select(vec![0.0_f32, 1e-30, 1e-6, 0.01, 0.3, 0.499_999, 0.5, 0.8, 0.999]);
        prop_oneof![
            4 => (base, 0_u32..40).prop_map(|(base, ulps)| f32::from_bits(base.to_bits() + ulps)),
            1 => 0.0_f32..=1.0,
        ]
    }

    fn counted_row() -> impl Strategy<Value = WeightedRow> {
        (crowded_score(), any::<bool>())
            .prop_map(|(score, label)| WeightedRow::new(score, f32::from(u8::from(label)), 1.0))
    }

    fn weighted_row() -> impl Strategy<Value = WeightedRow> {
        (crowded_score(), 0_u8..5, 0_u8..4).prop_map(|(score, label, weight)| {
            WeightedRow::new(score, f32::from(label) / 4.0, f32::from(weight) * 0.7)
        })
    }

    fn rows() -> impl Strategy<Value = Vec<WeightedRow>> {
        let some = 1..200_usize;
        prop_oneof![
            prop::collection::vec(counted_row(), some.clone()),
            prop::collection::vec(weighted_row(), some.clone()),
            prop::collection::vec(prop_oneof![9 => counted_row(), 1 => weighted_row()], some),
        ]
    }

    proptest! {
        #[test]
        fn the_exact_areas_are_within_the_bounds_of_the_binned(rows in rows()) {
            let (exact, binned) = (areas(&rows, usize::MAX), areas(&rows, 0));
            for (exact, binned) in exact.into_iter().zip(binned) {
                prop_assert_eq!(exact.is_some(), binned.is_some());
                let (Some(exact), Some(binned)) = (exact, binned) else { continue };
                prop_assert_eq!(exact.error, 0.0);
                let off = (exact.value - binned.value).abs();
                prop_assert!(off <= binned.error + 1e-12, "{:?} is {:?} binned", exact, binned);
                prop_assert!(binned.error < 0.5 + 1e-12);
            }
        }

        #[test]
        fn rows_may_move_to_the_histogram_at_any_time(rows in rows(), first in 0..210_usize) {
            let from_the_first = areas(&rows, 0);
            let mut moved = ranked(&rows, first * size_of::<WeightedRow>() / 3);
            if matches!(moved.rows, Rows::Binned(_)) {
                let sweep = moved.sweep();
                prop_assert_eq!([sweep.roc(), sweep.precision_recall()], from_the_first);
            } else {
                let sweep = moved.sweep();
                prop_assert_eq!([sweep.roc(), sweep.precision_recall()], areas(&rows, usize::MAX));
            }
        }

        #[test]
        fn the_order_of_rows_makes_no_difference(rows in rows()) {
            let reversed: Vec<_> = rows.iter().rev().copied().collect();
            let all_are_counted = rows.iter().all(WeightedRow::is_counted);
            prop_assert_eq!(areas(&rows, usize::MAX), areas(&reversed, usize::MAX));
            if all_are_counted {
                prop_assert_eq!(areas(&rows, 0), areas(&reversed, 0));
            }
        }
    }

    #[test]
    fn any_scores_sort_by_their_bits() {
        let scores = [f32::MIN, -2.0, -1e-40, 0.0, 1e-40, 0.5, 0.75, f32::MAX];
        let bits = scores.map(|score| WeightedRow::of_any_score(score, 0.0, 1.0).score_bits);
        assert!(bits.is_sorted_by(|a, b| a < b), "{bits:?}");
        assert_eq!(WeightedRow::of_any_score(-0.0, 0.0, 1.0).score_bits, bits[3]);
    }

    #[test]
    fn tied_scores_are_ranked_exactly_in_bins_too() {
        let rows: Vec<_> = (0..500_u16)
            .map(|i| WeightedRow::new(f32::from(i * 7 % 11) / 10.0, f32::from(i % 3 / 2), 1.0))
            .collect();
        let [exact, binned] = [usize::MAX, 0].map(|bytes| areas(&rows, bytes));
        assert_eq!(exact, binned);
        assert!(exact[0].unwrap().value > 0.0);
    }

    #[test]
    fn rows_are_exact_up_to_the_limit() {
        let counted: Vec<_> = (0..9_u8).map(|i| WeightedRow::new(0.1, f32::from(i % 2), 1.0)).collect();
        let weighted = WeightedRow { weight: 2.0, ..counted[0] };
        let is_exact = |rows: &[WeightedRow], bytes| !matches!(ranked(rows, bytes).rows, Rows::Binned(_));
        assert!(is_exact(&counted, 36) && !is_exact(&counted, 35));
        let mut mixed = counted;
        mixed.push(weighted);
        assert!(is_exact(&mixed, 120) && !is_exact(&mixed, 119), "one weighted row widens all rows");
        mixed.rotate_right(1);
        assert!(is_exact(&mixed, 120) && !is_exact(&mixed, 119), "at any position");
    }

    #[test]
    fn memory_is_doubled_up_to_the_limit() {
        let mut keys: Vec<u32> = Vec::new();
        let mut rooms = std::collections::BTreeSet::new();
        for _ in 0..100 {
            reserve(&mut keys, 10, 400 * size_of::<u32>());
            keys.extend([0; 10].iter().take(400 - keys.len()));
            rooms.insert(keys.capacity());
        }
        assert_eq!((keys.len(), keys.capacity()), (400, 400));
        assert!(rooms.len() < 9, "{rooms:?}");
    }
}
