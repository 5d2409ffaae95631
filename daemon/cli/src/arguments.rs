//! What may be typed. Help texts, man pages and completions all come from here.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Trains wide & deep recommenders on the data as it lies, and keeps them fed.
#[derive(Debug, Parser)]
#[command(name = "millstream", version, propagate_version = true, after_help = OVERVIEW)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const OVERVIEW: &str = "\
Begin with:
  millstream check examples/census/job.toml    what would be trained, on what, in how much memory
  millstream train examples/census/job.toml    train it here and now

Exit status: 0 done, 1 failed, 2 wrong usage or an invalid job.
MILLSTREAM_LOG=debug shows what the libraries log; NO_COLOR=1 keeps colours away.";

/// What every command takes.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Control socket of the daemon [env: MILLSTREAM_SOCKET] [default: /run/millstream/millstreamd.sock
    /// for root, else below $XDG_RUNTIME_DIR]
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Print one JSON document on standard output, and nothing else there
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a job to its end, with progress: in the daemon if one listens, else right here
    Train(Train),
    /// Resolve and validate a job, and print the plan; nothing is trained
    Check(Check),
    /// Hand a job to the daemon, and print its id
    Submit(Submit),
    /// List the daemon's jobs, newest first
    #[command(after_help = "\
Examples:
  millstream list
  millstream list --json | jq -r '.jobs[] | select(.state == \"failed\").id'")]
    List,
    /// Show one job
    #[command(after_help = "\
Examples:
  millstream show census-2f9c
  millstream show census --json | jq .progress")]
    Show(JobId),
    /// Say how a running job's input goes, what holds it back, and what to change
    #[command(after_help = "\
The last seconds are looked at. BUSY is the share of the threads a stage may use that it kept at work,
WAITING how many threads waited on average. `bench ingest` tells the same of a job that is not running.

Examples:
  millstream explain census-2f9c
  millstream explain census --json | jq '.recent | .bound, .advice'")]
    Explain(JobId),
    /// Record a running job's next steps: where their time goes, as tables and as a trace to look at
    Profile(JobProfile),
    /// Show a job's loss and metrics over its steps, as a plot or a picture
    History(JobHistory),
    /// Print a job's log
    Logs(Logs),
    /// Stop a job after a checkpoint
    #[command(after_help = "\
What was trained is kept: `submit --resume` and `train --resume` go on with it.

Examples:
  millstream cancel census-2f9c")]
    Cancel(JobId),
    /// Take a checkpoint of a running job now, and print its path
    #[command(after_help = "\
It counts as one of the newest that the job keeps, and goes when enough newer ones are there.

Examples:
  millstream eval \"$(millstream checkpoint census-2f9c)\"")]
    Checkpoint(JobId),
    /// Score held-out data with a trained model: AUC, log loss, RMSE, calibration and more
    Eval(Eval),
    /// Score data row by row with a trained model
    Predict(Predict),
    /// Write a trained model for other programs: ONNX, or its parameters as safetensors
    Export(Export),
    /// Tell what is in data files: schema, records, compression, first rows, damage
    Inspect(Inspect),
    /// Convert CSV, Parquet and TFRecord files into one another
    Convert(Convert),
    /// Make a synthetic click log, and tell the best AUC that a model of it can have
    Generate(Generate),
    /// Measure a part of the system
    #[command(subcommand)]
    Bench(Bench),
}

/// A job file and what replaces single keys of it.
#[derive(Debug, Args)]
pub(crate) struct JobFile {
    /// The job file
    #[arg(value_name = "JOB.toml")]
    pub(crate) path: PathBuf,
    /// Replace one key of the job file; may be given again
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

/// `check`
#[derive(Debug, Args)]
#[command(after_help = "\
Files are listed and columns looked for. Training data of up to 64 MiB is also read for what features
learn from it, so that sizes are exact; more than that only with --learn.

Examples:
  millstream check job.toml
  millstream check job.toml --set data.batch_size=4096 --set 'model.deep.hidden=[64, 32]'
  millstream check job.toml --json | jq .memory")]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) job: JobFile,
    /// Read the training data for what features learn from it, however much it is
    #[arg(long)]
    pub(crate) learn: bool,
}

