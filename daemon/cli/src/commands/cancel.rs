//! `millstream cancel` and `millstream pause`: save a checkpoint of a job and stop it.

use millstream_control::proto::Job;

use crate::arguments::JobId;
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;

pub(crate) async fn run(arguments: JobId, context: &Context) -> Result<(), Failure> {
    let job = to_daemon(context).await?.cancel(&arguments.id).await?;
    context.answer(&job, || describe(&job))
}

pub(crate) async fn pause(arguments: JobId, context: &Context) -> Result<(), Failure> {
    let job = to_daemon(context).await?.pause(&arguments.id).await?;
    context.answer(&job, || describe(&job))
}

fn describe(job: &Job) -> String {
    let step = figures::count(job.progress.unwrap_or_default().step);
    let checkpoint = job.checkpoint.as_ref().map(|path| format!("; checkpoint {path}"));
    format!("{} {} at step {step}{}", job.id, job.state().name(), checkpoint.unwrap_or_default())
}
