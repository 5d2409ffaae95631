//! Ids of one job in another's: what weights that were learned under the one mean under the other.
//!
//! Both jobs have a feature of the same name. Its kinds must be alike for ids to mean the same. Those of a
//! vocabulary are places in a list, which each job may have learned from other data; so they are carried by
//! the terms themselves. A term that the earlier job did not know had the id of a bucket there, and that is
//! the id which is carried: what was learned for all unknown terms is the best that is known of it.

use super::resolve::vocabulary;
use super::vocabulary as encoder;
use crate::Error;
use crate::analysis::Analysis;
use crate::spec::{FeatureKind, FeatureSpec};

/// What the ids of a feature were in an earlier job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CarriedIds {
    /// The same.
    Same,
    /// Each id's own there, if it had any.
    Each(Vec<Option<u32>>),
    /// Ids mean something else: why.
    Unlike(String),
}

/// A feature of a job, with what the job learned.
pub type Learned<'a> = (&'a FeatureSpec, &'a Analysis);

/// What ids of the feature `now` were in the earlier job's feature `then`.
///
/// # Errors
/// When an analysis is not of its feature.
pub fn carried_ids(then: Learned<'_>, now: Learned<'_>) -> Result<CarriedIds, Error> {
    use FeatureKind::{Bucketized, Crossed, Hashed, Identity, Numeric, Vocabulary};
    let same = |is_same: bool, what: &str| {
        Ok(if is_same { CarriedIds::Same } else { CarriedIds::Unlike(format!("has other {what} there")) })
    };
    match (&then.0.kind, &now.0.kind) {
        (Numeric { .. }, Numeric { .. }) => Ok(CarriedIds::Same),
        (Bucketized { boundaries: then }, Bucketized { boundaries: now }) => same(then == now, "boundaries"),
        (Hashed { buckets: then }, Hashed { buckets: now }) => same(then == now, "`buckets`"),
        (
            Crossed { buckets: then_buckets, boundaries: then_boundaries },
            Crossed { buckets: now_buckets, boundaries: now_boundaries },
        ) => {
            let columns = same(then.0.columns == now.0.columns, "columns")?;
            if columns != CarriedIds::Same {
                return Ok(columns);
            }
            same(then_buckets == now_buckets && then_boundaries == now_boundaries, "`buckets` or boundaries")
        }
        (Identity { buckets: then, .. }, Identity { buckets: now, .. }) if then == now => {
            Ok(CarriedIds::Same)
        }
        (Identity { buckets: then, .. }, Identity { buckets: now, .. }) => {
            let ids = (0..*now).map(|id| (id < *then).then_some(id));
            Ok(CarriedIds::Each(ids.chain([Some(*then)]).collect()))
        }
        (
            Vocabulary { terms: then_terms, oov_buckets: then_buckets },
            Vocabulary { terms: now_terms, oov_buckets: now_buckets },
        ) => {
            let then = vocabulary(&then.0.name, then_terms, *then_buckets, then.1)?;
            let now = vocabulary(&now.0.name, now_terms, *now_buckets, now.1)?;
            Ok(by_terms(&then, &now))
        }
        _ => Ok(CarriedIds::Unlike("is of another kind there".to_owned())),
    }
}

fn by_terms(then: &encoder::Vocabulary, now: &encoder::Vocabulary) -> CarriedIds {
    let of_terms = now.terms().map(|term| Some(then.id(term)));
    let (buckets, known) = (now.oov_buckets(), now.oov_buckets() == then.oov_buckets());
    let of_buckets = (0..buckets).map(|bucket| known.then_some(then.unknown() + bucket));
    let ids: Vec<_> = of_terms.chain(of_buckets).chain([Some(then.missing())]).collect();
    let is_same =
        ids.len() == then.cardinality() && ids.iter().zip(0..).all(|(&id, place)| id == Some(place));
    if is_same { CarriedIds::Same } else { CarriedIds::Each(ids) }
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

    fn carried(then: FeatureKind, now: FeatureKind) -> CarriedIds {
        let analysis = Analysis::default();
        carried_ids((&feature(then), &analysis), (&feature(now), &analysis)).unwrap()
    }

    fn terms(terms: &[&str], oov_buckets: u32) -> FeatureKind {
        let terms = Terms::Given(terms.iter().map(|&term| term.to_owned()).collect());
        FeatureKind::Vocabulary { terms, oov_buckets }
    }

    #[test]
    fn terms_are_found_wherever_they_were() {
        let bucket = |term: &str| Some(2 + reduce(fingerprint64(term.as_bytes()), 3));
        let found = carried(terms(&["red", "blue"], 3), terms(&["blue", "green", "red"], 3));
        let ids = vec![Some(1), bucket("green"), Some(0), Some(2), Some(3), Some(4), Some(5)];
        assert_eq!(found, CarriedIds::Each(ids));
        // Another number of buckets deals unknown terms otherwise.
        let found = carried(terms(&["red", "blue"], 3), terms(&["red"], 1));
        assert_eq!(found, CarriedIds::Each(vec![Some(0), None, Some(5)]));
        assert_eq!(carried(terms(&["red", "blue"], 3), terms(&["red", "blue"], 3)), CarriedIds::Same);
    }

    #[test]
    fn numbers_that_are_ids_keep_them() {
        let identity = |buckets| FeatureKind::Identity { buckets, out_of_range: OutOfRange::Error };
        assert_eq!(carried(identity(3), identity(3)), CarriedIds::Same);
        let grown = CarriedIds::Each(vec![Some(0), Some(1), None, None, Some(2)]);
        assert_eq!(carried(identity(2), identity(4)), grown);
        assert_eq!(carried(identity(4), identity(1)), CarriedIds::Each(vec![Some(0), Some(4)]));
    }

    #[test]
    fn what_means_something_else_is_not_carried() {
        let unlike = |then, now| matches!(carried(then, now), CarriedIds::Unlike(_));
        let hashed = |buckets| FeatureKind::Hashed { buckets };
        assert_eq!(carried(hashed(9), hashed(9)), CarriedIds::Same);
        assert!(unlike(hashed(9), hashed(10)));
        assert!(unlike(hashed(3), terms(&["a"], 1)));
        let bucketized = |boundaries: &[f64]| FeatureKind::Bucketized { boundaries: boundaries.to_vec() };
        assert_eq!(carried(bucketized(&[1.0]), bucketized(&[1.0])), CarriedIds::Same);
        assert!(unlike(bucketized(&[1.0]), bucketized(&[2.0])));
    }

    #[test]
    fn crosses_of_other_columns_are_others() {
        let analysis = Analysis::default();
        let crossed = |columns: &[&str]| FeatureSpec {
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            ..feature(FeatureKind::Crossed { buckets: 10, boundaries: Vec::new() })
        };
        let carried =
            |then: &[&str]| carried_ids((&crossed(then), &analysis), (&crossed(&["a", "b"]), &analysis));
        assert_eq!(carried(&["a", "b"]).unwrap(), CarriedIds::Same);
        assert!(matches!(carried(&["b", "a"]).unwrap(), CarriedIds::Unlike(_)));
    }
}