/// `train`
#[derive(Debug, Args)]
#[command(after_help = "\
Ctrl-C stops after a checkpoint, from which --resume goes on; pressed again it quits at once.

Examples:
  millstream train job.toml
  millstream train job.toml --set data.epochs=3 --set checkpoint.directory=/tmp/run
  millstream train job.toml --resume
  millstream train job.toml --history curves.svg
  millstream train job.toml --json | jq .eval.auc")]
pub(crate) struct Train {
    #[command(flatten)]
    pub(crate) job: JobFile,
    /// Go on with the newest unfinished run of the same job, from its last checkpoint
    #[arg(long)]
    pub(crate) resume: bool,
    /// Write the loss and metrics over the steps of this run to FILE at its end: .svg or .json
    #[arg(long, value_name = "FILE")]
    pub(crate) history: Option<PathBuf>,
}

/// `submit`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  id=$(millstream submit job.toml)
  millstream logs -f \"$id\"")]
pub(crate) struct Submit {
    #[command(flatten)]
    pub(crate) job: JobFile,
    /// Go on with the newest unfinished run of the same job, from its last checkpoint
    #[arg(long)]
    pub(crate) resume: bool,
}

/// A job of the daemon.
#[derive(Debug, Args)]
pub(crate) struct JobId {
    /// The job's id, or as much of its beginning as no other job shares
    #[arg(value_name = "JOB_ID")]
    pub(crate) id: String,
}

/// `logs`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millstream logs census-2f9c
  millstream logs -f census")]
pub(crate) struct Logs {
    #[command(flatten)]
    pub(crate) job: JobId,
    /// Go on printing until the job ends
    #[arg(short, long)]
    pub(crate) follow: bool,
}

/// `profile`
#[derive(Debug, Args)]
#[command(after_help = "\
FILE has every stage of ingest and every operation of training on one line of time, in Chrome's trace
event format. Open it at https://ui.perfetto.dev, which keeps it in your browser, or in Chrome at
chrome://tracing.

MS is the time a step, and CALLS the calls a step. GB/S counts each input of an operation read once and
each output written once, GFLOP/S its additions and multiplications. ROOFLINE is the least time that
the operation could take on this device over the time that it took: by its bytes at the rate at which
the device copies 64 MiB, or by its FLOPs at the rate at which it multiplies large matrices in the
job's precision, whichever is longer. Both rates are measured after the steps. What lies in the
processor's caches moves faster than memory, so that small operations may be above 100 %.

On a GPU the times of operations, their kernels and copies are the GPU's own, and while steps are
recorded none of a step's parts goes on beside another: such steps take longer than others.

The job trains as ever, and to the same bits; while it is recorded its steps take some hundredths
longer. It is to be a job of a daemon (`submit`, or `train` while `millstreamd` runs). Ctrl-C ends the
recording, and not the job.

Examples:
  millstream profile census-2f9c
  millstream profile census --steps 200 --output slow.trace.json
  millstream profile census --json | jq '.phases[] | [.phase, .share]'")]
