//! Commands, flags and their help texts: of jobs in [`jobs`], of data files in [`data`], of
//! datasets in [`dataset`], of rows to score in [`scoring`]; here those of models and benchmarks.

mod data;
mod dataset;
mod jobs;
mod peers;
mod scoring;

use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

pub(crate) use data::{
    ColumnChoice, Convert, Csv, DataCompression, DataFormat, Fields, Generate, IdForm, Init, InputFormat,
    Inspect, Written,
};
pub(crate) use dataset::{
    CatalogPlace, Dataset, DatasetStatistics, DiffDatasets, Register, Rollback, ShowDataset, SplitChoice,
};
pub(crate) use jobs::{
    Audit, Check, Completions, Doctor, JobFile, JobHistory, JobId, JobProfile, List, Logs, ManPages, Place,
    PrintedMetrics, Repeated, SearchTrials, ShownLineage, Submitted, Top, Train, WebPage,
};
pub(crate) use peers::{InitCa, Issue, Peers, PeersCommand, Revoke};
pub(crate) use scoring::{Layout, Predict, ScoreFormat, Scored};

/// Train recommender and ranking models straight from Parquet, TFRecord and other files.
#[derive(Debug, Parser)]
#[command(name = "millstream", version, propagate_version = true, after_help = OVERVIEW)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    /// Parses the command line. Prints help and errors, and exits, as [`Parser::parse`] does.
    pub(crate) fn of_process() -> Self {
        let matches = with_flowing_help(Self::command()).get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// Lets the terminal's width decide where lines of the help texts end, except indented ones.
fn with_flowing_help(command: clap::Command) -> clap::Command {
    let names: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    let text = command.get_after_help().map(|text| flowing(&text.to_string()));
    let command =
        names.into_iter().fold(command, |command, name| command.mut_subcommand(name, with_flowing_help));
    match text {
        Some(text) => command.after_help(text),
        None => command,
    }
}

/// Joins the lines of each paragraph.
fn flowing(text: &str) -> String {
    let mut out = String::new();
    let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
    for (nth, line) in text.lines().enumerate() {
        let follows = out.lines().next_back().is_some_and(is_prose) && !out.ends_with('\n');
        match nth {
            0 => {}
            _ if follows && is_prose(line) => out.push(' '),
            _ => out.push('\n'),
        }
        out += line;
    }
    out
}

const OVERVIEW: &str = "\
Start here:
  millstream init 'data/*.parquet' -o job.toml write a job file for your data
  millstream check examples/census/job.toml    print the plan: data, model, memory
  millstream train examples/census/job.toml    train in this process

Exit status: 0 success, 1 failure, 2 usage error or invalid job, 130 after Ctrl-C.
MILLSTREAM_LOG=debug shows debug logs; NO_COLOR=1 disables colours.";

/// Flags of every command.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// The daemon's control socket [env: MILLSTREAM_SOCKET] [default: /run/millstream/millstreamd.sock
    /// for root, otherwise under $XDG_RUNTIME_DIR]
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Print one JSON document on standard output
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// A command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Write a job file for data: features, label and model chosen by statistics
    Init(Init),
    /// Train a job and show its progress; in the daemon if one is running, otherwise here
    Train(Train),
    /// Validate a job and print its plan without training
    Check(Check),
    /// Check this host: daemon, GPUs, memory, limits, disks, data; print what to mend
    Doctor(Doctor),
    /// Submit a job to the daemon and print its id
    #[command(after_help = "\
Examples:
  id=$(millstream submit job.toml)
  millstream logs -f \"$id\"")]
    Submit(Submitted),
    /// List the daemon's jobs, newest first
    List(List),
    /// Wait until a job ends; the exit status is that of the job
    #[command(after_help = "\
Exit status: 0 if the job succeeded, 1 if it failed, was cancelled or is held.

