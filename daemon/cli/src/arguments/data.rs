//! Commands on data files.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use millstream_tools::typed::Kind;

/// `init`
#[derive(Debug, Args)]
#[command(after_help = "\
Reads up to 100,000 rows, and writes a commented job file that `check` accepts. Each choice has its reason
in a comment: change what you know better. Files whose names contain `test`, `eval`, `valid` or `holdout`
become the held-out data, unless --eval names others; without any, a share of the rows does.

Examples:
  millstream init 'data/*.parquet'
  millstream init data/train.tfrecord --eval data/test.tfrecord --label clicked --output job.toml
  millstream init 'gs://bucket/clicks/*.parquet' -o clicks.toml && millstream train clicks.toml")]
pub(crate) struct Init {
    /// Files, globs and directories to train on: Parquet or TFRecord
    #[arg(value_name = "DATA", required = true)]
    pub(crate) data: Vec<String>,
    /// Held-out files and globs; repeatable
    #[arg(long, value_name = "DATA")]
    pub(crate) eval: Vec<String>,
    /// The column to predict [default: guessed, and said]
    #[arg(long, value_name = "COLUMN")]
    pub(crate) label: Option<String>,
    /// The value of the label that means 1 [default: guessed, and said]
    #[arg(long, value_name = "VALUE")]
    pub(crate) positive: Option<String>,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long)]
    pub(crate) force: bool,
}

/// The fields of CSV files that are read.
#[derive(Debug, Args)]
pub(crate) struct Fields {
    /// Field separator of the input: one character, or `tab` [default: detected]
    #[arg(long, value_name = "CHAR", value_parser = parse_delimiter)]
    pub(crate) delimiter: Option<u8>,
    /// Column names, if the first line does not contain them
    #[arg(long, value_name = "NAME,NAME...", value_delimiter = ',')]
    pub(crate) columns: Option<Vec<String>>,
}

/// How CSV files are laid out.
#[derive(Debug, Args)]
#[command(next_help_heading = "CSV")]
pub(crate) struct Csv {
    #[command(flatten)]
    pub(crate) fields: Fields,
    /// Skip lines that start with this character
    #[arg(long, value_name = "CHAR", value_parser = parse_byte)]
    pub(crate) comment: Option<u8>,
    /// Remove this suffix from the last field of each line
    #[arg(long, value_name = "TEXT")]
    pub(crate) strip_suffix: Option<String>,
    /// A value that means "missing", in addition to the empty field; repeatable
    #[arg(long, value_name = "VALUE")]
    pub(crate) missing: Vec<String>,
}

fn parse_delimiter(text: &str) -> Result<u8, String> {
    if text == "tab" || text == "\\t" { Ok(b'\t') } else { parse_byte(text) }
}

fn parse_byte(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        [byte] if byte.is_ascii() => Ok(*byte),
        _ => Err("expected one ASCII character".to_owned()),
    }
}

/// `inspect`
#[derive(Debug, Args)]
#[command(after_help = "\
Reads every file to its end; the exit status is 1 if any is damaged. More than 10 files are summarized,
with the damaged ones named; --all and --json report each file.

