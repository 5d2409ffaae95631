//! Commands, flags and their help texts: of jobs here, of data files in [`data`], of rows to score in [`scoring`].

mod data;
mod dataset;
mod scoring;

use std::path::PathBuf;

use chrono::{DateTime, TimeDelta, Utc};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use millstream_control::proto::JobState;

pub(crate) use data::{
    ColumnChoice, Convert, Csv, DataCompression, DataFormat, Fields, Generate, IdForm, Init, Inspect, Written,
};
pub(crate) use dataset::{
    CatalogPlace, Dataset, DatasetStatistics, DiffDatasets, Register, Rollback, ShowDataset,
};
pub(crate) use scoring::{Layout, Predict, ScoreFormat, Scored};

/// Train recommender and ranking models straight from TFRecord and Parquet files.
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
  millstream eval census-2f9c test.csv")]
    Eval(Scored),
    /// Write the score of each row of data
    Predict(Predict),
    /// Export a trained model as ONNX, or its parameters as safetensors
    Export(Export),
    /// Describe data files: schema, records, compression, first rows, damage
    Inspect(Inspect),
    /// Convert between CSV, JSON lines, Parquet and TFRecord
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

/// `top`
#[derive(Debug, Args)]
#[command(after_help = "\
Keys: arrows select a job, enter opens its page, / filters, s sorts, c cancels, p pauses, r resumes, w saves
a checkpoint, ? lists all, q quits. CPU is in cores. Without a terminal, one picture is printed.

Examples:
  millstream top
  millstream top --once
  millstream top --json | jq '.jobs[].ingest.recent.bound'")]
pub(crate) struct Top {
    /// Seconds between two updates, from 0.1 to 3600
    #[arg(long, short = 'i', value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    pub(crate) interval: f64,
    /// Print one picture and exit
    #[arg(long)]
    pub(crate) once: bool,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds from 0.1 to 3600".to_owned())
}

/// `lineage`
#[derive(Debug, Args)]
#[command(after_help = "\
Reads the records in run directories, without a daemon if the target is a directory. Two runs with the same
job fingerprint and the same hashes of data train the same model. Hashes are shortened; --json has them whole.

Examples:
  millstream lineage census-2f9c
  millstream lineage checkpoints/census-2f9c/step-0000000500 --json
  millstream lineage census-2f9c --svg lineage.svg")]
pub(crate) struct ShownLineage {
    /// The job's id, or the directory of a run or a checkpoint
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,
    /// Also draw it in this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// `rerun`
#[derive(Debug, Args)]
#[command(after_help = "\
Queues a new job from the record in the run directory; prints its id. Without --set it reads the exact
versions of the files that the earlier run read, and keeps its decisions, such as the batch size and the
checkpoint of a warm start: it trains the same model, or fails because a file has changed. With --set,
it reads the same versions if the files are the same ones, and decides the rest again. Addresses are
recorded without secrets, so a job that reads signed addresses needs its job file.

Examples:
  millstream rerun census-2f9c
  millstream rerun checkpoints/census-2f9c --set seed=2
  millstream lineage \"$(millstream rerun census-2f9c)\"")]
pub(crate) struct Repeated {
    /// The job's id, or the directory of a run
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,
    /// Override a key of the job
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Start before jobs of a lower priority, from -1000 to 1000
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) priority: i32,
}

/// `web`
#[derive(Debug, Args)]
#[command(after_help = "\
The daemon serves the page on 127.0.0.1 from then on, or at `web_address` of its configuration. The page
changes nothing. The token in the address keeps other users of the host out, and is new at each start of the
daemon. From another machine, open a tunnel and use the same address there.

Examples:
  millstream web
  ssh -N -L 9465:127.0.0.1:9465 HOST &
  ssh HOST millstream web --port 9465")]
pub(crate) struct WebPage {
    /// The port, from 1024 on, if the page is not served yet [default: a free one]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1024..))]
    pub(crate) port: Option<u16>,
}

/// `metrics`
#[derive(Debug, Args)]
pub(crate) struct PrintedMetrics {
    /// Print OpenMetrics 1.0 instead of the text format 0.0.4
    #[arg(long)]
    pub(crate) openmetrics: bool,
}

