//! `eval` and `predict`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Place;
use super::data::{Fields, parse_list};

/// The model and the data to score.
#[derive(Debug, Args)]
pub(crate) struct Scored {
    /// A job's id (of a search: its best trial), or the directory of a job or a checkpoint, which may be in a bucket
    #[arg(value_name = "JOB_ID|CHECKPOINT")]
    pub(crate) target: String,
    /// Files and globs to score, or `-` for standard input [default: the job's own held-out data]
    #[arg(value_name = "DATA")]
    pub(crate) data: Vec<String>,
    /// Use the job's best checkpoint (`checkpoint.keep_best`) instead of its newest
    #[arg(long)]
    pub(crate) best: bool,
    #[command(flatten)]
    pub(crate) place: Place,
    #[command(flatten)]
    pub(crate) layout: Layout,
}

/// How rows are read, above all those of CSV and JSON lines.
#[derive(Debug, Args)]
#[command(next_help_heading = "Reading CSV and JSON lines")]
pub(crate) struct Layout {
    #[command(flatten)]
    pub(crate) fields: Fields,
    /// A value that means "missing", in addition to the empty field and the job's; repeatable
    #[arg(long, value_name = "VALUE")]
    pub(crate) missing: Vec<String>,
    /// Separator of the elements of a list, for a feature with several values; repeatable [default: `|` in
    /// CSV]
    #[arg(long = "list", value_name = "COLUMN=TEXT", value_parser = parse_list)]
    pub(crate) separators: Vec<(String, String)>,
    /// Skip lines, or rows of other formats, that cannot be used, and count them, instead of failing
    #[arg(long)]
    pub(crate) skip_bad_lines: bool,
}

/// `predict`
#[derive(Debug, Args)]
#[command(after_help = "\
Writes one score per row, in the order of the data: files sorted by path, each once, rows in file
order. Rows that the job's `filter` or `on_bad_record` skips have no score. The data needs no label.

The data is Parquet, TFRecord, CSV (.csv, .tsv) or JSON lines (.jsonl, .ndjson), compressed or not. Values
of CSV and JSON are read in the types of the training data: as the id 3, \"3\" and 3.0 are the integer 3.
Dates have the form 2026-11-21, timestamps that of RFC 3339. A list is a|b|c in CSV, an array in JSON.

A score is the probability of the positive class; with the loss \"mse\" it is the predicted number. A
two-tower model's score is the dot product of its two vectors divided by the temperature. A label with
`classes` has the probability of each class and the most probable class.

The column is `score`, a 32-bit float in Parquet. A job with several labels has `score_LABEL` for each
label; a label with classes has `score_CLASS` for each class and `class`, the predicted one, as text.
An output name that ends in .gz or .zst compresses CSV and JSON lines.

--keep writes columns of the data before the scores, as they are. Fields of CSV are text; in Parquet, so
are values of JSON. `*` stands for all columns; of JSON lines and TFRecord, for those of the first 4,096
records.

Examples:
  millstream predict census-2f9c new.csv --keep id,age --output scores.csv
  millstream predict census-2f9c 'new/*.parquet' --format jsonl | head
  millstream predict checkpoints/census-2f9c new.jsonl.gz --keep '*' --output scores.parquet
  cat new.csv | millstream predict census-2f9c - > scores.csv")]
pub(crate) struct Predict {
    #[command(flatten)]
    pub(crate) scored: Scored,
    /// Write to this file instead of standard output; it appears only when complete
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Columns of the data to write beside the scores; `*` alone stands for all
    #[arg(long, value_name = "COLUMN,COLUMN...", value_delimiter = ',')]
    pub(crate) keep: Vec<String>,
    /// Format of the scores [default: by the output's extension, otherwise csv]
    #[arg(long, value_enum)]
    pub(crate) format: Option<ScoreFormat>,
}

/// A format of scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScoreFormat {
    /// A header line `score`, then one score per line
    Csv,
    /// `{"score": 0.5}`, one per line
    Jsonl,
    /// A Parquet file
    Parquet,
}
