//! `millstream list`: lists the daemon's jobs.

use std::time::{Duration, SystemTime};

use millstream_control::proto::{Job, ListReply, ListRequest};
use serde_json::json;

use crate::arguments::List;
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::screen::output_width;
use crate::table::Table;

/// Columns that a narrow terminal does without, the first one first.
const EXPENDABLE: [&str; 4] = ["STEP", "EPOCH", "LOSS", "EXAMPLES/S"];

pub(crate) async fn run(List { state, limit }: List, context: &Context) -> Result<(), Failure> {
    let states = state.into_iter().map(Into::into).collect();
    let ListReply { jobs, omitted } = to_daemon(context).await?.list(ListRequest { states, limit }).await?;
    if omitted > 0 {
        let omitted = figures::count(omitted);
        context.screen.note(&format!(
            "{omitted} older jobs are not shown; `-n 0` shows all, `millstream remove JOB_ID` deletes ended ones"
        ));
    }
    let now_ms = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis() as u64;
    context.answer(&json!({ "jobs": jobs, "omitted": omitted }), || table(&jobs, now_ms, output_width()))
}

/// The jobs at the time `now_ms`, for a terminal of this width.
fn table(jobs: &[Job], now_ms: u64, width: Option<usize>) -> String {
    let titles = ["JOB", "STATE", ">EPOCH", ">STEP", ">DONE", ">EXAMPLES/S", ">LOSS", ">EVAL", ">AGE"];
    let mut table = Table::with_titles(&titles);
    for job in jobs {
        let progress = job.progress.unwrap_or_default();
        let has_started = progress.step > 0;
        let if_started = |text: String| if has_started { text } else { "-".to_owned() };
        // A search does not train itself: its steps are those of its trials.
        let trains = has_started && progress.epochs > 0;
        let if_trains = |text: String| if trains { text } else { "-".to_owned() };
        let epoch = (progress.epoch + 1).min(progress.epochs.max(1));
        let done = progress.total_steps.filter(|&total| total > 0);
        let done = done.map(|total| format!("{} %", 100 * progress.step.min(total) / total));
        let age = Duration::from_millis(now_ms.saturating_sub(job.created_ms));
        table.row([
            job.id.clone(),
            job.state().name().to_owned(),
            if_trains(format!("{epoch}/{}", progress.epochs)),
            if_started(figures::count(progress.step)),
            if_started(done.unwrap_or_else(|| "-".to_owned())),
            if_trains(figures::rate(progress.examples_per_second)),
            if_trains(figures::metric(progress.loss)),
            evaluation(job),
            figures::age(age),
        ]);
    }
    table.fitted(width, &EXPENDABLE).render()
}

/// The main metric of the first label.
fn evaluation(job: &Job) -> String {
    let measured = job.eval.first().and_then(|metrics| metrics.measured.first());
    measured.map_or_else(
        || "-".to_owned(),
        |measured| format!("{} {}", measured.name.replace('_', " "), figures::metric(measured.value)),
    )
}

#[cfg(test)]
mod tests {
    use millstream_control::proto::{JobProgress, JobState, MetricValue, Metrics};

    use super::*;

    #[test]
    fn a_listing_fits_the_terminal() {
        let mut running = Job { id: "census-wide-deep-2f9c".into(), created_ms: 1_000, ..Job::default() };
        running.set_state(JobState::Running);
        running.progress = Some(JobProgress {
            step: 123_456,
            total_steps: Some(250_000),
            epoch: 11,
            epochs: 16,
            examples_per_second: 1_234_567.0,
            loss: 0.3102,
            ..JobProgress::default()
        });
        let auc = MetricValue { name: "auc".into(), value: Some(0.9151), error: None };
        running.eval = vec![Metrics { measured: vec![auc], ..Metrics::default() }];
        let mut queued = Job { id: "clicks-81d0".into(), created_ms: 86_400_000, ..Job::default() };
        queued.set_state(JobState::Queued);
        let jobs = [running, queued];
        let lines = |width| table(&jobs, 90_000_000, width).lines().map(str::to_owned).collect::<Vec<_>>();
        let wanted = [
            "JOB                    STATE    EPOCH     STEP  DONE  EXAMPLES/S    LOSS        EVAL  AGE",
            "census-wide-deep-2f9c  running  12/16  123,456  49 %   1,234,567  0.3102  auc 0.9151   1d",
            "clicks-81d0            queued       -        -     -           -       -           -   1h",
        ];
        assert_eq!(lines(None), wanted);
        for width in [120, 80, 60] {
            let lines = lines(Some(width));
            assert!(lines.iter().all(|line| line.len() <= width), "{width}: {lines:#?}");
            for title in ["JOB", "STATE", "DONE", "EVAL", "AGE"] {
                assert!(lines[0].contains(title), "{width}: {lines:#?}");
            }
        }
        assert!(lines(Some(80))[0].contains("EXAMPLES/S"));
    }
}
