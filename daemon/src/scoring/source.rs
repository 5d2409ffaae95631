//! The rows to score: the job's held-out data, or other files in any format that the tools read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use millstream_control::proto::{ScoreRequest, TextLayout};
use millstream_format::csv::CsvOptions;
use millstream_format::filter::RowFilter;
use millstream_io::storage::{Object, Stores};
use millstream_pipeline::Error;
use millstream_pipeline::dataset::{Absent, Dataset};
use millstream_pipeline::ingest::{ChunkSource, DatasetSource, KeptRows};
use millstream_pipeline::spec::{DataSpec, OnBadRecord, Purpose};
use millstream_pipeline::transform::Transform;
use millstream_tools::text_source::{TextFiles, TextSource, TextSpec};
use tokio::runtime::Handle;

use super::Scored;
use crate::access::Requester;
use crate::{feed, plan};

/// What stands for a secret in the addresses of a checkpoint's job.
const REDACTED: &str = "***";

/// In `ScoreRequest::keep`, stands for all columns.
const ALL: &str = "*";

/// The data section for scoring, in which the data to score is the held-out data.
pub(super) fn data(of_job: &DataSpec, request: &ScoreRequest, requester: &Requester) -> Result<DataSpec> {
    let mut data = of_job.clone();
    let ScoreRequest { data: given, base, .. } = request;
    if !given.is_empty() {
        data.eval.clone_from(given);
        data.validation = None;
        data.base = PathBuf::from(base);
    }
    if request.skip_bad_rows {
        data.on_bad_record = OnBadRecord::Skip { limit: u64::MAX };
    }
    if !request.keep.is_empty() {
        // Rows are not shuffled; this bounds how far lanes read ahead, and with it the rows that are kept.
        data.shuffle_rows = 0;
    }
    for given in given {
        let directory = data.base.join(given);
        if super::has_job(&directory) && requester.check_read(&directory).is_ok() {
            bail!(
                "{given} is a run or a checkpoint, not data: the first argument is the model, the others are data"
            );
        }
    }
    if !data.has_eval() {
        bail!("the job has no held-out data: give the data to score");
    }
    if given.is_empty() && data.eval_files().iter().any(|pattern| pattern.contains(REDACTED)) {
        bail!(
            "checkpoints do not keep the passwords and signatures of the job's data: give the data to score"
        );
    }
    Ok(data)
}

/// Opens the rows to score.
pub(super) struct Opening<'a> {
    pub(super) scored: &'a Scored,
    pub(super) request: &'a ScoreRequest,
    pub(super) requester: &'a Requester,
    pub(super) stores: &'a Stores,
    pub(super) runtime: &'a Handle,
    /// Receives the columns to keep.
    pub(super) kept: &'a Arc<KeptRows>,
}

/// The rows to score.
pub(super) struct Rows {
    pub(super) source: Arc<dyn ChunkSource>,
    /// The columns to keep.
    pub(super) kept: Vec<String>,
}

impl Opening<'_> {
    /// Opens the rows of `data` for `transform`.
    ///
    /// # Errors
    /// The data cannot be read, or lacks a column.
    pub(super) fn open(&self, data: &DataSpec, transform: Arc<Transform>) -> Result<Rows> {
        let listed = feed::list(data.eval_files(), data, (self.stores, self.requester), self.runtime)?;
        let opened = match self.text_files(&listed.objects)? {
            Some(files) => self.text(files, &listed.rows, data, transform),
            None => {
                let dataset = listed.open(data, self.runtime)?;
                self.dataset(dataset, data, transform)
            }
        };
        opened.map_err(|error| plan::with_key(&self.scored.job, error))
    }

    /// The files, if they are CSV or JSON lines; a job's own data is not.
    fn text_files(&self, objects: &[Object]) -> Result<Option<TextFiles>> {
        if self.request.data.is_empty() {
            return Ok(None);
        }
        let TextLayout { delimiter, columns, missing, separators } =
            self.request.text.clone().unwrap_or_default();
        let delimiter = match delimiter.as_bytes() {
            [] => None,
            [byte] if byte.is_ascii() => Some(*byte),
            _ => bail!("the delimiter `{delimiter}` is not one ASCII character"),
        };
        let csv = CsvOptions {
            delimiter,
            columns: (!columns.is_empty()).then_some(columns),
            // Training read these as missing, so they need not have the form of the column's type.
            missing: [missing, self.scored.job.data.missing.clone()].concat(),
            ..CsvOptions::default()
        };
        let separators: BTreeMap<_, _> = separators.into_iter().collect();
        Ok(TextFiles::detect(objects, csv, separators, self.runtime)?)
    }

    fn text(
        &self,
        files: TextFiles,
        rows: &RowFilter,
        data: &DataSpec,
        transform: Arc<Transform>,
    ) -> Result<Rows, Error> {
        let kept = self.kept_columns(|| Ok(files.columns().to_vec()))?;
        let spec = TextSpec {
            transform,
            filter: &data.rows(Purpose::Scoring).and(rows),
            stored_types: &self.scored.analysis.stored_types,
            on_bad_record: data.on_bad_record,
            absent: Absent::AllowedExcept(&self.scored.job.label.columns()),
            kept: (!kept.is_empty()).then(|| (kept.as_slice(), Arc::clone(self.kept))),
        };
        Ok(Rows { source: Arc::new(TextSource::new(files, spec)?), kept })
    }

    fn dataset(&self, dataset: Dataset, data: &DataSpec, transform: Arc<Transform>) -> Result<Rows, Error> {
        let kept = self.kept_columns(|| dataset.column_names(self.runtime))?;
        let purpose = if self.request.data.is_empty() { Purpose::Evaluation } else { Purpose::Scoring };
        let dataset = Arc::new(dataset.filtered(&data.rows(purpose)));
        let source =
            DatasetSource::new(Arc::clone(&dataset), transform, data.on_bad_record, self.runtime.clone());
        let source = if kept.is_empty() { source } else { source.keeping(&kept, Arc::clone(self.kept)) };
        let labels = self.scored.job.label.columns();
        let needed: Vec<&str> = labels.into_iter().chain(kept.iter().map(String::as_str)).collect();
        dataset.check(source.projection(), Absent::AllowedExcept(&needed), self.runtime)?;
        Ok(Rows { source: Arc::new(source), kept })
    }

    /// The columns to keep, of the columns `all`, which is called if they are all to be kept.
    fn kept_columns(&self, all: impl FnOnce() -> Result<Vec<String>, Error>) -> Result<Vec<String>, Error> {
        let mut names = match self.request.keep.as_slice() {
            [only] if only == ALL => all()?,
            names => names.to_vec(),
        };
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
        Ok(names)
    }
}
