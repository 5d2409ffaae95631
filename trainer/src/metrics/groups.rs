//! Metrics within groups of rows, such as those of a query or a user: how well a model ranks competing items.
//!
//! Group AUC (GAUC) is the mean of the AUCs of the groups, weighted by the groups' weights: Zhu et al., "Optimized Cost
//! per Click in Taobao Display Advertising", 2017, with rows as impressions. A group of one class has no AUC and is
//! skipped. The plain AUC also rewards distinguishing groups from each other.
//!
//! NDCG, reciprocal rank and recall (`top_ranks`) look at the first ranks. Their mean weights groups by the mean
//! weight of their rows, as LightGBM does: without row weights all groups weigh the same. A row without weight is no
//! part of its group, and a group without a relevant row is skipped.
//!
//! Rows are kept until the end, because a group's rows may arrive at any time. When they exceed the memory
//! limit, half of the groups are dropped entirely, selected by a hash of their ids, and their later rows are
//! ignored; then half of the rest, as often as needed. So the remaining groups are an unbiased sample, which
//! depends on the rows but not on their order. [`Mean::groups`] is the number of groups in a mean.

use super::ranking::{WeightedRow, reserve, sweep_weighted};
use super::top_ranks::{self, Discounts};
use crate::spec::RankingSpec;

/// A mean over the groups for which a metric is defined.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Mean {
    sum: f64,
    weight: f64,
    /// The number of kept groups in it.
    pub(super) groups: u64,
}

impl Mean {
    fn add(&mut self, value: Option<f64>, weight: f64) {
        if let Some(value) = value {
            self.sum += weight * value;
            self.weight += weight;
            self.groups += 1;
        }
    }

    /// `None` if the metric is undefined for every group.
    pub(super) fn value(&self) -> Option<f64> {
        (self.groups > 0).then(|| self.sum / self.weight)
    }
}

/// The metrics of labels of at least 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Means {
    pub(super) auc: Mean,
    /// The mean over no groups if a label has no gain.
    pub(super) ndcg: Mean,
    pub(super) reciprocal_rank: Mean,
    pub(super) recall: Mean,
}

/// Rows with their groups.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    rows: Vec<(u32, WeightedRow)>,
    /// Groups are kept if their hash ends in this many zeros.
    halvings: u32,
    /// The memory limit of the rows.
    most_bytes: usize,
    ranking: RankingSpec,
}

impl Groups {
    pub(super) fn new(most_bytes: usize, ranking: RankingSpec) -> Self {
        Self { rows: Vec::new(), halvings: 0, most_bytes, ranking }
    }

    /// Reserves memory for more rows, within the limit.
    pub(super) fn reserve(&mut self, rows: usize) {
        reserve(&mut self.rows, rows, self.most_bytes);
    }

    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.halvings = 0;
    }

    pub(super) fn push(&mut self, group: u32, row: WeightedRow) {
        let most = self.most_bytes / size_of::<(u32, WeightedRow)>();
        // Terminates: no hash has 65 zeros, so eventually no group is kept.
        while is_kept(group, self.halvings) && self.rows.len() >= most {
            self.halvings += 1;
            self.rows.retain(|&(group, _)| is_kept(group, self.halvings));
        }
        if is_kept(group, self.halvings) {
            self.rows.push((group, row));
        }
    }

    /// The settings of NDCG and recall.
    pub(super) fn ranking(&self) -> RankingSpec {
        self.ranking
    }

    /// All metrics. The AUC needs labels from 0 to 1. Sorts the rows.
    pub(super) fn means(&mut self) -> Means {
        let mut means = Means { ndcg: self.ndcg(), ..Means::default() };
        let top_k = self.ranking.top_k;
        self.for_each(|rows, weight| {
            let sweep = sweep_weighted(rows);
            means.auc.add(sweep.roc().map(|area| area.value), sweep.weight());
            means.reciprocal_rank.add(top_ranks::reciprocal_rank(rows), weight);
            means.recall.add(top_ranks::recall(rows, top_k), weight);
        });
        means
    }

    /// NDCG, for labels of any size. Sorts the rows.
    pub(super) fn ndcg(&mut self) -> Mean {
        let gains = self.ranking.gains;
        let have_gains = self.rows.iter().all(|(_, row)| top_ranks::gain(row.label, gains).is_some());
        let (mut mean, discounts) = (Mean::default(), Discounts::new(self.ranking));
        self.for_each(|rows, weight| {
            if have_gains {
                mean.add(top_ranks::ndcg(rows, &discounts, gains), weight);
            }
        });
        mean
    }

    /// Calls `visit` with the rows of each group that have a weight, the highest score last, and their mean weight.
    fn for_each(&mut self, mut visit: impl FnMut(&[WeightedRow], f64)) {
        self.rows.sort_unstable_by_key(|(group, row)| (*group, row.order()));
        let mut of_group = Vec::new();
        for rows in self.rows.chunk_by(|a, b| a.0 == b.0) {
            of_group.clear();
            of_group.extend(rows.iter().map(|(_, row)| *row).filter(|row| row.weight > 0.0));
            let weight: f64 = of_group.iter().map(|row| f64::from(row.weight)).sum();
            if !of_group.is_empty() {
                visit(&of_group, weight / of_group.len() as f64);
            }
        }
    }
}

fn is_kept(group: u32, halvings: u32) -> bool {
    halvings == 0 || hash(group).trailing_zeros() >= halvings
}

