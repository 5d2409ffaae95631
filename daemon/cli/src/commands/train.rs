//! `millstream train`: trains a job and waits for it.

use std::path::Path;
use std::time::Duration;

use millstream_control::proto::{History, Job, JobState, LogsRequest, Metrics};
use millstream_control::{Client, ClientError, Replies, json};
use serde::Serialize;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::arguments::Train;
use crate::commands::history::HistoryFormat;
use crate::commands::trials;
use crate::connection::Connection;
use crate::context::Context;
use crate::failure::Failure;
use crate::progress::ProgressView;
use crate::screen::Screen;
use crate::table::Table;
use crate::{figures, interrupt, job_file};

/// How long to wait for the last lines of the log after a job has ended.
const LOG_TIMEOUT: Duration = Duration::from_secs(1);
/// No model of real clicks or purchases reaches this.
const SUSPICIOUS_AUC: f64 = 0.9999;

pub(crate) async fn run(arguments: Train, context: &Context) -> Result<(), Failure> {
    let history_format = arguments.history.as_deref().map(HistoryFormat::of).transpose()?;
    let (request, warnings) = job_file::request(&arguments.submitted, context)?;
    let interrupted = interrupt::listen()?;
    let file = arguments.submitted.job.path;
    let mut connection = Connection::at(arguments.place, context).await?;
    let job = connection.client.submit(request).await?;
    if !connection.is_hosted() {
        let socket = context.socket().map(|socket| format!(" at {}", socket.display())).unwrap_or_default();
        let how = "Ctrl-C saves a checkpoint and stops it; --local trains in this process instead";
        context.screen.note(&format!("job {} runs in the daemon{socket}; {how}", job.id));
    }
    let mut outcome = follow(&mut connection.client, &job.id, warnings, interrupted, &context.screen).await;
    if let Ok(ended) = &mut outcome
        && let Ok(shown) = connection.client.show(&ended.id).await
    {
        // What a watched job leaves out.
        ended.best_checkpoint = shown.best_checkpoint;
    }
    let history = match &outcome {
        Ok(job) if history_format.is_some() => Some(connection.client.history(&job.id).await),
        _ => None,
    };
    let trials = match &outcome {
        Ok(job) if !context.json => trials::of_search(&mut connection.client, &job.id).await,
        _ => None,
    };
    connection.close().await;
    let job = outcome?;
    let answered = if context.json {
        context.document(&OutcomeJson::from(&job))
    } else if job.progress.is_some_and(|progress| progress.step > 0) {
        doubt(&job, file.as_deref()).into_iter().for_each(|doubt| context.screen.note(&doubt));
        let trials = trials.map(|table| format!("\n{table}")).unwrap_or_default();
        context.print(&(summary(&job) + &trials))
    } else {
        Ok(())
    };
    // A closed standard output does not change the exit status, which reports how the job ended.
    if let Err(failure) = answered
        && !matches!(failure, Failure::OutputClosed)
    {
        return Err(failure);
    }
    let written = match (history_format, &arguments.history, history) {
        (Some(format), Some(path), Some(history)) => write_history(format, path, history, &context.screen),
        _ => Ok(()),
    };
    match job.state() {
        JobState::Succeeded => written,
        JobState::Paused => {
            context.screen.note(&format!("job {0} was paused; `millstream resume {0}` continues it", job.id));
            Err(Failure::AlreadyReported)
        }
        JobState::Cancelled => {
            context.screen.note(&format!("job {} was stopped; --resume continues it", job.id));
            Err(Failure::AlreadyReported)
        }
        _ => {
            context.screen.error(&format!("job {} failed: {}", job.id, job.reason()));
            Err(Failure::AlreadyReported)
        }
    }
}

/// Writes a job's history to a file. Reports a failure itself, because the caller still reports how the job ended.
fn write_history(
    format: HistoryFormat,
    path: &Path,
    history: Result<History, ClientError>,
    screen: &Screen,
) -> Result<(), Failure> {
    let written = history.map_err(Failure::from).and_then(|history| format.write(path, &history));
    written.map_err(|failure| {
        screen.error(&format!("cannot write the history to {}: {failure}", path.display()));
        Failure::AlreadyReported
    })
}