pub(crate) struct JobProfile {
    #[command(flatten)]
    pub(crate) job: JobId,
    /// Steps to record
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: u64,
    /// Where the trace goes, in place of a file that was there [default: JOB_ID.trace.json, here]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// `history`
#[derive(Debug, Args)]
#[command(after_help = "\
Each point of the training loss is the mean of the steps since the last. Of a long job some
thousand points are kept, and every metric of every evaluation.

The daemon keeps the history. A job that `train` runs without a daemon leaves none, but
`train --history FILE` writes it at the end, and [tensorboard] in the job file has event files
written as it goes.

Examples:
  millstream history census-2f9c
  millstream history census --svg curves.svg
  millstream history census --json | jq '.evaluations[-1].metrics.auc'")]
pub(crate) struct JobHistory {
    #[command(flatten)]
    pub(crate) job: JobId,
    /// Draw it as SVG into this file, instead of the terminal
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// What is scored, with what.
#[derive(Debug, Args)]
pub(crate) struct Scored {
    /// A job's id, or the directory of a job or of one of its checkpoints
    #[arg(value_name = "JOB_ID|CHECKPOINT")]
    pub(crate) target: String,
    /// Files and globs to score [default: the job's own held-out data]
    #[arg(value_name = "DATA")]
    pub(crate) data: Vec<String>,
    /// Take the job's best checkpoint (`checkpoint.keep_best`) instead of its newest
    #[arg(long)]
    pub(crate) best: bool,
}

/// `eval`
#[derive(Debug, Args)]
#[command(after_help = "\
What is told depends on what the job predicts. Of a job of several labels, --json has the metrics of
each under its name.

Examples:
  millstream eval census-2f9c
  millstream eval census-2f9c --best
  millstream eval checkpoints/census-2f9c/step-0000000500 'data/2026-11-*.parquet'")]
pub(crate) struct Eval {
    #[command(flatten)]
    pub(crate) scored: Scored,
}

/// `predict`
#[derive(Debug, Args)]
#[command(after_help = "\
Scores are probabilities of the positive class, or the numbers that a job of the loss \"mse\"
predicts, one for each row, in the order of the data: files by their paths, each once, and the rows
in them. Rows that the job's own `filter` or `on_bad_record` leaves out have none. The data needs no
label. Those of a two-tower model are products of its vectors, over the temperature. Of a label of
`classes` there is the probability of each class, and the class that is predicted, which has the
highest.

Parquet has one column, `score`, of 32-bit floats; of a job of several labels one for each,
`score_LABEL`; of a label of classes one for each, `score_CLASS`, and `class`, which is text. The
name scores.csv.gz has text compressed, as has .zst.

Examples:
  millstream predict census-2f9c 'new/*.parquet' > scores.csv
  millstream predict census-2f9c 'new/*.parquet' --format jsonl | head
  millstream predict checkpoints/census-2f9c new.parquet --output scores.parquet")]
pub(crate) struct Predict {
    #[command(flatten)]
    pub(crate) scored: Scored,
    /// Write to this file instead of standard output; it appears when it is whole
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// How scores are written [default: what the output's name says, else csv]
    #[arg(long, value_enum)]
    pub(crate) format: Option<ScoreFormat>,
}

/// How scores are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScoreFormat {
    /// A line `score`, then one score a line
    Csv,
    /// `{"score": 0.5}`, one a line
    Jsonl,
    /// A Parquet file
    Parquet,
}

/// `export`
#[derive(Debug, Args)]
#[command(after_help = "\
ONNX holds the whole model, in standard operators (set 17) that onnxruntime and others run. Each
feature is an input of its name; rows come first, as many as you like:
  numeric             double [rows, 1]  the number as in the data, which the graph scales
  one id a row        int64 [rows, 1]   the id
  several ids a row   int64 [rows, N]   the ids, then -1 to the end of the row; N is any number
  and their weights   float [rows, N]   as NAME_weights: each beside its id, where the feature NAME has `weights`
An absent number is NaN, an absent id -1. Outputs are `score`, the probability that predict
writes, and `logit`, both float [rows]. A two-tower model has no `logit`; a part of it has
`vector`, float [rows, dim].

How values become ids is in the file's metadata, `millstream.features`: terms, buckets,
boundaries. Hashes are those of tf.strings.to_hash_bucket_fast, crosses of
tf.sparse.cross_hashed. A model above 1 GiB has its numbers beside it, in FILE.data.

safetensors holds the parameters, float32, by their names in the checkpoint, with the same
metadata.

Examples:
  millstream export census-2f9c --output census.onnx
  millstream export checkpoints/census-2f9c/step-0000000500 --output census.safetensors
  millstream export films-81d0 --part item --output items.onnx
  millstream export census-2f9c --output census.onnx --json | jq -c '.inputs[] | [.name, .type]'")]
pub(crate) struct Export {
    /// A job's id, or the directory of a job or of one of its checkpoints
    #[arg(value_name = "JOB_ID|CHECKPOINT")]
    pub(crate) target: String,
    /// The file to write; it appears when it is whole, in place of one that was there
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// What to write [default: what the output's name says]
    #[arg(long, value_enum)]
    pub(crate) format: Option<ModelFormat>,
    /// Take the job's best checkpoint (`checkpoint.keep_best`) instead of its newest
    #[arg(long)]
    pub(crate) best: bool,
    /// One tower of a two-tower model alone: its features in, its vector out
    #[arg(long, value_enum)]
    pub(crate) part: Option<ModelPart>,
    /// Put the numbers of an ONNX model into FILE.data, whatever its size
    #[arg(long)]
    pub(crate) external_data: bool,
}

/// A part of a model that is of use alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelPart {
    /// What makes a query's vector, to ask an index with
    Query,
    /// What makes an item's vector, to be indexed
    Item,
}

