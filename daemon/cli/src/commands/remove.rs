//! `millstream remove`: deletes an ended job's record.

use crate::arguments::JobId;
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;

pub(crate) async fn run(arguments: JobId, context: &Context) -> Result<(), Failure> {
    let job = to_daemon(context).await?.remove(&arguments.id).await?;
    context.answer(&job, || format!("{} removed; its files stay in {}", job.id, job.directory))
}