Examples:
  millstream inspect data/part-00000.tfrecord.gz
  millstream inspect data/ --all --rows 0
  millstream inspect train.csv --stats
  millstream inspect data/*.gz --json | jq '.[] | select(.error)'")]
pub(crate) struct Inspect {
    /// Files, globs, and directories or prefixes that end in `/`
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<String>,
    /// Number of first rows to show
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) rows: usize,
    /// Report each file, however many there are
    #[arg(long)]
    pub(crate) all: bool,
    /// Also report minimum, median, mean, maximum, histogram, distinct count and most frequent values of
    /// each column, and the value that makes a column of CSV text
    #[arg(long)]
    pub(crate) stats: bool,
    /// Write these statistics over all files to FILE, as a page of HTML with pictures
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) threads: Threads,
    #[command(flatten)]
    pub(crate) csv: Csv,
}

/// The number of threads that process files.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Threads {
    /// Number of threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
}

impl Threads {
    /// The number given, or the number of cores.
    pub(crate) fn count(self) -> usize {
        self.threads.map_or_else(
            || std::thread::available_parallelism().map_or(1, usize::from),
            |threads| threads as usize,
        )
    }
}

/// A format of data files that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DataFormat {
    /// Separated fields, one record per line
    Csv,
    /// One JSON object per line
    Jsonl,
    /// Parquet
    Parquet,
    /// TFRecord of tf.train.Example
    Tfrecord,
    /// Tar archives of samples
    Webdataset,
    /// Shards of MosaicML Streaming, with their index.json
    Mds,
}

/// A format of data files that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InputFormat {
    /// Separated fields, one record per line
    Csv,
    /// One JSON object per line
    Jsonl,
    /// Parquet
    Parquet,
    /// TFRecord of tf.train.Example
    Tfrecord,
    /// Tar archives of samples
    Webdataset,
    /// Shards of MosaicML Streaming
    Mds,
    /// Images, one per file, in directories by class
    Images,
}

/// A compression of data files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DataCompression {
    /// Uncompressed
    None,
    /// gzip (all but Parquet)
    Gzip,
    /// zlib (all but Parquet and MDS)
    Zlib,
    /// Zstandard (all)
    Zstd,
    /// Snappy (Parquet)
    Snappy,
}

/// Options for writing data files.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Written {
    /// Number of files to write, of equal size within one row; the name includes the shard number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) shards: Option<u32>,
    /// Format to write [default: by the extension]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) format: Option<DataFormat>,
    /// Compression [default: by the extension; Snappy for Parquet]
    #[arg(long, value_enum, value_name = "HOW")]
    pub(crate) compression: Option<DataCompression>,
    /// Rows per Parquet row group, the unit of reading
    #[arg(long, value_name = "ROWS", default_value_t = 65_536)]
    pub(crate) group_rows: usize,
    #[command(flatten)]
    pub(crate) threads: Threads,
    /// Memory limit for rows in flight, such as `256MiB`. One block of a file is always allowed; an upload
    /// uses 40MiB more [default: 256MiB per thread]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memory: Option<usize>,
}

fn parse_size(text: &str) -> Result<usize, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err("expected a number of B, KiB, MiB or GiB".to_owned()),
    };
    let bytes = number.parse::<usize>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| "the size is out of range".to_owned())
}

/// `convert`
#[derive(Debug, Args)]
#[command(after_help = "\
OUT is a file, a directory, or a name in which `*` or `@N` stands for the shard number. Files appear
under their names only when all are complete. Their bytes do not depend on --threads. IN and OUT can be
gs://, s3:// and az:// URLs.

Formats are CSV (.csv, .tsv), JSON lines (.jsonl, .ndjson, .json), Parquet, TFRecord, WebDataset (.tar)
and MDS (.mds); all but Parquet also compressed (.gz, .zst; .zz for all but MDS). A JSON array of objects
is read too. Nested objects become columns `a.b`, files of a sample columns named by their extensions.
Images (.jpg, .jpeg, .png, .webp) in a directory per class become rows with the columns image, class,
label and path. Without a header, name the columns with --columns.

KIND is text, integer, number, float (32 bits), boolean, date or timestamp. Dates are read as
2026-11-21, timestamps as RFC 3339 or seconds since 1970, both in UTC if they have no offset; another
layout follows a colon: date:%d.%m.%Y. Numbers with a decimal comma, such as 1.234,50, are number:, or
float:, with the comma.

CSV holds dates and timestamps as ISO 8601 text and decimals with all digits. TFRecord has integers,
floats and bytes only: dates are days and timestamps microseconds since 1970-01-01, times of day
microseconds since midnight, decimals floats (integers if they have no fraction). WebDataset has a file
for each value, named by `__key__` or the number of the row; lists and objects are members of its file
json. MDS has no absent values; its index.json is written beside the shards.

Examples:
  millstream convert adult.data adult.parquet --columns age,workclass,fnlwgt,income --missing '?'
  millstream convert 'log/*.csv' clicks.tfrecord.gz --shards 16
  millstream convert log.tsv log.parquet --type zip=text --type when=timestamp --list 'tags=|'
  millstream convert log.jsonl.gz log.parquet --select user.id,clicked --rename user.id=user
  millstream convert 'gs://bucket/log/*.parquet' gs://bucket/clicks.tfrecord.gz --shards 16
  millstream convert 'images-*.tar' images.parquet --select jpg,cls --type cls=integer
  millstream convert 'pairs-*.parquet' 'gs://bucket/pairs-*.tar' --shards 64 --rename image=jpg
  millstream convert 'photos/*/*' 'gs://bucket/photos-*.tar' --shards 32 --rename image=jpg
  millstream convert part-*.tfrecord.gz out.parquet --json | jq .rows")]
