//! `millstream list`: lists the daemon's jobs.

use millstream_control::proto::{Job, ListReply};
use serde_json::json;

use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::table::Table;

pub(crate) async fn run(context: &Context) -> Result<(), Failure> {
    let ListReply { jobs, omitted } = to_daemon(context).await?.list().await?;
    if omitted > 0 {
        let omitted = figures::count(omitted);
        let text =
            format!("{omitted} older jobs are not shown; `millstream remove JOB_ID` deletes ended ones");
        context.screen.warning(&text);
    }
    context.answer(&json!({ "jobs": jobs, "omitted": omitted }), || table(&jobs))
}

fn table(jobs: &[Job]) -> String {
    let mut table =
        Table::with_titles(&["JOB", "STATE", ">EPOCH", ">STEP", ">EXAMPLES/S", ">LOSS", ">EVAL", "CREATED"]);
    for job in jobs {
        let progress = job.progress.unwrap_or_default();
        let has_started = progress.step > 0;
        let step = match progress.total_steps {
            Some(total) => format!("{}/{}", figures::count(progress.step), figures::count(total)),
            None => figures::count(progress.step),
        };
        let if_started = |text: String| if has_started { text } else { "-".to_owned() };
        let epoch = (progress.epoch + 1).min(progress.epochs.max(1));
        table.row([
            job.id.clone(),
            job.state().name().to_owned(),
            if_started(format!("{epoch}/{}", progress.epochs)),
            if_started(step),
            if_started(figures::rate(progress.examples_per_second)),
            if_started(figures::metric(progress.loss)),
            evaluation(job),
            figures::moment(job.created_ms),
        ]);
    }
    table.render()
}

/// The main metric of the first label.
fn evaluation(job: &Job) -> String {
    let measured = job.eval.first().and_then(|metrics| metrics.measured.first());
    measured.map_or_else(
        || "-".to_owned(),
        |measured| format!("{} {}", measured.name.replace('_', " "), figures::metric(measured.value)),
    )
}
