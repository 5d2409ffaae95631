//! The areas under the ROC and the precision-recall curve, in one pass from the highest score down.
//!
//! **ROC.** The Mann-Whitney statistic: each negative loses to all positives above it, and counts half for
//! those with the same score. **Precision-recall.** Average precision, as scikit-learn's
//! `average_precision_score`: the mean over positives of the precision of all rows down to their score, ties
//! included. There is no interpolation: Davis and Goadrich, "The Relationship Between Precision-Recall and
//! ROC Curves", 2006, show that linear interpolation is too optimistic.
//!
//! Rows arrive in groups that are tied, or [mixed](Sweep::mixed): their order within the group is unknown.
//! Both areas are then known within bounds that hold for every possible order:
//!
//! * Of `p n` pairs within a group, positives win between none and all.
//! * With weight `T` of positives and `F` of negatives above the group, the precision of its positives is
//!   highest if they are tied and above all of its negatives: `(T + p) / (T + p + F)` for each. It is lowest
//!   if they are below all of its negatives, and not tied: after weight `t` of them, it is `(T + t) / (T + t
//!   + F + n)`. This grows with `t`, so its integral from 0 to `p` is a lower bound of its sum over rows of
//!   any weight: `p - M ln(1 + p / (T + M))`, with `M = F + n`.

/// A value and the bound of its error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Area {
    pub(super) value: f64,
    pub(super) error: f64,
}

/// The sums over all rows so far, in descending order of scores.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sweep {
    /// Positive and negative weight so far.
    positive: f64,
    negative: f64,
    /// The weight of pairs won by the positive, and of undecided pairs within groups.
    wins: f64,
    undecided: f64,
    /// Precision, summed over positives: lower and upper bound.
    precision: [f64; 2],
}

impl Sweep {
    /// Adds rows with one score, below all scores so far.
    pub(super) fn tied(&mut self, positive: f64, negative: f64) {
        self.pass(positive, negative);
        if positive > 0.0 {
            let gained = positive * (self.positive / (self.positive + self.negative));
            self.precision[0] += gained;
            self.precision[1] += gained;
        }
    }

    /// Adds rows with several scores, all below those so far.
    pub(super) fn mixed(&mut self, positive: f64, negative: f64) {
        let (above, passed) = (self.positive, self.negative);
        self.pass(positive, negative);
        self.undecided += positive * negative;
        if positive > 0.0 {
            let lost = if self.negative > 0.0 {
                self.negative * (positive / (above + self.negative)).ln_1p()
            } else {
                0.0
            };
            self.precision[0] += positive - lost;
            self.precision[1] += positive * (self.positive / (self.positive + passed));
        }
    }

    /// The area under the ROC curve; `None` unless both classes have weight.
    pub(super) fn roc(&self) -> Option<Area> {
        let pairs = self.positive * self.negative;
        (pairs > 0.0).then(|| Area { value: self.wins / pairs, error: self.undecided / 2.0 / pairs })
    }

    /// The area under the precision-recall curve; `None` unless positives have weight.
    pub(super) fn precision_recall(&self) -> Option<Area> {
        let [low, high] = self.precision.map(|sum| sum / self.positive);
        (self.positive > 0.0).then(|| Area { value: (low + high) / 2.0, error: (high - low) / 2.0 })
    }

    /// The weight of all rows.
    pub(super) fn weight(&self) -> f64 {
        self.positive + self.negative
    }

    /// If all weights are 1, these are sums of halves of integers below 2^53, so the pairs are exact.
    fn pass(&mut self, positive: f64, negative: f64) {
        self.wins += negative * (self.positive + positive / 2.0);
        self.positive += positive;
        self.negative += negative;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    /// Both areas of rows of weight 1 with distinct scores, in descending order.
    fn strictly(labels: impl Iterator<Item = bool>) -> Sweep {
        let mut sweep = Sweep::default();
        labels.for_each(|label| sweep.tied(f64::from(label), f64::from(!label)));
        sweep
    }

    #[test]
    fn bounds_of_a_mixed_group_by_hand() {
        let mut sweep = Sweep::default();
        sweep.tied(1.0, 1.0);
        sweep.mixed(1.0, 2.0);
        // Of 2 x 3 pairs 2 are undecided. Half of the first pair and all other pairs of the upper positive
        // are won.
        let roc = sweep.roc().unwrap();
        assert_eq!((roc.value, roc.error), ((0.5 + 2.0 + 1.0) / 6.0, 1.0 / 6.0));
        // The lower positive has a precision of 2/3 if it is on top, and at least the mean of (1 + t) / (4 +
        // t) over t from 0 to 1.
        let pr = sweep.precision_recall().unwrap();
        let (low, high) = (pr.value - pr.error, pr.value + pr.error);
        assert!((high - (0.5 + 2.0 / 3.0) / 2.0).abs() < 1e-15, "{pr:?}");
        assert!((low - (0.5 + 1.0 - 3.0 * (5.0_f64 / 4.0).ln()) / 2.0).abs() < 1e-15, "{pr:?}");
    }

    #[test]
    fn positives_alone_have_a_precision_of_one_in_any_order() {
        let mut sweep = Sweep::default();
        sweep.mixed(3.0, 0.0);
        assert_eq!(sweep.precision_recall(), Some(Area { value: 1.0, error: 0.0 }));
        assert_eq!(sweep.roc(), None);
        assert_eq!(Sweep::default().precision_recall(), None);
    }

    proptest! {
        /// The best and the worst order reach the bounds: ROC exactly; precision-recall from above with ties,
        /// and from below as rows become small.
        #[test]
        fn bounds_are_those_of_the_best_and_the_worst_order(
            above in prop::collection::vec(any::<bool>(), 0..20),
            (positive, negative) in (1_u16..20, 0_u16..20),
        ) {
            let (p, n) = (f64::from(positive), f64::from(negative));
            let start = strictly(above.iter().copied());
            let (mut mixed, mut best, mut worst) = (start, start, start);
            mixed.mixed(p, n);
            best.tied(p, 0.0);
            best.tied(0.0, n);
            worst.tied(0.0, n);
            const PARTS: u16 = 2000;
            (0..PARTS).for_each(|_| worst.tied(p / f64::from(PARTS), 0.0));
            if let Some(roc) = mixed.roc() {
                prop_assert!((roc.value + roc.error - best.roc().unwrap().value).abs() < 1e-12);
                prop_assert!((roc.value - roc.error - worst.roc().unwrap().value).abs() < 1e-12);
            }
            let pr = mixed.precision_recall().unwrap();
            let (low, high) = (pr.value - pr.error, pr.value + pr.error);
            let (worst, best) = [worst, best].map(|sweep| sweep.precision_recall().unwrap().value).into();
            prop_assert!((high - best).abs() < 1e-12, "{high} {best}");
            prop_assert!(low < worst + 1e-12 && worst - low < 1.0 / f64::from(PARTS), "{low} {worst}");
        }
    }
}
