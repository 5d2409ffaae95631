//! The scored rows of a batch of which each worker has a part.
//!
//! A row is a number of words: its scores, its labels, its weight if rows are weighted, and the id of its group if rows are
//! grouped. Workers send each other all rows of their parts, `[columns, rows]`, so that each has the rows of the whole
//! batch in their order, and computes the same metrics as one worker would. Losses that compare rows get them in the same way,
//! without scores.

use millstream_backend::collective::Buffer;
use millstream_batch::BatchRef;

use crate::metrics::ScoredBatch;

/// What the words of a row are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowFormat {
    /// Number of scores.
    pub(crate) scores: usize,
    /// Number of labels.
    pub(crate) labels: usize,
    /// Whether rows have weights.
    pub(crate) weighted: bool,
    /// The single-valued feature whose ids are groups, if there are groups.
    pub(crate) group: Option<usize>,
}

/// The scored rows of a batch.
pub(crate) struct ScoredRows {
    format: RowFormat,
    rows: usize,
    /// Scores, labels and weights, `[columns, rows]`.
    numbers: Vec<f32>,
    groups: Vec<u32>,
}

impl RowFormat {
    /// Number of scores, labels and weights of a row.
    fn numbers(self) -> usize {
        self.scores + self.labels + usize::from(self.weighted)
    }

    fn words(self) -> usize {
        self.numbers() + usize::from(self.group.is_some())
    }

    /// The words of the rows of `batch`, which have these `scores`, `[scores, rows]`.
    pub(crate) fn encode(self, scores: &[f32], batch: BatchRef<'_>) -> Vec<u32> {
        let labels = (0..self.labels).flat_map(|label| batch.labels(label));
        let weights = batch.weights().unwrap_or_default();
        let numbers = scores.iter().chain(labels).chain(weights).map(|number| number.to_bits());
        let groups = self.group.map_or(&[][..], |feature| batch.ids(feature));
        numbers.chain(groups.iter().copied()).collect()
    }

    /// The rows of all parts of a batch, in order; `None` if these are not rows of this format.
    pub(crate) fn join(self, parts: &[Buffer<u32>]) -> Option<ScoredRows> {
        if parts.iter().any(|part| !part.len().is_multiple_of(self.words())) {
            return None;
        }
        let column = |column: usize| {
            parts.iter().flat_map(move |part| {
                let rows = part.len() / self.words();
                part[column * rows..][..rows].iter().copied()
            })
        };
        let numbers: Vec<f32> = (0..self.numbers()).flat_map(column).map(f32::from_bits).collect();
        let groups: Vec<u32> = (self.numbers()..self.words()).flat_map(column).collect();
        Some(ScoredRows { format: self, rows: numbers.len() / self.numbers(), numbers, groups })
    }
}

impl ScoredRows {
    /// The rows with the scores and the values of label `label`.
    pub(crate) fn of_label(&self, label: usize) -> ScoredBatch<'_> {
        let RowFormat { scores, labels, weighted, group } = self.format;
        let columns = |first: usize, count: usize| &self.numbers[first * self.rows..][..count * self.rows];
        // With classes, there is one label with a score per class.
        let each = scores / labels;
        ScoredBatch {
            scores: columns(label * each, each),
            labels: columns(scores + label, 1),
            weights: weighted.then(|| columns(scores + labels, 1)),
            groups: group.map(|_| &self.groups[..]),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn parts_are_joined_in_order_by_column() {
        let format = RowFormat { scores: 2, labels: 2, weighted: true, group: Some(0) };
        let part = |rows: std::ops::Range<u32>| {
            let columns = (0..5).flat_map(|column| {
                rows.clone().map(move |row| (100.0 * column as f32 + row as f32).to_bits())
            });
            let words: Vec<u32> = columns.chain(rows.clone().map(|row| 7 + row)).collect();
            Buffer::from(&words[..])
        };
        let rows = format.join(&[part(0..3), part(3..3), part(3..4)]).unwrap();
        let second = rows.of_label(1);
        assert_eq!(second.scores, [100.0, 101.0, 102.0, 103.0]);
        assert_eq!(second.labels, [300.0, 301.0, 302.0, 303.0]);
        assert_eq!(second.weights.unwrap(), [400.0, 401.0, 402.0, 403.0]);
        assert_eq!(second.groups.unwrap(), [7, 8, 9, 10]);
        let none = format.join(&[part(0..0)]).unwrap();
        assert!(none.of_label(0).labels.is_empty());
        assert!(format.join(&[part(0..1), Buffer::from(&[1_u32][..])]).is_none());

        let of_classes = RowFormat { scores: 3, labels: 1, weighted: false, group: None };
        let words = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 2.0].map(f32::to_bits);
        let rows = of_classes.join(&[Buffer::from(&words[..])]).unwrap();
        let batch = rows.of_label(0);
        assert_eq!((batch.scores, batch.labels), (&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0][..], &[0.0, 2.0][..]));
        assert!(batch.weights.is_none() && batch.groups.is_none());
    }
}
