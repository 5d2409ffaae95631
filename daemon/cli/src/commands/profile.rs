//! `millstream profile`: measures where the time of a job's steps goes, on one of its workers.

use std::path::{Path, PathBuf};

use millstream_control::proto::profile_reply::Reply;
use millstream_control::proto::{Diagnosis, StageUse};
use millstream_control::{Client, ClientError};
use serde::Serialize;

use crate::arguments::JobProfile;
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;
use crate::profile::{self, KernelSum, OperationSum, PhaseSum, Recorded, StageRate, Sums};
use crate::progress::Gauge;
use crate::screen::Screen;
use crate::table::Table;
use crate::unfinished::Unfinished;
use crate::{figures, interrupt};

/// Operations below this share of the time are summed up in one row.
const LEAST_SHARE: f64 = 0.0005;

pub(crate) async fn run(arguments: JobProfile, context: &Context) -> Result<(), Failure> {
    let JobProfile { job, steps, rank, output } = arguments;
    let interrupted = interrupt::listen()?;
    let find = async {
        let mut daemon = to_daemon(context).await?;
        let id = daemon.show(&job.id).await?.id;
        Ok((daemon, id))
    };
    let (mut daemon, id) = interrupt::unless(interrupted.clone(), find).await?;
    let path = output.unwrap_or_else(|| PathBuf::from(format!("{id}.trace.json")));
    // Fail before recording if the file cannot be written.
    let mut file = Unfinished::create(&path)?;
    let recording = record(&mut daemon, &id, (steps, rank), &context.screen);
    let recorded = interrupt::unless(interrupted, recording).await?;
    profile::write(&recorded, &mut file.writer)?;
    file.keep()?;
    warn(&recorded, steps, &context.screen);
    let sums = Sums::of(&recorded);
    context.answer(&ProfileJson::new(&recorded, &sums, steps, &path), || describe(&recorded, &sums, &path))
}

/// Records the steps of a rank. Dropping the future stops the recording.
async fn record(
    daemon: &mut Client,
    id: &str,
    (steps, rank): (u64, u32),
    screen: &Screen,
) -> Result<Recorded, Failure> {
    let mut replies = daemon.profile(id, steps, rank).await?;
    let gauge = Gauge::steps(screen, "recording", steps);
    let mut has_begun = false;
    let mut recorded = None;
    while let Some(reply) = replies.next().await.map_err(refusal)? {
        match (reply.reply, &mut recorded) {
            (Some(Reply::RecordedSteps(steps)), _) => {
                if !std::mem::replace(&mut has_begun, true) && !screen.is_terminal() {
                    screen.line(&format!("recording job {id}"));
                }
                gauge.update(steps);
            }
            (Some(Reply::Profile(profile)), _) => recorded = Some(Recorded::new(profile)),
            (Some(Reply::Track(track)), Some(recorded)) => recorded.add(track),
            (Some(Reply::Track(_)) | None, _) => {}
        }
    }
    let mut recorded =
        recorded.ok_or_else(|| anyhow::anyhow!("the daemon returned no profile of job {id}"))?;
    recorded.sort();
    Ok(recorded)
}

/// Why the daemon does not record: a rank that the job lacks is an invalid argument.
fn refusal(error: ClientError) -> Failure {
    match error {
        ClientError::Invalid(message) => Failure::Usage(message),
        other => other.into(),
    }
}

/// Warns if steps or spans are missing.
fn warn(recorded: &Recorded, asked: u64, screen: &Screen) {
    let profile = &recorded.profile;
    if profile.steps < asked {
        let why = if profile.full { "the span buffer is full" } else { "the job ended" };
        let (steps, asked) = (figures::count(profile.steps), figures::count(asked));
        screen.warning(&format!("recorded {steps} of {asked} steps: {why}"));
    }
    if profile.dropped_spans > 0 {
        let spans = figures::count(profile.dropped_spans);
        screen.warning(&format!("the trace lacks {spans} spans of ingest: the span buffer was full"));
    }
}

