//! Resolves a job's features and their learned statistics to a [`Transform`].

use millstream_batch::{IdFeature, RaggedFeature};
use millstream_format::{ProjectedColumn, Projection};

use super::bucketized::Bucketized;
use super::column::Missing;
use super::crossed::Crossed;
use super::hashed::Hashed;
use super::identity::Identity;
use super::label::Label;
use super::numeric::Scaling;
use super::typed::TypedColumn;
use super::vector::Vector;
use super::vocabulary::Vocabulary;
use super::{Encoder, Feature, Place, Transform};
use crate::Error;
use crate::analysis::Analysis;
use crate::sequences::Packed;
use crate::spec::{ColumnSpec, FeatureKind, FeatureSpec, LabelSpec, Terms};

impl Transform {
    /// Resolves a job's features. `missing` holds the values that mean "missing", besides null. `analysis`
    /// holds the learned statistics, and may be empty when no feature learns any.
    ///
    /// # Errors
    /// A feature is invalid, or `analysis` belongs to other features.
    pub fn resolve(
        features: &[FeatureSpec],
        label: &LabelSpec,
        missing: &[String],
        analysis: &Analysis,
    ) -> Result<Self, Error> {
        let mut transform = Self {
            projection: Projection::default(),
            feature_columns: 0,
            labels: Vec::new(),
            weight: None,
            label_names: label.names(),
            weighted: label.weight.is_some(),
            features: Vec::with_capacity(features.len()),
            missing: Missing::new(missing),
            dense: Vec::new(),
            ids: Vec::new(),
            ragged: Vec::new(),
            columns: Vec::new(),
            sequences: None,
        };
        for spec in features {
            transform.add(spec, analysis)?;
        }
        transform.feature_columns = transform.projection.columns.len();
        let projection = &mut transform.projection;
        transform.labels = label.all().map(|label| Label::new(label, projection)).collect();
        transform.weight = label.weight.as_ref().map(|weight| project(projection, weight, false));
        Ok(transform)
    }

    /// Resolves the typed columns of a feed, which has no labels and no features. `missing` holds the values that mean
    /// "missing", besides null. If `packed`, all columns have tokens.
    ///
    /// # Errors
    /// There are no columns, or one is invalid.
    pub fn of_columns(
        columns: &[ColumnSpec],
        packed: Option<Packed<'_>>,
        missing: &[String],
    ) -> Result<Self, Error> {
        if columns.is_empty() {
            return Err(Error::Invalid("a feed needs at least one column".to_owned()));
        }
        let mut projection = Projection { numbers_as_values: true, ..Projection::default() };
        let mut typed: Vec<TypedColumn> = Vec::with_capacity(columns.len());
        for spec in columns {
            if typed.iter().any(|other| other.column.name == spec.name) {
                let name = &spec.name;
                return Err(Error::Invalid(format!(
                    "column `{name}`: two columns have this name; rename one"
                )));
            }
            typed.push(TypedColumn::resolve(spec, packed, &mut projection)?);
        }
        TypedColumn::place_narrow(&mut typed);
        Ok(Self {
            feature_columns: projection.columns.len(),
            projection,
            labels: Vec::new(),
            weight: None,
            label_names: Vec::new(),
            weighted: false,
            features: Vec::new(),
            missing: Missing::new(missing),
            dense: Vec::new(),
            ids: Vec::new(),
            ragged: Vec::new(),
            columns: typed,
            sequences: packed.map(|packed| packed.spec.clone()),
        })
    }

    fn add(&mut self, spec: &FeatureSpec, analysis: &Analysis) -> Result<(), Error> {
        check(spec)?;
        let encoder = encoder(spec, analysis)?;
        let place = match (&encoder, spec.maximum) {
            (Encoder::Numeric(_), _) => {
                self.dense.push(spec.name.clone());
                Place::Dense
            }
            (Encoder::Vector(vector), _) => {
                self.dense.extend(vector.columns(&spec.name));
                Place::Dense
            }
            (encoder, None) => {
                self.ids
                    .push(IdFeature { name: spec.name.clone(), cardinality: cardinality(spec, encoder)? });
                Place::Id(self.ids.len() - 1)
            }
            (encoder, Some(maximum)) => {
                let cardinality = cardinality(spec, encoder)?;
                let (name, weighted) = (spec.name.clone(), spec.weights.is_some());
                self.ragged.push(RaggedFeature { name, cardinality, maximum, weighted });
                Place::Ragged(self.ragged.len() - 1)
            }
        };
        let multi = spec.maximum.is_some() || matches!(spec.kind, FeatureKind::Vector { .. });
        let columns = spec.columns.iter().map(|name| project(&mut self.projection, name, multi)).collect();
        let weights = spec.weights.as_ref().map(|name| project(&mut self.projection, name, true));
        self.features.push(Feature { columns, weights, encoder, place });
        Ok(())
    }
}

/// The position of a column in the projection; appends it if it is not included yet.
pub(crate) fn project(projection: &mut Projection, name: &str, multi: bool) -> usize {
    let found = projection.columns.iter().position(|column| column.name == name);
    let position = found.unwrap_or_else(|| {
        projection.columns.push(ProjectedColumn { name: name.to_owned(), multi });
        projection.columns.len() - 1
    });
    projection.columns[position].multi |= multi;
    position
}

