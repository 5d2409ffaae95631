//! Resolves a model's embeddings: the table of each id feature, and the properties of each table.
//!
//! A feature has its own table of the same name, unless the job assigns it to another. Tables are in the
//! order in which the model's features first use them; lookups are in the order of the features.

use std::collections::HashMap;

use millstream_backend::PLACE_BITS;

use crate::model::error::ModelError;
use crate::model::features::IdFeatureColumn;
use crate::spec::{EmbeddingDim, EmbeddingInit, EmbeddingSpec, Pooling, TableSpec};

/// The tables of some features.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct EmbeddingTables {
    pub(crate) tables: Vec<EmbeddingTable>,
    /// The lookup of each feature, in the order of the features.
    pub(crate) lookups: Vec<TableLookup>,
}

/// A table, `[rows, width]`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EmbeddingTable {
    pub(crate) name: String,
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) init: EmbeddingInit,
}

/// The lookup of a feature.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TableLookup {
    /// The index of the table.
    pub(crate) table: usize,
    pub(crate) pooling: Pooling,
}

impl EmbeddingTables {
    /// Resolves the tables of `features` from `spec`, whose keys in the job begin with `model.PREFIX`.
    pub(crate) fn resolve(
        prefix: &str,
        spec: &EmbeddingSpec,
        features: &[IdFeatureColumn],
    ) -> Result<Self, ModelError> {
        check_spread(spec.init).map_err(|expected| ModelError::Empty {
            key: format!("model.{prefix}embedding_init"),
            expected,
        })?;
        if spec.dim == EmbeddingDim::Columns(0) && !features.is_empty() {
            let key = format!("model.{prefix}embedding_dim");
            return Err(ModelError::Empty { key, expected: NO_COLUMNS });
        }
        for table in &spec.tables {
            check(table, spec, features).map_err(|message| refused(prefix, table.name.clone(), message))?;
        }
        let mut all = Self::default();
        let mut numbers = HashMap::new();
        for feature in features {
            let special = spec.tables.iter().find(|table| table.features.contains(&feature.name));
            let name = special.map_or(&feature.name, |table| &table.name);
            let table = *numbers.entry(name).or_insert_with(|| {
                let dim = special.and_then(|table| table.dim).unwrap_or(spec.dim);
                all.tables.push(EmbeddingTable {
                    name: name.clone(),
                    rows: feature.cardinality,
                    width: dim.columns(feature.cardinality),
                    init: special.and_then(|table| table.init).unwrap_or(spec.init),
                });
                all.tables.len() - 1
            });
            let (pooling, _) = spec.pooling_of(&feature.name);
            all.lookups.push(TableLookup { table, pooling });
        }
        Ok(all)
    }

    /// Checks that backends can number the features of each table and the rows of a batch of `rows` rows with
    /// [`PLACE_BITS`] bits.
    pub(crate) fn check_sharing(&self, prefix: &str, rows: u32) -> Result<(), ModelError> {
        let most = (1 << PLACE_BITS) / u64::from(rows).next_power_of_two();
        for (number, table) in self.tables.iter().enumerate() {
            let sharing = self.lookups.iter().filter(|lookup| lookup.table == number).count();
            if sharing > 1 && sharing as u64 > most {
                let message = format!(
                    "{sharing} features share the table; with batches of {rows} rows, at most {most} can"
                );
                return Err(refused(prefix, table.name.clone(), message));
            }
        }
        Ok(())
    }

    /// The common width of all embeddings of `model`, which needs one.
    pub(crate) fn one_width(&self, model: &'static str) -> Result<usize, ModelError> {
        let mut widths = self.tables.iter().map(|table| table.width);
        let first = widths.next().unwrap_or_default();
        if widths.all(|width| width == first) {
            return Ok(first);
        }
        Err(ModelError::widths(model))
    }
}

const NO_COLUMNS: &str = "an embedding has at least one column";

fn refused(prefix: &str, table: String, message: String) -> ModelError {
    ModelError::Table { key: format!("model.{prefix}embeddings"), table, message }
}

/// Checks one table; the error describes the problem.
fn check(table: &TableSpec, spec: &EmbeddingSpec, features: &[IdFeatureColumn]) -> Result<(), String> {
    let find = |name: &String| features.iter().find(|feature| feature.name == *name);
    let same_name = spec.tables.iter().filter(|other| other.name == table.name).count();
    if same_name > 1 {
        return Err("another table has this name".to_owned());
    }
    let Some(first) = table.features.first() else {
        return Err("at least one feature is needed".to_owned());
    };
    for (number, name) in table.features.iter().enumerate() {
        let Some(feature) = find(name) else {
            return Err(format!("`{name}` is not an embedded id feature of the model"));
        };
        let elsewhere = spec.tables.iter().find(|other| *other != table && other.features.contains(name));
        if let Some(other) = elsewhere {
            return Err(format!("feature `{name}` is already in table `{}`", other.name));
        }
        if table.features[..number].contains(name) {
            return Err(format!("feature `{name}` is listed twice"));
        }
        if let Some(one) = find(first).filter(|one| one.cardinality != feature.cardinality) {
            let (found, expected) = (feature.cardinality, one.cardinality);
            return Err(format!(
                "features that share a table must have the same ids: `{first}` has {expected}, and `{name}` {found}"
            ));
        }
    }
    let is_elsewhere = |name| spec.tables.iter().any(|other| other.features.contains(name));
    if find(&table.name).is_some() && !is_elsewhere(&table.name) {
        return Err(format!("feature `{}` has the same name as this table but is not in it", table.name));
    }
    if table.dim == Some(EmbeddingDim::Columns(0)) {
        return Err(NO_COLUMNS.to_owned());
    }
    table.init.map_or(Ok(()), check_spread).map_err(str::to_owned)
}