/// The report as text.
fn describe(recorded: &Recorded, sums: &Sums, path: &Path) -> String {
    let profile = &recorded.profile;
    let (seconds, steps) = (recorded.nanoseconds() as f64 / 1e9, profile.steps.max(1) as f64);
    let milliseconds = |seconds: f64| format!("{:.3}", seconds * 1e3 / steps);
    let mut rates = Table::default();
    if profile.ranks > 1 {
        rates.row(["rank", &format!("{} of {} workers", profile.rank, profile.ranks)]);
    }
    let [first, last] = [profile.after_step + 1, profile.after_step + profile.steps].map(figures::count);
    rates.row(["steps", &format!("{} ({first} to {last})", figures::count(profile.steps))]);
    rates.row(["time/step", &format!("{} ms", milliseconds(seconds))]);
    rates.row(["examples/s", &figures::rate(profile.examples as f64 / seconds)]);
    let [bytes, flops] = [profile.bytes_per_second, profile.flops_per_second].map(giga);
    let precision = &profile.precision;
    rates.row(["device", &format!("copies {bytes} GB/s, multiplies {flops} GFLOP/s ({precision})")]);

    let mut phases = Table::with_titles(&["PART OF A STEP", ">MS", ">SHARE", "WHAT IT DOES"]);
    for PhaseSum { phase, seconds, share } in &sums.phases {
        let what = what_it_does(phase);
        phases.row([*phase, &milliseconds(*seconds), &figures::percent(*share), what]);
    }

    let each_step = |calls: u64| {
        let calls = format!("{:.4}", calls as f64 / steps);
        calls.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let titles = ["OPERATION", "IN", ">CALLS", ">MS", ">SHARE", ">GB/S", ">GFLOP/S", ">ROOFLINE"];
    let mut operations = Table::with_titles(&titles);
    let (shown, rest): (Vec<_>, Vec<_>) = sums.operations.iter().partition(|sum| sum.share >= LEAST_SHARE);
    for sum in shown {
        let OperationSum { phase, calls, seconds, share, roofline, .. } = sum;
        operations.row([
            name(sum),
            phase.clone().unwrap_or_default(),
            each_step(*calls),
            milliseconds(*seconds),
            figures::percent(*share),
            giga(sum.bytes_per_second),
            giga(sum.flops_per_second),
            figures::percent(*roofline),
        ]);
    }
    if !rest.is_empty() {
        let (calls, seconds, share) = rest.iter().fold((0, 0.0, 0.0), |(calls, seconds, share), sum| {
            (calls + sum.calls, seconds + sum.seconds, share + sum.share)
        });
        let (name, calls) = (format!("{} more", rest.len()), format!("{:.0}", calls as f64 / steps));
        let (milliseconds, share) = (milliseconds(seconds), figures::percent(share));
        operations.row([name, String::new(), calls, milliseconds, share]);
    }

    let mut kernels = Table::with_titles(&["KERNEL", ">CALLS", ">MS", ">SHARE"]);
    for KernelSum { kernel, calls, seconds, share } in &sums.kernels {
        if *share >= LEAST_SHARE {
            kernels.row([
                kernel.clone(),
                each_step(*calls),
                milliseconds(*seconds),
                figures::percent(*share),
            ]);
        }
    }

    let wrote = format!("wrote {}; open it at https://ui.perfetto.dev or chrome://tracing", path.display());
    let mut tables = vec![rates, phases, operations];
    if !sums.kernels.is_empty() {
        tables.push(kernels);
    }
    let tables: Vec<_> = tables.iter().map(Table::render).collect();
    let tables = tables.join("\n");
    format!(
        "{tables}{ROOFLINE}\n\n{}\n{wrote}",
        ingest(profile.ingest.as_ref().unwrap_or(&Diagnosis::default()), sums)
    )
}

/// What the last column of operations means.
const ROOFLINE: &str = "\
ROOFLINE: the least time that the device's rates allow, as a share of the time
taken. Above 100 %, operands came from a cache: copies are measured in memory.";

/// What a part of a step does.
fn what_it_does(phase: &str) -> &'static str {
    match phase {
        "wait" => "waits for the next batch of ingest",
        "agreement" => "waits for the slowest of the job's workers",
        "upload" => "copies the batch to the device, and checks it",
        "plan" => "sorts the ids of the batch by table row",
        "forward" => "computes the predictions",
        "loss" => "computes the loss and its gradient",
        "backward" => "computes the gradients of all parameters",
        "exchange" => "exchanges gradients with the other workers",
        "update" => "applies the optimizer",
        "read" => "reads the loss back from the device",
        "release" => "gives the batch's memory back to ingest",
        "evaluation" => "evaluates on held-out rows",
        "checkpoint" => "copies the model for a checkpoint",
        "events" => "writes TensorBoard events",
        _ => "all else, between these parts",
    }
}