Examples:
  millstream wait census-2f9c && millstream export census-2f9c --output census.onnx")]
    Wait(JobId),
    /// Show a job's progress until it ends, as `train` does
    #[command(after_help = "\
Ctrl-C ends the display, not the job. The exit status is that of `wait`.

Examples:
  millstream watch census-2f9c")]
    Watch(JobId),
    /// Show one job
    #[command(after_help = "\
Examples:
  millstream show census-2f9c
  millstream show census --json | jq .progress")]
    Show(JobId),
    /// Show a running job's input rate, its bottleneck, and what to change
    #[command(after_help = "\
Covers the last few seconds. BUSY is the share of a stage's threads that were working; WAITING is the
average number of waiting threads. `bench ingest` prints the same report without a running job.

Examples:
  millstream explain census-2f9c
  millstream explain census --json | jq '.recent | .bound, .advice'")]
    Explain(JobId),
    /// Profile a running job's next steps: print tables and write a trace
    Profile(JobProfile),
    /// Plot a job's loss and metrics over its steps
    History(JobHistory),
    /// Show the trials of a hyper-parameter search, or print the best one's job file
    Trials(SearchTrials),
    /// Print a job's log
    Logs(Logs),
    /// List who changed which job, and who tried
    Audit(Audit),
    /// List this host and the others, measure links, and create certificates
    Peers(Peers),
    /// List the open feeds of trainers of other programs
    #[command(after_help = "\
Programs attach to feeds with the Python package `millstream`. A feed is listed while its ranks are attached. `explain` says
what limits it.

Examples:
  millstream feeds
  millstream explain feed-k3f9q2")]
    Feeds,
    /// Save a checkpoint of a job, then stop it
    #[command(after_help = "\
`resume` continues the job from its last checkpoint.

Examples:
  millstream cancel census-2f9c")]
    Cancel(JobId),
    /// Save a checkpoint of a job, then stop it until it is resumed
    #[command(after_help = "\
A paused job keeps its place in its data and gives its memory, threads and GPU to others. `resume` queues it again.

Examples:
  millstream pause census-2f9c
  millstream resume census-2f9c")]
    Pause(JobId),
    /// Queue a paused, cancelled, failed or held job again, from its last checkpoint
    #[command(after_help = "\
A job is held if the daemon died twice while it was under way, without a new checkpoint in between.

Examples:
  millstream resume census-2f9c")]
    Resume(JobId),
    /// Delete an ended job's record, log and history; its checkpoints stay
    #[command(after_help = "\
Examples:
  millstream remove census-2f9c
  millstream list --state failed --json | jq -r '.jobs[].id' | xargs -n1 millstream remove")]
    Remove(JobId),
    /// Save a checkpoint of a running job now and print its path
    #[command(after_help = "\
The checkpoint counts towards `checkpoint.keep` and is deleted when enough newer ones exist.

Examples:
  millstream eval \"$(millstream checkpoint census-2f9c)\"")]
    Checkpoint(JobId),
    /// Show a live screen of the daemon's jobs: rates, bottlenecks, curves, logs
    Top(Top),
    /// Print the address of the daemon's web page: jobs, curves, bottlenecks and logs in a browser
    Web(WebPage),
    /// Print the daemon's metrics in a format of Prometheus
    #[command(after_help = "\
The daemon serves the same over HTTP if its configuration has `metrics_address`. Without a port, write it
to a file NAME.prom in the directory of node_exporter's textfile collector, through a rename.

Examples:
  millstream metrics | grep millstream_job_loss
  millstream metrics > millstream.new && mv millstream.new millstream.prom")]
    Metrics(PrintedMetrics),
    /// Show what a model came from: checkpoint, job, features, versions of the files, earlier runs
    Lineage(ShownLineage),
    /// Run the job of an earlier run again
    Rerun(Repeated),
    /// Evaluate a trained model on held-out data
    #[command(after_help = "\
The metrics (AUC, log loss, calibration, RMSE and others) depend on the job's label and loss. For a job
with several labels, --json groups them by label.

