//! `millstream bench`: measurements.

use std::time::Instant;

use millstream_daemon::pipeline::ingest::{self, IngestMeasurement};
use millstream_daemon::plan::{JobPlan, Learning};
use millstream_daemon::service::explanation_message;
use millstream_daemon::worker::device::HostSurvey;
use serde::Serialize;
use tokio::runtime::Runtime;

use crate::arguments::BenchIngest;
use crate::commands::explain;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::job_file;
use crate::progress::Gauge;
use crate::table::Table;

/// A measurement, and what came before it.
#[derive(Serialize)]
struct Measured {
    /// Listing, reading footers, and learning what the features ask for.
    planning_seconds: f64,
    #[serde(flatten)]
    ingest: IngestMeasurement,
}

/// `millstream bench ingest`: the input side alone.
pub(crate) fn ingest(arguments: &BenchIngest, context: &Context) -> Result<(), Failure> {
    let mut job = job_file::resolve(&arguments.job, context)?;
    job.data.epochs = arguments.epochs;
    // Held-out data would only blur what is measured.
    job.data.eval.clear();
    let runtime = Runtime::new()?;
    let start = Instant::now();
    let plan = {
        let gauge = Gauge::rows(&context.screen, "learning");
        let learning = Learning { most_bytes: u64::MAX, progress: &|now| gauge.update(now.rows) };
        JobPlan::new(&job, &HostSurvey::from_current_exe, learning, runtime.handle())?
    };
    let planning_seconds = start.elapsed().as_secs_f64();
    let measured = Measured { planning_seconds, ingest: ingest::measure(plan.ingest)? };
    runtime.shutdown_background();
    context.answer(&measured, || describe(&measured))
}

fn describe(measured: &Measured) -> String {
    let Measured { planning_seconds, ingest } = measured;
    let IngestMeasurement { rows, bytes, seconds, first_batch_seconds, planned_bytes, explanation, .. } =
        ingest;
    let mut totals = Table::default();
    totals.row(["rows", &figures::count(*rows)]);
    totals.row(["bytes", &figures::bytes(*bytes)]);
    totals.row(["seconds", &format!("{seconds:.3}, the first batch after {first_batch_seconds:.3}")]);
    totals.row(["before", &format!("{planning_seconds:.3} s of listing, footers and learning")]);
    totals.row(["memory", &format!("at most {}", figures::bytes(*planned_bytes))]);
    let explained = explanation_message(explanation);
    let whole = explained.whole.clone().unwrap_or_default();
    format!("{}\n{}", totals.render(), explain::describe(&explained, &whole))
}