/// An operation's name and, for a layer, its size.
fn name(sum: &OperationSum) -> String {
    let OperationSum { operation, shape, .. } = sum;
    shape.map_or_else(|| operation.clone(), |[inputs, outputs]| format!("{operation} {inputs}x{outputs}"))
}

/// Billions.
fn giga(number: f64) -> String {
    let number = number / 1e9;
    if number >= 100.0 { figures::rate(number) } else { format!("{number:.2}") }
}

fn ingest(found: &Diagnosis, sums: &Sums) -> String {
    let mut stages = Table::with_titles(&["STAGE", ">BUSY", ">ROWS/S/THREAD", ">WAITING", "FOR"]);
    for StageUse { stage, busy, waiting, waits_for } in &found.stages {
        let rate = sums.stages.iter().find(|rate| rate.stage == stage);
        let rate = rate.map(|StageRate { seconds, rows, .. }| figures::rate(*rows as f64 / seconds));
        let busy = busy.map_or_else(|| "-".to_owned(), figures::percent);
        let waiting = if waits_for.is_empty() { "-".to_owned() } else { format!("{waiting:.1}") };
        stages.row([stage.clone(), busy, rate.unwrap_or_else(|| "-".to_owned()), waiting, waits_for.clone()]);
    }
    let mut finding = Table::default();
    finding.row(["input", &format!("{} rows/s", figures::rate(found.rows_per_second))]);
    finding.row(["bottleneck", &format!("{}: {}", found.bound, found.because)]);
    format!("{}\n{}", stages.render(), finding.render())
}

#[derive(Debug, Serialize)]
struct ProfileJson<'a> {
    job: &'a str,
    rank: u32,
    workers: u32,
    after_step: u64,
    steps: u64,
    asked_steps: u64,
    full: bool,
    examples: u64,
    seconds: f64,
    examples_per_second: f64,
    trace: String,
    device: DeviceJson<'a>,
    #[serde(flatten)]
    sums: &'a Sums,
    ingest: Option<&'a Diagnosis>,
    dropped_spans: u64,
}

#[derive(Debug, Serialize)]
struct DeviceJson<'a> {
    bytes_per_second: f64,
    flops_per_second: f64,
    precision: &'a str,
}

impl<'a> ProfileJson<'a> {
    fn new(recorded: &'a Recorded, sums: &'a Sums, asked_steps: u64, path: &Path) -> Self {
        let profile = &recorded.profile;
        let seconds = recorded.nanoseconds() as f64 / 1e9;
        Self {
            job: &profile.id,
            rank: profile.rank,
            workers: profile.ranks,
            after_step: profile.after_step,
            steps: profile.steps,
            asked_steps,
            full: profile.full,
            examples: profile.examples,
            seconds,
            examples_per_second: profile.examples as f64 / seconds,
            trace: path.display().to_string(),
            device: DeviceJson {
                bytes_per_second: profile.bytes_per_second,
                flops_per_second: profile.flops_per_second,
                precision: &profile.precision,
            },
            sums,
            ingest: profile.ingest.as_ref(),
            dropped_spans: profile.dropped_spans,
        }
    }
}

