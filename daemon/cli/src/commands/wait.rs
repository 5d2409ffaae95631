//! `millstream wait` and `millstream watch`: wait for the end of a job.

use millstream_control::Client;
use millstream_control::proto::{Job, JobState};

use crate::arguments::JobId;
use crate::commands::train::{next, watch as watch_job};
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;
use crate::progress::ProgressView;

pub(crate) async fn wait(arguments: JobId, context: &Context) -> Result<(), Failure> {
    let mut client = to_daemon(context).await?;
    let job = follow(&mut client, &arguments.id, |_| {}).await?;
    finish(&job, context)
}

pub(crate) async fn watch(arguments: JobId, context: &Context) -> Result<(), Failure> {
    let mut client = to_daemon(context).await?;
    let mut view = ProgressView::new(&context.screen);
    let job = follow(&mut client, &arguments.id, |job| view.update(job)).await;
    view.finish();
    finish(&job?, context)
}

/// Passes each state of a job to `show` until the job has ended.
async fn follow(client: &mut Client, id: &str, mut show: impl FnMut(&Job)) -> Result<Job, Failure> {
    let mut jobs = watch_job(client, id).await?;
    loop {
        let job = next(&mut jobs).await?;
        show(&job);
        if job.state().is_final() {
            return Ok(job);
        }
    }
}

/// Prints how a job ended, which is also the result.
fn finish(job: &Job, context: &Context) -> Result<(), Failure> {
    let reason = job.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let ended = format!("{} {}{reason}", job.id, job.state());
    if context.json {
        context.document(job)?;
    }
    match job.state() {
        JobState::Succeeded if context.json => Ok(()),
        JobState::Succeeded => context.print(&ended),
        _ => {
            context.screen.error(&format!("job {ended}"));
            Err(Failure::AlreadyReported)
        }
    }
}
