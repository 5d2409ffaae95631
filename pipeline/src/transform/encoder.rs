//! The encoding of a feature's values, by kind.

use arrow_array::Array;

use super::A_NUMBER;
use super::bucketized::Bucketized;
use super::column::{Missing, NUMBERS, TEXTS};
use super::crossed::Crossed;
use super::fault::Problem;
use super::hashed::Hashed;
use super::identity::Identity;
use super::numeric::Scaling;
use super::vector::Vector;
use super::vocabulary::Vocabulary;

/// A feature's kind, with its learned statistics.
#[derive(Clone, Debug)]
pub(super) enum Encoder {
    Numeric(Scaling),
    Vector(Vector),
    Bucketized(Bucketized),
    Vocabulary(Vocabulary),
    Hashed(Hashed),
    Identity(Identity),
    Crossed(Crossed),
}

impl Encoder {
    /// Each element's id, for single-column kinds, in the buffer `spare` where possible. `None` when the
    /// column's type is unsupported.
    pub(super) fn codes(&self, leaf: &dyn Array, missing: &Missing, spare: Vec<u32>) -> Option<Vec<u32>> {
        match self {
            Self::Bucketized(bucketized) => bucketized.codes(leaf, missing, spare),
            Self::Vocabulary(vocabulary) => vocabulary.codes(leaf, missing),
            Self::Hashed(hashed) => hashed.codes(leaf, missing, spare),
            Self::Identity(identity) => identity.codes(leaf, missing, spare),
            Self::Numeric(_) | Self::Vector(_) | Self::Crossed(_) => None,
        }
    }

    /// The accepted column contents, for error messages.
    pub(super) fn expected(&self) -> &'static str {
        match self {
            Self::Numeric(_) | Self::Vector(_) | Self::Bucketized(_) | Self::Identity(_) => NUMBERS,
            Self::Vocabulary(_) | Self::Hashed(_) | Self::Crossed(_) => TEXTS,
        }
    }

    /// Describes an element that has no id.
    pub(super) fn problem(&self, element: usize) -> Problem {
        match self {
            Self::Identity(identity) => Problem::NoId { element, buckets: identity.buckets() },
            _ => Problem::Unusable { element, expected: A_NUMBER },
        }
    }
}