/// What a model is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelFormat {
    /// The whole model, ids in and scores out
    Onnx,
    /// Its parameters
    Safetensors,
}

/// How CSV files are laid out.
#[derive(Debug, Args)]
#[command(next_help_heading = "CSV")]
pub(crate) struct Csv {
    /// What stands between two fields: one character, or `tab`
    #[arg(long, value_name = "CHAR", default_value = ",", value_parser = parse_delimiter)]
    pub(crate) delimiter: u8,
    /// Names of the columns, where the first line does not have them
    #[arg(long, value_name = "NAME,NAME...", value_delimiter = ',')]
    pub(crate) columns: Option<Vec<String>>,
    /// Leave out lines that start with this character
    #[arg(long, value_name = "CHAR", value_parser = parse_byte)]
    pub(crate) comment: Option<u8>,
    /// Take this off the end of a line's last field, where it is there
    #[arg(long, value_name = "TEXT")]
    pub(crate) strip_suffix: Option<String>,
    /// A value that stands for "missing", besides the empty one; may be given again
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
Files are read to their end, so that damage anywhere in them is found; then the exit status is 1. More
than a few files are summed up, with what is damaged; --all and --json tell each.

Examples:
  millstream inspect data/part-00000.tfrecord.gz
  millstream inspect data/ --all --rows 0
  millstream inspect data/*.gz --json | jq '.[] | select(.error)'")]
pub(crate) struct Inspect {
    /// Files, globs, and directories or prefixes that end in `/`
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<String>,
    /// How many of the first rows to show
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) rows: usize,
    /// Tell each file, however many there are
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) threads: Threads,
    #[command(flatten)]
    pub(crate) csv: Csv,
}

/// How many threads work on files.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Threads {
    /// Threads to work on [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
}

impl Threads {
    /// As many as were asked for, or as there are cores.
    pub(crate) fn count(self) -> usize {
        self.threads.map_or_else(
            || std::thread::available_parallelism().map_or(1, usize::from),
            |threads| threads as usize,
        )
    }
}

/// A format of data files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DataFormat {
    /// Separated fields, one record a line
    Csv,
    /// Parquet
    Parquet,
    /// TFRecord files of tf.train.Example
    Tfrecord,
}

/// How data files are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DataCompression {
    /// Not at all
    None,
    /// gzip (TFRecord, CSV)
    Gzip,
    /// zlib (TFRecord, CSV)
    Zlib,
    /// Zstandard (all)
    Zstd,
    /// Snappy (Parquet)
    Snappy,
}

/// How data files are written.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Written {
    /// Files to make, with as many rows each, give or take one; their numbers go into the name
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) shards: Option<u32>,
    /// Format to write [default: what the name says]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) format: Option<DataFormat>,
    /// How to compress [default: what the name says; Parquet with Snappy]
    #[arg(long, value_enum, value_name = "HOW")]
    pub(crate) compression: Option<DataCompression>,
    /// Rows of a Parquet row group, the part of a file that is read at a time
    #[arg(long, value_name = "ROWS", default_value_t = 65_536)]
    pub(crate) group_rows: usize,
    #[command(flatten)]
    pub(crate) threads: Threads,
    /// The most memory for rows on their way, such as `256MiB`; one block of a file always is, and an upload
    /// to a cloud takes 40MiB beside [default: 256MiB for each thread]
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
    bytes.ok_or_else(|| "expected a size that memory can have".to_owned())
}

/// `convert`
#[derive(Debug, Args)]
#[command(after_help = "\
OUT is a file, a name with a `*` or `@N` where the shards' numbers go, or a directory. Files appear under
their names once all of them are whole, and are the same for any number of threads. IN and OUT may be in
a cloud: gs://, s3://, az://.

Examples:
  millstream convert adult.data adult.parquet --columns age,workclass,fnlwgt,income --missing '?'
  millstream convert 'log/*.csv' clicks.tfrecord.gz --shards 16
  millstream convert 'gs://bucket/log/*.parquet' gs://bucket/clicks.tfrecord.gz --shards 16
  millstream convert part-*.tfrecord.gz out.parquet --json | jq .rows")]
pub(crate) struct Convert {
    /// Files, globs and directories to convert, then where to
    #[arg(value_name = "IN... OUT", required = true)]
    pub(crate) paths: Vec<String>,
    /// Format of the input [default: what its bytes and names say]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) input_format: Option<DataFormat>,
    #[command(flatten)]
    pub(crate) written: Written,
    #[command(flatten)]
    pub(crate) csv: Csv,
}

/// `generate`
#[derive(Debug, Args)]
#[command(after_help = "\
Columns are those of Criteo's log: the label `clicked`, counts i1 to i13, categories c1 to c26. Labels are
drawn from a planted model, whose own AUC on them is told: no model can be expected to do better.
Held-out data of the same model is rows further on, with the same seed.

Examples:
  millstream generate --rows 2000000 --shards 16 data/train.tfrecord
  millstream generate --rows 200000 --first-row 2000000 --shards 4 data/eval.tfrecord
  millstream generate --ids integer --format parquet --compression zstd data/clicks@8.parquet")]
pub(crate) struct Generate {
    /// A file, a name with a `*` or `@N` where the shards' numbers go, or a directory
    #[arg(value_name = "OUT")]
    pub(crate) output: String,
    /// How many rows
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rows: u64,
    /// Number of the first row
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) first_row: u64,
    /// What the planted model and the rows are drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// How ids are written
    #[arg(long, value_enum, default_value = "hex")]
    pub(crate) ids: IdForm,
    /// The most distinct values of a categorical column
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) most_values: u32,
    #[command(flatten)]
    pub(crate) written: Written,
}

/// How generated ids are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IdForm {
    /// Eight hexadecimal digits, as in Criteo's log
    Hex,
    /// 64-bit integers
    Integer,
}

/// `bench`
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Measure the input side alone: rows and bytes a second, stage by stage
    Ingest(BenchIngest),
}

/// `bench ingest`
#[derive(Debug, Args)]
#[command(after_help = "\
The training data is read, transformed, shuffled and packed as for training, into a ring whose other end
only empties it. What held it back is told as by `millstream explain`.

Examples:
  millstream bench ingest job.toml
  millstream bench ingest job.toml --epochs 3 --set data.memory_budget=256MiB
  millstream bench ingest job.toml --json | jq .rows_per_second")]
pub(crate) struct BenchIngest {
    #[command(flatten)]
    pub(crate) job: JobFile,
    /// Passes over the training data
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) epochs: u32,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_hold_together() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn global_flags_go_anywhere() {
        for line in ["millstream --json --socket /s list", "millstream list --socket /s --json"] {
            let arguments = Arguments::try_parse_from(line.split(' ')).expect(line);
            assert!(arguments.global.json);
            assert_eq!(arguments.global.socket.as_deref(), Some("/s".as_ref()));
        }
    }

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

    #[test]
    fn overrides_add_up_and_may_look_like_anything() {
        let line = ["millstream", "train", "a.toml", "--set", "seed=-1", "--set", "model.deep.hidden=[1, 2]"];
        let Command::Train(train) = Arguments::try_parse_from(line).expect("a train command").command else {
            panic!("not a train command");
        };
        assert_eq!(train.job.set, ["seed=-1", "model.deep.hidden=[1, 2]"]);
    }

    #[test]
    fn wrong_usage_is_refused_with_status_2() {
        for line in ["millstream", "millstream trian job.toml", "millstream show", "millstream bench"] {
            let error = Arguments::try_parse_from(line.split(' ')).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn every_command_that_takes_arguments_shows_examples() {
        let mut seen = 0;
        for command in Arguments::command().get_subcommands() {
            if command.get_arguments().any(|argument| argument.get_id() == "set") {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("Examples:"), "{}", command.get_name());
                seen += 1;
            }
        }
        assert_eq!(seen, 3, "check, train, submit");
    }
}
