//! Maps a job's ids to those of an earlier job, to carry learned embedding rows over (warm start).
//!
//! Both jobs must have a feature of the same name and kind. Vocabulary ids are positions in a term list
//! that each job may have learned from different data, so they are matched by term. A term unknown to
//! the earlier job maps to its out-of-vocabulary bucket there, the best available estimate for it.

use super::resolve::vocabulary;
use super::vocabulary as encoder;
use crate::Error;
use crate::analysis::Analysis;
use crate::spec::{FeatureKind, FeatureSpec};

/// How a feature's ids relate to those of an earlier job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdMapping {
    /// The ids are equal.
    Unchanged,
    /// The earlier id of each current id, if it had one.
    PerId(Vec<Option<u32>>),
    /// The ids are not comparable; holds the reason.
    Incompatible(String),
}

/// A feature with the analysis of its job.
pub type LearnedFeature<'a> = (&'a FeatureSpec, &'a Analysis);

/// Maps the ids of feature `target` to those of the earlier job's feature `source`.
///
/// # Errors
/// An analysis lacks the feature's statistics.
pub fn map_ids(source: LearnedFeature<'_>, target: LearnedFeature<'_>) -> Result<IdMapping, Error> {
    use FeatureKind::{Bucketized, Crossed, Hashed, Identity, Numeric, Vector, Vocabulary};
    let same = |is_same: bool, what: &str| {
        Ok(if is_same {
            IdMapping::Unchanged
        } else {
            IdMapping::Incompatible(format!("has different {what} in the source"))
        })
    };
    match (&source.0.kind, &target.0.kind) {
        (Numeric { .. }, Numeric { .. }) | (Vector { .. }, Vector { .. }) => Ok(IdMapping::Unchanged),
        (Bucketized { boundaries: source }, Bucketized { boundaries: target }) => {
            same(source == target, "boundaries")
        }
        (Hashed { buckets: source }, Hashed { buckets: target }) => same(source == target, "`buckets`"),
        (
            Crossed { buckets: source_buckets, boundaries: source_boundaries },
            Crossed { buckets: target_buckets, boundaries: target_boundaries },
        ) => {
            let columns = same(source.0.columns == target.0.columns, "columns")?;
            if columns != IdMapping::Unchanged {
                return Ok(columns);
            }
            same(
                source_buckets == target_buckets && source_boundaries == target_boundaries,
                "`buckets` or boundaries",
            )
        }
        (Identity { buckets: source, .. }, Identity { buckets: target, .. }) if source == target => {
            Ok(IdMapping::Unchanged)
        }
        (Identity { buckets: source, .. }, Identity { buckets: target, .. }) => {
            let ids = (0..*target).map(|id| (id < *source).then_some(id));
            Ok(IdMapping::PerId(ids.chain([Some(*source)]).collect()))
        }
        (
            Vocabulary { terms: source_terms, oov_buckets: source_buckets },
            Vocabulary { terms: target_terms, oov_buckets: target_buckets },
        ) => {
            let source = vocabulary(&source.0.name, source_terms, *source_buckets, source.1)?;
            let target = vocabulary(&target.0.name, target_terms, *target_buckets, target.1)?;
            Ok(map_by_term(&source, &target))
        }
        _ => Ok(IdMapping::Incompatible("is of a different kind in the source".to_owned())),
    }
}

fn map_by_term(source: &encoder::Vocabulary, target: &encoder::Vocabulary) -> IdMapping {
    let of_terms = target.terms().map(|term| Some(source.id(term)));
    let (buckets, known) = (target.oov_buckets(), target.oov_buckets() == source.oov_buckets());
    let of_buckets = (0..buckets).map(|bucket| known.then_some(source.unknown() + bucket));
    let ids: Vec<_> = of_terms.chain(of_buckets).chain([Some(source.missing())]).collect();
    let is_same =
        ids.len() == source.cardinality() && ids.iter().zip(0..).all(|(&id, place)| id == Some(place));
    if is_same { IdMapping::Unchanged } else { IdMapping::PerId(ids) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::fingerprint::{fingerprint64, reduce};
    use crate::spec::{OutOfRange, Terms};

    fn feature(kind: FeatureKind) -> FeatureSpec {
        FeatureSpec { name: "f".into(), columns: vec!["f".into()], kind, maximum: None, weights: None }
    }

    fn mapping(source: FeatureKind, target: FeatureKind) -> IdMapping {
        let analysis = Analysis::default();
        map_ids((&feature(source), &analysis), (&feature(target), &analysis)).unwrap()
    }

    fn terms(terms: &[&str], oov_buckets: u32) -> FeatureKind {
        let terms = Terms::Given(terms.iter().map(|&term| term.to_owned()).collect());
        FeatureKind::Vocabulary { terms, oov_buckets }
    }

    #[test]
    fn vocabulary_ids_map_by_term() {
        let bucket = |term: &str| Some(2 + reduce(fingerprint64(term.as_bytes()), 3));
        let found = mapping(terms(&["red", "blue"], 3), terms(&["blue", "green", "red"], 3));
        let ids = vec![Some(1), bucket("green"), Some(0), Some(2), Some(3), Some(4), Some(5)];
        assert_eq!(found, IdMapping::PerId(ids));
        // A different number of buckets distributes unknown terms differently.
        let found = mapping(terms(&["red", "blue"], 3), terms(&["red"], 1));
        assert_eq!(found, IdMapping::PerId(vec![Some(0), None, Some(5)]));
        assert_eq!(mapping(terms(&["red", "blue"], 3), terms(&["red", "blue"], 3)), IdMapping::Unchanged);
    }

    #[test]
    fn identity_ids_map_to_themselves() {
        let identity = |buckets| FeatureKind::Identity { buckets, out_of_range: OutOfRange::Error };
        assert_eq!(mapping(identity(3), identity(3)), IdMapping::Unchanged);
        let grown = IdMapping::PerId(vec![Some(0), Some(1), None, None, Some(2)]);
        assert_eq!(mapping(identity(2), identity(4)), grown);
        assert_eq!(mapping(identity(4), identity(1)), IdMapping::PerId(vec![Some(0), Some(4)]));
    }

    #[test]
    fn incompatible_features_do_not_map() {
        let incompatible = |source, target| matches!(mapping(source, target), IdMapping::Incompatible(_));
        let hashed = |buckets| FeatureKind::Hashed { buckets };
        assert_eq!(mapping(hashed(9), hashed(9)), IdMapping::Unchanged);
        assert!(incompatible(hashed(9), hashed(10)));
        assert!(incompatible(hashed(3), terms(&["a"], 1)));
        let bucketized = |boundaries: &[f64]| FeatureKind::Bucketized { boundaries: boundaries.to_vec() };
        assert_eq!(mapping(bucketized(&[1.0]), bucketized(&[1.0])), IdMapping::Unchanged);
        assert!(incompatible(bucketized(&[1.0]), bucketized(&[2.0])));
    }

    #[test]
    fn crosses_of_different_columns_do_not_map() {
        let analysis = Analysis::default();
        let crossed = |columns: &[&str]| FeatureSpec {
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            ..feature(FeatureKind::Crossed { buckets: 10, boundaries: Vec::new() })
        };
        let mapping =
            |source: &[&str]| map_ids((&crossed(source), &analysis), (&crossed(&["a", "b"]), &analysis));
        assert_eq!(mapping(&["a", "b"]).unwrap(), IdMapping::Unchanged);
        assert!(matches!(mapping(&["b", "a"]).unwrap(), IdMapping::Incompatible(_)));
    }
}
