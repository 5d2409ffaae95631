//! `millstream checkpoint`: saves a checkpoint of a running job.

use crate::arguments::JobId;
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;

pub(crate) async fn run(arguments: JobId, context: &Context) -> Result<(), Failure> {
    let taken = to_daemon(context).await?.checkpoint(&arguments.id).await?;
    context.answer(&taken, || taken.path.clone())
}
