//! `millstream train`: a job from its file to its end.

use std::path::Path;
use std::time::Duration;

use millstream_control::proto::{History, Job, JobState};
use millstream_control::{Client, ClientError, Replies};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::arguments::Train;
use crate::commands::history::Form;
use crate::connection::Connection;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::interrupt;
use crate::job_file::{self, JobText};
use crate::messages::{OutcomeJson, given, has_ended, known};
use crate::progress::ProgressView;
use crate::screen::Screen;
use crate::table::Table;

/// How long the last lines of a job's log are waited for once it has ended.
const LAST_LINES: Duration = Duration::from_secs(1);

pub(crate) async fn run(arguments: Train, context: &Context) -> Result<(), Failure> {
    let form = arguments.history.as_deref().map(Form::of).transpose()?;
    let JobText { text, told } = job_file::read(&arguments.job, context)?;
    let request = job_file::request(&arguments.job, text, arguments.resume)?;
    let asked_to_stop = interrupt::listen()?;
    let mut connection = Connection::or_host(context).await?;
    let job = connection.client.submit(request).await?;
    if !connection.is_hosted() {
        let told = format!("job {} runs in the daemon; Ctrl-C stops it after a checkpoint", job.id);
        context.screen.note(&told);
    }
    let outcome = follow(&mut connection.client, &job.id, told, asked_to_stop, &context.screen).await;
    let history = match &outcome {
        Ok(job) if form.is_some() => Some(connection.client.history(&job.id).await),
        _ => None,
    };
    connection.close().await;
    let job = outcome?;
    let answered = if context.json {
        context.document(&OutcomeJson::from(&job))
    } else if job.progress.is_some_and(|progress| progress.step > 0) {
        context.print(&summary(&job))
    } else {
        Ok(())
    };
    // How the job went is told by the exit status too, whoever reads the answer.
    if let Err(failure) = answered
        && !matches!(failure, Failure::ReaderGone)
    {
        return Err(failure);
    }
    let kept = match (form, &arguments.history, history) {
        (Some(form), Some(path), Some(history)) => keep_history(form, path, history, &context.screen),
        _ => Ok(()),
    };
    match job.state() {
        JobState::Succeeded => kept,
        JobState::Cancelled => {
            context.screen.note(&format!("job {} was stopped; --resume goes on with it", job.id));
            Err(Failure::Told)
        }
        _ => {
            context.screen.error(&format!("job {} failed: {}", job.id, job.reason));
            Err(Failure::Told)
        }
    }
}

/// Writes a job's history to a file. How the job went is still to be told when that fails.
fn keep_history(
    form: Form,
    path: &Path,
    history: Result<History, ClientError>,
    screen: &Screen,
) -> Result<(), Failure> {
    let written = history.map_err(Failure::from).and_then(|history| form.write(path, &history));
    written.map_err(|failure| {
        screen.error(&format!("the job's history is not kept: {failure}"));
        Failure::Told
    })
}

/// Shows a job until it has ended, and stops it when asked to.
async fn follow(
    client: &mut Client,
    id: &str,
    told: Vec<String>,
    mut asked_to_stop: watch::Receiver<bool>,
    screen: &Screen,
) -> Result<Job, Failure> {
    let log = follow_log(client.clone(), id.to_owned(), told, screen.clone());
    let mut jobs = client.watch(id).await?;
    let mut view = ProgressView::new(screen);
    let mut stopping: Option<JoinHandle<Result<Job, ClientError>>> = None;
    let job = loop {
        tokio::select! {
            job = next(&mut jobs) => {
                let job = job?;
                view.update(&job);
                if has_ended(&job) {
                    break job;
                }
            }
            _ = asked_to_stop.wait_for(|&asked| asked), if stopping.is_none() => {
                screen.line("stopping after a checkpoint; press again to quit at once");
                let (mut client, id) = (client.clone(), id.to_owned());
                stopping = Some(tokio::spawn(async move { client.cancel(&id).await }));
            }
        }
    };
    view.finish();
    // Its end says nothing that the job does not; lines that come too late are in the daemon's log.
    let _ = tokio::time::timeout(LAST_LINES, log).await;
    Ok(job)
}

async fn next(jobs: &mut Replies<Job>) -> Result<Job, ClientError> {
    let ended =
        || ClientError::Lost("the daemon stopped; it takes the job up again at its next start".into());
    jobs.next().await?.ok_or_else(ended)
}

/// Prints the warnings in a job's log, in the background, but for those that were `told`. An error ends the
/// job, and is told with its end.
fn follow_log(mut client: Client, id: String, told: Vec<String>, screen: Screen) -> JoinHandle<()> {
    tokio::spawn(async move {
        let Ok(mut lines) = client.logs(&id, true).await else { return };
        while let Ok(Some(line)) = lines.next().await {
            if line.level == "warn" && !told.iter().any(|told| line.text.ends_with(told)) {
                screen.warning(&line.text);
            }
        }
    })
}

fn summary(job: &Job) -> String {
    let progress = job.progress.unwrap_or_default();
    let mut table = Table::default();
    table.row(["job", &job.id]);
    table.row(["steps", &figures::count(progress.step)]);
    table.row(["examples", &figures::count(progress.examples)]);
    table.row(["examples/s", &figures::rate(progress.examples_per_second)]);
    table.row(["input wait", &figures::percent(progress.input_wait_fraction)]);
    if let Some(skipped) = known(progress.skipped_records) {
        table.row(["records left out", &figures::count(skipped)]);
    }
    figures::metric_rows(&mut table, "eval ", &job.eval);
    if let Some(checkpoint) = given(&job.checkpoint) {
        table.row(["checkpoint", checkpoint]);
    }
    table.render()
}