/// Murmur3's finaliser: each bit of the id affects each bit of the hash.
fn hash(group: u32) -> u64 {
    let mut hash = u64::from(group).wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::metrics::ranking::Ranking;

    type Rows = Vec<(u32, WeightedRow)>;

    fn groups(rows: &Rows, most_rows: usize) -> Groups {
        let mut groups = Groups::new(most_rows * size_of::<(u32, WeightedRow)>(), RankingSpec::default());
        rows.iter().for_each(|&(group, row)| groups.push(group, row));
        groups
    }

    fn close(found: Option<f64>, expected: Option<f64>) -> bool {
        found.is_some() == expected.is_some()
            && found.zip(expected).is_none_or(|(found, expected)| (found - expected).abs() < 1e-12)
    }

    /// The rows of each group separately.
    fn one_by_one(rows: &Rows) -> Mean {
        let ids: BTreeSet<u32> = rows.iter().map(|row| row.0).collect();
        let areas = ids.iter().filter_map(|id| {
            let mut ranking = Ranking::new(usize::MAX);
            rows.iter().filter(|row| row.0 == *id).for_each(|row| ranking.push(row.1));
            let sweep = ranking.sweep();
            sweep.roc().map(|area| (area.value * sweep.weight(), sweep.weight()))
        });
        let areas: Vec<_> = areas.collect();
        let weight: f64 = areas.iter().map(|area| area.1).sum();
        let sum: f64 = areas.iter().map(|area| area.0).sum();
        Mean { sum, weight, groups: areas.len() as u64 }
    }

    fn rows() -> impl Strategy<Value = Rows> {
        let row = (0_u32..30, 0_u8..6, any::<bool>(), 0_u8..3).prop_map(|(group, score, label, weight)| {
            let label = f32::from(u8::from(label));
            (group, WeightedRow::new(f32::from(score) / 5.0, label, f32::from(weight)))
        });
        prop::collection::vec(row, 0..150)
    }

    proptest! {
        #[test]
        fn the_mean_equals_that_of_separate_groups(rows in rows()) {
            let (found, expected) = (groups(&rows, usize::MAX >> 8).means().auc, one_by_one(&rows));
            prop_assert_eq!(found.groups, expected.groups);
            prop_assert!(close(found.value(), expected.value()), "{:?} {:?}", found, expected);
        }

        #[test]
        fn above_the_limit_whole_groups_remain_in_any_order(rows in rows(), most in 0..150_usize) {
            let mut bounded = groups(&rows, most);
            prop_assert!(bounded.rows.len() <= most);
            let kept = |group: u32| is_kept(group, bounded.halvings);
            let expected: Rows = rows.iter().filter(|row| kept(row.0)).copied().collect();
            prop_assert_eq!(bounded.rows.len(), expected.len());
            // No more groups were dropped than necessary.
            if let Some(fewer) = bounded.halvings.checked_sub(1) {
                prop_assert!(rows.iter().filter(|row| is_kept(row.0, fewer)).count() > most);
            }
            let found = bounded.means();
            prop_assert!(close(found.auc.value(), one_by_one(&expected).value()));
            let reversed = rows.iter().rev().copied().collect();
            prop_assert_eq!(groups(&reversed, most).means(), found);
        }
    }

    #[test]
    fn each_halving_keeps_about_half_of_the_groups() {
        for halvings in 0..8 {
            let kept = (0..100_000).filter(|&group| is_kept(group, halvings)).count();
            let expected = 100_000.0 / f64::from(1 << halvings);
            assert!((kept as f64 / expected - 1.0).abs() < 0.1, "{halvings}: {kept}");
        }
    }

    #[test]
    fn groups_of_one_class_are_skipped() {
        let row = |group, score, label| (group, WeightedRow::new(score, label, 1.0));
        // Group 1 is ranked correctly, group 2 incorrectly and with twice the weight, group 3 has only
        // positives.
        let mut rows = vec![row(1, 0.9, 1.0), row(1, 0.1, 0.0), row(3, 0.7, 1.0)];
        rows.extend([row(2, 0.2, 1.0), row(2, 0.3, 0.0), row(2, 0.4, 0.0), row(2, 0.5, 0.0)]);
        let found = groups(&rows, 100).means().auc;
        assert_eq!((found.value(), found.groups), (Some(2.0 / 6.0), 2));
        rows.retain(|row| row.0 == 3);
        let found = groups(&rows, 100).means().auc;
        assert_eq!((found.value(), found.groups), (None, 0));
    }

    #[test]
    fn groups_weigh_as_much_as_their_mean_row_in_metrics_of_first_ranks() {
        let row = |group, score, label, weight| (group, WeightedRow::new(score, label, weight));
        // The relevant row of group 1 is first, that of group 2 second; group 3 has none. A row without weight does not
        // count.
        let rows = vec![
            row(1, 0.9, 1.0, 2.0),
            row(1, 0.5, 0.0, 4.0),
            row(2, 0.9, 0.0, 1.0),
            row(2, 0.5, 1.0, 1.0),
            row(2, 0.7, 0.0, 0.0),
            row(3, 0.7, 0.0, 1.0),
        ];
        let found = groups(&rows, 100).means();
        assert_eq!(found.reciprocal_rank.value(), Some((3.0 + 0.5) / 4.0));
        assert!(close(found.ndcg.value(), Some((3.0 + 1.0 / 3.0_f64.log2()) / 4.0)));
        assert_eq!((found.recall.value(), found.recall.groups, found.ndcg.groups), (Some(1.0), 2, 2));
        let mut negative = rows;
        negative.push((4, WeightedRow::of_any_score(-7.0, -1.0, 1.0)));
        assert_eq!(groups(&negative, 100).ndcg(), Mean::default());
    }
}
