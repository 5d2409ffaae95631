//! Features as a header of C: tables of constants, which the code of the template reads, and a function per feature.
//!
//! Names in the header start with the job's name, so that a program can include the headers of several models. The names
//! of features and columns become unique identifiers (`names.rs`). Vocabularies are sorted for binary search.

mod functions;
mod tables;

use std::collections::BTreeSet;
use std::io::{self, Write};

use millstream_pipeline::spec::{FeatureKind, FeatureSpec};
use millstream_trainer::export::Tower;

use super::Transforms;
use super::names::{Names, comment, identifier};

/// The header. Its names start with `ms_` or `MS_`, which stand for the job's.
const TEMPLATE: &str = include_str!("features.h");
/// The name of the model in the template.
const MODEL: &str = "MODEL_NAME";
/// The place of the tables in the template.
const TABLES: &str = "/* MS_TABLES */\n";

pub(super) fn write(transforms: &Transforms<'_>, out: &mut dyn Write) -> io::Result<()> {
    let Transforms { trained, job, .. } = transforms;
    let tower = trained.tower().map(Tower::name);
    let name = tower.map_or_else(|| job.name.clone(), |tower| format!("{} {tower}", job.name));
    let prefix = identifier(&name).to_ascii_lowercase();
    let upper = prefix.to_ascii_uppercase();
    let model = format!("{}, after step {}", comment(&name), trained.snapshot.step);
    let named = |text: &str| {
        let text = text.replace("ms_", &format!("{prefix}_")).replace("MS_", &format!("{upper}_"));
        text.replace(MODEL, &model)
    };
    let (before, after) = TEMPLATE.split_once(TABLES).unwrap_or((TEMPLATE, ""));
    out.write_all(named(before).as_bytes())?;
    Header { transforms, p: &prefix, upper: &upper }.write(out)?;
    out.write_all(named(after).as_bytes())
}

/// Writes the tables and functions. `p` is the prefix of names.
struct Header<'a> {
    transforms: &'a Transforms<'a>,
    p: &'a str,
    upper: &'a str,
}

/// A column of a row.
struct Column<'a> {
    name: &'a str,
    /// Its member of the row.
    member: String,
    is_list: bool,
}

/// A feature and its inputs.
struct Feature<'a> {
    spec: &'a FeatureSpec,
    /// Its name in names of tables and functions.
    name: String,
    columns: Vec<&'a Column<'a>>,
    weights: Option<&'a Column<'a>>,
    inputs: Inputs,
}

/// The members of the inputs that a feature fills.
struct Inputs {
    values: String,
    count: String,
    weights: String,
}

impl Feature<'_> {
    /// Whether its columns hold lists.
    fn is_list(&self) -> bool {
        holds_lists(self.spec)
    }
}

fn holds_lists(spec: &FeatureSpec) -> bool {
    spec.maximum.is_some() || matches!(spec.kind, FeatureKind::Vector { .. })
}

impl Header<'_> {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.columns();
        let features = self.features(&columns);
        self.missing(out)?;
        for feature in &features {
            self.tables(feature, out)?;
        }
        for feature in &features {
            self.function(feature, out)?;
        }
        self.row(&columns, &features, out)
    }

    fn columns(&self) -> Vec<Column<'_>> {
        let (mut found, mut lists) = (Vec::new(), BTreeSet::new());
        for spec in self.transforms.features() {
            for column in spec.columns.iter().chain(&spec.weights).map(String::as_str) {
                if !found.contains(&column) {
                    found.push(column);
                }
                if holds_lists(spec) {
                    lists.insert(column);
                }
            }
        }
        let members = Names::default().of(&found);
        let column = |(name, member)| Column { name, member, is_list: lists.contains(name) };
        found.into_iter().zip(members).map(column).collect()
    }

    fn features<'a>(&'a self, columns: &'a [Column<'a>]) -> Vec<Feature<'a>> {
        let specs: Vec<&FeatureSpec> = self.transforms.features().collect();
        let found: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        let mut members = Names::default();
        let names = members.of(&found);
        let column = |name: &String| columns.iter().find(|column| column.name == name);
        let mut feature = |(spec, name): (&'a FeatureSpec, String)| {
            let mut further = |what: &str| members.unique(format!("{name}_{what}"));
            let inputs = match spec.maximum {
                Some(_) => {
                    Inputs { count: further("count"), weights: further("weights"), values: name.clone() }
                }
                None => Inputs { count: String::new(), weights: String::new(), values: name.clone() },
            };
            let weights = spec.weights.as_ref().and_then(column);
            Feature { spec, name, columns: spec.columns.iter().filter_map(column).collect(), weights, inputs }
        };
        specs.into_iter().zip(names).map(&mut feature).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_has_one_place_for_the_tables_and_whole_names_only() {
        assert_eq!((TEMPLATE.matches(TABLES).count(), TEMPLATE.matches(MODEL).count()), (1, 1));
        for prefix in ["ms_", "MS_"] {
            for (at, _) in TEMPLATE.match_indices(prefix) {
                let before = TEMPLATE[..at].chars().next_back();
                assert!(
                    before.is_none_or(|before| !before.is_ascii_alphanumeric() && before != '_'),
                    "byte {at}"
                );
            }
        }
    }
}