/// Shows a job until it has ended, and cancels it when interrupted.
async fn follow(
    client: &mut Client,
    id: &str,
    shown_warnings: Vec<String>,
    mut interrupted: watch::Receiver<bool>,
    screen: &Screen,
) -> Result<Job, Failure> {
    let log = follow_log(client.clone(), id.to_owned(), shown_warnings, screen.clone());
    let mut jobs = watch(client, id).await?;
    let mut view = ProgressView::new(screen);
    let mut stopping: Option<JoinHandle<Result<Job, ClientError>>> = None;
    let job = loop {
        tokio::select! {
            job = next(&mut jobs) => {
                let job = job?;
                view.update(&job);
                if job.state().is_final() {
                    break job;
                }
            }
            _ = interrupted.wait_for(|&interrupted| interrupted), if stopping.is_none() => {
                screen.line("saving a checkpoint before stopping; press Ctrl-C again to quit immediately");
                let (mut client, id) = (client.clone(), id.to_owned());
                stopping = Some(tokio::spawn(async move { client.cancel(&id).await }));
            }
        }
    };
    view.finish();
    // The result of `log` adds nothing; the daemon's log keeps lines that arrive too late.
    let _ = tokio::time::timeout(LOG_TIMEOUT, log).await;
    Ok(job)
}

/// Watches a job.
pub(super) async fn watch(client: &mut Client, id: &str) -> Result<Replies<Job>, ClientError> {
    client.watch(id).await.map_err(unfollowed)
}

/// The next state of a watched job.
pub(super) async fn next(jobs: &mut Replies<Job>) -> Result<Job, ClientError> {
    let ended = || ClientError::Lost("the daemon stopped; it resumes the job at its next start".into());
    jobs.next().await.map_err(unfollowed)?.ok_or_else(ended)
}

/// The error of a client that cannot follow a job any longer, which says what becomes of the job.
fn unfollowed(error: ClientError) -> ClientError {
    match error {
        ClientError::Lost(why) => {
            ClientError::Lost(format!("{why}; if the daemon stopped, it resumes the job at its next start"))
        }
        other => other,
    }
}

/// Prints new warnings of a job's log in the background. Errors end the job and are reported with its end.
fn follow_log(mut client: Client, id: String, shown: Vec<String>, screen: Screen) -> JoinHandle<()> {
    tokio::spawn(async move {
        let request = LogsRequest { id, follow: true, ..LogsRequest::default() };
        let Ok(mut lines) = client.logs(request).await else { return };
        while let Ok(Some(line)) = lines.next().await {
            if line.level == "warn" && !shown.iter().any(|shown| line.text.ends_with(shown)) {
                screen.warning(&line.text);
            }
        }
    })
}

/// The outcome as JSON.
#[derive(Debug, Serialize)]
struct OutcomeJson<'a> {
    job: &'a str,
    state: &'static str,
    steps: u64,
    examples: u64,
    examples_per_second: f64,
    input_wait_fraction: f64,
    skipped_records: u64,
    #[serde(serialize_with = "json::eval")]
    eval: &'a [Metrics],
    checkpoint: Option<&'a str>,
    best_checkpoint: Option<&'a str>,
    reason: Option<&'a str>,
}

impl<'a> From<&'a Job> for OutcomeJson<'a> {
    fn from(job: &'a Job) -> Self {
        let progress = job.progress.unwrap_or_default();
        Self {
            job: &job.id,
            state: job.state().name(),
            steps: progress.step,
            examples: progress.examples,
            examples_per_second: progress.examples_per_second,
            input_wait_fraction: progress.input_wait_fraction,
            skipped_records: progress.skipped_records,
            eval: &job.eval,
            checkpoint: job.checkpoint.as_deref(),
            best_checkpoint: job.best_checkpoint.as_deref(),
            reason: job.reason.as_deref(),
        }
    }
}

