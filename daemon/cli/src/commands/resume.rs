//! `millstream resume`: queues an ended job again.

use crate::arguments::JobId;
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;

pub(crate) async fn run(arguments: JobId, context: &Context) -> Result<(), Failure> {
    let job = to_daemon(context).await?.resume(&arguments.id).await?;
    context.answer(&job, || job.id.clone())
}
