//! Group AUC (GAUC): the mean of the AUCs of groups of rows, such as the rows of a user, weighted by the
//! groups' weights: Zhu et al., "Optimized Cost per Click in Taobao Display Advertising", 2017, with rows as
//! impressions. A group of one class has no AUC and is skipped.
//!
//! It measures how well a model ranks competing items. The plain AUC also rewards distinguishing groups from
//! each other.
//!
//! Rows are kept until the end, because a group's rows may arrive at any time. When they exceed the memory
//! limit, half of the groups are dropped entirely, selected by a hash of their ids, and their later rows are
//! ignored; then half of the rest, as often as needed. So the remaining groups are an unbiased sample, which
//! depends on the rows but not on their order. [`GroupAuc::groups`] is the number of groups in the mean.

use super::ranking::{WeightedRow, reserve, sweep_weighted};

/// A mean over groups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct GroupAuc {
    /// `None` if no group has both classes.
    pub(super) auc: Option<f64>,
    /// The number of kept groups with both classes.
    pub(super) groups: u64,
}

/// Rows with their groups.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    rows: Vec<(u32, WeightedRow)>,
    /// Groups are kept if their hash ends in this many zeros.
    halvings: u32,
    /// The memory limit of the rows.
    most_bytes: usize,
}

impl Groups {
    pub(super) fn new(most_bytes: usize) -> Self {
        Self { rows: Vec::new(), halvings: 0, most_bytes }
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

    /// The mean over all kept groups. Sorts the rows.
    pub(super) fn auc(&mut self) -> GroupAuc {
        self.rows.sort_unstable_by_key(|(group, row)| (*group, row.order()));
        let (mut sum, mut weight, mut groups) = (0.0, 0.0, 0);
        let mut of_group = Vec::new();
        for rows in self.rows.chunk_by(|a, b| a.0 == b.0) {
            of_group.clear();
            of_group.extend(rows.iter().map(|(_, row)| *row));
            let sweep = sweep_weighted(&of_group);
            if let Some(area) = sweep.roc() {
                sum += sweep.weight() * area.value;
                weight += sweep.weight();
                groups += 1;
            }
        }
        GroupAuc { auc: (groups > 0).then(|| sum / weight), groups }
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
        let mut groups = Groups::new(most_rows * size_of::<(u32, WeightedRow)>());
        rows.iter().for_each(|&(group, row)| groups.push(group, row));
        groups
    }

    fn close(found: Option<f64>, expected: Option<f64>) -> bool {
        found.is_some() == expected.is_some()
            && found.zip(expected).is_none_or(|(found, expected)| (found - expected).abs() < 1e-12)
    }

    /// The rows of each group separately.
    fn one_by_one(rows: &Rows) -> GroupAuc {
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
        GroupAuc { auc: (!areas.is_empty()).then(|| sum / weight), groups: areas.len() as u64 }
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
            let (found, expected) = (groups(&rows, usize::MAX >> 8).auc(), one_by_one(&rows));
            prop_assert_eq!(found.groups, expected.groups);
            prop_assert!(close(found.auc, expected.auc), "{:?} {:?}", found, expected);
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
            let found = bounded.auc();
            prop_assert!(close(found.auc, one_by_one(&expected).auc));
            let reversed = rows.iter().rev().copied().collect();
            prop_assert_eq!(groups(&reversed, most).auc(), found);
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
        let found = groups(&rows, 100).auc();
        assert_eq!(found, GroupAuc { auc: Some(2.0 / 6.0), groups: 2 });
        rows.retain(|row| row.0 == 3);
        assert_eq!(groups(&rows, 100).auc(), GroupAuc { auc: None, groups: 0 });
    }
}