Examples:
  millstream eval census-2f9c
  millstream eval census-2f9c --best
  millstream eval checkpoints/census-2f9c/step-0000000500 'data/2026-11-*.parquet'
  millstream eval census-2f9c test.csv
  millstream eval gs://bucket/runs/census-2f9c test.csv")]
    Eval(Scored),
    /// Write the score of each row of data
    Predict(Predict),
    /// Export a trained model as ONNX, or its parameters as safetensors
    Export(Export),
    /// Describe data files: schema, records, compression, first rows, damage
    Inspect(Inspect),
    /// Convert files to Parquet, TFRecord, WebDataset, MDS, JSON lines or CSV
    Convert(Convert),
    /// Generate a synthetic click log and print its best possible AUC
    Generate(Generate),
    /// Name versions of files, and compare them
    #[command(subcommand)]
    Dataset(Dataset),
    /// Run a benchmark
    #[command(subcommand)]
    Bench(Bench),
    /// Print completions for a shell
    #[command(after_help = "\
Packages install them.

Examples:
  millstream completions bash > ~/.local/share/bash-completion/completions/millstream
  millstream completions zsh > ~/.zfunc/_millstream
  millstream completions fish > ~/.config/fish/completions/millstream.fish")]
    Completions(Completions),
    /// Write manual pages
    #[command(hide = true)]
    ManPages(ManPages),
}

/// `export`
#[derive(Debug, Args)]
#[command(after_help = "\
An ONNX file holds the whole model in standard operators (opset 17). Each feature is an input with the
feature's name; the number of rows is free:
  numeric             double [rows, 1]  the raw number; the graph scales it
  one id per row      int64 [rows, 1]   the id
  several ids         int64 [rows, N]   the ids, padded with -1; N is free
  weights of ids      float [rows, N]   NAME_weights, if the feature NAME has `weights`
A missing number is NaN, a missing id -1. The outputs are `score`, the probability that predict
writes, and `logit`, both float [rows]. A two-tower model has no `logit`; one tower has the output
`vector`, float [rows, dim].

--transforms writes the model's features as source code: from rows of data to these inputs. The code
contains all vocabularies, boundaries and statistics, and computes ids and numbers exactly as predict
does from JSON lines; a value that predict refuses is an error. Dates and timestamps in text must be
ISO 8601. FILE.py is a module of Python 3.9 and needs only the standard library; FILE.h is a header of
C99 and C++, and needs only libc and libm.
  import onnxruntime, features
  session = onnxruntime.InferenceSession(\"census.onnx\")
  session.run([\"score\"], features.transform([{\"age\": 31, \"workclass\": \"Private\"}]))

The file's metadata, `millstream.features`, describes how values become ids: terms, buckets,
boundaries. Hashes are those of tf.strings.to_hash_bucket_fast, crosses those of
tf.sparse.cross_hashed. A model above 1 GiB stores its parameters in FILE.data.

A safetensors file holds the parameters as float32 under their names in the checkpoint, with the
same metadata.

Examples:
  millstream export census-2f9c --output census.onnx
  millstream export census-2f9c --output census.onnx --transforms features.py --transforms features.h
  millstream export checkpoints/census-2f9c/step-0000000500 --output census.safetensors
  millstream export films-81d0 --part item --output items.onnx
  millstream export gs://bucket/runs/census-2f9c --output census.onnx
  millstream export census-2f9c --output census.onnx --json | jq -c '.inputs[] | [.name, .type]'")]
pub(crate) struct Export {
    /// A job's id, or the directory of a job or a checkpoint, which may be in a bucket
    #[arg(value_name = "JOB_ID|CHECKPOINT")]
    pub(crate) target: String,
    /// File to write, which may be in a bucket; appears only when complete and replaces an existing file
    #[arg(short, long, value_name = "FILE", required_unless_present = "transforms")]
    pub(crate) output: Option<PathBuf>,
    /// Format to write [default: by the output's extension]
    #[arg(long, value_enum, requires = "output")]
    pub(crate) format: Option<ModelFormat>,
    /// Also write code that turns rows of data into the inputs of the ONNX file: FILE.py in Python, FILE.h in C;
    /// repeatable
    #[arg(long, value_name = "FILE")]
    pub(crate) transforms: Vec<PathBuf>,
    /// Use the job's best checkpoint (`checkpoint.keep_best`) instead of its newest
    #[arg(long)]
    pub(crate) best: bool,
    /// Export only one tower of a two-tower model: its features in, its vector out
    #[arg(long, value_enum)]
    pub(crate) part: Option<ModelPart>,
    /// Store the parameters of an ONNX model in FILE.data, whatever its size
    #[arg(long, requires = "output")]
    pub(crate) external_data: bool,
}

/// A part of a model that can be exported alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelPart {
    /// The query tower, for searching an index
    Query,
    /// The item tower, for building an index
    Item,
}

/// A format of exported models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelFormat {
    /// The whole model: ids in, scores out
    Onnx,
    /// The parameters only
    Safetensors,
}

/// `bench`
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Measure ingest alone: rows/s and bytes/s, by stage
    Ingest(BenchIngest),
}