#[cfg(test)]
mod tests {
    use millstream_control::proto::Profile;

    use super::*;

    #[test]
    fn report_shows_phases_operations_and_ingest() {
        let stage = |stage: &str, busy, waiting, waits_for: &str| StageUse {
            stage: stage.into(),
            busy,
            waiting,
            waits_for: waits_for.into(),
        };
        let ingest = Diagnosis {
            rows_per_second: 200_000.0,
            stages: vec![
                stage("decode", Some(0.125), 0.0, ""),
                stage("ring", None, 0.9, "packer for a slot"),
            ],
            bound: "consumer".into(),
            because: "the ring is full".into(),
            ..Diagnosis::default()
        };
        let profile = Profile {
            ended_ns: 20_000_000,
            after_step: 999,
            steps: 10,
            examples: 4_000,
            bytes_per_second: 12.5e9,
            flops_per_second: 480e9,
            precision: "fp32".into(),
            ingest: Some(ingest),
            ..Profile::default()
        };
        let operation = |operation: &str, shape, seconds, share| OperationSum {
            operation: operation.into(),
            phase: Some("forward".into()),
            shape,
            calls: 15,
            seconds,
            share,
            bytes_per_second: 5e9,
            flops_per_second: 240e9,
            roofline: 0.5,
        };
        let sums = Sums {
            phases: vec![
                PhaseSum { phase: "forward", seconds: 0.015, share: 0.75 },
                PhaseSum { phase: "other", seconds: 0.005, share: 0.25 },
            ],
            operations: vec![
                operation("layer_forward", Some([128, 64]), 0.01, 0.5),
                operation("gather", None, 0.002, 0.1),
                operation("clear", None, 0.000_002, 0.000_1),
            ],
            kernels: vec![
                KernelSum { kernel: "product".into(), calls: 15, seconds: 0.008, share: 0.4 },
                KernelSum { kernel: "clear".into(), calls: 2, seconds: 0.000_002, share: 0.000_1 },
            ],
            stages: vec![StageRate { stage: "decode", seconds: 0.01, rows: 5_000 }],
        };
        let wanted = "\
steps       10 (1,000 to 1,009)
time/step   2.000 ms
examples/s  200,000
device      copies 12.50 GB/s, multiplies 480 GFLOP/s (fp32)

PART OF A STEP     MS   SHARE  WHAT IT DOES
forward         1.500  75.0 %  computes the predictions
other           0.500  25.0 %  all else, between these parts

OPERATION             IN       CALLS     MS   SHARE  GB/S  GFLOP/S  ROOFLINE
layer_forward 128x64  forward    1.5  1.000  50.0 %  5.00      240    50.0 %
gather                forward    1.5  0.200  10.0 %  5.00      240    50.0 %
1 more                             2  0.000   0.0 %

KERNEL   CALLS     MS   SHARE
product    1.5  0.800  40.0 %
ROOFLINE: the least time that the device's rates allow, as a share of the time
taken. Above 100 %, operands came from a cache: copies are measured in memory.

STAGE     BUSY  ROWS/S/THREAD  WAITING  FOR
decode  12.5 %        500,000        -
ring         -              -      0.9  packer for a slot

input       200,000 rows/s
bottleneck  consumer: the ring is full

wrote a.json; open it at https://ui.perfetto.dev or chrome://tracing";
        let recorded = Recorded::new(Profile { ranks: 1, ..profile.clone() });
        assert_eq!(describe(&recorded, &sums, Path::new("a.json")), wanted);
        let of_several = Recorded::new(Profile { rank: 1, ranks: 2, ..profile });
        let text = describe(&of_several, &sums, Path::new("a.json"));
        assert_eq!(text, format!("rank        1 of 2 workers\n{wanted}"));
    }

    #[test]
    fn every_part_of_a_step_is_explained() {
        let other = what_it_does("other");
        for phase in millstream_trace::Phase::ALL {
            assert_ne!(what_it_does(phase.name()), other, "{}", phase.name());
        }
    }
}