/// A doubt about metrics that are too good. With one label and a job `file`, the command that measures one feature.
fn doubt(job: &Job, file: Option<&Path>) -> Option<String> {
    let aucs = job.eval.iter().flat_map(|eval| &eval.measured).filter(|metric| metric.name == "auc");
    if !aucs.filter_map(|auc| auc.value).any(|auc| auc >= SUSPICIOUS_AUC) {
        return None;
    }
    let how = file.filter(|_| job.eval.len() == 1).map(|file| {
        let file = file.display();
        format!(
            ". The AUC of one feature alone: millstream train {file} --set \
             'model={{kind=\"linear\", features=[\"FEATURE\"]}}'"
        )
    });
    Some(format!(
        "the held-out AUC is nearly 1: check that no feature is derived from the label, such as an amount that is 0 \
         without it{}",
        how.unwrap_or_default()
    ))
}

fn summary(job: &Job) -> String {
    let progress = job.progress.unwrap_or_default();
    let mut table = Table::default();
    table.row(["job", &job.id]);
    if let Some(reason) = &job.reason {
        table.row(["reason", reason]);
    }
    let total = progress.total_steps.filter(|&total| total != progress.step);
    let total = total.map(|total| format!(" of {}", figures::count(total))).unwrap_or_default();
    table.row(["steps", &(figures::count(progress.step) + &total)]);
    table.row(["examples", &figures::count(progress.examples)]);
    table.row(["examples/s", &figures::rate(progress.examples_per_second)]);
    table.row(["input wait", &figures::percent(progress.input_wait_fraction)]);
    if progress.skipped_records > 0 {
        table.row(["skipped records", &figures::count(progress.skipped_records)]);
    }
    figures::metric_rows(&mut table, "eval ", &job.eval);
    if let Some(checkpoint) = &job.checkpoint {
        table.row(["checkpoint", checkpoint]);
    }
    if let Some(best) = job.best_checkpoint.as_ref().filter(|&best| job.checkpoint.as_ref() != Some(best)) {
        table.row(["best checkpoint", best]);
    }
    table.render()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use millstream_control::proto::{JobProgress, MetricValue};

    use super::*;

    #[test]
    fn a_doubt_about_an_auc_of_nearly_1_names_the_command_that_measures_one_feature() {
        let of = |value| {
            let auc = MetricValue { name: "auc".into(), value: Some(value), error: None };
            Metrics { measured: vec![auc], ..Metrics::default() }
        };
        let job = |eval| Job { eval, ..Job::default() };
        let file = Path::new("clicks.toml");
        let doubt = |eval, file| doubt(&job(eval), file);
        let command = "millstream train clicks.toml --set 'model={kind=\"linear\", features=[\"FEATURE\"]}'";
        assert!(doubt(vec![of(0.99995)], Some(file)).unwrap().ends_with(command));
        // A linear model has one label, and a continued run may have no job file.
        for unknown in [doubt(vec![of(0.5), of(1.0)], Some(file)), doubt(vec![of(1.0)], None)] {
            assert!(unknown.is_some_and(|doubt| doubt.ends_with("without it")));
        }
        assert_eq!(doubt(vec![of(0.99)], Some(file)), None);
    }

    #[test]
    fn outcome_is_the_document_that_train_prints() {
        let mut job = Job { id: "census-1".into(), checkpoint: Some("/c/step-3".into()), ..Job::default() };
        job.set_state(JobState::Succeeded);
        job.progress = Some(JobProgress {
            step: 3,
            examples: 700,
            examples_per_second: 10.5,
            input_wait_fraction: 0.25,
            ..JobProgress::default()
        });
        let auc = MetricValue { name: "auc".into(), value: Some(0.5), error: None };
        job.eval = vec![Metrics { measured: vec![auc], examples: 100, ..Metrics::default() }];
        let wanted = serde_json::json!({
            "job": "census-1", "state": "succeeded", "steps": 3, "examples": 700,
            "examples_per_second": 10.5, "input_wait_fraction": 0.25, "skipped_records": 0,
            "eval": { "auc": 0.5, "examples": 100 },
            "checkpoint": "/c/step-3", "best_checkpoint": null, "reason": null,
        });
        assert_eq!(serde_json::to_value(OutcomeJson::from(&job)).unwrap(), wanted);
    }
}