/// `completions`
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: Shell,
}

/// `man-pages`
#[derive(Debug, Args)]
pub(crate) struct ManPages {
    /// The directory to write
    pub(crate) directory: PathBuf,
}

/// A job file and overrides of single keys.
#[derive(Debug, Args)]
pub(crate) struct JobFile {
    /// The job file
    #[arg(value_name = "JOB.toml", required_unless_present = "continues")]
    pub(crate) path: Option<PathBuf>,
    /// Go on training the newest checkpoint of the run directory RUN, or this checkpoint, in a new run: for more
    /// epochs (--set data.epochs=N) or on other data (--set data.train=...). Optimizer state, step count and
    /// vocabularies are kept. Without JOB.toml, the job is that of the checkpoint
    #[arg(long = "continue", value_name = "RUN")]
    pub(crate) continues: Option<PathBuf>,
    /// Override one key of the job file; repeatable
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

/// `check`
#[derive(Debug, Args)]
#[command(after_help = "\
Lists the files and looks up the columns. If the training data is 64 MiB or less, or with --learn, also
reads it to learn vocabularies and statistics, which makes the sizes exact.

Examples:
  millstream check job.toml
  millstream check job.toml --set data.batch_size=4096 --set 'model.deep.hidden=[64, 32]'
  millstream check job.toml --json | jq .memory")]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) job: JobFile,
    /// Read the training data to learn vocabularies and statistics, whatever its size
    #[arg(long)]
    pub(crate) learn: bool,
}

/// `doctor`
#[derive(Debug, Args)]
#[command(after_help = "\
Prints one line per check: ok, warn, fail or skipped, the state, and for all but ok the command or setting
that mends it. Of a job, it also checks the data, the directories and the plan. Nothing is changed: the
measurement of a disk writes up to 256 MiB to a file without a name for at most a second.

Exit status: 0 if no check failed (warnings are allowed), 1 if one failed, 2 for a usage error.

Examples:
  millstream doctor
  millstream doctor job.toml
  millstream doctor 'gs://bucket/clicks/*.parquet' /data/clicks
  millstream doctor --quick --json | jq '.checks[] | select(.mark != \"ok\")'")]
pub(crate) struct Doctor {
    /// Job files (*.toml), addresses of data (gs://, s3://, az://, https://; globs are allowed) and paths
    #[arg(value_name = "JOB.toml|ADDRESS|PATH")]
    pub(crate) targets: Vec<String>,
    /// Measure nothing: neither disks nor reads of data
    #[arg(long)]
    pub(crate) quick: bool,
}

/// Where to run: by default in the daemon if one is running, otherwise in this process.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Place {
    /// Run in this process, even if a daemon is running
    #[arg(long, conflicts_with_all = ["daemon", "socket"])]
    pub(crate) local: bool,
    /// Run in the daemon; fail if none is running
    #[arg(long)]
    pub(crate) daemon: bool,
}

/// The job to submit.
#[derive(Debug, Args)]
pub(crate) struct Submitted {
    #[command(flatten)]
    pub(crate) job: JobFile,
    /// Continue the newest unfinished run of this job from its last checkpoint
    #[arg(long)]
    pub(crate) resume: bool,
    /// Start before jobs of a lower priority, from -1000 to 1000
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) priority: i32,
}

/// `train`
#[derive(Debug, Args)]
#[command(after_help = "\
The job runs in the daemon if one listens on the socket, and the first line says so. Otherwise, and with
--local, it runs in this process.

Ctrl-C saves a checkpoint and stops; --resume continues from it. A second Ctrl-C quits immediately.

Examples:
  millstream train job.toml
  millstream train job.toml --local
  millstream train job.toml --set data.epochs=3 --set checkpoint.directory=/tmp/run
  millstream train job.toml --resume
  millstream train --continue checkpoints/census-k3f9q2 --set data.epochs=20
  millstream train --continue checkpoints/clicks-7aajpd --set 'data.train=[\"day-2.parquet\"]'
  millstream train job.toml --history curves.svg
  millstream train job.toml --json | jq .eval.auc")]