fn check(spec: &FeatureSpec) -> Result<(), Error> {
    let refuse = |message: &str| Err(Error::Invalid(format!("feature `{}`: {message}", spec.name)));
    if spec.maximum == Some(0) {
        return refuse("`maximum` must be at least 1");
    }
    if spec.weights.is_some() && spec.maximum.is_none() {
        return refuse("`weights` require a multi-valued feature (set `maximum`)");
    }
    match &spec.kind {
        FeatureKind::Crossed { .. } if spec.weights.is_some() => {
            return refuse("a cross cannot have `weights`");
        }
        FeatureKind::Crossed { .. } if spec.columns.len() < 2 => {
            return refuse("a cross needs at least two columns");
        }
        FeatureKind::Crossed { .. } => {}
        _ if spec.columns.len() != 1 => return refuse("needs exactly one column"),
        _ => {}
    }
    match &spec.kind {
        FeatureKind::Numeric { .. } if spec.maximum.is_some() => {
            refuse("a numeric feature has one value per row and cannot have `maximum`")
        }
        FeatureKind::Vector { .. } if spec.maximum.is_some() => {
            refuse("a vector has a fixed `size` and cannot have `maximum`")
        }
        FeatureKind::Vector { size: 0, .. } => refuse("`size` must be at least 1"),
        FeatureKind::Hashed { buckets: 0 }
        | FeatureKind::Identity { buckets: 0, .. }
        | FeatureKind::Crossed { buckets: 0, .. } => refuse("`buckets` must be at least 1"),
        FeatureKind::Bucketized { boundaries } if !are_valid_boundaries(boundaries) => {
            refuse(INVALID_BOUNDARIES)
        }
        FeatureKind::Crossed { boundaries, .. } if !boundaries.iter().all(|of| are_valid_boundaries(of)) => {
            refuse(INVALID_BOUNDARIES)
        }
        _ => Ok(()),
    }
}

const INVALID_BOUNDARIES: &str = "boundaries must be finite and strictly increasing";

fn are_valid_boundaries(boundaries: &[f64]) -> bool {
    let increasing = boundaries.windows(2).all(|pair| pair[0] < pair[1]);
    increasing && boundaries.iter().all(|boundary| boundary.is_finite())
}

fn encoder(spec: &FeatureSpec, analysis: &Analysis) -> Result<Encoder, Error> {
    Ok(match &spec.kind {
        FeatureKind::Numeric { normalize, missing } => {
            Encoder::Numeric(Scaling::resolve(&spec.columns[0], *normalize, *missing, analysis)?)
        }
        FeatureKind::Vector { size, missing } => {
            Encoder::Vector(Vector::resolve(&spec.columns[0], *size, *missing)?)
        }
        FeatureKind::Bucketized { boundaries } => Encoder::Bucketized(Bucketized::new(boundaries)),
        FeatureKind::Hashed { buckets } => Encoder::Hashed(Hashed::new(*buckets)),
        FeatureKind::Identity { buckets, out_of_range } => {
            Encoder::Identity(Identity::new(*buckets, *out_of_range))
        }
        FeatureKind::Crossed { buckets, boundaries } => Encoder::Crossed(Crossed::new(*buckets, boundaries)),
        FeatureKind::Vocabulary { terms, oov_buckets } => {
            Encoder::Vocabulary(vocabulary(&spec.name, terms, *oov_buckets, analysis)?)
        }
    })
}

/// The vocabulary of `feature`.
///
/// # Errors
/// See [`Transform::resolve`].
pub(super) fn vocabulary(
    feature: &str,
    terms: &Terms,
    oov_buckets: u32,
    analysis: &Analysis,
) -> Result<Vocabulary, Error> {
    match terms {
        Terms::Given(terms) => Vocabulary::new(feature, terms.iter().map(String::as_bytes), oov_buckets),
        Terms::Learned { .. } => {
            let terms = analysis.vocabulary(feature)?.terms.iter().map(|term| term.bytes.as_slice());
            Vocabulary::new(feature, terms, oov_buckets)
        }
    }
}

fn cardinality(spec: &FeatureSpec, encoder: &Encoder) -> Result<u32, Error> {
    let cardinality = match encoder {
        Encoder::Numeric(_) | Encoder::Vector(_) => 0,
        Encoder::Bucketized(bucketized) => bucketized.cardinality(),
        Encoder::Vocabulary(vocabulary) => vocabulary.cardinality(),
        Encoder::Hashed(hashed) => hashed.cardinality(),
        Encoder::Identity(identity) => identity.cardinality(),
        Encoder::Crossed(crossed) => crossed.cardinality(),
    };
    // `u32::MAX` is reserved for `INVALID`.
    u32::try_from(cardinality).ok().filter(|&cardinality| cardinality < u32::MAX).ok_or_else(|| {
        Error::Invalid(format!("feature `{}`: {cardinality} ids do not fit in 32 bits", spec.name))
    })
}
