//! Commands on jobs, on the daemon and on this host.

use std::path::PathBuf;

use chrono::{DateTime, TimeDelta, Utc};
use clap::Args;
use clap_complete::Shell;
use millstream_control::proto::JobState;

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
    /// vocabularies are kept. Without JOB.toml, the job is that of the checkpoint. A run in a bucket needs JOB.toml
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

Of a job with several workers, one is recorded: rank 0, or that of --rank. `exchange` and `agreement` are its
time in exchanges with the others, most of it waiting: the slowest worker has the smallest share.

Profiling changes no bit of what is trained and slows the recorded steps by a few percent. The job must
run in a daemon (`submit`, or `train` while `millstreamd` runs). Ctrl-C stops the recording, not the job.

Examples:
  millstream profile census-2f9c
  millstream profile census --steps 200 --output slow.trace.json
  millstream profile census --rank 1 --output rank1.trace.json
  millstream profile census --json | jq '.phases[] | [.phase, .share]'")]
pub(crate) struct JobProfile {
    #[command(flatten)]
    pub(crate) job: JobId,
    /// Steps to record
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: u64,
    /// The worker to record, of a job with several: 0 is the first
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) rank: u32,
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
