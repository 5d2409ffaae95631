//! Vocabulary features: the position of a term in a list, as an id; unknown terms share the buckets after
//! the list, chosen by their fingerprint, as TensorFlow's `StaticVocabularyTable` does.

use arrow_array::Array;

use super::column::{Missing, texts};
use crate::Error;
use crate::fingerprint::{fingerprint64, reduce};
use crate::terms::TermTable;

/// A list of terms and the buckets after it.
#[derive(Clone, Debug)]
pub(crate) struct Vocabulary {
    terms: TermTable,
    oov_buckets: u32,
}

impl Vocabulary {
    /// # Errors
    /// When a term is there twice, or there is no bucket for unknown terms.
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
                    "feature `{feature}`: term `{term}` is in the vocabulary twice"
                )));
            }
        }
        Ok(Self { terms: table, oov_buckets })
    }

    /// Terms, buckets for unknown ones, and missing.
    pub(crate) fn cardinality(&self) -> usize {
        self.terms.len() + self.oov_buckets as usize + 1
    }

    /// Buckets for unknown terms.
    pub(crate) fn oov_buckets(&self) -> u32 {
        self.oov_buckets
    }

    /// The terms, in the order of their ids.
    pub(crate) fn terms(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.unknown()).map(|id| self.terms.term(id))
    }

    /// The first bucket's id. Ids are below the cardinality, which is a u32.
    pub(crate) fn unknown(&self) -> u32 {
        self.terms.len() as u32
    }

    /// What has no value.
    pub(crate) fn missing(&self) -> u32 {
        self.unknown() + self.oov_buckets
    }

    /// A term's id.
    #[inline]
    pub(crate) fn id(&self, term: &[u8]) -> u32 {
        let fingerprint = fingerprint64(term);
        let found = self.terms.find(fingerprint, term);
        found.unwrap_or_else(|| self.unknown() + reduce(fingerprint, self.oov_buckets))
    }

    /// Each element's id.
    pub(crate) fn codes(&self, leaf: &dyn Array, missing: &Missing) -> Option<Vec<u32>> {
        texts(leaf, missing, self.missing(), |text| self.id(text))
    }
}
