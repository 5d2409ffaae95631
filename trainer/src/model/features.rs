//! Finds features by name in a batch's schema.

use millstream_backend::IdColumn;
use millstream_batch::BatchSchema;

use crate::model::error::ModelError;

/// Minimum similarity of a suggested name; 1 means equal.
const LIKENESS: f64 = 0.6;

/// A list of features, resolved.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Features {
    /// The id features, in the list's order.
    pub(crate) ids: Vec<IdFeatureColumn>,
    /// Dense columns, in the list's order; those of a vector in its order.
    pub(crate) dense: Vec<usize>,
}

/// An id feature.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct IdFeatureColumn {
    pub(crate) name: String,
    pub(crate) column: IdColumn,
    pub(crate) cardinality: usize,
}

impl Features {
    /// Finds `names`, the list at `key`, in `schema`.
    pub(crate) fn resolve(key: &str, names: &[String], schema: &BatchSchema) -> Result<Self, ModelError> {
        let mut features = Self::default();
        for (number, name) in names.iter().enumerate() {
            if names[..number].contains(name) {
                return Err(ModelError::RepeatedFeature { key: key.to_owned(), feature: name.clone() });
            }
            let id = |column, cardinality: u32| IdFeatureColumn {
                name: name.clone(),
                column,
                cardinality: cardinality as usize,
            };
            let numbers = schema.dense.iter().enumerate();
            let numbers = numbers.filter(|(_, column)| BatchSchema::feature_of(column) == name);
            let known = features.dense.len();
            features.dense.extend(numbers.map(|(place, _)| place));
            if features.dense.len() > known {
                continue;
            }
            if let Some(place) = schema.ids.iter().position(|feature| feature.name == *name) {
                features.ids.push(id(IdColumn::Single(place), schema.ids[place].cardinality));
            } else if let Some(place) = schema.ragged.iter().position(|feature| feature.name == *name) {
                features.ids.push(id(IdColumn::Ragged(place), schema.ragged[place].cardinality));
            } else {
                let (key, feature) = (key.to_owned(), name.clone());
                return Err(ModelError::UnknownFeature { key, feature, nearest: nearest(name, schema) });
            }
        }
        Ok(features)
    }
}

fn nearest(name: &str, schema: &BatchSchema) -> Option<String> {
    let ids = schema.ids.iter().map(|feature| &feature.name);
    let ragged = schema.ragged.iter().map(|feature| &feature.name);
    let scored = schema.dense.iter().chain(ids).chain(ragged);
    let scored = scored.map(|candidate| (strsim::normalized_damerau_levenshtein(name, candidate), candidate));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 >= LIKENESS).then(|| best.1.clone())
}