fn check_spread(init: EmbeddingInit) -> Result<(), &'static str> {
    match init {
        EmbeddingInit::Uniform { limit: scale }
        | EmbeddingInit::Normal { stddev: scale }
        | EmbeddingInit::TruncatedNormal { stddev: scale }
            if !(scale > 0.0 && scale.is_finite()) =>
        {
            Err("the spread of an initialization must be a finite number above 0")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use millstream_backend::IdColumn;

    use super::*;
    use crate::spec::OptimizerSpec;

    fn features() -> Vec<IdFeatureColumn> {
        let feature = |(place, (name, cardinality)): (usize, (&str, usize))| IdFeatureColumn {
            name: name.to_owned(),
            column: IdColumn::Single(place),
            cardinality,
        };
        let all = [("page", 100), ("colour", 7), ("seen", 100), ("liked", 100)];
        all.into_iter().enumerate().map(feature).collect()
    }

    fn table(name: &str, features: &[&str]) -> TableSpec {
        let features = features.iter().map(|&name| name.to_owned()).collect();
        TableSpec { name: name.to_owned(), features, dim: None, pooling: None, init: None }
    }

    fn resolve(tables: Vec<TableSpec>) -> Result<EmbeddingTables, String> {
        let spec = EmbeddingSpec {
            dim: 8.into(),
            pooling: Pooling::Mean,
            init: EmbeddingInit::Zeros,
            optimizer: OptimizerSpec::Sgd { learning_rate: 1.0, l2: 0.0 },
            tables,
        };
        EmbeddingTables::resolve("", &spec, &features()).map_err(|error| error.to_string())
    }

    #[test]
    fn each_feature_has_its_own_table_unless_the_job_assigns_another() {
        let colour = TableSpec { dim: Some(EmbeddingDim::Auto), ..table("colour", &["colour"]) };
        let pages = TableSpec {
            pooling: Some(Pooling::Sum),
            init: Some(EmbeddingInit::UniformByRows),
            ..table("pages", &["seen", "page"])
        };
        let found = resolve(vec![colour, pages]).unwrap();
        let table =
            |name: &str, rows, width, init| EmbeddingTable { name: name.to_owned(), rows, width, init };
        let by_rows = EmbeddingInit::UniformByRows;
        let zeros = EmbeddingInit::Zeros;
        let expected =
            [table("pages", 100, 8, by_rows), table("colour", 7, 2, zeros), table("liked", 100, 8, zeros)];
        assert_eq!(found.tables, expected);
        let lookup = |table, pooling| TableLookup { table, pooling };
        let (sum, mean) = (Pooling::Sum, Pooling::Mean);
        assert_eq!(found.lookups, [lookup(0, sum), lookup(1, mean), lookup(0, sum), lookup(2, mean)]);
        let message = found.one_width("DeepFM").unwrap_err().to_string();
        assert_eq!(message, "model.embedding_dim: DeepFM needs embeddings of one fixed width");
        assert_eq!(resolve(Vec::new()).unwrap().one_width("DeepFM"), Ok(8));
    }

    #[test]
    fn the_number_of_features_that_share_a_table_is_limited() {
        let found = resolve(vec![table("pages", &["seen", "page", "liked"])]).unwrap();
        let check = |rows| found.check_sharing("", rows).map_err(|error| error.to_string());
        assert_eq!(check(1 << 30), Ok(()));
        let message = "3 features share the table; with batches of 1073741825 rows, at most 2 can";
        assert_eq!(check((1 << 30) + 1), Err(format!("model.embeddings.pages: {message}")));
        assert_eq!(resolve(Vec::new()).unwrap().check_sharing("", u32::MAX), Ok(()));
    }

    #[test]
    fn invalid_tables_are_rejected() {
        let no_columns = TableSpec { dim: Some(0.into()), ..table("page", &["page"]) };
        let no_spread =
            TableSpec { init: Some(EmbeddingInit::Normal { stddev: 0.0 }), ..table("page", &["page"]) };
        let cases = [
            (vec![table("p", &[])], "p: at least one feature is needed"),
            (vec![table("p", &["pge"])], "p: `pge` is not an embedded id feature of the model"),
            (
                vec![table("p", &["page", "colour"])],
                "p: features that share a table must have the same ids: `page` has 100, and `colour` 7",
            ),
            (
                vec![table("p", &["page"]), table("q", &["seen", "page"])],
                "p: feature `page` is already in table `q`",
            ),
            (vec![table("p", &["page", "seen", "page"])], "p: feature `page` is listed twice"),
            (vec![table("p", &["page"]), table("p", &["seen"])], "p: another table has this name"),
            (
                vec![table("page", &["seen"])],
                "page: feature `page` has the same name as this table but is not in it",
            ),
            (vec![no_columns], "page: an embedding has at least one column"),
            (vec![no_spread], "page: the spread of an initialization must be a finite number above 0"),
        ];
        for (tables, expected) in cases {
            assert_eq!(resolve(tables).unwrap_err(), format!("model.embeddings.{expected}"));
        }
    }
}
