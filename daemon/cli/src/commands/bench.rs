//! `millstream bench`: benchmarks.

use std::time::Instant;

use millstream_daemon::messages::explanation_message;
use millstream_daemon::plan::{JobPlan, Learning};
use millstream_daemon::survey::survey_host_with_current_exe;
use millstream_io::storage::Stores;
use millstream_pipeline::ingest::{self, IngestMeasurement};
use serde::Serialize;
use tokio::runtime::Runtime;

use crate::arguments::BenchIngest;
use crate::commands::explain;
use crate::context::Context;
use crate::failure::Failure;
use crate::progress::Gauge;
use crate::table::Table;
use crate::{figures, job_file};

/// A measurement of ingest and its preparation.
#[derive(Serialize)]
struct Report {
    /// Time to list files, read footers, and learn vocabularies and statistics.
    planning_seconds: f64,
    #[serde(flatten)]
    ingest: IngestMeasurement,
}

/// `millstream bench ingest`: ingest without training.
pub(crate) fn ingest(arguments: &BenchIngest, context: &Context) -> Result<(), Failure> {
    let mut job = job_file::resolve(&arguments.job, context)?;
    job.data.epochs = arguments.epochs;
    // Measure training data only.
    job.data.eval.clear();
    job.data.validation = None;
    let runtime = Runtime::new()?;
    let start = Instant::now();
    let plan = {
        let gauge = Gauge::rows(&context.screen, "learning");
        let learning = Learning { most_bytes: u64::MAX, progress: &|now| gauge.update(now.rows) };
        let stores = Stores::default().for_job(&job.storage);
        JobPlan::new(&job, &survey_host_with_current_exe, learning, (&stores, runtime.handle()))?
    };
    let planning_seconds = start.elapsed().as_secs_f64();
    let report = Report { planning_seconds, ingest: ingest::measure(plan.ingest)? };
    runtime.shutdown_background();
    context.answer(&report, || describe(&report))
}

fn describe(report: &Report) -> String {
    let Report { planning_seconds, ingest } = report;
    let IngestMeasurement { rows, bytes, seconds, first_batch_seconds, planned_bytes, explanation, .. } =
        ingest;
    let mut totals = Table::default();
    totals.row(["rows", &figures::count(*rows)]);
    totals.row(["bytes", &figures::bytes(*bytes)]);
    totals.row(["seconds", &format!("{seconds:.3}; first batch after {first_batch_seconds:.3}")]);
    totals.row(["planning", &format!("{planning_seconds:.3} s of listing, footers and learning")]);
    totals.row(["memory", &format!("at most {}", figures::bytes(*planned_bytes))]);
    let explained = explanation_message(explanation);
    let whole = explained.whole.clone().unwrap_or_default();
    format!("{}\n{}", totals.render(), explain::describe(&explained, &whole))
}