/// `bench ingest`
#[derive(Debug, Args)]
#[command(after_help = "\
Reads, transforms, shuffles and packs the training data as for training, into a ring that is emptied
immediately. Reports the bottleneck like `millstream explain`.

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
    use super::*;

    #[test]
    fn help_texts_fill_the_lines_of_any_terminal() {
        assert_eq!(flowing("a\nb\n\nExamples:\n  c\n  d\n\ne\nf"), "a b\n\nExamples:\n  c\n  d\n\ne f");
        for width in [60, 80, 100] {
            let root = with_flowing_help(Arguments::command()).term_width(width);
            for below in root.get_subcommands() {
                let help = below.clone().term_width(width).render_long_help().to_string();
                let lines: Vec<&str> = help.lines().collect();
                let prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
                for pair in lines.windows(2).filter(|pair| prose(pair[0]) && prose(pair[1])) {
                    let next = pair[1].split(' ').next().unwrap_or_default();
                    let would_be = pair[0].chars().count() + 1 + next.chars().count();
                    assert!(would_be > width, "{} at {width}: {pair:#?}", below.get_name());
                }
            }
        }
    }

    #[test]
    fn definitions_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn global_flags_are_accepted_before_and_after_the_command() {
        for line in ["millstream --json --socket /s list", "millstream list --socket /s --json"] {
            let arguments = Arguments::try_parse_from(line.split(' ')).expect(line);
            assert!(arguments.global.json);
            assert_eq!(arguments.global.socket.as_deref(), Some("/s".as_ref()));
        }
    }

    #[test]
    fn overrides_accumulate_and_accept_any_value() {
        let line = ["millstream", "train", "a.toml", "--set", "seed=-1", "--set", "model.deep.hidden=[1, 2]"];
        let Command::Train(train) = Arguments::try_parse_from(line).expect("a train command").command else {
            panic!("not a train command");
        };
        assert_eq!(train.submitted.job.set, ["seed=-1", "model.deep.hidden=[1, 2]"]);
    }

    #[test]
    fn usage_errors_exit_with_status_2() {
        for line in ["millstream", "millstream trian job.toml", "millstream show", "millstream bench"] {
            let error = Arguments::try_parse_from(line.split(' ')).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn commands_with_overrides_show_examples() {
        let mut seen = 0;
        for command in Arguments::command().get_subcommands() {
            if command.get_arguments().any(|argument| argument.get_id() == "set") {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("Examples:"), "{}", command.get_name());
                seen += 1;
            }
        }
        assert_eq!(seen, 4, "check, train, submit, rerun");
    }
}
