//! Commands on datasets.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `dataset`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
A dataset is a name for files, a version of it the files as they were when it was registered: a job with
`train = [\"dataset://clicks\"]` reads the current version, keeps it when it resumes, and fails if a file
has changed. Versions are kept in a catalog, a directory or a place in a bucket, which --catalog,
MILLSTREAM_CATALOG or a job's `storage.catalog` names.

Examples:
  export MILLSTREAM_CATALOG=gs://bucket/catalog
  millstream dataset register clicks 'gs://bucket/clicks/2026-11-*.parquet'
  millstream dataset diff clicks/1 clicks/2
  millstream train job.toml --set 'data.train=[\"dataset://clicks/2\"]'")]
pub(crate) enum Dataset {
    /// Add a version: the files now, their columns and statistics
    Register(Register),
    /// List datasets
    List(ListDatasets),
    /// Show a version: files, columns, who registered it
    Show(ShowDataset),
    /// Compare two versions: files, columns, rows, drift of each column
    Diff(DiffDatasets),
    /// Make an earlier version the current one
    Rollback(Rollback),
    /// Show the statistics of a version's columns
    Stats(DatasetStatistics),
}

/// Where datasets are.
#[derive(Debug, Args)]
pub(crate) struct CatalogPlace {
    /// The catalog: a directory, or its address in an object store [env: MILLSTREAM_CATALOG]
    #[arg(long, value_name = "DIR_OR_URL")]
    pub(crate) catalog: Option<String>,
}

/// `dataset register`
#[derive(Debug, Args)]
#[command(after_help = "\
Reads all files once. Files and splits that are those of the newest version are no new version. A damaged
file is an error.

Splits divide the rows of the version; each row is in exactly one. `dataset://clicks/3#train` stands for
the rows of a split in jobs, `eval` and `predict`. Shares are percentages of the hashes of a column: rows
with equal values are in the same split, in later versions too, and rows without a value in the first.
Ranges are of a column's values; FROM belongs to the range and TO to the next one.

Examples:
  millstream dataset register clicks 'data/clicks-*.parquet' --description 'with the new site'
  millstream dataset register clicks gs://bucket/clicks/ --json | jq .version
  millstream dataset register clicks data/ --split train=80,validation=10,test=10 --split-by user_id
  millstream dataset register a data/ --split train=..2026-11-01,test=2026-11-01.. --split-by-time day")]
pub(crate) struct Register {
    /// The name: letters, digits, `.`, `_` and `-`
    pub(crate) name: String,
    /// Files, globs and directories
    #[arg(value_name = "DATA", required = true)]
    pub(crate) data: Vec<String>,
    /// What others should know about this version
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) description: String,
    #[command(flatten)]
    pub(crate) splits: SplitChoice,
    #[command(flatten)]
    pub(crate) threads: super::data::Threads,
    #[command(flatten)]
    pub(crate) place: CatalogPlace,
}

/// The splits of a version.
#[derive(Debug, Args)]
pub(crate) struct SplitChoice {
    /// Divide the rows: NAME=PERCENT,... or, with --split-by-time, NAME=FROM..TO,...
    #[arg(long, value_name = "NAME=PART", value_delimiter = ',')]
    pub(crate) split: Vec<String>,
    /// The column whose hash decides; without it, the place of the row in its file
    #[arg(long, value_name = "COLUMN", requires = "split", conflicts_with = "split_by_time")]
    pub(crate) split_by: Option<String>,
    /// The column whose values the ranges hold: dates, times or numbers
    #[arg(long, value_name = "COLUMN", requires = "split")]
    pub(crate) split_by_time: Option<String>,
}

/// `dataset list`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millstream dataset list
  millstream dataset list --catalog gs://bucket/catalog --json | jq -r '.[].name'")]
pub(crate) struct ListDatasets {
    #[command(flatten)]
    pub(crate) place: CatalogPlace,
}

/// `dataset show`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millstream dataset show clicks
  millstream dataset show clicks/3 --files")]
pub(crate) struct ShowDataset {
    /// NAME for the current version, or NAME/VERSION
    pub(crate) dataset: String,
    /// Name every file, with its version
    #[arg(long)]
    pub(crate) files: bool,
    #[command(flatten)]
    pub(crate) place: CatalogPlace,
}

/// `dataset diff`
#[derive(Debug, Args)]
#[command(after_help = "\
The drift of a column is its population stability index: below 0.1 nothing has changed, above 0.25 much.
`?` is a column that cannot be compared.

Examples:
  millstream dataset diff clicks/1 clicks/2
  millstream dataset diff clicks/1 clicks --json | jq '.columns[] | select(.drift == \"large\").name'")]
pub(crate) struct DiffDatasets {
    /// The earlier version, NAME/VERSION
    pub(crate) before: String,
    /// The later one; NAME for the current version
    pub(crate) after: String,
    /// Name every file that differs
    #[arg(long)]
    pub(crate) files: bool,
    #[command(flatten)]
    pub(crate) place: CatalogPlace,
}

/// `dataset rollback`
#[derive(Debug, Args)]
#[command(after_help = "\
Jobs that were submitted keep their version. All versions stay; the newest can be made current again in
the same way.

Examples:
  millstream dataset rollback clicks/2")]
pub(crate) struct Rollback {
    /// The version, NAME/VERSION
    pub(crate) dataset: String,
    #[command(flatten)]
    pub(crate) place: CatalogPlace,
}

/// `dataset stats`
#[derive(Debug, Args)]
#[command(after_help = "\
With --against, each column is shown as it is and as it was in the other version, those with the largest
drift first; `dataset diff` compares files, rows and drift in a table.

Examples:
  millstream dataset stats clicks
  millstream dataset stats clicks/3 --html clicks.html
  millstream dataset stats clicks/3 --against clicks/2 --html drift.html")]
pub(crate) struct DatasetStatistics {
    /// NAME for the current version, or NAME/VERSION
    pub(crate) dataset: String,
    /// An earlier version to compare with
    #[arg(long, value_name = "DATASET")]
    pub(crate) against: Option<String>,
    /// Also write a page with the distributions as pictures
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) place: CatalogPlace,
}
