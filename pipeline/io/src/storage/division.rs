//! Splits: names for parts of a version's rows, such as `train` and `test`.
//!
//! A division is part of its version and as immutable. It can only be written so that each row is in exactly one split:
//! shares of all hashes that follow each other, or bounds between neighbours. How a row is hashed and compared is defined
//! where rows are read, by the filters of jobs; this module knows no rows.

use serde::{Deserialize, Serialize};

use super::catalog::Reference;
use super::{Catalog, Stores};
use crate::Error;

/// The most splits of a version.
const MAX_SPLITS: usize = 16;

/// What the shares of all splits total.
const WHOLE_PERCENT: f64 = 100.0;

/// How the rows of a version are divided into splits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Division {
    /// What decides.
    pub rule: Rule,
    /// The splits, at least two. Their number is that of `percents`, and one more than that of `bounds`.
    pub splits: Vec<NamedSplit>,
}

/// What decides in which split a row is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// A hash. The second split has the lowest hashes, the third the next ones and so on; the first has the rest, and all
    /// rows without a value.
    Hash {
        /// The column whose value is hashed; `None` hashes the name of the file and the number of the row in it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        column: Option<String>,
        /// Each seed makes another division.
        seed: u64,
        /// For each split, its share of all hashes.
        percents: Vec<f64>,
    },
    /// The order of a column's values, such as times. Every row has a value.
    Order {
        /// The column.
        column: String,
        /// Between each split and the next: the lowest value of the next one. Ascending.
        bounds: Vec<String>,
    },
}

/// A split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedSplit {
    /// The name: ASCII letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// The number of its rows.
    pub rows: u64,
}

/// A split of a version, with the rule that decides.
#[derive(Clone, Debug, PartialEq)]
pub struct Portion {
    /// How the version is divided.
    pub rule: Rule,
    /// The place of the split in the division.
    pub place: usize,
}

impl Division {
    /// A division of rows that are not counted yet.
    ///
    /// # Errors
    /// What is wrong with the names or the rule.
    pub fn new(rule: Rule, names: Vec<String>) -> Result<Self, String> {
        let splits: Vec<_> = names.into_iter().map(|name| NamedSplit { name, rows: 0 }).collect();
        let division = Self { rule, splits };
        division.check().map(|()| division)
    }

    /// The split of this name.
    pub fn portion(&self, name: &str) -> Option<Portion> {
        let place = self.splits.iter().position(|split| split.name == name)?;
        Some(Portion { rule: self.rule.clone(), place })
    }

    /// All splits, in order.
    pub fn portions(&self) -> Vec<Portion> {
        (0..self.splits.len()).map(|place| Portion { rule: self.rule.clone(), place }).collect()
    }

    /// Whether both divide the same rows in the same way. The numbers of rows do not matter.
    pub fn is_like(&self, other: &Self) -> bool {
        self.rule == other.rule && self.names().eq(other.names())
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.splits.iter().map(|split| split.name.as_str())
    }

    /// What is wrong with it, if anything is.
    pub(super) fn check(&self) -> Result<(), String> {
        let names: Vec<&str> = self.names().collect();
        if !(2..=MAX_SPLITS).contains(&names.len()) {
            return Err(format!("{} splits; give 2 to {MAX_SPLITS}", names.len()));
        }
        for (place, name) in names.iter().enumerate() {
            if !super::catalog::is_name(name) {
                return Err(format!(
                    "`{name}` is not the name of a split: up to 64 letters, digits, `.`, `_` and `-`, and no `.` at the start"
                ));
            }
            if names[..place].contains(name) {
                return Err(format!("two splits are named `{name}`"));
            }
        }
        match &self.rule {
            Rule::Hash { percents, .. } => {
                if percents.len() != names.len() {
                    return Err("each split needs a share".to_owned());
                }
                if let Some(place) =
                    percents.iter().position(|&share| !(share > 0.0 && share < WHOLE_PERCENT))
                {
                    let (name, share) = (names[place], percents[place]);
                    return Err(format!("`{name}` has {share} %: a share is above 0 and below 100"));
                }
                let total: f64 = percents.iter().sum();
                if (total - WHOLE_PERCENT).abs() > 1e-9 {
                    return Err(format!(
                        "the shares total {total} %, not 100: each row is in exactly one split"
                    ));
                }
            }
            Rule::Order { bounds, .. } => {
                if bounds.len() + 1 != names.len() {
                    return Err("there must be a bound between each split and the next".to_owned());
                }
                if bounds.iter().any(String::is_empty) {
                    return Err("a bound is empty".to_owned());
                }
            }
        }
        Ok(())
    }
}

