//! Crossed features: several columns' values together, hashed to one id.
//!
//! Ids agree with `tf.sparse.cross_hashed` with its own default key over string tensors; integer columns
//! are crossed by their decimal text, which is `cross_hashed` over `tf.as_string` of them, so that an id
//! does not depend on whether the data came from CSV or Parquet. (Given integer tensors, TensorFlow takes
//! the integer itself for its fingerprint.)
//!
//! A column may be bucketized first; then it is the bucket that is crossed, by its number's decimal text.
//!
//! Lists are crossed like TensorFlow's: every combination of one value from each, the last column's value
//! changing fastest.

use arrow_array::Array;

use super::bucketized::Bucketized;
use super::column::{Elements, Missing, Single, integers, texts};
use super::{INVALID, integer};
use crate::fingerprint::{CROSS_KEY, Modulus, cat64, fingerprint64};

/// What a cross makes ids of.
#[derive(Clone, Debug)]
pub(crate) struct Crossed {
    buckets: u32,
    modulus: Modulus,
    /// Of each column that is bucketized before it is crossed, by its place.
    bucketized: Vec<Option<Bucketized>>,
}

/// One column of a cross: its elements and their fingerprints, `None` for absent ones.
pub(crate) struct Part {
    pub(crate) elements: Elements,
    pub(crate) fingerprints: Vec<Option<u64>>,
}

/// An element that no bucket is for.
pub(crate) struct Unusable(pub(crate) usize);

/// A row that holds several values of a column where one is wanted.
pub(crate) struct SeveralValues {
    /// Which of the cross's columns.
    pub(crate) part: usize,
    /// How many.
    pub(crate) count: usize,
}

impl Crossed {
    /// `boundaries` are those of each column, empty ones where the values themselves are crossed.
    ///
    /// # Panics
    /// When there are no buckets.
    pub(crate) fn new(buckets: u32, boundaries: &[Vec<f64>]) -> Self {
        let bucketized = boundaries.iter().map(|of| (!of.is_empty()).then(|| Bucketized::new(of)));
        Self { buckets, modulus: Modulus::new(buckets), bucketized: bucketized.collect() }
    }

    /// Buckets, and missing.
    pub(crate) fn cardinality(&self) -> usize {
        self.buckets as usize + 1
    }

    /// Whether the cross's column `part` must hold numbers.
    pub(crate) fn wants_numbers(&self, part: usize) -> bool {
        self.of_part(part).is_some()
    }

    fn of_part(&self, part: usize) -> Option<&Bucketized> {
        self.bucketized.get(part).and_then(Option::as_ref)
    }

    /// The fingerprints of column `part`; `None` when its type is of no use. Elements that no bucket is for
    /// are noted, and are like absent ones.
    pub(crate) fn fingerprints(
        &self,
        part: usize,
        leaf: &dyn Array,
        missing: &Missing,
        unusable: &mut Vec<Unusable>,
    ) -> Option<Vec<Option<u64>>> {
        let Some(bucketized) = self.of_part(part) else { return plain_fingerprints(leaf, missing) };
        let codes = bucketized.codes(leaf, missing, Vec::new())?;
        // The last id is that of missing values.
        let known: Vec<i64> = (0..bucketized.cardinality() as i64 - 1).collect();
        let fingerprints = integer::fingerprints(&known);
        for (element, _) in codes.iter().enumerate().filter(|&(_, &code)| code == INVALID) {
            unusable.push(Unusable(element));
        }
        Some(codes.into_iter().map(|code| fingerprints.get(code as usize).copied()).collect())
    }

    /// The id of row `row` where each part has one value; missing when any part is.
    pub(crate) fn code(&self, parts: &[Part], row: usize) -> Result<u32, SeveralValues> {
        let mut crossed = Some(CROSS_KEY);
        for (index, part) in parts.iter().enumerate() {
            let fingerprint = match part.elements.single(row) {
                Single::One(element) => part.fingerprints[element],
                Single::Absent => None,
                Single::Several(count) => return Err(SeveralValues { part: index, count }),
            };
            crossed = crossed.zip(fingerprint).map(|(crossed, fingerprint)| cat64(crossed, fingerprint));
        }
        Ok(crossed.map_or(self.buckets, |crossed| self.modulus.reduce(crossed)))
    }

    /// Appends the ids of all combinations of row `row`, at most `maximum`. True when there were more.
    pub(crate) fn product(&self, parts: &[Part], row: usize, maximum: usize, ids: &mut Vec<u32>) -> bool {
        let present = |part: &Part| part.fingerprints[part.elements.of_row(row)].iter().flatten().count();
        let combinations = parts.iter().map(present).fold(1, usize::saturating_mul);
        let end = ids.len() + combinations.min(maximum);
        self.extend(parts, row, CROSS_KEY, end, ids);
        combinations > maximum
    }

    /// Appends the combinations that start with what `crossed` was made of, until `ids` is `end` long.
    fn extend(&self, parts: &[Part], row: usize, crossed: u64, end: usize, ids: &mut Vec<u32>) {
        let Some((part, rest)) = parts.split_first() else {
            ids.push(self.modulus.reduce(crossed));
            return;
        };
        for &fingerprint in part.fingerprints[part.elements.of_row(row)].iter().flatten() {
            if ids.len() == end {
                return;
            }
            self.extend(rest, row, cat64(crossed, fingerprint), end, ids);
        }
    }
}

fn plain_fingerprints(leaf: &dyn Array, missing: &Missing) -> Option<Vec<Option<u64>>> {
    if !missing.has_numbers()
        && let Some(values) = integers(leaf)
    {
        let fingerprints = integer::fingerprints(&values).into_iter().enumerate();
        return Some(
            fingerprints.map(|(at, fingerprint)| leaf.is_valid(at).then_some(fingerprint)).collect(),
        );
    }
    texts(leaf, missing, None, |text| Some(fingerprint64(text)))
}
