//! Vocabulary features: the position of a term in a list. Unknown terms share the out-of-vocabulary buckets
//! after the list, selected by fingerprint, as in TensorFlow's `StaticVocabularyTable`.

use arrow_array::Array;

use super::column::{Missing, texts};
use crate::Error;
use crate::fingerprint::{fingerprint64, reduce};
use crate::terms::TermTable;

/// A term list and the number of out-of-vocabulary (OOV) buckets after it.
#[derive(Clone, Debug)]
pub(crate) struct Vocabulary {
    terms: TermTable,
    oov_buckets: u32,
}

impl Vocabulary {
    /// # Errors
    /// A term occurs twice, or `oov_buckets` is 0.
    pub(crate) fn new<'a>(
        feature: &str,
        terms: impl Iterator<Item = &'a [u8]>,
        oov_buckets: u32,
    ) -> Result<Self, Error> {
        if oov_buckets == 0 {
            return Err(Error::Invalid(format!("feature `{feature}`: `oov_buckets` must be at least 1")));
        }
        let mut table = TermTable::default();
        for (position, term) in terms.enumerate() {
            if table.intern(fingerprint64(term), term) as usize != position {
                let term = String::from_utf8_lossy(term);
                return Err(Error::Invalid(format!(
                    "feature `{feature}`: term `{term}` occurs twice in the vocabulary"
                )));
            }
        }
        Ok(Self { terms: table, oov_buckets })
    }

    /// The terms, the OOV buckets, and one id for missing.
    pub(crate) fn cardinality(&self) -> usize {
        self.terms.len() + self.oov_buckets as usize + 1
    }

    /// The number of OOV buckets.
    pub(crate) fn oov_buckets(&self) -> u32 {
        self.oov_buckets
    }

    /// The terms, in the order of their ids.
    pub(crate) fn terms(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.unknown()).map(|id| self.terms.term(id))
    }

    /// The id of the first OOV bucket. Ids are below the cardinality, which fits in a u32.
    pub(crate) fn unknown(&self) -> u32 {
        self.terms.len() as u32
    }

    /// The id of missing values.
    pub(crate) fn missing(&self) -> u32 {
        self.unknown() + self.oov_buckets
    }

    /// The id of a term, known or not.
    #[inline]
    pub(crate) fn id(&self, term: &[u8]) -> u32 {
        let fingerprint = fingerprint64(term);
        let found = self.terms.find(fingerprint, term);
        found.unwrap_or_else(|| self.unknown() + reduce(fingerprint, self.oov_buckets))
    }

    /// Each element's id. `None` when the column's type is unsupported.
    pub(crate) fn codes(&self, leaf: &dyn Array, missing: &Missing) -> Option<Vec<u32>> {
        texts(leaf, missing, self.missing(), |text| self.id(text))
    }
}