pub(crate) struct Train {
    #[command(flatten)]
    pub(crate) submitted: Submitted,
    #[command(flatten)]
    pub(crate) place: Place,
    /// When the run ends, write its loss and metrics over the steps to FILE (.svg or .json)
    #[arg(long, value_name = "FILE")]
    pub(crate) history: Option<PathBuf>,
}

/// `list`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millstream list
  millstream list --state running,queued
  millstream list --state failed -n 0 --json | jq -r '.jobs[].id'")]
pub(crate) struct List {
    /// Only jobs in these states
    #[arg(long, value_name = "STATE,STATE...", value_delimiter = ',', value_parser = parse_state)]
    pub(crate) state: Vec<JobState>,
    /// Maximum number of jobs, the newest ones; 0 for all
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    pub(crate) limit: u32,
}

fn parse_state(text: &str) -> Result<JobState, String> {
    JobState::ALL.into_iter().find(|state| state.name() == text).ok_or_else(|| {
        let known: Vec<_> = JobState::ALL.iter().map(|state| state.name()).collect();
        format!("expected one of {}", known.join(", "))
    })
}

/// A job of the daemon.
#[derive(Debug, Args)]
pub(crate) struct JobId {
    /// The job's id, or a unique prefix of it
    #[arg(value_name = "JOB_ID")]
    pub(crate) id: String,
}

/// `logs`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millstream logs census-2f9c
  millstream logs -f census
  millstream logs -n 20 census
  millstream logs --since 10m census
  millstream logs --since 2026-11-25T08:00:00Z census")]
pub(crate) struct Logs {
    #[command(flatten)]
    pub(crate) job: JobId,
    /// Keep printing new lines until the job ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only the last N lines, and with -f those that follow
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) lines: Option<u64>,
    /// Only lines from then on: a duration before now (90s, 10m, 3h, 2d) or a time (2026-11-25T08:00:00Z)
    #[arg(long, value_name = "WHEN", value_parser = parse_when)]
    pub(crate) since: Option<u64>,
}

/// `audit`
#[derive(Debug, Args)]
#[command(after_help = "\
The newest records are last. The daemon keeps 20,000 for 400 days, also those of removed jobs. Of refused and
failed calls of a user in a short time it records some and counts the others.

Examples:
  millstream audit
  millstream audit census-2f9c
  millstream audit --user ann --since 7d
  millstream audit -n 0 --json | jq '.records[] | select(.outcome == \"refused\")'")]
pub(crate) struct Audit {
    /// Only of jobs whose ids start with this, or that have this name
    #[arg(value_name = "JOB")]
    pub(crate) job: Option<String>,
    /// Only of this user: a name or a number
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Only records from then on: a duration before now (90s, 10m, 3h, 2d) or a time (2026-11-25T08:00:00Z)
    #[arg(long, value_name = "WHEN", value_parser = parse_when)]
    pub(crate) since: Option<u64>,
    /// Maximum number of records, the newest ones; 0 for all
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    pub(crate) limit: u32,
}

/// Milliseconds since the Unix epoch of a time, or of a duration before now.
fn parse_when(text: &str) -> Result<u64, String> {
    let wrong = || {
        "expected a duration such as 90s, 10m, 3h or 2d, or a time such as 2026-11-25T08:00:00Z".to_owned()
    };
    let moment = match DateTime::parse_from_rfc3339(text) {
        Ok(moment) => moment.to_utc(),
        Err(_) => {
            let unit = text.chars().next_back().ok_or_else(wrong)?;
            let number: i64 = text[..text.len() - unit.len_utf8()].parse().map_err(|_| wrong())?;
            let seconds = match unit {
                's' => 1,
                'm' => 60,
                'h' => 3_600,
                'd' => 86_400,
                _ => return Err(wrong()),
            };
            let before = number.checked_mul(seconds).and_then(TimeDelta::try_seconds).ok_or_else(wrong)?;
            Utc::now().checked_sub_signed(before).ok_or_else(wrong)?
        }
    };
    u64::try_from(moment.timestamp_millis()).map_err(|_| wrong())
}

