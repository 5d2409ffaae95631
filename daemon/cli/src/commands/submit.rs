//! `millstream submit`: submits a job to the daemon.

use crate::arguments::Submitted;
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;
use crate::job_file;

pub(crate) async fn run(arguments: Submitted, context: &Context) -> Result<(), Failure> {
    let (request, _) = job_file::request(&arguments, context)?;
    let job = to_daemon(context).await?.submit(request).await?;
    context.answer(&job, || job.id.clone())
}
