//! The sources of mixed training data: paths and globs of `data.train`, each with a weight.
//!
//! Listings and splits do not depend on weights. A weight says how often the rows of a file occur in an epoch, which the
//! order of the rows decides ([`Mix`]).

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Result, bail};
use millstream_io::redact;
use millstream_io::storage::Object;
use millstream_pipeline::dataset::{Dataset, MAX_SPLITS, Split};
use millstream_pipeline::order::{Mix, Weight};
use millstream_pipeline::spec::DataSpec;
use serde::Serialize;

use crate::plan::RowCount;

/// The sources of a job's training data.
pub(crate) struct Sources {
    /// Paths and globs, with their weights.
    sources: Vec<(String, f64)>,
    /// The sources of each file, by its address; at least one.
    of_file: HashMap<String, Vec<usize>>,
}

/// One source of mixed training data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SourcePlan {
    /// Its path or glob, without secrets.
    pub pattern: String,
    /// How often each of its rows occurs in an epoch.
    pub weight: f64,
    /// The number of files.
    pub files: usize,
    /// Bytes in storage.
    pub bytes: u64,
    /// Number of rows, if the files' metadata contain it.
    pub rows: Option<u64>,
    /// Its share of the rows of an epoch.
    pub share: f64,
    /// Whether the share is estimated from the size of the files.
    pub share_is_estimate: bool,
}

/// The size of a source, without and with its weight.
#[derive(Clone, Copy)]
struct Amount {
    files: usize,
    bytes: u64,
    weighted_bytes: f64,
    /// `None` if a number of rows is unknown.
    rows: Option<u64>,
    weighted_rows: f64,
}

impl Sources {
    /// The sources of `data`, whose paths and globs match these files.
    pub(crate) fn of(data: &DataSpec, matches: &[(Object, usize)]) -> Self {
        let patterns = data.train.iter().map(|pattern| redact(pattern).into_owned());
        let sources = patterns.zip(data.train_weights.clone()).collect();
        let mut of_file: HashMap<String, Vec<usize>> = HashMap::with_capacity(matches.len());
        for (object, source) in matches {
            of_file.entry(object.address()).or_default().push(*source);
        }
        Self { sources, of_file }
    }

    /// How often the splits of `dataset`, which has these files, occur in an epoch.
    ///
    /// # Errors
    /// When a file has several weights, or an epoch too many splits.
    pub(crate) fn mix(&self, dataset: &Dataset) -> Result<Arc<Mix>> {
        for object in dataset.objects() {
            self.check(object)?;
        }
        let weights: Vec<Weight> =
            self.splits(dataset).map(|(_, source)| Weight::new(self.sources[source].1)).collect();
        let Some(mix) = Mix::new(weights, MAX_SPLITS) else {
            bail!(
                "`data.train`: an epoch has more than {MAX_SPLITS} splits, with their copies; lower the weights"
            );
        };
        Ok(Arc::new(mix))
    }

    /// Checks that all sources of a file have the same weight.
    fn check(&self, object: &Object) -> Result<()> {
        let mut sources =
            self.of_file.get(&object.address()).into_iter().flatten().map(|&it| &self.sources[it]);
        let Some((first, weight)) = sources.next() else { return Ok(()) };
        if let Some((other, other_weight)) = sources.find(|(_, other)| other != weight) {
            bail!(
                "`data.train`: {} matches both {first}, with weight {weight}, and {other}, with weight \
                 {other_weight}; a file has one weight",
                redact(object.path())
            );
        }
        Ok(())
    }

    /// The expected number of rows of an epoch of data with `rows` rows.
    pub(crate) fn epoch_rows(&self, dataset: &Dataset, rows: RowCount) -> RowCount {
        let amounts = self.amounts(dataset);
        let total = Amount::total(&amounts);
        if total.rows.is_some() {
            let is_drawn =
                |(amount, (_, weight)): (&Amount, &(_, f64))| amount.files > 0 && weight.fract() > 0.0;
            let is_estimate = amounts.iter().zip(&self.sources).any(is_drawn);
            return RowCount { rows: total.weighted_rows.round() as u64, is_estimate };
        }
        let factor = total.weighted_bytes / total.bytes.max(1) as f64;
        RowCount { rows: (rows.rows as f64 * factor).round() as u64, is_estimate: true }
    }

    /// The plan of each source.
    pub(crate) fn plans(&self, dataset: &Dataset) -> Vec<SourcePlan> {
        let amounts = self.amounts(dataset);
        let total = Amount::total(&amounts);
        let has_rows = total.rows.is_some_and(|rows| rows > 0);
        let plan = |(amount, (pattern, weight)): (&Amount, &(String, f64))| SourcePlan {
            pattern: pattern.clone(),
            weight: *weight,
            files: amount.files,
            bytes: amount.bytes,
            rows: amount.rows,
            share: if has_rows {
                amount.weighted_rows / total.weighted_rows
            } else {
                amount.weighted_bytes / total.weighted_bytes.max(1.0)
            },
            share_is_estimate: !has_rows,
        };
        amounts.iter().zip(&self.sources).map(plan).collect()
    }

    /// The size of each source.
    fn amounts(&self, dataset: &Dataset) -> Vec<Amount> {
        let mut amounts = vec![Amount::NONE; self.sources.len()];
        dataset.objects().iter().for_each(|object| amounts[self.source_of(object)].files += 1);
        for (split, source) in self.splits(dataset) {
            let rows = split.rows.unwrap_or(0);
            amounts[source].add(&Amount {
                files: 0,
                bytes: split.bytes,
                weighted_bytes: split.bytes as f64 * self.sources[source].1,
                rows: split.rows,
                weighted_rows: rows as f64 * self.sources[source].1,
            });
        }
        amounts
    }

    /// The splits of `dataset`, with their sources.
    fn splits<'a>(&'a self, dataset: &'a Dataset) -> impl Iterator<Item = (&'a Split, usize)> {
        let of_object: Vec<usize> = dataset.objects().iter().map(|object| self.source_of(object)).collect();
        dataset.splits().iter().map(move |split| (split, of_object[split.object]))
    }

    fn source_of(&self, object: &Object) -> usize {
        // The files of a dataset are among those that the sources match.
        self.of_file.get(&object.address()).map_or(0, |sources| sources[0])
    }
}

impl Amount {
    const NONE: Self = Self { files: 0, bytes: 0, weighted_bytes: 0.0, rows: Some(0), weighted_rows: 0.0 };

    fn total(amounts: &[Self]) -> Self {
        let mut total = Self::NONE;
        amounts.iter().for_each(|amount| total.add(amount));
        total
    }

    fn add(&mut self, more: &Self) {
        self.files += more.files;
        self.bytes += more.bytes;
        self.weighted_bytes += more.weighted_bytes;
        self.rows = self.rows.zip(more.rows).map(|(rows, more)| rows + more);
        self.weighted_rows += more.weighted_rows;
    }
}