/// What patterns name besides files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Named {
    /// The patterns without the names of splits, and with the versions of those datasets.
    pub patterns: Vec<String>,
    /// The split that all of them name, `None` for whole files.
    pub portion: Option<Portion>,
}

impl Stores {
    /// Separates the names of splits from `patterns`. All must name whole files, or splits with the same rule.
    ///
    /// # Errors
    /// When they name different rows, there is no such split, or as for [`Catalog::version`].
    pub async fn named(&self, patterns: &[String]) -> Result<Named, Error> {
        let mut plain = Vec::with_capacity(patterns.len());
        let mut portions: Vec<Option<Portion>> = Vec::with_capacity(patterns.len());
        for pattern in patterns {
            let reference = Reference::in_place_of_path(pattern)?;
            let Some((reference, name)) = reference.and_then(|mut it| it.split.take().map(|name| (it, name)))
            else {
                plain.push(pattern.clone());
                portions.push(None);
                continue;
            };
            let version = Catalog::of(self)?.version(&reference).await?;
            let portion = version.division.as_ref().and_then(|division| division.portion(&name));
            let portion = portion.ok_or_else(|| Error::BadPattern {
                pattern: pattern.clone(),
                message: match &version.division {
                    Some(division) => format!(
                        "{} has no split of this name, but {}",
                        version.reference(),
                        division.names().collect::<Vec<_>>().join(", ")
                    ),
                    None => format!(
                        "{} has no splits; `millstream dataset register --split` makes a version with splits",
                        version.reference()
                    ),
                },
            })?;
            plain.push(version.reference().to_string());
            portions.push(Some(portion));
        }
        let first = portions.first().cloned().flatten();
        if let Some(other) = portions.iter().position(|portion| *portion != first) {
            return Err(Error::BadPattern {
                pattern: patterns[other].clone(),
                message: format!(
                    "names other rows than {}: all paths must be whole files, or splits with the same rule; register what \
                     belongs together as one dataset",
                    crate::redact(&patterns[0])
                ),
            });
        }
        Ok(Named { patterns: plain, portion: first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_division_has_each_row_once_or_is_an_error() {
        let by_hash = |shares: &[f64]| {
            let rule = Rule::Hash { column: None, seed: 0, percents: shares.to_vec() };
            Division::new(rule, names(&["train", "validation", "test"]))
        };
        assert!(by_hash(&[80.0, 10.0, 10.0]).is_ok());
        assert!(by_hash(&[33.4, 33.3, 33.3]).is_ok());
        for (shares, problem) in [
            (&[80.0, 10.0, 5.0][..], "total 95 %"),
            (&[100.0, 10.0, -10.0], "`train` has 100 %"),
            (&[80.0, f64::NAN, 10.0], "`validation` has NaN %"),
            (&[90.0, 10.0], "each split needs a share"),
        ] {
            let error = by_hash(shares).expect_err("an invalid division");
            assert!(error.contains(problem), "{error}");
        }
        let by_order = |bounds: &[&str], of: &[&str]| {
            let rule = Rule::Order { column: "day".to_owned(), bounds: names(bounds) };
            Division::new(rule, names(of))
        };
        assert!(by_order(&["2026-11-01"], &["train", "test"]).is_ok());
        for (bounds, of, problem) in [
            (&["1"][..], &["train"][..], "1 splits"),
            (&[], &["train", "test"], "a bound between"),
            (&["1"], &["a", "a"], "two splits are named `a`"),
            (&["1"], &["a", "b c"], "`b c` is not the name"),
        ] {
            let error = by_order(bounds, of).expect_err("an invalid division");
            assert!(error.contains(problem), "{error}");
        }
    }
}
