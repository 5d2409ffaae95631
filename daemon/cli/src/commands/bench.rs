//! `millstream bench`: measurements.

use millstream_daemon::pipeline::ingest::{self, IngestMeasurement, Stage};
use millstream_daemon::plan::{JobPlan, Learning};
use tokio::runtime::Runtime;

use crate::arguments::BenchIngest;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::job_file;
use crate::progress::Gauge;
use crate::table::Table;

/// `millstream bench ingest`: the input side alone.
pub(crate) fn ingest(arguments: &BenchIngest, context: &Context) -> Result<(), Failure> {
    let job = job_file::resolve(&arguments.job, context)?;
    let runtime = Runtime::new()?;
    let plan = {
        let gauge = Gauge::rows(&context.screen, "learning");
        let learning = Learning { most_bytes: u64::MAX, progress: &|now| gauge.update(now.rows) };
        JobPlan::new(&job, learning, runtime.handle())?
    };
    let measured = ingest::measure(plan.ingest)?;
    runtime.shutdown_background();
    context.answer(&measured, || describe(&measured))
}

fn describe(measured: &IngestMeasurement) -> String {
    let IngestMeasurement { rows, bytes, seconds, rows_per_second, stages } = measured;
    let mut totals = Table::default();
    totals.row(["rows", &figures::count(*rows)]);
    totals.row(["bytes", &figures::bytes(*bytes)]);
    totals.row(["seconds", &format!("{seconds:.3}")]);
    totals.row(["rows/s", &figures::rate(*rows_per_second)]);
    totals.row(["MB/s", &figures::rate(*bytes as f64 / 1e6 / seconds)]);
    let mut table = Table::with_titles(&["STAGE", ">BUSY s", ">WAIT s"]);
    let all = [
        ("fetch", stages.fetch),
        ("decode", stages.decode),
        ("transform", stages.transform),
        ("shuffle", stages.shuffle),
        ("pack", stages.pack),
        ("ring", stages.ring),
    ];
    for (name, Stage { busy_seconds, wait_seconds }) in all {
        table.row([name.to_owned(), format!("{busy_seconds:.3}"), format!("{wait_seconds:.3}")]);
    }
    format!("{}\n{}", totals.render(), table.render())
}