/// `profile`
#[derive(Debug, Args)]
#[command(after_help = "\
FILE is a trace in Chrome's trace event format: every stage of ingest and every operation of training
on one timeline. Open it at https://ui.perfetto.dev, which does not upload it, or in Chrome at
chrome://tracing.

MS and CALLS are per step. GB/S counts each input of an operation as read once and each output as
written once; GFLOP/S counts additions and multiplications. ROOFLINE is the shortest time possible on
this device divided by the measured time. The shortest time is the longer of two: the bytes at the rate
of a 64 MiB copy, and the FLOPs at the rate of a large matrix product in the job's precision. Both rates
are measured after the steps. The processor's caches are faster than memory, so small operations can
exceed 100 %.

On a GPU, times come from the GPU's events. While recording, the parts of a step run one after another,
so recorded steps take longer.

Profiling changes no bit of what is trained and slows the recorded steps by a few percent. The job must
run in a daemon (`submit`, or `train` while `millstreamd` runs). Ctrl-C stops the recording, not the job.

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
    /// Trace file to write; replaces an existing file [default: JOB_ID.trace.json]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// `history`
#[derive(Debug, Args)]
#[command(after_help = "\
Each point of the training loss is the mean of the steps since the previous point. The daemon keeps
about a thousand points of a long job, and every metric of every evaluation.

A job that `train` runs without a daemon has no history afterwards: use `train --history FILE`, or
[tensorboard] in the job file to write event files during training.

Examples:
  millstream history census-2f9c
  millstream history census-2f9c --metric loss,auc
  millstream history census --svg curves.svg
  millstream history census --json | jq '.evaluations[-1].metrics.auc'")]
pub(crate) struct JobHistory {
    #[command(flatten)]
    pub(crate) job: JobId,
    /// Only these metrics; `loss` is the training loss, beside the held-out log loss [default: all]
    #[arg(long, value_name = "METRIC,METRIC...", value_delimiter = ',')]
    pub(crate) metric: Vec<String>,
    /// Write an SVG file instead of plotting in the terminal
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// `trials`
#[derive(Debug, Args)]
#[command(after_help = "\
A search is a job whose file has a [search]. Its trials are jobs of their own; the id of one of them shows the
search too. RUNG is the number of comparisons with other trials that a trial has reached. A trial that the search
stopped keeps its checkpoint. `cancel`, `pause` and `resume` of the search do the same with its trials.

Examples:
  millstream trials census-2f9c
  millstream trials census-2f9c --plot trials.svg
  millstream trials census-2f9c --best > best.toml && millstream train best.toml
  millstream trials census-2f9c --json | jq '.trials[] | select(.is_best)'")]
pub(crate) struct SearchTrials {
    #[command(flatten)]
    pub(crate) job: JobId,
    /// Print the job file of the best trial, with its values set
    #[arg(long)]
    pub(crate) best: bool,
    /// Also draw the trials as parallel coordinates into an SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
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
  millstream export census-2f9c --output census.onnx --json | jq -c '.inputs[] | [.name, .type]'")]
pub(crate) struct Export {
    /// A job's id, or the directory of a job or a checkpoint
    #[arg(value_name = "JOB_ID|CHECKPOINT")]
    pub(crate) target: String,
    /// File to write; appears only when complete and replaces an existing file
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
    fn moments_are_durations_before_now_or_times() {
        assert_eq!(parse_when("2026-11-25T08:00:00Z"), Ok(1_795_593_600_000));
        assert_eq!(parse_when("2026-11-25T09:00:00+01:00"), Ok(1_795_593_600_000));
        let now = Utc::now().timestamp_millis() as u64;
        for (text, seconds) in [("90s", 90), ("10m", 600), ("3h", 10_800), ("2d", 172_800)] {
            let age = now - parse_when(text).expect(text);
            assert!(age.abs_diff(1000 * seconds) < 60_000, "{text}: {age}");
        }
        for text in
            ["", "m", "10", "10\u{e9}", "1.5h", "99999999999999d", "-9999999999999999999d", "yesterday"]
        {
            assert!(parse_when(text).is_err(), "{text}");
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
