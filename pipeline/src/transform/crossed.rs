//! Crossed features: hashes the values of several columns to one id.
//!
//! Ids agree with `tf.sparse.cross_hashed` with its default key over string tensors. Integer columns are
//! crossed by their decimal text (`cross_hashed` over `tf.as_string`), so that an id does not depend on
//! whether the data came from CSV or Parquet. (For integer tensors, TensorFlow uses the integer itself as
//! the fingerprint.)
//!
//! A column may be bucketized first; its bucket number is then crossed, as decimal text.
//!
//! Lists are crossed as in TensorFlow: every combination of one value from each list, the last column
//! varying fastest.

use arrow_array::Array;
use millstream_format::integers::integers;

use super::bucketized::Bucketized;
use super::column::{Elements, Missing, Single, texts};
use super::{INVALID, integer};
use crate::fingerprint::{CROSS_KEY, Modulus, cat64, fingerprint64};

/// The parameters of a cross.
#[derive(Clone, Debug)]
pub(crate) struct Crossed {
    buckets: u32,
    modulus: Modulus,
    /// By column; `None` for a column that is crossed by value.
    bucketized: Vec<Option<Bucketized>>,
}

/// One column of a cross: its elements and their fingerprints, `None` for absent elements.
pub(crate) struct Part {
    pub(crate) elements: Elements,
    pub(crate) fingerprints: Vec<Option<u64>>,
}

/// The index of an element that falls in no bucket.
pub(crate) struct Unusable(pub(crate) usize);

/// A row has several values in a column that requires one.
pub(crate) struct SeveralValues {
    /// The index of the column within the cross.
    pub(crate) part: usize,
    /// The number of values.
    pub(crate) count: usize,
}

impl Crossed {
    /// `boundaries` holds one list per column, empty where the values themselves are crossed.
    ///
    /// # Panics
    /// If `buckets` is 0.
    pub(crate) fn new(buckets: u32, boundaries: &[Vec<f64>]) -> Self {
        let bucketized = boundaries.iter().map(|of| (!of.is_empty()).then(|| Bucketized::new(of)));
        Self { buckets, modulus: Modulus::new(buckets), bucketized: bucketized.collect() }
    }

    /// The buckets plus one id for missing.
    pub(crate) fn cardinality(&self) -> usize {
        self.buckets as usize + 1
    }

    /// Whether column `part` must hold numbers.
    pub(crate) fn wants_numbers(&self, part: usize) -> bool {
        self.bucketized_part(part).is_some()
    }

    fn bucketized_part(&self, part: usize) -> Option<&Bucketized> {
        self.bucketized.get(part).and_then(Option::as_ref)
    }

    /// The fingerprints of column `part`; `None` when its type is unsupported. Elements that fall in no
    /// bucket are appended to `unusable` and treated as absent.
    pub(crate) fn fingerprints(
        &self,
        part: usize,
        leaf: &dyn Array,
        missing: &Missing,
        unusable: &mut Vec<Unusable>,
    ) -> Option<Vec<Option<u64>>> {
        let Some(bucketized) = self.bucketized_part(part) else { return plain_fingerprints(leaf, missing) };
        let codes = bucketized.codes(leaf, missing, Vec::new())?;
        // The last id means missing.
        let known: Vec<i64> = (0..bucketized.cardinality() as i64 - 1).collect();
        let fingerprints = integer::fingerprints(&known);
        for (element, _) in codes.iter().enumerate().filter(|&(_, &code)| code == INVALID) {
            unusable.push(Unusable(element));
        }
        Some(codes.into_iter().map(|code| fingerprints.get(code as usize).copied()).collect())
    }

    /// The id of `row` for columns with one value per row; the missing id when any value is absent.
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

    /// Appends the ids of all combinations in `row`, at most `maximum`. Returns whether there were more.
    pub(crate) fn product(&self, parts: &[Part], row: usize, maximum: usize, ids: &mut Vec<u32>) -> bool {
        let present = |part: &Part| part.fingerprints[part.elements.of_row(row)].iter().flatten().count();
        let combinations = parts.iter().map(present).fold(1, usize::saturating_mul);
        let end = ids.len() + combinations.min(maximum);
        self.extend(parts, row, CROSS_KEY, end, ids);
        combinations > maximum
    }

    /// Appends all combinations that extend the prefix `crossed`, until `ids` has `end` elements.
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
        let fingerprints = integer::fingerprints(values.values()).into_iter().enumerate();
        return Some(
            fingerprints.map(|(at, fingerprint)| leaf.is_valid(at).then_some(fingerprint)).collect(),
        );
    }
    texts(leaf, missing, None, |text| Some(fingerprint64(text)))
}
