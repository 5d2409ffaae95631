//! Counts terms in bounded memory.
//!
//! Counts are exact while all distinct terms fit in the limit. Beyond it the table is pruned: the median
//! count is subtracted from every term, and terms with nothing left are dropped. This is the Misra-Gries
//! summary (1982) in the batched form of Anderson et al. ("A High-Performance Algorithm for Identifying
//! Frequent Items in Data Streams", 2017). A term's true count exceeds the stored one by at most
//! [`TermCounts::undercount`], so sufficiently frequent terms are never lost.
//!
//! The table is pruned at the value that exceeds the limit, so the result depends only on the order of
//! values and of merges.

use crate::fingerprint::fingerprint64;
use crate::terms::TermTable;

/// Terms and their counts.
#[derive(Clone, Debug)]
pub(super) struct TermCounts {
    terms: TermTable,
    counts: Vec<u64>,
    undercount: u64,
    limit_bytes: usize,
}

impl TermCounts {
    /// An empty table limited to `limit_bytes` of memory.
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self { terms: TermTable::default(), counts: Vec::new(), undercount: 0, limit_bytes }
    }

    /// Counts `term` once.
    #[inline]
    pub(super) fn add(&mut self, term: &[u8]) {
        self.add_many(term, 1);
    }

    /// Adds all counts of `other`.
    pub(super) fn merge(&mut self, other: &Self) {
        for (term, count) in other.iter() {
            self.add_many(term, count);
        }
        self.undercount += other.undercount;
    }

    /// The terms and their counts, in insertion order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], u64)> {
        // Term numbers are u32.
        self.counts.iter().enumerate().map(|(number, &count)| (self.terms.term(number as u32), count))
    }

    /// The terms and their counts, by descending count, then by bytes.
    pub(super) fn by_count(&self) -> Vec<(&[u8], u64)> {
        let mut sorted: Vec<_> = self.iter().collect();
        sorted.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
        sorted
    }

    /// The maximum by which a count may be too low; 0 when counts are exact.
    pub(super) fn undercount(&self) -> u64 {
        self.undercount
    }

    #[inline]
    fn add_many(&mut self, term: &[u8], count: u64) {
        let number = self.terms.intern(fingerprint64(term), term) as usize;
        if number < self.counts.len() {
            self.counts[number] += count;
            return;
        }
        self.counts.push(count);
        while self.terms.len() > 1 && self.memory_bytes() > self.limit_bytes {
            self.prune();
        }
    }

    fn memory_bytes(&self) -> usize {
        self.terms.memory_bytes() + self.counts.len() * size_of::<u64>()
    }

    fn prune(&mut self) {
        let mut counts = self.counts.clone();
        let middle = counts.len() / 2;
        let median = *counts.select_nth_unstable(middle).1;
        let mut kept = Self { undercount: self.undercount + median, ..Self::new(self.limit_bytes) };
        for (term, count) in self.iter().filter(|&(_, count)| count > median) {
            kept.terms.intern(fingerprint64(term), term);
            kept.counts.push(count - median);
        }
        *self = kept;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn counts_are_exact_within_the_limit(left in proptest::collection::vec("[a-d]{0,3}", 0..100), right in proptest::collection::vec("[a-d]{0,3}", 0..100)) {
            let mut plain: BTreeMap<&str, u64> = BTreeMap::new();
            left.iter().chain(&right).for_each(|term| *plain.entry(term).or_default() += 1);
            let mut expected: Vec<(&[u8], u64)> = plain.iter().map(|(term, &count)| (term.as_bytes(), count)).collect();
            expected.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
            let mut counts = TermCounts::new(usize::MAX);
            left.iter().for_each(|term| counts.add(term.as_bytes()));
            let mut other = TermCounts::new(usize::MAX);
            right.iter().for_each(|term| other.add(term.as_bytes()));
            counts.merge(&other);
            prop_assert_eq!(counts.by_count(), expected);
            prop_assert_eq!(counts.undercount(), 0);
        }
    }

    #[test]
    fn beyond_the_limit_frequent_terms_stay_and_the_error_is_bounded() {
        const LIMIT: usize = 20_000;
        let mut counts = TermCounts::new(LIMIT);
        let mut total = 0;
        for round in 0..20_000_u64 {
            // Eight frequent terms make up half of all values, terms that occur once the other half.
            counts.add(format!("common {}", round % 8).as_bytes());
            counts.add(format!("rare {round}").as_bytes());
            assert!(counts.memory_bytes() <= LIMIT);
            total += 2;
        }
        assert!(counts.undercount() > 0 && counts.undercount() < total / 20);
        let sorted = counts.by_count();
        for (term, count) in &sorted[..8] {
            assert!(term.starts_with(b"common"));
            assert!(*count <= 2500 && count + counts.undercount() >= 2500);
        }
    }
}