pub(crate) struct Convert {
    /// Files, globs and directories to convert, then the output
    #[arg(value_name = "IN... OUT", required = true)]
    pub(crate) paths: Vec<String>,
    /// Format of the input [default: by its content and extension]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) input_format: Option<InputFormat>,
    #[command(flatten)]
    pub(crate) columns: ColumnChoice,
    #[command(flatten)]
    pub(crate) written: Written,
    #[command(flatten)]
    pub(crate) csv: Csv,
}

/// The columns to convert.
#[derive(Debug, Args)]
#[command(next_help_heading = "Columns")]
pub(crate) struct ColumnChoice {
    /// Columns to write, in order [default: all]
    #[arg(long, value_name = "NAME,NAME...", value_delimiter = ',')]
    pub(crate) select: Option<Vec<String>>,
    /// Give a column another name; repeatable
    #[arg(long, value_name = "OLD=NEW", value_parser = parse_pair)]
    pub(crate) rename: Vec<(String, String)>,
    /// Type of a column, instead of the inferred one; repeatable
    #[arg(long = "type", value_name = "COLUMN=KIND", value_parser = parse_kind)]
    pub(crate) kinds: Vec<(String, Kind)>,
    /// TOML file of types (`day = "date"`), lists and names (`tags = { list = "|", rename = "labels" }`) of columns
    #[arg(long, value_name = "FILE")]
    pub(crate) schema: Option<PathBuf>,
    /// Separator of the elements of a list in a text, both of input and of CSV output; repeatable
    #[arg(long = "list", value_name = "COLUMN=TEXT", value_parser = parse_list)]
    pub(crate) separators: Vec<(String, String)>,
    /// Skip lines of CSV and JSON that cannot be read, and count them, instead of failing
    #[arg(long)]
    pub(crate) skip_bad_lines: bool,
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("expected two texts separated by `=`".to_owned()),
    }
}

fn parse_kind(text: &str) -> Result<(String, Kind), String> {
    let (name, kind) = parse_pair(text)?;
    Ok((name, kind.parse()?))
}

pub(super) fn parse_list(text: &str) -> Result<(String, String), String> {
    let (name, separator) = parse_pair(text)?;
    Ok((name, if separator == "tab" { "\t".to_owned() } else { separator }))
}

/// `generate`
#[derive(Debug, Args)]
#[command(after_help = "\
The columns are those of the Criteo log: the label `clicked`, counts i1 to i13, categories c1 to c26.
Labels are drawn from a known model, whose AUC is printed: no trained model can be expected to exceed it.
For held-out data, generate later rows (--first-row) with the same seed.

Examples:
  millstream generate --rows 2000000 --shards 16 data/train.tfrecord
  millstream generate --rows 200000 --first-row 2000000 --shards 4 data/eval.tfrecord
  millstream generate --ids integer --format parquet --compression zstd data/clicks@8.parquet")]
pub(crate) struct Generate {
    /// A file, a directory, or a name in which `*` or `@N` stands for the shard number
    #[arg(value_name = "OUT")]
    pub(crate) output: String,
    /// Number of rows
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rows: u64,
    /// Number of the first row
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) first_row: u64,
    /// Seed of the model and the rows
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Format of ids
    #[arg(long, value_enum, default_value = "hex")]
    pub(crate) ids: IdForm,
    /// Maximum number of distinct values of a categorical column
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) most_values: u32,
    #[command(flatten)]
    pub(crate) written: Written,
}

/// A format of generated ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IdForm {
    /// Eight hexadecimal digits, as in Criteo's log
    Hex,
    /// 64-bit integers
    Integer,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in
            [("0", Some(0)), ("64MiB", Some(64 << 20)), ("1GiB", Some(1 << 30)), ("2MB", None)]
        {
            assert_eq!(parse_size(text).ok(), bytes, "{text}");
        }
        assert!(
            parse_size("99999999999999999999GiB").is_err() && parse_size("18446744073709551615KiB").is_err()
        );
    }
}
